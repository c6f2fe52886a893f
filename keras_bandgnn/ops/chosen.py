"""The functions of the backend in use."""

import importlib

import keras

if keras.backend.backend() not in ("jax", "tensorflow", "torch"):
    raise ImportError(
        "Expected KERAS_BACKEND to be 'jax', 'tensorflow' or 'torch'. "
        f"Received: {keras.backend.backend()!r}."
    )

_backend = importlib.import_module(
    f"keras_bandgnn.ops.backend.{keras.backend.backend()}"
)
flat_scatter_add = _backend.scatter_add
USES_TRANSPOSE = _backend.USES_TRANSPOSE
# Of torch alone, where eager operations wait for memory.
fused_edge_attention = getattr(_backend, "flat_edge_attention", None)
fused_filtered_sum = getattr(_backend, "filtered_sum", None)
flat_gather_rows = _backend.flat_gather_rows
flat_gathered_grouped_matmul = _backend.flat_gathered_grouped_matmul
flat_grouped_matmul = _backend.flat_grouped_matmul
flat_sparse_matmul = _backend.flat_sparse_matmul
gather = _backend.gather
gated_update = _backend.gated_update
has_accelerator = _backend.has_accelerator
seed_global = _backend.seed_global
segment_max = _backend.segment_max
segment_sum = _backend.segment_sum
value_and_gradient = _backend.value_and_gradient
waiting_step = _backend.waiting_step
