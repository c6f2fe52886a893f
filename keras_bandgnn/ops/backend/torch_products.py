"""Products of float32 matrices on CPUs whose units MKL leaves idle.

Torch multiplies by MKL, which takes older instructions on processors that are not
Intel's: with AVX-512 of full width, oneDNN needs less than half the time there, for
sums in float32 alike. Torch hands it such products only while they may be rounded to
bfloat16, which oneDNN does in AMX units alone. Both are looked at once in a process.
"""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator

import torch

from keras_bandgnn import compat

# Set to 0 to leave torch's products as they are.
VARIABLE = "KERAS_BANDGNN_ONEDNN"
# Rows, inner and columns of the products that are looked at; the first is timed.
_LOOKED_AT = ((1024, 128, 128), (300, 50, 64), (77, 200, 1))
# Rounding of sums in float32, as a share of that of absolute values.
_ROUNDING = 1e-5
# Nodes of a batch from which on it pays: each product begins 10 microseconds later.
_FEWEST = 1024
# The largest share of MKL's time that is worth another library.
_SHARE = 0.7


@contextlib.contextmanager
def fast_products(nodes: int) -> Iterator[None]:
    """Multiply by the faster library meanwhile; see `ops.backend`."""
    if nodes < _FEWEST or compat.torch_device() != "cpu" or not _pays():
        yield
        return
    _scope.enter()
    try:
        yield
    finally:
        _scope.leave()


def are_fast() -> bool:
    """Return whether products are the faster library's at this moment."""
    return _scope.before is not None


class _Scope:
    """Torch's setting of products, which steps in several threads share."""

    def __init__(self):
        self.lock = threading.Lock()
        self.steps = 0
        self.before: list | None = None

    def enter(self) -> None:
        with self.lock:
            self.steps += 1
            if self.steps == 1 and _is_unset():
                self.before = [each.fp32_precision for each in _settings()]
                # All of them alike: torch compiles nothing where they differ.
                torch.set_float32_matmul_precision("medium")

    def leave(self) -> None:
        with self.lock:
            self.steps -= 1
            if self.steps or self.before is None:
                return
            torch.set_float32_matmul_precision("highest")
            for each, value in zip(_settings(), self.before, strict=True):
                each.fp32_precision = value
            self.before = None


_scope = _Scope()
_looking = threading.Lock()


def _settings() -> list:
    """Return torch's objects whose `fp32_precision` holds for products."""
    return [torch.backends.mkldnn.matmul, torch.backends.cuda.matmul]


def _is_unset() -> bool:
    """Return whether the user has said nothing on the precision of products."""
    return torch.backends.mkldnn.matmul.fp32_precision == "none"


def _pays() -> bool:
    # No step of another thread may change what is timed.
    with _looking:
        return _is_faster()


@functools.cache
def _is_faster() -> bool:
    """Return whether products by oneDNN are as exact here, and much faster."""
    off = os.environ.get(VARIABLE, "").lower() in ("0", "false", "no", "off")
    if off or not torch.backends.mkldnn.is_available():
        return False
    # Before torch 2.9 it cannot be told what the user has set.
    if not all(hasattr(each, "fp32_precision") for each in _settings()):
        return False
    if not _is_unset():
        return False
    a, b = _factors(*_LOOKED_AT[0])
    usual, other = float("inf"), float("inf")
    for _ in range(5):
        usual = min(usual, _seconds(lambda: a @ b))
        _scope.enter()
        try:
            other = min(other, _seconds(lambda: a @ b))
        finally:
            _scope.leave()
    return other <= _SHARE * usual and _are_exact()


def _seconds(call: Callable) -> float:
    # The first product of a shape makes its program.
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _are_exact() -> bool:
    """Return whether products by oneDNN are rounded as those of float32 are."""
    _scope.enter()
    try:
        for rows, inner, columns in _LOOKED_AT:
            a, b = _factors(rows, inner, columns)
            for left, right in ((a, b), (b.T, a.T), (b.T.contiguous(), a.T)):
                exact = left.double() @ right.double()
                size = float((left.abs() @ right.abs()).max())
                if float((left @ right - exact).abs().max()) > _ROUNDING * size:
                    return False
        return True
    finally:
        _scope.leave()


def _factors(rows: int, inner: int, columns: int) -> tuple:
    """Return matrices of numbers with more digits than bfloat16 holds."""
    a = torch.sin(torch.arange(1.0, rows * inner + 1)).reshape(rows, inner)
    return a, torch.cos(torch.arange(1.0, inner * columns + 1)).reshape(inner, columns)
