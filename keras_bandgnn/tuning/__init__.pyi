# Written by docs/names.py, for type checkers and editors.
from keras_bandgnn.tuning.dataset_spec import DatasetSpec as DatasetSpec
from keras_bandgnn.tuning.ggnn import GGNNHyperModel as GGNNHyperModel
from keras_bandgnn.tuning.hypermodel import GraphHyperModel as GraphHyperModel
from keras_bandgnn.tuning.graph_regressor import GraphRegressorHyperModel as GraphRegressorHyperModel
from keras_bandgnn.tuning.graph_transformer import GraphTransformerHyperModel as GraphTransformerHyperModel
from keras_bandgnn.tuning.search import make_tuner as make_tuner
from keras_bandgnn.tuning.search import trial_table as trial_table
