"""Filters of equal distances, computed once: outputs and gradients are the same."""

import numpy as np
import pytest
from keras import ops

from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.sparse import equal_values, filtered_sum

pytestmark = pytest.mark.skipif(
    backend.equal_values is None or backend.has_accelerator(),
    reason="filters are not fused on this backend or device",
)
NODES, EDGES, WIDTH, FUNCTIONS = 40, 5000, 8, 6


def inputs(distances, seed=0):
    rng = np.random.default_rng(seed)
    distances = np.asarray(distances, "float32").reshape(2, -1)
    centres = np.linspace(0, 3, FUNCTIONS, dtype="float32")
    count = distances.shape[1]
    edge = {
        "sender": rng.integers(0, NODES, (2, count)).astype("int32"),
        # The last ones are padding.
        "receiver": np.sort(rng.integers(0, NODES + 1, (2, count)), 1).astype("int32"),
    }
    return {
        "sent": rng.normal(size=(2, NODES, WIDTH)).astype("float32"),
        "edges": np.exp(-((distances[..., None] - centres) ** 2)),
        "factor": rng.random((2, count)).astype("float32"),
        "weights": [
            rng.normal(size=shape).astype("float32")
            for shape in ((FUNCTIONS, WIDTH), (WIDTH,), (WIDTH, WIDTH), (WIDTH,))
        ],
        "edge": edge,
    }


CASES = {
    "few": lambda rng: rng.choice([0.0, 0.5, 1.0, 2.5], EDGES),
    "pairs": lambda rng: np.repeat(rng.random(EDGES // 2), 2),
    "all differ": lambda rng: rng.permutation(EDGES) / EDGES,
    "all equal": lambda rng: np.ones(EDGES),
    "signs of zero": lambda rng: rng.choice([0.0, -0.0, 1.0], EDGES),
}


@pytest.mark.parametrize("activate", [True, False])
@pytest.mark.parametrize("with_factor", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients(case, with_factor, activate):
    distances = CASES[case](np.random.default_rng(1))
    given = inputs(distances)
    values = ops.convert_to_tensor(np.asarray(distances, "float32").reshape(2, -1))
    torch = pytest.importorskip("torch")
    found = {}
    for name, equal in (("shared", equal_values(values)), ("each", None)):
        sent, *weights = (
            torch.tensor(value, requires_grad=True)
            for value in (given["sent"], *given["weights"])
        )
        factor = ops.convert_to_tensor(given["factor"]) if with_factor else None
        edges = ops.convert_to_tensor(given["edges"])
        out = filtered_sum(sent, edges, factor, weights, given["edge"], activate, equal)
        # Sums of a hundred edges: a sine of more would magnify rounding errors.
        torch.sin(out / 64).sum().backward()
        found[name] = [out.detach(), *(each.grad for each in (sent, *weights))]
    for pair in zip(found["shared"], found["each"], strict=True):
        a, b = (tensor.numpy() for tensor in pair)
        np.testing.assert_allclose(a, b, atol=3e-5 * max(1, np.abs(b).max()))


def test_which_values_are_equal():
    values = np.array([3.0, 1.0, 3.0, 2.0, 1.0, 3.0], "float32")
    number, order, starts = (
        ops.convert_to_numpy(each)
        for each in equal_values(ops.convert_to_tensor(values))
    )
    assert number.tolist() == [0, 1, 0, 2, 1, 0]
    assert order.tolist() == [0, 2, 5, 1, 4, 3] and starts.tolist() == [0, 3, 5, 6]
