"""A backbone of your own: GraphSAGE with the mean over the neighbours.

python examples/own_backbone.py [--short]
"""

import sys
import tempfile

import keras
import numpy as np

import keras_bandgnn as kb


@keras.saving.register_keras_serializable(package="own_backbone")
class SAGEBackbone(kb.models.Backbone):
    """h' = relu(U h + mean of W h over the neighbours), Hamilton et al. 2017."""

    num_edge_types = 1

    def __init__(self, inputs, hidden_dim=16, **kwargs):
        super().__init__(**kwargs)
        self.hidden_dim, dtype = hidden_dim, self.dtype_policy
        self.encoder = kb.layers.NodeEncoder(hidden_dim, inputs, dtype=dtype)
        self.dense = keras.layers.Dense(hidden_dim, dtype=dtype)
        options = {"reduce": "mean", "dtype": dtype}
        self.mean = kb.layers.BandedMessagePassing(hidden_dim, **options)
        self.build()

    def build(self, input_shape=None):
        self.encoder.build()
        self.dense.build((None, None, self.hidden_dim))
        self.mean.build((None, None, self.hidden_dim))
        self.built = True

    def call(self, batch, training=False):
        states = self.encoder(batch)
        return keras.ops.relu(self.dense(states) + self.mean(states, batch))

    def get_config(self):
        config = {"inputs": self.encoder.inputs, "hidden_dim": self.hidden_dim}
        return {**super().get_config(), **config}


rng, graphs = np.random.default_rng(0), []
for n in rng.integers(5, 30, 100 if "--short" in sys.argv else 2000):
    red, (senders, receivers) = rng.integers(0, 2, n), rng.integers(0, n, (2, 3 * n))
    label = int(red[senders].mean() > 0.5)
    graphs.append(kb.Graph(n, senders, receivers, node={"red": red}, label=label))
task = kb.models.GraphClassifier(SAGEBackbone({"red": 2}), 2)
task.compile(keras.optimizers.Adam(1e-2))
task.fit(graphs, epochs=10)
with tempfile.TemporaryDirectory() as folder:
    task.save_to_preset(f"{folder}/sage")
    restored = kb.models.Task.from_preset(f"{folder}/sage")

# Neither the plan nor the batch changes a prediction.
plan = kb.plans.Plan(kb.plans.Banded(8))
restored.preprocessor = kb.preprocessing.GraphPreprocessor(plan=plan)
np.testing.assert_allclose(task.predict(graphs), restored.predict(graphs), atol=1e-4)
