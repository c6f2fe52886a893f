"""Where the picture of a schema has its boxes and arrows."""

import itertools

import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.plotting import plot_schema

pytest.importorskip("matplotlib")

LIBRARY = kb.data.from_sets(
    {
        "paper": {"x": np.ones((4, 128)), "year": [1, 2, 3, 4]},
        "author": {"x": np.ones((3, 64))},
        "venue": 20,
    },
    {
        ("author", "writes", "paper"): [[0, 1, 2], [0, 1, 1]],
        ("author", "reviews", "paper"): [[0, 1], [0, 1]],
        ("paper", "cites", "paper"): [[0, 1], [0, 1]],
        ("paper", "extends", "paper"): [[0], [1]],
        ("paper", "in", "venue"): [[0, 1], [0, 1]],
        ("venue", "invites", "author"): np.zeros((2, 0), int),
    },
)


def parts(figure):
    """Boxes and arrows by their first line of text, and all text."""
    (axes,) = figure.axes
    boxes, arrows = list(axes.patches), list(axes.lines)
    texts = [text.get_text() for text in axes.texts]
    assert len(texts) == len(boxes) + len(arrows)
    names = [text.splitlines()[0] for text in texts[: len(boxes)]]
    captions = texts[len(boxes) :]
    return (
        dict(zip(names, boxes, strict=True)),
        dict(zip(captions, arrows, strict=True)),
        texts,
    )


def ends(arrow):
    """Where an arrow begins and ends along the boxes."""
    return arrow.get_xdata()[0], arrow.get_xdata()[-1]


def test_nodes_edges_and_features_are_counted():
    boxes, arrows, texts = parts(plot_schema(LIBRARY))
    assert sorted(texts[:3]) == [
        "author\n3 nodes\nx [64]",
        "paper\n4 nodes\nx [128]\nyear",
        "venue\n20 nodes",
    ]
    assert {*arrows} == {
        *("writes, 3 edges", "reviews, 2 edges", "cites, 2 edges"),
        *("extends, 1 edge", "in, 2 edges", "invites, 0 edges"),
    }
    for caption, arrow in arrows.items():
        name = caption.split(",")[0]
        source, target = next(
            (s, t) for s, r, t in LIBRARY.info["edge_sets"] if r == name
        )
        for x, box in zip(ends(arrow), (boxes[source], boxes[target]), strict=True):
            assert box.get_x() < x < box.get_x() + box.get_width()


def test_nothing_lies_upon_another():
    figure = plot_schema(LIBRARY)
    boxes, arrows, _ = parts(figure)
    for one, other in itertools.combinations(boxes.values(), 2):
        assert not one.get_extents().overlaps(other.get_extents())
    # Arrows have ends of their own, and captions do not overlap.
    places = [
        (round(x, 6), float(arrow.get_ydata()[0]))
        for arrow in arrows.values()
        for x in ends(arrow)
    ]
    assert len({*places}) == len(places)
    figure.draw_without_rendering()
    captions = [t.get_window_extent() for t in figure.axes[0].texts]
    for one, other in itertools.combinations(captions, 2):
        assert not one.overlaps(other)


def test_encoders_tell_the_kinds_of_columns():
    item = {
        "nodes": {"user": {"town": ["Ulm", "Bonn"], "age": [31.5, 64.0]}, "item": 1},
        "edges": {("user", "buys", "item"): [[0, 1], [0, 0]]},
    }
    encoder = kb.preprocessing.NodeSetEncoder(reverse=True)
    with pytest.raises(ValueError, match="adapted"):
        plot_schema(encoder)
    _, arrows, texts = parts(plot_schema(encoder.adapt([item])))
    assert "user\ntown: category\nage: number" in texts
    assert [*sorted(arrows)] == ["buys", "rev_buys"]


def test_many_sets_and_many_features():
    table = {f"feature {k}": [0] for k in range(12)}
    nodes = {f"set{k}": 1 for k in range(9)} | {"wide": table}
    graph = kb.data.from_sets(nodes, {("set0", "to", "set8"): [[0], [0]]})
    boxes, _, texts = parts(plot_schema(graph))
    assert len(boxes) == 10
    assert texts[9].splitlines()[-2:] == ["feature 6", "and 5 more"]


@pytest.mark.parametrize("source", [None, {}, kb.Graph(1, [], [])], ids=repr)
def test_sources_without_node_sets_are_refused(source):
    with pytest.raises(ValueError, match="Expected `source`.*NodeSetEncoder"):
        plot_schema(source)
