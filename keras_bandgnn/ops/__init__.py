"""Tensor functions that Keras lacks, or faster ones, with one API for all backends."""

from keras_bandgnn.ops.attention import edge_attention as edge_attention
from keras_bandgnn.ops.attention import full_attention as full_attention
from keras_bandgnn.ops.backend import current as _backend
from keras_bandgnn.ops.batched import batched_gather as batched_gather
from keras_bandgnn.ops.batched import batched_segment_max as batched_segment_max
from keras_bandgnn.ops.batched import batched_segment_sum as batched_segment_sum
from keras_bandgnn.ops.batched import offset_ids as offset_ids
from keras_bandgnn.ops.batched import scatter_add as scatter_add
from keras_bandgnn.ops.dropout import dropout as dropout
from keras_bandgnn.ops.sequence import over_devices as over_devices
from keras_bandgnn.ops.sparse import CSR as CSR
from keras_bandgnn.ops.sparse import CSRPair as CSRPair
from keras_bandgnn.ops.sparse import RowIndex as RowIndex
from keras_bandgnn.ops.sparse import gather_rows as gather_rows
from keras_bandgnn.ops.sparse import (
    gathered_grouped_matmul as gathered_grouped_matmul,
)
from keras_bandgnn.ops.sparse import grouped_matmul as grouped_matmul
from keras_bandgnn.ops.sparse import sparse_matmul as sparse_matmul
from keras_bandgnn.ops.sparse import with_pointer as with_pointer
from keras_bandgnn.ops.sparse import with_scatter_index as with_scatter_index
from keras_bandgnn.ops.sparse import with_transpose as with_transpose

# Internal to the library.
USES_TRANSPOSE = _backend.USES_TRANSPOSE
gather = _backend.gather
gated_update = _backend.gated_update
has_accelerator = _backend.has_accelerator
seed_global = _backend.seed_global
segment_max = _backend.segment_max
segment_sum = _backend.segment_sum
top_k = _backend.top_k
value_and_gradient = _backend.value_and_gradient
compiled_timer_step = _backend.compiled_timer_step

__all__ = [
    "CSR",
    "CSRPair",
    "RowIndex",
    "batched_gather",
    "batched_segment_max",
    "batched_segment_sum",
    "dropout",
    "edge_attention",
    "full_attention",
    "gather",
    "gather_rows",
    "gathered_grouped_matmul",
    "grouped_matmul",
    "offset_ids",
    "over_devices",
    "scatter_add",
    "segment_max",
    "segment_sum",
    "sparse_matmul",
    "with_scatter_index",
    "with_transpose",
]
