import pickle

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn import Graph
from keras_bandgnn.assembly.assembler import Supergraph
from keras_bandgnn.assembly.schedule_assembler import ScheduleAssembler
from keras_bandgnn.assembly.shared_states import DeduplicatedBudget, first_equal_row
from keras_bandgnn.batch import unbatch
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader, GraphPreprocessor
from keras_bandgnn.primitives import Banded, Grouped, Plan, ReceptiveField
from keras_bandgnn.testing import gradients_of
from tests.assembly.test_receptive_field import (
    SCHEDULES,
    STEPS,
    graphs_of,
    selector,
)

pytestmark = pytest.mark.every_backend("data_set_of_tensorflow", "grouped-False-1")

BACKEND = keras.backend.backend()
GROUPED = SCHEDULES["grouped"]
# Graphs of a supergraph.
SIZE = 20


@pytest.fixture(autouse=True)
def small_arrays_vary(monkeypatch):
    for name in ("_MANY", "_STEP"):
        monkeypatch.setattr(f"keras_bandgnn.assembly.shared_states.{name}", 64)


def similar_graphs(count=200, seed=0):
    """Graphs in which many nodes have equal states after a step."""
    rng = np.random.default_rng(seed)
    kinds = [g for s in range(4) for g in graphs_of(s, 1, 40, 1)]
    graphs = []
    for number in range(count):
        one = kinds[number % len(kinds)]
        candidates = rng.permutation(one.num_nodes)[:8]
        columns = {"edge_type": one.edge_type, "node": one.node}
        graphs.append(
            Graph(
                one.num_nodes,
                one.senders,
                one.receivers,
                candidates=candidates,
                slot=int(candidates[0] + 1) % one.num_nodes,
                label=int(number % 8),
                **columns,
            )
        )
    return graphs


def sharing(plan, exact, graphs=None, parts=1):
    """An assembler that shares states, and the supergraphs of an epoch."""
    flat = FlatGraphs.from_graphs(graphs or similar_graphs())
    cut = np.array_split(np.arange(len(flat)), parts)
    pieces = [flat.take(ids) for ids in cut]
    assembler = ScheduleAssembler(pieces, plan, 3, True)
    sizes = assembler.sizes()
    batcher = DynamicBatcher(SIZE - 1)
    batcher.adapt(sizes)
    members = batcher.pack(sizes, np.arange(len(flat)), batcher.budget)
    supergraphs = [Supergraph(ids, batcher.budget) for ids in members]
    assembler.share_states(supergraphs, exact)
    return assembler, supergraphs


def rows_of_steps(batch):
    steps = batch[0]["plan"].values()
    return [step["state"]["index"].shape[1] for step in steps]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=40))
def test_the_first_of_equal_rows(colours):
    found = first_equal_row(np.array(colours, np.uint64))
    assert found.tolist() == [colours.index(each) for each in colours]


@pytest.mark.parametrize(
    ("name", "exact", "replicas"),
    [
        ("grouped", True, 1),
        ("grouped", False, 2),
        ("aggregate", True, 2),
        ("segment", False, 1),
    ],
)
def test_outputs_and_gradients_stay(name, exact, replicas):
    assembler, supergraphs = sharing(SCHEDULES[name], exact)
    assert assembler.shared_budget is not None
    task = selector()
    some = supergraphs[:replicas]
    (own, figures), (alone, _) = (
        build(some, replicas)[0] for build in (assembler.build, assembler.build_within)
    )
    assert figures["graph"][0] == sum(len(s.members) for s in some)
    assert sum(rows_of_steps(own)) < sum(rows_of_steps(alone))
    logits = [
        dict(unbatch(task.predict_on_batch(b[0]), b[0], "candidate"))
        for b in (own, alone)
    ]
    assert logits[0].keys() == logits[1].keys()
    for number, row in logits[0].items():
        np.testing.assert_allclose(row, logits[1][number], atol=1e-5)
    shared, full = (gradients_of(task, batch) for batch in (own, alone))
    largest = max(np.abs(g).max() for g in full.values())
    for path, gradient in shared.items():
        np.testing.assert_allclose(
            gradient, full[path], rtol=1e-4, atol=2e-6 * largest, err_msg=path
        )


@pytest.mark.parametrize("exact", [True, False])
def test_parts_and_pieces_share_alike(exact, monkeypatch):
    kept, supergraphs = sharing(GROUPED, exact)
    monkeypatch.setattr("keras_bandgnn.assembly.schedule_tables._CHUNK", 100)
    found, _ = sharing(GROUPED, exact, parts=3)
    again = pickle.loads(pickle.dumps(found))
    for number in range(3):
        one, two, three = (
            # Graphs of several parts are in ascending order.
            a.build([supergraphs[number]._replace(members=np.sort(ids))], 1)[0][0]
            for a in (kept, found, again)
            for ids in [supergraphs[number].members]
        )
        keras.tree.map_structure(np.testing.assert_array_equal, one, two)
        keras.tree.map_structure(np.testing.assert_array_equal, one, three)


def test_what_does_not_fit_the_smaller_shape_gets_the_usual_one():
    same, other = similar_graphs(), graphs_of(9, 40, 34, 9)
    assembler, supergraphs = sharing(GROUPED, False, [*same, *other])
    budget = supergraphs[0].budget
    smaller = assembler.shared_budget.smaller
    names = [name for name in budget if budget[name] != smaller[name]]
    assert names and all(smaller[name] < budget[name] for name in names)
    assembler.shared_budget = DeduplicatedBudget(
        budget, {**budget, **{name: 1 for name in names if "node@1" in name}}
    )
    built = assembler.build(supergraphs[:2], 1)
    for (batch, _), s in zip(built, supergraphs, strict=False):
        (alone, _) = assembler.build_within([s], 1)[0]
        assert rows_of_steps(batch) == rows_of_steps(alone)


def test_graphs_that_share_little_keep_one_shape():
    graphs = graphs_of(3, 200, 40, 1000)
    assembler, _ = sharing(GROUPED, False, graphs)
    assert assembler.shared_budget is None
    few, _ = sharing(GROUPED, True, similar_graphs(100))
    assert few.shared_budget is None


def test_states_of_graphs_with_other_context_differ():
    def graph(context, number):
        return Graph(
            4,
            [0, 1, 2],
            [1, 2, 3],
            node={"kind": np.zeros(4, np.int32)},
            context={"temperature": np.float32(context)},
            candidates=[3, 2],
            slot=3,
            label=number % 2,
        )

    rows = []
    for context in ([0.0, 0.0], [0.0, 1.0]):
        graphs = [graph(context[i % 2], i) for i in range(200)]
        assembler, supergraphs = sharing(GROUPED, True, graphs)
        _, layout, table = assembler._layout(supergraphs[:1])
        steps = assembler._lists(layout, table, layout.rows([table.ptr]), True)
        rows.append([len(lists[0].state) for _, _, lists in steps][0])
    assert rows[1] == 2 * rows[0]


def test_small_batches_have_one_shape(monkeypatch):
    monkeypatch.setattr("keras_bandgnn.assembly.shared_states._MANY", 4096)
    assembler, _ = sharing(GROUPED, True)
    assert assembler.shared_budget.smaller is not None


def loader_of(graphs=None, **options):
    return GraphLoader(
        graphs or similar_graphs(),
        DynamicBatcher(SIZE - 1),
        GROUPED,
        num_edge_types=3,
        **options,
    )


def test_loaders_share_where_shapes_may_vary():
    loader = loader_of()
    assert loader.shares_states == (BACKEND != "tensorflow")
    assert loader.has_one_shape != loader.shares_states
    assert not loader_of(num_hosts=2).shares_states
    schedule = ReceptiveField(STEPS, merge=False)
    unmerged = GraphLoader(
        similar_graphs(),
        DynamicBatcher(SIZE - 1),
        Plan(rest=Grouped(), schedule=schedule),
    )
    assert not unmerged.shares_states and unmerged.has_one_shape
    members = loader.composition(0)[0].members
    batch = loader.build_as([members], loader.budgets[0])
    assert rows_of_steps(batch) == [
        loader.budgets[0][f"node@{step + 1}"] for step in range(STEPS)
    ]
    again = pickle.loads(pickle.dumps(loader))
    keras.tree.map_structure(np.testing.assert_array_equal, loader[1], again[1])


def test_a_data_set_of_tensorflow_takes_all_shapes():
    pytest.importorskip("tensorflow")
    loader = loader_of(shuffle=False)
    found = [rows_of_steps(x) for x in loader.to_tf_data()]
    assert found == [rows_of_steps(loader[i]) for i in range(len(loader))]


def test_training_and_predictions_stay():
    graphs = similar_graphs()
    losses = {}
    for shared in (True, False):
        task = selector(seed=3)
        task.preprocessor = GraphPreprocessor(batcher=DynamicBatcher(SIZE - 1))
        loader = task.loader(graphs)
        if not shared and loader.shares_states:
            loader.assembler.shared_budget = None
        losses[shared] = task.fit(loader, epochs=3, verbose=0).history["loss"]
        predicted = task.predict(graphs)
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-3)
    assert len(predicted) == len(graphs)


@pytest.mark.parametrize("many", [64, 4096])
def test_budgets_may_name_what_a_plan_lacks(monkeypatch, many):
    monkeypatch.setattr("keras_bandgnn.assembly.shared_states._MANY", many)
    graphs, batcher = similar_graphs(), DynamicBatcher(SIZE - 1)
    longer = Plan(rest=Grouped(), schedule=ReceptiveField(STEPS + 1))
    for plan in (longer, GROUPED, SCHEDULES["segment"]):
        loader = GraphLoader(graphs, batcher, plan, num_edge_types=3)
        assert len(loader[0][0]["plan"]) == plan.schedule.steps


def test_labels_of_nodes_keep_their_shape():
    graphs = [
        Graph(
            g.num_nodes,
            g.senders,
            g.receivers,
            g.edge_type,
            node={**g.node, "read": np.isin(np.arange(g.num_nodes), g.candidates)},
            label=np.arange(g.num_nodes) % 3,
            label_level="node",
        )
        for g in similar_graphs()
    ]
    plan = Plan(rest=Grouped(), schedule=ReceptiveField(STEPS, read="read"))
    loader = GraphLoader(graphs, DynamicBatcher(SIZE - 1), plan, num_edge_types=3)
    assert loader.shares_states == (BACKEND != "tensorflow")
    shapes = {loader[i][1].shape for i in range(len(loader))}
    assert shapes == {(1, loader.budgets[0][f"node@{STEPS}"])}


def test_no_array_exceeds_its_budget():
    loader = loader_of()
    for index in range(len(loader)):
        rows = rows_of_steps(loader[index])
        most = [loader.budgets[0][f"node@{step + 1}"] for step in range(STEPS)]
        assert all(own <= size for own, size in zip(rows, most, strict=True))


def test_predictions_need_no_sharing():
    loader = loader_of()
    loader.build_as([loader.composition(0)[0].members], loader.budgets[0])
    assert loader.assembler.shared_budget is None


@pytest.mark.parametrize("where", ["dropout", "message_dropout", None])
def test_training_with_dropout_shares_no_masks_among_graphs(where):
    task = selector(**({where: 0.1} if where else {}))
    task.preprocessor = GraphPreprocessor(batcher=DynamicBatcher(SIZE - 1))
    loader = task.loader(similar_graphs())
    # Whether it has handed out batches or not.
    unused = task.loader(similar_graphs())
    if where:
        task.fit(unused, epochs=1, verbose=0)
        assert not unused.shares_states
    loader[0]
    assert loader.shares_states == (BACKEND != "tensorflow")
    task.fit(loader, epochs=1, verbose=0)
    assert loader.shares_states == (where is None and BACKEND != "tensorflow")


@pytest.mark.parametrize("plan", ["blocks", "grouped", "segment"])
def test_every_schedule_trains_with_dropout_again_and_again(plan):
    blocks = ReceptiveField(STEPS, merge=False, order="blocks")
    plans = {**SCHEDULES, "blocks": Plan(Banded(16), schedule=blocks)}
    task = selector(dropout=0.1)
    task.preprocessor = GraphPreprocessor(
        batcher=DynamicBatcher(SIZE - 1), plan=plans[plan]
    )
    loader = task.loader(similar_graphs(100))
    for _ in range(2):
        task.fit(loader, epochs=1, verbose=0)


@pytest.mark.parametrize("used", [0, 1, 3])
def test_batches_built_before_are_apart_as_well(used):
    loader, alone = loader_of(shuffle=False), loader_of(shuffle=False)
    alone.keep_states_apart()
    for index in range(used):
        loader[index]
    loader.keep_states_apart()
    for index in range(len(loader)):
        keras.tree.map_structure(
            np.testing.assert_array_equal, loader[index], alone[index]
        )
