"""TensorFlow implementations."""

import keras
import tensorflow as tf

from keras_bandgnn.ops.backend.tensorflow_loops import recomputed
from keras_bandgnn.ops.backend.tensorflow_watch import watch_step as watch_step
from keras_bandgnn.ops.portable import portable_sums

# Whether sparse products take the transpose for their gradient.
USES_TRANSPOSE = False


def gather(x, ids):
    """Rows `x[ids]`; ids must be in range."""
    return tf.gather(x, ids)


def segment_sum(data, ids, num_segments, is_sorted=False):
    """Sums rows of `data` by segment; empty segments are 0."""
    del is_sorted
    if portable_sums() == "scatter":
        zeros = tf.zeros((num_segments, *data.shape[1:]), data.dtype)
        return tf.tensor_scatter_nd_add(zeros, tf.expand_dims(ids, -1), data)
    return tf.math.unsorted_segment_sum(data, ids, num_segments)


def segment_max(data, ids, num_segments):
    """Largest rows of `data` by segment; empty segments are unspecified."""
    if portable_sums() == "scatter":
        lowest = tf.fill((num_segments, *data.shape[1:]), data.dtype.min)
        return tf.tensor_scatter_nd_max(lowest, tf.expand_dims(ids, -1), data)
    return tf.math.unsorted_segment_max(data, ids, num_segments)


def scatter_add(indices, values, shape):
    """Zeros of `shape` with `values` added at the N-d positions `indices`."""
    if portable_sums() == "scatter":
        # Of entries at one position tf2onnx keeps the last if there is no tensor.
        zeros = tf.zeros(shape, values.dtype)
        return tf.tensor_scatter_nd_add(zeros, tf.stack(indices, axis=-1), values)
    return tf.scatter_nd(tf.stack(indices, axis=-1), values, shape)


def has_accelerator() -> bool:
    """Whether a GPU or TPU is there."""
    return any(d.device_type != "CPU" for d in tf.config.list_physical_devices())


def seed_global(seed: int) -> None:
    """Nothing: Keras' seed generators hold all state of dropout."""
    del seed


def _on_host_without_xla() -> bool:
    from tensorflow.python.ops import control_flow_util

    if not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        if control_flow_util.GraphOrParentsInXlaContext(graph):
            return False
    return not has_accelerator()


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
    row, column, pointer, weight = forward
    num_rows = tf.shape(pointer)[0] - 1
    if _on_host_without_xla():
        entries = tf.ones_like(column, x.dtype)
        if weight is not None:
            entries = tf.cast(weight, x.dtype)
        # Padded entries belong to a row behind the last one.
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
    """Rows `x[index]`; `backward` is the transposed selection."""
    del backward
    return tf.gather(x, index)


def flat_grouped_matmul(rows, kinds, kernel):
    """Multiplies each group of rows with the kernel of its type.

    Args:
        rows: [groups, R, H].
        kinds: [groups].
        kernel: [P, H, U].

    Returns:
        [groups, R, U].
    """
    return tf.matmul(rows, tf.gather(kernel, kinds))


def flat_gathered_grouped_matmul(x, index, backward, kinds, kernel):
    """`flat_grouped_matmul` of the rows `x[index]`; see `ops.grouped`."""
    rows = flat_gather_rows(index, backward, x)
    rows = tf.reshape(rows, (tf.shape(kinds)[0], -1, x.shape[1]))
    rows = flat_grouped_matmul(rows, kinds, kernel)
    return tf.reshape(rows, (-1, kernel.shape[2]))


def gated_update(messages, states, kernel, bias, own_kernel, own_bias):
    """New states of a GRU; see `GRUUpdate`."""
    given = tf.split(tf.matmul(messages, kernel) + bias, 3, axis=-1)
    own = tf.split(tf.matmul(states, own_kernel) + own_bias, 3, axis=-1)
    update = tf.sigmoid(given[0] + own[0])
    reset = tf.sigmoid(given[1] + own[1])
    candidate = tf.tanh(given[2] + reset * own[2])
    return candidate + update * (states - candidate)


def checkpointed(step, states, variables):
    """`step(states)`, computed again for the gradient; see `ops.remat`."""
    before = [tf.identity(v.value) for v in variables]
    after = []

    def pure(states):
        # Both computations begin with the same seeds, and neither assigns them.
        mapping = list(zip(variables, before, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            states = step(states)
        if not after:
            after.extend(scope.get_current_value(v) for v in variables)
        return states

    states = recomputed(pure)(states)
    for variable, value in zip(variables, after, strict=True):
        variable.assign(value)
    return states


def repeat_checkpointed(step, states, num_steps, variables):
    """`num_steps` times `checkpointed`."""
    for _ in range(num_steps):
        states = checkpointed(step, states, variables)
    return states


def tile_matmul(tiles, x):
    """Products with dense blocks in column tiles; see `ops.densify`."""
    return sum(tf.matmul(tiles[:, :, q], x[:, :, q]) for q in range(tiles.shape[2]))


def value_and_gradient(function, x):
    """Values and the gradient of their sum.

    Args:
        function: Takes a tensor, returns one.
        x: The tensor.

    Returns:
        What the function returns, and the gradient with respect to `x`, which has a
        gradient itself.
    """
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(x)
        values = function(x)
    return values, tape.gradient(values, x)


def device() -> tuple[str, str]:
    """Kind of device in use, "cpu", "gpu" or "tpu", and its name."""
    for found in tf.config.list_physical_devices():
        if found.device_type != "CPU":
            details = tf.config.experimental.get_device_details(found)
            kind = found.device_type.lower()
            return kind, details.get("device_name", kind)
    return "cpu", "cpu"


def waiting_step(function, leaves, constants):
    """A compiled call of `function` and its gradients that waits for the results.

    Args:
        function: Takes the leaves and the constants, returns one tensor.
        leaves: Tensors with a gradient.
        constants: Tensors without, or nested dicts of them.

    Returns:
        A function without arguments.
    """

    @tf.function(autograph=False)
    def step(leaves, constants):
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            out = function(*leaves, *constants)
        return out, tape.gradient(out, leaves)

    def run():
        for tensor in tf.nest.flatten(step(leaves, constants)):
            # What is on the device is waited for by reading one number of it.
            tf.reshape(tensor, [-1])[0].numpy()

    return run
