"""Stresses: against derivatives of energies, in training, and alike on all backends."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    FullyConnectedGraph,
    GraphPreprocessor,
    RadiusGraph,
)

pytest.importorskip("vesin")

# Agreement runs everywhere; backends share the rest.
pytestmark = pytest.mark.every_backend("agree")
GOLDEN = Path(__file__).with_name("stress_reference.json")
BACKBONES = {
    "schnet": lambda: kb.models.SchNetBackbone(
        (1, 6, 8), 8, num_gaussians=8, num_steps=1, cutoff=3.5, reduce="sum"
    ),
    "painn": lambda: kb.models.PaiNNBackbone(
        (1, 6, 8), hidden_dim=8, num_steps=2, cutoff=3.5, num_functions=8
    ),
}


def task_of(name="painn", seed=3, graphs=8, **options):
    keras.utils.set_random_seed(seed)
    preprocessor = GraphPreprocessor([RadiusGraph(3.5)], DynamicBatcher(graphs - 1))
    options = {"normalizer": None, "stress_weight": 50.0, **options}
    return kb.models.ForceRegressor(BACKBONES[name](), 1, preprocessor, **options)


def crystal(seed=0, disorder=0.1, **options):
    rng = np.random.default_rng(seed)
    cell = np.diag([4.0, 4.4, 4.8]) + rng.normal(scale=disorder, size=(3, 3))
    grid = np.stack(np.meshgrid(*[[0.1, 0.6]] * 3), -1).reshape(-1, 3)
    position = grid @ cell + rng.normal(scale=disorder, size=(8, 3))
    number = rng.permutation([1, 6, 8, 6, 1, 6, 8, 8])
    node = {"atomic_number": number, "position": position}
    return kb.Graph(8, [], [], node=node, context={"cell": cell}, **options)


def strained(graph, strain):
    context = {"cell": graph.context["cell"] @ (np.eye(3) + strain)}
    position = graph.node["position"] @ (np.eye(3) + strain)
    return graph.replace(context=context, node={**graph.node, "position": position})


def full(stress):
    return np.asarray(stress)[[[0, 5, 4], [5, 1, 3], [4, 3, 2]]]


def labelled(graphs, teacher, **context):
    """Graphs with the energies, forces and stresses of a task."""
    energies, forces = teacher.predict(graphs), teacher.predict_forces(graphs)
    return [
        graph.replace(
            label=float(energy[0]),
            node={**graph.node, "force": force},
            context={**graph.context, "stress": stress, **context},
        )
        for graph, energy, force, stress in zip(
            graphs, energies, forces, teacher.predict_stress(graphs), strict=True
        )
    ]


def with_pairs(graph):
    """A graph with labels of a sum over pairs, 3 exp(-d^2 / 3) each."""
    pairs = RadiusGraph(3.5)(graph)
    displacement = np.float64(pairs.edge["displacement"])
    energies = 1.5 * np.exp(-np.square(displacement).sum(axis=1) / 3)
    slopes = -2 / 3 * displacement * energies[:, None]
    force = np.zeros((graph.num_nodes, 3))
    np.add.at(force, pairs.receivers, slopes)
    np.add.at(force, pairs.senders, -slopes)
    stress = displacement.T @ slopes / np.linalg.det(graph.context["cell"])
    stress = stress[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
    return graph.replace(
        label=energies.sum(),
        node={**graph.node, "force": force},
        context={**graph.context, "stress": stress},
    )


@pytest.mark.parametrize("name", BACKBONES)
def test_stress_is_the_derivative_of_the_energy_by_strain(name):
    # No atoms are about to cross the cutoff, where the second derivative jumps.
    graphs = [crystal(seed, disorder=0.03) for seed in (0, 1)]
    task = task_of(name)
    stresses = task.predict_stress(graphs)
    rng = np.random.default_rng(2)
    strains = 0.01 * np.cos((np.arange(32) + 0.5) * np.pi / 32)
    directions = rng.uniform(-1, 1, (3, 3, 3))
    directions = (directions + directions.transpose(0, 2, 1)) / 2
    for graph, stress in zip(graphs, stresses, strict=True):
        assert stress.shape == (6,) and np.abs(stress).max() > 1e-4
        volume = np.linalg.det(graph.context["cell"])
        scale = float(volume * np.linalg.norm(full(stress)))
        moved = [strained(graph, by * e) for e in directions for by in strains]
        energies = np.reshape(task.predict(moved), (3, len(strains)))
        for direction, values in zip(directions, energies, strict=True):
            # A polynomial through many energies: their rounding cancels out.
            slope = np.polynomial.Polynomial.fit(strains, values, 4).deriv()(0)
            want = volume * np.sum(full(stress) * direction)
            assert slope == pytest.approx(want, rel=0, abs=5e-4 * scale)


def test_stresses_are_those_of_the_calculator():
    pytest.importorskip("ase")
    task, graph = task_of(), crystal()
    graph = graph.replace(context={**graph.context, "pbc": [1, 1, 1]})
    atoms = kb.data.to_ase(graph)
    atoms.calc = task.as_calculator()
    stress = task.predict_stress([graph])[0]
    np.testing.assert_allclose(stress, atoms.get_stress(), atol=1e-6)


def test_a_fit_lowers_all_three_errors():
    strains = [0.025 * (seed - 3.5) * np.eye(3) for seed in range(8)]
    crystals = [strained(crystal(seed, 0.05), e) for seed, e in enumerate(strains)]
    graphs = [with_pairs(graph) for graph in crystals]
    # The stress of the last one is unknown.
    missing = {**graphs[7].context, "stress": np.full(6, np.nan)}
    graphs[7] = graphs[7].replace(context=missing)
    options = {"force_weight": 40.0, "stress_weight": 100.0}
    task = task_of("schnet", 1, per_atom=True, normalizer="auto", **options)
    rate = keras.optimizers.schedules.CosineDecay(3e-2, 40)
    task.compile(keras.optimizers.Adam(rate))
    task.adapt(task.loader(graphs))
    before = task.evaluate(graphs, return_dict=True, verbose=0)
    task.fit(graphs, epochs=40, verbose=0)
    after = task.evaluate(graphs, return_dict=True, verbose=0)
    for name in ("atom_mae", "force_mae", "stress_mae", "mae"):
        assert after[name] < 0.9 * before[name], (name, before, after)
    # The metrics are what they say they are.
    energies, forces = task.predict(graphs), task.predict_forces(graphs)
    errors = {
        "atom": (np.ravel(energies) - [g.label for g in graphs]) / 8,
        "force": np.stack(forces) - [g.node["force"] for g in graphs],
        "stress": np.stack(task.predict_stress(graphs[:7]))
        - [g.context["stress"] for g in graphs[:7]],
    }
    for name, error in errors.items():
        assert after[f"{name}_mae"] == pytest.approx(np.abs(error).mean(), rel=1e-3)
        rmse = np.sqrt(np.square(error).mean())
        assert after[f"{name}_rmse"] == pytest.approx(rmse, rel=1e-3)


def with_fixed_weights(task):
    """The task with weights that do not depend on the backend."""
    rng = np.random.default_rng(5)
    for weight in task.trainable_variables:
        weight.assign(rng.normal(scale=0.4, size=weight.shape).astype("float32"))
    return task


def numbers_of(name):
    """Predictions, loss, and the changes of all weights by a step of descent."""
    task = with_fixed_weights(task_of(name, per_atom=True))
    graphs = []
    for seed in range(3):
        rng, graph = np.random.default_rng(seed), crystal(seed)
        stress = rng.normal(scale=0.05, size=6)
        if seed == 1:
            stress[:] = np.nan
        graphs.append(
            graph.replace(
                label=rng.normal(),
                node={**graph.node, "force": rng.normal(size=(8, 3))},
                context={**graph.context, "stress": stress},
            )
        )
    stresses = np.stack(task.predict_stress(graphs))
    task.compile(keras.optimizers.SGD(1.0))
    x, y, weight = task.loader(graphs)[0]
    before = [np.array(keras.ops.convert_to_numpy(w)) for w in task.trainable_variables]
    logs = task.train_on_batch(x, y, weight, return_dict=True)
    after = [keras.ops.convert_to_numpy(w) for w in task.trainable_variables]
    steps = [
        np.sum((b - a) * np.linspace(-1, 1, a.size).reshape(a.shape))
        for a, b in zip(after, before, strict=True)
    ]
    metrics = {k: float(v) for k, v in logs.items()}
    return {"stress": stresses.tolist(), "logs": metrics, "steps": np.ravel(steps)}


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.release(elsewhere=True)
def test_backends_agree_on_losses_and_their_gradients(name):
    reference, values = json.loads(GOLDEN.read_text())[name], numbers_of(name)
    scale = np.abs(reference["stress"]).max()
    np.testing.assert_allclose(
        values["stress"], reference["stress"], rtol=0, atol=1e-5 * scale
    )
    for key, value in reference["logs"].items():
        assert values["logs"][key] == pytest.approx(value, rel=1e-5), key
    scale = np.abs(reference["steps"]).max()
    np.testing.assert_allclose(
        values["steps"], reference["steps"], rtol=0, atol=1e-5 * scale
    )


def test_unknown_stresses_do_not_count():
    teacher = task_of(seed=7)
    graphs = labelled([crystal(seed) for seed in range(4)], teacher)
    task = task_of(seed=2)

    def scores(graphs):
        return task.evaluate(graphs, return_dict=True, verbose=0)

    def without(graph):
        context = {**graph.context, "stress": np.full(6, np.nan)}
        return graph.replace(context=context)

    one = scores(graphs[:1])
    some = scores([graphs[0], *map(without, graphs[1:])])
    assert some["stress_mae"] == pytest.approx(one["stress_mae"], rel=1e-5)
    assert some["force_mae"] != pytest.approx(one["force_mae"], rel=1e-5)
    # Single components may be unknown, too.
    stress = np.where(np.arange(6) == 2, graphs[0].context["stress"], np.nan)
    context = {**graphs[0].context, "stress": stress}
    found = scores([graphs[0].replace(context=context)])["stress_mae"]
    error = stress[2] - task.predict_stress(graphs[:1])[0][2]
    assert found == pytest.approx(abs(error), rel=1e-3)
    # Validation graphs need none at all, not even a cell.
    bare = [g.replace(context={}) for g in graphs]
    assert scores(bare)["stress_mae"] == 0
    assert np.isfinite(scores(bare)["loss"])
    # Those of molecules are not defined.
    molecules = [
        g.replace(context={**g.context, "cell": np.zeros((3, 3))}) for g in graphs[:2]
    ]
    found = task.predict_stress([graphs[0], *molecules])
    assert np.isfinite(found[0]).all() and np.isnan(found[1]).all()


def test_weights_of_the_loss_change_without_a_compilation():
    graphs = labelled([crystal(seed) for seed in range(3)], task_of(seed=7))
    task = task_of(seed=2)

    def loss():
        return task.evaluate(graphs, return_dict=True, verbose=0)["loss"]

    task.set_loss_weights(energy=1, force=0, stress=0)
    energy = loss()
    task.set_loss_weights(energy=0, force=2.0)
    force = loss()
    task.set_loss_weights(force=0, stress=3.0)
    stress = loss()
    task.set_loss_weights(1.0, 20.0, 30.0)
    assert loss() == pytest.approx(energy + 10 * force + 10 * stress, rel=1e-4)
    calls, schedule = [], {0: {"force": 5.0}, 1: {"energy": 3.0, "stress": 1.0}}
    guard = kb.training.RecompileGuard()
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: calls.append(
            keras.ops.convert_to_numpy(task.term_weights).tolist()
        )
    )
    late = kb.training.LossWeightScheduler(schedule.get)
    task.fit(graphs, epochs=2, verbose=0, callbacks=[late, note, guard])
    assert calls == [[1.0, 5.0, 30.0], [3.0, 5.0, 1.0]]
    with pytest.raises(ValueError, match=r"schedule\(0\) to return a dict.*None"):
        wrong = kb.training.LossWeightScheduler(lambda epoch: None)
        task.fit(graphs, epochs=1, verbose=0, callbacks=[wrong])
    with pytest.raises(ValueError, match=r"stress=2.0. Set Force.*stress_weight"):
        task_of(stress_weight=None).set_loss_weights(stress=2.0)
    with pytest.raises(ValueError, match="`force` to be at least 0"):
        task.set_loss_weights(force=-1.0)


def test_arguments_are_saved_and_weights_of_the_loss_are_not(tmp_path):
    graphs = labelled([crystal(seed) for seed in range(2)], task_of(seed=7))
    task = task_of(stress_key="stress", per_atom=True)
    task.set_loss_weights(force=77.0)
    task.save(tmp_path / "task.keras")
    again = keras.models.load_model(tmp_path / "task.keras")
    assert (again.stress_weight, again.per_atom) == (50.0, True)
    weights = keras.ops.convert_to_numpy(again.term_weights)
    assert weights.tolist() == [1.0, 10.0, 50.0]
    np.testing.assert_allclose(
        again.predict_stress(graphs), task.predict_stress(graphs), atol=1e-6
    )
    task.save_to_preset(tmp_path / "preset")
    again = kb.models.ForceRegressor.from_preset(tmp_path / "preset")
    assert again.get_config()["stress_weight"] == 50.0
    # Weights of a task that has no stresses fit.
    task.save_weights(tmp_path / "all.weights.h5")
    plain = task_of(seed=9, stress_weight=None)
    plain.load_weights(tmp_path / "all.weights.h5")
    np.testing.assert_allclose(plain.predict(graphs), task.predict(graphs), rtol=1e-6)


def test_averages_of_weights_are_validated_and_end_the_fit():
    graphs = labelled([crystal(seed) for seed in range(4)], task_of(seed=7))
    task = task_of(seed=2)
    optimizer = keras.optimizers.Adam(1e-2, use_ema=True, ema_momentum=0.9)
    task.compile(optimizer)
    averages = keras.callbacks.SwapEMAWeights()
    history = task.fit(
        graphs, validation_data=graphs, epochs=3, verbose=0, callbacks=[averages]
    ).history
    # `fit` leaves the averages in the model.
    scores = task.evaluate(graphs, return_dict=True, verbose=0)
    for name in ("force_mae", "stress_mae", "mae"):
        assert scores[name] == pytest.approx(history[f"val_{name}"][-1], rel=1e-4)


def test_errors():
    graphs = labelled([crystal(seed) for seed in range(2)], task_of(seed=7))
    task = task_of()
    nothing = [
        g.replace(context={**g.context, "stress": np.full(6, np.nan)}) for g in graphs
    ]
    bare = [g.replace(context={"cell": g.context["cell"]}) for g in graphs]
    for wrong in (nothing, bare):
        with pytest.raises(ValueError, match="'stress', for stress_weight=50. .*in 2"):
            task.fit(wrong, epochs=1, verbose=0)
    matrix = [
        g.replace(context={**g.context, "stress": full(g.context["stress"])})
        for g in graphs
    ]
    with pytest.raises(ValueError, match=r"'stress' with 6 numbers.*\(3, 3\)"):
        task.fit(matrix, epochs=1, verbose=0)
    flat = [g.replace(context={**g.context, "cell": np.zeros((3, 3))}) for g in graphs]
    with pytest.raises(ValueError, match="three independent cell vectors.*graph 0"):
        task.fit([graphs[0], *flat][1:], epochs=1, verbose=0)
    molecule = graphs[0].replace(context={})
    plain = kb.models.GraphRegressor(
        BACKBONES["painn"](), 1, GraphPreprocessor([FullyConnectedGraph()])
    )
    with pytest.raises(ValueError, match=r"'cell' \[3, 3\] for stresses"):
        plain.predict_stress([molecule])
    with pytest.raises(ValueError, match="`stress_weight` to be positive"):
        task_of(stress_weight=0)
    with pytest.raises(ValueError, match="LossWeightScheduler in `fit` of a Force"):
        schedule = kb.training.LossWeightScheduler(lambda epoch: {})
        plain.fit([molecule], epochs=1, verbose=0, callbacks=[schedule])


def test_supercells_of_metals(shared_data):
    """A short training on density functional labels of six elements."""
    file = shared_data / "crystals_mlearn_stress" / "mlearn_stress.npz"
    if not file.is_file():
        pytest.skip("no crystals_mlearn_stress")
    with np.load(file) as data:
        arrays = {name: data[name] for name in data.files}
    pointer = arrays["node_ptr"]
    small = [
        at
        for at in np.argsort(np.diff(pointer), kind="stable")
        if set(arrays["z"][pointer[at] : pointer[at + 1]]) == {29}
    ][:40]
    graphs = []
    for at in small:
        own = slice(pointer[at], pointer[at + 1])
        cell = arrays["lattice"][at]
        node = {
            "atomic_number": arrays["z"][own].astype("int32"),
            "position": arrays["frac"][own] @ cell,
            "force": arrays["forces_ev_per_ang"][own],
        }
        context = {"cell": cell, "stress": arrays["stress_ev_per_ang3"][at]}
        energy = float(arrays["energy_ev"][at])
        count = len(node["force"])
        graphs.append(kb.Graph(count, [], [], node=node, context=context, label=energy))
    keras.utils.set_random_seed(0)
    task = kb.models.ForceRegressor(
        kb.models.PaiNNBackbone((29,), 16, 1, cutoff=4.0),
        preprocessor=GraphPreprocessor([RadiusGraph(4.0)], DynamicBatcher(3)),
        normalizer=kb.preprocessing.TargetNormalizer("atom"),
        stress_weight=500.0,
        per_atom=True,
    )
    task.compile(keras.optimizers.Adam(3e-3))
    task.adapt(task.loader(graphs[::2]))
    before = task.evaluate(graphs[1::2], return_dict=True, verbose=0)
    task.fit(graphs[::2], epochs=6, verbose=0)
    after = task.evaluate(graphs[1::2], return_dict=True, verbose=0)
    for name in ("force_mae", "stress_mae"):
        assert after[name] < 0.8 * before[name], (name, before, after)
