import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.layers import pooled_batch
from keras_bandgnn.plans import Banded, Dense, Plan
from tests.layers.pooling_cases import WIDTH, batch_of, graphs_of, numpy
from tests.oracles.pooling import subgraph

EDGES = {"edge_inputs": {"e": {"features": WIDTH}}}
# Every backbone that takes pooling, with the options that read edges in other ways.
BACKBONES = {
    "GATBackbone": {"num_heads": 2},
    "GATBackbone typed": {"num_heads": 2, "num_edge_types": 3, "type_reduce": "sum"},
    "GATv2Backbone": {"num_heads": 2},
    "GATv2Backbone edges": {"num_heads": 2, **EDGES},
    "GCNBackbone": {},
    "GCNBackbone typed": {"num_edge_types": 3},
    "GINEBackbone": {},
    "GINEBackbone edges": EDGES,
    "GatedGCNBackbone": {},
    "GatedGCNBackbone edges": EDGES,
    "PNABackbone": {"delta": 1.2},
    "PNABackbone edges": {"delta": 1.2, **EDGES},
    "RGCNBackbone": {"num_edge_types": 3},
    "SAGEBackbone": {},
    "SAGEBackbone max": {"reduce": "max"},
    "SAGEBackbone pool": {"reduce": "pool"},
    "SAGEBackbone sum": {"reduce": "sum"},
    "SAGEBackbone typed": {"num_edge_types": 3, "type_reduce": "mean"},
    "SAGEBackbone edges": EDGES,
}
PLANS = {"segment": None, "banded": Plan(Banded(4)), "dense": Plan(Dense(16))}


def tensors(values):
    return keras.tree.map_structure(keras.ops.convert_to_tensor, values)


def drawn_mask(x, seed=0):
    """A mask of some nodes; of the first graph none stay."""
    mask = np.random.default_rng(seed).random(x["node"]["mask"].shape) < 0.6
    return mask & x["node"]["mask"] & (x["node"]["graph_id"] > 0)


def subgraphs(graphs, x, mask):
    """The graphs of the nodes that stay, as Graphs of their own."""
    out = []
    for rows in kb.batch.graph_rows(x):
        graph, stays = graphs[rows.id], mask[rows.group, rows.nodes]
        senders, receivers, edges = subgraph(graph, stays)
        if not stays.any():
            out.append(None)  # Graphs have a node at least.
            continue
        out.append(
            kb.Graph(
                int(stays.sum()),
                senders,
                receivers,
                edge_type=graph.edge_type[edges],
                node={"h": graph.node["h"][stays]},
                edge={"e": graph.edge["e"][edges]},
            )
        )
    return out


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.release(elsewhere=True)
def test_layers_compute_what_they_do_of_the_subgraphs(name):
    num_types = BACKBONES[name].get("num_edge_types", 1)
    graphs = graphs_of(num_types=num_types)
    for plan in PLANS.values() if name.endswith("Backbone") else [None]:
        x = batch_of(graphs, plan=plan)
        mask = drawn_mask(x)
        pooled, _ = pooled_batch(x, mask, num_types)
        expected = batch_of([g for g in subgraphs(graphs, x, mask) if g])
        backbone = getattr(kb.models, name.split()[0])(
            {"h": {"features": WIDTH}}, WIDTH, num_layers=2, **BACKBONES[name]
        )
        rng = np.random.default_rng(3)
        backbone.set_weights(
            [w + 0.3 * rng.random(size=w.shape) for w in backbone.get_weights()]
        )
        out, other = (
            numpy(
                backbone.layer(
                    1, b["node"]["h"], backbone.edge_states(b), backbone.prepare(b)
                )[0]
            )
            for b in tensors((pooled, expected))
        )
        assert mask.sum() > 5
        np.testing.assert_allclose(
            out[mask], other[np.asarray(expected["node"]["mask"])], atol=1e-5
        )


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_batch_keeps_the_contract(replicas):
    graphs = graphs_of(num_types=3)
    x = batch_of(graphs, replicas)
    mask = drawn_mask(x)
    pooled, order = keras.tree.map_structure(numpy, pooled_batch(x, mask, 3))
    edge, num_nodes = pooled["edge"], x["node"]["mask"].shape[1]
    np.testing.assert_array_equal(pooled["node"]["mask"], mask)
    parts = subgraphs(graphs, x, mask)
    for rows, part in zip(kb.batch.graph_rows(x), parts, strict=True):
        place = rows.group, rows.slot
        counts = [0, 0] if part is None else [part.num_nodes, part.num_edges]
        assert [pooled["graph"][n][place] for n in ("n_node", "n_edge")] == counts
    assert edge["mask"].sum() == sum(part.num_edges for part in parts if part)
    assert (np.diff(edge["receiver"], axis=1) >= 0).all()
    for name, fill in (("sender", 0), ("receiver", num_nodes), ("type", 0)):
        assert (edge[name][~edge["mask"]] == fill).all()
    for group in range(replicas):
        for name in ("sender", "receiver", "type", "e"):
            values = np.asarray(x["edge"][name][group])[order[group]]
            stays = edge["mask"][group]
            np.testing.assert_array_equal(edge[name][group][stays], values[stays])
    plan = pooled["plan"]["segment"]
    row = plan["receiver"] * 3 + plan["type"]
    assert (np.diff(row, axis=1) >= 0).all()
    for name, array in x["edge"].items():
        assert edge[name].shape == np.asarray(array).shape


def test_all_nodes_stay_or_none():
    x = batch_of(graphs_of())
    same, order = keras.tree.map_structure(numpy, pooled_batch(x, x["node"]["mask"]))
    np.testing.assert_array_equal(order[0], np.arange(order.shape[1]))
    for part in ("node", "edge", "graph"):
        for name, values in x[part].items():
            np.testing.assert_array_equal(same[part][name], values, err_msg=name)
    empty, _ = pooled_batch(x, np.zeros_like(x["node"]["mask"]))
    assert not numpy(empty["edge"]["mask"]).any()
    assert not numpy(empty["graph"]["n_node"]).any()


def test_weights_of_edges_stay_theirs():
    graphs = [
        kb.Graph(g.num_nodes, g.senders, g.receivers, edge={"e": g.edge["e"][:, 0]})
        for g in graphs_of()
    ]
    preprocessor = kb.preprocessing.GraphPreprocessor([], edge_weight="e")
    x = preprocessor.loader(graphs, shuffle=False)[0][0]
    mask = drawn_mask(x)
    pooled, _ = keras.tree.map_structure(numpy, pooled_batch(x, mask))
    weight = pooled["plan"]["segment"]["weight"][pooled["edge"]["mask"]]
    np.testing.assert_array_equal(weight, pooled["edge"]["e"][pooled["edge"]["mask"]])


def test_a_batch_without_edges_is_refused():
    x = batch_of(graphs_of())
    del x["edge"]
    with pytest.raises(ValueError, match="a part 'edge'"):
        pooled_batch(x, x["node"]["mask"])
