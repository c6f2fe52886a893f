"""Base classes of layers: weights from shapes, and the shapes of results."""

import keras
import pytest
from keras import ops

import keras_bandgnn as kb
from keras_bandgnn.layers.batch_layer import Readout, StateLayer
from keras_bandgnn.layers.graph_convolution import Convolution, EdgeConvolution


class _Recorded:
    """Records the shapes that `build_weights` gets."""

    shapes = None

    def build_weights(self, *shapes):
        self.shapes = shapes


class _States(_Recorded, StateLayer):
    def call(self, states, batch):
        return states


class _Messages(_Recorded, EdgeConvolution):
    def call(self, states, batch, edge_states=None):
        return states


class _UpdatedEdges(_Messages):
    updates_edge_states = True

    def call(self, states, batch, edge_states=None):
        return states if edge_states is None else (states, edge_states)


def _batch():
    graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    batch, *_ = kb.preprocessing.GraphLoader([graph])[0]
    return batch


def test_weights_are_built_from_the_shape_of_states():
    batch = _batch()
    layer = _States()
    layer(batch["node"]["h"], batch)
    assert layer.built
    assert layer.shapes == (batch["node"]["h"].shape,)
    assert layer.compute_output_shape((1, 4, 2)) == (1, 4, 2)


@pytest.mark.parametrize("kind", [_Messages, _UpdatedEdges])
def test_weights_are_built_from_the_shapes_of_states_and_edge_states(kind):
    batch = _batch()
    states = batch["node"]["h"]
    layer = kind(2)
    layer(states, batch)
    assert layer.shapes == (states.shape, None)
    edge_states = ops.ones((*batch["edge"]["sender"].shape, 2))
    layer = kind(2)
    layer(states, batch, edge_states)
    assert layer.built
    assert layer.shapes == (states.shape, tuple(edge_states.shape))


def test_output_shapes_have_the_width_of_the_layer():
    assert Convolution(8).compute_output_shape((1, 4, 2)) == (1, 4, 8)
    shapes = (1, 4, 2), None, (1, 6, 2)
    assert _Messages(8).compute_output_shape(*shapes) == (1, 4, 8)
    assert _UpdatedEdges(8).compute_output_shape(*shapes[:1]) == (1, 4, 8)
    assert _UpdatedEdges(8).compute_output_shape(*shapes) == ((1, 4, 8), (1, 6, 8))


def test_a_readout_has_a_row_for_each_graph():
    batch = {"graph": {"n_node": (1, 3)}}
    assert Readout(8).compute_output_shape((1, 4, 2), batch) == (1, 3, 8)
    # As in `summary`, which knows no batch.
    assert Readout(8).compute_output_shape((1, 4, 2)) == (1, None, 8)


def test_a_bias_is_optional():
    layer = Convolution(8)
    layer.use_bias = False
    assert layer.bias_weight() is None
    layer.use_bias = True
    assert isinstance(layer.bias_weight(), keras.Variable)
