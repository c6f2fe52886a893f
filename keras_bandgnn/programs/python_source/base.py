"""`BaseGraph`: nodes and edges of a region before any token becomes a slot."""

import ast
import functools
from itertools import chain

import numpy as np

from keras_bandgnn.programs.python_source.frame import Frame
from keras_bandgnn.programs.python_source.relations import GuardEdges, SyntaxRelations
from keras_bandgnn.programs.python_source.syntax import Region, RegionBuilder, Spans
from keras_bandgnn.programs.python_source.unit import SourceUnit, TooLarge

MAX_EDGES = 300_000
MAX_GUARDED = 5_000_000

Pairs = list[tuple[int, int]]


def edge_array(pairs: Pairs) -> np.ndarray:
    """Turn pairs into int64 [E, 2]."""
    count = 2 * len(pairs)
    return np.fromiter(chain.from_iterable(pairs), np.int64, count).reshape(-1, 2)


class BaseGraph:
    """The graph of a region with every token in place.

    Args:
        unit: The file.
        spans: Token range of each syntax node.
        region: The region.

    Attributes:
        unit: The file.
        region: The region; ids of its nodes are those of the graph.
        labels: Label of each node; formal parameters follow the region's nodes.
        kinds: Kind of each node.
        order: Place of each node in the source.
        edges: int64 [E, 2] of (source, target) by relation, but not guards.
        formal_receivers: Receiver token of each FormalArgName edge, -1 for none.
        guards: Guards of the region.
        guard_edges: By relation, int64 [E, 3] of (guard, source, target).

    Raises:
        TooLarge: If there are more than `MAX_EDGES` data flow or guard edges, or
            more than `MAX_GUARDED` pairs of a guard and a token.
    """

    def __init__(self, unit: SourceUnit, spans: Spans, region: Region) -> None:
        self.unit = unit
        self.region = region
        self.labels = list(region.labels)
        self.kinds = list(region.kinds)
        self.order: list[float] = list(range(len(region.labels)))
        relations = SyntaxRelations(unit, spans, region)
        ids = region.token_ids
        self.edges = {
            "Child": edge_array(region.child),
            "NextToken": edge_array(list(zip(ids, ids[1:], strict=False))),
            "ComputedFrom": edge_array(sorted(set(relations.computed_from))),
            "ReturnsTo": edge_array(relations.returns_to),
        }
        self._formal(relations)
        self._dataflow()
        self.guards = GuardEdges(unit, spans, region)
        self.guard_edges = self._guard_edges()

    def _formal(self, relations: SyntaxRelations) -> None:
        pairs, receivers = [], []
        for item in relations.formal_arguments:
            pairs.append((item.argument, len(self.labels)))
            receivers.append(-1 if item.receiver is None else item.receiver)
            self.labels.append(item.name)
            self.kinds.append("FormalName")
            self.order.append(self.order[item.argument] + 0.5)
        self.edges["FormalArgName"] = edge_array(pairs)
        self.formal_receivers = np.array(receivers, dtype=np.int64)

    def _dataflow(self) -> None:
        region = self.region
        uses: Pairs = []
        writes: Pairs = []
        inside: set = set()
        for frame in self.unit.frames_in(region.first, region.last):
            # Decorators and defaults of a function have their data flow elsewhere.
            if frame.in_function or region.function is None:
                self._frame_edges(frame, uses, writes)
        for token in range(region.first, region.last + 1):
            inside.update(v for v, _ in self.unit.occurrences.get(token, ()))
        lexical = []
        for variable in inside:
            tokens = [token for token in variable.tokens if token in region]
            ids = [region.id_of(token) for token in tokens]
            lexical += zip(ids[1:], ids, strict=False)
        self.edges["LastUse"] = edge_array(sorted(set(uses)))
        self.edges["LastWrite"] = edge_array(sorted(set(writes)))
        self.edges["LastLexicalUse"] = edge_array(sorted(lexical))

    def _frame_edges(self, frame: Frame, uses: Pairs, writes: Pairs) -> None:
        region, reach = self.region, self.unit.reach(frame)
        for token, variable, point in zip(
            frame.tokens, frame.variables, frame.points, strict=True
        ):
            if token not in region:
                continue
            source = region.id_of(token)
            for pairs, edges in (
                (uses, reach.last_uses(point, variable)),
                (writes, reach.last_writes(point, variable)),
            ):
                pairs += [(source, region.id_of(t)) for t in edges if t in region]
            if len(uses) + len(writes) > MAX_EDGES:
                raise TooLarge(f"{frame.name} has more than {MAX_EDGES} edges")

    def _guard_edges(self) -> dict[str, np.ndarray]:
        guards = self.guards.guards
        name = getattr(self.region.function, "name", "module code")
        if sum(guard.last - guard.first for guard in guards) > MAX_GUARDED:
            raise TooLarge(f"{name} has more than {MAX_GUARDED} guarded tokens")
        edges: dict[str, list] = {"GuardedBy": [], "GuardedByNegation": []}
        for number, guard in enumerate(guards):
            rows = edges[guard.relation]
            rows += [(number, *pair) for pair in self.guards.edges(guard)]
            if len(rows) > MAX_EDGES:
                raise TooLarge(f"{name} has more than {MAX_EDGES} edges to conditions")
        return {
            relation: np.array(rows, dtype=np.int64).reshape(-1, 3)
            for relation, rows in edges.items()
        }


class BaseGraphs:
    """Base graphs of one file, made when first asked for.

    Args:
        unit: The file.
        context: `"function"` or `"file"`.
    """

    def __init__(self, unit: SourceUnit, context: str) -> None:
        self._unit = unit
        self._context = context
        self._spans = Spans(unit.tokens)
        self._builder = RegionBuilder(unit.tree, unit.tokens, self._spans)
        self._graphs: dict[object, BaseGraph | TooLarge] = {}

    def around(self, token: int, function: ast.AST | None) -> BaseGraph:
        """Return the graph for a slot at `token`.

        Args:
            token: The slot's token.
            function: The outermost function around it, if any.

        Raises:
            TooLarge: If the work it takes is beyond the bounds.
        """
        if self._context == "file":
            key, make = None, self._builder.whole
        elif function is not None:
            key = function
            make = functools.partial(self._builder.function, function)
        else:
            key = self._builder.window_at(token)
            make = functools.partial(self._builder.window, *key)
        if key not in self._graphs:
            try:
                self._graphs[key] = BaseGraph(self._unit, self._spans, make())
            except TooLarge as error:
                self._graphs[key] = error
        graph = self._graphs[key]
        if isinstance(graph, TooLarge):
            raise graph
        return graph
