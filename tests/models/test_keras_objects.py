"""What Keras does with any model works for every task over every backbone."""

import inspect
import json

import keras
import numpy as np
import pytest
from task_samples import BACKBONES, ELEMENTS, TASKS, check_complete, data_of, task_of

import keras_bandgnn as kb
from keras_bandgnn import compat
from keras_bandgnn.models import fitting

pytestmark = pytest.mark.every_backend("files_name_optimizers", "Backbone-bfloat16]")

PAIRS = [(task, backbone) for task in TASKS for backbone in BACKBONES]


def test_every_task_and_backbone_has_a_sample():
    check_complete()


@pytest.mark.parametrize("task_name, backbone", PAIRS, ids=str)
def test_built_layers_summary_and_configuration(task_name, backbone):
    task = task_of(task_name, backbone)
    # Keras on JAX would run a model eagerly first to build them.
    missing = [layer.name for layer in compat.sublayers(task) if not layer.built]
    assert not missing, "build them in `build` of the model"
    lines = []
    task.summary(print_fn=lambda text, **_: lines.append(text), expand_nested=True)
    count = sum(int(np.prod(weight.shape)) for weight in task.weights)
    assert task.count_params() == count
    assert f"{count:,}" in "\n".join(lines)
    again = keras.models.model_from_json(task.to_json())
    assert type(again) is type(task)
    assert again.get_config() == task.get_config()
    assert [w.shape for w in again.weights] == [w.shape for w in task.weights]


def subclasses(cls):
    for each in cls.__subclasses__():
        yield each
        yield from subclasses(each)


def test_layers_know_their_output_from_what_build_was_given():
    """`summary` and `plot_model` ask for it so."""
    for cls in subclasses(keras.layers.Layer):
        given = list(inspect.signature(cls.build).parameters.values())[1:]
        given = [p for p in given if p.kind is p.POSITIONAL_OR_KEYWORD]
        required = [p.name for p in given if p.default is p.empty]
        own = cls.compute_output_shape is not keras.layers.Layer.compute_output_shape
        if not required or not own or not cls.__module__.startswith("keras_bandgnn"):
            continue
        signature = inspect.signature(cls.compute_output_shape)
        for names in (required, [p.name for p in given]):
            try:
                signature.bind(None, **dict.fromkeys(names))
            except TypeError as error:
                pytest.fail(f"{cls.__name__}, built with {names}: {error}")


BUILT_IN = [
    cls
    for cls in vars(keras.optimizers).values()
    if isinstance(cls, type) and "learning_rate" in inspect.signature(cls).parameters
]


@pytest.mark.parametrize("cls", BUILT_IN, ids=lambda cls: cls.__name__)
def test_files_name_optimizers_of_every_backend(cls):
    """Keras on torch names classes that no other backend can train with."""
    task = task_of("GraphClassifier")
    task.compile(cls(0.125))
    config = task.get_compile_config()
    assert "keras.src" not in json.dumps(config)
    # Files of earlier versions have the names.
    module = f"keras.src.backend.torch.optimizers.torch_{cls.__name__.lower()}"
    config["optimizer"] |= {"module": module, "registered_name": cls.__name__}
    task.compile_from_config(config)
    assert isinstance(task.optimizer, cls)
    if keras.backend.backend() != "torch":
        assert "torch" not in type(task.optimizer).__module__
    assert float(task.optimizer.learning_rate) == 0.125


def test_files_name_wrapped_optimizers():
    task = task_of("GraphClassifier")
    task.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.125)))
    config = task.get_compile_config()
    assert "keras.src" not in json.dumps(config)
    task.compile_from_config(config)
    assert isinstance(task.optimizer.inner_optimizer, keras.optimizers.Adam)


@pytest.mark.parametrize("choice", ["auto", True, False, "cuda_graphs"])
def test_files_hold_which_steps_are_recorded(choice):
    task, other = task_of("GraphClassifier"), task_of("GraphClassifier")
    task.compile("sgd", record_steps=choice)
    config = json.loads(json.dumps(task.get_compile_config()))
    other.compile_from_config(config)
    assert other.record_steps == choice
    # Earlier versions did not write it.
    del config["record_steps"]
    other.compile_from_config(config)
    assert other.record_steps == "auto"


def test_choices_of_recorded_steps_are_checked():
    task = task_of("GraphClassifier")
    for value in ("always", None, 1):
        with pytest.raises(ValueError, match="record_steps"):
            task.compile("sgd", record_steps=value)
    task.compile("sgd", run_eagerly=True)
    if keras.backend.backend() == "torch":
        for option in ("run_eagerly", "jit_compile"):
            with pytest.raises(ValueError, match=f"with {option}=True"):
                task.compile("sgd", record_steps=True, **{option: True})


@pytest.mark.parametrize("policy", ["bfloat16", "float16"])
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.release(elsewhere=True)
def test_backbones_train_in_half_precision(backbone, policy):
    """Also where the weights are of half precision."""
    keras.config.set_dtype_policy(policy)
    try:
        task = task_of("GraphClassifier", backbone)
        task.compile(keras.optimizers.SGD(1e-3))
        data = data_of("GraphClassifier", 6, backbone=backbone)
        history = task.fit(data, epochs=1, verbose=0).history
        assert np.isfinite(history["loss"]).all()
        score = task.evaluate(data, verbose=0)
        assert np.isfinite(score).all()
    finally:
        keras.config.set_dtype_policy("float32")


def _without_labels(name):
    graphs = data_of(name, 4)
    flat = kb.data.FlatGraphs.from_graphs(list(graphs))
    columns = flat.columns()
    (key,) = [key for key in columns if key.startswith("label/")]
    unknown = -1 if columns[key].dtype.kind in "iu" else np.nan
    columns[key] = np.full_like(columns[key], unknown)
    if name == "ForceRegressor":
        columns["node/force"] = np.full_like(columns["node/force"], np.nan)
    return kb.data.FlatGraphs.from_columns(columns)


# Their labels are edges and pairs, of which each graph has some.
LABELLED = [name for name in TASKS if name not in ("BugLocalizer", "LinkPredictor")]


@pytest.mark.parametrize("name", LABELLED)
def test_graphs_without_a_known_label_are_refused(name):
    """Scores of nothing would be 0, the best there is."""
    task, none = task_of(name), _without_labels(name)
    with pytest.raises(ValueError, match="at least one .* with a label"):
        task.evaluate(none, verbose=0)
    with pytest.raises(ValueError, match="at least one .* with a label"):
        task.fit(data_of(name, 4), validation_data=none, epochs=1, verbose=0)


def plot(task, path):
    try:
        keras.utils.plot_model(task, path, show_shapes=True, expand_nested=True)
    except ImportError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", TASKS)
def test_plots(name, tmp_path):
    for backbone in BACKBONES:
        path = tmp_path / f"{backbone}.png"
        plot(task_of(name, backbone), path)
        assert path.stat().st_size


# Every task and every backbone once.
FILES = [(name, None) for name in TASKS]
FILES += [("GraphClassifier", backbone) for backbone in BACKBONES]


@pytest.mark.parametrize("name, backbone", FILES)
def test_files(name, backbone, tmp_path):
    task = task_of(name, backbone)
    weights = task.get_weights()
    task.save(tmp_path / "task.keras")
    task.save_weights(tmp_path / "task.weights.h5")
    again = keras.models.load_model(tmp_path / "task.keras")
    other = type(task).from_config(task.get_config())
    other.load_weights(tmp_path / "task.weights.h5")
    for made in (again, other):
        for one, two in zip(weights, made.get_weights(), strict=True):
            np.testing.assert_array_equal(one, two)
    optimizer = again.optimizer.get_config()
    assert {**optimizer, "name": 0} == {**task.optimizer.get_config(), "name": 0}
    assert again.metrics_names == task.metrics_names


class Noisy(kb.models.SchNetBackbone):
    """Geometry with dropout, which no backbone of the library has."""

    def build(self, input_shape=None):
        self.drop = keras.layers.Dropout(0.5)
        super().build(input_shape)

    def call(self, x, training=False):
        return self.drop(super().call(x, training=training), training=training)


@pytest.mark.parametrize("name", TASKS)
def test_training_at_a_late_epoch(name):
    data, epoch = data_of(name, 6), 10**6
    losses = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        backbone = BACKBONES["GCNBackbone"](dropout=0.5)
        if name == "ForceRegressor":
            backbone = Noisy(ELEMENTS, 8, num_steps=1, num_gaussians=8)
        task = TASKS[name][0](backbone)
        task.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
        options = {"verbose": 0, "initial_epoch": epoch, "epochs": epoch + 2}
        losses.append(task.fit(data, **options).history["loss"])
    # From seed and epoch alone; and not the same masks in both epochs.
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0][0] != losses[0][1]


def test_draws_of_epochs():
    # Training that began with an earlier version goes on with the same masks.
    assert [fitting.first_draw(e) for e in (0, 1, 2047)] == [0, 1 << 20, 2047 << 20]
    epochs = [*range(10_000), 10**6, 10**6 + 1, 2**20 - 1]
    draws = np.sort([fitting.first_draw(epoch) for epoch in epochs])
    assert np.diff(draws).min() >= 1024
    assert max(fitting.first_draw(e) for e in (*epochs, 10**9, 2**62)) < 2**31 - 2**19


@pytest.mark.parametrize("policy", ["float16", "bfloat16", "mixed_float16"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_half_precision(backbone, policy):
    model = BACKBONES[backbone](dtype=policy)
    wide = "float32" if policy.startswith("mixed") else policy
    assert {weight.dtype for weight in model.trainable_weights} == {wide}
    for weight in model.get_weights():
        assert np.isfinite(np.float32(weight)).all()


@pytest.mark.parametrize("backbone", BACKBONES)
def test_double_precision_is_refused(backbone):
    with pytest.raises(ValueError, match="at most 32 bits.*Received: 'float64'"):
        BACKBONES[backbone](dtype="float64")


@pytest.mark.parametrize("name", TASKS)
def test_tasks_of_double_precision_are_refused(name):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        with pytest.raises(ValueError, match="at most 32 bits"):
            task_of(name)
    finally:
        keras.config.set_dtype_policy(before)


def test_graphs_and_their_parts_in_one_list():
    graph = data_of("NodeClassifier", 1)[0]
    part = graph.subgraph(np.arange(graph.num_nodes)[::-1])
    task = task_of("NodeClassifier")
    whole, reversed_rows = task.predict([graph, part])
    # Rows are in the order of each graph that was given.
    np.testing.assert_allclose(whole, reversed_rows[::-1], atol=1e-5)
    flat = kb.data.FlatGraphs.from_graphs([part, graph])
    size = np.arange(graph.num_nodes)
    np.testing.assert_array_equal(flat.origin, [*size[::-1], *size])


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_files_of_other_backends_are_not_compiled_as_there(backend):
    config = task_of("GraphClassifier").get_compile_config()
    config = {**config, "backend": backend, "jit_compile": True}
    task, plain = task_of("GraphClassifier"), task_of("GraphClassifier")
    task.compile_from_config(config)
    plain.compile(jit_compile=True if backend == keras.backend.backend() else "auto")
    assert task.jit_compile == plain.jit_compile
