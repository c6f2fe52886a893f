import numpy as np
import pytest

from keras_bandgnn.layers import SAGPooling
from keras_bandgnn.plans import Banded, Plan
from tests.layers.pooling_cases import (
    WIDTH,
    batch_of,
    check_layer,
    check_padding_and_packing,
    graphs_of,
    numpy,
    peer_inputs,
    peer_pooling,
    rows_by_graph,
)
from tests.oracles.pooling import convolution, pooled


def with_weights(layer, seed=2):
    layer.build((None, None, WIDTH))
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.weights])
    return layer


@pytest.mark.parametrize("ratio", [0.5, 0.8])
@pytest.mark.parametrize(("replicas", "num_types"), [(1, 1), (2, 1), (1, 3)])
def test_equals_the_oracle(ratio, replicas, num_types):
    graphs = graphs_of(num_types=num_types)
    x = batch_of(graphs, replicas)
    layer = with_weights(SAGPooling(ratio))
    states, mask = map(numpy, layer(x["node"]["h"], x))
    kernel, bias = (w.astype("float64") for w in layer.get_weights())
    for graph, rows, out, stays in rows_by_graph(x, x["node"]["h"], states, mask):
        scores = convolution(graphs[graph], rows, kernel, bias)
        expected, expected_mask = pooled(rows, scores, ratio)
        np.testing.assert_array_equal(stays, expected_mask)
        np.testing.assert_allclose(out, expected, atol=1e-5)
    assert not mask[~x["node"]["mask"]].any()


def test_equals_that_of_torch_geometric():
    torch, peer = peer_pooling()
    # Of some graphs of three nodes two have equal scores.
    graphs = graphs_of((4, 1, 7, 10))
    x = batch_of(graphs)
    layer = with_weights(SAGPooling(0.6))
    kernel, bias = layer.get_weights()
    other = peer.SAGPooling(WIDTH, 0.6, GNN=peer.GCNConv).double()
    with torch.no_grad():
        other.gnn.lin.weight.copy_(torch.from_numpy(kernel.T.copy()))
        other.gnn.bias.copy_(torch.from_numpy(bias))
        # Scores are divided by the sign of this weight.
        other.select.weight.fill_(1.0)
        rows, edges, ids = peer_inputs(torch, graphs)
        expected, _, _, _, places, _ = other(rows, edges, batch=ids)
    states, mask = map(numpy, layer(x["node"]["h"], x))
    real = x["node"]["mask"][0]
    out = np.zeros((int(real.sum()), WIDTH))
    out[places.numpy()] = expected.numpy()
    np.testing.assert_allclose(states[0][real], out, atol=1e-5)
    np.testing.assert_array_equal(
        np.flatnonzero(mask[0][real]), np.sort(places.numpy())
    )


def test_the_plan_changes_nothing():
    graphs = graphs_of()
    layer = with_weights(SAGPooling(0.6))
    expected, result = (
        layer(x["node"]["h"], x)
        for x in (batch_of(graphs), batch_of(graphs, plan=Plan(Banded(4))))
    )
    for one, other in zip(expected, result, strict=True):
        np.testing.assert_allclose(numpy(other), numpy(one), atol=1e-6)


def test_padding_and_packing_change_nothing():
    check_padding_and_packing(with_weights(SAGPooling(0.6)), graphs_of())


def test_configuration_shapes_and_reduced_precision():
    check_layer(SAGPooling(0.3, activation="sigmoid"), batch_of(graphs_of()))


def test_a_ratio_above_one_is_refused():
    with pytest.raises(ValueError, match="`ratio` to be at most 1"):
        SAGPooling(1.5)
