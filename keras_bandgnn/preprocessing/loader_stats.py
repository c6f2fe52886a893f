"""`LoaderStats`: how full batches were, and what making them cost."""

import dataclasses
import threading
import time
from collections.abc import Mapping

import numpy as np


@dataclasses.dataclass
class LoaderStats:
    """Figures of the batches of one epoch, as far as it has been read.

    Attributes:
        epoch: Number of the epoch.
        batches: Batches that were handed out.
        graphs: Real graphs in them.
        used: Resource -> what the real graphs needed.
        padded: Resource -> what they were padded to.
        assembly_ms: Milliseconds of assembling each batch, in any thread.
        waited_s: Seconds in which the consumer waited for a batch.
        elapsed_s: Seconds from the first request to the last batch.
    """

    epoch: int = 0
    batches: int = 0
    graphs: int = 0
    used: dict[str, int] = dataclasses.field(default_factory=dict)
    padded: dict[str, int] = dataclasses.field(default_factory=dict)
    assembly_ms: list[float] = dataclasses.field(default_factory=list)
    waited_s: float = 0.0
    elapsed_s: float = 0.0

    def __post_init__(self):
        self._lock = threading.Lock()
        self._began = None

    @property
    def fill(self) -> dict[str, float]:
        """Share of each resource that real graphs used."""
        return {k: self.used[k] / v for k, v in self.padded.items() if v}

    @property
    def waiting(self) -> float:
        """Share of the time in which the consumer waited for batches."""
        return self.waited_s / self.elapsed_s if self.elapsed_s else 0.0

    def assembled(self, seconds: float, batches: int) -> None:
        """Counts the work of batches that were built together."""
        with self._lock:
            self.assembly_ms += [1000 * seconds / batches] * batches

    def handed_out(self, began: float, figures: Mapping) -> None:
        """Counts a batch that was asked for at `began` and is ready now.

        Args:
            began: From `time.perf_counter`.
            figures: Resource -> rows that are real, and all rows.
        """
        now = time.perf_counter()
        with self._lock:
            self._began = began if self._began is None else self._began
            self.waited_s += now - began
            self.elapsed_s = now - self._began
            self.batches += 1
            self.graphs += figures["graph"][0]
            for name, (used, padded) in figures.items():
                self.used[name] = self.used.get(name, 0) + used
                self.padded[name] = self.padded.get(name, 0) + padded

    def summary(self) -> str:
        """The figures as a few lines of text."""
        fill = ", ".join(f"{k} {100 * v:.1f} %" for k, v in self.fill.items())
        times = np.array(self.assembly_ms or [0.0])
        return (
            f"epoch {self.epoch}: {self.batches} batches, {self.graphs} graphs\n"
            f"filled: {fill}\n"
            f"assembly: median {np.median(times):.2f} ms, mean {times.mean():.2f} ms "
            f"a batch; waited for batches {100 * self.waiting:.1f} % of the time"
        )
