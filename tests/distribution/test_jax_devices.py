"""Data and sequence parallelism on eight devices of a CPU (JAX)."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.distribution.sequence_layout import SequenceLayout
from keras_bandgnn.preprocessing import GraphPreprocessor, RCMKCompile, StaticBatcher
from keras_bandgnn.primitives import Banded, Plan
from keras_bandgnn.tpu.hlo import ProgramCosts

CASES = Path(__file__).with_name("jax_cases.py")
on_jax = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="JAX runs programs over meshes"
)


def run(*cases):
    """What `jax_cases.py` prints, case by case."""
    done = subprocess.run(
        [sys.executable, str(CASES), *cases], capture_output=True, text=True
    )
    assert not done.returncode, done.stderr[-3000:]
    lines = done.stdout.splitlines()[-len(cases) :]
    return [json.loads(line) for line in lines]


def run_close(*cases):
    """What the cases print, after a comparison with one device."""
    found = dict(zip(cases, run(*cases), strict=True))
    for case, result in found.items():
        bound = 1e-4 if case.startswith("fit") else 1e-5
        worst = max(result["loss"], result["slopes"])
        assert worst < bound, (case, result)
    return found


@on_jax
@pytest.mark.release(elsewhere=True)
def test_steps_of_further_models_are_those_of_one_device():
    run_close("full:mixed", "blocks:mixed", "gps:data")
    run_close("sets:data", "ggnn_sets:mixed")
    run_close("sets_sage:data", "sets_gat:data", "sets_hgt:data")


@on_jax
def test_steps_are_those_of_one_device():
    cases = ["schnet:data", "ggnn:mixed", "ggnn_drop:sequence", "sparse:sequence"]
    cases += ["augment:mixed", "fit:mixed", "schnet:layouts", "fit:layouts"]
    found = run_close(*cases)

    # Only gradients and metrics are summed over supergraphs.
    sent = found["schnet:data"]["collectives"]
    assert set(sent) == {"all-reduce"}
    assert sent["all-reduce"][1] <= 4 * found["schnet:data"]["parameters"] + 64

    # One block of 16 nodes to either neighbour, three steps and back.
    sent = found["ggnn_drop:sequence"]["collectives"]
    assert set(sent) == {"all-reduce", "collective-permute"}
    assert sent["collective-permute"] == [12, 12 * 16 * 32 * 4]
    # Rows of the exact rest, there and back, in three steps.
    sent = found["ggnn:mixed"]["collectives"]
    assert sent["all-to-all"][0] == 6

    # Two layers, two exchanges each and two of their gradients: 4 S d / P per pass.
    sent = found["sparse:sequence"]["collectives"]
    assert set(sent) == {"all-reduce", "all-to-all"}
    nodes = found["sparse:sequence"]["nodes"]
    assert sent["all-to-all"] == [8, 2 * 2 * 4 * nodes * 32 * 4 // 8]

    # A distribution of Keras: a part of the kernels on each of four devices.
    first, whole = found["schnet:layouts"]["weights"]
    assert whole / 4 < first < 0.5 * whole


@on_jax
@pytest.mark.release(elsewhere=True)
def test_distributions_of_keras_are_those_of_tasks():
    found = run_close("sparse:weights", "ggnn:keras", "fit:layouts")
    first, whole = found["sparse:weights"]["weights"]
    assert whole / 8 < first < 0.5 * whole
    # All weights on each device.
    first, whole = found["ggnn:keras"]["weights"]
    assert first == whole


@on_jax
def test_meshes_without_the_axis_of_graphs_are_refused():
    mesh = keras.distribution.DeviceMesh((1,), ("data",), ["cpu:0"])
    layouts = keras.distribution.LayoutMap(mesh)
    distribution = keras.distribution.ModelParallel(layout_map=layouts)
    with distribution.scope(), pytest.raises(ValueError, match="Expected 'batch' as"):
        kb.models.NodeClassifier(kb.models.GCNBackbone({"kind": 1}, 8), 2)


@on_jax
@pytest.mark.release(elsewhere=True)
def test_memory_of_a_device_falls_with_their_number():
    for found in run("sparse:memory", "ggnn_drop:memory"):
        sizes = [found[str(number)] for number in (1, 2, 4, 8)]
        for large, small in zip(sizes[:-1], sizes[1:], strict=True):
            assert small < 0.6 * large


def test_exchanges_of_several_arrays_are_counted():
    text = """
    ENTRY %main (x: f32[8,4], y: f32[8,2]) -> (f32[8,4], f32[8,2]) {
      %x = f32[8,4]{1,0} parameter(0)
      %y = f32[8,2]{1,0} parameter(1)
      ROOT %a = (f32[8,4]{1,0}, f32[8,2]{1,0}) all-to-all(%x, %y), dimensions={0}
    }
    """
    lines = [line.removeprefix("    ") for line in text.splitlines()]
    sent = ProgramCosts.from_text("\n".join(lines)).collectives["all-to-all"]
    assert (sent.count, sent.bytes) == (1, 4 * (32 + 16))


def test_layout_keeps_every_edge():
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 90, (2, 300))
    node = {"h": rng.normal(size=(90, 1))}
    graph = kb.Graph(90, *ends, edge_type=rng.integers(0, 2, 300), node=node)
    loader = kb.preprocessing.GraphLoader(
        [graph], StaticBatcher(1, "64"), Plan(Banded(8))
    )
    (x,) = loader[0]
    parts = 4
    (made,) = SequenceLayout(parts, False)((x,))
    own = made["node"]["mask"].shape[1] // parts
    assert own % 8 == 0

    want = np.zeros((own * parts,) * 2 + (2,))
    np.add.at(want, (ends[1], ends[0], graph.edge_type), 1)
    found = np.zeros_like(want)
    banded, rest = (made["plan"][key] for key in ("banded:8", "segment"))
    room = banded["sender"].shape[1] // parts
    send = rest["send"].reshape(parts, parts, -1)
    for part in range(parts):
        piece = slice(part * room, (part + 1) * room)
        facts = [banded[n][0, piece] for n in ("receiver", "sender", "type", "mask")]
        receiver, sender, kind, mask = facts
        assert (sender[mask] >= -8).all() and (sender[mask] < own + 8).all()
        receiver, sender = (part * own + ids[mask] for ids in (receiver, sender))
        np.add.at(found, (receiver, sender, kind[mask]), 1)
        # Rows arrive in the order of the devices that send them.
        arrived = send[:, part] + own * np.arange(parts)[:, None]
        size = rest["sender"].shape[1] // parts
        piece = slice(part * size, (part + 1) * size)
        receiver, sender, kind = (
            rest[n][0, piece] for n in ("receiver", "sender", "type")
        )
        real = receiver < own
        at = part * own + receiver[real], arrived.ravel()[sender[real]], kind[real]
        np.add.at(found, at, 1)
    np.testing.assert_array_equal(found, want)


@on_jax
def test_bands_are_those_that_nodes_were_ordered_for():
    with kb.distribution.data_parallel(devices="cpu:0").scope():
        backbone = kb.models.GCNBackbone({"kind": 1}, 8)
        task = kb.models.NodeClassifier(backbone, 2)
    group = task.distribution
    group.sequence = 2
    graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0] * 3})
    assert group.auto_plan(task) == Plan(Banded(128))
    ordered = GraphPreprocessor([RCMKCompile(16)])
    assert group.auto_plan(task, ordered.transform([graph])) == Plan(Banded(16))
    task.preprocessor = ordered
    assert group.auto_plan(task, [graph]) == Plan(Banded(16))


def test_what_cannot_share_a_sequence_says_so():
    if keras.backend.backend() == "tensorflow":
        with pytest.raises(NotImplementedError, match="backend 'jax' or 'torch'"):
            kb.distribution.sequence_parallel(2)
        return
    if keras.backend.backend() == "torch":
        with pytest.raises(ValueError, match="number of processes"):
            kb.distribution.sequence_parallel(2)
        return
    with pytest.raises(ValueError, match="number of devices"):
        kb.distribution.sequence_parallel(sequence=64, batch=64)
    with kb.distribution.data_parallel(devices="cpu:0").scope():
        backbone = kb.models.GCNBackbone({"h": {"features": 1}}, 8)
        task = kb.models.NodeClassifier(backbone, 2)
    group = task.distribution
    group.sequence = 2
    with pytest.raises(ValueError, match="Use data_parallel"):
        group.check_task(task)
