"""Propagation of messages under a plan, on the device."""

from collections.abc import Mapping

from keras import ops

from keras_bandgnn.ops.batched import flat_matmul
from keras_bandgnn.primitives.base import primitive_of, step_key


def prepare(
    plan: Mapping[str, Mapping],
    num_nodes: int,
    num_types: int,
    dtype: str,
    use_bias: bool = True,
    reduce: str = "sum",
):
    """Prepare the arrays of a plan, once per batch on the device.

    Args:
        plan: `x["plan"]`, key of a primitive -> its arrays.
        num_nodes: N.
        num_types: P.
        dtype: Compute dtype.
        use_bias: Whether messages have a bias.
        reduce: How messages are reduced, see `propagate`.

    Returns:
        The argument of `propagate`.
    """
    primitives = {key: primitive_of(key) for key in plan}
    parts = {
        key: primitives[key].prepare(arrays, num_nodes, num_types, dtype)
        for key, arrays in plan.items()
    }
    prepared = {"parts": parts}
    if reduce == "mean":
        prepared["count"] = sum(
            p.count(parts[key], num_nodes, num_types) for key, p in primitives.items()
        )
    if use_bias and reduce != "max":
        # A degree per node and type, instead of a bias per message.
        prepared["degree"] = sum(
            p.degree(parts[key], num_nodes, num_types) for key, p in primitives.items()
        )
    return prepared


def is_scheduled(plan: Mapping) -> bool:
    """Return whether `x["plan"]` has a dict per step of a `ReceptiveField`."""
    return step_key(0) in plan


def scheduled_steps(plan: Mapping, num_steps: int) -> list[Mapping]:
    """Return the steps of `x["plan"]` in order.

    Args:
        plan: `x["plan"]` of a plan with a schedule.
        num_steps: T of the model.

    Returns:
        For each step the arrays of the plan and `state`, the gather of old states.
    """
    count = 0
    while step_key(count) in plan:
        count += 1
    if count != num_steps:
        raise ValueError(
            f"Expected a schedule of {num_steps} steps, as the model has. Received: a "
            f"batch of {count} steps. Set ReceptiveField(steps={num_steps})."
        )
    return [plan[step_key(number)] for number in range(num_steps)]


def is_prepared(plan: Mapping) -> bool:
    """Return whether `plan` is a result of `prepare`, rather than `x["plan"]`."""
    return "parts" in plan


def propagate(prepared: Mapping, x, kernel, bias=None, reduce: str = "sum", own=None):
    """Return the reduced incoming messages of every node under a plan.

    out[n] = sum over edges (j -> n, type p) of w * (x[j] @ kernel[p] + bias[p]).

    With `own` it adds own[n] @ kernel[0], in the same product where that is possible.

    Args:
        prepared: Result of `prepare`.
        x: [G, M, H], states of the senders.
        kernel: [P, H, U].
        bias: [P, U] or None; counts once per message.
        reduce: `"sum"`; `"mean"`, the sum over the number of edges; or `"max"`, the
            largest message per unit. Nodes without edges get 0.
        own: [G, N, H], states that each node adds to a sum of messages, or None.

    Returns:
        [G, N, U].
    """
    parts = {key: primitive_of(key) for key in prepared["parts"]}
    if reduce == "max":
        return _maximum(parts, prepared, x, kernel, bias)
    num_types = kernel.shape[0]
    sums, total = None, None
    for key, primitive in parts.items():
        arrays = prepared["parts"][key]
        if primitive.transforms:
            part = primitive.apply(arrays, x, kernel)
            total = part if total is None else total + part
        else:
            part = primitive.typed_sum(arrays, x, num_types)
            sums = part if sums is None else sums + part
    if own is not None and (sums is None or num_types > 1):
        part = flat_matmul(own, kernel[0])
        total = part if total is None else total + part
    elif own is not None:
        sums = sums + own
    if sums is not None:
        width, units = kernel.shape[1:]
        part = flat_matmul(sums, ops.reshape(kernel, (num_types * width, units)))
        total = part if total is None else total + part
    if bias is not None:
        share = ops.matmul(prepared["degree"], ops.cast(bias, "float32"))
        total = total + ops.cast(share, total.dtype)
    if reduce == "mean":
        count = ops.expand_dims(ops.maximum(prepared["count"], 1.0), -1)
        total = total / ops.cast(count, total.dtype)
    return total


def _maximum(parts, prepared, x, kernel, bias):
    if len(parts) > 1 or not all(p.takes_maximum for p in parts.values()):
        raise ValueError(
            "Expected a plan of only Segment() or Grouped() for reduce='max', since "
            f"dense blocks can only sum. Received: {sorted(parts)}. Change the plan."
        )
    ((key, primitive),) = parts.items()
    return primitive.maximum(prepared["parts"][key], x, kernel, bias)
