"""`bandgnn train --task regression`: energies and other numbers per graph."""

import argparse
import shutil
import sys

from keras_bandgnn.cli import data_sets, interrupts, report
from keras_bandgnn.cli import options as shared

SPLITS = ("train", "valid", "test")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of regression."""
    group = parser.add_argument_group("regression (--task regression)")
    group.add_argument("--model", choices=("schnet", "mpeu", "painn"), default="schnet")
    group.add_argument("--path", help="file or folder that has the data set's files")
    group.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of its reader, such as target=u0_atom",
    )
    group.add_argument(
        "--graph",
        default="full",
        help="full, radius:5 (angstrom) or knn:24 (neighbours, also in crystals)",
    )
    group.add_argument(
        "--reduce",
        choices=("mean", "sum"),
        default="mean",
        help="of the atoms' outputs: sum for labels that grow with the molecule",
    )
    group.add_argument(
        "--references",
        action="store_true",
        help="learn what a value per element, fitted by least squares, leaves",
    )
    group.add_argument(
        "--batch-size", type=shared.positive, default=32, help="graphs per batch"
    )
    group.add_argument(
        "--patience", type=shared.positive, help="stop after so many epochs of no gain"
    )


def graph_layer(text: str):
    """The preprocessing layer that `--graph` names."""
    from keras_bandgnn import preprocessing

    kind, _, value = text.partition(":")
    try:
        if kind == "full" and not value:
            return preprocessing.FullyConnectedGraph()
        if kind == "radius":
            return preprocessing.RadiusGraph(float(value))
        if kind == "knn":
            return preprocessing.KNearestGraph(int(value))
    except ValueError as error:
        raise ValueError(
            f"Expected a valid --graph. Received: {text}: {error}"
        ) from error
    raise ValueError(f"Expected --graph full, radius:R or knn:K. Received: {text!r}.")


def read(options: argparse.Namespace) -> dict:
    """Training, validation and test graphs, as `FlatGraphs`."""
    from keras_bandgnn.data import FlatGraphs, open_store, parts_of

    if all((options.data / split / "store.json").is_file() for split in SPLITS):
        stores = {s: open_store(options.data / s) for s in SPLITS}
    else:
        given = vars(options) | {"data": str(options.data)}
        stores = {
            s: data_sets.read_graphs(argparse.Namespace(**given | {"split": s}))
            for s in SPLITS
        }
    return {s: FlatGraphs.concatenate(parts_of(store)) for s, store in stores.items()}


def make_task(options: argparse.Namespace, elements: list[int]):
    """A new regressor, in the profiled configuration of Speckhard et al. 2025."""
    import keras

    from keras_bandgnn import layers, models, preprocessing

    keras.utils.set_random_seed(options.seed)
    head = {"activation": layers.shifted_softplus, "use_bias": False}
    if options.model == "painn":
        backbone = models.PaiNNBackbone(elements, options.hidden)
        head = {"hidden": options.hidden}
    else:
        kind = {"schnet": models.SchNetBackbone, "mpeu": models.MPEUBackbone}
        backbone = kind[options.model](elements, options.hidden, reduce=options.reduce)
    key = "atomic_number" if options.references else None
    mode = "atom" if options.reduce == "sum" else "graph"
    batcher = preprocessing.DynamicBatcher(options.batch_size)
    task = models.GraphRegressor(
        backbone,
        preprocessing.GraphPreprocessor([graph_layer(options.graph)], batcher),
        reduce=options.reduce,
        normalizer=preprocessing.TargetNormalizer(mode, element_key=key),
        **head,
    )
    decay = 0.98 if options.model == "painn" else 0.96
    rate = keras.optimizers.schedules.ExponentialDecay(
        options.learning_rate or 1e-4, 100_000, decay, staircase=True
    )
    task.compile(keras.optimizers.Adam(rate))
    return task


def run(options: argparse.Namespace, checkpoints, limits) -> None:
    """Trains, evaluates on the test graphs and saves.

    Args:
        options: Of the command.
        checkpoints: Makes the callbacks that keep the best weights and the state.
        limits: Callback that ends training in time.
    """
    import keras
    import numpy as np

    from keras_bandgnn.models.preset_files import check_target

    check_target(options.out)
    if options.out.exists() and not options.overwrite:
        raise ValueError(
            f"Expected --out {options.out} to be new. Received: a model is there. "
            "Pass --overwrite to replace it, or choose another folder."
        )
    graphs = read(options)
    numbers = [part.node.get("atomic_number") for part in graphs.values()]
    if any(values is None for values in numbers):
        raise ValueError(
            "Expected graphs with the node features 'atomic_number' and 'position'. "
            f"Received: {sorted(graphs['train'].node)}."
        )
    elements = np.unique(np.concatenate(numbers)).tolist()
    task = make_task(options, elements)
    loader = task.loader(graphs["train"], shuffle=True, seed=options.seed, adapt=True)
    sizes = ", ".join(f"{len(part)} {split}" for split, part in graphs.items())
    report.say(
        f"{options.model}: C = {options.hidden}, {task.count_params():,} parameters, "
        f"elements {elements}; {sizes} graphs; backend {keras.backend.backend()}"
    )
    work = options.out.with_name(options.out.name + ".partial")
    data = {split: [len(part), part.num_edges.sum()] for split, part in graphs.items()}
    callbacks = [*checkpoints(options, data, work, "val_rmse", "min"), limits]
    if options.patience:
        callbacks.append(keras.callbacks.EarlyStopping("val_rmse", 0, options.patience))
    with interrupts.deferred():
        task.fit(
            loader,
            validation_data=graphs["valid"],
            epochs=options.epochs,
            callbacks=callbacks,
            verbose=1 if sys.stdout.isatty() else 2,
        )
    interrupts.check()
    if (work / "best.weights.h5").is_file():
        task.load_weights(work / "best.weights.h5")
    found = task.evaluate(graphs["test"], return_dict=True, verbose=0)
    plain = np.ravel(graphs["test"].label) - np.ravel(graphs["train"].label).mean()
    report.say(
        f"test, in the label's unit: MAE {found['mae']:.4g}, RMSE {found['rmse']:.4g}; "
        f"the training mean: MAE {np.abs(plain).mean():.4g}"
    )
    task.save_to_preset(options.out)
    shutil.rmtree(work)
    report.say(f"model saved to {options.out}")
