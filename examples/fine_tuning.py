"""Fine-tuning on new molecular targets with few and missing labels.

    python examples/fine_tuning.py
    python examples/fine_tuning.py --data tox21 --path PATH
    python examples/fine_tuning.py --short

A backbone is pretrained on some targets. Three tasks then learn the others from few
graphs: a new head on the frozen backbone, the same with LoRA, and all weights from
scratch. Without --data the graphs are synthetic: rings and paths of four elements,
whose targets are counts of substructures; a third of the labels are missing. PATH is a
file or folder of the data set. Choose the backend with KERAS_BACKEND=jax, torch or
tensorflow.
"""

import argparse
import tempfile

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import models, training
from keras_bandgnn.data import FlatGraphs


def made(rng: np.random.Generator, count: int) -> FlatGraphs:
    """Rings and paths with six yes-or-no targets, a third of them missing."""
    graphs, labels = [], []
    for _ in range(count):
        n, ring = int(rng.integers(4, 12)), int(rng.integers(2))
        a = np.arange(n - 1 + ring)
        b = (a + 1) % n
        atom = rng.integers(0, 4, n)
        bonds = (np.append(a, b), np.append(b, a))
        graphs.append(kb.Graph(n, *bonds, node={"atom": atom}))
        pairs = (atom[a] == atom[b]).sum()
        labels.append(
            [
                (atom == 0).sum() > n / 4,
                (atom == 1).sum() > (atom == 2).sum(),
                pairs > n / 4,
                ring,
                (atom == 3).sum() > n / 4,
                ((atom[a] == 0) & (atom[b] == 1)).any(),
            ]
        )
    labels = np.array(labels, "float32")
    labels[rng.uniform(size=labels.shape) < 1 / 3] = np.nan
    return with_labels(FlatGraphs.from_graphs(graphs), labels)


def one_by_one(flat: FlatGraphs) -> FlatGraphs:
    """The graphs with a node feature of ids from 0 for each column of ids."""
    columns = {}
    for name, values in flat.columns().items():
        if name.startswith("node/") and values.ndim == 2 and values.dtype.kind == "i":
            values = values - values.min(axis=0)
            columns |= {f"{name}_{i}": column for i, column in enumerate(values.T)}
        else:
            columns[name] = values
    return FlatGraphs.from_columns(columns, flat.info)


def with_labels(flat: FlatGraphs, labels: np.ndarray) -> FlatGraphs:
    """The graphs with other labels."""
    columns = {**flat.columns(), "label/graph": labels.astype("float32")}
    return FlatGraphs.from_columns(columns, flat.info)


def score(task: models.Task, graphs: FlatGraphs) -> float:
    """Mean over the targets of the area under the ROC curve."""
    return task.evaluate(graphs, verbose=0, return_dict=True)["roc_auc"]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--data", help="such as tox21")
    parser.add_argument("--path", help="file or folder of the data set")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    epochs = 1 if options.short else options.epochs
    if options.data:
        graphs = kb.data.load(options.data, path=options.path)
        graphs = one_by_one(FlatGraphs.from_graphs(graphs))
    else:
        graphs = made(rng, 100 if options.short else 2000)
    order = rng.permutation(len(graphs))
    graphs, labels = graphs.take(order), graphs.label[order]
    first = labels.shape[1] * 7 // 12
    missing = np.isnan(labels).mean()
    print(f"{len(graphs)} graphs, {labels.shape[1]} targets, {missing:.0%} missing")
    num_known = int(0.8 * len(graphs))
    num_labelled = max(40, num_known // 20)
    old = with_labels(graphs, labels[:, :first]).take(np.arange(num_known))
    new = with_labels(graphs, labels[:, first:])
    train, test = (
        new.take(np.arange(num_labelled)),
        new.take(np.arange(num_known, len(graphs))),
    )

    def new_backbone():
        keras.utils.set_random_seed(options.seed)
        ids = {
            name: int(values.max()) + 1
            for name, values in graphs.node.items()
            if values.ndim == 1 and values.dtype.kind == "i"
        }
        types = int(graphs.edge_type.max(initial=0)) + 1
        return models.GGNNBackbone(ids, 32, num_steps=2, num_edge_types=types)

    def head_on(backbone, count):
        return models.GraphClassifier(backbone, count, multi_label=True)

    source = head_on(new_backbone(), first)
    source.fit(old, epochs=epochs, verbose=0)
    print(
        f"first {first} targets, {num_known} graphs: ROC-AUC {score(source, old):.3f}"
    )

    count = labels.shape[1] - first
    with tempfile.TemporaryDirectory() as folder:
        source.save_to_preset(f"{folder}/source")

        def loaded():
            return models.GraphClassifier.from_preset(f"{folder}/source").backbone

        frozen = head_on(loaded(), count)
        frozen.backbone.trainable = False
        adapted = head_on(loaded(), count)
        training.enable_lora(adapted, rank=4)
        tasks = {
            "new head, frozen backbone": frozen,
            "new head, LoRA": adapted,
            "from the start": head_on(new_backbone(), count),
        }
        print(f"the other {count} targets from {num_labelled} graphs:")
        for name, task in tasks.items():
            task.compile(keras.optimizers.Adam(3e-3))
            task.fit(train, epochs=3 * epochs, verbose=0)
            size = sum(int(np.prod(w.shape)) for w in task.trainable_variables)
            auc = score(task, test)
            print(
                f"  {name}: {size} trainable weights, ROC-AUC {auc:.3f} on test graphs"
            )
        # Files contain the weights with the LoRA updates merged.
        adapted.save_to_preset(f"{folder}/adapted")
        again = models.GraphClassifier.from_preset(f"{folder}/adapted")
        difference = np.abs(
            np.array(again.predict(test)) - np.array(adapted.predict(test))
        ).max()
        print(f"saved and loaded again: predictions differ by {difference:.1e}")


if __name__ == "__main__":
    main()
