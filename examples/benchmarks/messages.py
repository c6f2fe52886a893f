"""Time and memory of a training step of message passing, compared with a peer.

For each layer one process trains two models of the same width on the same graphs, in
alternating steps: the library's backbone, and torch_geometric's layer in a frame of
PyTorch that does the same (embedding, norm over nodes, residual connection, mean over
the nodes, linear head). GatedGCN updates edges, too, which the peer's layer does not.
Graphs in batches have one label each; one graph with labelled nodes is a batch. A step
is the forward pass, the loss, gradients and Adam. The peer runs in torch on every
backend.

With --memory each model also runs in a process of its own, and the growth of its peak
memory over the first steps is printed. On torch, steps are recorded after 32 with
batches of one shape; --warmup 70 measures those.
"""

import argparse
import itertools
import os
import subprocess
import sys
import time

from examples.benchmarks import allocator, figures
from keras_bandgnn.cli import data_sets, report
from keras_bandgnn.cli import options as shared

MODELS = ("gcn", "gat", "gine", "gatv2", "sage", "gatedgcn", "pna", "gps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    data_sets.add_data(parser)
    parser.add_argument("--batch-size", type=shared.positive, default=128)
    parser.add_argument("--graphs", type=shared.positive, default=1024, help="at most")
    parser.add_argument("--hidden", type=shared.positive, default=64)
    parser.add_argument("--layers", type=shared.positive, default=4)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=shared.positive, default=9)
    parser.add_argument(
        "--warmup", type=shared.positive, default=2, help="steps before measuring"
    )
    parser.add_argument("--no-edges", action="store_true", help="leave edges' features")
    parser.add_argument("--memory", action="store_true", help="measure memory, too")
    parser.add_argument("--only", choices=("ours", "peer"), help=argparse.SUPPRESS)
    figures.add_option(parser)
    allocator.add_option(parser)
    add_xla(parser)


def add_xla(parser: argparse.ArgumentParser) -> None:
    """Add the option that compiles steps on TensorFlow."""
    parser.add_argument(
        "--xla", action="store_true", help="compile(jit_compile=True), on TensorFlow"
    )


def jit_compile(options: argparse.Namespace) -> bool | str:
    """Return the argument `jit_compile` for the models of a benchmark."""
    import keras

    return options.xla and keras.backend.backend() == "tensorflow" or "auto"


class Case:
    """Graphs with one feature of nodes and at most one of edges.

    Args:
        graphs: The graphs as read.
        edges: Whether to keep a feature of edges.

    Attributes:
        graphs: A list of graphs.
        inputs, edge_inputs: Features for `NodeEncoder`.
        nodes: Whether nodes are labelled, and not graphs.
        num_outputs: Classes of nodes; 1 for graphs.
        heads: Heads of attention.
        degrees, delta: Number of nodes by degree; the mean of log(degree + 1).
    """

    def __init__(self, graphs: list, edges: bool = True):
        import numpy as np

        self.nodes = graphs[0].label_level == "node"
        self.graphs = [self._reduced(graph, edges) for graph in graphs]
        first = self.graphs[0]
        edge = dict(first.edge)
        self.inputs = self._inputs("node", "x")
        self.edge_inputs = self._inputs("edge", "e") if edge else None
        self.num_outputs = 1
        if self.nodes:
            self.num_outputs = 1 + max(int(g.label.max()) for g in self.graphs)
        degrees = [np.bincount(g.receivers, minlength=g.num_nodes) for g in self.graphs]
        degrees = np.concatenate(degrees)
        self.degrees = np.bincount(degrees)
        self.delta = float(np.log(degrees + 1.0).mean())

    heads = 4

    @staticmethod
    def _first(features):
        """Return the first column of ids, or the first feature of numbers."""
        values = next(iter(features.values()))
        return values[:, 0] if values.ndim == 2 and values.dtype.kind == "i" else values

    def _reduced(self, graph, edges: bool):
        from keras_bandgnn import Graph

        edge = {"e": self._first(graph.edge)} if edges and graph.edge else {}
        # Without the types of edges, which none of these layers of the peer read.
        return Graph(
            graph.num_nodes,
            graph.senders,
            graph.receivers,
            node={"x": self._first(graph.node)},
            edge=edge,
            label=graph.label if self.nodes else float(graph.label.ravel()[0]),
            label_level=graph.label_level,
        )

    def _inputs(self, level, name):
        values = [getattr(graph, level)[name] for graph in self.graphs]
        if values[0].dtype.kind == "i":
            return {name: {"ids": 1 + max(int(v.max(initial=0)) for v in values)}}
        return {name: {"features": values[0].shape[1]}}

    def batches(self, size: int, count: int = 4):
        """Return some batches of (features, labels, weights), padded."""
        from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader

        if self.nodes:
            return [GraphLoader(self.graphs)[0]]
        loader = GraphLoader(self.graphs, DynamicBatcher(size - 1))
        return [loader[number] for number in range(min(count, len(loader)))]


def our_step(model: str, case: Case, options):
    """Return a function that takes a training step of ours."""
    import keras

    from keras_bandgnn import models
    from keras_bandgnn.data import FlatGraphs

    keras.utils.set_random_seed(0)
    kinds = {
        "gcn": models.GCNBackbone,
        "gat": models.GATBackbone,
        "gine": models.GINEBackbone,
        "gatv2": models.GATv2Backbone,
        "sage": models.SAGEBackbone,
        "gatedgcn": models.GatedGCNBackbone,
        "pna": models.PNABackbone,
        "gps": models.GPSBackbone,
    }
    frame = {"hidden_dim": options.hidden, "num_layers": options.layers}
    if model in ("gcn", "gat"):
        frame.update(norm="batch", residual=True, activation_first=False)
    elif model != "sage":
        # The peer's layers of these two have no edge vectors.
        frame["edge_inputs"] = case.edge_inputs
    if model == "pna":
        frame["delta"] = case.delta
    if model == "sage":
        frame["reduce"] = "mean"
    if model in ("gat", "gatv2"):
        frame["num_heads"] = 4
    if model == "gat":
        frame.update(activation="relu", dropout=0.0)
    backbone = kinds[model](case.inputs, **frame)
    if case.nodes:
        task = models.NodeClassifier(backbone, case.num_outputs)
    else:
        task = models.GraphRegressor(backbone, normalizer=None)
    task.compile(keras.optimizers.Adam(1e-3), jit_compile=jit_compile(options))
    # Attention of all nodes is computed for the largest graph.
    backbone.adapt([FlatGraphs.from_graphs(case.graphs)])
    batches = itertools.cycle(case.batches(options.batch_size))
    return lambda: task.train_on_batch(*next(batches))


def peer_layer(model: str, width: int, edge_width: int | None, case: Case):
    """Return torch_geometric's layer."""
    import torch
    from torch_geometric import nn

    def network():
        return torch.nn.Sequential(
            torch.nn.Linear(width, width),
            torch.nn.BatchNorm1d(width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, width),
        )

    edge = {"edge_dim": edge_width}
    if model == "gcn":
        return nn.GCNConv(width, width)
    if model == "gat":
        return nn.GATConv(width, width // case.heads, case.heads)
    if model in ("gt", "graphormer"):
        return nn.TransformerConv(width, width // case.heads, case.heads)
    if model == "gps":
        return nn.GPSConv(width, peer_layer("gine", width, edge_width, case), heads=4)
    if model == "gine":
        if edge_width is None:
            return nn.GINConv(network(), train_eps=True)
        return nn.GINEConv(network(), train_eps=True)
    if model == "gatv2":
        return nn.GATv2Conv(width, width // 4, 4, **edge)
    if model == "sage":
        return nn.SAGEConv(width, width)
    if model == "gatedgcn":
        return nn.ResGatedGraphConv(width, width, **edge)
    return nn.PNAConv(
        width,
        width,
        ["mean", "min", "max", "std"],
        ["identity", "amplification", "attenuation"],
        torch.from_numpy(case.degrees),
        **edge,
    )


def peer_model(model: str, case: Case, options):
    """Return the peer's network, from a `torch_geometric.data.Data` to predictions."""
    import torch
    from torch_geometric.nn import global_mean_pool

    width, last = options.hidden, case.num_outputs

    def encoder(inputs):
        ((kind, size),) = next(iter(inputs.values())).items()
        made = torch.nn.Embedding if kind == "ids" else torch.nn.Linear
        return made(size, width)

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder(case.inputs)
            self.edge_encoder = None
            # Their convolutions without edge vectors.
            if case.edge_inputs and model not in ("gcn", "gat", "sage"):
                self.edge_encoder = encoder(case.edge_inputs)
            edge_width = width if self.edge_encoder is not None else None
            numbers = range(options.layers)
            self.layers = torch.nn.ModuleList(
                peer_layer(model, width, edge_width, case) for _ in numbers
            )
            self.norms = torch.nn.ModuleList(
                torch.nn.BatchNorm1d(width) for _ in numbers
            )
            # Transformers have a network of each node after attention.
            self.networks = [None] * options.layers
            if model in ("gt", "graphormer"):
                self.networks = torch.nn.ModuleList(
                    torch.nn.Sequential(
                        torch.nn.LayerNorm(width),
                        torch.nn.Linear(width, 2 * width),
                        torch.nn.ReLU(),
                        torch.nn.Linear(2 * width, width),
                    )
                    for _ in numbers
                )
                self.norms = torch.nn.ModuleList(
                    torch.nn.LayerNorm(width) for _ in numbers
                )
            self.hidden = torch.nn.Linear(width, width // 2)
            self.head = torch.nn.Linear(width // 2 if not case.nodes else width, last)

        def forward(self, data):
            states, edge = self.encoder(data.x), ()
            if self.edge_encoder is not None:
                edge = (self.edge_encoder(data.e),)
            parts = zip(self.layers, self.norms, self.networks, strict=True)
            for layer, norm, network in parts:
                if network is not None:
                    states = states + layer(norm(states), data.edge_index)
                    states = states + network(states)
                    continue
                if model == "gps":
                    named = dict(zip(("edge_attr",), edge, strict=False))
                    states = layer(states, data.edge_index, data.batch, **named)
                    continue
                rows = layer(states, data.edge_index, *edge)
                states = states + torch.relu(norm(rows))
            if case.nodes:
                return self.head(states)
            rows = torch.nn.functional.silu(self.hidden(states))
            return global_mean_pool(self.head(rows), data.batch)

    return Network()


def peer_step(model: str, case: Case, options):
    """Return a function that takes a training step of the peer.

    Raises:
        ImportError: If torch_geometric is not installed.
    """
    import numpy as np
    import torch
    from torch_geometric.data import Batch, Data

    torch.manual_seed(0)
    network = peer_model(model, case, options)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)

    def data(graph):
        ends = np.stack([graph.senders, graph.receivers]).astype(np.int64)
        label = np.atleast_1d(graph.label)
        values = {"x": graph.node["x"], **graph.edge}
        values = {name: torch.from_numpy(v.copy()) for name, v in values.items()}
        kind = np.int64 if case.nodes else np.float32
        return Data(
            edge_index=torch.from_numpy(ends),
            y=torch.from_numpy(label.astype(kind)),
            num_nodes=graph.num_nodes,
            **values,
        )

    made = [data(graph) for graph in case.graphs]
    size = options.batch_size
    batches = [
        Batch.from_data_list(made[first : first + size])
        for first in range(0, min(len(made), 4 * size), size)
    ]
    turns = itertools.cycle(batches)

    def step():
        batch = next(turns)
        found = network(batch)
        if case.nodes:
            loss = torch.nn.functional.cross_entropy(found, batch.y)
        else:
            loss = torch.nn.functional.mse_loss(found[:, 0], batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def memory_of(side: str, model: str) -> float:
    """Return by how much a model's steps raise the peak of a process of its own."""
    line = [sys.executable, "-m", "examples.benchmarks", *sys.argv[1:]]
    line += ["--only", side, "--models", model, "--allocator", "default"]
    # The other settings of the allocator hold memory in advance.
    given = {k: v for k, v in os.environ.items() if k not in allocator.TUNED}
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=given)
    return float(done.stdout.split()[-1])


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    settings = allocator.apply(options.allocator)
    import keras
    import numpy as np

    graphs = itertools.islice(data_sets.read_graphs(options), options.graphs)
    case = Case(list(graphs), not options.no_edges)
    makers = {"ours": our_step, "peer": peer_step}
    if options.only:
        step = makers[options.only](options.models[0], case, options)
        before = allocator.forget()
        for _ in range(options.warmup + 1):
            step()
        report.say(f"{1024 * (allocator.peak() - before):.1f}")
        return
    rows, kept, measured = [], [], {}
    for model in options.models:
        steps = {side: make(model, case, options) for side, make in makers.items()}
        times = {side: [] for side in steps}
        busy = {side: [] for side in steps}
        with report.progress(f"steps of {model}") as advance:
            for number in range(-options.warmup, options.rounds):
                for side, step in steps.items():
                    start, used = time.perf_counter(), time.process_time()
                    step()
                    if number >= 0:
                        times[side].append(1e3 * (time.perf_counter() - start))
                        busy[side].append(1e3 * (time.process_time() - used))
                advance(number + options.warmup + 1, options.warmup + options.rounds)
        middle = {side: float(np.median(t)) for side, t in times.items()}
        row = [model, middle["ours"], middle["peer"], middle["peer"] / middle["ours"]]
        row.append(float(np.median(busy["peer"]) / np.median(busy["ours"])))
        measured[model] = {"ms": middle, "all": times, "processor": busy}
        kept.append(figures.row(model, middle["ours"], middle["peer"], "ms"))
        if options.memory:
            used = {side: memory_of(side, model) for side in makers}
            row += [used["ours"], used["peer"]]
            measured[model]["memory"] = used
            name = f"{model}, memory"
            kept.append(figures.row(name, used["ours"], used["peer"], "MiB"))
        rows.append(row)
    report.say(settings)
    report.say(
        f"{keras.backend.backend()}, H = {options.hidden}, {options.layers} layers, "
        f"medians of {options.rounds} alternated rounds"
    )
    columns = ["model", "ours, ms", "torch_geometric, ms", "times faster"]
    columns.append("by processor time")
    columns += ["ours, MiB", "torch_geometric, MiB"] if options.memory else []
    report.table("training step", columns, rows)
    figures.write(options, kept, measured)
