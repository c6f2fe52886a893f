"""Kernels of dense layers whose products other layers carry out themselves."""

from keras import ops


def dense_kernel(layer):
    """The kernel of a `Dense` as floating-point numbers, also after `quantize`.

    Args:
        layer: The layer; float32, or int8 with a scale per column.

    Returns:
        [K, U].
    """
    kernel = ops.convert_to_tensor(layer.kernel)
    if layer.quantization_mode is None:
        return kernel
    if layer.quantization_mode != "int8":
        raise ValueError(
            f"Expected {layer.path!r} in float32 or int8. "
            f"Received: {layer.quantization_mode!r}. Use quantize('int8')."
        )
    scale = ops.convert_to_tensor(layer.kernel_scale)
    return ops.cast(kernel, scale.dtype) / scale
