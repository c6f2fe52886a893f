import dataclasses
import json

import keras
import numpy as np
import pytest

from keras_bandgnn.planning import cost as cost_module
from keras_bandgnn.planning.cost import SIZES, Hardware, calibrate
from keras_bandgnn.primitives import Banded, Grouped, Plan, Segment
from keras_bandgnn.primitives.base import Load
from keras_bandgnn.primitives.block_sparse import BlockSparse
from keras_bandgnn.primitives.dense import Dense
from keras_bandgnn.primitives.supernode import Supernode
from tests.planning.machines import CPU, GPU, machine, uniform


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BANDGNN_DATA", str(tmp_path))


def toy(**rates):
    """A machine on which everything runs at 1 per second and starts at once."""
    table = {name: [1.0] * len(sizes) for name, sizes in SIZES.items()}
    return machine(table | {"launch": [1e30]} | rates)


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
    hardware = toy(launch=[0.1])
    assert hardware.matmul_seconds(0, 1, 1) == pytest.approx(30)
    assert hardware.matmul_seconds(0, 1, 1, blocks=True) == pytest.approx(20)
    assert hardware.grouped_seconds(0, 1, 1, 16) == pytest.approx(30)
    assert hardware.gather_seconds(0, 1) == pytest.approx(20)
    assert hardware.scatter_seconds(0, 1) == pytest.approx(20)
    assert hardware.write_seconds(0) == pytest.approx(10)
    assert hardware.sparse_seconds(0, 0, 1) == pytest.approx(20 + 2 * 10)


def test_arrays_above_two_gigabytes_are_out_of_the_question():
    assert uniform(1e9).write_seconds(2**29) < np.inf
    assert uniform(1e9).write_seconds(2**29 + 1) == np.inf


def test_rates_between_sizes_are_between_the_rates():
    hardware = toy(
        matmul=[1.0, 100.0, 100.0], blocks=[1.0, 1.0, 1.0, 4.0, 4.0], write=[1.0, 16.0]
    )
    assert hardware.rate("matmul", 64) == pytest.approx(100)
    # Half way in logarithms, between 16 and 64, and 1 and 100.
    assert hardware.rate("matmul", 32) == pytest.approx(10)
    assert hardware.rate("matmul", 9999) == pytest.approx(100)
    assert hardware.rate("matmul", 0) == pytest.approx(1)
    # Of a kernel that is not square, the mean of both widths.
    square = hardware.matmul_seconds(1, 64, 64)
    assert hardware.matmul_seconds(1, 16, 256) == pytest.approx(square)
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
@pytest.mark.parametrize("rates", [CPU, GPU], ids=["cpu", "gpu"])
def test_costs_are_positive_and_grow_with_the_graphs(primitive, rates):
    hardware = machine(rates)
    key = primitive.key()
    names = ("node", key, *(f"{key}.{n}" for n in ("row", "edge", "in", "out")))
    times = [
        primitive.cost(Load(dict.fromkeys(names, size), 3, 64, 64), hardware)
        for size in (0, 10_000, 100_000)
    ]
    assert 0 < times[0] < times[1] < times[2]


def test_file_round_trip():
    assert Hardware.calibrated() is None
    hardware = toy(sparse=[3.5])
    path = hardware.save()
    assert path == Hardware.path() and path.is_file()
    assert Hardware.calibrated() == hardware
    # Constants of another dtype are others.
    assert Hardware.calibrated("bfloat16") is None
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_path_depends_on_the_machine(monkeypatch):
    before = Hardware.path()
    names = {
        (cost_module.os, "cpu_count"): lambda: 999,
        (cost_module.keras, "version"): lambda: "9.9",
        (cost_module.backend, "version"): lambda: "9.9",
        (cost_module.backend, "device"): lambda: ("gpu", "another"),
        (cost_module, "cpu_model"): lambda: "another",
    }
    for (owner, name), value in names.items():
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert Hardware.path() != before, name


def corrupted():
    constants = dataclasses.asdict(toy())

    def changed(**rates):
        return json.dumps(constants | {"rates": constants["rates"] | rates})

    short = {k: v for k, v in constants["rates"].items() if k != "sparse"}
    return {
        "no JSON": "{",
        "a list": "[]",
        "nothing": "",
        "a rate less": json.dumps(constants | {"rates": short}),
        "a name more": json.dumps({**constants, "more": 1}),
        "a negative rate": changed(gather=[-1.0]),
        "no number": changed(gather=["fast"]),
        "not a number": changed(blocks=[1.0, float("nan"), 1.0, 1.0, 1.0]),
        "another shape": changed(blocks=[1.0]),
        "no shape": changed(gather=1.0),
        "no rates": changed(gather=[]),
        "a size": json.dumps(constants | {"itemsize": 0}),
    }.items()


@pytest.mark.parametrize("name,text", corrupted(), ids=lambda t: t[:15])
def test_a_corrupted_file_is_an_error_that_names_the_command(name, text):
    path = toy().save()
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        Hardware.calibrated()
    assert "calibrate" in str(error.value) or path.name in str(error.value)


def test_calibrate_measures_all_constants(monkeypatch, tmp_path):
    monkeypatch.setattr(cost_module, "_ROUNDS", 2)
    seen = []
    hardware = calibrate(progress=lambda *done: seen.append(done))
    path = tmp_path / "hardware.json"
    path.write_text(json.dumps(dataclasses.asdict(hardware)))
    assert Hardware.from_file(path) == hardware
    assert hardware.date and keras.backend.backend() in hardware.name
    assert all(np.isfinite(hardware.matmul_seconds(n, n, n)) for n in (1, 100))
    dones, totals = zip(*seen, strict=True)
    assert len(set(totals)) == 1 and list(dones) == sorted(dones)
    assert dones[-1] == totals[-1]
    # What was measured is of the order of what the primitives then cost.
    assert 0 < Plan().primitives[0].cost(
        Load({"node": 100, "segment": 400}, 2, 64, 64), hardware
    )
