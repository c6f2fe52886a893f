"""JAX implementations."""

import contextlib
import functools
import math
import threading
import types

import jax
import jax.numpy as jnp
import keras
from jax.experimental.compilation_cache import compilation_cache
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from keras_bandgnn.ops.backend import jax_edges, jax_filters, jax_gates, jax_loops
from keras_bandgnn.ops.backend.jax_loops import late_zeros as late_zeros
from keras_bandgnn.ops.backend.jax_loops import scan_chunks as scan_chunks
from keras_bandgnn.ops.backend.jax_norms import column_sum as _column_sum
from keras_bandgnn.ops.backend.jax_norms import (
    layer_normalization as _layer_normalization,
)
from keras_bandgnn.ops.context import (
    is_for_accelerator,
    is_portable,
    portable_sums,
)

# Segment sums without scatters, for runtimes that do not support them.


# Maximum entries of a one-hot matrix: 256 MB.
_MAX_ENTRIES = 1 << 26


def _one_hot(ids, num_segments):
    """Return the one-hot membership matrix, bool [segments, rows]."""
    if ids.shape[0] * num_segments > _MAX_ENTRIES:
        raise ValueError(
            f"Expected at most {_MAX_ENTRIES} pairs of segments and rows for a program "
            f"without scatters. Received: {num_segments} segments of {ids.shape[0]} "
            "rows. Export smaller supergraphs, or use KERAS_BACKEND=tensorflow."
        )
    return ids[None] == jnp.arange(num_segments, dtype=ids.dtype)[:, None]


def one_hot_sum(data, ids, num_segments):
    """Compute `segment_sum`; integer sums are exact up to 2^24."""
    rows = data.reshape(data.shape[0], -1).astype("float32")
    total = jnp.matmul(
        _one_hot(ids, num_segments).astype("float32"), rows, precision="highest"
    )
    return total.reshape(num_segments, *data.shape[1:]).astype(data.dtype)


def one_hot_max(data, ids, num_segments):
    """Compute `segment_max`."""
    members = _one_hot(ids, num_segments)
    rows = data.reshape(data.shape[0], -1)
    lowest = jnp.finfo(data.dtype).min
    largest = [
        jnp.where(members, rows[None, :, column], lowest).max(axis=1)
        for column in range(rows.shape[1])
    ]
    return jnp.stack(largest, axis=1).reshape(num_segments, *data.shape[1:])


def one_hot_scatter(indices, values, shape):
    """Compute `scatter_add` by one-hot matrices of the leading and trailing axes."""
    # (rows [A, E] * values) @ columns [E, B] needs no array of A * B rows.
    split = len(shape) // 2
    parts = []
    for ids, extents in (
        (indices[:split], shape[:split]),
        (indices[split:], shape[split:]),
    ):
        place = jnp.zeros_like(indices[0])
        for index, extent in zip(ids, extents, strict=True):
            place = place * extent + index
        parts.append(_one_hot(place, math.prod(extents)).astype("float32"))
    rows, columns = parts
    total = jnp.matmul(rows * values.astype("float32"), columns.T, precision="highest")
    return total.reshape(shape).astype(values.dtype)


# JAX implementations of `ops.remat`.


def _stateless(step, variables):
    """Return `step` with the values of Keras variables as extra inputs and outputs."""

    def pure(states, values):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return step(states), [jnp.asarray(v.value) for v in variables]

    return pure


def _run_stateless(run, states, variables):
    before = [jnp.asarray(v.value) for v in variables]
    try:
        states, after = run(states, before)
    except BaseException:
        after = before
        raise
    finally:
        # Variables assigned during tracing hold tracers, which must not leak.
        for variable, value in zip(variables, after, strict=True):
            variable.assign(value)
    return states


def _open(function, *arguments):
    """Return `function` with its captured tracers as arguments, and these tracers.

    As arguments they get gradients. `jax.closure_convert` does not convert captured
    integers, which break the gradient of a program on several devices.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    tree = jax.tree.structure(shapes)
    traced = [isinstance(value, jax.core.Tracer) for value in closed.consts]

    def opened(*arguments):
        count = len(arguments) - sum(traced)
        tracer_values = iter(arguments[count:])
        pairs = zip(closed.consts, traced, strict=True)
        values = [
            next(tracer_values) if is_traced else value for value, is_traced in pairs
        ]
        run = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, values))
        return jax.tree.unflatten(tree, run(*jax.tree.leaves(arguments[:count])))

    pairs = zip(closed.consts, traced, strict=True)
    return opened, [value for value, is_traced in pairs if is_traced]


def checkpointed(step, states, variables):
    """Return `step(states)` with gradient checkpointing; see `ops.remat`."""

    def run(states, values):
        body, closed_over = _open(_stateless(step, variables), states, values)
        return _recomputed(body)(states, values, *closed_over)

    return _run_stateless(run, states, variables)


def _recomputed(body):
    """Return `body` with a gradient that stores only its arguments."""
    run = jax.custom_vjp(body)

    def forward(*arguments):
        return body(*arguments), arguments

    def pull(arguments, cotangents):
        differentiable = [
            jnp.issubdtype(g.dtype, jnp.inexact) for g in jax.tree.leaves(arguments)
        ]
        leaves, tree = jax.tree.flatten(arguments)

        def gradient(leaves, cotangent):
            def of_inputs(*inputs):
                inputs = iter(inputs)
                pairs = zip(leaves, differentiable, strict=True)
                every = [next(inputs) if m else leaf for leaf, m in pairs]
                return body(*jax.tree.unflatten(tree, every))[0]

            inputs = [leaf for leaf, m in zip(leaves, differentiable, strict=True) if m]
            return jax.vjp(of_inputs, *inputs)[1](cotangent)

        # XLA on CPUs would merge the recomputation with the forward pass and store
        # everything. It does not merge across branches, and it cannot know that this
        # one is always taken.
        cotangent = cotangents[0]
        first = jax.tree.leaves(cotangent)[0].reshape(-1)[0]
        gradients = jax.lax.cond(
            (first == first) | (first != 0),
            gradient,
            lambda leaves, cotangent: tuple(
                jnp.zeros_like(leaf)
                for leaf, m in zip(leaves, differentiable, strict=True)
                if m
            ),
            leaves,
            cotangent,
        )
        gradients = iter(gradients)
        return jax.tree.unflatten(
            tree, [next(gradients) if m else None for m in differentiable]
        )

    run.defvjp(forward, pull)
    return run


def repeat_checkpointed(step, states, num_steps, variables):
    """Apply `checkpointed` `num_steps` times as one `lax.scan`."""
    body = jax.checkpoint(_stateless(step, variables))

    def run(states, values):
        def once(carry, _):
            return body(*carry), None

        return jax.lax.scan(once, (states, values), length=num_steps)[0]

    return _run_stateless(run, states, variables)


# Persistent compilation cache.


def keep_programs(folder: str, least_seconds: float) -> None:
    """Enable JAX's persistent compilation cache.

    Args:
        folder: The cache folder.
        least_seconds: Minimum compile time of the programs to cache.
    """
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least_seconds)
    # No minimum size.
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # Any earlier compilation has initialised the cache without a folder.
    compilation_cache.reset_cache()


# Only torch has these, as its eager operations are bound by memory traffic.
flat_edge_attention = segment_attention = equal_values = repeated = None
normalized_rows = dropout = None
recorded = branch = affine = lookup_sum = None
step_data = batch_data = None
random_states = set_random_states = None
# Maximum number of sorts of one array: more take longer than one of pairs.
_MOST_SORTS = 3
# Minimum number of edges for messages in chunks.
_MANY = 1024
fused_edges = types.SimpleNamespace(
    apply_to=lambda x, edges: (
        edges >= _MANY and not has_accelerator() and not is_portable()
    ),
    ends=jax_edges.ends,
    relu_sum=jax_edges.relu_sum,
    gated_sum=jax_edges.gated_sum,
    scores=jax_edges.scores,
    share_sum=jax_edges.share_sum,
    vector_sum=jax_filters.vector_sum,
    # Compiled, the separate operations are as fast.
    score_attention=None,
)


def filtered_sum(sent, edges, factor, weights, ends, equal, size, activate):
    """Compute the fused `ops.sparse.filtered_sum`, or return None."""
    del equal
    tensors = [t for t in (sent, edges, factor, *weights) if t is not None]
    if (
        not fused_edges.apply_to(sent, edges.shape[0])
        or keras.distribution.distribution()
        or any(t.dtype != jnp.float32 for t in tensors)
    ):
        return None
    return jax_filters.filtered_sum(
        sent, edges, factor, weights, ends, num_rows=size, activate=activate
    )


# Whether sparse products use the transpose for their gradient.
USES_TRANSPOSE = True


def column_sum(rows):
    """Sum float32 rows [M, H] over M; see `ops.backend`."""
    if rows.dtype != jnp.float32 or has_accelerator() or is_portable():
        return jnp.sum(rows, axis=0)
    return _column_sum(rows)


def layer_normalization(rows, gamma, beta, epsilon):
    """Normalise float32 rows on CPUs; see `ops.backend`."""
    if any(t.dtype != jnp.float32 for t in (rows, gamma, beta)):
        return None
    if has_accelerator() or is_portable() or not rows.shape[-1]:
        return None
    return _layer_normalization(rows, gamma, beta, epsilon)


def gather(x: jax.Array, ids: jax.Array) -> jax.Array:
    """Gather rows `x[ids]`; ids must be in range."""
    return x.at[ids].get(mode="promise_in_bounds")


def sorted_ids(ids, size):
    """Return the order of ids and the sorted ids, or None; see `ops.backend`."""
    count = ids.shape[1]
    # A digit and a position together fit 32 bits.
    radix = (1 << 32) // max(count, 1)
    if size > radix**_MOST_SORTS or not count:
        return None
    # XLA sorts one array four times as fast as pairs of key and position. This is a
    # radix sort, lowest digit first; each sort is stable.
    count, order = jnp.uint32(count), None
    places = jnp.arange(ids.shape[1], dtype="uint32")
    quotient, bound = ids.astype("uint32"), size
    while True:
        digit = quotient % jnp.uint32(radix) if bound > radix else quotient
        both = jnp.sort(digit * count + places, axis=1, stable=False)
        place = (both % count).astype("int32")
        order = place if order is None else jnp.take_along_axis(order, place, 1)
        if bound <= radix:
            break
        quotient = jnp.take_along_axis(quotient // jnp.uint32(radix), place, 1)
        bound = -(-bound // radix)
    if size <= radix:
        return order, (both // count).astype(ids.dtype)
    return order, jnp.take_along_axis(ids, order, 1)


def segment_sum(
    data: jax.Array, ids: jax.Array, num_segments: int, is_sorted: bool = False
) -> jax.Array:
    """Sum rows of `data` by segment; empty segments are 0."""
    if portable_sums() == "one_hot":
        return one_hot_sum(data, ids, num_segments)
    return jax.ops.segment_sum(
        data, ids, num_segments, indices_are_sorted=is_sorted, mode="drop"
    )


def segment_max(data: jax.Array, ids: jax.Array, num_segments: int) -> jax.Array:
    """Return segment maxima of `data`; empty segments are unspecified."""
    if portable_sums() == "one_hot":
        return one_hot_max(data, ids, num_segments)
    return jax.ops.segment_max(data, ids, num_segments, mode="drop")


def on_device(batch):
    """Copy all arrays of a batch to the device at once."""
    # Keras copies arrays one by one, twice, and sets devices only if there are several.
    return batch if keras.distribution.distribution() else jax.device_put(batch)


_devices = threading.local()


def sum_over_replicas(values):
    """Return the sum over the devices of `data_parallel`, within `over_replicas`."""
    axis = getattr(_devices, "axis", None)
    return values if axis is None else jax.lax.psum(values, axis)


@contextlib.contextmanager
def over_replicas(axis: str):
    """Trace the program of one device of several, in this thread.

    Args:
        axis: Name of the mesh axis over the devices.
    """
    before = getattr(_devices, "axis", None)
    _devices.axis = axis
    try:
        yield
    finally:
        _devices.axis = before


def scatter_add(indices, values, shape):
    """Scatter-add `values` into zeros of `shape` at the N-d positions `indices`."""
    if portable_sums() == "one_hot":
        return one_hot_scatter(indices, values, shape)
    zeros = jnp.zeros(shape, values.dtype)
    return zeros.at[indices].add(values, mode="promise_in_bounds")


def top_k(values, k: int):
    """Return the k largest of rows and their places; see `ops.backend`."""
    return jax.lax.top_k(values, k)


def has_accelerator() -> bool:
    """Return whether the program, traced or run, is for a GPU or TPU."""
    return is_for_accelerator() or jax.default_backend() != "cpu"


def seed_global(seed: int) -> None:
    """Do nothing: Keras' seed generators hold all state of dropout."""
    del seed


_step = threading.local()


@functools.cache
def _register_compile_listener() -> None:
    # Once per process: older versions of JAX cannot unregister a listener.
    def listener(event, seconds, **_):
        report = getattr(_step, "report", None)
        if report and event == "/jax/core/compile/backend_compile_duration":
            # A step that compiles several programs counts once.
            _step.report = None
            report(_step.batch)

    jax.monitoring.register_event_duration_secs_listener(listener)


def watch_step(model, name, report):
    """Return the model's step `name`, which reports compilations; see `ops.backend`."""
    step = getattr(model, name)
    if not model.jit_compile:
        return step
    _register_compile_listener()

    def watched(state, iterator):
        def batches():
            for batch in iterator:
                _step.batch, _step.report = batch, report
                yield batch
                # Compilations while the next batch loads do not belong to the step.
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
    # Padded entries have a row out of range, which both forms drop.
    return jax.lax.platform_dependent(*side, x, cpu=_csr_cpu, default=_sorted_sum)


@jax.custom_vjp
def flat_sparse_matmul(forward, backward, x):
    """Multiply a sparse matrix by dense rows; see `ops.backend`."""
    del backward
    return _product(forward, x)


flat_sparse_matmul.defvjp(
    lambda forward, backward, x: (_product(forward, x), (forward, backward)),
    # So that the product with the transpose is differentiable, too.
    lambda sides, dy: (None, None, flat_sparse_matmul(*sides[::-1], dy)),
)


@jax.custom_vjp
def flat_gather_rows(index, backward, x):
    """Gather rows `x[index]`; `backward` is the transpose of the gather."""
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
    """Multiply rows by the kernel of their group; see `ops.backend`."""
    return jnp.matmul(rows, gather(kernel, kinds))


def flat_gathered_grouped_matmul(x, index, backward, kinds, kernel):
    """Compute `flat_grouped_matmul` of rows `x[index]`; see `ops.backend`."""
    rows = flat_gather_rows(index, backward, x)
    rows = rows.reshape(kinds.shape[0], -1, x.shape[1])
    return flat_grouped_matmul(rows, kinds, kernel).reshape(-1, kernel.shape[2])


def gated_update(messages, states, *weights):
    """Return new states of a GRU; see `GRUUpdate`."""
    rows = [array.reshape(-1, array.shape[-1]) for array in (messages, states)]
    if (
        not jax_gates.in_chunks(len(rows[0]))
        or any(array.dtype != jnp.float32 for array in (*rows, *weights))
        or has_accelerator()
        or is_portable()
        or keras.distribution.distribution()
    ):
        return jax_gates.gated(messages, states, *weights)[0]
    out = jax_gates.gated_by_chunks(jax_gates.ROWS, *rows, *weights)
    return out.reshape(states.shape)


def _tile_matmul_rows(tiles, x):
    return sum(tiles[:, :, q] @ x[:, :, q] for q in range(tiles.shape[2]))


def _tile_matmul_tpu(tiles, x):
    from jax.experimental.layout import Layout, with_layout_constraint

    # Without the constraint, the gradient of the loop over the steps copies all tiles
    # to another layout, which doubles their memory.
    tiles = with_layout_constraint(tiles, Layout(major_to_minor=(0, 1, 2, 3, 4)))
    return jnp.einsum("gkqrc,gkqch->gkrh", tiles, x)


def tile_matmul(tiles, x):
    """Multiply dense blocks, stored as column tiles; see `primitives.banded`."""
    return jax.lax.platform_dependent(
        tiles, x, tpu=_tile_matmul_tpu, default=_tile_matmul_rows
    )


def value_and_gradient(function, x):
    """Return values and the gradient of their sum; see `ops.backend`."""
    values, pull = jax.vjp(function, x)
    return values, pull(jnp.ones_like(values))[0]


def version() -> str:
    """Return the version of the backend."""
    return jax.__version__


def device() -> tuple[str, str]:
    """Return the kind of the default device, "cpu", "gpu" or "tpu", and its name."""
    first = jax.devices()[0]
    return first.platform, first.device_kind


def compiled_timer_step(function, leaves, constants):
    """Return a call that blocks until its results are ready; see `ops.backend`."""

    def step(leaves, constants, cotangent):
        out, pull = jax.vjp(
            lambda *arguments: function(*arguments, *constants), *leaves
        )
        return out, pull(cotangent)

    shape = jax.eval_shape(function, *leaves, *constants)
    arguments = (leaves, constants, jnp.ones(shape.shape, shape.dtype))
    compiled = jax.jit(step).lower(*arguments).compile()
    return lambda: jax.block_until_ready(compiled(*arguments))


# JAX implementations of `ops.loops`.


def with_gradient(forward, backward, tensors):
    """Call `forward(*tensors)` with `backward` as its gradient; see `ops.loops`."""

    @jax.custom_vjp
    def run(*tensors):
        return forward(*tensors)[0]

    def pull(residuals, cotangents):
        return tuple(backward(residuals, *cotangents))

    run.defvjp(forward, pull)
    return run(*tensors)


def can_branch():
    """Return True: conditions are part of programs."""
    return True


def map_pieces(function, pieces, shared):
    """Map a checkpointed function over axis 0; see `ops.loops`."""
    return jax.lax.map(
        jax.checkpoint(lambda piece: function(*piece, *shared)), tuple(pieces)
    )


def map_rows(function, arrays, size):
    """Map a function over chunks of rows; see `ops.remat.by_rows`."""
    piece = [array[:size] for array in arrays]
    body, closed_over = _open(lambda rows: function(*rows), piece)
    tree = jax.tree.structure(jax.eval_shape(body, piece, *closed_over))

    def flat(rows, closed_over):
        return jax.tree.leaves(body(rows, *closed_over))

    out = jax_loops.map_rows(flat, arrays, closed_over, size)
    return jax.tree.unflatten(tree, out)


def index_add(out, ids, rows):
    """Add rows to `out` at ids; see `ops.loops`."""
    return out.at[ids].add(rows)
