"""The state of a process that libraries can change, for scripts that compare it."""

import builtins
import ctypes
import faulthandler
import gc
import locale
import logging
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import warnings

import numpy as np

# Modules of the functions that run at forks.
at_fork: list[str] = []
_register_at_fork = os.register_at_fork


def _register(**functions):
    at_fork.extend(getattr(f, "__module__", "") or "" for f in functions.values())
    _register_at_fork(**functions)


os.register_at_fork = _register


def loggers():
    named = [logging.getLogger(), logging.getLogger("keras_bandgnn")]
    return [(log.level, list(log.handlers), log.propagate) for log in named]


def of_keras():
    keras = sys.modules.get("keras")
    if keras is None:
        return {}
    names = "floatx epsilon image_data_format dtype_policy "
    names += "is_traceback_filtering_enabled is_flash_attention_enabled"
    values = {
        f"keras {name}": str(getattr(keras.config, name)()) for name in names.split()
    }
    return {**values, "keras distribution": keras.distribution.distribution()}


def of_torch():
    torch = sys.modules.get("torch")
    if torch is None or os.environ["KERAS_BACKEND"] != "torch":
        return {}
    return {
        "torch precision": (
            torch.get_float32_matmul_precision(),
            torch.backends.mkldnn.matmul.fp32_precision,
            torch.backends.cuda.matmul.fp32_precision,
        ),
        "torch threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "torch dtype": torch.get_default_dtype(),
        "torch deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "torch autocast": torch.is_autocast_enabled("cpu"),
        "torch anomaly": torch.is_anomaly_enabled(),
        "torch random state": torch.get_rng_state().numpy().tobytes(),
        "torch sharing": torch.multiprocessing.get_sharing_strategy(),
    }


def of_jax():
    jax = sys.modules.get("jax")
    if jax is None or os.environ["KERAS_BACKEND"] != "jax":
        return {}
    return {f"jax {name}": value for name, value in jax.config.values.items()}


def of_tensorflow():
    tf = sys.modules.get("tensorflow")
    if tf is None or os.environ["KERAS_BACKEND"] != "tensorflow":
        return {}
    return {
        "tensorflow eager": tf.config.functions_run_eagerly(),
        "tensorflow jit": tf.config.optimizer.get_jit(),
        "tensorflow threads": (
            tf.config.threading.get_intra_op_parallelism_threads(),
            tf.config.threading.get_inter_op_parallelism_threads(),
        ),
        "tensorflow log": tf.get_logger().level,
    }


def new_pages():
    # Arrays of 64 MiB get new memory after others were freed, unless malloc is set.
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        address = library.malloc(64 << 20)
        ctypes.memset(address, 1, 64 << 20)
        library.free(address)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before > 100


def state() -> dict:
    """Return what `compared` compares, by name."""
    return {
        "sys.meta_path": list(sys.meta_path),
        "sys.path_hooks": list(sys.path_hooks),
        "sys.path": list(sys.path),
        "builtins.__import__": builtins.__import__,
        "sys.excepthook": sys.excepthook,
        "sys.unraisablehook": sys.unraisablehook,
        "sys.displayhook": sys.displayhook,
        "sys.trace": (sys.gettrace(), sys.getprofile()),
        "threading.excepthook": threading.excepthook,
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "os.environ": dict(os.environ),
        "working directory": os.getcwd(),
        "umask": [os.umask(mask := os.umask(0)), mask][1],
        "allocator": new_pages(),
        "forks": [name for name in at_fork if name.startswith("keras_bandgnn")],
        "signals": {n: signal.getsignal(n) for n in signal.valid_signals()},
        "faulthandler": faulthandler.is_enabled(),
        "affinity": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else 0,
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "warnings": list(warnings.filters),
        "showwarning": warnings.showwarning,
        "loggers": loggers(),
        "logging.disable": logging.root.manager.disable,
        "start method": multiprocessing.get_start_method(allow_none=True),
        "child processes": multiprocessing.active_children(),
        "threads": sorted(
            thread.name
            for thread in threading.enumerate()
            if not thread.name.startswith("ThreadPool")
        ),
        "garbage collector": (gc.isenabled(), gc.get_threshold(), list(gc.callbacks)),
        "frozen objects": gc.get_freeze_count() > 0,
        "recursion": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "locale": locale.setlocale(locale.LC_ALL),
        "numpy errors": np.geterr(),
        "numpy printing": np.get_printoptions(),
        "numpy random state": str(np.random.get_state()),
        **of_keras(),
        **of_torch(),
        **of_jax(),
        **of_tensorflow(),
    }


def compared(name, before, drawn=()):
    """Raise an error if an action changed more than the random states `drawn`."""
    for _ in range(40):
        now = state()
        changed = [k for k in {**before, **now} if before.get(k) != now.get(k)]
        changed = [k for k in changed if k not in drawn]
        if not changed:
            break
        time.sleep(0.05)  # Threads of other libraries end.
    for key in changed:
        print(
            name, "changed", key, before.get(key), "->", now.get(key), file=sys.stderr
        )
    assert not changed, name
