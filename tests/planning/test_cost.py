import json
import warnings

import numpy as np
import pytest

from keras_bandgnn.planning import cost as cost_module
from keras_bandgnn.planning.calibration import calibrate
from keras_bandgnn.planning.cost import Hardware
from keras_bandgnn.primitives import Banded, Grouped, Plan, Segment
from keras_bandgnn.primitives.base import Load
from keras_bandgnn.primitives.block_sparse import BlockSparse
from keras_bandgnn.primitives.dense import Dense
from keras_bandgnn.primitives.supernode import Supernode


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BANDGNN_DATA", str(tmp_path))


def toy(**changes):
    """A machine on which everything runs at 1 per second and starts at once."""
    ones = {
        "matmul": ((1.0,) * 3,) * 3,
        "blocks": (1.0,) * 5,
        "write": (1.0,) * 2,
        **dict.fromkeys(("gather", "scatter", "sparse"), 1.0),
        "grouped": (1.0,) * 3,
        "launch": 1e-30,
    }
    return Hardware(**ones | changes)


def test_seconds_are_work_over_rates():
    hardware = toy()
    # Three products of 2 * rows * inner * columns FLOPs; two where blocks are data.
    assert hardware.matmul_seconds(5, 16, 7) == pytest.approx(6 * 5 * 16 * 7)
    assert hardware.matmul_seconds(5, 16, 7, blocks=True) == pytest.approx(
        4 * 5 * 16 * 7
    )
    assert hardware.grouped_seconds(5, 64, 7, 64) == pytest.approx(6 * 5 * 64 * 7)
    assert hardware.gather_seconds(5, 32) == pytest.approx(5 * 32 * 4)
    # A row of one number costs a whole line of memory.
    assert hardware.scatter_seconds(5, 1) == pytest.approx(5 * 64)
    assert hardware.write_seconds(5) == pytest.approx(20)
    assert hardware.sparse_seconds(5, 3, 2) == pytest.approx(10 + 2 * 24)


def test_every_operation_takes_its_launches():
    hardware = toy(launch=10.0)
    assert hardware.matmul_seconds(0, 1, 1) == 30
    assert hardware.matmul_seconds(0, 1, 1, blocks=True) == 20
    assert hardware.grouped_seconds(0, 1, 1, 16) == 30
    assert hardware.gather_seconds(0, 1) == hardware.scatter_seconds(0, 1) == 20
    assert hardware.write_seconds(0) == 10
    assert hardware.sparse_seconds(0, 0, 1) == 20 + 2 * 10


def test_rates_between_sizes_are_between_the_rates():
    hardware = toy(
        matmul=((1.0, 1.0, 1.0), (1.0, 100.0, 100.0), (1.0, 100.0, 100.0)),
        blocks=(1.0, 1.0, 1.0, 4.0, 4.0),
        write=(1.0, 16.0),
    )
    assert hardware.matmul_flops(64, 64) == pytest.approx(100)
    # Half way in logarithms, between 16 and 64, and 1 and 100.
    assert hardware.matmul_flops(32, 64) == pytest.approx(10)
    assert hardware.matmul_flops(9999, 9999) == pytest.approx(100)
    assert hardware.matmul_flops(1, 1) == pytest.approx(1)
    blocks = [hardware.matmul_seconds(1, s, 1, blocks=True) / s for s in (64, 128, 512)]
    assert blocks == pytest.approx([4, 1, 1])
    assert hardware.write_seconds(2**22) == pytest.approx(2**24 / 4)


PRIMITIVES = [
    Segment(),
    Grouped(),
    Grouped(first="aggregate"),
    Banded(64),
    Dense(32),
    BlockSparse(16),
    Supernode(8),
]


@pytest.mark.parametrize("primitive", PRIMITIVES, ids=repr)
@pytest.mark.parametrize("accelerator", ["cpu", "gpu", "tpu"])
def test_costs_are_positive_and_grow_with_the_graphs(primitive, accelerator):
    hardware = Hardware.default("jax", accelerator)
    key = primitive.key()
    names = ("node", key, *(f"{key}.{n}" for n in ("row", "edge", "in", "out")))
    times = [
        primitive.cost(Load(dict.fromkeys(names, size), 3, 64, 64), hardware)
        for size in (0, 10_000, 100_000)
    ]
    assert 0 < times[0] < times[1] < times[2]


def test_defaults_by_backend_and_dtype():
    assert Hardware.default("torch", "cpu") != Hardware.default("jax", "cpu")
    assert Hardware.default("torch", "npu").matmul == (
        Hardware.default("torch", "gpu").matmul
    )
    sizes = [
        Hardware.default("jax", "cpu", dtype).itemsize
        for dtype in ("float32", "bfloat16", "float16", "float64")
    ]
    assert sizes == [4, 2, 2, 8]


def test_file_round_trip():
    assert Hardware.calibrated() is None
    assert not Hardware.current().date
    hardware = toy(sparse=3.5, name="toy", date="2026-01-02")
    path = hardware.save()
    assert path == Hardware.path() and path.is_file()
    assert Hardware.calibrated() == hardware == Hardware.current()
    # Constants of another dtype are others.
    assert Hardware.calibrated("bfloat16") is None
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_path_depends_on_the_machine(monkeypatch):
    before = Hardware.path()
    facts = cost_module.machine()
    assert set(facts) == {
        *("device", "kind", "cores", "backend", "backend_version", "keras_version")
    }
    for name in facts:
        monkeypatch.setattr(cost_module, "machine", lambda n=name: facts | {n: "new"})
        assert Hardware.path() != before


def corrupted(found):
    texts = {
        "no JSON": "{",
        "a list": "[]",
        "nothing": "",
        "a name less": json.dumps({k: v for k, v in found.items() if k != "sparse"}),
        "a name more": json.dumps({**found, "more": 1}),
        "a negative rate": json.dumps({**found, "gather": -1.0}),
        "no number": json.dumps({**found, "gather": "fast"}),
        "not a number": json.dumps({**found, "gather": float("nan")}),
        "another shape": json.dumps({**found, "blocks": [1.0]}),
    }
    return texts.items()


@pytest.mark.parametrize("name,text", corrupted(toy().to_dict()), ids=lambda t: t[:15])
def test_a_corrupted_file_is_left_out_with_a_warning(name, text):
    path = toy(date="2026-01-02").save()
    path.write_text(text)
    with pytest.warns(UserWarning, match="bandgnn calibrate") as caught:
        assert Hardware.calibrated() is None
    assert str(path) in str(caught[0].message)


def test_bytes_that_are_no_text_are_left_out_too():
    path = toy().save()
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.warns(UserWarning, match="Default constants are used"):
        assert not Hardware.current().date


def test_another_version_is_left_out():
    path = toy(date="2026-01-02").save()
    path.write_text(json.dumps({"version": 999, "form": "unknown"}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Hardware.calibrated() is None
    with pytest.raises(ValueError, match="version 999"):
        Hardware.from_dict({"version": 999})


def test_calibrate_measures_all_constants():
    seen = []
    hardware = calibrate(seconds=0.01, progress=lambda *done: seen.append(done))
    assert Hardware.from_dict(json.loads(json.dumps(hardware.to_dict()))) == hardware
    assert hardware.date and "float32" in hardware.name
    assert all(np.isfinite(hardware.matmul_seconds(n, n, n)) for n in (1, 100))
    dones, totals = zip(*seen, strict=True)
    assert len(set(totals)) == 1 and list(dones) == sorted(dones)
    assert dones[-1] == totals[-1]
    # What was measured is of the order of what the primitives then cost.
    assert 0 < Plan().primitives[0].cost(
        Load({"node": 100, "segment": 400}, 2, 64, 64), hardware
    )


def test_calibrate_needs_time():
    with pytest.raises(ValueError, match="`seconds` to be positive"):
        calibrate(seconds=0)
