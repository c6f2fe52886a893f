import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.models import GATBackbone, GGNNBackbone, GraphormerBackbone
from keras_bandgnn.ops.context import is_portable, portable, portable_sums
from keras_bandgnn.preprocessing import DynamicBatcher, GraphPreprocessor
from keras_bandgnn.primitives import (
    Banded,
    BlockSparse,
    Dense,
    Grouped,
    Plan,
    Segment,
    Supernode,
)

BACKEND = keras.backend.backend()
SUMS = {"jax": ["segment", "one_hot"], "tensorflow": ["segment", "scatter"]}
SUMS = SUMS.get(BACKEND, ["segment"])
INPUTS = {"kind": 4}


def batch_of(backbone, plan="auto", typed=True):
    rng = np.random.default_rng(0)
    graphs = []
    for n in (5, 9, 7):
        ends = rng.integers(0, n, (2, 2 * n))
        kind = rng.integers(0, 1 + typed, 2 * n)
        node = {"kind": rng.integers(0, 4, n)}
        graphs.append(Graph(n, *ends, edge_type=kind, node=node))
    batcher = DynamicBatcher(budget={"node": 32})
    preprocessor = GraphPreprocessor(backbone.graph_layers(), batcher, plan)
    types, auto = backbone.num_edge_types, backbone.auto_plan()
    loader = preprocessor.loader(graphs, num_edge_types=types, plan=auto or "auto")
    return keras.tree.map_structure(keras.ops.convert_to_tensor, loader[0][0])


def same(backbone, plan="auto", typed=True):
    x = batch_of(backbone, plan, typed)
    wanted = keras.ops.convert_to_numpy(backbone(x))
    for sums in SUMS:
        with portable(sums):
            found = keras.ops.convert_to_numpy(backbone(x))
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    "first",
    [
        Segment(),
        Grouped(),
        Banded(4),
        BlockSparse(4),
        Dense(8),
        Supernode(2),
    ],
    ids=lambda p: p.key(),
)
def test_every_plan_gives_the_same(first):
    same(GGNNBackbone(INPUTS, 8, 1, num_edge_types=2), Plan(first))


def test_attention_gives_the_same():
    same(GATBackbone(INPUTS, 8, num_layers=1, num_heads=2), typed=False)
    options = {"max_degree": 5, "max_distance": 2, "num_edge_types": 4}
    same(GraphormerBackbone(INPUTS, 8, 1, num_heads=2, **options))


def test_it_ends_with_the_block():
    with portable("scatter"), portable():
        assert portable_sums() == "segment"
    assert not is_portable()


@pytest.mark.skipif(BACKEND != "jax", reason="of JAX alone")
def test_sums_without_scatter_have_an_end():
    from keras_bandgnn.ops.backend.jax import one_hot_scatter, one_hot_sum

    ids = np.zeros(1 << 14, "int32")
    with pytest.raises(ValueError, match="Export smaller supergraphs"):
        one_hot_sum(np.ones((1 << 14, 1), "float32"), ids, 1 << 13)
    place = [np.array(ids) for ids in ([0, 1, 1], [2, 0, 0], [1, 1, 1])]
    out = one_hot_scatter(place, np.array([1.0, 2.0, 3.0], "float32"), (2, 3, 2))
    assert out[0, 2, 1] == 1 and out[1, 0, 1] == 5 and out.sum() == 6
