"""What a search is of: the fixed facts of its hypermodel, kept in its folder."""

import json
from pathlib import Path

import numpy as np

from keras_bandgnn.data.files import write_json
from keras_bandgnn.data.reading import read_json, refuse

NAME = "hypermodel.json"


def _facts(hypermodel) -> dict:
    # As the file gives them back, with lists for tuples, ranges and arrays.
    text = json.dumps(
        hypermodel.fixed(), default=lambda value: np.asarray(value).tolist()
    )
    return json.loads(text)


def keep(folder: Path, hypermodel) -> None:
    """Writes the facts of a new search; called by the chief alone."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / NAME, _facts(hypermodel))


def check(folder: Path, hypermodel) -> None:
    """Refuses the search of another hypermodel, whose trials mean something else.

    Raises:
        ValueError: If the folder holds such a search.
    """
    file = folder / NAME
    # Without a state nothing is taken over. Folders from before
    # there was this file have none.
    if not (folder / "oracle.json").is_file() or not file.is_file():
        return
    old, new = read_json(file), _facts(hypermodel)
    if not isinstance(old, dict):
        refuse(file, "to hold a JSON object", type(old).__name__)
    names = [k for k in {**old, **new} if old.get(k) != new.get(k)]
    if names:
        differ = ", ".join(f"{k}={new.get(k)!r}, there {old.get(k)!r}" for k in names)
        raise ValueError(
            f"Expected the search in {folder} to be of the same hypermodel. Received: "
            f"{differ}. Take another folder, or pass overwrite=True "
            "(--overwrite) to throw it away."
        )
