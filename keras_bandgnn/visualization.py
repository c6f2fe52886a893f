"""`keras_bandgnn.plotting` under the name that modules of figures have in Keras."""

import sys

from keras_bandgnn import plotting

sys.modules[__name__] = plotting
