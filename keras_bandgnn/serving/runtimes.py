"""The programs that run exported models, each imported when it is used."""

import importlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

# Format -> name of the file or folder, the module that runs it, and the extra.
ARTEFACTS = {
    "tf_saved_model": ("saved_model", "tensorflow", "tensorflow"),
    "onnx": ("model.onnx", "onnxruntime", "onnx"),
    "litert": ("model.tflite", "ai_edge_litert.interpreter", "litert"),
    "torch": ("model.pt2", "torch", "torch"),
}


def required(module: str, extra: str):
    """Imports a package of an extra.

    Args:
        module: The module.
        extra: The extra of this library that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"Expected the package {module.split('.')[0]!r} for exported models. "
            f"Received: it is not installed. Run: pip install "
            f'"keras-bandgnn[{extra}]"'
        ) from error


def open_artefact(folder, form: str) -> Callable[[Mapping], np.ndarray]:
    """Loads an exported model.

    Args:
        folder: Where `task.export` wrote it.
        form: Its format.

    Returns:
        A function from arrays by input name to the output.
    """
    name, module, extra = ARTEFACTS[form]
    path = Path(folder) / name
    if not path.exists():
        raise ValueError(f"Expected the exported model {path}. Received: no such file.")
    return _OPENED[form](str(path), required(module, extra))


def _saved_model(path: str, tf):
    loaded = tf.saved_model.load(path)
    run = loaded.signatures["serving_default"]
    wanted = run.structured_input_signature[1]

    def predict(arrays):
        tensors = {name: tf.constant(arrays[name]) for name in wanted}
        (output,) = run(**tensors).values()
        return output.numpy()

    # The variables live as long as the object.
    predict.loaded = loaded
    return predict


def _onnx(path: str, onnxruntime):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"]
    )
    wanted = [given.name for given in session.get_inputs()]
    return lambda arrays: session.run(None, {n: arrays[n] for n in wanted})[0]


def _litert(path: str, litert):
    run = litert.Interpreter(model_path=path).get_signature_runner()
    wanted = run.get_input_details()

    def predict(arrays):
        (output,) = run(**{name: arrays[name] for name in wanted}).values()
        return np.array(output)

    return predict


def _torch(path: str, torch):
    check_pt2(path, torch)
    module = torch.export.load(path).module()

    def predict(arrays):
        tensors = [torch.from_numpy(array) for array in arrays.values()]
        with torch.no_grad():
            return module(tensors).numpy()

    return predict


def check_pt2(path: str, torch) -> None:
    """Raises a ValueError if loading a `.pt2` file would run what it brings along.

    `torch.export.load` unpickles weights that are no plain tensors, and reads sizes
    that are no numbers as Python. Files of `task.export` have neither.

    Args:
        path: The file.
        torch: The module.
    """

    def refuse(why):
        raise ValueError(
            f"Expected a file that task.export wrote. Received: {path} has {why}, "
            "which torch.export.load may run as a program."
        )

    with zipfile.ZipFile(path) as file:
        for name in file.namelist():
            last = name.rpartition("/")[2]
            if last.startswith(("custom_obj", "opaque_obj")) or last.endswith(".so"):
                refuse(f"the object {name}")
            if last.endswith(".json"):
                for key, value in _entries(json.loads(file.read(name))):
                    if key == "use_pickle" and value:
                        refuse(f"pickled weights in {name}")
                    if key == "expr_str":
                        refuse(f"expressions in {name}")
            if last.endswith(".pt"):
                try:
                    torch.load(io.BytesIO(file.read(name)), weights_only=True)
                except Exception:
                    refuse(f"pickled objects in {name}")


def _entries(tree):
    """All keys and values of nested JSON."""
    if isinstance(tree, dict):
        yield from tree.items()
        tree = list(tree.values())
    if isinstance(tree, list):
        for value in tree:
            yield from _entries(value)


_OPENED = {
    "tf_saved_model": _saved_model,
    "onnx": _onnx,
    "litert": _litert,
    "torch": _torch,
}
