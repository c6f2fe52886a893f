import pytest

from keras_bandgnn.cli.main import main
from keras_bandgnn.planning.cost import Hardware

pytestmark = pytest.mark.every_backend("test_calibrate_writes_what_show_reads")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BANDGNN_DATA", str(tmp_path))


def test_calibrate_writes_what_show_reads(capsys):
    assert main(["calibrate", "--show"]) == 0
    out = capsys.readouterr().out
    assert "default constants: not calibrated" in out
    assert Hardware.calibrated() is None
    assert main(["calibrate", "--seconds", "1"]) == 0
    out = capsys.readouterr().out
    hardware = Hardware.calibrated()
    assert f"calibrated on {hardware.date}" in out and Hardware.path().name in out
    assert "product, inner 16, columns 16" in out and "sparse products" in out
    assert main(["calibrate", "--show"]) == 0
    assert f"{hardware.sparse / 1e9:,.3f}" in capsys.readouterr().out
    # Another dtype has constants of its own.
    assert main(["calibrate", "--show", "--dtype", "bfloat16"]) == 0
    assert "not calibrated" in capsys.readouterr().out


def test_seconds_must_be_above_zero(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", "--seconds", "0"])
    assert ended.value.code == 2
    assert "must be above 0" in capsys.readouterr().err
