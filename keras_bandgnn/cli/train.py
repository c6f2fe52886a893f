"""Trains a model and saves it as a preset.

By default it trains a variable misuse model on a folder that `bandgnn compile` wrote.
With `--task potential` it trains PaiNN or SchNet on the energies, forces and stresses
of a file of structures, such as extended XYZ. With `--task regression` it trains
SchNet, MPEU or PaiNN on molecules or crystals, or a graph transformer on graphs with
node features: DATA is a data set's name with --path, or a folder of stores. Keeps the
weights with the best validation score. An interrupted run resumes after its last
complete epoch when it is started again.
"""

import argparse
from pathlib import Path

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import (
    recipe_files,
    recipes,
    report,
    train_potential,
    train_regression,
    training_callbacks,
)
from keras_bandgnn.cli.report import make_card

# Nodes of a supergraph, for the selection of variables; more where an epoch has at
# least this many steps even so, and where the machine has twice the memory that they
# take on JAX (6 GB with 49,152 nodes and 128 channels).
_NODES, _MORE_NODES, _MANY_STEPS = 8192, (49152, 32768, 16384), 550
_BYTES_PER_NODE = 250_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "data",
        type=shared.path,
        help="folder with the stores train and valid, a data set, or a file of "
        "structures",
    )
    parser.add_argument(
        "--task",
        choices=recipes.TASKS,
        help="variable misuse (selection), numbers per graph (regression), or energies "
        "and forces of structures (potential) (default: selection)",
    )
    parser.add_argument(
        "--recipe",
        type=shared.path,
        metavar="FILE",
        help="recipe.toml of another run, or the model that has it: the options that "
        "are not passed",
    )
    parser.add_argument(
        "--out", type=shared.path, required=True, help="folder of the preset"
    )
    parser.add_argument(
        "--seed",
        type=shared.natural,
        help="seed of weights and shuffling (default: 0)",
    )
    parser.add_argument(
        "--restart", action="store_true", help="discard an interrupted run"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a model")
    recipes.add_options(parser)


def batch_nodes(store) -> int:
    """Return the nodes per supergraph by default, for the graphs of a store.

    More per step train faster, and to a higher accuracy where an epoch still has many
    steps.
    """
    from keras_bandgnn import config
    from keras_bandgnn.data.sources import parts_of

    total = sum(int(part.node_ptr[-1]) for part in parts_of(store))
    limit = min(total / _MANY_STEPS, config.total_memory() / _BYTES_PER_NODE)
    return next((n for n in _MORE_NODES if n <= limit), _NODES)


def make_plan(text: str):
    """Return the plan that `--plan` names."""
    from keras_bandgnn.primitives import Plan
    from keras_bandgnn.primitives.base import primitive_of

    if text == "auto":
        return "auto"
    keys, _, drop = text.partition(",")
    try:
        if drop not in ("", "drop"):
            raise ValueError("Expected a primitive, optionally followed by ',drop'.")
        primitive = primitive_of(keys, "--plan")
        lossy = Plan(primitive, rest="drop")
        if drop:
            return lossy
        return Plan(rest=primitive) if primitive.covers_all else Plan(primitive)
    except ValueError as error:
        raise shared.OptionError(
            f"Expected a valid --plan. Received: {text!r}: {error}"
        ) from error


def make_task(options: argparse.Namespace, metadata: dict):
    """Return a new `NodeSelector` for graphs of a store with this metadata."""
    from keras_bandgnn import compat, models, preprocessing
    from keras_bandgnn.preprocessing.graph_layer import layers_from_config

    compat.set_random_seed(options.seed)
    layers = layers_from_config(metadata["layers"])
    encoder, reachability = layers[:2]
    backbone = models.GGNNBackbone(
        encoder.inputs(),
        hidden_dim=options.hidden,
        num_steps=reachability.steps,
        num_edge_types=encoder.num_edge_types,
        dropout=options.dropout,
        dtype=options.precision,
        name="ggnn_backbone",
    )
    batcher = preprocessing.DynamicBatcher(budget={"node": options.batch_nodes})
    preprocessor = preprocessing.GraphPreprocessor(
        layers, batcher, make_plan(options.plan)
    )
    return models.NodeSelector(
        backbone,
        preprocessor,
        readout=options.readout,
        label_smoothing=options.label_smoothing,
        name="node_selector",
    )


def open_split(data: Path, split: str):
    """Open the store of a split."""
    from keras_bandgnn.data import open_store

    if not (data / split).is_dir():
        raise FileNotFoundError(
            f"Expected a store {data / split}. Received: no such folder. "
            f"Create it with: bandgnn compile INPUT --out {data}"
        )
    return open_store(data / split)


def check_compiled(store) -> None:
    """Reject a store without compiled programs."""
    from keras_bandgnn.data.sources import parts_of

    layers = [entry["class_name"] for entry in store.metadata.get("layers") or []]
    if layers[:2] == ["ProgramEncoder", "ReachabilityFilter"]:
        return
    advice = ""
    for part in parts_of(store)[:1]:
        graph_labels = part.label is not None and part.label_level == "graph"
        if graph_labels and part.candidates is None:
            advice = " For labels that are numbers of graphs, pass --task regression."
    raise ValueError(
        "Expected a store of programs that `bandgnn compile` wrote, for --task "
        f"selection. Received: {store.path}, whose metadata names the layers {layers}."
        f"{advice}"
    )


def with_random_labels(store, seed: int):
    """Return the graphs and metadata of a store with random labels."""
    import numpy as np

    from keras_bandgnn.data import FlatGraphs

    flat = FlatGraphs.concatenate([part for part in store.shards if len(part)])
    columns = flat.columns()
    counts = np.diff(flat.candidate_ptr)
    labels = np.random.default_rng(seed).integers(0, counts)
    columns["label/graph"] = labels.astype(np.int32)
    graphs = FlatGraphs.from_columns(columns, flat.info)
    graphs.metadata = store.metadata
    return graphs


def train(options: argparse.Namespace, stores: dict):
    """Train and save a task; return it with its best weights."""
    from keras_bandgnn.training import make_optimizer

    training_callbacks.check_out(options)
    options.batch_nodes = options.batch_nodes or batch_nodes(stores["train"])
    task = make_task(options, stores["train"].metadata)
    graphs = {split: stores[split] for split in ("train", "valid")}
    if options.shuffle_labels:
        graphs = {s: with_random_labels(g, options.seed) for s, g in graphs.items()}
    loader = task.loader(graphs["train"], shuffle=True, seed=options.seed, adapt=True)
    rate = options.learning_rate
    if rate is None:
        rate = {"adam": 2e-3, "sgd": 0.3}[options.optimizer]
    steps = options.epochs * len(loader)
    task.compile(make_optimizer(options.optimizer, rate, steps))
    print_setup(options, task, loader, stores)
    data = {split: store.fingerprint for split, store in stores.items()}
    with training_callbacks.run_folder(options, data) as work:
        training_callbacks.fit(task, loader, graphs["valid"], options, work)
        save(options, task, loader, stores, rate)
    return task


def save(options: argparse.Namespace, task, loader, stores: dict, rate: float) -> None:
    """Save a trained task as a preset, with a model card."""
    sizes = ", ".join(f"{len(store):,} {name}" for name, store in stores.items())
    entries = {
        "data": f"{options.data}: usages of variables in programs; {sizes}.",
        "recipe": f"{options.optimizer}, rate {rate:g} with linear decay, "
        f"{options.epochs} epochs of {len(loader):,} supergraphs; the weights with the "
        "best validation score.",
    }
    card = make_card(options, entries)
    training_callbacks.save(task, options, card)


def print_setup(options, task, loader, stores) -> None:
    """Print the model, the data and the plan."""
    import keras

    backbone = task.backbone
    splits = ", ".join(f"{len(store)} {split}" for split, store in stores.items())
    report.say(
        f"GGNN: H = {backbone.hidden_dim}, T = {backbone.num_steps}, "
        f"P = {backbone.num_edge_types}, {task.count_params():,} parameters; "
        f"backend {keras.backend.backend()}"
    )
    report.say(f"graphs: {splits}")
    if loader.num_oversized:
        report.say(f"{loader.num_oversized:,} graphs above the budget: larger batches")


def run_selection(options: argparse.Namespace) -> None:
    """Train on the stores of a folder."""
    make_plan(options.plan)
    stores = {split: open_split(options.data, split) for split in ("train", "valid")}
    for store in stores.values():
        check_compiled(store)
    train(options, stores)
    report.say(f"model saved to {options.out}")


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    recipe_files.complete(options)
    tasks = {
        "selection": run_selection,
        "regression": train_regression.run,
        "potential": train_potential.run,
    }
    tasks[options.task](options)
