"""Does a molecule pass the blood-brain barrier? A message-passing network on SMILES.

    python examples/keras_io/mpnn_molecules.py BBBP.csv
    python examples/keras_io/mpnn_molecules.py --short

The task, the data and the split of keras.io's "Message-passing neural network (MPNN)
for molecular property prediction". BBBP.csv is MoleculeNet's table with the columns
`smiles` and `p_np`. Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import keras
import numpy as np
import pandas as pd
from tables import arguments, molecules

import keras_bandgnn as kb

path, epochs = arguments(str(__doc__), molecules, epochs=40)
table = pd.read_csv(path)
keras.utils.set_random_seed(42)
np.random.permutation(len(table))  # keras.io draws twice and takes the second
order = np.random.permutation(len(table))
ends = [int(0.8 * len(table)), int(0.99 * len(table))]
train, valid, test = (table.iloc[rows] for rows in np.split(order, ends))

encoder = kb.preprocessing.SmilesEncoder(on_error="skip")
backbone = kb.models.GGNNBackbone(
    encoder.inputs(), hidden_dim=64, num_steps=4, num_edge_types=encoder.num_edge_types
)
preprocessor = kb.preprocessing.GraphPreprocessor(
    [encoder], kb.preprocessing.DynamicBatcher(64)
)
task = kb.models.GraphClassifier(backbone, 2, preprocessor, readout="attention")
task.compile(keras.optimizers.Adam(1e-3), metrics=["AUC"])
task.fit(
    *(train["smiles"], train["p_np"]),
    validation_data=(valid["smiles"], valid["p_np"]),
    class_weight={0: 2.0, 1: 0.5},
    epochs=epochs,
    verbose=2,
)
print(task.predict_proba(test["smiles"])[:5], test["p_np"][:5].tolist())
