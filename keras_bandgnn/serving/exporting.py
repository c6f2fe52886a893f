"""`task.export`: one artefact per runtime, verified against the task."""

import contextlib
import functools
import logging
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np

from keras_bandgnn.checks import as_path, boolean, one_of
from keras_bandgnn.data.files import atomic_folder, check_target
from keras_bandgnn.ops.context import portable
from keras_bandgnn.serving.graph_packer import FILE, GraphPacker
from keras_bandgnn.serving.runtimes import ARTEFACTS, ExportedModel, checksums, required
from keras_bandgnn.serving.signature import Signature


@functools.cache
def register() -> None:
    """Teach tf2onnx the operation Erfc, which TensorFlow uses for GELU."""
    import numpy as np
    from tf2onnx.handler import tf_op

    @tf_op("Erfc")
    class Erfc:
        @classmethod
        def version_9(cls, ctx, node, **kwargs):
            dtype = ctx.get_dtype(node.output[0])
            shape = ctx.get_shape(node.output[0])
            name, source, outputs = node.name, node.input[0], list(node.output)
            ctx.remove_node(name)
            erf = ctx.make_node("Erf", [source], shapes=[shape], dtypes=[dtype])
            one = ctx.make_const(f"{name}_one", np.array(1.0, np.float32))
            ctx.make_node(
                "Sub",
                [one.output[0], erf.output[0]],
                outputs=outputs,
                name=name,
                shapes=[shape],
                dtypes=[dtype],
            )


# Backend and format -> kind of segment sums, and packages that must be installed.
_WRITERS = {
    ("tensorflow", "tf_saved_model"): ("segment", ()),
    ("tensorflow", "onnx"): ("scatter", (("tf2onnx", "onnx"),)),
    ("tensorflow", "litert"): ("segment", ()),
    ("jax", "tf_saved_model"): ("segment", (("tensorflow", "tensorflow"),)),
    ("jax", "onnx"): ("segment", (("jax2onnx", "onnx-jax"),)),
    ("jax", "litert"): ("one_hot", (("tensorflow", "tensorflow"),)),
    ("torch", "onnx"): ("segment", (("onnxscript", "onnx"),)),
    ("torch", "torch"): ("segment", ()),
}
# The first version in which scatters may reduce by sum or maximum.
_OPSET = 18
TOLERANCE = 1e-4
_LITERT = (
    "LiteRT has no products of int8 as Keras writes them: export before quantize, with "
    "optimizations=[tf.lite.Optimize.DEFAULT]."
)
_NO_INT8 = {
    ("tensorflow", "litert"): _LITERT,
    ("jax", "litert"): _LITERT,
    ("torch", "onnx"): (
        "The file would be invalid: export with KERAS_BACKEND=tensorflow, or before "
        "quantize."
    ),
}
_NAMES = (FILE, *(name for name, *_ in ARTEFACTS.values()))


class FlatModel(keras.Model):
    """A task whose input is the list of the arrays of a batch.

    Args:
        task: The task.
        signature: Names of the arrays, in order.
        sums: Kind of segment sums; see `ops.context.portable`.
    """

    def __init__(self, task, signature: Signature, sums: str):
        # No `TaskProgram`: `keras.Model.export` would write its optimizer and metrics,
        # and passes a list of arrays instead of a batch.
        super().__init__(autocast=False)
        self.task = task
        self.signature = signature
        self.sums = sums
        self.built = True

    def call(self, inputs):
        """Return the output of the task."""
        values = dict(zip(self.signature.names, inputs, strict=True))
        with portable(self.sums):
            return self.task(self.signature.nested(values), training=False)


def export_task(
    task, path, format: str, graphs, budget=None, plan=None, verify=True, **options
) -> Path:
    """Export a task for a runtime; see `Task.export`."""
    backend = keras.backend.backend()
    one_of("format", format, tuple(ARTEFACTS))
    as_path("path", path)
    boolean("verify", verify)
    if options.pop("input_signature", None) is not None:
        raise ValueError(
            "Expected no input_signature, as the inputs are those of `graphs`. "
            "Received: input_signature. Leave it out, or pass other graphs or a "
            "`budget`."
        )
    if (backend, format) not in _WRITERS:
        able = [b for b, f in _WRITERS if f == format]
        raise ValueError(
            f"Expected KERAS_BACKEND among {able} for format={format!r}. Received: "
            f"{backend!r}. Weights do not depend on the backend: save_to_preset here, "
            "and from_preset and export there."
        )
    if graphs is None:
        raise ValueError(
            "Expected `graphs`, which determine the shapes, as large as those to "
            "predict. Received: graphs=None."
        )
    if task.is_quantized and (backend, format) in _NO_INT8:
        raise ValueError(
            f"Expected weights in float32 for format={format!r} on {backend}. "
            f"Received: a quantised task. {_NO_INT8[backend, format]}"
        )
    sums, packages = _WRITERS[backend, format]
    for module, extra in packages:
        required(module, extra)
    path = check_target(path, _NAMES, "an exported model")
    packer = GraphPacker.of_task(task, graphs, budget, plan)
    with atomic_folder(path, _NAMES, "an exported model") as partial:
        model = FlatModel(task, packer.signature, sums)
        artefact = partial / ARTEFACTS[format][0]
        with _quietly():
            _write(model, str(artefact), format, options)
        packer.save(
            partial,
            format=format,
            sha256=checksums(artefact),
            backend=backend,
            task=type(task).__name__,
            keras_version=keras.__version__,
        )
        if verify:
            _verify(task, ExportedModel(partial, trusted=True), graphs)
    return path


def _write(model: FlatModel, path: str, format: str, options: dict) -> None:
    specs = [
        keras.InputSpec(shape=spec.shape, dtype=spec.dtype, name=spec.name)
        for spec in model.signature.inputs
    ]
    backend = keras.backend.backend()
    options = dict(options)
    verbose = options.pop("verbose", False)
    if (backend, format) == ("jax", "litert"):
        with tempfile.TemporaryDirectory() as folder:
            # Without variables, as LiteRT has no dtype for the seeds of dropout.
            model.export(folder, "tf_saved_model", verbose, [specs], is_static=True)
            _to_litert(folder, path, options)
        return
    if format == "onnx":
        options = {"opset_version": _OPSET, **options}
        if backend == "tensorflow":
            register()
    if (backend, format) == ("tensorflow", "litert"):
        from tensorflow import lite

        # Without TensorFlow operations, which interpreters do not include.
        target = {"supported_ops": [lite.OpsSet.TFLITE_BUILTINS]}
        options = {"target_spec": target, **options}
    model.export(path, format, verbose, [specs], **options)


def _to_litert(folder: str, path: str, options: dict) -> None:
    from tensorflow import lite

    converter = lite.TFLiteConverter.from_saved_model(folder)
    converter.target_spec.supported_ops = [lite.OpsSet.TFLITE_BUILTINS]
    for name, value in options.items():
        setattr(converter, name, value)
    Path(path).write_bytes(converter.convert())


@contextlib.contextmanager
def _quietly():
    """Silence warnings and logs of the converters."""
    levels = {
        name: logging.getLogger(name).level
        for name in ("tf2onnx", "onnxscript", "torch.onnx", "absl", "tensorflow")
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for name in levels:
                logging.getLogger(name).setLevel(logging.ERROR)
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


def _verify(task, exported: ExportedModel, graphs) -> None:
    """Raise a ValueError if the outputs of runtime and task differ."""
    packed = exported.packer.pack(graphs)
    arrays = next(iter(packed))
    output = np.asarray(exported(arrays), np.float32)
    tensors = {name: keras.ops.convert_to_tensor(a) for name, a in arrays.items()}
    expected = task(exported.packer.signature.nested(tensors), training=False)
    expected = np.asarray(keras.ops.convert_to_numpy(expected), np.float32)
    scale = max(1.0, float(np.abs(np.where(expected > -1e8, expected, 0)).max()))
    difference = float(np.abs(output - expected).max())
    if not difference <= TOLERANCE * scale:
        raise ValueError(
            f"Expected the outputs of the exported model within {TOLERANCE * scale:g} "
            f"of the task's. Received: {difference:g} apart. Pass "
            "verify=False to accept it, as for weights of lower precision."
        )
