"""Which plan will be cheapest: cost model, calibration, estimate."""

from keras_bandgnn.planning.calibrate import calibrate as calibrate
from keras_bandgnn.planning.choose_plan import PlanChoice as PlanChoice
from keras_bandgnn.planning.choose_plan import choose_plan as choose_plan
from keras_bandgnn.planning.cost import Hardware as Hardware

__all__ = ["Hardware", "PlanChoice", "calibrate", "choose_plan"]
