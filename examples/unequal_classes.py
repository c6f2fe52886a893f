"""Ordered and rare classes: ordinal regression, balanced weights and a focal loss.

    python examples/unequal_classes.py
    python examples/unequal_classes.py --short

Graphs are rings of beads, and their grade is the number of red neighbours, 0 to 4, with
noise. Grades are ordered, so the first part compares a classifier with one that has
`ordinal=True`, by accuracy and by how far predictions are off. High grades are rare:
the second part compares the usual loss with `class_weight="balanced"` and a focal loss,
by the share of rare and of other graphs that are recognised. Choose the backend with
KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import models

GRADES = 5


def ring(rng: np.random.Generator, noise: float = 0.5) -> kb.Graph:
    """A ring of beads with its grade."""
    n = int(rng.integers(8, 17))
    bead = np.arange(n)
    after = (bead + 1) % n
    red = rng.uniform(size=n) < 0.3
    pairs = (red & red[after]).sum() + rng.normal(scale=noise)
    return kb.Graph(
        n,
        np.concatenate([bead, after]),
        np.concatenate([after, bead]),
        node={"red": red},
        label=int(np.clip(np.round(pairs), 0, GRADES - 1)),
    )


def trained(
    train, options, num_classes=GRADES, ordinal=False, loss="auto", class_weight=None
):
    """A classifier after training."""
    keras.utils.set_random_seed(options.seed)
    backbone = models.GCNBackbone({"red": 2}, hidden_dim=16)
    task = models.GraphClassifier(backbone, num_classes, readout="sum", ordinal=ordinal)
    task.compile(keras.optimizers.Adam(0.01), loss=loss)
    task.fit(train, epochs=options.epochs, class_weight=class_weight, verbose=0)
    return task


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--graphs", type=int, default=200, help="to train on")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    if options.short:
        options.graphs, options.epochs = 100, 2
    rng = np.random.default_rng(options.seed)
    train = [ring(rng) for _ in range(options.graphs)]
    test = [ring(rng) for _ in range(200 if options.short else 1000)]
    grade = np.array([graph.label for graph in test])
    print("graphs per grade:", np.bincount(grade, minlength=GRADES))

    for name, ordinal in (("classes", False), ("ordered classes", True)):
        task = trained(train, options, ordinal=ordinal)
        shares = np.stack(task.predict_proba(test))
        # The median has the least absolute error.
        median = (shares.cumsum(axis=1) < 0.5).sum(axis=1)
        hits = (shares.argmax(axis=1) == grade).mean()
        off = np.abs(median - grade).mean()
        print(f"{name:16} accuracy {hits:.3f}, off by {off:.3f} grades")

    rare = grade >= 3
    train = [graph.replace(label=int(graph.label >= 3)) for graph in train]
    focal = keras.losses.BinaryFocalCrossentropy(
        apply_class_balancing=True, alpha=0.9, from_logits=True
    )
    for name, loss, weight in (
        ("cross-entropy", "auto", None),
        ("balanced", "auto", "balanced"),
        ("focal", focal, None),
    ):
        task = trained(train, options, 2, loss=loss, class_weight=weight)
        found = np.array(task.predict_labels(test)) == 1
        print(
            f"{name:16} finds {found[rare].mean():.2f} of the rare graphs, "
            f"{(~found)[~rare].mean():.2f} of the others"
        )


if __name__ == "__main__":
    main()
