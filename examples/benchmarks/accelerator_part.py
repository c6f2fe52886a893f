"""A part of `accelerator`: its time, its rows, and what it left out."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping

from examples.benchmarks import accelerator_device as device
from examples.benchmarks import figures
from keras_bandgnn.cli import interrupts, report

# Share of the time for building and compiling; the rest is for rounds.
_BUILDING = 0.7


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of what is measured.

    Args:
        degrees: Edges into each node, of plans.
        nodes: N, of plans and tiles.
        most_edges: E at most, of plans.
        width: H, of plans.
        most_plans: Plans at most; the usual ones come first.
        numeric_plans: Plans at most whose sums are compared with NumPy's.
        numeric_models: Models whose losses are compared with those on the CPU.
        most_models: Plans at most of GGNN.
        atoms: Models over atoms.
        lengths: Nodes of attention, the shortest first.
        attention_degrees: Edges into each node, of attention.
        heads: K.
        key_dim: d.
        longest: E at most, of attention.
        tile_edges: Edges in tiles.
        fills: Shares of a tile that are edges.
        product: Rows and columns of the largest product.
        batch_nodes: Nodes of a supergraph, of GGNN.
        graphs: Graphs to train on.
        hidden: Width of models.
        steps: Propagation steps of GGNN.
        molecules: Molecules in a batch of PaiNN.
        calibration: Seconds of the calibration; 0 leaves it out.
        repeats: Training steps before those of a record.
    """

    degrees: tuple[int, ...] = (3, 64, 16, 8, 32)
    nodes: int = 16_384
    most_edges: int = 2**19
    width: int = 128
    most_plans: int = 100
    numeric_plans: int = 100
    numeric_models: tuple[str, ...] = ("GGNN", "PaiNN")
    most_models: int = 100
    atoms: tuple[str, ...] = ("painn", "schnet")
    lengths: tuple[int, ...] = (1024, 4096, 16_384, 65_536, 262_144, 1_048_576)
    attention_degrees: tuple[int, ...] = (8, 64)
    heads: int = 8
    key_dim: int = 16
    longest: int = 2**24
    tile_edges: int = 2**18
    fills: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0)
    product: int = 8192
    batch_nodes: int = 16_384
    graphs: int = 400
    hidden: int = 128
    steps: int = 8
    molecules: int = 256
    calibration: float = 15.0
    repeats: int = 70


SMALL = Sizes(
    degrees=(3,),
    nodes=128,
    most_edges=512,
    width=8,
    most_plans=4,
    numeric_plans=2,
    numeric_models=("PaiNN",),
    most_models=2,
    atoms=("painn",),
    lengths=(32,),
    attention_degrees=(4,),
    heads=2,
    key_dim=4,
    longest=512,
    tile_edges=256,
    fills=(0.25,),
    product=64,
    batch_nodes=96,
    graphs=6,
    hidden=8,
    steps=2,
    molecules=3,
    calibration=0.0,
    repeats=2,
)


@dataclasses.dataclass
class Setting:
    """What all parts read.

    Args:
        sizes: The sizes.
        rounds: Alternated rounds.
        hardware: Constants of the cost model, after the calibration.
    """

    sizes: Sizes
    rounds: int
    hardware: object = None


class Outcome:
    """Whether an attempt succeeded."""

    succeeded = out_of_memory = False


class Part:
    """What a part measures, and until when.

    Args:
        name: Its name.
        seconds: The time it may take. What has begun is finished.

    Attributes:
        rows: Dicts of what was measured; `table` names the table of each.
        ratios: Rows of the file of figures, see `figures.row`.
        skipped: What was left out, and why.
        failed: What failed, and the error.
    """

    def __init__(self, name: str, seconds: float):
        self.name, self.start = name, time.monotonic()
        self.end, self.taken = self.start + seconds, 0.0
        self.rows: list[dict] = []
        self.ratios: list[dict] = []
        self.skipped: list[tuple[str, str]] = []
        self.failed: list[tuple[str, str]] = []

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.end - time.monotonic()

    def add(self, table: str, **values) -> None:
        """Add a row to a table."""
        self.rows.append({"table": table, **values})

    def ratio(self, name: str, ours: float, peer: float, unit: str = "ms") -> None:
        """Add a row to compare with another run."""
        self.ratios.append(figures.row(f"{self.name}, {name}", ours, peer, unit))

    def skip(self, what: str, reason: str) -> None:
        """Note what is left out."""
        self.skipped.append((what, reason))

    def has_time_for(self, what: str, seconds: float = 0.0) -> bool:
        """Return whether there is time for something, which is noted if not."""
        if self.left() > seconds:
            return True
        self.skip(what, f"no time: {max(self.left(), 0):.0f} s are left")
        return False

    @contextlib.contextmanager
    def share(self, remaining: int) -> Iterator[None]:
        """Limit the time to an equal share for each of so many pieces of work."""
        before = self.end
        self.end = min(before, time.monotonic() + max(self.left(), 0.0) / remaining)
        try:
            yield
        finally:
            self.end = before

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[Outcome]:
        """Note an error of a block, which does not stop the others."""
        outcome = Outcome()
        try:
            yield outcome
            outcome.succeeded = True
        except Exception as error:
            outcome.out_of_memory = device.is_out_of_memory(error)
            if outcome.out_of_memory:
                self.skip(what, "out of memory")
            elif isinstance(error, ImportError):
                self.skip(what, f"not installed: {error}")
            else:
                lines = str(error).strip().splitlines() or [""]
                text = f"{type(error).__name__}: {lines[0][:300]}"
                self.failed.append((what, text))
                report.say(f"{self.name}: {what} failed: {text}")
        if not outcome.succeeded:
            device.release()
        interrupts.check()


@dataclasses.dataclass
class Timing:
    """Times of a step.

    Args:
        first: Seconds of building, compiling and the first run.
        gib: Peak of the device's memory in the first run, or None.
        times: Milliseconds of the alternated rounds.
    """

    first: float
    gib: float | None
    times: list[float] = dataclasses.field(default_factory=list)

    @property
    def ms(self) -> float:
        """The median."""
        import numpy as np

        return float(np.median(self.times))


def alternated(
    part: Part, makers: Mapping[str, Callable], rounds: int, where: str
) -> dict[str, Timing]:
    """Return times of steps, run in turns.

    Args:
        part: The part, whose time limits what is built and the rounds; there is at
            least one round.
        makers: Functions that return a step; a step blocks until it is done.
        rounds: Number of rounds.
        where: What is measured, for messages.
    """
    steps, found = {}, {}
    begun, total = time.monotonic(), max(part.left(), 0.0)
    for name, make in makers.items():
        what = f"{where}: {name}"
        if time.monotonic() - begun > _BUILDING * total:
            part.skip(what, "no time left to build it")
            continue
        with part.attempt(what):
            peak, start = device.Peak(), time.perf_counter()
            step = make()
            step()
            taken = time.perf_counter() - start
            timing = Timing(taken, peak.gib())
            step()
            steps[name], found[name] = step, timing
    for number in range(rounds):
        if number and part.left() < 0:
            break
        for name in list(steps):
            with part.attempt(f"{where}: {name}") as outcome:
                start = time.perf_counter()
                steps[name]()
                found[name].times.append(1e3 * (time.perf_counter() - start))
            if not outcome.succeeded:
                del steps[name]
    steps.clear()
    device.release()
    return {name: timing for name, timing in found.items() if timing.times}
