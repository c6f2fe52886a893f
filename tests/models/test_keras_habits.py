"""Tasks, backbones and preprocessors behave as users of Keras and KerasHub expect."""

import inspect
from pathlib import Path

import keras
import numpy as np
import pytest
from task_samples import BACKBONES, TASKS

import keras_bandgnn as kb

pytestmark = pytest.mark.every_backend


@pytest.fixture(scope="module", params=TASKS)
def sample(request):
    create, graphs = TASKS[request.param]
    return create, graphs(6, 0)


def settings_of(optimizer):
    config = keras.optimizers.get(optimizer).get_config()
    return {name: value for name, value in config.items() if name != "name"}


def test_optimizers_by_name_are_those_of_keras(sample):
    create, _ = sample
    task = create(BACKBONES["SchNetBackbone"]())
    auto = settings_of(task.optimizer)
    assert auto == settings_of(task.default_optimizer())
    for name in ("adam", "sgd", "rmsprop"):
        task.compile(name)
        assert settings_of(task.optimizer) == settings_of(name)
    for arguments in ({}, {"optimizer": "auto"}, {"optimizer": None}):
        task.compile(**arguments)
        assert settings_of(task.optimizer) == auto


@pytest.mark.release(elsewhere=True)
def test_models_that_are_not_compiled(sample, tmp_path):
    create, graphs = sample
    task = create(BACKBONES["SchNetBackbone"](), compile=False)
    assert not task.compiled
    predictions = task.predict(graphs)
    with pytest.raises(ValueError, match="compile"):
        task.fit(graphs, verbose=0)
    task.save(tmp_path / "task.keras")
    loaded = keras.models.load_model(tmp_path / "task.keras", compile=False)
    for one, other in zip(predictions, loaded.predict(graphs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    task.save_to_preset(tmp_path / "preset")
    loaded = kb.models.Task.from_preset(tmp_path / "preset", compile=False)
    assert not loaded.compiled


@pytest.mark.release(elsewhere=True)
def test_a_task_without_a_preprocessor_takes_batches(sample):
    create, graphs = sample
    task = create(BACKBONES["SchNetBackbone"]())
    loader = task.default_preprocessor(graphs).loader(graphs)
    if task.output_level == "pair":
        pairs = kb.data.NodePairs.of_edges(graphs[0])
        loader = kb.preprocessing.LinkLoader(graphs[0], pairs, loader=loader)
    x, y, weight = loader[0]
    task.train_on_batch(x, y, weight)
    task(x)
    assert task.preprocessor is None
    loader = task.preprocess(graphs)
    assert isinstance(loader, kb.preprocessing.Loader)
    assert task.preprocessor is not None


def test_presets_of_a_class():
    names = kb.models.list_presets()
    assert list(kb.models.Task.presets) == list(kb.models.Backbone.presets) == names
    schnets = kb.models.SchNetBackbone.presets
    assert set(schnets) == {name for name in names if name.startswith("schnet")}
    assert schnets["schnet_qm9"]["parameter_count"] > 1000
    entry = schnets["schnet_qm9"]
    assert entry["params"] == entry["parameter_count"] == 80352
    assert Path(entry["path"], "config.json").is_file()
    assert all(e["description"] for e in kb.models.Backbone.presets.values())
    gine = kb.models.GINEBackbone.presets["gine_zinc"]
    expected = "GINE: penalised logP of drug-like molecules, each term normalised."
    assert gine["description"] == expected
    assert gine["score"].startswith("Test mae 0.144 ± 0.003, mean and standard dev")
    for entry in kb.models.Task.presets.values():
        weights = Path(entry["path"], "model.weights.h5").is_file()
        assert weights == bool(entry["score"])
    selectors = kb.models.NodeSelector.presets
    assert "ggnn_varmisuse" in selectors and "schnet_qm9" not in selectors
    assert not kb.models.ForceRegressor.presets


def test_low_rank_updates():
    backbone = BACKBONES["GTBackbone"]()
    task = kb.models.GraphClassifier(backbone, 2)
    assert task.enable_lora(2, layers="query")
    assert len(backbone.trainable_variables) == 2
    assert BACKBONES["GTBackbone"]().enable_lora(2)


def test_presets_of_preprocessors(tmp_path):
    layers = [kb.preprocessing.ReachabilityFilter(3)]
    preprocessor = kb.preprocessing.GraphPreprocessor(layers)
    preprocessor.save_to_preset(tmp_path / "one")
    preprocessor.save_to_preset(tmp_path / "one")  # Replaced.
    cls = kb.preprocessing.GraphPreprocessor
    assert cls.from_preset(tmp_path / "one").get_config() == preprocessor.get_config()
    task = kb.models.GraphClassifier(BACKBONES["GCNBackbone"](), 2, preprocessor)
    task.save_to_preset(tmp_path / "task")
    assert cls.from_preset(tmp_path / "task").get_config() == preprocessor.get_config()
    with pytest.raises(ValueError, match="hold only a preprocessor"):
        preprocessor.save_to_preset(tmp_path / "task")
    task.backbone.save_to_preset(tmp_path / "backbone")
    with pytest.raises(ValueError, match="folder with preprocessor.json"):
        cls.from_preset(tmp_path / "backbone")


@pytest.mark.parametrize("name", kb.models.__all__)
def test_a_preprocessor_in_another_place_is_refused_with_its_name(name):
    cls = getattr(kb.models, name)
    if not (isinstance(cls, type) and issubclass(cls, kb.models.Task)):
        return
    backbone = kb.models.GCNBackbone({"kind": 2}, 8)
    preprocessor = kb.preprocessing.GraphPreprocessor()
    if list(inspect.signature(cls.__init__).parameters)[2] == "preprocessor":
        return
    for more in ((), (3,)):
        with pytest.raises(ValueError, match="Expected .* preprocessor=..."):
            cls(backbone, preprocessor, *more)
