"""The subject of a paper, from its words and citations: a graph attention network.

    python examples/keras_io/gat_nodes.py cora
    python examples/keras_io/gat_nodes.py --short

The task, the data and the split of keras.io's "Graph attention network (GAT) for node
classification". The folder has `cora.content` and `cora.cites`, tables separated by
tabs. Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import keras
import numpy as np
import pandas as pd
from tables import arguments, papers

import keras_bandgnn as kb

folder, epochs = arguments(str(__doc__), papers, epochs=100)
content = pd.read_csv(folder / "cora.content", sep="\t", header=None, index_col=0)
cites = pd.read_csv(folder / "cora.cites", sep="\t", header=None).to_numpy()
subjects, label = np.unique(content.pop(content.columns[-1]), return_inverse=True)
ends = content.index.get_indexer(cites.ravel()).reshape(-1, 2)
keras.utils.set_random_seed(2)
place = np.random.permutation(len(content)).argsort() / (len(content) // 2)
node = {"word": content.to_numpy("float32"), "test": place >= 1}
node |= {"train": place < 0.9, "valid": (place >= 0.9) & (place < 1)}
senders, receivers = np.concatenate([ends, ends[:, ::-1]]).T  # citations both ways
graph = kb.Graph(
    len(content), senders, receivers, node=node, label=label, label_level="node"
)
inputs = {"word": {"features": content.shape[1]}}
backbone = kb.models.GATBackbone(inputs, hidden_dim=64, num_heads=8, dropout=0.5)
task = kb.models.NodeClassifier(backbone, len(subjects), class_names=list(subjects))
task.compile(keras.optimizers.Adam(0.005))
stop = keras.callbacks.EarlyStopping(
    "val_accuracy", patience=20, mode="max", restore_best_weights=True
)
task.fit(graph, mask="train", validation_mask="valid", epochs=epochs, callbacks=[stop])
print(task.evaluate(graph, mask="test", return_dict=True))
