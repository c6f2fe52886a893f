"""`load`: a public data set as graphs, by its name."""

import difflib
import importlib
import inspect
import os
import re
from typing import Any

from keras_bandgnn.checks import as_path, boolean, instance, one_of, optional, string
from keras_bandgnn.data.datasets.catalogue import (
    DATASETS,
    OGB_NAMES,
    OGB_REFUSED,
    ogb,
    tu,
)
from keras_bandgnn.data.datasets.files import Dataset, locate
from keras_bandgnn.data.datasets.parts import SPLITS, take_split, target_names
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import Limits, reading

# The data sets by name.


_TU_NAME = re.compile(r"tu:[A-Za-z0-9_-]+")
_ELSEWHERE = {
    "varmisuse": "program graphs to be read with load_varmisuse(path, split)",
    "python_varmisuse": "Python sources to be read with read_tree and program_graphs",
}


def find_dataset(name: str) -> Dataset:
    """Returns what is known about a data set.

    Args:
        name: A name of `list_datasets`; `"tu:<name>"` is any set of that collection.

    Raises:
        ValueError: If there is none of this name; the message has close ones.

    Example:
    >>> find_dataset("tu:MUTAG").downloads[0].name
    'MUTAG.zip'
    """
    if name in DATASETS:
        return DATASETS[name]
    if name in OGB_NAMES:
        return ogb(name)
    if _TU_NAME.fullmatch(name):
        return tu(name)
    if name in _ELSEWHERE:
        raise ValueError(f"Expected {_ELSEWHERE[name]}. Received: load({name!r}).")
    if (why := OGB_REFUSED.get(name.removeprefix("ogb:"))) is not None:
        raise ValueError(
            f"Expected a data set that is read here. Received: {name!r}: {why}."
        )
    known = [*DATASETS, *OGB_NAMES]
    close = difflib.get_close_matches(name.lower().replace("-", "_"), known)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise ValueError(
        f"Expected the name of a data set. Received: {name!r}.{hint} "
        f"Names: {', '.join(known)}, and tu:<name> for any set of TU Dortmund."
    )


def list_datasets() -> dict[str, str]:
    """Returns the names that `load` takes, each with a line of facts.

    Example:
    >>> list_datasets()["cora"]
    'citations between papers, Planetoid split; 1, with 2,708 nodes and 10,556 edges'
    """
    found = [*DATASETS.values(), *map(ogb, OGB_NAMES)]
    lines = {dataset.name: f"{dataset.summary}; {dataset.graphs}" for dataset in found}
    return lines | {"tu:<name>": "any set of the TU Dortmund collection, e.g. tu:MUTAG"}


def load(
    name: str,
    split: str | None = None,
    path: str | os.PathLike | None = None,
    cache: str | os.PathLike | None = None,
    download: bool = True,
    progress: bool = True,
    limits: Limits | None = None,
    **options: Any,
) -> FlatGraphs:
    r"""Loads a public data set.

    Its files are taken from `path`, else from the cache, else from their official
    address. They are read as data: no pickle is loaded and nothing in them is run.

    Graph sets with fixed splits have the context feature `split` (0 train, 1 valid,
    2 test) when they are loaded whole. Node sets are one graph, with `label_level`
    `"node"` and the node features `train_mask`, `valid_mask`, `test_mask` where the
    split is published.

    Args:
        name: Such as `"qm9"`, `"cora"`, `"tu:MUTAG"`, `"ogb:ogbg-molhiv"`; see
            `list_datasets`.
        split: `"train"`, `"valid"` or `"test"`; all graphs if None.
        path: A file, an archive or a folder in any of the forms that are read.
        cache: Folder of all data sets; `$KERAS_BANDGNN_DATA` or
            `~/.cache/keras_bandgnn` if omitted.
        download: Whether to download what is not there.
        progress: Whether to draw a bar when something takes over two seconds.
        limits: How much the files may ask for, `Limits` of the default sizes if
            omitted.
        **options: Options of the form that is read, such as `target="gap"` or
            `edges="full"`.

    Returns:
        The graphs, as flat arrays.

    Raises:
        ValueError: If the name, the split, an option or a file is wrong, or a file
            asks for more than the limits allow.
        FileNotFoundError: If the files are not there and are not to be downloaded.
        ConnectionError: If they cannot be downloaded; the message says what to put
            where.

    Example:
    >>> from pathlib import Path
    >>> Path("PAIRS_A.txt").write_text("1, 2\n2, 1\n3, 4\n4, 3\n") and None
    >>> Path("PAIRS_graph_indicator.txt").write_text("1\n1\n2\n2\n") and None
    >>> Path("PAIRS_graph_labels.txt").write_text("1\n-1\n") and None
    >>> graphs = load("tu:PAIRS", path=".")
    >>> len(graphs), graphs.label.tolist()
    (2, [1, 0])
    """
    string("name", name)
    dataset = find_dataset(name)
    one_of("split", split, (None, *SPLITS))
    if options.get("target") is not None:
        target_names(options["target"])
    path = optional(as_path, "path", path)
    cache = optional(as_path, "cache", cache)
    boolean("download", download)
    boolean("progress", progress)
    optional(instance, "limits", limits, Limits, "Limits(...)")
    with limits or Limits.current():
        form, files = locate(dataset, path, cache, download, progress)
        module, _, function = form.reader.partition(":")
        read = getattr(importlib.import_module(f"{__package__}.{module}"), function)
        _check_options(name, read, options)
        options = {**form.options, **options}
        with reading(*files.values()):
            graphs = read(files, split=split, progress=progress, **options)
    return graphs if split is None else take_split(name, graphs, split)


def _check_options(name: str, read: Any, options: dict[str, Any]) -> None:
    parameters = inspect.signature(read).parameters.values()
    known = [
        p.name
        for p in parameters
        if p.kind is p.KEYWORD_ONLY and p.name not in ("split", "progress")
    ]
    for option in options:
        if option not in known:
            raise ValueError(
                f"Expected options of this form of {name!r}, "
                f"{', '.join(known) or 'which has none'}. "
                f"Received: {option}={options[option]!r}."
            )
