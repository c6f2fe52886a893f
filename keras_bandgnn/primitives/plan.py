"""`Plan`: which primitive carries out the sum over which edges."""

import re
from collections.abc import Mapping

import numpy as np
from keras import ops

from keras_bandgnn.checks import positive_int
from keras_bandgnn.primitives.active_blocks import ActiveBlocks
from keras_bandgnn.primitives.banded import Banded
from keras_bandgnn.primitives.base import Edges, Primitive
from keras_bandgnn.primitives.block_sparse import BlockSparse
from keras_bandgnn.primitives.dense import Dense
from keras_bandgnn.primitives.grouped import Grouped
from keras_bandgnn.primitives.receptive_field import ReceptiveField
from keras_bandgnn.primitives.segment import Segment
from keras_bandgnn.primitives.supernode import Supernode

_PRIMITIVES = {
    "active": ActiveBlocks,
    "banded": Banded,
    "block_sparse": BlockSparse,
    "dense": Dense,
    "grouped": Grouped,
    "segment": Segment,
    "supernode": Supernode,
}


def _primitive(key: str) -> Primitive:
    try:
        return _PRIMITIVES[key.split(":")[0]].from_key(key)
    except (KeyError, ValueError, IndexError) as error:
        raise ValueError(
            f"Expected the key of a primitive, such as 'banded:128' or one of "
            f"{sorted(_PRIMITIVES)}. Received: {key!r}."
        ) from error


def is_resource(name: str) -> bool:
    """Whether a resource of this name belongs to some primitive."""
    return "@" in name or re.split("[:.]", name)[0] in _PRIMITIVES


class Plan:
    """An ordered list of primitives; each takes the edges that those before it left.

    Args:
        *primitives: Instances such as `Banded(128)`, in order.
        rest: What carries the edges that no primitive covers: a primitive
            (`Segment()` by default, so nothing is lost), or `"drop"`, the lossy mode
            of Balog et al. 2019.
        schedule: A `ReceptiveField`, for tasks that read few nodes.
        filter: Graphs to train on: `{"bandwidth": S}` those with a bandwidth below S,
            `{"order": N}` those with fewer than N nodes (the filtered modes of Balog
            et al. 2019). Loaders leave the others out of training and count them.

    Example:
    >>> Plan(Banded(128))
    Plan('banded:128', rest='segment')
    """

    def __init__(
        self,
        *primitives: Primitive,
        rest: Primitive | str = "segment",
        schedule: ReceptiveField | None = None,
        filter: Mapping[str, int] | None = None,
    ):
        for primitive in primitives:
            if not isinstance(primitive, Primitive):
                raise ValueError(
                    f"Expected primitives such as Banded(128). Received: {primitive!r}."
                )
        if isinstance(rest, str):
            rest = None if rest == "drop" else _primitive(rest)
        elif not isinstance(rest, Primitive):
            raise ValueError(
                "Expected `rest` to be 'drop' or a primitive such as Segment(). "
                f"Received: rest={rest!r}."
            )
        if rest is not None and not rest.covers_all:
            raise ValueError(
                "Expected `rest` to cover every edge, as Segment() and Grouped() do. "
                f"Received: rest={rest!r}."
            )
        self.primitives = tuple(primitives)
        if rest is not None and rest not in primitives:
            self.primitives += (rest,)
        self.rest = rest
        if len(set(self.keys)) < len(self.keys):
            raise ValueError(f"Expected each primitive once. Received: {self.keys}.")
        if not self.primitives:
            raise ValueError(
                "Expected at least one primitive when rest='drop'. Received: none."
            )
        self._check_order()
        self.schedule = schedule
        self.filter = _checked_filter(filter or {})
        if schedule is not None:
            self._check_schedule(schedule)

    def _check_order(self) -> None:
        placed = None
        for primitive in self.primitives:
            if placed is not None and primitive.depends_on_edges:
                raise ValueError(
                    f"Expected {primitive.key()!r} before {placed!r}, which takes "
                    "other edges wherever a graph lies in a supergraph. Received: "
                    f"{self.keys}. Change the order, or use Banded(S, 'band')."
                )
            if primitive.depends_on_place and not primitive.covers_all:
                placed = primitive.key()

    def _check_schedule(self, schedule) -> None:
        if not isinstance(schedule, ReceptiveField):
            raise ValueError(
                "Expected `schedule` to be a ReceptiveField, such as "
                f"ReceptiveField(8). Received: schedule={schedule!r}."
            )
        if schedule.order == "compact":
            if not all(p.bipartite for p in self.primitives):
                raise ValueError(
                    "Expected a plan of Segment() or Grouped() for a schedule with "
                    f"order='compact'. Received: {self.keys}. Use order='blocks' for "
                    "Banded."
                )
        elif not (
            isinstance(self.primitives[0], Banded)
            and len(self.primitives) <= 2
            and all(p.bipartite for p in self.primitives[1:])
        ):
            raise ValueError(
                "Expected Banded(S) and one rest for a schedule with order='blocks'. "
                f"Received: {self.keys}."
            )

    def keeps(self, graphs) -> np.ndarray:
        """Which graphs of a `FlatGraphs` the filter lets pass, bool [n]."""
        kept = np.ones(len(graphs), bool)
        if "order" in self.filter:
            kept &= graphs.num_nodes < self.filter["order"]
        if "bandwidth" in self.filter:
            distance = np.abs(graphs.senders - graphs.receivers)
            graph = np.arange(len(graphs)).repeat(graphs.num_edges)
            far = graph[distance >= self.filter["bandwidth"]]
            kept[far] = False
        return kept

    def replace(self, **changes) -> "Plan":
        """Returns the plan with another schedule or filter."""
        rest = self.rest or "drop"
        own = [p for p in self.primitives if p != self.rest]
        given = {"schedule": self.schedule, "filter": self.filter, **changes}
        return Plan(*own, rest=rest, **given)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the primitives, in order."""
        return tuple(p.key() for p in self.primitives)

    def get_config(self) -> dict:
        """Plain description; `Plan.from_config` reads it."""
        config = {"primitives": list(self.keys), "drop_rest": self.rest is None}
        if self.schedule is not None:
            config["schedule"] = self.schedule.get_config()
        if self.filter:
            config["filter"] = dict(self.filter)
        return config

    @classmethod
    def from_config(cls, config: Mapping) -> "Plan":
        """Builds a plan from `get_config()`."""
        primitives = [_primitive(key) for key in config["primitives"]]
        options = {"filter": config.get("filter")}
        if config.get("schedule"):
            options["schedule"] = ReceptiveField.from_config(config["schedule"])
        if config["drop_rest"]:
            return cls(*primitives, rest="drop", **options)
        return cls(*primitives[:-1], rest=primitives[-1], **options)

    def sizes(self, edges: Edges, graph_of_edge, num_graphs: int) -> dict:
        """Resources that each graph needs at most, wherever it lies.

        Args:
            edges: The edges of all graphs, laid end to end with node offsets.
            graph_of_edge: int [E].
            num_graphs: Number of graphs.

        Returns:
            Name -> int64 [num_graphs].
        """
        sizes = {}
        for primitive in self.primitives:
            sizes.update(primitive.sizes(edges, graph_of_edge, num_graphs))
            left = ~primitive.always_covers(edges)
            edges, graph_of_edge = edges.keep(left), graph_of_edge[left]
        return sizes

    def pack(self, edges: Edges, budget: Mapping[str, int]) -> dict[str, dict]:
        """Assigns every edge to one primitive and lays the arrays out."""
        arrays = {}
        for primitive in self.primitives:
            if primitive.covers_all:
                arrays[primitive.key()] = primitive.pack(edges, budget)
                edges = edges.keep(slice(0, 0))
                continue
            covered = primitive.cover(edges)
            arrays[primitive.key()] = primitive.pack(edges.keep(covered), budget)
            edges = edges.keep(~covered)
        return arrays

    def dropped(self, edges: Edges) -> np.ndarray:
        """Which edges the plan leaves out, bool [E]."""
        left = np.arange(len(edges))
        for primitive in self.primitives:
            left = left[~primitive.cover(edges.keep(left))]
        dropped = np.zeros(len(edges), bool)
        dropped[left] = True
        return dropped

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash((self.keys, self.rest is None, self.schedule))

    def __repr__(self) -> str:
        parts = [repr(p.key()) for p in self.primitives if p != self.rest]
        rest = self.rest.key() if self.rest else "drop"
        parts.append(f"rest={rest!r}")
        if self.schedule is not None:
            parts.append(f"schedule={self.schedule}")
        if self.filter:
            parts.append(f"filter={self.filter}")
        return f"Plan({', '.join(parts)})"


def _checked_filter(given: Mapping) -> dict[str, int]:
    for name, limit in given.items():
        if name not in ("bandwidth", "order"):
            raise ValueError(
                "Expected `filter` with the keys 'bandwidth' and 'order'. "
                f"Received: filter={dict(given)}."
            )
        positive_int(f"filter[{name!r}]", limit)
    return {name: int(limit) for name, limit in given.items()}


def prepare(
    plan: Mapping[str, Mapping],
    num_nodes: int,
    num_types: int,
    dtype: str,
    use_bias: bool = True,
    reduce: str = "sum",
):
    """Device work of a plan that is done once per batch.

    Args:
        plan: `x["plan"]`, key of a primitive -> its arrays.
        num_nodes: N.
        num_types: P.
        dtype: Compute dtype.
        use_bias: Whether messages have a bias.
        reduce: How messages are joined, see `propagate`.

    Returns:
        What `propagate` takes.
    """
    parts = {
        key: _primitive(key).prepare(arrays, num_nodes, num_types, dtype)
        for key, arrays in plan.items()
    }
    prepared = {"parts": parts}
    primitives = {key: _primitive(key) for key in parts}
    if reduce == "mean":
        prepared["count"] = sum(
            p.count(parts[key], num_nodes, num_types) for key, p in primitives.items()
        )
    if use_bias and reduce != "max":
        # As many numbers as nodes have types, instead of a bias per message.
        prepared["degree"] = sum(
            p.degree(parts[key], num_nodes, num_types) for key, p in primitives.items()
        )
    return prepared


def is_scheduled(plan: Mapping) -> bool:
    """Whether `x["plan"]` has a dict per step of a `ReceptiveField`."""
    return "step:0" in plan


def scheduled_steps(plan: Mapping, num_steps: int) -> list[Mapping]:
    """The steps of `x["plan"]` in order.

    Args:
        plan: `x["plan"]` of a plan with a schedule.
        num_steps: T of the model.

    Returns:
        For each step the arrays of the plan and `state`, the gather of old states.
    """
    found = sum(key.startswith("step:") for key in plan)
    if found != num_steps:
        raise ValueError(
            f"Expected a schedule of {num_steps} steps, as the model has. Received: a "
            f"batch of {found} steps. Set ReceptiveField(steps={num_steps})."
        )
    return [plan[f"step:{number}"] for number in range(num_steps)]


def is_prepared(plan: Mapping) -> bool:
    """Whether `plan` is what `prepare` returned, rather than `x["plan"]`."""
    return "parts" in plan


def propagate(prepared: Mapping, x, kernel, bias=None, reduce: str = "sum"):
    """Incoming messages of every node under a plan.

    out[n] = sum over edges (j -> n, type p) of w * (x[j] @ kernel[p] + bias[p]).

    Args:
        prepared: What `prepare` returned.
        x: [G, M, H], states of the nodes that send.
        kernel: [P, H, U].
        bias: [P, U] or None; counts once per message.
        reduce: `"sum"`; `"mean"`, the sum over the number of edges; or `"max"`, the
            largest message per unit. Nodes without edges get 0.

    Returns:
        [G, N, U].
    """
    parts = {key: _primitive(key) for key in prepared["parts"]}
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
    if sums is not None:
        width, units = kernel.shape[1:]
        part = ops.matmul(sums, ops.reshape(kernel, (num_types * width, units)))
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
            "Expected a plan of Segment() or Grouped() alone for reduce='max', as "
            f"dense blocks can only add. Received: {sorted(parts)}."
        )
    ((key, primitive),) = parts.items()
    return primitive.maximum(prepared["parts"][key], x, kernel, bias)
