import inspect

import numpy as np
import pytest
from images import distances_of, edges_of
from scipy.spatial.distance import cdist

from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    FullyConnectedGraph,
    GraphPreprocessor,
    KNearestGraph,
    RadiusGraph,
)
from keras_bandgnn.preprocessing.geometry import neighbours
from keras_bandgnn.primitives import Plan, Segment

LAYERS = [RadiusGraph(3.0), RadiusGraph(3.0, 4), KNearestGraph(4)]
LAYERS += [FullyConnectedGraph()]


def cloud(seed, count, **fields):
    rng = np.random.default_rng(seed)
    node = {"position": rng.uniform(size=(count, 3)) * 2 * count ** (1 / 3)}
    node["atomic_number"] = rng.integers(1, 9, count)
    return Graph(count, [], [], node=node, **fields)


def expected_within(graph, radius):
    position = graph.node["position"].astype(float)
    near = (cdist(position, position) <= radius) & ~np.eye(len(position), dtype=bool)
    receiver, sender = np.nonzero(near)
    return np.column_stack([receiver, sender])


@pytest.mark.parametrize("count", [1, 2, 30, 400])
def test_radius_against_all_distances(count):
    graph = cloud(0, count)
    found = RadiusGraph(3.0)(graph)
    np.testing.assert_array_equal(edges_of(found)[:, :2], expected_within(graph, 3.0))
    assert "shift" not in found.edge
    ends = found.node["position"][found.senders] - found.node["position"][
        found.receivers
    ].astype(float)
    np.testing.assert_allclose(found.edge["displacement"], ends, rtol=1e-6)
    length = np.linalg.norm(ends, axis=1)
    np.testing.assert_allclose(found.edge["distance"], length, rtol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 30, 400])
def test_nearest_against_all_distances(count):
    graph = cloud(1, count)
    found = KNearestGraph(7)(graph)
    position = graph.node["position"].astype(float)
    expected = np.sort(cdist(position, position), axis=1)[:, 1:8]
    assert found.num_edges == count * min(7, count - 1)
    if count > 1:
        np.testing.assert_allclose(distances_of(found), expected, rtol=1e-6)
    assert (found.senders != found.receivers).all()


@pytest.mark.parametrize("layer", LAYERS[:3])
def test_few_and_many_atoms_take_the_same_neighbours(layer, monkeypatch):
    grid = np.array(list(np.ndindex(5, 5, 5)), float) * 1.5  # of ties
    graph = Graph(125, [], [], node={"position": grid})
    few = layer(graph)
    monkeypatch.setattr(neighbours, "_FEW", 0)
    many = layer(graph)
    np.testing.assert_array_equal(edges_of(many), edges_of(few))
    np.testing.assert_array_equal(many.edge["distance"], few.edge["distance"])


def test_atoms_at_the_same_place(monkeypatch):
    position = [[0.0, 0, 0]] * 5 + [[1.0, 0, 0]]
    graph = Graph(6, [], [], node={"position": position})
    for limit in (256, 0):
        monkeypatch.setattr(neighbours, "_FEW", limit)
        found = KNearestGraph(2)(graph)
        assert found.senders.tolist() == [1, 2, 0, 2, 0, 1, 0, 1, 0, 1, 0, 1]
        assert RadiusGraph(0.5)(graph).num_edges == 20


def test_ties_and_their_order():
    line = Graph(5, [], [], node={"position": np.arange(5.0)[:, None] * [1, 0, 0]})
    found = KNearestGraph(1)(line)
    assert found.senders.tolist() == [1, 0, 1, 2, 3]
    # Closer by less than rounding is no closer.
    position = line.node["position"].copy()
    position[2, 0] += 3e-6
    moved = KNearestGraph(1)(line.replace(node={"position": position}))
    assert moved.senders.tolist() == [1, 0, 1, 2, 3]
    position[2, 0] += 3e-4
    moved = KNearestGraph(1)(line.replace(node={"position": position}))
    assert moved.senders.tolist() == [1, 0, 3, 2, 3]


def test_fewer_neighbours_within_the_radius():
    graph = cloud(2, 60)
    whole, cut = RadiusGraph(4.0)(graph), RadiusGraph(4.0, 5)(graph)
    for all_, kept in zip(distances_of(whole), distances_of(cut), strict=True):
        np.testing.assert_array_equal(kept, all_[:5])


def test_all_pairs():
    found = FullyConnectedGraph()(FlatGraphs.from_graphs([cloud(0, 4), cloud(1, 1)]))
    assert found.num_edges.tolist() == [12, 0]
    assert found.senders.tolist() == [1, 2, 3, 0, 2, 3, 0, 1, 3, 0, 1, 2]
    assert found.receivers.tolist() == np.repeat(range(4), 3).tolist()
    np.testing.assert_array_equal(
        edges_of(found[0]), edges_of(RadiusGraph(99.0)(cloud(0, 4)))
    )


@pytest.mark.parametrize("layer", LAYERS)
def test_a_set_gives_the_same_as_its_graphs(layer, monkeypatch):
    sizes = np.random.default_rng(0).integers(1, 40, 60).tolist()
    graphs = [cloud(seed, size) for seed, size in enumerate([*sizes, 300])]
    alone = [layer(graph) for graph in graphs]
    flat = FlatGraphs.from_graphs(graphs)
    monkeypatch.setattr(neighbours.chunks, "__defaults__", (2000,))
    monkeypatch.setattr(
        "keras_bandgnn.preprocessing.geometry.geometry_layers._NODES", 100
    )
    together = layer(flat)
    assert isinstance(together, FlatGraphs)
    lazily = layer(graph for graph in graphs)
    assert inspect.isgenerator(lazily)
    for a, b, c in zip(alone, together, lazily, strict=True):
        for other in (b, c):
            np.testing.assert_array_equal(edges_of(other), edges_of(a))
            for name in ("displacement", "distance"):
                np.testing.assert_array_equal(other.edge[name], a.edge[name])
                assert other.edge[name].dtype == np.float32
    receivers = together.receivers + np.repeat(
        together.node_ptr[:-1], together.num_edges
    )
    assert (np.diff(receivers) >= 0).all()


def test_generators_are_read_as_they_are_needed(monkeypatch):
    monkeypatch.setattr(
        "keras_bandgnn.preprocessing.geometry.geometry_layers._NODES", 10
    )
    read = []

    def source():
        for seed in range(9):
            read.append(seed)
            yield cloud(seed, 5)

    next(RadiusGraph(3.0)(source()))
    assert len(read) == 2


def test_the_rest_of_a_graph_stays():
    graph = Graph(
        3,
        [0, 1],
        [1, 2],
        edge_type=[3, 4],
        node={"position": np.eye(3)},
        edge={"bond": [1.0, 2.0]},
        context={"charge": 1.0},
        candidates=[0, 2],
        label=1,
        slot=1,
        info={"name": "three"},
        origin=[2, 1, 0],
    )
    found = RadiusGraph(2.0)(graph)
    assert set(found.edge) == {"displacement", "distance"} and found.num_edges == 6
    assert not found.edge_type.any() and found.context["charge"] == 1
    assert found.candidates.tolist() == [0, 2] and found.label == 1 and found.slot == 1
    assert dict(found.info) == {"name": "three"} and found.origin.tolist() == [2, 1, 0]
    assert graph.num_edges == 2
    assert found.replace(info={}).num_edges == 6  # it passes the checks


@pytest.mark.parametrize("layer", LAYERS)
def test_nothing_to_connect(layer):
    empty = FlatGraphs.from_graphs([cloud(0, 2)]).take([])
    assert len(layer(empty)) == 0 and list(layer([])) == []
    found = layer(cloud(0, 1))
    assert found.num_edges == 0 and found.edge["displacement"].shape == (0, 3)


def test_a_cell_that_does_not_repeat():
    facts = {"cell": np.eye(3) * 3, "pbc": [0, 0, 0]}
    graph = FullyConnectedGraph()(cloud(0, 4, context=facts))
    assert graph.edge["shift"].shape == (12, 3) and not graph.edge["shift"].any()


@pytest.mark.parametrize("layer", LAYERS[1:])
def test_batches(layer):
    graphs = [cloud(seed, 5 + seed % 7, label=float(seed)) for seed in range(40)]
    preprocessor = GraphPreprocessor([layer], DynamicBatcher(7), Plan(Segment()))
    loader = preprocessor.loader(graphs, shuffle=False)
    edges = 0
    for index in range(len(loader)):
        x, _, _ = loader[index]
        edge = x["edge"]
        mask = edge["mask"][0]
        place = x["node"]["position"][0]
        ends = place[edge["sender"][0][mask]] - place[edge["receiver"][0][mask]]
        np.testing.assert_allclose(edge["displacement"][0][mask], ends, atol=1e-6)
        assert not edge["displacement"][0][~mask].any()
        assert (np.diff(edge["receiver"][0]) >= 0).all()
        edges += mask.sum()
    assert edges == sum(layer(graph).num_edges for graph in graphs)


def test_batches_of_crystals():
    pytest.importorskip("vesin")
    rng = np.random.default_rng(0)
    graphs = [
        cloud(s, 5, context={"cell": 4 * np.eye(3) + rng.uniform(size=(3, 3))}, label=s)
        for s in range(64)
    ]
    preprocessor = GraphPreprocessor([KNearestGraph(24)], DynamicBatcher(31))
    x, _, _ = preprocessor.loader(graphs, shuffle=False)[0]
    edge = x["edge"]
    count = edge["mask"].sum()
    assert count == 24 * x["node"]["mask"].sum()
    sender, receiver = edge["sender"][0, :count], edge["receiver"][0, :count]
    cell = x["graph"]["cell"][0, x["node"]["graph_id"][0, receiver]]
    place = x["node"]["position"][0]
    expected = place[sender] - place[receiver]
    expected += np.einsum("ei,eij->ej", edge["shift"][0, :count], cell)
    np.testing.assert_allclose(edge["displacement"][0, :count], expected, atol=1e-5)


def test_sets_stay_as_they_were():
    flat = FlatGraphs.from_graphs([cloud(0, 5)])
    compiled = GraphPreprocessor([RadiusGraph(3.0)]).compile(flat)
    assert compiled.metadata == {
        "layers": [
            {
                "class_name": "RadiusGraph",
                "config": {"cutoff": 3.0, "max_neighbours": None},
            }
        ]
    }
    assert not hasattr(flat, "metadata") and not flat.num_edges.any()


@pytest.mark.parametrize("layer", LAYERS)
def test_configuration(layer):
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    made = GraphPreprocessor([layer], DynamicBatcher(7))
    again = GraphPreprocessor.from_config(made.get_config())
    assert again.get_config() == made.get_config()
    np.testing.assert_array_equal(
        edges_of(again.graph_layers[0](cloud(0, 20))), edges_of(layer(cloud(0, 20)))
    )


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("other", [None, "CCO"])
def test_takes_nothing_but_graphs(layer, other):
    with pytest.raises(ValueError, match="to be graphs, each a Graph"):
        list(layer([cloud(0, 2), other]))


@pytest.mark.parametrize("layer", LAYERS)
def test_bad_graphs(layer):
    cell = {"cell": np.eye(3), "pbc": [0, 0, 0]}
    good = cloud(0, 2, context=cell)
    flat = FlatGraphs.from_graphs([good, good])
    columns = flat.columns()

    def broken(name, at):
        values = columns[name].copy()
        values[at] = np.nan
        return FlatGraphs.from_columns({**columns, name: values})

    planar = {"position": [[0.0, 1.0], [2.0, 3.0]]}
    for graphs, message in (
        (good.replace(node={"z": [1, 2]}), r"node\['position'\].*Received.*\['z'\]"),
        (good.replace(node=planar), r"`node\['position'\]` of shape \[3\].*\[2\]"),
        (good.replace(context={"cell": np.ones(6)}), r"`context\['cell'\]`.*\[6\]"),
        (good.replace(context={**cell, "pbc": 1}), r"`context\['pbc'\]` of shape"),
        (broken("node/position", 3), r"finite.*`node\['position'\]`.*nan.*graph 1\."),
        (broken("context/cell", 1), r"finite.*`context\['cell'\]`.*nan.*graph 1\."),
        (good.replace(context={"pbc": [1, 1, 1]}), "independent lattice vectors"),
    ):
        with pytest.raises(ValueError, match=f"(?s){message}"):
            layer(graphs)
    with pytest.raises(ValueError, match="a Graph or an iterable"):
        layer(3)


def test_errors_count_through_a_source(monkeypatch):
    monkeypatch.setattr(
        "keras_bandgnn.preprocessing.geometry.geometry_layers._NODES", 10
    )
    flat = {"cell": np.zeros((3, 3)), "pbc": [1, 1, 1]}
    fine = {"cell": np.zeros((3, 3)), "pbc": [0, 0, 0]}
    graphs = [cloud(0, 5, context=fine)] * 5 + [cloud(0, 5, context=flat)]
    with pytest.raises(ValueError, match="in graph 5"):
        list(RadiusGraph(3.0)(iter(graphs)))
    with pytest.raises(ValueError, match="Counting from graph 4.*graph 1, as in"):
        list(RadiusGraph(3.0)([*graphs[:5], cloud(0, 5)]))


def test_periodic_graphs_have_no_all_pairs():
    graphs = [
        cloud(0, 2, context={"cell": np.zeros((3, 3))}),
        cloud(0, 2, context={"cell": np.eye(3)}),
    ]
    with pytest.raises(ValueError, match="graph 1 is periodic. Use RadiusGraph"):
        FullyConnectedGraph()(FlatGraphs.from_graphs(graphs))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: RadiusGraph(0), "`cutoff`.*cutoff=0"),
        (lambda: RadiusGraph(-1.0), "`cutoff`.*cutoff=-1.0"),
        (lambda: RadiusGraph(float("nan")), "`cutoff`.*nan"),
        (lambda: RadiusGraph(float("inf")), "FullyConnectedGraph"),
        (lambda: RadiusGraph("5"), "`cutoff`.*'5'"),
        (lambda: RadiusGraph(True), "`cutoff`.*True"),
        (lambda: RadiusGraph(5.0, 0), "`max_neighbours`.*at least 1"),
        (lambda: KNearestGraph(0), "`k`.*at least 1"),
        (lambda: KNearestGraph(2.5), "`k`.*integer"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
