"""Files of a graph store: shards, sizes and the description, written and read."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import pyarrow as pa

from keras_bandgnn.arrays import check_feature_name, check_set_name, is_time
from keras_bandgnn.data.files import json_text, restore_replaced
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import (
    COUNTS,
    EDGE_COLUMNS,
    SET_ROWS,
    SETS,
    JsonInfo,
    check_columns,
    count_column,
    level_of,
    pointers,
    sorted_by_receiver,
    spec_of,
    to_32_bit,
)
from keras_bandgnn.data.reading import parse_json, read_json, reading, refuse_file

# A store has one Arrow IPC file per shard, one with the sizes, and a description.

FORMAT = "keras-bandgnn-store"
# Version 2 has node sets, and times of nodes and edges.
VERSION = 2
DESCRIPTION = "store.json"
SIZES = "sizes.arrow"
_KEY = b"keras-bandgnn"
_WRITE_AGAIN = "Copy the store again, or write it again."
# No separators or drives, so that names cannot leave the folder.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_SUM = re.compile(r"[0-9a-f]{64}")
_PLAIN = {*EDGE_COLUMNS, *COUNTS.values(), "slot", "candidates", "origin"}
_PLAIN |= {"label/graph", "label/node", "label/edge"}


def refuse_part(
    path: Path, expected: str, received: Any, cause: Any = None
) -> NoReturn:
    """Raise a ValueError for a damaged file of a store; see `refuse_file`."""
    refuse_file(path, expected, received, _WRITE_AGAIN, cause)


def write_arrow(file: BinaryIO, columns: dict[str, pa.Array], header: dict) -> None:
    """Write one record batch as an Arrow IPC file with a JSON header."""
    header = {"format": FORMAT, "version": VERSION, **header}
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    schema = batch.schema.with_metadata({_KEY: json_text("header", header).encode()})
    with pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))


def read_arrow(path: Path) -> tuple[pa.RecordBatch, dict]:
    """Memory-maps an Arrow IPC file.

    Raises:
        ValueError: If the file is not part of a store of a known version, or a link.
    """
    check_file(path)
    with reading(path):
        try:
            # The mapping outlives the file handle, so that handles do not accumulate.
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
                header = parse_json((file.schema.metadata or {}).get(_KEY, b"{}"))
                check_header(path, header)
                if file.num_record_batches != 1:
                    raise ValueError(f"{file.num_record_batches} record batches")
                batch = file.get_batch(0)
                # Checks offsets and UTF-8 text.
                batch.validate(full=True)
        except (pa.ArrowException, IndexError, OSError, ValueError) as error:
            if str(error).startswith("Expected"):
                raise
            refuse_part(
                path,
                "to be a readable part of a graph store (an Arrow IPC file)",
                str(error),
                error,
            )
    return batch, header


def check_file(path: Path, size: int | None = None) -> None:
    """Raise an error unless a file of a store exists and has the expected size.

    Raises:
        FileNotFoundError: If it is missing.
        ValueError: If it is a link, or has another size.
    """
    if path.is_symlink():
        refuse_file(path, "to be a file", "a symbolic link, which stores do not follow")
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected the file {path} of the store. Received: no such file. "
            f"{_WRITE_AGAIN}"
        )
    if size is not None and path.stat().st_size != size:
        refuse_part(
            path,
            f"to have {size} bytes",
            f"{path.stat().st_size} bytes, so it is truncated or changed",
        )


def check_sum(path: Path, expected: str) -> None:
    """Raise a ValueError if the checksum of a file differs."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != expected:
        refuse_part(path, f"to have sha256 {expected}", digest)


def check_features(path: Path, features: Any) -> None:
    """Raise a ValueError unless `features` maps names to `[dtype, trailing shape]`."""
    if not isinstance(features, dict):
        refuse_part(path, "to have an object 'features'", features)
    for name, entry in features.items():
        if not (
            isinstance(entry, list)
            and len(entry) == 2
            and isinstance(entry[1], list)
            and all(type(size) is int and size > 0 for size in entry[1])
        ):
            refuse_part(path, f"to have a dtype and a shape for {name!r}", entry)


def check_units(path: Path, units: Any) -> None:
    """Check the shard entries of a description or a progress file.

    Args:
        path: The file that contains them.
        units: The entries.

    Raises:
        ValueError: If an entry is not one of `write_piece`, names a file outside the
            folder, or repeats a file.
    """
    names = set()
    if not isinstance(units, list):
        refuse_part(path, "to list units", units)
    for number, unit in enumerate(units):
        where = f"in unit {number}"
        if not isinstance(unit, dict) or not {"file", "graphs", "report"} <= set(unit):
            refuse_part(path, f"to have file, graphs and report {where}", unit)
        name = unit["file"]
        if name is None:
            whole = unit["graphs"] == 0
        else:
            if not isinstance(name, str) or not _NAME.fullmatch(name) or name in names:
                refuse_part(path, f"to have a unique file name {where}", name)
            names.add(name)
            sizes = (unit["graphs"], unit.get("bytes"))
            whole = all(type(size) is int and size > 0 for size in sizes)
            whole = whole and isinstance(unit.get("sha256"), str)
            whole = whole and _SUM.fullmatch(unit["sha256"]) is not None
        if not whole:
            refuse_part(
                path,
                f"to have the number of graphs, the bytes and the sha256 {where}",
                unit,
            )


def check_header(path: Path, header: Any) -> None:
    """Raise a ValueError unless `header` names this format in a known version."""
    name = header.get("format") if isinstance(header, dict) else None
    if name != FORMAT:
        raise ValueError(
            f"Expected {path} to be part of a graph store (format={FORMAT!r}). "
            f"Received: format={name!r}. Pass a directory written by write_store."
        )
    version = header.get("version")
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise ValueError(
            f"Expected {path} to have version {VERSION} or older. Received: "
            f"version={version!r}. Install a newer keras-bandgnn to read it."
        )


def write_shard(file: BinaryIO, flat: FlatGraphs) -> None:
    """Write graphs as one record batch with a row per graph and lists of values."""
    ptr = {
        "node": flat.node_ptr,
        "edge": flat.edge_ptr,
        "candidate": flat.candidate_ptr,
        **{f"{SETS}/{name}": pointer for name, pointer in flat.set_ptr.items()},
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


def read_shard(path: Path, unit: Mapping | None = None) -> FlatGraphs:
    """Memory-maps a shard; its arrays are views of the file.

    Args:
        path: The file.
        unit: The shard's entry in the store, to verify the checksum. Omitted for files
            that this process has written. The content is checked as by `FlatGraphs`.

    Raises:
        ValueError: If the content is not what was written.
    """
    if unit is not None:
        check_file(path, unit["bytes"])
        check_sum(path, unit["sha256"])
    batch, header = read_arrow(path)
    with reading(path):
        try:
            check_features(path, header.get("features"))
            columns = _columns(batch, header)
            if unit is not None and batch.num_rows != unit["graphs"]:
                raise ValueError(f"{batch.num_rows} graphs, not {unit['graphs']}")
        except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
            refuse_part(path, "to hold the columns of a graph store", str(error), error)
    return FlatGraphs.from_columns(columns, JsonInfo(batch.column("info"), str(path)))


def _columns(batch: pa.RecordBatch, header: Mapping) -> dict[str, np.ndarray]:
    """Return the arrays of a record batch after checking layout and values."""
    names, features = batch.schema.names, header["features"]
    if len(set(names)) < len(names):
        raise ValueError(f"columns {names}")
    info = batch.column("info")
    if info.type != pa.large_string() or info.null_count:
        raise ValueError(f"info of type {info.type}")
    columns, offsets = {}, {}
    for name in names:
        if name == "info":
            continue
        kind, _, key = name.partition("/")
        if kind in (SETS, SET_ROWS):
            table, _, feature = key.partition("/")
            check_set_name(table)
            if (kind == SETS) != bool(feature):
                raise ValueError(f"a column {name!r}")
            if feature:
                check_feature_name(kind, feature)
        elif name not in _PLAIN:
            if kind not in ("node", "edge", "context") or not key:
                raise ValueError(f"a column {name!r}")
            check_feature_name(kind, key)
        shape = features.get(name, [None, []])[1]
        array, starts = _flat(batch.column(name), level_of(name), shape)
        timed = is_time(kind, key)
        if timed and array.dtype != np.int64:
            raise ValueError(
                f"a feature {name!r} of {array.dtype}; the name is now reserved for "
                "times of int64, so rename the feature where the store is written"
            )
        if not timed and array.dtype not in (np.int32, np.float32):
            raise ValueError(f"{name} of type {array.dtype}")
        columns[name] = to_32_bit(name, array)
        if starts is not None:
            offsets[name] = starts
    required = {"num_nodes", "num_edges", *EDGE_COLUMNS, "slot"}
    if missing := sorted(required - set(columns)):
        raise ValueError(f"no columns {missing}")
    for name, starts in offsets.items():
        counts = columns[count_column(level_of(name))]
        if not np.array_equal(starts, pointers(counts)):
            raise ValueError(f"{name} with other rows than the counts of the graphs")
    check_columns(columns, None)
    if spec_of({k: columns[k] for k in features if k in columns}) != features:
        raise ValueError(f"features {features}, which differ from the columns")
    if sorted_by_receiver(columns) is not columns:
        raise ValueError("edges that are not sorted by receiver")
    return columns


def _flat(
    array: pa.Array, level: str, shape: list[int]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the values of a column, and the offsets of the graphs."""
    starts = None
    if count_column(level):
        if not pa.types.is_large_list(array.type) or array.null_count:
            raise ValueError(f"a column of type {array.type}")
        starts, array = array.offsets.to_numpy(), array.values
    if shape:
        size = int(np.prod(shape, dtype=object))
        if not (pa.types.is_fixed_size_list(array.type) and size > 0):
            raise ValueError(f"a column of type {array.type} for the shape {shape}")
        if array.null_count or array.type.list_size != size:
            raise ValueError(f"a column of type {array.type} for the shape {shape}")
        array = array.values
    if array.null_count:
        raise ValueError("a column with missing values")
    return array.to_numpy(zero_copy_only=True).reshape(-1, *shape), starts


def read_sizes(path: Path, graphs: int) -> dict[str, np.ndarray]:
    """Read the numbers of nodes and edges of each graph."""
    batch, _ = read_arrow(path)
    sizes = {}
    for name, low in (("num_nodes", 1), ("num_edges", 0)):
        column = batch.column(name) if name in batch.schema.names else None
        if column is None or str(column.type) != "int32" or column.null_count:
            refuse_file(path, f"to have a column {name} of int32", batch.schema.names)
        sizes[name] = column.to_numpy()
        if len(column) != graphs:
            refuse_part(path, f"to list {graphs} graphs", str(len(column)))
        if len(column) and sizes[name].min() < low:
            refuse_file(
                path, f"to have {name} of at least {low}", str(sizes[name].min())
            )
    return sizes


def read_description(directory: Path) -> dict[str, Any]:
    """Read and check the description of a store."""
    path = directory / DESCRIPTION
    partial = directory.with_name(directory.name + ".partial")
    restore_replaced(directory)
    if not directory.is_dir():
        hint = "Check the path."
        if partial.is_dir():
            hint = f"To resume the unfinished store at {partial}, run its job again."
        raise FileNotFoundError(
            f"Expected a store, a directory, at {directory}. Received: no such "
            f"directory. {hint}"
        )
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected {directory} to be a store, with a {DESCRIPTION}. Received: a "
            "directory without it. Pass a directory written by write_store."
        )
    check_file(path)
    description = read_json(path)
    check_header(path, description)
    keys = {"metadata", "fingerprint", "features", "units", "graphs"}
    if missing := sorted(keys - description.keys()):
        refuse_part(path, f"to have the keys {sorted(keys)}", f"without {missing}")
    for key in ("metadata", "fingerprint", "features"):
        if not isinstance(description[key], dict):
            refuse_part(path, f"to have an object {key!r}", description[key])
    check_features(path, description["features"])
    check_units(path, description["units"])
    count = sum(unit["graphs"] for unit in description["units"])
    if type(description["graphs"]) is not int or description["graphs"] != count:
        refuse_part(
            path, f"to list {description['graphs']} graphs", f"units of {count} graphs"
        )
    return description
