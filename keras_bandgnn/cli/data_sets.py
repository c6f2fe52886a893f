"""Options that name graphs: a store, or a data set that `kb.data.load` reads."""

import argparse
from pathlib import Path

from keras_bandgnn.cli import options as shared

# Arguments of `load` that have another form on the command line.
_LOAD_ARGUMENTS = {
    "name": "Pass the name of the data set as an argument",
    "split": "Pass --split",
    "path": "Pass --path",
    "limits": "Set limits in Python: kb.data.load(..., limits=kb.data.Limits(...))",
    "progress": "Leave it out: the command always shows its progress",
}


def add_data(
    parser: argparse.ArgumentParser,
    help_text: str = "folder of a store, or name of a data set",
) -> None:
    """Add the options that name graphs.

    Args:
        parser: The parser.
        help_text: Help of the positional argument.
    """
    parser.add_argument("data", help=help_text)
    add_data_options(parser)


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a data set's files and split."""
    group = parser.add_argument_group("data set")
    add_files(group)
    group.add_argument("--split", help="train, valid or test; all graphs if omitted")


def add_files(group) -> None:
    """Add the options that locate a data set and configure its reader."""
    group.add_argument(
        "--path", type=shared.path, help="file or folder with the data set's files"
    )
    group.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of its reader, such as target=u0_atom",
    )


def check_stores(options: argparse.Namespace) -> None:
    """Reject options of a data set's reader, which stores do not use."""
    names = [name for name in ("path", "split", "option") if hasattr(options, name)]
    if passed := shared.passed_options(options, names):
        raise shared.OptionError(
            f"Expected {' and '.join(map(shared.flag, passed))} with the name of a "
            "data set. Received: a store."
        )


def read_graphs(options: argparse.Namespace):
    """Return the store or the data set that the options name."""
    from keras_bandgnn import data

    if (Path(options.data) / "store.json").is_file():
        check_stores(options)
        return data.open_store(Path(options.data))
    if Path(options.data).exists():
        words = [options.command, "NAME"]
        if options.command == "predict":
            words.insert(1, str(options.model))
        raise ValueError(
            "Expected a folder with a store, files of structures for a model over "
            f"atoms, or the name of a data set. Received: {options.data}. To "
            "read the files of a data set, run: "
            f"bandgnn {' '.join(words)} --path {options.data}"
        )
    arguments = {}
    for item in options.option:
        name, sign, value = item.partition("=")
        if not sign:
            raise shared.OptionError(
                f"Expected --option NAME=VALUE. Received: {item!r}."
            )
        if name in _LOAD_ARGUMENTS:
            raise shared.OptionError(
                f"Expected --option with an option of the data set. Received: {item!r}."
                f" {_LOAD_ARGUMENTS[name]}."
            )
        arguments[name] = value
    return data.load(options.data, options.split, options.path, **arguments)


def make_model(graphs, hidden: int, layers: int):
    """Return an untrained GGNN with the head that the graphs' labels require."""
    import numpy as np

    from keras_bandgnn import models
    from keras_bandgnn.data.sources import parts_of
    from keras_bandgnn.layers.encoder_inputs import inputs_of

    parts = parts_of(graphs)
    first, inputs = parts[0], inputs_of(parts)
    if not inputs or first.label is None or first.label_level != "graph":
        raise ValueError(
            "Expected graphs with node features and a label per graph. Received: node "
            f"features {sorted(first.node)}, "
            f"{'no' if first.label is None else first.label_level} labels. "
            "Name a suitable model with --model."
        )
    types = max(int(part.edge_type.max(initial=0)) + 1 for part in parts)
    backbone = models.GGNNBackbone(inputs, hidden, layers, num_edge_types=types)
    if first.candidates is not None:
        slots = all(part.slot.min() >= 0 for part in parts)
        readout = "slot" if slots else "candidate"
        return models.NodeSelector(backbone, readout=readout)
    targets = int(np.prod(first.label.shape[1:], dtype=int))
    return models.GraphRegressor(backbone, num_targets=targets)
