"""`BugLocalizer`: probabilities, learning, and graphs of functions as they are."""

import json

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.programs import encode_function, function_graph
from keras_bandgnn.programs.rewrite_traits import COLUMNS, trait_columns
from tests.models.task_samples import BACKBONES, data_of, task_of

SOURCES = [
    "def f(first, second):\n    return first - second\n",
    "def g(low, high, step):\n    total = low + step\n    return total * high\n",
    "def h(items, key):\n    for item in items:\n        print(item, key)\n",
    "def k(x, y):\n    z = x * y\n    return z + x\n",
]


def functions(correct=-1):
    return [function_graph(source).repaired_by(correct) for source in SOURCES]


def ggnn(encoder):
    return kb.models.GGNNBackbone(
        encoder.inputs(),
        hidden_dim=8,
        num_steps=2,
        num_edge_types=encoder.num_edge_types,
    )


def transformer(cls, **options):
    """Makes a backbone with relations as biases, and full attention in one layer."""
    return lambda encoder: cls(
        encoder.inputs(),
        hidden_dim=8,
        num_layers=2,
        num_heads=2,
        attention="periodic",
        num_edge_types=encoder.num_edge_types + 1,
        target_type=encoder.num_edge_types - 2,
        **options,
    )


KINDS = {
    "GGNN": ggnn,
    "GT": transformer(kb.models.GTBackbone, laplacian=2),
    "Graphormer": transformer(kb.models.GraphormerBackbone, max_distance=2),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def localizer(kind="GGNN", traits=False, **options):
    keras.utils.set_random_seed(0)
    encoder = kb.preprocessing.FunctionEncoder(
        num_type_buckets=64, num_subtoken_buckets=256, traits=traits
    )
    options["edge_inputs"] = encoder.edge_inputs()
    backbone = KINDS[kind](encoder)
    batcher = kb.preprocessing.DynamicBatcher(1)
    layers = [encoder, *backbone.graph_layers()]
    preprocessor = kb.preprocessing.GraphPreprocessor(layers, batcher)
    return kb.models.BugLocalizer(backbone, preprocessor, **options)


def softmax(scores):
    shares = np.exp(scores - scores.max())
    return shares / shares.sum()


@kinds
def test_outputs_are_a_softmax_over_rewrites_and_no_change(kind):
    task = localizer(kind, hidden=5)
    layers = task.preprocessor.graph_layers[1:]
    for function, found in zip(
        functions(), task.rewrite_probabilities(functions()), strict=True
    ):
        graph = encode_function(function, num_type_buckets=64, num_subtoken_buckets=256)
        compiled = kb.preprocessing.GraphPreprocessor(layers)
        plan = task.backbone.auto_plan()
        batch = compiled.loader([graph], plan=plan)[0][0]
        states = task.backbone(batch)
        scores = keras.ops.convert_to_numpy(task.head(states, batch))[0, :, 0]
        edge = {k: keras.ops.convert_to_numpy(v)[0] for k, v in batch["edge"].items()}
        chosen = edge["target"] if kind != "GGNN" else edge["type"] >= task.first_type
        chosen = np.flatnonzero((chosen > 0) & edge["mask"])
        expected = softmax(scores[chosen].astype(np.float64))
        assert len(found) == len(function.rewrites) + 1
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert found.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("traits", [False, True])
@pytest.mark.parametrize(
    ("size", "kind"), [(1, "GGNN"), (2, "GGNN"), (4, "GGNN"), (1, "GT"), (4, "GT")]
)
def test_batches_do_not_change_probabilities(size, kind, traits):
    task = localizer(kind, traits)
    expected = task.rewrite_probabilities(functions())
    task.preprocessor = kb.preprocessing.GraphPreprocessor(
        task.preprocessor.graph_layers, kb.preprocessing.StaticBatcher(size)
    )
    order = [2, 0, 3, 1]
    found = task.rewrite_probabilities([functions()[i] for i in order])
    for place, i in enumerate(order):
        np.testing.assert_allclose(found[place], expected[i], atol=1e-6)


@pytest.mark.parametrize("kind", ["GGNN", "GT"])
def test_traits_add_an_embedding_of_each_column_to_the_head(kind, tmp_path):
    task = localizer(kind, traits=True)
    (table,) = [w for w in task.head.weights if "traits" in w.path]
    assert table.shape == (sum(COLUMNS), 8)
    before = task.rewrite_probabilities(functions())
    # Without the columns' embeddings it is the same model without traits.
    values = keras.ops.convert_to_numpy(table)
    table.assign(np.zeros(table.shape))
    plain = localizer(kind)
    weights = [w for w in task.get_weights() if w.shape != table.shape]
    plain.set_weights(weights)
    for one, other in zip(
        task.rewrite_probabilities(functions()),
        plain.rewrite_probabilities(functions()),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, atol=1e-6)
    # A column counts for the rewrites that have its id, and for no others.
    function = function_graph(SOURCES[1]).repaired_by(-1)
    ids = trait_columns(function.traits)
    row = np.zeros_like(values)
    column, value = 1, ids[0, 1]
    row[sum(COLUMNS[:column]) + value] = 3.0
    table.assign(row)
    (found,) = task.rewrite_probabilities([function])
    (expected,) = plain.rewrite_probabilities([function])
    ratios = found[1:] / expected[1:]
    has = ids[:, column] == value
    assert 0 < has.sum() < len(has)
    assert np.ptp(ratios[~has]) < 1e-5 < np.abs(ratios[has] - ratios[~has][0]).min()
    table.assign(values)
    task.save_to_preset(tmp_path / "preset")
    loaded = kb.models.BugLocalizer.from_preset(tmp_path / "preset")
    for one, other in zip(
        loaded.rewrite_probabilities(functions()), before, strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-6)


@kinds
def test_loss_and_accuracy_are_those_of_the_right_rewrite(kind):
    task = localizer(kind)
    data = [f.repaired_by(i - 1) for i, f in enumerate(functions())]
    found = task.rewrite_probabilities(data)
    losses, right = [], []
    for i, shares in enumerate(found):
        place = i
        losses.append(-np.log(shares[place]))
        right.append(shares.argmax() == place)
    result = task.evaluate(data, verbose=0, return_dict=True)
    assert result["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert result["accuracy"] == pytest.approx(np.mean(right), abs=1e-6)


@kinds
@pytest.mark.release
def test_it_learns_which_rewrite_is_needed(kind):
    task = localizer(kind)
    data = [f.repaired_by(i - 1) for i, f in enumerate(functions())]
    task.compile(keras.optimizers.Adam(0.02))
    history = task.fit(data, epochs=60, verbose=0)
    assert history.history["accuracy"][-1] == 1.0
    best = [int(p.argmax()) for p in task.rewrite_probabilities(data)]
    assert best == [0, 1, 2, 3]
    graphs = [task.preprocessor.graph_layers[0](function) for function in data]
    for one, other in zip(
        task.rewrite_probabilities(graphs),
        task.rewrite_probabilities(data),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, atol=1e-6)
    # Rows of the caller's edges, and of targets alone without any order of them.
    rows = task.predict(graphs[1])[0]
    assert len(rows) == graphs[1].num_edges
    if kind != "GGNN":
        targets = graphs[1].edge_type >= task.first_type
        assert (np.isnan(rows[:, 0]) == ~targets).all()
        found = task.predict(data[1:2])[0]
        np.testing.assert_allclose(rows[targets], found, atol=1e-6)


@kinds
def test_a_preset_has_it_all(tmp_path, kind):
    task = localizer(kind, hidden=6)
    task.save_to_preset(tmp_path / "preset")
    again = kb.models.BugLocalizer.from_preset(tmp_path / "preset")
    for a, b in zip(
        task.rewrite_probabilities(functions()),
        again.rewrite_probabilities(functions()),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=1e-6)


@kinds
def test_a_calibration_scales_scores_and_favours_no_change(kind, tmp_path):
    plain, temperature, bias = localizer(kind), 1.7, 5.0
    task = localizer(kind, calibration=(temperature, bias))
    task.set_weights(plain.get_weights())
    task.save_to_preset(tmp_path / "preset")
    again = kb.models.BugLocalizer.from_preset(tmp_path / "preset")
    for before, after, loaded in zip(
        plain.rewrite_probabilities(functions()),
        task.rewrite_probabilities(functions()),
        again.rewrite_probabilities(functions()),
        strict=True,
    ):
        scores = np.log(before) / temperature
        scores[0] += bias
        np.testing.assert_allclose(after, softmax(scores), rtol=1e-6)
        np.testing.assert_allclose(loaded, after, rtol=1e-6)


def test_a_preset_may_be_loaded_with_another_calibration(tmp_path):
    task = localizer(calibration=(2.0, 4.0))
    task.save_to_preset(tmp_path / "new")
    task.calibration = None
    (expected,) = task.rewrite_probabilities(functions()[:1])
    load = kb.models.BugLocalizer.from_preset
    (found,) = load(tmp_path / "new", calibration=None).rewrite_probabilities(
        functions()[:1]
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert load(tmp_path / "new", min_confidence=0.1).calibration == [2.0, 4.0]
    # Presets of earlier versions have no such argument.
    file = tmp_path / "new" / "task.json"
    entry = json.loads(file.read_text())
    del entry["config"]["calibration"], entry["config"]["edge_inputs"]
    file.write_text(json.dumps(entry))
    again = load(tmp_path / "new", calibration=(2.0, 4.0))
    scores = np.log(expected) / 2
    scores[0] += 4
    (found,) = again.rewrite_probabilities(functions()[:1])
    np.testing.assert_allclose(found, softmax(scores), rtol=1e-5)
    with pytest.raises(ValueError, match="`calibration"):
        again.calibration = (0.0, 1.0)


@pytest.mark.parametrize("backbone", ["GINEBackbone", "GCNBackbone"])
def test_any_backbone_with_edges(backbone):
    task = task_of("BugLocalizer", backbone)
    graphs = data_of("BugLocalizer", 6)
    history = task.fit(graphs, epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert len(task.rewrite_probabilities(graphs)[0]) == graphs[0].num_edges


def test_one_function_is_a_list_of_one():
    task, function = localizer(), functions()[1]
    (expected,) = task.rewrite_probabilities([function])
    (found,) = task.rewrite_probabilities(function)
    assert found.tolist() == expected.tolist()
    assert task.evaluate(function, verbose=0) == task.evaluate([function], verbose=0)
    task.fit(function, epochs=1, verbose=0)


def test_errors():
    with pytest.raises(ValueError, match="`first_type`"):
        kb.models.BugLocalizer(BACKBONES["GCNBackbone"]())
    for calibration in (3.0, (0.0, 1.0), (1.0,), (1.0, np.nan)):
        with pytest.raises(ValueError, match="`calibration"):
            localizer(calibration=calibration)
    task = localizer()
    graph = encode_function(
        functions()[0], num_type_buckets=64, num_subtoken_buckets=256
    )
    several = graph.replace(label=np.ones_like(graph.label))
    with pytest.raises(ValueError, match="one edge with label 1"):
        task.fit([several], epochs=1, verbose=0)
    with pytest.raises(ValueError, match="label"):
        task.fit([graph.replace(label=None)], epochs=1, verbose=0)
