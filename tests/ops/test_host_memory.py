"""Freed memory stays with the process while a task trains on a CPU."""

import os
import platform
import subprocess
import sys
import types

import keras
import pytest

from keras_bandgnn import heap
from keras_bandgnn.ops import host_memory
from keras_bandgnn.ops.backend import current as backend

on_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or backend.has_accelerator(),
    reason="of glibc, where a CPU computes",
)
# Pages that a second array of 256 MiB needs anew, and the MiB held at the end.
SCRIPT = """
import ctypes, resource
from keras_bandgnn.ops import host_memory

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def use():
    piece = library.malloc(256 << 20)
    ctypes.memset(piece, 1, 256 << 20)
    library.free(piece)

def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 20

kept, before = host_memory.keep_freed(), held()
use()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
while_kept = held() - before
host_memory.give_back()
print(kept, faults > 1000, while_kept > 200, held() - before > 100)
"""

# Pages that the second run of a program needs anew, which allocates in a thread.
IN_THREADS = """
import resource
import keras_bandgnn
from keras_bandgnn.ops import host_memory
import jax, jax.numpy as jnp

host_memory.keep_freed()
run = jax.jit(lambda x: jnp.sort(jnp.cumsum(x[:, None] * x, axis=1), axis=1)[:, 0])
x = jnp.ones(4096)
run(x).block_until_ready()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
run(x).block_until_ready()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
print(faults > 4000)
"""
# Addresses are reserved, but not where they are limited.
LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
"""
RESERVED = """
import os
from keras_bandgnn.ops import host_memory

def addresses():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0])

before = addresses()
host_memory.keep_freed()
print(addresses() - before > os.sysconf("SC_PHYS_PAGES") // 4)
"""


def result(script=SCRIPT, **settings) -> list[bool]:
    given = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**given, **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    return [word == "True" for word in done.stdout.split()[-4:]]


@on_glibc
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
def test_memory_is_used_again_and_given_back():
    assert result() == [True, False, True, False]
    assert result(LIMITED + SCRIPT) == [True, False, True, False]
    assert result(LIMITED + RESERVED) == [False]
    with open("/proc/sys/vm/overcommit_memory") as file:
        assert result(RESERVED) == [file.read().strip() != "2"]


def test_the_heap_is_shared_where_xla_runs_on_the_cpu(monkeypatch):
    library = types.SimpleNamespace(mallopt=lambda *_: 1)

    def plugin(name):
        return name if name == "jax_plugins" else None

    on_jax = keras.backend.backend() == "jax"
    monkeypatch.setattr(heap, "may_be_set", lambda: True)
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda _: library)
    monkeypatch.setitem(sys.modules, "jax", None)
    for platforms, shared in {"cpu": on_jax, "cuda": False, "cuda,cpu": False}.items():
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        assert heap.share_heap() == shared
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert not heap.share_heap()
    monkeypatch.delenv("MALLOC_ARENA_MAX")
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(heap.importlib.util, "find_spec", plugin)
    assert not heap.share_heap()


@on_glibc
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="of XLA's threads")
def test_threads_of_the_backend_use_memory_again():
    assert result(IN_THREADS) == [False]
    assert result(IN_THREADS, **{heap.VARIABLE: "0"}) == [True]


@on_glibc
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
@pytest.mark.parametrize(
    "setting",
    [
        {heap.VARIABLE: "0"},
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
)
def test_settings_of_others_stay(setting):
    assert result(**setting) == [False, True, False, False]


def test_other_systems_are_left_as_they_are(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not host_memory.keep_freed.__wrapped__()
    assert not heap.share_heap()
