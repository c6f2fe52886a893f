"""`ReusedMemory`: memory of arrays that is used again once nobody holds them."""

import collections
import mmap
import weakref

import numpy as np

# Smaller arrays come from the allocator.
_LEAST_BYTES = 1 << 20
# Pieces of memory of a size that wait to be used again.
_MOST_KEPT = 4


class ReusedMemory:
    """Gives large arrays, whose memory is used again when they are gone.

    Fresh memory is handed out by the system page by page, and filled with zeros, which
    takes as long as gathering the rows of a batch. What comes from here goes back when
    the array, all of its views, and the tensors that share its memory are collected.
    """

    def __init__(self):
        self._free = collections.defaultdict(collections.deque)

    def __reduce__(self):
        return ReusedMemory, ()

    def empty(self, shape: tuple[int, ...], dtype) -> np.ndarray:
        """Return an array with any content.

        Args:
            shape: Its shape.
            dtype: Its dtype.
        """
        dtype = np.dtype(dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        if size < _LEAST_BYTES:
            return np.empty(shape, dtype)
        free = self._free[size]
        try:
            memory = free.pop()
        except IndexError:
            memory = mmap.mmap(-1, size)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                memory.madvise(mmap.MADV_HUGEPAGE)
        # Views of it refer to this array, not to the memory behind it.
        base = np.frombuffer(memory, dtype)
        weakref.finalize(base, _give_back, free, memory).atexit = False
        return base.reshape(shape)


def _give_back(free: collections.deque, memory) -> None:
    if len(free) < _MOST_KEPT:
        free.append(memory)
