"""Tensor functions that Keras lacks or has slower, one file per backend."""

from keras_bandgnn.ops.batched import batched_gather as batched_gather
from keras_bandgnn.ops.batched import batched_segment_max as batched_segment_max
from keras_bandgnn.ops.batched import batched_segment_sum as batched_segment_sum
from keras_bandgnn.ops.batched import offset_ids as offset_ids
from keras_bandgnn.ops.batched import scatter_add as scatter_add
from keras_bandgnn.ops.chosen import *  # noqa: F403
from keras_bandgnn.ops.grouped import (
    gathered_grouped_matmul as gathered_grouped_matmul,
)
from keras_bandgnn.ops.grouped import grouped_matmul as grouped_matmul
from keras_bandgnn.ops.sparse import complete_gather as complete_gather
from keras_bandgnn.ops.sparse import complete_matrix as complete_matrix
from keras_bandgnn.ops.sparse import gather_rows as gather_rows
from keras_bandgnn.ops.sparse import sparse_matmul as sparse_matmul
