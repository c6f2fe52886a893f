import pytest

from keras_bandgnn.cli.main import main
from keras_bandgnn.planning import cost
from keras_bandgnn.planning.cost import Hardware

pytestmark = pytest.mark.every_backend("test_calibrate_writes_what_show_reads")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BANDGNN_DATA", str(tmp_path))


@pytest.mark.release(elsewhere=True)
def test_calibrate_writes_what_show_reads(capsys, monkeypatch):
    monkeypatch.setattr(cost, "_ROUNDS", 2)
    assert main(["calibrate", "--show"]) == 0
    assert "not calibrated here" in capsys.readouterr().out
    assert Hardware.calibrated() is None
    assert main(["calibrate"]) == 0
    out = capsys.readouterr().out
    hardware = Hardware.calibrated()
    assert f"calibrated on {hardware.date}" in out and Hardware.path().name in out
    assert "matmul" in out and "sparse" in out
    assert main(["calibrate", "--show"]) == 0
    assert f"{hardware.rates['sparse'][0]:,.3f}" in capsys.readouterr().out
    # Another dtype has constants of its own.
    assert main(["calibrate", "--show", "--dtype", "bfloat16"]) == 0
    assert "not calibrated" in capsys.readouterr().out
