"""`SlotGraph`: a base graph with a slot, candidates, and neither's secret told."""

import dataclasses

import numpy as np

from keras_bandgnn.data.program_graph import RELATIONS, SLOT_LABEL, ProgramGraph
from keras_bandgnn.data.python_source.base import BaseGraph, Pairs, edge_array
from keras_bandgnn.data.python_source.frame import Frame
from keras_bandgnn.data.python_source.reach import Reach
from keras_bandgnn.data.python_source.scopes import Variable
from keras_bandgnn.data.python_source.unit import neighbours


@dataclasses.dataclass(frozen=True)
class Slot:
    """A usage to predict.

    Attributes:
        token: Its token.
        point: Its point in the control flow of `frame`.
        variable: The variable that stands there.
        frame: Frame that it is in.
        reach: Reaching uses and writes of the frame.
        candidates: Variables to choose from, in output order.
        info: Facts for people.
    """

    token: int
    point: int
    variable: Variable
    frame: Frame
    reach: Reach
    candidates: list[Variable]
    info: dict[str, object]


def _bypass(edges: np.ndarray, node: int) -> np.ndarray:
    """Takes a node out of its chains: what led to it leads to where it led."""
    source, target = edges[:, 0] == node, edges[:, 1] == node
    if not (source.any() or target.any()):
        return edges
    others = [int(other) for other in edges[target, 0] if other != node]
    nexts = [int(other) for other in edges[source, 1] if other != node]
    linked = edge_array([(a, b) for a in others for b in nexts])
    return np.unique(np.concatenate([edges[~(source | target)], linked]), axis=0)


class SlotGraph:
    """The graph of one instance before it is cut to its surroundings.

    Args:
        base: Graph with every token in place.
        slot: The usage that becomes the slot.
    """

    def __init__(self, base: BaseGraph, slot: Slot) -> None:
        self._base = base
        self._slot = slot
        self._node = base.region.id_of(slot.token)
        self._first = len(base.labels)
        edges = dict(base.edges)
        edges["LastUse"] = _bypass(edges["LastUse"], self._node)
        edges["LastLexicalUse"] = _bypass(edges["LastLexicalUse"], self._node)
        writes = edges["LastWrite"]
        edges["LastWrite"] = writes[writes[:, 0] != self._node]
        known = base.formal_receivers != slot.token
        edges["FormalArgName"] = edges["FormalArgName"][known]
        edges.update(self._guards())
        more: dict[str, Pairs] = {name: [] for name in RELATIONS[:-1]}
        around = base.guards.around(slot.token, slot.frame.node)
        for guard in around:
            # This says nothing about the variable.
            condition = base.region.node_of[guard.condition]
            more[guard.relation].append((self._node, condition))
        self._guarding = [
            (guard, base.guards.mentions(guard, absent=slot.token)) for guard in around
        ]
        for position, variable in enumerate(slot.candidates):
            self._wire(self._first + position, variable, more)
        self._edges = {
            name: np.concatenate([edges[name], edge_array(pairs)])
            for name, pairs in more.items()
        }

    def _guards(self) -> dict[str, np.ndarray]:
        """Edges to conditions as if the slot's token were neither there nor in one."""
        base, token = self._base, self._slot.token
        guards = base.guards.guards
        changed = [
            number
            for number, guard in enumerate(guards)
            if base.guards.has_in_condition(guard, token)
        ]
        edges = {}
        for relation, rows in base.guard_edges.items():
            kept = (rows[:, 1] != self._node) & ~np.isin(rows[:, 0], changed)
            again = [
                pair
                for number in changed
                if guards[number].relation == relation
                for pair in base.guards.edges(guards[number], absent=token)
            ]
            pairs = np.concatenate([rows[kept, 1:], edge_array(again)])
            edges[relation] = np.unique(pairs, axis=0)
        return edges

    def _wire(self, node: int, variable: Variable, more: dict[str, Pairs]) -> None:
        """Links a candidate as if it stood in the slot."""
        slot, region = self._slot, self._base.region

        def ids(tokens: list[int | None]) -> list[int]:
            return [
                region.id_of(token)
                for token in dict.fromkeys(tokens)
                if token is not None and token != slot.token and token in region
            ]

        reach = slot.reach
        uses = ids(reach.last_uses(slot.point, variable))
        more["LastUse"] += [(node, other) for other in uses]
        later = ids(reach.next_occurrences(slot.point, variable))
        more["LastUse"] += [(other, node) for other in later]
        if reach.comes_back(slot.point, variable):
            more["LastUse"].append((node, node))
        writes = ids(reach.last_writes(slot.point, variable))
        more["LastWrite"] += [(node, other) for other in writes]
        before, after = neighbours(variable.tokens, slot.token)
        more["LastLexicalUse"] += [(node, other) for other in ids([before])]
        more["LastLexicalUse"] += [(other, node) for other in ids([after])]
        for guard, mentioned in self._guarding:
            if variable in mentioned:
                condition = region.node_of[guard.condition]
                more[guard.relation].append((node, condition))

    def cut(self, steps: int, max_nodes: int | None) -> ProgramGraph:
        """Returns the instance with the nodes near the slot or a candidate."""
        count = self._first + len(self._slot.candidates)
        roots = [self._node, *range(self._first, count)]
        distance = self._distances(roots, count, steps)
        order = np.array([*self._base.order, *[-1.0] * len(self._slot.candidates)])
        rest = np.flatnonzero((distance > 0) & (distance <= steps))
        rest = rest[np.argsort(order[rest], kind="stable")]
        if max_nodes is not None and len(roots) + len(rest) > max_nodes:
            away = np.abs(order[rest] - order[self._node])
            nearest = np.lexsort((order[rest], away, distance[rest]))
            rest = rest[np.sort(nearest[: max_nodes - len(roots)])]
        kept = np.array([*roots, *rest.tolist()])
        new = np.full(count, -1, dtype=np.int32)
        new[kept] = np.arange(len(kept), dtype=np.int32)
        edges = {}
        for name, pairs in self._edges.items():
            mapped = new[pairs]
            mapped = mapped[(mapped >= 0).all(axis=1)]
            if len(mapped):
                edges[name] = mapped[np.lexsort((mapped[:, 1], mapped[:, 0]))]
        inner = kept[len(roots) :].tolist()
        names = [variable.name for variable in self._slot.candidates]
        right = self._slot.candidates.index(self._slot.variable)
        return ProgramGraph(
            labels=(SLOT_LABEL, *names, *(self._base.labels[i] for i in inner)),
            kinds=(
                "Slot",
                *["Candidate"] * len(names),
                *(self._base.kinds[i] for i in inner),
            ),
            edges=edges,
            slot=0,
            candidates=tuple(range(1, len(roots))),
            correct=right,
            node_types={},
            info=self._slot.info,
        )

    def _distances(self, roots: list[int], count: int, steps: int) -> np.ndarray:
        """Edges from each node to the nearest root; `steps + 1` beyond `steps`."""
        distance = np.full(count, steps + 1, dtype=np.int64)
        distance[roots] = 0
        pairs = np.concatenate(list(self._edges.values()))
        ends = np.concatenate([pairs, pairs[:, ::-1]])
        for step in range(steps):
            found = ends[distance[ends[:, 0]] == step, 1]
            found = found[distance[found] > step + 1]
            if not len(found):
                break
            distance[found] = step + 1
        return distance
