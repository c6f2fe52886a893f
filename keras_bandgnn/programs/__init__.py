"""Source code as graphs: parsing, variable misuse, encoding, VarMisuse files."""

from keras_bandgnn.plugins import lazy_names

_HOMES = {
    "FunctionGraph": "programs.program_graph",
    "GreatExample": "programs.great",
    "ProgramGraph": "programs.program_graph",
    "RELATIONS": "programs.program_graph",
    "RayPool": "programs.ray_pool",
    "bug_samples": "programs.sampled_bugs",
    "corpus_packages": "programs.corpus_files",
    "encode_function": "programs.encode_functions",
    "encode_program": "programs.encode",
    "find_programs": "programs.program_files",
    "function_graph": "programs.function_graphs",
    "load_varmisuse": "programs.varmisuse",
    "plant_bug": "programs.planted_bugs",
    "program_graphs": "programs.python_source",
    "python_files": "programs.python_source",
    "read_corpus": "programs.corpus_files",
    "read_great": "programs.great",
    "read_tree": "programs.python_source",
    "read_varmisuse": "programs.varmisuse",
    "variable_usages": "programs.function_source",
    "write_varmisuse": "programs.varmisuse",
}

__all__ = [
    "FunctionGraph",
    "GreatExample",
    "ProgramGraph",
    "RELATIONS",
    "RayPool",
    "bug_samples",
    "corpus_packages",
    "encode_function",
    "encode_program",
    "find_programs",
    "function_graph",
    "load_varmisuse",
    "plant_bug",
    "program_graphs",
    "python_files",
    "read_corpus",
    "read_great",
    "read_tree",
    "read_varmisuse",
    "variable_usages",
    "write_varmisuse",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
