import csv
import re

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader, GraphPreprocessor
from keras_bandgnn.training import GraphProgressBar, ThroughputMonitor

BACKEND = keras.backend.backend()
# 1 compilation of each step, or none.
COMPILED = 0 if BACKEND == "torch" else 2
SPEEDS = {"graphs_per_second", "nodes_per_second", "edges_per_second"}
SPEC = {"graphs": 40, "batches": 10}


def graphs_of(count, seed=0, sizes=None):
    drawn = np.random.default_rng(seed).integers(2, 9, count)
    return [
        kb.Graph(n, [0] * n, np.arange(n), node={"kind": [1] * n}, label=int(n % 2))
        for n in (drawn if sizes is None else sizes)
    ]


GRAPHS, OTHERS = graphs_of(SPEC["graphs"]), graphs_of(8, seed=1)


def task_of(batcher=None):
    backbone = kb.models.GCNBackbone({"kind": 2}, 4, num_layers=1)
    batcher = batcher or DynamicBatcher(budget={"node": 32, "graph": 6})
    return kb.models.GraphClassifier(backbone, 2, GraphPreprocessor([], batcher))


def held(loader, epoch):
    """Real graphs, nodes and edges of each batch, and the rows of all."""
    batches = [loader.build(index, epoch)[0] for index in range(len(loader))]
    masks = [[x[name]["mask"] for name in ("graph", "node", "edge")] for x in batches]
    real = np.array([[mask.sum() for mask in batch] for batch in masks])
    return real, np.array([[mask.size for mask in batch] for batch in masks])


class Clock:
    now = 50.0

    def __call__(self):
        return self.now


class Model:
    """What the monitor needs of a model."""

    run_eagerly, steps_per_execution = True, 1

    def __init__(self, steps_per_execution=1):
        self.optimizer = keras.optimizers.SGD(0.1)
        self.steps_per_execution = steps_per_execution


def play(monitor, loader, epochs, stop=None, first=100.0, step=2.0):
    """Plays epochs of a loader and returns their logs; the first step takes long."""
    clock, together = monitor._clock, monitor._model.steps_per_execution
    monitor.set_params({"steps": len(loader)})
    monitor.on_train_begin()
    logs = []
    for epoch in range(epochs):
        loader.epoch = epoch
        monitor.on_epoch_begin(epoch)
        for batch in range(0, len(loader) if stop is None else stop, together):
            monitor.on_train_batch_begin(batch)
            clock.now += first if not (epoch or batch) else step
            monitor.on_train_batch_end(batch + together - 1)
        monitor.on_test_begin()
        clock.now += 7.0
        logs.append({"loss": 1.0})
        monitor.on_epoch_end(epoch, logs[-1])
        clock.now += 1000.0
    return logs


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("stop", [None, 2])
def test_speed_is_of_the_steps_that_were_timed(together, stop):
    loader = task_of().loader(GRAPHS, shuffle=True)
    monitor = ThroughputMonitor(loader, seconds=Clock())
    monitor.set_model(Model(together))
    logs = play(monitor, loader, 2, stop)
    for epoch, row in enumerate(logs):
        real, padded = (rows[:stop] for rows in held(loader, epoch))
        # Without the first step of the fit, unless there is no other.
        skipped = together if not epoch and len(real) > together else 0
        seconds = 2.0 * -(-(len(real) - skipped) // together)
        seconds = seconds if skipped or epoch else 100.0
        for number, name in enumerate(("graph", "node", "edge")):
            expected = real[skipped:, number].sum() / seconds
            assert row[f"{name}s_per_second"] == pytest.approx(expected)
            share = real[:, number].sum() / padded[:, number].sum()
            assert row[f"fill_{name}"] == pytest.approx(share)
        assert all(type(value) is float for value in row.values())
        assert all(re.fullmatch(r"\w+", name) for name in row)


def test_speed_of_a_resumed_epoch():
    loader = task_of().loader(GRAPHS, shuffle=True)
    real, _ = held(loader, 0)
    loader.load_state_dict(loader.state_dict(batches=3, epoch=0), hold=True)
    monitor = ThroughputMonitor(loader, seconds=Clock())
    monitor.set_model(Model())
    (row,) = play(monitor, loader, 1)
    seconds = 2.0 * (len(real) - 4)
    assert row["graphs_per_second"] == pytest.approx(real[4:, 0].sum() / seconds)


def test_logs_of_fit(tmp_path, capsys):
    task, monitor = task_of(), ThroughputMonitor()
    # Behind what reads the logs: tasks put it first.
    reading = [keras.callbacks.CSVLogger(tmp_path / "log.csv"), GraphProgressBar()]
    history = task.fit(
        GRAPHS,
        validation_data=OTHERS,
        epochs=2,
        verbose=2,
        callbacks=[*reading, monitor],
    ).history
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    loader = monitor.loader
    for epoch, row in enumerate(rows):
        real, padded = held(loader, epoch)
        assert float(row["fill_node"]) == real[:, 1].sum() / padded[:, 1].sum()
        assert float(row["compilations"]) == COMPILED
        assert 0 <= float(row["waiting"]) <= 1
        assert all(float(row[name]) > 0 for name in SPEEDS)
        for name in {*SPEEDS, "waiting", "loss", "val_loss"}:
            assert float(row[name]) == history[name][epoch]
    shown = capsys.readouterr().out
    assert shown.count("graphs_per_second") == 2
    # Figures of the history are those of a plot.
    assert history["fill_graph"][0] == pytest.approx(loader.fill(0)["graph"])


def test_a_step_that_compiles_again_is_counted():
    """Batches of two shapes; another guard does not disturb."""
    task = task_of(kb.preprocessing.StaticBatcher(3, "power_of_two"))
    guard = kb.training.RecompileGuard(action="count")
    history = task.fit(
        graphs_of(8, sizes=[3] * 4 + [50] * 4),
        shuffle=False,
        verbose=0,
        callbacks=[guard, ThroughputMonitor()],
    ).history
    assert history["compilations"] == [guard.count]
    assert guard.count > 1 or BACKEND != "jax"


def test_one_loader_for_training_and_validation():
    """Validation reads from it, too, before the figures are written."""
    task = task_of()
    loader = task.loader(GRAPHS, shuffle=False)
    monitor = ThroughputMonitor()
    task.fit(loader, validation_data=loader, verbose=0, callbacks=monitor)
    assert monitor.loader is loader


def test_models_that_are_no_tasks():
    class Sum(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            ones = keras.ops.cast(x["graph"]["n_node"], "float32")
            return self.dense(ones[..., None])

    model = Sum()
    loss = keras.losses.MeanSquaredError("mean_with_sample_weight")
    model.compile("sgd", loss, jit_compile=False)
    batcher = DynamicBatcher(budget={"node": 32, "graph": 6})
    loader = GraphLoader(GRAPHS, batcher, shuffle=False)
    monitor = ThroughputMonitor(loader)
    options = {"shuffle": False, "verbose": 0}
    logs = model.fit(loader, callbacks=[monitor], **options).history
    real, padded = held(loader, 0)
    assert logs["fill_edge"] == [real[:, 2].sum() / padded[:, 2].sum()]
    x, y, weight = loader[0]
    arrays = {"x": x, "y": y, "sample_weight": weight, **options}
    for wrong in (ThroughputMonitor(), monitor):
        with pytest.raises(ValueError, match="graphs or a GraphLoader.*other data"):
            model.fit(**arrays, callbacks=[wrong])
    with pytest.raises(ValueError, match="GraphProgressBar with graphs.*other data"):
        model.fit(**arrays, callbacks=[GraphProgressBar()])


@pytest.mark.every_backend
@pytest.mark.skipif(BACKEND != "tensorflow", reason="the callback needs TensorFlow")
def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    import tensorflow as tf
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callbacks = [keras.callbacks.TensorBoard(tmp_path), ThroughputMonitor()]
    history = (
        task_of()
        .fit(GRAPHS, validation_data=OTHERS, epochs=2, verbose=0, callbacks=callbacks)
        .history
    )
    events = EventAccumulator(str(tmp_path / "train")).Reload()
    for name in (*SPEEDS, "fill_node", "waiting", "compilations", "loss"):
        written = [
            tf.make_ndarray(event.tensor_proto)
            for event in events.Tensors(f"epoch_{name}")
        ]
        np.testing.assert_allclose(written, history[name], rtol=1e-6)


def test_wandb(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    trackers = pytest.importorskip("wandb.integration.keras")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=tmp_path) as run:
        callbacks = [trackers.WandbMetricsLogger(), ThroughputMonitor()]
        history = task_of().fit(GRAPHS, epochs=2, verbose=0, callbacks=callbacks)
        for name in (*SPEEDS, "fill_node", "waiting", "compilations", "loss"):
            assert run.summary[f"epoch/{name}"] == history.history[name][-1]


def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    # A database would need more packages.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    callbacks = [mlflow.keras.MlflowCallback(), ThroughputMonitor()]
    with mlflow.start_run() as run:
        history = task_of().fit(GRAPHS, epochs=2, verbose=0, callbacks=callbacks)
    logged = mlflow.MlflowClient().get_run(run.info.run_id).data.metrics
    for name in (*SPEEDS, "fill_node", "waiting", "compilations", "loss"):
        assert logged[name] == pytest.approx(history.history[name][-1])


# === Progress bars ===


def last_line(text):
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return re.split("[\r\n\b]+", plain.strip())[-1]


RATE = r"[\d,.e+]+ graphs/s"


def test_a_bar_of_graphs(capsys):
    task, bar = task_of(), GraphProgressBar()
    options = {"validation_data": OTHERS, "epochs": 2, "callbacks": [bar]}
    task.fit(GRAPHS, verbose=1, **options)
    text = capsys.readouterr().out
    assert "Epoch 1/2" in text and "Epoch 2/2" in text and "8/8" not in text
    assert re.match(
        rf"40/40 ━+ \d+s {RATE} - accuracy: .* - val_loss: ", last_line(text)
    )
    # The bar of Keras, which counts steps, is gone.
    assert "/step" not in text
    task.fit(GRAPHS, verbose=2, **options)
    lines = capsys.readouterr().out.split("\n")
    assert re.match(rf"40/40 - \d+s - {RATE} - accuracy: .* - val_loss: ", lines[2])
    task.fit(GRAPHS, verbose=0, **options)
    task.evaluate(GRAPHS, verbose=0, callbacks=[bar])
    task.predict(GRAPHS, callbacks=[bar])
    assert not capsys.readouterr().out
    task.evaluate(OTHERS, verbose=1, callbacks=[bar])
    shown = last_line(capsys.readouterr().out)
    assert re.match(rf"8/8 ━+ \d+s {RATE} - accuracy: ", shown)
    task.predict(OTHERS, verbose=1, callbacks=[bar])
    assert re.match(rf"8/8 ━+ \d+s {RATE}$", last_line(capsys.readouterr().out))


def test_a_bar_of_an_epoch_that_ends_early(capsys):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    task, bar = task_of(), GraphProgressBar()
    task.fit(GRAPHS, verbose=2, callbacks=[bar, Stop()])
    (graphs,) = bar.loader.usage(0)["graph"][0, :1]
    assert f"{graphs}/40 - " in capsys.readouterr().out


def test_rates_leave_out_the_first_step_and_validation(monkeypatch):
    from keras_bandgnn import compat

    bar = compat.RateProgbar(40, unit_name="graphs", verbose=0)
    begin = bar._start
    assert bar._estimate_step_duration(10, begin + 100) == 10.0
    assert bar._estimate_step_duration(20, begin + 101) == pytest.approx(0.1)
    assert bar._estimate_step_duration(40, begin + 106) == pytest.approx(0.2)
    assert bar._estimate_step_duration(40, begin + 900) == pytest.approx(0.2)
    assert bar._format_time(0.0004, "graphs") == " 2,500 graphs/s"
    assert bar._format_time(8.0, "graphs") == " 0.12 graphs/s"
