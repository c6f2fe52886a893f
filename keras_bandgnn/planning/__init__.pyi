# Written by docs/names.py, for type checkers and editors.
from keras_bandgnn.planning.cost import Hardware as Hardware
from keras_bandgnn.planning.plan_choice import PlanChoice as PlanChoice
from keras_bandgnn.planning.cost import calibrate as calibrate
from keras_bandgnn.planning.plan_choice import choose_plan as choose_plan
