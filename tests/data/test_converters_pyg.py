import warnings

import numpy as np
import pytest
from converter_graphs import assert_same, edgeless, graphs, make
from hypothesis import given, settings

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it deprecates parts of torch as it loads
    pyg = pytest.importorskip("torch_geometric.data")

from keras_bandgnn.data.converters.pyg import from_pyg, to_pyg  # noqa: E402

LEVELS = {
    "node_id": "node",
    "node_vec": "node",
    "edge_len": "edge",
    "edge_vec": "edge",
    "charge": "context",
    "cell": "context",
}


@settings(max_examples=40, deadline=None)
@given(graphs | edgeless)
def test_round_trip(graph):
    level = graph.label_level if graph.label is not None else None
    assert_same(from_pyg(to_pyg(graph), level, LEVELS), graph)


def test_round_trip_where_sizes_decide():
    for level in ("graph", "node"):
        graph = next(g for g in (make(s, level) for s in range(99)) if g.num_nodes == 6)
        assert graph.num_edges not in (1, 2, 6)
        assert_same(from_pyg(to_pyg(graph)), graph)


def test_candidates_slot_and_text():
    graph = make(1, nodes=5).replace(
        candidates=[4, 2], label=1, slot=3, info={"smiles": "C", "line": 3}
    )
    data = to_pyg(graph)
    back = from_pyg(data, levels=LEVELS)
    assert_same(back, graph)
    assert back.info == {"smiles": "C"}
    batch = pyg.Batch.from_data_list([data, data])
    assert batch.candidate_index.tolist() == [4, 2, 9, 7]
    assert batch.slot_index.tolist() == [3, 8] and batch.y.tolist() == [1, 1]
    assert batch.cell.shape == (2, 2, 3)


def data(**changes):
    fields = {
        "x": torch.ones(3, 2, dtype=torch.float64),
        "edge_index": torch.tensor([[0, 1], [1, 2]]),
        "edge_attr": torch.ones(2, 4, dtype=torch.bfloat16),
    }
    return pyg.Data(**{**fields, **changes})


def test_usual_attributes():
    graph = from_pyg(
        data(
            pos=torch.zeros(3, 3),
            z=torch.tensor([6, 1, 1]),
            edge_type=torch.tensor([0, 3]),
            y=torch.tensor([[1.0, 2.0]]),
            train_mask=torch.tensor([True, False, True]),
            u=torch.ones(1, 5),
            charge=2,
            name="one",
            weight=torch.ones(3, requires_grad=True),
        )
    )
    assert graph.senders.tolist() == [0, 1] and graph.receivers.tolist() == [1, 2]
    assert graph.edge_type.tolist() == [0, 3]
    assert {k: (v.dtype.name, v.shape) for k, v in graph.node.items()} == {
        "x": ("float32", (3, 2)),
        "pos": ("float32", (3, 3)),
        "z": ("int32", (3,)),
        "train_mask": ("int32", (3,)),
        "weight": ("float32", (3,)),
    }
    assert graph.edge["edge_attr"].shape == (2, 4)
    assert graph.context["u"].shape == (5,) and graph.context["charge"] == 2
    assert graph.label.tolist() == [1, 2] and graph.info == {"name": "one"}


def test_label_levels():
    by_node = from_pyg(data(y=torch.tensor([0, 1, 0])))
    assert by_node.label_level == "node" and by_node.label.dtype == np.int32
    assert from_pyg(data(y=torch.tensor([4]))).label.shape == ()
    assert from_pyg(data(y=torch.tensor([1, 2, 3])), "graph").label_level == "graph"
    by_edge = from_pyg(data(y=torch.tensor([4, 5])), "edge")
    assert by_edge.label_level == "edge" and by_edge.label.tolist() == [4, 5]
    assert to_pyg(by_edge).y.tolist() == [4, 5]
    one = pyg.Data(
        x=torch.ones(1, 2),
        edge_index=torch.zeros(2, 0, dtype=torch.long),
        y=torch.ones(1),
    )
    with pytest.raises(ValueError, match='label_level="graph" or "node"'):
        from_pyg(one)
    assert from_pyg(one, "graph").label.shape == ()
    assert from_pyg(one, "node").label.shape == (1,)


def test_arrays_do_not_share_memory():
    tensor = torch.zeros(3, 2)
    graph = from_pyg(data(x=tensor))
    tensor += 1
    assert not graph.node["x"].any()


@pytest.mark.parametrize(
    "make_data, message",
    [
        (pyg.HeteroData, "`num_nodes` to be at least 1"),
        (
            lambda: pyg.Batch.from_data_list([data(), data()]),
            "batch of 2 graphs.*to_data_list",
        ),
        (lambda: data(adj_t=torch.eye(3).to_sparse()), "`adj_t` to be a dense"),
        (lambda: pyg.Data(x=torch.ones(2, 1)), "`edge_index`.*Received: None"),
        (lambda: data(z=torch.tensor([1, 2, 2**40])), r"node\['z'\].*int32"),
        (lambda: data(x=torch.full((3, 1), torch.nan)), r"node\['x'\].*finite"),
    ],
)
def test_errors(make_data, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        from_pyg(make_data())


def test_names_must_differ():
    graph = make(0).replace(context={"node_id": 1})
    with pytest.raises(ValueError, match="'node_id' twice"):
        to_pyg(graph)
    with pytest.raises(ValueError, match="'y' twice, or"):
        to_pyg(make(0).replace(context={"y": 1}))
    with pytest.raises(ValueError, match="`levels"):
        from_pyg(to_pyg(make(0)), levels={"cell": "graph"})
