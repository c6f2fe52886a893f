"""Random splits of the nodes of a graph, and iteration over several splits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Unpack

import numpy as np

from keras_bandgnn.checks import (
    instance,
    one_of,
    optional,
    positive_int,
    refuse,
    seed_number,
    sequence,
)
from keras_bandgnn.data.identity import check_masks
from keras_bandgnn.graph import Graph
from keras_bandgnn.host_keras import keras
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.preprocessing.transforms.components import LargestComponent
from keras_bandgnn.preprocessing.transforms.edges import ToUndirected

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions

_PARTS = ("train", "valid", "test")
_MASKS = tuple(f"{part}_mask" for part in _PARTS)


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class RandomNodeSplit(GraphLayer):
    """Adds the node features `train_mask`, `valid_mask` and `test_mask`, at random.

    Nodes without a label (-1, or NaN) are in none of them; without labels all nodes
    are split. The defaults are the sizes of the Planetoid split: 20 nodes of each
    class to train on, 500 to validate, 1,000 to test. Apply it to the data before
    `fit`; in the preprocessor of a task it would also split graphs to predict.

    Args:
        train: Number of nodes to train on, at least 0, or their fraction.
        valid: Number of nodes to validate on, at least 0, or their fraction.
        test: Number of nodes to test on, at least 0, or their fraction; None takes the
            rest.
        per_class: Those of `"train"`, `"valid"` and `"test"` whose number or fraction
            is that of each class, instead of the whole graph.
        num_splits: Number S of independent splits. With one, masks are int32 [N], else
            int32 [N, S]; see `node_splits`.
        seed: Seed of the splits. Split s is the same for every `num_splits` above it.

    Raises:
        ValueError: If there are too few nodes; with `per_class` also if labels are not
            one class for each node.

    Example:
    >>> graph = Graph(6, [], [], label=[0, 0, 0, 1, 1, 1], label_level="node")
    >>> split = RandomNodeSplit(1, 1, None, per_class=("train", "valid"))(graph)
    >>> {name: int(mask.sum()) for name, mask in split.node.items()}
    {'train_mask': 2, 'valid_mask': 2, 'test_mask': 2}
    """

    def __init__(
        self,
        train: int | float = 20,
        valid: int | float = 500,
        test: int | float | None = 1000,
        per_class: Iterable[str] = ("train",),
        num_splits: int = 1,
        seed: int = 0,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.train = _size("train", train)
        self.valid = _size("valid", valid)
        self.test = optional(_size, "test", test)
        self.per_class = tuple(
            one_of("per_class", part, _PARTS)
            for part in sequence("per_class", per_class, "a list of names")
        )
        self.num_splits = positive_int("num_splits", num_splits)
        self.seed = seed_number("seed", seed)

    def call(self, graph: Graph) -> Graph:
        """Return the graph with the masks."""
        nodes, classes = self._labelled(graph)
        masks = np.zeros((3, graph.num_nodes, self.num_splits), np.int32)
        for column in range(self.num_splits):
            rng = np.random.default_rng([self.seed, column])
            order = rng.permutation(nodes.size)
            for mask, places in zip(masks, self._split(order, classes), strict=True):
                mask[nodes[places], column] = 1
        if self.num_splits == 1:
            masks = masks[:, :, 0]
        return _with_node(graph, dict(zip(_MASKS, masks, strict=True)))

    def _labelled(self, graph: Graph) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the nodes with labels, and their classes where they are needed."""
        label = graph.label if graph.label_level == "node" else None
        classes = label is not None and label.ndim == 1 and label.dtype.kind == "i"
        if self.per_class and not classes:
            received = "no labels" if label is None else f"labels {label.dtype}"
            shape = "" if label is None else f" of shape {label.shape}"
            raise ValueError(
                "Expected a graph with a class for each node (int labels, "
                f"label_level='node'). Received: {received}{shape}. Pass per_class=()."
            )
        if label is None:
            return np.arange(graph.num_nodes), None
        missing = label < 0 if classes else np.isnan(label.astype(np.float32))
        missing = missing.reshape(graph.num_nodes, -1).all(axis=1)
        nodes = np.flatnonzero(~missing)
        return nodes, label[nodes] if self.per_class else None

    def _split(self, order: np.ndarray, classes: np.ndarray | None) -> list:
        """Return the places of each part among the labelled nodes."""
        total, parts = order.size, []
        for part in _PARTS:
            size = getattr(self, part)
            if size is None:
                taken = np.ones(order.size, bool)
            elif part in self.per_class:
                taken = self._of_each_class(part, size, classes, order)
            else:
                count = _count(size, total)
                if count > order.size:
                    self._refuse(part, count, order.size, "the graph")
                taken = np.arange(order.size) < count
            parts.append(order[taken])
            order = order[~taken]
        return parts

    def _of_each_class(self, part: str, size, classes, order) -> np.ndarray:
        """Return which places of `order` come among the first of their class."""
        names, totals = np.unique(classes, return_counts=True)
        kind = np.searchsorted(names, classes[order])
        present = np.bincount(kind, minlength=names.size)
        needed = np.array([_count(size, total) for total in totals], np.int64)
        if (needed > present).any():
            short = int(np.argmax(needed > present))
            where = f"class {names[short]}"
            self._refuse(part, needed[short], present[short], where)
        by_kind = np.argsort(kind, kind="stable")
        first = np.cumsum(present) - present
        rank = np.empty(order.size, np.int64)
        rank[by_kind] = np.arange(order.size) - np.repeat(first, present)
        return rank < needed[kind]

    def _refuse(self, part: str, needed: int, present: int, where: str) -> None:
        raise ValueError(
            f"Expected `{part}` to leave enough nodes of {where}: {needed} are asked "
            f"for. Received: {present} that are labelled and in no other part. Ask for "
            "fewer, or for fractions."
        )

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "train": self.train,
            "valid": self.valid,
            "test": self.test,
            "per_class": list(self.per_class),
            "num_splits": self.num_splits,
            "seed": self.seed,
        }


def _size(name: str, value: int | float) -> int | float:
    """Check a number of nodes, or a fraction of them."""
    if isinstance(value, float | np.floating):
        if not 0 <= value <= 1:
            refuse(name, "a number of nodes, or a fraction of them in [0, 1]", value)
        return float(value)
    return positive_int(name, value, minimum=0)


def _count(size: int | float, total: int) -> int:
    return round(size * total) if isinstance(size, float) else size


def _with_node(graph: Graph, features: dict) -> Graph:
    return graph.replace(node={**graph.node, **features})


def node_splits(graph: Graph) -> Iterator[Graph]:
    """Yield the graph once for each of its splits, with the masks of that split.

    Data sets with several splits, `shchur_splits` and `RandomNodeSplit` have masks
    [N, S]; `fit(mask="train_mask")` reads masks [N]. Masks [N] belong to every split.

    Args:
        graph: With node features whose names end in `_mask`, [N] or [N, S].

    Yields:
        The graph with masks int32 [N]: S graphs, or one if all masks are [N].

    Raises:
        ValueError: If the graph has no masks, they differ in their number of splits, or
            a node is in several parts of a split.

    Example:
    >>> masks = {"train_mask": [[1, 0], [0, 1]], "test_mask": [[0, 1], [1, 0]]}
    >>> graph = Graph(2, [0], [1], node=masks)
    >>> [split.node["train_mask"].tolist() for split in node_splits(graph)]
    [[1, 0], [0, 1]]
    """
    instance("graph", graph, Graph, "a Graph")
    masks = {k: v for k, v in graph.node.items() if k.endswith("_mask")}
    several = {k: v for k, v in masks.items() if v.ndim == 2}
    counts = {v.shape[1] for v in several.values()}
    if not masks or len(counts) > 1:
        shapes = {name: list(mask.shape) for name, mask in masks.items()}
        raise ValueError(
            "Expected `graph` to have node features such as train_mask, [N] or [N, S] "
            f"with one S. Received: {shapes or sorted(graph.node)}. Add masks with "
            "RandomNodeSplit."
        )
    parts = {k: v for k, v in masks.items() if k.startswith(("train", "val", "test"))}
    check_masks(parts, "node")
    return _each_split(graph, several, counts.pop() if counts else 0)


def _each_split(graph: Graph, several: dict, count: int) -> Iterator[Graph]:
    if not several:
        yield graph
    for column in range(count):
        yield _with_node(graph, {k: v[:, column].copy() for k, v in several.items()})


def shchur_splits(
    graph: Graph,
    num_splits: int = 20,
    train: int = 20,
    valid: int = 30,
    seed: int = 0,
) -> Graph:
    """Return a graph and random splits by the protocol of Shchur et al. 2018.

    The largest connected component of the graph, with edges both ways and without
    self-loops and parallel edges, is split several times: 20 nodes of each class to
    train on, 30 of each class to validate, the rest to test. Scores are the mean and
    the standard deviation over the splits; published ones average over 20 to 100.

    Args:
        graph: With a class for each node, such as `load("amazon_photo")[0]`.
        num_splits: Number S of splits.
        train: Nodes of each class to train on.
        valid: Nodes of each class to validate on.
        seed: Seed of the splits. Split s is drawn with
            `numpy.random.default_rng([seed, s])`, for every `num_splits` above s.

    Returns:
        The component, with `train_mask`, `valid_mask` and `test_mask` int32 [N, S] (or
        [N] for one split), over which `node_splits` iterates; `origin` has the ids of
        its nodes in `graph`.

    Raises:
        ValueError: If there are no classes, or a class has fewer than `train + valid`
            nodes.

    Reference:
        Shchur et al. 2018, "Pitfalls of Graph Neural Network Evaluation",
        https://arxiv.org/abs/1811.05868.

    Example:
    >>> path = Graph(9, range(8), range(1, 9), label=[0, 1, 0] * 3, label_level="node")
    >>> splits = shchur_splits(path, num_splits=3, train=1, valid=1)
    >>> [int(split.node["test_mask"].sum()) for split in node_splits(splits)]
    [5, 5, 5]
    """
    instance("graph", graph, Graph, "a Graph")
    split = RandomNodeSplit(
        positive_int("train", train),
        positive_int("valid", valid),
        None,
        per_class=("train", "valid"),
        num_splits=num_splits,
        seed=seed,
    )
    return split(LargestComponent()(ToUndirected(self_loops=False)(graph)))
