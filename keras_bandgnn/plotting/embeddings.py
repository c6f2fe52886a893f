"""`plot_embeddings`: states of graphs or nodes on a plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.checks import (
    array,
    one_of,
    optional,
    refuse,
    seed_number,
    sequence,
    string,
    strings,
)
from keras_bandgnn.optional import optional_import
from keras_bandgnn.plotting.style import (
    add_colorbar,
    axes_of,
    colors,
    style_axes,
    style_legend,
)

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    from numpy.typing import ArrayLike

# More different integers are shown as numbers.
_CLASSES = 12


def principal_components(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first two principal components, and their shares of the variance.

    Args:
        rows: float [n, H].

    Returns:
        float [n, 2]; float [2].
    """
    rows = rows - rows.mean(0)
    # The covariance is small, however many rows there are.
    values, vectors = np.linalg.eigh(rows.T @ rows)
    vectors = vectors[:, ::-1][:, :2]
    # The sign is arbitrary: the largest entry is positive.
    largest = np.abs(vectors).argmax(0)
    vectors = vectors * np.sign(vectors[largest, range(vectors.shape[1])])
    share = np.maximum(values[::-1][:2], 0) / max(values.sum(), 1e-30)
    return rows @ vectors, share


def _tsne(rows: np.ndarray, seed: int) -> np.ndarray:
    manifold = optional_import(
        "sklearn.manifold", "scikit-learn", "t-SNE", 'method="pca"'
    )
    perplexity = min(30.0, (len(rows) - 1) / 3)
    # The arguments say what newer versions take by default.
    model = manifold.TSNE(
        perplexity=perplexity, init="pca", learning_rate="auto", random_state=seed
    )
    return model.fit_transform(rows)


def _umap(rows: np.ndarray, seed: int) -> np.ndarray:
    umap = optional_import("umap", "umap-learn", "UMAP", 'method="pca"')
    neighbors = min(15, len(rows) - 1)
    model = umap.UMAP(n_neighbors=neighbors, random_state=seed, n_jobs=1)
    return model.fit_transform(rows)


_METHODS = {"tsne": _tsne, "umap": _umap}


def _rows(embeddings: Any, labels: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return states [n, H], without missing ones, and their labels [n]."""
    if isinstance(embeddings, np.ndarray) and embeddings.ndim == 2:
        parts = [embeddings]
        marks = None if labels is None else [labels]
    else:
        parts = sequence("embeddings", embeddings, "an array, or a list as task.embed")
        marks = None
        if labels is not None:
            marks = sequence("labels", labels, "an array or a list")
            if len(marks) != len(parts):
                raise ValueError(
                    "Expected `labels` with an entry for each graph in `embeddings`. "
                    f"Received: {len(marks)} labels for {len(parts)} graphs. "
                    "Pass those of the same graphs."
                )
    present = [number for number, part in enumerate(parts) if part is not None]
    states = [array(f"embeddings[{n}]", parts[n]) for n in present]
    states = [np.atleast_2d(part) for part in states]
    if not states or any(
        part.ndim != 2 or part.shape[1:] != states[0].shape[1:] for part in states
    ):
        refuse("embeddings", "an array [n, H], or what task.embed returned", embeddings)
    rows = np.concatenate(states).astype(float)
    values = None
    if marks is not None:
        columns = []
        for number, part in zip(present, states, strict=True):
            column = array("labels", marks[number]).reshape(-1)
            if len(column) == 1:
                # Nodes of one graph share its label.
                column = np.repeat(column, len(part))
            if len(column) != len(part):
                raise ValueError(
                    f"Expected {len(part)} `labels`, one per row of embeddings. "
                    f"Received: {len(column)}. Pass those of the same graphs or nodes."
                )
            columns.append(column)
        values = np.concatenate(columns)
    finite = np.isfinite(rows).all(1)
    if finite.sum() < 3 or rows.shape[1] < 2:
        refuse("embeddings", "at least three rows of at least two numbers", rows)
    return rows[finite], None if values is None else values[finite]


def _points(
    rows: np.ndarray, method: str | Callable, seed: int
) -> tuple[np.ndarray, Sequence[str]]:
    """Return the places of rows on the plane, [n, 2], and the names of its axes."""
    if callable(method):
        points = array("method", method(rows))
        return points, ("first dimension", "second dimension")
    if method == "pca":
        points, share = principal_components(rows)
        return points, [
            f"principal component {place} ({100 * part:.0f} %)"
            for place, part in enumerate(share, 1)
        ]
    name = {"tsne": "t-SNE", "umap": "UMAP"}[method]
    return _METHODS[method](rows, seed), (f"{name} 1", f"{name} 2")


def plot_embeddings(
    embeddings: ArrayLike,
    labels: ArrayLike | None = None,
    method: str | Callable = "pca",
    class_names: Sequence[str] | None = None,
    label: str | None = None,
    seed: int = 0,
    ax: matplotlib.axes.Axes | None = None,
    title: str | None = None,
) -> matplotlib.figure.Figure:
    """Plot embeddings of graphs or nodes as points on a plane, coloured by label.

    Args:
        embeddings: float [n, H], or what `task.embed` returned: a list with [H] for
            each graph, or [N, H] with its nodes. Nodes that the preprocessor drops
            (NaN) and graphs that the batcher drops (None) are left out.
        labels: Label of each graph or node, in the form of the embeddings. Up to 12
            classes get a colour each, other numbers a scale.
        method: `"pca"`, the first two principal components; `"tsne"` (needs
            scikit-learn); `"umap"` (needs umap-learn); or a function from [n, H] to
            [n, 2].
        class_names: Names in the order of the classes.
        label: What the labels are, for the legend.
        seed: Seed of t-SNE and UMAP.
        ax: Axes to draw into; a new figure if omitted.
        title: Title.

    Returns:
        The `matplotlib.figure.Figure`.

    Raises:
        ImportError: If matplotlib or the package of the method is not installed.
        ValueError: If embeddings and labels do not match.

    Example:
    >>> states = np.random.default_rng(0).normal(size=(20, 8))
    >>> plot_embeddings(states, np.arange(20) % 2, class_names=["no", "yes"])
    <Figure size ...>
    """
    if not callable(method):
        one_of("method", method, ("pca", *_METHODS))
    optional(strings, "class_names", class_names)
    optional(string, "label", label)
    optional(string, "title", title)
    seed = seed_number("seed", seed)
    rows, values = _rows(embeddings, labels)
    points, axes_names = _points(rows, method, seed)
    if points.shape != (len(rows), 2):
        refuse("method", f"a function that returns [{len(rows)}, 2]", points)

    figure, axes = axes_of(ax, 5.4, 4.2)
    _scatter(figure, axes, points, values, class_names, label)
    axes.set(xlabel=axes_names[0], ylabel=axes_names[1])
    style_axes(axes, grid=None, title=title)
    # Distances count, not positions.
    axes.set(xticks=[], yticks=[])
    return figure


def _scatter(figure, axes, points, values, class_names, label) -> None:
    size = float(np.clip(8000 / len(points), 4, 26))
    style = {"s": size, "linewidths": 0, "alpha": 0.8}
    finite = np.ones(len(points), bool) if values is None else np.isfinite(values)
    if not finite.all():
        axes.scatter(*points[~finite].T, color="#c8c8c8", **style)
    if values is None:
        axes.scatter(*points.T, color=colors(1)[0], **style)
        return
    whole = (values[finite] == np.floor(values[finite])).all()
    kinds = np.unique(values[finite]) if whole else ()
    if not whole or len(kinds) > _CLASSES:
        points, values = points[finite], values[finite]
        shown = axes.scatter(*points.T, c=values, cmap="viridis", **style)
        add_colorbar(figure, axes, shown, label)
        return
    names = {kind: f"{kind:g}" for kind in kinds}
    if class_names is not None:
        class_names = strings("class_names", class_names)
        if len(kinds) and not 0 <= kinds[0] <= kinds[-1] < len(class_names):
            refuse("class_names", f"names of classes up to {kinds[-1]:g}", class_names)
        names = {kind: class_names[int(kind)] for kind in kinds}
    # Drawn in random order, the last class would not cover the others.
    shades = dict(zip(kinds, colors(len(kinds)), strict=True))
    order = np.random.default_rng(0).permutation(np.flatnonzero(finite))
    axes.scatter(*points[order].T, c=[shades[kind] for kind in values[order]], **style)
    for kind, name in names.items():
        axes.scatter([], [], color=shades[kind], s=26, linewidths=0, label=name)
    outside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    style_legend(axes.legend(title=label, title_fontsize=8.5, **outside))
