"""`ExportedModel` and its runtimes, which are imported lazily."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.checks import boolean
from keras_bandgnn.data.reading import reading, refuse_file
from keras_bandgnn.data.weights_files import checksum
from keras_bandgnn.optional import optional_import
from keras_bandgnn.serving.graph_packer import GraphPacker, read_packing

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Arrays, FilePath, Graphs


class ExportedModel:
    """A model that `task.export` wrote, run by the runtime of its format.

    ONNX files run in onnxruntime, LiteRT files in the interpreter of ai-edge-litert,
    SavedModels in TensorFlow and `.pt2` files in torch. To serve the model elsewhere,
    use only `GraphPacker`.

    `.pt2` files and SavedModels are programs, which can do on this machine whatever
    Python and TensorFlow can. ONNX and LiteRT files are not.

    Args:
        path: The folder.
        trusted: Whether to load formats that may run code, `"torch"` and
            `"tf_saved_model"`. Pass True for models that you exported yourself or whose
            author you trust.

    Raises:
        ImportError: If the runtime is not installed.
        ValueError: If the format may run code and is not `trusted`, the folder is
            incomplete, or a file was modified.
    """

    def __init__(self, path: FilePath, trusted: bool = False):
        boolean("trusted", trusted)
        packing = read_packing(path)
        if (
            not isinstance(packing.get("format"), str)
            or packing["format"] not in ARTEFACTS
        ):
            raise ValueError(
                f"Expected a format among {sorted(ARTEFACTS)} in {path}. "
                f"Received: {str(packing.get('format'))[:80]!r}."
            )
        self.format = packing["format"]
        if self.format in _PROGRAMS and not trusted:
            raise ValueError(
                f"Expected trusted=True to load {path}. Received: a model of format "
                f"{self.format!r}, which may run code. If you trust its author, pass "
                "ExportedModel(path, trusted=True); otherwise ask for the format "
                "'onnx' or 'litert'."
            )
        self.packer = GraphPacker.load(path)
        names = self.packer.signature.names
        self._run = open_artefact(path, self.format, names, packing.get("sha256"))

    def __call__(self, arrays: Arrays) -> np.ndarray:
        """Return the output for the inputs of one supergraph.

        Args:
            arrays: Input name -> array, as `packer.pack(graphs)` yields them.
        """
        return self._run(arrays)

    def predict(self, graphs: Graphs) -> list[np.ndarray]:
        """Return predictions per graph, like `predict` of the task.

        Args:
            graphs: Graphs in any form that `predict` of the task takes.

        Raises:
            ValueError: For graphs above the budget or without an input of the model.
        """
        if isinstance(graphs, list | tuple) and not graphs:
            return []
        packed = self.packer.pack(graphs)
        return packed.unpack([self(arrays) for arrays in packed])


# Format -> name of the file or folder, module of the runtime, and extra.
ARTEFACTS = {
    "tf_saved_model": ("saved_model", "tensorflow", "tensorflow"),
    "onnx": ("model.onnx", "onnxruntime", "onnx"),
    "litert": ("model.tflite", "ai_edge_litert.interpreter", "litert"),
    "torch": ("model.pt2", "torch", "torch"),
}
# Formats whose runtimes unpickle objects, evaluate text, or read and write files.
_PROGRAMS = ("tf_saved_model", "torch")


def checksums(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of an artefact, by its relative name."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {
        file.relative_to(path.parent).as_posix(): checksum(file)
        for file in files
        if file.is_file()
    }


def _check_sums(path: Path, sums: Any) -> None:
    """Raise a ValueError if files differ from those that were exported.

    Args:
        path: The artefact.
        sums: Result of `checksums`; None for a model that was exported without.
    """
    if sums is None:
        return
    if not isinstance(sums, Mapping):
        refuse_file(path, "to have a checksum per file", f"{str(sums)[:80]}")
    actual = checksums(path)
    if actual.keys() != sums.keys():
        refuse_file(path, f"to have the files {sorted(sums)}"[:300], sorted(actual))
    for name, digest in actual.items():
        if digest != sums[name]:
            refuse_file(
                path.parent / name,
                f"to have sha256 {str(sums[name])[:64]}",
                f"a damaged file, of {digest}",
                "Copy or export the model again.",
            )


def required(module: str, extra: str):
    """Import a package of an extra, for exported models."""
    return optional_import(module, f"keras-bandgnn[{extra}]", "exported models")


def open_artefact(
    folder, form: str, names: Sequence[str], sums: Any = None
) -> Callable[[Mapping], np.ndarray]:
    """Load an exported model, after comparing its files with their checksums.

    Args:
        folder: The folder that `task.export` wrote.
        form: Its format.
        names: Names of the inputs.
        sums: Checksums of its files, or None.

    Returns:
        A function from arrays by input name to the output.

    Raises:
        ValueError: If its files were modified.
    """
    name, module, extra = ARTEFACTS[form]
    path = Path(folder) / name
    if not path.exists():
        raise ValueError(f"Expected the exported model {path}. Received: no such file.")
    _check_sums(path, sums)
    runtime = required(module, extra)
    with reading(path):
        run, input_names = _OPENERS[form](str(path), runtime)
    if input_names is not None and not set(input_names) <= set(names):
        refuse_file(
            path,
            f"to take the inputs of packing.json, {sorted(names)}",
            sorted(input_names),
            "Export the model again.",
        )

    def predict(arrays: Mapping) -> np.ndarray:
        with reading(path):
            return run(arrays)

    return predict


def _saved_model(path: str, tf):
    loaded = tf.saved_model.load(path)
    run = loaded.signatures["serving_default"]
    input_names = run.structured_input_signature[1]

    def predict(arrays):
        tensors = {name: tf.constant(arrays[name]) for name in input_names}
        (output,) = run(**tensors).values()
        return output.numpy()

    # The variables live as long as the object.
    predict.loaded = loaded
    return predict, list(input_names)


def _onnx(path: str, onnxruntime):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Threads that wait must not spin: the next batch is packed on the same cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"]
    )
    input_names = [spec.name for spec in session.get_inputs()]

    def predict(arrays):
        return session.run(None, {name: arrays[name] for name in input_names})[0]

    return predict, input_names


def _litert(path: str, litert):
    run = litert.Interpreter(model_path=path).get_signature_runner()
    input_names = run.get_input_details()

    def predict(arrays):
        (output,) = run(**{name: arrays[name] for name in input_names}).values()
        return np.array(output)

    return predict, list(input_names)


def _torch(path: str, torch):
    module = torch.export.load(path).module(check_guards=False)

    def predict(arrays):
        tensors = [torch.from_numpy(array) for array in arrays.values()]
        with torch.no_grad():
            return module(tensors).numpy()

    return predict, None


_OPENERS = {
    "tf_saved_model": _saved_model,
    "onnx": _onnx,
    "litert": _litert,
    "torch": _torch,
}
