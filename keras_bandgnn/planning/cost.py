"""`Hardware`: the constants of the cost model for a machine."""

import dataclasses
import hashlib
import os
import platform
import warnings
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np

from keras_bandgnn.config import cache_folder
from keras_bandgnn.data.files import atomic_write, json_text
from keras_bandgnn.data.reading import read_json
from keras_bandgnn.ops.backend import current as backend


def device() -> tuple[str, str]:
    """Return the type of the device, `"cpu"`, `"gpu"` or `"tpu"`, and its name."""
    return backend.device()


def machine() -> dict:
    """Return what times depend on besides the work: device, cores, versions."""
    kind, name = device()
    return {
        "device": cpu_model() if kind == "cpu" else name,
        "kind": kind,
        "cores": os.cpu_count(),
        "backend": keras.backend.backend(),
        "backend_version": backend.version(),
        "keras_version": keras.version(),
    }


def cpu_model() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(": ")[2].strip() for line in lines if "model name" in line]
    return models[0] if models else platform.machine()


VERSION = 3
# Sizes at which constants are measured; between them, logarithms are interpolated.
PRODUCT_SIZES = (16, 64, 256)
BLOCK_SIZES = (16, 32, 64, 128, 256)
GROUP_SIZES = (16, 64, 256)
WRITE_BYTES = (2**22, 2**26)
# Memory moves in cache lines: a row of one number costs as much as one of 16.
_LINE = 64


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Constants of a machine, a backend and a dtype. All include the backward pass.

    Args:
        matmul: FLOP/s of products [rows, inner] @ [inner, columns], at
            `PRODUCT_SIZES` of inner (outer tuple) and of columns (inner tuples).
        blocks: FLOP/s of batched products of dense blocks, which have no gradient,
            at `BLOCK_SIZES` of the columns of a block.
        grouped: FLOP/s of rows of width 64 times the kernels of their groups, at
            `GROUP_SIZES` of the rows of a group.
        gather: Bytes/s of row gathers.
        scatter: Bytes/s of row scatter-adds.
        sparse: Entries times channels per second of sparse products.
        write: Bytes/s for filling new arrays of `WRITE_BYTES` bytes.
        launch: Overhead of an operation in seconds.
        edge_attention: Edges times channels per second of attention along edges.
        tile_attention: Entries times channels per second of attention in tiles of 16.
        itemsize: Bytes of a number.
        name: Backend, device and dtype.
        date: Day of the calibration, ISO 8601; empty for default constants.

    Example:
    >>> hardware = Hardware.default("torch", "cpu")
    >>> hardware.matmul_seconds(8192, 64, 64) < hardware.matmul_seconds(8192, 256, 64)
    True
    """

    matmul: tuple[tuple[float, ...], ...]
    blocks: tuple[float, ...]
    grouped: tuple[float, ...]
    gather: float
    scatter: float
    sparse: float
    write: tuple[float, ...]
    launch: float
    edge_attention: float = 2e8
    tile_attention: float = 7e8
    itemsize: int = 4
    name: str = ""
    date: str = ""

    def matmul_flops(self, inner: float, columns: float) -> float:
        """Return FLOP/s of a product with a matrix [inner, columns]."""
        rates = [_between(PRODUCT_SIZES, row, columns) for row in self.matmul]
        return _between(PRODUCT_SIZES, rates, inner)

    def matmul_seconds(
        self, rows: float, inner: float, columns: float, blocks: bool = False
    ) -> float:
        """Return the time of a dense product [rows, inner] @ [inner, columns].

        Args:
            rows: Rows of the first matrix.
            inner: Its columns.
            columns: Columns of the second matrix.
            blocks: Whether the first matrix is a batch of dense blocks with `inner`
                columns each. Blocks have no gradient, so the backward pass is one
                product.
        """
        flops = 2 * rows * inner * columns
        if blocks:
            rate = _between(BLOCK_SIZES, self.blocks, inner)
            return 2 * (flops / rate + self.launch)
        return 3 * (flops / self.matmul_flops(inner, columns) + self.launch)

    def grouped_seconds(
        self, rows: float, width: int, units: int, group_size: int
    ) -> float:
        """Return the time to multiply groups of rows by kernels [width, units]."""
        rate = self.matmul_flops(width, units) / self.matmul_flops(64, 64)
        rate *= _between(GROUP_SIZES, self.grouped, group_size)
        flops = 2 * rows * width * units
        return 3 * (flops / rate + self.launch)

    def gather_seconds(self, rows: float, width: float) -> float:
        """Return the time to gather rows; the gradient scatters them."""
        return self._row_bytes(rows, width) / self.gather + 2 * self.launch

    def scatter_seconds(self, rows: float, width: float) -> float:
        """Return the time to scatter-add rows; the gradient gathers them."""
        return self._row_bytes(rows, width) / self.scatter + 2 * self.launch

    def sparse_seconds(self, entries: float, rows: float, width: int) -> float:
        """Return the time of a sparse product with `rows` rows, and its transpose."""
        seconds = entries * width / self.sparse
        return seconds + 2 * self.write_seconds(rows * width) + 2 * self.launch

    def write_seconds(self, entries: float) -> float:
        """Return the time to fill a new array."""
        size = entries * self.itemsize
        return size / _between(WRITE_BYTES, self.write, size) + self.launch

    @property
    def tile_fill(self) -> float:
        """Share of a tile's entries that must be edges for the tile to pay off."""
        return self.edge_attention / self.tile_attention

    def _row_bytes(self, rows: float, width: float) -> float:
        return rows * max(width * self.itemsize, _LINE)

    @classmethod
    def default(cls, backend: str, accelerator: str, dtype: str = "float32"):
        """Return constants of a typical machine.

        Those of CPUs were measured on two cores, those of GPUs on one H200 with torch.
        Those of TPUs are only orders of magnitude; calibrate to replace them.

        Args:
            backend: `"jax"`, `"tensorflow"` or `"torch"`.
            accelerator: `"cpu"`, `"gpu"` or `"tpu"`.
            dtype: dtype of the states.
        """
        constants = _DEFAULTS.get(accelerator, _DEFAULTS["gpu"])
        if accelerator == "cpu":
            constants = constants | _CPU.get(backend, {})
        return cls(
            **constants,
            itemsize=bytes_of(dtype),
            name=f"{backend}, {accelerator}, {dtype}",
        )

    @classmethod
    def calibrated(cls, dtype: str = "float32") -> "Hardware | None":
        """Return the constants that `bandgnn calibrate` measured here, or None.

        A file that cannot be read is ignored with a warning.
        """
        path = cls.path(dtype)
        try:
            constants = read_json(path)
            if constants["version"] != VERSION:
                return None
            return cls.from_dict(constants)
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, ValueError, OverflowError) as error:
            warnings.warn(
                f"Expected the constants of this machine in {path}. Received: "
                f"{type(error).__name__}: {error}. Default constants are used; run "
                "`bandgnn calibrate` to measure them again.",
                stacklevel=2,
            )
            return None

    @classmethod
    def current(cls, dtype: str = "float32") -> "Hardware":
        """Return the calibrated constants of this machine, or the default ones."""
        kind, _ = device()
        return cls.calibrated(dtype) or cls.default(
            keras.backend.backend(), kind, dtype
        )

    @staticmethod
    def path(dtype: str = "float32") -> Path:
        """Return the file of the constants for this machine, backend and dtype."""
        description = {"version": VERSION, "dtype": dtype, **machine()}
        description = json_text("machine", description)
        name = hashlib.sha256(description.encode()).hexdigest()[:16]
        return cache_folder() / "hardware" / f"{name}.json"

    def save(self, dtype: str = "float32") -> Path:
        """Write the constants for `calibrated`; return the file."""
        path = self.path(dtype)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(json_text("hardware", self.to_dict(), indent=1).encode())
        return path

    def to_dict(self) -> dict:
        """Return a plain description; `from_dict` reads it."""
        return {"version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, constants: Mapping) -> "Hardware":
        """Read `to_dict()`.

        Raises:
            ValueError: For another version, missing names or impossible values.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        version = constants.get("version")
        if version != VERSION or set(constants) != names | {"version"}:
            raise ValueError(
                f"Expected constants of version {VERSION}: {sorted(names)}. Received: "
                f"version {version}, {sorted(constants)}. Calibrate again."
            )
        values = {name: constants[name] for name in names}
        texts = {name: str(values.pop(name)) for name in ("name", "date")}
        shapes = {
            "matmul": (len(PRODUCT_SIZES),) * 2,
            "blocks": (len(BLOCK_SIZES),),
            "grouped": (len(GROUP_SIZES),),
            "write": (len(WRITE_BYTES),),
        }
        for name, value in values.items():
            array = np.asarray(value, "float64")
            if array.shape != shapes.get(name, ()) or not (
                np.isfinite(array).all() and (array > 0).all()
            ):
                raise ValueError(
                    f"Expected positive numbers of shape {shapes.get(name, ())} for "
                    f"`{name}`. Received: {value!r}. Calibrate again."
                )
            values[name] = _tuples(array.tolist())
        values["itemsize"] = int(values["itemsize"])
        return cls(**values, **texts)


def bytes_of(dtype: str) -> int:
    """Return the bytes of a float dtype, including those that NumPy lacks."""
    return int(dtype.removeprefix("b").removeprefix("float")) // 8


def _tuples(value):
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _between(sizes, rates, size: float) -> float:
    logs = np.log(rates)
    return float(np.exp(np.interp(np.log(max(size, 1)), np.log(sizes), logs)))


# Measured on two cores with a supergraph of 8,192 nodes; the ratios matter.
_DEFAULTS = {
    "cpu": {
        "matmul": ((2e10, 4e10, 5e10), (4e10, 9e10, 1.1e11), (6e10, 1.2e11, 1.35e11)),
        "blocks": (1.2e10, 2.5e10, 5e10, 8e10, 1e11),
        "grouped": (2.8e10, 6.5e10, 7.3e10),
        "gather": 3e9,
        "scatter": 1e9,
        "sparse": 2e9,
        "write": (5e9, 8e8),
        "launch": 1e-5,
    },
    "gpu": {
        "matmul": (
            (2.4e11, 1.2e12, 5.4e12),
            (1.4e12, 5.7e12, 2.2e13),
            (6e12, 2.1e13, 3.9e13),
        ),
        "blocks": (7e11, 1.8e12, 3.9e12, 8.3e12, 1.6e13),
        "grouped": (2.2e12, 2.45e12, 2.65e12),
        "gather": 4.2e10,
        "scatter": 5.1e10,
        # With `calibrate` 4.6e10; this one fits sums of 50,000 to 500,000 edges.
        "sparse": 8e10,
        "write": (5.9e9, 1.4e11),
        # Of an operation in a graph or a compiled program; 4e-5 when torch calls it.
        "launch": 5e-6,
        # Along 4 million edges.
        "edge_attention": 8e9,
        "tile_attention": 2.4e10,
    },
    # Rows are gathered and summed one after the other; blocks below 128 leave most of
    # the matrix unit idle.
    "tpu": {
        "matmul": ((1e12, 3e12, 6e12), (4e12, 1.5e13, 3e13), (8e12, 3e13, 6e13)),
        "blocks": (3e11, 1.2e12, 6e12, 4e13, 5e13),
        "grouped": (5e11, 2e12, 1e13),
        "gather": 2e10,
        "scatter": 1e10,
        "sparse": 2e9,
        "write": (5e11, 5e11),
        "launch": 2e-6,
        "edge_attention": 2e9,
        "tile_attention": 4e11,
    },
}
_CPU = {
    "jax": {"sparse": 2.8e9, "launch": 3e-6},
    "torch": {"sparse": 1.8e9, "grouped": (6e10, 6e10, 6e10)},
    "tensorflow": {"sparse": 1.2e9, "launch": 5e-6},
}
