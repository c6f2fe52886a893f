"""Programs for other runtimes: operations that every export format can carry.

Some operations are fast on one backend only: sparse matrices, loops inside of the
program, gradients written by hand. While `portable()` is in force, a program that is
traced has gathers, segment sums and dense products in their place. Formats differ in
which segment sums they carry:

`"segment"`
    The backend's own.
`"scatter"`
    Additions into zeros. (tf2onnx pads segments to the longest one, which padded edges
    make as long as the edges.)
`"one_hot"`
    Products with a matrix of ones and zeros, [segments, rows]. No scatter is left.
"""

import contextlib
import threading
from collections.abc import Iterator

_tracing = threading.local()


def portable_sums() -> str | None:
    """How sums are written in the program that is traced; None for this process."""
    return getattr(_tracing, "sums", None)


def is_portable() -> bool:
    """Whether the program that is being traced is meant for another runtime."""
    return portable_sums() is not None


@contextlib.contextmanager
def portable(sums: str = "segment") -> Iterator[None]:
    """Makes what is traced in this thread a program for another runtime.

    Args:
        sums: `"segment"`, `"scatter"` or `"one_hot"`.
    """
    before = portable_sums()
    _tracing.sums = sums
    try:
        yield
    finally:
        _tracing.sums = before
