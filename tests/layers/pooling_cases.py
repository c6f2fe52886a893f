"""Graphs, batches and states for tests of pooling."""

import warnings

import keras
import numpy as np
import pytest

import keras_bandgnn as kb

WIDTH = 6


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def graphs_of(sizes=(3, 1, 7, 10), num_types=1, seed=1):
    """Random graphs with repeated edges, and nodes without edges."""
    rng = np.random.default_rng(seed)
    graphs = []
    for n in sizes:
        ends = rng.integers(0, n, (2, 3 * n))
        ends = ends[:, ends[0] != ends[1]]
        count = ends.shape[1]
        graphs.append(
            kb.Graph(
                n,
                *ends,
                edge_type=rng.integers(0, num_types, count),
                node={"h": rng.normal(size=(n, WIDTH)).astype("float32")},
                edge={"e": rng.normal(size=(count, WIDTH)).astype("float32")},
                label=n % 2,
            )
        )
    return graphs


def batch_of(graphs, replicas=1, nodes=32, slots=7, plan=None, edges=96):
    """A batch with more slots for nodes and graphs than there are."""
    budget = {"node": nodes, "edge": edges, "graph": slots}
    batcher = kb.preprocessing.DynamicBatcher(budget=budget)
    options = {} if plan is None else {"plan": plan}
    loader = kb.preprocessing.GraphLoader(
        graphs, batcher, shuffle=False, replicas=replicas, **options
    )
    return loader[0][0]


def rows_by_graph(x, *arrays):
    """Yield the id of each graph of a batch, and its rows of arrays [G, N, ...]."""
    for rows in kb.batch.graph_rows(x):
        yield rows.id, *(np.asarray(a)[rows.group, rows.nodes] for a in arrays)


def peer_pooling():
    """`torch` and `torch_geometric.nn`."""
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        # torch_geometric deprecates parts of torch as it loads.
        warnings.simplefilter("ignore", DeprecationWarning)
        peer = pytest.importorskip("torch_geometric.nn")
    return torch, peer


def peer_inputs(torch, graphs):
    """Float64 rows, edges and graph ids of graphs, for torch_geometric."""
    starts = np.cumsum([0, *(g.num_nodes for g in graphs)])
    edges = [
        np.stack([g.senders, g.receivers]) + start
        for g, start in zip(graphs, starts, strict=False)
    ]
    rows = np.concatenate([g.node["h"] for g in graphs]).astype("float64")
    ids = np.repeat(np.arange(len(graphs)), [g.num_nodes for g in graphs])
    return (
        torch.from_numpy(rows),
        torch.from_numpy(np.concatenate(edges, axis=1).astype("int64")),
        torch.from_numpy(ids),
    )


def check_layer(layer, x):
    """Configuration, symbolic shapes and mixed precision of a pooling layer."""
    states = x["node"]["h"]
    config = layer.get_config()
    assert type(layer).from_config(config).get_config() == config
    restored = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(layer)
    )
    assert type(restored) is type(layer)
    rows, mask = layer(states, x)

    def symbolic(array):
        array = np.asarray(array)
        return keras.KerasTensor(array.shape, array.dtype.name)

    shapes = type(layer).from_config(config)(
        *keras.tree.map_structure(symbolic, (states, x))
    )
    for spec, array in zip(shapes, (rows, mask), strict=True):
        assert tuple(spec.shape) == tuple(array.shape)
        assert spec.dtype == keras.backend.standardize_dtype(array.dtype)
    mixed = type(layer).from_config({**config, "dtype": "mixed_bfloat16"})
    rows, mask = mixed(states, x)
    assert keras.backend.standardize_dtype(rows.dtype) == "bfloat16"
    assert keras.backend.standardize_dtype(mask.dtype) == "bool"


def check_padding_and_packing(layer, graphs):
    """Padding, other graphs and the order of nodes change nothing."""
    x = batch_of(graphs)
    states = x["node"]["h"]
    expected = [numpy(a) for a in layer(states, x)]
    other = np.where(x["node"]["mask"][..., None], states, np.nan).astype("float32")
    for result, rows in zip(layer(other, x), expected, strict=True):
        np.testing.assert_array_equal(numpy(result), rows)
    for graph, rows, mask in rows_by_graph(x, *expected):
        alone = batch_of([graphs[graph]], nodes=11, slots=2, edges=31)
        (result,) = rows_by_graph(alone, *map(numpy, layer(alone["node"]["h"], alone)))
        np.testing.assert_allclose(result[1], rows, atol=1e-6)
        np.testing.assert_array_equal(result[2], mask)
