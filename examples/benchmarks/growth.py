"""Growth of the time and the memory of a training step with the number of nodes.

Each model trains on one graph of n nodes with about eight edges each, for several n. An
exponent e says that the figure grows like n^e: 1 is linear. Every model runs in a
process of its own. Memory is the largest resident set after steps from the smallest
graph to the largest, above that before the first. Then all sizes are timed in turns, so
that a machine that slows down changes no exponent.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from typing import Any

from examples.benchmarks import figures
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

ATOMISTIC = ("schnet", "painn", "mpeu")
FRAMED = (
    *("gcn", "light_gcn", "gat", "gatv2", "gin", "sage", "pna", "gated_gcn"),
    *("rgcn", "hgt"),
)
MODELS = ("ggnn", *FRAMED, "gt", "graphormer", "gps", *ATOMISTIC)
_DEGREE = 8
# Numbers between the ends of near edges, on average.
_APART = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--nodes",
        nargs="+",
        type=shared.positive,
        default=[4096, 16_384, 65_536, 262_144],
        help="in rising order",
    )
    parser.add_argument("--hidden", type=shared.positive, default=32)
    parser.add_argument("--layers", type=shared.positive, default=2)
    parser.add_argument("--rounds", type=shared.positive, default=5)
    parser.add_argument(
        "--near",
        action="store_true",
        help="edges join nodes with numbers some hundreds apart, as in reordered "
        "graphs, instead of any two",
    )
    parser.add_argument("--only", action="store_true", help=argparse.SUPPRESS)
    figures.add_option(parser)


def graph_of(nodes: int, atomistic: bool, near: bool = False, sets: bool = False):
    """Return a graph of some nodes, with a label for each or for all.

    Args:
        nodes: n.
        atomistic: Whether nodes are atoms in a cube, the nearest ones linked; otherwise
            edges join any nodes.
        near: Whether edges join nodes with numbers some hundreds apart instead.
        sets: Whether the nodes are a node set.
    """
    import numpy as np

    from keras_bandgnn import Graph
    from keras_bandgnn.data import from_sets
    from keras_bandgnn.preprocessing import KNearestGraph

    rng = np.random.default_rng(0)
    if atomistic:
        position = rng.random((nodes, 3)) * (10.0 * nodes) ** (1 / 3)
        number = rng.choice([1, 6, 7, 8], nodes)
        node = {"atomic_number": number, "position": position.astype("float32")}
        (made,) = KNearestGraph(_DEGREE)([Graph(nodes, [], [], node=node, label=1.0)])
        return made
    sender, receiver = rng.integers(0, nodes, (2, nodes * _DEGREE))
    if near:
        away = rng.laplace(0, _APART, len(sender)).astype("int64")
        sender = (receiver + away) % nodes
    features = rng.normal(size=(nodes, 16)).astype("float32")
    label = rng.integers(0, 4, nodes)
    node = {"x": features}
    if sets:
        edges = {("all", "to", "all"): [sender, receiver]}
        return from_sets({"all": node}, edges, label={"all": label})
    return Graph(nodes, sender, receiver, node=node, label=label, label_level="node")


def backbone_of(model: str, hidden: int, layers: int):
    """Return the backbone of a model."""
    from keras_bandgnn import models

    inputs = {"x": {"features": 16}}
    frame: dict[str, Any] = {"hidden_dim": hidden, "num_layers": layers}
    attention = {**frame, "num_heads": 4}
    made = {
        "ggnn": lambda: models.GGNNBackbone(inputs, hidden, layers, num_edge_types=1),
        "gcn": lambda: models.GCNBackbone(inputs, **frame),
        "light_gcn": lambda: models.LightGCNBackbone(inputs, **frame),
        "gat": lambda: models.GATBackbone(inputs, **attention),
        "gatv2": lambda: models.GATv2Backbone(inputs, **attention),
        "gin": lambda: models.GINEBackbone(inputs, **frame),
        "sage": lambda: models.SAGEBackbone(inputs, **frame),
        "pna": lambda: models.PNABackbone(inputs, **frame),
        "gated_gcn": lambda: models.GatedGCNBackbone(inputs, **frame),
        "rgcn": lambda: models.RGCNBackbone(inputs, **frame),
        "hgt": lambda: models.HGTBackbone({"sets": {"all": inputs}}, **attention),
        "gt": lambda: models.GTBackbone(inputs, laplacian=0, **attention),
        "graphormer": lambda: models.GraphormerBackbone(inputs, **attention),
        "gps": lambda: models.GPSBackbone(inputs, attention="sparse", **attention),
        "schnet": lambda: models.SchNetBackbone(9, hidden, layers, cutoff=9.0),
        "painn": lambda: models.PaiNNBackbone(9, hidden, layers, cutoff=9.0),
        "mpeu": lambda: models.MPEUBackbone(9, hidden, layers),
    }
    return made[model]()


def measure(model: str, options) -> None:
    """Print a line of JSON with the time and the memory of each size."""
    import keras

    from keras_bandgnn import config, models
    from keras_bandgnn.data import FlatGraphs
    from keras_bandgnn.preprocessing import GraphLoader

    config.tune_process(products=False)
    before, steps, held = None, [], []
    for nodes in options.nodes:
        keras.utils.set_random_seed(0)
        graph = graph_of(nodes, model in ATOMISTIC, options.near, model == "hgt")
        backbone = backbone_of(model, options.hidden, options.layers)
        if model in ATOMISTIC:
            task = models.GraphRegressor(backbone, normalizer=None)
        else:
            task = models.NodeClassifier(backbone, 4)
        graphs = [graph]
        for layer in backbone.graph_layers() if model not in ATOMISTIC else ():
            graphs = list(layer(graphs))
        backbone.adapt([FlatGraphs.from_graphs(graphs)])
        batch = GraphLoader(graphs, num_edge_types=backbone.num_edge_types)[0]
        before = memory("VmRSS") if before is None else before
        steps.append(functools.partial(task.train_on_batch, *batch))
        for _ in range(2):
            steps[-1]()
        held.append(memory("VmHWM") - before)
    seconds = [[] for _ in steps]
    for _ in range(options.rounds):
        for step, own in zip(steps, seconds, strict=True):
            # The step before was that of another size.
            step()
            start = time.perf_counter()
            step()
            own.append(time.perf_counter() - start)
    for nodes, own, most in zip(options.nodes, seconds, held, strict=True):
        line = {"nodes": nodes, "seconds": sorted(own)[len(own) // 2], "memory": most}
        print(json.dumps(line), flush=True)


def memory(field: str) -> int:
    """Return a figure of /proc/self/status, bytes."""
    with open("/proc/self/status") as file:
        (line,) = [line for line in file if line.startswith(f"{field}:")]
    return 1024 * int(line.split()[1])


def exponent(nodes: list[int], values: list[float]) -> float:
    """Return e of the curve c n^e that is nearest in logarithms."""
    import numpy as np

    return float(np.polyfit(np.log(nodes), np.log(np.maximum(values, 1e-9)), 1)[0])


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    if options.only:
        measure(options.models[0], options)
        return
    if options.nodes != sorted(set(options.nodes)) or len(options.nodes) < 2:
        raise ValueError(
            "Expected --nodes to be two or more sizes in rising order. Received: "
            f"{options.nodes}."
        )
    rows, kept, measured = [], [], {}
    for model in options.models:
        command = [sys.executable, "-m", "examples.benchmarks", "growth", "--only"]
        command += ["--models", model, "--backend", os.environ["KERAS_BACKEND"]]
        for name in ("hidden", "layers", "rounds"):
            command += [f"--{name}", str(getattr(options, name))]
        command += ["--near"] if options.near else []
        command += ["--nodes", *map(str, options.nodes)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        lines = [
            json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"
        ]
        if len(lines) < len(options.nodes):
            raise RuntimeError(
                f"Expected figures of {len(options.nodes)} sizes of {model}. Received: "
                f"{len(lines)}, exit code {done.returncode}. Try fewer --nodes."
            )
        seconds = [line["seconds"] for line in lines]
        held = [line["memory"] for line in lines]
        measured[model] = lines
        kept += [
            figures.row(f"{model}, {line['nodes']} nodes", 1e3 * s, None, "ms")
            for line, s in zip(lines, seconds, strict=True)
        ]
        of_time = exponent(options.nodes, seconds)
        # The smallest graph fits into memory that the process holds anyway.
        of_memory = exponent(options.nodes[-3:], held[-3:])
        report.say(f"{model}: exponents {of_time:.2f} (time), {of_memory:.2f} (memory)")
        rows.append(
            [
                model,
                *(f"{1e3 * s:.1f}" for s in seconds),
                f"{of_time:.2f}",
                *(f"{m / 1e6:.0f}" for m in held),
                f"{of_memory:.2f}",
            ]
        )
    sizes = [f"{n:,}" for n in options.nodes]
    columns = ["", *(f"ms, {n}" for n in sizes), "exponent"]
    columns += [*(f"MB, {n}" for n in sizes), "exponent"]
    edges = "near edges" if options.near else "edges between any nodes"
    title = f"a training step on one graph of n nodes, {edges}"
    report.table(title, columns, rows)
    figures.write(options, kept, measured)
