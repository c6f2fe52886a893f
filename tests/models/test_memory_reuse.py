"""Recorded programs that write into memory again return the same."""

import random

import pytest
import torch

from keras_bandgnn.ops.backend import torch_memory, torch_programs

SIZE = 64
ENTRIES = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "mm": torch.mm,
    "matmul": lambda a, b: (a[None] @ b)[0],
    "scaled": lambda a, b: torch.add(a, b, alpha=0.5),
}
OF_ONE = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "half": lambda a: a / 2.0,
    "transposed": lambda a: a.t(),
    "flat": lambda a: a.reshape(-1).view(SIZE, SIZE),
    "of a row": lambda a: a[:1].expand(SIZE, SIZE),
    "rows": lambda a: torch.index_select(a, 0, torch.arange(SIZE)),
    "reshaped": lambda a: torch.cat([a, a])[:SIZE],
}


def program(seed):
    """A function of three matrices, composed at random, of several results."""
    draw = random.Random(seed)
    steps = []
    for _ in range(draw.randint(5, 40)):
        if draw.random() < 0.5:
            steps.append((draw.choice([*OF_ONE]), (draw.random(),)))
        else:
            steps.append((draw.choice([*ENTRIES]), (draw.random(), draw.random())))
    results = [draw.random() for _ in range(3)]

    def function(*inputs):
        values = list(inputs)

        def at(place):
            # Late values are more likely.
            return values[int(len(values) * place**0.5)]

        for name, places in steps:
            operation = (OF_ONE | ENTRIES)[name]
            value = operation(*map(at, places))
            values.append(value.clamp(-9.0, 9.0) if "m" in name else value)
        return [at(place).clone() if place < 0.5 else at(place) for place in results]

    return function


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_programs_return_the_same(first):
    reused = 0
    for seed in range(first, first + 20):
        function = program(seed)
        inputs = [torch.randn(SIZE, SIZE) for _ in range(3)]
        recorded = torch_programs.trace(function, inputs)
        before = str(recorded.graph)
        torch_memory.reuse_memory(recorded.graph)
        reused += str(recorded.graph) != before
        run, _ = torch_programs.program_of(recorded)
        for _ in range(2):
            inputs = [torch.randn(SIZE, SIZE) for _ in range(3)]
            copies = [x.clone() for x in inputs]
            for a, b in zip(run(*inputs), function(*copies), strict=True):
                assert torch.equal(a, b), seed
            # The memory of the caller is not written to.
            assert all(map(torch.equal, inputs, copies)), seed
    assert reused > 10


def test_what_is_small_or_read_later_is_left():
    def function(x, y):
        product = x @ y
        total = product + y
        return [total * product, (x[:2] * 2.0).sum()]

    inputs = [torch.randn(SIZE, SIZE) for _ in range(2)]
    recorded = torch_programs.trace(function, inputs)
    torch_memory.reuse_memory(recorded.graph)
    targets = [str(node.target) for node in recorded.graph.nodes]
    # The product is read after the sum, which writes into new memory.
    assert "aten.add.Tensor" in targets
    assert targets.count("aten.mul.out") == 1
    assert "aten.mul.Tensor" in targets
