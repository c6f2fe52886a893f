"""A unit of a store as a file of its own, before the store counts it."""

import hashlib
import os
import uuid
from pathlib import Path
from typing import Any

from keras_bandgnn.data.files import sync_directory, writing
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.store_format import write_shard


def write_piece(folder: str | os.PathLike, flat: FlatGraphs, report: Any) -> dict:
    """Writes the graphs of a unit into the folder of an unfinished store.

    No other call takes the same name, so a unit that is written twice, or by a process
    that was given up, harms nothing. `StoreWriter.take` gives the file its place; what
    it does not take is removed with the other rests.

    Args:
        folder: `StoreWriter.partial`.
        flat: Graphs of the unit; none is fine.
        report: JSON-like facts about the unit.

    Returns:
        JSON-like: "unit", the entry of the progress file, and "spec", the features.
    """
    unit = {"file": None, "graphs": len(flat), "report": report}
    if not len(flat):
        return {"unit": unit, "spec": None}
    unit["file"] = f"shard-{uuid.uuid4().hex}.arrow.tmp"
    path = Path(folder) / unit["file"]
    try:
        with writing(path), open(path, "xb") as file:
            write_shard(file, flat)
            file.flush()
            os.fsync(file.fileno())
        unit["bytes"] = path.stat().st_size
        with open(path, "rb") as file:
            unit["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return {"unit": unit, "spec": flat.spec()}


def place_piece(folder: Path, written: str, name: str) -> None:
    """Gives the file of a piece its name in the store.

    Raises:
        FileNotFoundError: If the file is not there.
    """
    try:
        os.replace(folder / written, folder / name)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"Expected {folder / written}, written by another process. Received: it is "
            "not there. All machines must see this folder under the same path."
        ) from error
    sync_directory(folder)
