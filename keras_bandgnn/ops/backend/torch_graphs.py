"""Recorded steps, replayed as a single CUDA graph launch.

Operations on small graphs take microseconds on a GPU, and launching them takes at least
as long. A record has fixed shapes and fixed addresses, so the GPU can replay the whole
step from one launch.
"""

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable

import torch

from keras_bandgnn import compat


def are_possible(tensors=()) -> bool:
    """Return whether steps can be captured as CUDA graphs.

    Args:
        tensors: Tensors that the steps read and change; all must be on the GPU.
    """
    device = torch.device(compat.torch_device())
    # Streams are created on the default GPU.
    if device.type != "cuda" or device.index not in (None, 0):
        return False
    if not all(tensor.is_cuda for tensor in tensors):
        return False
    # All-reduces between processes are not captured.
    return not (torch.distributed.is_available() and torch.distributed.is_initialized())


def _settings() -> tuple:
    """Return the settings that select the kernels which a graph captures."""
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


# One thread at a time captures or replays graphs.
_starting = threading.Lock()
# Weak reference to the last captured graph, whose memory pool the next one shares; and
# a capture stream for each device.
_last: weakref.ref | None = None
_streams: dict = {}


def capture(function: Callable) -> tuple[Callable, list]:
    """Return a function that replays the operations of another, and its static outputs.

    The function is called, but nothing is computed yet. It must hold references to all
    tensors that it reads, as variables of a closure do.

    Raises:
        RuntimeError: If it cannot be captured, for example because the host reads a
            number from the device.
    """
    global _last
    device = torch.cuda.current_device()
    if device not in _streams:
        _streams[device] = torch.cuda.Stream()
    # Graphs run one at a time, so they share a memory pool: memory that the last graph
    # freed during capture is reused as long as that graph exists.
    last = None if _last is None else _last()
    pool = torch.cuda.graph_pool_handle() if last is None else last.pool()
    graph = torch.cuda.CUDAGraph()
    # The garbage collector must not free another graph during capture.
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

    def replay(references=(function, outputs)):
        """Replay the operations; the default argument keeps their memory alive."""
        graph.replay()

    return replay, outputs


def _capture(graph, pool, function: Callable, outputs: list) -> None:
    """Capture a function on the current stream."""
    # Loaders may allocate memory in other threads.
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        outputs.extend(function())
    except BaseException:
        # End the capture, or the stream stays in capture mode.
        with contextlib.suppress(Exception):
            graph.capture_end()
        raise
    graph.capture_end()


def _recover(device: int, pool) -> None:
    """Reset the state that torch leaves after a failed capture.

    Otherwise allocations still come from the pool, and drawing random numbers fails.
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
    """Clone tensors, floats in one launch; pass other values through."""
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
    """The program of a step, replayed as a CUDA graph from its second call on.

    Args:
        program: Function from tensors on the GPU to a list of tensors or None. It may
            read and change further tensors in place.
        reads: Returns these further tensors.
    """

    def __init__(self, program: Callable, reads: Callable[[], list]):
        self.program, self.reads = program, reads
        self.calls, self.replay = 0, None

    def __call__(self, *leaves) -> list:
        """Return the outputs."""
        self.calls += 1
        # Libraries initialise themselves in the first call.
        if self.calls < 2 or not self._may_run(leaves):
            return self.program(*leaves)
        with _starting:
            # The graph holds for these settings and addresses.
            key = [*_settings(), *(tensor.data_ptr() for tensor in self.reads())]
            if self.replay is None or key != self.key:
                self.key = key
                self._capture(leaves)
            for targets, sources in self._by_dtype(self.inputs, leaves):
                torch._foreach_copy_(targets, sources)
            self.replay()
            # The next call overwrites the outputs of the graph.
            return _copies(self.outputs)

    def forget(self) -> None:
        """Discard the graph; the next call captures the program again."""
        self.replay = None

    def _may_run(self, leaves) -> bool:
        """Return whether all data are on the current GPU, on its default stream."""
        device = torch.cuda.current_device()
        return all(leaf.get_device() == device for leaf in leaves) and (
            torch.cuda.current_stream() == torch.cuda.default_stream()
        )

    def _capture(self, leaves) -> None:
        """Capture the program."""
        self.replay = None
        self.inputs = [leaf.clone() for leaf in leaves]
        self.replay, self.outputs = capture(lambda: self.program(*self.inputs))

    def _by_dtype(self, targets: list, sources) -> list[tuple[list, list]]:
        groups: dict = {}
        for target, source in zip(targets, sources, strict=True):
            pairs = groups.setdefault(target.dtype, ([], []))
            pairs[0].append(target)
            pairs[1].append(source)
        return [*groups.values()]
