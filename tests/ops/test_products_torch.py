"""Steps on torch multiply by the faster library, and leave settings as they were."""

import os
import threading

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.primitives import Grouped, Plan, ReceptiveField
from tests.registered import BACKBONES, backbone_and_loader

if keras.backend.backend() != "torch":
    pytest.skip("torch's libraries of products", allow_module_level=True)

import torch

from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.backend import torch_products as products

if backend.has_accelerator():
    pytest.skip("where a CPU computes", allow_module_level=True)

GRAPHS = [
    kb.Graph(3, [0, 1], [1, 2], node={"h": np.eye(3)}, label=float(i))
    for i in range(12)
]


def precision():
    return [each.fp32_precision for each in products._settings()]


@pytest.fixture
def faster(monkeypatch):
    """The other library is the faster one, on whatever machine this is."""
    if not hasattr(torch.backends.mkldnn.matmul, "fp32_precision"):
        pytest.skip("needs torch 2.9")
    monkeypatch.setattr(products, "_is_faster", lambda: True)
    monkeypatch.setattr(products, "_FEWEST", 1)


def task_of(loss="auto"):
    backbone = kb.models.GCNBackbone({"h": {"features": 3}}, 8, num_layers=1)
    task = kb.models.GraphRegressor(backbone, normalizer=None)
    task.compile(loss=loss)
    return task


def test_it_holds_within_steps_alone(faster):
    within = []

    def loss(y, y_pred):
        within.append(precision()[0])
        torch.get_float32_matmul_precision()
        return keras.ops.mean((y - y_pred) ** 2, axis=-1)

    before = precision()
    task = task_of(loss)
    after = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: within.append(precision()[0])
    )
    task.fit(GRAPHS, validation_data=GRAPHS, verbose=0, callbacks=[after])
    task.predict(GRAPHS)
    assert set(within) == {"bf16", "none"} and precision() == before
    assert torch.get_float32_matmul_precision() == "highest"


def test_errors_leave_the_setting_as_it_was(faster):
    def loss(y, y_pred):
        raise RuntimeError("of the user")

    before = precision()
    with pytest.raises(RuntimeError, match="of the user"):
        task_of(loss).fit(GRAPHS, verbose=0)
    assert precision() == before


def test_steps_side_by_side_share_it(faster):
    before, met, found = precision(), threading.Barrier(3), []

    def step(last):
        with products.fast_products(1):
            met.wait()
            if last:
                ended.wait()
            found.append(precision()[0])

    ended = threading.Event()
    threads = [threading.Thread(target=step, args=(last,)) for last in (False, True)]
    for thread in threads:
        thread.start()
    met.wait()
    threads[0].join()
    ended.set()
    threads[1].join()
    assert found == ["bf16", "bf16"] and precision() == before


OWN = {
    "oneDNN": lambda v: setattr(torch.backends.mkldnn.matmul, "fp32_precision", v),
    "CUDA": lambda v: setattr(torch.backends.cuda.matmul, "fp32_precision", v),
    "all": lambda v: setattr(torch.backends, "fp32_precision", v),
    "older": lambda v: torch.set_float32_matmul_precision(
        {"ieee": "highest", "tf32": "high", "none": "highest"}[v]
    ),
    "older of CUDA": lambda v: setattr(
        torch.backends.cuda.matmul, "allow_tf32", v == "tf32"
    ),
}


@pytest.fixture
def unset():
    """Torch's settings are as they were, afterwards."""
    yield
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    for each in products._settings():
        each.fp32_precision = "none"
    assert torch.get_float32_matmul_precision() == "highest"


def told():
    try:
        return precision(), torch.get_float32_matmul_precision()
    except RuntimeError:
        # Torch refuses to tell where its older setting differs from the others.
        return precision(), None


@pytest.mark.parametrize("value", ("ieee", "tf32"))
@pytest.mark.parametrize("own", sorted(OWN))
def test_the_users_setting_stays(faster, unset, own, value):
    OWN[own](value)
    before = told()
    with products.fast_products(1):
        assert told() == before or before[0] == ["none", "none"]
    assert told() == before


def test_a_setting_within_a_step_stays(faster, unset):
    with products.fast_products(1):
        torch.set_float32_matmul_precision("highest")
    assert precision() == ["ieee", "ieee"]


def test_the_next_step_does_what_an_interrupted_one_left_undone(faster, monkeypatch):
    before, scope = told(), products._scope

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch, "set_float32_matmul_precision", interrupted)
        with pytest.raises(KeyboardInterrupt), products.fast_products(1):
            pass
    with products.fast_products(1):
        assert products.are_fast()
    assert told() == before and scope.steps == 0
    with pytest.raises(KeyboardInterrupt), products.fast_products(1):
        monkeypatch.setattr(torch, "set_float32_matmul_precision", interrupted)
    monkeypatch.undo()
    monkeypatch.setattr(products, "_is_faster", lambda: True)
    monkeypatch.setattr(products, "_FEWEST", 1)
    with products.fast_products(1):
        assert products.are_fast()
    assert told() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_begins_anew(faster):
    before = told()
    with products.fast_products(1):
        child = os.fork()
        if child == 0:
            os._exit(0 if told() == before and not products.are_fast() else 1)
        assert os.waitpid(child, 0)[1] == 0 and products.are_fast()
        # As in a child whose parent forked within a step of its own.
        products._scope.begin_anew()
    with products.fast_products(1):
        assert products.are_fast()
    assert told() == before


def test_steps_that_torch_compiles_choose_for_themselves(faster):
    from keras_bandgnn.models.fitting import _products

    task = task_of()
    batch = task.loader(GRAPHS)[0]
    task.compile(jit_compile=True)
    with _products(task, batch):
        assert precision()[0] == "none"


def test_the_largest_step_of_a_schedule_counts():
    from keras_bandgnn.models.fitting import _most_nodes

    n = 40
    star = kb.Graph(
        n,
        np.arange(1, n),
        np.zeros(n - 1, int),
        node={"kind": np.zeros(n, int)},
        candidates=[0, 1],
        label=0,
    )
    batcher = kb.preprocessing.StaticBatcher(3)
    plan = Plan(Grouped(4), schedule=ReceptiveField(2))
    scheduled = kb.preprocessing.GraphLoader([star] * 2, batcher, plan)[0][0]
    plain = kb.preprocessing.GraphLoader([star] * 2, batcher)[0][0]
    sizes = [step["state"]["index"].size for step in scheduled["plan"].values()]
    assert _most_nodes(scheduled) == max(scheduled["node"]["mask"].size, *sizes)
    assert _most_nodes(plain) == plain["node"]["mask"].size
    # Of equal states only one is a node of the batch, but all are of a later step.
    scheduled["plan"]["step:0"]["state"]["index"] = np.zeros((1, 9856), "int32")
    assert _most_nodes(scheduled) == 9856
    assert _most_nodes({}) == _most_nodes(None) == _most_nodes({"node": {}}) == 0


def test_small_batches_are_left_alone(faster, monkeypatch):
    monkeypatch.setattr(products, "_FEWEST", 1000)
    with products.fast_products(999):
        assert precision()[0] == "none"
    with products.fast_products(1000):
        assert precision()[0] == "bf16"


@pytest.mark.parametrize(
    ("seconds", "exact", "off", "expected"),
    (
        ((1.0, 0.5), True, "", True),
        ((1.0, 0.9), True, "", False),
        ((1.0, 0.5), False, "", False),
        ((1.0, 0.5), True, "0", False),
    ),
)
def test_what_is_exact_and_much_faster_is_taken(
    monkeypatch, seconds, exact, off, expected
):
    if not hasattr(torch.backends.mkldnn.matmul, "fp32_precision"):
        pytest.skip("needs torch 2.9")
    usual, other = seconds
    monkeypatch.setenv(products.VARIABLE, off)
    # On whatever machine this is.
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(products, "_are_exact", lambda: exact)
    monkeypatch.setattr(
        products,
        "_seconds",
        lambda call: usual if precision()[0] == "none" else other,
    )
    products._is_faster.cache_clear()
    try:
        assert products._is_faster() == expected
    finally:
        products._is_faster.cache_clear()
    assert precision()[0] == "none"


def test_rounding_to_bfloat16_is_noticed(monkeypatch):
    product = torch.Tensor.__matmul__

    def rounded(a, b):
        if a.dtype == torch.float32:
            a, b = a.bfloat16().float(), b.bfloat16().float()
        return product(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
    assert not products._are_exact()


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_outputs_are_the_same(faster, name):
    if not products._are_exact():
        pytest.skip("this processor rounds to bfloat16")
    backbone, loader = backbone_and_loader(name)
    x = loader[0][0]
    usual = keras.ops.convert_to_numpy(backbone(x))
    with products.fast_products(1):
        assert np.allclose(keras.ops.convert_to_numpy(backbone(x)), usual, atol=1e-5)
