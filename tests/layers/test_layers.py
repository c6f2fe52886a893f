import keras
import numpy as np
import pytest
from keras import ops

from keras_bandgnn import Graph
from keras_bandgnn.arrays import id_input
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.layers import (
    BandedMessagePassing,
    CharacterEncoder,
    GRUUpdate,
    MaskedBatchNormalization,
    NodeEncoder,
)
from keras_bandgnn.layers.encoder_inputs import inputs_of
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader
from keras_bandgnn.primitives import Banded, Grouped, Plan
from keras_bandgnn.testing import random_graph, run_layer_test
from tests.oracles.dense import typed_messages


def batch_of(graph, plan=None):
    return GraphLoader([graph], plan=plan or Plan(), shuffle=False)[0][0]


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


@pytest.mark.parametrize("plan", [Plan(), Plan(Banded(4))], ids=str)
def test_banded_message_passing(plan):
    graph = random_graph(np.random.default_rng(0), 20)
    x = batch_of(graph, plan)
    layer = BandedMessagePassing(6, num_edge_types=3)
    out = run_layer_test(layer, x["node"]["x"], x)
    bias = np.random.default_rng(1).normal(size=(3, 6)).astype("float32")
    layer.bias.assign(bias)
    out = numpy(layer(x["node"]["x"], x))[0]
    expected = typed_messages(graph, graph.node["x"], layer.get_weights()[0], bias)
    np.testing.assert_allclose(out[:20], expected, atol=1e-5)
    # Nothing is ever added to padding.
    assert not out[20:].any()


@pytest.mark.parametrize("plan", [Plan(), Plan(rest=Grouped()), Plan(Banded(600))])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.release(elsewhere=True)
def test_hubs_keep_all_messages_in_half_precision(plan, dtype):
    count = 3000
    hub = Graph(
        count,
        np.arange(1, count),
        np.zeros(count - 1, int),
        node={"x": np.ones((count, 4))},
    )
    layer = BandedMessagePassing(1, dtype=dtype)
    layer.build((None, None, 4))
    layer.kernel.assign(np.ones((1, 4, 1)))
    layer.bias.assign([[1.0]])
    batcher = DynamicBatcher(budget={"node": 3008})
    x = GraphLoader([hub], batcher, plan)[0][0]
    batch = keras.tree.map_structure(keras.ops.convert_to_tensor, x)
    states = keras.ops.ones((1, 3008, 4), dtype)
    out = keras.ops.cast(layer(states, batch), "float32")
    # Rounded to the 8 bits of bfloat16; without float32 sums it stops at 256 * 5.
    assert abs(numpy(out)[0, 0, 0] - 5 * (count - 1)) < 0.01 * 5 * count


def test_prepared_plans_give_the_same():
    x = batch_of(random_graph(np.random.default_rng(0)), Plan(Banded(4)))
    layer = BandedMessagePassing(2, num_edge_types=3)
    direct = numpy(layer(x["node"]["x"], x))
    prepared = layer.prepare(keras.tree.map_structure(keras.ops.convert_to_tensor, x))
    np.testing.assert_array_equal(direct, numpy(layer(x["node"]["x"], prepared)))


def test_gru_update_equals_keras():
    rng = np.random.default_rng(0)
    messages = rng.normal(size=(2, 3, 5)).astype("float32")
    states = rng.normal(size=(2, 3, 4)).astype("float32")
    layer = GRUUpdate(4)
    run_layer_test(layer, messages, states)
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    cell = keras.layers.GRUCell(4, reset_after=True)
    cell.build((None, 5))
    # Keras orders the gates z, r, n as well; its two biases are rows of one array.
    (kernel, bias), (own, own_bias) = (
        d.get_weights() for d in (layer.input_dense, layer.state_dense)
    )
    cell.set_weights([kernel, own, np.stack([bias, own_bias])])
    expected, _ = cell(messages.reshape(6, 5), states.reshape(6, 4))
    out = numpy(layer(messages, states))
    np.testing.assert_allclose(out.reshape(6, 4), numpy(expected), atol=1e-6)


def test_dropout_acts_in_training_only():
    states = np.ones((1, 50, 4), "float32")
    layer = GRUUpdate(4, dropout=0.5)
    still = numpy(layer(states, states))
    np.testing.assert_array_equal(still, numpy(layer(states, states)))
    trained = numpy(layer(states, states, training=True))
    assert 0.2 < (trained == 0).mean() < 0.8


def test_node_encoder_sums_embeddings():
    rng = np.random.default_rng(0)
    node = {
        "type": rng.integers(0, 5, (1, 7)).astype("int32"),
        "subtoken": rng.integers(0, 5, (1, 7, 3)).astype("int32"),
        "x": rng.normal(size=(1, 7, 2)).astype("float32"),
        "name": rng.integers(0, 70, (1, 7, 19)).astype("int32"),
        "atom": rng.integers(0, [4, 2, 3], (1, 7, 3)).astype("int32"),
        "mask": np.ones((1, 7), bool),
    }
    inputs = {
        "type": 5,
        "subtoken": {"ids": 5},
        "x": {"features": 2},
        "name": {"characters": 19},
        "atom": [4, 2, 3],
    }
    whole = NodeEncoder(4, inputs)
    out = run_layer_test(whole, node)
    parts = 0.0
    for name, spec in whole.inputs.items():
        part = NodeEncoder(4, {name: spec})
        part.build()
        for weight, value in zip(
            part.weights, whole._encoder(name).get_weights(), strict=True
        ):
            weight.assign(value)
        parts = parts + numpy(part(node))
    np.testing.assert_allclose(out, parts, atol=1e-5)


def test_ids_of_padding_do_not_count():
    encoder = NodeEncoder(4, {"subtoken": 9})
    padded = np.array([[[3, 0, 0]]], "int32")
    alone = np.array([[[3]]], "int32")
    np.testing.assert_allclose(
        numpy(encoder({"subtoken": padded})), numpy(encoder({"subtoken": alone}))
    )
    assert not numpy(encoder({"subtoken": 0 * padded})).any()


def test_tables_of_ids_begin_with_values_of_the_initializer():
    """Of every table, with draws of its own, also in node sets and after loading."""
    inputs = {"a": 500, "b": {"columns": [300, 300]}, "sets": {"u": {"c": 500}}}
    normal = keras.initializers.RandomNormal(stddev=2.0)
    for encoder in (NodeEncoder(8, inputs, normal), NodeEncoder(8, inputs)):
        encoder = NodeEncoder.from_config(encoder.get_config())
        encoder.build()
        tables = [ops.convert_to_numpy(v) for v in encoder.trainable_variables]
        assert len(tables) == 3
        for table in tables:
            if isinstance(encoder.embeddings_initializer, str):
                assert 0.04 < np.abs(table).max() <= 0.05
            else:
                assert abs(table.std() - 2) < 0.15
        assert not np.allclose(tables[0][:300], tables[1][:300])
    with pytest.raises(ValueError, match="initializer"):
        NodeEncoder(8, inputs, "nothing")


def test_each_column_of_ids_has_a_table():
    encoder = NodeEncoder(4, {"atom": {"columns": [4, 2, 3]}})
    assert encoder.get_config()["inputs"] == {"atom": {"columns": [4, 2, 3]}}
    assert encoder.known_ids() == {"atom": {"below": [4, 2, 3]}}
    encoder.build()
    (table,) = encoder.get_weights()
    assert table.shape == (9, 4)
    first, second, third = table[:4], table[4:6], table[6:]
    atom = np.array([[[0, 0, 0], [3, 1, 2], [0, 1, 0]]], "int32")
    column = atom[0].T
    expected = first[column[0]] + second[column[1]] + third[column[2]]
    np.testing.assert_allclose(numpy(encoder({"atom": atom}))[0], expected, atol=1e-6)
    encoder.check({"atom": atom[0]})
    for wrong, message in (
        (atom[0] + [0, 1, 0], r"node\['atom'\]\[:, 1\] in \[0, 2\).*int64 in \[0, 2\]"),
        (atom[0][:, :2], "with 3 columns of ids"),
        (atom[0, :, 0], "with 3 columns of ids"),
        (atom[0].astype("float32"), "float32"),
    ):
        with pytest.raises(ValueError, match=message):
            encoder.check({"atom": wrong})


def test_ids_that_follow_zeros_are_columns():
    bag, column = np.array([[3, 1, 0], [2, 0, 0]]), np.array([[3, 0, 1], [2, 0, 0]])
    assert id_input([bag]) == {"ids": 4}
    assert id_input([bag, column]) == {"columns": [4, 2, 2]}
    assert id_input([bag[:, 0], bag[:1, 0] + 5]) == {"ids": 9}
    assert id_input([np.eye(100, dtype=int)]) == {"ids": 2}
    part = FlatGraphs.from_graphs([Graph(2, [], [], node={"a": column})])
    assert inputs_of([part]) == {"a": {"columns": [4, 1, 2]}}


def test_characters_after_the_end_do_not_count():
    encoder = CharacterEncoder(8)
    codes = np.zeros((1, 2, 19), "int32")
    codes[:, :, :3] = 5
    out = numpy(encoder(codes))
    longer = np.concatenate([codes, np.zeros((1, 2, 5), "int32")], axis=-1)
    np.testing.assert_allclose(out, numpy(encoder(longer)), atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BandedMessagePassing(0), "`units` to be at least 1"),
        (lambda: BandedMessagePassing(4, num_edge_types=1.5), "to be an integer"),
        (lambda: BandedMessagePassing(4, dropout=1.0), r"in \[0, 1\)"),
        (lambda: GRUUpdate(-1), "`units` to be at least 1"),
        (lambda: NodeEncoder(4, {}), "at least one node feature"),
        (lambda: NodeEncoder(4, {"a": {"words": 3}}), "one of the keys"),
        (lambda: NodeEncoder(4, {"a": {"columns": 3}}), "list of vocabulary sizes"),
        (lambda: NodeEncoder(4, {"a": []}), "list of vocabulary sizes"),
        (
            lambda: NodeEncoder(4, {"a": [3, 0]}),
            r"\['columns'\]\[1\]` to be at least 1",
        ),
        (lambda: NodeEncoder(4, {"a": 3})({"b": np.zeros((1, 2))}), "'a' is missing"),
        (lambda: GRUUpdate(4)(np.zeros((1, 2)), np.zeros((1, 2))), "4 channels"),
        (lambda: CharacterEncoder(4)(np.zeros((1, 2), "int32")), "kernel_size=3"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("real", [[], [2], [0], [0, 1, 2], [1, 3]], ids=str)
def test_batch_normalisation_of_few_and_scattered_rows(real):
    mask = np.isin(np.arange(4), real)[None]
    states = np.random.default_rng(0).normal(size=(1, 4, 3)).astype("float32")
    batch = {"node": {"mask": ops.convert_to_tensor(mask)}}
    layer = MaskedBatchNormalization(momentum=0.9)
    out = layer(ops.convert_to_tensor(states), batch, training=True)
    rows = states[mask]
    mean, variance = np.zeros(3), np.zeros(3)
    if real:
        mean, variance = rows.mean(axis=0), rows.var(axis=0)
    expected = np.where(
        mask[..., None], (states - mean) / np.sqrt(variance + layer.epsilon), 0.0
    )
    found = ops.convert_to_numpy(out)
    np.testing.assert_allclose(found * mask[..., None], expected, atol=1e-5)
    means, variances = map(
        ops.convert_to_numpy, (layer.moving_mean, layer.moving_variance)
    )
    share = 0.1 if real else 0.0
    unbiased = variance * len(real) / max(len(real) - 1, 1)
    np.testing.assert_allclose(means, share * mean, atol=1e-6)
    np.testing.assert_allclose(variances, 1 - share + share * unbiased, atol=1e-5)
