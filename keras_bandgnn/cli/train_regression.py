"""`bandgnn train --task regression`: energies and other numbers per graph."""

import argparse

from keras_bandgnn.cli import data_sets, report, training_callbacks
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli.recipes import ATOMISTIC, TRANSFORMERS
from keras_bandgnn.cli.report import make_card

SPLITS = ("train", "valid", "test")


def graph_layer(text: str):
    """Return the preprocessing layer that `--graph` names."""
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
        raise shared.OptionError(
            f"Expected a valid --graph. Received: {text}: {error}"
        ) from error
    raise shared.OptionError(
        f"Expected --graph full, radius:R or knn:K. Received: {text!r}."
    )


def load_splits(options: argparse.Namespace) -> dict:
    """Load the training, validation and test graphs as `FlatGraphs`."""
    from keras_bandgnn.data import FlatGraphs, open_store
    from keras_bandgnn.data.sources import parts_of

    if all((options.data / split / "store.json").is_file() for split in SPLITS):
        data_sets.check_stores(options)
        stores = {s: open_store(options.data / s) for s in SPLITS}
    else:
        arguments = vars(options) | {"data": str(options.data)}
        stores = {
            s: data_sets.read_graphs(argparse.Namespace(**arguments | {"split": s}))
            for s in SPLITS
        }
    return {s: FlatGraphs.concatenate(parts_of(store)) for s, store in stores.items()}


def _make_transformer(options: argparse.Namespace, graphs):
    """Return a new graph transformer that reads all node features."""
    from keras_bandgnn import models
    from keras_bandgnn.layers.encoder_inputs import inputs_of

    kind = {"graphormer": models.GraphormerBackbone, "gt": models.GTBackbone}
    arguments = {"num_layers": options.layers or 4, "attention": options.attention}
    if options.model == "graphormer":
        arguments["max_distance"] = 5
    if options.attention in ("periodic", "full"):
        largest = max(int(part.num_nodes.max()) for part in graphs.values())
        arguments["max_length"] = largest
    types = max(int(part.edge_type.max(initial=0)) for part in graphs.values()) + 1
    # One more type for pairs without an edge.
    types = types + 1 if types > 1 else 1
    return kind[options.model](
        inputs_of(list(graphs.values())),
        options.hidden,
        dropout=options.dropout,
        num_edge_types=types,
        **arguments,
    )


def make_backbone(options: argparse.Namespace, graphs, element_cutoffs=None):
    """Return a new backbone, and the arguments of its head.

    Args:
        options: The command line.
        graphs: The splits.
        element_cutoffs: Those of `PaiNNBackbone` and `SchNetBackbone`.
    """
    import numpy as np

    from keras_bandgnn import layers, models

    if options.model in TRANSFORMERS:
        return _make_transformer(options, graphs), {}
    numbers = [part.node.get("atomic_number") for part in graphs.values()]
    if any(values is None for values in numbers):
        raise ValueError(
            f"Expected graphs of atoms for --model {options.model}, with the node "
            "features 'atomic_number' and 'position'. Received: the features "
            f"{sorted(graphs['train'].node)}. Pass --model gt or --model graphormer, "
            "which read any node features."
        )
    elements = np.unique(np.concatenate(numbers)).tolist()
    steps = options.layers or 3
    if options.model == "painn":
        cutoff = options.cutoff or 6.0
        backbone = models.PaiNNBackbone(
            elements,
            options.hidden,
            steps,
            cutoff=cutoff,
            element_cutoffs=element_cutoffs,
        )
        return backbone, {"hidden": options.hidden}
    head = {"activation": layers.shifted_softplus, "use_bias": False}
    if options.model == "mpeu":
        backbone = models.MPEUBackbone(
            elements, options.hidden, steps, reduce=options.reduce
        )
        return backbone, head
    if options.cutoff is None:
        backbone = models.SchNetBackbone(
            elements, options.hidden, steps, reduce=options.reduce
        )
        return backbone, head
    backbone = models.SchNetBackbone(
        elements,
        options.hidden,
        steps,
        num_gaussians=50,
        cutoff=options.cutoff,
        reduce="sum",
        use_bias=True,
        activate_filters=False,
        element_cutoffs=element_cutoffs,
    )
    return backbone, {"activation": layers.shifted_softplus}


def make_task(options: argparse.Namespace, graphs):
    """Return a new regressor, by default as profiled by Speckhard et al. 2025."""
    from keras_bandgnn import compat, models, preprocessing

    compat.set_random_seed(options.seed)
    backbone, head = make_backbone(options, graphs)
    graph_layers = backbone.graph_layers()
    if options.model in ATOMISTIC:
        graph_layers = [graph_layer(options.graph)]
    key = "atomic_number" if options.references else None
    mode = "atom" if options.reduce == "sum" else "graph"
    batcher = preprocessing.DynamicBatcher(options.batch_size)
    return models.GraphRegressor(
        backbone,
        preprocessor=preprocessing.GraphPreprocessor(graph_layers, batcher),
        readout=options.reduce,
        normalizer=preprocessing.TargetNormalizer(mode, element_key=key),
        **head,
    )


def set_training(options: argparse.Namespace, task, steps: int) -> str:
    """Compile a task for `steps` training steps; return a text of the recipe."""
    import keras

    from keras_bandgnn.training import WarmupDecay

    peak = options.learning_rate or 1e-4
    schedules = keras.optimizers.schedules
    if options.decay == "cosine":
        rate, clip = schedules.CosineDecay(peak, steps), 1.0
    elif options.decay == "warmup":
        rate, clip = WarmupDecay(peak, steps // 10, steps - steps // 10), 1.0
    else:
        factor = 0.98 if options.model == "painn" else 0.96
        rate = schedules.ExponentialDecay(peak, 100_000, factor, staircase=True)
        clip = None
    reduction = "mean_with_sample_weight"
    losses = {
        "squared": keras.losses.MeanSquaredError(reduction=reduction),
        "huber": keras.losses.Huber(0.1, reduction=reduction),
    }
    optimizer = keras.optimizers.Adam(rate, global_clipnorm=clip)
    task.compile(optimizer, loss=losses[options.loss])
    return (
        f"Adam, rate {peak:g} with {options.decay} decay, {options.loss} loss, "
        f"{options.epochs} epochs of {steps // options.epochs:,} batches; the weights "
        "with the best validation score."
    )


def run(options: argparse.Namespace) -> None:
    """Train, evaluate on the test graphs and save."""
    import keras

    from keras_bandgnn.saving.preset_files import count_parameters

    training_callbacks.check_out(options)
    graphs = load_splits(options)
    task = make_task(options, graphs)
    loader = task.loader(graphs["train"], shuffle=True, seed=options.seed, adapt=True)
    recipe = set_training(options, task, options.epochs * len(loader))
    sizes = ", ".join(f"{len(part)} {split}" for split, part in graphs.items())
    report.say(
        f"{options.model}: C = {options.hidden}, {count_parameters(task):,} "
        f"parameters; {sizes} graphs; backend {keras.backend.backend()}"
    )
    data = {split: [len(part), part.num_edges.sum()] for split, part in graphs.items()}
    metric = ("val_rmse", "min")
    with training_callbacks.run_folder(options, data) as work:
        training_callbacks.fit(
            task, loader, graphs["valid"], options, work, *metric, options.patience
        )
        score = evaluate(task, graphs["test"], graphs["train"])
        entries = {
            "data": f"{options.data} {' '.join(options.option)}: {sizes} graphs.",
            "recipe": recipe,
            "score": score,
        }
        card = make_card(options, entries)
        training_callbacks.save(task, options, card)
    report.say(f"model saved to {options.out}")


def evaluate(task, graphs, train=None) -> str:
    """Print and return the test errors, compared with the training mean's."""
    import numpy as np

    lines = training_callbacks.progress_lines()
    metrics = task.evaluate(graphs, return_dict=True, verbose=0, callbacks=lines)
    mae, rmse = metrics["mae"], metrics["rmse"]
    text = f"test, in the label's unit: MAE {mae:.4g}, RMSE {rmse:.4g}"
    if train is not None:
        errors = np.ravel(graphs.label) - np.ravel(train.label).mean()
        text += f"; the training mean: MAE {np.abs(errors).mean():.4g}"
    report.say(text)
    return text
