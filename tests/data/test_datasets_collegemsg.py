"""Messages with times, in the form of SNAP's temporal networks."""

import gzip

import numpy as np
import pytest

from keras_bandgnn.data import load, split_links

LINES = (
    "1 2 1082040961\n3 4 1082155839\n5 2 1082414391\n6 7 1082439619\n3 4 1082439756\n"
)


@pytest.mark.parametrize("name", ["CollegeMsg.txt", "CollegeMsg.txt.gz"])
def test_collegemsg(tmp_path, name):
    packed = gzip.compress(LINES.encode()) if name.endswith("gz") else LINES.encode()
    (tmp_path / name).write_bytes(packed)
    (graph,) = load("collegemsg", path=tmp_path)
    assert graph.num_nodes == 7
    assert graph.edge["time"].dtype == np.int64
    events = zip(
        graph.senders.tolist(),
        graph.receivers.tolist(),
        graph.edge["time"].tolist(),
        strict=True,
    )
    assert sorted(events, key=lambda event: event[2]) == [
        (0, 1, 1082040961),
        (2, 3, 1082155839),
        (4, 1, 1082414391),
        (5, 6, 1082439619),
        (2, 3, 1082439756),
    ]
    split = split_links(graph, 0.2, 0.2, undirected=False, time=True)
    assert split.test_pairs.time.tolist() == [1082439756]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Empty CSV file"),
        ("1 2\n", "three integers"),
        ("1 2 3.5\n", "three integers"),
        ("1 2 x\n", "only numbers"),
        ("1 -2 3\n", "at least 0"),
    ],
)
def test_collegemsg_bad_input(tmp_path, text, reason):
    (tmp_path / "CollegeMsg.txt").write_text(text, "utf-8")
    with pytest.raises(ValueError, match=reason):
        load("collegemsg", path=tmp_path)
