"""`FunctionFindings`: findings of a `BugLocalizer`, which judges a function at once."""

import collections
import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Iterable, Iterator

import numpy as np

from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.programs.encode_functions import encode_function
from keras_bandgnn.programs.function_graphs import graph_of
from keras_bandgnn.programs.function_source import FunctionSource, Signatures
from keras_bandgnn.programs.functions import read_functions
from keras_bandgnn.programs.linting.finding import FileFindings, Finding, FindingSource
from keras_bandgnn.programs.linting.source_code import SourceCode
from keras_bandgnn.programs.program_graph import FunctionGraph
from keras_bandgnn.programs.python_source.files import reason_of
from keras_bandgnn.programs.python_source.tokens import NewerSyntax, name_end
from keras_bandgnn.programs.python_source.unit import TooLarge
from keras_bandgnn.workers import ordered_map

# Below this many characters, starting a process takes longer than reading.
_SMALL = 100_000
# Files read ahead of the model, for each process.
_AHEAD = 32
# Nodes of a supergraph, and of the functions among which supergraphs are packed: of the
# first ones, so that results come early and an interrupted run keeps some, and at most.
# Larger supergraphs do not fit the caches of a CPU.
_NODES = 4096
_FIRST_WINDOW = 4 * _NODES
_WINDOW = 16 * _NODES
# Slots for graphs and capacities in proportion to nodes, with some room.
_NODES_PER_GRAPH = 32
_ROOM = 1.05
_MAX_NODES, _MAX_REWRITES = 5000, 25_000
# Not suggested: a third of the places that a model reports in correct code have one of
# them, and of the real bugs that it reports none.
_INSTANCE = ("self", "cls")


@dataclasses.dataclass
class ReadFunction:
    """The data of a function that findings need.

    Attributes:
        name: Qualified name.
        line: Its first line in the file.
        places: (line, column) of each usage in the function.
        variables: Names of the variables.
        used: int32 [U], the variable that each usage reads.
        rewrites: int32 [R, 2] of (usage, other variable), in source order.
        excluded: The variables that are never suggested: those of
            `FunctionSource.unread`, and `self` and `cls`.
    """

    name: str
    line: int
    places: list
    variables: tuple[str, ...]
    used: np.ndarray
    rewrites: np.ndarray
    excluded: tuple[int, ...] = ()

    @classmethod
    def from_graph(cls, graph: FunctionGraph, line: int) -> "ReadFunction":
        """Build it from the graph of a function that begins at a line."""
        first = min(graph.used.min(), graph.rewrites[:, 1].min())
        # The edges of encoded graphs are sorted by receiver.
        order = np.argsort(graph.usages[graph.rewrites[:, 0]], kind="stable")
        variables = graph.labels[first:]
        excluded = [node - first for node in graph.info["unread"]]
        excluded += [k for k, name in enumerate(variables) if name in _INSTANCE]
        return cls(
            name=graph.info["function"],
            line=line,
            places=graph.info["places"],
            variables=variables,
            used=graph.used - first,
            rewrites=(graph.rewrites - [0, first]).astype(np.int32)[order],
            excluded=tuple(excluded),
        )


@dataclasses.dataclass
class ReadFile:
    """The functions of a file.

    Attributes:
        functions: Those with something to choose.
        graphs: Their graphs, encoded unless there is no encoding; None without any.
        reasons: Why functions were skipped.
        error: Why the file could not be read, None if it was.
        seconds: The time it took.
    """

    functions: list[ReadFunction] = dataclasses.field(default_factory=list)
    graphs: FlatGraphs | list[FunctionGraph] | None = None
    reasons: list[str] = dataclasses.field(default_factory=list)
    error: str | None = None
    seconds: float = 0.0


def read_file(text: str, encoding: dict | None) -> ReadFile:
    """Read the functions of a file.

    Args:
        text: Python source.
        encoding: Options of `encode_function`; None to leave graphs as they are.
    """
    began = time.perf_counter()
    graphs: list[FunctionGraph] = []
    file = ReadFile()
    traits = encoding is None or encoding.get("traits", False)
    try:
        signatures, functions = read_functions(text)
        signatures = Signatures(signatures)
        for item in functions:
            name = item["name"]
            try:
                read = FunctionSource(item["source"], (), signatures, name)
                graph = graph_of(read, name, _MAX_NODES, _MAX_REWRITES, traits)
                if graph is None and read.usages or read.too_large:
                    file.reasons.append(f"{name}: too large to check")
            except (TooLarge, RecursionError, SyntaxError) as error:
                file.reasons.append(f"{name}: {reason_of(error)}")
                continue
            if graph is not None:
                graphs.append(graph)
                file.functions.append(ReadFunction.from_graph(graph, item["line"]))
        if encoding is None:
            file.graphs = graphs or None
        elif graphs:
            encoded = [encode_function(graph, **encoding) for graph in graphs]
            file.graphs = FlatGraphs.from_graphs(encoded)
    except NewerSyntax as error:
        file = ReadFile(reasons=[str(error)])
    except Exception as error:
        # An unexpected error in one file must not end the whole check.
        file = ReadFile(error=reason_of(error))
    file.seconds = time.perf_counter() - began
    return file


class FunctionFindings(FindingSource):
    """Findings of a `BugLocalizer` whose preprocessor encodes functions.

    All usages of a function are judged together, in one pass. Code outside of functions
    is not checked. Processes read files and encode their functions while the model
    judges those of the files before. Supergraphs have one shape, and a few smaller ones
    for few functions, so that a model compiles once.

    Args:
        task: The task.
        processes: Processes that read files; one per core if omitted.
        least: Least probability of a finding before calibration. With one, those from
            a 20th of the model's bound on are findings, too.
    """

    def __init__(self, task, processes: int | None = None, least: float = 0.01):
        # Here, so that cached findings are shown without loading Keras.
        from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
        from keras_bandgnn.programs.models.function_encoder import FunctionEncoder

        if task.preprocessor is None or not task.preprocessor.graph_layers:
            raise ValueError(
                "Expected a model whose preprocessor encodes functions. Received: one "
                "without. Give the task a GraphPreprocessor with a FunctionEncoder."
            )
        self.default_confidence = task.min_confidence
        self._task = task
        self._encoder, *layers = task.preprocessor.graph_layers
        # An encoder of another class is applied here, as worker processes do not know
        # it.
        is_default = type(self._encoder) is FunctionEncoder
        # Keras tracks it in a dictionary of its own, which cannot be pickled.
        self._encoding = dict(self._encoder.options) if is_default else None
        self._reorders = bool(layers)
        self._preprocessor = GraphPreprocessor(
            layers,
            _proportional_batcher(),
            task.preprocessor.plan,
            task.preprocessor.edge_weight,
        )
        self._processes = processes or os.cpu_count() or 1
        self._least = least

    def check(self, codes: Iterable[SourceCode]) -> Iterator[FileFindings]:
        """Yield the findings of each file; see `FindingSource`."""
        files: list[tuple[SourceCode, ReadFile]] = []
        nodes, window = 0, _FIRST_WINDOW
        with contextlib.closing(self._read(iter(codes))) as read:
            for code, file in read:
                files.append((code, file))
                if file.graphs is not None:
                    nodes += _num_nodes(file.graphs)
                if nodes >= window:
                    yield from self._judge(files)
                    files, nodes, window = [], 0, min(2 * window, _WINDOW)
            yield from self._judge(files)

    def _read(
        self, codes: Iterator[SourceCode]
    ) -> Iterator[tuple[SourceCode, ReadFile]]:
        """Yield files in order, read by other processes unless they are few."""
        first, size = [], 0
        for code in codes:
            first.append(code)
            size += len(code.text)
            if size >= _SMALL:
                break
        here = size < _SMALL
        reading: collections.deque[SourceCode] = collections.deque()

        def jobs() -> Iterator[tuple]:
            for code in itertools.chain(first, codes):
                reading.append(code)
                yield code.text, self._encoding

        outcomes = ordered_map(
            read_file,
            jobs(),
            processes=1 if here else self._processes,
            died=ReadFile(error="its process died"),
            here=here,
            ahead=_AHEAD,
        )
        with contextlib.closing(outcomes):
            for file in outcomes:
                self.seconds["reading"] += file.seconds
                yield reading.popleft(), file

    def _judge(
        self, files: list[tuple[SourceCode, ReadFile]]
    ) -> Iterator[FileFindings]:
        parts = [file.graphs for _, file in files if file.graphs is not None]
        if self._encoding is None:
            graphs = [self._encoder(graph) for part in parts for graph in part]
            parts = [FlatGraphs.from_graphs(graphs)] if graphs else []
        judged = iter(())
        if parts:
            judged = iter(self._probabilities(FlatGraphs.concatenate(parts)))
        for code, file in files:
            if file.error is not None:
                yield FileFindings(code, error=file.error)
                continue
            findings: list[Finding] = []
            for function in file.functions:
                findings += self._findings(code, function, next(judged))
            findings.sort(key=lambda finding: (finding.line, finding.column))
            skipped = (*code.skipped, *dict.fromkeys(file.reasons))
            yield FileFindings(code, tuple(findings), skipped)

    def _probabilities(self, graphs: FlatGraphs) -> list[np.ndarray]:
        """Return the probability of each rewrite for each graph, [2, R].

        The first row is that of training, the second one is calibrated.
        """
        from keras_bandgnn.batch import unbatch
        from keras_bandgnn.preprocessing.loading.shape_buckets import prediction_batches

        task, batcher = self._task, self._preprocessor.batcher
        began = time.perf_counter()
        loader = self._preprocessor.loader(
            graphs,
            adapt="edge" not in batcher.budget,
            shuffle=False,
            num_edge_types=task.backbone.num_edge_types,
            schedule=task.receptive_field(training=False),
            width=task.backbone.hidden_dim,
            plan=task.distribution.auto_plan(task, graphs),
            **task.distribution.loader_options(),
        )
        several = task.distribution.several
        batches = prediction_batches(loader, None if several else batcher)
        rows: list = [None] * len(graphs)
        model = 0.0
        for batch in batches:
            start = time.perf_counter()
            values = task.distribution.predict_on_batch(task, batch)
            model += time.perf_counter() - start
            for graph, scores in unbatch(values, batch, task.output_level):
                rows[graph] = scores[:, 0]
        if self._reorders:
            ordered = task.in_given_order(graphs, loader)
            rows = [ordered(graph, scores) for graph, scores in enumerate(rows)]
        # The types of rewrites follow that of no change.
        types = np.split(graphs.edge_type, graphs.edge_ptr[1:-1])
        shares = []
        for scores, kind in zip(rows, types, strict=True):
            unchanged = scores[kind == task.first_type]
            scores = np.append(unchanged, scores[kind > task.first_type])
            shares.append(np.stack([np.exp(scores), task.calibrated(scores)])[:, 1:])
        self.seconds["model"] += model
        self.seconds["packing"] += time.perf_counter() - began - model
        return shares

    def _findings(
        self, code: SourceCode, function: ReadFunction, shares: np.ndarray
    ) -> Iterator[Finding]:
        if not np.isfinite(shares).all():
            raise ValueError(
                "Expected finite probabilities. Received: NaN or infinity; the model "
                "diverged in training. Train it again with a smaller learning rate."
            )
        usages = function.rewrites[:, 0]
        excluded = np.isin(function.rewrites[:, 1], function.excluded)
        uncalibrated, shares = np.where(excluded, 0.0, shares)
        listed = uncalibrated >= self._least
        if self._task.calibration is not None:
            listed |= shares >= self.default_confidence / 20
        for usage in np.unique(usages[listed]).tolist():
            rows = np.flatnonzero(usages == usage)
            rows = rows[np.argsort(-shares[rows], kind="stable")]
            used = function.variables[function.used[usage]]
            names = [function.variables[k] for k in function.rewrites[rows, 1]]
            candidates = list(zip(names, shares[rows].tolist(), strict=True))
            candidates.append((used, max(0.0, 1.0 - float(shares[rows].sum()))))
            candidates.sort(key=lambda pair: -pair[1])
            line, column = function.places[usage]
            line += function.line - 1
            yield Finding(
                code.path,
                line,
                column + 1,
                name_end(code.lines[line - 1], column) + 1,
                used,
                names[0],
                float(shares[rows[0]]),
                tuple(candidates),
                function.name,
            )


def _num_nodes(graphs: FlatGraphs | list[FunctionGraph]) -> int:
    if isinstance(graphs, FlatGraphs):
        return int(graphs.node_ptr[-1])
    return sum(len(graph.labels) for graph in graphs)


def _proportional_batcher():
    """Return a batcher whose other capacities are in proportion to nodes.

    The functions of one file, as in an editor, are enough to estimate them.
    """
    from keras_bandgnn.preprocessing.batching.batcher import PER_GRAPH, round_up_64
    from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher

    class ProportionalBatcher(DynamicBatcher):
        def estimate_budget(self, sizes):
            factor = _ROOM * _NODES / max(int(np.sum(sizes["node"])), 1)
            budget = {"graph": _NODES // _NODES_PER_GRAPH + 2, **self.given}
            for name, values in sizes.items():
                if name in PER_GRAPH:
                    budget[name] = int(np.max(values, initial=1))
                elif name not in budget:
                    budget[name] = int(round_up_64(int(factor * np.sum(values))))
            return budget

        def split(self, sizes):
            # Without a warning: a few functions are always larger.
            large = ~self.fits(sizes)
            budgets = [dict(self.budget)]
            if large.any():
                budgets.append(self.bucket(sizes, large))
            return large.astype(np.int8), budgets

    return ProportionalBatcher(budget={"node": _NODES}, packing="best_fit")
