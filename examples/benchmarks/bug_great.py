"""GREAT's published examples, beside scores in print."""

from pathlib import Path

import numpy as np

from examples.benchmarks.bug_planted import wilson
from keras_bandgnn.cli import report

SOURCE = "README of VHellendoorn/ICLR20-Great"
# Joint, located, repaired and functions without a bug that are said to have none, in
# per cent, on all published test data, of models trained on its other part.
PUBLISHED = {
    "RNN, 2 layers": (52.18, 63.56, 63.22, 82.57),
    "GGNN, 8 layers": (65.38, 79.64, 75.76, 90.28),
    "Transformer, 6 layers": (66.05, 73.39, 76.79, 91.70),
    "Transformer, 10 layers": (71.22, 79.00, 80.46, 90.16),
    "Sandwich of RNN and GGNN": (77.98, 86.09, 85.16, 88.76),
    "GREAT, 6 layers": (78.21, 86.14, 85.85, 88.98),
    "GREAT, 10 layers": (80.35, 87.61, 87.41, 89.72),
}


def score_great(task, path: Path) -> dict:
    """Return how many of GREAT's bugs a `BugLocalizer` finds.

    Bugs whose right rewrite is not offered count as not found, and functions without
    any rewrite as said to have no bug.

    Args:
        task: The model.
        path: File or folder of GREAT.
    """
    from keras_bandgnn.programs import read_great
    from keras_bandgnn.training import localization_report

    skipped: list[str] = []
    examples = list(read_great(path, on_error="skip", report=skipped))
    graphs = []
    with report.progress("reading GREAT") as advance:
        for done, example in enumerate(examples, 1):
            graphs.append(example.graph())
            advance(done, len(examples))
    bugs = sum(example.has_bug for example in examples)
    correct = len(examples) - bugs
    known = [graph for graph in graphs if graph and graph.correct is not None]
    found = task.rewrite_probabilities(known, verbose=0) if known else []
    scores = localization_report(known, found)
    offered = scores["bugs"]

    def share(name: str, part: int, whole: int) -> dict:
        count = round(scores[name] * part) if part else 0
        value = count / whole if whole else float("nan")
        return {"share": value, "interval": list(wilson(count, whole))}

    names = ("joint", "located", "repaired")
    chances = [1 / (1 + len(g.rewrites)) for g in known if g.correct >= 0]
    return {
        "examples": len(examples),
        "skipped": len(skipped),
        "bugs": bugs,
        "offered_bugs": offered,
        "correct": correct,
        **{name: share(name, offered, bugs) for name in names},
        "of_offered": {name: scores[name] for name in names},
        "false_alarms": share("false_alarms", scores["correct"], correct),
        "joint_by_chance": float(np.mean(chances)) if chances else float("nan"),
    }
