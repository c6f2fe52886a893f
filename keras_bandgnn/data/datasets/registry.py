"""The data sets by name."""

import difflib
import re

from keras_bandgnn.data.datasets.catalogue import DATASETS
from keras_bandgnn.data.datasets.families import OGB_NAMES, OGB_REFUSED, ogb, tu
from keras_bandgnn.data.datasets.sources import Dataset

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
