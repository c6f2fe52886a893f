"""Calibration of standard deviations, compared with SciPy and drawn samples."""

import numpy as np
import pytest
import scipy.stats

import keras_bandgnn as kb
from keras_bandgnn.training import calibration_report

RNG = np.random.default_rng(0)
STD = RNG.uniform(0.5, 2.0, 20_000)
MEAN = RNG.normal(size=STD.shape)
LABELS = MEAN + STD * RNG.normal(size=STD.shape)


def test_samples_of_the_distribution_are_calibrated():
    report = calibration_report(LABELS, MEAN, STD)
    np.testing.assert_allclose(report["coverage"], report["levels"], atol=0.01)
    assert report["calibration_error"] < 0.01
    assert report["scale"] == pytest.approx(1, abs=0.02)
    assert report["count"] == len(STD) and report["without_std"] == 0
    assert report["mae"] == pytest.approx(np.abs(LABELS - MEAN).mean())
    assert report["rmse"] == pytest.approx(np.sqrt(np.mean((LABELS - MEAN) ** 2)))
    assert report["mean_std"] == pytest.approx(STD.mean())


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_scale_calibrates(factor):
    report = calibration_report(LABELS, MEAN, factor * STD, [0.2, 0.5, 0.8])
    assert (report["coverage"] < report["levels"]).all() == (factor < 1)
    scaled = report["scale"] * factor * STD
    assert np.mean(((LABELS - MEAN) / scaled) ** 2) == pytest.approx(1)
    assert calibration_report(LABELS, MEAN, scaled)["calibration_error"] < 0.01
    bounds = scipy.stats.norm.ppf([0.6, 0.75, 0.9])
    z = np.abs(LABELS - MEAN) / (factor * STD)
    np.testing.assert_allclose(
        report["coverage"], [(z <= bound).mean() for bound in bounds]
    )


def test_rank_correlation_is_that_of_scipy():
    # With ties.
    std, labels = np.round(STD[:500], 1), np.round(LABELS[:500], 1)
    mean = np.round(MEAN[:500], 1)
    want = scipy.stats.spearmanr(std, np.abs(labels - mean)).statistic
    found = calibration_report(labels, mean, std)["rank_correlation"]
    assert found == pytest.approx(want)
    constant = calibration_report([1.0, 2.0], [0.0, 0.0], [1.0, 1.0])
    assert np.isnan(constant["rank_correlation"])


def test_values_of_graphs_and_missing_ones():
    want = calibration_report(LABELS[:6], MEAN[:6], STD[:6])
    cuts = [2, 3]
    graphs = [np.split(values[:6], cuts) for values in (LABELS, MEAN, STD)]
    for labels, mean, std in (
        graphs,
        [LABELS[:6, None], MEAN[:6], list(STD[:6])],
        [list(LABELS[:6]), [*MEAN[:6, None]], [*STD[:6, None]]],
        [np.append(LABELS[:6], np.nan), MEAN[:7], STD[:7]],
        [[*graphs[0], LABELS[:3]], [*graphs[1], None], [*graphs[2], None]],
    ):
        found = calibration_report(labels, mean, std)
        assert found["count"] == 6
        for name, value in want.items():
            np.testing.assert_allclose(found[name], value)


def test_entries_without_a_spread():
    report = calibration_report([1.0, 2.0, 3.0], [1.0, 2.5, 3.5], [0.0, 0.0, 0.5])
    assert report["without_std"] == 2 and report["scale"] == 1.0
    np.testing.assert_allclose(report["coverage"][-1], 2 / 3)
    assert np.isnan(calibration_report([1.0], [2.0], [0.0])["scale"])


def test_wrong_values():
    with pytest.raises(ValueError, match="2 labels, 2 mean, 1 std"):
        calibration_report([1.0, 2.0], [1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="3 labels, 2 mean, 2 std"):
        calibration_report([1.0, 2.0, 3.0], [1.0, None], [1.0, None])
    with pytest.raises(ValueError, match="`std` to be at least 0"):
        calibration_report([1.0, 2.0], [1.0, 2.0], [1.0, -1.0])
    with pytest.raises(ValueError, match="some are known"):
        calibration_report([np.nan], [1.0], [1.0])
    with pytest.raises(ValueError, match="`levels` to be numbers between 0 and 1"):
        calibration_report([1.0], [1.0], [1.0], [0.5, 1.0])


def test_figure_shows_the_coverage():
    pytest.importorskip("matplotlib")
    (axes,) = kb.plotting.plot_calibration(LABELS, MEAN, 0.5 * STD).axes
    diagonal, raw, scaled = (line.get_xydata() for line in axes.lines)
    np.testing.assert_array_equal(diagonal[:, 0], diagonal[:, 1])
    want = calibration_report(LABELS, MEAN, 0.5 * STD, raw[:, 0])
    np.testing.assert_allclose(raw[:, 1], want["coverage"])
    np.testing.assert_allclose(scaled[:, 1], scaled[:, 0], atol=0.02)
    assert "scale 2" in axes.texts[0].get_text()
    # Without any spread there is nothing to scale.
    (axes,) = kb.plotting.plot_calibration([1.0], [2.0], [0.0]).axes
    assert len(axes.lines) == 2
