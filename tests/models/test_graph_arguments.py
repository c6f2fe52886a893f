import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.models.masked_task import MaskedTask
from tests.models.task_samples import BACKBONES, TASKS


def ring(n):
    a, b = np.arange(n), (np.arange(n) + 1) % n
    return kb.Graph(n, a, b, node={"kind": a % 3}, label=n % 2)


@pytest.fixture
def graphs():
    return [ring(n) for n in (3, 4, 5, 6, 7, 8)]


@pytest.fixture
def task():
    made = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 3}, 4), 2)
    made.compile("sgd")
    return made


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2}, "Set the batcher's size"),
        ({"steps_per_epoch": 2}, "Set the batcher's size"),
        ({"validation_split": 1.5}, "Expected `validation_split`"),
        ({"class_weight": {2: 1.0}}, "Expected class_weight"),
        ({"sample_weight": np.ones(5)}, "row for each of 6 graphs"),
        ({"y": np.ones(5)}, "row for each of 6 graphs"),
    ],
)
def test_options_that_graphs_cannot_have_are_refused(task, graphs, options, message):
    with pytest.raises(ValueError, match=message):
        task.fit(graphs, verbose=0, **options)


@pytest.mark.parametrize("name", TASKS)
def test_masks_are_for_tasks_that_have_them(name):
    make, data = TASKS[name]
    made = make(BACKBONES["GCNBackbone"]())
    if isinstance(made, MaskedTask):
        return
    for method in (made.fit, made.evaluate):
        with pytest.raises(ValueError, match="mask.* Masks choose nodes of NodeClass"):
            method(data(4, 0), mask="train_mask", verbose=0)


def test_options_by_position(task, graphs):
    assert len(task.fit(graphs, None, None, 2, 0).epoch) == 2
    with pytest.raises(TypeError, match="at most 4"):
        task.fit(graphs, None, None, 1, 0, None, 0.5)
    with pytest.raises(ValueError, match="batch_size"):
        task.evaluate(graphs, batch_size=1)
    with pytest.raises(ValueError, match="batch_size"):
        task.predict(graphs, 2)


def test_pairs_of_graphs_and_labels_are_two_arguments(task, graphs):
    pair = graphs, np.ones(len(graphs))
    with pytest.raises(ValueError, match="Pass them one by one"):
        task.fit(pair, verbose=0)
    history = task.fit(*pair, validation_data=pair, verbose=0)
    assert "val_loss" in history.history


@pytest.mark.parametrize("plan", [3, "banded", None])
def test_plans_are_checked_when_they_are_set(plan):
    preprocessor = kb.preprocessing.GraphPreprocessor()
    with pytest.raises(ValueError, match="Expected `plan` to be 'auto'"):
        preprocessor.plan = plan


@pytest.mark.parametrize("state", [{}, None])
def test_loaders_resume_from_states(graphs, state):
    with pytest.raises(ValueError, match="Expected `state`.*state_dict"):
        kb.preprocessing.GraphLoader(graphs).load_state_dict(state)


def test_the_order_may_stay(graphs):
    def seen(shuffle):
        backbone = kb.models.GCNBackbone({"kind": 3}, 4)
        batcher = kb.preprocessing.DynamicBatcher(1)
        preprocessor = kb.preprocessing.GraphPreprocessor(batcher=batcher)
        task = kb.models.GraphClassifier(backbone, 2, preprocessor)
        task.compile("sgd")
        loaders, loader = [], task.loader
        task.loader = lambda *a, **k: loaders.append(loader(*a, **k)) or loaders[-1]
        task.fit(graphs * 4, epochs=1, verbose=0, shuffle=shuffle)
        (used,) = loaders
        return used.shuffle

    assert seen(True) is True and seen(False) is False


def test_generators_of_graphs_are_read(task, graphs):
    task.fit((g for g in graphs), epochs=1, verbose=0)
    found = task.predict(g for g in graphs)
    for mine, right in zip(found, task.predict(graphs), strict=True):
        np.testing.assert_array_equal(mine, right)


def test_matrices_name_their_converter(task):
    sparse = pytest.importorskip("scipy.sparse")
    given = sparse.csr_array(np.eye(3))
    for data in (given, [given]):
        with pytest.raises(ValueError, match="keras_bandgnn.data.from_scipy"):
            task.predict(data)
        with pytest.raises(ValueError, match="Expected graphs of keras_bandgnn"):
            task.fit(data)
