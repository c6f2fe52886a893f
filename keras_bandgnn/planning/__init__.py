"""Choice of the cheapest plan from measured constants (experimental)."""

from keras_bandgnn.plugins import lazy_names

__all__ = ["Hardware", "PlanChoice", "calibrate", "choose_plan"]

_FILES = {name: "planning.cost" for name in ("Hardware", "calibrate")}
_FILES |= {name: "planning.plan_choice" for name in ("PlanChoice", "choose_plan")}
__getattr__, __dir__ = lazy_names(__name__, _FILES)
