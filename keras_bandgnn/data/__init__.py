"""Where graphs come from and where they rest."""

import importlib
from typing import Any

_HOME = {
    "RELATIONS": "program_graph",
    "SLOT_LABEL": "program_graph",
    "FlatGraphs": "flat",
    "GraphLoader": ".preprocessing.graph_loader",
    "GraphStore": "store",
    "Limits": "reading",
    "ProgramGraph": "program_graph",
    "StoreWriter": "store_writer",
    "encode_characters": "labels",
    "encode_program": "encode",
    "from_ase": "converters.ase_atoms",
    "from_jraph": "converters.jraph_tuples",
    "from_networkx": "converters.networkx_graphs",
    "from_pandas": "converters.pandas_tables",
    "from_pyg": "converters.pyg",
    "from_scipy": "converters.scipy_sparse",
    "from_smiles": "converters.smiles",
    "gather_rows": "flat",
    "graphs_of": "sources",
    "hash_id": "labels",
    "list_datasets": "datasets.registry",
    "load": "datasets.loading",
    "load_varmisuse": "varmisuse",
    "open_store": "store",
    "parts_of": "sources",
    "program_graphs": "python_source",
    "python_files": "python_source",
    "read_structures": "converters.structures",
    "read_tree": "python_source",
    "read_varmisuse": "varmisuse",
    "split_of": "python_source",
    "split_subtokens": "labels",
    "to_ase": "converters.ase_atoms",
    "to_jraph": "converters.jraph_tuples",
    "to_networkx": "converters.networkx_graphs",
    "to_pandas": "converters.pandas_tables",
    "to_pyg": "converters.pyg",
    "to_scipy": "converters.scipy_sparse",
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
    "Limits",
    "ProgramGraph",
    "StoreWriter",
    "encode_characters",
    "encode_program",
    "from_ase",
    "from_jraph",
    "from_networkx",
    "from_pandas",
    "from_pyg",
    "from_scipy",
    "from_smiles",
    "gather_rows",
    "graphs_of",
    "hash_id",
    "list_datasets",
    "load",
    "load_varmisuse",
    "open_store",
    "parts_of",
    "program_graphs",
    "python_files",
    "read_structures",
    "read_tree",
    "read_varmisuse",
    "split_of",
    "split_subtokens",
    "to_ase",
    "to_jraph",
    "to_networkx",
    "to_pandas",
    "to_pyg",
    "to_scipy",
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
