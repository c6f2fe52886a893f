"""`plot_confusion_matrix`: which classes are taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.checks import one_of, optional, refuse, string, strings
from keras_bandgnn.plotting.rows import paired_rows
from keras_bandgnn.plotting.style import GREY, INK, add_colorbar, axes_of, style_axes

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    from numpy.typing import ArrayLike

# More classes have no numbers in their cells.
_NUMBERED = 20
_AXES = {"true": 1, "pred": 0, "all": None}


def _classes(labels: Any, predictions: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the known true classes and the predicted ones, int [n] each."""
    true, predicted, widths = [], [], set()
    for label, rows in paired_rows(labels, predictions):
        label = np.asarray(label, float).reshape(-1)
        width = 1
        if rows.size != label.size and rows.ndim and rows.shape[-1] > 1:
            width, rows = rows.shape[-1], rows.argmax(-1)
        if label.size:
            widths.add(width)
        if rows.size != label.size:
            raise ValueError(
                "Expected a class per label, or the logits of all classes, in "
                f"`predictions`. Received: {rows.size} for {label.size} `labels`. Pass "
                "what task.predict(graphs) returned, and the labels of the same graphs."
            )
        true.append(label)
        predicted.append(np.asarray(rows, float).reshape(-1))
    if len(widths) > 1:
        raise ValueError(
            "Expected logits of as many classes for all graphs, or classes, in "
            f"`predictions`. Received: logits of {sorted(widths)} classes."
        )
    true, predicted = np.concatenate(true), np.concatenate(predicted)
    is_class = ~(np.isnan(true) | (true == -1))
    for name, values in (
        ("labels", true[is_class]),
        ("predictions", predicted[is_class]),
    ):
        wrong = values[(values < 0) | (values != np.floor(values))]
        if wrong.size:
            raise ValueError(
                f"Expected classes from 0 in `{name}`. Received: {wrong[0]:g}. For "
                "yes-or-no targets pass logits > 0 as integers."
            )
    if not is_class.any():
        refuse("labels", "classes, of which some are known", labels)
    return true[is_class].astype(int), predicted[is_class].astype(int)


def plot_confusion_matrix(
    labels: ArrayLike,
    predictions: ArrayLike,
    class_names: Sequence[str] | None = None,
    normalize: str | None = None,
    ax: matplotlib.axes.Axes | None = None,
    title: str | None = None,
) -> matplotlib.figure.Figure:
    """Plot how many examples of each class are predicted as each class.

    Colours show the share of each true class, so rare classes are as visible as
    frequent ones.

    Args:
        labels: True classes: int [n], or for nodes a list with [N] for each graph.
            Missing labels, -1 and NaN, are left out.
        predictions: What `predict` returned for the same graphs, logits or
            probabilities, or predicted classes in the form of the labels. Graphs
            without a prediction (None) are left out.
        class_names: Names in the order of the classes; their numbers if omitted.
        normalize: Share to print instead of counts: of each `"true"` class, of each
            `"pred"` class, or of `"all"` examples, as in scikit-learn.
        ax: Axes to draw into; a new figure if omitted.
        title: Title.

    Returns:
        The `matplotlib.figure.Figure`.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If labels and predictions do not match.

    Example:
    >>> figure = plot_confusion_matrix([0, 1, 1], [0, 1, 0], ["no", "yes"])
    >>> [text.get_text() for text in figure.axes[0].texts[:4]]
    ['1', '0', '1', '1']
    """
    optional(one_of, "normalize", normalize, tuple(_AXES))
    optional(string, "title", title)
    true, predicted = _classes(labels, predictions)
    size = 1 + max(int(true.max()), int(predicted.max()))
    names = [str(number) for number in range(size)]
    if class_names is not None:
        names = strings("class_names", class_names)
        if len(names) < size:
            refuse("class_names", f"names of at least {size} classes", class_names)
        size = len(names)
    counts = np.zeros((size, size), int)
    np.add.at(counts, (true, predicted), 1)

    longest = 0.075 * max(map(len, names))
    side = min(7.0, max(2.2, 0.55 * size))
    figure, axes = axes_of(ax, side + 0.8 + longest, side + 0.7 + min(longest, 1.5))
    share = _share(counts, "true")
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    style_axes(axes, grid=None)
    axes.spines[:].set_visible(False)
    if title:
        axes.set_title(title, fontsize=10.5, color=INK, pad=18)
    axes.set(xlabel="predicted class", ylabel="true class")
    if size <= 3 * _NUMBERED:
        crowded = longest > 0.9 * side / size
        tilt = {"rotation": 45, "ha": "right"} if crowded else {}
        axes.set_xticks(range(size), names, **tilt)
        axes.set_yticks(range(size), names)
    if size <= _NUMBERED:
        shown = counts if normalize is None else 100 * _share(counts, normalize)
        text = "{:,}" if normalize is None else "{:.1f}"
        for (row, column), value in np.ndenumerate(shown):
            color = "white" if share[row, column] > 0.55 else INK
            color = color if counts[row, column] else "#b0b0b0"
            place = {"ha": "center", "va": "center", "fontsize": 8.5}
            axes.text(column, row, text.format(value), color=color, **place)
        # White lines between the cells.
        axes.set_xticks(np.arange(0.5, size - 1), minor=True)
        axes.set_yticks(np.arange(0.5, size - 1), minor=True)
        axes.grid(which="minor", color="white", linewidth=1.5)
        axes.tick_params(which="minor", length=0)
    else:
        add_colorbar(figure, axes, image, "share of the class")
    right = 100 * np.trace(counts) / counts.sum()
    unit = {"true": "% of the true class", "pred": "% of the predicted class"}
    unit = {**unit, "all": "% of all", None: "counts"}[normalize]
    note = f"{unit}; accuracy {right:.1f} % of {counts.sum():,}"
    style = {"xytext": (0, 5), "textcoords": "offset points", "fontsize": 8}
    axes.annotate(
        note, (0.5, 1), ha="center", xycoords="axes fraction", color=GREY, **style
    )
    return figure


def _share(counts: np.ndarray, normalize: str) -> np.ndarray:
    total = counts.sum(axis=_AXES[normalize], keepdims=True)
    return counts / np.maximum(total, 1)
