"""Loops whose step torch records once and repeats without Python's part of it."""

from collections.abc import Callable

import keras
import torch

from keras_bandgnn import compat

# Steps without a record that a record, which costs as much, would have saved.
_WORTH = 64


def repeated(body: Callable, steps: int, state, constants, kept: dict):
    """Repeat a step; see `ops.loops`.

    A step of a small graph is hundreds of calls of microseconds, of which Keras and
    autograd take most. `make_fx` records what reaches the device; from the record
    nothing is left out but Python, so results are the same.
    """
    leaves, given = keras.tree.flatten(state), keras.tree.flatten(constants)
    key = tuple(_kind(leaf) for leaf in (*leaves, *given))
    program, done = kept.get(key, (None, 0))
    if program is None and done + steps >= _WORTH:
        # Equal tensors would be one input.
        program = _Record(body, state, constants)
    kept[key] = program if program is None or program.lasts else None, done + steps
    if program is None:
        for step in range(steps):
            state = body(step, state, constants)
        return state
    shared = program.shared(*_tensors(given))
    leaves = _tensors(leaves)
    # On the device of the state: others would be copied there by each operation.
    for step in torch.arange(steps, device=leaves[0].device):
        leaves = program.step(step, *leaves, *shared)
    return keras.tree.pack_sequence_as(state, list(leaves))


def _kind(leaf):
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    return tuple(leaf.shape), leaf.dtype, leaf.device


def _tensors(leaves: list) -> list:
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


class _Record:
    """The calls of a step, split into those that are the same in each and the others.

    Args:
        body: The step.
        state: Its state, tensors.
        constants: What all steps take.

    Attributes:
        shared: From the tensors of the constants to what all steps use.
        step: From the number of the step, the state and what all use to the new state.
        lasts: Whether the record holds for other constants.
    """

    def __init__(self, body: Callable, state, constants):
        # This import takes a second.
        from torch.fx.experimental.proxy_tensor import make_fx

        leaves, given = keras.tree.flatten(state), keras.tree.flatten(constants)
        places = [isinstance(leaf, torch.Tensor) for leaf in given]

        def flat(step, *tensors):
            tensors = list(tensors)
            new = keras.tree.pack_sequence_as(state, tensors[: len(leaves)])
            rest = iter(tensors[len(leaves) :])
            filled = [
                next(rest) if is_tensor else leaf
                for leaf, is_tensor in zip(given, places, strict=True)
            ]
            new = body(step, new, keras.tree.pack_sequence_as(constants, filled))
            return keras.tree.flatten(new)

        first = torch.tensor(0, device=leaves[0].device)
        inputs = [first, *leaves, *_tensors(given)]
        recorded = make_fx(flat)(*(tensor.clone() for tensor in inputs))
        self.shared, self.step = _split(recorded, 1 + len(leaves))
        # Weights are held, not copied; other arrays would stay as they are now.
        self.lasts = all(
            isinstance(value, torch.nn.Parameter) or value.numel() <= 1
            for value in _held(recorded)
        )


def _held(recorded) -> list:
    """Return the tensors that a record reads besides its inputs."""
    names = [node.target for node in recorded.graph.nodes if node.op == "get_attr"]
    return [getattr(recorded, name) for name in set(names)]


def _split(recorded, count: int) -> tuple:
    """Return the part of a record without its first inputs, and the rest.

    Args:
        recorded: A `GraphModule`.
        count: Number of inputs that differ from step to step.
    """
    nodes = list(recorded.graph.nodes)
    # Saved for the gradient, which is recorded, too.
    for node in nodes:
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            recorded.graph.erase_node(node)
    recorded.graph.eliminate_dead_code()
    nodes = list(recorded.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    differs = set(inputs[:count])
    in_place = any(compat.writes(node.target) for node in nodes)
    for node in nodes:
        if node.op == "call_function" and (
            in_place or differs & {*node.all_input_nodes}
        ):
            differs.add(node)
    border = [
        node
        for node in nodes
        if node not in differs
        and node.op != "output"
        and any(user in differs or user.op == "output" for user in node.users)
    ]
    first, then = torch.fx.Graph(), torch.fx.Graph()
    before: dict = {}
    after: dict = {}
    for node in inputs[:count] + border:
        after[node] = then.placeholder(node.name)
    for node in nodes:
        if node.op == "output":
            first.output([before[one] for one in border])
            then.node_copy(node, after.__getitem__)
        elif node in differs and node not in after:
            after[node] = then.node_copy(node, after.__getitem__)
        elif node not in differs:
            before[node] = first.node_copy(node, before.__getitem__)
    return tuple(torch.fx.GraphModule(recorded, graph) for graph in (first, then))
