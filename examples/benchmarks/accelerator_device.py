"""The device of the current backend: its memory, its errors and its precision."""

import contextlib
import gc
from collections.abc import Iterator

import keras

_OUT_OF_MEMORY = ("out of memory", "resource_exhausted", "resourceexhausted")


def kind() -> str:
    """Return "cpu", "gpu" or "tpu"."""
    from keras_bandgnn.ops.backend import current

    return current.device()[0]


def count() -> int:
    """Return the number of accelerators, or of JAX's devices."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.device_count()
    if backend == "torch":
        import torch

        return torch.accelerator.device_count()
    import tensorflow as tf

    return len(tf.config.list_physical_devices("GPU"))


def memory() -> float | None:
    """Return the GiB of the device's memory, or None if that is not known."""
    backend = keras.backend.backend()
    if backend == "jax":
        found = _jax_statistics().get("bytes_limit")
    elif backend == "torch":
        import torch

        found = None
        if torch.cuda.is_available():
            found = torch.cuda.get_device_properties(0).total_memory
    else:
        # TensorFlow does not say.
        found = None
    return None if found is None else found / 2**30


def _jax_statistics() -> dict:
    import jax

    # None on CPUs.
    return jax.local_devices()[0].memory_stats() or {}


class Peak:
    """The peak of the device's memory since it was made.

    torch and TensorFlow forget earlier peaks. JAX does not: a peak below an earlier one
    is not known there.
    """

    def __init__(self):
        self.backend, self.before = keras.backend.backend(), None
        if self.backend == "jax":
            self.before = _jax_statistics().get("peak_bytes_in_use")
        elif self.backend == "torch":
            import torch

            if torch.cuda.is_available():
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
        elif kind() == "gpu":
            import tensorflow as tf

            tf.config.experimental.reset_memory_stats("GPU:0")

    def gib(self) -> float | None:
        """Return the peak in GiB, or None if it is not known."""
        found = None
        if self.backend == "jax":
            now = _jax_statistics().get("peak_bytes_in_use")
            if now is not None and self.before is not None and now > self.before:
                found = now
        elif self.backend == "torch":
            import torch

            if torch.cuda.is_available():
                found = torch.cuda.max_memory_allocated()
        elif kind() == "gpu":
            import tensorflow as tf

            found = tf.config.experimental.get_memory_info("GPU:0")["peak"]
        return None if found is None else found / 2**30


def release() -> None:
    """Give back the memory of what nothing refers to any more."""
    gc.collect()
    if keras.backend.backend() == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device had too little memory."""
    if isinstance(error, MemoryError):
        return True
    text = f"{type(error).__name__}: {error}".lower()
    return any(words in text for words in _OUT_OF_MEMORY)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Compute products of float32 in float32, not in TF32 or bfloat16."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        with jax.default_matmul_precision("highest"):
            yield
    elif backend == "torch":
        import torch

        before = torch.get_float32_matmul_precision()
        products = [torch.backends.mkldnn.matmul, torch.backends.cuda.matmul]
        settings = [product.fp32_precision for product in products]
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
            # Which the setting above changes, too.
            for product, setting in zip(products, settings, strict=True):
                product.fp32_precision = setting
    else:
        import tensorflow as tf

        before = tf.config.experimental.tensor_float_32_execution_enabled()
        tf.config.experimental.enable_tensor_float_32_execution(False)
        try:
            yield
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(before)


def torch_device() -> str:
    """Return the device of peers that run in torch beside ours."""
    if kind() == "cpu":
        return "cpu"
    import torch

    return torch.accelerator.current_accelerator().type
