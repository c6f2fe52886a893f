"""Recorded steps that a GPU repeats as CUDA graphs.

On a CPU a function that runs the operations again stands for the graph.
"""

import keras
import numpy as np
import pytest
import task_samples

import keras_bandgnn as kb
from keras_bandgnn import compat

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="torch alone records steps"
)
STEPS = 8
K = keras.optimizers
OPTIMIZERS = {
    name: value
    for name, value in vars(K).items()
    if isinstance(value, type)
    and issubclass(value, K.Optimizer)
    and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
}
OPTIONS = {
    "norm": lambda: K.Adam(1e-2, clipnorm=0.1),
    "global norm": lambda: K.Adam(1e-2, global_clipnorm=0.1),
    "averages": lambda: K.Adam(1e-2, use_ema=True),
    "averages that replace": lambda: K.Adam(
        1e-2, use_ema=True, ema_overwrite_frequency=3
    ),
    "two batches": lambda: K.Adam(1e-2, gradient_accumulation_steps=2),
    "scaled": lambda: K.LossScaleOptimizer(K.Adam(1e-2)),
    "schedule": lambda: K.Adam(K.schedules.ExponentialDecay(1e-2, 2, 0.5)),
    "decay": lambda: K.AdamW(1e-2, weight_decay=0.1),
}


@pytest.fixture
def graphs(monkeypatch):
    """Records of one step, and graphs of them; returns what was captured."""
    import torch

    from keras_bandgnn.ops.backend import torch_graphs

    captured, real = [], torch_graphs.capture

    def capture(function):
        found = real(function) if torch.cuda.is_available() else stand_in(function)
        captured.append(function)
        return found

    def stand_in(function):
        state = captured_state()
        before, random = [value.clone() for value in state], torch.get_rng_state()
        outputs = [
            each.clone() if isinstance(each, torch.Tensor) else each
            for each in function()
        ]
        # A capture computes nothing.
        for value, old in zip(state, before, strict=True):
            value.copy_(old)
        torch.set_rng_state(random)

        def replay():
            for own, new in zip(outputs, function(), strict=True):
                if isinstance(own, torch.Tensor):
                    own.copy_(new)

        return replay, outputs

    def captured_state():
        task = captured_state.task
        variables = [*task.variables, *task.metrics_variables]
        return compat.held_values([*variables, *task.optimizer.variables])

    monkeypatch.setattr(torch_graphs, "capture", capture)
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch_graphs, "are_possible", lambda tensors: True)
        monkeypatch.setattr(
            torch_graphs.GraphedProgram, "_may_run", lambda self, leaves: True
        )
    captured_state.captured = captured
    return captured_state


def trained(graphs, make, optimizer, recorded=True, change=None):
    """Losses, weights and records of a task after some steps."""
    keras.utils.set_random_seed(1)
    task = graphs.task = make()
    task.compile(optimizer(), record_steps="cuda_graphs" if recorded else False)
    loader = task.loader(task_samples.data_of("GraphRegressor", 6))
    losses = []
    for step in range(STEPS):
        if change is not None and step == STEPS - 3:
            change(task)
        kb.ops.seed_global(step)
        losses.append(task.train_on_batch(*loader[step % len(loader)]))
    weights = [keras.ops.convert_to_numpy(each) for each in task.weights]
    return losses, weights, records_of(task)


def records_of(task):
    """The records of training steps of a task."""
    records = compat.model_cache(task).get("records", {}).get(("train", "cuda_graphs"))
    shapes = [] if records is None else records.shapes.values()
    return [each.record for each in shapes if each.record is not None]


def model(name="GCNBackbone"):
    return lambda: task_samples.task_of("GraphRegressor", name)


def assert_same(graphs, make, optimizer, change=None):
    plain, given, none = trained(graphs, make, optimizer, False, change)
    found, weights, records = trained(graphs, make, optimizer, True, change)
    assert not none and records and graphs.captured
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-6)
    for weight, expected in zip(weights, given, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-5)
    return records


def slower(task):
    try:
        task.optimizer.learning_rate = 3e-3
    except TypeError:  # It has a schedule.
        pass


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_weights_are_those_of_keras(graphs, name):
    assert_same(graphs, model(), lambda: OPTIMIZERS[name](1e-3), slower)


@pytest.mark.release
@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_optimizers(graphs, name):
    assert_same(graphs, model(), OPTIONS[name], slower)


@pytest.mark.release
def test_the_usual_optimizers_are_part_of_the_graph(graphs):
    for make in (K.Adam, K.AdamW, K.RMSprop, OPTIONS["global norm"]):
        records = assert_same(graphs, model(), make)
        assert all(record.update is not None for record in records), make


@pytest.mark.release
@pytest.mark.parametrize("name", ["GTBackbone", "PaiNNBackbone", "GGNNBackbone"])
def test_backbones(graphs, name):
    assert_same(graphs, model(name), K.Adam)


def test_optimizers_of_users_are_called(graphs):
    class Counting(K.SGD):
        calls = 0

        def update_step(self, gradient, variable, learning_rate):
            self.calls += 1
            super().update_step(gradient, variable, learning_rate)

    made = []

    def make():
        made.append(Counting(1e-3))
        return made[-1]

    (record,) = assert_same(graphs, model(), make)
    assert record.update is None
    assert made[0].calls == made[1].calls > 0


def test_numbers_that_leave_the_device_are_not_recorded(graphs):
    from keras_bandgnn.ops.backend.torch_programs import NotRecordable, OnTheDevice

    x = keras.ops.convert_to_tensor([1.0])
    for read in (float, bool, lambda x: x.cpu(), lambda x: x.numpy(), np.asarray):
        with OnTheDevice(), pytest.raises(NotRecordable):
            read(x)


def test_an_error_of_a_capture_propagates(graphs, monkeypatch):
    from keras_bandgnn.ops.backend import torch_graphs

    def capture(function):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch_graphs, "capture", capture)
    with pytest.raises(RuntimeError, match="not permitted"):
        trained(graphs, model(), K.Adam)


def test_a_graph_is_captured_anew_when_weights_lie_elsewhere(graphs):
    def move(task):
        for value in compat.held_values(task.trainable_variables):
            value.data = value.data.clone()

    assert_same(graphs, model(), K.Adam, move)
    assert len(graphs.captured) == 2


def test_a_failed_capture_leaves_torch_as_it_was(graphs):
    import torch

    from keras_bandgnn.ops.backend import torch_graphs

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    x = torch.ones(3, device="cuda")
    stream = torch.cuda.current_stream()
    for _ in range(2):
        # The host waits for a number, which no graph can.
        with pytest.raises(RuntimeError):
            torch_graphs.capture(lambda: [x + float(x.sum())])
        torch.rand(3, device="cuda")
        assert torch.cuda.current_stream() == stream
    assert_same(graphs, model("GTBackbone"), K.Adam)


@pytest.mark.release
def test_graphs_come_and_go(graphs):
    # The memory of a graph goes with the last that shares it.
    for _ in range(3):
        assert_same(graphs, model(), K.Adam)


def test_a_graph_is_captured_anew_under_other_settings_of_torch(graphs, monkeypatch):
    from keras_bandgnn.ops.backend import torch_graphs

    def change(task):
        monkeypatch.setattr(torch_graphs, "_settings", lambda: (task.name, False))

    assert_same(graphs, model(), K.Adam, change)
    assert len(graphs.captured) == 2


def other_values(task):
    task.optimizer._learning_rate.values[0] = 0.1


def replaced(task):
    for variable in task.optimizer.variables[2:]:
        variable._value = 0.0 * variable._value


def overwritten(task):
    task.trainable_variables[0].overwrite_with_gradient = True


def bounded(task):
    task.trainable_variables[0].constraint.max_value = 0.01


def steeper(task):
    task.optimizer._learning_rate.decay_rate = 0.1


def by_values():
    return K.Adam(K.schedules.PiecewiseConstantDecay([100], [1e-2, 1e-3]))


@pytest.mark.release
@pytest.mark.parametrize(
    ("change", "optimizer"),
    [
        (bounded, K.Adam),
        (steeper, OPTIONS["schedule"]),
        (other_values, by_values),
        (replaced, K.Adam),
        (overwritten, K.Adam),
    ],
)
def test_changes_of_what_updates_weights_are_seen(graphs, change, optimizer):
    def make():
        task = model()()
        # Built weights take a constraint, too.
        task.trainable_variables[0].constraint = keras.constraints.MaxNorm(1.0)
        return task

    (record,) = assert_same(graphs, make, optimizer, change)
    # With the update, and with the new one or as another record.
    assert record.update is not None and len(graphs.captured) >= 2


@pytest.mark.release
def test_an_update_that_changes_in_each_epoch_is_left_to_keras(graphs):
    def change(task):
        class Lighter(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                self.model.optimizer.clipnorm = 1.0 / (1 + epoch)

        data = task_samples.data_of("GraphRegressor", 6)
        task.fit(task.loader(data), epochs=6, verbose=0, callbacks=[Lighter()])

    (record,) = assert_same(graphs, model(), OPTIONS["norm"], change)
    assert record.update is None and record.chances == 0


def test_gradients_of_earlier_steps_stay(graphs):
    task = graphs.task = model()()
    task.compile(K.Adam(1e-2), record_steps="cuda_graphs")
    batch = task.loader(task_samples.data_of("GraphRegressor", 6))[0]
    kept, values = [], []
    for _ in range(5):
        task.train_on_batch(*batch)
        kept.append(task.trainable_variables[-1].value.grad)
        values.append(keras.ops.convert_to_numpy(kept[-1]).copy())
    assert graphs.captured and np.abs(values[-1] - values[-2]).max() > 0
    for gradient, value in zip(kept, values, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(gradient), value)


def test_what_is_written_is_not_computed_once():
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from keras_bandgnn.ops.backend import torch_programs

    def function(w):
        before = w.square()
        torch._foreach_mul_([w], 2.0)
        return before + 0, w.square() + 0

    recorded = make_fx(function)(torch.ones(2))
    torch_programs.simplify(recorded.graph)
    recorded.recompile()
    before, after = recorded(torch.ones(2))
    assert before.tolist() == [1.0, 1.0] and after.tolist() == [4.0, 4.0]


@pytest.mark.parametrize("place", ["capture_begin", "function", "synchronize"])
def test_an_interrupt_ends_a_capture(monkeypatch, place):
    import contextlib
    import gc
    import types

    import torch

    from keras_bandgnn.ops.backend import torch_graphs

    done = []

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    class Graph:
        def capture_begin(self, **_):
            done.append("begin")

        def capture_end(self):
            done.append("end")

    graph_type, waits = Graph, lambda: None
    if place == "capture_begin":
        graph_type = type("Graph", (Graph,), {"capture_begin": interrupted})
    if place == "synchronize":
        waits = interrupted
    cuda = types.SimpleNamespace(
        CUDAGraph=graph_type,
        Stream=object,
        current_device=lambda: 0,
        empty_cache=lambda: None,
        graph_pool_handle=lambda: (0, 1),
        stream=lambda stream: contextlib.nullcontext(),
        synchronize=waits,
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch_graphs, "_streams", {})
    recovered = []
    monkeypatch.setattr(torch_graphs, "_recover", lambda *a: recovered.append(a))
    function = interrupted if place == "function" else list
    with pytest.raises(KeyboardInterrupt):
        torch_graphs.capture(function)
    assert gc.isenabled() and done.count("begin") == done.count("end")
    assert len(recovered) == (place != "synchronize")


def test_outputs_of_earlier_batches_stay(graphs):
    task = graphs.task = model()()
    task.compile(K.Adam(), record_steps="cuda_graphs")
    loader = task.loader(task_samples.data_of("GraphRegressor", 6))
    x = loader[0][0]
    other = {**x, "node": {**x["node"]}}
    other["node"]["atomic_number"] = np.where(x["node"]["mask"], 1, 0).astype("int32")
    found = [task.predict_step((each,)) for each in (x, x, x, other, x)]
    assert graphs.captured
    found = [keras.ops.convert_to_numpy(each.detach()) for each in found]
    for each in (found[1], found[2], found[4]):
        np.testing.assert_allclose(each, found[0], rtol=1e-6)
    assert np.abs(found[3] - found[0]).max() > 1e-4


def test_constants_are_copied_to_the_device_once():
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from keras_bandgnn.ops.backend import torch_programs

    def function(x):
        # Another device that every machine has.
        return x + torch.tensor([1.0, 2.0]).to("meta")

    recorded = make_fx(function)(torch.zeros(2, device="meta"))
    torch_programs.simplify(recorded.graph)
    torch_programs.move_constants(recorded)
    called = [str(n.target) for n in recorded.graph.nodes if n.op == "call_function"]
    assert called == ["aten.add.Tensor"]
    program, held = torch_programs.program_of(recorded)
    assert program(torch.zeros(2, device="meta")).is_meta
    assert any(each.is_meta for each in held)


def test_graphs_are_of_one_process_on_the_usual_gpu(monkeypatch):
    import torch

    from keras_bandgnn.ops.backend import torch_graphs

    monkeypatch.setattr(torch_graphs.compat, "torch_device", lambda: "cuda:0")
    assert torch_graphs.are_possible()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert not torch_graphs.are_possible()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(torch_graphs.compat, "torch_device", lambda: "cuda:1")
    assert not torch_graphs.are_possible()
