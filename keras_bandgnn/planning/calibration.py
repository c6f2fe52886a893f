"""`calibrate`: measures this machine with the library's kernels."""

import dataclasses
import datetime
import time
from collections.abc import Callable, Iterator

import numpy as np
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import function, one_of, optional, positive_number
from keras_bandgnn.ops.attention import edge_attention, tile_attention
from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.planning.cost import (
    BLOCK_SIZES,
    GROUP_SIZES,
    PRODUCT_SIZES,
    WRITE_BYTES,
    Hardware,
    bytes_of,
    device,
    machine,
)

_WIDTH = 64
_TYPES = 8
_FILLED = 64
_CHAIN = 16
_HEADS = 8
_TILE = 16
_LEAST_ROUNDS = 3
# Rows of a typical supergraph; accelerators need more to be saturated.
_ROWS, _MANY_ROWS = 8192, 65536


@dataclasses.dataclass
class _Trial:
    """A timed step, forward and backward.

    Args:
        name: The constant that it measures.
        amount: Amount of work per run, in the unit of the constant.
        function: Function of the leaves and the constants.
        leaves: Tensors with a gradient.
        constants: Tensors without.
    """

    name: str
    amount: float
    function: Callable
    leaves: tuple
    constants: tuple = ()
    seconds: list[float] = dataclasses.field(default_factory=list)

    @property
    def rate(self) -> float:
        # Other load on the machine only adds time, so the fastest runs are used.
        return self.amount / float(np.quantile(self.seconds, 0.25))


def calibrate(
    dtype: str = "float32", seconds: float = 30, progress: Callable | None = None
) -> Hardware:
    """Measure the constants of this machine and the current backend.

    Args:
        dtype: dtype of the states.
        seconds: Approximate time to measure, not counting compilation.
        progress: Called periodically with (done, total).

    Returns:
        The constants. `Hardware.save` stores them for `plan="auto"`.
    """
    one_of("dtype", dtype, ("float32", "bfloat16", "float16", "float64"))
    seconds = positive_number("seconds", seconds)
    optional(function, "progress", progress)
    rows = _ROWS if device()[0] == "cpu" else _MANY_ROWS
    trials = list(_trials(dtype, rows))
    _measure(trials, seconds, progress or (lambda done, total: None))
    rates: dict[str, list[float]] = {}
    for trial in trials:
        rates.setdefault(trial.name, []).append(trial.rate)
    # A sparse product also writes its rows, which the cost model counts separately.
    size = len(PRODUCT_SIZES)
    (sparse,) = (trial for trial in trials if trial.name == "sparse")
    taken = sparse.amount / sparse.rate
    writing = 2 * rows * _WIDTH * bytes_of(dtype) / rates["write"][0]
    system = machine()
    return Hardware(
        matmul=tuple(
            tuple(rates["matmul"][first : first + size])
            for first in range(0, size**2, size)
        ),
        blocks=tuple(rates["blocks"]),
        grouped=tuple(rates["grouped"]),
        gather=rates["gather"][0],
        scatter=rates["scatter"][0],
        sparse=sparse.amount / max(taken - writing, taken / 2),
        write=tuple(rates["write"]),
        launch=1 / rates["launch"][0],
        edge_attention=rates["edge_attention"][0],
        tile_attention=rates["tile_attention"][0],
        itemsize=bytes_of(dtype),
        name=f"{system['backend']} {system['backend_version']}, {system['device']}, "
        f"{dtype}",
        date=datetime.date.today().isoformat(),
    )


def _measure(trials: list[_Trial], seconds: float, progress: Callable) -> None:
    """Run the trials in alternation, so that other load affects all equally."""
    runs, total = [], 2 * len(trials)
    for trial in trials:
        run = backend.compiled_timer_step(trial.function, trial.leaves, trial.constants)
        run()
        runs.append(run)
        progress(len(runs), total)
    began, rounds = time.perf_counter(), 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() - began < seconds:
        for trial, run in zip(trials, runs, strict=True):
            start = time.perf_counter()
            run()
            trial.seconds.append(time.perf_counter() - start)
        rounds += 1
        share = min((time.perf_counter() - began) / seconds, 1.0)
        progress(len(trials) + int(share * len(trials)), total)
    progress(total, total)


def _trials(dtype: str, rows: int) -> Iterator[_Trial]:
    rng = np.random.default_rng(0)
    itemsize = bytes_of(dtype)

    def states(*shape):
        return ops.convert_to_tensor(rng.normal(size=shape), dtype)

    def ids(limit, count):
        drawn = np.sort(rng.integers(0, limit, (1, count)), axis=1)
        return ops.convert_to_tensor(drawn, "int32")

    def shuffled(limit, count):
        return ops.convert_to_tensor(rng.integers(0, limit, (1, count)), "int32")

    yield _Trial("launch", 3 * _CHAIN, _chain, (states(8, 8), states(8, 8) / 8))
    for inner in PRODUCT_SIZES:
        for columns in PRODUCT_SIZES:
            leaves = (states(rows, inner), states(inner, columns))
            yield _Trial("matmul", 6 * rows * inner * columns, ops.matmul, leaves)
    for size in BLOCK_SIZES:
        count = rows // size
        leaves, blocks = (states(count, size, _WIDTH),), (states(count, size, size),)
        yield _Trial("blocks", 4 * rows * size * _WIDTH, _block_product, leaves, blocks)
    leaves = (states(1, rows, _WIDTH), states(_TYPES, _WIDTH, _WIDTH))
    for size in GROUP_SIZES:
        kinds = (ids(_TYPES, rows // size),)
        yield _Trial("grouped", 6 * rows * _WIDTH**2, _grouped_product, leaves, kinds)
    # About as many rows are gathered and summed as a sparse graph has edges.
    count = 2 * rows
    moved = count * _WIDTH * itemsize
    index = graph_ops.with_scatter_index(shuffled(rows, count), rows)
    yield _Trial("gather", moved, _read, (states(1, rows, _WIDTH),), (index,))
    leaves, constants = (states(1, count, _WIDTH),), (shuffled(rows, count),)

    def add(x, ids):
        return graph_ops.batched_segment_sum(x, ids, rows)

    yield _Trial("scatter", moved, add, leaves, constants)
    entries = 8 * rows
    matrix = graph_ops.CSR(ids(rows, entries), shuffled(rows, entries))
    matrix = graph_ops.with_transpose(matrix, rows, rows)
    leaves = (states(1, rows, _WIDTH),)
    yield _Trial("sparse", entries * _WIDTH, _sparse_product, leaves, (matrix,))
    yield from _attention_trials(states, ids, shuffled, rows)
    for size in WRITE_BYTES:
        place = ops.arange(_FILLED, dtype="int32")

        def fill(values, place, length=size // itemsize):
            return graph_ops.scatter_add((place,), values, (length,))

        yield _Trial("write", size, fill, (states(_FILLED),), (place,))


def _attention_trials(states, ids, shuffled, rows: int) -> Iterator[_Trial]:
    """Yield trials of the same number of edges, as single edges and as full tiles."""
    count = 8 * rows
    leaves = tuple(states(1, rows, _WIDTH) for _ in range(3))
    bias = ops.zeros((1, count, _HEADS), "float32")
    ends = shuffled(rows, count), ids(rows, count)

    def along_edges(q, k, v, bias, sender, receiver):
        return edge_attention(q, k, v, bias, None, sender, receiver, _HEADS)[0]

    def in_tiles(q, k, v, bias, tiles):
        return tile_attention(q, k, v, bias, None, tiles, _HEADS)[0]

    amount = count * _WIDTH
    yield _Trial("edge_attention", amount, along_edges, leaves, (bias, *ends))
    number, blocks = count // _TILE**2, rows // _TILE
    tiles = {
        "row": ids(blocks, number),
        "column": shuffled(blocks, number),
        "edge": ops.reshape(
            ops.arange(count, dtype="int32"), (1, number, _TILE, _TILE)
        ),
    }
    yield _Trial("tile_attention", amount, in_tiles, leaves, (bias, tiles))


def _chain(x, weight):
    for _ in range(_CHAIN):
        x = ops.matmul(x, weight)
    return x


def _block_product(x, blocks):
    return ops.matmul(blocks, x)


def _grouped_product(x, kernel, kinds):
    return graph_ops.grouped_matmul(x, kinds, kernel)


def _read(x, arrays):
    return graph_ops.gather_rows(arrays, x)


def _sparse_product(x, matrix):
    return graph_ops.sparse_matmul(matrix, x)
