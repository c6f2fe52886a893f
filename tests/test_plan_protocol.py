"""Plans and primitives are asked what their base classes declare, nothing else."""

import argparse
import ast
import re

import numpy as np
import pytest
from registered import registered_primitives
from test_rooms import FILES

from keras_bandgnn import Graph
from keras_bandgnn.cli import tpu_options
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.models import GGNNBackbone, NodeSelector
from keras_bandgnn.planning import plan_choice
from keras_bandgnn.preprocessing import (
    AttentionPlan,
    ClusterCompile,
    GraphPreprocessor,
    RCMKCompile,
)
from keras_bandgnn.primitives import Banded, Edges, Plan, Primitive, Segment
from keras_bandgnn.primitives.active_blocks import ActiveBlocks
from keras_bandgnn.primitives.base import (
    is_resource,
    is_step_resource,
    of_step,
    owner_of,
    primitive_of,
    step_key,
    step_resource,
)
from keras_bandgnn.primitives.tiles import Tiles
from keras_bandgnn.programs.models.joint_selection import JointSelection

# The one file that takes keys and names of resources apart.
READER = "primitives.base"
APART = ("split", "rsplit", "partition", "rpartition")
# Names of resources and keys of steps, or the constant part of an f-string.
OF_STEP = re.compile(r"[\w:.]*@\d*|step:\d*")
# Its "@" precedes a revision: "hf://OWNER/NAME@REVISION".
REVISIONS = "saving.preset_hub"
# Rooms without a plan.
OTHERS = ("data", "programs", "tpu", "cli")
PREFIXES = (*registered_primitives(), "tiles", "active")
DECLARED = {
    name for name in (*dir(Plan), *dir(Primitive)) if not name.startswith("_")
} | {"primitives", "rest", "schedule", "filter"}
# What else may have.
DECLARED -= {"name", "get_config", "from_config", "check_registered"}


def calls():
    for name, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and name.split(".")[0] not in OTHERS:
                yield name, node


def texts(nodes):
    return [n.value for n in nodes if isinstance(n, ast.Constant)]


def test_keys_are_taken_apart_in_one_place():
    found = []
    for name, call in calls():
        method = getattr(call.func, "attr", None)
        words = [w for node in call.args for w in texts(ast.walk(node))]
        apart = method in APART and ":" in words
        begins = method == "startswith" and any(
            isinstance(word, str) and word.rstrip(":") in PREFIXES for word in words
        )
        if (apart or begins) and name != READER:
            found.append(f"{name}:{call.lineno}")
    assert not found, "use `primitive_of(key)` and its attributes"


def test_names_and_keys_of_steps_are_composed_in_one_place():
    found = []
    for name, path in FILES.items():
        if name.split(".")[0] not in OTHERS and name not in (READER, REVISIONS):
            found += [
                f"{name}:{node.lineno}"
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and OF_STEP.fullmatch(node.value)
            ]
    assert not found, "use `step_resource`, `is_step_resource`, `of_step`, `step_key`"


def test_resources_of_a_step_get_their_names_back():
    names = ("node", "banded:8", "dense:8.edge")
    tables = {t: {step_resource(n, t): t for n in names} for t in (1, 11)}
    assert step_resource("node", 3) == "node@3" and step_key(3) == "step:3"
    whole = {"node": 9, **tables[1], **tables[11]}
    assert [n for n in whole if not is_step_resource(n)] == ["node"]
    for t in tables:
        assert of_step(whole, t) == dict.fromkeys(names, t)


def test_plans_and_primitives_are_not_probed():
    found = [
        f"{name}:{call.lineno}"
        for name, call in calls()
        if getattr(call.func, "id", None) in ("getattr", "hasattr")
        and DECLARED & set(texts(call.args[1:2]))
    ]
    assert not found, "declare it in `Plan` or `Primitive`"


@pytest.mark.parametrize("name", sorted(registered_primitives()))
def test_every_primitive_has_its_key(name):
    cls = registered_primitives()[name]
    try:
        primitive = primitive_of(name)
    except ValueError:
        primitive = primitive_of(f"{name}:4")
    assert type(primitive) is cls
    assert primitive_of(primitive.key()) == primitive
    assert cls.from_config(primitive.get_config()) == primitive
    for suffix in ("", ".edge", "@3", ".row@0"):
        assert owner_of(primitive.key() + suffix) == primitive
        assert is_resource(primitive.key() + suffix)


def test_resources_of_nothing_are_known_as_such():
    assert primitive_of("tiles:8") == Tiles(8) == owner_of("tiles:8.rest")
    for name in ("node", "edges", "banded", "banded:x", "nothing:8.row"):
        assert owner_of(name) is None and not is_resource(name)
    assert owner_of("node@3") is None and is_resource("node@3")


@pytest.mark.parametrize("part", [ActiveBlocks(8), Tiles(8)], ids=repr)
def test_parts_that_carry_no_edges_are_no_primitives_of_plans(part):
    # Batches and files may name them.
    assert primitive_of(part.key()) == part
    with pytest.raises(ValueError, match="Expected instances of Primitive.*Received"):
        Plan(part)
    with pytest.raises(ValueError, match="'drop' or a primitive.*Received"):
        Plan(rest=part.key())


def test_a_rest_among_the_primitives_keeps_its_place():
    plan = Plan(Segment(), Banded(8), filter={"order": 9})
    assert plan.keys == ("segment", "banded:8")
    for same in (plan.replace(), Plan.from_config(plan.get_config())):
        assert same == plan and same.keys == plan.keys and same.rest == Segment()
    other = plan.replace(filter=None)
    assert other.keys == plan.keys and other != plan and not other.filter


@pytest.mark.parametrize(
    ("options", "plan", "expected"),
    [
        ({}, "auto", Banded(32)),
        ({}, Plan(Banded(16)), Banded(16)),
        ({"plan": "banded:8"}, "auto", Banded(8)),
    ],
)
def test_tpu_commands_take_the_block_size_of_the_ordering(options, plan, expected):
    options = {"plan": None, "rest": "segment", **options}
    preprocessor = GraphPreprocessor([RCMKCompile(32)], plan=plan)
    chosen = tpu_options.make_plan(argparse.Namespace(**options), preprocessor)
    assert chosen == Plan(expected, rest="segment")


def test_joint_predictions_take_the_block_size_of_the_ordering(monkeypatch):
    monkeypatch.setattr(plan_choice.graph_ops, "has_accelerator", lambda: True)
    monkeypatch.setattr(plan_choice.Hardware, "calibrated", lambda dtype: None)
    preprocessor = GraphPreprocessor([RCMKCompile(32)], edge_weight="weight")
    backbone = GGNNBackbone({"kind": 2}, 4, num_steps=1)
    task = NodeSelector(backbone, readout="slot", preprocessor=preprocessor)
    joint = JointSelection(task)
    graphs = FlatGraphs.from_graphs([Graph(3, [0], [1], candidates=[1], slot=0)])
    joint._choose_plan(graphs, 1)
    assert joint._plan == Plan(Banded(32))


def test_attention_plans_answer_as_plans_do():
    plan = AttentionPlan(filter={"order": 9})
    assert AttentionPlan.from_config(plan.get_config()) == plan
    assert plan.replace(filter=None, schedule=None) == AttentionPlan() != plan
    assert plan.replace(block_size=4).filter == {"order": 9}
    graphs = FlatGraphs.from_graphs([Graph(n, [0], [1]) for n in (2, 8, 9)])
    assert plan.keeps(graphs).tolist() == [True, True, False]
    with pytest.raises(ValueError, match="Expected no schedule.*Received"):
        plan.replace(schedule=3)
    edges, _ = Edges.of_graphs(graphs, 1)
    assert plan.measure(graphs, 1) == plan.pack(edges, {}) == {} and plan.keys == ()
    assert not plan.dropped(edges).any()


def test_attention_plans_know_what_they_drop():
    rng = np.random.default_rng(0)
    ends = np.divmod(rng.choice(1600, 160, replace=False).astype(np.int32), 40)
    graph = ClusterCompile(4, block_size=4)(Graph(40, *ends))
    node = {"mask": np.ones(40, bool), "graph_id": np.zeros(40, int), **graph.node}
    edges, _ = Edges.of_graphs(FlatGraphs.from_graphs([graph]), 1)
    lossy = AttentionPlan(4, threshold=2.0, rest="drop")
    dropped = lossy.dropped(edges, node, {})
    (tiles,) = lossy.measure(FlatGraphs.from_graphs([graph]), 1)["tiles:4"]
    arrays = lossy.pack(
        edges, {"edge": 160, "tiles:4": 99, "tiles:4.rest": 160}, node, {}
    )
    carried = [arrays["tiles:4"][name] for name in ("edge", "rest")]
    carried = np.concatenate([ids[ids < 160].ravel() for ids in carried])
    assert tiles > 0 and 0 < dropped.sum() < 160
    assert sorted(carried) == np.flatnonzero(~dropped).tolist()
    kept = lossy.replace(rest="keep")
    assert not kept.dropped(edges, node, {}).any()
