"""Source code as graphs: parsing, instances, encoding, files of VarMisuse."""

from keras_bandgnn.lazy import lazy_names

_HOMES = {
    "ProgramGraph": "programs.program_graph",
    "RELATIONS": "programs.program_graph",
    "SLOT_LABEL": "programs.program_graph",
    "encode_characters": "programs.node_text",
    "encode_program": "programs.encode",
    "hash_id": "programs.node_text",
    "load_varmisuse": "programs.varmisuse",
    "program_graphs": "programs.python_source",
    "python_files": "programs.python_source",
    "read_tree": "programs.python_source",
    "read_varmisuse": "programs.varmisuse",
    "split_of": "programs.python_source",
    "split_subtokens": "programs.node_text",
    "varmisuse_split_files": "programs.varmisuse",
    "write_varmisuse": "programs.varmisuse",
}

__all__ = [
    "ProgramGraph",
    "RELATIONS",
    "SLOT_LABEL",
    "encode_characters",
    "encode_program",
    "hash_id",
    "load_varmisuse",
    "program_graphs",
    "python_files",
    "read_tree",
    "read_varmisuse",
    "split_of",
    "split_subtokens",
    "varmisuse_split_files",
    "write_varmisuse",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
