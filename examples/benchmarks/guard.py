"""Twelve ratios to a peer that show in ten minutes whether a change costs speed.

Eight rows are those of the subjects `messages`, `geometry` and `attention`, in short
form; four are what a user of SMILES waits for: graphs from strings, an epoch of `fit`,
predictions of many molecules and of one, each beside the same in torch_geometric. The
molecules are made from fragments, so nothing is downloaded. Run it before and after a
change with --json, and compare the files: python -m examples.benchmarks compare.
"""

import argparse
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path

from examples.benchmarks import allocator, figures, messages
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

MODELS = ("gcn", "gat", "gine", "sage", "pna", "gps")
# Atoms on both ends of each fragment take another bond.
RINGS = ("c1ccc(cc1)", "C1CCC(CC1)", "c1ccc(nc1)", "C1CCN(CC1)", "c1ccc(s1)")
CHAINS = ("C(=O)N", "CO", "NC(=O)", "S(=O)(=O)N", "CC", "C(F)(F)", "C(O)C")
ENDS = ("C", "O", "F", "Cl", "Br", "N")
# Values of torch_geometric's columns of atoms and of bonds.
COLUMNS = ((119, 9, 11, 12, 9, 5, 8, 2, 2), (22, 6, 2))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--molecules", type=shared.positive, default=4096)
    parser.add_argument("--rounds", type=shared.positive, default=5)
    figures.add_option(parser)
    allocator.add_option(parser, "default")
    messages.add_xla(parser)


def made_smiles(count: int, seed: int = 0) -> list[str]:
    """Return SMILES of molecules of rings and chains, with 10 to 40 atoms."""
    import numpy as np

    rng = np.random.default_rng(seed)

    def molecule():
        parts = [rng.choice(ENDS)]
        for _ in range(rng.integers(1, 4)):
            parts += [rng.choice(CHAINS), rng.choice(RINGS)]
        return "".join([*parts, rng.choice(ENDS)])

    return [molecule() for _ in range(count)]


def write_stores(folder: Path, count: int) -> None:
    """Write molecules with bonds, and molecules with positions of atoms."""
    import numpy as np

    from keras_bandgnn import Graph, data

    rng = np.random.default_rng(0)
    graphs = [data.from_smiles(s, label=float(len(s))) for s in made_smiles(count)]
    data.write_store(folder / "bonds", graphs)
    atoms = [
        Graph(
            size,
            [],
            [],
            node={
                "atomic_number": rng.choice([1, 6, 7, 8], size),
                "position": rng.normal(size=(size, 3)) * size ** (1 / 3),
            },
            label=float(size),
        )
        for size in rng.integers(9, 28, min(count, 256))
    ]
    data.write_store(folder / "atoms", atoms)


def rows_of(subject: str, *line: str) -> list[dict]:
    """Return the rows with a ratio of another subject, run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "examples.benchmarks", subject, *line]
        done = subprocess.run(
            [*command, "--json", str(file)], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        rows = figures.read(file)["rows"]
    found = [row for row in rows if row["ratio"] is not None]
    return [{**row, "name": f"{subject}, {row['name']}"} for row in found]


class Ours:
    """A GINE of four layers on SMILES, as `fit` and `predict` take them."""

    def __init__(self, smiles: list[str], labels, jit_compile: bool | str = "auto"):
        import keras

        from keras_bandgnn import models, preprocessing

        keras.utils.set_random_seed(0)
        self.encoder = preprocessing.SmilesEncoder()
        self.smiles, self.labels = smiles, labels
        self.graphs = self.encoder.encode(smiles).graphs
        backbone = models.GINEBackbone(
            self.encoder.inputs(), 64, 4, edge_inputs=self.encoder.edge_inputs()
        )
        batcher = preprocessing.DynamicBatcher(127)
        steps = preprocessing.GraphPreprocessor([self.encoder], batcher)
        self.task = models.GraphClassifier(backbone, 2, steps)
        self.task.compile(
            keras.optimizers.Adam(1e-3), "crossentropy", jit_compile=jit_compile
        )

    def convert(self) -> None:
        """Make the graphs."""
        self.encoder.encode(self.smiles, progress=False)

    def epochs(self, count: int) -> float:
        """Train; return the median seconds of an epoch but the first."""
        import keras
        import numpy as np

        ends = []
        noted = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: ends.append(time.perf_counter())
        )
        self.task.fit(
            self.graphs, self.labels, epochs=count, verbose=0, callbacks=[noted]
        )
        return float(np.median(np.diff(ends)))

    def predict(self) -> None:
        """Predict for all graphs."""
        self.task.predict(self.graphs)

    def predict_one(self, number: int) -> None:
        """Predict for a molecule."""
        self.task.predict([self.smiles[number]])


class Peer:
    """The same with torch_geometric, in its own loop."""

    def __init__(self, smiles: list[str], labels):
        import torch
        from torch_geometric.utils import from_smiles

        torch.manual_seed(0)
        self.from_smiles, self.smiles, self.labels = from_smiles, smiles, labels
        self.data = self.convert()
        case = types.SimpleNamespace(
            inputs={"x": {"ids": 1}},
            edge_inputs={"e": {"ids": 1}},
            nodes=False,
            num_outputs=2,
        )
        options = argparse.Namespace(hidden=64, layers=4)
        self.network = messages.peer_model("gine", case, options)

        class Columns(torch.nn.Module):
            def __init__(self, sizes):
                super().__init__()
                self.table = torch.nn.Embedding(sum(sizes), 64)
                starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
                self.register_buffer("starts", starts)

            def forward(self, values):
                return self.table(values + self.starts).sum(1)

        self.network.encoder, self.network.edge_encoder = map(Columns, COLUMNS)
        self.optimizer = torch.optim.Adam(self.network.parameters(), 1e-3)

    def convert(self) -> list:
        """Make the graphs."""
        return [self._data(s, y) for s, y in zip(self.smiles, self.labels, strict=True)]

    def _data(self, smiles: str, label=0):
        data = self.from_smiles(smiles)
        data.e, data.y = data.edge_attr, int(label)
        return data

    def epochs(self, count: int) -> float:
        """Train; return the median seconds of an epoch but the first."""
        import numpy as np
        import torch
        from torch_geometric.loader import DataLoader

        loader = DataLoader(self.data, 128, shuffle=True)
        self.network.train()
        ends = []
        for _ in range(count):
            for batch in loader:
                self.optimizer.zero_grad()
                out = self.network(batch)
                torch.nn.functional.cross_entropy(out, batch.y).backward()
                self.optimizer.step()
            ends.append(time.perf_counter())
        return float(np.median(np.diff(ends)))

    def predict(self) -> None:
        """Predict for all graphs."""
        import torch
        from torch_geometric.loader import DataLoader

        self.network.eval()
        with torch.no_grad():
            for batch in DataLoader(self.data, 128):
                self.network(batch).numpy()

    def predict_one(self, number: int) -> None:
        """Predict for a molecule."""
        import torch
        from torch_geometric.data import Batch

        self.network.eval()
        with torch.no_grad():
            data = self._data(self.smiles[number])
            self.network(Batch.from_data_list([data])).numpy()


def alternated(rounds: int, ours: Callable, peer: Callable) -> tuple[float, float]:
    """Return the median seconds of two functions, or of what they return."""
    import numpy as np

    times = [[], []]
    for _ in range(rounds):
        for function, seconds in zip((ours, peer), times, strict=True):
            start = time.perf_counter()
            found = function()
            seconds.append(time.perf_counter() - start if found is None else found)
    return tuple(float(np.median(seconds)) for seconds in times)


def workflow(count: int, rounds: int, jit_compile: bool | str) -> list[dict]:
    """Return the rows of a user of SMILES."""
    import numpy as np

    smiles = made_smiles(count)
    labels = np.random.default_rng(1).integers(0, 2, count)
    ours, peer = Ours(smiles, labels, jit_compile), Peer(smiles, labels)
    rows = []

    def add(name, unit, scale, pair):
        rows.append(figures.row(name, scale * pair[0], scale * pair[1], unit))

    def converted():
        peer.convert()  # Its list is no time.

    add("SMILES to graphs", "s", 1, alternated(rounds, ours.convert, converted))
    pair = alternated(2, lambda: ours.epochs(4), lambda: peer.epochs(4))
    add("epoch of fit", "s", 1, pair)
    for _ in range(2):
        ours.predict()
    add("predictions", "s", 1, alternated(rounds, ours.predict, peer.predict))
    # Past the steps that torch records, for each shape.
    for number in range(200):
        ours.predict_one(number % count)
    number = iter(range(10**6))
    pair = alternated(
        40 * rounds,
        lambda: ours.predict_one(next(number) % count),
        lambda: peer.predict_one(next(number) % count),
    )
    add("prediction of one", "ms", 1e3, pair)
    return rows


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    settings = allocator.apply(options.allocator)
    import keras

    began, rounds = time.monotonic(), str(options.rounds)
    chosen = ["--allocator", options.allocator]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_stores(folder, 1024)
        jit_compile = messages.jit_compile(options)
        rows = workflow(options.molecules, options.rounds, jit_compile)
        warm = ["--rounds", rounds, "--warmup", "40", *chosen]
        warm += ["--xla"] if options.xla else []
        bonds, atoms = str(folder / "bonds"), str(folder / "atoms")
        rows += rows_of("messages", bonds, "--models", *MODELS, *warm)
        small = ["--batch-sizes", "128", "--rounds", rounds, *chosen]
        rows += rows_of("geometry", atoms, "--models", "schnet", *small)
        single = ["--lengths", "8192", "--degrees", "8", "--longest", "0", *chosen]
        rows += rows_of("attention", *single, "--rounds", rounds)
    report.say(settings)
    minutes = (time.monotonic() - began) / 60
    report.table(
        f"{keras.backend.backend()}, {minutes:.1f} minutes",
        ["", "ours", "torch_geometric", "unit", "times faster"],
        [[r["name"], r["ours"], r["peer"], r["unit"], r["ratio"]] for r in rows],
    )
    figures.write(options, rows, {"minutes": minutes})
