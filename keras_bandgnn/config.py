"""Explicit settings: the process that a model runs in, and the folder of caches.

Importing the library, `fit`, `evaluate` and `predict` leave the process as it was. What
speeds up a whole process is one call of `tune_process`, which says what it did.
"""

import ctypes
import mmap
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

from keras_bandgnn.checks import as_path, boolean
from keras_bandgnn.default_backend import configured_backend

__all__ = ["cache_folder", "restore_process", "set_cache_folder", "tune_process"]

# Settings with which a user has configured malloc.
_MALLOC_VARIABLES = (
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
)
# Parameters of `mallopt` in glibc. Setting any ends its adaptive thresholds, so that
# these are restored to the largest that they reach.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8
_DEFAULTS = {
    _TRIM_THRESHOLD: 64 << 20,
    _MMAP_THRESHOLD: 32 << 20,
    _MMAP_MAX: 65536,
    _ARENA_MAX: 0,
}
# The size and alignment of a large page, bytes.
_LARGE_PAGE = 1 << 21
# Rows, inner size and columns of the products that are compared; the first is timed.
_PRODUCTS = ((1024, 128, 128), (300, 50, 64), (77, 200, 1))
# Rounding of sums in float32, as a share of that of absolute values.
_ROUNDING = 1e-5
# The largest share of MKL's time at which oneDNN is worth it.
_MAX_SHARE = 0.7
# Timings of either library; the shortest counts.
_MIN_TIMINGS, _MAX_TIMINGS = 5, 40

_CACHE_VARIABLE = "KERAS_BANDGNN_DATA"
_active = {"memory": False, "products": False}
_cache_folder: Path | None = None


def tune_process(memory: bool = True, products: bool = True) -> dict[str, str]:
    """Speed up training on CPUs by settings that hold for the whole process.

    Call it once, before the first step and, on JAX, before the first array. Scripts
    that own their process may do so, as the `bandgnn` commands do; a library must not.
    `restore_process` takes it back.

    Args:
        memory: Let malloc of glibc (Linux) reuse the memory of freed arrays, on large
            pages where the system has them, and from one heap for threads that start
            from now on. By default each array above 32 MiB is mapped anew, and clearing
            its pages takes longer than most operations. Half of the physical memory is
            reserved as addresses. The process keeps its largest size.
        products: Let torch multiply float32 matrices on the CPU by oneDNN, if it is as
            exact as MKL here and at least 1.4 times as fast, as on AMD's Zen 5. Tries
            both, which takes some milliseconds. Small products start about 10
            microseconds later.

    Returns:
        For each setting that was asked for, what was done or why nothing was.

    Example:
    >>> from keras_bandgnn import config
    >>> report = config.tune_process(products=False)
    >>> sorted(report)
    ['memory']
    >>> config.restore_process()
    """
    boolean("memory", memory)
    boolean("products", products)
    report = {}
    if memory:
        report["memory"] = _keep_memory()
    if products:
        report["products"] = _use_onednn()
    return report


def restore_process() -> None:
    """Undo `tune_process`, and return freed memory to the system.

    Threads that share one heap keep sharing it.
    """
    if _active["memory"]:
        library = ctypes.CDLL(None)
        for parameter, value in _DEFAULTS.items():
            library.mallopt(parameter, value)
        library.malloc_trim(0)
        _active["memory"] = False
    if _active["products"]:
        _set_products(False)


def products_by_onednn() -> bool:
    """Return whether torch multiplies by oneDNN since `tune_process`."""
    return _active["products"]


def cache_folder() -> Path:
    """Return the folder of downloads, measured hardware and findings.

    That of `set_cache_folder`, of `KERAS_BANDGNN_DATA` in the environment, or
    `keras_bandgnn` in `XDG_CACHE_HOME` or `~/.cache`.
    """
    if _cache_folder is not None:
        return _cache_folder
    root = os.environ.get(_CACHE_VARIABLE)
    if not root:
        root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "keras_bandgnn"
    return Path(root).expanduser()


def set_cache_folder(path: str | os.PathLike | None) -> None:
    """Set the folder of caches for this process; None for the default.

    Raises:
        ValueError: If `path` is not a path.
    """
    global _cache_folder
    _cache_folder = None if path is None else as_path("path", path).expanduser()


def total_memory() -> float:
    """Return the memory of the machine, bytes; infinite if the system does not say."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return float("inf")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cpu_model() -> str:
    """Return the name of the processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else ()
    models = [line.partition(": ")[2].strip() for line in lines if "model name" in line]
    return models[0] if models else platform.processor() or platform.machine()


# === Memory ===


def _keep_memory() -> str:
    if platform.libc_ver()[0] != "glibc":
        return "unchanged: the C library is not glibc"
    configured = [name for name in _MALLOC_VARIABLES if name in os.environ]
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        configured.append("GLIBC_TUNABLES")
    if configured:
        return f"unchanged: configured by {', '.join(configured)}"
    if _active["memory"]:
        return "freed memory is reused already"
    library = ctypes.CDLL(None)
    # Arrays that are mapped on their own are never reused.
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, -1)
    library.mallopt(_ARENA_MAX, 1)
    _active["memory"] = True
    pages = ", on large pages" if _reserve_large_pages(library) else ""
    late = ", but not by threads of JAX, which started before"
    return f"freed memory is reused{pages}{late if _xla_has_threads() else ''}"


def _xla_has_threads() -> bool:
    threads = Path("/proc/self/task")
    if not threads.is_dir():
        return "jax" in sys.modules
    return any("XLA" in name.read_text() for name in threads.glob("*/comm"))


def _reserve_large_pages(library) -> bool:
    """Give the heap addresses with large pages, without memory yet."""
    if not hasattr(mmap, "MADV_HUGEPAGE") or _addresses_are_limited():
        return False
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    size = int(total_memory()) // 2
    address = library.malloc(size)
    if address is None:
        return False
    start = -(-address // _LARGE_PAGE) * _LARGE_PAGE
    status = library.madvise(start, size - (start - address), mmap.MADV_HUGEPAGE)
    # The addresses stay at the end of the heap.
    library.free(address)
    return status == 0


def _addresses_are_limited() -> bool:
    """Return whether addresses without memory count against a limit."""
    import resource

    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        if resource.getrlimit(limit)[0] != resource.RLIM_INFINITY:
            return True
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    except OSError:
        return True


# === Products of matrices ===


def _use_onednn() -> str:
    if _active["products"]:
        return "torch multiplies by oneDNN already"
    if not _backend_is_torch():
        return "unchanged: the backend is not torch"
    import torch

    settings = [torch.backends.mkldnn.matmul, torch.backends.cuda.matmul]
    if any(getattr(setting, "fp32_precision", "") != "none" for setting in settings):
        return "unchanged: the precision of products is set, or torch is before 2.9"
    if torch.cuda.is_available():
        return "unchanged: the setting would round products on the GPU"
    # Elsewhere products would be rounded, too: in AMX units, and by ARM's library.
    is_x86 = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    if not is_x86 or not torch.backends.mkldnn.is_available():
        return "unchanged: oneDNN is not here, or rounds products"
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        share = _onednn_share()
        if share > _MAX_SHARE:
            return f"unchanged: oneDNN takes {share:.2f} of the time of MKL"
        _set_products(True)
        if not _products_are_exact():
            _set_products(False)
            return "unchanged: oneDNN rounds products here"
    return f"torch multiplies by oneDNN, in {share:.2f} of the time of MKL"


def _backend_is_torch() -> bool:
    if hasattr(sys.modules.get("keras"), "config"):
        return sys.modules["keras"].config.backend() == "torch"
    return (os.environ.get("KERAS_BACKEND") or configured_backend()) == "torch"


def _set_products(by_onednn: bool) -> None:
    """Choose oneDNN, which torch uses while products may be rounded to bfloat16."""
    import torch

    torch.set_float32_matmul_precision("medium" if by_onednn else "highest")
    if not by_onednn:
        # torch.compile refuses settings that its older names contradict.
        torch.backends.mkldnn.matmul.fp32_precision = "none"
        torch.backends.cuda.matmul.fp32_precision = "none"
    _active["products"] = by_onednn


def _onednn_share() -> float:
    """Return the time of a product by oneDNN as a share of that by MKL."""
    a, b = _factors(*_PRODUCTS[0])
    mkl = onednn = float("inf")
    for number in range(_MAX_TIMINGS):
        # Other work on the machine must not decide.
        if number >= _MIN_TIMINGS and onednn <= _MAX_SHARE * mkl:
            break
        mkl = min(mkl, _seconds(lambda: a @ b))
        _set_products(True)
        try:
            onednn = min(onednn, _seconds(lambda: a @ b))
        finally:
            _set_products(False)
    return onednn / mkl


def _seconds(call: Callable) -> float:
    call()  # the first product of a shape makes its program
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _products_are_exact() -> bool:
    """Return whether products are rounded as sums in float32 are."""
    for shape in _PRODUCTS:
        a, b = _factors(*shape)
        for x, y in ((a, b), (b.T, a.T), (b.T.contiguous(), a.T)):
            error = float((x @ y - x.double() @ y.double()).abs().max())
            if error > _ROUNDING * float((x.abs() @ y.abs()).max()):
                return False
    return True


def _factors(rows: int, inner: int, columns: int) -> tuple:
    """Return matrices of numbers with more digits than bfloat16 holds."""
    import torch

    a = torch.arange(1, rows * inner + 1, dtype=torch.float32)
    b = torch.arange(1, inner * columns + 1, dtype=torch.float32)
    return torch.sin(a).reshape(rows, inner), torch.cos(b).reshape(inner, columns)
