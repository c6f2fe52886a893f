"""Choice of the cheapest plan: cost model, calibration, estimates."""

from keras_bandgnn.planning.calibration import calibrate as calibrate
from keras_bandgnn.planning.cost import Hardware as Hardware
from keras_bandgnn.planning.plan_choice import PlanChoice as PlanChoice
from keras_bandgnn.planning.plan_choice import choose_plan as choose_plan

__all__ = ["Hardware", "PlanChoice", "calibrate", "choose_plan"]
