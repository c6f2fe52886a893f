"""Data sets, converters, and storage of graphs."""

from keras_bandgnn.lazy import lazy_names

_HOMES = {
    "FlatGraphs": "data.flat",
    "GraphStore": "data.store",
    "Limits": "data.reading",
    "StoreWriter": "data.store_writer",
    "from_ase": "data.converters.ase_atoms",
    "from_jraph": "data.converters.jraph_tuples",
    "from_networkx": "data.converters.networkx_graphs",
    "from_pandas": "data.converters.pandas_tables",
    "from_pyg": "data.converters.pyg",
    "from_rdkit": "data.converters.smiles",
    "from_scipy": "data.converters.scipy_sparse",
    "from_smiles": "data.converters.smiles",
    "graphs_of": "data.sources",
    "list_datasets": "data.datasets.load",
    "load": "data.datasets.load",
    "open_store": "data.store",
    "read_structures": "data.converters.structures",
    "scaffold_split": "data.scaffolds",
    "to_ase": "data.converters.ase_atoms",
    "to_jraph": "data.converters.jraph_tuples",
    "to_networkx": "data.converters.networkx_graphs",
    "to_pandas": "data.converters.pandas_tables",
    "to_pyg": "data.converters.pyg",
    "to_scipy": "data.converters.scipy_sparse",
    "write_store": "data.store_writer",
}
# Version 0.1.0 had the loader and the names of `programs` here.
_ALIASES = {
    "GraphLoader": "preprocessing.loading.graph_loader",
    "ProgramGraph": "programs.program_graph",
    "RELATIONS": "programs.program_graph",
    "encode_program": "programs.encode",
    "load_varmisuse": "programs.varmisuse",
    "program_graphs": "programs.python_source",
    "python_files": "programs.python_source",
    "read_tree": "programs.python_source",
    "read_varmisuse": "programs.varmisuse",
    "write_varmisuse": "programs.varmisuse",
}
_INTERNAL = {
    "SLOT_LABEL": "programs.program_graph",
    "encode_characters": "programs.node_text",
    "gather_rows": "data.flat",
    "hash_id": "programs.node_text",
    "parts_of": "data.sources",
    "split_of": "programs.python_source",
    "split_subtokens": "programs.node_text",
    "varmisuse_split_files": "programs.varmisuse",
}

__all__ = [
    "FlatGraphs",
    "GraphStore",
    "Limits",
    "StoreWriter",
    "from_ase",
    "from_jraph",
    "from_networkx",
    "from_pandas",
    "from_pyg",
    "from_rdkit",
    "from_scipy",
    "from_smiles",
    "graphs_of",
    "list_datasets",
    "load",
    "open_store",
    "read_structures",
    "scaffold_split",
    "to_ase",
    "to_jraph",
    "to_networkx",
    "to_pandas",
    "to_pyg",
    "to_scipy",
    "write_store",
]

__getattr__, __dir__ = lazy_names(__name__, {**_HOMES, **_ALIASES}, _INTERNAL)
