# Written by docs/names.py, for type checkers and editors.
from keras_bandgnn.explain.explanation import Explanation as Explanation
from keras_bandgnn.explain.measures import Fidelity as Fidelity
from keras_bandgnn.explain.attention_flow import attention as attention
from keras_bandgnn.explain.measures import fidelity as fidelity
from keras_bandgnn.explain.masks import gnn_explainer as gnn_explainer
from keras_bandgnn.explain.measures import ground_truth_auc as ground_truth_auc
from keras_bandgnn.explain.gradients import integrated_gradients as integrated_gradients
from keras_bandgnn.explain.measures import randomization_check as randomization_check
from keras_bandgnn.explain.gradients import saliency as saliency
from keras_bandgnn.explain.measures import sparsity as sparsity
