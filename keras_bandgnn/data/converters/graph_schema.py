"""Schemas of TF-GNN: which sets and features a graph has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from keras_bandgnn.checks import as_path, mapping, refuse, string
from keras_bandgnn.data.reading import read_text, reading

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Config

_STRING = r"""(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
_TOKEN = re.compile(
    rf"(?P<space>\s+|#[^\n]*)|(?P<text>{_STRING}(?:\s*{_STRING})*)"
    r"|(?P<word>[\w.+-]+)|(?P<mark>[{}<>:;,\[\]])"
)
# Bytes of a string in octal or hexadecimal, or a character.
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_CHARACTERS = dict(zip(b"abfnrtv", b"\a\b\f\n\r\t\v", strict=True))
_CHARACTERS |= {character: character for character in b"\\'\"?"}
_CLOSING = {"{": "}", "<": ">"}
_FIELDS = ("context", "node_sets", "edge_sets", "info")
_TYPE = re.compile(r"DT_(U?INT(8|16|32|64)|BOOL|FLOAT|DOUBLE|HALF|BFLOAT16|STRING)")
_FLOAT = ("DT_FLOAT", "DT_DOUBLE", "DT_HALF", "DT_BFLOAT16")

Schema = dict[str, Any]


def read_graph_schema(schema: str | os.PathLike) -> Config:
    """Read the `GraphSchema` of TF-GNN.

    TF-GNN stores it in the text format of protocol buffers, in files called
    `graph_schema.pbtxt`. Descriptions, metadata and `info` are left out.

    Args:
        schema: Path of the file, or its text, which has a `{`.

    Returns:
        `{"context": {"features": ...}, "node_sets": {set: {"features": ...}},
        "edge_sets": {set: {"source": ..., "target": ..., "features": ...}}}`, where
        features are `{name: {"dtype": "DT_FLOAT", "shape": [3]}}`. A dimension of -1 is
        ragged. `from_graph_tensor` takes it.

    Raises:
        ValueError: If the text is not in this format, with the line, or lacks a name.

    Example:
    >>> schema = read_graph_schema('''
    ...     node_sets { key: "user" value {
    ...         features { key: "age" value { dtype: DT_FLOAT } }
    ...     } }
    ...     edge_sets { key: "knows" value { source: "user" target: "user" } }
    ... ''')
    >>> schema["node_sets"]
    {'user': {'features': {'age': {'dtype': 'DT_FLOAT', 'shape': []}}}}
    """
    if isinstance(schema, str) and "{" in schema:
        return checked_schema(_schema_of(_parsed(schema)))
    path = as_path("schema", schema)
    with reading(path, what="to be a graph schema in text format"):
        return checked_schema(_schema_of(_parsed(read_text(path))))


def checked_schema(schema: Any) -> Schema:
    """Return a schema in the form of `read_graph_schema`, or raise a ValueError."""
    mapping("schema", schema)
    if others := sorted(set(schema) - set(_FIELDS)):
        refuse("schema", f"a dict with {list(_FIELDS[:3])}", others)
    nodes = mapping("schema['node_sets']", schema.get("node_sets", {}))
    edges = mapping("schema['edge_sets']", schema.get("edge_sets", {}))
    if not nodes:
        refuse("schema", "a schema with node sets", schema)
    out: Schema = {"context": {}, "node_sets": {}, "edge_sets": {}}
    what = "schema['context']"
    out["context"]["features"] = _features(what, schema.get("context") or {})
    for name, piece in nodes.items():
        what = f"schema['node_sets'][{name!r}]"
        out["node_sets"][name] = {"features": _features(what, piece)}
    for name, piece in edges.items():
        what = f"schema['edge_sets'][{name!r}]"
        features = _features(what, piece)
        ends = {}
        for end in ("source", "target"):
            ends[end] = string(f"{what}[{end!r}]", piece.get(end))
            if ends[end] not in nodes:
                refuse(f"{what}[{end!r}]", f"one of {sorted(nodes)}", ends[end])
        out["edge_sets"][name] = {**ends, "features": features}
    return out


def _features(what: str, piece: Any) -> dict[str, dict[str, Any]]:
    """Return the features of a context, node set or edge set."""
    features = mapping(what, piece).get("features", {})
    out = {}
    for name, feature in mapping(f"{what}['features']", features).items():
        key = f"{what}['features'][{name!r}]"
        dtype = mapping(key, feature).get("dtype", "DT_FLOAT")
        if not isinstance(dtype, str) or not _TYPE.fullmatch(dtype):
            refuse(f"{key}['dtype']", "a type such as 'DT_FLOAT'", dtype)
        shape = feature.get("shape", [])
        sizes = isinstance(shape, list | tuple) and all(
            isinstance(size, int) and size >= -1 for size in shape
        )
        if not sizes:
            refuse(f"{key}['shape']", "a list of integers", shape)
        out[name] = {"dtype": dtype, "shape": list(shape)}
    return out


def is_float(feature: Mapping[str, Any]) -> bool:
    """Return whether a feature of a schema has floating-point numbers."""
    return feature["dtype"] in _FLOAT


# === Text format of protocol buffers ===


def _schema_of(message: Mapping[str, list]) -> Schema:
    """Return the schema of a message: field -> its values."""

    def features(piece: Mapping) -> dict[str, dict]:
        out = {}
        for name, feature in _entries("features", piece).items():
            shapes = _messages("shape", feature)
            ragged = any(shape.get("unknown_rank") for shape in shapes)
            dims = [dim for shape in shapes for dim in _messages("dim", shape)]
            sizes = [-1] if ragged else [dim.get("size", [-1])[-1] for dim in dims]
            out[name] = {"shape": sizes}
            if "dtype" in feature:
                out[name]["dtype"] = feature["dtype"][-1]
        return out

    contexts = _messages("context", message)
    schema: Schema = {k: v for k, v in message.items() if k not in _FIELDS}
    schema["context"] = {
        "features": {k: v for piece in contexts for k, v in features(piece).items()}
    }
    for field in ("node_sets", "edge_sets"):
        schema[field] = {}
        for name, piece in _entries(field, message).items():
            ends = {k: piece[k][-1] for k in ("source", "target") if k in piece}
            schema[field][name] = {**ends, "features": features(piece)}
    return schema


def _messages(field: str, message: Mapping[str, list]) -> list[dict]:
    """Return the values of a field, which are messages."""
    values = message.get(field, [])
    for value in values:
        if not isinstance(value, dict):
            refuse(field, "a message, {...}", value)
    return values


def _entries(field: str, message: Mapping[str, list]) -> dict[str, dict]:
    """Return the entries of a map, from key to message."""
    out = {}
    for entry in _messages(field, message):
        key = string(f"key of {field}", entry.get("key", [None])[-1])
        out[key] = (_messages("value", entry) or [{}])[-1]
    return out


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield the kind, the text and the line of each token, and the end."""
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            _refuse_line(line, "a name, a value or a bracket", text[position])
        if match.lastgroup != "space":
            yield match.lastgroup, match[0], line
        position, line = match.end(), line + match[0].count("\n")
    yield "end", "", line


def _refuse_line(line: int, expected: str, received: str) -> None:
    raise ValueError(
        f"Expected {expected} in line {line} of the schema. Received: "
        f"{received or 'the end of the text'!r:.60}. Correct the text format."
    )


def _parsed(text: str) -> dict[str, list]:
    """Return a message in text format: field -> its values."""
    tokens = _tokens(text)
    # Open messages, with the token that ends each and the line where it begins.
    stack: list[tuple[dict, str, int]] = [({}, "", 1)]
    for kind, token, line in tokens:
        message, closing, opened = stack[-1]
        if token == closing:
            stack.pop()
            continue
        if token in (",", ";"):
            continue
        if kind != "word":
            end = f" or {closing!r} for line {opened}" if closing else ""
            _refuse_line(line, f"the name of a field{end}", token)
        field = token
        kind, token, line = next(tokens)
        if token == ":":
            kind, token, line = next(tokens)
        elif token not in _CLOSING:
            _refuse_line(line, f"':' or '{{' after {field!r}", token)
        values = message.setdefault(field, [])
        if token in _CLOSING and kind == "mark":
            values.append({})
            stack.append((values[-1], _CLOSING[token], line))
        elif token == "[" and kind == "mark":
            values += _listed(tokens)
        else:
            values.append(_scalar(kind, token, line))
    return message


def _listed(tokens: Iterator[tuple[str, str, int]]) -> list:
    """Return the values of a list whose bracket has been read."""
    values = []
    for kind, token, line in tokens:
        if (kind, token) == ("mark", "]"):
            break
        if token != ",":
            values.append(_scalar(kind, token, line))
    return values


def _scalar(kind: str, token: str, line: int) -> Any:
    """Return a string, a number or the name of an enumerator."""
    if kind not in ("text", "word"):
        _refuse_line(line, "a value", token)
    try:
        return _string(token) if kind == "text" else int(token)
    except ValueError:
        if kind == "text":
            _refuse_line(line, "a string", token)
    try:
        return float(token)
    except ValueError:
        return token


def _string(token: str) -> str:
    """Return the text of string literals, which follow one another."""
    body = "".join(part[1:-1] for part in re.findall(_STRING, token))
    return _ESCAPE.sub(_unescaped, body.encode()).decode()


def _unescaped(match: re.Match) -> bytes:
    octal, hexadecimal, character = match.groups()
    if character is None:
        return bytes([int(octal, 8) & 255 if octal else int(hexadecimal, 16)])
    if character[0] not in _CHARACTERS:
        raise ValueError(f"Expected an escape. Received: {match[0]!r}.")
    return bytes([_CHARACTERS[character[0]]])
