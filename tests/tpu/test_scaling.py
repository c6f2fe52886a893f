import numpy as np
import pytest

from keras_bandgnn.primitives import Banded, Plan
from keras_bandgnn.tpu.aot_compile import Sizes, StepReport
from keras_bandgnn.tpu.hlo import Collective, ProgramCosts
from keras_bandgnn.tpu.scaling import (
    CORES,
    PAPER,
    ScaleForecast,
    TPUGeneration,
    paper_speeds,
    sending_seconds,
)

SLICES = {
    ("v2", 8): "v2:2x2",
    ("v2", 16): "v2:2x4",
    ("v2", 32): "v2:4x4",
    ("v2", 512): "v2:16x16",
    ("v3", 2048): "v3:32x32",
    ("v4", 8): "v4:2x2x1",
    ("v4", 16): "v4:2x2x2",
    ("v4", 32): "v4:2x2x4",
    ("v4", 512): "v4:4x8x8",
    ("v5e", 8): "v5e:2x4",
    ("v5e", 128): "v5e:8x16",
    ("v5e", 256): "v5e:16x16",
    ("v5p", 4): "v5p:2x2x1",
    ("v5p", 512): "v5p:8x8x8",
    ("v6e", 32): "v6e:4x8",
}


@pytest.mark.parametrize(("name", "cores"), SLICES)
def test_slices(name, cores):
    generation = TPUGeneration.of(f"{name}:2x2")
    assert generation.topology(cores) == SLICES[name, cores]
    assert generation.cores_of(SLICES[name, cores]) == cores


def test_slices_that_do_not_exist():
    v2, v5e = TPUGeneration.of("v2"), TPUGeneration.of("v5e")
    assert [v2.forms(n) for n in (1, 4, 7, 8, 24, 512, 1024)] == [
        *(False, False, False, True, False, True, False)
    ]
    assert v5e.forms(256) and not v5e.forms(512)
    with pytest.raises(ValueError, match="power of two of 4 to 256 cores for v5e.*512"):
        v5e.topology(512)
    with pytest.raises(ValueError, match="`topology` to be one of v2, v3.*'v9:2x2'"):
        TPUGeneration.of("v9:2x2")
    with pytest.raises(ValueError, match="a slice such as 'v2:2x2'.*'v2:none'"):
        v2.cores_of("v2:none")


def ring_bytes(cores: int, number: int) -> int:
    """Numbers that cross the busiest link in a ring all-reduce, counted."""
    chunk = np.full(cores, number // cores)
    sent = np.zeros(cores, int)
    for _phase in ("reduce", "spread"):
        for turn in range(cores - 1):
            for core in range(cores):
                sent[core] += chunk[(core - turn) % cores]
    return sent.max()


@pytest.mark.parametrize("cores", [2, 8, 32])
def test_all_reduce_on_a_ring(cores):
    found = {"all-reduce": Collective(2, 4 * 320)}
    seconds = sending_seconds(found, cores, link=10.0)
    np.testing.assert_allclose(seconds, 4 * ring_bytes(cores, 320) / 10)


def test_other_collectives():
    one = {
        "all-gather": 1200 * 3 / 4,
        "all-to-all": 1200 * 3 / 4,
        # Each core ends with 1200 of 4800 bytes.
        "reduce-scatter": 4800 * 3 / 4,
        "collective-permute": 1200,
    }
    for kind, sent in one.items():
        assert sending_seconds({kind: Collective(1, 1200)}, 4, 1.0) == sent
    both = {kind: Collective(1, 1200) for kind in one}
    assert sending_seconds(both, 4, 2.0) == sum(one.values()) / 2
    assert sending_seconds({}, 4, 2.0) == 0


def step(topology="v5e:2x4", cores=8, flops=1.97e12, sent=0):
    collectives = {"all-reduce": Collective(1, sent)}
    costs = ProgramCosts(flops, collectives, 0)
    return StepReport(topology, cores, 15.75, 1.0, {"total": 2.0}, costs=costs)


def test_forecast():
    # 197 TFLOP/s at a half; 50 GB/s.
    sent = round(50e9 * 0.03 * 8 / 14)
    found = ScaleForecast.of(step(sent=sent), 42, 0.5)
    np.testing.assert_allclose(found.computing_seconds, 0.02)
    assert found.to_dict()["steps_per_second"] == found.steps_per_second
    np.testing.assert_allclose(found.sending_seconds, 0.03)
    np.testing.assert_allclose(found.steps_per_second, 20)
    np.testing.assert_allclose(found.graphs_per_second, 20 * 42 * 8)
    refused = StepReport("v5e:2x4", 8, 15.75, 1.0, {}, "too large")
    assert ScaleForecast.of(refused, 42, 0.5) is None


def test_figures_of_the_paper_agree_with_each_other():
    for row in PAPER.values():
        expected = np.array(row.steps_per_second) * row.graphs * CORES
        # Printed with two digits.
        np.testing.assert_allclose(row.graphs_per_second, expected, rtol=0.1)


def test_speeds_of_the_paper_only_for_its_supergraphs():
    sizes = Sizes(70_272, 261_324, 42, 16)
    assert paper_speeds(Plan(Banded(128), rest="drop"), sizes)[8] == (1.89, 630)
    for plan in (Plan(Banded(128)), Plan(Banded(256), rest="drop"), Plan()):
        assert paper_speeds(plan, sizes) == {}


def test_forecast_at_the_papers_sizes():
    # The FLOPs of docs/tpu.md at S = 128: the paper's speed must be below the peak.
    found = ScaleForecast.of(step("v2:2x2", 8, 5.72e12), 42, 1.0)
    assert found.steps_per_second > PAPER[128].steps_per_second[0]
