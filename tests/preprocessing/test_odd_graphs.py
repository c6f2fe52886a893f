"""Parallel edges, self-loops, single nodes and graphs without edges, everywhere.

Every batcher, primitive, schedule, order and graph layer that is registered meets them.
What is not listed here meets them as the example in its docstring makes it.
"""

import importlib.util
import inspect
import itertools
import json

import keras
import numpy as np
import pytest
from docstrings import sample
from registered import plans_of_primitives, registered_primitives

import keras_bandgnn as kb
from keras_bandgnn import Graph, preprocessing, primitives
from keras_bandgnn.data import FlatGraphs, from_scipy, from_sets, to_scipy
from keras_bandgnn.models import GGNNBackbone, NodeSelector
from keras_bandgnn.models.labelled_graphs import with_labels
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphEncoder,
    GraphLoader,
    GraphPreprocessor,
    SequenceLoader,
    StaticBatcher,
)
from keras_bandgnn.preprocessing.batching.batcher import Batcher
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.preprocessing.loading.sequence_loader import ORDERS
from keras_bandgnn.preprocessing.ordering.orderings import ORDERINGS
from keras_bandgnn.primitives import (
    Banded,
    BlockSparse,
    Dense,
    Grouped,
    Plan,
    ReceptiveField,
    Segment,
    Supernode,
)
from keras_bandgnn.registration import class_entry
from tests.absent import BACKENDS, run_without
from tests.oracles.dense import selector_logits, typed_messages

TYPES = 3


def graph(count, ends, seed=0, **options):
    """A graph in which every edge can be told from every other."""
    senders, receivers = np.array(ends, int).reshape(-1, 2).T
    edges = len(senders)
    rng = np.random.default_rng(seed)
    return Graph(
        count,
        senders,
        receivers,
        edge_type=rng.integers(0, TYPES, edges),
        node={"type": rng.integers(0, 4, count), "x": rng.normal(size=(count, 2))},
        edge={"number": np.arange(edges), "weight": 1.0 + np.arange(edges)},
        context={"charge": float(seed)},
        candidates=np.arange(count)[: 1 + seed % 3],
        label=0,
        slot=count - 1,
        **options,
    )


def odd_graphs():
    rng = np.random.default_rng(3)
    parallel = [(0, 1), (0, 1), (1, 2), (0, 1), (1, 2), (2, 0)]
    return [
        graph(3, parallel, 1),
        graph(3, [(0, 0), (0, 0), (1, 1), (0, 1), (1, 1)], 2),
        graph(1, [], 3),
        graph(1, [(0, 0), (0, 0), (0, 0)], 4),
        graph(6, [], 5),
        graph(2, [(1, 0)], 6),
        graph(30, rng.integers(0, 30, (70, 2)).tolist() * 2, 7),
        graph(9, rng.integers(0, 3, (40, 2)), 8),
    ]


GRAPHS = odd_graphs()

BATCHERS = {
    DynamicBatcher: [
        DynamicBatcher(3),
        DynamicBatcher(19),
        DynamicBatcher(3, packing="best_fit"),
        DynamicBatcher(budget={"node": 16}),
    ],
    StaticBatcher: [
        StaticBatcher(1, "constant"),
        StaticBatcher(3, "64"),
        StaticBatcher(2, "power_of_two"),
    ],
}
PRIMITIVES = plans_of_primitives(
    {
        "banded": [
            Plan(Banded(4)),
            Plan(Banded(2, "band"), Banded(8), rest=Grouped(8)),
        ],
        "block_sparse": [Plan(rest=BlockSparse(4)), Plan(BlockSparse(4, 2))],
        "dense": [Plan(Dense(4)), Plan(Dense(64), rest=Grouped())],
        "grouped": [Plan(rest=Grouped(8)), Plan(rest=Grouped(8, "aggregate"))],
        "segment": [Plan(Segment())],
        "supernode": [Plan(Supernode(2)), Plan(Supernode(3), Banded(4))],
    }
)
SCHEDULES = [
    Plan(rest="segment", schedule=ReceptiveField(2)),
    Plan(rest=Grouped(8), schedule=ReceptiveField(2, merge=False)),
    Plan(
        Banded(4),
        rest="segment",
        schedule=ReceptiveField(2, merge=False, order="blocks"),
    ),
]


def subclasses(base, names):
    found = [getattr(preprocessing, name) for name in names]
    found = [c for c in found if inspect.isclass(c) and issubclass(c, base)]
    return [c for c in found if c is not base]


for cls in subclasses(Batcher, preprocessing.__all__):
    BATCHERS.setdefault(cls, [sample(cls)])


def test_every_public_primitive_is_registered():
    listed = {p for p in primitives.__all__ if inspect.isclass(getattr(primitives, p))}
    known = {c.__name__ for c in registered_primitives().values()}
    extra = {
        name
        for name in listed
        if issubclass(getattr(primitives, name), primitives.Primitive)
    }
    assert extra - known <= {"Primitive"}


def edges_of(graph, name="number"):
    rows = (graph.senders, graph.receivers, graph.edge_type, graph.edge[name])
    return sorted(map(tuple, np.stack(rows, axis=1).tolist()))


def seen(loader, graphs):
    """Asserts that an epoch holds every node and edge of every graph once."""
    found = []
    for index in range(len(loader)):
        x, y, weight = loader[index]
        for g, slot in np.argwhere(x["graph"]["mask"]):
            id = int(x["graph"]["id"][g, slot])
            original = graphs[id]
            found.append(id)
            of = x["node"]["mask"][g] & (x["node"]["graph_id"][g] == slot)
            nodes = np.flatnonzero(of)
            np.testing.assert_array_equal(x["node"]["x"][g, of], original.node["x"])
            edge = x["edge"]
            own = edge["mask"][g] & np.isin(edge["receiver"][g], nodes)
            rows = [
                edge["sender"][g, own] - nodes[0],
                edge["receiver"][g, own] - nodes[0],
                edge["type"][g, own],
                edge["number"][g, own],
            ]
            rows = sorted(map(tuple, np.stack(rows, axis=1).tolist()))
            assert rows == edges_of(original)
            assert x["graph"]["charge"][g, slot] == original.context["charge"]
            assert weight[g, slot] == 1 and y[g, slot] == original.label
        assert weight.sum() == x["graph"]["mask"].sum()
    assert sorted(found) == list(range(len(graphs)))


def propagated(x, kernel, bias, weighted):
    """Incoming messages of all nodes of a batch, and the states that were sent."""
    shape = x["node"]["mask"].shape
    states = np.random.default_rng(0).normal(size=(*shape, kernel.shape[1]))
    states = states.astype("float32")
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, x["plan"])
    # The first supergraph's nodes; a plan is laid out for their number.
    prepared = primitives.prepare(tensors, shape[1], len(kernel), "float32")
    given = (states, kernel, None if weighted else bias)
    given = [None if t is None else keras.ops.convert_to_tensor(t) for t in given]
    out = primitives.propagate(prepared, *given)
    return states, keras.ops.convert_to_numpy(out)


def check_messages(loader, graphs, weighted=False):
    rng = np.random.default_rng(1)
    kernel = rng.normal(size=(TYPES, 2, 3)).astype("float32")
    bias = rng.normal(size=(TYPES, 3)).astype("float32")
    for index in range(len(loader)):
        x = loader[index][0]
        states, out = propagated(x, kernel, bias, weighted)
        for g, slot in np.argwhere(x["graph"]["mask"]):
            original = graphs[int(x["graph"]["id"][g, slot])]
            of = x["node"]["mask"][g] & (x["node"]["graph_id"][g] == slot)
            expected = np.zeros((original.num_nodes, 3))
            if weighted:
                for e in range(original.num_edges):
                    one = np.arange(original.num_edges) == e
                    part = typed_messages(original, states[g, of], kernel, None, one)
                    expected += original.edge["weight"][e] * part
            else:
                expected = typed_messages(original, states[g, of], kernel, bias)
            scale = max(1.0, np.abs(expected).max())
            np.testing.assert_allclose(out[g, of], expected, atol=2e-5 * scale)


def loader_of(plan, batcher, **options):
    return GraphLoader(
        GRAPHS, batcher.copy(), plan, num_edge_types=TYPES, prefetch=0, **options
    )


ALL_PLANS = [plan for plans in PRIMITIVES.values() for plan in plans or []]


@pytest.mark.parametrize("plan", ALL_PLANS, ids=str)
def test_batches_lose_nothing_under_any_batcher(plan):
    for batcher in itertools.chain(*BATCHERS.values()):
        seen(loader_of(plan, batcher, shuffle=False), GRAPHS)
    seen(loader_of(plan, StaticBatcher(2, "64"), replicas=2), GRAPHS)


@pytest.mark.parametrize("plan", ALL_PLANS, ids=str)
def test_messages_are_those_of_the_oracle(plan):
    # Eager operations are quick on torch; the others compile each shape.
    every = keras.backend.backend() == "torch"
    batchers = itertools.chain(*BATCHERS.values()) if every else [DynamicBatcher(19)]
    for batcher in batchers:
        check_messages(loader_of(plan, batcher, shuffle=False), GRAPHS)
    loader = loader_of(plan, DynamicBatcher(19), edge_weight="weight")
    check_messages(loader, GRAPHS, weighted=True)


@pytest.mark.parametrize("plan", SCHEDULES, ids=str)
@pytest.mark.parametrize("readout", ["slot", "candidate"])
def test_schedules_compute_what_all_nodes_would(plan, readout):
    backbone = GGNNBackbone({"type": 4}, 4, 2, num_edge_types=TYPES)
    task = NodeSelector(
        backbone, GraphPreprocessor([], DynamicBatcher(19), plan), readout=readout
    )
    task.compile(run_eagerly=keras.backend.backend() == "torch")
    backbone.message_passing.bias.assign(
        keras.random.normal(backbone.message_passing.bias.shape, seed=1)
    )
    for logits, one in zip(task.predict(GRAPHS), GRAPHS, strict=True):
        np.testing.assert_allclose(logits, selector_logits(one, task), atol=2e-5)


# === Layers from graph to graph ===


def reordered(made, original):
    """Asserts that a layer did nothing but number the nodes anew."""
    origin = np.arange(original.num_nodes) if made.origin is None else made.origin
    assert sorted(origin.tolist()) == list(range(original.num_nodes))
    np.testing.assert_array_equal(made.node["x"], original.node["x"][origin])
    rows = origin[made.senders], origin[made.receivers], made.edge_type
    rows = np.stack([*rows, made.edge["number"]], axis=1).tolist()
    assert sorted(map(tuple, rows)) == edges_of(original)
    np.testing.assert_array_equal(origin[made.candidates], original.candidates)
    assert origin[made.slot] == original.slot
    assert dict(made.context) == dict(original.context)


def reaches(made, original):
    """Asserts that the nodes are those from which a read node is near, and no other."""
    near = {*original.candidates.tolist(), original.slot}
    for _ in range(2):
        near |= {
            s
            for s, r in zip(original.senders, original.receivers, strict=True)
            if r in near
        }
    origin = np.arange(original.num_nodes) if made.origin is None else made.origin
    assert set(origin.tolist()) == near
    kept = [e for e in edges_of(original) if e[0] in near and e[1] in near]
    rows = origin[made.senders], origin[made.receivers], made.edge_type
    rows = np.stack([*rows, made.edge["number"]], axis=1).tolist()
    assert sorted(map(tuple, rows)) == kept


def encoded(made, original):
    """Asserts that encodings are those of the dense adjacency, each pair once."""
    dense = np.zeros((original.num_nodes, original.num_nodes), bool)
    dense[original.receivers, original.senders] = True
    np.fill_diagonal(dense, False)
    np.testing.assert_array_equal(made.node["in_degree"], dense.sum(1).clip(max=64))
    np.testing.assert_array_equal(made.node["out_degree"], dense.sum(0).clip(max=64))
    linked = (dense | dense.T).astype(float)
    degree = np.maximum(linked.sum(1), 1)
    walk, power = linked / degree[:, None], np.eye(len(dense))
    for step in range(3):
        power = power @ walk
        np.testing.assert_allclose(
            made.node["random_walk"][:, step], np.diag(power), atol=1e-6
        )
    vectors = made.node["laplacian"].astype(float)
    root = 1 / np.sqrt(degree)
    laplacian = np.diag((linked.sum(1) > 0).astype(float))
    laplacian -= root[:, None] * linked * root
    for vector in vectors.T[vectors.any(axis=0)]:
        value = vector @ laplacian @ vector
        np.testing.assert_allclose(laplacian @ vector, value * vector, atol=1e-5)
    assert edges_of(made) == edges_of(original)


def attends(made, original):
    """Asserts that pairs are the distinct edges, both ways, and those of the path."""
    pairs = list(zip(made.senders.tolist(), made.receivers.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs) and all(s != r for s, r in pairs)
    own = zip(original.senders.tolist(), original.receivers.tolist(), strict=True)
    own = {(s, r) for s, r in own if s != r}
    own |= {(r, s) for s, r in own}
    assert own <= set(pairs)
    assert (made.edge["distance"] == 1).sum() == len(own)
    # The path links all nodes: no more links than it has are new.
    assert len(pairs) - len(own) <= 2 * (original.num_nodes - 1)


def listed(made, original):
    """Asserts that a graph of atoms has the edges that its distances ask for."""
    place = original.node["position"]
    apart = np.linalg.norm(place[:, None] - place[None], axis=-1)
    np.fill_diagonal(apart, np.inf)
    pairs = zip(made.senders.tolist(), made.receivers.tolist(), strict=True)
    near = set(zip(*np.nonzero(apart < np.inf), strict=True))
    assert set(pairs) == near and made.num_edges == len(near)


def both_ways(made, original):
    """Asserts that edges go both ways, each once, with the features of the first."""
    rows = zip(made.senders, made.receivers, made.edge_type, strict=True)
    number = dict(zip(rows, made.edge["number"].tolist(), strict=True))
    assert len(number) == made.num_edges
    assert all((r, s, t) in number for s, r, t in number)
    own = list(
        zip(original.senders, original.receivers, original.edge_type, strict=True)
    )
    assert all(number[edge] == own.index(edge) for edge in set(own))
    assert all(n in (own.index(e) for e in own) for n in number.values())


def looped(made, original):
    """Asserts that each node has a loop, and that the edges are still there."""
    loops = made.senders[made.senders == made.receivers]
    assert set(loops.tolist()) == set(range(made.num_nodes))
    assert set(edges_of(original)) <= set(edges_of(made))
    assert (made.edge_type[original.num_edges :] == 2).all()


def unchanged(made, original):
    """Asserts that a layer keeps nodes and edges."""
    assert edges_of(made) == edges_of(original)
    np.testing.assert_array_equal(made.node["x"], original.node["x"])


def masked(made, original):
    """Asserts that each node is in one of three parts."""
    unchanged(made, original)
    parts = [made.node[f"{part}_mask"] for part in ("train", "valid", "test")]
    np.testing.assert_array_equal(sum(parts), 1)


def sound(made, original):
    """Asserts that a layer returns a graph whose edges join nodes that it has."""
    ends = np.concatenate([made.senders, made.receivers])
    assert ((ends >= 0) & (ends < made.num_nodes)).all()
    assert made.label_level == original.label_level


RCMK = preprocessing.RCMKCompile
# Of each layer samples, and what has to hold of their graphs. None: it takes no graphs.
LAYERS = {
    preprocessing.AddSelfLoops: ([preprocessing.AddSelfLoops(7, 2)], looped),
    # Candidates may not be left out.
    preprocessing.LargestComponent: ([preprocessing.LargestComponent(99)], unchanged),
    # It reads no edges.
    preprocessing.NormalizeFeatures: None,
    preprocessing.RandomNodeSplit: (
        [preprocessing.RandomNodeSplit(0.5, 0.25, None, per_class=())],
        masked,
    ),
    preprocessing.ToUndirected: ([preprocessing.ToUndirected()], both_ways),
    preprocessing.AttentionEdges: (
        [preprocessing.AttentionEdges(path=True, edge_types=True)],
        attends,
    ),
    preprocessing.ClusterCompile: (
        [
            preprocessing.ClusterCompile(2, 2, within=within)
            for within in ("auto", "metis", "degree", "rcm")
        ],
        reordered,
    ),
    # Encoders leave graphs as they are.
    **dict.fromkeys([GraphEncoder, *subclasses(GraphEncoder, preprocessing.__all__)]),
    # Graphs of ids pass unchanged; it encodes functions.
    preprocessing.FunctionEncoder: ([preprocessing.FunctionEncoder()], unchanged),
    preprocessing.FullyConnectedGraph: (
        [preprocessing.FullyConnectedGraph()],
        listed,
    ),
    preprocessing.KNearestGraph: ([preprocessing.KNearestGraph(40)], listed),
    preprocessing.ProgramEncoder: None,
    preprocessing.RadiusGraph: ([preprocessing.RadiusGraph(50.0)], listed),
    RCMK: ([RCMK(4, ordering) for ordering in ORDERINGS], reordered),
    preprocessing.ReachabilityFilter: (
        [preprocessing.ReachabilityFilter(2)],
        reaches,
    ),
    preprocessing.StructuralEncoding: (
        [preprocessing.StructuralEncoding(64, laplacian=3, random_walk=3)],
        encoded,
    ),
}
for cls in subclasses(GraphLayer, preprocessing.__all__):
    if cls not in LAYERS:
        LAYERS[cls] = ([sample(cls)], sound)
SAMPLES = [
    (layer, check)
    for entry in LAYERS.values()
    if entry
    for layer, check in itertools.product(entry[0], entry[1:])
]


def atoms():
    rng = np.random.default_rng(0)
    return [
        Graph(
            n,
            [],
            [],
            node={
                "atomic_number": np.full(n, 6),
                "position": rng.normal(size=(n, 3)),
            },
        )
        for n in (1, 2, 5)
    ]


@pytest.mark.parametrize(
    "sample", SAMPLES, ids=lambda s: f"{type(s[0]).__name__} {s[0].get_config()}"[:70]
)
def test_layers_keep_what_they_promise(sample):
    layer, check = sample
    if isinstance(layer, preprocessing.ClusterCompile) or (
        getattr(layer, "ordering", "") == "metis"
    ):
        pytest.importorskip("pymetis")
    graphs = atoms() if check is listed else GRAPHS
    for one, made in zip(graphs, layer(graphs), strict=True):
        check(made, one)


@pytest.mark.parametrize(
    "sample", SAMPLES, ids=lambda s: f"{type(s[0]).__name__} {s[0].get_config()}"[:70]
)
def test_edges_belong_to_the_edge_sets_that_their_types_name(sample):
    """Or the layer says that they belong to none, or refuses such graphs."""
    layer, _ = sample
    if isinstance(layer, preprocessing.ClusterCompile) or (
        getattr(layer, "ordering", "") == "metis"
    ):
        pytest.importorskip("pymetis")
    rng = np.random.default_rng(0)
    tables = {"a": {"h": rng.normal(size=(5, 2))}, "b": 6}
    ends = rng.integers(0, [[5], [6]], (2, 14))
    shared = {"a": rng.integers(1, 7, 5), "b": rng.integers(1, 7, 6)}
    places = {name: rng.normal(size=(len(v), 3)) for name, v in shared.items()}
    graph = from_sets(
        tables,
        {("a", "to", "b"): ends},
        label={"a": rng.integers(0, 2, 5)},
        node={"atomic_number": shared, "position": places, "feature": places},
        reverse=True,
    )
    try:
        (made,) = layer([graph])
    except ValueError as error:
        assert "Received" in str(error)
        return
    assert [*made.sets] == ["a", "b"]
    names = made.info.get("edge_sets", [])
    for edge, kind in enumerate(made.edge_type if names else ()):
        ends = (made.node["set"][part[edge]] for part in (made.senders, made.receivers))
        assert ["ab"[end] for end in ends] == [names[kind][0], names[kind][2]]


@pytest.mark.parametrize(
    "sample", SAMPLES, ids=lambda s: f"{type(s[0]).__name__} {s[0].get_config()}"[:70]
)
def test_layers_keep_missing_labels_of_graphs(sample):
    """`fit(x, y)` takes NaN for a number that is not known, one per graph."""
    layer, check = sample
    if "metis" in str(layer.get_config()):
        pytest.importorskip("pymetis")
    plain = {"candidates": None, "slot": None, "label_level": "graph", "label": 1.0}
    graphs = [g.replace(**plain) for g in (atoms() if check is listed else GRAPHS)]
    part = FlatGraphs.from_graphs(graphs)
    part = with_labels(part, np.full(len(graphs), np.nan), "graph")
    for made in layer(list(part)):
        assert np.isnan(made.label) and made.label_level == "graph"


HOST = """
import json
import keras_bandgnn as kb
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.preprocessing.graph_layer import layers_from_config

for number, (entry, name) in enumerate(json.load(open({folder!r} + "/layers.json"))):
    (layer,) = layers_from_config([entry])
    graphs = layer(list(kb.data.open_store({folder!r} + "/" + name)))
    kb.data.write_store(f"{folder}/made-{{number}}", list(graphs))
assert "keras" not in sys.modules
"""


def test_layers_need_no_backend(tmp_path):
    """A server that makes batches for an exported model has none."""
    for name, graphs in (("graphs", GRAPHS), ("atoms", atoms())):
        kb.data.write_store(tmp_path / name, graphs)
    cases = [
        (layer, "atoms" if check is listed else "graphs")
        for layer, check in SAMPLES
        if importlib.util.find_spec("pymetis") or "metis" not in str(layer.get_config())
    ]
    entries = [(class_entry(c, c.plain_config()), name) for c, name in cases]
    (tmp_path / "layers.json").write_text(json.dumps(entries))
    run_without(BACKENDS, HOST.format(folder=str(tmp_path)))
    for number, (layer, name) in enumerate(cases):
        graphs = list(kb.data.open_store(tmp_path / name))
        right = FlatGraphs.from_graphs(layer(graphs)).columns()
        graphs = list(kb.data.open_store(tmp_path / f"made-{number}"))
        made = FlatGraphs.from_graphs(graphs).columns()
        for key, values in right.items():
            np.testing.assert_array_equal(made[key], values, str(layer))


# === Sequences ===


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("length", [4, 11, 64])
def test_sequences_hold_every_edge_between_their_nodes(order, shuffle, length):
    for one in GRAPHS:
        labelled = one.replace(
            candidates=None, slot=None, label=np.arange(one.num_nodes),
            node={**one.node, "cluster": np.zeros(one.num_nodes)},
            label_level="node",
        )  # fmt: skip
        loader = SequenceLoader(labelled, length, order, shuffle=shuffle)
        orders = []
        for _ in range(2):
            nodes = []
            for index in range(len(loader)):
                x, y, weight = loader[index]
                own = y[0][weight[0] > 0].astype(int)
                nodes += own.tolist()
                edge = {k: v[0][x["edge"]["mask"][0]] for k, v in x["edge"].items()}
                rows = own[edge["sender"]], own[edge["receiver"]]
                rows = (*rows, edge["type"], edge["number"])
                rows = sorted(map(tuple, np.stack(rows, axis=1).tolist()))
                inside = set(own.tolist())
                between = [e for e in edges_of(one) if {*e[:2]} <= inside]
                assert rows == between
                np.testing.assert_array_equal(
                    edge["weight"], one.edge["weight"][edge["number"]]
                )
                assert x["graph"]["charge"][0, 0] == one.context["charge"]
            assert sorted(nodes) == list(range(one.num_nodes))
            orders.append(nodes)
            loader.on_epoch_end()
        if not shuffle:
            assert orders[0] == orders[1]


def test_a_random_order_that_stays_is_random_all_the_same():
    count = 200
    line = Graph(
        count, np.arange(199), np.arange(1, 200), label=np.zeros(count),
        node={"cluster": np.arange(count) // 20}, label_level="node",
    )  # fmt: skip
    fixed = SequenceLoader(line, 50, "random", shuffle=False)
    edges = sum(int(fixed[i][0]["edge"]["mask"].sum()) for i in range(len(fixed)))
    # In the natural order 196 of the 199 edges are within a sequence.
    assert edges < 100
    first = SequenceLoader(line, 50, "random")
    for index in range(len(fixed)):
        np.testing.assert_array_equal(
            fixed[index][0]["edge"]["sender"], first[index][0]["edge"]["sender"]
        )
    still = SequenceLoader(line, 50, "clusters", shuffle=False)
    assert still[0][0]["edge"]["mask"].sum() == 49


# === Parts and sparse matrices ===


@pytest.mark.parametrize("plan", [Plan(Segment()), Plan(rest=Grouped(8))], ids=str)
def test_a_part_may_come_several_times(plan, monkeypatch):
    from keras_bandgnn.preprocessing.loading import graph_loader

    monkeypatch.setattr(graph_loader, "merge_parts", lambda parts: parts)
    part, other = FlatGraphs.from_graphs(GRAPHS), FlatGraphs.from_graphs(GRAPHS[:3])

    class Store:
        shards = (part, other, part)

    graphs = [*GRAPHS, *GRAPHS[:3], *GRAPHS]
    loader = GraphLoader(Store(), DynamicBatcher(7), plan, num_edge_types=TYPES)
    seen(loader, graphs)
    check_messages(loader, graphs)


def test_sparse_matrices_keep_repeated_edges_apart():
    for one in GRAPHS:
        again = from_scipy(to_scipy(one, weight="weight"), weights=True)
        rows = (again.senders, again.receivers, again.edge["weight"])
        rows = sorted(map(tuple, np.stack(rows, axis=1).tolist()))
        own = (one.senders, one.receivers, one.edge["weight"])
        assert rows == sorted(map(tuple, np.stack(own, axis=1).tolist()))
