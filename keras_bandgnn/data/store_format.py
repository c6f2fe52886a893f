"""The files of a graph store: one Arrow IPC file per shard, sizes, a description."""

import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from keras_bandgnn.data.files import json_text
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import COUNTS, JsonInfo, level_of

FORMAT = "keras-bandgnn-store"
VERSION = 1
DESCRIPTION = "store.json"
SIZES = "sizes.arrow"
_KEY = b"keras-bandgnn"


def write_arrow(file: BinaryIO, columns: dict[str, pa.Array], header: dict) -> None:
    """Writes one record batch as an Arrow IPC file with a JSON header."""
    header = {"format": FORMAT, "version": VERSION, **header}
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    schema = batch.schema.with_metadata({_KEY: json_text("header", header).encode()})
    with pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))


def read_arrow(path: Path) -> tuple[pa.RecordBatch, dict]:
    """Maps an Arrow IPC file into memory; nothing is read until it is used.

    Raises:
        ValueError: If the file is no part of a store of a known version.
    """
    try:
        # The mapping outlives the file handle, so that handles do not add up.
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            header = json.loads((reader.schema.metadata or {}).get(_KEY, b"{}"))
            check_header(path, header)
            batch = reader.get_batch(0)
    except (pa.ArrowException, IndexError, OSError) as error:
        raise ValueError(
            f"Expected {path} to be a readable part of a graph store (an Arrow IPC "
            f"file). Received: {error}. Copy the store again, or write it again."
        ) from error
    return batch, header


def check_header(path: Path, header: Any) -> None:
    """Raises a ValueError unless `header` names this format in a known version."""
    name = header.get("format") if isinstance(header, dict) else None
    if name != FORMAT:
        raise ValueError(
            f"Expected {path} to be part of a graph store (format={FORMAT!r}). "
            f"Received: format={name!r}. Pass a directory made by write_store."
        )
    version = header.get("version")
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise ValueError(
            f"Expected {path} to have version {VERSION} or older. Received: "
            f"version={version!r}. Install a newer keras-bandgnn to read it."
        )


def write_shard(file: BinaryIO, flat: FlatGraphs) -> None:
    """Writes graphs as one record batch: a row per graph, lists of its values."""
    ptr = {
        "node": flat.node_ptr,
        "edge": flat.edge_ptr,
        "candidate": flat.candidate_ptr,
    }
    columns = {}
    for name, array in flat.columns().items():
        width = int(np.prod(array.shape[1:], dtype=np.int64))
        if width == 0:
            raise ValueError(
                f"Expected {name!r} to have at least one value per row. "
                f"Received: shape [..., {list(array.shape[1:])}]. Leave it out."
            )
        values = pa.array(array.reshape(-1))
        if array.ndim > 1:
            values = pa.FixedSizeListArray.from_arrays(values, width)
        if (level := level_of(name)) != "graph":
            values = pa.LargeListArray.from_arrays(pa.array(ptr[level]), values)
        columns[name] = values
    texts = [json_text(f"info of graph {i}", dict(f)) for i, f in enumerate(flat.info)]
    columns["info"] = pa.array(texts, pa.large_string())
    write_arrow(file, columns, {"features": flat.spec()})


def read_shard(path: Path) -> FlatGraphs:
    """Maps a shard; its arrays are views of the file."""
    batch, header = read_arrow(path)
    try:
        columns = {}
        for name in batch.schema.names:
            if name != "info":
                shape = header["features"].get(name, [None, []])[1]
                columns[name] = _flat(batch.column(name), level_of(name), shape)
        return FlatGraphs.from_columns(columns, JsonInfo(batch.column("info")))
    except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
        raise ValueError(
            f"Expected {path} to hold the columns of a graph store. Received: "
            f"{error!r}. Copy the store again, or write it again."
        ) from error


def _flat(array: pa.Array, level: str, shape: list[int]) -> np.ndarray:
    if level in COUNTS:
        array = array.values
    if shape:
        array = array.values
    return array.to_numpy(zero_copy_only=True).reshape(-1, *shape)
