"""Products of float32 matrices on CPUs whose units MKL leaves idle.

Torch multiplies by MKL, which takes older instructions on processors that are not
Intel's. Where AVX-512 has its full width, oneDNN needs less than half of the time for
the same sums in float32. Torch hands it such products only while they may be rounded to
bfloat16, which oneDNN does on x86 in AMX units alone. Speed and rounding are looked at
once in a process.
"""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator

import torch

from keras_bandgnn import compat
from keras_bandgnn.switches import is_off

# Set to 0 to leave torch's products as they are.
VARIABLE = "KERAS_BANDGNN_ONEDNN"
# Rows, inner and columns of the products that are looked at; the first is timed.
_LOOKED_AT = ((1024, 128, 128), (300, 50, 64), (77, 200, 1))
# Rounding of sums in float32, as a share of that of absolute values.
_ROUNDING = 1e-5
# Torch's names for "medium", of oneDNN and CUDA.
_SET = ["bf16", "tf32"]
# Nodes of a batch from which on it pays: each product begins 10 microseconds later.
_FEWEST = 2048
# The largest share of MKL's time that is worth another library.
_SHARE = 0.7
# Timings of either; the shortest counts. The most are taken where it is not worth it.
_FEWEST_TIMINGS, _MOST_TIMINGS = 5, 40


@contextlib.contextmanager
def fast_products(nodes: int) -> Iterator[None]:
    """Multiply by the faster library meanwhile; see `ops.backend`."""
    entered = False
    try:
        if nodes >= _FEWEST and compat.torch_device() == "cpu" and _pays():
            _scope.enter()
            entered = True
        yield
    finally:
        if entered:
            _scope.leave()


def are_fast() -> bool:
    """Return whether products are the faster library's at this moment."""
    return _scope.steps > 0 and _scope.is_set


class _Scope:
    """Torch's setting of products, which holds for the whole process.

    Steps in several threads share it. What an interruption leaves undone, the next step
    does: `is_set` becomes true before it is set, and false after it is taken back.
    """

    def __init__(self):
        self.lock, self.looking = threading.Lock(), threading.Lock()
        self.steps, self.is_set = 0, False

    def enter(self) -> None:
        with self.lock:
            if self.steps == 0:
                self.is_set = self.is_set or _is_unset()
                if self.is_set:
                    # Torch compiles nothing where its older setting differs from these.
                    torch.set_float32_matmul_precision("medium")
            self.steps += 1

    def leave(self) -> None:
        with self.lock:
            # None are left where a process forked within a step.
            self.steps = max(0, self.steps - 1)
            if self.steps == 0:
                self._take_back()

    def begin_anew(self) -> None:
        """Forget the steps of other threads, in a process that forked."""
        self.lock, self.looking = threading.Lock(), threading.Lock()
        self.steps = 0
        self._take_back()

    def _take_back(self) -> None:
        # What a step has set by itself stays.
        if self.is_set and [each.fp32_precision for each in _settings()] == _SET:
            torch.set_float32_matmul_precision("highest")
            for each in _settings():
                each.fp32_precision = "none"
        self.is_set = False


_scope = _Scope()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_scope.begin_anew)


def _settings() -> list:
    """Return torch's objects whose `fp32_precision` holds for products."""
    return [torch.backends.mkldnn.matmul, torch.backends.cuda.matmul]


def _is_unset() -> bool:
    """Return whether the user has said nothing on the precision of products."""
    # Before torch 2.9 it cannot be told.
    return all(getattr(each, "fp32_precision", "") == "none" for each in _settings())


def _pays() -> bool:
    # No step of another thread may change what is timed.
    with _scope.looking:
        return (_scope.is_set or _is_unset()) and _is_faster()


@functools.cache
def _is_faster() -> bool:
    """Return whether products by oneDNN are as exact here, and much faster."""
    # Elsewhere products would be rounded, too: in AMX units, and by ARM's library.
    x86 = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    if is_off(VARIABLE) or not x86 or not torch.backends.mkldnn.is_available():
        return False
    # Other threads may compute on a GPU, for which the setting would hold, too.
    if torch.cuda.is_available():
        return False
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return _is_worth_it()


def _is_worth_it() -> bool:
    a, b = _factors(*_LOOKED_AT[0])
    usual, other = float("inf"), float("inf")
    for number in range(_MOST_TIMINGS):
        # Other work on the machine must not decide for the whole process.
        if number >= _FEWEST_TIMINGS and other <= _SHARE * usual:
            break
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
    a = torch.arange(1, rows * inner + 1, dtype=torch.float32)
    b = torch.arange(1, inner * columns + 1, dtype=torch.float32)
    return torch.sin(a).reshape(rows, inner), torch.cos(b).reshape(inner, columns)
