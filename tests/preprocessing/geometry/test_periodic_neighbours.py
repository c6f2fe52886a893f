import sys

import numpy as np
import pytest
from images import brute_force, distances_of, edges_of, nearest_distances

from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.preprocessing import (
    FullyConnectedGraph,
    KNearestGraph,
    RadiusGraph,
)
from tests.array_files import load_crystals

pytest.importorskip("vesin")

CELLS = {
    "thin": np.array([[9.0, 0, 0], [8.5, 0.9, 0], [-4.0, 0.4, 3.0]]),
    "cubic": np.eye(3) * 4.0,
    "tiny": np.array([[1.3, 0, 0], [0.4, 1.5, 0], [-0.3, 0.5, 1.2]]),
    "skewed": np.array([[3.5, 0, 0], [17.5, 3.5, 0], [-14.0, 10.5, 3.5]]),
    "left_handed": np.array([[0, 3.1, 0], [4.2, 0.3, 0], [0.1, 0, 2.9]]),
    "needle": np.array([[1.1, 0, 0], [0, 2.0, 0], [0, 0, 19.0]]),
}


def crystal(cell, position, pbc=None):
    context = {"cell": np.asarray(cell, np.float32)}
    context |= {} if pbc is None else {"pbc": np.asarray(pbc, np.int32)}
    return Graph(len(position), [], [], node={"position": position}, context=context)


def assert_as_brute_force(graph, pbc, radius, k):
    facts = (graph.node["position"], graph.context["cell"], pbc)
    edges, distances = brute_force(*facts, radius)
    found = RadiusGraph(radius)(graph)
    np.testing.assert_array_equal(edges_of(found), edges)
    np.testing.assert_allclose(found.edge["distance"], distances, rtol=1e-6)
    found = KNearestGraph(k)(graph)
    assert (np.bincount(found.receivers) == k).all()
    expected = nearest_distances(*facts, k)
    np.testing.assert_allclose(distances_of(found), expected, atol=1.1e-5)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("atoms", [1, 5])
def test_made_cells(name, atoms):
    rng = np.random.default_rng(atoms)
    position = rng.uniform(size=(atoms, 3)) @ CELLS[name]
    assert_as_brute_force(crystal(CELLS[name], position), [1, 1, 1], 4.37, 17)
    far = position + rng.integers(-3, 4, (atoms, 3)) @ CELLS[name]
    assert_as_brute_force(crystal(CELLS[name], far), [1, 1, 1], 4.37, 17)


@pytest.mark.parametrize("pbc", [(1, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1)])
@pytest.mark.parametrize("name", ["tiny", "skewed", "left_handed", "thin"])
@pytest.mark.parametrize("others", ["given", "zero"])
def test_partial_periods(pbc, name, others):
    rng = np.random.default_rng(3)
    cell = CELLS[name] if others == "given" else CELLS[name] * np.array(pbc)[:, None]
    position = rng.normal(scale=3, size=(4, 3))
    assert_as_brute_force(crystal(cell, position, pbc), pbc, 4.37, 9)


def test_an_atom_and_its_own_images():
    graph = RadiusGraph(2.1)(crystal(np.eye(3) * 2, [[0.3, 0.1, 5.0]]))
    assert graph.senders.tolist() == graph.receivers.tolist() == [0] * 6
    assert np.abs(graph.edge["shift"]).sum(axis=1).tolist() == [1] * 6
    assert graph.edge["shift"].any(axis=1).all()
    np.testing.assert_allclose(graph.edge["distance"], 2, rtol=1e-6)


@pytest.mark.parametrize("name", CELLS)
def test_displacement_is_that_of_the_image(name):
    position = np.random.default_rng(0).normal(scale=4, size=(6, 3))
    for layer in (RadiusGraph(4.0), KNearestGraph(8)):
        graph = layer(crystal(CELLS[name], position))
        place, cell = graph.node["position"].astype(float), graph.context["cell"]
        expected = place[graph.senders] + graph.edge["shift"] @ cell.astype(float)
        expected -= place[graph.receivers]
        displacement = graph.edge["displacement"]
        np.testing.assert_allclose(displacement, expected, rtol=1e-6, atol=1e-6)
        length = np.linalg.norm(expected, axis=1)
        np.testing.assert_allclose(graph.edge["distance"], length, rtol=1e-6)
        for value, dtype in ((displacement, "f4"), (graph.edge["shift"], "i4")):
            assert value.shape == (graph.num_edges, 3) and value.dtype == dtype


def test_forces_follow_from_displacements():
    rng = np.random.default_rng(4)
    position = rng.uniform(size=(4, 3)) @ CELLS["left_handed"]

    def gaussians(place):
        return RadiusGraph(6.0)(crystal(CELLS["left_handed"], place))

    def energy(place):
        return np.exp(-(gaussians(place).edge["distance"].astype(float) ** 2)).sum()

    graph = gaussians(position)
    d = graph.edge["displacement"].astype(float)
    gradient = -2 * d * np.exp(-(d**2).sum(axis=1, keepdims=True))
    forces = np.zeros((4, 3))
    np.add.at(forces, graph.receivers, gradient)
    np.subtract.at(forces, graph.senders, gradient)
    for atom, axis in np.ndindex(4, 3):
        step = np.zeros((4, 3))
        step[atom, axis] = 1e-2
        slope = (energy(position + step) - energy(position - step)) / 2e-2
        assert -slope == pytest.approx(forces[atom, axis], abs=1e-3)
    assert np.abs(forces).max() > 0.1


@pytest.mark.parametrize("layer", [RadiusGraph(5.0), KNearestGraph(14)])
def test_distances_do_not_depend_on_the_choice_of_the_lattice_vectors(layer):
    rng = np.random.default_rng(5)
    # Fractions that float32 holds exactly, as it does their sums.
    cell = np.array([[4.0, 0, 0], [0.75, 3.625, 0], [-0.375, 0.875, 4.5]])
    position = np.round(rng.uniform(size=(5, 3)) @ cell * 512) / 512
    change = np.array([[1, 0, 0], [3, 1, 0], [-2, 4, 1]]) @ np.array(
        [[1, 2, -1], [0, 1, 5], [0, 0, 1]]
    )
    assert round(np.linalg.det(change)) == 1
    expected = distances_of(layer(crystal(cell, position)))
    moved = position + rng.integers(-2, 3, (5, 3)) @ cell
    for other in (crystal(change @ cell, position), crystal(cell, moved)):
        for a, b in zip(distances_of(layer(other)), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("layer", [RadiusGraph(5.0), KNearestGraph(14)])
def test_a_supercell_has_the_same_distances(layer):
    rng = np.random.default_rng(6)
    cell = np.array([[4.0, 0, 0], [0.7, 3.6, 0], [-0.4, 0.9, 4.4]])
    position = rng.uniform(size=(3, 3)) @ cell
    expected = distances_of(layer(crystal(cell, position)))
    repeats = np.array([2, 1, 3])
    shifts = np.array(list(np.ndindex(*repeats)))
    many = (position + (shifts @ cell)[:, None]).reshape(-1, 3)
    found = distances_of(layer(crystal(cell * repeats[:, None], many)))
    for atom, distances in enumerate(found):
        np.testing.assert_allclose(distances, expected[atom % 3], atol=2e-5)


def test_ties_are_broken_alike_whatever_the_rounding():
    cell = np.eye(3) * 3.7
    position = np.array([[0.0, 0, 0], [1.85, 1.85, 1.85]])
    noise = np.random.default_rng(0).normal(scale=3e-7, size=(2, 3))
    expected = edges_of(KNearestGraph(10)(crystal(cell, position)))
    moved = edges_of(KNearestGraph(10)(crystal(cell, position + noise)))
    np.testing.assert_array_equal(moved, expected)
    # 8 neighbours of the other kind, then 2 of 6 equal images: the lowest shifts.
    own = expected[(expected[:, 0] == 0) & (expected[:, 1] == 0)]
    assert own[:, 2:].tolist() == [[-1, 0, 0], [0, -1, 0]]


def test_periodic_and_other_graphs_in_one_set():
    rng = np.random.default_rng(2)
    graphs = [
        crystal(CELLS["cubic"], rng.uniform(size=(3, 3)) * 4, [1, 1, 1]),
        crystal(np.zeros((3, 3)), rng.uniform(size=(4, 3)) * 4, [0, 0, 0]),
        crystal(CELLS["tiny"], rng.uniform(size=(2, 3)), [1, 0, 1]),
        crystal(CELLS["cubic"], rng.uniform(size=(4, 3)) * 4, [0, 0, 0]),
    ]
    for layer in (RadiusGraph(3.0), KNearestGraph(5)):
        together = layer(FlatGraphs.from_graphs(graphs))
        for graph, found in zip(graphs, together, strict=True):
            alone = layer(graph)
            np.testing.assert_array_equal(edges_of(found), edges_of(alone))
            np.testing.assert_array_equal(
                found.edge["displacement"], alone.edge["displacement"]
            )
        assert not together[1].edge["shift"].any() and together[1].num_edges
        assert not together[3].edge["shift"].any() and together[3].num_edges


@pytest.mark.parametrize("name, count", [("perov5", 300), ("carbon24", 300)])
def test_crystals_of_data_sets(name, count, shared_data):
    check_data_set(name, count, shared_data, 4.3137, 24)


def test_supercells_of_a_data_set(shared_data):
    check_data_set("mlearn", 200, shared_data, 4.3137, 24)


def check_data_set(name, count, shared_data, radius, k):
    graphs = load_crystals(shared_data / f"crystals_{name}")
    largest = np.argsort(-graphs.num_nodes, kind="stable")[:5]
    some = np.linspace(0, len(graphs) - 1, count).astype(int)
    graphs = graphs.take(np.union1d(some, largest))
    close, nearest = RadiusGraph(radius)(graphs), KNearestGraph(k)(graphs)
    for index, graph in enumerate(graphs):
        facts = (graph.node["position"], graph.context["cell"], [1, 1, 1])
        edges, distances = brute_force(*facts, radius)
        np.testing.assert_array_equal(edges_of(close[index]), edges)
        np.testing.assert_allclose(close[index].edge["distance"], distances, rtol=1e-6)
        expected = nearest_distances(*facts, k)
        np.testing.assert_allclose(
            distances_of(nearest[index]), expected, rtol=1e-6, atol=1.1e-5
        )


@pytest.mark.parametrize(
    "cell, pbc",
    [
        (np.zeros((3, 3)), [1, 0, 0]),
        ([[2, 0, 0], [4, 0, 0], [0, 0, 3]], None),
        ([[2, 0, 0], [4, 0, 0], [0, 0, 3]], [1, 1, 0]),
        ([[2, 0, 0], [0, 3, 0], [0, 0, 0]], None),
    ],
)
def test_flat_cells_are_refused(cell, pbc):
    for layer in (RadiusGraph(3.0), KNearestGraph(4)):
        with pytest.raises(ValueError, match="independent lattice vectors.*graph 0"):
            layer(crystal(cell, [[0.0, 0, 0]], pbc))


def test_a_flat_cell_is_fine_where_the_graph_is_not_periodic():
    graph = crystal([[2, 0, 0], [4, 0, 0], [0, 0, 3]], [[0.0, 0, 0]], [1, 0, 1])
    assert RadiusGraph(2.5)(graph).num_edges == 2


@pytest.mark.parametrize("pbc", [(1, 1, 1), (1, 0, 0), (0, 1, 1), (1, 0, 1)])
@pytest.mark.parametrize(
    "cell",
    [
        np.diag([0.7, 8.0, 9.0]),
        np.diag([-0.7, 8.0, 9.0]),
        [[0.7, 0, 0], [5.3, 8, 0], [3, -7, 9]],
        [[0.3, 0.1, 0], [0, 0.4, 0], [0, 0, 20]],
        [[10, 0, 0], [100.1, 0.5, 0], [0, 0, 10]],
    ],
)
def test_cells_much_thinner_than_the_cutoff_against_ase(cell, pbc):
    pytest.importorskip("ase")
    from ase import Atoms
    from ase.neighborlist import neighbor_list

    rng = np.random.default_rng(0)
    graph = crystal(cell, rng.uniform(-1, 2, size=(3, 3)) @ np.asarray(cell), pbc)
    position, cell = (
        np.asarray(values, float)
        for values in (graph.node["position"], graph.context["cell"])
    )
    atoms = Atoms("H3", position, cell=cell, pbc=pbc)
    receiver, sender, shift = neighbor_list("ijS", atoms, 6.0)
    order = np.lexsort((*shift.T[::-1], sender, receiver))
    expected = np.column_stack([receiver, sender, shift])[order]
    np.testing.assert_array_equal(edges_of(RadiusGraph(6.0)(graph)), expected)


@pytest.mark.parametrize("pbc", [(1, 1, 1), (0, 1, 0), (0, 1, 1)])
def test_cells_in_another_unit(pbc):
    graph = crystal(np.eye(3) * 4e-10, [[0.0, 0, 0]], pbc)
    with pytest.raises(ValueError, match="images of an atom.*graph 0. Give the cell"):
        RadiusGraph(5.0)(graph)
    assert RadiusGraph(5.0)(crystal(np.eye(3) * 4e-10, [[0.0, 0, 0]], (0, 0, 0)))


def test_errors_name_the_file_and_the_frame():
    info = {"file": "run.xyz", "frame": 7}
    cell = np.eye(3) * 4.0
    good = crystal(cell, [[0.0, 0, 0]], (1, 1, 1))
    flat = crystal(cell[[0, 0, 2]], [[0.0, 0, 0]], (1, 1, 1))
    small = crystal(cell * 1e-10, [[0.0, 0, 0]], (1, 1, 1))
    for bad, message in (
        (flat, "independent lattice vectors"),
        (small, "images of an atom"),
    ):
        graphs = [good, bad.replace(info=info)]
        for several in (graphs, FlatGraphs.from_graphs(graphs)):
            with pytest.raises(ValueError, match=rf"{message}.*graph 1 \(run.xyz, fr"):
                list(RadiusGraph(3.0)(several))
    graphs = FlatGraphs.from_graphs([good, good.replace(info=info)])
    position = graphs.node["position"].copy()
    position[1] = np.nan
    columns = {**graphs.columns(), "node/position": position}
    with pytest.raises(ValueError, match=r"nan.* in graph 1 \(run.xyz, frame 7\)"):
        KNearestGraph(3)(FlatGraphs.from_columns(columns, graphs.info))
    with pytest.raises(ValueError, match=r"graph 1 \(run.xyz\) is periodic"):
        FullyConnectedGraph()(
            FlatGraphs.from_graphs([flat_box(), good.replace(info={"file": "run.xyz"})])
        )


def flat_box():
    return crystal(np.eye(3), [[0.0, 0, 0]], (0, 0, 0))


def test_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "vesin", None)
    with pytest.raises(ImportError, match=r"vesin.*keras-bandgnn\[crystals\]"):
        RadiusGraph(3.0)(crystal(np.eye(3), [[0.0, 0, 0]]))
