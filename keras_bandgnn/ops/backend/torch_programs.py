"""Trace functions with `make_fx`; check, simplify and compile the traces."""

import contextlib
import functools
import operator
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


# Sizes of memory that is written to again, in entries: operations on less take no time,
# and more does not fit into the cache of a CPU.
_SMALLEST, _LARGEST = 1 << 12, 1 << 22


def _forms() -> tuple[dict, dict]:
    """Return operations with their forms that write into a tensor, and its argument.

    Those of the first dict go entry by entry: the tensor may be an argument, too.
    """
    aten = torch.ops.aten
    by_entry = {
        aten.add.Tensor: (aten.add.out, "out"),
        aten.sub.Tensor: (aten.sub.out, "out"),
        aten.mul.Tensor: (aten.mul.out, "out"),
        aten.div.Tensor: (aten.div.out, "out"),
        aten.sigmoid.default: (aten.sigmoid.out, "out"),
        aten.tanh.default: (aten.tanh.out, "out"),
        aten.threshold_backward.default: (
            aten.threshold_backward.grad_input,
            "grad_input",
        ),
    }
    others = {
        aten.mm.default: (aten.mm.out, "out"),
        aten.addmm.default: (aten.addmm.out, "out"),
        aten.bmm.default: (aten.bmm.out, "out"),
        aten.index_select.default: (aten.index_select.out, "out"),
    }
    return by_entry, others


class _Memory:
    """Which nodes of a graph share memory, and until which node it is read.

    Owners of memory are nodes, or results of nodes by their index. None stands for
    memory from outside: inputs, weights and constants.
    """

    def __init__(self, graph):
        self.owners: dict = {}
        self.last: dict = {}
        self.nodes: dict = {}
        for place, node in enumerate(graph.nodes):
            self.owners[node] = owners = self._owners(node)
            for owner in owners:
                self.nodes.setdefault(owner, []).append(node)
            for read in (node, *node.all_input_nodes):
                self.last |= dict.fromkeys(self.owners[read], place)

    def _owners(self, node) -> set:
        """Return the owners of the memory that a node may share."""
        if node.op != "call_function":
            return {None}
        if node.target is operator.getitem:
            (source, _) = node.args
            if self.owners[source] == {source}:
                return {node.args}
        elif not (compat.may_be_view(node.target) or compat.writes(node.target)):
            return {node}
        return set().union(*(self.owners[n] for n in node.all_input_nodes))

    def owner(self, node):
        """Return the only owner of a node's memory, or None."""
        owners = self.owners[node]
        return next(iter(owners)) if len(owners) == 1 else None

    def ending(self, place: int, node):
        """Return an argument that a node at a place reads last and can write to."""
        for source in node.all_input_nodes:
            owner = self.owner(source)
            if owner is None or self.last[owner] > place or not _fits(source, node):
                continue
            others = [n for n in node.all_input_nodes if n is not source]
            if not any(owner in self.owners[other] for other in others):
                return source
        return None

    def free(self, place: int, node):
        """Return the node that was last read before a place and fits another."""
        places = [
            (last, owner)
            for owner, last in self.last.items()
            if last < place and owner is not None
        ]
        for _, owner in sorted(places, key=lambda pair: -pair[0]):
            for old in self.nodes[owner]:
                if self.owners[old] == {owner} and _fits(old, node):
                    return old
        return None

    def give(self, owner, node) -> None:
        """Note that a node writes into an owner's memory."""
        (new,) = self.owners[node]
        nodes = self.nodes.pop(new)
        self.nodes[owner] += nodes
        for other in nodes:
            self.owners[other] = self.owners[other] - {new} | {owner}
        self.last[owner] = self.last.pop(new)


def reuse_memory(graph) -> None:
    """Let operations on CPUs write into memory that is not read again.

    New memory is not in the CPU's cache. Results are the same.
    """
    by_entry, others = _forms()
    memory = _Memory(graph)
    relu, clamp = torch.ops.aten.relu.default, torch.ops.aten.clamp_min.out
    for place, node in enumerate(list(graph.nodes)):
        if node.target is relu:
            form, name, more = clamp, "out", (0,)
        elif node.target in by_entry or node.target in others:
            (form, name), more = (by_entry | others)[node.target], ()
        else:
            continue
        if node.kwargs.keys() - {"alpha"} or not _fits(node, node):
            continue
        source = None
        if node.target not in others:
            source = memory.ending(place, node)
        source = source or memory.free(place, node)
        if source is not None:
            node.target = form
            node.args = (*node.args, *more)
            node.kwargs = {**node.kwargs, name: source}
            memory.give(memory.owner(source), node)


def _fits(source, node) -> bool:
    """Return whether a node's result can be written into another's."""
    old, new = source.meta.get("val"), node.meta.get("val")
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return False
    return (
        old.device.type == "cpu"
        and old.shape == new.shape
        and old.dtype == new.dtype
        and old.is_contiguous()
        and new.is_contiguous()
        and _SMALLEST <= new.numel() <= _LARGEST
    )
