"""What the figures show, compared with NumPy."""

import csv
import sys

import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import plotting
from keras_bandgnn.plotting.embeddings import principal_components

pytest.importorskip("matplotlib")

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 4, 200)
LOGITS = RNG.normal(size=(200, 4)) + 2 * np.eye(4)[LABELS]
NUMBERS = RNG.normal(size=(300, 2)) * [1.0, 10.0]
PREDICTED = NUMBERS + RNG.normal(size=NUMBERS.shape) * [0.1, 2.0]
HISTORY = {
    "loss": [1.0, 0.6, 0.4, 0.35],
    "accuracy": [0.4, 0.6, 0.8, 0.9],
    "val_loss": [1.1, 0.8, 0.7, 0.75],
    "val_accuracy": [0.4, 0.5, 0.7, 0.7],
    "learning_rate": [0.1, 0.1, 0.1, 0.1],
}
SIZES = {name: RNG.integers(1, 30, 50) for name in ("before", "after")}
SIZES["nodes"] = SIZES["after"] + RNG.integers(1, 60, 50)
# A call of each function.
CALLS = {
    "plot_bandwidths": lambda **options: plotting.plot_bandwidths(SIZES),
    "plot_batch_fill": lambda **options: plotting.plot_batch_fill(
        {"node": 0.93, "edge": 0.04}, **options
    ),
    "plot_calibration": lambda **options: plotting.plot_calibration(
        NUMBERS[:, 0], PREDICTED[:, 0], np.full(300, 0.05), **options
    ),
    "plot_confusion_matrix": lambda **options: plotting.plot_confusion_matrix(
        LABELS, LOGITS, **options
    ),
    "plot_embeddings": lambda **options: plotting.plot_embeddings(
        LOGITS, LABELS, **options
    ),
    "plot_history": lambda **options: plotting.plot_history(
        HISTORY, metrics="loss", **options
    ),
    "plot_parity": lambda **options: plotting.plot_parity(
        NUMBERS[:, 0], PREDICTED[:, 0], **options
    ),
    "plot_schema": lambda **options: plotting.plot_schema(
        kb.data.from_sets({"user": 2}, {("user", "knows", "user"): [[0], [1]]}),
        **options,
    ),
}


def test_notebooks_get_a_picture():
    figure = plotting.plot_history(HISTORY)
    # IPython asks for it, and again when the cell is run anew.
    for _ in range(2):
        assert figure._repr_png_().startswith(b"\x89PNG")


def points(line):
    return [tuple(row) for row in line.get_xydata().tolist()]


def texts(axes):
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("name", CALLS)
def test_figures_need_no_display_and_no_global_state(name, monkeypatch, tmp_path):
    # Its import fails.
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    CALLS[name]().savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 2000


@pytest.mark.parametrize("name", CALLS)
def test_without_matplotlib(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "keras-bandgnn\[plot\]"'):
        CALLS[name]()


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"plot_bandwidths"}))
def test_axes_of_the_caller(name):
    from matplotlib.figure import Figure

    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert CALLS[name](ax=right, title="mine") is figure
    assert right.get_title() == "mine"
    assert right.has_data() and not left.has_data()


# === Curves ===


def log(path, history, epochs=None):
    epochs = range(len(history["loss"])) if epochs is None else epochs
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", *history])
        writer.writerows(zip(epochs, *history.values(), strict=True))
    return path


def test_curves_of_one_run(tmp_path):
    class History:
        epoch, history = [0, 1, 2, 3], HISTORY

    path = log(tmp_path / "log.csv", HISTORY)
    for history in (HISTORY, History(), path, str(path)):
        figure = plotting.plot_history(history)
        # What has values of validation; the loss first.
        assert [axes.get_title() for axes in figure.axes] == [
            "loss",
            "accuracy",
        ]
        for axes in figure.axes:
            name = axes.get_title()
            for line, key in zip(axes.lines, (name, f"val_{name}"), strict=True):
                assert points(line) == [*enumerate(HISTORY[key], 1)]
        (legend,) = figure.legends
        assert [t.get_text() for t in legend.get_texts()] == ["training", "validation"]


def test_curves_of_several_runs(tmp_path):
    runs = {"small": HISTORY, "large": log(tmp_path / "log.csv", HISTORY)}
    figure = plotting.plot_history(runs, metrics=["val_loss"], yscale="log")
    (axes,) = figure.axes
    assert axes.get_yscale() == "log" and len(axes.lines) == 4
    one, other = (line.get_color() for line in axes.lines[1::2])
    assert one != other and axes.lines[0].get_color() == one
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [
        f"{run}, {what}" for run in runs for what in ("training", "validation")
    ]


def test_validation_every_second_epoch(tmp_path):
    history = {"loss": [4.0, 3.0, 2.0, 1.0, 0.5], "val_loss": [3.5, 1.5]}
    (axes,) = plotting.plot_history(history).axes
    assert points(axes.lines[1]) == [(2, 3.5), (4, 1.5)]
    history["val_loss"] = ["NA", 3.5, "NA", 1.5, "NA"]
    path = log(tmp_path / "log.csv", history, epochs=range(10, 15))
    (axes,) = plotting.plot_history(path).axes
    assert points(axes.lines[1]) == [(12, 3.5), (14, 1.5)]
    with pytest.raises(ValueError, match="evenly spaced.*file of CSVLogger"):
        plotting.plot_history({"loss": [1.0] * 5, "val_loss": [1.0] * 4})


def test_curves_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="`metrics` to be one of 'loss'"):
        plotting.plot_history(HISTORY, metrics="mae")
    for text in ("", "epoch,loss\n", "a,b\n1,2\n", "epoch,loss\n0,x\n", "epoch\n1,2\n"):
        (tmp_path / "log.csv").write_text(text)
        with pytest.raises(ValueError, match=r"log\.csv.*Received"):
            plotting.plot_history(tmp_path / "log.csv")
    with pytest.raises(ValueError, match="one name, as there is one `ax`"):
        plotting.plot_history(HISTORY, ax=plotting.plot_history(HISTORY).axes[0])


# === Confusion matrix ===


def shares(figure):
    return np.asarray(figure.axes[0].images[0].get_array())


def test_confusion_matrix():
    predicted = LOGITS.argmax(1)
    counts = np.array(
        [[((LABELS == i) & (predicted == j)).sum() for j in range(4)] for i in range(4)]
    )
    per_class = counts / counts.sum(1, keepdims=True)
    nodes = np.array_split(np.arange(200), 7)
    for labels, predictions in (
        (LABELS, LOGITS),
        (LABELS, predicted),
        (list(LABELS), list(LOGITS)),
        (LABELS[:, None], LOGITS),
        # Of nodes: an array for each graph.
        ([LABELS[i] for i in nodes], [LOGITS[i] for i in nodes]),
        ([LABELS[i][:, None] for i in nodes], [predicted[i] for i in nodes]),
        # Missing labels, and graphs without a prediction.
        ([*LABELS, -1, np.nan, 3], [*LOGITS, LOGITS[0], LOGITS[1], None]),
    ):
        figure = plotting.plot_confusion_matrix(labels, predictions)
        np.testing.assert_allclose(shares(figure), per_class)
        assert texts(figure.axes[0])[:16] == [f"{n}" for n in counts.ravel()]
    accuracy = 100 * (LABELS == predicted).mean()
    assert f"accuracy {accuracy:.1f} % of 200" in texts(figure.axes[0])[-1]
    for normalize, axis in (("true", 1), ("pred", 0), ("all", (0, 1))):
        figure = plotting.plot_confusion_matrix(LABELS, LOGITS, normalize=normalize)
        share = 100 * counts / counts.sum(axis, keepdims=True)
        assert texts(figure.axes[0])[:16] == [f"{s:.1f}" for s in share.ravel()]


def test_names_of_classes():
    names = ["carbon", "nitrogen", "oxygen", "sulphur", "never seen"]
    figure = plotting.plot_confusion_matrix(LABELS, LOGITS, names)
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == names
    assert shares(figure).shape == (5, 5) and not shares(figure)[4].any()
    with pytest.raises(ValueError, match="names of at least 4 classes"):
        plotting.plot_confusion_matrix(LABELS, LOGITS, ["yes", "no"])


def test_many_classes_have_a_scale_instead_of_numbers():
    labels = np.arange(50)
    figure = plotting.plot_confusion_matrix(labels, labels[::-1])
    assert len(figure.axes) == 2 and len(figure.axes[0].texts) == 1


def test_labels_that_are_no_classes():
    with pytest.raises(ValueError, match="200 labels and 199 predictions"):
        plotting.plot_confusion_matrix(list(LABELS), list(LOGITS[:-1]))
    with pytest.raises(ValueError, match="classes from 0 in `predictions`.*logits > 0"):
        plotting.plot_confusion_matrix([0, 1], [np.array([-0.3]), np.array([2.5])])


# === Parity ===


def test_errors_of_predictions():
    figure = plotting.plot_parity(
        NUMBERS, PREDICTED, ["energy", "gap"], ["eV", "meV"], title="QM9"
    )
    for number, (target, unit) in enumerate((("energy", "eV"), ("gap", "meV"))):
        true, predicted = NUMBERS[:, number], PREDICTED[:, number]
        error = predicted - true
        axes = figure.axes[number]
        assert axes.get_title() == target
        assert axes.get_xlabel() == f"true [{unit}]"
        r2 = 1 - (error**2).sum() / ((true - true.mean()) ** 2).sum()
        (text,) = texts(axes)
        assert text.split("\n") == [
            f"MAE {np.abs(error).mean():.3g} {unit}",
            f"RMSE {np.sqrt((error**2).mean()):.3g} {unit}",
            f"R² {r2:.3g}",
        ]
        drawn = axes.collections[0].get_offsets()
        np.testing.assert_allclose(drawn, np.stack([true, predicted], 1))
        histogram = figure.axes[2 + number]
        assert sum(bar.get_height() for bar in histogram.patches) == len(error)


def test_forms_of_numbers():
    """As `predict` returns them: of graphs, of nodes, with gaps."""
    true, predicted = NUMBERS[:, 0], PREDICTED[:, 0]
    text = texts(plotting.plot_parity(true, predicted).axes[0])
    nodes = np.array_split(np.arange(300), 7)
    for labels, predictions in (
        (list(true), [np.array([y]) for y in predicted]),
        ([true[i] for i in nodes], [predicted[i][:, None] for i in nodes]),
        ([*true, np.nan, 1.0], [*predicted, 0.0, None]),
    ):
        assert texts(plotting.plot_parity(labels, predictions).axes[0]) == text
    several = [[*row] for row in NUMBERS]
    assert len(plotting.plot_parity(several, list(PREDICTED)).axes) == 4
    with pytest.raises(ValueError, match="prediction per label.*shape"):
        plotting.plot_parity(true, PREDICTED)
    figure = plotting.plot_parity(NUMBERS, PREDICTED, units=["eV", None])
    assert [axes.get_xlabel() for axes in figure.axes[:2]] == ["true [eV]", "true"]
    with pytest.raises(ValueError, match="one string for each of 2 targets"):
        plotting.plot_parity(NUMBERS, PREDICTED, units=["eV"])


def test_many_points_are_densities():
    many = np.tile(NUMBERS[:, 0], 20)
    (shown,) = plotting.plot_parity(many, many).axes[0].collections
    assert shown.get_array().sum() == len(many)


# === Embeddings ===


def test_principal_components():
    rows = RNG.normal(size=(50, 6)) @ RNG.normal(size=(6, 6))
    found, share = principal_components(rows)
    centred = rows - rows.mean(0)
    _, values, vectors = np.linalg.svd(centred, full_matrices=False)
    expected = centred @ vectors[:2].T
    expected *= np.sign((expected * found).sum(0))
    np.testing.assert_allclose(found, expected, atol=1e-9)
    np.testing.assert_allclose(share, values[:2] ** 2 / (values**2).sum())


def test_forms_of_embeddings():
    whole = principal_components(LOGITS)[0]
    nodes = np.array_split(np.arange(200), 7)
    dropped = np.full((1, 4), np.nan)
    for states, labels in (
        (LOGITS, None),
        (list(LOGITS), None),
        # Nodes, of which the preprocessor dropped one; a graph without states.
        ([*(LOGITS[i] for i in nodes), dropped, None], None),
    ):
        (axes,) = plotting.plot_embeddings(states, labels).axes
        np.testing.assert_allclose(axes.collections[0].get_offsets(), whole)
    per_graph = plotting.plot_embeddings([LOGITS[i] for i in nodes], range(7))
    assert len(per_graph.axes[0].get_legend().get_texts()) == 7


def test_colours_of_embeddings():
    names = ["a", "b", "c", "d"]
    figure = plotting.plot_embeddings(LOGITS, LABELS, class_names=names, label="class")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == names
    drawn, colors = axes.collections[0].get_offsets(), axes.collections[0].get_fc()
    place = {tuple(point): n for n, point in enumerate(principal_components(LOGITS)[0])}
    of_class = {}
    for point, color in zip(drawn, colors, strict=True):
        of_class.setdefault(LABELS[place[tuple(point)]], set()).add(tuple(color))
    assert len(of_class) == 4 and len(set.union(*of_class.values())) == 4
    # Numbers have a scale.
    figure = plotting.plot_embeddings(LOGITS, LOGITS[:, 0], label="first logit")
    assert figure.axes[1].get_ylabel() == "first logit"


def test_other_methods(monkeypatch):
    figure = plotting.plot_embeddings(LOGITS, method=lambda rows: rows[:, :2])
    drawn = figure.axes[0].collections[0].get_offsets()
    np.testing.assert_array_equal(drawn, LOGITS[:, :2])
    with pytest.raises(ValueError, match=r"function that returns \[200, 2\]"):
        plotting.plot_embeddings(LOGITS, method=lambda rows: rows)
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ImportError, match='pip install "umap-learn", or method="pca"'):
        plotting.plot_embeddings(LOGITS, method="umap")


def test_tsne_keeps_clusters_together():
    pytest.importorskip("sklearn")
    centres = 20 * np.eye(4)[LABELS[:60]]
    rows = centres + RNG.normal(size=(60, 4))
    figure = plotting.plot_embeddings(rows, LABELS[:60], method="tsne")
    drawn = figure.axes[0].collections[0]
    points, colors = np.asarray(drawn.get_offsets()), drawn.get_fc()
    distance = np.linalg.norm(points[:, None] - points, axis=-1)
    np.fill_diagonal(distance, np.inf)
    nearest = distance.argmin(1)
    assert (colors[nearest] == colors).all(1).mean() > 0.95


# === Fill ===


def graphs_of(sizes):
    return [kb.Graph(size, [0] * size, np.arange(size)) for size in sizes]


def test_fill_of_batches():
    batcher = kb.preprocessing.DynamicBatcher(budget={"node": 64})
    loader = kb.preprocessing.GraphLoader(graphs_of(RNG.integers(2, 30, 60)), batcher)
    for _ in loader:
        pass
    for source in (loader, loader.stats, loader.fill(), loader.stats.fill):
        (axes,) = plotting.plot_batch_fill(source).axes
        names = [tick.get_text() for tick in axes.get_yticklabels()]
        for name, share in loader.stats.fill.items():
            assert f"{100 * share:.1f} %" == texts(axes)[names.index(name)]
    static = kb.preprocessing.GraphLoader(
        graphs_of(RNG.integers(2, 30, 60)), kb.preprocessing.StaticBatcher(3)
    )
    figure = plotting.plot_batch_fill({"dynamic": loader, "static": static})
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["dynamic", "static"]
    with pytest.raises(ValueError, match="Train with the loader"):
        plotting.plot_batch_fill(type(loader.stats)())


def test_bandwidths_are_returned():
    left, middle, right = plotting.plot_bandwidths(SIZES).axes
    heights = sum(bar.get_height() for bar in right.patches)
    assert heights == len(SIZES["nodes"])
    with pytest.raises(ValueError, match="a dict with 'after'"):
        plotting.plot_bandwidths({"nodes": [1], "before": [1]})
