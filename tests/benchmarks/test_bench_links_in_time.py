"""The benchmark of links in time: its peer sees earlier messages alone."""

import argparse

import numpy as np
import pytest

from examples.benchmarks import links_in_time
from examples.benchmarks.__main__ import main
from examples.graphs_in_time import messages, seen_by_models


@pytest.fixture
def edges():
    graph = messages(np.random.default_rng(0), 12, 80)
    time = graph.edge["time"].copy()
    # Messages of one time.
    time[30:40] = time[30]
    return seen_by_models(graph.replace(edge={"time": time}), 8)


def test_earlier_messages_are_the_latest_of_a_node_before_a_time(edges):
    rows_of = links_in_time.EarlierMessages(edges, 4)
    times = edges.edge["time"]
    for node in range(edges.num_nodes):
        for when in (times[0], times[30], times[30] + 1, times.max() + 1):
            rows, there = rows_of.before(np.array([node]), np.array([when]))
            mine = times[(edges.receivers == node) & (times < when)]
            expected = np.sort(mine)[::-1][:4]
            assert rows_of.times[rows[there]].tolist() == expected.tolist()
            assert (edges.receivers == node).sum() >= there.sum() == len(expected)


def test_later_messages_change_no_score_of_the_peer(edges):
    torch = pytest.importorskip("torch")
    parser = argparse.ArgumentParser()
    links_in_time.add_arguments(parser)
    options = parser.parse_args([".", "--width", "8", "--messages", "4"])
    when = np.full(12, edges.edge["time"][30])
    late = edges.edge["time"] >= when[0]
    scores = []
    for changed in (late & ~late, late, ~late):
        graph = edges.replace(senders=np.where(changed, 0, edges.senders))
        torch.manual_seed(0)
        model = links_in_time.plain_model(graph, options)
        receivers = np.tile(np.arange(12), (12, 1))
        scores.append(model(np.arange(12), receivers, when).detach().numpy())
    np.testing.assert_array_equal(scores[0], scores[1])
    assert np.abs(scores[0] - scores[2]).max() > 1e-3


def test_the_command(tmp_path, capsys, edges):
    file = tmp_path / "CollegeMsg.txt"
    half = edges.num_edges // 2
    columns = edges.senders[:half], edges.receivers[:half], edges.edge["time"][:half]
    np.savetxt(file, np.stack(columns, axis=1), fmt="%d")
    line = [
        "links_in_time",
        str(file),
        "--seeds",
        "1",
        "--epochs",
        "1",
        "--future",
        "1",
    ]
    line += ["--width", "8", "--negatives", "5", "--future", "1"]
    line += ["--json", str(tmp_path / "f.json")]
    assert main(line) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    for name in ("LastPartner()", "GINE with the future", "plain torch, recent"):
        assert name in printed
    assert (tmp_path / "f.json").exists()
