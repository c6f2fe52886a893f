"""Choice of the cheapest plan: cost model, calibration, estimates."""

from keras_bandgnn.plugins import lazy_names

_HOMES = {
    "Hardware": "planning.cost",
    "PlanChoice": "planning.plan_choice",
    "calibrate": "planning.calibration",
    "choose_plan": "planning.plan_choice",
}

__all__ = ["Hardware", "PlanChoice", "calibrate", "choose_plan"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
