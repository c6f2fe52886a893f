"""What do citations add to the words of a paper? A GNN, and the same without edges.

    python examples/keras_io/citations.py cora
    python examples/keras_io/citations.py --short

The task and the data of keras.io's "Node Classification with Graph Neural Networks": a
random half of the papers is for training, 15 % of it for validation. The folder has
`cora.content` and `cora.cites`, tables separated by tabs. Choose the backend with
KERAS_BACKEND=jax, torch or tensorflow.
"""

import keras
import numpy as np
import pandas as pd
from tables import arguments, papers

import keras_bandgnn as kb

folder, epochs = arguments(str(__doc__), papers, epochs=300)
content = pd.read_csv(folder / "cora.content", sep="\t", header=None, index_col=0)
cites = pd.read_csv(folder / "cora.cites", sep="\t", header=None).to_numpy()
subjects, label = np.unique(content.pop(content.columns[-1]), return_inverse=True)
ends = content.index.get_indexer(cites.ravel()).reshape(-1, 2)
keras.utils.set_random_seed(0)
train, valid, test = np.random.multinomial(1, [0.425, 0.075, 0.5], len(content)).T
node = {"word": content.to_numpy("float32")}
node |= {"train": train, "valid": valid, "test": test}
both = np.concatenate([ends, ends[:, ::-1]])  # citations both ways

for name, edges in {"words": both[:0], "words and citations": both}.items():
    senders, receivers = edges.T
    graph = kb.Graph(
        len(content), senders, receivers, node=node, label=label, label_level="node"
    )
    inputs = {"word": {"features": content.shape[1]}}
    backbone = kb.models.GCNBackbone(inputs, hidden_dim=64, dropout=0.5)
    task = kb.models.NodeClassifier(backbone, len(subjects))
    task.compile(keras.optimizers.Adam(0.01))
    stop = keras.callbacks.EarlyStopping(
        "val_accuracy", patience=50, mode="max", restore_best_weights=True
    )
    task.fit(
        graph,
        mask="train",
        validation_mask="valid",
        epochs=epochs,
        callbacks=[stop],
        verbose=0,
    )
    print(name, task.evaluate(graph, mask="test", return_dict=True, verbose=0))
