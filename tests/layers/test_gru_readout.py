import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.layers import GraphReadout, GRUReadout, ReadoutHead
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader
from keras_bandgnn.testing import run_layer_test
from tests.oracles.convolutions import gru_readout, softmax

SIZES = (3, 1, 7, 4)


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def batch(replicas=1, sizes=SIZES):
    """Graphs of SIZES, with more slots for nodes and graphs than there are."""
    batcher = DynamicBatcher(budget={"node": 24, "graph": 7})
    graphs = [Graph(n, [], []) for n in sizes]
    loader = GraphLoader(graphs, batcher, shuffle=False, replicas=replicas)
    return loader[0][0]


def states_for(x, width=6, seed=0):
    shape = (*x["node"]["mask"].shape, width)
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def with_weights(layer, width=6, seed=1):
    layer.build((None, None, width))
    rng = np.random.default_rng(seed)
    layer.set_weights([0.5 * rng.normal(size=w.shape) for w in layer.weights])
    return layer


def weights(layer):
    names = [
        w.name if w.name == "bias" and w.path.count("/") == 1 else w.path
        for w in layer.weights
    ]
    names = [n.split("/", 1)[1] if "/" in n else n for n in names]
    values = [w.astype("float64") for w in layer.get_weights()]
    return dict(zip(names, values, strict=True))


def rows_of(x, states):
    for group, slot in np.argwhere(x["graph"]["mask"]):
        rows = x["node"]["mask"][group] & (x["node"]["graph_id"][group] == slot)
        yield (group, slot), states[group][rows].astype("float64")


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("replicas", [1, 2])
def test_equals_the_oracle(num_steps, replicas):
    x = batch(replicas)
    states = states_for(x)
    layer = with_weights(GRUReadout(6, num_steps))
    out = numpy(layer(states, x))
    seen = 0
    for place, rows in rows_of(x, states):
        expected = gru_readout(rows, weights(layer), num_steps)
        np.testing.assert_allclose(out[place], expected, atol=1e-5)
        seen += 1
    assert seen == len(SIZES)
    # Slots without a graph.
    assert not out[~x["graph"]["mask"]].any()


def test_config_shapes_and_reduced_precision():
    x = batch()
    for layer in (
        GRUReadout(6, 3),
        ReadoutHead(2, GRUReadout(6)),
        ReadoutHead(2, GraphReadout(5, "attention"), use_bias=False),
        GraphReadout(2, "attention"),
    ):
        out = run_layer_test(layer, states_for(x), x)
        assert out.shape == (1, 7, layer.units)


@pytest.mark.parametrize("make", [GRUReadout, lambda n: GraphReadout(n, "attention")])
def test_padding_order_and_other_graphs_change_nothing(make):
    x = batch()
    states = states_for(x)
    layer = with_weights(make(6))
    expected = numpy(layer(states, x))
    other = np.where(x["node"]["mask"][..., None], states, np.nan).astype("float32")
    np.testing.assert_array_equal(numpy(layer(other, x)), expected)
    # Nodes of a graph need not lie side by side.
    order = np.random.default_rng(0).permutation(states.shape[1])
    node = {k: x["node"][k][:, order] for k in ("mask", "graph_id")}
    mixed = layer(states[:, order], {**x, "node": node})
    np.testing.assert_allclose(numpy(mixed), expected, atol=1e-5)
    alone = batch(sizes=SIZES[2:3])
    rows = np.zeros_like(states)
    rows[:, :7] = states[:, 4:11]
    np.testing.assert_allclose(
        numpy(layer(rows, alone))[0, 0], expected[0, 2], atol=1e-5
    )


def test_attention_weighs_the_nodes():
    x = batch()
    states = states_for(x)
    layer = with_weights(GraphReadout(2, "attention", activation="tanh"))
    out = numpy(layer(states, x))
    first, bias, last, shift, score = (w.astype("float64") for w in layer.get_weights())
    for place, rows in rows_of(x, states):
        values = np.tanh(rows @ first + bias) @ last + shift
        expected = (softmax(rows @ score) * values).sum(axis=0)
        np.testing.assert_allclose(out[place], expected, atol=1e-5)


def test_equals_the_molecule_part_of_torch_geometric():
    nn = pytest.importorskip("torch_geometric.nn")
    import torch

    layer = with_weights(GRUReadout(6, 3))
    own = weights(layer)
    other = nn.AttentiveFP(6, 6, 2, edge_dim=1, num_layers=1, num_timesteps=3)
    conv, gru = other.mol_conv, other.mol_gru
    z, r, n = range(3)

    def gates(kind, part):
        # Torch has the gates r, z, n.
        values = np.split(own[f"update/{kind}/{part}"].T, 3)
        return np.concatenate([values[r], values[z], values[n]])

    with torch.no_grad():
        for target, value in (
            (conv.lin.weight, own["transform/kernel"].T),
            (conv.att_src, own["node_score/kernel"].reshape(1, 1, 6)),
            (conv.att_dst, own["graph_score/kernel"].reshape(1, 1, 6)),
            (conv.bias, own["bias"]),
            (gru.weight_ih, gates("input", "kernel")),
            (gru.bias_ih, gates("input", "bias")),
            (gru.weight_hh, gates("recurrent", "kernel")),
            (gru.bias_hh, gates("recurrent", "bias")),
        ):
            target.copy_(torch.from_numpy(np.ascontiguousarray(value)))
        x = batch()
        states = states_for(x)
        graph = torch.from_numpy(x["node"]["graph_id"][0].astype("int64"))
        real = torch.from_numpy(x["node"]["mask"][0].copy())
        graph, nodes = graph[real], torch.from_numpy(states[0])[real]
        # The loop of AttentiveFP.forward, after its part for atoms.
        edges = torch.stack([torch.arange(len(graph)), graph])
        out = torch.zeros(len(SIZES), 6).index_add(0, graph, nodes).relu()
        for _ in range(other.num_timesteps):
            context = torch.nn.functional.elu(conv((nodes, out), edges))
            out = gru(context, out).relu()
    np.testing.assert_allclose(
        numpy(layer(states, x))[0, : len(SIZES)], out.numpy(), atol=1e-5
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GRUReadout(0), "`units` to be at least 1"),
        (lambda: GRUReadout(4, 0), "`num_steps` to be at least 1"),
        (lambda: GRUReadout(4).build((None, None, 5)), "4 channels"),
        (lambda: ReadoutHead(1, "sum"), "a layer that has `units`.*'sum'"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
