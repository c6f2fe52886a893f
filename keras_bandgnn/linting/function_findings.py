"""`FunctionFindings`: findings of a `BugLocalizer`, which judges a function at once."""

import os
from collections.abc import Iterable, Iterator

import numpy as np

from keras_bandgnn.linting.finding import FileFindings, Finding, FindingSource
from keras_bandgnn.linting.source_code import SourceCode
from keras_bandgnn.programs.corpus.functions import read_module
from keras_bandgnn.programs.function_graphs import FunctionGraph, graph_of
from keras_bandgnn.programs.function_source import FunctionSource
from keras_bandgnn.programs.python_source.files import reason_of
from keras_bandgnn.programs.python_source.unit import TooLarge
from keras_bandgnn.programs.workers import ordered_map

# Characters whose functions are judged together.
_CHUNK = 1_000_000
# Below this many characters, starting a process takes longer than reading.
_SMALL = 100_000
_MAX_NODES, _MAX_REWRITES = 5000, 5000

Functions = tuple[list[FunctionGraph] | None, list[str]]


class FunctionFindings(FindingSource):
    """Findings of a `BugLocalizer` whose preprocessor encodes functions.

    All usages of a function are judged together, in one pass. Code outside of functions
    is not checked.

    Args:
        task: The task.
        processes: Processes that read files; one per core but one if omitted.
        least: Least probability of a finding.
    """

    default_confidence = 0.9

    def __init__(self, task, processes: int | None = None, least: float = 0.01):
        if task.preprocessor is None or not task.preprocessor.graph_layers:
            raise ValueError(
                "Expected a model whose preprocessor encodes functions. Received: one "
                "without. Give the task a GraphPreprocessor with a FunctionEncoder."
            )
        self._task = task
        self._processes = processes or max(1, (os.cpu_count() or 1) - 1)
        self._least = least

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
        small = sum(len(code.text) for code in codes) < _SMALL
        jobs = [(code.text,) for code in codes]
        died = (None, ["its process died"])
        processes = 1 if small else self._processes
        read = list(ordered_map(read_functions, jobs, processes, died, here=small))
        graphs = [graph for found, _ in read for graph in found or ()]
        judged = iter(())
        if graphs:
            judged = iter(self._task.rewrite_probabilities(graphs, verbose=0))
        for code, (found, reasons) in zip(codes, read, strict=True):
            if found is None:
                yield FileFindings(code, error="; ".join(reasons))
                continue
            findings = []
            for graph in found:
                shares = next(judged)
                if shares is None:
                    reasons.append(f"{graph.info['function']}: too large for the model")
                    continue
                findings += self._findings(code, graph, shares)
            findings.sort(key=lambda finding: (finding.line, finding.column))
            skipped = (*code.skipped, *dict.fromkeys(reasons))
            yield FileFindings(code, tuple(findings), skipped)

    def _findings(
        self, code: SourceCode, graph: FunctionGraph, shares: np.ndarray
    ) -> Iterator[Finding]:
        if not np.isfinite(shares).all():
            raise ValueError(
                "Expected finite probabilities. Received: NaN or infinity; the model "
                "diverged in training. Train it again with a smaller learning rate."
            )
        shares = shares[1:]
        for usage in np.unique(graph.rewrites[shares >= self._least, 0]).tolist():
            rows = np.flatnonzero(graph.rewrites[:, 0] == usage)
            rows = rows[np.argsort(-shares[rows], kind="stable")]
            used = graph.labels[graph.used[usage]]
            names = [graph.labels[node] for node in graph.rewrites[rows, 1]]
            candidates = list(zip(names, shares[rows].tolist(), strict=True))
            candidates.append((used, max(0.0, 1.0 - float(shares[rows].sum()))))
            candidates.sort(key=lambda pair: -pair[1])
            line, column = graph.info["places"][usage]
            yield Finding(
                code.path,
                line + graph.info["line"] - 1,
                column + 1,
                column + 1 + len(used),
                used,
                names[0],
                float(shares[rows[0]]),
                tuple(candidates),
                graph.info["function"],
            )


def read_functions(text: str) -> Functions:
    """Return the graphs of the functions of a file, and what was skipped.

    The graphs are None if the file cannot be read.

    Args:
        text: Python source.
    """
    graphs, reasons = [], []
    try:
        module = read_module("", text)
        for item in module["functions"]:
            name = item["name"]
            try:
                context = ((), module["signatures"], name)
                read = FunctionSource(item["source"], *context)
                graph = graph_of(read, name, _MAX_NODES, _MAX_REWRITES)
                if graph is None and read.usages:
                    reasons.append(f"{name}: too large to check")
            except (TooLarge, RecursionError, SyntaxError) as error:
                reasons.append(f"{name}: {reason_of(error)}")
                continue
            if graph is not None:
                graph.info["line"] = item["line"]
                graphs.append(graph)
    except Exception as error:
        # An unexpected error in one file must not end the whole check.
        return None, [reason_of(error)]
    return graphs, reasons
