"""Variable misuse instances from Python source."""

from keras_bandgnn.programs.python_source.files import read_tree as read_tree
from keras_bandgnn.programs.python_source.instances import (
    program_graphs as program_graphs,
)
from keras_bandgnn.programs.python_source.listing import python_files as python_files
from keras_bandgnn.programs.python_source.listing import split_of as split_of

__all__ = ["program_graphs", "python_files", "read_tree", "split_of"]
