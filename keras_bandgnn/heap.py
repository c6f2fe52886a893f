"""The heap of the C library, which all threads share where XLA runs on the CPU.

XLA allocates in threads of its own. By itself glibc gives each thread a small heap, and
an array that does not fit goes back to the system when it is freed, whatever
`ops.host_memory` says. A thread chooses its heap when it begins.
"""

import ctypes
import importlib.util
import os
import platform
import sys

from keras_bandgnn.default_backend import chosen_backend
from keras_bandgnn.switches import is_off

# Set to 0 to leave the C library as it is.
VARIABLE = "KERAS_BANDGNN_KEEP_MEMORY"
# Settings of the user's own.
_SETTINGS = (
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_TRIM_THRESHOLD_",
)
_ARENA_MAX = -8  # parameter of `mallopt` in glibc


def may_be_set() -> bool:
    """Return whether the C library has settings, and nobody chose them."""
    own = any(name in os.environ for name in _SETTINGS)
    own = own or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    return not own and not is_off(VARIABLE) and platform.libc_ver()[0] == "glibc"


def share_heap() -> bool:
    """Let threads that begin from now on share one heap, if XLA is to run on the CPU.

    Returns:
        Whether they share it.
    """
    if chosen_backend() != "jax" or not _on_cpu() or not may_be_set():
        return False
    if "MALLOC_ARENA_MAX" in os.environ:
        return False
    return bool(ctypes.CDLL(None).mallopt(_ARENA_MAX, 1))


def _on_cpu() -> bool:
    """Whether JAX is to run on the CPU, without starting it."""
    platforms = os.environ.get("JAX_PLATFORMS")
    if sys.modules.get("jax"):
        platforms = sys.modules["jax"].config.jax_platforms
    if platforms:
        return platforms == "cpu"
    return not any(map(importlib.util.find_spec, ("jax_plugins", "libtpu")))
