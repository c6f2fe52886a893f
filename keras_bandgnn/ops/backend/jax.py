"""JAX implementations."""

import functools
import threading

import jax
import jax.numpy as jnp


def gather(x, ids):
    """Rows `x[ids]`; ids must be in range."""
    return x.at[ids].get(mode="promise_in_bounds")


def segment_sum(data, ids, num_segments, is_sorted=False):
    """Sums rows of `data` by segment; empty segments are 0."""
    return jax.ops.segment_sum(
        data, ids, num_segments, indices_are_sorted=is_sorted, mode="drop"
    )


def scatter_add(indices, values, shape):
    """Zeros of `shape` with `values` added at the N-d positions `indices`."""
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
