import importlib.metadata
import importlib.util
import json

import keras
import pytest

from keras_bandgnn.cli.main import main
from keras_bandgnn.cli.scale import make_topologies
from keras_bandgnn.models import GGNNBackbone, NodeSelector
from keras_bandgnn.tpu import aot_compile as tpu_check
from keras_bandgnn.tpu.hlo import Collective, ProgramCosts

SIZES = ["--nodes", "256", "--graphs", "4"]
PAPER = ["--nodes", "70272", "--graphs", "42", "--plan", "banded:128"]


@pytest.fixture
def preset(tmp_path):
    backbone = GGNNBackbone({"type": 32}, hidden_dim=32, num_steps=2, num_edge_types=3)
    NodeSelector(backbone).save_to_preset(tmp_path / "preset")
    return str(tmp_path / "preset")


@pytest.fixture
def made_up(monkeypatch):
    """Takes the compiler's place; returns the names of slices that it refuses."""
    refused = []

    def check(task, plan, sizes, topology):
        cores = {"v2:2x2": 8, "v2:16x16": 512, "v5e:4x4": 16}[topology]
        if topology in refused:
            error, memory = "exceeds available HBM (7.48G)", {"total": 9.5}
            return tpu_check.StepReport(topology, cores, 7.48, 2.0, memory, error)
        # 11.5 TFLOP on half of 23 TFLOP/s is a second.
        costs = ProgramCosts(11.5e12, {"all-reduce": Collective(2, 10**7)}, 0)
        memory = {"total": 2.18}
        return tpu_check.StepReport(topology, cores, 7.48, 2.0, memory, costs=costs)

    monkeypatch.setattr(tpu_check, "topology_devices", lambda name: [])
    monkeypatch.setattr(tpu_check, "check_training_step", check)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.2.3")
    return refused


def test_topologies():
    assert make_topologies("v2", None) == ["v2:2x2", "v2:4x4", "v2:8x8", "v2:16x16"]
    assert make_topologies("v5e", None) == ["v5e:2x4", "v5e:4x8", "v5e:8x16"]
    assert make_topologies("v5e:16x16", None)[2:] == ["v5e:8x16", "v5e:16x16"]
    # The given slice takes the place of another one of its size.
    assert make_topologies("v5e:4x4", [16, 8]) == ["v5e:2x4", "v5e:4x4"]
    assert make_topologies("v2:4x16", [128]) == ["v2:4x16"]
    with pytest.raises(ValueError, match="256 cores for v6e. Received: cores=512"):
        make_topologies("v6e", [512])


def test_tables(preset, made_up, tmp_path, capsys):
    file = tmp_path / "found.json"
    command = ["scale", preset, *SIZES, "--cores", "8", "512", "--json", str(file)]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "256 nodes, 952 edges, 4 graphs" in out
    assert out.index("compiled: a training") < out.index("predicted: nothing was run")
    assert "compiling for v2:16x16, 2 of 2" in out and "2 all-reduce (10 MB)" in out
    assert "50 % (a guess: --share)" in out
    assert "measured by Balog et al. 2019 on TPU v2" in out and "24000" in out
    # Other supergraphs than the paper's: its speeds are not beside ours.
    predicted = out.split("predicted: nothing was run")[1]
    assert "paper" not in predicted.split("paper: measured")[0]
    found = json.loads(file.read_text())
    assert [s["topology"] for s in found["compiled"]] == ["v2:2x2", "v2:16x16"]
    small, large = found["predicted"]
    assert small["computing_seconds"] == 1
    assert small["graphs_per_second"] == pytest.approx(32 * small["steps_per_second"])
    assert large["sending_seconds"] == pytest.approx(2 * 511 / 512 * 1e7 / 62e9)
    assert found["share"] == 0.5
    assert found["paper"]["128"]["steps_per_second"] == [1.89, 1.87, 1.82, 1.12]


def test_beside_the_paper(preset, made_up, capsys):
    command = ["scale", preset, *PAPER, "--topology", "v2:16x16", "--cores", "8"]
    assert main([*command, "--rest", "drop"]) == 0
    predicted = capsys.readouterr().out.split("predicted: nothing was run")[1]
    rows = [line.split() for line in predicted.splitlines() if "v2:" in line]
    assert [row[-2:] for row in rows] == [["1.890", "630"], ["1.120", "24000"]]
    # The paper drops what its blocks do not hold.
    assert main(command) == 0
    predicted = capsys.readouterr().out.split("predicted: nothing was run")[1]
    assert not any("1.890" in s for s in predicted.splitlines() if "v2:2x2" in s)


def test_a_program_that_does_not_fit(preset, made_up, capsys):
    made_up.append("v2:16x16")
    assert main(["scale", preset, *SIZES, "--cores", "8", "512"]) == 1
    out = capsys.readouterr().out
    assert "does not compile" in out and "9.500" in out
    assert "v2:16x16: exceeds available HBM (7.48G)" in out


def test_wrong_share(capsys):
    with pytest.raises(SystemExit):
        main(["scale", "--share", "1.5"])
    assert "must be at most 1, is 1.5" in capsys.readouterr().err


def test_missing_compiler_and_other_backends(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda n, *a: None if n == "libtpu" else find(n, *a),
    )
    assert main(["scale", "--topology", "v5e:16x16"]) == 1
    error = capsys.readouterr().err
    if keras.backend.backend() == "jax":
        assert 'pip install "keras-bandgnn[tpu]"' in error
    else:
        assert f"Received: {keras.backend.backend()!r}. Set KERAS_BACKEND=jax" in error


@pytest.mark.skipif(
    keras.backend.backend() != "jax" or importlib.util.find_spec("libtpu") is None,
    reason="needs JAX and libtpu",
)
def test_with_the_compiler(preset, tmp_path, capsys):
    file = tmp_path / "found.json"
    command = ["scale", preset, *SIZES, "--plan", "banded:16", "--rest", "drop"]
    command += ["--topology", "v5e:4x4", "--cores", "8", "--json", str(file)]
    assert main(command) == 0
    assert "all-reduce" in capsys.readouterr().out
    found = json.loads(file.read_text())
    compiled = [(s["topology"], s["cores"]) for s in found["compiled"]]
    assert compiled == [("v5e:2x4", 8), ("v5e:4x4", 16)]
    for before, after in zip(found["compiled"], found["predicted"], strict=True):
        flops = before["costs"]["flops"]
        assert flops > 3 * 2 * 2 * 256 * 32 * 6 * 32
        assert after["computing_seconds"] == pytest.approx(flops / 98.5e12)
        assert set(before["costs"]["collectives"]) == {"all-reduce"}
        assert 0 < after["sending_seconds"] < 1e-4
    assert found["versions"]["libtpu"]
