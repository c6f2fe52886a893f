"""Settings of the process and the folder of caches."""

import os
import platform
import subprocess
import sys
import types

import pytest

from keras_bandgnn import config

pytestmark = pytest.mark.every_backend

on_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not os.path.exists("/proc/self/statm"),
    reason="reads /proc, and sets malloc of glibc",
)
# As the command, which does not import Keras with the library.
USE = """
import ctypes, resource, sys
sys.argv[0] = "bandgnn"
from keras_bandgnn import config

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def use(size=256 << 20):
    address = library.malloc(size)
    ctypes.memset(address, 1, size)
    library.free(address)

def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 20

def new_pages(size=256 << 20):
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    use(size)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
"""
TUNED = """
report = config.tune_process(products=False)["memory"]
before = held()
use()
print(new_pages() > 1000, held() - before > 200)
config.restore_process()
print(held() - before > 100, new_pages() > 100)
# Arrays that glibc would reuse by itself.
use(8 << 20)
print(new_pages(8 << 20) > 100)
print(report)
"""
PLAIN = "use(); print(new_pages() > 100)"
LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
"""
IN_THREADS = """
import resource, sys
sys.argv[0] = "bandgnn"
from keras_bandgnn import config

if {tuned}:
    assert "threads of JAX" not in config.tune_process()["memory"]
import jax, jax.numpy as jnp

run = jax.jit(lambda x: jnp.sort(jnp.cumsum(x[:, None] * x, axis=1), axis=1)[:, 0])
x = jnp.ones(4096)
run(x).block_until_ready()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
run(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults > 4000)
"""


def output(script: str, **variables) -> list[str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    process = subprocess.run(
        [sys.executable, "-c", script],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout.split()


@on_glibc
@pytest.mark.parametrize("limits", ["", LIMITED], ids=["free", "limited"])
def test_memory_is_reused_until_it_is_restored(limits):
    assert output(USE + PLAIN) == ["True"]
    words = output(limits + USE + TUNED)
    assert words[:5] == ["False", "True", "False", "True", "False"]
    assert " ".join(words[5:]).startswith("freed memory is reused")
    assert not limits or "pages" not in words


@on_glibc
@pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND") != "jax", reason="of the threads of XLA"
)
@pytest.mark.release(elsewhere=True)
def test_threads_share_the_memory():
    late = IN_THREADS.format(tuned=False) + "print(config.tune_process()['memory'])"
    assert "not by threads of JAX" in " ".join(output(late))
    assert output(IN_THREADS.format(tuned=False)) == ["True"]
    assert output(IN_THREADS.format(tuned=True)) == ["False"]


@on_glibc
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "131072"),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=2"),
    ],
)
def test_settings_of_the_user_stay(name, value):
    words = output(USE + TUNED, **{name: value})
    assert " ".join(words[5:]) == f"unchanged: configured by {name}"


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    report = config.tune_process(products=False)
    assert report == {"memory": "unchanged: the C library is not glibc"}


def test_products_need_torch(monkeypatch):
    monkeypatch.setattr(config, "_backend_is_torch", lambda: False)
    report = config.tune_process(memory=False)
    assert report == {"products": "unchanged: the backend is not torch"}


@pytest.fixture
def torch_settings():
    """What torch says of the precision of products; restored after the test."""
    torch = pytest.importorskip("torch")
    if os.environ.get("KERAS_BACKEND") != "torch":
        pytest.skip("of torch")
    settings = [torch.backends.mkldnn.matmul, torch.backends.cuda.matmul]

    def read():
        precision = torch.get_float32_matmul_precision()
        return precision, [setting.fp32_precision for setting in settings]

    before = read()
    yield read
    config.restore_process()
    assert read() == before


def _times(shares):
    return iter([x for share in shares for x in (1.0, share)])


@pytest.mark.parametrize(("share", "active"), [(0.5, True), (0.9, False)])
def test_the_faster_exact_library_multiplies(
    share, active, torch_settings, monkeypatch
):
    before = torch_settings()
    times = _times([share] * 40)
    monkeypatch.setattr(config, "_seconds", lambda call: next(times))
    monkeypatch.setattr(config, "_products_are_exact", lambda: True)
    report = config.tune_process(memory=False)["products"]
    if "not here" in report or "GPU" in report:
        pytest.skip(report)
    assert config.products_by_onednn() == active
    assert (torch_settings() != before) == active
    assert f"{share:.2f}" in report
    config.restore_process()
    assert torch_settings() == before and not config.products_by_onednn()


def test_rounded_products_are_refused(torch_settings, monkeypatch):
    times = _times([0.1] * 40)
    monkeypatch.setattr(config, "_seconds", lambda call: next(times))
    monkeypatch.setattr(config, "_products_are_exact", lambda: False)
    before = torch_settings()
    assert config.tune_process(memory=False)["products"].startswith("unchanged")
    assert torch_settings() == before


def test_a_precision_of_the_user_stays(torch_settings):
    import torch

    torch.set_float32_matmul_precision("high")
    try:
        report = config.tune_process(memory=False)["products"]
        assert report.startswith("unchanged: the precision of products is set")
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        config._set_products(False)


def test_exactness_is_measured(monkeypatch):
    torch = pytest.importorskip("torch")
    multiply = torch.Tensor.__matmul__

    def rounded(a, b):
        product = multiply(a, b)
        return product.bfloat16().float() if product.dtype == torch.float32 else product

    with torch.no_grad():
        assert config._products_are_exact()
        monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
        assert not config._products_are_exact()


def test_folder_of_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BANDGNN_DATA", str(tmp_path / "variable"))
    assert config.cache_folder() == tmp_path / "variable"
    monkeypatch.delenv("KERAS_BANDGNN_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert config.cache_folder() == tmp_path / "xdg" / "keras_bandgnn"
    config.set_cache_folder(tmp_path / "set")
    try:
        assert config.cache_folder() == tmp_path / "set"
    finally:
        config.set_cache_folder(None)


def test_commands_tune_a_process_of_their_own_alone(monkeypatch, capsys):
    from keras_bandgnn.cli import main

    calls = []
    monkeypatch.setattr(config, "tune_process", lambda: calls.append("tuned"))
    monkeypatch.setattr(main, "choose_backend", lambda backend: None)
    missing = ["evaluate", "no-model", "no-data"]
    assert main.main(missing) == 1 and not calls
    monkeypatch.setattr(main.sys, "argv", ["bandgnn", *missing])
    monkeypatch.setattr(main.interrupts, "handle_signals", lambda **options: _Nothing())
    with pytest.raises(SystemExit):
        main.command()
    assert calls == ["tuned"]


class _Nothing(types.SimpleNamespace):
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None
