"""What is the same on all backends, and on one device."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.distribution.replica_group import (
    ReplicaGroup,
    active_group,
    callbacks_of,
)

GRAPHS = [
    kb.Graph(n, [0], [n - 1], node={"kind": [0] * n}, label=float(n))
    for n in (2, 3, 4, 5, 6, 7)
]


def task_of():
    backbone = kb.models.GGNNBackbone(
        {"kind": 1}, hidden_dim=4, num_steps=1, num_edge_types=1
    )
    return kb.models.GraphRegressor(backbone)


class Pair(ReplicaGroup):
    """One of two hosts; the other one is simulated."""

    def __init__(self, host, other=None):
        super().__init__(2, None, host, 2)
        self.other = other or []

    def sum_hosts(self, array):
        self.sent = array
        return array + self.other.pop(0)


def test_scope_says_whose_a_task_is():
    pair = Pair(1)
    with pair.scope():
        assert active_group() is pair
        assert task_of().distribution is pair
    assert task_of().distribution.size == 1
    with pytest.raises(RuntimeError), pair.scope():
        raise RuntimeError
    assert active_group().size == 1


def test_distributions_that_shard_data_themselves_are_refused(monkeypatch):
    class Sharding:
        num_processes, auto_shard_dataset = 2, True

    monkeypatch.setattr(keras.distribution, "distribution", Sharding)
    with pytest.raises(ValueError, match="`auto_shard_dataset` to be False with"):
        active_group()


def test_tasks_give_each_host_its_share():
    with Pair(1).scope():
        loader = task_of().loader(GRAPHS)
    assert (loader.replicas, loader.host, loader.num_hosts) == (1, 1, 2)


def test_refuses_loaders_of_all_graphs():
    with Pair(1).scope():
        task = task_of()
    whole = kb.preprocessing.GraphLoader(GRAPHS, num_edge_types=1)
    with pytest.raises(ValueError, match="'host': 1, 'num_hosts': 2} for 2 devices"):
        task.loader(whole)
    share = kb.preprocessing.GraphLoader(GRAPHS, num_edge_types=1, host=1, num_hosts=2)
    assert task.loader(share) is share
    with pytest.raises(ValueError, match="Expected graphs or a GraphLoader"):
        task.distribution.check([1])


def test_supergraphs_are_shared_evenly():
    assert ReplicaGroup(2, 6, 0, 2).loader_options()["replicas"] == 3
    with pytest.raises(ValueError, match="a multiple of 2"):
        ReplicaGroup(2, 3)
    with pytest.raises(ValueError, match="`supergraphs` to be at least 1"):
        kb.distribution.data_parallel(supergraphs=0)
    with pytest.raises(ValueError, match="`timeout` to be positive"):
        kb.distribution.data_parallel(timeout=0)


def test_gather_puts_predictions_in_order():
    mine = [None, np.ones((2, 3), "float32"), None, np.float32([5])]
    shapes = np.zeros((4, 5), np.int64)
    shapes[0, :3] = 3, 1, 3
    values = np.float32([7, 8, 9] + [0] * 7)
    found = Pair(0, [shapes, values]).gather(mine)
    np.testing.assert_array_equal(found[0], [[7, 8, 9]])
    np.testing.assert_array_equal(found[1], np.ones((2, 3)))
    assert found[2] is None
    np.testing.assert_array_equal(found[3], [5])


def test_texts_travel_from_the_main_host():
    text = "Bänder"
    data = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    assert Pair(1, [np.array([data.size]), data]).broadcast(text + "?") == text
    assert Pair(0, [np.array([0]), 0 * data]).broadcast(text) == text


def test_losses_are_shared_by_their_weights():
    class Doubling(Pair):
        def share(self, mean, weight):
            return mean * weight

        def total(self, loss):
            return 10.0 * loss

    graphs = [
        kb.Graph(2, [0], [1], node={"kind": [0, 1]}, label=float(i)) for i in range(3)
    ]
    task = kb.models.GraphRegressor(
        kb.models.GCNBackbone({"kind": 2}, 4), normalizer=None
    )
    x, y, weight = task.loader(graphs)[0]
    values = task(x)
    arguments = [keras.ops.convert_to_tensor(v) for v in (values, y, weight)]
    values, y, weight = arguments

    def loss_of(task):
        loss = task.compute_loss(x, y, values, weight)
        return float(keras.ops.convert_to_numpy(loss))

    alone = loss_of(task)
    task.distribution = Doubling(0)
    assert loss_of(task) == pytest.approx(3 * alone)
    task.compile(loss=keras.losses.MeanSquaredError(reduction="sum"))
    assert loss_of(task) == pytest.approx(30 * alone)


def test_only_the_main_process_writes_files(tmp_path):
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    stop = keras.callbacks.EarlyStopping()
    assert callbacks_of(Pair(0), [log, stop]) == [log, stop]
    assert callbacks_of(Pair(1), [log, stop]) == [stop]
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(ValueError, match="Expected keras_bandgnn.training.SavePro"):
        callbacks_of(Pair(0), [backup])


def test_one_device_needs_nothing():
    distribution = kb.distribution.data_parallel()
    with distribution.scope():
        task = task_of()
        task.fit(GRAPHS, epochs=1, verbose=0)
        assert len(task.predict(GRAPHS)) == len(GRAPHS)
