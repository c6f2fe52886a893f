import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn import Graph
from keras_bandgnn.assembly.assembler import Supergraph
from keras_bandgnn.assembly.schedule_assembler import ScheduleAssembler
from keras_bandgnn.assembly.schedule_tables import ScheduleTable
from keras_bandgnn.batch import unbatch
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.models import GGNNBackbone, GraphRegressor, NodeSelector
from keras_bandgnn.ops import gather_rows
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphLoader,
    GraphPreprocessor,
    StaticBatcher,
)
from keras_bandgnn.primitives import Banded, Grouped, Plan, ReceptiveField, Segment
from keras_bandgnn.primitives.csr import row_index
from keras_bandgnn.primitives.plan import scheduled_steps
from keras_bandgnn.testing import gradients_of, random_graph
from tests.oracles.dense import selector_logits

STEPS = 2


def graphs_of(seed, count=4, num_nodes=14, num_ids=3):
    """Sparse graphs with few ids, so that some nodes are equal and some too far."""
    rng = np.random.default_rng(seed)
    return [
        random_graph(rng, num_nodes + i, num_edges=num_nodes, num_ids=num_ids)
        for i in range(count)
    ]


def selector(seed=0, **options):
    keras.utils.set_random_seed(seed)
    inputs = {"type": 10, "subtoken": 10}
    backbone = GGNNBackbone(inputs, 8, STEPS, num_edge_types=3, **options)
    task = NodeSelector(backbone, readout="slot")
    bias = backbone.message_passing.bias
    bias.assign(keras.random.normal(bias.shape, seed=1))
    return task


def batch_of(graphs, plan, batcher=None, **options):
    # Room for all in one supergraph.
    batcher = batcher or DynamicBatcher(len(graphs) + 1)
    loader = GraphLoader(
        graphs, batcher, plan, shuffle=False, num_edge_types=3, **options
    )
    return loader[0]


SCHEDULES = {
    "grouped": Plan(rest=Grouped(), schedule=ReceptiveField(STEPS)),
    "aggregate": Plan(rest=Grouped(first="aggregate"), schedule=ReceptiveField(STEPS)),
    "segment": Plan(schedule=ReceptiveField(STEPS)),
    "unmerged": Plan(rest=Grouped(), schedule=ReceptiveField(STEPS, merge=False)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_logits_equal_the_oracle(name):
    graphs, task = graphs_of(0), selector()
    x, _, _ = batch_of(graphs, SCHEDULES[name])
    logits = np.asarray(keras.ops.convert_to_numpy(task.predict_on_batch(x)))
    for number, row in unbatch(logits, x, "candidate"):
        expected = selector_logits(graphs[number], task)
        np.testing.assert_allclose(row, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "replicas"),
    [("grouped", 1), ("grouped", 2), ("aggregate", 1), ("segment", 2), ("unmerged", 1)],
)
def test_gradients_equal_those_of_the_full_computation(name, replicas):
    graphs, task = graphs_of(1), selector()
    options = {"batcher": StaticBatcher(5 if replicas == 1 else 3 - 1)}
    options["replicas"] = replicas
    full = gradients_of(task, batch_of(graphs, Plan(), **options))
    own = gradients_of(task, batch_of(graphs, SCHEDULES[name], **options))
    assert own.keys() == full.keys()
    largest = max(np.abs(g).max() for g in full.values())
    for path, gradient in own.items():
        np.testing.assert_allclose(
            gradient, full[path], rtol=1e-4, atol=1e-6 * largest, err_msg=path
        )


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), merge=st.booleans(), num_ids=st.integers(1, 4))
def test_lists_hold_what_is_needed_and_equal_nodes_once(seed, merge, num_ids):
    graphs = FlatGraphs.from_graphs(graphs_of(seed, 3, 10, num_ids))
    field = ReceptiveField(STEPS, merge)
    columns = ScheduleTable.of(graphs, field)
    for number, graph in enumerate(graphs):
        states = [
            (
                tuple(np.ravel([v[i] for v in graph.node.values() if v.ndim == 1])),
                tuple(graph.node["subtoken"][i]),
                tuple(graph.node["x"][i]),
            )
            for i in range(graph.num_nodes)
        ]
        needed = set(graph.candidates.tolist()) | {graph.slot}
        read = needed
        levels = [needed]
        for _ in range(STEPS):
            ends = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
            needed = needed | {s for s, r in ends if r in needed}
            levels.append(needed)
        for step in range(STEPS + 1):
            pointer = columns.ptr if step == 0 else columns.steps[step - 1].ptr
            rows = pointer[number + 1] - pointer[number]
            needed = levels[STEPS - step]
            if merge and step < STEPS:
                assert rows == len({states[n] for n in needed})
            else:
                assert rows == len(needed)
            incoming = [[] for _ in states]
            for s, r, k in zip(
                graph.senders, graph.receivers, graph.edge_type, strict=True
            ):
                incoming[r].append((int(k), hash(states[s])))
            states = [
                (own, tuple(sorted(got)))
                for own, got in zip(states, incoming, strict=True)
            ]
        first = graphs.candidate_ptr[number]
        rows = columns.candidates[first : first + len(graph.candidates)]
        start = columns.steps[-1].ptr[number]
        node = columns.last[start + rows] - graphs.node_ptr[number]
        np.testing.assert_array_equal(node, graph.candidates)
        assert len(read) == columns.steps[-1].ptr[number + 1] - start


def test_columns_of_many_pieces_equal_those_of_one(monkeypatch):
    graphs = FlatGraphs.from_graphs(graphs_of(3, 7))
    whole = ScheduleTable.of(graphs, ReceptiveField(STEPS))
    monkeypatch.setattr("keras_bandgnn.assembly.schedule_tables._CHUNK", 30)
    pieces = ScheduleTable.of(graphs, ReceptiveField(STEPS))
    for name in ("ptr", "node", "last", "candidates", "slot"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(pieces, name))
    for own, other in zip(whole.steps, pieces.steps, strict=True):
        for name in ("ptr", "state", "edge_ptr", "sender", "receiver", "type"):
            np.testing.assert_array_equal(getattr(own, name), getattr(other, name))


def test_steps_found_per_batch_equal_those_kept(monkeypatch):
    graphs, task = graphs_of(4), selector()
    kept = batch_of(graphs, SCHEDULES["grouped"])
    monkeypatch.setattr("keras_bandgnn.assembly.schedule_assembler._MOST_KEPT", 0)
    found = batch_of(graphs, SCHEDULES["grouped"])
    keras.tree.map_structure(np.testing.assert_array_equal, kept, found)
    assert task.predict_on_batch(kept[0]).shape[0] == 1


class Noisy(GGNNBackbone):
    """Equal nodes differ in training."""

    def receptive_field(self, training):
        return ReceptiveField(self.num_steps, merge=not training)


def test_training_with_dropout_merges_equal_nodes():
    task = selector(dropout=0.2, message_dropout=0.1)
    training = task.loader(graphs_of(5))
    assert training.plan.schedule == ReceptiveField(STEPS)


def test_backbones_whose_equal_nodes_differ_in_training():
    inputs = {"type": 10, "subtoken": 10}
    task = NodeSelector(Noisy(inputs, 8, STEPS, num_edge_types=3))
    training = task.loader(graphs_of(5))
    assert training.plan.schedule == ReceptiveField(STEPS, merge=False)
    other = task.loader(graphs_of(5), training=False)
    assert other.plan.schedule == ReceptiveField(STEPS)
    # A loader for predictions tells a task what it cannot be used for.
    with pytest.raises(ValueError, match="merge=False"):
        task.fit(other, verbose=0)
    assert len(task.predict(training)) == len(graphs_of(5))


@pytest.mark.parametrize("where", ["dropout", "message_dropout"])
def test_dropout_of_merged_states_is_unbiased(where):
    """The mean over many draws is the value without dropout."""
    draws = 500
    task = selector(**{where: 0.4})
    x, *_ = batch_of(graphs_of(6), SCHEDULES["grouped"])
    backbone = task.backbone
    states = backbone.encoder(x)
    (arrays, _) = scheduled_steps(x["plan"], STEPS)
    rows = row_index(arrays.pop("state"), keras.ops.shape(states)[1])
    sums = backbone.message_passing.prepare_plan(arrays, keras.ops.shape(rows.index)[1])

    def step(training):
        dropped = training and where == "message_dropout"
        messages = backbone.message_passing(states, sums, training=dropped)
        if where == "message_dropout":
            return keras.ops.convert_to_numpy(messages)
        old = gather_rows(rows, states)
        new = backbone.update(messages, old, training=training)
        return keras.ops.convert_to_numpy(new)

    found = np.stack([step(training=True) for _ in range(draws)])
    error = np.abs(found.mean(axis=0) - step(training=False))
    assert (error <= 5.5 * found.std(axis=0) / draws**0.5 + 1e-5).all()
    assert found.std(axis=0).max() > 0.01


def test_fit_takes_the_schedule_by_itself():
    graphs = graphs_of(5, 12)
    task = selector(dropout=0.2)
    task.preprocessor = GraphPreprocessor(batcher=DynamicBatcher(3))
    history = task.fit(graphs, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for graph, row in zip(graphs, task.predict(graphs), strict=True):
        np.testing.assert_allclose(row, selector_logits(graph, task), atol=1e-4)


def test_read_nodes_may_be_named_by_a_feature():
    rng = np.random.default_rng(0)
    graphs = []
    for graph in graphs_of(6):
        read = rng.random(graph.num_nodes) < 0.3
        graphs.append(
            Graph(
                graph.num_nodes,
                graph.senders,
                graph.receivers,
                graph.edge_type,
                node={**graph.node, "read": read.astype(np.int32)},
                label=rng.integers(0, 5, graph.num_nodes),
                label_level="node",
            )
        )
    backbone = selector().backbone
    plan = Plan(rest=Grouped(), schedule=ReceptiveField(STEPS, read="read"))
    x, y, weight = batch_of(graphs, plan)
    full, *_ = batch_of(graphs, Plan())
    states, all_states = (
        np.asarray(keras.ops.convert_to_numpy(backbone.predict_on_batch(b)))
        for b in (x, full)
    )
    rows = dict(unbatch(states, x, "node"))
    all_rows = dict(unbatch(all_states, full, "node"))
    labels = dict(unbatch(y, x, "node"))
    assert weight.sum() == sum(g.node["read"].sum() for g in graphs)
    for number, graph in enumerate(graphs):
        read = graph.node["read"] > 0
        np.testing.assert_allclose(rows[number], all_rows[number][read], atol=1e-5)
        np.testing.assert_array_equal(labels[number], graph.label[read])


def test_wrong_schedules_are_refused():
    graphs = graphs_of(7)
    task = selector(dropout=0.5)
    longer = Plan(rest=Grouped(), schedule=ReceptiveField(STEPS + 1))
    task.preprocessor = GraphPreprocessor(plan=longer)
    with pytest.raises(ValueError, match="steps"):
        task.fit(graphs, verbose=0)
    regressor = GraphRegressor(
        task.backbone, preprocessor=GraphPreprocessor(plan=SCHEDULES["grouped"])
    )
    with pytest.raises(ValueError, match="reads all nodes"):
        regressor.predict(graphs)
    with pytest.raises(ValueError, match="order='compact'"):
        Plan(Banded(4), schedule=ReceptiveField(STEPS))
    with pytest.raises(ValueError, match="read="):
        GraphLoader([Graph(2, [0], [1])], plan=Plan(schedule=ReceptiveField(1)))
    x = batch_of(graphs, Plan(schedule=ReceptiveField(3)))[0]
    with pytest.raises(Exception, match="schedule of 2 steps"):
        task.predict_on_batch(x)


def test_plans_with_schedule_and_filter_travel():
    plan = Plan(
        rest=Grouped(first="aggregate"),
        schedule=ReceptiveField(4, merge=False),
        filter={"bandwidth": 64},
    )
    again = Plan.from_config(plan.get_config())
    assert again == plan and hash(again) == hash(plan)
    assert again.schedule == plan.schedule and again.filter == plan.filter
    assert plan.replace(filter=None).filter == {}


@pytest.mark.parametrize("name", ["bandwidth", "order"])
def test_filters_leave_graphs_out_of_training_alone(name):
    graphs = graphs_of(8, 6)
    limit = {"bandwidth": 12, "order": 17}[name]
    kept = [
        (g.bandwidth if name == "bandwidth" else g.num_nodes) < limit for g in graphs
    ]
    assert 0 < sum(kept) < len(graphs)
    plan = Plan(rest=Segment(), filter={name: limit})
    loader = GraphLoader(graphs, plan=plan)
    assert loader.num_filtered == len(graphs) - sum(kept)
    assert len(loader.sizes["node"]) == sum(kept)
    task = selector()
    task.preprocessor = GraphPreprocessor(plan=plan)
    assert all(row is not None for row in task.predict(graphs))
    with pytest.raises(ValueError, match="left out 6"):
        GraphLoader(graphs, plan=Plan(filter={"order": 1}))
    with pytest.raises(ValueError, match="'bandwidth' and 'order'"):
        Plan(filter={"size": 3})


@pytest.mark.parametrize("parts", [1, 2])
def test_supergraphs_without_graphs_have_the_shapes_of_others(parts):
    # The last step of an epoch may have fewer graphs than replicas.
    graphs = FlatGraphs.from_graphs(graphs_of(9, 4))
    cut = np.array_split(np.arange(4), parts)
    pieces = [graphs.take(ids) for ids in cut]
    assembler = ScheduleAssembler(pieces, SCHEDULES["grouped"], 3, True)
    sizes = assembler.sizes()
    batcher = DynamicBatcher(5)
    batcher.adapt(sizes)
    none = np.zeros(0, np.int64)
    members = [np.arange(4), none, none, none]
    supergraphs = [Supergraph(ids, batcher.budget) for ids in members]
    (one, _), (other, figures) = assembler.build(supergraphs, 2)
    shapes = [keras.tree.map_structure(np.shape, batch) for batch in (one, other)]
    assert shapes[0] == shapes[1]
    assert figures["graph"][0] == 0 and not other[0]["graph"]["mask"].any()
