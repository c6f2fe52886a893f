"""Copies equal their originals, nothing global changes, nothing grows without end."""

import copy
import dataclasses
import importlib
import pickle
import pkgutil
import random

import numpy as np
import pytest

import keras_bandgnn
from keras_bandgnn import Graph, compat
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.models import task_program
from keras_bandgnn.planning.plan_choice import choose_plan
from keras_bandgnn.preprocessing import (
    AttentionPlan,
    DynamicBatcher,
    GraphLoader,
    RCMKCompile,
    SequenceLoader,
    StaticBatcher,
    StructuralEncoding,
    attention_conditions,
    reform,
)
from keras_bandgnn.preprocessing.forecast.batching_forecast import count_shapes
from keras_bandgnn.preprocessing.loading import sequence_loader
from keras_bandgnn.preprocessing.ordering import rcmk_compile
from keras_bandgnn.preprocessing.ordering.cluster_compile import ClusterOrder
from keras_bandgnn.preprocessing.ordering.orderings import ORDERINGS, node_order
from keras_bandgnn.primitives import (
    Banded,
    BlockSparse,
    Dense,
    Edges,
    Grouped,
    Plan,
    ReceptiveField,
    Segment,
    Supernode,
)
from keras_bandgnn.primitives.base import Load
from tests.planning import machines

COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "old pickle": lambda thing: pickle.loads(pickle.dumps(thing, protocol=2)),
}


def graph(count=6, seed=0):
    rng = np.random.default_rng(seed)
    return Graph(
        count,
        *rng.integers(0, count, (2, 12)),
        edge_type=rng.integers(0, 2, 12),
        node={"kind": rng.integers(0, 4, count), "x": rng.normal(size=(count, 2))},
        edge={"w": rng.normal(size=12)},
        context={"charge": 1.5},
        candidates=[0, 1],
        label=1,
        slot=2,
        info={"name": "six"},
        origin=np.arange(count)[::-1],
    )


def arrays_of(thing):
    """All arrays that something holds, with their names."""
    if isinstance(thing, np.ndarray):
        return {"": thing}
    if dataclasses.is_dataclass(thing):
        items = {f.name: getattr(thing, f.name) for f in dataclasses.fields(thing)}
    elif isinstance(thing, Graph):
        items = {name: getattr(thing, name) for name in Graph.__slots__}
    elif isinstance(thing, FlatGraphs):
        items = thing.columns()
    elif hasattr(thing, "items"):
        items = dict(thing.items())
    elif isinstance(thing, list | tuple):
        items = dict(enumerate(thing))
    else:
        return {}
    return {
        f"{name}/{inner}": array
        for name, value in items.items()
        for inner, array in arrays_of(value).items()
    }


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_graphs_are_immutable(name):
    for original in (graph(), FlatGraphs.from_graphs([graph()])[0], graph().subgraph([2, 1, 0])):  # fmt: skip # noqa: E501
        made = COPIES[name](original)
        arrays, others = arrays_of(original), arrays_of(made)
        assert arrays.keys() == others.keys() and len(arrays) > 9
        for key, array in others.items():
            np.testing.assert_array_equal(array, arrays[key])
            assert array.dtype == arrays[key].dtype
            assert not array.flags.writeable, key
        assert dict(made.info) == dict(original.info) and made.slot == original.slot
        with pytest.raises(AttributeError, match="immutable"):
            made.slot = 1
        for field in (made.node, made.edge, made.context, made.info):
            with pytest.raises(TypeError):
                field["new"] = 1


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_many_graphs_are_read_only(name):
    flat = FlatGraphs.from_graphs([graph(seed=s) for s in range(3)])
    made = COPIES[name](flat)
    for key, array in made.columns().items():
        np.testing.assert_array_equal(array, flat.columns()[key])
        assert not array.flags.writeable
    assert [dict(i) for i in made.info] == [dict(i) for i in flat.info]


def edges():
    one = graph()
    return Edges(one.senders, one.receivers, one.edge_type, 6, 2)


def loader(**options):
    graphs = [graph(seed=s) for s in range(9)]
    return GraphLoader(
        graphs, DynamicBatcher(3, packing="sequential"), Plan(), **options
    )


# A sample of each value object; None: it belongs to a task of its own with own tests.
VALUES = {
    "AlgorithmForecast": None,
    "AttentionConditions": lambda: attention_conditions(graph(), 2),
    "BatcherChoice": None,
    "ClusterOrder": lambda: ClusterOrder(np.arange(3), np.array([0, 3]), "degree"),
    "Edges": edges,
    "Hardware": lambda: machines.machine(machines.CPU),
    "Load": lambda: Load({"node": 5}, 1, 2, 3),
    "PlanChoice": lambda: choose_plan(
        [FlatGraphs.from_graphs([graph()])],
        2,
        hardware=machines.machine(machines.CPU),
    ),
    "Reformation": lambda: reform(
        np.array([0, 1]), np.array([1, 0]), 4, block_size=2, num_tiles=1
    ),
    "ShapeCounts": lambda: count_shapes(
        {"node": np.array([5, 6]), "edge": np.array([1, 2])},
        StaticBatcher(1, "64", budget={"graph": 2}),
        2,
    ),
    "ConditionResult": lambda: attention_conditions(graph(), 2).reach,
}
PLANS = [
    Plan(),
    Plan(Banded(8), rest=Grouped(16, "aggregate")),
    Plan(Banded(8, "band"), rest="drop", filter={"bandwidth": 9}),
    Plan(Supernode(4), Dense(4), rest=BlockSparse(4)),
    Plan(BlockSparse(4, 2), rest=Segment()),
    Plan(schedule=ReceptiveField(2)),
    AttentionPlan(),
    AttentionPlan(8, share=1.0, rest="drop"),
]


def value_classes():
    """Frozen dataclasses of the rooms that lay out graphs."""
    found = {}
    for room in ("preprocessing", "primitives"):
        package = importlib.import_module(f"keras_bandgnn.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(module.name)).values():
                if dataclasses.is_dataclass(value) and value.__module__ == module.name:
                    if value.__dataclass_params__.frozen:
                        found[value.__name__] = value
    return found


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_values_are_equal_and_frozen(name):
    missing = set(value_classes()) - set(VALUES)
    assert not missing, f"add a sample of {missing} to VALUES in this file"
    for make in filter(None, VALUES.values()):
        value = make()
        made = COPIES[name](value)
        assert type(made) is type(value) and repr(made) == repr(value)
        arrays = arrays_of(value)
        for key, array in arrays_of(made).items():
            np.testing.assert_array_equal(array, arrays[key])
        first = dataclasses.fields(made)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, first, None)


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_plans_and_batchers_do_the_same(name):
    for plan in PLANS:
        made = COPIES[name](plan)
        assert made == plan and hash(made) == hash(plan) and made is not None
        assert made.get_config() == plan.get_config() and repr(made) == repr(plan)
    sizes = {"node": np.array([5, 60, 9]), "edge": np.array([3, 0, 2])}
    for batcher in (DynamicBatcher(3), StaticBatcher(2), StaticBatcher(2, "64")):
        batcher.adapt(sizes)
        made = COPIES[name](batcher)
        assert made.plain_config() == batcher.plain_config()
        assert made.given == batcher.given
    if name != "copy":
        original = loader()
        made = COPIES[name](original)
        for a, b in zip(original[0][0]["node"].values(), made[0][0]["node"].values(), strict=True):  # fmt: skip # noqa: E501
            np.testing.assert_array_equal(a, b)


# === The caller's random numbers ===


def entries():
    """Public calls that order, draw or initialise, by name."""
    flat = FlatGraphs.from_graphs([graph(seed=s) for s in range(9)])
    one = graph(40, 1)
    nodes = one.replace(
        candidates=None, slot=None, label=np.zeros(40), label_level="node"
    )

    def search():
        pytest.importorskip("keras_tuner")
        from keras_bandgnn.tuning import GGNNHyperModel
        from keras_bandgnn.tuning.extra import keras_tuner

        data = list(flat)
        hp = keras_tuner.HyperParameters()
        made = GGNNHyperModel(data, data)
        return [
            [np.array(w).tolist() for w in made.build(hp).get_weights()]
            for _ in range(2)
        ]

    calls = {
        "loader": lambda: [loader()[i] for i in range(2)],
        "sequences": lambda: SequenceLoader(nodes, 7)[0],
        "plan": VALUES["PlanChoice"],
        "encoding": lambda: StructuralEncoding(laplacian=3, random_walk=2)(one),
        "search": search,
    }
    for ordering in ORDERINGS:
        calls[ordering] = lambda ordering=ordering: node_order(one, ordering, 8)
    return calls


@pytest.mark.parametrize("name", sorted(entries()))
def test_the_callers_random_numbers_stay(name):
    if name == "metis":
        pytest.importorskip("pymetis")
    call = entries()[name]
    random.seed(5), np.random.seed(5)
    before = random.getstate(), np.random.get_state()
    found = call()
    after = random.getstate(), np.random.get_state()
    assert before[0] == after[0]
    np.testing.assert_array_equal(before[1][1], after[1][1])
    assert before[1][2:] == after[1][2:]
    if name == "search":
        assert found[0] == found[1]


def test_the_library_seeds_no_global_generator():
    """Where it must, for Keras, the state is put back."""
    import re
    from pathlib import Path

    root = Path(keras_bandgnn.__file__).parent
    found = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        if re.search(r"(?<![\w.])(np\.)?random\.seed\(", file.read_text("utf-8"))
    }
    assert found <= {"tuning/hypermodel.py"}
    # Commands are processes of their own; `compat` has it for them.
    found = {
        file.relative_to(root).parts[0]
        for file in root.rglob("*.py")
        if "set_random_seed(" in file.read_text("utf-8")
        and "Its `set_random_seed`" not in file.read_text("utf-8")
    }
    assert found <= {"cli", "tuning", "compat.py"}


# === What is kept ===


def test_statistics_of_an_order_are_bounded(monkeypatch):
    monkeypatch.setattr(rcmk_compile, "_REPORTED", 10)
    layer = RCMKCompile(2, "natural")
    graphs = [Graph(9, [0], [k % 9]) for k in range(25)]
    for one in graphs:
        layer(one)
    stats = layer.stats()
    assert stats["bandwidth_before"].tolist() == [g.bandwidth for g in graphs[-10:]]
    assert stats["bandwidth_after"].size == 10
    near = sum(g.bandwidth < 2 for g in graphs)
    assert stats["covered_edges"] == pytest.approx(near / 25)


def test_programs_of_a_task_are_bounded():
    task = keras_bandgnn.models.GraphClassifier(
        keras_bandgnn.models.GCNBackbone({"kind": 2}, 4), 2
    )

    def function(task, batch, number):
        return batch["graph"]["mask"]

    first = task_program.compiled(task, function, 0)
    for number in range(1, 40):
        task_program.compiled(task, function, number)
        # The one that is used stays.
        assert task_program.compiled(task, function, 0) is first
    programs = compat.model_cache(task)["programs"]
    assert len(programs) <= task_program._MAX_PROGRAMS
    compat.forget_programs(task)
    assert task_program.compiled(task, function, 0) is not first


def test_budgets_of_sequences_are_bounded(monkeypatch):
    monkeypatch.setattr(sequence_loader, "_CACHED_PLANS", 3)
    line = Graph(
        40,
        np.arange(39),
        np.arange(1, 40),
        node={"cluster": np.arange(40) // 10},
        label=np.zeros(40),
        label_level="node",
    )
    made = SequenceLoader(line, 20, "clusters", plan=AttentionPlan(4))
    for threshold in range(8):
        made.set_threshold(float(threshold))
    assert len(made.composer._batchers) == 3


def test_data_sets_of_a_search_are_bounded():
    pytest.importorskip("keras_tuner")
    from keras_bandgnn.preprocessing import GraphPreprocessor
    from keras_bandgnn.tuning import GGNNHyperModel

    data = [graph(seed=s) for s in (1, 2)]
    made = GGNNHyperModel(data, data)
    for size in range(2, 12):
        prepared = made._prepared(GraphPreprocessor([RCMKCompile(size)]), data)
        again = made._prepared(GraphPreprocessor([RCMKCompile(size)]), data)
        assert prepared is again
    assert len(made._compiled) <= 4
