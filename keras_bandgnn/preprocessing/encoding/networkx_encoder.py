"""`NetworkXEncoder`: graphs of networkx with attributes of any kind."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from keras_bandgnn.checks import optional, string
from keras_bandgnn.graph import Graph
from keras_bandgnn.host_keras import keras
from keras_bandgnn.preprocessing.encoding.graph_encoder import GraphEncoder
from keras_bandgnn.preprocessing.encoding.vocabulary import (
    MOST_DEGREES,
    attribute_inputs,
    capped_degrees,
    checked_attributes,
    encode_attribute,
    is_missing,
    learn_attributes,
    several_categories,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Item, LayerOptions

_LEVELS = ("node", "edge", "graph")
_LABEL = "label"
_LOG = logging.getLogger(__name__)
# Numbers above it drown those of other attributes.
_LARGE = 1e3


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class NetworkXEncoder(GraphEncoder):
    """Converts graphs of networkx, with strings and categories as ids.

    `adapt` learns the attributes of nodes, edges and graphs from data: strings, bools
    and integers of few values are categories, whose values get ids from 1 on; id 0 is
    for values that the data did not have, and for missing ones. Other numbers, and
    vectors of numbers, are float32 features, which every node must have. An undirected
    edge becomes two. Nodes are in iteration order, which is that of predictions.

    Nodes without attributes get their number of edges, `node["degree"]`, at most 255.
    Masks of splits, `train_mask`, `val_mask`, `test_mask` and the like, are 0 and 1,
    for `fit(mask=...)`, and no input. What networkx adds to graphs of GraphML and GEXF
    is no attribute, see `from_networkx`.

    The attribute `label` of the nodes, of the edges or of the graph is the label;
    `fit(x, y)` takes labels of its own.

    Args:
        node: Attributes of nodes to convert, a list of names; all if None. What `adapt`
            learnt is a dict: `{"element": {"category": ["C", "N"]}, "charge":
            {"number": []}}`, which may also be passed.
        edge: Likewise for edges.
        graph: Likewise for graphs.
        edge_type: A category of the edges that becomes their type.
        on_error: See `GraphEncoder`.

    Example:
    >>> encoder = NetworkXEncoder()
    >>> import networkx as nx  # doctest: +SKIP
    >>> graph = nx.Graph()  # doctest: +SKIP
    >>> graph.add_node("a", element="C")  # doctest: +SKIP
    >>> graph.add_node("b", element="N")  # doctest: +SKIP
    >>> graph.add_edge("a", "b")  # doctest: +SKIP
    >>> encoder = encoder.adapt([graph])  # doctest: +SKIP
    >>> encoder(graph).node["element"].tolist(), encoder.inputs()  # doctest: +SKIP
    ([1, 2], {'element': {'ids': 3}})
    """

    def __init__(
        self,
        node: Sequence[str] | Mapping | None = None,
        edge: Sequence[str] | Mapping | None = None,
        graph: Sequence[str] | Mapping | None = None,
        edge_type: str | None = None,
        on_error: str = "raise",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(on_error, **kwargs)
        self.attributes = {
            level: checked_attributes(level, value)
            for level, value in zip(_LEVELS, (node, edge, graph), strict=True)
        }
        self.edge_type = optional(string, "edge_type", edge_type)

    @classmethod
    def accepts(cls, item: Item) -> bool:
        """Return whether an item is a graph of networkx."""
        return hasattr(item, "is_multigraph") and hasattr(item, "adj")

    def _expected(self) -> str:
        return "a graph of networkx"

    @property
    def is_adapted(self) -> bool:
        """Whether the attributes are known."""
        return all(isinstance(a, Mapping) for a in self.attributes.values())

    @property
    def num_edge_types(self) -> int:
        """P: 1 without `edge_type`, else one more than its values."""
        self.require_adapted()
        if self.edge_type is None:
            return 1
        return 1 + len(self.attributes["edge"][self.edge_type]["category"])

    def learn(self, items: Iterable[Item]) -> None:
        """Learn the attributes; see `GraphEncoder.adapt`."""
        from keras_bandgnn.data.converters import networkx_attributes

        items = [item for item in items if self.accepts(item)]
        learnt = {}
        for level in _LEVELS:
            selection = self.attributes[level]
            if isinstance(selection, Mapping):
                learnt[level] = selection
                continue
            columns: dict[str, list] = {name: [] for name in selection or ()}
            for item in items:
                for attributes in networkx_attributes.attribute_rows(item, level):
                    for name, value in attributes.items():
                        of_file = name == _LABEL or networkx_attributes.is_of_format(
                            level, name, value
                        )
                        if selection is None and not of_file:
                            columns.setdefault(str(name), [])
                        if name in columns:
                            columns[name].append(value)
            learnt[level] = learn_attributes(level, columns, {})
            _warn_large(level, columns, learnt[level])
            lacking = set(selection or ()) - learnt[level].keys()
            if lacking:
                raise ValueError(
                    f"Expected the {level} attributes {sorted(selection)} in the data. "
                    f"Received: none of {sorted(lacking)}. Correct the names."
                )
        spec = learnt["edge"].get(self.edge_type)
        if self.edge_type is not None and (spec is None or "category" not in spec):
            raise ValueError(
                f"Expected edge_type={self.edge_type!r} to be a category of the edges. "
                f"Received: the edge attributes {learnt['edge']}."
            )
        self.attributes = learnt

    def categories(self) -> dict[str, list[str]]:
        """Return the attributes of several categories, by level."""
        levels = {
            level: several_categories(self.attributes[level]) for level in _LEVELS
        }
        # That of the types is no feature.
        edge = [name for name in levels["edge"] if name != self.edge_type]
        return {"node": levels["node"], "edge": edge, "context": levels["graph"]}

    def encode_item(self, item: Item) -> Graph:
        """Convert a graph; see `GraphEncoder`."""
        names = list(item.nodes)
        if not names:
            raise ValueError("Expected at least one node. Received: an empty graph.")
        number = {name: k for k, name in enumerate(names)}
        ends = np.array([(number[a], number[b]) for a, b in item.edges()], np.int32)
        senders, receivers = ends.reshape(-1, 2).T
        node, edge, graph = (self._features(item, level) for level in _LEVELS)
        if not self._has_features():
            node["degree"] = capped_degrees([degree for _, degree in item.degree])
        labels = _labels(item)
        if not item.is_directed():
            back = np.flatnonzero(senders != receivers)
            edge = {k: np.concatenate([v, v[back]]) for k, v in edge.items()}
            if labels.get("label_level") == "edge":
                labels["label"] = np.concatenate(
                    [labels["label"], labels["label"][back]]
                )
            senders, receivers = (
                np.concatenate([senders, receivers[back]]),
                np.concatenate([receivers, senders[back]]),
            )
        return Graph(
            len(names),
            senders,
            receivers,
            edge_type=edge.pop(self.edge_type, None),
            node=node,
            edge=edge,
            context={name: values[0] for name, values in graph.items()},
            **labels,
        )

    def _features(self, item: Any, level: str) -> dict[str, np.ndarray]:
        from keras_bandgnn.data.converters.networkx_attributes import attribute_rows

        rows = attribute_rows(item, level)
        return {
            name: encode_attribute(level, name, spec, [row.get(name) for row in rows])
            for name, spec in self.attributes[level].items()
        }

    def _has_features(self) -> bool:
        return any("mask" not in spec for spec in self.attributes["node"].values())

    def content(self, item: Item) -> bytes:
        """Return nodes, edges and attributes as text."""
        if not self.accepts(item):
            return repr(item).encode()
        parts = [
            item.is_directed(),
            list(item.nodes(data=True)),
            list(item.edges(data=True)),
            dict(item.graph),
        ]
        return json.dumps(parts, default=repr).encode()

    def inputs(self) -> dict[str, dict[str, int]]:
        """Return the `inputs` of a backbone."""
        self.require_adapted()
        if not self._has_features():
            return {"degree": {"ids": MOST_DEGREES}}
        return attribute_inputs(self.attributes["node"])

    def edge_inputs(self) -> dict[str, dict] | None:
        """Return the `edge_inputs` of a backbone, or None without edge attributes."""
        self.require_adapted()
        edge = dict(self.attributes["edge"])
        types = edge.pop(self.edge_type, None)
        inputs = attribute_inputs(edge)
        if types is not None:
            inputs["type"] = {"ids": self.num_edge_types}
        return inputs or None

    def get_config(self) -> dict:
        """Return the arguments of the constructor, with the results of `adapt`."""
        config = {**self.attributes, "edge_type": self.edge_type}
        return {**super().get_config(), **config}


def _labels(item: Any) -> dict[str, Any]:
    from keras_bandgnn.data.converters.networkx_attributes import attribute_rows

    for level in ("node", "graph", "edge"):
        rows = [attributes.get(_LABEL) for attributes in attribute_rows(item, level)]
        first = next((row for row in rows if not is_missing(row)), None)
        # Text on edges is a caption, as that of Graphviz.
        if first is None or (level == "edge" and isinstance(first, str)):
            continue
        if level == "graph":
            return {"label": first}
        missing = np.full(np.shape(first), np.nan)
        label = np.array([missing if is_missing(row) else row for row in rows])
        return {"label": label, "label_level": level}
    return {}


def _warn_large(level: str, columns: Mapping, learnt: Mapping) -> None:
    """Warn of numbers that are large: they are features as they are."""
    for name, spec in learnt.items():
        if "number" not in spec:
            continue
        values = [value for value in columns[name] if not is_missing(value)]
        largest = np.abs(np.asarray(values, np.float64)).max(initial=0)
        if largest > _LARGE:
            _LOG.warning(
                "The %s attribute %r has numbers up to %g, which are features as they "
                "are: divide them, or take logarithms.",
                level,
                name,
                largest,
            )
