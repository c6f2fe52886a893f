"""Which machine and backend this is."""

import importlib
import os
import platform
from pathlib import Path

import keras


def device() -> tuple[str, str]:
    """Kind of device in use, `"cpu"`, `"gpu"` or `"tpu"`, and its name."""
    backend = keras.backend.backend()
    return importlib.import_module(f"keras_bandgnn.ops.backend.{backend}").device()


def machine() -> dict:
    """What times depend on, beside the work: device, cores, versions."""
    kind, name = device()
    backend = keras.backend.backend()
    return {
        "device": _cpu_model() if kind == "cpu" else name,
        "kind": kind,
        "cores": os.cpu_count(),
        "backend": backend,
        "backend_version": importlib.import_module(backend).__version__,
        "keras_version": keras.version(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return models[0] if models else platform.machine()
