"""Portable tracing: only operations that every export format supports.

Some operations are specific to one backend: sparse matrices, loops inside the program,
custom gradients. Within `portable()`, tracing replaces them by gathers, segment sums
and dense products. Export formats differ in the segment sums that they support:

`"segment"`
    The backend's native segment sum.
`"scatter"`
    Scatter-add into zeros. (tf2onnx pads all segments to the longest one, and padding
    makes that as long as the list of edges.)
`"one_hot"`
    Matmul with a one-hot matrix, [segments, rows], without any scatter.
"""

import contextlib
import threading
from collections.abc import Iterator

_tracing = threading.local()


def portable_sums() -> str | None:
    """Return the kind of segment sums to trace; None if not exporting."""
    return getattr(_tracing, "sums", None)


def is_portable() -> bool:
    """Return whether the program being traced is for another runtime."""
    return portable_sums() is not None


@contextlib.contextmanager
def portable(sums: str = "segment") -> Iterator[None]:
    """Trace programs for another runtime, in this thread.

    Args:
        sums: `"segment"`, `"scatter"` or `"one_hot"`.
    """
    before = portable_sums()
    _tracing.sums = sums
    try:
        yield
    finally:
        _tracing.sums = before


def is_for_accelerator() -> bool:
    """Return whether the program being traced is for another machine's accelerator."""
    return getattr(_tracing, "accelerator", False)


@contextlib.contextmanager
def for_accelerator() -> Iterator[None]:
    """Trace programs for another machine's accelerator, in this thread."""
    before = is_for_accelerator()
    _tracing.accelerator = True
    try:
        yield
    finally:
        _tracing.accelerator = before
