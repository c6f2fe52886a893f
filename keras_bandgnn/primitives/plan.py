"""`Plan`: which primitive carries out the sum over which edges."""

import re
from collections.abc import Mapping

import numpy as np

from keras_bandgnn.checks import mapping, optional, positive_int
from keras_bandgnn.primitives.active_blocks import ActiveBlocks
from keras_bandgnn.primitives.banded import Banded
from keras_bandgnn.primitives.base import Edges, Primitive
from keras_bandgnn.primitives.block_sparse import BlockSparse
from keras_bandgnn.primitives.dense import Dense
from keras_bandgnn.primitives.grouped import Grouped
from keras_bandgnn.primitives.receptive_field import ReceptiveField
from keras_bandgnn.primitives.segment import Segment
from keras_bandgnn.primitives.supernode import Supernode

# From the key of a primitive to the primitive.


_PRIMITIVES = {
    "active": ActiveBlocks,
    "banded": Banded,
    "block_sparse": BlockSparse,
    "dense": Dense,
    "grouped": Grouped,
    "segment": Segment,
    "supernode": Supernode,
}


def primitive_of(key: str, name: str = "key") -> Primitive:
    """The primitive that a key such as `"banded:128"` names."""
    try:
        return _PRIMITIVES[key.split(":")[0]].from_key(key)
    except (KeyError, ValueError, IndexError) as error:
        raise ValueError(
            f"Expected `{name}` to be the key of a primitive, 'banded:128' or one of "
            f"{sorted(_PRIMITIVES)}. Received: {key!r}."
        ) from error


def is_resource(name: str) -> bool:
    """Whether a resource of this name belongs to some primitive."""
    return "@" in name or re.split("[:.]", name)[0] in (*_PRIMITIVES, "tiles")


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
            rest = None if rest == "drop" else primitive_of(rest, "rest")
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
        self.filter = _checked_filter(optional(mapping, "filter", filter) or {})
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
        primitives = [primitive_of(key) for key in config["primitives"]]
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
