"""`JointSelection`: predictions of a `NodeSelector` for a stream of graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.assembly.assembler import Supergraph, with_edge_types
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import pointers
from keras_bandgnn.planning.plan_choice import choose_plan
from keras_bandgnn.preprocessing.batching.batcher import (
    ceil64,
    round_up_power_of_two,
    supergraph_nodes,
)
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.preprocessing.loading.graph_loader import make_assembler
from keras_bandgnn.preprocessing.loading.shape_buckets import (
    needed_sizes,
    scaled_budget,
)
from keras_bandgnn.preprocessing.ordering.rcmk_compile import RCMKCompile, block_size_of
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.preprocessing.reachability_filter import ReachabilityFilter

if TYPE_CHECKING:
    from keras_bandgnn.models.task import Task

# Supergraphs per round of best-fit packing.
_WINDOW = 8
# Minimum capacity for candidates per usage: this many cost the head nothing.
_LEAST_CANDIDATES = 16

Prediction = tuple[FlatGraphs, list[np.ndarray]]


def join(graphs: FlatGraphs) -> FlatGraphs:
    """Return the disjoint union of graphs as one graph.

    Its candidates are those of all graphs, each graph's candidates followed by its
    slot (or node 0 if it has none). Labels are dropped, and graph features, too, unless
    there is only one graph.

    Args:
        graphs: Graphs with candidates.
    """
    first = graphs.node_ptr[:-1]
    shift = first.repeat(graphs.num_edges).astype(np.int32)
    places = np.insert(
        graphs.candidates + first.repeat(np.diff(graphs.candidate_ptr)),
        graphs.candidate_ptr[1:],
        np.maximum(graphs.slot, 0) + first,
    )
    prefixes = ("node/", "edge/") + ("context/",) * (len(graphs) == 1)
    columns = {k: v for k, v in graphs.columns().items() if k.startswith(prefixes)}
    columns |= {
        "num_nodes": np.array([graphs.node_ptr[-1]], np.int32),
        "num_edges": np.array([graphs.edge_ptr[-1]], np.int32),
        "senders": graphs.senders + shift,
        "receivers": graphs.receivers + shift,
        "edge_type": graphs.edge_type,
        "slot": np.array([-1], np.int32),
        "candidates": places.astype(np.int32),
        "num_candidates": np.array([len(places)], np.int32),
    }
    return FlatGraphs.from_columns(columns)


class JointSelection:
    """Streaming predictions, in bounded memory and few shapes.

    The graphs of neighbouring usages of a source file overlap largely. If the task
    reads few nodes of each graph, the graphs of a piece are joined into one, and the
    merging schedule (see `ReceptiveField`) computes states that several of them share
    only once. This is exact.

    The budget is estimated from the first pieces and then fixed, so that a model
    compiles once; larger pieces get the budget times a power of two.

    Args:
        task: A `NodeSelector`.
        layers: Graph layers to apply to the pieces, in order.
        nodes: Nodes of the graphs that share a supergraph.

    Attributes:
        shapes: Shapes of the batches so far.
    """

    def __init__(
        self, task: Task, layers: Sequence[GraphLayer] = (), nodes: int = 65_536
    ):
        self._task = task
        self._layers = list(layers)
        self._nodes = nodes
        self._preprocessor = task.preprocessor
        if self._preprocessor is None:
            self._preprocessor = GraphPreprocessor(task.backbone.graph_layers())
        self._plan = None
        self._joins = False
        self._batcher: DynamicBatcher | None = None
        self._room = (1, _LEAST_CANDIDATES)
        self.shapes: set[tuple] = set()

    def predict(self, pieces: Iterable[FlatGraphs]) -> Iterator[Prediction]:
        """Yield graphs and their logits, one array [C] per graph, in order.

        Args:
            pieces: Graphs with candidates, neighbouring usages in one piece.
        """
        prepared = enumerate(self._prepared(pieces))
        waiting: dict[int, FlatGraphs] = {}
        finished: dict[int, Prediction] = {}
        following = nodes = 0
        more = True
        while more:
            more = False
            for index, piece in prepared:
                waiting[index] = piece
                nodes += int(piece.node_ptr[-1])
                if nodes >= _WINDOW * self._nodes:
                    more = True
                    break
            for index, logits in self._predict(waiting, more):
                piece = waiting.pop(index)
                nodes -= int(piece.node_ptr[-1])
                finished[index] = piece, logits
                while following in finished:
                    yield finished.pop(following)
                    following += 1

    def _prepared(self, pieces: Iterable[FlatGraphs]) -> Iterator[FlatGraphs]:
        """Check the graphs and apply the graph layers."""
        for piece in pieces:
            self._task.check_part(piece)
            if self._layers:
                graphs = [piece[i] for i in range(len(piece))]
                for layer in self._layers:
                    graphs = [layer(graph) for graph in graphs]
                piece = FlatGraphs.from_graphs(graphs)
            self._task.backbone.check(piece)
            weight = self._preprocessor.edge_weight
            self._task.backbone.check_weights([piece], weight)
            (piece,), types = with_edge_types(
                [piece], self._task.backbone.num_edge_types
            )
            if self._plan is None:
                self._choose_plan(piece, types)
            if self._joins:
                yield piece
            else:
                yield from (piece.take([i]) for i in range(len(piece)))

    def _choose_plan(self, piece: FlatGraphs, types: int) -> None:
        """Choose the plan, and whether graphs may be joined under it."""
        task, plan = self._task, self._preprocessor.plan
        schedule = task.receptive_field(training=False)
        if plan == "auto":
            plan = task.distribution.auto_plan(task) or "auto"
        if self._preprocessor.edge_weight is not None:
            schedule = None
        if plan == "auto":
            batcher = DynamicBatcher(budget={"node": self._nodes})
            width = task.backbone.hidden_dim
            plan = choose_plan(
                [piece],
                types,
                width,
                schedule,
                nodes=supergraph_nodes([piece], batcher),
                block_size=block_size_of(piece, self._preprocessor.layers_config()),
            ).plan
        else:
            plan = plan.replace(filter=None)
        self._plan = plan
        plan_schedule = plan.schedule
        self._joins = (
            plan_schedule is not None
            and plan_schedule.order == "compact"
            and plan_schedule.read is None
        )
        if self._joins:
            # The schedule already drops what these filter, for any node order.
            self._layers = [
                layer
                for layer in self._layers
                if not isinstance(layer, RCMKCompile)
                and not (
                    isinstance(layer, ReachabilityFilter)
                    and layer.steps >= plan_schedule.steps
                )
            ]

    def _predict(
        self, waiting: dict[int, FlatGraphs], more: bool
    ) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yield index and logits of pieces; keep the last few back if more follow."""
        if not waiting:
            return
        numbers, pieces = list(waiting), list(waiting.values())
        whole = FlatGraphs.concatenate([join(piece) for piece in pieces])
        (whole,), types = with_edge_types([whole], self._task.backbone.num_edge_types)
        assembler, sizes = make_assembler(
            [whole], self._plan, types, self._preprocessor.edge_weight
        )
        for members, shape in self._groups(sizes, pieces, more):
            ((batch, *_), _) = assembler.build([Supergraph(members, shape)], 1)[0]
            order = batch["graph"]["id"][0][batch["graph"]["mask"][0]]
            batch_pieces = [pieces[k] for k in order]
            batch["candidate"] = self._candidates(
                batch["candidate"]["node"][0], batch_pieces
            )
            self.shapes.add((*sorted(shape.items()), *self._room))
            values = self._task.distribution.predict_on_batch(self._task, batch)[0]
            low = 0
            for k, piece in zip(order, batch_pieces, strict=True):
                counts = np.diff(piece.candidate_ptr)
                rows = values[low : low + len(piece)]
                low += len(piece)
                rows_of_graphs = [row[:n] for row, n in zip(rows, counts, strict=True)]
                yield numbers[k], rows_of_graphs

    def _groups(
        self, sizes: dict, pieces: Sequence[FlatGraphs], more: bool
    ) -> list[tuple[np.ndarray, dict]]:
        """Return the pieces of each supergraph, and its shape."""
        if self._batcher is None:
            total = int(np.sum(sizes["node"])) + 1
            nodes = self._nodes if more else min(self._nodes, int(ceil64(total)))
            self._batcher = DynamicBatcher(budget={"node": nodes}, packing="best_fit")
        if not self._batcher.is_adapted(sizes):
            self._batcher.complete(sizes)
        budget = dict(self._batcher.budget)
        fits = self._batcher.fits(sizes)
        packed = self._batcher.pack(sizes, np.flatnonzero(fits), budget)
        groups = [(members, budget) for members in packed]
        if more and len(groups) > 1:
            # The last supergraph is not full: its pieces wait for others.
            groups.pop()
        for k in np.flatnonzero(~fits):
            members = np.array([k])
            needs = needed_sizes(sizes, [Supergraph(members, budget)])
            groups.append((members, scaled_budget(needs, budget)))
        graphs = max(sum(len(pieces[k]) for k in members) for members, _ in groups)
        candidates = max(int(np.diff(p.candidate_ptr).max()) for p in pieces)
        self._room = tuple(
            max(now, int(round_up_power_of_two(size)))
            for now, size in zip(self._room, (graphs, candidates), strict=True)
        )
        return groups

    def _candidates(self, places: np.ndarray, pieces: Sequence[FlatGraphs]) -> dict:
        """Return candidates and slot of each graph from those of joined graphs.

        Args:
            places: int32 [B, C], rows of the candidates of joined graphs.
            pieces: The graphs that were joined to each.
        """
        counts = [np.diff(piece.candidate_ptr) for piece in pieces]
        rows = np.concatenate(
            [row[: n.sum() + len(n)] for row, n in zip(places, counts, strict=False)]
        )
        counts = np.concatenate(counts)
        slots = pointers(counts + 1)[1:] - 1
        mask = np.zeros((1, *self._room), bool)
        mask[0, : len(counts)] = np.arange(self._room[1]) < counts[:, None]
        node = np.zeros(mask.shape, np.int32)
        node[mask] = np.delete(rows, slots)
        slot = np.zeros(mask.shape[:2], np.int32)
        slot[0, : len(slots)] = rows[slots]
        return {"node": node, "mask": mask, "slot": slot}
