"""TensorFlow implementations."""

import weakref

import tensorflow as tf

from keras_bandgnn import compat
from keras_bandgnn.ops.context import portable_sums

# Detection of compilations.


# Shapes for which XLA has compiled each step; programs outlive calls to `fit`.
_compiled = weakref.WeakKeyDictionary()


def watch_step(model, name, report):
    """Return the model's step `name`, which reports compilations; see `ops.backend`.

    Without XLA a trace is a compilation; with XLA every new set of shapes is.
    """
    step = getattr(model, name)
    if not model.jit_compile:
        return _watch_traces(step, report)
    if name == "predict_function":
        return _watch_batches(step, report)
    return _watch_shapes(step, model.steps_per_execution, report)


def _watch_traces(step, report):
    # Keras' step is a `tf.function`, or a Python function that wraps some: one for
    # data sets, one for arrays.
    inner = [cell.cell_contents for cell in getattr(step, "__closure__", None) or ()]
    inner += [f.__wrapped__ for f in inner if hasattr(f, "__wrapped__")]
    counts = [
        getattr(f, "experimental_get_tracing_count", None) for f in (step, *inner)
    ]
    counts = [count for count in counts if count]

    def watched(data):
        before, batches = sum(count() for count in counts), data
        if not isinstance(data, list) and not hasattr(data, "element_spec"):
            # Arrays, one batch a step.
            batches = [next(data)]
            data = iter(batches)
        outputs = step(data)
        if sum(count() for count in counts) > before:
            spec = batches[0] if isinstance(batches, list) else batches.element_spec
            report(_spec_of(spec, [leaf.shape for leaf in _leaves(spec)]))
        return outputs

    return watched


def _watch_batches(step, report):
    """Watch a step that takes a list of batches."""
    compiled = _compiled.setdefault(step, set())

    def watched(batches):
        for batch in batches:
            _compare(batch, compiled, report)
        return step(batches)

    return watched


def _compare(batch, compiled, report):
    """Report a batch if its shapes have not been compiled yet."""
    key = tuple((tuple(leaf.shape), str(leaf.dtype)) for leaf in _leaves(batch))
    if key not in compiled:
        compiled.add(key)
        report(_spec_of(batch, [shape for shape, _ in key]))


def _watch_shapes(step, steps_per_execution, report):
    """Watch a step that loads its batches inside its graph."""
    compiled = _compiled.setdefault(step, set())

    # Keras' graph, extended to also return the shapes of the batch.
    @tf.function(autograph=False)
    def load_and_step(iterator):
        batch = iterator.get_next()
        sizes = [f(leaf) for leaf in _leaves(batch) for f in (_rank, tf.shape)]
        return step(iter([batch])), tf.concat(sizes, 0)

    def watched(iterator):
        if not hasattr(iterator, "element_spec"):
            # Arrays, one batch a step.
            batch = next(iterator)
            _compare(batch, compiled, report)
            return step(iter([batch]))
        for index in range(steps_per_execution):
            try:
                outputs, sizes = load_and_step(iterator)
            except tf.errors.OutOfRangeError:
                if not index:
                    raise
                break
            spec, sizes = iterator.element_spec, sizes.numpy().tolist()
            key = (tuple(_leaves(spec)), tuple(sizes))
            if key not in compiled:
                compiled.add(key)
                shapes = []
                while sizes:
                    rank = sizes[0]
                    shapes.append(sizes[1 : rank + 1])
                    sizes = sizes[rank + 1 :]
                report(_spec_of(spec, shapes))
        return outputs

    return watched


def _rank(tensor):
    return tf.reshape(tf.rank(tensor), [1])


def _leaves(batch):
    """Return the tensors or specs of a batch, one per replica if distributed."""
    return tf.nest.flatten(batch, expand_composites=True)


def _spec_of(batch, shapes):
    """Return a `TensorSpec` per leaf from a list of shapes; None for absent leaves."""
    shapes = list(shapes)

    def leaf(value):
        parts = _leaves(value)
        part_shapes = [shapes.pop(0) for _ in parts]
        if parts[0].dtype == tf.variant:
            return None
        return tf.TensorSpec(part_shapes[0], parts[0].dtype)

    return tf.nest.map_structure(leaf, batch)


# TensorFlow implementations of `ops.loops`.


# Maximum chunks of an unrolled loop.
_MAX_CHUNKS = 8


def with_gradient(forward, backward, tensors):
    """Call `forward(*tensors)` with `backward` as its gradient; see `ops.loops`."""

    @tf.custom_gradient
    def run(*tensors):
        out, residuals = forward(*tensors)
        return tuple(out), lambda *cotangents: list(backward(residuals, *cotangents))

    return run(*tensors)


def scan_chunks(step, carry, rows, size, like=None):
    """Scan `step` over chunks of rows; see `ops.loops`."""
    del like
    count = next(iter(rows.values())).shape[0]
    if count is None or count <= size:
        return step(carry, rows)
    size = max(size, -(-count // _MAX_CHUNKS))
    outputs = []
    for a in range(0, count, size):
        carry, out = step(carry, {k: v[a : a + size] for k, v in rows.items()})
        outputs.append(out)
    return carry, None if outputs[0] is None else tf.concat(outputs, axis=0)


def late_zeros(like, after):
    """Return zeros like a tensor; see `ops.loops`."""
    del after
    return tf.zeros_like(like)


@tf.custom_gradient
def _last_gradient(x):
    """Return `x`, with a gradient that raises an error when differentiated."""

    @tf.custom_gradient
    def slope(dy):
        def none(*_):
            raise NotImplementedError(
                "Expected no second derivative of a checkpointed function on "
                "TensorFlow (remat=True, and full attention of large supergraphs). "
                "Received: one. Use KERAS_BACKEND=jax or torch, which support it."
            )

        return tf.identity(dy), none

    return tf.identity(x), slope


def recomputed(function):
    """Return `function` with gradient checkpointing."""
    again = tf.recompute_grad(function)

    def run(*arguments):
        inputs = (
            _last_gradient(x) if tf.as_dtype(x.dtype).is_floating else x
            for x in arguments
        )
        return again(*inputs)

    return run


def can_branch():
    """Return True: conditions are part of programs."""
    return True


def map_pieces(function, pieces, shared):
    """Map a checkpointed function over axis 0; see `ops.loops`."""
    safe = recomputed(function)
    count = pieces[0].shape[0]
    outs = [safe(*[p[i] for p in pieces], *shared) for i in range(count)]
    return tuple(tf.stack(parts) for parts in zip(*outs, strict=True))


def index_add(out, ids, rows):
    """Add rows to `out` at ids; see `ops.loops`."""
    return tf.tensor_scatter_nd_add(out, tf.expand_dims(ids, -1), rows)


# Only torch has these, as its eager operations are bound by memory traffic.
flat_edge_attention = segment_attention = filtered_sum = equal_values = repeated = None
normalized_rows = dropout = step_data = batch_data = None
recorded = branch = affine = fused_edges = sorted_ids = lookup_sum = None
map_rows = random_states = set_random_states = None
copy = tf.identity


def layer_normalization(rows, gamma, beta, epsilon):
    """Normalise rows by their mean and variance; see `ops.backend`.

    The variance of `tf.nn.moments`, which Keras takes, has no second derivative by the
    mean: training on forces would follow wrong gradients.
    """
    kind = tf.float64 if rows.dtype == tf.float64 else tf.float32
    rows, gamma, beta = (tf.cast(t, kind) for t in (rows, gamma, beta))
    away = rows - tf.reduce_mean(rows, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(away), axis=-1, keepdims=True)
    return away * tf.math.rsqrt(variance + epsilon) * gamma + beta


# Whether sparse products use the transpose for their gradient.
USES_TRANSPOSE = False


def gather(x: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Gather rows `x[ids]`; ids must be in range."""
    return tf.gather(x, ids)


def segment_sum(
    data: tf.Tensor, ids: tf.Tensor, num_segments: int, is_sorted: bool = False
) -> tf.Tensor:
    """Sum rows of `data` by segment; empty segments are 0."""
    del is_sorted
    if portable_sums() == "scatter":
        zeros = tf.zeros((num_segments, *data.shape[1:]), data.dtype)
        return tf.tensor_scatter_nd_add(zeros, tf.expand_dims(ids, -1), data)
    return tf.math.unsorted_segment_sum(data, ids, num_segments)


def segment_max(data: tf.Tensor, ids: tf.Tensor, num_segments: int) -> tf.Tensor:
    """Return segment maxima of `data`; empty segments are unspecified."""
    if portable_sums() == "scatter":
        lowest = tf.fill((num_segments, *data.shape[1:]), data.dtype.min)
        return tf.tensor_scatter_nd_max(lowest, tf.expand_dims(ids, -1), data)
    return tf.math.unsorted_segment_max(data, ids, num_segments)


def sum_over_replicas(values):
    """Return the sum over the devices of `data_parallel`."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return values
    return context.all_reduce(tf.distribute.ReduceOp.SUM, values)


def scatter_add(indices, values, shape):
    """Scatter-add `values` into zeros of `shape` at the N-d positions `indices`."""
    if portable_sums() == "scatter":
        # tf2onnx exports `scatter_nd` as an overwrite: of duplicates the last wins.
        zeros = tf.zeros(shape, values.dtype)
        return tf.tensor_scatter_nd_add(zeros, tf.stack(indices, axis=-1), values)
    return tf.scatter_nd(tf.stack(indices, axis=-1), values, shape)


def column_sum(rows):
    """Sum rows [M, H] over M."""
    return tf.reduce_sum(rows, axis=0)


def top_k(values, k: int):
    """Return the k largest of rows and their places; see `ops.backend`."""
    return tf.math.top_k(values, k)


def has_accelerator() -> bool:
    """Return whether a GPU or TPU is available."""
    return any(d.device_type != "CPU" for d in tf.config.list_physical_devices())


def seed_global(seed: int) -> None:
    """Do nothing: Keras' seed generators hold all state of dropout."""
    del seed


def _on_host_without_xla() -> bool:
    if not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        if compat.in_xla_context(graph):
            return False
    return not has_accelerator()


def flat_sparse_matmul(forward, backward, x):
    """Multiply a sparse matrix by dense rows; see `ops.backend`."""
    del backward
    row, column, pointer, weight = forward
    num_rows = tf.shape(pointer)[0] - 1
    if _on_host_without_xla():
        entries = tf.ones_like(column, x.dtype)
        if weight is not None:
            entries = tf.cast(weight, x.dtype)
        # Padded entries belong to one extra row after the last.
        matrix = tf.SparseTensor(
            tf.cast(tf.stack([row, column], axis=1), tf.int64),
            entries,
            tf.cast(tf.stack([num_rows + 1, tf.shape(x)[0]]), tf.int64),
        )
        return tf.sparse.sparse_dense_matmul(matrix, x)[:num_rows]
    sent = tf.gather(x, column)
    if weight is not None:
        sent = sent * tf.cast(weight, x.dtype)[:, None]
    return segment_sum(sent, row, num_rows + 1)[:num_rows]


def flat_gather_rows(index, backward, x):
    """Gather rows `x[index]`; `backward` is the transpose of the gather."""
    del backward
    return tf.gather(x, index)


def flat_grouped_matmul(rows, kinds, kernel):
    """Multiply rows by the kernel of their group; see `ops.backend`."""
    return tf.matmul(rows, tf.gather(kernel, kinds))


def flat_gathered_grouped_matmul(x, index, backward, kinds, kernel):
    """Compute `flat_grouped_matmul` of rows `x[index]`; see `ops.backend`."""
    rows = flat_gather_rows(index, backward, x)
    rows = tf.reshape(rows, (tf.shape(kinds)[0], -1, x.shape[1]))
    rows = flat_grouped_matmul(rows, kinds, kernel)
    return tf.reshape(rows, (-1, kernel.shape[2]))


def gated_update(messages, states, kernel, bias, state_kernel, state_bias):
    """Return new states of a GRU; see `GRUUpdate`."""
    message_gates = tf.split(tf.matmul(messages, kernel) + bias, 3, axis=-1)
    state_gates = tf.split(tf.matmul(states, state_kernel) + state_bias, 3, axis=-1)
    update = tf.sigmoid(message_gates[0] + state_gates[0])
    reset = tf.sigmoid(message_gates[1] + state_gates[1])
    candidate = tf.tanh(message_gates[2] + reset * state_gates[2])
    return candidate + update * (states - candidate)


# `ops.remat` composes these from `copy` and `recomputed`.
checkpointed = repeat_checkpointed = on_device = None


def tile_matmul(tiles, x):
    """Multiply dense blocks, stored as column tiles; see `primitives.banded`."""
    return sum(tf.matmul(tiles[:, :, q], x[:, :, q]) for q in range(tiles.shape[2]))


def value_and_gradient(function, x):
    """Return values and the gradient of their sum; see `ops.backend`."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(x)
        values = function(x)
    slopes = tape.gradient(
        values, x, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    # The gradient of a gather is in slices.
    return values, tf.nest.map_structure(tf.convert_to_tensor, slopes)


def version() -> str:
    """Return the version of the backend."""
    return tf.__version__


def device() -> tuple[str, str]:
    """Return the kind of the default device, "cpu", "gpu" or "tpu", and its name."""
    for physical in tf.config.list_physical_devices():
        if physical.device_type != "CPU":
            details = tf.config.experimental.get_device_details(physical)
            kind = physical.device_type.lower()
            return kind, details.get("device_name", kind)
    return "cpu", "cpu"


def compiled_timer_step(function, leaves, constants):
    """Return a call that blocks until its results are ready; see `ops.backend`."""

    @tf.function(autograph=False)
    def step(leaves, constants):
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            out = function(*leaves, *constants)
        return out, tape.gradient(out, leaves)

    def run():
        for tensor in tf.nest.flatten(step(leaves, constants)):
            # Reading one element blocks until the tensor is computed.
            tf.reshape(tensor, [-1])[0].numpy()

    return run
