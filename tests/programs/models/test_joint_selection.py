"""Predictions for a stream are those for a list, in few shapes and little memory."""

import numpy as np
import pytest

from keras_bandgnn import models, preprocessing
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.primitives import Plan
from keras_bandgnn.programs import program_graphs
from keras_bandgnn.programs.models.joint_selection import JointSelection, join

FUNCTION = """
def f{k}(alpha, beta, *rest, flag=None):
    total = alpha + beta
    for item in range(total):
        if flag and item > alpha:
            total = total * item + len(rest)
    return total
"""


def _task(readout="slot", plan="auto"):
    layers = [
        preprocessing.ProgramEncoder(num_subtoken_buckets=64),
        preprocessing.ReachabilityFilter(3),
        preprocessing.RCMKCompile(128),
    ]
    backbone = models.GGNNBackbone(
        {"type": 512, "subtoken": 64}, hidden_dim=8, num_steps=3, num_edge_types=22
    )
    preprocessor = preprocessing.GraphPreprocessor(layers, plan=plan)
    return models.NodeSelector(backbone, preprocessor, readout=readout)


@pytest.fixture(scope="module")
def programs():
    text = "".join(FUNCTION.format(k=k) for k in range(6))
    text += "def long(a, b):\n" + "    a = a + b * (a - b)\n" * 30
    return program_graphs(text, max_instances=80)


def _pieces(task, programs, size):
    encode = task.preprocessor.graph_layers[0]
    graphs = list(encode(programs))
    return [
        FlatGraphs.from_graphs(graphs[low : low + size])
        for low in range(0, len(graphs), size)
    ]


@pytest.mark.parametrize(
    ("readout", "plan"),
    [("slot", "auto"), ("candidate", "auto"), ("slot", Plan())],
)
def test_a_stream_gets_the_predictions_of_a_list(readout, plan, programs):
    task = _task(readout, plan)
    expected = task.predict(programs)
    pieces = _pieces(task, programs, 16)
    # Little room: several supergraphs, and pieces above the budget.
    stream = JointSelection(task, task.preprocessor.graph_layers[1:], nodes=1500)
    found = list(stream.predict(iter(pieces)))
    rows = [row for _, logits in found for row in logits]
    places = [info["column"] for piece, _ in found for info in piece.info]
    assert places == [program.info["column"] for program in programs]
    for one, other in zip(rows, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert len(stream.shapes) <= 4


def test_a_stream_is_read_as_it_is_used(programs):
    task = _task()
    (piece,) = _pieces(task, programs[:4], 4)
    read = 0

    def pieces():
        nonlocal read
        for _ in range(200):
            read += 1
            yield piece

    stream = JointSelection(task, nodes=int(piece.node_ptr[-1]) * 2)
    next(stream.predict(pieces()))
    assert read < 40


def test_a_joined_graph_has_the_parts_side_by_side(programs):
    (piece,) = _pieces(_task(), programs[:3], 3)
    joined = join(piece)
    assert len(joined) == 1 and joined[0].num_edges == int(piece.edge_ptr[-1])
    low = 0
    for graph in piece:
        ends = np.append(graph.candidates, graph.slot)
        part = joined.candidates[low : low + len(ends)]
        first = part[-1] - graph.slot
        np.testing.assert_array_equal(part, ends + first)
        low += len(ends)
    assert low == len(joined.candidates)
