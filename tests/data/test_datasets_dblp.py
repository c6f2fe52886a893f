"""The tables of DBLP's four areas, as a graph with node sets."""

import numpy as np
import pytest

from keras_bandgnn.data import load, to_sets

TABLES = {
    "author_label": "7\t2\tAda\n3\t0\tBea\n",
    # The second author of paper 20 has no area; paper 30 has no such author.
    "paper_author": "20\t7\n10\t3\n20\t5\n30\t5\n10\t7\n",
    "paper_conf": "10\t1\n20\t4\n30\t9\n",
    "paper_term": "10\t50\n10\t60\n20\t60\n30\t70\n",
}


def write(folder, **changes):
    for name, text in {**TABLES, **changes}.items():
        (folder / f"{name}.txt").write_text(text, "utf-8")


def test_dblp(tmp_path):
    write(tmp_path)
    (graph,) = load("dblp", path=tmp_path)
    parts = to_sets(graph)
    assert [*graph.sets] == ["author", "conf", "paper", "term"]
    assert parts["label"]["author"].tolist() == [0, 2]
    assert parts["nodes"]["conf"]["id"].tolist() == [0, 1]
    assert parts["nodes"]["term"]["id"].tolist() == [0, 1]
    ends = {key: np.sort(v["edge_index"]) for key, v in parts["edges"].items()}
    assert len(ends) == 6
    writes = parts["edges"]["author", "writes", "paper"]["edge_index"]
    assert sorted(zip(*writes.tolist(), strict=True)) == [(0, 0), (1, 0), (1, 1)]
    has = parts["edges"]["paper", "has", "term"]["edge_index"]
    assert sorted(zip(*has.tolist(), strict=True)) == [(0, 0), (0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"author_label": "7\t2\n7\t0\n"}, "one area of each author"),
        ({"author_label": "7 2\n"}, "two numbers in each line.*line 1"),
        ({"author_label": "-7\t2\n"}, "at least 0"),
        ({"paper_author": ""}, "to have lines"),
        ({"paper_author": "20\t5\n"}, "papers of these authors"),
        ({"paper_conf": "10\t1\n"}, "a conference of each paper"),
    ],
)
def test_dblp_bad_input(tmp_path, changes, reason):
    write(tmp_path, **changes)
    with pytest.raises(ValueError, match=reason):
        load("dblp", path=tmp_path)
