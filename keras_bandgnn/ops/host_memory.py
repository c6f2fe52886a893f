"""Memory of freed arrays on CPUs, which the C library keeps for the next ones.

By itself glibc maps every array above 32 MiB on its own and unmaps it at the end. The
system then hands out the memory of each new one page by page, filled with zeros, which
takes longer than most operations on it.
"""

import ctypes
import functools
import os
import platform

from keras_bandgnn.ops.backend import current as backend

# Set to 0 to leave the C library as it is.
VARIABLE = "KERAS_BANDGNN_KEEP_MEMORY"
# Settings of the user's own.
_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_")
# Parameters of `mallopt` in glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
# Larger arrays go back to the system one by one.
_LARGEST_KEPT = 1 << 30


@functools.cache
def keep_freed() -> bool:
    """Keep the memory of freed arrays up to 1 GiB in this process, from now on.

    Nothing changes where a GPU or TPU computes, without glibc (on macOS and Windows),
    with the user's own settings of malloc, or with `KERAS_BANDGNN_KEEP_MEMORY=0` in
    the environment.

    Returns:
        Whether it is kept.
    """
    own = any(name in os.environ for name in _SETTINGS)
    own = own or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    off = os.environ.get(VARIABLE, "").strip().lower() in ("0", "false", "no", "off")
    if own or off or backend.has_accelerator():
        return False
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    if not mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT):
        # Before version 2.35 no threshold is above 32 MiB, but none may be set at all.
        mallopt(_MMAP_MAX, 0)
    return bool(mallopt(_TRIM_THRESHOLD, -1))


def give_back() -> None:
    """Give what is kept back to the system."""
    if keep_freed():
        ctypes.CDLL(None).malloc_trim(0)
