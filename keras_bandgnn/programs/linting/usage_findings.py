"""`UsageFindings`: findings of a `NodeSelector`, which judges one usage at a time."""

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.programs.linting.finding import FileFindings, Finding, FindingSource
from keras_bandgnn.programs.linting.source_code import SourceCode
from keras_bandgnn.programs.python_source.tokens import name_end
from keras_bandgnn.programs.usage_pieces import usage_jobs, usage_outcomes

# Characters whose files are read by one pool of processes.
_CHUNK = 4_000_000
# Below this many characters, starting a process takes longer than reading.
_SMALL = 100_000


class UsageFindings(FindingSource):
    """Findings of a `NodeSelector` whose preprocessor encodes Python source.

    Each usage is judged as if it were unknown, and the others were right.

    Args:
        task: The task.
        processes: Processes that read files; one per core but one if omitted.
    """

    # With the preset ggnn_varmisuse_python, 0.4 findings per 1,000 lines of packages
    # that it was not trained on; docs/check.md has the table.
    default_confidence = 0.995

    def __init__(self, task, processes: int | None = None):
        # Here, so that cached findings are shown without loading Keras.
        from keras_bandgnn.programs.models.joint_selection import JointSelection

        layers = () if task.preprocessor is None else task.preprocessor.graph_layers
        if not layers or not hasattr(layers[0], "options"):
            raise ValueError(
                "Expected a model whose preprocessor encodes programs. Received: one "
                "without. Choose another, such as ggnn_varmisuse_python."
            )
        encoder, *others = layers
        self._encoding = encoder.options
        self._reading = {"max_instances": None, "steps": task.backbone.num_steps}
        self._selection = JointSelection(task, others)
        self._processes = processes or max(1, (os.cpu_count() or 1) - 1)

    def check(self, codes: Iterable[SourceCode]) -> Iterator[FileFindings]:
        """Yield the findings of each file; see `FindingSource`."""
        chunk: list[SourceCode] = []
        size = 0
        for code in codes:
            chunk.append(code)
            size += len(code.text)
            if size >= _CHUNK:
                yield from self._check(chunk)
                chunk, size = [], 0
        yield from self._check(chunk)

    def _check(self, codes: list[SourceCode]) -> Iterator[FileFindings]:
        files = deque(_File(code) for code in codes)
        reading = deque(files)
        predictions = self._selection.predict(self._pieces(reading))
        with contextlib.closing(predictions):
            for piece, logits in predictions:
                while not files[0].graphs:
                    yield files.popleft().result()
                file = files[0]
                file.graphs -= len(piece)
                for info, label, row in zip(
                    piece.info, piece.label, logits, strict=True
                ):
                    file.add(info, int(label), row)
        yield from (file.result() for file in files)

    def _pieces(self, reading: "deque[_File]") -> Iterator[FlatGraphs]:
        """Yield graphs of neighbouring usages, and count those of each file."""
        # Choices depend on the name, which must not: results are cached by content.
        jobs = [
            job
            for file in reading
            for job in usage_jobs(
                "python", "", "", self._reading, self._encoding, file.code.text
            )
        ]
        small = sum(len(file.code.text) for file in reading) < _SMALL
        processes = 1 if small else self._processes
        outcomes = usage_outcomes(jobs, processes, here=small)
        with contextlib.closing(outcomes):
            for (*_, (part, parts)), outcome in outcomes:
                file = reading[0]
                if outcome.pieces is None:
                    file.error = file.error or "; ".join(outcome.reasons)
                file.skipped.update(dict.fromkeys(outcome.reasons))
                for piece in outcome.pieces or ():
                    file.graphs += len(piece)
                    yield piece
                if part == parts - 1 and outcome.following is None:
                    reading.popleft()


class _File:
    """A file on its way through the model."""

    def __init__(self, code: SourceCode):
        self.code = code
        # Graphs that the model has still to judge.
        self.graphs = 0
        self.error: str | None = None
        self.skipped: dict[str, None] = {}
        self._findings: dict[tuple[int, int], Finding] = {}

    def add(self, info: dict, label: int, logits: np.ndarray) -> None:
        from keras_bandgnn.programs.models.selection_report import probabilities

        if not np.isfinite(logits).all():
            raise ValueError(
                "Expected finite logits. Received: NaN or infinity; the model diverged "
                "in training. Train it again with a smaller learning rate."
            )
        shares = probabilities(np.asarray(logits, np.float64))
        names, best = info["candidates"], int(np.argmax(shares))
        used = names[label]
        if names[best] == used:
            return
        line, column = info["line"], info["column"] + 1
        order = np.argsort(-shares, kind="stable")
        self._findings[line, column] = Finding(
            self.code.path,
            line,
            column,
            name_end(self.code.lines[line - 1], column - 1) + 1,
            used,
            names[best],
            float(shares[best]),
            tuple((names[k], float(shares[k])) for k in order),
            info["function"],
        )

    def result(self) -> FileFindings:
        if self.error is not None:
            return FileFindings(self.code, error=self.error)
        findings = tuple(self._findings[place] for place in sorted(self._findings))
        return FileFindings(self.code, findings, (*self.code.skipped, *self.skipped))
