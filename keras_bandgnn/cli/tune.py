"""Searches hyperparameters, and the fastest way to run a model.

DATA is a folder with the stores train and valid (`bandgnn compile`), the name of a
data set with --path, or `demo`: Python's standard library, or --source. Trials are
printed as they finish. The same command resumes a search that was interrupted or
killed; failed trials are listed with the reason.
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path

from keras_bandgnn import plugins
from keras_bandgnn.cli import (
    data_sets,
    interrupts,
    report,
    train_regression,
    training_callbacks,
)
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli.backend import without_tensorflow
from keras_bandgnn.cli.recipes import ATOMISTIC
from keras_bandgnn.cli.tune_workers import run_workers


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the options that name graphs."""
    group = parser.add_argument_group("data")
    data_sets.add_files(group)
    group.add_argument(
        "--limit",
        type=shared.positive,
        metavar="N",
        help="use the first N training graphs and the first N / 4 validation graphs",
    )
    group.add_argument("--source", type=shared.path, help="source code for demo")
    group.add_argument(
        "--processes",
        type=shared.positive,
        help="worker processes for compiling; one per core if omitted",
    )


def load_splits(options: argparse.Namespace) -> dict:
    """Load the training and validation graphs; a single graph with masks is both."""
    from keras_bandgnn.data import open_store

    folder = Path(options.data)
    if options.data == "demo":
        splits = plugins.module_of("cli.demo").stores_to_search(options)
    elif all((folder / s / "store.json").is_file() for s in ("train", "valid")):
        data_sets.check_stores(options)
        splits = {s: open_store(folder / s) for s in ("train", "valid")}
    else:
        whole = _split(options, None)
        if len(whole) == 1:
            if options.limit is not None:
                raise shared.OptionError(
                    "Expected --limit with several graphs. Received: one graph with "
                    "masks. Leave --limit out."
                )
            return {"train": whole[0]}
        splits = {s: _split(options, s) for s in ("train", "valid")}
    counts = {"train": options.limit, "valid": options.limit and -(-options.limit // 4)}
    return {s: _first(graphs, counts[s]) for s, graphs in splits.items()}


def _split(options: argparse.Namespace, split: str | None):
    return data_sets.read_graphs(
        argparse.Namespace(**{**vars(options), "split": split})
    )


def _first(graphs, count: int | None):
    import numpy as np

    from keras_bandgnn.data import FlatGraphs
    from keras_bandgnn.data.sources import parts_of

    if count is None or count >= len(graphs):
        return graphs
    flat = FlatGraphs.concatenate(parts_of(graphs)).take(np.arange(count))
    flat.metadata = getattr(graphs, "metadata", {})
    return flat


def shown(value) -> str:
    """Format a value concisely."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _values(values: dict) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in values.items())


def print_trial(trial) -> None:
    """Print a finished trial in one line."""
    from keras_bandgnn.tuning.search import trial_row

    row = trial_row(trial)
    metrics = ", ".join(f"{name} {shown(v)}" for name, v in row["metrics"].items())
    report.say(
        f"trial {row['trial']} {row['status']}: {row['reason'] or metrics}; "
        f"{_values(row['values'])}"
    )


def print_trials(tuner) -> list[dict]:
    """Print the table of finished trials; return its rows, best first."""
    from keras_bandgnn import tuning

    rows = tuning.trial_table(tuner)
    metrics = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    report.table(
        f"{len(rows)} trials",
        ["trial", "status", *metrics, "values, or why it failed"],
        [
            [
                row["trial"],
                row["status"],
                *(shown(row["metrics"].get(name, "-")) for name in metrics),
                row["reason"] or _values(row["values"]),
            ]
            for row in rows
        ],
    )
    return rows


MODELS = ("ggnn", "schnet", "mpeu", "painn", "graphormer", "gt")
# Options that may change between a search and its continuation.
_FREE = ("backend", "command", "debug", "export", "line", "overwrite", "run", "trials")
_FREE += ("workers", "processes", "out")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("data", help="folder of stores, name of a data set, or demo")
    parser.add_argument(
        "--out", type=shared.path, required=True, help="folder of the search"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="discard the search in --out"
    )
    parser.add_argument(
        "--export",
        choices=("best",),
        help="save the best task, from its checkpoint, as a preset in OUT/best",
    )
    _add_search(parser)
    group = parser.add_argument_group("space")
    group.add_argument(
        "--space",
        choices=("adam", "paper", "paper-large-batch"),
        default="adam",
        help="ggnn: a small space, or the ranges of Balog et al. 2019, Appendix E",
    )
    group.add_argument(
        "--hidden", type=shared.positive, nargs="+", default=[64], help="state widths"
    )
    group.add_argument(
        "--layers",
        type=shared.positive,
        nargs="+",
        help="numbers of layers or propagation steps",
    )
    group.add_argument(
        "--batch-size", type=shared.positive, nargs="+", help="graphs per batch"
    )
    group.add_argument(
        "--graph",
        nargs="+",
        default=["full"],
        help="edges of molecules: full, radius:5 or knn:24; several are searched",
    )
    add_data(parser)
    shared.delay_defaults(parser, ("space", "graph"))


def _add_search(parser: argparse.ArgumentParser) -> None:
    """Add the options of the tuner and of its trials."""
    group = parser.add_argument_group("search")
    group.add_argument("--model", choices=MODELS, default="ggnn")
    group.add_argument(
        "--tuner", choices=("random", "hyperband", "bayesian"), default="random"
    )
    group.add_argument("--trials", type=shared.positive, default=12)
    group.add_argument(
        "--objective",
        choices=("accuracy", "time-to-accuracy", "accuracy-in-time"),
        default="accuracy",
        help="best accuracy in --epochs, seconds until --target is reached, or "
        "accuracy after --seconds",
    )
    group.add_argument(
        "--target", type=shared.finite, help="accuracy (or RMSE) to reach"
    )
    group.add_argument(
        "--seconds", type=shared.above_zero, help="seconds of training per trial"
    )
    group.add_argument(
        "--epochs",
        type=shared.positive,
        help="epochs per trial; 10 if omitted, unlimited with --seconds",
    )
    group.add_argument(
        "--system",
        action="store_true",
        help="also search batcher, batch size, plan, block size and ordering",
    )
    group.add_argument(
        "--workers",
        type=shared.positive,
        default=1,
        metavar="N",
        help="number of processes that train in parallel",
    )
    group.add_argument(
        "--seed", type=shared.natural, default=0, help="seed of sampling and weights"
    )


def check_options(options: argparse.Namespace) -> None:
    """Reject options that the model or the data does not read."""
    unused = {}
    if options.model != "ggnn":
        unused["space"] = "--model ggnn"
    if options.model not in ATOMISTIC:
        unused["graph"] = "--model schnet, mpeu or painn"
    shared.reject_unused_options(options, unused, f"--model {options.model}")
    if options.data == "demo":
        unused = dict.fromkeys(("path", "option"), "the name of a data set")
    else:
        unused = dict.fromkeys(("source", "processes"), "demo")
    shared.reject_unused_options(options, unused, options.data)


def make_hypermodel(options: argparse.Namespace, splits: dict):
    """Return the hypermodel that the command line describes."""
    from keras_bandgnn import tuning

    arguments = {
        name: getattr(options, name)
        for name in ("objective", "target", "seconds", "epochs", "system", "seed")
    }
    arguments |= {"batch_size": options.batch_size, "hidden_dim": options.hidden}
    sources = (splits["train"], splits.get("valid"))
    layers = options.layers
    if options.model == "ggnn":
        steps = {"num_steps": layers} if layers else {}
        arguments["space"] = options.space
        return tuning.GGNNHyperModel(*sources, **steps, **arguments)
    if options.model in ("graphormer", "gt"):
        depth = {"num_layers": layers} if layers else {}
        return tuning.GraphTransformerHyperModel(
            *sources, model=options.model, **depth, **arguments
        )
    steps = {"num_steps": layers} if layers else {}
    edges = [train_regression.graph_layer(text) for text in options.graph]
    return tuning.GraphRegressorHyperModel(
        *sources, model=options.model, edges=edges, **steps, **arguments
    )


def _tuner(options: argparse.Namespace, hypermodel, overwrite: bool = False):
    from keras_bandgnn import tuning

    return tuning.make_tuner(
        hypermodel,
        Path(options.out) / "search",
        options.tuner,
        options.trials,
        overwrite,
        options.seed,
    )


def _search(tuner, splits: dict) -> None:
    import keras

    class Interrupts(keras.callbacks.Callback):
        """Ends the search between two steps on Ctrl-C."""

        def on_train_batch_begin(self, batch, logs=None):
            interrupts.check()

        def on_test_batch_begin(self, batch, logs=None):
            interrupts.check()

        def on_epoch_end(self, epoch, logs=None):
            interrupts.check()

    callbacks = [Interrupts(), *training_callbacks.progress_lines()]
    arguments = {"validation_data": splits.get("valid"), "callbacks": callbacks}
    if "valid" not in splits:
        arguments |= {"mask": "train_mask", "validation_mask": "valid_mask"}
    tuner.search(splits["train"], verbose=0, **arguments)
    interrupts.check()


def _check_folder(options: argparse.Namespace) -> None:
    """Reject a folder with a search of other options, or with other content."""
    from keras_bandgnn.data.reading import read_json, reading

    saved = Path(options.out) / "settings.json"
    if options.overwrite:
        return
    if saved.is_file():
        new = shared.settings_of(options, _FREE)
        with reading(saved):
            changes = shared.differences(read_json(saved), new, _FREE)
        if changes:
            raise ValueError(
                f"Expected the search in {options.out} to have the same options. "
                f"Received: {'; '.join(changes)}. Pass --overwrite to discard it, or "
                "choose another --out."
            )
    # A command that fails before its search begins leaves these two folders.
    elif {path.name for path in Path(options.out).glob("*")} - {"data", "search"}:
        raise ValueError(
            f"Expected --out {options.out} to be new or to hold a search. Received: "
            "a folder with other files. Choose another --out."
        )


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    import keras_bandgnn.tuning.extra  # noqa: F401 - fails early if it is missing
    from keras_bandgnn.data.files import FolderLock
    from keras_bandgnn.tuning.search import is_worker

    check_options(options)
    shared.fill_defaults(options)
    if is_worker():
        splits = load_splits(options)
        _search(_tuner(options, make_hypermodel(options, splits)), splits)
        return
    _check_folder(options)
    splits = load_splits(options)
    hypermodel = make_hypermodel(options, splits)
    with FolderLock(options.out.resolve()):
        tune(options, hypermodel, splits)


def tune(options: argparse.Namespace, hypermodel, splits: dict) -> None:
    """Searches, prints the trials and exports the best."""
    import keras

    from keras_bandgnn.data.files import write_json

    tuner = _tuner(options, hypermodel, options.overwrite)
    write_json(Path(options.out) / "settings.json", shared.settings_of(options, _FREE))
    sizes = "one with masks"
    if "valid" in splits:
        sizes = ", ".join(f"{len(graphs)} {split}" for split, graphs in splits.items())
    report.say(
        f"{options.model}, {options.tuner} search of {options.trials} trials for "
        f"{tuner.oracle.objective.name}; graphs: {sizes}; backend "
        f"{keras.backend.backend()}; workers: {options.workers}"
    )
    started, done = len(tuner.oracle.trials), len(tuner.oracle.end_order)
    if started:
        report.say(f"resumed: {done} finished, {started - done} restarted")
    tuner.oracle.ended = print_trial
    if options.workers > 1:
        run_workers(options, tuner)
    else:
        _search(tuner, splits)
    rows = print_trials(tuner)
    if not rows or rows[0]["status"] != "completed":
        raise RuntimeError(
            "Expected at least one trial to be completed. Received: "
            f"{len(rows)} failed trials, the first with: "
            f"{rows[0]['reason'] if rows else '-'}"
        )
    best = rows[0]
    report.say(f"best: trial {best['trial']}, score {shown(best['score'])}")
    for name, value in best["values"].items():
        report.say(f"  {name} = {shown(value)}")
    if options.export:
        _export(options, tuner, hypermodel, splits)


def run_process(folder: str) -> None:
    """Run the chief or a worker of the search in a folder."""
    saved = json.loads((Path(folder) / "worker.json").read_text())
    options = argparse.Namespace(**saved)
    terminal = sys.stdout
    with (
        interrupts.handle_signals(whole_process=True),
        without_tensorflow(),
        contextlib.redirect_stdout(sys.stderr),
    ):
        splits = load_splits(options)
        tuner = _tuner(options, make_hypermodel(options, splits))

        def print_finished(trial) -> None:
            with contextlib.redirect_stdout(terminal):
                print_trial(trial)
                terminal.flush()

        tuner.oracle.ended = print_finished
        _search(tuner, splits)


def _export(options: argparse.Namespace, tuner, hypermodel, splits: dict) -> None:
    folder = Path(options.out) / "best"
    (trial,) = tuner.oracle.get_best_trials(1)
    task = tuner.load_model(trial)
    hypermodel.prepare(task, splits["train"])
    task.save_to_preset(folder)
    report.say(f"best task saved to {folder}")
