"""Time of explanations, compared with torch_geometric's.

The same random graphs are explained by our `gnn_explainer` and `saliency`, over a GCN,
and by torch_geometric's `GNNExplainer` and gradients over a GCN of the same width and
depth. Ours takes all graphs in one call, after two calls to compile; the peer takes
them one by one, as its explainer does, and runs in torch on every backend. Weights are
random: only the time counts. It is that of the processor, which other programs on a
busy machine change least.
"""

import argparse
import time

from examples.benchmarks import figures
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--graphs", type=shared.positive, nargs="+", default=[1, 32])
    parser.add_argument("--nodes", type=shared.positive, default=30)
    parser.add_argument("--degree", type=shared.positive, default=4)
    parser.add_argument("--hidden", type=shared.positive, default=64)
    parser.add_argument("--layers", type=shared.positive, default=3)
    parser.add_argument("--steps", type=shared.positive, default=100)
    parser.add_argument("--rounds", type=shared.positive, default=3)
    figures.add_option(parser)


def _graphs(options: argparse.Namespace) -> list:
    import numpy as np

    import keras_bandgnn as kb

    rng = np.random.default_rng(0)
    shape = (2, options.nodes * options.degree // 2)
    graphs = []
    for _ in range(max(options.graphs)):
        ends = rng.integers(0, options.nodes, shape)
        both = np.concatenate([ends, ends[::-1]], axis=1)
        features = rng.normal(size=(options.nodes, 8))
        graphs.append(kb.Graph(options.nodes, both[0], both[1], node={"h": features}))
    return graphs


def our_calls(options: argparse.Namespace) -> dict:
    """Functions of graphs that explain them with this library."""
    import keras

    from keras_bandgnn import explain, models

    keras.utils.set_random_seed(0)
    backbone = models.GCNBackbone(
        {"h": {"features": 8}}, options.hidden, options.layers
    )
    task = models.GraphClassifier(backbone, 2)
    return {
        "gnn_explainer": lambda graphs: explain.gnn_explainer(
            task, graphs, steps=options.steps
        ),
        "saliency": lambda graphs: explain.saliency(task, graphs),
    }


def peer_calls(options: argparse.Namespace) -> dict:
    """Functions of graphs that explain them with torch_geometric.

    Raises:
        ImportError: If torch_geometric is not installed.
    """
    import torch
    from torch_geometric.explain import Explainer, GNNExplainer
    from torch_geometric.nn import GCNConv, global_mean_pool

    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            widths = [8, *[options.hidden] * options.layers]
            self.layers = torch.nn.ModuleList(
                GCNConv(*pair) for pair in zip(widths, widths[1:], strict=False)
            )
            self.head = torch.nn.Linear(options.hidden, 2)

        def forward(self, x, edge_index, batch=None):
            for layer in self.layers:
                x = layer(x, edge_index).relu()
            return self.head(global_mean_pool(x, batch))

    net = Net().eval()
    explainer = Explainer(
        net,
        algorithm=GNNExplainer(epochs=options.steps),
        explanation_type="model",
        node_mask_type="attributes",
        edge_mask_type="object",
        model_config={
            "mode": "multiclass_classification",
            "task_level": "graph",
            "return_type": "raw",
        },
    )

    def tensors(graph):
        import numpy as np

        ends = np.stack([graph.senders, graph.receivers]).astype(np.int64)
        return torch.tensor(graph.node["h"]), torch.tensor(ends)

    def gradients(graphs):
        for graph in graphs:
            x, ends = tensors(graph)
            x.requires_grad_()
            net(x, ends).max().backward()

    def masks(graphs):
        for graph in graphs:
            explainer(*tensors(graph))

    return {"gnn_explainer": masks, "saliency": gradients}


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    import keras
    import numpy as np

    graphs = _graphs(options)
    calls = {"ours": our_calls(options)}
    try:
        calls["torch_geometric"] = peer_calls(options)
    except ImportError as error:
        report.say(f"torch_geometric is left out: {error}")
    rows, kept, measured = [], [], {}
    methods = ("gnn_explainer", "saliency")
    cases = [(method, count) for method in methods for count in options.graphs]
    done, total = 0, len(cases) * (options.rounds + 2) * len(calls)
    with report.progress("explanations") as advance:
        for method, count in cases:
            some = graphs[:count]
            times: dict[str, list] = {name: [] for name in calls}
            for number in range(-2, options.rounds):
                for name, functions in calls.items():
                    start = time.process_time()
                    functions[method](some)
                    if number >= 0:
                        times[name].append(1e3 * (time.process_time() - start))
                    done += 1
                    advance(done, total)
            middle = {name: float(np.median(t)) for name, t in times.items()}
            peer = middle.get("torch_geometric", float("nan"))
            rows.append([method, count, middle["ours"], peer, peer / middle["ours"]])
            measured[f"{method} {count}"] = {"ms": middle, "all": times}
            name = f"{method}, {count} graphs"
            kept.append(figures.row(name, middle["ours"], peer, "ms"))
    report.say(
        f"{keras.backend.backend()}, graphs of {options.nodes} nodes, "
        f"{options.layers} layers of {options.hidden}, {options.steps} steps of the "
        f"masks; processor time, medians of {options.rounds} alternated rounds"
    )
    columns = ["method", "graphs", "ours, ms", "peer, ms", "times faster"]
    report.table("explanations", columns, rows)
    figures.write(options, kept, measured)
