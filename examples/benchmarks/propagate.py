"""Message passing under every plan, step by step.

One process times the sum over the edges of a supergraph, forward and backward, for
every exact plan, for the plan that `choose_plan` selects and for torch_geometric, in
alternating runs. Work done once per batch is shared by the steps, as in a model.
"""

import argparse
import time
from pathlib import Path

from examples.benchmarks import allocator, figures
from keras_bandgnn.cli import data_sets, report
from keras_bandgnn.cli import options as shared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    data_sets.add_data(parser)
    parser.add_argument(
        "--nodes", type=shared.positive, default=8192, help="per supergraph"
    )
    parser.add_argument("--hidden", type=shared.positive, default=64)
    parser.add_argument(
        "--steps", type=shared.positive, default=4, help="steps per batch"
    )
    parser.add_argument("--ordering", choices=("natural", "rcmk", "bisection"))
    parser.add_argument(
        "--plans", nargs="+", metavar="PLAN", help="such as segment banded:128"
    )
    parser.add_argument(
        "--slowest",
        type=shared.above_zero,
        default=20.0,
        help="skip plans estimated to be this many times slower than the best",
    )
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--rounds", type=shared.positive, default=7)
    figures.add_option(parser)
    allocator.add_option(parser)


def read_graphs(options: argparse.Namespace):
    """The graphs; a file .npz holds one as the arrays n, indptr and indices."""
    import numpy as np

    from keras_bandgnn.data import FlatGraphs
    from keras_bandgnn.data.sources import parts_of
    from keras_bandgnn.graph import Graph
    from keras_bandgnn.preprocessing import RCMKCompile

    path = Path(options.data)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            pointer, column = arrays["indptr"], arrays["indices"]
        row = np.arange(len(pointer) - 1).repeat(np.diff(pointer))
        graphs = FlatGraphs.from_graphs([Graph(len(pointer) - 1, column, row)])
    else:
        graphs = FlatGraphs.concatenate(parts_of(data_sets.read_graphs(options)))
    if options.ordering and options.ordering != "natural":
        layer = RCMKCompile(128, ordering=options.ordering)
        graphs = FlatGraphs.from_graphs(layer(graphs))
    return graphs


def supergraph(graphs, nodes: int):
    """The first graphs that fill a supergraph, at least one."""
    import numpy as np

    count = int(np.searchsorted(graphs.node_ptr, nodes, side="right")) - 1
    return graphs.take(np.arange(max(1, min(count, len(graphs)))))


class BandGNNCase:
    """A plan on a supergraph: one call is a batch of steps, forward and backward.

    Args:
        plan: The plan.
        edges: The edges.
        width: H.
        steps: Steps per call.
        budget: Capacities by resource; those that the edges need anywhere if omitted.
    """

    def __init__(self, plan, edges, width: int, steps: int, budget: dict | None = None):
        import keras
        import numpy as np

        from keras_bandgnn import ops as graph_ops
        from keras_bandgnn import primitives

        if budget is None:
            needed = plan.sizes(edges, np.zeros(len(edges), np.int64), 1)
            budget = {name: int(count[0]) for name, count in needed.items()}
        start = time.perf_counter()
        arrays = plan.pack(edges, budget)
        self.packing = time.perf_counter() - start
        arrays = keras.tree.map_structure(
            lambda a: keras.ops.convert_to_tensor(a[None]), arrays
        )
        rng = np.random.default_rng(0)
        nodes, types = edges.num_nodes, edges.num_types
        self.leaves = [
            keras.ops.convert_to_tensor(rng.normal(size=s).astype("float32") * scale)
            for s, scale in (
                ((1, nodes, width), 1.0),
                ((types, width, width), 0.1 / width**0.5),
            )
        ]

        def work(x, kernel, arrays):
            prepared = primitives.prepare(arrays, nodes, types, "float32", False)
            for _ in range(steps):
                x = primitives.propagate(prepared, x, kernel)
            return x

        self.steps = steps
        self.call = graph_ops.compiled_timer_step(work, self.leaves, (arrays,))

    def step(self) -> float:
        """Seconds per step."""
        start = time.perf_counter()
        self.call()
        return (time.perf_counter() - start) / self.steps


class PyGCase:
    """torch_geometric's RGCNConv, or a product per type, on the same supergraph.

    Args:
        kind: "RGCNConv" or "matmul per type".
        edges: The edges.
        width: H.
        steps: Steps per call.
        device: Device of torch.
    """

    def __init__(self, kind, edges, width: int, steps: int, device: str = "cpu"):
        import numpy as np
        import torch
        from torch_geometric.nn import RGCNConv

        types = edges.num_types
        ends = np.stack([edges.sender, edges.receiver]).astype(np.int64)
        self.device = device
        self.index = torch.from_numpy(ends).to(device)
        self.kinds = torch.from_numpy(edges.type.astype(np.int64)).to(device)
        self.x = torch.randn(edges.num_nodes, width, requires_grad=True, device=device)
        self.kernel = torch.nn.Parameter(
            torch.randn(types, width, width, device=device) * 0.1 / width**0.5
        )
        self.steps, self.conv = steps, None
        if kind == "RGCNConv":
            self.conv = RGCNConv(
                width, width, types, aggr="add", root_weight=False, bias=False
            ).to(device)

    def step(self) -> float:
        """Seconds per step."""
        import torch

        start = time.perf_counter()
        order = torch.argsort(self.kinds, stable=True)
        counts = torch.bincount(self.kinds).tolist()
        ends = self.index[:, order].split(counts, dim=1)
        x = self.x
        for _ in range(self.steps):
            if self.conv is not None:
                x = self.conv(x, self.index, self.kinds)
                continue
            out = torch.zeros_like(x)
            for kind, (sender, receiver) in enumerate(ends):
                if len(sender):
                    messages = x.index_select(0, sender) @ self.kernel[kind]
                    out = out.index_add(0, receiver, messages)
            x = out
        x.backward(torch.ones_like(x))
        if self.device != "cpu":
            torch.accelerator.synchronize()
        return (time.perf_counter() - start) / self.steps


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    settings = allocator.apply(options.allocator)
    import keras
    import numpy as np

    from keras_bandgnn.cli.train import make_plan
    from keras_bandgnn.planning import Hardware, calibrate, choose_plan
    from keras_bandgnn.primitives import Edges

    graphs = read_graphs(options)
    types = int(graphs.edge_type.max(initial=0)) + 1
    part = supergraph(graphs, options.nodes)
    nodes = int(part.node_ptr[-1])
    edges, _ = Edges.of_graphs(part, types)
    edges = edges.sorted_by(edges.receiver)
    shape = {"nodes": nodes, "hardware": Hardware.calibrated() or calibrate()}
    choice = choose_plan([graphs], types, options.hidden, **shape)
    rows = choice.table
    estimated = {str(row["plan"]): row["ms"] for row in rows}
    if options.plans:
        plans = [make_plan(text) for text in options.plans]
    else:
        limit = options.slowest * rows[0]["ms"]
        plans = [row["plan"] for row in rows if row["ms"] <= limit]
    if choice.plan not in plans:
        plans.append(choice.plan)
    report.say(settings)
    runs = {
        str(plan): BandGNNCase(plan, edges, options.hidden, options.steps)
        for plan in plans
    }
    if not options.no_peers:
        try:
            for kind in ("matmul per type", "RGCNConv"):
                runs[f"torch_geometric, {kind}"] = PyGCase(
                    kind, edges, options.hidden, options.steps
                )
        except ImportError:
            report.say("torch_geometric is not installed: no comparison.")
    times = {name: [] for name in runs}
    with report.progress("alternated rounds") as advance:
        for number in range(options.rounds + 1):
            for name, entry in runs.items():
                seconds = entry.step()
                if number:
                    times[name].append(1e3 * seconds)
            advance(number, options.rounds)
    middle = {name: float(np.median(values)) for name, values in times.items()}
    peers = [v for name, v in middle.items() if name.startswith("torch_geometric")]
    fastest = min(v for n, v in middle.items() if not n.startswith("torch_geometric"))
    peer = min(peers, default=float("nan"))
    shown = []
    for name, value in sorted(middle.items(), key=lambda item: item[1]):
        mark = " (auto)" if name == str(choice.plan) else ""
        guess = estimated.get(name, float("nan"))
        shown.append(
            [
                name + mark,
                f"{value:.2f}",
                f"{value / fastest:.2f}",
                f"{peer / value:.2f}",
                f"{guess:.2f}",
            ]
        )
    report.say(
        f"{keras.backend.backend()}, {options.data}: {len(part)} graphs, {nodes:,} "
        f"nodes, {len(edges):,} edges, P = {types}, H = {options.hidden}; medians of "
        f"{options.rounds} alternated rounds of {options.steps} steps; {choice.reason}"
    )
    columns = ["plan", "ms per step", "to best plan", "speedup", "estimated ms"]
    report.table("propagation, forward and backward", columns, shown)
    kept = [
        figures.row(name, value, peer, "ms")
        for name, value in {"auto": middle[str(choice.plan)], **middle}.items()
        if not name.startswith("torch_geometric")
    ]
    measured = {"times": times, "auto": str(choice.plan), "edges": len(edges)}
    figures.write(options, kept, measured)
