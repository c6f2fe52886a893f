"""`Hardware`: the measured constants of the cost model; `calibrate` measures them."""

import dataclasses
import datetime
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import one_of
from keras_bandgnn.config import cache_folder, cpu_model
from keras_bandgnn.data.files import write_json
from keras_bandgnn.data.reading import read_json, refuse_file
from keras_bandgnn.ops.backend import current as backend

# Each rate, and the sizes at which it is measured; between them, logarithms are
# interpolated. Sizes are the width of a kernel, the columns of a block, the rows of a
# group and the bytes of a new array.
SIZES = {
    "matmul": (16, 64, 256),
    "blocks": (16, 32, 64, 128, 256),
    "grouped": (16, 64, 256),
    "write": (2**22, 2**26),
    **dict.fromkeys(("gather", "scatter", "sparse", "launch"), (1,)),
}
# Memory moves in cache lines: a row of one number costs as much as one of 16.
_LINE = 64
# Larger arrays of a plan are out of the question.
_LARGEST = 2**31


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Rates of a machine, a backend and a dtype, including the backward pass.

    Args:
        rates: Rate -> its values at `SIZES`, per second: FLOPs of products (`matmul`),
            of products of dense blocks, which have no gradient (`blocks`), and of rows
            of width 64 times the kernel of their group (`grouped`); bytes of rows that
            are gathered (`gather`) or added up (`scatter`) and of new arrays (`write`);
            entries times channels of sparse products (`sparse`); operations (`launch`).
        itemsize: Bytes of a number.
        name: Backend, device and dtype.
        date: Day of the calibration, ISO 8601.
    """

    rates: Mapping[str, Sequence[float]]
    itemsize: int
    name: str
    date: str

    def rate(self, name: str, size: float = 1) -> float:
        """Return a rate at a size."""
        logs = np.log(SIZES[name]), np.log(self.rates[name])
        return float(np.exp(np.interp(np.log(max(size, 1)), *logs)))

    def matmul_seconds(
        self, rows: float, inner: float, columns: float, blocks: bool = False
    ) -> float:
        """Return the time of a product [rows, inner] @ [inner, columns].

        With `blocks` the first matrix is a batch of dense blocks of `inner` columns.
        They have no gradient, so the backward pass is one product.
        """
        flops = 2 * rows * inner * columns
        if blocks:
            return 2 * (flops / self.rate("blocks", inner) + self.launch)
        return 3 * (flops / self.rate("matmul", (inner * columns) ** 0.5) + self.launch)

    def grouped_seconds(
        self, rows: float, width: float, units: float, group_size: int
    ) -> float:
        """Return the time to multiply groups of rows by kernels [width, units]."""
        rate = self.rate("grouped", group_size) / self.rate("matmul", 64)
        rate *= self.rate("matmul", (width * units) ** 0.5)
        return 3 * (2 * rows * width * units / rate + self.launch)

    def gather_seconds(self, rows: float, width: float, rate: str = "gather") -> float:
        """Return the time to gather rows; the gradient scatters them."""
        size = rows * max(width * self.itemsize, _LINE)
        return size / self.rate(rate) + 2 * self.launch

    def scatter_seconds(self, rows: float, width: float) -> float:
        """Return the time to scatter-add rows; the gradient gathers them."""
        return self.gather_seconds(rows, width, "scatter")

    def sparse_seconds(self, entries: float, rows: float, width: float) -> float:
        """Return the time of a sparse product with `rows` rows, and its transpose."""
        seconds = entries * width / self.rate("sparse")
        return seconds + 2 * self.write_seconds(rows * width) + 2 * self.launch

    def write_seconds(self, entries: float) -> float:
        """Return the time to fill a new array; infinite for arrays above 2 GiB."""
        size = entries * self.itemsize
        seconds = size / self.rate("write", size) + self.launch
        return seconds if size <= _LARGEST else math.inf

    @property
    def launch(self) -> float:
        """Overhead of an operation in seconds."""
        return 1 / self.rate("launch")

    @classmethod
    def calibrated(cls, dtype: str = "float32") -> "Hardware | None":
        """Return the constants that `bandgnn calibrate` measured here, or None."""
        path = cls.path(dtype)
        return cls.from_file(path) if path.exists() else None

    @staticmethod
    def path(dtype: str = "float32") -> Path:
        """Return the file of the constants for this machine, backend and dtype."""
        name = re.sub(r"\W+", "-", machine(dtype))
        return cache_folder() / "hardware" / f"{name}.json"

    def save(self, dtype: str = "float32") -> Path:
        """Write the constants for `calibrated`; return the file."""
        path = self.path(dtype)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, dataclasses.asdict(self), indent=1)
        return path

    @classmethod
    def from_file(cls, path: Path) -> "Hardware":
        """Read a file of `save`; raise a ValueError for anything else."""
        constants = read_json(path)
        try:
            hardware = cls(**constants)
            rates = [hardware.rates[name] for name in SIZES]
            valid = list(map(len, rates)) == list(map(len, SIZES.values()))
            valid &= all(min(r) > 0 and math.isfinite(sum(r)) for r in rates)
            valid &= hardware.itemsize in (2, 4, 8)
        except (KeyError, TypeError, ValueError, OverflowError):
            valid = False
        if not valid:
            expected = "to have constants that `bandgnn calibrate` measured"
            refuse_file(path, expected, constants, "Run `bandgnn calibrate` again.")
        return hardware


def machine(dtype: str = "float32") -> str:
    """Return the environment that times depend on: device, backend, versions."""
    kind, device = backend.device()
    device = f"{cpu_model()}, {os.cpu_count()} cores" if kind == "cpu" else device
    name = f"{keras.backend.backend()} {backend.version()}, Keras {keras.version()}"
    return f"{name}, {device}, {dtype}"


# === Calibration ===

_WIDTH, _TYPES, _CHAIN, _FILLED = 64, 8, 16, 64
_ROUNDS = 40
# Rows of a typical supergraph; accelerators need more to be saturated.
_ROWS, _MANY_ROWS = 8192, 65536


def calibrate(
    dtype: str = "float32", progress: Callable = lambda done, total: None
) -> Hardware:
    """Measure the constants of this machine and the current backend.

    Args:
        dtype: dtype of the states.
        progress: Called with (done, total) after each step that was timed.

    Returns:
        The constants. `Hardware.save` stores them for `plan="auto"`.
    """
    one_of("dtype", dtype, ("float32", "bfloat16", "float16", "float64"))
    itemsize = int(dtype.removeprefix("b").removeprefix("float")) // 8
    rows = _ROWS if backend.device()[0] == "cpu" else _MANY_ROWS
    work, runs = _trials(dtype, itemsize, rows)
    # In alternation, so that other load affects all equally. The first compiles.
    times = np.zeros((1 + _ROUNDS, len(runs)))
    for number, place in enumerate(np.ndindex(times.shape), 1):
        start = time.perf_counter()
        runs[place[1]]()
        times[place] = time.perf_counter() - start
        progress(number, times.size)
    rates = {name: [] for name in SIZES}
    # Other load only adds time.
    times = np.quantile(times[1:], 0.25, axis=0).tolist()
    for (name, amount), taken in zip(work, times, strict=True):
        rates[name].append(amount / taken)
    # A sparse product also writes its rows, which the cost model counts separately.
    entries, written = dict(work)["sparse"], 2 * rows * _WIDTH * itemsize
    taken = entries / rates["sparse"][0]
    rates["sparse"] = [entries / max(taken - written / rates["write"][0], taken / 2)]
    date = datetime.date.today().isoformat()
    return Hardware(rates, itemsize, machine(dtype), date)


def _chain(x, weight):
    for _ in range(_CHAIN):
        x = ops.matmul(x, weight)
    return x


def _grouped(x, kernel, types):
    return graph_ops.grouped_matmul(x, types, kernel)


def _trials(dtype: str, itemsize: int, rows: int) -> tuple[list, list[Callable]]:
    """Return (rate, amount of work in its unit) of steps, and functions that run them.

    A step is the forward and the backward pass of a function of some `leaves`, which
    have gradients, and `constants`.
    """
    rng = np.random.default_rng(0)
    work, runs = [], []

    def add(name, amount, function, leaves, *constants):
        work.append((name, amount))
        runs.append(backend.compiled_timer_step(function, leaves, constants))

    def states(*shape):
        return ops.convert_to_tensor(rng.normal(size=shape), dtype)

    def ids(limit, count):
        return ops.convert_to_tensor(rng.integers(0, limit, (1, count)), "int32")

    def ascending(limit, count):
        return ops.sort(ids(limit, count), axis=1)

    add("launch", 3 * _CHAIN, _chain, (states(8, 8), states(8, 8) / 8))
    for n in SIZES["matmul"]:
        add("matmul", 6 * rows * n * n, ops.matmul, (states(rows, n), states(n, n)))
    for n in SIZES["blocks"]:
        x, blocks = states(rows // n, n, _WIDTH), states(rows // n, n, n)
        flops = 4 * rows * n * _WIDTH
        add("blocks", flops, lambda x, blocks: ops.matmul(blocks, x), (x,), blocks)
    x, kernel = states(1, rows, _WIDTH), states(_TYPES, _WIDTH, _WIDTH)
    for n in SIZES["grouped"]:
        flops, types = 6 * rows * _WIDTH**2, ascending(_TYPES, rows // n)
        add("grouped", flops, _grouped, (x, kernel), types)
    # About as many rows are gathered and summed as a sparse graph has edges.
    count, moved = 2 * rows, 2 * rows * _WIDTH * itemsize
    index = graph_ops.with_scatter_index(ids(rows, count), rows)
    add("gather", moved, lambda x, index: graph_ops.gather_rows(index, x), (x,), index)

    def scatter(messages, receivers):
        return graph_ops.batched_segment_sum(messages, receivers, rows)

    add("scatter", moved, scatter, (states(1, count, _WIDTH),), ids(rows, count))
    matrix = graph_ops.CSR(ascending(rows, 8 * rows), ids(rows, 8 * rows))
    matrix = graph_ops.with_transpose(matrix, rows, rows)

    def product(x, matrix):
        return graph_ops.sparse_matmul(matrix, x)

    add("sparse", 8 * rows * _WIDTH, product, (x,), matrix)
    for size in SIZES["write"]:

        def fill(values, place, length=size // itemsize):
            return graph_ops.scatter_add((place,), values, (length,))

        add("write", size, fill, (states(_FILLED),), ops.arange(_FILLED, dtype="int32"))
    return work, runs
