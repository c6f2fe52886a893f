"""Let the operations of a recorded step write into memory that is not read again.

New memory is not in the CPU's cache: an operation then takes two to five times as long.
"""

import operator

import torch

from keras_bandgnn import compat

# Sizes of memory that is written to again, in entries: operations on less take no time,
# and more does not fit into the cache of a CPU.
_SMALLEST, _LARGEST = 1 << 12, 1 << 22


def _forms() -> tuple[dict, dict]:
    """Return the forms of operations that write into a tensor.

    Returns:
        Operations to the form, the name of its argument for the tensor, and further
        arguments. Those of the first dict go entry by entry: the tensor may be an
        argument of the operation, too.
    """
    aten = torch.ops.aten
    by_entry = {
        aten.add.Tensor: (aten.add.out, "out"),
        aten.sub.Tensor: (aten.sub.out, "out"),
        aten.mul.Tensor: (aten.mul.out, "out"),
        aten.div.Tensor: (aten.div.out, "out"),
        aten.relu.default: (aten.clamp_min.out, "out", 0),
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

    Results are the same.

    Args:
        graph: The graph of a trace, see `torch_programs.trace`; it is changed.
    """
    by_entry, others = _forms()
    forms, memory = by_entry | others, _Memory(graph)
    for place, node in enumerate(list(graph.nodes)):
        if node.target not in forms or node.kwargs.keys() - {"alpha"}:
            continue
        if not _fits(node, node):
            continue
        source = memory.ending(place, node) if node.target in by_entry else None
        source = source or memory.free(place, node)
        if source is None:
            continue
        node.target, name, *more = forms[node.target]
        node.args, node.kwargs = (*node.args, *more), {**node.kwargs, name: source}
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
