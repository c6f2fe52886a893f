"""`bandgnn predict` with a model of numbers per graph."""

from collections.abc import Iterator

from keras_bandgnn.cli import report
from keras_bandgnn.cli.training_callbacks import progress_lines


def predict_numbers(task, graphs) -> list[dict]:
    """Predicts; returns for each graph `index`, `prediction` and `label`.

    A label is a number or a list, as the graphs have it; None where there is none.
    """
    import numpy as np

    from keras_bandgnn.data import parts_of

    found = task.predict(graphs, callbacks=progress_lines(len(graphs)))
    if not all(np.isfinite(row).all() for row in found if row is not None):
        raise ValueError(
            "Expected finite predictions. Received: NaN or infinity; the model "
            "diverged in training. Train it again with a smaller learning rate."
        )
    labels = [label for part in parts_of(graphs) for label in _labels(part)]
    return [
        {"index": index, "prediction": None if row is None else row.tolist(), **known}
        for index, (row, known) in enumerate(zip(found, labels, strict=True))
    ]


def _labels(part) -> Iterator[dict]:
    import numpy as np

    if part.label is None or part.label_level != "graph":
        yield from ({"label": None} for _ in range(len(part)))
        return
    for label in part.label:
        # JSON has no NaN, which stands for a label that is missing.
        known = np.where(np.isnan(label), None, label.astype(object))
        yield {"label": known.tolist()}


def show_numbers(lines: list[dict], targets: int, count: int) -> None:
    """Prints the first predictions, beside the labels that are there."""
    names = [""] if targets == 1 else [f" {k}" for k in range(targets)]
    shown = lines[:count]
    labelled = any(line["label"] is not None for line in shown)
    columns = ["graph", *(f"prediction{name}" for name in names)]
    columns += [f"label{name}" for name in names] if labelled else []
    rows = []
    for line in shown:
        values = line["prediction"] or [None] * targets
        if labelled:
            label = line["label"]
            values = [*values, *(label if isinstance(label, list) else [label])]
        rows.append([line["index"], *map(_shown, values)])
    report.table(f"first {len(shown)} of {len(lines)} graphs", columns, rows)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
