"""Backend implementations, one module per backend.

`current` is the module of the backend that Keras runs on, and the only place that
selects one. All modules have the same names. `ops` documents most of them, for all
backends (`ops.batched`, `ops.sparse`, `ops.loops`, `ops.remat`, `ops.attention`). The
others:

`flat_sparse_matmul(forward, backward, x)`
    A sparse matrix times rows [M, H], giving [N, H]. `forward` is a `CSR` without the
    axis G, so row ids [E] (sorted), column ids [E], pointers [N + 1] and entries [E] or
    None; `backward` is its transpose, for the gradient, where `USES_TRANSPOSE`.
`flat_gather_rows(index, backward, x)`
    Rows `x[index]`; `backward` is the transpose of the gather.
`flat_grouped_matmul(rows, kinds, kernel)`
    Rows [groups, R, H] times `kernel[kinds]`, kinds [groups] and kernel [P, H, U],
    giving [groups, R, U].
`flat_gathered_grouped_matmul(x, index, backward, kinds, kernel)`
    The same for the rows `x[index]`, which need not all be materialised at once.
`tile_matmul(tiles, x)`
    Dense tiles [G, K, Q, R, C] times rows [G, K, Q, C, H], summed over Q, giving
    [G, K, R, H]; see `primitives.banded`.
`value_and_gradient(function, x)`
    Values of a function of a tensor, or of a list of tensors, and the gradient of their
    sum, which is itself differentiable where gradients are recorded.
`compiled_timer_step(function, leaves, constants)`
    A function without arguments that computes `function(*leaves, *constants)`, one
    tensor, and the gradients of the leaves, and blocks until they are ready.
`watch_step(model, name, report)`
    "train_function", "test_function" or "predict_function" of a compiled model that
    does not run eagerly, wrapped to call `report(batch)` for each batch that triggers
    a compilation.
`sum_over_replicas(values)`
    The sum of a tensor over the devices of `data_parallel`, with its gradient.
`normalized_rows(rows, mask, scale, shift, averages, momentum, epsilon)`
    Batch normalisation of float32 rows [G, N, H] over those of the mask [G, N], with
    scale and shift [H] or None: the result, and new moving averages of mean and
    unbiased variance. None where it does not apply.
`column_sum(rows)`
    The sum of rows [M, H] over M.
`layer_normalization(rows, gamma, beta, epsilon)`
    Layer normalisation of rows [..., H] with scale and shift [H], in float32, or None
    where it does not apply.
`segment_attention(q, k, v, mask, num_heads)`
    `ops.full_attention` of float32 without biases and dropout, and without the
    log-sum-exp, for segments whose rows adjoin. None where it does not apply.
`affine(rows, kernel, bias)`
    `rows @ kernel + bias` of rows [M, H] as one operation, or None.
`lookup_sum(table, ids, weight)`
    See `ops.lookup`, for float32 tables; None where it does not apply.
`equal_values(values)`
    The groups of equal values [E], for `filtered_sum`.
`on_device(batch)`
    A batch of one device, its arrays copied there at once.
`step_data(data)`
    The arguments of a step of Keras, with arrays on the device: on torch
    `train_on_batch` and `predict_on_batch` pass arrays of the host, which a recorded
    step would not convert.
`batch_data(batch)`
    A batch of arrays as `fit` gives it to a step: tensors on the device, or None where
    the step converts them.
`random_states()`, `set_random_states(states)`
    The states of the global generators that dropout draws from; None where it draws
    from generators of its own.
`map_rows(function, arrays, size)`
    See `ops.remat.by_rows`: rows or a tuple of them, of arrays [R, ...] with at least
    `size` rows each.
`fused_edges`
    The operations of `ops.edges`; `apply_to(x, edges)`, whether they support a tensor
    and a number of edges; and `ends(sender, receiver, count)`, which converts the ends
    of edges between `count` nodes for them.
`top_k(values, k)`
    The k largest of rows [..., C] in descending order, and their places; of equal ones
    those of lower places.
`sorted_ids(ids, size)`
    The stable order of ids [G, E] in [0, size), and the ids in that order; None where
    the backend's `argsort` is to do it.
`recorded(model, kind, data)`
    The results of a step of kind "train", "test" or "predict", replayed from a record;
    None to run the step of Keras. See `record_steps` of `compile`.
`can_branch()`
    Whether values may decide which branch of a program runs.
`branch(condition, if_true, if_false)`
    Like `keras.ops.cond`, but specialises recorded steps on torch.
`version()`, `device()`, `has_accelerator()`, `seed_global(seed)`
    Version of the backend; kind ("cpu", "gpu", "tpu") and name of the device; whether
    a GPU or TPU is available; and seeding of global generators.

`repeated(model, steps, state, constants)`
    See `ops.loops`; the model takes one step.

Functions that a backend lacks are None; `ops` then composes them from others.
"""

import importlib

from keras_bandgnn.default_backend import BACKENDS
from keras_bandgnn.host_keras import NeedsBackend, keras

_name = keras.backend.backend()
if _name is None:
    current = NeedsBackend()
elif _name in BACKENDS:
    current = importlib.import_module(f"keras_bandgnn.ops.backend.{_name}")
else:
    raise ImportError(
        "Expected KERAS_BACKEND to be 'jax', 'tensorflow' or 'torch'. "
        f"Received: {_name!r}."
    )
