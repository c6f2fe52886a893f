"""`predict_by_layer`: predictions for a large graph, one layer at a time."""

import os
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
from keras import ops

from keras_bandgnn.assembly.padded_rows import picked_rows
from keras_bandgnn.batch import STATE_ROW
from keras_bandgnn.checks import as_path, optional, positive_int
from keras_bandgnn.data.sources import parts_of
from keras_bandgnn.layers.batch_layer import hop_batch
from keras_bandgnn.models.task_program import compiled
from keras_bandgnn.preprocessing.batching.batcher import round_up_64
from keras_bandgnn.preprocessing.loading.node_order import (
    caller_rows,
    scatter_to_caller_order,
    set_rows,
)
from keras_bandgnn.preprocessing.sampling.neighbor_sampler import NeighborSampler
from keras_bandgnn.preprocessing.sampling.sample_assembler import (
    SampleAssembler,
)
from keras_bandgnn.preprocessing.sampling.sampled_graph import SampledGraph, key_of
from keras_bandgnn.preprocessing.sampling.sampled_sets import SampledSets
from keras_bandgnn.progress import progress_bar


def predict_by_layer(
    task, graphs, block_size: int = 8192, folder=None, verbose="auto"
) -> list[np.ndarray]:
    """Return the predictions of a task, computed one layer of all nodes at a time.

    See `MaskedTask.predict_by_layer`.
    """
    return _by_layer(task, graphs, _head, block_size, folder, verbose)


def states_by_layer(
    task, graphs, block_size: int = 8192, folder=None, verbose="auto"
) -> list[np.ndarray]:
    """Return the backbone's states of all nodes, [N, H] per graph, layer by layer."""
    return _by_layer(task, graphs, _states, block_size, folder, verbose)


def _by_layer(task, graphs, read_out, block_size, folder, verbose) -> list:
    positive_int("block_size", block_size)
    folder = optional(as_path, "folder", folder)
    backbone = task.backbone
    if not backbone.trims_hops:
        raise ValueError(
            "Expected a MessagePassingBackbone, whose layers run one by one. Received: "
            f"{type(backbone).__name__}. Use predict, or evaluate with "
            "NeighborSampler([-1, ...])."
        )
    backbone.check_hops(backbone.num_layers, "predict")
    if task.distribution.several:
        raise ValueError(
            "Expected one device to predict by layer. Received: a task on several. "
            "Use predict, or load the task outside of the distribution."
        )
    if task.preprocessor.edge_weight is not None:
        raise ValueError(
            "Expected a preprocessor without `edge_weight` to predict by layer. "
            f"Received: edge_weight={task.preprocessor.edge_weight!r}. Use predict."
        )
    parts = parts_of(task.preprocessor.transform(graphs))
    out = []
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        backbone.check(part)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            scratch = None if folder is None else scratch
            inference = _LayerwiseInference(
                task, part, block_size, scratch, verbose != 0
            )
            rows = inference.outputs(read_out)
        starts = part.node_ptr
        out += [rows[a:b] for a, b in zip(starts, starts[1:], strict=False)]
    loader = SimpleNamespace(parts=parts)
    places = caller_rows(graphs, loader, "node")
    if read_out is _head and task.node_set is not None:
        places = set_rows(loader, task.node_set)
    return [
        scatter_to_caller_order(rows, *place)
        for rows, place in zip(out, places, strict=True)
    ]


class _LayerwiseInference:
    """Inference on a graph, one layer of all nodes at a time.

    Args:
        task: The task.
        flat: The graph, or several.
        block_size: Nodes whose states are computed together.
        folder: Folder to store states in; None for memory.
        progress: Whether to show a progress bar.
    """

    def __init__(self, task, flat, block_size: int, folder, progress: bool):
        self.task, self.backbone = task, task.backbone
        self.flat, self.folder, self.progress = flat, folder, progress
        self.graph = SampledGraph(flat)
        self.block_size = min(block_size, self.graph.num_nodes)
        self.sampler = NeighborSampler([-1], self.block_size)
        self.assembler = SampleAssembler(
            self.graph,
            self.sampler,
            num_types=max(self.backbone.num_edge_types, 1),
            trimmed=True,
            rescale=False,
            targets=np.ones(self.graph.num_nodes, bool),
            # Layers read states instead of features.
            features={
                "node": (STATE_ROW,) if self.backbone.reads_node_sets else (),
                "edge": tuple(flat.edge),
            },
        )
        self.sets = SampledSets(flat) if flat.sets else None

    def outputs(self, read_out) -> np.ndarray:
        """Apply `read_out` to the states of all layers, [N, ...]."""
        layers = range(self.backbone.num_layers)
        blocks = -(-self.graph.num_nodes // self.block_size)
        total = blocks * (len(layers) + 2)
        with progress_bar("Predicting by layer", total, self.progress) as advance:
            self._advance = advance
            states = self._encoded()
            layer_states, edges = [states], None
            for number in layers:
                states, edges = self._layer(number, states, edges)
                # Only jumping knowledge reads the states of earlier layers.
                layer_states = layer_states if self.backbone.jumping_knowledge else []
                layer_states.append(states)
            return self._read_out(layer_states, read_out)

    def _array(self, name: str, rows: int, like: np.ndarray, store=True) -> np.ndarray:
        """Return an empty array [rows, ...] for entries like those of [1, n, ...]."""
        shape = (rows, *like.shape[2:])
        if self.folder is None or not store:
            return np.empty(shape, like.dtype)
        path = os.path.join(self.folder, f"{name}.npy")
        return np.lib.format.open_memmap(path, "w+", dtype=like.dtype, shape=shape)

    def _blocks(self) -> Iterator[np.ndarray]:
        for first in range(0, self.graph.num_nodes, self.block_size):
            last = min(first + self.block_size, self.graph.num_nodes)
            yield np.arange(first, last)
            self._advance(1)

    def _encoded(self) -> np.ndarray:
        """Return the embedded features of all nodes."""
        step, out = compiled(self.task, _encode), None
        for rows in self._blocks():
            node = {
                name: _padded(values, rows, self.block_size)
                for name, values in self.flat.node.items()
                if name in self.backbone.encoder.inputs
            }
            x = {"node": {**node, "mask": np.arange(self.block_size)[None] < len(rows)}}
            if self.sets is not None:
                sizes = dict.fromkeys(self.sets.sizes(rows), self.block_size)
                row, x["set"] = self.sets.lay_out(
                    [rows], {"node": self.block_size, **sizes}
                )
                x["node"][STATE_ROW] = row
            states = step.predict_on_batch(x)["states"]
            if out is None:
                out = self._array("features", self.graph.num_nodes, states)
            out[rows] = states[0, : len(rows)]
        return out

    def _layer(self, number: int, states, edges) -> tuple:
        """Return the states of all nodes and edges after a layer."""
        step = compiled(self.task, _run_layer, number)
        updates = self.backbone.updates_edge_states and self.backbone.edge_encoder
        out = new_edges = None
        for rows in self._blocks():
            subgraph = self.sampler.subgraph(self.graph, rows, key_of(0))
            budget = self._budget(subgraph)
            (x, *_) = self.assembler.lay_out([subgraph], budget, {"states": states})
            if edges is not None:
                x["edge_states"] = _padded(edges, subgraph.edges, budget["edge"])
            result = step.predict_on_batch(x)
            if out is None:
                out = self._array(f"states_{number}", len(states), result["states"])
            out[rows] = result["states"][0, : len(rows)]
            if updates:
                edge_states = result["edge_states"]
                if new_edges is None:
                    count = self.graph.num_edges
                    new_edges = self._array(f"edges_{number}", count, edge_states)
                new_edges[subgraph.edges] = edge_states[0, : len(subgraph.edges)]
        return out, new_edges

    def _budget(self, subgraph) -> dict[str, int]:
        budgets = self.assembler.budgets
        if budgets == [{}]:
            sizes = self.assembler.needed(subgraph)
            budget = {k: int(round_up_64(int(1.1 * v))) for k, v in sizes.items()}
            budget["node:1"] = self.block_size
            budgets[:] = [{**budget, "graph": 2, "item": self.block_size}]
        return self.assembler.budget_for([subgraph], budgets[-1])

    def _read_out(self, layer_states: list[np.ndarray], read_out) -> np.ndarray:
        step, out = compiled(self.task, read_out), None
        for rows in self._blocks():
            rows_by_layer = [
                _padded(states, rows, self.block_size) for states in layer_states
            ]
            mask = np.arange(self.block_size)[None] < len(rows)
            # A task may read the sizes of graphs.
            counts = np.array([[len(rows), 0]], np.int32)
            x = {
                "node": {"mask": mask, "graph_id": np.zeros(mask.shape, np.int32)},
                "graph": {"mask": counts > 0, "n_node": counts},
                "layers": {str(i): states for i, states in enumerate(rows_by_layer)},
            }
            values = step.predict_on_batch(x)["outputs"]
            if out is None:
                out = self._array("outputs", self.graph.num_nodes, values, store=False)
            out[rows] = values[0, : len(rows)]
        return out


def _padded(values: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
    """Return rows of a column, padded to [1, count, ...]."""
    return picked_rows([rows], count).column([values])[None]


def _encode(task, batch) -> dict:
    return {"states": task.backbone.encoder(batch)}


def _run_layer(task, batch, number: int) -> dict:
    backbone = task.backbone
    hop = hop_batch(batch, 0)
    edge_states = batch.get("edge_states")
    if edge_states is None:
        edge_states = backbone.edge_states(hop)
    states, edge_states = backbone.layer(
        number,
        ops.convert_to_tensor(batch["node"]["states"]),
        None if edge_states is None else ops.convert_to_tensor(edge_states),
        backbone.prepare(hop),
    )
    out = {"states": states}
    return out if edge_states is None else {**out, "edge_states": edge_states}


def _states(task, batch) -> dict:
    backbone = task.backbone
    by_layer = batch["layers"]
    states = [
        ops.convert_to_tensor(by_layer[str(number)]) for number in range(len(by_layer))
    ]
    joins = backbone.jumping_knowledge is not None
    return {"outputs": backbone.joined(states) if joins else states[-1]}


def _head(task, batch) -> dict:
    states = _states(task, batch)["outputs"]
    # The task uses these states in place of the backbone's output.
    inputs = {part: batch[part] for part in ("node", "graph")}
    return {"outputs": task({**inputs, "explained": {"states": states}})}
