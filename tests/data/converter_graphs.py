"""Random graphs for the tests of converters, and what it means that two are equal."""

import numpy as np
from hypothesis import strategies as st

from keras_bandgnn import Graph
from keras_bandgnn.data import from_sets


def make(seed, level=None, num_types=3, edges=True, nodes=None):
    """A graph with loops, repeated edges and perhaps isolated nodes."""
    rng = np.random.default_rng(seed)
    n = nodes or int(rng.integers(1, 7))
    e = int(rng.integers(1, 12)) if edges else 0
    label = {
        None: None,
        "graph": float(np.float32(rng.normal())),
        "node": rng.integers(0, 5, n),
    }[level]
    return Graph(
        n,
        senders=rng.integers(0, n, e),
        receivers=rng.integers(0, n, e),
        edge_type=rng.integers(0, num_types, e),
        node={"node_id": rng.integers(0, 9, n), "node_vec": rng.normal(size=(n, 3))},
        edge={"edge_len": rng.random(e), "edge_vec": rng.normal(size=(e, 2))},
        context={"charge": int(rng.integers(-2, 3)), "cell": rng.normal(size=(2, 3))},
        label=label,
        label_level=level or "graph",
    )


def make_sets(seed=0, **options):
    """A graph of three node sets, one without features, and three edge sets."""
    rng = np.random.default_rng(seed)
    users, items = rng.integers(2, 6, 2)
    return from_sets(
        {
            "user": {"age": rng.normal(size=(users, 2)), "town": np.arange(users)},
            "item": {"price": rng.random(items)},
            "shop": 2,
        },
        {
            ("user", "buys", "item"): {
                "edge_index": rng.integers(0, [[users], [items]], (2, 7)),
                "stars": rng.integers(1, 6, 7),
            },
            ("item", "sold_by", "shop"): [np.arange(items), np.arange(items) % 2],
            ("user", "knows", "user"): rng.integers(0, users, (2, 4)),
        },
        **{"label": {"user": rng.integers(0, 3, users)}, **options},
    )


graphs = st.builds(
    make,
    seed=st.integers(0, 10**6),
    level=st.sampled_from([None, "graph", "node"]),
    num_types=st.integers(1, 3),
)
edgeless = st.builds(make, seed=st.integers(0, 10**6), edges=st.just(False))


def edge_rows(graph):
    """Each edge with all that belongs to it, in an order that edges alone decide."""
    columns = [graph.senders, graph.receivers, graph.edge_type]
    features = [
        array.reshape(graph.num_edges, int(np.prod(array.shape[1:])))
        for _, array in sorted(graph.edge.items())
    ]
    rows = np.concatenate([np.stack(columns, axis=1), *features], axis=1)
    return sorted(map(tuple, rows.tolist()))


def assert_same(a, b):
    """Equal, with equal dtypes, but for the order of edges."""
    assert (a.num_nodes, a.num_edges, a.slot) == (b.num_nodes, b.num_edges, b.slot)
    assert edge_rows(a) == edge_rows(b)
    for kind in ("node", "edge", "context"):
        x, y = getattr(a, kind), getattr(b, kind)
        assert x.keys() == y.keys()
        for name in x:
            assert x[name].dtype == y[name].dtype and x[name].shape == y[name].shape
            if kind != "edge":
                np.testing.assert_array_equal(x[name], y[name])
    assert [*a.sets] == [*b.sets]
    assert a.info.get("edge_sets") == b.info.get("edge_sets")
    for kind, table in a.sets.items():
        assert table.keys() == b.sets[kind].keys()
        for name, values in table.items():
            assert values.dtype == b.sets[kind][name].dtype
            np.testing.assert_array_equal(values, b.sets[kind][name])
    for name in ("label", "candidates"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None)
        if x is not None:
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
            assert a.label_level == b.label_level
