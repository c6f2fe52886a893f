"""Host side of explanations: inputs, selection of targets, and scores by graph."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_bandgnn.batch import GraphRows, graph_rows
from keras_bandgnn.checks import (
    boolean,
    instance,
    int_array,
    positive_int,
    refuse,
)
from keras_bandgnn.explain.edge_places import EdgePlaces, edge_places, opposite_edges
from keras_bandgnn.explain.explanation import Explanation
from keras_bandgnn.explain.probe import (
    PREDICTED,
    SEGMENT,
    Probe,
    output_kind,
    run_probe,
)
from keras_bandgnn.graph import Graph
from keras_bandgnn.models.inputs import Inputs, read_graphs
from keras_bandgnn.models.task import Task
from keras_bandgnn.models.task_program import TaskProgram, compiled
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.preprocessing.loading.node_order import caller_rows


class GraphRecord(NamedTuple):
    """One graph of a batch and its counterpart at the caller.

    Attributes:
        number: Index of the caller's item.
        rows: Its rows in the batch.
        graph: The graph, with the caller's nodes and edges.
        source: The caller's item; None if only compiled graphs are available.
        nodes: int [n], the caller's number of each node of the batch.
        edges: The caller's edges.
        index: The explained node, as the caller numbers it, or None.
    """

    number: int
    rows: GraphRows
    graph: Graph
    source: Any
    nodes: np.ndarray
    edges: EdgePlaces
    index: int | None

    def node_scores(self, values: np.ndarray) -> np.ndarray:
        """Map rows of the batch, [G, N, ...], to the caller's nodes."""
        rows = values[self.rows.group, self.rows.nodes]
        out = np.zeros((self.graph.num_nodes, *rows.shape[1:]), np.float32)
        out[self.nodes] = rows
        return out

    def edge_scores(self, values: np.ndarray) -> np.ndarray:
        """Map scores of the batch, [G, E], to the caller's edges."""
        return self.edges.to_caller(values[self.rows.group, self.rows.edges])


class ExplanationRequest(NamedTuple):
    """The request for explanations of some graphs.

    Attributes:
        task: The task.
        graphs: The graphs, in any form that `predict` takes; `Inputs` once checked.
        target: Column of the output, one for all graphs or one each; None for the
            predicted class, or the only number.
        index: Node, one for all graphs or one each; None for tasks over graphs.
        features: Whether node features are explained.
        edges: Whether edges are explained.
    """

    task: Task
    graphs: Any
    target: int | Sequence[int] | None = None
    index: int | Sequence[int] | None = None
    features: bool = True
    edges: bool = True

    def checked(self) -> "ExplanationRequest":
        """Return the request with its graphs read, or raise a ValueError."""
        task = instance("task", self.task, Task, "a task, such as a GraphClassifier")
        boolean("features", self.features)
        if task.output_level not in ("graph", "node", "candidate"):
            raise ValueError(
                "Expected a task over graphs, nodes or candidates. Received: "
                f"{type(task).__name__}, over {task.output_level}s. Explain one of "
                "them."
            )
        if task.distribution.several:
            raise ValueError(
                "Expected a task on one device for explanations. Received: "
                f"{task.distribution.size} devices. Load the task outside of the scope."
            )
        if (task.output_level == "node") != (self.index is not None):
            expected = "a node of each graph" if self.index is None else "None"
            raise ValueError(
                f"Expected `index` to be {expected}, as {type(task).__name__} predicts "
                f"for {task.output_level}s. Received: index={self.index!r}."
            )
        weighs = type(task.backbone).weighs_edges
        if boolean("edges", self.edges) and not weighs:
            name = type(task.backbone).__name__
            raise ValueError(
                "Expected a backbone whose messages count as often as an explanation "
                f"says, for edges=True. Received: {name}, which does not set "
                "`weighs_edges`. Build it from layers of the library, or multiply its "
                'messages by keras_bandgnn.batch.explained(batch, "edge"); then set '
                f"{name}.weighs_edges = True. Or pass edges=False."
            )
        if not (self.edges or self.features):
            raise ValueError(
                "Expected edges or features to explain. Received: features=False, "
                "edges=False. Set one of them."
            )
        return self._replace(graphs=read_graphs(task, "graphs", self.graphs))

    def records(
        self, program: TaskProgram, loader: Loader, **more
    ) -> Iterator[tuple[dict, list[GraphRecord]]]:
        """Yield the batches of the request, and the graphs of each.

        Args:
            program: The program of a probe.
            loader: Its loader of the graphs.
            **more: Further arrays of the part "request".
        """
        _check_plan(loader)
        inputs = self.graphs
        places = list(caller_rows(inputs.data, loader))
        count = inputs.count(len(places))
        index = _per_graph("index", self.index, count, 0)
        target = _per_graph("target", self.target, count, PREDICTED)
        for batch in program.batches(loader, inputs.data):
            batch = _with_segments(batch, self.task, loader)
            shapes = keras.tree.map_structure(lambda array: tuple(array.shape), batch)
            width = self.task.compute_output_shape(shapes)[-1]
            row, column = (
                np.zeros(batch["graph"]["mask"].shape, np.int32) for _ in range(2)
            )
            records = []
            for rows in graph_rows(batch):
                record = _record(batch, rows, loader, inputs, places[rows.id][0])
                place = rows.group, rows.slot
                if self.index is not None:
                    number = int(index[record.number])
                    node_set = getattr(self.task, "node_set", None)
                    if node_set is not None:
                        number = _node_of_row(record, node_set, number)
                    record = record._replace(index=number)
                    row[place] = rows.nodes.start + _node(record)
                if self.task.output_level == "candidate":
                    width = int(batch["candidate"]["mask"][place].sum())
                choice = int(target[record.number])
                column[place] = _column(choice, width, self.task, record.number)
                records.append(record)
            request = {"row": row, "column": column, **more, **batch["request"]}
            request["pair"] = opposite_edges(batch["edge"])
            yield {**batch, "request": request}, records


def _node_of_row(record: GraphRecord, node_set: str, row: int) -> int:
    """Return the node with a row of a node set, as the caller numbers nodes."""
    graph = record.graph
    here = graph.node["set"] == [*graph.sets].index(node_set)
    nodes = np.flatnonzero(here & (graph.node["set_row"] == row))
    if not len(nodes):
        refuse("index", f"a row of the nodes of {node_set!r}", row)
    return int(nodes[0])


def _record(
    batch, rows: GraphRows, loader, inputs: Inputs, nodes: np.ndarray
) -> GraphRecord:
    """Return a graph of a batch and the caller's item.

    Args:
        batch: The batch.
        rows: Where the graph is in it.
        loader: The loader of the graphs.
        inputs: What the caller passed.
        nodes: int [n], the caller's number of each node.
    """
    source = _source(inputs, rows.id)
    graph = source if isinstance(source, Graph) else _compiled(loader, rows.id, nodes)
    place = rows.group, rows.edges
    edge = {name: values[place] for name, values in batch["edge"].items()}
    ends = (nodes[edge[k] - rows.nodes.start] for k in ("sender", "receiver"))
    edges = edge_places(graph, *ends, edge)
    return GraphRecord(inputs.number(rows.id), rows, graph, source, nodes, edges, None)


def explanations(
    request: ExplanationRequest, kind: type[Probe], *arguments, run=None, **more
) -> list:
    """Return the `Explanation` of each item; None for those that are left out.

    Args:
        request: The request.
        kind: A `Probe` with results "score", "rows", "column", "edge" and "node".
        *arguments: Arguments of its constructor after the usual ones.
        run: Function of a program and a batch that returns the results; by default
            `run_program`.
        **more: Further arrays of the part "request".
    """
    request = request.checked()
    inputs = request.graphs
    if inputs.is_empty:
        return inputs.spread([])
    options = request.features, request.edges, *arguments
    program = compiled(request.task, run_probe, kind, *options)
    loader = program.loader(inputs, training=False)
    out: list = [None] * inputs.count(int(loader.starts[-1]))
    for batch, records in request.records(program, loader, **more):
        values = (run or run_program)(program, batch)
        for record in records:
            out[record.number] = explanation_of(kind.method, record, values)
    return out


def run_program(program: TaskProgram, batch) -> dict:
    """Return the results of a probe for a batch, in NumPy."""
    return keras.tree.map_structure(
        keras.ops.convert_to_numpy, program.predict_on_batch(batch)
    )


def explanation_of(method: str, record: GraphRecord, values: Mapping) -> Explanation:
    """Return the explanation of a graph from the results for its batch."""
    place = record.rows.group, record.rows.slot
    features = {n: record.node_scores(v) for n, v in values.get("node", {}).items()}
    node = np.zeros(record.graph.num_nodes, np.float32)
    for scores in features.values():
        node += scores.reshape(len(node), -1).sum(axis=1)
    edge, remainder = np.zeros(len(record.edges.senders), np.float32), 0.0
    if "edge" in values:
        edge = record.edge_scores(values["edge"])
        of_model = values["edge"][record.rows.group, record.rows.edges]
        remainder = float(of_model.sum() - edge.sum())
    target = int(values["column"][place])
    rows = values["rows"][place]
    baseline = float(values["baseline"][place]) if "baseline" in values else None
    _check_finite(record.number, float(rows[target]), baseline, node, edge)
    return Explanation(
        method=method,
        graph=record.graph,
        source=record.source,
        index=record.index,
        target=target,
        prediction=rows,
        output=float(rows[target]),
        node=node,
        node_features=features,
        edge=edge,
        senders=record.edges.senders,
        receivers=record.edges.receivers,
        rest=remainder,
        baseline=baseline,
    )


def _check_finite(
    number: int, output: float, baseline: float | None, *scores: np.ndarray
) -> None:
    """Raise a ValueError for an output or scores that are not finite."""
    for name, value in (("output", output), ("output without edges", baseline)):
        if value is not None and not np.isfinite(value):
            raise ValueError(
                f"Expected a finite {name}, which is explained. Received: {value} for "
                f"graph {number}. Check the features of the graph, and the weights: "
                "training may have diverged."
            )
    if not all(np.isfinite(values).all() for values in scores):
        raise ValueError(
            f"Expected a finite gradient. Received: NaN or infinity for graph {number}"
            ", whose output is finite. Its features may be too large; pass "
            "edges=False or features=False, or use gnn_explainer."
        )


def _check_plan(loader: Loader) -> None:
    plan = loader.plan
    lossy = bool(plan.primitives) and plan.rest is None
    if lossy or getattr(plan, "uncovered", "keep") == "drop":
        raise ValueError(
            "Expected a plan that keeps all edges, as an explanation varies each. "
            f"Received: {plan}. Set a plan without rest='drop' in the preprocessor."
        )


def _with_segments(batch, task: Task, loader: Loader) -> dict:
    """Return a batch whose plan is `Segment`, and the order of its edges."""
    edge = batch["edge"]
    if not loader.plan.primitives:
        # Attention and tiles: edges attend one by one.
        return {**batch, "plan": {}, "request": {}}
    types = max(int(task.backbone.num_edge_types or 1), 1)
    key = edge["receiver"].astype(np.int64) * types
    key += edge["type"] if types > 1 else 0
    order = np.argsort(key, axis=1, kind="stable").astype(np.int32)
    names = ("sender", "receiver", "type")
    arrays = {name: np.take_along_axis(edge[name], order, axis=1) for name in names}
    if types == 1:
        arrays["type"] = np.zeros_like(arrays["type"])
    if loader.edge_weight is not None:
        weight = edge[loader.edge_weight].astype(np.float32)
        weight = weight.reshape(order.shape)
        arrays["weight"] = np.take_along_axis(weight, order, axis=1)
    return {**batch, "plan": {SEGMENT: arrays}, "request": {"order": order}}


def _per_graph(name: str, value, count: int, default: int) -> np.ndarray:
    """Return one integer for each graph."""
    if value is None:
        return np.full(count, default)
    if np.ndim(value) == 0:
        return np.full(count, positive_int(name, value, 0))
    values = int_array(name, value)
    if len(values) != count or (count and values.min() < 0):
        raise ValueError(
            f"Expected `{name}` to be an integer of at least 0, or one for each of the "
            f"{count} graphs. Received: {len(values)}, from {values.min(initial=0)}. "
            "Pass a list as long as the graphs."
        )
    return values


def _source(inputs: Inputs, number: int):
    """Return the caller's item of a graph; None if it is compiled already."""
    if inputs.positions is not None:
        return inputs.items[inputs.number(number)]
    graphs = inputs.data
    if isinstance(graphs, list | tuple):
        return graphs[number]
    metadata = getattr(graphs, "metadata", None) or {}
    if hasattr(graphs, "node_ptr") and not metadata.get("layers"):
        return graphs[number]
    return None


def _compiled(loader: Loader, number: int, nodes: np.ndarray) -> Graph:
    """Return a graph of a loader with its nodes in the order before compilation."""
    part = int(np.searchsorted(loader.starts, number, side="right")) - 1
    graph = loader.parts[part][number - int(loader.starts[part])]
    return graph.subgraph(np.argsort(nodes))


def _node(record: GraphRecord) -> int:
    """Return the explained node as the batch numbers it, from the graph's first."""
    place = np.flatnonzero(record.nodes == record.index)
    if not len(place):
        raise ValueError(
            f"Expected `index` to be a node in [0, {record.graph.num_nodes}) that "
            f"preprocessing keeps. Received: index={record.index} for graph "
            f"{record.number}. Choose another node."
        )
    return int(place[0])


def _column(target: int, width: int, task: Task, number: int) -> int:
    """Return the column to explain, or raise a ValueError if there is none.

    Args:
        target: What the caller asks for.
        width: Number of columns.
        task: The task.
        number: Number of the caller's item.
    """
    name = type(task).__name__
    if target == PREDICTED and output_kind(task) == "class":
        return PREDICTED
    if target == PREDICTED and width > 1:
        raise ValueError(
            f"Expected `target`, one of the {width} outputs of {name}. Received: "
            "target=None. Pass its number."
        )
    target = max(target, 0)
    if target >= width:
        raise ValueError(
            f"Expected `target` in [0, {width}), the outputs of {name}. Received: "
            f"target={target} for graph {number}. Choose one of them."
        )
    return target
