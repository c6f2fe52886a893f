"""`ExportedModel`: a model in the runtime that it was exported for."""

import numpy as np

from keras_bandgnn.serving.graph_packer import GraphPacker, read_facts
from keras_bandgnn.serving.runtimes import ARTEFACTS, open_artefact


class ExportedModel:
    """A model that `task.export` wrote, run by its own runtime.

    ONNX files run in onnxruntime, LiteRT files in the interpreter of ai-edge-litert,
    SavedModels in TensorFlow and `.pt2` files in torch. Take `GraphPacker` alone to
    serve the model elsewhere.

    Args:
        path: The folder.

    Raises:
        ImportError: If the runtime is not installed.
        ValueError: If the folder is not complete, or a file is not what was exported
            or holds what no exported model does.
    """

    def __init__(self, path):
        facts = read_facts(path)
        if not isinstance(facts.get("format"), str) or facts["format"] not in ARTEFACTS:
            raise ValueError(
                f"Expected a format among {sorted(ARTEFACTS)} in {path}. "
                f"Received: {str(facts.get('format'))[:80]!r}."
            )
        self.format = facts["format"]
        self.packer = GraphPacker.load(path)
        names = self.packer.signature.names
        self._run = open_artefact(path, self.format, names, facts.get("sha256"))

    def __call__(self, arrays) -> np.ndarray:
        """The output for the inputs of one supergraph.

        Args:
            arrays: Input name -> array, as `packer.pack(graphs)` gives them.
        """
        return self._run(arrays)

    def predict(self, graphs) -> list[np.ndarray]:
        """Results per graph, as `predict` of the task.

        Args:
            graphs: Graphs in any form that `predict` of the task takes.

        Raises:
            ValueError: For graphs above the budget, or without what the model reads.
        """
        if isinstance(graphs, list | tuple) and not graphs:
            return []
        packed = self.packer.pack(graphs)
        return packed.unpack([self(arrays) for arrays in packed])
