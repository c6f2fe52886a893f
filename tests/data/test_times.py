"""Times of nodes, edges and pairs: int64 on the host, and in no batch."""

import datetime
import pickle

import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import data, preprocessing
from keras_bandgnn.data.link_splits import with_edges

# Milliseconds, beyond int32 and beyond what float32 tells apart.
NOW = 1_700_000_000_000


def graph_with_times() -> kb.Graph:
    """Return a graph whose receivers are not sorted, with times of nodes and edges."""
    return kb.Graph(
        4,
        [0, 1, 2, 3, 0],
        [3, 2, 1, 0, 3],
        node={"kind": [0, 1, 2, 3], "time": NOW + np.arange(4)},
        edge={"w": [1.0, 2.0, 3.0, 4.0, 5.0], "time": NOW + np.array([5, 1, 4, 2, 3])},
    )


def times_by_weight(graph) -> dict:
    return dict(zip(graph.edge["w"].tolist(), graph.edge["time"].tolist(), strict=True))


def test_times_are_int64_and_follow_nodes_and_edges():
    graph = graph_with_times()
    assert graph.edge["time"].dtype == graph.node["time"].dtype == np.int64
    assert not graph.edge["time"].flags.writeable
    part = graph.subgraph([3, 1, 0])
    assert part.node["time"].tolist() == [NOW + 3, NOW + 1, NOW]
    assert part.edge["time"].tolist() == [NOW + 5, NOW + 2, NOW + 3]
    assert with_edges(graph, graph.edge["time"] > NOW + 2).num_edges == 3
    ordered = preprocessing.RCMKCompile(2)(graph)
    assert times_by_weight(ordered) == times_by_weight(graph)
    assert (
        ordered.node["time"].tolist()
        == (NOW + ordered.node["kind"].astype(int)).tolist()
    )
    assert pickle.loads(pickle.dumps(graph)).edge["time"].dtype == np.int64


def test_flat_graphs_and_stores_have_times(tmp_path):
    graph = graph_with_times()
    flat = data.FlatGraphs.from_graphs([graph, graph])
    again = data.FlatGraphs(
        flat.num_nodes,
        flat.num_edges,
        flat.senders,
        flat.receivers,
        node=flat.node,
        edge=flat.edge,
    )
    data.write_store(tmp_path / "times.store", [graph, graph])
    with data.open_store(tmp_path / "times.store") as store:
        for graphs in (flat, again, flat.take([1, 0]), store.take([1, 0]), store):
            assert graphs[1].edge["time"].dtype == np.int64
            assert times_by_weight(graphs[1]) == times_by_weight(graph)
            assert graphs[0].node["time"].tolist() == graph.node["time"].tolist()


def test_stores_with_a_feature_of_the_name_say_what_to_do(tmp_path):
    graph = kb.Graph(2, [0], [1], edge={"time": [3]})
    columns = data.FlatGraphs.from_graphs([graph]).columns()
    # As versions wrote in which the name was free.
    old = {**columns, "edge/time": np.array([3], np.int32)}
    with pytest.raises(ValueError, match="rename the feature where the store is"):
        data.write_store(tmp_path / "old.store", data.FlatGraphs.from_columns(old))


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0.5], "np.round"),
        ([np.nan], "1 of them missing"),
        (np.array(["2020-01-01"], "datetime64[D]"), "datetime64"),
        (np.array(["NaT"], "datetime64[D]"), "1 of them missing"),
        (np.ma.array([1], mask=[True]), "masked"),
        ([True], "integers"),
        (["1"], "integers"),
        ([[1]], "1-D"),
        ([2**62], "larger unit"),
        ([1, 2], "one row per edge"),
    ],
)
def test_times_that_are_no_integers_are_refused(times, message):
    with pytest.raises(ValueError, match=message):
        kb.Graph(2, [0], [1], edge={"time": times})
    if message == "one row per edge":
        message = "rows"
    with pytest.raises(ValueError, match=message):
        data.FlatGraphs([2], [1], [0], [1], edge={"time": times})


def test_graphs_without_edges_have_times():
    graph = kb.Graph(2, [], [], edge={"time": []})
    assert graph.edge["time"].dtype == np.int64


def test_times_are_in_no_batch():
    graph = graph_with_times()
    bare = graph.replace(node={"kind": graph.node["kind"]}, edge={"w": graph.edge["w"]})
    labels = {"label": [0, 1, 0, 1], "label_level": "node"}
    loaders = []
    for some in (graph, bare):
        sampler = preprocessing.NeighborSampler([2], batch_size=2)
        loaders.append(
            [
                preprocessing.GraphLoader([some], shuffle=False),
                preprocessing.LinkLoader(some, [[0, 3]]),
                preprocessing.SampleLoader(some.replace(**labels), sampler),
                preprocessing.GraphLoader(
                    [some.replace(candidates=[0, 1], label=0)],
                    plan=kb.plans.Plan(
                        kb.plans.Segment(), schedule=kb.plans.ReceptiveField(1)
                    ),
                    shuffle=False,
                ),
            ]
        )
    for timed, plain in zip(*loaders, strict=True):
        x, y = timed[0][0], plain[0][0]
        assert {part: set(x[part]) for part in x} == {part: set(y[part]) for part in y}
        assert "time" not in x["node"]
        assert "time" not in x.get("edge", {})


def test_times_do_not_tell_graphs_apart():
    from keras_bandgnn.data.identity import graph_keys

    graph = graph_with_times()
    later = graph.replace(edge={**graph.edge, "time": graph.edge["time"] + 1})
    keys = graph_keys(data.FlatGraphs.from_graphs([graph, later]))
    assert keys[0] == keys[1]


def test_models_read_no_times():
    from keras_bandgnn.layers.encoder_inputs import inputs_of

    assert inputs_of([data.FlatGraphs.from_graphs([graph_with_times()])]) == {
        "kind": {"ids": 4}
    }


def test_reverse_edges_have_the_time_of_the_edge():
    graph = kb.Graph(3, [0, 1, 0, 1], [1, 0, 1, 2], edge={"time": [1, 1, 2, 3]})
    both = preprocessing.ToUndirected()(graph)
    events = zip(
        both.senders.tolist(),
        both.receivers.tolist(),
        both.edge["time"].tolist(),
        strict=True,
    )
    assert sorted(events) == [
        (0, 1, 1),
        (0, 1, 2),
        (1, 0, 1),
        (1, 0, 2),
        (1, 2, 3),
        (2, 1, 3),
    ]


def test_added_loops_need_a_time():
    graph = kb.Graph(2, [0], [1], edge={"time": [7]})
    with pytest.raises(ValueError, match="name the time of added loops"):
        preprocessing.AddSelfLoops()(graph)
    loops = preprocessing.AddSelfLoops({"time": -1})(graph)
    assert loops.edge["time"].tolist() == [7, -1, -1]


# === Pairs ===


def test_pairs_carry_their_times():
    pairs = data.NodePairs.of_edges(graph_with_times())
    assert pairs.time.dtype == np.int64
    assert pairs.take([1, 0]).time.tolist() == [NOW + 1, NOW + 5]
    assert pairs.reversed().time.tolist() == pairs.time.tolist()
    both = data.NodePairs.concatenate([pairs, pairs.take(slice(0, 2))])
    assert both.time.tolist() == [*pairs.time, *pairs.time[:2]]
    assert pairs.without_time().time is None
    empty = data.NodePairs([], [])
    assert len(data.NodePairs.concatenate([empty, pairs]).time) == 5
    with pytest.raises(ValueError, match="all have times, or none"):
        data.NodePairs.concatenate([pairs, data.NodePairs([0], [1])])
    with pytest.raises(ValueError, match="np.round"):
        data.NodePairs([0], [1], time=[0.5])
    with pytest.raises(ValueError, match="one `time` for each pair"):
        data.NodePairs([0], [1], time=[1, 2])


@pytest.mark.parametrize("kind", ["uniform", "source", "typed"])
def test_negatives_have_the_time_of_their_positive(kind):
    pairs = data.NodePairs.of_edges(graph_with_times())
    drawn = preprocessing.NegativeSampler(3, kind).sample(pairs, 4)
    assert drawn.time.tolist() == np.repeat(pairs.time, 3).tolist()


def test_pairs_of_edge_sets_carry_their_times():
    graph = data.from_sets(
        {"a": 2, "b": 3},
        {("a", "to", "b"): {"edge_index": [[0, 1], [2, 0]], "time": [NOW, NOW + 1]}},
    )
    pairs = data.split_links(graph, 0.0, 0.5, edge_set=("a", "to", "b")).test_pairs
    assert pairs.edge_set == ("a", "to", "b")
    assert pairs.in_graph(graph).time.tolist() == pairs.time.tolist()


# === Other forms ===


def test_node_sets_have_times_all_or_none():
    edges = {("a", "to", "b"): {"edge_index": [[0, 1], [0, 0]], "time": [5, 6]}}
    graph = data.from_sets({"a": {"time": [1, 2]}, "b": {"time": [3]}}, edges)
    assert graph.node["time"].tolist() == [1, 2, 3]
    assert graph.edge["time"].dtype == np.int64
    again = data.from_sets(**data.to_sets(graph), reverse=True)
    assert again.node["time"].tolist() == [1, 2, 3]
    assert again.edge["time"].tolist() == [5, 6, 5, 6]
    with pytest.raises(ValueError, match="every node set"):
        data.from_sets({"a": {"time": [1, 2]}, "b": 1}, edges)
    with pytest.raises(ValueError, match="every edge set"):
        data.from_sets({"a": 2, "b": 1}, {**edges, ("b", "to", "a"): [[0], [0]]})


def test_node_set_encoder_passes_times_on():
    dates = [
        datetime.datetime(1970, 1, 1, 0, 0, n, tzinfo=datetime.UTC) for n in (1, 2)
    ]
    item = {
        "nodes": {"a": {"town": ["x", "y"], "time": dates}, "b": {"time": [7]}},
        "edges": {("a", "to", "b"): {"edge_index": [[0, 1], [0, 0]], "time": [5, 6]}},
    }
    encoder = preprocessing.NodeSetEncoder().adapt([item])
    graph = encoder(item)
    assert graph.node["time"].tolist() == [1000, 2000, 7]
    assert graph.edge["time"].tolist() == [5, 6]
    assert "time" not in encoder.inputs()["sets"]["a"]
    assert "time" not in encoder.edge_inputs()


def test_pandas_round_trip_and_dates():
    pandas = pytest.importorskip("pandas")
    graph = graph_with_times()
    again = data.from_pandas(*data.to_pandas(graph))
    assert times_by_weight(again) == times_by_weight(graph)
    assert again.node["time"].tolist() == graph.node["time"].tolist()
    dates = pandas.to_datetime(["2020-01-01T00:00:00.5Z", "2020-01-02T00:00:00.0Z"])
    table = pandas.DataFrame({"source": [0, 1], "target": [1, 2], "time": dates})
    assert data.from_pandas(table).edge["time"].tolist() == [
        1_577_836_800_500,
        1_577_923_200_000,
    ]


def test_networkx_round_trip():
    pytest.importorskip("networkx")
    graph = graph_with_times()
    again = data.from_networkx(data.to_networkx(graph))
    assert again.edge["time"].dtype == np.int64
    assert times_by_weight(again) == times_by_weight(graph)


def test_torch_geometric_round_trips():
    torch = pytest.importorskip("torch")
    geometric = pytest.importorskip("torch_geometric.data")
    graph = graph_with_times().replace(node={"kind": [0, 1, 2, 3]})
    again = data.from_pyg(data.to_pyg(graph))
    assert times_by_weight(again) == times_by_weight(graph)
    events = geometric.TemporalData(
        src=torch.tensor([0, 1]),
        dst=torch.tensor([1, 3]),
        t=torch.tensor([NOW, NOW + 1]),
        msg=torch.rand(2, 3),
    )
    graph = data.from_pyg(events)
    assert graph.num_nodes == 4
    assert graph.edge["time"].tolist() == [NOW, NOW + 1]
    assert graph.edge["msg"].shape == (2, 3)
    sets = data.from_sets(
        {"a": {"time": [1, 2]}, "b": {"time": [3]}},
        {("a", "to", "b"): {"edge_index": [[0], [0]], "time": [NOW]}},
    )
    again = data.from_pyg(data.to_pyg(sets))
    assert again.node["time"].tolist() == [1, 2, 3]
    assert again.edge["time"].tolist() == [NOW]
    encoder = preprocessing.PyGEncoder().adapt([data.to_pyg(graph)])
    assert "time" not in (encoder.edge_inputs() or {})


def test_jraph_and_graph_tensor_round_trips():
    graph = graph_with_times()
    (again,) = data.from_jraph(data.to_jraph(graph))
    assert times_by_weight(again) == times_by_weight(graph)
    assert again.node["time"].tolist() == graph.node["time"].tolist()
    sets = data.from_sets(
        {"a": {"x": np.ones((2, 2)), "time": [NOW, NOW + 1]}},
        {("a", "to", "a"): {"edge_index": [[0], [1]], "time": [NOW]}},
    )
    again = data.from_graph_tensor(data.to_graph_tensor(sets))
    assert again.edge["time"].tolist() == [NOW]
    assert again.node["time"].tolist() == [NOW, NOW + 1]


def test_pairs_of_attention_have_no_times():
    graph = preprocessing.AttentionEdges()(graph_with_times())
    assert "time" not in graph.edge
    assert graph.node["time"].dtype == np.int64


@pytest.mark.parametrize(
    "form",
    [
        lambda t: t,
        lambda t: t.dt.tz_localize("UTC"),
        lambda t: t.astype(object),
        lambda t: t.dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin").tolist(),
        lambda t: t.to_numpy(),
    ],
)
def test_dates_of_pandas_are_milliseconds(form):
    pd = pytest.importorskip("pandas")
    text = ["2024-01-01 00:00:00.0", "2024-01-02 00:00:01.5"]
    dates = pd.Series(pd.to_datetime(text))
    key = ("a", "to", "b")
    item = {
        "nodes": {"a": 2, "b": 2},
        "edges": {key: {"edge_index": [[0, 1], [0, 1]], "time": form(dates)}},
    }
    times = [1704067200000, 1704153601500]
    assert data.from_sets(**item).edge["time"].tolist() == times
    encoder = preprocessing.NodeSetEncoder().adapt([item])
    assert encoder(item).edge["time"].tolist() == times
    lacking = dates.astype(object)
    lacking[1] = pd.NaT
    for values in (lacking, lacking.tolist(), [dates[0], None]):
        item["edges"][key]["time"] = values
        with pytest.raises(ValueError, match="1 of them missing"):
            data.from_sets(**item)


SECONDS = NOW // 1000


@pytest.mark.parametrize(
    "read",
    [
        lambda graph, pairs: data.check_leaks(graph, pairs),
        lambda graph, pairs: list(data.walk_time(graph, pairs, steps=1)),
        lambda graph, pairs: link_task().rank(graph, pairs),
        lambda graph, pairs: link_task().predict(graph, pairs, sampler=recent()),
        lambda graph, pairs: link_task().fit(
            graph, pairs, sampler=recent(), epochs=1, verbose=0
        ),
        lambda graph, pairs: kb.training.EdgeBank().rank(
            data.NodePairs.of_edges(graph), pairs, [0, 1]
        ),
    ],
)
def test_pairs_of_another_unit_than_the_edges_are_named(read, caplog):
    graph = graph_with_times()
    edges = {"w": graph.edge["w"], "time": SECONDS + np.arange(5)}
    graph = graph.replace(edge=edges)
    read(graph, data.NodePairs([0, 1], [1, 2], time=[SECONDS + 5, SECONDS + 6]))
    assert "unit" not in caplog.text
    read(graph, data.NodePairs([0, 1], [1, 2], time=[NOW + 5000, NOW + 6000]))
    assert "one unit, such as seconds" in caplog.text


def link_task():
    backbone = kb.models.GINEBackbone(
        {"kind": 4}, 8, num_layers=1, edge_inputs={"w": {"features": 1}}
    )
    return kb.models.LinkPredictor(backbone)


def recent():
    return preprocessing.NeighborSampler([2], batch_size=8, time="recent")
