"""Memory of freed arrays on CPUs, which the C library keeps for the next ones.

By itself glibc maps every array above 32 MiB on its own and unmaps it at the end. The
system then hands out the memory of each new one page by page, filled with zeros, which
takes longer than most operations on it.
"""

import ctypes
import functools
import mmap
import os
import platform

from keras_bandgnn.ops.backend import current as backend

# Set to 0 to leave the C library as it is.
VARIABLE = "KERAS_BANDGNN_KEEP_MEMORY"
# Settings of the user's own.
_SETTINGS = (
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_TRIM_THRESHOLD_",
)
# Parameters of `mallopt` in glibc.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
# The size and alignment of a large page, bytes.
_LARGE_PAGE = 1 << 21


def share_heap() -> bool:
    """Let threads that begin from now on share one heap, where XLA runs on the CPU.

    XLA allocates in threads of its own. By itself glibc gives each thread a heap of
    small pieces, and all larger arrays there go back to the system whatever
    `keep_freed` says. Call it before the threads begin: before the first array.

    Returns:
        Whether they share it.
    """
    if not backend.allocates_in_threads() or not _may_be_set():
        return False
    return bool(ctypes.CDLL(None).mallopt(_ARENA_MAX, 1))


@functools.cache
def keep_freed() -> bool:
    """Keep the memory of freed arrays in this process, from now on.

    Where the system allows it, the memory has large pages, which are found faster.
    Nothing changes where a GPU or TPU computes, without glibc (on macOS and Windows),
    with the user's own settings of malloc, or with `KERAS_BANDGNN_KEEP_MEMORY=0` in
    the environment.

    Returns:
        Whether it is kept.
    """
    if not _may_be_set() or backend.has_accelerator():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # Arrays that are mapped on their own are never kept.
    kept = mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, -1)
    if kept:
        _reserve()
    return bool(kept)


def give_back() -> None:
    """Give what is kept back to the system."""
    if keep_freed():
        ctypes.CDLL(None).malloc_trim(0)
        _reserve()


def _may_be_set() -> bool:
    own = any(name in os.environ for name in _SETTINGS)
    own = own or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    off = os.environ.get(VARIABLE, "").strip().lower() in ("0", "false", "no", "off")
    return not own and not off and platform.libc_ver()[0] == "glibc"


def _reserve() -> None:
    """Give the heap addresses that are to have large pages, without memory yet."""
    if not hasattr(mmap, "MADV_HUGEPAGE") or _counts_addresses():
        return
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    size = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 2
    piece = library.malloc(size)
    if piece is None:
        return
    start = -(-piece // _LARGE_PAGE) * _LARGE_PAGE
    library.madvise(start, size - (start - piece), mmap.MADV_HUGEPAGE)
    # It stays at the end of the heap.
    library.free(piece)


def _counts_addresses() -> bool:
    """Whether addresses without memory count against a limit."""
    import resource

    limits = resource.RLIMIT_AS, resource.RLIMIT_DATA
    if any(resource.getrlimit(each)[0] != resource.RLIM_INFINITY for each in limits):
        return True
    try:
        with open("/proc/sys/vm/overcommit_memory") as file:
            return file.read().strip() == "2"
    except OSError:
        return True
