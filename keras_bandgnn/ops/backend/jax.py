"""JAX implementations."""

import functools
import math
import threading

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache

from keras_bandgnn.ops.context import portable_sums

# Segment sums on JAX without a scatter, for runtimes that have none.


# Entries of a matrix of ones and zeros: 256 MB.
_MOST = 1 << 26


def _chosen(ids, num_segments):
    """Which rows belong to which segment, bool [segments, rows]."""
    if ids.shape[0] * num_segments > _MOST:
        raise ValueError(
            f"Expected at most {_MOST} pairs of segments and rows for a program "
            f"without scatters. Received: {num_segments} segments of {ids.shape[0]} "
            "rows. Export smaller supergraphs, or with KERAS_BACKEND=tensorflow."
        )
    return ids[None] == jnp.arange(num_segments, dtype=ids.dtype)[:, None]


def one_hot_sum(data, ids, num_segments):
    """See `segment_sum`; sums of whole numbers are exact up to 2^24."""
    rows = data.reshape(data.shape[0], -1).astype("float32")
    total = jnp.matmul(
        _chosen(ids, num_segments).astype("float32"), rows, precision="highest"
    )
    return total.reshape(num_segments, *data.shape[1:]).astype(data.dtype)


def one_hot_max(data, ids, num_segments):
    """See `segment_max`."""
    chosen = _chosen(ids, num_segments)
    rows = data.reshape(data.shape[0], -1)
    lowest = jnp.finfo(data.dtype).min
    largest = [
        jnp.where(chosen, rows[None, :, column], lowest).max(axis=1)
        for column in range(rows.shape[1])
    ]
    return jnp.stack(largest, axis=1).reshape(num_segments, *data.shape[1:])


def one_hot_scatter(indices, values, shape):
    """See `scatter_add`: ones and zeros of the first and of the last axis."""
    # rows [A, E] * values @ columns [E, B] needs no array of A * B rows.
    split = len(shape) // 2
    parts = []
    for ids, extents in (
        (indices[:split], shape[:split]),
        (indices[split:], shape[split:]),
    ):
        place = jnp.zeros_like(indices[0])
        for index, extent in zip(ids, extents, strict=True):
            place = place * extent + index
        parts.append(_chosen(place, math.prod(extents)).astype("float32"))
    rows, columns = parts
    total = jnp.matmul(rows * values.astype("float32"), columns.T, precision="highest")
    return total.reshape(shape).astype(values.dtype)


# JAX implementations of `ops.remat`.


def _threaded(step, variables):
    """`step` with the values of Keras variables as further inputs and outputs."""

    def pure(states, values):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return step(states), [jnp.asarray(v.value) for v in variables]

    return pure


def _run_threaded(run, states, variables):
    before = [jnp.asarray(v.value) for v in variables]
    try:
        states, after = run(states, before)
    except BaseException:
        after = before
        raise
    finally:
        # What a step assigns while it is traced is of no use outside.
        for variable, value in zip(variables, after, strict=True):
            variable.assign(value)
    return states


def checkpointed(step, states, variables):
    """`step(states)`, computed again for the gradient; see `ops.remat`."""

    def run(states, values):
        # What the step uses besides its arguments becomes arguments too.
        given = _threaded(step, variables), states, values
        body, used = jax.closure_convert(*given)
        return _again(body)(states, values, *used)

    return _run_threaded(run, states, variables)


def _again(body):
    """`body` with a gradient that keeps the arguments alone."""
    run = jax.custom_vjp(body)

    def forward(*given):
        return body(*given), given

    def pull(given, slopes):
        moving = [jnp.issubdtype(g.dtype, jnp.inexact) for g in jax.tree.leaves(given)]
        leaves, tree = jax.tree.flatten(given)

        def gradient(leaves, slope):
            def of_moving(*some):
                some = iter(some)
                pairs = zip(leaves, moving, strict=True)
                every = [next(some) if m else leaf for leaf, m in pairs]
                return body(*jax.tree.unflatten(tree, every))[0]

            some = [leaf for leaf, m in zip(leaves, moving, strict=True) if m]
            return jax.vjp(of_moving, *some)[1](slope)

        # XLA on CPUs would merge the second computation with the first and keep all.
        # It does not merge branches; that this one is always taken it cannot know.
        slope = slopes[0]
        first = slope.reshape(-1)[0]
        found = jax.lax.cond(
            (first == first) | (first != 0),
            gradient,
            lambda leaves, slope: tuple(
                jnp.zeros_like(leaf)
                for leaf, m in zip(leaves, moving, strict=True)
                if m
            ),
            leaves,
            slope,
        )
        found = iter(found)
        return jax.tree.unflatten(tree, [next(found) if m else None for m in moving])

    run.defvjp(forward, pull)
    return run


def repeat_checkpointed(step, states, num_steps, variables):
    """`num_steps` times `checkpointed`, as one loop in the program."""
    body = jax.checkpoint(_threaded(step, variables))

    def run(states, values):
        def once(carry, _):
            return body(*carry), None

        return jax.lax.scan(once, (states, values), length=num_steps)[0]

    return _run_threaded(run, states, variables)


# Compiled programs of JAX that outlive the process.


def keep_programs(folder: str, least_seconds: float) -> None:
    """Keep what is compiled from now on in a folder, and looks there first.

    Args:
        folder: The folder.
        least_seconds: Programs that compile faster are not kept.
    """
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least_seconds)
    # By size nothing is left out.
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # What was compiled before has settled that there is no folder.
    compilation_cache.reset_cache()


# Of torch alone, where eager operations wait for memory.
flat_edge_attention = filtered_sum = None
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
    """The model's step `name`, watched; see `ops.backend`."""
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
    """Sparse matrix times dense rows; see `ops.backend`."""
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
    """Rows times the kernel of their group; see `ops.backend`."""
    return jnp.matmul(rows, gather(kernel, kinds))


def flat_gathered_grouped_matmul(x, index, backward, kinds, kernel):
    """`flat_grouped_matmul` of rows `x[index]`; see `ops.backend`."""
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
    """Values and the gradient of their sum; see `ops.backend`."""
    values, pull = jax.vjp(function, x)
    return values, pull(jnp.ones_like(values))[0]


def version() -> str:
    """Version of the backend."""
    return jax.__version__


def device() -> tuple[str, str]:
    """Kind of device in use, "cpu", "gpu" or "tpu", and its name."""
    first = jax.devices()[0]
    return first.platform, first.device_kind


def compiled_timer_step(function, leaves, constants):
    """A compiled call that waits for its results; see `ops.backend`."""

    def step(leaves, constants, cotangent):
        out, pull = jax.vjp(lambda *given: function(*given, *constants), *leaves)
        return out, pull(cotangent)

    shape = jax.eval_shape(function, *leaves, *constants)
    given = (leaves, constants, jnp.ones(shape.shape, shape.dtype))
    compiled = jax.jit(step).lower(*given).compile()
    return lambda: jax.block_until_ready(compiled(*given))


# JAX implementations of `ops.loops`.


def with_gradient(forward, backward, tensors):
    """`forward(*tensors)`, with `backward` as its gradient; see `ops.loops`."""

    @jax.custom_vjp
    def run(*tensors):
        return forward(*tensors)[0]

    def pull(kept, slopes):
        return tuple(backward(kept, *slopes))

    run.defvjp(forward, pull)
    return run(*tensors)


def scan_chunks(step, carry, rows, size):
    """Fold `step` over pieces of rows; see `ops.loops`."""
    count = jax.tree.leaves(rows)[0].shape[0]
    pieces = count // size
    if not pieces:
        return step(carry, rows)

    def once(carry, number):
        # Arrays are read where they are: padding them to whole pieces would copy
        # every one. Rows that took their place would be copied for each piece.
        piece = {
            name: jax.lax.dynamic_slice_in_dim(array, number * size, size)
            for name, array in rows.items()
        }
        return step(carry, piece)

    carry, out = jax.lax.scan(once, carry, jnp.arange(pieces))
    out = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), out)
    if count % size:
        rest = {name: array[pieces * size :] for name, array in rows.items()}
        carry, last = step(carry, rest)
        out = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), out, last)
    return carry, out


def late_zeros(like):
    """Zeros that the compiler cannot make before `like`; see `ops.loops`."""
    bits = jax.lax.bitcast_convert_type(like.reshape(-1)[0], "uint32")
    sign = jax.lax.shift_right_logical(bits, jnp.uint32(31)).astype("int32")
    return jnp.full(like.shape, jnp.minimum(sign, 0).astype(like.dtype))


def map_pieces(function, pieces, shared):
    """`function` of each piece along axis 0, keeping nothing inside for gradients."""
    return jax.lax.map(
        jax.checkpoint(lambda piece: function(*piece, *shared)), tuple(pieces)
    )


def numbered_dropout(x, rate, seed, number):
    """Dropout whose mask follows from a seed and a number."""
    seed = jnp.asarray(seed).astype("uint32").reshape(-1)
    key = jax.random.fold_in(
        jax.random.fold_in(jax.random.key(seed[0]), seed[1]), number
    )
    kept = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(kept, x / (1.0 - rate), 0.0)


def index_add(out, ids, rows):
    """`out` with rows added at ids; see `ops.loops`."""
    return out.at[ids].add(rows)
