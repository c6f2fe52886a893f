"""Joins a graph branch with a branch of numbers, or of a picture, for each graph.

The label of a graph depends on its shape and on two numbers (or on a picture of 12 x
12 pixels) that come with it, so neither is enough on its own. Inputs of a functional
Keras model are those of the batches: a backbone and a readout see the graphs, layers of
Keras the numbers, and a `Dense` layer joins them.

    python examples/two_branches.py
    python examples/two_branches.py --short
    KERAS_BACKEND=jax python examples/two_branches.py --load numbers.keras

`--load` predicts with a model that was saved here, by any backend. Choose the backend
with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
from pathlib import Path

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import layers, models, plans, preprocessing
from keras_bandgnn.batch import unbatch

SIDE = 12
MAX_DEGREE = 8


def make_graph(rng: np.random.Generator) -> kb.Graph:
    """A ring with chords, two numbers and a picture: context of the whole graph."""
    size = int(rng.integers(6, 20))
    chords = rng.integers(0, size, (2, int(rng.integers(0, size))))
    nodes = np.arange(size)
    ends = np.concatenate([np.stack([nodes, (nodes + 1) % size]), chords], axis=1)
    senders, receivers = np.concatenate([ends, ends[::-1]], axis=1)
    degree = np.bincount(receivers, minlength=size)
    numbers = rng.normal(size=2).astype("float32")
    # The brightness of the picture is the sum of the numbers.
    noise = rng.normal(0, 0.5, (SIDE, SIDE, 1))
    picture = (noise + numbers.sum()).astype("float32")
    return kb.Graph(
        size,
        senders,
        receivers,
        node={"degree": np.minimum(degree, MAX_DEGREE)},
        context={"numbers": numbers, "picture": picture},
        label=float(degree.mean() - 3.0 + numbers.sum()),
    )


def graph_branch(inputs, units: int):
    """Return a vector per graph from its nodes and edges, [G, B, units]."""
    backbone = models.GINEBackbone({"degree": MAX_DEGREE + 1}, units, num_layers=2)
    return layers.GraphReadout(units, "mean")(backbone(inputs), inputs)


def number_branch(inputs, units: int):
    """Return a vector per graph from its numbers, [G, B, units]."""
    return keras.layers.Dense(units, activation="relu")(inputs["graph"]["numbers"])


def picture_branch(inputs, units: int):
    """Return a vector per graph from its picture, [G, B, units]."""
    network = keras.Sequential(
        [
            keras.layers.Conv2D(units // 2, 3, 2, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(units, activation="relu"),
        ]
    )
    # Axis 1 of [G, B, 12, 12, 1] has the graphs of a batch.
    return keras.layers.TimeDistributed(network)(inputs["graph"]["picture"])


def make_model(inputs, branches: list) -> keras.Model:
    """Return a compiled model of a number per graph, from some branches."""
    joined = branches[0]
    if len(branches) > 1:
        joined = keras.layers.Concatenate()(branches)
    hidden = keras.layers.Dense(32, activation="relu")(joined)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(
        keras.optimizers.Adam(5e-3),
        # These leave padded slots out of the mean.
        loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        weighted_metrics=[keras.metrics.MeanAbsoluteError(name="error")],
    )
    return model


def predict(model: keras.Model, loader) -> np.ndarray:
    """Return the outputs for the graphs of a loader, in their order."""
    rows = {}
    for x, *_ in loader:
        rows |= dict(unbatch(model.predict_on_batch(x), x, "graph"))
    return np.array([rows[number] for number in sorted(rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    parser.add_argument("--load", type=Path, help="predict with a saved model")
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    train, test = (
        [make_graph(rng) for _ in range(count)]
        for count in ((100, 50) if options.short else (3000, 500))
    )
    # A plan is part of the inputs: here the same one on every backend.
    plan = plans.Plan(plans.Segment())
    batcher = preprocessing.DynamicBatcher(graphs=32)
    loader, held_out = (
        preprocessing.GraphLoader(graphs, batcher, plan, shuffle=shuffle)
        for graphs, shuffle in ((train, True), (test, False))
    )
    if options.load:
        model = keras.models.load_model(options.load, compile=False)
        print(np.round(predict(model, held_out)[:5, 0], 4).tolist())
        return
    epochs, units = (2, 16) if options.short else (20, 32)
    labels = np.array([graph.label for graph in test])
    error = np.abs(labels - labels.mean()).mean()
    print(f"error of the mean label: {error:.3f}")
    for name, second in (
        ("graph alone", None),
        ("numbers", number_branch),
        ("picture", picture_branch),
    ):
        inputs = loader.inputs()
        branches = [graph_branch(inputs, units)]
        if second is not None:
            branches.append(second(inputs, units))
        model = make_model(inputs, branches)
        # The loader shuffles its batches itself.
        model.fit(loader, epochs=epochs, shuffle=False, verbose=0)
        error = model.evaluate(held_out, verbose=0, return_dict=True)["error"]
        print(f"{name}: error {error:.3f}")
        if name == "numbers":
            model.save("numbers.keras")
            print(np.round(predict(model, held_out)[:5, 0], 4).tolist())


if __name__ == "__main__":
    main()
