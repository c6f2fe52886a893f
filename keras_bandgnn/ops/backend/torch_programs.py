"""Trace functions with `make_fx`; check, simplify and compile the traces."""

import contextlib
import functools
import threading
import types
from collections.abc import Callable, Iterator

import torch
from torch.overrides import TorchFunctionMode

from keras_bandgnn import compat


class NotRecordable(Exception):
    """Raised while a step is recorded if a record could not repeat it."""


_reading = threading.local()
# Torch traces in one thread at a time.
one_trace = threading.RLock()


@contextlib.contextmanager
def reading_values() -> Iterator[None]:
    """Allow reading values of tensors in its context, on which the trace depends."""
    _reading.allowed = True
    try:
        yield
    finally:
        _reading.allowed = False


class OnTheDevice(TorchFunctionMode):
    """Raises an error when Python or NumPy reads the value of a tensor."""

    _VALUES = ("numpy", "cpu", "item", "tolist", "__array__", "__bool__")
    _VALUES += ("__float__", "__int__", "__index__")

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        """Call a function of torch; see `TorchFunctionMode`."""
        name = getattr(function, "__name__", "")
        if name in self._VALUES and not getattr(_reading, "allowed", False):
            raise NotRecordable(f"the value of a tensor is read ({name})")
        return function(*args, **(kwargs or {}))


class _ScalarReads(compat.torch_dispatch_mode()):
    """Raises an error when an operation turns a traced tensor into a number.

    A tensor as `alpha` of `torch.add`, for example, is read without a Python function.
    """

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        """Call an operation of torch; see `TorchDispatchMode`."""
        if torch.Tag.data_dependent_output not in function.tags:
            return function(*args, **(kwargs or {}))
        try:
            return function(*args, **(kwargs or {}))
        except RuntimeError as error:  # From the tracer; reading constants is allowed.
            raise NotRecordable(
                f"the value of a tensor is read ({function})"
            ) from error


def trace(function: Callable, inputs: list):
    """Call a function of tensors; return the `GraphModule` of its operations.

    Args:
        function: Function from tensors to a list of tensors or None.
        inputs: The tensors. The trace reads all other tensors at their addresses.

    Raises:
        NotRecordable: If shapes or Python code depend on values of tensors.
    """
    # This import takes a second.
    from torch.fx.experimental.proxy_tensor import make_fx

    def guarded(*tensors):
        # Entered last, so that it sees operations before the tracer does.
        with _ScalarReads():
            return function(*tensors)

    with one_trace, OnTheDevice(), compat.one_fake_mode():
        traced = make_fx(guarded)(*inputs)
    check_shapes(traced.graph)
    simplify(traced.graph)
    return traced


def program_of(recorded) -> tuple[Callable, list]:
    """Return a `GraphModule` as a fast function, and the tensors that it holds.

    A namespace replaces the module, whose attributes are slow to read.
    """
    recorded.recompile()
    attributes = {
        node.target: getattr(recorded, node.target)
        for node in recorded.graph.nodes
        if node.op == "get_attr"
    }
    program = functools.partial(
        type(recorded).forward, types.SimpleNamespace(**attributes)
    )
    return program, [
        value for value in attributes.values() if isinstance(value, torch.Tensor)
    ]


def move_constants(recorded) -> None:
    """Copy constants to the device once, instead of synchronising in each step."""
    aten, graph = torch.ops.aten, recorded.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not aten._to_copy.default:
            continue
        (source,) = node.args
        if source.op != "get_attr" or node.meta["val"].device.type == "cpu":
            continue
        value = getattr(recorded, source.target)
        if value.device.type != "cpu" or isinstance(value, torch.nn.Parameter):
            continue
        name = f"{source.target}_on_device_{node.name}"
        with torch.no_grad():
            moved = node.target(value, **node.kwargs)
        recorded.register_buffer(name, moved)
        with graph.inserting_before(node):
            constant = graph.get_attr(name)
        constant.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(constant)
        graph.erase_node(node)


def split_off(recorded, count: int) -> Callable | None:
    """Remove the last outputs of a record; return a program of only these."""
    if not count:
        return None
    output = next(node for node in recorded.graph.nodes if node.op == "output")
    (outputs,) = output.args
    last_outputs, before = outputs[len(outputs) - count :], set()
    waiting = list(last_outputs)
    while waiting:
        node = waiting.pop()
        if node not in before:
            before.add(node)
            waiting.extend(node.all_input_nodes)
            if node.op == "call_function" and compat.writes(node.target):
                raise NotRecordable("a branch on a value that the step changes")
    graph, copies = torch.fx.Graph(), {}
    for node in recorded.graph.nodes:
        if node in before or node.op == "placeholder":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output([copies[node] for node in last_outputs])
    output.args = (outputs[: len(outputs) - count],)
    recorded.graph.eliminate_dead_code()
    program, _ = program_of(torch.fx.GraphModule(recorded, graph))
    return program


def check_shapes(graph) -> None:
    """Raise an error for operations with data-dependent shapes, such as `nonzero`."""
    for node in graph.nodes:
        if torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ()):
            raise NotRecordable(str(node.target))


# Parts of the names of operations that draw numbers or allocate memory: equal calls
# are not merged.
_RANDOM = ("bernoulli", "dropout", "rand", "normal", "uniform", "exponential", "empty")


def _written(graph) -> set:
    """Return the nodes that operations write to, and nodes that these may view."""
    nodes: set = set()
    waiting: list = []
    for node in graph.nodes:
        if node.op == "call_function" and compat.writes(node.target):
            # Some operations change a list of tensors.
            first = node.args[0]
            waiting.extend(first if isinstance(first, list | tuple) else [first])
    while waiting:
        node = waiting.pop()
        if node not in nodes:
            nodes.add(node)
            if compat.may_be_view(node.target):
                waiting.extend(node.all_input_nodes)
    return nodes


def _is_one_view(node) -> bool:
    """Collapse chains of views; return whether the view equals its base."""
    view, base = node.target, node.args[0]
    while base.target is view and base.args[0].meta["val"].is_contiguous():
        base = base.args[0]
    node.args = base, node.args[1]
    return node.meta["val"].shape == base.meta["val"].shape


def simplify(graph) -> None:
    """Remove dead code and common subexpressions of the batch.

    Layers compute the same functions of the batch, such as pointers to edges; these are
    merged. Expressions of weights are not: merging would extend their lifetime in
    memory.
    """
    aten = torch.ops.aten
    written = _written(graph)
    from_batch, first_nodes = set(), {}
    for node in list(graph.nodes):
        if node.op == "placeholder":
            if node not in written:
                from_batch.add(node)
            continue
        if node.op != "call_function":
            continue
        is_copy = node.target is aten.lift_fresh_copy.default and node not in written
        if is_copy or node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            continue
        if node.target is aten.view.default and _is_one_view(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            continue
        name = str(node.target)
        if (
            compat.writes(node.target)
            or any(word in name for word in _RANDOM)
            or node in written
            or not all(argument in from_batch for argument in node.all_input_nodes)
        ):
            continue
        from_batch.add(node)
        key = (node.target, repr(node.args), repr(node.kwargs))
        first = first_nodes.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
    graph.eliminate_dead_code()
