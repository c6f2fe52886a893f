"""Recorded steps as CUDA graphs: one launch in the place of one per operation.

Operations of small graphs take a GPU microseconds, and their launches take as long or
longer. A record has fixed shapes and reads its data where they lie, so that the GPU can
repeat all of it by itself.
"""

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable

import torch

from keras_bandgnn import compat


def are_possible(tensors=()) -> bool:
    """Return whether steps run on a GPU that repeats graphs.

    Args:
        tensors: What the steps read and change, which must lie there.
    """
    device = torch.device(compat.torch_device())
    # Streams are those of the usual GPU.
    if device.type != "cuda" or device.index not in (None, 0):
        return False
    if not all(tensor.is_cuda for tensor in tensors):
        return False
    # What several processes sum up is left to them.
    return not (torch.distributed.is_available() and torch.distributed.is_initialized())


def _settings() -> tuple:
    """Return what decides on the operations that torch starts, which a graph keeps."""
    products = torch.backends.cuda.matmul
    precision = getattr(products, "fp32_precision", None)
    if precision is None:  # before torch 2.9
        precision = products.allow_tf32
    return (
        precision,
        getattr(torch.backends, "fp32_precision", None),
        products.allow_fp16_reduced_precision_reduction,
        products.allow_bf16_reduced_precision_reduction,
        torch.are_deterministic_algorithms_enabled(),
    )


# Graphs are captured and started by one thread at a time.
_starting = threading.Lock()
# The last graph, while somebody holds it, and streams on which graphs are captured.
_last: weakref.ref | None = None
_streams: dict = {}


def capture(function: Callable) -> tuple[Callable, list]:
    """Return what repeats the operations of a function, and its outputs, which stay.

    The function is called, but nothing is computed yet. What it reads must be held by
    it, as variables of a closure are.

    Raises:
        RuntimeError: If something of it cannot be captured, such as a number that the
            host waits for.
    """
    global _last
    device = torch.cuda.current_device()
    if device not in _streams:
        _streams[device] = torch.cuda.Stream()
    # One graph runs at a time. What a graph has freed while it was captured, the next
    # one uses, too, as long as that graph lives.
    last = None if _last is None else _last()
    pool = torch.cuda.graph_pool_handle() if last is None else last.pool()
    graph = torch.cuda.CUDAGraph()
    # What is collected in a capture may be a graph.
    collects = gc.isenabled()
    gc.collect()
    try:
        gc.disable()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        try:
            with torch.cuda.stream(_streams[device]):
                _capture(graph, pool, function, outputs := [])
        except BaseException:
            _recover(device, pool)
            raise
    finally:
        if collects:
            gc.enable()
    _last = weakref.ref(graph)

    def replay(held=(function, outputs)):
        """Repeat the operations, on memory that must not be freed before."""
        graph.replay()

    return replay, outputs


def _capture(graph, pool, function: Callable, outputs: list) -> None:
    """Capture a function on the current stream."""
    # Loaders allocate in other threads meanwhile.
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        outputs.extend(function())
    except BaseException:
        # The stream must not stay in the capture.
        with contextlib.suppress(Exception):
            graph.capture_end()
        raise
    graph.capture_end()


def _recover(device: int, pool) -> None:
    """Undo what torch leaves of a failed capture.

    Its memory would go on to come from the pool, and random numbers would be refused.
    """
    global _last
    _last = None
    with contextlib.suppress(Exception):
        compat.end_pool(device, pool)
    with contextlib.suppress(Exception), torch.cuda.stream(_streams[device]):
        number = torch.zeros(1, device="cuda")
        _capture(
            torch.cuda.CUDAGraph(),
            torch.cuda.graph_pool_handle(),
            lambda: [number.add_(1)],
            [],
        )


def _copies(outputs: list) -> list:
    """Return copies of tensors, floats in one launch, and what is no tensor."""
    floats = [
        value
        for value in outputs
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]
    new = torch._foreach_mul(floats, 1) if floats else ()
    copied = dict(zip(map(id, floats), new, strict=True))
    return [
        copied[id(value)]
        if id(value) in copied
        else value.clone()
        if isinstance(value, torch.Tensor)
        else value
        for value in outputs
    ]


class GraphedProgram:
    """A program of a step, from its second call on as a CUDA graph.

    Args:
        program: From tensors on the GPU to tensors or None. What it reads besides, it
            reads and changes where that lies.
        reads: Returns the tensors that it reads besides.
    """

    def __init__(self, program: Callable, reads: Callable[[], list]):
        self.program, self.reads = program, reads
        self.calls, self.replay = 0, None

    def __call__(self, *leaves) -> list:
        """Return the outputs."""
        self.calls += 1
        # In the first call libraries prepare themselves.
        if self.calls < 2 or not self._may_run(leaves):
            return self.program(*leaves)
        with _starting:
            key = [*_settings(), *(tensor.data_ptr() for tensor in self.reads())]
            if self.replay is None or key != self.key:
                self.key = key
                self._capture(leaves)
            for targets, sources in self._by_type(self.inputs, leaves):
                torch._foreach_copy_(targets, sources)
            self.replay()
            # The next call overwrites those of the graph.
            return _copies(self.outputs)

    def forget(self) -> None:
        """Let the next call capture the program, which has changed."""
        self.replay = None

    def _may_run(self, leaves) -> bool:
        """Return whether the data lie on the GPU, and work is queued there as usual."""
        device = torch.cuda.current_device()
        return all(leaf.get_device() == device for leaf in leaves) and (
            torch.cuda.current_stream() == torch.cuda.default_stream()
        )

    def _capture(self, leaves) -> None:
        """Capture the program."""
        self.replay = None
        self.inputs = [leaf.clone() for leaf in leaves]
        self.replay, self.outputs = capture(lambda: self.program(*self.inputs))

    def _by_type(self, targets: list, sources) -> list[tuple[list, list]]:
        groups: dict = {}
        for target, source in zip(targets, sources, strict=True):
            pairs = groups.setdefault(target.dtype, ([], []))
            pairs[0].append(target)
            pairs[1].append(source)
        return [*groups.values()]
