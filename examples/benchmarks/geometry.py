"""Time of a training step of SchNet and PaiNN, compared with peers.

One process trains on the same prebuilt batch, in alternating steps: our SchNet and
PaiNN, torch_geometric's SchNet and, if it is installed, SchNetPack's PaiNN, with the
same width. A step is the forward pass, the squared error per graph, gradients and Adam.
The peers run in torch on every backend.
"""

import argparse
import time

from examples.benchmarks import allocator, figures
from keras_bandgnn.cli import data_sets, report
from keras_bandgnn.cli import options as shared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    data_sets.add_data(parser)
    parser.add_argument("--graph", default="full", help="full, radius:5 or knn:24")
    parser.add_argument(
        "--batch-sizes", type=shared.positive, nargs="+", default=[32, 128]
    )
    parser.add_argument("--hidden", type=shared.positive, default=128)
    parser.add_argument("--steps", type=shared.positive, default=3)
    parser.add_argument("--cutoff", type=shared.above_zero, default=10.0)
    parser.add_argument("--functions", type=shared.positive, default=50)
    parser.add_argument(
        "--models", nargs="+", choices=("schnet", "painn"), default=["schnet", "painn"]
    )
    parser.add_argument("--rounds", type=shared.positive, default=9)
    figures.add_option(parser)
    allocator.add_option(parser)


def allow_schnetpack():
    """Let SchNetPack 2.1.1 import a name that newer versions of torch lack."""
    import typing

    from torch.utils.data import dataloader

    if not hasattr(dataloader, "T_co"):
        dataloader.T_co = typing.TypeVar("T_co", covariant=True)


def recorded_steps() -> str:
    """Return `record_steps` of tasks that are measured: CUDA graphs on GPUs."""
    from keras_bandgnn.ops.backend import current

    return "cuda_graphs" if current.has_accelerator() else "auto"


def our_step(model: str, batch, options):
    """A training step of ours on a batch."""
    import keras

    from keras_bandgnn import layers, models

    keras.utils.set_random_seed(0)
    if model == "painn":
        backbone = models.PaiNNBackbone(
            100,
            options.hidden,
            options.steps,
            cutoff=options.cutoff,
            num_functions=options.functions,
        )
    else:
        backbone = models.SchNetBackbone(
            100,
            options.hidden,
            options.steps,
            num_gaussians=options.functions,
            cutoff=options.cutoff,
            reduce="sum",
            use_bias=True,
            activate_filters=False,
        )
    task = models.GraphRegressor(backbone, activation=layers.shifted_softplus)
    task.compile(keras.optimizers.Adam(1e-4), record_steps=recorded_steps())
    return lambda: task.train_on_batch(*batch)


def peer_step(model: str, batch, options, device: str = "cpu"):
    """A training step of a peer on the same batch, on a device of torch.

    Raises:
        ImportError: If the peer is not installed.
    """
    import numpy as np
    import torch

    torch.manual_seed(0)
    x, label, _ = batch
    nodes, edges = (x[kind]["mask"][0] for kind in ("node", "edge"))
    number = torch.from_numpy(x["node"]["atomic_number"][0][nodes].astype(np.int64))
    position = torch.from_numpy(x["node"]["position"][0][nodes])
    graph = torch.from_numpy(x["node"]["graph_id"][0][nodes].astype(np.int64))
    sender, receiver = (
        torch.from_numpy(x["edge"][end][0][edges].astype(np.int64))
        for end in ("sender", "receiver")
    )
    truth = torch.from_numpy(label[0][x["graph"]["mask"][0]].astype(np.float32))
    number, position, graph, sender, receiver, truth = (
        each.to(device) for each in (number, position, graph, sender, receiver, truth)
    )
    if model == "schnet":
        from torch_geometric.nn import SchNet

        def given_pairs(position, graph):
            ends = torch.stack([sender, receiver])
            return ends, (position[sender] - position[receiver]).norm(dim=-1)

        net = SchNet(
            options.hidden,
            options.hidden,
            options.steps,
            options.functions,
            options.cutoff,
            interaction_graph=given_pairs,
        ).to(device)
        weights = list(net.parameters())

        def energy():
            return net(number, position, graph)

    else:
        allow_schnetpack()
        from schnetpack.nn import CosineCutoff, GaussianRBF
        from schnetpack.representation.painn import PaiNN

        basis = GaussianRBF(options.functions, options.cutoff)
        cutoff = CosineCutoff(options.cutoff)
        net = PaiNN(options.hidden, options.steps, basis, cutoff).to(device)
        head = torch.nn.Sequential(
            torch.nn.Linear(options.hidden, options.hidden // 2),
            torch.nn.SiLU(),
            torch.nn.Linear(options.hidden // 2, 1),
        ).to(device)
        weights = [*net.parameters(), *head.parameters()]
        inputs = {
            "_atomic_numbers": number,
            "_Rij": position[sender] - position[receiver],
            "_idx_i": receiver,
            "_idx_j": sender,
        }

        def energy():
            states = net(dict(inputs))["scalar_representation"]
            total = torch.zeros((len(truth), 1), device=device)
            return total.index_add(0, graph, head(states))

    optimizer = torch.optim.Adam(weights, 1e-4)

    def step():
        loss = ((energy() - truth) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    settings = allocator.apply(options.allocator)
    import keras
    import numpy as np

    from keras_bandgnn.cli.train_regression import graph_layer
    from keras_bandgnn.data.flat import FlatGraphs
    from keras_bandgnn.data.sources import parts_of
    from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader

    graphs = FlatGraphs.concatenate(parts_of(data_sets.read_graphs(options)))
    some = graphs.take(np.arange(min(1000, len(graphs))))
    graphs = list(graph_layer(options.graph)(list(some)))
    peers = {"schnet": "torch_geometric", "painn": "SchNetPack"}
    rows, kept, measured = [], [], {}
    for model in options.models:
        for size in options.batch_sizes:
            batch = GraphLoader(graphs, DynamicBatcher(size - 1, packing="best_fit"))[0]
            steps = {"ours": our_step(model, batch, options)}
            try:
                steps[peers[model]] = peer_step(model, batch, options)
            except ImportError as error:
                report.say(f"{peers[model]} is left out: {error}")
            times = {name: [] for name in steps}
            with report.progress(f"steps of {model}, {size} graphs") as advance:
                for number in range(-2, options.rounds):
                    for name, step in steps.items():
                        start = time.perf_counter()
                        step()
                        if number >= 0:
                            times[name].append(1e3 * (time.perf_counter() - start))
                    advance(number + 3, options.rounds + 2)
            middle = {name: float(np.median(t)) for name, t in times.items()}
            edges = int(batch[0]["graph"]["n_edge"].sum())
            theirs = middle.get(peers[model], float("nan"))
            row = [model, size, edges, middle["ours"], theirs, theirs / middle["ours"]]
            rows.append(row)
            measured[f"{model} {size}"] = {"edges": edges, "ms": middle, "all": times}
            name = f"{model}, {size} graphs"
            kept.append(figures.row(name, middle["ours"], theirs, "ms"))
    report.say(settings)
    report.say(
        f"{keras.backend.backend()}, C = {options.hidden}, {options.steps} steps, "
        f"{options.functions} functions; medians of {options.rounds} alternated rounds"
    )
    columns = ["model", "b", "edges", "ours, ms", "peer, ms", "times faster"]
    report.table("training step", columns, rows)
    figures.write(options, kept, measured)
