"""`Plan`: which primitive sums over which edges, and the sum on the device."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.checks import mapping, optional, positive_int, refuse
from keras_bandgnn.host_keras import ops
from keras_bandgnn.ops.batched import flat_matmul
from keras_bandgnn.primitives.banded import Banded
from keras_bandgnn.primitives.base import Primitive, find_part, primitive_of, step_key
from keras_bandgnn.primitives.edges import Edges
from keras_bandgnn.primitives.receptive_field import ReceptiveField
from keras_bandgnn.registration import PACKAGE, check_registered

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Tensor
    from keras_bandgnn.data.flat import FlatGraphs


class Plan:
    """An ordered list of primitives; each covers edges that earlier ones do not.

    Args:
        *primitives: Instances such as `Banded(128)`, in order.
        rest: The primitive for the edges that no other primitive covers (`Segment()`
            by default, which is lossless), or `"drop"`, the lossy mode of Balog et al.
            2019.
        schedule: A `ReceptiveField`, for tasks that read few nodes.
        filter: Graphs to train on: `{"bandwidth": S}` for those with a bandwidth below
            S, `{"order": N}` for those with fewer than N nodes (the filtered modes of
            Balog et al. 2019). Loaders exclude the others from training and count them.

    The protocol of plans:

    | attribute     | meaning                                                          |
    | ------------- | ---------------------------------------------------------------- |
    | `primitives`  | the primitives in order, including the rest                      |
    | `rest`        | the primitive for all remaining edges, or None                   |
    | `schedule`    | a `ReceptiveField`, or None                                      |
    | `filter`      | dict, see above                                                  |
    | `keys`        | keys of the arrays that `pack` returns                           |
    | `reads_nodes` | whether `pack` needs features of nodes and edges, or only edges  |

    | method    | purpose                                                     |
    | --------- | ----------------------------------------------------------- |
    | `measure` | resources that each of many graphs needs in a supergraph    |
    | `sizes`   | those of the primitives, which depend only on edges         |
    | `pack`    | the arrays of a supergraph, key -> arrays                   |
    | `dropped` | mask of the edges that no primitive covers                  |
    | `keeps`   | mask of the graphs that pass the filter                     |
    | `replace` | the plan with other options                                 |

    Example:
    >>> Plan(Banded(128))
    Plan('banded:128', rest='segment')
    """

    reads_nodes: bool = False

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
                    "Expected instances of Primitive as `primitives`. "
                    f"Received: {primitive!r}. Pass Banded(128) or another one."
                )
        lossy = isinstance(rest, str) and rest == "drop"
        if isinstance(rest, str) and not lossy:
            rest = primitive_of(rest, "rest")
        if not lossy and not isinstance(rest, Primitive):
            refuse("rest", "'drop' or a primitive such as Segment()", rest)
        if not lossy and not rest.covers_all:
            raise ValueError(
                "Expected `rest` to cover every edge, as Segment() and Grouped() do. "
                f"Received: rest={rest!r}."
            )
        if not lossy and rest not in primitives:
            primitives += (rest,)
        self._assign(primitives, None if lossy else rest, schedule, filter)
        if len(set(self.keys)) < len(self.keys):
            raise ValueError(
                f"Expected each primitive once. Received: {self.keys}. Remove the "
                "duplicates."
            )
        if not self.primitives:
            raise ValueError(
                "Expected at least one primitive with rest='drop'. Received: none. Add "
                "one, such as Banded(128)."
            )
        for primitive in primitives:
            _check_key(primitive)
        self._check_order()
        self._check_schedule()

    def _assign(self, primitives: tuple, fallback, schedule, filter) -> None:
        self.primitives = tuple(primitives)
        self.rest = fallback
        self.schedule = schedule
        self.filter = _checked_filter(optional(mapping, "filter", filter) or {})

    def _check_order(self) -> None:
        placed = None
        for primitive in self.primitives:
            if placed is not None and primitive.depends_on_edges:
                raise ValueError(
                    f"Expected {primitive.key()!r} before {placed!r}, as the edges of "
                    "the latter depend on the position of a graph in a supergraph. "
                    f"Received: {self.keys}. Change the order, or use "
                    "Banded(S, 'band')."
                )
            if primitive.depends_on_place and not primitive.covers_all:
                placed = primitive.key()

    def _check_schedule(self) -> None:
        schedule = self.schedule
        if schedule is None:
            return
        if not isinstance(schedule, ReceptiveField):
            refuse("schedule", "a ReceptiveField, such as ReceptiveField(8)", schedule)
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

    def keeps(self, graphs: FlatGraphs) -> np.ndarray:
        """Return a mask of the graphs of a `FlatGraphs` that pass the filter."""
        passing = np.ones(len(graphs), bool)
        if "order" in self.filter:
            passing &= graphs.num_nodes < self.filter["order"]
        if "bandwidth" in self.filter:
            distance = np.abs(graphs.senders - graphs.receivers)
            graph = np.arange(len(graphs)).repeat(graphs.num_edges)
            far = graph[distance >= self.filter["bandwidth"]]
            passing[far] = False
        return passing

    def replace(self, **changes: ReceptiveField | Mapping[str, int] | None) -> Plan:
        """Return the plan with another schedule or filter.

        Args:
            **changes: `schedule` and `filter` as for the constructor.
        """
        options = {"schedule": self.schedule, "filter": self.filter, **changes}
        plan = copy.copy(self)
        plan._assign(self.primitives, self.rest, **options)
        plan._check_schedule()
        return plan

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the arrays that `pack` returns, in order."""
        return tuple(p.key() for p in self.primitives)

    def check_registered(self) -> None:
        """Raise a ValueError if its class or that of a primitive cannot be saved."""
        if type(self).__module__.partition(".")[0] != PACKAGE:
            check_registered(self)
        # The library's primitives are saved by `name`.
        check_registered(*(p for p in self.primitives if p.library_name() is None))

    def get_config(self) -> dict:
        """Return the configuration for `Plan.from_config`."""
        config = {"primitives": list(self.keys), "drop_rest": self.rest is None}
        if self.rest is not None and self.rest != self.primitives[-1]:
            config["rest"] = self.rest.key()
        if self.schedule is not None:
            config["schedule"] = self.schedule.get_config()
        if self.filter:
            config["filter"] = dict(self.filter)
        return config

    @classmethod
    def from_config(cls, config: Mapping) -> Plan:
        """Build a plan from `get_config()`."""
        primitives = [primitive_of(key) for key in config["primitives"]]
        options = {"filter": config.get("filter")}
        if config.get("schedule"):
            options["schedule"] = ReceptiveField.from_config(config["schedule"])
        if config["drop_rest"]:
            return cls(*primitives, rest="drop", **options)
        return cls(*primitives, rest=config.get("rest", primitives[-1]), **options)

    def measure(self, graphs: FlatGraphs, num_types: int) -> dict[str, np.ndarray]:
        """Return upper bounds of the resources of each graph of a `FlatGraphs`.

        Args:
            graphs: The graphs.
            num_types: P.

        Returns:
            Name -> int64 [n].
        """
        edges, graph_of_edge = Edges.of_graphs(graphs, num_types)
        return self.sizes(edges, graph_of_edge, len(graphs))

    def sizes(self, edges: Edges, graph_of_edge: np.ndarray, num_graphs: int) -> dict:
        """Return each graph's resources of the primitives, valid at any position.

        Args:
            edges: The concatenated edges of all graphs, with node offsets.
            graph_of_edge: int [E].
            num_graphs: Number of graphs.

        Returns:
            Name -> int64 [num_graphs].
        """
        sizes = {}
        for primitive in self.primitives:
            sizes.update(primitive.sizes(edges, graph_of_edge, num_graphs))
            uncovered = ~primitive.always_covers(edges)
            edges, graph_of_edge = edges.keep(uncovered), graph_of_edge[uncovered]
        return sizes

    def pack(
        self,
        edges: Edges,
        budget: Mapping[str, int],
        node: Mapping[str, np.ndarray] | None = None,
        edge: Mapping[str, np.ndarray] | None = None,
    ) -> dict[str, dict]:
        """Assign every edge to one primitive and pack the arrays.

        Args:
            edges: The edges of a supergraph.
            budget: Capacities by name.
            node: `x["node"]` of the supergraph, for plans with `reads_nodes`.
            edge: `x["edge"]` of the supergraph, likewise.
        """
        del node, edge
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

    def dropped(
        self,
        edges: Edges,
        node: Mapping[str, np.ndarray] | None = None,
        edge: Mapping[str, np.ndarray] | None = None,
    ) -> np.ndarray:
        """Return a mask of the dropped edges of a supergraph; see `pack`."""
        del node, edge
        uncovered = np.arange(len(edges))
        for primitive in self.primitives:
            uncovered = uncovered[~primitive.cover(edges.keep(uncovered))]
        dropped = np.zeros(len(edges), bool)
        dropped[uncovered] = True
        return dropped

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash((self.keys, self.rest is None, self.schedule))

    def __repr__(self) -> str:
        parts = [repr(p.key()) for p in self.primitives if p != self.rest]
        fallback = self.rest.key() if self.rest else "drop"
        parts.append(f"rest={fallback!r}")
        if self.schedule is not None:
            parts.append(f"schedule={self.schedule}")
        if self.filter:
            parts.append(f"filter={self.filter}")
        return f"Plan({', '.join(parts)})"


def _check_key(primitive: Primitive) -> None:
    """Raise a ValueError if the key of a custom class lacks an argument."""
    if primitive.library_name() is not None:
        return
    key = primitive.key()
    restored = find_part(key)
    restored = {} if restored is None else vars(restored)
    plain = (bool, int, float, str, type(None))
    for name, value in vars(primitive).items():
        if isinstance(value, plain) and restored.get(name) != value:
            raise ValueError(
                f"Expected the key of {type(primitive).__name__} to hold its arguments,"
                f" integers and words. Received: {key!r}, which gives {name}="
                f"{restored.get(name)!r} instead of {value!r}. Return every argument"
                " of the constructor from `get_config()`."
            )


def _checked_filter(limits: Mapping) -> dict[str, int]:
    for name, limit in limits.items():
        if name not in ("bandwidth", "order"):
            raise ValueError(
                "Expected `filter` with the keys 'bandwidth' and 'order'. "
                f"Received: filter={dict(limits)}."
            )
        positive_int(f"filter[{name!r}]", limit)
    return {name: int(limit) for name, limit in limits.items()}


# On the device, the arrays of a batch are all there is of a plan.


def prepare(
    plan: Mapping[str, Mapping],
    num_nodes: int,
    num_types: int,
    dtype: str,
    use_bias: bool = True,
    reduce: str = "sum",
) -> dict:
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


def edges_by_type(plan: Mapping, num_nodes: int, num_types: int):
    """Return the number of edges of a plan per receiver and type, float32 [G, N, P].

    Args:
        plan: `x["plan"]`.
        num_nodes: N.
        num_types: P.
    """
    return sum(
        primitive_of(key).type_count(arrays, num_nodes, num_types)
        for key, arrays in plan.items()
    )


def mean_by_type(plan: Mapping, num_nodes: int, num_types: int, count=None) -> dict:
    """Weigh edges so that sums under a plan are sums of the means of each type.

    A message of type p into node n gets the factor 1 / count[n, p].

    Args:
        plan: `x["plan"]`.
        num_nodes: N.
        num_types: P.
        count: float32 [G, N, P]; by default the edges of the plan per receiver and
            type, whatever their weights.

    Returns:
        The argument of `prepare`.
    """
    parts = {key: primitive_of(key) for key in plan}
    if count is None:
        count = edges_by_type(plan, num_nodes, num_types)
    some = count > 0
    factor = ops.where(some, 1.0 / ops.where(some, count, 1.0), 0.0)
    return {key: part.weigh(plan[key], factor) for key, part in parts.items()}


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


def propagate(
    prepared: Mapping,
    x: Tensor,
    kernel: Tensor | None = None,
    bias: Tensor | None = None,
    reduce: str = "sum",
    own: Tensor | None = None,
) -> Tensor:
    """Return the reduced incoming messages of every node under a plan.

    out[n] = sum over edges (j -> n, type p) of w * (x[j] @ kernel[p] + bias[p]).

    With `own` it adds own[n] @ kernel[0], in the same product where that is possible.

    Args:
        prepared: Result of `prepare`.
        x: [G, M, H], states of the senders.
        kernel: [P, H, U]; None for the identity, of one type of edges.
        bias: [P, U] or None; counts once per message.
        reduce: `"sum"`; `"mean"`, the sum over the number of edges; or `"max"`, the
            largest message per unit. Nodes without edges get 0.
        own: [G, N, H], states that each node adds to a sum of messages, or None.

    Returns:
        [G, N, U].
    """
    parts = {key: primitive_of(key) for key in prepared["parts"]}
    identity = kernel is None
    if identity:
        kernel = ops.expand_dims(ops.eye(x.shape[-1], dtype=x.dtype), 0)
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
        part = own if identity else flat_matmul(own, kernel[0])
        total = part if total is None else total + part
    elif own is not None:
        sums = sums + own
    if sums is not None:
        part = sums
        if not identity:
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
