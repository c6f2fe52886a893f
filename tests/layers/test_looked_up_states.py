"""States kept as rows of one table are those of the encoder, in every layer."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_bandgnn as kb
from keras_bandgnn.layers import GINConvolution, NodeEncoder
from keras_bandgnn.layers.batch_layer import takes_lookups
from keras_bandgnn.models.message_passing import message_passing_backbone as base
from keras_bandgnn.ops.lookup import LookedUp

rng = np.random.default_rng(0)
BOND = {
    "bond": {"columns": [4, 3]},
    "kind": {"ids": 3},
    "several": {"ids": 2},
}


def molecules(count=6):
    graphs = []
    for _ in range(count):
        nodes = int(rng.integers(9, 20))
        edges = 6 * nodes
        graphs.append(
            kb.Graph(
                nodes,
                *rng.integers(0, nodes, (2, edges)),
                node={"atom": rng.integers(0, 5, nodes)},
                edge={
                    "bond": rng.integers(0, [4, 3], (edges, 2)),
                    "kind": rng.integers(0, 3, edges),
                    "several": rng.integers(0, 2, (edges, 2)),
                },
                label=float(nodes),
            )
        )
    return graphs


def test_the_rows_are_those_of_the_encoder():
    batch = kb.preprocessing.GraphLoader(molecules())[0][0]
    encoder = NodeEncoder(8, BOND)
    states = encoder.looked_up(batch["edge"])
    # The order of the sum is that of the encoder.
    np.testing.assert_allclose(
        ops.convert_to_numpy(states.rows()),
        ops.convert_to_numpy(encoder(batch["edge"])),
        rtol=1e-5,
        atol=1e-6,
    )
    assert states.table.shape == (4 * 3 * 3 * 2 * 2, 8)


@pytest.mark.parametrize(
    "inputs",
    [{"kind": {"ids": 3}, "length": {"features": 1}}, {"kind": {"ids": 4096}}],
    ids=["numbers", "more ids than edges"],
)
def test_states_without_a_small_table_are_encoded(inputs):
    graph = kb.Graph(3, [0, 1], [1, 2], edge={"kind": [0, 1], "length": [[0.5], [1.0]]})
    batch = kb.preprocessing.GraphLoader([graph])[0][0]
    assert NodeEncoder(8, inputs).looked_up(batch["edge"]) is None


BACKBONES = {
    "GINEBackbone": {},
    "SAGEBackbone": {},
    "GATv2Backbone": {},
    "PNABackbone": {},
    "GPSBackbone": {"local": "gine"},
    "GatedGCNBackbone": {},
}


@pytest.mark.every_backend("GINE", "GAT")
@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_give_the_same_as_with_encoded_edges(name, monkeypatch):
    graphs = molecules()
    results = []
    for reads_table in (True, False):
        keras.utils.set_random_seed(0)
        if not reads_table:
            monkeypatch.setattr(base, "takes_lookups", lambda layer: False)
        backbone = getattr(kb.models, name)(
            {"atom": 5}, 16, 2, edge_inputs=BOND, **BACKBONES[name]
        )
        task = kb.models.GraphRegressor(
            backbone, 1, kb.preprocessing.GraphPreprocessor([])
        )
        task.compile(keras.optimizers.SGD(0.01), "mse")
        before = task.predict(graphs)
        task.fit(graphs, epochs=1, shuffle=False, verbose=0)
        results.append((before, task.predict(graphs), *task.get_weights()))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * max(1, np.abs(b).max()))


def test_a_layer_with_its_own_call_gets_the_states():
    class Own(GINConvolution):
        def call(self, states, batch, edge_states=None, training=False):
            assert not isinstance(edge_states, LookedUp)
            return super().call(states, batch, edge_states, training)

    class Backbone(kb.models.GINEBackbone):
        def message_layer(self, number):
            return Own(self.hidden_dim, name=f"message_{number}")

    assert takes_lookups(GINConvolution(4))
    assert not takes_lookups(Own(4))
    batch = kb.preprocessing.GraphLoader(molecules())[0][0]
    backbone = Backbone({"atom": 5}, 8, 1, edge_inputs=BOND)
    assert backbone(batch).shape[-1] == 8


def test_edge_states_of_a_subclass_are_read():
    class Backbone(kb.models.GINEBackbone):
        def edge_states(self, batch):
            return 0.0 * super().edge_states(batch)

    batch = kb.preprocessing.GraphLoader(molecules())[0][0]
    results = []
    for cls in (Backbone, kb.models.GINEBackbone):
        keras.utils.set_random_seed(0)
        results.append(cls({"atom": 5}, 8, 1, edge_inputs=BOND)(batch))
    a, b = map(ops.convert_to_numpy, results)
    assert np.abs(a - b).max() > 1e-3
