"""Graphs per second of training, compared with torch_geometric.

One process trains the same GGNN on the same supergraphs under several plans and with
torch_geometric, in alternating runs, including packing on the host. Prints graphs per
second and the ratio to torch_geometric's fastest variant, each the median of the
rounds, floating-point operations, the share of the machine's measured peak of dense
products, and the peak memory.
"""

import argparse
import time
from pathlib import Path

from examples.benchmarks import allocator, figures
from keras_bandgnn.cli import data_sets, report
from keras_bandgnn.cli import options as shared

# The GGNN in torch_geometric, for comparison.


class PyGModel:
    """A GGNN that selects nodes, built of torch_geometric's parts.

    Args:
        kind: "RGCNConv", "FastRGCNConv", or "matmul per type": each type's edges are
            gathered, multiplied with the type's matrix and added to the receivers.
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden: H.
        steps: T.
        num_types: P.
        device: Where it computes.
    """

    def __init__(self, kind, inputs, hidden, steps, num_types, device="cpu"):
        import torch
        from torch_geometric import nn

        torch.manual_seed(0)
        self.kind, self.steps, self.device = kind, steps, device
        self.embeddings = torch.nn.ModuleDict()
        # First id of each column in a table that columns share.
        self.starts = {}
        for name, spec in inputs.items():
            ((form, size),) = spec.items()
            make = torch.nn.Linear if form == "features" else torch.nn.Embedding
            if form == "columns":
                self.starts[name] = torch.tensor([0, *size[:-1]]).cumsum(0)
                size = sum(size)
            self.embeddings[f"of_{name}"] = make(size, hidden)
        self.gru = torch.nn.GRUCell(hidden, hidden)
        self.head = torch.nn.Linear(3 * hidden, 1)
        self.bias = torch.nn.Parameter(torch.zeros(num_types, hidden, device=device))
        for module in (self.embeddings, self.gru, self.head):
            module.to(device)
        self.starts = {name: first.to(device) for name, first in self.starts.items()}
        if kind == "matmul per type":
            kernel = torch.randn(num_types, hidden, hidden) / hidden**0.5
            self.kernel = torch.nn.Parameter(kernel.to(device))
            own = [self.kernel]
        else:
            self.conv = getattr(nn, kind)(
                hidden, hidden, num_types, aggr="add", root_weight=False, bias=False
            )
            self.conv.to(device)
            own = list(self.conv.parameters())
        modules = (self.embeddings, self.gru, self.head)
        parameters = [p for m in modules for p in m.parameters()]
        self.optimizer = torch.optim.SGD([*parameters, self.bias, *own], 0.01, 0.9)

    def _messages(self, states, batch, pieces, degree):
        import torch

        if pieces is None:
            out = self.conv(states, batch.edge_index, batch.edge_type)
        else:
            out = torch.zeros_like(states)
            for kind, (sender, receiver) in pieces.items():
                messages = states.index_select(0, sender) @ self.kernel[kind]
                out = out.index_add(0, receiver, messages)
        return out + degree @ self.bias

    def step(self, batch):
        """One training step on a batch of torch_geometric."""
        import torch
        from torch_geometric.utils import softmax

        batch = batch.to(self.device)
        count, types = batch.num_nodes, self.bias.shape[0]
        pieces = None
        kind = batch.edge_type.long()
        if self.kind == "matmul per type":
            order = torch.argsort(kind, stable=True)
            sender, receiver = batch.edge_index[:, order]
            pieces, first = {}, 0
            for number, size in enumerate(torch.bincount(kind).tolist()):
                cut = slice(first, first + size)
                if size:
                    pieces[number] = sender[cut], receiver[cut]
                first += size
        one = torch.ones(kind.shape[0], device=self.device)
        degree = torch.zeros(count * types, device=self.device).index_add(
            0, batch.edge_index[1] * types + kind, one
        )
        degree = degree.reshape(count, types)
        states = 0
        for name, embedding in self.embeddings.items():
            name = name.removeprefix("of_")
            ids = batch[name]
            if name in self.starts:
                states = states + embedding(ids.long() + self.starts[name]).sum(1)
                continue
            if ids.is_floating_point():
                states = states + embedding(ids)
                continue
            rows = embedding(ids.long())
            if ids.ndim == 2:
                real = (ids > 0).float().unsqueeze(-1)
                rows = (rows * real).sum(1) / real.sum(1).clamp(min=1)
            states = states + rows
        for _ in range(self.steps):
            states = self.gru(self._messages(states, batch, pieces, degree), states)
        chosen = states[batch.candidates]
        slot = states[batch.slot][batch.candidates_batch]
        logits = self.head(torch.cat([chosen, slot, chosen * slot], 1)).squeeze(1)
        share = softmax(logits, batch.candidates_batch)
        loss = -torch.log(share[batch.chosen] + 1e-20).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def batches(graphs, groups):
    """Batches of torch_geometric with the same graphs as our supergraphs.

    Args:
        graphs: A `FlatGraphs` with candidates and slots.
        groups: Ids of the graphs of each batch.

    Yields:
        (batch, seconds that it took to collate).
    """
    import numpy as np
    import torch
    from torch_geometric.data import Batch, Data

    class Program(Data):
        """Counts node ids through when graphs are joined."""

        def __inc__(self, key, value, *args, **kwargs):
            if key in ("candidates", "slot", "edge_index"):
                return self.num_nodes
            return self.candidates.shape[0] if key == "chosen" else 0

    whole = {}
    for number in np.unique(np.concatenate(groups)).tolist():
        graph = graphs[number]
        ends = np.stack([graph.senders, graph.receivers]).astype(np.int64)
        whole[number] = Program(
            edge_index=torch.from_numpy(ends),
            edge_type=torch.from_numpy(graph.edge_type.copy()),
            candidates=torch.from_numpy(graph.candidates.astype(np.int64)),
            slot=torch.tensor([graph.slot]),
            chosen=torch.tensor([int(graph.label)]),
            num_nodes=graph.num_nodes,
            **{k: torch.from_numpy(v.copy()) for k, v in graph.node.items()},
        )
    for members in groups:
        start = time.perf_counter()
        batch = Batch.from_data_list(
            [whole[number] for number in members.tolist()],
            follow_batch=["candidates"],
        )
        yield batch, time.perf_counter() - start


_PEERS = ("matmul per type", "RGCNConv", "FastRGCNConv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    data_sets.add_data(parser)
    parser.add_argument(
        "--nodes", type=shared.positive, default=40960, help="per supergraph"
    )
    parser.add_argument(
        "--largest", type=shared.positive, help="leave out graphs with more nodes"
    )
    parser.add_argument("--hidden", type=shared.positive, default=128)
    parser.add_argument("--steps", type=shared.positive, default=8)
    parser.add_argument("--types", type=shared.positive, default=22)
    parser.add_argument(
        "--plans",
        nargs="+",
        default=["auto", "auto without schedule"],
        metavar="PLAN",
        help="auto, 'auto without schedule', 'schedule without merging', or primitives "
        "such as segment, banded:128, banded:128,drop or grouped:128,schedule",
    )
    parser.add_argument(
        "--peers", nargs="*", default=_PEERS[:2], choices=_PEERS, metavar="PEER"
    )
    parser.add_argument("--rounds", type=shared.positive, default=7)
    parser.add_argument(
        "--warmup",
        type=shared.positive,
        default=1,
        help="steps of ours before measuring; torch records steps after 32 on GPUs",
    )
    parser.add_argument(
        "--fit-epochs",
        type=shared.natural,
        default=0,
        help="measure the last of so many epochs of `fit`, too, where batches are "
        "built meanwhile",
    )
    figures.add_option(parser)
    allocator.add_option(parser, "default")


def make_plan(name: str, num_types: int, steps: int, selects: bool, nodes: int):
    """The plan that a name stands for."""
    from keras_bandgnn.cli.train import make_plan as parse
    from keras_bandgnn.planning.plan_choice import auto_plan
    from keras_bandgnn.plans import ReceptiveField

    if name == "auto without schedule" or (name == "auto" and not selects):
        return auto_plan(num_types, nodes=nodes)
    if name in ("auto", "schedule without merging"):
        field = ReceptiveField(steps, merge=name == "auto")
        return auto_plan(num_types, schedule=field, nodes=nodes)
    base, comma, _ = name.partition(",schedule")
    if comma:
        return parse(base).replace(schedule=ReceptiveField(steps))
    return parse(name)


def epoch_of_fit(task, loader, epochs: int = 3) -> float:
    """Seconds of the last epoch of `fit`."""
    import keras

    starts = []
    begin = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: starts.append(time.perf_counter())
    )
    task.fit(loader, epochs=epochs, verbose=0, callbacks=[begin])
    return time.perf_counter() - starts[-1]


class BandGNNCase:
    """A task and a loader; trains batch by batch."""

    def __init__(self, graphs, name, options, inputs, selects):
        import keras

        from examples.benchmarks.geometry import recorded_steps
        from keras_bandgnn import models
        from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader

        keras.utils.set_random_seed(0)
        backbone = models.GGNNBackbone(
            inputs, options.hidden, options.steps, num_edge_types=options.types
        )
        if selects:
            self.task = models.NodeSelector(backbone, readout="slot")
        else:
            self.task = models.GraphRegressor(backbone)
        self.task.compile(
            optimizer=keras.optimizers.SGD(0.01, momentum=0.9),
            record_steps=recorded_steps(),
        )
        facts = options.types, options.steps, selects, options.nodes
        plan = make_plan(name, *facts)
        self.loader = GraphLoader(
            graphs,
            DynamicBatcher(budget={"node": options.nodes}, packing="best_fit"),
            plan,
            num_edge_types=options.types,
            prefetch=1,
        )
        self.options = options
        self.index = 0

    def step(self) -> tuple[int, float]:
        """Train on the next batch: graphs and seconds, packing included."""
        start = time.perf_counter()
        if self.index == len(self.loader):
            self.loader.on_epoch_end()
            self.index = 0
        batch = self.loader[self.index]
        self.index += 1
        self.task.train_on_batch(*batch)
        return int(batch[0]["graph"]["mask"].sum()), time.perf_counter() - start

    def fit_rate(self, epochs: int) -> float:
        """Graphs per second in the last epoch of `fit`."""
        seconds = epoch_of_fit(self.task, self.loader, epochs)
        return sum(len(s.members) for s in self.loader.composition(0)) / seconds

    def tera(self) -> float:
        """Floating-point operations of a step, in units of 10**12."""
        return 3e-12 * forward_operations(self.loader[0][0], self.options)


def forward_operations(x, options) -> float:
    """Multiplications and additions of all steps' dense products, padding included."""
    width, types, steps = options.hidden, options.types, options.steps
    gru = 2 * 6 * width * width

    def rows_of(plan, nodes):
        total = 0
        for key, arrays in plan.items():
            if key.startswith("grouped"):
                total += arrays["node"][..., 0].size * arrays["node"].shape[-1]
            elif key != "state":
                total += nodes * types
            if key.startswith("banded"):
                size = int(key.split(":")[1])
                total += 3 * nodes * types * size / width
        return total

    if "step:0" not in x["plan"]:
        nodes = x["node"]["mask"].size
        return steps * (rows_of(x["plan"], nodes) * 2 * width**2 + nodes * gru)
    total = 0
    for step in x["plan"].values():
        nodes = step["state"]["index"].size
        total += rows_of(step, nodes) * 2 * width**2 + nodes * gru
    return total


def matmul_peak() -> float:
    """Operations per second of a large product on this backend."""
    import keras
    import numpy as np

    size = 2048
    x = keras.ops.ones((size, size))
    best = np.inf
    for _ in range(8):
        start = time.perf_counter()
        keras.ops.convert_to_numpy(keras.ops.matmul(x, x)[:1, :1])
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def peak_memory(work) -> float:
    """GB that a step adds to the process at its peak; NaN where that is not known."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        work()
        return max(0.0, (_status("VmHWM") - before) / 1e6)
    except OSError:
        work()
        return float("nan")


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0])


class PyGCase:
    """A variant of torch_geometric on the same supergraphs."""

    def __init__(self, graphs, kind, inputs, options, groups, device):
        arguments = (kind, inputs, options.hidden, options.steps, options.types)
        self.model = PyGModel(*arguments, device)
        self.graphs, self.groups = graphs, groups
        self.batches = iter(())

    def step(self) -> tuple[int, float]:
        """Train on the next batch: graphs and seconds, collation included."""
        found = next(self.batches, None)
        if found is None:
            self.batches = batches(self.graphs, self.groups)
            found = next(self.batches)
        batch, collating = found
        start = time.perf_counter()
        self.model.step(batch)
        return batch.num_graphs, collating + time.perf_counter() - start


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    settings = allocator.apply(options.allocator)
    import keras
    import numpy as np

    from examples.benchmarks.accelerator_device import torch_device
    from keras_bandgnn.data.flat import FlatGraphs
    from keras_bandgnn.data.sources import parts_of
    from keras_bandgnn.layers.encoder_inputs import inputs_of

    graphs = FlatGraphs.concatenate(parts_of(data_sets.read_graphs(options)))
    if options.largest is not None:
        graphs = graphs.take(np.flatnonzero(graphs.num_nodes <= options.largest))
    selects = graphs.candidates is not None
    inputs = inputs_of([graphs])
    runs = {n: BandGNNCase(graphs, n, options, inputs, selects) for n in options.plans}
    groups = [s.members for s in next(iter(runs.values())).loader.composition(0)]
    peers = {}
    if selects:
        try:
            import torch_geometric  # noqa: F401
        except ImportError:
            report.say("torch_geometric is not installed: no comparison.")
        else:
            for kind in options.peers:
                arguments = kind, inputs, options, groups, torch_device()
                peers[kind] = PyGCase(graphs, *arguments)
    everything = {**runs, **peers}
    memory = {name: peak_memory(entry.step) for name, entry in everything.items()}
    for entry in runs.values():
        for _ in range(options.warmup - 1):
            entry.step()
    rates = {name: [] for name in everything}
    peak = matmul_peak()
    with report.progress("alternated rounds") as advance:
        for number in range(options.rounds):
            for name, entry in everything.items():
                done, seconds = entry.step()
                rates[name].append(done / seconds)
            advance(number + 1, options.rounds)
    middle = {name: float(np.median(values)) for name, values in rates.items()}
    fastest = max(peers, key=middle.get, default=None)
    fitted = {}
    if options.fit_epochs:
        fitted = {n: e.fit_rate(options.fit_epochs) for n, e in runs.items()}
    rows, measured = [], {}
    for name, rate in middle.items():
        entry = everything[name]
        tera, share = float("nan"), float("nan")
        if name in runs:
            tera = entry.tera()
            graphs_each = len(graphs) / len(entry.loader)
            share = 1e12 * tera / (graphs_each / rate) / peak
        ratio = float("nan")
        if fastest:
            # Round by round, as supergraphs differ in how many graphs they have.
            pairs = zip(rates[name], rates[fastest], strict=True)
            ratio = float(np.median([own / other for own, other in pairs]))
        rows.append(
            [
                name if name in runs else f"torch_geometric, {name}",
                f"{rate:.1f}",
                f"{ratio:.2f}",
                f"{fitted.get(name, float('nan')):.1f}",
                f"{tera:.3f}",
                report.percent(share),
                f"{memory[name]:.2f}",
            ]
        )
        measured[name] = {
            "graphs_per_second": rate,
            "all": rates[name],
            "ratio": ratio,
            "graphs_per_second_of_fit": fitted.get(name),
            "tera_operations": tera,
            "share_of_peak": share,
            "peak_gb": memory[name],
        }
    report.say(settings)
    report.say(
        f"{keras.backend.backend()}, {len(graphs)} graphs, supergraphs of "
        f"{options.nodes} nodes, H = {options.hidden}, T = {options.steps}, "
        f"P = {options.types}; peak of dense products {peak / 1e9:.0f} GFLOP/s; "
        f"medians of {options.rounds} alternated rounds"
    )
    columns = [
        "plan",
        "graphs/s",
        "ratio",
        "graphs/s of fit",
        "TFLOP/step",
        "of peak",
        "peak GB",
    ]
    report.table("training", columns, rows)
    for name in runs:
        report.say(f"{name}: {runs[name].loader.plan}")
    kept = [
        figures.row(name, middle[name], middle.get(fastest), "graphs/s", rate=True)
        | ({"ratio": measured[name]["ratio"]} if fastest else {})
        for name in runs
    ]
    figures.write(options, kept, {"peak": peak, "runs": measured})
