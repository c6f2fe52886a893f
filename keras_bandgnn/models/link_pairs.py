"""Pairs of the nodes of a graph: checks of leaks, and their loaders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.arrays import TIME
from keras_bandgnn.checks import instance, optional, refuse
from keras_bandgnn.data.identity import (
    added_reverses,
    both_ways,
    leaks,
    mirrored,
    refuse_later,
    refuse_leaks,
    without_types,
)
from keras_bandgnn.data.link_ends import LinkEnds, NodePairs, as_pairs, is_undirected
from keras_bandgnn.graph import EdgeSet, Graph
from keras_bandgnn.models.input_loader import input_loader, lay_out_transposes
from keras_bandgnn.models.inputs import GRAPHS, ITEMS, Inputs, read_graphs
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.preprocessing.sampling.negative_sampler import NegativeSampler
from keras_bandgnn.preprocessing.sampling.sampler import Sampler

if TYPE_CHECKING:
    from keras_bandgnn.preprocessing.sampling.shared_negatives import SharedNegatives

_ADVICE = (
    "Split the edges with split_links, which keeps all edges of two nodes in one part. "
    "If pairs and their reverse are facts of their own, or edges of other edge sets "
    "between the two nodes may stay, pass undirected=False."
)


def one_graph(task, inputs: Inputs) -> Graph:
    """Return the graph of inputs, or raise a ValueError unless there is exactly one.

    Args:
        task: The `LinkPredictor`, whose preprocessor may have an encoder.
        inputs: A graph, or one raw item.
    """
    if inputs.kind == ITEMS and task.preprocessor and task.preprocessor.encoder:
        inputs = read_graphs(task, "graph", inputs, required=True)
        if len(inputs.data) == 1:
            return inputs.data[0]
    graphs = inputs.data
    if inputs.kind == GRAPHS and len(graphs) == 1 and isinstance(graphs[0], Graph):
        return graphs[0]
    if inputs.kind == GRAPHS and isinstance(graphs, list | tuple):
        raise ValueError(
            "Expected one graph, as pairs number the nodes of one. Received: "
            f"{len(graphs)} graphs. Join them to one graph without edges between them."
        )
    if inputs.kind == GRAPHS:
        expected = "a store or FlatGraphs of one graph"
        refuse("graph", expected, graphs, "Pass graphs[i].")
    refuse("graph", "a Graph", inputs.source)


class GraphPairs:
    """Pairs of one graph, with the checks of a `LinkPredictor`.

    Args:
        graph: The graph that carries the messages.
        num_relations: R, number of types of pairs; None without types.
        undirected: Whether a pair and its reverse are one fact; see
            `LinkPredictor.fit`.
        preprocessor: The preprocessor of the task, whose layers may add edges; or None.
        edge_set: See `LinkPredictor`.
    """

    def __init__(
        self,
        graph: Graph,
        num_relations: int | None,
        undirected: bool,
        preprocessor: GraphPreprocessor | None,
        edge_set: EdgeSet | None = None,
    ):
        self.graph, self.num_relations = graph, num_relations
        self.undirected, self.preprocessor = undirected, preprocessor
        self.ends = LinkEnds(graph, edge_set)
        self.links = self._plain(self.ends.links())
        # Those that give pairs away.
        self.edges = self._plain(self.ends.messages(undirected))

    def _plain(self, pairs: NodePairs) -> NodePairs:
        """Remove the types of pairs if the task has none."""
        return without_types(pairs) if self.num_relations is None else pairs

    def read(self, name: str, pairs) -> NodePairs:
        """Convert an argument to pairs of the graph's nodes."""
        return self._plain(self.ends.read(name, pairs, self.num_relations))

    def read_or_all(self, name: str, pairs) -> NodePairs:
        """Convert an argument to pairs; None stands for all links."""
        if pairs is None:
            pairs = self.ends.rows(self.ends.links())
        return self.read(name, pairs)

    def read_or_edges(self, pairs, sampler: Sampler | None = None) -> NodePairs:
        """Convert the argument `pairs`; None stands for the edges, each pair once.

        Args:
            pairs: The argument.
            sampler: If it draws by time, a pair comes once for each of its times.
        """
        from keras_bandgnn.data.link_splits import split_links

        if pairs is None:
            options = {"edge_set": self.ends.edge_set, "time": draws_by_time(sampler)}
            pairs = split_links(self.graph, 0.0, 0.0, **options).train_pairs
        return self.read("pairs", pairs)

    def read_known(self, known_pairs, name: str = "known") -> NodePairs:
        """Convert known pairs, which may have types of messages, such as reverses.

        Args:
            known_pairs: The argument.
            name: Its name, for errors.
        """
        if self.num_relations is None or self.ends.edge_set is not None:
            return self.read(name, known_pairs)
        types = int(self.graph.edge_type.max(initial=-1)) + 1
        types = max(self.num_relations, types)
        return as_pairs(name, known_pairs, self.graph.num_nodes, types)

    def read_answers(self, known_pairs, name: str = "known") -> NodePairs | None:
        """Convert known pairs to those that ranks leave out; None for none."""
        if known_pairs is None:
            return None
        pairs = self.read_known(known_pairs, name)
        return both_ways(pairs) if self.undirected else pairs

    def true(self, pairs: NodePairs, known_pairs=None) -> NodePairs:
        """Return all true pairs, which negatives avoid: pairs, links and known ones."""
        parts = [pairs, self.links]
        if known_pairs is not None:
            parts.append(self.read_known(known_pairs))
        true = NodePairs.concatenate([part.without_time() for part in parts])
        undirected = is_undirected(self.ends.links(), self.graph.num_nodes)
        return both_ways(true) if undirected else true

    def check_validation(
        self, train: NodePairs, valid: NodePairs, sampler: Sampler | None = None
    ) -> None:
        """Raise a ValueError if validation pairs leak into edges or training pairs.

        Args:
            train: Pairs to train on.
            valid: Pairs to validate on.
            sampler: Sampler of the messages, which may draw by time; or None.
        """
        if self._by_time(valid):
            self.check_messages("validation_pairs", valid, sampler)
            if train.time is not None and (train.time >= valid.time.min()).any():
                raise ValueError(
                    "Expected pairs to train on that are earlier than "
                    f"`validation_pairs`, of {valid.time.min()} and later. Received: "
                    f"{int((train.time >= valid.time.min()).sum())} of {len(train)} at "
                    "or after it. Use split_links(graph, time=True)."
                )
            return
        for kind, others in (
            ("edges of the graph", self.edges),
            ("pairs to train on", train),
        ):
            refuse_leaks(
                f"`validation_pairs` that are no {kind}",
                self.ends.rows(valid),
                leaks(valid, others, self.graph.num_nodes, self.undirected),
                self.undirected,
                _ADVICE,
            )
        self.check_messages("validation_pairs", valid)

    def check_messages(
        self, name: str, pairs: NodePairs, sampler: Sampler | None = None
    ) -> None:
        """Raise a ValueError for pairs that are not edges, but leak into messages.

        Args:
            name: The argument, for errors.
            pairs: Pairs to evaluate on. If they and the edges have times, the edges are
                to be earlier than all pairs; that they join them is history.
            sampler: Sampler of the messages, which may draw by time; or None.
        """
        if draws_by_time(sampler):
            # Edges are earlier than their pair.
            return
        if self._by_time(pairs):
            self.check_times(name, pairs)
            return
        count = self.graph.num_nodes
        # Pairs of a loader may have types.
        pairs = self._plain(pairs)
        leaked = leaks(pairs, self.edges, count, self.undirected)
        leaked &= ~leaks(pairs, self.links, count, undirected=False)
        expected = f"`{name}` that are no edges in reverse or of another type"
        refuse_leaks(expected, self.ends.rows(pairs), leaked, False, _ADVICE)
        layers = () if self.preprocessor is None else self.preprocessor.graph_layers
        edges = self._plain(NodePairs.of_edges(self.graph))
        if self.undirected or not layers or not mirrored(pairs, edges, count).any():
            return
        from keras_bandgnn.data.link_splits import with_edges

        seen = self._messages(self.graph)
        added = added_reverses(NodePairs.of_edges(self.graph), seen, count)
        # Layers that do not read edges, such as RadiusGraph, add these edges anyway.
        others = with_edges(self.graph, ~leaks(edges, pairs, count, undirected=True))
        added &= ~leaks(seen, self._messages(others), count, undirected=False)
        names = ", ".join(type(layer).__name__ for layer in layers)
        refuse_leaks(
            f"`{name}` that are no messages after the layers of the preprocessor",
            pairs,
            leaks(pairs, self._plain(seen.take(added)), count, undirected=False),
            self.undirected,
            f"Of {names} leave out the layer that adds the reverse of edges, give "
            "reverse edges a type of their own, or split the edges with split_links, "
            "which keeps an edge and its reverse in one part.",
        )

    def check_times(
        self, name: str, pairs: NodePairs, sampler: Sampler | None = None
    ) -> None:
        """Raise a ValueError for edges that are not earlier than pairs with times.

        Args:
            name: The argument, for errors.
            pairs: The pairs.
            sampler: Sampler of the messages, which may draw by time; or None.
        """
        if self._by_time(pairs) and not draws_by_time(sampler):
            edges = NodePairs.of_edges(self.graph)
            refuse_later(name, pairs, edges, self.graph.num_nodes, self.undirected)

    def _by_time(self, pairs: NodePairs) -> bool:
        """Return whether pairs are compared with edges by time."""
        return pairs.time is not None and TIME in self.graph.edge and len(pairs) > 0

    def _messages(self, graph: Graph) -> NodePairs:
        """Return the edges of a graph after the layers, between the caller's nodes."""
        # Without `origin`, nodes of a reordered graph are numbered as in `graph`.
        flat = self.preprocessor.transform([graph.replace(origin=None)])
        row = np.arange(graph.num_nodes) if flat.origin is None else flat.origin
        return NodePairs(row[flat.senders], row[flat.receivers], flat.edge_type)


def draws_by_time(sampler: Sampler | None) -> bool:
    """Return whether a sampler draws edges that are earlier than the pair."""
    return sampler is not None and sampler.time is not None


def check_sampler(sampler: Sampler | None, by_layer: bool = False) -> None:
    """Raise a ValueError unless a sampler is one of the nodes of pairs, or None.

    Args:
        sampler: The argument.
        by_layer: Whether states are computed one layer at a time, without a sampler.
    """
    from keras_bandgnn.preprocessing.sampling.sampler import Sampler

    expected = (
        "a sampler of neighbours, such as NeighborSampler, for the nodes of pairs"
    )
    optional(instance, "sampler", sampler, Sampler, expected)
    if sampler is not None and not sampler.of_neighbours:
        refuse("sampler", expected, sampler)
    if by_layer and sampler is not None:
        refuse("by_layer", "False with `sampler`", by_layer)


def check_one_device(task) -> None:
    """Raise a ValueError for a task on several devices."""
    if task.distribution.several:
        raise ValueError(
            "Expected one device for LinkPredictor. Received: "
            f"{task.distribution.size}. Create the task outside of the scope of a "
            "distribution."
        )


def check_edge_set(loader: Loader, edge_set: EdgeSet | None) -> None:
    """Raise a ValueError if pairs of a loader are of another edge set than the task."""
    if loader.pairs is not None and loader.assembler.ends.edge_set != edge_set:
        raise ValueError(
            f"Expected a LinkLoader with edge_set={edge_set}, as the LinkPredictor. "
            f"Received: edge_set={loader.assembler.ends.edge_set}. Pass the same to "
            "both."
        )


def make_link_loader(
    task,
    links: GraphPairs,
    pairs: NodePairs,
    known_pairs=None,
    validation_pairs=None,
    negatives: NegativeSampler | SharedNegatives | None = None,
    batch_size: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    sampler: Sampler | None = None,
    draws: bool = True,
) -> Loader:
    """Return a `LinkLoader` for the backbone of a task.

    Args:
        task: The `LinkPredictor`.
        links: Has the graph.
        pairs: Pairs that are true.
        known_pairs: The argument `known`.
        validation_pairs: The argument; negatives avoid them, too.
        negatives: See `LinkPredictor.fit`, also for the others.
        batch_size: True pairs of a step.
        shuffle: Whether each epoch has a new order and new negatives.
        seed: Of these.
        sampler: `NeighborSampler`, or None for the whole graph.
        draws: Whether batches have negatives.
    """
    from keras_bandgnn.preprocessing.loading.link_loader import LinkLoader

    check_one_device(task)
    graph, true = links.graph, links.true(pairs, known_pairs)
    if validation_pairs is not None:
        held_out = links.read("validation_pairs", validation_pairs)
        true = NodePairs.concatenate([links.true(held_out), true])
    if negatives is None and draws:
        negatives = task.default_negatives()
    if sampler is not None:
        batch_size = batch_size or min(sampler.batch_size, len(pairs))
        # All pairs and negatives may have distinct nodes, by time also equal ones.
        nodes = 2 * batch_size * (1 + (negatives.per_positive if draws else 0))
        if not draws_by_time(sampler):
            nodes = min(nodes, graph.num_nodes)
        sampler = type(sampler)(**{**sampler.get_config(), "batch_size": nodes})
    loader = input_loader(
        task,
        Inputs(GRAPHS, [graph], graph),
        shuffle=False,
        seed=0,
        adapt=False,
        training=False,
        sampler=sampler,
    )
    # All steps have the same graph.
    lay_out_transposes(loader)
    return LinkLoader(
        graph,
        links.ends.rows(pairs),
        negatives,
        batch_size,
        links.ends.rows(true),
        shuffle=shuffle,
        seed=seed,
        loader=loader,
        undirected=links.undirected,
        edge_set=links.ends.edge_set,
    )


def refuse_options(call: str, owner: str, **options) -> None:
    """Raise a ValueError if options that the loader determines are not None."""
    if names := [name for name, value in options.items() if value is not None]:
        names = ", ".join(names)
        raise ValueError(
            f"Expected `{call}` without options that {owner} has itself. Received: "
            f"{names}. Leave {names} out and build the loader with them, or pass the "
            "graph instead of a loader."
        )
