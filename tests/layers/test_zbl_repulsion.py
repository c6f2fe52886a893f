import keras
import numpy as np
import pytest
from keras import ops
from scipy import constants
from scipy.integrate import quad

import keras_bandgnn as kb
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.layers import ZBLRepulsion
from keras_bandgnn.layers.zbl_repulsion import COVALENT_RADII, pair_energies
from keras_bandgnn.testing.harness import run_layer_test


def bare(first, second, distance):
    """The repulsion without its switch, eV: the formulas of the book."""
    length = 0.46850 / (first**0.23 + second**0.23)
    x = distance / length
    screening = (
        0.18175 * np.exp(-3.19980 * x)
        + 0.50986 * np.exp(-0.94229 * x)
        + 0.28022 * np.exp(-0.40290 * x)
        + 0.02817 * np.exp(-0.20162 * x)
    )
    return 14.399645 * first * second / distance * screening


def oracle(first, second, distance):
    t = distance / (COVALENT_RADII[first - 1] + COVALENT_RADII[second - 1])
    switch = (1 - 28 * t**6 + 48 * t**7 - 21 * t**8) * (t < 1)
    return bare(first, second, distance) * switch


def graphs(seed=0, count=3):
    rng, out = np.random.default_rng(seed), []
    for _ in range(count):
        atoms = int(rng.integers(2, 7))
        position = rng.uniform(size=(atoms, 3)) * 1.6
        node = {
            "atomic_number": rng.choice([1, 6, 8, 29, 79, 96], atoms),
            "position": position,
        }
        out.append(kb.Graph(atoms, [], [], node=node, label=float(rng.normal())))
    return list(kb.preprocessing.RadiusGraph(6.0)(out))


def expected(graph):
    number, position = graph.node["atomic_number"], graph.node["position"].astype(float)
    pairs = [(i, j) for i in range(len(number)) for j in range(i)]
    return sum(
        oracle(number[i], number[j], np.linalg.norm(position[i] - position[j]))
        for i, j in pairs
    )


def batch_of(items, size=8):
    batcher = kb.preprocessing.StaticBatcher(size - 1)
    return kb.preprocessing.GraphLoader(items, batcher)[0][0]


def test_against_the_formulas():
    items = graphs()
    batch = batch_of(items)
    energies = run_layer_test(ZBLRepulsion(), batch, mixed=False)
    assert energies.dtype == np.float32
    want = [expected(graph) for graph in items]
    for name in (None, "mixed_bfloat16"):
        options = {} if name is None else {"dtype": name}
        energies = ops.convert_to_numpy(ZBLRepulsion(**options)(batch))
        ids = batch["graph"]["id"][0]
        np.testing.assert_allclose(energies[0, :3, 0], np.take(want, ids[:3]), 2e-5)
        assert not energies[0, 3:].any()
    flat = kb.data.FlatGraphs.from_graphs(items)
    np.testing.assert_allclose(ZBLRepulsion().energies_of(flat), want, rtol=1e-5)
    # From distances alone, too.
    edge = {k: v for k, v in batch["edge"].items() if k != "displacement"}
    again = ops.convert_to_numpy(ZBLRepulsion()({**batch, "edge": edge}))
    np.testing.assert_allclose(again, energies, rtol=1e-5)


def test_known_values():
    # At short distances the nuclei are bare: k is e^2 / (4 pi epsilon_0).
    k = constants.e / (4 * np.pi * constants.epsilon_0) * 1e10
    near = pair_energies(np.array(14), np.array(14), np.array(1e-6), room=np)
    assert near * 1e-6 / 14**2 == pytest.approx(k, rel=3e-5)
    # The length of screening is 0.8854 Bohr radii.
    bohr = constants.physical_constants["Bohr radius"][0] * 1e10
    assert pytest.approx(0.8854 * bohr, rel=1e-4) == 0.46850
    # The universal function at 1 and at 10, from the coefficients by hand.
    for x, phi in ((1.0, 0.416439), (10.0, 0.00877806)):
        length = 0.46850 / (2 * 29**0.23)
        energy = bare(29, 29, x * length)
        assert energy * x * length / (14.399645 * 29**2) == pytest.approx(phi, rel=1e-5)
    # Si and Si at 0.5 Angstrom.
    pair = pair_energies(np.array(14), np.array(14), np.array(0.5), room=np)
    assert pair == pytest.approx(469.372, rel=1e-5)


def test_radii_are_those_of_ase():
    data = pytest.importorskip("ase.data")
    np.testing.assert_allclose(COVALENT_RADII, data.covalent_radii[1:97])


def energies_and_slopes(first, second, distances):
    """Energies, first and second derivatives by finite differences, in float64."""
    step = 1e-4
    left, middle, right = (
        pair_energies(np.array(first), np.array(second), distances + shift, room=np)
        for shift in (-step, 0, step)
    )
    return middle, (right - left) / (2 * step), (right - 2 * middle + left) / step**2


def test_the_switch_is_smooth():
    radius = COVALENT_RADII[28] + COVALENT_RADII[7]
    distances = np.linspace(0.3, radius + 0.5, 4000)
    energy, slope, curvature = energies_and_slopes(29, 8, distances)
    assert (np.diff(energy) <= 0).all() and (energy >= 0).all()
    beyond = distances > radius + 1e-3
    assert not energy[beyond].any()
    near = np.abs(distances - radius) < 1e-3
    assert near.any() and np.abs(energy[near]).max() < 1e-6
    assert np.abs(slope[near]).max() < 1e-3 and np.abs(curvature[near]).max() < 1.0
    work, _ = quad(
        lambda d: energies_and_slopes(29, 8, np.array(d))[1], 1.0, radius, limit=200
    )
    assert -work == pytest.approx(oracle(29, 8, 1.0), rel=1e-4)


def test_no_gradient_of_padding_and_of_coinciding_atoms_is_nan():
    graph = kb.Graph(
        3,
        [1, 0, 2, 0],
        [0, 1, 0, 2],
        node={"atomic_number": [8, 8, 1]},
        edge={"displacement": [[0, 0, 0], [0, 0, 0], [0.5, 0, 0], [-0.5, 0, 0]]},
    )
    batch = batch_of([graph, graph], size=5)
    layer = ZBLRepulsion()

    def energies(displacement):
        edge = {**batch["edge"], "displacement": displacement}
        return layer({**batch, "edge": edge})

    displacement = ops.convert_to_tensor(batch["edge"]["displacement"])
    for array in graph_ops.value_and_gradient(energies, displacement):
        assert np.isfinite(ops.convert_to_numpy(array)).all()


def test_edges_of_an_explanation_count_as_often_as_it_says():
    batch = batch_of(graphs())
    whole = ops.convert_to_numpy(ZBLRepulsion()(batch))
    factor = np.full(batch["edge"]["mask"].shape, 0.25, "float32")
    part = ZBLRepulsion()({**batch, "explained": {"edge": factor}})
    np.testing.assert_allclose(ops.convert_to_numpy(part), 0.25 * whole, rtol=1e-5)


def test_batches_only():
    with pytest.raises(ValueError, match=r"Call the layer as layer\(batch\)"):
        ZBLRepulsion()(np.zeros((1, 3, 4), "float32"))
    batch = batch_of(graphs())
    edge = {k: batch["edge"][k] for k in ("sender", "receiver", "mask")}
    with pytest.raises(ValueError, match="'displacement' or 'distance'"):
        ZBLRepulsion()({**batch, "edge": edge})


def test_registered():
    name = keras.saving.get_registered_name(ZBLRepulsion)
    assert name == "keras_bandgnn>ZBLRepulsion"
