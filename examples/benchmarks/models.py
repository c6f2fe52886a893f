"""Time and memory of training, model by model, compared with a peer's bare loop.

Each model trains on one whole graph with labelled nodes (an energy for atomistic
models) and on batches of many small molecules, made by chance or read from a data set.
The peer is torch_geometric's layer, or SchNetPack's PaiNN, of the same width in a loop
of PyTorch without anything else: forward pass, loss, gradients, Adam. No peer has MPEU:
it is compared with a module of torch_geometric's `MessagePassing` that computes the
same, or `--mpeu-peer schnet` with its SchNet, which updates no edges. Graphormer is
compared with `TransformerConv` in blocks without biases.

In one process and alternating rounds: a step of ours and of the peer on ready-made
batches; an epoch of `fit` with a loader, an epoch of ours over ready-made batches
without `fit`, and an epoch of the peer with its own loader. On torch, steps are
recorded after 32 with batches of one shape: --warmup measures those after them. The
peer runs in torch on every backend.
"""

import argparse
import functools
import itertools
import os
import subprocess
import sys
import time

from examples.benchmarks import allocator, figures, geometry, messages
from keras_bandgnn.cli import data_sets, report
from keras_bandgnn.cli import options as shared

ATOMISTIC = ("schnet", "painn", "mpeu")
MODELS = (*ATOMISTIC, "gcn", "gat", "graphormer", "gt")
SIZES = ("whole", "small")
# Neighbours within this distance are edges, in angstrom.
_RADIUS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "data", nargs="?", help="data set of the small graphs; random ones if omitted"
    )
    data_sets.add_data_options(parser)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--nodes", type=shared.positive, default=10_000)
    parser.add_argument("--edges", type=shared.positive, default=78_804)
    parser.add_argument("--graphs", type=shared.positive, default=1016, help="at most")
    parser.add_argument("--batch-size", type=shared.positive, default=128)
    parser.add_argument("--hidden", type=shared.positive, default=64)
    parser.add_argument("--layers", type=shared.positive, default=3)
    parser.add_argument("--heads", type=shared.positive, default=8)
    parser.add_argument("--functions", type=shared.positive, default=50)
    parser.add_argument("--rounds", type=shared.positive, default=9)
    parser.add_argument("--epochs", type=shared.natural, default=5)
    parser.add_argument(
        "--warmup", type=shared.positive, default=70, help="steps before measuring"
    )
    parser.add_argument(
        "--mpeu-peer", choices=("same", "schnet"), default="same", help="peer of MPEU"
    )
    parser.add_argument("--memory", action="store_true", help="measure memory, too")
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="measure steps that torch compiles (`jit_compile=True`), too",
    )
    parser.add_argument("--only", choices=("ours", "peer"), help=argparse.SUPPRESS)
    figures.add_option(parser)
    allocator.add_option(parser, "default")


# Graphs.


def molecules(count: int, seed: int = 0) -> list:
    """Return molecules of 9 to 27 atoms at random positions, with an energy each."""
    import numpy as np

    from keras_bandgnn import Graph

    rng = np.random.default_rng(seed)
    made = []
    for size in rng.integers(9, 28, count):
        # About 0.1 atoms in a cubic angstrom, as in organic molecules.
        position = rng.random((size, 3)) * (10.0 * size) ** (1 / 3)
        number = rng.choice([1, 6, 7, 8, 9], size, p=[0.5, 0.35, 0.06, 0.08, 0.01])
        node = {"atomic_number": number, "position": position.astype("float32")}
        made.append(Graph(int(size), [], [], node=node, label=float(rng.normal())))
    return made


def cloud(nodes: int, edges: int, seed: int = 0):
    """Return a graph of atoms in a cube, the closest pairs being its edges."""
    import numpy as np
    from scipy.spatial import cKDTree

    from keras_bandgnn import Graph

    rng = np.random.default_rng(seed)
    position = rng.random((nodes, 3)) * (10.0 * nodes) ** (1 / 3)
    radius = (1.2 * edges / nodes * 10.0 * 0.2387) ** (1 / 3)
    pairs = cKDTree(position).query_pairs(radius, output_type="ndarray")
    vectors = position[pairs[:, 0]] - position[pairs[:, 1]]
    closest = np.argsort((vectors**2).sum(axis=1))[: edges // 2]
    (a, b), vectors = pairs[closest].T, vectors[closest]
    displacement = np.concatenate([vectors, -vectors]).astype("float32")
    return Graph(
        nodes,
        np.concatenate([a, b]),
        np.concatenate([b, a]),
        node={
            "atomic_number": rng.choice([1, 6, 7, 8], nodes),
            "position": position.astype("float32"),
            "x": rng.normal(size=(nodes, 64)).astype("float32"),
        },
        edge={"displacement": displacement},
        label=float(rng.normal()),
    )


def graphs_of(size: str, atomistic: bool, options) -> list:
    """Return the graphs of a size, with what a kind of model reads."""
    import numpy as np

    from keras_bandgnn import Graph
    from keras_bandgnn.data.flat import FlatGraphs
    from keras_bandgnn.data.sources import parts_of
    from keras_bandgnn.preprocessing import RadiusGraph

    if size == "whole":
        made = [cloud(options.nodes, options.edges)]
    else:
        if options.data:
            flat = FlatGraphs.concatenate(parts_of(data_sets.read_graphs(options)))
            count = min(options.graphs, len(flat))
            made = list(flat.take(np.arange(count)))
        else:
            made = molecules(options.graphs)
        made = list(RadiusGraph(_RADIUS)(made))
    if atomistic:
        return [
            Graph(
                g.num_nodes,
                g.senders,
                g.receivers,
                node={k: g.node[k] for k in ("atomic_number", "position")},
                edge={"displacement": g.edge["displacement"]},
                label=float(np.ravel(g.label)[0]),
            )
            for g in made
        ]
    nodes = size == "whole"
    rng = np.random.default_rng(1)
    return [
        Graph(
            g.num_nodes,
            g.senders,
            g.receivers,
            node={"x": g.node["x" if nodes else "atomic_number"]},
            label=rng.integers(0, 16, g.num_nodes)
            if nodes
            else float(np.ravel(g.label)[0]),
            label_level="node" if nodes else "graph",
        )
        for g in made
    ]


# Ours.


def our_backbone(model: str, case, options):
    """Return the backbone, and the graphs as it reads them."""
    from keras_bandgnn import models

    width, layers, heads = options.hidden, options.layers, options.heads
    functions = options.functions
    if model == "schnet":
        return models.SchNetBackbone(
            100,
            width,
            layers,
            num_gaussians=functions,
            cutoff=2 * _RADIUS,
            reduce="sum",
            use_bias=True,
            activate_filters=False,
        )
    if model == "painn":
        return models.PaiNNBackbone(
            100, width, layers, cutoff=2 * _RADIUS, num_functions=functions
        )
    if model == "mpeu":
        return models.MPEUBackbone(
            100, width, layers, num_gaussians=functions, reduce="sum"
        )
    frame = {"hidden_dim": width, "num_layers": layers}
    if model in ("gcn", "gat"):
        frame.update(norm="batch", residual=True, activation_first=False)
    else:
        frame.update(num_heads=heads, ffn_dim=2 * width)
    if model == "gcn":
        return models.GCNBackbone(case.inputs, **frame)
    if model == "gat":
        frame.update(num_heads=heads, activation="relu", dropout=0.0)
        return models.GATBackbone(case.inputs, **frame)
    if model == "gt":
        return models.GTBackbone(case.inputs, laplacian=0, **frame)
    return models.GraphormerBackbone(case.inputs, **frame)


class Ours:
    """The library's task on a case.

    Attributes:
        step: A training step on the next of the ready-made batches.
        bare: An epoch over ready-made batches.
        fit: An epoch of `fit` with a loader.
    """

    def __init__(self, model: str, size: str, case, options):
        import keras

        from examples.benchmarks.geometry import recorded_steps
        from keras_bandgnn import models
        from keras_bandgnn.data import FlatGraphs
        from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader

        keras.utils.set_random_seed(0)
        backbone = our_backbone(model, case, options)
        if model not in ATOMISTIC and case.nodes:
            task = models.NodeClassifier(backbone, case.num_outputs)
        else:
            task = models.GraphRegressor(backbone, normalizer=None)
        task.compile(keras.optimizers.Adam(1e-3), record_steps=recorded_steps())
        graphs = case.graphs
        if model in ("graphormer", "gt"):
            for layer in backbone.graph_layers():
                graphs = list(layer(graphs))
        backbone.adapt([FlatGraphs.from_graphs(graphs)])
        batcher = None if size == "whole" else DynamicBatcher(options.batch_size - 1)
        self.loader = GraphLoader(graphs, batcher, shuffle=True)
        self.task = task

    @functools.cached_property
    def batches(self) -> list:
        """The batches of an epoch."""
        return [self.loader[number] for number in range(len(self.loader))]

    @functools.cached_property
    def turns(self):
        """The full batches, again and again."""
        return itertools.cycle(self.batches[:-1] or self.batches)

    def step(self):
        """Take a training step."""
        self.task.train_on_batch(*next(self.turns))

    def bare(self):
        """Train for an epoch over ready-made batches."""
        for batch in self.batches:
            self.task.train_on_batch(*batch)

    def fit(self, epochs: int = 1):
        """Train for some epochs with the loader."""
        self.task.fit(self.loader, epochs=epochs, verbose=0)


# The peer.


def peer_network(model: str, case, options):
    """Return a network of the peer from a `torch_geometric.data.Data` to predictions.

    Raises:
        ImportError: If the peer is not installed.
    """
    if model == "painn":
        return _painn(options)
    if model == "mpeu" and options.mpeu_peer == "same":
        return _mpeu(options)
    if model in ATOMISTIC:
        return _schnet(options)
    return messages.peer_model(model, case, options)


def _schnet(options):
    import torch
    from torch_geometric.nn import SchNet

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            width, cutoff = options.hidden, 2 * _RADIUS
            sizes = width, width, options.layers, options.functions, cutoff
            self.net = SchNet(*sizes, interaction_graph=self.pairs)

        def pairs(self, position, graph):
            sender, receiver = self.ends
            distance = (position[sender] - position[receiver]).norm(dim=-1)
            return self.ends, distance

        def forward(self, data):
            self.ends = data.edge_index
            return self.net(data.atomic_number, data.position, data.batch)

    return Network()


def _mpeu(options):
    import torch
    from torch.nn import Linear, Sequential
    from torch_geometric.nn import MessagePassing
    from torch_geometric.nn.models.schnet import GaussianSmearing, ShiftedSoftplus
    from torch_geometric.utils import scatter

    width = options.hidden

    def two(inputs, hidden, outputs, last=None):
        first = Linear(inputs, hidden, bias=False), ShiftedSoftplus()
        return Sequential(
            *first, Linear(hidden, outputs, bias=False), *([last] if last else [])
        )

    class Interaction(MessagePassing):
        def __init__(self, edges):
            super().__init__(aggr="add")
            self.renew = two(2 * width + edges, 2 * width, width)
            self.send = Linear(width, width, bias=False)
            self.filter = two(width, width, width, ShiftedSoftplus())
            self.update_nodes = two(width, width, width)

        def forward(self, h, ends, e):
            e = self.edge_updater(ends, h=h, e=e)
            sums = self.propagate(ends, x=self.send(h), filters=self.filter(e))
            return h + self.update_nodes(sums), e

        def edge_update(self, h_i, h_j, e):
            return self.renew(torch.cat([h_j, h_i, e], dim=-1))

        def message(self, x_j, filters):
            return x_j * filters

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            count = options.functions
            self.embedding = torch.nn.Embedding(100, width)
            self.basis = GaussianSmearing(0.0, 0.1 * (count - 1), count)
            self.basis.coeff = -10.0
            steps = [Interaction(count)]
            steps += [Interaction(width) for _ in range(options.layers - 1)]
            self.steps = torch.nn.ModuleList(steps)
            self.head = two(width, width // 2, 1)

        def forward(self, data):
            sender, receiver = ends = data.edge_index
            apart = (data.position[sender] - data.position[receiver]).norm(dim=-1)
            h, e = self.embedding(data.atomic_number), self.basis(apart)
            for step in self.steps:
                h, e = step(h, ends, e)
            count = data.num_graphs
            return scatter(self.head(h), data.batch, 0, count, reduce="sum")

    return Network()


def _painn(options):
    import torch

    geometry.allow_schnetpack()
    from schnetpack.nn import CosineCutoff, GaussianRBF
    from schnetpack.representation.painn import PaiNN

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            width, cutoff = options.hidden, 2 * _RADIUS
            basis = GaussianRBF(options.functions, cutoff)
            self.net = PaiNN(width, options.layers, basis, CosineCutoff(cutoff))
            self.head = torch.nn.Sequential(
                torch.nn.Linear(width, width // 2),
                torch.nn.SiLU(),
                torch.nn.Linear(width // 2, 1),
            )

        def forward(self, data):
            sender, receiver = data.edge_index
            inputs = {
                "_atomic_numbers": data.atomic_number,
                "_Rij": data.position[sender] - data.position[receiver],
                "_idx_i": receiver,
                "_idx_j": sender,
            }
            states = self.net(inputs)["scalar_representation"]
            total = torch.zeros((data.num_graphs, 1), device=states.device)
            return total.index_add(0, data.batch, self.head(states))

    return Network()


class Peer:
    """The peer's network on a case, with `step` and `fit` as `Ours`."""

    def __init__(self, model: str, size: str, case, options):
        import numpy as np
        import torch
        from torch_geometric.data import Data
        from torch_geometric.loader import DataLoader

        from examples.benchmarks.accelerator_device import torch_device

        torch.manual_seed(0)
        self.device = torch_device()
        self.network = peer_network(model, case, options).to(self.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), 1e-3)
        self.nodes = model not in ATOMISTIC and case.nodes

        def data(graph):
            ends = np.stack([graph.senders, graph.receivers]).astype(np.int64)
            values = {name: np.array(v) for name, v in graph.node.items()}
            values = {
                name: v.astype(np.int64 if v.dtype.kind == "i" else np.float32)
                for name, v in values.items()
            }
            kind = np.int64 if self.nodes else np.float32
            return Data(
                edge_index=torch.from_numpy(ends),
                y=torch.from_numpy(np.atleast_1d(graph.label).astype(kind)),
                num_nodes=graph.num_nodes,
                **{name: torch.from_numpy(v) for name, v in values.items()},
            )

        graphs = [data(graph) for graph in case.graphs]
        # Our batches hold one graph of padding.
        batch_size = max(1, options.batch_size - 1)
        self.loader = DataLoader(graphs, batch_size, shuffle=True)

    @functools.cached_property
    def turns(self):
        """The full batches of an epoch, again and again."""
        batches = list(self.loader)
        return itertools.cycle(batches[:-1] or batches)

    def step(self):
        """Take a training step."""
        self._step(next(self.turns))

    def _step(self, batch):
        import torch

        batch = batch.to(self.device)
        outputs = self.network(batch)
        if self.nodes:
            loss = torch.nn.functional.cross_entropy(outputs, batch.y)
        else:
            loss = torch.nn.functional.mse_loss(outputs[:, 0], batch.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def fit(self, epochs: int = 1):
        """Train for some epochs with the loader."""
        for _ in range(epochs):
            for batch in self.loader:
                self._step(batch)


# Measuring.


class Atoms:
    """Molecules for atomistic models, in the place of `messages.Case`."""

    nodes = False

    def __init__(self, graphs):
        self.graphs = graphs


def _case(model: str, size: str, options):
    graphs = graphs_of(size, model in ATOMISTIC, options)
    if model in ATOMISTIC:
        return Atoms(graphs)
    case = messages.Case(graphs)
    case.heads = options.heads
    return case


def _alternated(calls: dict, rounds: int, warmup: int) -> dict:
    """Return milliseconds and processor milliseconds of calls, in turns."""
    times = {name: ([], []) for name in calls}
    for name, call in calls.items():
        # Only steps of ours are recorded after some.
        for _ in range(warmup if name in ("ours", "bare") else min(warmup, 2)):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            start, used = time.perf_counter(), time.process_time()
            call()
            times[name][0].append(1e3 * (time.perf_counter() - start))
            times[name][1].append(1e3 * (time.process_time() - used))
    return times


def memory_of(side: str, model: str, size: str) -> float:
    """Return by how much a model's steps raise the peak of a process of its own."""
    line = [sys.executable, "-m", "examples.benchmarks", *sys.argv[1:]]
    line += ["--only", side, "--models", model, "--sizes", size]
    line += ["--allocator", "default"]
    # The other settings of the allocator hold memory in advance.
    given = {k: v for k, v in os.environ.items() if k not in allocator.TUNED}
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=given)
    return float(done.stdout.split()[-1])


# Torch also compiles some of the steps after the first.
_COMPILING = 20


def compiled_step(model: str, size: str, case, options) -> tuple:
    """Return a step that torch has compiled, and the seconds of the first ones."""
    import keras

    side = Ours(model, size, case, options)
    side.task.compile(keras.optimizers.Adam(1e-3), jit_compile=True)
    start = time.perf_counter()
    for _ in range(_COMPILING):
        side.step()
    return side.step, time.perf_counter() - start


def measure(model: str, size: str, options) -> dict:
    """Return the figures of a model on graphs of a size."""
    import numpy as np

    case = _case(model, size, options)
    sides = {"ours": Ours(model, size, case, options)}
    try:
        sides["peer"] = Peer(model, size, case, options)
    except ImportError as error:
        report.say(f"The peer of {model} is left out: {error}")
    found = {}

    def note(what, times):
        for name, (wall, busy) in times.items():
            found[f"{name} {what}"] = float(np.median(wall))
            found[f"{name} {what}, processor"] = float(np.median(busy))

    steps = {name: side.step for name, side in sides.items()}
    if options.compiled:
        made = compiled_step(model, size, case, options)
        steps["compiled"], found["compilation, s"] = made
    note("step", _alternated(steps, options.rounds, options.warmup))
    if options.epochs:
        # What a call of `fit` itself takes is small in a training of many epochs.
        count = 5
        epochs = {n: functools.partial(s.fit, count) for n, s in sides.items()}

        def bare():
            for _ in range(count):
                sides["ours"].bare()

        epochs["bare"] = bare
        steps = count * len(sides["ours"].batches)
        times = _alternated(epochs, options.epochs, -(-options.warmup // steps))
        note("epoch", {n: [np.divide(t, count) for t in v] for n, v in times.items()})
    if options.memory:
        for name in sides:
            found[f"{name} memory"] = memory_of(name, model, size)
    return found


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    settings = allocator.apply(options.allocator)
    import keras

    if options.compiled and keras.backend.backend() != "torch":
        raise ValueError(
            "Expected --backend torch with --compiled. Received: "
            f"{keras.backend.backend()}, which compiles steps by itself."
        )
    if options.only:
        (model,), (size,) = options.models, options.sizes
        made = {"ours": Ours, "peer": Peer}[options.only]
        side = made(model, size, _case(model, size, options), options)
        before = allocator.forget()
        for _ in range(3):
            side.step()
        report.say(f"{1024 * (allocator.peak() - before):.1f}")
        return
    rows, kept, measured = [], [], {}
    missing = float("nan")
    for size in options.sizes:
        for model in options.models:
            f = measure(model, size, options)
            measured[f"{model} {size}"] = f
            pairs = [
                ("ours step", "peer step"),
                ("ours step, processor", "peer step, processor"),
                ("ours epoch", "peer epoch"),
            ]
            row = [size, model]
            for ours, peer in pairs:
                ours, peer = f.get(ours, missing), f.get(peer, missing)
                row += [ours, peer, peer / ours]
            kept += [
                figures.row(f"{model}, {size}, {what}", f[f"ours {what}"], peer, "ms")
                for what in ("step", "epoch")
                for peer in [f.get(f"peer {what}")]
                if f"ours {what}" in f
            ]
            row.append(f.get("ours epoch", missing) / f.get("bare epoch", missing))
            if options.compiled:
                row += [f["compiled step"], f["compilation, s"]]
            if options.memory:
                row += [f.get("ours memory"), f.get("peer memory", missing)]
            rows.append(row)
            report.say(f"{size} {model}: {row[2]:.1f} ms, peer {row[3]:.1f} ms")
    report.say(settings)
    report.say(
        f"{keras.backend.backend()}, {options.hidden} channels, {options.layers} "
        f"layers, {options.heads} heads; medians of {options.rounds} alternated rounds "
        f"after {options.warmup} steps"
    )
    columns = ["graphs", "model", "step, ms", "peer", "times", "processor, ms", "peer"]
    columns += ["times", "epoch, ms", "peer", "times", "fit / bare"]
    columns += ["compiled, ms", f"first {_COMPILING}, s"] if options.compiled else []
    columns += ["MiB", "peer"] if options.memory else []
    report.table("training", columns, rows)
    figures.write(options, kept, measured)
