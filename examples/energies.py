"""Energies of molecules and crystals: SchNet, MPEU or PaiNN, and two baselines.

    python examples/energies.py                       # synthetic molecules, seconds
    python examples/energies.py qm9 --option target=u0_atom
    python examples/energies.py mlearn --graph knn:12 --option target=energy_per_atom

The baselines are the mean label and the linear composition model: a value per element,
fitted to the training graphs by least squares. The model learns the residual.
"""

import argparse
import time
from typing import Any

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    FullyConnectedGraph,
    GraphPreprocessor,
    KNearestGraph,
    RadiusGraph,
    TargetNormalizer,
)


def made_molecules(count: int, seed: int) -> list:
    """Chains of atoms whose energy is a sum over their distances, in eV."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        size = int(rng.integers(3, 8))
        position = np.cumsum(rng.normal([1.2, 0, 0], 0.25, (size, 3)), axis=0)
        number = rng.choice([1, 6, 8], size)
        apart = np.linalg.norm(position[:, None] - position, axis=-1)
        apart = apart[np.triu_indices(size, 1)]
        energy = (np.exp(-apart) - 1.5 * np.exp(-((apart - 1.3) ** 2))).sum()
        node = {"atomic_number": number, "position": position}
        graphs.append(
            kb.Graph(size, [], [], node=node, label=energy - 0.5 * number.sum())
        )
    return graphs


def read(options) -> dict:
    """Training, validation and test graphs."""
    if options.data is None:
        sizes = {"train": 400, "valid": 50, "test": 100}
        return {s: made_molecules(n, i) for i, (s, n) in enumerate(sizes.items())}
    arguments = dict(item.split("=", 1) for item in options.option)
    graphs = kb.data.load(options.data, None, options.path, **arguments)
    rng = np.random.default_rng(0)
    split = graphs.context.get("split")
    if split is None:
        split = rng.choice(3, len(graphs), p=[0.8, 0.1, 0.1])
    elif 1 not in split:
        split = np.where((split == 0) & (rng.random(len(graphs)) < 0.1), 1, split)
    return {
        name: graphs.take(np.flatnonzero(split == code))
        for code, name in enumerate(("train", "valid", "test"))
    }


def graph_layer(text: str):
    """`full`, `radius:5` (angstrom) or `knn:24`."""
    kind, _, value = text.partition(":")
    if kind == "full":
        return FullyConnectedGraph()
    return RadiusGraph(float(value)) if kind == "radius" else KNearestGraph(int(value))


def make_backbone(options, elements) -> tuple[kb.models.Backbone, dict[str, Any]]:
    """The backbone that the options name."""
    softplus = {"activation": kb.layers.shifted_softplus}
    if options.model == "painn":
        backbone = kb.models.PaiNNBackbone(
            elements, options.hidden or 128, cutoff=options.cutoff or 5.0
        )
        return backbone, {}
    if options.model == "mpeu":
        reduce = "mean" if options.reduce == "mean" else "sum"
        backbone = kb.models.MPEUBackbone(elements, options.hidden or 64, reduce=reduce)
        return backbone, softplus
    if options.cutoff is None and options.reduce == "mean":
        return kb.models.SchNetBackbone(elements, options.hidden or 64), softplus
    backbone = kb.models.SchNetBackbone(
        elements,
        options.hidden or 128,
        num_gaussians=50,
        cutoff=options.cutoff or 10.0,
        reduce="sum",
        use_bias=True,
        activate_filters=False,
    )
    return backbone, softplus


def labels(graphs) -> np.ndarray:
    """The label of each graph."""
    return np.array([float(np.ravel(graph.label)[0]) for graph in graphs])


def counts(graphs, elements, per_atom: bool) -> np.ndarray:
    """Atoms of each element per graph, or their shares."""
    table = np.array(
        [[(g.node["atomic_number"] == e).sum() for e in elements] for g in graphs]
    )
    return table / table.sum(axis=1, keepdims=True) if per_atom else table


def main(arguments=None) -> dict:
    """Trains, evaluates and prints; returns the errors."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("data", nargs="?", help="data set; synthetic if omitted")
    parser.add_argument("--path")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--model", choices=("schnet", "mpeu", "painn"), default="schnet"
    )
    parser.add_argument("--graph", default="full", help="full, radius:5 or knn:24")
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--cutoff", type=float, help="angstrom")
    parser.add_argument("--reduce", choices=("sum", "mean"), default="sum")
    parser.add_argument(
        "--per-atom", action="store_true", help="the labels are per atom"
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="30 steps")
    options = parser.parse_args(arguments)
    if options.short:
        options.steps = 30

    keras.utils.set_random_seed(options.seed)
    graphs = {split: list(part) for split, part in read(options).items()}
    every = [g.node["atomic_number"] for part in graphs.values() for g in part]
    elements = np.unique(np.concatenate(every)).tolist()
    truth = {split: labels(part) for split, part in graphs.items()}
    table = {s: counts(part, elements, options.per_atom) for s, part in graphs.items()}
    fitted = np.linalg.lstsq(table["train"], truth["train"], rcond=None)[0]
    baselines = {
        "mean": np.abs(truth["test"] - truth["train"].mean()).mean(),
        "composition": np.abs(truth["test"] - table["test"] @ fitted).mean(),
    }

    backbone, head = make_backbone(options, elements)
    normalizer = TargetNormalizer(
        element_key=None if options.per_atom else "atomic_number"
    )
    task = kb.models.GraphRegressor(
        backbone,
        preprocessor=GraphPreprocessor(
            [graph_layer(options.graph)],
            DynamicBatcher(options.batch_size, packing="best_fit"),
        ),
        readout="mean" if options.per_atom else options.reduce,
        normalizer=normalizer,
        **head,
    )
    loader = task.loader(graphs["train"], shuffle=True, seed=options.seed, adapt=True)
    epochs = max(1, round(options.steps / len(loader)))
    rate = keras.optimizers.schedules.CosineDecay(options.rate, epochs * len(loader))
    optimizer = keras.optimizers.Adam(rate, clipnorm=1.0)
    smooth = keras.losses.Huber(0.1, reduction="mean_with_sample_weight")
    task.compile(optimizer, loss=smooth)
    start = time.perf_counter()
    task.fit(loader, validation_data=graphs["valid"], epochs=epochs, verbose=2)
    seconds = time.perf_counter() - start
    predicted = np.ravel(task.predict(graphs["test"]))
    errors = {
        **baselines,
        options.model: np.abs(predicted - truth["test"]).mean(),
        "rmse": float(np.sqrt(np.mean((predicted - truth["test"]) ** 2))),
    }
    print(
        f"{options.model} on {keras.backend.backend()}: {task.count_params():,} "
        f"weights, {epochs * len(loader):,} steps in {seconds:.0f} s; test errors in "
        "the label's unit:"
    )
    for name, value in errors.items():
        print(f"  {name:12} {value:.4f}")
    return errors


if __name__ == "__main__":
    main()
