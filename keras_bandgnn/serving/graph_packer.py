"""`GraphPacker`: packs graphs for an exported model, and unpacks its outputs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.assembly.padded_rows import set_resource
from keras_bandgnn.batch import unbatch
from keras_bandgnn.checks import (
    as_path,
    instance,
    mapping,
    one_of,
    optional,
    positive_int,
    refuse,
    string,
)
from keras_bandgnn.data.files import restore_replaced
from keras_bandgnn.data.flat_columns import SETS
from keras_bandgnn.data.reading import read_json, reading, refuse_file
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.encoding.graph_encoder import (
    is_raw,
)
from keras_bandgnn.preprocessing.encoding.raw_items import (
    raw_items,
)
from keras_bandgnn.preprocessing.graph_layer import only_graphs
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.primitives.plan import Plan
from keras_bandgnn.serving.signature import Signature

if TYPE_CHECKING:
    from keras_bandgnn.aliases import FilePath, Graphs, Values
    from keras_bandgnn.models.task import Task


class ExportBatcher(DynamicBatcher):
    """A `DynamicBatcher` with the one static shape of an exported model."""

    def split(self, sizes: Mapping[str, np.ndarray]) -> tuple[np.ndarray, list[dict]]:
        """Assign all graphs to the one budget; see `Batcher.split`.

        Raises:
            ValueError: If a graph is above the budget.
        """
        fits = self.fits(sizes)
        if not fits.all():
            first = int(np.flatnonzero(~fits)[0])
            # One node and one graph are padding.
            room = {name: n - (name == "node") for name, n in self.budget.items()}
            above = {
                name: f"{int(values[first])} (at most {room[name]})"
                for name, values in sizes.items()
                if values[first] > room[name]
            }
            raise ValueError(
                "Expected graphs within the budget that the model was exported for. "
                f"Received: {int((~fits).sum())} above it; graph {first} needs {above}."
                " Export again with larger graphs or a larger budget."
            )
        return np.zeros(len(fits), np.int8), [dict(self.budget)]


LEVELS = ("node", "edge", "graph", "candidate")
FILE = "packing.json"
VERSION = 1
# Resources without an input of that many rows may have budgets up to this: a receptive
# field leaves out most edges of a graph.
_FREE_BUDGET = 1 << 22


class PackedGraphs:
    """Graphs packed for an exported model.

    Iterating yields the inputs of each supergraph, name -> array.

    Args:
        loader: The loader of the graphs; None if no item could be converted.
        packer: The packer.
        graphs: The graphs, in the form that the caller passed, or as the encoder made
            them.
        positions: int64 [n], the item of each graph; None for item k of graph k.
        count: Number of items.
    """

    def __init__(
        self,
        loader: Loader | None,
        packer: GraphPacker,
        graphs: Graphs,
        positions: np.ndarray | None = None,
        count: int = 0,
    ):
        self._loader = loader
        self._packer = packer
        self._graphs = graphs
        self._positions, self._count = positions, count

    def __len__(self) -> int:
        return 0 if self._loader is None else len(self._loader)

    def _batch(self, index: int) -> dict:
        return self._loader.build(index, 0)[0]

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for index in range(len(self)):
            yield self._packer.signature.flat(self._batch(index))

    def unpack(self, outputs: Sequence) -> list[np.ndarray | None]:
        """Split outputs into results per graph.

        Args:
            outputs: The model's output for each supergraph.

        Returns:
            One array per graph, in the order of the graphs; of nodes and edges with
            rows in the graph's order, NaN for those that the preprocessor drops. None
            for raw items that the encoder skips.
        """
        if len(outputs) != len(self):
            raise ValueError(
                f"Expected one output for each of {len(self)} supergraphs. "
                f"Received: {len(outputs)}."
            )
        if self._positions is None:
            return self._per_graph(outputs)
        results: list = [None] * self._count
        if self._loader is not None:
            rows = self._per_graph(outputs)
            for position, row in zip(self._positions.tolist(), rows, strict=True):
                results[position] = row
        return results

    def _per_graph(self, outputs: Sequence) -> list[np.ndarray]:
        level = self._packer.output_level
        out: list = [None] * int(self._loader.starts[-1])
        for index, values in enumerate(outputs):
            for graph, rows in unbatch(values, self._batch(index), level):
                out[graph] = rows
        if level not in ("node", "edge"):
            return out
        from keras_bandgnn.preprocessing.loading.node_order import (
            caller_rows,
            scatter_to_caller_order,
            set_rows,
        )

        places = caller_rows(self._graphs, self._loader, level)
        if self._packer.node_set is not None:
            places = set_rows(self._loader, self._packer.node_set)
        return [
            scatter_to_caller_order(rows, *place)
            for rows, place in zip(out, places, strict=True)
        ]


class GraphPacker:
    """Packs graphs into the static inputs of an exported model.

    It needs no model and no backend of Keras: it runs only the preprocessing, in NumPy
    and SciPy.

    Args:
        preprocessor: Graph layers, an `ExportBatcher` and a plan.
        signature: Names, shapes and dtypes of the inputs.
        output_level: Level of the output rows, one of `LEVELS`.
        num_edge_types: P, or 0 if types are not read.
        ids: Node feature -> `{"below": n}` or `{"among": [...]}`, its valid values;
            `{"below": [n, ...]}` those of its columns.
        edge_ids: Likewise for edge features.
        set_ids: Likewise for columns of node sets, by `"sets/<set>/<feature>"`.
        node_set: The node set that output rows of nodes belong to; None for all nodes.

    Example:
    >>> import tempfile
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [1, 2, 3]})
    >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 4}, 8), 2)
    >>> packer = kb.serving.GraphPacker.of_task(task, [graph] * 4)
    >>> packed = packer.pack([graph])
    >>> len(packed), next(iter(packed))["node_kind"].dtype.name
    (1, 'int32')
    """

    def __init__(
        self,
        preprocessor: GraphPreprocessor,
        signature: Signature,
        output_level: str,
        num_edge_types: int,
        ids: Mapping[str, Mapping] | None = None,
        edge_ids: Mapping[str, Mapping] | None = None,
        set_ids: Mapping[str, Mapping] | None = None,
        node_set: str | None = None,
    ):
        self.preprocessor = preprocessor
        self.signature = signature
        self.output_level = output_level
        self.num_edge_types = num_edge_types
        self.ids = {name: dict(limits) for name, limits in (ids or {}).items()}
        self.edge_ids = {
            name: dict(limits) for name, limits in (edge_ids or {}).items()
        }
        self.set_ids = {name: dict(limits) for name, limits in (set_ids or {}).items()}
        self.node_set = node_set

    @classmethod
    def of_task(
        cls,
        task: Task,
        graphs: Graphs,
        budget: Mapping[str, int] | None = None,
        plan: Plan | None = None,
    ) -> GraphPacker:
        """Return the packer of a task, for supergraphs like those of its predictions.

        Args:
            task: The task.
            graphs: Graphs in any form that `predict` takes, as large as those to
                predict.
            budget: Capacities by name that override the estimates from the graphs.
            plan: A `Plan`; by default that of the task's predictions.
        """
        if not hasattr(task, "backbone"):
            refuse("task", "a task, such as GraphClassifier(...)", task)
        budget = optional(mapping, "budget", budget)
        optional(instance, "plan", plan, Plan, "a keras_bandgnn.plans.Plan")
        loader = task.loader(graphs, training=False)
        shapes = [s.budget for s in loader.composition(0)]
        largest = {name: max(s[name] for s in shapes) for name in shapes[0]}
        if plan is not None:
            # Resources of the other plan are estimated by the batcher.
            shared = ("node", "edge", "graph", "candidate")
            largest = {
                k: v
                for k, v in largest.items()
                if k in shared or k.startswith(set_resource(""))
            }
        task_preprocessor = task.preprocessor
        preprocessor = GraphPreprocessor(
            task_preprocessor.graph_layers if task_preprocessor else (),
            ExportBatcher(budget={**largest, **(budget or {})}),
            loader.plan if plan is None else plan,
            task_preprocessor.edge_weight if task_preprocessor else None,
        )
        types = task.backbone.num_edge_types
        ids = task.backbone.known_ids()
        packer = cls(
            preprocessor,
            None,
            task.output_level,
            types,
            ids,
            _edge_ids(task),
            _set_ids(task),
            getattr(task, "node_set", None),
        )
        if isinstance(graphs, Loader):
            graphs = graphs.parts[0]
        loader = packer._loader(graphs, adapt=True)
        unread = _unread(task.features_read(), loader.parts[0])
        packer.signature = Signature.of(loader.build(0, 0)[0], unread)
        return packer

    @property
    def budget(self) -> dict[str, int]:
        """Capacities of a supergraph by name."""
        return dict(self.preprocessor.batcher.budget)

    def _loader(self, graphs, adapt: bool = False) -> Loader:
        graphs = [graphs] if isinstance(graphs, Graph) else graphs
        loader = self.preprocessor.loader(
            graphs, adapt, shuffle=False, num_edge_types=self.num_edge_types, prefetch=0
        )
        for part in loader.parts:
            for level, ids in (("node", self.ids), ("edge", self.edge_ids)):
                features = getattr(part, level)
                for name, limits in ids.items():
                    if name in features:  # The signature reports missing inputs.
                        _check_ids(f"{level}[{name!r}]", features[name], limits)
            for name, limits in self.set_ids.items():
                if name in part.columns():
                    _check_ids(name, part.columns()[name], limits)
        return loader

    def pack(self, graphs: Graphs) -> PackedGraphs:
        """Pack graphs into supergraphs.

        Args:
            graphs: Graphs in any form that `predict` of the task takes.

        Raises:
            ValueError: For graphs above the budget or without an input of the model.
        """
        encoder = self.preprocessor.encoder
        if encoder is None or only_graphs(graphs) or not is_raw(graphs):
            return PackedGraphs(self._loader(graphs), self, graphs)
        items = raw_items(graphs)
        graphs, positions, _ = encoder.encode(items)
        loader = None if graphs is None else self._loader(graphs)
        return PackedGraphs(loader, self, graphs, positions, len(items))

    def save(self, path: FilePath, **entries: Values) -> None:
        """Write `packing.json` into a folder.

        Args:
            path: The folder.
            **entries: Additional entries of the file.
        """
        config = {
            **entries,
            "version": VERSION,
            "output_level": self.output_level,
            "num_edge_types": self.num_edge_types,
            "ids": self.ids,
            **({"edge_ids": self.edge_ids} if self.edge_ids else {}),
            **({"set_ids": self.set_ids} if self.set_ids else {}),
            **({"node_set": self.node_set} if self.node_set else {}),
            "preprocessor": _plain(self.preprocessor),
            **self.signature.get_config(),
        }
        text = json.dumps(config, indent=1)
        (Path(path) / FILE).write_text(text + "\n", "utf-8")

    @classmethod
    def load(cls, path: FilePath) -> GraphPacker:
        """Read `packing.json` of a folder that `task.export` wrote."""
        config = read_packing(path)
        file = Path(path) / FILE
        with reading(file):
            signature = Signature.from_config(config)
            _check_packing(file, config, signature)
            entry = config["preprocessor"]
            restored = GraphPreprocessor.from_config(
                {**entry, "batcher": {"class_name": "DynamicBatcher", "config": {}}}
            )
            preprocessor = GraphPreprocessor(
                restored.graph_layers,
                ExportBatcher(budget=entry["budget"]),
                restored.plan,
                entry["edge_weight"],
            )
        return cls(
            preprocessor,
            signature,
            config["output_level"],
            config["num_edge_types"],
            config["ids"],
            config.get("edge_ids"),
            config.get("set_ids"),
            optional(string, "node_set", config.get("node_set")),
        )


def _check_packing(file: Path, config: Mapping, signature: Signature) -> None:
    """Raise a ValueError for values that `task.export` never writes."""
    one_of("output_level", config["output_level"], LEVELS)
    positive_int("num_edge_types", config["num_edge_types"], 0)
    kinds = [config["ids"], config.get("edge_ids", {}), config.get("set_ids", {})]
    for name, limits in (entry for ids in kinds for entry in ids.items()):
        if list(limits) == ["below"]:
            below = limits["below"]
            for number in below if isinstance(below, list) else [below]:
                positive_int(f"ids of {name}", number, 0)
        elif list(limits) == ["among"]:
            for element in limits["among"]:
                positive_int(f"ids of {name}", element, 0)
        else:
            refuse_file(file, f"to have the ids of {name!r}", limits)
    # Arrays of the budget are allocated before they are compared with the signature.
    sizes = [math.prod(spec.shape) for spec in signature.inputs]
    limit = 32 * max(sizes, default=0) + _FREE_BUDGET
    for name, size in config["preprocessor"]["budget"].items():
        if positive_int(f"budget of {name}", size, 0) > limit:
            refuse_file(file, f"to have a budget of at most {limit} for {name!r}", size)


def _plain(preprocessor: GraphPreprocessor) -> dict:
    # Only the budget of the batcher is written.
    parts = preprocessor.graph_layers, None, preprocessor.plan, preprocessor.edge_weight
    config = GraphPreprocessor(*parts).get_config()
    del config["batcher"]
    return {**config, "budget": dict(preprocessor.batcher.budget)}


def read_packing(path) -> dict:
    """Return the contents of `packing.json` in a folder.

    Raises:
        ValueError: If it is not an exported model, or one of another version.
    """
    file = as_path("path", path) / FILE
    restore_replaced(path)
    if not file.is_file():
        raise ValueError(
            f"Expected `path` to be a folder that task.export wrote, with {FILE}. "
            f"Received: {str(path)!r}."
        )
    config = read_json(file, dict)
    if config.get("version") != VERSION:
        raise ValueError(
            f"Expected {file} of version {VERSION}. "
            f"Received: version {str(config.get('version'))[:80]}."
        )
    return config


def _unread(read: Mapping | None, part) -> list[tuple[str, str]]:
    """Return the paths of features that the task does not read."""
    if read is None:
        return []
    features = {"node": part.node, "edge": part.edge, "graph": part.context}
    return [
        (level, name)
        for level, values in features.items()
        for name in values
        if name not in read.get(level, values)
    ]


def _edge_ids(task) -> dict[str, dict]:
    """Return the valid ids of edge features, of each `NodeEncoder` of a task."""
    from keras_bandgnn.compat import sublayers
    from keras_bandgnn.layers.node_encoder import NodeEncoder

    limits: dict[str, dict] = {}
    for layer in sublayers(task):
        if isinstance(layer, NodeEncoder) and layer.level == "edge":
            for name, ids in layer.known_ids().items():
                # Several layers may embed a feature: it has to fit all of them.
                old = limits.get(name, ids)["below"]
                limits[name] = {"below": np.minimum(old, ids["below"]).tolist()}
    limits.pop("type", None)  # The loader checks types.
    return limits


def _set_ids(task) -> dict[str, dict]:
    """Return the valid ids of columns of node sets that a task's backbone reads."""
    from keras_bandgnn.compat import sublayers
    from keras_bandgnn.layers.node_encoder import NodeEncoder

    limits = {}
    for layer in sublayers(task):
        if isinstance(layer, NodeEncoder):
            for name, encoder in layer.set_encoders().items():
                ids = encoder.known_ids()
                limits |= {f"{SETS}/{name}/{key}": limit for key, limit in ids.items()}
    return limits


def _check_ids(name: str, values: np.ndarray, limits: Mapping) -> None:
    if "below" in limits:
        below = limits["below"]
        if isinstance(below, list) and values.shape[1:] != (len(below),):
            raise ValueError(
                f"Expected {name} with {len(below)} columns of ids, as the "
                f"exported model has. Received: shape {values.shape}."
            )
        # One number, or one for each column.
        wrong = values[(values < 0) | (values >= np.array(below))]
        of_columns = ", by column" if isinstance(below, list) else ""
        expected = f"in [0, {below}){of_columns}"
    else:
        wrong = values[~np.isin(values, limits["among"])]
        expected = f"among {limits['among']}"
    if wrong.size:
        raise ValueError(
            f"Expected {name} {expected}, the values of the exported model. "
            f"Received: {wrong.flat[0]}."
        )
