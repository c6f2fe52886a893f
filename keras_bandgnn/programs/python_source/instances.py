"""Variable misuse instances of one file."""

import dataclasses
import itertools
import random
import zlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from keras_bandgnn.checks import (
    function,
    instance,
    one_of,
    optional,
    positive_int,
    seed_number,
)
from keras_bandgnn.programs.program_graph import RELATIONS, SLOT_LABEL, ProgramGraph
from keras_bandgnn.programs.python_source.base import (
    BaseGraph,
    BaseGraphs,
    Pairs,
    edge_array,
)
from keras_bandgnn.programs.python_source.frame import Frame
from keras_bandgnn.programs.python_source.reach import Reach
from keras_bandgnn.programs.python_source.scopes import Scope, Variable
from keras_bandgnn.programs.python_source.unit import SourceUnit, TooLarge, neighbours


@dataclasses.dataclass(frozen=True)
class Slot:
    """A usage to predict.

    Attributes:
        token: Its token.
        point: Its point in the control flow of `frame`.
        variable: The variable in use.
        frame: The frame of the usage.
        reach: Reaching uses and writes of the frame.
        candidates: Variables to choose from, in output order.
        info: Free-form metadata.
    """

    token: int
    point: int
    variable: Variable
    frame: Frame
    reach: Reach
    candidates: list[Variable]
    info: dict[str, object]


def _bypass(edges: np.ndarray, node: int) -> np.ndarray:
    """Remove a node from its chains by linking its predecessors to its successors."""
    source, target = edges[:, 0] == node, edges[:, 1] == node
    if not (source.any() or target.any()):
        return edges
    others = [int(other) for other in edges[target, 0] if other != node]
    nexts = [int(other) for other in edges[source, 1] if other != node]
    linked = edge_array([(a, b) for a in others for b in nexts])
    return np.unique(np.concatenate([edges[~(source | target)], linked]), axis=0)


class SlotGraph:
    """The graph of an instance before it is cut to the neighbourhood of the slot.

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
        independent = base.formal_receivers != slot.token
        edges["FormalArgName"] = edges["FormalArgName"][independent]
        edges.update(self._guards())
        more: dict[str, Pairs] = {name: [] for name in RELATIONS[:-1]}
        around = base.guards.around(slot.token, slot.frame.node)
        for guard in around:
            # This does not leak the variable.
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
        """Return the guard edges as if the slot's token did not exist."""
        base, token = self._base, self._slot.token
        guards = base.guards.guards
        changed = [
            number
            for number, guard in enumerate(guards)
            if base.guards.has_in_condition(guard, token)
        ]
        edges = {}
        for relation, rows in base.guard_edges.items():
            keep = (rows[:, 1] != self._node) & ~np.isin(rows[:, 0], changed)
            again = [
                pair
                for number in changed
                if guards[number].relation == relation
                for pair in base.guards.edges(guards[number], absent=token)
            ]
            pairs = np.concatenate([rows[keep, 1:], edge_array(again)])
            edges[relation] = np.unique(pairs, axis=0)
        return edges

    def _wire(self, node: int, variable: Variable, more: dict[str, Pairs]) -> None:
        """Add the edges that a candidate would have in the slot."""
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
        """Return the instance with only the nodes near the slot or a candidate."""
        count = self._first + len(self._slot.candidates)
        roots = [self._node, *range(self._first, count)]
        distance = self._distances(roots, count, steps)
        order = np.array([*self._base.order, *[-1.0] * len(self._slot.candidates)])
        others = np.flatnonzero((distance > 0) & (distance <= steps))
        others = others[np.argsort(order[others], kind="stable")]
        if max_nodes is not None and len(roots) + len(others) > max_nodes:
            away = np.abs(order[others] - order[self._node])
            nearest = np.lexsort((order[others], away, distance[others]))
            others = others[np.sort(nearest[: max_nodes - len(roots)])]
        nodes = np.array([*roots, *others.tolist()])
        new = np.full(count, -1, dtype=np.int32)
        new[nodes] = np.arange(len(nodes), dtype=np.int32)
        edges = {}
        for name, pairs in self._edges.items():
            mapped = new[pairs]
            mapped = mapped[(mapped >= 0).all(axis=1)]
            if len(mapped):
                edges[name] = mapped[np.lexsort((mapped[:, 1], mapped[:, 0]))]
        inner = nodes[len(roots) :].tolist()
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
        """Return each node's distance to the nearest root, at most `steps + 1`."""
        distance = np.full(count, steps + 1, dtype=np.int64)
        distance[roots] = 0
        pairs = np.concatenate(list(self._edges.values()))
        ends = np.concatenate([pairs, pairs[:, ::-1]])
        for step in range(steps):
            frontier = ends[distance[ends[:, 0]] == step, 1]
            frontier = frontier[distance[frontier] > step + 1]
            if not len(frontier):
                break
            distance[frontier] = step + 1
        return distance


_CONTEXTS = ("function", "file")


def program_graphs(
    source: str | bytes,
    filename: str = "<source>",
    *,
    max_instances: int | None = None,
    max_candidates: int = 10,
    seed: int = 0,
    steps: int = 8,
    max_nodes: int | None = None,
    context: str = "function",
    on_skip: Callable[[str], None] | None = None,
) -> list[ProgramGraph]:
    """Create variable-misuse instances from Python source.

    Every read of a local variable, a parameter or a variable of an enclosing function
    (in module code, of a variable assigned there) can become a slot, if at least two
    such variables may be bound at this point. All edges are computed as if the slot's
    token did not exist; each candidate gets the edges it would have in the slot.

    Args:
        source: Source text, or bytes to decode by PEP 263. It is never executed.
        filename: Name for `info`; with `seed` it determines all random choices.
        max_instances: Maximum number of instances, at least 0, sampled; None for
            all.
        max_candidates: Maximum number of candidates: the correct one and a sample.
        seed: Seed of the samples and of the candidates' order.
        steps: Keep the nodes within this many edges, at least 0, in any direction, of
            the slot or a
            candidate.
        max_nodes: Maximum number of nodes, the nearest first; None for all.
        context: `"function"` for the outermost function around the slot, or the
            statements near a slot in module code; `"file"` for the whole file.
        on_skip: Called with a reason for each function that is too large.

    Returns:
        The instances in source order. Node 0 is the slot, followed by the candidates in
        shuffled order and the other nodes in source order. `info` has `filename`,
        `line` (from 1), `column` (from 0), `variable`, `function`, and two baseline
        guesses as positions in `candidates`: `nearest`, the closest occurrence before
        the slot, and `frequent`, the most frequent one in its function.

    Raises:
        SyntaxError: If the source does not parse or cannot be decoded.
        ValueError: For null bytes or arguments out of range.

    Reference:
        - [Allamanis et al., 2018](https://arxiv.org/abs/1711.00740)

    Example:
    >>> graphs = program_graphs("def area(width, height): return width * height")
    >>> [graph.info["variable"] for graph in graphs]
    ['width', 'height']
    """
    instance("source", source, str | bytes, "source text")
    instance("filename", filename, str, "a string")
    positive_int("max_candidates", max_candidates, 2)
    positive_int("steps", steps, 0)
    optional(positive_int, "max_instances", max_instances, 0)
    optional(positive_int, "max_nodes", max_nodes, max_candidates + 1)
    seed_number("seed", seed)
    one_of("context", context, _CONTEXTS)
    optional(function, "on_skip", on_skip)
    builder = InstanceBuilder(
        SourceUnit(source), filename, seed, max_candidates, context
    )
    usages = builder.usages()
    if max_instances is not None:
        builder.random("sample").shuffle(usages)
    skipped: dict[str, int] = {}
    pairs = builder.graphs(usages, steps, max_nodes, skipped)
    graphs = dict(itertools.islice(pairs, max_instances))
    if on_skip is not None:
        for reason in sorted(skipped):
            on_skip(reason)
    return [graphs[token] for token in sorted(graphs)]


@dataclasses.dataclass(frozen=True)
class Usage:
    """A read of a variable that can become a slot.

    Attributes:
        token: Its token.
        scope: The scope of the usage.
        variable: The variable that the name refers to.
        frame: The frame of the usage.
    """

    token: int
    scope: Scope
    variable: Variable
    frame: Frame


class InstanceBuilder:
    """Builds the instances of one file.

    Args:
        unit: The file.
        filename: See `program_graphs`.
        seed: See `program_graphs`.
        max_candidates: See `program_graphs`.
        context: See `program_graphs`.
    """

    def __init__(
        self,
        unit: SourceUnit,
        filename: str,
        seed: int,
        max_candidates: int,
        context: str,
    ) -> None:
        self._unit = unit
        self._filename = filename
        self._seed = seed
        self._max_candidates = max_candidates
        self._graphs = BaseGraphs(unit, context)

    def random(self, *purpose: object) -> random.Random:
        """Return a generator seeded by the seed, the file and the purpose."""
        key = repr((self._seed, self._filename, *purpose))
        return random.Random(zlib.crc32(key.encode("utf-8", "backslashreplace")))

    def usages(self) -> list[Usage]:
        """Return the reads of plain variables, in source order.

        Module variables are included only in module-level code.
        """
        usages = []
        for frame in self._unit.frames:
            for token, scope, name in frame.slots:
                variable = scope.resolve(name)
                if variable is None or not variable.is_plain:
                    continue
                if not (frame.in_function and variable.scope.kind == "module"):
                    usages.append(Usage(token, scope, variable, frame))
        return sorted(usages, key=lambda usage: usage.token)

    def graphs(
        self,
        usages: Iterable[Usage],
        steps: int,
        max_nodes: int | None,
        skipped: dict[str, int],
    ) -> Iterator[tuple[int, ProgramGraph]]:
        """Yield (token, instance) of each usage with at least two candidates.

        Args:
            usages: Usages of this file.
            steps: See `program_graphs`.
            max_nodes: See `program_graphs`.
            skipped: Counter of the usages in functions that are too large, by reason.
        """
        for usage in usages:
            try:
                graph = self.make(usage)
            except TooLarge as error:
                skipped[str(error)] = skipped.get(str(error), 0) + 1
                continue
            if graph is not None:
                yield usage.token, graph.cut(steps, max_nodes)

    def make(self, usage: Usage) -> SlotGraph | None:
        """Return the instance at a usage, None without two candidates.

        Raises:
            TooLarge: If the amount of work exceeds the bounds.
        """
        token, frame = usage.token, usage.frame
        reach = self._unit.reach(frame)
        point = frame.points[frame.at[token, usage.variable]]
        candidates = self._candidates(usage, reach, point)
        if candidates is None:
            return None
        function = self._unit.outermost_function(frame)
        base = self._graphs.around(token, function)
        line, column = self._unit.tokens.starts[token]
        info = {
            "filename": self._filename,
            "line": line,
            "column": column,
            "variable": usage.variable.name,
            "function": frame.name,
            "nearest": _nearest(candidates, token),
            "frequent": _frequent(candidates, token, self._unit.extent(frame)),
        }
        slot = Slot(token, point, usage.variable, frame, reach, candidates, info)
        return SlotGraph(base, slot)

    def _candidates(
        self, usage: Usage, reach: Reach, point: int
    ) -> list[Variable] | None:
        visible = usage.scope.visible(with_module=not usage.frame.in_function)
        bound = [variable for variable in visible if reach.is_bound(point, variable)]
        if usage.variable not in bound or len(bound) < 2:
            return None
        # The choice and order of candidates must not leak the correct one: rank all,
        # then replace the last one by the correct one if necessary.
        place = self._unit.tokens.starts[usage.token]
        self.random("rank", *place).shuffle(bound)
        candidates = bound[: self._max_candidates]
        if usage.variable not in candidates:
            candidates[-1] = usage.variable
        self.random("order", *place).shuffle(candidates)
        return candidates


def _nearest(candidates: list[Variable], token: int) -> int:
    """Return the position of the candidate that occurs closest before `token`."""
    before = [neighbours(variable.tokens, token)[0] for variable in candidates]
    places = [-1 if place is None else place for place in before]
    return places.index(max(places))


def _frequent(candidates: list[Variable], token: int, extent: tuple[int, int]) -> int:
    """Return the position of the most frequent candidate, ignoring `token`."""
    first, last = extent
    counts = [
        sum(first <= other <= last and other != token for other in variable.tokens)
        for variable in candidates
    ]
    return counts.index(max(counts))
