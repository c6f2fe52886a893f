"""The plan of a loader: `"auto"` resolved, and graphs prepared for it."""

from collections.abc import Sequence

import keras
import numpy as np

from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.planning.cost import Hardware
from keras_bandgnn.planning.plan_choice import auto_plan, choose_plan
from keras_bandgnn.preprocessing.batching.batcher import Batcher
from keras_bandgnn.preprocessing.graph_layer import applied_layers
from keras_bandgnn.primitives.plan import Plan
from keras_bandgnn.primitives.receptive_field import ReceptiveField


def with_edge_types(
    parts: Sequence[FlatGraphs], num_types: int | None
) -> tuple[list[FlatGraphs], int]:
    """Return the graphs with the edge types that a model reads, and P.

    Args:
        parts: The graphs.
        num_types: P; None for those that occur, 0 for a model that reads no types.

    Raises:
        ValueError: If other types occur.
    """
    if num_types == 0:
        return [_untyped(part) for part in parts], 1
    occurring = 1 + max((int(p.edge_type.max(initial=0)) for p in parts), default=0)
    if num_types is not None and occurring > num_types:
        raise ValueError(
            f"Expected edge types in [0, {num_types}), as "
            f"num_edge_types={num_types}. Received: type {occurring - 1}. "
            "Raise num_edge_types of the model."
        )
    return list(parts), num_types or occurring


def _untyped(part: FlatGraphs) -> FlatGraphs:
    if not part.edge_type.any():
        return part
    zeros = {"edge_type": np.zeros_like(part.edge_type)}
    return FlatGraphs.from_columns({**part.columns(), **zeros}, part.info)


def supergraph_nodes(parts: Sequence[FlatGraphs], batcher: Batcher) -> int:
    """Return the nodes of a supergraph: those of the budget, or of average graphs."""
    nodes = batcher.budget.get("node")
    if nodes is not None:
        return nodes
    total = sum(int(part.node_ptr[-1]) for part in parts)
    return int(batcher.batch_size * total / max(sum(map(len, parts)), 1))


def block_size_of(graphs, layers: Sequence[dict] = ()) -> int:
    """Return S of the banded plan that graphs were ordered for.

    Args:
        graphs: What `GraphLoader` takes. The metadata of compiled graphs name the
            layers that were applied.
        layers: The layers to be applied to graphs that are not compiled yet; see
            `GraphPreprocessor.layers_config`.

    Returns:
        `block_size` of their `RCMKCompile`, or 128, its default.
    """
    sizes = [
        entry["config"]["block_size"]
        for entry in applied_layers(graphs) or layers
        if entry["class_name"] == "RCMKCompile"
    ]
    return int(sizes[-1]) if sizes else 128


def cheapest_plan(
    parts: Sequence[FlatGraphs],
    num_types: int,
    batcher: Batcher,
    width: int = 64,
    schedule: ReceptiveField | None = None,
    num_hosts: int = 1,
    block_size: int = 128,
) -> Plan:
    """Return the plan of `plan="auto"`: the cheapest exact one.

    Args:
        parts: The graphs.
        num_types: P.
        batcher: Says how large supergraphs are.
        width: Channels of a state.
        schedule: The schedule that the task allows, or None.
        num_hosts: Hosts that train together.
        block_size: S of banded plans, see `block_size_of`.
    """
    nodes = supergraph_nodes(parts, batcher)
    hardware = None
    # Hosts that train together must agree, whatever each has measured.
    if num_hosts == 1 and parts:
        hardware = Hardware.calibrated(keras.config.dtype_policy().compute_dtype)
    if hardware is None:
        return auto_plan(num_types, block_size, schedule, nodes)
    return choose_plan(
        parts,
        num_types,
        width=width,
        units=width,
        schedule=schedule,
        nodes=nodes,
        hardware=hardware,
        block_size=block_size,
    ).plan


def apply_filter(parts: Sequence[FlatGraphs], plan: Plan) -> tuple[list, int]:
    """Return the graphs that pass a plan's filter, and how many do not.

    Raises:
        ValueError: If no graph is left.
    """
    total = sum(map(len, parts))
    if plan.filter:
        parts = [part.take(np.flatnonzero(plan.keeps(part))) for part in parts]
    count = sum(map(len, parts))
    if not count:
        why = f", after the plan's filter {plan.filter} left out {total}"
        raise ValueError(
            f"Expected at least one graph. Received: none{why if total else ''}."
        )
    return list(parts), total - count
