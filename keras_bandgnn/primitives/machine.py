"""Which machine and backend this is."""

import os
import platform
from pathlib import Path

import keras

from keras_bandgnn.ops.backend import current as backend


def device() -> tuple[str, str]:
    """Kind of device in use, `"cpu"`, `"gpu"` or `"tpu"`, and its name."""
    return backend.device()


def machine() -> dict:
    """What times depend on, beside the work: device, cores, versions."""
    kind, name = device()
    return {
        "device": _cpu_model() if kind == "cpu" else name,
        "kind": kind,
        "cores": os.cpu_count(),
        "backend": keras.backend.backend(),
        "backend_version": backend.version(),
        "keras_version": keras.version(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return models[0] if models else platform.machine()
