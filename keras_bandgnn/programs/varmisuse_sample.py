"""Conversion of a variable-misuse sample between JSON and `ProgramGraph`."""

import functools
import itertools
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from keras_bandgnn.checks import shown
from keras_bandgnn.programs.node_text import CSHARP_KEYWORDS
from keras_bandgnn.programs.program_graph import RELATIONS, ProgramGraph

_IN_FILES = RELATIONS[:-1]
_NUMBER = re.compile(r"\.?[0-9]")
_STRING = re.compile(r"[@$]{0,2}[\"']")
_NAME = re.compile(r"@?[^\W\d]")


@functools.lru_cache(2**16)
def token_class(label: str) -> str:
    """Return a C# token's class: Identifier, Keyword, Number, String or Operator."""
    if label in CSHARP_KEYWORDS:
        return "Keyword"
    if _STRING.match(label):
        return "String"
    if _NAME.match(label):
        return "Identifier"
    return "Number" if _NUMBER.match(label) else "Operator"


class _Sample:
    """The location of a parsed sample, for errors."""

    def __init__(self, where: str):
        self.where = where

    def fail(self, key: str, expected: str, received: Any, hint: str = "") -> NoReturn:
        if not isinstance(received, str):
            received = shown(received)
        if len(received) > 200:
            received = received[:200] + "..."
        hint = hint or "Skip the sample with on_error='skip', or correct it."
        raise ValueError(
            f"{self.where}, key {key!r}: Expected {expected}. Received: {received}. "
            f"{hint}"
        )

    def get(self, parent: Mapping, key: str, kind: type, path: str = "") -> Any:
        """Return the value of a required key with the given type."""
        names = {dict: "an object", list: "a list", int: "an integer", str: "text"}
        if key not in parent:
            self.fail(path + key, names[kind], f"no such key, only {list(parent)}")
        # bool is a subclass of int, but is not accepted as one.
        if type(parent[key]) is not kind:
            self.fail(path + key, names[kind], parent[key])
        return parent[key]

    def node(self, value: Any, key: str, count: int) -> int:
        if type(value) is not int or not 0 <= value < count:
            self.fail(key, f"a node id in [0, {count})", value)
        return value


def from_sample(sample: Any, where: str) -> ProgramGraph:
    """Validate a parsed sample and convert it to a program graph.

    Args:
        sample: The parsed JSON value.
        where: File and location, for errors.

    Raises:
        ValueError: If the sample is invalid; the message names the location and key.
    """
    at = _Sample(where)
    if not isinstance(sample, dict):
        at.fail("", "a sample, an object", sample)
    if "SlotDummyNode" not in sample and "HoleNode" in sample:
        at.fail(
            "SlotDummyNode",
            "a variable-misuse sample",
            "a sample with 'HoleNode', the format of expression holes",
            "It has no candidates to choose from. Skip this file.",
        )
    graph = at.get(sample, "ContextGraph", dict)
    labels = _labels(at, at.get(graph, "NodeLabels", dict, "ContextGraph."))
    count = len(labels)
    slot = at.node(at.get(sample, "SlotDummyNode", int), "SlotDummyNode", count)
    candidates, correct, name = _candidates(at, sample, slot, count)
    edges = _edges(at, at.get(graph, "Edges", dict, "ContextGraph."), count)
    kinds = list(map(token_class, labels))
    for i in np.unique(edges["Child"][:, 0]).tolist():
        kinds[i] = labels[i]
    for i, kind in _by_node(at, graph, "NodeKinds", count).items():
        kinds[i] = kind
    for i in candidates:
        kinds[i] = "Candidate"
    kinds[slot] = "Slot"
    info = {k: sample[k] for k in ("filename", "slotTokenIdx") if k in sample}
    extra = at.get(sample, "Info", dict) if "Info" in sample else {}
    return ProgramGraph(
        labels=labels,
        kinds=tuple(kinds),
        edges=edges,
        slot=slot,
        candidates=candidates,
        correct=correct,
        node_types=_by_node(at, graph, "NodeTypes", count),
        info={**info, "variable": name, **extra},
    )


def _labels(at: _Sample, labels_by_id: dict) -> tuple[str, ...]:
    key = "ContextGraph.NodeLabels"
    ids = [str(i) for i in range(len(labels_by_id))]
    if list(labels_by_id) != ids:
        try:
            labels_by_id = {i: labels_by_id[i] for i in ids}
        except KeyError:
            strange = sorted(set(labels_by_id) - set(ids))[:5]
            missing = sorted(set(ids) - set(labels_by_id), key=int)[:5]
            expected = f"the keys '0' to '{len(ids) - 1}' without gaps"
            at.fail(key, expected, f"without {missing}, but with {strange}")
    labels = tuple(labels_by_id.values())
    if not labels:
        at.fail(key, "at least one node", labels_by_id)
    if set(map(type, labels)) != {str}:
        bad = next(i for i, label in enumerate(labels) if not isinstance(label, str))
        at.fail(f"{key}.{bad}", "text", labels[bad])
    return labels


def _candidates(
    at: _Sample, sample: dict, slot: int, count: int
) -> tuple[tuple[int, ...], int, str]:
    listed = at.get(sample, "SymbolCandidates", list)
    nodes, names, right = [], [], []
    for i, entry in enumerate(listed):
        path = f"SymbolCandidates[{i}]"
        if not isinstance(entry, dict):
            at.fail(path, "an object", entry)
        path += "."
        node = at.get(entry, "SymbolDummyNode", int, path)
        nodes.append(at.node(node, path + "SymbolDummyNode", count))
        names.append(at.get(entry, "SymbolName", str, path))
        if not isinstance(entry.get("IsCorrect"), bool):
            at.fail(path + "IsCorrect", "true or false", entry.get("IsCorrect"))
        if entry["IsCorrect"]:
            right.append(i)
    key = "SymbolCandidates"
    if len(right) != 1:
        received = f"{len(right)} of {len(listed)}"
        at.fail(key, "exactly one candidate with IsCorrect true", received)
    if len({slot, *nodes}) != 1 + len(nodes):
        at.fail(key, f"distinct nodes other than the slot {slot}", nodes)
    return tuple(nodes), right[0], names[right[0]]


def _edges(at: _Sample, edges_by_name: dict, count: int) -> dict[str, np.ndarray]:
    if unknown := [name for name in edges_by_name if name not in _IN_FILES]:
        key = f"ContextGraph.Edges.{unknown[0]}"
        at.fail(key, f"one of the edge types {_IN_FILES}", f"{unknown[0]!r}")
    edges = {}
    for name in _IN_FILES:
        pairs = (
            at.get(edges_by_name, name, list, "ContextGraph.Edges.")
            if name in edges_by_name
            else []
        )
        try:
            # Checked first: NumPy would build a huge array from a long string.
            integers = set(map(type, itertools.chain.from_iterable(pairs))) <= {int}
            array = np.array(pairs if integers else 0).reshape(len(pairs), 2)
        except (TypeError, ValueError, OverflowError):
            array = np.zeros(0)
        array = array if pairs else np.zeros((0, 2), np.int32)
        key = f"ContextGraph.Edges.{name}"
        if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind != "i":
            at.fail(key, "a list of [source, target] pairs of integers", pairs)
        if array.size and (array.min() < 0 or array.max() >= count):
            bad = int(np.flatnonzero(((array < 0) | (array >= count)).any(1))[0])
            ids = array[bad].tolist()
            at.fail(f"{key}[{bad}]", f"node ids in [0, {count})", ids)
        edges[name] = array.astype(np.int32)
    return edges


def _by_node(at: _Sample, graph: dict, name: str, count: int) -> dict[int, str]:
    """Return an optional map from nodes to text, such as `NodeTypes`."""
    key = f"ContextGraph.{name}"
    values = at.get(graph, name, dict, "ContextGraph.") if name in graph else {}
    try:
        texts = {int(i): text for i, text in values.items()}
    except ValueError:
        at.fail(key, "node ids as keys", list(values))
    if texts and not (0 <= min(texts) and max(texts) < count):
        bad = next(i for i in texts if not 0 <= i < count)
        at.fail(f"{key}.{bad}", f"a node id in [0, {count})", bad)
    if texts and set(map(type, texts.values())) != {str}:
        bad = next(i for i, text in texts.items() if not isinstance(text, str))
        at.fail(f"{key}.{bad}", "text", texts[bad])
    return texts


def to_sample(program: ProgramGraph, what: str, correct_first: bool) -> dict[str, Any]:
    """Convert a program graph to JSON values.

    Args:
        program: A program whose correct candidate is known.
        what: Name of the program in errors.
        correct_first: Whether to list the correct candidate first.

    Raises:
        ValueError: If the correct candidate is unknown.
    """
    if program.correct is None:
        raise ValueError(
            f"Expected {what} to have a correct candidate, which the format requires. "
            "Received: correct=None. Skip it."
        )
    right = program.candidates[program.correct]
    order = list(program.candidates)
    if correct_first:
        order = [right, *(i for i in order if i != right)]
    edges = {k: np.asarray(program.edges.get(k, ())).tolist() for k in _IN_FILES}
    edges = {name: pairs for name, pairs in edges.items() if pairs}
    graph = {
        "Edges": edges,
        "NodeLabels": {str(i): label for i, label in enumerate(program.labels)},
        "NodeTypes": {
            str(i): program.node_types[i] for i in sorted(program.node_types)
        },
    }
    parents = {source for source, _ in edges.get("Child", ())}
    marked = {program.slot, *program.candidates}
    kinds = {}
    for i, (label, kind) in enumerate(zip(program.labels, program.kinds, strict=True)):
        told = label if i in parents else token_class(label)
        if i not in marked and kind != told:
            kinds[str(i)] = kind
    if kinds:
        graph["NodeKinds"] = kinds
    info = dict(program.info)
    sample = {k: info.pop(k) for k in ("filename", "slotTokenIdx") if k in info}
    if info.get("variable") == program.labels[right]:
        info.pop("variable")
    sample |= {
        "ContextGraph": graph,
        "SlotDummyNode": program.slot,
        "SymbolCandidates": [
            {
                "SymbolDummyNode": i,
                "SymbolName": program.labels[i],
                "IsCorrect": i == right,
            }
            for i in order
        ],
    }
    if info:
        sample["Info"] = info
    return sample
