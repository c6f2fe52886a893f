import json
from pathlib import Path

import keras
import numpy as np
import painn_reference as reference
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.batch import unbatch
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.layers import shifted_softplus
from keras_bandgnn.models import (
    GraphRegressor,
    MPEUBackbone,
    PaiNNBackbone,
    SchNetBackbone,
)
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader, GraphPreprocessor
from tests.oracles import geometric as oracle

pytestmark = pytest.mark.every_backend("finite_differences")

QM9 = (1, 6, 7, 8, 9)
AFLOW = tuple(range(1, 75))

# Those that differ in what they do with a batch.
FAMILIES = ("schnet-classic", "mpeu", "painn-sine")

CLASSIC = {
    "num_gaussians": 20,
    "cutoff": 3.0,
    "reduce": "sum",
    "use_bias": True,
    "activate_filters": False,
}
BACKBONES = {
    "schnet": (SchNetBackbone, oracle.schnet, {}),
    "schnet-classic": (SchNetBackbone, oracle.schnet, CLASSIC),
    "schnet-shared": (SchNetBackbone, oracle.schnet, {"share_weights": True}),
    "mpeu": (MPEUBackbone, oracle.mpeu, {}),
    "mpeu-sum": (MPEUBackbone, oracle.mpeu, {"reduce": "sum", "num_gaussians": 60}),
    "painn": (PaiNNBackbone, oracle.painn, {"cutoff": 3.0}),
    "painn-sine": (
        PaiNNBackbone,
        oracle.painn,
        {"cutoff": 4.0, "basis": "sine", "num_functions": 6, "epsilon": 1e-4},
    ),
}


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def make(name, elements=QM9, width=6, steps=2, dtype=None):
    cls, _, options = BACKBONES[name]
    backbone = cls(elements, width, steps, dtype=dtype, **options)
    rng = np.random.default_rng(1)
    for weight in backbone.weights:
        scale = 0.3 if "bias" in weight.path else weight.shape[0] ** -0.5
        weight.assign(scale * rng.normal(size=weight.shape))
    return backbone


def expected(name, backbone, graph, displacement=None):
    """The oracle's node states, float64 [N, C]."""
    if displacement is None:
        displacement = graph.edge["displacement"].astype(float)
    out = BACKBONES[name][1](
        graph, backbone.get_config(), oracle.weights_of(backbone), displacement
    )
    return out[0] if isinstance(out, tuple) else out


def molecule(positions, numbers, label=0.0):
    """All pairs of atoms."""
    receivers, senders = np.nonzero(~np.eye(len(numbers), dtype=bool))
    return Graph(
        len(numbers),
        senders,
        receivers,
        node={"atomic_number": numbers, "position": positions},
        edge={"displacement": positions[senders] - positions[receivers]},
        label=label,
    )


def molecules(sizes=(4, 1, 6, 2, 3), seed=0):
    """Atoms at least 0.9 angstrom apart."""
    rng = np.random.default_rng(seed)
    graphs = []
    for size in sizes:
        positions = np.zeros((0, 3))
        while len(positions) < size:
            place = rng.uniform(0, 2 + 0.2 * size, 3)
            if (np.linalg.norm(positions - place, axis=1) > 0.9).all():
                positions = np.concatenate([positions, place[None]])
        numbers = rng.choice(QM9, size)
        label = float(np.exp(-positions.std(axis=0)).sum())
        graphs.append(molecule(positions, numbers, label))
    return graphs


def batch(graphs, replicas=1, room=1.0):
    """One padded batch of all graphs."""
    nodes = sum(g.num_nodes for g in graphs)
    edges = sum(g.num_edges for g in graphs)
    budget = {
        "node": int(room * nodes) + 3,
        "edge": int(room * edges) + 5,
        "graph": len(graphs) + 2,
    }
    loader = GraphLoader(
        graphs, DynamicBatcher(budget=budget), shuffle=False, replicas=replicas
    )
    return loader[0][0]


def task_of(backbone, **options):
    # One budget for all: JAX compiles anew for each shape.
    batcher = DynamicBatcher(budget={"node": 24, "edge": 70, "graph": 8})
    preprocessor = GraphPreprocessor(batcher=batcher)
    options = {"activation": shifted_softplus, "normalizer": None, **options}
    return GraphRegressor(backbone, preprocessor=preprocessor, **options)


@pytest.mark.parametrize(
    ("cls", "width", "aflow", "qm9", "head"),
    [
        (SchNetBackbone, 64, 84_768, 80_352, {"use_bias": False}),
        (MPEUBackbone, 64, 177_568, 173_152, {"use_bias": False}),
        (MPEUBackbone, 256, 2_553_472, None, {"use_bias": False}),
        (PaiNNBackbone, 256, 2_302_209, 2_284_545, {"hidden": 256}),
    ],
)
def test_the_profiled_models_have_the_papers_parameters(cls, width, aflow, qm9, head):
    for elements, count in ((AFLOW, aflow), (QM9, qm9)):
        if count is not None:
            task = task_of(cls(elements, width), **head)
            sizes = [int(np.prod(w.shape)) for w in task.trainable_variables]
            assert sum(sizes) == count


def test_the_profiled_models_are_the_defaults():
    widths = {SchNetBackbone: 64, MPEUBackbone: 64, PaiNNBackbone: 256}
    for cls, width in widths.items():
        backbone = cls(QM9)
        assert (backbone.hidden_dim, backbone.num_steps) == (width, 3)
    assert SchNetBackbone(QM9).reduce == MPEUBackbone(QM9).reduce == "mean"


@pytest.mark.parametrize(
    ("name", "replicas"), [(name, 1 + i % 2) for i, name in enumerate(BACKBONES)]
)
def test_states_equal_the_oracle(name, replicas):
    backbone, graphs = make(name), molecules()
    x = batch(graphs, replicas)
    rows = unbatch(numpy(backbone(x)), x, "node")
    assert sorted(i for i, _ in rows) == list(range(len(graphs)))
    for index, states in rows:
        want = expected(name, backbone, graphs[index])
        scale = max(1.0, np.abs(want).max())
        np.testing.assert_allclose(states, want, atol=1e-5 * scale)


def gradients(backbone, x, cotangent):
    """Gradients of sum(states * cotangent): of displacements, of weights by path."""
    x = keras.tree.map_structure(keras.ops.convert_to_tensor, x)
    cotangent = keras.ops.convert_to_tensor(cotangent)
    variables = backbone.trainable_variables
    displacement = x["edge"]["displacement"]

    def moved(displacement):
        return {**x, "edge": {**x["edge"], "displacement": displacement}}

    def total(states):
        return keras.ops.sum(keras.ops.cast(states, "float32") * cotangent)

    if keras.backend.backend() == "jax":
        import jax

        def energy(values, displacement):
            states, _ = backbone.stateless_call(values, [], moved(displacement))
            return total(states)

        values = [v.value for v in variables]
        own, of_edges = jax.jit(jax.grad(energy, (0, 1)))(values, displacement)
    elif keras.backend.backend() == "torch":
        import torch

        displacement.requires_grad_()
        energy = total(backbone(moved(displacement)))
        leaves = [displacement, *(v.value for v in variables)]
        of_edges, *own = torch.autograd.grad(energy, leaves)
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(displacement)
            energy = total(backbone(moved(displacement)))
        leaves = [displacement, [v.value for v in variables]]
        of_edges, own = tape.gradient(energy, leaves)
        own = [tf.convert_to_tensor(g) for g in own]
    paths = [v.path.split("/", 1)[1] for v in variables]
    return numpy(of_edges), dict(zip(paths, map(numpy, own), strict=True))


@pytest.mark.parametrize("name", BACKBONES)
def test_gradients_equal_finite_differences(name):
    backbone = make(name)
    graph = molecules([5], seed=3)[0]
    x = batch([graph], room=1.5)
    rng = np.random.default_rng(4)
    shape = (*x["node"]["mask"].shape, backbone.hidden_dim)
    cotangent = rng.normal(size=shape).astype("float32")
    cotangent *= x["node"]["mask"][..., None]
    of_edges, of_weights = gradients(backbone, x, cotangent)
    assert np.isfinite(of_edges).all() and not of_edges[0, graph.num_edges :].any()
    config, weights = backbone.get_config(), oracle.weights_of(backbone)
    displacement = graph.edge["displacement"].astype(float)

    def energy(weights, displacement):
        out = BACKBONES[name][1](graph, config, weights, displacement)
        states = out[0] if isinstance(out, tuple) else out
        return (states * cotangent[0, : graph.num_nodes]).sum()

    step = 1e-5
    for path, own in of_weights.items():
        # Along the gradient the change is as large as it can be.
        way = own.astype(float) / max(np.linalg.norm(own), 1e-12)
        ends = [
            energy({**weights, path: weights[path] + s * way}, displacement)
            for s in (step, -step)
        ]
        slope = (ends[0] - ends[1]) / (2 * step)
        assert slope == pytest.approx(np.linalg.norm(own), rel=1e-3, abs=1e-4), path
    # Forces: each atom moves the edges into it and those out of it.
    positions = graph.node["position"].astype(float)
    own = np.zeros_like(positions)
    edges = of_edges[0, : graph.num_edges]
    np.add.at(own, graph.receivers, edges)
    np.add.at(own, graph.senders, -edges)
    for atom, axis in np.ndindex(positions.shape):
        ends = []
        for s in (step, -step):
            place = positions.copy()
            place[atom, axis] += s
            ends.append(energy(weights, place[graph.senders] - place[graph.receivers]))
        force = -(ends[0] - ends[1]) / (2 * step)
        assert own[atom, axis] == pytest.approx(force, rel=1e-3, abs=2e-3)


def rotation(seed):
    matrix, upper = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return matrix * np.sign(np.diag(upper))


@pytest.mark.parametrize("name", FAMILIES)
def test_moving_a_structure_changes_no_energy(name):
    task, graphs = task_of(make(name), readout="sum"), molecules()
    energies = np.concatenate(task.predict(graphs))
    rng = np.random.default_rng(5)
    moved = []
    for graph in graphs:
        order = rng.permutation(graph.num_nodes)
        positions = graph.node["position"] @ rotation(6).T + rng.normal(size=3)
        moved.append(molecule(positions[order], graph.node["atomic_number"][order]))
    scale = np.abs(energies).max()
    np.testing.assert_allclose(
        np.concatenate(task.predict(moved)), energies, atol=1e-5 * scale
    )
    # The test can fail: a stretched structure has other energies.
    stretched = [
        molecule(1.3 * g.node["position"], g.node["atomic_number"]) for g in graphs
    ]
    change = np.abs(np.concatenate(task.predict(stretched)) - energies)
    assert change.max() > 1e-4 * scale


@pytest.mark.parametrize("name", ["painn", "painn-sine"])
def test_vectors_equal_the_oracle_and_turn_with_the_structure(name):
    backbone, graphs = make(name), molecules()
    turn = rotation(7)
    turned = [
        molecule(g.node["position"] @ turn.T, g.node["atomic_number"]) for g in graphs
    ]
    x, y = batch(graphs), batch(turned)
    states, vectors = backbone(x, return_vectors=True)
    np.testing.assert_array_equal(numpy(states), numpy(backbone(x)))
    rows = dict(unbatch(numpy(vectors), x, "node"))
    for index, graph in enumerate(graphs):
        displacement = graph.edge["displacement"].astype(float)
        weights = oracle.weights_of(backbone)
        _, want = oracle.painn(graph, backbone.get_config(), weights, displacement)
        np.testing.assert_allclose(rows[index], want, atol=1e-5)
    shapes = keras.tree.map_structure(np.shape, x)
    found = backbone.compute_output_shape(shapes, return_vectors=True)
    assert found == (tuple(states.shape), tuple(vectors.shape))
    symbolic = keras.tree.map_structure(lambda a: keras.KerasTensor(a.shape), x)
    one, two = backbone(symbolic, return_vectors=True)
    assert (one.shape, two.shape) == found
    assert backbone(symbolic).shape == backbone.compute_output_shape(shapes) == found[0]
    _, other = backbone(y, return_vectors=True)
    want = np.einsum("ab,gnbc->gnac", turn, numpy(vectors))
    np.testing.assert_allclose(numpy(other), want, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_about_the_batch_changes_a_prediction(name):
    task, graphs = task_of(make(name)), molecules()
    together = task.predict(graphs)
    for index, graph in enumerate(graphs):
        (alone,) = task.predict([graph])
        np.testing.assert_allclose(alone, together[index], atol=1e-5)
    wide = batch(graphs, room=2.0)
    for index, row in unbatch(numpy(task(wide)), wide, "graph"):
        np.testing.assert_allclose(row, together[index], atol=1e-5)


def test_painn_equals_schnetpack():
    elements, width, steps = 100, reference.WIDTH, reference.STEPS
    backbone = PaiNNBackbone(
        elements,
        width,
        steps,
        cutoff=reference.CUTOFF,
        num_functions=reference.FUNCTIONS,
        basis="sine",
    )
    count = iter(range(100))

    def linear(inputs, outputs, bias=True):
        kernel = reference.weight(next(count), (outputs, inputs)).T
        return [kernel, reference.weight(next(count), (outputs,))] if bias else [kernel]

    backbone.embedding.set_weights([reference.weight(next(count), (elements, width))])
    # One layer makes the filters of all steps there.
    kernel, bias = linear(reference.FUNCTIONS, steps * 3 * width)
    kernels, biases = np.split(kernel, steps, axis=1), np.split(bias, steps)
    for step in range(steps):
        own = [*linear(width, width), *linear(width, 3 * width)]
        backbone.messages[step].set_weights([*own, kernels[step], biases[step]])
        own = linear(width, 2 * width, bias=False)
        own += [*linear(2 * width, width), *linear(width, 3 * width)]
        backbone.updates[step].set_weights(own)
    senders, receivers, displacement = reference.edges()
    graph = Graph(
        len(reference.NUMBERS),
        senders,
        receivers,
        node={"atomic_number": reference.NUMBERS},
        edge={"displacement": displacement},
    )
    x = batch([graph])
    states, vectors = backbone(x, return_vectors=True)
    want = json.loads(Path(__file__).with_name("painn_reference.json").read_text())
    count = graph.num_nodes
    np.testing.assert_allclose(numpy(states)[0, :count], want["states"], atol=1e-5)
    np.testing.assert_allclose(numpy(vectors)[0, :count], want["vectors"], atol=1e-5)


def test_schnet_equals_torch_geometric():
    torch = pytest.importorskip("torch")
    models = pytest.importorskip("torch_geometric.nn.models")
    width, steps, gaussians, cutoff = 6, 2, 10, 4.0
    graph = molecules([5], seed=8)[0]
    ends = torch.tensor(np.stack([graph.senders, graph.receivers])).long()
    place = torch.tensor(graph.node["position"])

    def given(position, _):
        return ends, (position[ends[0]] - position[ends[1]]).norm(dim=-1)

    torch.manual_seed(0)
    net = models.SchNet(width, width, steps, gaussians, cutoff, given)
    backbone = SchNetBackbone(
        100,
        width,
        steps,
        num_gaussians=gaussians,
        cutoff=cutoff,
        reduce="sum",
        use_bias=True,
        activate_filters=False,
    )
    task = task_of(backbone, readout="sum")

    def values(*linears):
        found = []
        for linear in linears:
            found.append(linear.weight.detach().numpy().T)
            if linear.bias is not None:
                found.append(linear.bias.detach().numpy())
        return found

    backbone.embedding.set_weights([net.embedding.weight.detach().numpy()])
    for step, block in enumerate(net.interactions):
        backbone.filters[step].set_weights(values(block.mlp[0], block.mlp[2]))
        backbone.interactions[step].set_weights(
            values(block.conv.lin1, block.conv.lin2, block.lin)
        )
    task.head.set_weights(values(net.lin1, net.lin2))
    close = np.linalg.norm(graph.edge["displacement"], axis=1) < cutoff
    assert close.all()  # There the other does not cut edges that are too long.
    with torch.no_grad():
        want = net(torch.tensor(graph.node["atomic_number"]).long(), place)
    np.testing.assert_allclose(
        task.predict([graph])[0], want.numpy().ravel(), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_files_hold_the_model(name, tmp_path):
    backbone = make(name)
    config = json.loads(json.dumps(backbone.get_config()))
    assert type(backbone).from_config(config).get_config() == config
    task, graphs = task_of(backbone), molecules()
    task.save_to_preset(tmp_path / "preset")
    again = GraphRegressor.from_preset(str(tmp_path / "preset"))
    assert again.head.activation is shifted_softplus
    for own, other in zip(again.predict(graphs), task.predict(graphs), strict=True):
        np.testing.assert_array_equal(own, other)
    task.save(tmp_path / "task.keras")
    again = keras.saving.load_model(tmp_path / "task.keras")
    np.testing.assert_array_equal(again.predict(graphs)[0], task.predict(graphs)[0])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("painn", "mixed_float16"), *((name, "mixed_bfloat16") for name in FAMILIES)],
)
def test_reduced_precision(name, dtype):
    x = batch(molecules())
    wide = numpy(make(name)(x))
    backbone = make(name, dtype=dtype)
    states = backbone(x)
    found = keras.backend.standardize_dtype(states.dtype)
    assert found == dtype.removeprefix("mixed_")
    error = np.abs(numpy(states) - wide)[x["node"]["mask"]]
    assert error.max() < 0.05 * np.abs(wide).max()
    of_edges, of_weights = gradients(backbone, x, np.ones_like(wide))
    assert np.isfinite(of_edges).all()
    assert all(np.isfinite(own).all() for own in of_weights.values())


def test_lengths_suffice_without_directions():
    graph = molecules([4])[0]
    length = np.linalg.norm(graph.edge["displacement"], axis=1)
    bare = graph.replace(edge={"distance": length})
    for name in ("schnet", "mpeu"):
        task = task_of(make(name))
        np.testing.assert_allclose(
            task.predict([bare])[0], task.predict([graph])[0], atol=1e-5
        )
    with pytest.raises(ValueError, match="edge feature 'displacement'. Received"):
        task_of(make("painn")).predict([bare])


def test_types_of_edges_are_not_read():
    rng = np.random.default_rng(3)
    plain = [molecule(rng.normal(size=(n, 3)), [1, 6, 7, 8][:n], n) for n in (3, 4, 2)]
    typed = [g.replace(edge_type=rng.integers(0, 5, g.num_edges)) for g in plain]
    task = GraphRegressor(make("schnet", steps=1))
    np.testing.assert_array_equal(task.predict(typed), task.predict(plain))
    assert task.loader(typed).num_edge_types == 1
    task.loader(GraphLoader(typed))  # one of the user's own passes, too
    assert typed[0].edge_type.any()


def test_unfit_graphs_are_refused_on_the_host():
    graph = molecules([4])[0]
    backbone = make("schnet", elements=(1, 6))
    flat = FlatGraphs.from_graphs
    make("schnet", elements=10).check(flat([graph]))
    numbers = {**graph.node, "atomic_number": [1, 6, 17, 8]}
    with pytest.raises(ValueError, match=r"elements=\[1, 6\].*\[8, 17\]"):
        task_of(backbone).predict([graph.replace(node=numbers)])
    with pytest.raises(ValueError, match="node feature 'atomic_number'"):
        backbone.check(flat([Graph(1, [], [])]))
    with pytest.raises(ValueError, match="'displacement' or 'distance'"):
        backbone.check(flat([Graph(1, [], [], node={"atomic_number": [1]})]))
    flat_edges = graph.replace(edge={"displacement": np.ones((12, 2))})
    with pytest.raises(ValueError, match=r"shape \[E, 3\]"):
        make("schnet").check(flat([flat_edges]))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SchNetBackbone(QM9, hidden_dim=0), "`hidden_dim` to be at least 1"),
        (lambda: SchNetBackbone(QM9, reduce="max"), "`reduce` to be one of"),
        (lambda: SchNetBackbone(QM9, cutoff=-1.0), "`cutoff` to be positive"),
        (lambda: SchNetBackbone(QM9, num_gaussians=1), "at least 2"),
        (lambda: MPEUBackbone(QM9, num_steps=0), "`num_steps` to be at least 1"),
        (lambda: MPEUBackbone(QM9, reduce=None), "`reduce` to be one of"),
        (lambda: PaiNNBackbone(QM9, basis="bessel"), "`basis` to be one of"),
        (lambda: PaiNNBackbone(QM9, epsilon=0.0), "`epsilon` to be positive"),
        (lambda: PaiNNBackbone((1, 1)), "distinct"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("name", ["schnet", "mpeu", "painn"])
def test_it_learns_from_geometry(name):
    keras.utils.set_random_seed(0)
    cls, _, options = BACKBONES[name]
    graphs = molecules([4] * 60, seed=11)
    batcher = DynamicBatcher(15)
    task = GraphRegressor(
        cls(QM9, 16, 2, **options), preprocessor=GraphPreprocessor(batcher=batcher)
    )
    task.compile(keras.optimizers.Adam(0.01))
    history = task.fit(graphs, epochs=25, verbose=0).history
    assert history["loss"][-1] < 0.3 * history["loss"][0]
