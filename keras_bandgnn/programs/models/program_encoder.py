"""`ProgramEncoder`: from the text of a program graph to a graph of ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from keras_bandgnn.checks import boolean, one_of, positive_int
from keras_bandgnn.graph import Graph
from keras_bandgnn.host_keras import keras
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.programs.program_graph import RELATIONS, ProgramGraph

if TYPE_CHECKING:
    from keras_bandgnn.aliases import ModuleOptions


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class ProgramEncoder(GraphLayer):
    """Encodes variable-misuse instances; graphs of ids pass unchanged.

    Candidates come in the order of `ProgramGraph.shuffled`, because data sets list the
    right one first. See `keras_bandgnn.programs.encode_program` for the features.

    Args:
        labels: `"subtoken"`, `"character"` or `"none"`.
        language: `"python"` or `"csharp"`, whose reserved words have no subtokens.
        subtoken_nodes: Whether to add a node for each subtoken (P = 22, without 20).
        static_types: Whether to add the static types as a feature.
        num_type_buckets: Number of node type ids.
        num_subtoken_buckets: Number of subtoken ids.
        max_subtokens: Parts of a label that are kept.
    """

    takes = (ProgramGraph, Graph)

    def __init__(
        self,
        labels: str = "subtoken",
        language: str = "python",
        subtoken_nodes: bool = True,
        static_types: bool = False,
        num_type_buckets: int = 512,
        num_subtoken_buckets: int = 16384,
        max_subtokens: int = 6,
        **kwargs: Unpack[ModuleOptions],
    ):
        super().__init__(**kwargs)
        self.options = {
            "labels": one_of("labels", labels, ("subtoken", "character", "none")),
            "language": one_of("language", language, ("python", "csharp")),
            "subtoken_nodes": boolean("subtoken_nodes", subtoken_nodes),
            "static_types": boolean("static_types", static_types),
            "num_type_buckets": positive_int("num_type_buckets", num_type_buckets, 5),
            "num_subtoken_buckets": positive_int(
                "num_subtoken_buckets", num_subtoken_buckets, 2
            ),
            "max_subtokens": positive_int("max_subtokens", max_subtokens),
        }

    def call(self, program: ProgramGraph | Graph) -> Graph:
        """Return the graph of ids."""
        from keras_bandgnn.programs.encode import encode_program

        if isinstance(program, Graph):
            return program
        return encode_program(program.shuffled(), **self.options)

    def inputs(self) -> dict[str, dict[str, int]]:
        """Return the inputs of a `NodeEncoder` for node types and labels.

        Static types are not among them.

        Example:
        >>> ProgramEncoder("character", num_type_buckets=64).inputs()
        {'type': {'ids': 64}, 'character': {'characters': 19}}
        """
        from keras_bandgnn.programs.node_text import LABEL_LENGTH

        inputs = {"type": {"ids": self.options["num_type_buckets"]}}
        if self.options["labels"] == "subtoken":
            inputs["subtoken"] = {"ids": self.options["num_subtoken_buckets"]}
        elif self.options["labels"] == "character":
            inputs["character"] = {"characters": LABEL_LENGTH}
        return inputs

    def feature_lengths(self) -> dict[str, int]:
        """Return the number of ids per node of features that have several."""
        return {"subtoken": self.options["max_subtokens"]}

    @property
    def num_edge_types(self) -> int:
        """P: each relation and its reverse."""
        return 2 * (len(RELATIONS) - (not self.options["subtoken_nodes"]))

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        return {**super().get_config(), **self.options}
