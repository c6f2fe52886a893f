"""Loops whose step torch records once and replays without Python's overhead."""

from collections.abc import Callable

import keras
import torch

from keras_bandgnn import compat
from keras_bandgnn.ops.backend import torch_programs, torch_steps
from keras_bandgnn.ops.backend.torch_guard import Guard

# Steps without a record that a record, which costs as much, would have saved.
_WORTH = 64


class _Loop:
    """A loop over data of one shape: its steps so far, and their record."""

    def __init__(self):
        self.seen = 0
        self.program: Callable | None = None
        self.guard: Guard | None = None

    def record(self, step: Callable, model, inputs: list) -> None:
        """Record a step, unless code of others runs in it."""
        self.guard = Guard(model, with_labels=False)
        if self.guard.foreign is None:
            try:
                traced = torch_programs.trace(
                    step, [tensor.clone() for tensor in inputs]
                )
            except torch_programs.NotRecordable:
                return
            self.program, _ = torch_programs.program_of(traced)


def repeated(body: Callable, steps: int, state, constants, model):
    """Repeat a step of a model; see `ops.loops`."""
    torch_steps.check_recordable("a loop")
    constants = keras.tree.map_structure(torch.as_tensor, constants)
    leaves, shared = keras.tree.flatten(state), keras.tree.flatten(constants)
    loops = compat.derived(model).setdefault("loops", {})
    key = body.__qualname__, torch_steps.shape_of([*leaves, *shared])
    loop = loops.setdefault(key, _Loop())
    if loop.guard is not None and loop.guard.changed() is not None:
        loop = loops[key] = _Loop()

    def step(number, *tensors):
        new = keras.tree.pack_sequence_as(state, tensors[: len(leaves)])
        values = keras.tree.pack_sequence_as(constants, tensors[len(leaves) :])
        return keras.tree.flatten(body(number, new, values))

    # On the device of the state: others would be copied there by each operation.
    numbers = torch.arange(steps, device=leaves[0].device)
    loop.seen += steps
    may_record = model.record_steps is not False and not torch_steps.eager_now(model)
    if may_record and loop.guard is None and loop.seen >= _WORTH:
        loop.record(step, model, [numbers[0], *leaves, *shared])
    program = step if loop.program is None or not may_record else loop.program
    for number in numbers:
        leaves = list(program(number, *leaves, *shared))
    return keras.tree.pack_sequence_as(state, leaves)
