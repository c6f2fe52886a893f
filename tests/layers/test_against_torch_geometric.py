"""Layers with edge states, and norms, equal torch_geometric's with the same weights.

The peers compute in float64, so that all differences are ours.
"""

import warnings

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import ops as graph_ops

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    # torch_geometric deprecates parts of torch as it loads.
    warnings.simplefilter("ignore", DeprecationWarning)
    peer = pytest.importorskip("torch_geometric.nn")

WIDTH, EDGE_WIDTH, UNITS = 6, 6, 8
RNG = np.random.default_rng(0)


def graphs_of(count=4):
    """Random graphs with loops, repeated edges and nodes without edges."""
    rng = np.random.default_rng(1)
    graphs = []
    for number in range(count):
        n = 4 + 3 * number
        ends = rng.integers(0, n - 1, (2, 3 * n))
        features = {"h": rng.normal(size=(n, WIDTH)).astype("float32")}
        edge = {"e": rng.normal(size=(3 * n, EDGE_WIDTH)).astype("float32")}
        graphs.append(kb.Graph(n, *ends, node=features, edge=edge))
    return graphs


@pytest.fixture(scope="module")
def batch():
    batcher = kb.preprocessing.DynamicBatcher(5)
    loader = kb.preprocessing.GraphLoader(graphs_of(), batcher, shuffle=False)
    return loader[0][0]


def real(values, batch, level):
    """The rows of a batch that are not padding."""
    values = keras.ops.convert_to_numpy(values)
    return values[np.asarray(batch[level]["mask"])]


def peer_inputs(batch):
    """Node rows, edge index, edge rows and graph ids, without padding."""
    keep = np.asarray(batch["edge"]["mask"])
    index = np.stack(
        [np.asarray(batch["edge"][k])[keep] for k in ("sender", "receiver")]
    )
    rows = [
        torch.tensor(real(values, batch, level).astype("float64"), requires_grad=True)
        for values, level in (
            (batch["node"]["h"], "node"),
            (batch["edge"]["e"], "edge"),
        )
    ]
    return (
        rows[0],
        torch.tensor(index.astype("int64")),
        rows[1],
        torch.tensor(real(batch["node"]["graph_id"], batch, "node").astype("int64")),
    )


def drawn(shape):
    return torch.tensor(RNG.normal(size=tuple(shape)) / 2)


def draw(module):
    """Draw all weights of a peer anew, those that start at 0 as well."""
    module.double()
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(drawn(weight.shape))
    return module


def array(tensor):
    return tensor.detach().numpy()


def dense(layer, linear):
    """Copy a Linear into a Dense."""
    weights = [array(linear.weight).T]
    if linear.bias is not None:
        weights.append(array(linear.bias))
    layer.set_weights(weights)


def assign(weight, value):
    weight.assign(np.reshape(value, weight.shape))


def assert_close(found, expected):
    """Equal to 1e-5 of the largest value, or of 1."""
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * scale)


def gin(edges):
    network = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 5), torch.nn.ReLU(), torch.nn.Linear(5, UNITS)
    )
    kind = peer.GINEConv if edges else peer.GINConv
    theirs = draw(kind(network, eps=0.3))
    ours = kb.layers.GINConvolution(UNITS, hidden=5, epsilon=0.3)

    def copy():
        dense(ours.hidden_dense, network[0])
        dense(ours.output_dense, network[2])

    return ours, theirs, copy


def sage(edges, **options):
    theirs = draw(
        peer.SAGEConv(
            WIDTH,
            UNITS,
            aggr={"pool": "max"}.get(options["reduce"], options["reduce"]),
            project=options["reduce"] == "pool",
            normalize=options.get("normalize", False),
        )
    )
    ours = kb.layers.SAGEConvolution(UNITS, **options)

    def copy():
        dense(ours.sum_dense, theirs.lin_l)
        dense(ours.own_dense, theirs.lin_r)
        if options["reduce"] == "pool":
            dense(ours.pool_dense, theirs.lin)

    return ours, theirs, copy


def gated(edges):
    width = EDGE_WIDTH if edges else None
    theirs = draw(peer.ResGatedGraphConv(WIDTH, UNITS, edge_dim=width))
    ours = kb.layers.GatedGraphConvolution(
        UNITS, normalize=False, edges_in_messages=edges
    )

    def copy():
        key, query, value = (
            array(each.weight).T
            for each in (theirs.lin_key, theirs.lin_query, theirs.lin_value)
        )
        biases = array(theirs.lin_key.bias) + array(theirs.lin_query.bias)
        ours.receiver_dense.set_weights([key[:WIDTH], biases])
        ours.sender_dense.set_weights([query[:WIDTH]])
        ours.message_dense.set_weights([value[:WIDTH], array(theirs.lin_value.bias)])
        ours.own_dense.set_weights(
            [array(theirs.lin_skip.weight).T, array(theirs.bias)]
        )
        if edges:
            ours.edge_dense.set_weights([key[WIDTH:] + query[WIDTH:]])
            ours.edge_message_dense.set_weights([value[WIDTH:]])

    return ours, theirs, copy


def attention(edges, **options):
    theirs = draw(
        peer.GATv2Conv(
            WIDTH,
            UNITS // 2,
            heads=2,
            edge_dim=EDGE_WIDTH if edges else None,
            add_self_loops=options.get("self_loops", True),
            share_weights=options.get("share_kernel", False),
        )
    )
    ours = kb.layers.GraphAttentionV2(UNITS, 2, **options)

    def copy():
        dense(ours.sender_dense, theirs.lin_l)
        if not options.get("share_kernel"):
            dense(ours.receiver_dense, theirs.lin_r)
        if edges:
            dense(ours.edge_dense, theirs.lin_edge)
        assign(ours.score_kernel, array(theirs.att))
        assign(ours.bias, array(theirs.bias))

    return ours, theirs, copy


def pna(edges, **options):
    degree = torch.bincount(
        torch.tensor(
            np.concatenate(
                [np.bincount(g.receivers, minlength=g.num_nodes) for g in graphs_of()]
            )
        )
    )
    aggregators = ["mean", "min", "max", "std", "sum"]
    scalers = ["identity", "amplification", "attenuation"]
    towers = options.get("num_towers", 1)
    theirs = draw(
        peer.PNAConv(
            WIDTH,
            UNITS,
            aggregators,
            scalers,
            degree,
            edge_dim=EDGE_WIDTH if edges else None,
            towers=towers,
            divide_input=options.get("divide_input", False),
        )
    )
    delta = float(theirs.aggr_module.avg_deg_log)
    ours = kb.layers.PNAConvolution(UNITS, delta, aggregators, scalers, **options)

    def copy():
        width = theirs.F_in
        pre = np.stack([array(each[0].weight).T for each in theirs.pre_nns])
        assign(ours.receiver_kernel, pre[:, :width])
        assign(ours.sender_kernel, pre[:, width : 2 * width])
        assign(
            ours.message_bias,
            np.stack([array(each[0].bias) for each in theirs.pre_nns]),
        )
        post = np.stack([array(each[0].weight).T for each in theirs.post_nns])
        assign(ours.own_kernel, post[:, :width])
        rows = len(aggregators) * width
        for place, kernel in enumerate(ours.scaler_kernels):
            start = width + place * rows
            assign(kernel, post[:, start : start + rows])
        assign(
            ours.tower_bias, np.stack([array(each[0].bias) for each in theirs.post_nns])
        )
        dense(ours.output_dense, theirs.lin)
        if edges:
            assign(ours.edge_kernel, pre[:, 2 * width :])
            dense(ours.edge_dense, theirs.edge_encoder)

    return ours, theirs, copy


CASES = {
    "GIN": (gin, False, {}),
    "GINE": (gin, True, {}),
    "SAGE mean": (sage, False, {"reduce": "mean"}),
    "SAGE max": (sage, False, {"reduce": "max", "normalize": True}),
    "SAGE pool": (sage, False, {"reduce": "pool"}),
    "ResGatedGraphConv": (gated, False, {}),
    "ResGatedGraphConv edges": (gated, True, {}),
    "GATv2": (attention, False, {"share_kernel": True}),
    "GATv2 edges": (attention, True, {}),
    "GATv2 edges, no loops": (attention, True, {"self_loops": False}),
    "PNA": (pna, False, {}),
    "PNA edges": (pna, True, {}),
    "PNA edges, towers": (pna, True, {"num_towers": 2}),
    "PNA edges, divided": (pna, True, {"num_towers": 2, "divide_input": True}),
}


@pytest.mark.release(elsewhere=True)
@pytest.mark.parametrize("case", CASES)
def test_layer_equals_torch_geometric(case, batch):
    make, edges, options = CASES[case]
    ours, theirs, copy = make(edges, **options)
    x, index, edge_rows, _ = peer_inputs(batch)
    inputs = [batch["node"]["h"]] + [batch["edge"]["e"]] * edges
    ours.build(inputs[0].shape, None, *[each.shape for each in inputs[1:]])
    copy()
    expected = theirs(x, index, *[edge_rows] * edges)
    out = ours(inputs[0], batch, *inputs[1:])
    out = out[0] if isinstance(out, tuple) else out
    assert_close(real(out, batch, "node"), array(expected))
    compare_gradients(ours, expected, batch, inputs, [x, edge_rows][: len(inputs)])


@pytest.mark.parametrize(
    ("local", "training", "max_length"),
    [("gine", True, None), ("gine", True, 13), ("gine", False, 13), (None, True, 13)],
)
def test_gps_equals_torch_geometric(local, training, max_length, batch):
    network = torch.nn.Sequential(
        torch.nn.Linear(UNITS, UNITS), torch.nn.ReLU(), torch.nn.Linear(UNITS, UNITS)
    )
    theirs = draw(
        peer.GPSConv(UNITS, local and peer.GINEConv(network, eps=0.0), heads=2)
    ).train(training)
    ours = kb.models.GPSBackbone(
        {"h": {"features": WIDTH}},
        UNITS,
        1,
        edge_inputs={"e": {"features": EDGE_WIDTH}} if local else None,
        local=local,
        num_heads=2,
        max_length=max_length,
    )
    # The peer has no encoders.
    encoders = [draw(torch.nn.Linear(width, UNITS)) for width in (WIDTH, EDGE_WIDTH)]
    for layer, linear in zip((ours.encoder, ours.edge_encoder), encoders, strict=True):
        if layer is not None:
            dense(layer, linear)
    attention = ours.attentions[0]
    # The peer's maps are one matrix.
    rows = np.split(array(theirs.attn.in_proj_weight), 3)
    biases = np.split(array(theirs.attn.in_proj_bias), 3)
    for name, kernel, bias in zip(("query", "key", "value"), rows, biases, strict=True):
        getattr(attention, f"{name}_dense").set_weights([kernel.T, bias])
    dense(attention.output_dense, theirs.attn.out_proj)
    dense(ours.inner[0], theirs.mlp[0])
    dense(ours.outer[0], theirs.mlp[3])
    norms = [ours.attention_norms[0], ours.outer_norms[0]]
    their_norms = [theirs.norm2, theirs.norm3]
    if local:
        dense(ours.messages[0].hidden_dense, network[0])
        dense(ours.messages[0].output_dense, network[2])
        norms, their_norms = [ours.norms[0], *norms], [theirs.norm1, *their_norms]
    for norm, their_norm in zip(norms, their_norms, strict=True):
        assign(norm.gamma, array(their_norm.module.weight))
        assign(norm.beta, array(their_norm.module.bias))
    x, index, edge_rows, ids = peer_inputs(batch)
    more = {"edge_attr": encoders[1](edge_rows)} if local else {}
    expected = theirs(encoders[0](x), index, ids, **more)

    def called(states, batch, *edges, training):
        features = {"e": edges[0]} if edges else {}
        given = {
            **batch,
            "node": {**batch["node"], "h": states},
            "edge": {**batch["edge"], **features},
        }
        return ours(given, training=training)

    inputs = [batch["node"]["h"]] + [batch["edge"]["e"]] * bool(local)
    out = called(inputs[0], batch, *inputs[1:], training=training)
    assert_close(real(out, batch, "node"), array(expected))
    for norm, their_norm in zip(norms, their_norms, strict=True):
        module = their_norm.module
        for weight, tensor in (
            (norm.moving_mean, module.running_mean),
            (norm.moving_variance, module.running_var),
        ):
            assert_close(keras.ops.convert_to_numpy(weight), array(tensor))
    if training:
        compare_gradients(called, expected, batch, inputs, [x, edge_rows])


def compare_gradients(layer, expected, batch, inputs, peers):
    """Gradients of a random combination of the outputs, with respect to the inputs."""
    shape = (*batch["node"]["mask"].shape, expected.shape[-1])
    direction = RNG.normal(size=shape).astype("float32")
    direction *= np.asarray(batch["node"]["mask"])[..., None]
    picked = torch.tensor(real(direction, batch, "node"))
    (expected * picked).sum().backward()
    direction = keras.ops.convert_to_tensor(direction)

    def combined(tensors):
        out = layer(tensors[0], batch, *tensors[1:], training=True)
        out = out[0] if isinstance(out, tuple) else out
        return keras.ops.sum(out * direction)

    tensors = [keras.ops.convert_to_tensor(each) for each in inputs]
    _, gradients = graph_ops.value_and_gradient(combined, tensors)
    for gradient, tensor, level in zip(
        gradients, peers, ("node", "edge"), strict=False
    ):
        found = real(gradient, batch, level)
        assert_close(found, array(tensor.grad))


@pytest.mark.parametrize("training", [True, False])
def test_batch_normalisation_equals_torch_on_the_real_rows(training, batch):
    x, *_ = peer_inputs(batch)
    ours = kb.layers.MaskedBatchNormalization()
    theirs = torch.nn.BatchNorm1d(WIDTH).double()
    states = batch["node"]["h"]
    ours.build(states.shape)
    for weight, tensor in (
        (ours.gamma, theirs.weight),
        (ours.beta, theirs.bias),
        (ours.moving_mean, theirs.running_mean),
        (ours.moving_variance, theirs.running_var),
    ):
        with torch.no_grad():
            tensor.copy_(drawn(tensor.shape) ** 2 + 0.1)
        weight.assign(array(tensor))
    theirs.train(training)
    for _ in range(3):  # The averages move.
        expected = theirs(x)
        out = ours(states, batch, training=training)
        np.testing.assert_allclose(
            real(out, batch, "node"), array(expected), rtol=1e-5, atol=1e-5
        )
    for weight, tensor in (
        (ours.moving_mean, theirs.running_mean),
        (ours.moving_variance, theirs.running_var),
    ):
        found = keras.ops.convert_to_numpy(weight)
        np.testing.assert_allclose(found, array(tensor), rtol=1e-5, atol=1e-6)
    if training:
        compare_gradients(ours, expected, batch, [states], [x])


NORMS = {
    "GraphNorm": (kb.layers.GraphNormalization, {}, {}),
    "PairNorm": (kb.layers.PairNormalization, {"scale": 1.5}, {"scale": 1.5}),
    "PairNorm, each row": (
        kb.layers.PairNormalization,
        {"individually": True},
        {"scale_individually": True},
    ),
}


@pytest.mark.parametrize("case", NORMS)
def test_normalisation_of_graphs_equals_torch_geometric(case, batch):
    kind, options, their_options = NORMS[case]
    x, _, _, graph_ids = peer_inputs(batch)
    ours = kind(**options)
    if case == "GraphNorm":
        theirs = draw(peer.GraphNorm(WIDTH))
        ours.build(batch["node"]["h"].shape)
        assign(ours.alpha, array(theirs.mean_scale))
        assign(ours.gamma, array(theirs.weight))
        assign(ours.beta, array(theirs.bias))
    else:
        theirs = peer.PairNorm(**their_options)
    expected = theirs(x, graph_ids)
    out = ours(batch["node"]["h"], batch)
    np.testing.assert_allclose(
        real(out, batch, "node"), array(expected), rtol=1e-5, atol=1e-5
    )
