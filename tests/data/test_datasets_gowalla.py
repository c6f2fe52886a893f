"""Lists of items of users, as a graph with node sets and a split of its edges."""

import numpy as np
import pytest

from keras_bandgnn.data import load, split_by_masks

# A user without items to test, and a blank at the end of a line.
TABLES = {"train": "0 1 2\n1 0 3\n2 2\n", "test": "0 3 0\n1\n2 1 \n"}
VISITS = ("user", "visits", "item")


def write(folder, **changes):
    for name, text in {**TABLES, **changes}.items():
        (folder / f"{name}.txt").write_text(text, "utf-8")


def pairs_of(pairs):
    return sorted(zip(pairs.senders.tolist(), pairs.receivers.tolist(), strict=True))


def test_gowalla(tmp_path):
    write(tmp_path)
    (graph,) = load("gowalla", path=tmp_path)
    assert [*graph.sets] == ["item", "user"]
    assert graph.sets["user"]["id"].tolist() == [0, 1, 2]
    assert graph.sets["item"]["id"].tolist() == [0, 1, 2, 3]
    assert [tuple(key) for key in graph.info["edge_sets"]] == [
        ("item", "rev_visits", "user"),
        VISITS,
    ]
    split = split_by_masks(graph, edge_set=VISITS)
    train = [(0, 1), (0, 2), (1, 0), (1, 3), (2, 2)]
    test = [(0, 0), (0, 3), (2, 1)]
    assert pairs_of(split.train_pairs) == train
    assert pairs_of(split.test_pairs) == test
    assert not len(split.valid_pairs)
    assert pairs_of(split.known) == sorted(train + test)
    # Messages are the training pairs, both ways.
    assert split.train.num_edges == 2 * len(train)
    assert not split.train.edge


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"train": "0 1 2\n1 0 x\n"}, "integers alone"),
        ({"train": "0 1 2\n1 0 3.5\n"}, "integers alone"),
        ({"train": "\n"}, "a user and items"),
        ({"train": "0 1 2\n1 0 -3\n"}, "at least 0"),
        ({"train": "0 1 2\n1 0 3\n4 2\n"}, "all numbers of users"),
        ({"train": "0 1 2\n1 0 7\n2 2\n"}, "all numbers of items"),
        ({"train": f"0 1 2\n1 0 {2**70}\n2 2\n"}, "integers alone"),
        ({"train": "0 1 2 1\n1 0 3\n2 2\n"}, "a pair once"),
        ({"train": "0 1 2 3\n1 0 3\n2 2\n"}, "a pair once"),
    ],
)
def test_gowalla_bad_input(tmp_path, changes, reason):
    write(tmp_path, **changes)
    with pytest.raises(ValueError, match=reason):
        load("gowalla", path=tmp_path)


def test_real_check_ins(tmp_path, shared_data):
    path = shared_data / "bipartite_gowalla" / "gowalla.npz"
    if not path.exists():
        pytest.skip("no check-ins of Gowalla")
    arrays = np.load(path)
    train = np.concatenate([arrays["train"], arrays["valid"]], axis=1)
    for name, (users, items) in (("train", train), ("test", arrays["test"])):
        order = np.argsort(users, kind="stable")
        starts = np.searchsorted(users[order], np.arange(29_858 + 1))
        with open(tmp_path / f"{name}.txt", "w", encoding="utf-8") as file:
            for user, (a, b) in enumerate(zip(starts, starts[1:], strict=False)):
                words = [user, *items[order[a:b]].tolist()]
                file.write(" ".join(map(str, words)) + "\n")
    (graph,) = load("gowalla", path=tmp_path)
    assert (graph.num_nodes, graph.num_edges) == (70_839, 2_054_740)
    split = split_by_masks(graph, edge_set=VISITS)
    assert len(split.train_pairs) == 810_128
    assert len(split.test_pairs) == 217_242
    assert split.train.num_edges == 2 * 810_128
