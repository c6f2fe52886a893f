"""Search spaces: Appendix E of Balog et al. 2019, batchers and plans."""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_bandgnn.preprocessing.batching.batcher import Batcher
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.batching.static_batcher import StaticBatcher
from keras_bandgnn.preprocessing.ordering.orderings import ORDERINGS
from keras_bandgnn.primitives.banded import Banded
from keras_bandgnn.primitives.block_sparse import BlockSparse
from keras_bandgnn.primitives.plan import Plan
from keras_bandgnn.training.learning_rates import LinearDecay

# Appendix E, the runs on a GPU. The text prints 10^-1 for the first weight decay, in a
# list that continues with 10^-6: presumably a misprint of 10^-7.
APPENDIX_E = {
    "dropout_keep_prob": [0.6, 0.7, 0.8, 0.9],
    "label_smoothing": [0.0, 0.005, 0.05],
    "weight_decay": [1e-7, 1e-6, 1e-5, 1e-4, 1e-3],
    "learning_rate": [0.03, 0.1, 0.3, 1.0, 3.0],
    "decay_steps": [100_000, 300_000],
    "end_factor": [0.1, 1.0],
    "momentum": [0.3, 0.5, 0.7, 0.9, 0.95, 0.97],
    "nesterov": [False, True],
    "gradient_clip": [0.003, 0.01, 0.1, 0.3],
}
# Appendix E, the runs with large batches on TPUs.
LARGE_BATCH = {
    **APPENDIX_E,
    "learning_rate": [1.0, 3.0, 7.0, 10.0, 30.0],
    "decay_steps": [500, 1000, 5000, 10_000],
}
# Not in the paper: for short searches on small data.
ADAM = {
    "dropout_keep_prob": [0.7, 0.8, 0.9, 1.0],
    "label_smoothing": [0.0, 0.05],
    "weight_decay": [0.0, 1e-6, 1e-5, 1e-4],
}
SPACES = {"paper": APPENDIX_E, "paper-large-batch": LARGE_BATCH, "adam": ADAM}

BATCHERS = ("dynamic", "best_fit", "constant", "64", "power_of_two")
BATCH_SIZES = (8, 16, 32, 64)
PLANS = ("auto", "segment", "grouped", "banded", "block_sparse")


def choice(hp, name: str, values) -> Any:
    """Declare a hyperparameter if there are several values; return a single value."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        return values
    values = list(values)
    if len(values) == 1:
        return values[0]
    if values == [False, True]:
        return hp.Boolean(name)
    return hp.Choice(name, values)


def orderings() -> list[str]:
    """Return the orderings available in this installation."""
    metis = importlib.util.find_spec("pymetis") is not None
    return [name for name in ORDERINGS if name != "metis" or metis]


def draw_sgd(hp, space: str) -> dict[str, Any]:
    """Declare one of `SPACES`; return its values by name."""
    values = {name: choice(hp, name, list(v)) for name, v in SPACES[space].items()}
    if space == "adam":
        values["learning_rate"] = hp.Float(
            "learning_rate", 3e-4, 3e-2, sampling="log", default=3e-3
        )
    return values


def make_sgd(values: Mapping) -> keras.optimizers.Optimizer:
    """Return the optimizer for the values of `draw_sgd`."""
    if "momentum" not in values:
        return keras.optimizers.Adam(values["learning_rate"], global_clipnorm=1.0)
    rate = LinearDecay(
        values["learning_rate"], int(values["decay_steps"]), values["end_factor"]
    )
    return keras.optimizers.SGD(
        rate,
        momentum=values["momentum"],
        nesterov=values["nesterov"],
        global_clipnorm=values["gradient_clip"],
    )


def add_l2(task: keras.Model, weight_decay: float) -> None:
    """Add weight_decay * sum of squares to the loss, for kernels and embeddings."""
    for weight in task.trainable_variables if weight_decay else ():
        if weight.path.endswith(("kernel", "embeddings")):
            weight.regularizer = keras.regularizers.L2(weight_decay)


def draw_batcher(hp, batch_size, system: bool) -> dict[str, Any]:
    """Declare the batcher and its batch size, or return the fixed ones."""
    kind = hp.Choice("batcher", list(BATCHERS)) if system else "best_fit"
    sizes = list(BATCH_SIZES) if system and batch_size is None else batch_size or 32
    return {"batcher": kind, "batch_size": choice(hp, "batch_size", sizes)}


def make_batcher(values: Mapping) -> Batcher:
    """Return the batcher for the values of `draw_batcher`."""
    kind, size = values["batcher"], int(values["batch_size"])
    if kind in ("dynamic", "best_fit"):
        packing = "sequential" if kind == "dynamic" else "best_fit"
        return DynamicBatcher(size, packing=packing)
    return StaticBatcher(size, kind)


def draw_plan(hp, schedules: bool) -> dict[str, Any]:
    """Declare the plan, and the options of each plan conditionally.

    Args:
        hp: The hyperparameters.
        schedules: Whether a receptive-field schedule is exact for the task.
    """
    values = {"plan": hp.Choice("plan", list(PLANS))}
    if schedules:
        with hp.conditional_scope("plan", ["segment", "grouped"]):
            values["schedule"] = hp.Boolean("schedule")
    with hp.conditional_scope("plan", ["banded", "block_sparse"]):
        values["ordering"] = hp.Choice("ordering", orderings())
    with hp.conditional_scope("plan", ["banded"]):
        values["block_size"] = hp.Choice("block_size", [32, 64, 128, 256])
        values["rest"] = hp.Choice("rest", ["segment", "grouped", "drop"])
    with hp.conditional_scope("plan", ["block_sparse"]):
        values["tile_size"] = hp.Choice("tile_size", [8, 16, 32])
        values["tile_budget"] = hp.Choice("tile_budget", [1, 2, 4, 8])
    return values


def make_plan(values: Mapping, schedule=None) -> "Plan | str":
    """Return the plan for the values of `draw_plan`.

    Args:
        values: Values by name.
        schedule: The `ReceptiveField` that is exact for the task, or None.
    """
    kind = values.get("plan", "auto")
    if kind == "auto":
        return "auto"
    if kind == "banded":
        return Plan(Banded(int(values["block_size"])), rest=values["rest"])
    if kind == "block_sparse":
        tile, budget = int(values["tile_size"]), int(values["tile_budget"])
        return Plan(BlockSparse(tile, budget), rest="segment")
    return Plan(rest=kind, schedule=schedule if values.get("schedule") else None)
