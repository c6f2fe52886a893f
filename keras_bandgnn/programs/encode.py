"""`encode_program`: converts a program graph with text to a `Graph` with ids."""

import functools
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_bandgnn.checks import (
    boolean,
    instance,
    one_of,
    positive_int,
    seed_number,
    sequence,
)
from keras_bandgnn.data.flat_columns import gather_rows, pointers
from keras_bandgnn.graph import Graph
from keras_bandgnn.programs.node_text import (
    KEYWORDS,
    encode_characters,
    hash_id,
    subtokens,
)
from keras_bandgnn.programs.program_graph import RELATIONS, SLOT_LABEL, ProgramGraph

PADDING_TYPE, SLOT_TYPE, CANDIDATE_TYPE, SUBTOKEN_TYPE = range(4)
"""Fixed ids of node types; other kinds have ids from 4 on."""

_SUBTOKEN = len(RELATIONS) - 1


def encode_program(
    program: ProgramGraph,
    *,
    labels: str = "subtoken",
    reverse: bool = True,
    subtoken_nodes: bool = True,
    static_types: bool = False,
    num_type_buckets: int = 512,
    num_subtoken_buckets: int = 16384,
    max_subtokens: int = 6,
    language: str = "python",
    seed: int | Sequence[int] | None = None,
) -> Graph:
    """Encode a variable-misuse instance as a graph of ids.

    Edge types are positions in `RELATIONS`, 0 to 10, and the reverse of type p is
    p + 11, so P = 22. Without subtoken nodes they are 0 to 9 and p + 10, so P = 20.
    Program nodes keep their ids. They are followed by one node per distinct subtoken,
    with a `UsesSubtoken` edge from every node whose label contains it, except reserved
    words of the language and the slot, whose label is hidden.

    The order of candidates in a data set may leak the answer (in the files of Allamanis
    et al. the correct one is always first), so pass a seed.

    Node features, all int32:
        type: [N], 1 for the slot, 2 for candidates, 3 for subtoken nodes, otherwise
            the kind hashed into [4, num_type_buckets).
        subtoken: [N, max_subtokens], hashed parts of the label in [1,
            num_subtoken_buckets), padded with 0. A label without letters or digits is
            one part. All 0 for the slot.
        character: [N, 19], codes of `encode_characters`.
        static_type: [N], the static type hashed into [1, num_type_buckets), 0 if
            unknown and for the slot.

    Args:
        program: The instance.
        labels: Feature computed from labels: `"subtoken"`, `"character"` or `"none"`.
        reverse: Whether to add the reverse of each edge.
        subtoken_nodes: Whether to add subtoken nodes.
        static_types: Whether to add `static_type`.
        num_type_buckets: Number of node type ids, at least 5.
        num_subtoken_buckets: Number of subtoken ids including padding.
        max_subtokens: Maximum number of parts of a label.
        language: `"python"` or `"csharp"`, whose reserved words have no subtokens.
        seed: Seed of the candidates' order, for example (seed, index of the
            instance); keeps the order if omitted.

    Returns:
        A graph with candidates, slot, label (position of the correct candidate, None if
        unknown) and the program's info plus `candidates`, their names.

    Raises:
        ValueError: If an option is unknown or the program is not consistent.

    Reference:
        Allamanis et al., "Learning to Represent Programs with Graphs", ICLR 2018,
        sections 3 and 4.
    """
    instance("program", program, ProgramGraph, "a ProgramGraph")
    one_of("labels", labels, ("subtoken", "character", "none"))
    one_of("language", language, tuple(KEYWORDS))
    positive_int("num_type_buckets", num_type_buckets, 5)
    if num_subtoken_buckets == 1:
        raise ValueError(
            "Expected `num_subtoken_buckets` to be at least 2 buckets: one for "
            "padding, one to hash into. Received: num_subtoken_buckets=1."
        )
    positive_int("num_subtoken_buckets", num_subtoken_buckets, 2)
    positive_int("max_subtokens", max_subtokens)
    if seed is not None:
        for part in sequence("seed", seed) if isinstance(seed, Sequence) else [seed]:
            seed_number("seed", part)
    boolean("reverse", reverse)
    boolean("subtoken_nodes", subtoken_nodes)
    boolean("static_types", static_types)
    count = len(program.labels)
    _check_program(program, count)
    texts = list(program.labels)
    texts[program.slot] = ""
    unique, place = distinct(texts)
    senders, receivers, counts = _edges(program)
    parts: list[str] = []
    if subtoken_nodes:
        parts, users, occurring = subtoken_edges(unique, place, KEYWORDS[language])
        senders.append(users)
        receivers.append(occurring + np.int32(count))
        counts.append(len(users))
    kinds = np.arange(len(counts), dtype=np.int32)
    if reverse:
        senders, receivers = senders + receivers, receivers + senders
        kinds, counts = np.arange(2 * len(counts), dtype=np.int32), counts * 2
    total = count + len(parts)
    node = {"type": _types(program, total, num_type_buckets)}
    unique += parts
    place = np.append(place, np.arange(len(unique) - len(parts), len(unique)))
    if labels == "subtoken":
        encode = functools.partial(
            subtoken_row, buckets=num_subtoken_buckets, length=max_subtokens
        )
        node["subtoken"] = packed(map(encode, unique), np.int32)[place]
        node["subtoken"][program.slot] = 0
    elif labels == "character":
        codes = packed(map(encode_characters, unique), np.uint8)
        node["character"] = codes[place].astype(np.int32)
        node["character"][program.slot] = list(encode_characters(SLOT_LABEL))
    if static_types:
        node["static_type"] = _static_types(program, total, num_type_buckets)
    candidates, label = _candidates(program, seed)
    return Graph(
        total,
        senders=np.concatenate(senders),
        receivers=np.concatenate(receivers),
        edge_type=np.repeat(kinds, counts),
        node=node,
        candidates=candidates,
        label=label,
        slot=program.slot,
        info={**program.info, "candidates": [program.labels[i] for i in candidates]},
    )


def _check_program(program: ProgramGraph, count: int) -> None:
    if len(program.kinds) != count:
        raise ValueError(
            "Expected one kind per label. Received: "
            f"{len(program.kinds)} kinds, {count} labels. Pass as many kinds as labels."
        )
    if unknown := sorted(set(program.edges) - set(RELATIONS[:_SUBTOKEN])):
        raise ValueError(
            f"Expected edges of the relations {RELATIONS[:_SUBTOKEN]}. "
            f"Received: {unknown}."
        )
    ids = [program.slot, *program.candidates]
    if min(ids) < 0 or max(ids) >= count or not program.candidates:
        raise ValueError(
            f"Expected a slot and at least one candidate in [0, {count}). Received: "
            f"slot={program.slot}, candidates={tuple(program.candidates)}."
        )
    right = program.correct
    if right is not None and not 0 <= right < len(program.candidates):
        raise ValueError(
            "Expected `correct` to be the position of the correct candidate, in "
            f"[0, {len(program.candidates)}). Received: correct={right}."
        )
    for i in program.node_types:
        if not 0 <= i < count:
            raise ValueError(
                f"Expected the keys of `node_types` in [0, {count}). Received: {i}."
            )


def _edges(program: ProgramGraph) -> tuple[list, list, list]:
    senders, receivers, counts = [], [], []
    for relation in RELATIONS[:_SUBTOKEN]:
        pairs = np.asarray(program.edges.get(relation, ()), np.int32).reshape(-1, 2)
        senders.append(pairs[:, 0])
        receivers.append(pairs[:, 1])
        counts.append(len(pairs))
    ends = np.concatenate(senders + receivers)
    count = len(program.labels)
    if ends.size and (ends.min() < 0 or ends.max() >= count):
        bad = np.flatnonzero((ends < 0) | (ends >= count))[0]
        relation = np.repeat(RELATIONS[:_SUBTOKEN] * 2, counts * 2)[bad]
        raise ValueError(
            f"Expected the ends of every {relation} edge in [0, {count}). "
            f"Received: {ends[bad]}."
        )
    return senders, receivers, counts


def distinct(values: Iterable[Any]) -> tuple[list, np.ndarray]:
    """Return the distinct values in order of appearance, and each value's index."""
    index = {value: i for i, value in enumerate(dict.fromkeys(values))}
    return list(index), np.array([index[value] for value in values], np.int64)


def subtoken_edges(
    unique: Sequence[str], place: np.ndarray, keywords: frozenset[str]
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the distinct subtokens, and the edges to them, sorted by node."""
    index: dict[str, int] = {}
    flat: list[int] = []
    counts = np.zeros(len(unique), np.int64)
    for i, text in enumerate(unique):
        if text not in keywords:
            parts = _distinct_parts(text)
            counts[i] = len(parts)
            flat.extend([index.setdefault(part, len(index)) for part in parts])
    users = np.repeat(np.arange(len(place), dtype=np.int32), counts[place])
    occurring = np.array(flat, np.int32)[gather_rows(pointers(counts), place)]
    return list(index), users, occurring


@functools.lru_cache(2**17)
def _distinct_parts(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(subtokens(text)))


def _candidates(
    program: ProgramGraph, seed: int | Sequence[int] | None
) -> tuple[np.ndarray, int | None]:
    candidates = np.array(program.candidates, np.int32)
    label = program.correct
    if seed is not None:
        order = np.random.default_rng(seed).permutation(len(candidates))
        candidates = candidates[order]
        if label is not None:
            label = int(np.flatnonzero(order == label)[0])
    return candidates, label


@functools.lru_cache(2**14)
def kind_id(kind: str, buckets: int) -> int:
    """Return the id of a kind of nodes, after the fixed ids."""
    free = SUBTOKEN_TYPE + 1
    code = zlib.crc32(kind.encode("utf-8", "surrogatepass"))
    return free + code % (buckets - free)


@functools.lru_cache(2**17)
def subtoken_row(text: str, buckets: int, length: int) -> bytes:
    """Return the ids of a label's first parts, as the bytes of an int32 array."""
    parts = (subtokens(text) or (text,))[:length]
    ids = [hash_id(part, buckets) for part in parts]
    return struct.pack(f"={length}i", *ids, *[0] * (length - len(ids)))


def packed(rows: Iterable[bytes], dtype: type) -> np.ndarray:
    """Return rows of bytes as an array [rows, columns]."""
    rows = list(rows)
    return np.frombuffer(b"".join(rows), dtype).reshape(len(rows), -1)


def _types(program: ProgramGraph, total: int, buckets: int) -> np.ndarray:
    unique, place = distinct(program.kinds)
    ids = np.array([kind_id(kind, buckets) for kind in unique], np.int32)
    types = np.full(total, SUBTOKEN_TYPE, np.int32)
    types[: len(place)] = ids[place]
    types[list(program.candidates)] = CANDIDATE_TYPE
    types[program.slot] = SLOT_TYPE
    return types


def _static_types(program: ProgramGraph, total: int, buckets: int) -> np.ndarray:
    types = np.zeros(total, np.int32)
    for i, text in program.node_types.items():
        types[i] = hash_id(text, buckets)
    types[program.slot] = 0
    return types
