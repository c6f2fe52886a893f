"""JAX implementations."""

import functools
import threading

import jax
import jax.numpy as jnp

from keras_bandgnn.ops.backend.jax_one_hot import (
    one_hot_max,
    one_hot_scatter,
    one_hot_sum,
)
from keras_bandgnn.ops.backend.jax_remat import checkpointed as checkpointed
from keras_bandgnn.ops.backend.jax_remat import (
    repeat_checkpointed as repeat_checkpointed,
)
from keras_bandgnn.ops.portable import portable_sums

# Whether sparse products take the transpose for their gradient.
USES_TRANSPOSE = True


def gather(x, ids):
    """Rows `x[ids]`; ids must be in range."""
    return x.at[ids].get(mode="promise_in_bounds")


def segment_sum(data, ids, num_segments, is_sorted=False):
    """Sums rows of `data` by segment; empty segments are 0."""
    if portable_sums() == "one_hot":
        return one_hot_sum(data, ids, num_segments)
    return jax.ops.segment_sum(
        data, ids, num_segments, indices_are_sorted=is_sorted, mode="drop"
    )


def segment_max(data, ids, num_segments):
    """Largest rows of `data` by segment; empty segments are unspecified."""
    if portable_sums() == "one_hot":
        return one_hot_max(data, ids, num_segments)
    return jax.ops.segment_max(data, ids, num_segments, mode="drop")


def scatter_add(indices, values, shape):
    """Zeros of `shape` with `values` added at the N-d positions `indices`."""
    if portable_sums() == "one_hot":
        return one_hot_scatter(indices, values, shape)
    zeros = jnp.zeros(shape, values.dtype)
    return zeros.at[indices].add(values, mode="promise_in_bounds")


def has_accelerator() -> bool:
    """Whether a GPU or TPU is there."""
    return jax.default_backend() != "cpu"


def seed_global(seed: int) -> None:
    """Nothing: Keras' seed generators hold all state of dropout."""
    del seed


_step = threading.local()


@functools.cache
def _listen_to_compiler() -> None:
    # Once per process: older versions of JAX cannot take a listener away.
    def listener(event, seconds, **_):
        report = getattr(_step, "report", None)
        if report and event == "/jax/core/compile/backend_compile_duration":
            # A step that compiles several programs counts once.
            _step.report = None
            report(_step.batch)

    jax.monitoring.register_event_duration_secs_listener(listener)


def watch_step(model, name, report):
    """The model's step `name`; it calls `report(batch)` when it compiles for a batch.

    Args:
        model: A compiled Keras model that does not run eagerly.
        name: "train_function", "test_function" or "predict_function".
        report: Called with each batch that makes the step compile.
    """
    step = getattr(model, name)
    if not model.jit_compile:
        return step
    _listen_to_compiler()

    def watched(state, iterator):
        def batches():
            for batch in iterator:
                _step.batch, _step.report = batch, report
                yield batch
                # What loading the next batch compiles is not the step's.
                _step.batch = _step.report = None

        try:
            return step(state, batches())
        finally:
            _step.batch = _step.report = None

    return watched


def _csr_cpu(row, column, pointer, weight, x):
    from jax.experimental import sparse

    del row
    entries = jnp.ones(column.shape, x.dtype) if weight is None else weight
    shape = (pointer.shape[0] - 1, x.shape[0])
    return sparse.BCSR((entries.astype(x.dtype), column, pointer), shape=shape) @ x


def _sorted_sum(row, column, pointer, weight, x):
    sent = gather(x, column)
    if weight is not None:
        sent = sent * weight[:, None].astype(x.dtype)
    return segment_sum(sent, row, pointer.shape[0] - 1, is_sorted=True)


def _product(side, x):
    # Padded entries have a row that does not exist: both forms leave them out.
    return jax.lax.platform_dependent(*side, x, cpu=_csr_cpu, default=_sorted_sum)


@jax.custom_vjp
def flat_sparse_matmul(forward, backward, x):
    """Sparse matrix times dense rows; `backward` is the transposed matrix.

    Args:
        forward: Row ids [E] (sorted), column ids [E], pointers [N + 1], entries [E] or
            None.
        backward: The same of the transpose, M rows.
        x: [M, H].

    Returns:
        [N, H].
    """
    del backward
    return _product(forward, x)


flat_sparse_matmul.defvjp(
    lambda forward, backward, x: (_product(forward, x), (forward, backward)),
    # The transpose has a gradient in turn.
    lambda sides, dy: (None, None, flat_sparse_matmul(*sides[::-1], dy)),
)


@jax.custom_vjp
def flat_gather_rows(index, backward, x):
    """Rows `x[index]`; `backward` is the transposed selection."""
    del backward
    return gather(x, index)


def _sum_rows(sides, dy):
    index, backward = sides
    number = jnp.arange(len(index) + 1, dtype=index.dtype)
    forward = (number[:-1], index, number, None)
    return None, None, flat_sparse_matmul(backward, forward, dy)


flat_gather_rows.defvjp(
    lambda index, backward, x: (gather(x, index), (index, backward)), _sum_rows
)


def flat_grouped_matmul(rows, kinds, kernel):
    """Multiplies each group of rows with the kernel of its type.

    Args:
        rows: [groups, R, H].
        kinds: [groups].
        kernel: [P, H, U].

    Returns:
        [groups, R, U].
    """
    return jnp.matmul(rows, gather(kernel, kinds))


def flat_gathered_grouped_matmul(x, index, backward, kinds, kernel):
    """`flat_grouped_matmul` of the rows `x[index]`; see `ops.grouped`."""
    rows = flat_gather_rows(index, backward, x)
    rows = rows.reshape(kinds.shape[0], -1, x.shape[1])
    return flat_grouped_matmul(rows, kinds, kernel).reshape(-1, kernel.shape[2])


def gated_update(messages, states, kernel, bias, own_kernel, own_bias):
    """New states of a GRU; see `GRUUpdate`."""
    given_z, given_r, given_n = jnp.split(messages @ kernel + bias, 3, axis=-1)
    own_z, own_r, own_n = jnp.split(states @ own_kernel + own_bias, 3, axis=-1)
    update = jax.nn.sigmoid(given_z + own_z)
    reset = jax.nn.sigmoid(given_r + own_r)
    candidate = jnp.tanh(given_n + reset * own_n)
    return candidate + update * (states - candidate)


def _tile_matmul_rows(tiles, x):
    return sum(tiles[:, :, q] @ x[:, :, q] for q in range(tiles.shape[2]))


def _tile_matmul_tpu(tiles, x):
    from jax.experimental.layout import Layout, with_layout_constraint

    # Without it the loop over the steps gets a transposed copy of all tiles for the
    # gradient: twice the memory.
    tiles = with_layout_constraint(tiles, Layout(major_to_minor=(0, 1, 2, 3, 4)))
    return jnp.einsum("gkqrc,gkqch->gkrh", tiles, x)


def tile_matmul(tiles, x):
    """Products with dense blocks in column tiles; see `ops.densify`."""
    return jax.lax.platform_dependent(
        tiles, x, tpu=_tile_matmul_tpu, default=_tile_matmul_rows
    )


def value_and_gradient(function, x):
    """Values and the gradient of their sum.

    Args:
        function: Takes a tensor, returns one.
        x: The tensor.

    Returns:
        What the function returns, and the gradient with respect to `x`, which has a
        gradient itself.
    """
    values, pull = jax.vjp(function, x)
    return values, pull(jnp.ones_like(values))[0]


def device() -> tuple[str, str]:
    """Kind of device in use, "cpu", "gpu" or "tpu", and its name."""
    first = jax.devices()[0]
    return first.platform, first.device_kind


def waiting_step(function, leaves, constants):
    """A compiled call of `function` and its gradients that waits for the results.

    Args:
        function: Takes the leaves and the constants, returns one tensor.
        leaves: Tensors with a gradient.
        constants: Tensors without, or nested dicts of them.

    Returns:
        A function without arguments.
    """

    def step(leaves, constants, cotangent):
        out, pull = jax.vjp(lambda *given: function(*given, *constants), *leaves)
        return out, pull(cotangent)

    shape = jax.eval_shape(function, *leaves, *constants)
    given = (leaves, constants, jnp.ones(shape.shape, shape.dtype))
    compiled = jax.jit(step).lower(*given).compile()
    return lambda: jax.block_until_ready(compiled(*given))
