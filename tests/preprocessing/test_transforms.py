"""Transforms of graphs: edges, components, features, and splits of the nodes."""

import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.preprocessing import (
    AddSelfLoops,
    GraphPreprocessor,
    LargestComponent,
    NormalizeFeatures,
    RandomNodeSplit,
    ToUndirected,
    node_splits,
    shchur_splits,
)
from tests.array_files import load_node_graph

MASKS = ("train_mask", "valid_mask", "test_mask")


def pairs(graph):
    return list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))


def test_undirected_edges_have_the_types_and_features_of_their_reverse():
    graph = Graph(
        3,
        [0, 0, 1, 2, 2],
        [1, 1, 0, 2, 1],
        edge_type=[0, 0, 1, 0, 2**30],
        edge={"vector": np.arange(10.0).reshape(5, 2)},
        node={"x": [1, 2, 3]},
    )
    made = ToUndirected()(graph)
    # The second edge 0 -> 1 repeats the first; 1 -> 0 is of another type.
    assert pairs(made) == [(0, 1), (1, 0), (2, 2), (2, 1), (1, 0), (0, 1), (1, 2)]
    assert made.edge_type.tolist() == [0, 1, 0, 2**30, 0, 1, 2**30]
    assert made.edge["vector"][:, 0].tolist() == [0, 4, 6, 8, 0, 4, 8]
    assert ToUndirected()(made).edge_type.tolist() == made.edge_type.tolist()
    assert (2, 2) not in pairs(ToUndirected(self_loops=False)(graph))


def test_undirected_edges_are_those_of_the_dense_matrix():
    rng = np.random.default_rng(0)
    senders, receivers, kinds = rng.integers(0, [[12], [12], [3]], (3, 60))
    made = ToUndirected()(Graph(12, senders, receivers, kinds))
    dense = np.zeros((12, 12, 3), int)
    dense[senders, receivers, kinds] = dense[receivers, senders, kinds] = 1
    count = np.zeros_like(dense)
    np.add.at(count, (made.senders, made.receivers, made.edge_type), 1)
    np.testing.assert_array_equal(count, dense)


def test_self_loops_have_their_values():
    graph = Graph(3, [1, 0], [1, 2], edge={"w": [0.5, 2.0], "bond": [[1, 0], [2, 1]]})
    made = AddSelfLoops({"w": 0.25, "bond": 4}, edge_type=3)(graph)
    assert pairs(made) == [(1, 1), (0, 2), (0, 0), (2, 2)]
    assert made.edge_type.tolist() == [0, 0, 3, 3]
    assert made.edge["w"].tolist() == [0.5, 2, 0.25, 0.25]
    assert made.edge["bond"].tolist() == [[1, 0], [2, 1], [4, 4], [4, 4]]
    assert AddSelfLoops()(made) is made
    with pytest.raises(ValueError, match="`fill_value`.*feature 'bond'.*\\['w'\\]"):
        AddSelfLoops({"w": 1.0})(graph)
    with pytest.raises(ValueError, match="integer in `fill_value`.*'bond'.*0.5"):
        AddSelfLoops(0.5)(graph)


@pytest.mark.parametrize("layer", [ToUndirected(), AddSelfLoops()])
def test_labels_of_edges_are_refused(layer):
    graph = Graph(2, [0], [1], label=[1], label_level="edge")
    with pytest.raises(ValueError, match="labels of edges"):
        layer(graph)


def test_the_largest_component_keeps_features_and_labels():
    graph = Graph(
        7,
        [4, 6, 0, 5],
        [6, 2, 1, 5],
        node={"x": np.arange(7)},
        edge={"w": [1.0, 2.0, 3.0, 4.0]},
        label=np.arange(7) * 10,
        label_level="node",
    )
    made = LargestComponent()(graph)
    assert made.origin.tolist() == [2, 4, 6] and pairs(made) == [(1, 2), (2, 0)]
    assert made.node["x"].tolist() == [2, 4, 6] and made.edge["w"].tolist() == [1, 2]
    assert made.label.tolist() == [20, 40, 60]
    assert LargestComponent(2)(graph).origin.tolist() == [0, 1, 2, 4, 6]
    # Single nodes are equally large: the first ones are kept.
    assert LargestComponent(3)(graph).origin.tolist() == [0, 1, 2, 3, 4, 6]
    again = LargestComponent()(LargestComponent(2)(graph))
    assert again.origin.tolist() == [2, 4, 6]
    with pytest.raises(ValueError, match="keep the slot and every candidate"):
        LargestComponent()(graph.replace(label=0, label_level="graph", candidates=[0]))


def test_features_are_divided_by_their_sums():
    values = np.random.default_rng(0).random((5, 4)) * 1e-3
    values[2] = 0
    graph = Graph(
        5, [], [], node={"feature": values, "x": [[2, 2]] * 5, "kind": [1] * 5}
    )
    made = NormalizeFeatures(["feature", "x"])(graph)
    expected = values / np.where(values.any(1), values.sum(1), 1)[:, None]
    np.testing.assert_allclose(made.node["feature"], expected, rtol=1e-6)
    assert made.node["x"].tolist() == [[0.5, 0.5]] * 5
    assert made.node["kind"].tolist() == [1] * 5
    for name, values, text in (
        ("y", [[1.0]] * 5, "among the node features.*'feature'"),
        ("kind", [1] * 5, r"\[N, F\]"),
        ("feature", [[-1.0, 2.0]] * 5, "not negative.*-1.0"),
    ):
        with pytest.raises(ValueError, match=text):
            NormalizeFeatures("feature" if name == "feature" else name)(
                Graph(5, [], [], node={"kind": [1] * 5, "feature": values})
            )


def labelled(count=90, classes=3, missing=10):
    label = np.arange(count) % classes
    label[:missing] = -1
    return Graph(count, [], [], label=label, label_level="node")


def masks_of(graph):
    return np.stack([graph.node[name] for name in MASKS])


def test_splits_have_their_sizes_in_each_class():
    graph = labelled()
    made = RandomNodeSplit(5, 20, 30, num_splits=4)(graph)
    masks = masks_of(made)
    assert masks.shape == (3, 90, 4) and masks.dtype == np.int32
    assert masks.sum(axis=0).max() == 1 and not masks[:, :10].any()
    np.testing.assert_array_equal(masks.sum(axis=1), [[15] * 4, [20] * 4, [30] * 4])
    for column in masks[0].T:
        assert np.bincount(graph.label[column == 1]).tolist() == [5, 5, 5]
    assert len({column.tobytes() for column in masks[0].T}) == 4
    # A split depends on the seed and its number alone.
    few = masks_of(RandomNodeSplit(5, 20, 30, num_splits=2)(graph))
    np.testing.assert_array_equal(few, masks[:, :, :2])
    one = masks_of(RandomNodeSplit(5, 20, 30)(graph))
    np.testing.assert_array_equal(one, masks[:, :, 0])
    other = masks_of(RandomNodeSplit(5, 20, 30, seed=1)(graph))
    assert (other != one).any()


def test_fractions_and_graphs_without_classes():
    made = RandomNodeSplit(0.5, 0.25, None, per_class=("train", "valid"))(labelled())
    classes = labelled().label
    counts = [np.bincount(classes[m == 1]).tolist() for m in masks_of(made)]
    present = np.bincount(classes[10:])
    assert counts[0] == [round(n / 2) for n in present.tolist()]
    assert sum(map(sum, counts)) == 80
    plain = Graph(10, [], [], node={"x": np.zeros(10)})
    split = RandomNodeSplit(0.6, 0.2, 0.2, per_class=())
    assert masks_of(split(plain)).sum(axis=1).tolist() == [6, 2, 2]
    several = np.where(np.arange(20).reshape(10, 2) < 6, np.nan, 1.0)
    numbers = plain.replace(label=several, label_level="node")
    masks = masks_of(RandomNodeSplit(3, 2, None, per_class=())(numbers))
    assert masks.sum(axis=1).tolist() == [3, 2, 2] and not masks[:, :3].any()


@pytest.mark.parametrize(
    ("split", "graph", "text"),
    [
        (RandomNodeSplit(40), labelled(), "`train` to leave.*class 0: 40.*Received: 2"),
        (RandomNodeSplit(5, 70), labelled(), "`valid`.*the graph: 70.*Received: 65"),
        (RandomNodeSplit(0.9, 0.2, None, ()), labelled(), "`valid`.*16.*Received: 8"),
        (RandomNodeSplit(), Graph(3, [], []), "class for each node.*no labels"),
        (
            RandomNodeSplit(),
            Graph(2, [], [], label=[0.5, 1.0], label_level="node"),
            r"float32 of shape \(2,\).*per_class=\(\)",
        ),
    ],
)
def test_splits_that_cannot_be_made(split, graph, text):
    with pytest.raises(ValueError, match=text):
        split(graph)


def test_wrong_sizes():
    with pytest.raises(ValueError, match=r"`train` to be a number of nodes, or a frac"):
        RandomNodeSplit(1.5)
    with pytest.raises(ValueError, match="`per_class` to be one of 'train'"):
        RandomNodeSplit(per_class=["training"])


def test_several_splits_one_by_one():
    graph = labelled().replace(node={"x": np.zeros((90, 2)), "test_mask": [1] * 90})
    made = RandomNodeSplit(5, 20, 30, num_splits=3)(graph)
    made = made.replace(node={**made.node, "known_mask": [1] * 90})
    splits = list(node_splits(made))
    assert len(splits) == 3
    for number, split in enumerate(splits):
        np.testing.assert_array_equal(masks_of(split), masks_of(made)[:, :, number])
        assert split.node["known_mask"].tolist() == [1] * 90
        assert split.node["x"].shape == (90, 2)
    assert list(node_splits(splits[0])) == [splits[0]]
    with pytest.raises(ValueError, match="node features such as train_mask"):
        node_splits(labelled())
    uneven = {"train_mask": [[1, 0]], "test_mask": [[1, 0, 0]]}
    with pytest.raises(ValueError, match=r"\{'train_mask': \[1, 2\]"):
        node_splits(Graph(1, [], [], node=uneven))
    shared = {"train_mask": [[1, 0], [0, 1]], "test_mask": [[0, 1], [0, 1]]}
    with pytest.raises(ValueError, match="1 of 2 nodes in 'train_mask' and in 'test_"):
        node_splits(Graph(2, [], [], node=shared))


def test_shchur_splits():
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 300, (2, 1500))
    graph = Graph(
        320,
        *ends,
        node={"feature": rng.random((320, 3))},
        label=np.arange(320) % 4,
        label_level="node",
    )
    made = shchur_splits(graph, seed=3)
    # Nodes 300 to 319 have no edges.
    assert made.num_nodes <= 300 and made.origin.max() < 300
    assert len(set(pairs(made))) == made.num_edges
    assert {(r, s) for s, r in pairs(made)} == set(pairs(made))
    assert (made.senders != made.receivers).all()
    masks = masks_of(made)
    assert masks.shape == (3, made.num_nodes, 20)
    assert masks.sum(axis=1)[:2].tolist() == [[80] * 20, [120] * 20]
    np.testing.assert_array_equal(masks.sum(axis=0), 1)
    np.testing.assert_array_equal(
        made.node["feature"], graph.node["feature"][made.origin]
    )
    np.testing.assert_array_equal(made.label, graph.label[made.origin])
    with pytest.raises(ValueError, match="`valid`.*class 0: 90"):
        shchur_splits(graph, valid=90)


# Nodes and undirected edges of the largest components, as Shchur et al. print them.
@pytest.mark.parametrize(
    ("name", "nodes", "edges"),
    [
        ("amazon_photo", 7_487, 119_043),
        ("amazon_computers", 13_381, 245_778),
    ],
)
def test_shchur_splits_of_real_graphs(shared_data, name, nodes, edges):
    (graph,) = load_node_graph(shared_data / "node_amazon_coauthor" / f"{name}.npz")
    made = shchur_splits(graph, num_splits=2)
    assert (made.num_nodes, made.num_edges) == (nodes, 2 * edges)
    classes = made.label.max() + 1
    sizes = masks_of(made).sum(axis=1)[:, 0].tolist()
    assert sizes == [20 * classes, 30 * classes, nodes - 50 * classes]


def test_transforms_are_saved_with_a_preprocessor():
    layers = [
        ToUndirected(self_loops=False),
        AddSelfLoops({"w": 2.0}, edge_type=1),
        LargestComponent(2),
        NormalizeFeatures("x"),
        RandomNodeSplit(0.5, 2, None, ("valid",), num_splits=2, seed=5),
    ]
    graph = Graph(
        9,
        [0, 3, 4],
        [1, 4, 3],
        edge={"w": [1.0, 2.0, 3.0]},
        node={"x": np.ones((9, 2))},
        label=[0, 1, 0] * 3,
        label_level="node",
    )
    preprocessor = GraphPreprocessor(layers)
    again = GraphPreprocessor.from_config(preprocessor.get_config())
    assert again.layers_config() == preprocessor.layers_config()
    with pytest.raises(ValueError, match="`valid` to leave"):
        preprocessor([graph])
    layers[-1] = RandomNodeSplit(0.5, 1, None, (), num_splits=2, seed=5)
    preprocessor = GraphPreprocessor(layers)
    again = GraphPreprocessor.from_config(preprocessor.get_config())
    first, second = preprocessor([graph]), again([graph])
    for name, values in first.columns().items():
        np.testing.assert_array_equal(values, second.columns()[name])
