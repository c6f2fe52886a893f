"""Where graphs come from and where they rest."""

import importlib
from typing import Any

_HOME = {
    "FlatGraphs": "flat",
    "GraphLoader": ".preprocessing.graph_loader",
    "GraphStore": "store",
    "ProgramGraph": "program_graph",
    "RELATIONS": "program_graph",
    "SLOT_LABEL": "program_graph",
    "StoreWriter": "store_writer",
    "encode_characters": "labels",
    "encode_program": "encode",
    "gather_rows": "flat",
    "hash_id": "labels",
    "load_varmisuse": "varmisuse",
    "open_store": "store",
    "program_graphs": "python_source",
    "python_files": "python_source",
    "read_tree": "python_source",
    "split_of": "python_source",
    "read_varmisuse": "varmisuse",
    "split_subtokens": "labels",
    "varmisuse_split_files": "varmisuse",
    "write_store": "store_writer",
    "write_varmisuse": "varmisuse",
}

__all__ = [
    "RELATIONS",
    "SLOT_LABEL",
    "FlatGraphs",
    "GraphLoader",
    "GraphStore",
    "ProgramGraph",
    "StoreWriter",
    "encode_characters",
    "encode_program",
    "gather_rows",
    "hash_id",
    "load_varmisuse",
    "open_store",
    "program_graphs",
    "python_files",
    "read_tree",
    "read_varmisuse",
    "split_of",
    "split_subtokens",
    "varmisuse_split_files",
    "write_store",
    "write_varmisuse",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_HOME[name]}", __name__)
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
