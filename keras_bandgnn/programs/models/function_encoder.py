"""`FunctionEncoder`: from the text of a function's graph to a graph of ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from keras_bandgnn.checks import boolean, positive_int
from keras_bandgnn.graph import Graph
from keras_bandgnn.host_keras import keras
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.programs.program_graph import FunctionGraph

if TYPE_CHECKING:
    from keras_bandgnn.aliases import ModuleOptions


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class FunctionEncoder(GraphLayer):
    """Encodes functions for a `BugLocalizer`; graphs of ids pass unchanged.

    See `keras_bandgnn.programs.encode_function` for features and types of edges.

    Args:
        subtoken_nodes: Whether to add a node for each subtoken (P = 26, without 24).
        num_type_buckets: Number of node type ids.
        num_subtoken_buckets: Number of subtoken ids.
        max_subtokens: Parts of a label that are kept.
        traits: Whether rewrites have the feature "traits", which `BugLocalizer` reads
            with `edge_inputs=encoder.edge_inputs()`.

    Example:
    >>> from keras_bandgnn.programs import function_graph
    >>> function = function_graph("def f(a, b): return a - b")
    >>> FunctionEncoder(num_type_buckets=64)(function).node["subtoken"].shape[1]
    6
    """

    takes = (FunctionGraph, Graph)

    def __init__(
        self,
        subtoken_nodes: bool = True,
        num_type_buckets: int = 512,
        num_subtoken_buckets: int = 16384,
        max_subtokens: int = 6,
        traits: bool = False,
        **kwargs: Unpack[ModuleOptions],
    ):
        super().__init__(**kwargs)
        self.options = {
            "subtoken_nodes": boolean("subtoken_nodes", subtoken_nodes),
            "num_type_buckets": positive_int("num_type_buckets", num_type_buckets, 5),
            "num_subtoken_buckets": positive_int(
                "num_subtoken_buckets", num_subtoken_buckets, 2
            ),
            "max_subtokens": positive_int("max_subtokens", max_subtokens),
            "traits": boolean("traits", traits),
        }

    def call(self, function: FunctionGraph | Graph) -> Graph:
        """Return the graph of ids."""
        from keras_bandgnn.programs.encode_functions import encode_function

        if isinstance(function, Graph):
            return function
        return encode_function(function, **self.options)

    def inputs(self) -> dict[str, dict[str, int]]:
        """Return the inputs of a `NodeEncoder` for node types and labels."""
        return {
            "type": {"ids": self.options["num_type_buckets"]},
            "subtoken": {"ids": self.options["num_subtoken_buckets"]},
        }

    def edge_inputs(self) -> dict[str, dict[str, list[int]]]:
        """Return the inputs of an `EdgeReadout` for features of rewrites."""
        from keras_bandgnn.programs.rewrite_traits import COLUMNS

        return {"traits": {"columns": list(COLUMNS)}} if self.options["traits"] else {}

    @property
    def num_edge_types(self) -> int:
        """P: each relation and its reverse, rewrites, and no change."""
        from keras_bandgnn.programs.encode_functions import num_function_edge_types

        return num_function_edge_types(self.options["subtoken_nodes"])

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        return {**super().get_config(), **self.options}
