"""`load`: a public data set as graphs, by its name."""

import difflib
import importlib
import inspect
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keras_bandgnn.checks import as_path, boolean, instance, one_of, optional, string
from keras_bandgnn.data.datasets.catalogue import (
    DATASETS,
    OGB_NAMES,
    OGB_REFUSED,
    ogb,
    tu,
)
from keras_bandgnn.data.datasets.files import Dataset, Form, locate
from keras_bandgnn.data.datasets.parts import SPLITS, take_split, target_names
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import Limits, reading

_LOG = logging.getLogger(__name__)
_SIZE = re.compile(r"1, with ([\d,]+) nodes(?: and ([\d,]+) edges)?")
_TU_NAME = re.compile(r"tu:[A-Za-z0-9_-]+")
_ELSEWHERE = {
    "varmisuse": "load_varmisuse(path, split) for program graphs",
    **dict.fromkeys(
        ("carbon24", "perov5"),
        "read_structures or from_ase for crystals without official files that load "
        "reads",
    ),
    "python_varmisuse": "read_tree and program_graphs for Python sources",
}


def find_dataset(name: str) -> Dataset:
    """Return the description of a data set.

    Args:
        name: A name of `list_datasets`; `"tu:<name>"` is any set of that collection.

    Raises:
        ValueError: If the name is unknown; the message suggests similar names.

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
            f"Expected a supported data set. Received: {name!r}: {why}. Choose "
            "another one."
        )
    names = [*DATASETS, *OGB_NAMES]
    close = difflib.get_close_matches(name.lower().replace("-", "_"), names)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise ValueError(
        f"Expected the name of a data set. Received: {name!r}.{hint} "
        f"Names: {', '.join(names)}, and tu:<name> for any set of TU Dortmund."
    )


def list_datasets() -> dict[str, str]:
    """Return the names of the data sets for `load`, each with a one-line summary.

    Example:
    >>> list_datasets()["cora"]
    'citations between papers, Planetoid split; 1, with 2,708 nodes and 10,556 edges'
    """
    datasets = [*DATASETS.values(), *map(ogb, OGB_NAMES)]
    lines = {data.name: f"{data.summary}; {data.graphs}" for data in datasets}
    return lines | {"tu:<name>": "any set of the TU Dortmund collection, e.g. tu:MUTAG"}


def load(
    name: str,
    split: str | None = None,
    path: str | os.PathLike | None = None,
    cache: str | os.PathLike | None = None,
    download: bool = True,
    progress: bool = True,
    limits: Limits | None = None,
    **options: object,
) -> FlatGraphs:
    r"""Load a public data set.

    The files are read from `path`, from the cache, or downloaded from their official
    address. They are read as plain data; no pickle is loaded.
    A warning tells of one graph whose size is not that of the set, as of a file of
    another set.

    Graph sets with fixed splits have the context feature `split` (0 train, 1 valid,
    2 test) if all graphs are loaded. Node sets are one graph, with `label_level`
    `"node"` and the node features `train_mask`, `valid_mask`, `test_mask` if the split
    is published.

    Args:
        name: Such as `"qm9"`, `"cora"`, `"tu:MUTAG"`, `"ogb:ogbg-molhiv"`; see
            `list_datasets`.
        split: `"train"`, `"valid"` or `"test"`; all graphs if None.
        path: A file, an archive or a folder in a supported format.
        cache: Folder of all data sets; `config.cache_folder()` if omitted.
        download: Whether to download missing files.
        progress: Whether to show a progress bar after two seconds.
        limits: Limits on the sizes of the files; the default `Limits` if omitted.
        **options: Options of the format's reader, such as `target="gap"` or
            `edges="full"`.

    Returns:
        The graphs, as flat arrays.

    Raises:
        ValueError: If the name, the split, an option or a file is invalid, or a file
            exceeds the limits.
        FileNotFoundError: If files are missing and `download` is False.
        ConnectionError: If they cannot be downloaded; the message says where to put
            them.

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
        _check_options(dataset, form, files, options)
        reader = _reader(form)
        shared = {"split": split, "progress": progress}
        names = inspect.signature(reader).parameters
        shared = {name: value for name, value in shared.items() if name in names}
        with reading(*files.values()):
            graphs = reader(files, **shared, **{**form.options, **options})
    _compare_sizes(dataset, graphs, files)
    return graphs if split is None else take_split(name, graphs, split)


def _compare_sizes(
    dataset: Dataset, graphs: FlatGraphs, files: Mapping[str, Path]
) -> None:
    """Warn of one graph whose size is that of another set, or of none.

    A file is recognised by its ending, so that any file of that form is read.
    """
    size = recorded_size(dataset)
    if size is None or len(graphs) != 1:
        return
    received = (int(graphs.node_ptr[-1]), int(graphs.edge_ptr[-1]))
    if all(want in (None, value) for want, value in zip(size, received, strict=True)):
        return
    same = [
        other.name
        for other in DATASETS.values()
        if (pair := recorded_size(other)) is not None
        and all(want in (None, v) for want, v in zip(pair, received, strict=True))
    ]
    _LOG.warning(
        "Expected %r to be %s. Received: %s nodes and %s edges from %s%s. Check the "
        "name and the path.",
        dataset.name,
        dataset.graphs,
        f"{received[0]:,}",
        f"{received[1]:,}",
        next(iter(files.values())),
        f", the size of {' or '.join(map(repr, same))}" if same else "",
    )


def recorded_size(dataset: Dataset) -> tuple[int, int | None] | None:
    """Return the numbers of nodes and edges of a set of one graph, if recorded."""
    match = _SIZE.fullmatch(dataset.graphs)
    if match is None:
        return None
    nodes, edges = (group and int(group.replace(",", "")) for group in match.groups())
    return nodes, edges


def _reader(form: Form) -> Callable:
    module, _, function = form.reader.partition(":")
    return getattr(importlib.import_module(f"{__package__}.{module}"), function)


def _options(form: Form) -> list[str]:
    """Return the names of the options that the reader of a format has."""
    parameters = inspect.signature(_reader(form)).parameters.values()
    return [
        p.name
        for p in parameters
        if p.kind is p.KEYWORD_ONLY and p.name not in ("split", "progress")
    ]


def _check_options(
    dataset: Dataset, form: Form, files: Mapping[str, Path], options: dict[str, Any]
) -> None:
    names = _options(form)
    for option in options:
        if option in names:
            continue
        others = [
            ", ".join(other.files.values())
            for other in dataset.forms
            if option in _options(other)
        ]
        advice = "Remove it."
        if others:
            advice = (
                f"Of {dataset.name!r} only other files have it: {'; or '.join(others)}."
                " Pass the path= of those, or remove it."
            )
        raise ValueError(
            f"Expected an option that {next(iter(files.values())).name} has as a file "
            f"of {dataset.name!r}, {', '.join(names) or 'which are none'}. "
            f"Received: {option}={options[option]!r}. {advice}"
        )
