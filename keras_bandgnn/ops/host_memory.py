"""Memory of freed arrays on CPUs, which the C library keeps for the next ones.

By itself glibc maps every array above 32 MiB on its own and unmaps it at the end. The
system then hands out the memory of each new one page by page, filled with zeros, which
takes longer than most operations on it.
"""

import ctypes
import functools
import mmap
import os

from keras_bandgnn.heap import may_be_set
from keras_bandgnn.ops.backend import current as backend

# Parameters of `mallopt` in glibc.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
# The size and alignment of a large page, bytes.
_LARGE_PAGE = 1 << 21


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
    if not may_be_set() or backend.has_accelerator():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # Arrays that are mapped on their own are never kept.
    kept = mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, -1)
    if kept:
        _reserve()
    return bool(kept)


def total() -> float:
    """Return the memory of the machine, bytes; infinite if the system does not say."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return float("inf")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def give_back() -> None:
    """Give what is kept back to the system."""
    if keep_freed():
        ctypes.CDLL(None).malloc_trim(0)
        _reserve()


def _reserve() -> None:
    """Give the heap addresses that are to have large pages, without memory yet."""
    if not hasattr(mmap, "MADV_HUGEPAGE") or _counts_addresses():
        return
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    size = total() // 2
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
