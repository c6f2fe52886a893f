"""Watching when steps of TensorFlow compile."""

import weakref

import tensorflow as tf

# What XLA has compiled each step for. It stays compiled from one fit to the next.
_compiled = weakref.WeakKeyDictionary()


def watch_step(model, name, report):
    """The model's step `name`; it calls `report(batch)` when it compiles for a batch.

    Without XLA a trace is a compilation. With XLA every new set of shapes is one.

    Args:
        model: A compiled Keras model that does not run eagerly.
        name: "train_function", "test_function" or "predict_function".
        report: Called with the specification of each batch that makes the step compile.
    """
    step = getattr(model, name)
    if not model.jit_compile:
        return _watch_traces(step, report)
    if name == "predict_function":
        return _watch_loaded(step, report)
    return _watch_shapes(step, model.steps_per_execution, report)


def _watch_traces(step, report):
    # Keras' step is one `tf.function`, or Python around it.
    inner = [cell.cell_contents for cell in getattr(step, "__closure__", None) or ()]
    counts = [
        getattr(f, "experimental_get_tracing_count", None) for f in (step, *inner)
    ]
    counts = [count for count in counts if count]

    def watched(data):
        before = sum(count() for count in counts)
        outputs = step(data)
        if sum(count() for count in counts) > before:
            spec = data[0] if isinstance(data, list) else data.element_spec
            report(_described(spec, [leaf.shape for leaf in _leaves(spec)]))
        return outputs

    return watched


def _watch_loaded(step, report):
    """Watches a step that takes a list of batches, of which the shapes are known."""
    compiled = _compiled.setdefault(step, set())

    def watched(batches):
        for batch in batches:
            key = tuple((leaf.shape, leaf.dtype) for leaf in _leaves(batch))
            if key not in compiled:
                compiled.add(key)
                report(_described(batch, [shape for shape, _ in key]))
        return step(batches)

    return watched


def _watch_shapes(step, steps_per_execution, report):
    """Watches a step that loads its batches within its graph."""
    compiled = _compiled.setdefault(step, set())

    # The same graph as Keras', beside which it says which shapes it was given.
    @tf.function(autograph=False)
    def load_and_step(iterator):
        batch = iterator.get_next()
        sizes = [f(leaf) for leaf in _leaves(batch) for f in (_rank, tf.shape)]
        return step(iter([batch])), tf.concat(sizes, 0)

    def watched(iterator):
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
                report(_described(spec, shapes))
        return outputs

    return watched


def _rank(tensor):
    return tf.reshape(tf.rank(tensor), [1])


def _leaves(batch):
    """The tensors, or specifications, of a batch: one per replica where distributed."""
    return tf.nest.flatten(batch, expand_composites=True)


def _described(batch, shapes):
    """A specification per leaf with the given shapes; absent leaves are None."""
    shapes = list(shapes)

    def leaf(value):
        parts = _leaves(value)
        mine = [shapes.pop(0) for _ in parts]
        if parts[0].dtype == tf.variant:
            return None
        return tf.TensorSpec(mine[0], parts[0].dtype)

    return tf.nest.map_structure(leaf, batch)
