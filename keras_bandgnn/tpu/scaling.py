"""`ScaleForecast`: predicted speed of a compiled training step on many TPU cores.

Nothing here is measured. The amount of work comes from the compiler, see
`check_training_step`; time is work divided by published or guessed rates.
"""

import dataclasses
import math
import re
from collections.abc import Mapping

from keras_bandgnn.checks import refuse
from keras_bandgnn.primitives.banded import Banded
from keras_bandgnn.primitives.plan import Plan
from keras_bandgnn.tpu.aot_compile import Sizes, StepReport
from keras_bandgnn.tpu.hlo import Collective

# Numbers of cores in the rows below.
CORES = (8, 32, 128, 512)


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """Speeds of Balog et al. 2019 on TPU v2, with a supergraph per core.

    Args:
        nodes: Nodes of a supergraph (Table 1).
        graphs: Average number of its graphs.
        steps_per_second: Gradient updates on `CORES` cores (Table 2).
        graphs_per_second: Training graphs (Figure 2, left).
    """

    nodes: int
    graphs: int
    steps_per_second: tuple[float, ...]
    graphs_per_second: tuple[int, ...]


# By block size.
PAPER = {
    128: PaperRow(70_272, 42, (1.89, 1.87, 1.82, 1.12), (630, 2_500, 9_700, 24_000)),
    256: PaperRow(65_536, 39, (1.46, 1.44, 1.40, 1.07), (450, 1_800, 6_900, 21_000)),
    512: PaperRow(49_125, 25, (1.30, 1.27, 1.20, 0.88), (260, 1_000, 3_900, 11_000)),
    1024: PaperRow(28_672, 10, (1.34, 1.29, 1.26, 0.90), (100, 400, 1_600, 4_500)),
}


def paper_speeds(plan: Plan, sizes: Sizes) -> dict[int, tuple[float, int]]:
    """Return cores -> the paper's speeds, if supergraphs and plan are the paper's."""
    first = plan.primitives[0]
    row = PAPER.get(first.block_size) if isinstance(first, Banded) else None
    if (
        plan.rest
        or row is None
        or (row.nodes, row.graphs) != (sizes.nodes, sizes.graphs)
    ):
        return {}
    speeds = zip(row.steps_per_second, row.graphs_per_second, strict=True)
    return dict(zip(CORES, speeds, strict=True))


@dataclasses.dataclass(frozen=True)
class TPUGeneration:
    """Published figures of a generation. A core is a device of the compiler.

    Args:
        name: Name as in topologies, such as "v5e".
        flops: Peak FLOP/s of a core in bfloat16.
        link: Bytes/s of a link to a neighbouring chip, in one direction.
        cores: Cores per chip.
        axes: Number of axes of the torus.
        chips: Chips of the largest slice.

    Example:
    >>> TPUGeneration.of("v2:16x16").topology(32)
    'v2:4x4'
    """

    name: str
    flops: float
    link: float
    cores: int
    axes: int
    chips: int

    @classmethod
    def of(cls, topology: str) -> "TPUGeneration":
        """Return the generation of a topology such as "v5e:4x8", or "v5e"."""
        name = topology.split(":")[0]
        if name not in _GENERATIONS:
            names = ", ".join(_GENERATIONS)
            refuse("topology", f"one of {names}, such as 'v5e:16x16'", topology)
        return _GENERATIONS[name]

    def forms(self, cores: int) -> bool:
        """Return whether `topology` supports slices with this number of cores."""
        chips = cores // self.cores
        power = chips >= 4 and chips & (chips - 1) == 0
        return cores % self.cores == 0 and power and chips <= self.chips

    def topology(self, cores: int) -> str:
        """Return the slice with `cores` cores whose axes are most nearly equal."""
        if not self.forms(cores):
            limits = f"{4 * self.cores} to {self.cores * self.chips} cores"
            refuse("cores", f"a power of two of {limits} for {self.name}", cores)
        power = (cores // self.cores).bit_length() - 1
        parts = [(power + axis) // self.axes for axis in range(self.axes)]
        # Axes of one chip come last: v4:2x2x1.
        parts.sort(key=lambda part: (part == 0, part))
        return f"{self.name}:{'x'.join(str(2**part) for part in parts)}"

    def cores_of(self, topology: str) -> int:
        """Return the number of cores of a topology such as "v5e:4x8"."""
        shape = re.fullmatch(r"\w+:(\d+(?:x\d+)*)", topology)
        if not shape:
            example = self.topology(4 * self.cores)
            refuse("topology", f"a slice such as {example!r}", topology)
        return self.cores * math.prod(int(n) for n in shape.group(1).split("x"))


# v2 and the peak of v3: Jouppi et al., "A Domain-Specific Supercomputer for Training
# Deep Neural Networks", Communications of the ACM 63(7), 2020: 46 and 123 TFLOP/s per
# chip, links of 496 Gbit/s. v4 and the links of v3: Jouppi et al., "TPU v4", ISCA 2023:
# 275 TFLOP/s per chip, links of 50 and 70 GB/s. v5e, v5p and v6e: the pages of
# docs.cloud.google.com/tpu/docs: 197, 459 and 918 TFLOP/s per chip; 400, 1200 and 800
# GB/s in both directions of 4, 6 and 4 links together.
_GENERATIONS = {
    generation.name: generation
    for generation in (
        TPUGeneration("v2", 46e12 / 2, 62e9, 2, 2, 256),
        TPUGeneration("v3", 123e12 / 2, 70e9, 2, 2, 1024),
        TPUGeneration("v4", 275e12 / 2, 50e9, 2, 3, 4096),
        TPUGeneration("v5e", 197e12, 50e9, 1, 2, 256),
        TPUGeneration("v5p", 459e12, 100e9, 1, 3, 6144),
        TPUGeneration("v6e", 918e12, 100e9, 1, 2, 256),
    )
}


@dataclasses.dataclass(frozen=True)
class ScaleForecast:
    """Predicted time of a training step.

    Args:
        topology: Name of the slice.
        computing_seconds: Compute time of a core.
        sending_seconds: Bytes of compiled collectives, divided by a link's bandwidth.
        graphs: Graphs per step over all cores.
    """

    topology: str
    computing_seconds: float
    sending_seconds: float
    graphs: int

    @property
    def steps_per_second(self) -> float:
        """Steps per second if communication follows compute without overlap."""
        return 1 / (self.computing_seconds + self.sending_seconds)

    @property
    def graphs_per_second(self) -> float:
        """Training graphs per second over all cores."""
        return self.graphs * self.steps_per_second

    def to_dict(self) -> dict[str, object]:
        """Return the figures for a file."""
        names = ("steps_per_second", "graphs_per_second")
        return dataclasses.asdict(self) | {name: getattr(self, name) for name in names}

    @classmethod
    def of(cls, step: StepReport, graphs: int, share: float) -> "ScaleForecast | None":
        """Return the forecast of a compiled step; None if it did not compile.

        Args:
            step: The compiler's report.
            graphs: Graphs per supergraph; each core has one supergraph.
            share: Share of the peak that matrix products reach.
        """
        if step.costs is None:
            return None
        generation = TPUGeneration.of(step.topology)
        seconds = step.costs.flops / (share * generation.flops)
        sending = sending_seconds(step.costs.collectives, step.cores, generation.link)
        return cls(step.topology, seconds, sending, graphs * step.cores)


def sending_seconds(
    collectives: Mapping[str, Collective], cores: int, link: float
) -> float:
    """Return the time of collectives on a ring of all cores, in one direction.

    An all-reduce of b bytes sends 2 (n-1)/n b over each link. A torus has links along
    several axes, so this is an upper bound of the transfer time. Latency is ignored.

    Args:
        collectives: Maps kinds to counts and result bytes per core and step.
        cores: n.
        link: Bytes/s of a link in one direction.

    Example:
    >>> sending_seconds({"all-reduce": Collective(1, 1000)}, 4, 1500.0)
    1.0
    """
    factors = {
        "all-reduce": 2 * (cores - 1) / cores,
        # The result is a core's share, not the whole array.
        "reduce-scatter": cores - 1,
        "collective-permute": 1,
        "collective-broadcast": 1,
    }
    total = sum(
        factors.get(kind, (cores - 1) / cores) * collective.bytes
        for kind, collective in collectives.items()
    )
    return total / link
