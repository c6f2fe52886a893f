"""`ScaleForecast`: predicted speed of a compiled training step on many cores.

Nothing here is measured. The amount of work comes from the compiler, see
`check_training_step`; time is work divided by published, guessed or calibrated rates.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.models.ggnn.ggnn_backbone import GGNNBackbone
from keras_bandgnn.models.node_selector import NodeSelector
from keras_bandgnn.planning.cost import Hardware
from keras_bandgnn.planning.estimate import Estimate, sampled
from keras_bandgnn.primitives.plan import Plan
from keras_bandgnn.tpu.aot_compile import Sizes, StepReport, synthetic_graphs
from keras_bandgnn.tpu.generations import TPUGeneration
from keras_bandgnn.tpu.hlo import Collective

# Speeds that Balog et al. 2019, "Fast Training of Sparse Graph Neural Networks on Dense
# Hardware", measured on TPU v2 with a supergraph per core, by block size.

# Numbers of cores in each row below.
CORES = (8, 32, 128, 512)
# Table 2: global steps (gradient updates) per second.
STEPS_PER_SECOND = {
    1024: (1.34, 1.29, 1.26, 0.90),
    512: (1.30, 1.27, 1.20, 0.88),
    256: (1.46, 1.44, 1.40, 1.07),
    128: (1.89, 1.87, 1.82, 1.12),
}
# Figure 2, left: training graphs per second.
GRAPHS_PER_SECOND = {
    1024: (100, 400, 1_600, 4_500),
    512: (260, 1_000, 3_900, 11_000),
    256: (450, 1_800, 6_900, 21_000),
    128: (630, 2_500, 9_700, 24_000),
}
# Table 1: nodes and average graphs of a supergraph.
SUPERGRAPHS = {1024: (28_672, 10), 512: (49_125, 25), 256: (65_536, 39)}
SUPERGRAPHS |= {128: (70_272, 42)}


@dataclasses.dataclass(frozen=True)
class ScaleForecast:
    """Predicted time of a training step.

    Args:
        product_seconds: Compiled FLOPs of a core, divided by a share of its peak.
        model_seconds: The cost model's estimate of the same step, or None.
        sending_seconds: Bytes of compiled collectives, divided by a link's bandwidth.
        calibrated: Whether the constants of the cost model were measured. If so, its
            estimate is used, otherwise the longer of both.
        graphs: Graphs per step over all cores.
    """

    product_seconds: float
    model_seconds: float | None
    sending_seconds: float
    calibrated: bool
    graphs: int

    @property
    def computing_seconds(self) -> float:
        """Compute time of a core."""
        if self.model_seconds is None:
            return self.product_seconds
        if self.calibrated:
            return self.model_seconds
        return max(self.product_seconds, self.model_seconds)

    @property
    def steps_per_second(self) -> float:
        """Steps per second if communication follows compute without overlap."""
        return 1 / (self.computing_seconds + self.sending_seconds)

    @property
    def graphs_per_second(self) -> float:
        """Training graphs per second over all cores."""
        return self.graphs * self.steps_per_second

    @classmethod
    def of(
        cls,
        step: StepReport,
        graphs: int,
        share: float,
        model_seconds: float | None = None,
        calibrated: bool = False,
    ) -> "ScaleForecast | None":
        """Return the forecast of a compiled step; None if it did not compile.

        Args:
            step: The compiler's report.
            graphs: Graphs per supergraph; each core has one supergraph.
            share: Share of the peak that matrix products reach.
            model_seconds: See `step_seconds`.
            calibrated: Whether the constants of the cost model were measured.
        """
        if step.costs is None:
            return None
        generation = TPUGeneration.of(step.topology)
        return cls(
            step.costs.flops / (share * generation.flops),
            model_seconds,
            sending_seconds(step.costs.collectives, step.cores, generation.link),
            calibrated,
            graphs * step.cores,
        )


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


def step_seconds(
    task: NodeSelector, plan: Plan, sizes: Sizes, hardware: Hardware
) -> float | None:
    """Return the cost model's time of a core's training step, without collectives.

    Counts T times the messages and the two products of the GRU, not the encoder, the
    readout and the optimizer. Gradient checkpointing adds a third.

    Args:
        task: The task.
        plan: The plan.
        sizes: Capacities of a supergraph, filled with synthetic graphs.
        hardware: Constants of a core.

    Returns:
        Seconds, or None for backbones other than `GGNNBackbone` and for plans with a
        primitive that covers almost no edges.
    """
    backbone = task.backbone
    if not isinstance(backbone, GGNNBackbone):
        return None
    width = backbone.hidden_dim
    graphs = FlatGraphs.from_graphs(synthetic_graphs(task, sizes))
    shape = (backbone.num_edge_types, width, width, sizes.nodes)
    row = Estimate(sampled([graphs]), *shape, hardware).row(plan, np.inf)
    if row is None:
        return None
    update = 2 * hardware.matmul_seconds(sizes.nodes, width, 3 * width)
    seconds = backbone.num_steps * (row["ms"] / 1e3 + update)
    return seconds * (4 / 3 if backbone.remat else 1)
