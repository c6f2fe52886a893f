"""`Prefetcher`: assembles batches in background threads, ahead of use."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

# A block has at most this many batches, and this many rows.
_LONGEST_BLOCK = 8
_MOST_ROWS = 131_072


def choose_block_length(sizes: Mapping[str, np.ndarray], batches: int) -> int:
    """Return how many batches one call should assemble.

    Args:
        sizes: Resource -> int [n], what each graph needs.
        batches: Batches of an epoch, over all hosts.
    """
    rows = sum(int(sizes[name].sum()) for name in ("node", "edge")) // batches
    return max(1, min(_LONGEST_BLOCK, _MOST_ROWS // max(rows, 1)))


class Prefetcher:
    """Builds blocks of consecutive batches, in background threads if there are any.

    Args:
        build: `build(indices, epoch)`, the batches of a range of indices.
        length: Batches of an epoch.
        block_length: Batches per block, built by one call.
        prefetch: Batches to build before they are requested; with 0 each block is
            built on request.
        threads: Number of threads.
    """

    def __init__(
        self,
        build: Callable,
        length: int,
        block_length: int,
        prefetch: int,
        threads: int,
    ):
        self._build = build
        self._length = length
        self._block_length = block_length
        self._blocks = max(threads, -(-prefetch // block_length)) if prefetch else 0
        self._lock = threading.Lock()
        self._threads = threads if prefetch else 0
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: dict[tuple[int, int], Future] = {}
        self._current: tuple = (None, [])
        self._last_index = -1

    def get(self, index: int, epoch: int):
        """Return batch `index` of an epoch."""
        block, place = divmod(index, self._block_length)
        current, last = self._current, self._last_index
        self._last_index = index
        if current[0] != (epoch, block):
            if index not in (0, last + 1):
                # Random access: the rest of the block would be built needlessly.
                return self._build(range(index, index + 1), epoch)[0]
            current = (epoch, block), self._block(block, epoch)
            self._current = current
            if (block + 1) * self._block_length >= self._length:
                # A loader that is kept after its last batch should not keep threads.
                self.stop()
        return current[1][place]

    def run_in_background(self, function: Callable, *arguments) -> None:
        """Call a function in the background, if there are threads."""
        if self._threads:
            # In a separate thread, which ends with the call: the pool may have stopped.
            pool = ThreadPoolExecutor(1, "graph-loader")
            pool.submit(function, *arguments)
            pool.shutdown(wait=False)

    def stop(self) -> None:
        """Stop the threads; the next request starts them again."""
        with self._lock:
            pool, self._pool = self._pool, None
            self._waiting = {}
        if pool is not None:
            pool.shutdown(wait=False)

    def _indices(self, block: int) -> range:
        first = block * self._block_length
        return range(first, min(first + self._block_length, self._length))

    def _block(self, block: int, epoch: int) -> list:
        if not self._threads:
            return self._build(self._indices(block), epoch)
        with self._lock:
            last = min(block + self._blocks, (self._length - 1) // self._block_length)
            keys = [(epoch, b) for b in range(block, last + 1)]
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, "graph-loader")
            self._waiting = {
                key: self._waiting.get(key)
                or self._pool.submit(self._build, self._indices(key[1]), epoch)
                for key in keys
            }
            future = self._waiting.pop((epoch, block))
        return future.result()
