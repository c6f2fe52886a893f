import dataclasses

import numpy as np
import pytest

from keras_bandgnn.preprocessing import ProgramEncoder
from keras_bandgnn.programs import RELATIONS, ProgramGraph, encode_program
from keras_bandgnn.programs.node_text import encode_characters, hash_id, split_subtokens


def pairs(*edges):
    return np.array(edges, np.int32).reshape(-1, 2)


PROGRAM = ProgramGraph(
    labels=("<SLOT>", "fooBar", "bar", "ArgumentList", "return", "fooBar2", "==", "x"),
    kinds=(
        "Slot",
        "Candidate",
        "Candidate",
        "ArgumentList",
        "Keyword",
        "Identifier",
        "Operator",
        "Identifier",
    ),
    edges={
        "Child": pairs((3, 4), (3, 5), (3, 6)),
        "NextToken": pairs((4, 0), (0, 5), (5, 6)),
        "LastUse": pairs((1, 5), (2, 2)),
        "ReturnsTo": pairs(),
    },
    slot=0,
    candidates=(1, 2),
    correct=1,
    node_types={0: "int", 5: "string"},
    info={"filename": "a.py"},
)


def triples(graph):
    edges = (graph.senders, graph.receivers, graph.edge_type)
    return sorted(zip(*(e.tolist() for e in edges), strict=True))


def slow_triples(program, keywords, reverse=True, subtokens=True):
    """The definition, one edge at a time."""
    names = {}
    edges = [
        (int(s), int(r), RELATIONS.index(name))
        for name, ends in program.edges.items()
        for s, r in ends
    ]
    for node, label in enumerate(program.labels):
        if subtokens and node != program.slot and label not in keywords:
            for part in dict.fromkeys(split_subtokens(label)):
                new = names.setdefault(part, len(program.labels) + len(names))
                edges.append((node, new, 10))
    step = 11 if subtokens else 10
    if reverse:
        edges += [(r, s, p + step) for s, r, p in edges]
    return sorted(edges), list(names)


@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("subtokens", [True, False])
def test_edges(reverse, subtokens):
    graph = encode_program(PROGRAM, reverse=reverse, subtoken_nodes=subtokens)
    expected, names = slow_triples(PROGRAM, {"return"}, reverse, subtokens)
    assert triples(graph) == expected
    assert graph.num_nodes == len(PROGRAM.labels) + len(names)
    if subtokens:
        assert names == ["foo", "bar", "argument", "list", "2", "x"]


def test_types():
    graph = encode_program(PROGRAM, num_type_buckets=100)
    types = graph.node["type"]
    assert types.tolist()[:3] == [1, 2, 2] and (types[8:] == 3).all()
    assert ((types[3:8] >= 4) & (types[3:8] < 100)).all()
    assert types[5] == types[7] != types[6]
    assert types.dtype == np.int32


def test_subtoken_rows():
    graph = encode_program(PROGRAM, max_subtokens=2, num_subtoken_buckets=999)
    rows = graph.node["subtoken"]

    def ids(*parts):
        return [hash_id(part, 999) for part in parts] + [0] * (2 - len(parts))

    assert rows.dtype == np.int32 and rows.shape == (14, 2)
    assert rows[0].tolist() == [0, 0]
    assert rows[1].tolist() == rows[5].tolist() == ids("foo", "bar")
    assert rows[4].tolist() == ids("return")
    assert rows[6].tolist() == ids("==")
    assert rows[8].tolist() == ids("foo") and rows[13].tolist() == ids("x")


def test_characters_and_none():
    rows = encode_program(PROGRAM, labels="character").node["character"]
    assert rows.dtype == np.int32 and rows.shape == (14, 19)
    for i, label in enumerate([*PROGRAM.labels, "foo", "bar"]):
        assert rows[i].tolist() == list(encode_characters(label))
    assert set(encode_program(PROGRAM, labels="none").node) == {"type"}


@pytest.mark.parametrize("labels", ["subtoken", "character", "none"])
@pytest.mark.parametrize("subtokens", [True, False])
def test_the_encoder_names_the_inputs_and_edge_types_of_a_model(labels, subtokens):
    encoder = ProgramEncoder(labels, subtoken_nodes=subtokens, num_type_buckets=64)
    assert encoder.num_edge_types == (22 if subtokens else 20)
    graph = encoder(PROGRAM)
    assert graph.edge_type.max() < encoder.num_edge_types
    inputs = encoder.inputs()
    assert set(inputs) == set(graph.node) and inputs["type"] == {"ids": 64}
    assert inputs.get("subtoken", {"ids": 16384}) == {"ids": 16384}
    if labels == "character":
        width = graph.node["character"].shape[1]
        assert inputs["character"] == {"characters": width}


def test_static_types():
    known = encode_program(PROGRAM, static_types=True).node["static_type"]
    assert known[5] == hash_id("string", 512)
    assert np.count_nonzero(known) == 1  # that of the slot is hidden


def test_the_slot_s_own_text_is_never_seen():
    labels = ("secretName", *PROGRAM.labels[1:])
    told = dataclasses.replace(PROGRAM, labels=labels)
    for kind in ("subtoken", "character"):
        a, b = (encode_program(p, labels=kind) for p in (PROGRAM, told))
        np.testing.assert_array_equal(a.node[kind], b.node[kind])
        assert triples(a) == triples(b)


def test_candidates_are_shuffled_with_a_seed():
    plain = encode_program(PROGRAM)
    assert plain.candidates.tolist() == [1, 2] and plain.label == 1 and plain.slot == 0
    positions = set()
    for index in range(20):
        graph = encode_program(PROGRAM, seed=(7, index))
        again = encode_program(PROGRAM, seed=[7, index])
        assert graph.candidates.tolist() == again.candidates.tolist()
        assert graph.candidates[graph.label] == 2
        names = [PROGRAM.labels[i] for i in graph.candidates]
        assert dict(graph.info) == {"filename": "a.py", "candidates": names}
        positions.add(int(graph.label))
    assert positions == {0, 1}
    unknown = dataclasses.replace(PROGRAM, correct=None)
    assert encode_program(unknown, seed=0).label is None


def test_keywords_of_the_language():
    program = dataclasses.replace(PROGRAM, labels=(*PROGRAM.labels[:7], "foreach"))
    python, csharp = (
        encode_program(program, language=language) for language in ("python", "csharp")
    )
    assert python.num_nodes == csharp.num_nodes + 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"labels": "words"}, "`labels` to be one of.*Received: labels='words'"),
        ({"language": "java"}, "`language` to be one of"),
        ({"num_type_buckets": 4}, "at least 5"),
        ({"num_subtoken_buckets": 1}, "at least 2 buckets"),
        ({"max_subtokens": 0}, "at least 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        encode_program(PROGRAM, **options)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"kinds": ("Slot",)}, "one kind per label"),
        ({"edges": {"Calls": pairs((0, 1))}}, r"Received: \['Calls'\]"),
        ({"edges": {"Child": pairs((0, 8))}}, r"Child edge in \[0, 8\). Received: 8"),
        ({"edges": {"Child": pairs((0, -1))}}, "Child edge"),
        ({"candidates": (8,)}, r"\[0, 8\)"),
        ({"candidates": ()}, "at least one candidate"),
        ({"correct": 2}, "correct"),
        ({"node_types": {8: "int"}}, "node_types"),
    ],
)
def test_bad_programs(changes, message):
    program = dataclasses.replace(PROGRAM, **changes)
    with pytest.raises(ValueError, match=message):
        encode_program(program)


def test_real_graphs(shared_data):
    from keras_bandgnn.programs import read_varmisuse
    from keras_bandgnn.programs.node_text import CSHARP_KEYWORDS

    folder = shared_data / "varmisuse" / "original_subset" / "graphs-test"
    for index, program in enumerate(read_varmisuse(folder)):
        if index == 5:
            break
        graph = encode_program(program, language="csharp")
        assert triples(graph) == slow_triples(program, CSHARP_KEYWORDS)[0]


def test_reordering_moves_the_node_ids_of_candidates():
    program = ProgramGraph(
        labels=("<SLOT>", "right", "wrong", "x"),
        kinds=("Slot", "Candidate", "Candidate", "Identifier"),
        edges={"LastUse": np.array([[1, 3], [3, 2]], np.int32)},
        slot=0,
        candidates=(1, 2),
        correct=0,
        node_types={1: "int"},
        info={"nearest": 1},
    )
    swapped = program.reordered([1, 0])
    assert swapped.labels == ("<SLOT>", "wrong", "right", "x")
    assert swapped.candidates == (1, 2) and swapped.correct == 1
    assert swapped.edges["LastUse"].tolist() == [[2, 3], [3, 1]]
    assert swapped.node_types == {2: "int"} and swapped.info["nearest"] == 0
    places = set()
    for index in range(40):
        named = dataclasses.replace(program, info={"filename": str(index)})
        places.add(named.shuffled().correct)
    assert places == {0, 1}
