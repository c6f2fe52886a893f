"""The batching algorithms of Speckhard et al. 2025, and what one will cost."""

import dataclasses

from keras_bandgnn.checks import one_of
from keras_bandgnn.preprocessing.batching.batcher import Batcher
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.batching.static_batcher import StaticBatcher

ALGORITHMS = ("dynamic", "constant", "64", "power_of_two")
"""The algorithms of Speckhard et al. 2025."""


@dataclasses.dataclass(frozen=True)
class AlgorithmForecast:
    """What training under one algorithm will cost.

    Attributes:
        algorithm: `"dynamic"`, `"constant"`, `"64"` or `"power_of_two"`.
        shapes: Distinct padded shapes over the planned steps.
        exact: Whether `shapes` is exact, rather than a lower bound.
        compilations: Programs that the backend compiles for them.
        node_waste: Share of the padded nodes that is padding.
        edge_waste: Share of the padded edges that is padding.
        graphs_per_step: Real graphs per step.
        batching_ms: Milliseconds of composing and assembling a batch, in another
            thread.
        update_ms: Milliseconds of the device's work in a step, without compilations.
        steady_ms: Milliseconds of a step without compilations: the update, and what
            batching adds to it.
        compile_s: Seconds of one compilation.
        step_ms: Milliseconds per planned step, compilations included.
        graph_us: Microseconds per real graph, compilations included.
    """

    algorithm: str
    shapes: int
    exact: bool
    compilations: int
    node_waste: float
    edge_waste: float
    graphs_per_step: float
    batching_ms: float
    update_ms: float
    steady_ms: float
    compile_s: float
    step_ms: float
    graph_us: float


def make_batcher(algorithm: str, batch_size: int, packing: str) -> Batcher:
    """Return the batcher of an algorithm.

    Args:
        algorithm: One of `ALGORITHMS`.
        batch_size: Graphs per supergraph, the padding graph included.
        packing: Of the dynamic one, see `DynamicBatcher`.
    """
    one_of("algorithm", algorithm, ALGORITHMS)
    if algorithm == "dynamic":
        return DynamicBatcher(batch_size, packing=packing)
    return StaticBatcher(batch_size, padding=algorithm)
