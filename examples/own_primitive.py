"""A primitive of your own: self-loops, which need no gather.

An edge from a node to itself reads the row that it writes. This primitive multiplies
the states with the number of self-loops per type and leaves all other edges to the rest
of the plan.

    python examples/own_primitive.py [--short]
"""

import sys
import tempfile

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn.plans import Plan, Primitive


@keras.saving.register_keras_serializable(package="own_primitive")
class SelfLoops(Primitive):
    """Edges of nodes to themselves, as a product with a diagonal."""

    def cover(self, edges):
        return edges.sender == edges.receiver

    def pack(self, edges, budget):
        return edges.padded(budget[self.key()], self.key(), mask=True)

    def prepare(self, arrays, num_nodes, num_types, dtype):
        loops = self.degree(arrays, num_nodes, num_types)  # [G, N, P]
        return {**arrays, "loops": keras.ops.cast(loops, dtype)}

    def typed_sum(self, prepared, x, num_types):
        groups, num_nodes, width = keras.ops.shape(x)
        sums = keras.ops.einsum("gnp,gnh->gnph", prepared["loops"], x)
        return keras.ops.reshape(sums, (groups, num_nodes, num_types * width))


rng, graphs = np.random.default_rng(0), []
for size in rng.integers(4, 20, 60 if "--short" in sys.argv else 2000):
    ends = np.concatenate([rng.integers(0, size, (2, 2 * size)), [range(size)] * 2], 1)
    kinds = rng.integers(0, 3, size)
    graph = kb.Graph(size, ends[0], ends[1], node={"kind": kinds}, label=kinds[0] % 2)
    graphs.append(graph)

preprocessor = kb.preprocessing.GraphPreprocessor(plan=Plan(SelfLoops()))
backbone = kb.models.GGNNBackbone({"kind": 3}, 16, num_steps=2)
task = kb.models.GraphClassifier(backbone, 2, preprocessor)
task.fit(graphs, epochs=1, verbose=0)
(x, *_) = preprocessor.loader(graphs)[0]
for key, arrays in x["plan"].items():
    real = arrays.get("mask", arrays["receiver"] < x["node"]["mask"].shape[1])
    print(f"{key}: {int(real.sum())} edges in a batch")
with tempfile.TemporaryDirectory() as folder:
    task.save_to_preset(f"{folder}/preset")
    again = kb.models.Task.from_preset(f"{folder}/preset")
print(f"loaded: {again.preprocessor.plan}")
again.preprocessor = kb.preprocessing.GraphPreprocessor(plan=Plan())
error = np.abs(np.array(task.predict(graphs)) - np.array(again.predict(graphs))).max()
print(f"largest difference from Plan(): {error:.1e}")
