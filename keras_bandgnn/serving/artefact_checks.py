"""Validation of exported models before their runtimes load them.

Runtimes trust the files that they load: `torch.export.load` unpickles objects and
compiles text, TensorFlow runs operations that read and write files, ONNX files refer to
other files. The allowlists here cover what `task.export` writes.
"""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_bandgnn.data.reading import reading, refuse_file

_NO_PROGRAM = "Export the model again: a file from others may not bring programs."


# === Files ===


def files_of(path: Path) -> list[Path]:
    """Return the files of an artefact, a file or folder; a ValueError for links."""
    files = [path]
    if path.is_dir() and not path.is_symlink():
        files = sorted(p for p in path.rglob("*") if p.is_symlink() or not p.is_dir())
    for file in files:
        if file.is_symlink() or not file.is_file():
            refuse_file(file, "to be a file", "a link or something else")
    return files


def checksums(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of an artefact, by its relative name."""
    sums = {}
    for file in files_of(path):
        with open(file, "rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        sums[file.relative_to(path.parent).as_posix()] = digest
    return sums


def check_sums(path: Path, sums: Any) -> None:
    """Raise a ValueError if files differ from those that were exported.

    Args:
        path: The artefact.
        sums: Result of `checksums`; None for a model that was exported without.
    """
    actual = checksums(path)
    if sums is None:
        return
    if not isinstance(sums, Mapping):
        refuse_file(path, "to have a checksum per file", f"{str(sums)[:80]}")
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


# === torch ===

# Names within the top-level folder of the archive, which has any name.
_PT2_NAMES = re.compile(
    r"[A-Za-z0-9_.-]+/(?:"
    r"archive_format|archive_version|byteorder|version|"
    r"\.data/(?:version|serialization_id)|\.format_version|\.storage_alignment|"
    r"models/model\.json|data/sample_inputs/model\.pt|"
    r"data/weights/(?:weight_[0-9]+|model_weights_config\.json)|"
    r"data/constants/(?:tensor_[0-9]+|model_constants_config\.json))"
)
# Operations on tensors, except `from_file`, which maps a file, even for writing.
_ATEN = re.compile(r"torch\.ops\.aten\.(?!from_file\b)[a-z0-9_A-Z]+\.[A-Za-z0-9_]+")
_SYMBOLS = re.compile(r"_operator\.[a-z_]+")
_LARGEST_JSON = 1 << 30


def check_pt2(path: str | Path, torch: Any) -> None:
    """Raise a ValueError if loading a `.pt2` file would run code from it.

    `torch.export.load` unpickles weights other than plain tensors, evaluates symbolic
    sizes as Python and compiles guards. Files of `task.export` have none of these, and
    only members of known names.

    Args:
        path: The file.
        torch: The module.
    """
    path = Path(path)

    def refuse_program(what: str) -> None:
        raise ValueError(
            f"Expected a file that task.export wrote. Received: {path} has {what}, "
            "which torch.export.load may run as a program."
        )

    with reading(path), zipfile.ZipFile(path) as file:
        names = [info.filename for info in file.infolist()]
        # The archive reader of torch is case-insensitive.
        if len({name.lower() for name in names}) < len(names):
            refuse_program("two members of one name")
        if len({name.partition("/")[0] for name in names}) > 1:
            refuse_program("members in several folders")
        for info in file.infolist():
            name = info.filename
            if not _PT2_NAMES.fullmatch(name) or info.flag_bits & 1:
                refuse_program(f"the object {name}")
            if info.compress_type != zipfile.ZIP_STORED:
                refuse_program(f"the packed member {name}")
            if name.endswith(".json"):
                if info.file_size > _LARGEST_JSON:
                    refuse_file(path, "to have a model of at most 1 GB", name)
                tree = json.loads(file.read(info), object_pairs_hook=_once)
                _check_pt2_entries(name, tree, refuse_program)
            if name.endswith(".pt"):
                try:
                    torch.load(io.BytesIO(file.read(info)), weights_only=True)
                except Exception:
                    refuse_program(f"pickled objects in {name}")


def _once(pairs: list[tuple[str, Any]]) -> dict:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a key twice")
    return entries


def _check_pt2_entries(name: str, tree: Any, refuse_program: Any) -> None:
    for key, value in _entries(tree):
        if key == "use_pickle" and value is not False:
            refuse_program(f"pickled weights in {name}")
        if key == "expr_str":
            refuse_program(f"expressions in {name}")
        if key == "guards_code" and value:
            refuse_program(f"guards as text in {name}")
        if key in ("as_custom_obj", "as_operator", "as_complex") and value is not None:
            refuse_program(f"an argument {key} in {name}")
        if key == "path_name" and not (
            isinstance(value, str) and re.fullmatch(r"(weight|tensor)_[0-9]+", value)
        ):
            refuse_program(f"the path {str(value)[:80]!r} in {name}")
        if key == "target" and "models/" in name:
            known = isinstance(value, str) and (
                _ATEN.fullmatch(value) or _SYMBOLS.fullmatch(value)
            )
            if not known and not isinstance(value, Mapping | None):
                # Parameters are referenced by their names in the module.
                if not (isinstance(value, str) and not value.startswith(_CALLABLE)):
                    refuse_program(f"the operation {str(value)[:80]!r} in {name}")


_CALLABLE = ("torch", "_operator", "operator", "math", "#", "builtins", "os", "sys")


def _entries(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield all keys and values of nested JSON."""
    pending = [tree]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield from item.items()
            pending += item.values()
        elif isinstance(item, list):
            pending += item


# === TensorFlow ===

_SAVED_NAMES = re.compile(
    r"saved_model\.pb|fingerprint\.pb|"
    r"variables/variables\.(index|data-[0-9]{5}-of-[0-9]{5})"
)
# Pure computation: none of these operations reads or writes a file, calls Python, opens
# a connection or loads a library.
_OPERATIONS = frozenset(
    """
    Abs Acos Acosh Add AddN AddV2 All Any ArgMax ArgMin Asin Asinh Assert
    AssignAddVariableOp AssignSubVariableOp AssignVariableOp Atan Atan2 Atanh AvgPool
    BatchMatMul BatchMatMulV2 BatchMatMulV3 BiasAdd BiasAddGrad Bincount Bitcast
    BitwiseAnd BitwiseOr BitwiseXor BroadcastArgs BroadcastTo Bucketize Case Cast Ceil
    CheckNumerics ClipByValue Concat ConcatV2 Const Conv2D Cos Cosh Cross Cumprod Cumsum
    CumulativeLogsumexp DenseBincount Diag DiagPart Digamma DisableCopyOnRead Div
    DivNoNan DynamicPartition DynamicStitch Einsum Elu EluGrad Empty EnsureShape Enter
    Equal Erf Erfc Erfinv Exit Exp ExpandDims Expm1 Fill Floor FloorDiv FloorMod
    FusedBatchNormV3 Gather GatherNd GatherV2 Greater GreaterEqual Identity IdentityN If
    InvertPermutation IsFinite IsInf IsNan L2Loss LeakyRelu LeakyReluGrad LeftShift Less
    LessEqual Lgamma LinSpace Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr
    LoopCond LowerBound MatMul MatrixBandPart MatrixDiag MatrixDiagPartV3 MatrixDiagV3
    MatrixInverse MatrixSetDiag MatrixSetDiagV3 MatrixSolve Max MaxPool Maximum Mean
    Merge Min Minimum MirrorPad Mod Mul MulNoNan Neg NextAfter NextIteration NoOp
    NotEqual OneHot OnesLike Pack Pad PadV2 PartitionedCall Placeholder
    PlaceholderWithDefault Pow PreventGradient Prod Qr RandomStandardNormal
    RandomUniform RandomUniformInt Range Rank ReadVariableOp RealDiv Reciprocal Relu
    Relu6 ReluGrad Reshape ResourceGather ResourceGatherNd ResourceScatterAdd
    ReverseV2 RightShift Rint Roll Round Rsqrt RsqrtGrad ScatterNd SegmentMax
    SegmentMaxV2 SegmentMean SegmentMin SegmentProd SegmentSum SegmentSumV2 Select
    SelectV2 Selu Shape ShapeN Sigmoid SigmoidGrad Sign Sin Sinh Size Slice Softmax
    Softplus SoftplusGrad Softsign Sort SparseTensorDenseMatMul Split SplitV Sqrt
    SqrtGrad Square SquaredDifference Squeeze StatefulPartitionedCall
    StatelessIf StatelessRandomGetKeyCounter StatelessRandomNormalV2
    StatelessRandomUniformV2 StatelessWhile StopGradient StridedSlice StridedSliceGrad
    Sub Sum Svd Switch Tan Tanh TanhGrad TensorListFromTensor TensorListGetItem
    TensorListReserve TensorListSetItem TensorListStack TensorScatterAdd
    TensorScatterMax TensorScatterMin TensorScatterUpdate Tile TopKV2 Transpose
    TruncateDiv TruncateMod Unique UniqueV2 Unpack UnsortedSegmentMax
    UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound VarHandleOp
    VarIsInitializedOp VariableShape Where While XlaCallModule Xdivy Xlog1py Xlogy
    ZerosLike
    """.split()
)
# Operations of the functions for saving and restoring, which loading does not call.
_SAVING = frozenset(
    """
    MergeV2Checkpoints RestoreV2 SaveV2 ShardedFilename StaticRegexFullMatch StringJoin
    """.split()
)


def check_saved_model(path: Path) -> None:
    """Raise a ValueError for operations and files that exported models never have.

    Args:
        path: The folder of a SavedModel.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    for file in files_of(path):
        name = file.relative_to(path).as_posix()
        if not _SAVED_NAMES.fullmatch(name):
            refuse_file(path, "to have the files of a SavedModel", name, _NO_PROGRAM)
    file = path / "saved_model.pb"
    saved = saved_model_pb2.SavedModel()
    with reading(file):
        saved.ParseFromString(file.read_bytes())
        for graph in saved.meta_graphs:
            _check_graph(file, graph)


def _check_graph(file: Path, graph: Any) -> None:
    def refuse_operation(name: str, what: str) -> None:
        refuse_file(
            file, "to have operations that compute", f"{what} in {name}", _NO_PROGRAM
        )

    if graph.asset_file_def:
        refuse_file(file, "to need no other files", "assets", _NO_PROGRAM)
    for node in graph.object_graph_def.nodes:
        if node.WhichOneof("kind") in ("asset", "resource"):
            refuse_file(
                file, "to need no other files", node.WhichOneof("kind"), _NO_PROGRAM
            )
    called = set(graph.object_graph_def.concrete_functions)
    saving = {}
    for function in graph.graph_def.library.function:
        name = function.signature.name
        for node in function.node_def:
            if node.op in _SAVING:
                saving[name] = node.op
            elif node.op not in _OPERATIONS:
                refuse_operation(name, node.op)
            for value in node.attr.values():
                called.update(_called(value))
    for node in graph.graph_def.node:
        if node.op not in _OPERATIONS:
            refuse_operation("the graph", node.op)
    for name in called & saving.keys():
        refuse_operation(name, saving[name])


def _called(value: Any) -> Iterator[str]:
    """Yield the names of the functions in an attribute."""
    if value.WhichOneof("value") == "func":
        yield value.func.name
    for function in value.list.func:
        yield function.name


# === ONNX ===

# Fields of the messages on the path to tensors that hold nested messages.
_ONNX = {
    "model": {7: "graph", 25: "function", 20: "training"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {
        **{5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse"},
        23: "sparse",
    },
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_EXTERNAL = {13, 14}


def check_onnx(path: Path) -> None:
    """Raise a ValueError if an ONNX file stores values in other files.

    Args:
        path: The file.
    """
    with reading(path):
        data = memoryview(path.read_bytes())
        pending = [("model", data)]
        while pending:
            kind, message = pending.pop()
            for field, value in _fields(message):
                if kind == "tensor" and field in _EXTERNAL and value != 0:
                    refuse_file(
                        path,
                        "to hold all values",
                        "a reference to another file",
                        _NO_PROGRAM,
                    )
                inner = _ONNX[kind].get(field)
                if inner is not None and isinstance(value, memoryview):
                    pending.append((inner, value))


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield the numbers and values of the fields of a protocol buffer."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = None, at + size
        elif kind == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"a field of kind {kind}")
        if at > len(data):
            raise ValueError("a field beyond the end")
        yield key >> 3, value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than 64 bits")
