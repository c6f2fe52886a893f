import json

import numpy as np
import pytest

from examples.benchmarks.__main__ import main

SMALL = ["--hidden", "4", "--layers", "1", "--cutoff", "3", "--steps", "4"]


def write_frames(path, crystals: bool):
    """Write frames of three atoms to train on and to test."""
    rng = np.random.default_rng(0)
    count = 8
    position = np.array([[0.0, 0, 0], [1.5, 0, 0], [0, 1.5, 0]])
    position = position + rng.normal(scale=0.1, size=(count, 3, 3))
    arrays = {
        "z": np.full(3 * count, 29),
        "node_ptr": np.arange(0, 3 * count + 1, 3),
        "energy_ev": rng.normal(size=count),
        "forces_ev_per_ang": rng.normal(size=(3 * count, 3)),
        "group": np.arange(count) % 2,
    }
    if crystals:
        arrays["lattice"] = np.tile(4.0 * np.eye(3), (count, 1, 1))
        arrays["frac"] = (position / 4.0).reshape(-1, 3)
        arrays["stress_ev_per_ang3"] = rng.normal(scale=0.01, size=(count, 6))
    else:
        arrays["pos"] = position.reshape(-1, 3)
    np.savez(path, **arrays)


def run(tmp_path, path, *line) -> dict:
    pytest.importorskip("ase")
    figures = tmp_path / "figures.json"
    line = ["potentials", str(path), *SMALL, *line, "--json", str(figures)]
    assert main(line) == 0
    return json.loads(figures.read_text())


def test_errors_by_frames_and_dynamics(tmp_path, capsys):
    write_frames(tmp_path / "made.npz", crystals=False)
    line = ["--frames", "2", "4", "--md-steps", "20", "--models", str(tmp_path / "m")]
    found = run(tmp_path, tmp_path / "made.npz", *line, "--parts", "curve", "dynamics")
    assert [row["frames"] for row in found["curve"]] == [2, 4]
    assert found["dynamics"]["compilations"] <= 1
    assert found["dynamics"]["momentum, of that of an atom"] < 1e-6
    # The models are read again.
    again = run(tmp_path, tmp_path / "made.npz", *line, "--parts", "curve")
    assert again["curve"][1]["forces, meV/A"] == pytest.approx(
        found["curve"][1]["forces, meV/A"], rel=1e-4
    )
    assert "errors on other frames" in capsys.readouterr().out


@pytest.mark.release
def test_an_ensemble_beside_one_member(tmp_path):
    write_frames(tmp_path / "made.npz", crystals=False)
    line = ["--frames", "4", "--members", "2", "--figure", str(tmp_path / "a.png")]
    found = run(tmp_path, tmp_path / "made.npz", *line, "--parts", "ensemble")
    assert found["ensemble"]["time"]["ratio"] > 0
    assert found["ensemble"]["energy, meV/atom"]["its factor"] > 0
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_relaxation_of_crystals(tmp_path):
    write_frames(tmp_path / "made.npz", crystals=True)
    line = ["--frames", "4", "--crystals", "2", "--relax-steps", "2"]
    found = run(tmp_path, tmp_path / "made.npz", *line, "--parts", "curve", "relax")
    assert found["relax"]["crystals"] == 2
    assert "stress, GPa" in found["curve"][0]
