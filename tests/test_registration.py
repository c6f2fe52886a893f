"""Classes of one's own in presets: saved and loaded once they are registered."""

import copy
import inspect
import json
import pickle
import sys

import keras
import numpy as np
import pytest
from docstrings import sample
from registered import registered

import keras_bandgnn as kb
from keras_bandgnn.planning.plan_choice import choose_plan
from keras_bandgnn.preprocessing import (
    Batcher,
    DynamicBatcher,
    GraphLayer,
    GraphPreprocessor,
    RCMKCompile,
)
from keras_bandgnn.primitives import Plan, Primitive
from tests.planning import machines

register = keras.saving.register_keras_serializable(package="someone")
GRAPHS = [
    kb.Graph(n, [0, 1], [1, 0], node={"kind": np.arange(n) % 3}, label=n % 2)
    for n in (2, 3, 4, 5)
]


@register
class Reversed(GraphLayer):
    """Edges the other way, `times` times."""

    def __init__(self, times: int = 1, **kwargs):
        super().__init__(**kwargs)
        self.times = times

    def call(self, graph):
        for _ in range(self.times):
            graph = graph.replace(senders=graph.receivers, receivers=graph.senders)
        return graph

    def get_config(self):
        return {**super().get_config(), "times": self.times}


@register
class Batches(DynamicBatcher):
    """A batcher of one's own."""


@register
class Widened(kb.models.GCNBackbone):
    """A backbone of one's own."""


@register
class Verdicts(kb.models.GraphClassifier):
    """A task of one's own."""


@register
class Middle(keras.layers.Layer):
    """A readout of one's own: the mean of a graph's nodes, [G, B, units]."""

    def __init__(self, units: int, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def call(self, states, x):
        ids, slots = x["node"]["graph_id"], keras.ops.shape(x["graph"]["mask"])[1]
        member = keras.ops.one_hot(ids, slots, dtype=states.dtype)
        total = keras.ops.einsum("gnb,gnh->gbh", member, states)
        count = keras.ops.sum(member, axis=1)[..., None]
        return total / keras.ops.maximum(count, 1.0)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@register
def by_degree(graph, block_size):
    """An ordering of one's own: nodes with many edges first."""
    del block_size
    degree = np.bincount(graph.receivers, minlength=graph.num_nodes)
    return np.argsort(-degree, kind="stable")


@register
class Rotated:
    """An ordering with an argument."""

    def __init__(self, by: int = 1):
        self.by = by

    def __call__(self, graph, block_size):
        del block_size
        return np.roll(np.arange(graph.num_nodes), self.by)

    def get_config(self):
        return {"by": self.by}


@register
class Near(Primitive):
    """A primitive of one's own: edges between nodes at most `width` apart."""

    def __init__(self, width: int, kind: str = "both"):
        self.width, self.kind = width, kind

    def cover(self, edges):
        return np.abs(edges.sender - edges.receiver) <= self.width

    def pack(self, edges, budget):
        return edges.padded(budget[self.key()], self.key(), mask=True)

    def typed_sum(self, prepared, x, num_types):
        groups, num_nodes, width = keras.ops.shape(x)
        sent = kb.ops.batched_gather(x, prepared["sender"])
        sent = sent * keras.ops.cast(prepared["mask"], x.dtype)[..., None]
        row = prepared["receiver"] * num_types + prepared["type"]
        total = kb.ops.batched_segment_sum(sent, row, num_nodes * num_types)
        return keras.ops.reshape(total, (groups, num_nodes, num_types * width))

    def cost(self, load, hardware):
        return 0.0


@register
class Short(Plan):
    """A plan of one's own: long edges are left out."""

    def __init__(self, width: int, **options):
        super().__init__(Near(width), rest="drop", **options)
        self.width = width

    def get_config(self):
        return {"width": self.width}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


class Distant(Near):
    """Not registered, although its base is."""


class Nameless(Reversed):
    """Not registered."""


def task_of(
    layer=None, batcher=None, backbone=None, kind=None, readout="mean", plan="auto"
):
    layer = Reversed(3) if layer is None else layer
    preprocessor = GraphPreprocessor([layer], batcher or DynamicBatcher(1), plan)
    backbone = (backbone or kb.models.GCNBackbone)({"kind": 3}, 4)
    kind = kind or kb.models.GraphClassifier
    return kind(backbone, 2, preprocessor, readout=readout)


SAMPLES = {
    "graph layer": lambda: task_of(),
    "batcher": lambda: task_of(batcher=Batches(2)),
    "backbone": lambda: task_of(backbone=Widened),
    "task": lambda: task_of(kind=Verdicts),
    "readout": lambda: task_of(readout=Middle(4)),
    "primitive": lambda: task_of(plan=Plan(Near(1, "up"))),
    "plan": lambda: task_of(plan=Short(1)),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_classes_of_ones_own_are_saved_and_loaded(kind, tmp_path):
    task = SAMPLES[kind]()
    predicted = task.predict(GRAPHS)
    task.save_to_preset(tmp_path / "preset")
    again = kb.models.Task.from_preset(tmp_path / "preset")
    for one, other in (
        (task, again),
        (task.backbone, again.backbone),
        (task.preprocessor.batcher, again.preprocessor.batcher),
        (task.preprocessor.graph_layers[0], again.preprocessor.graph_layers[0]),
        (task.preprocessor.plan, again.preprocessor.plan),
    ):
        assert type(one) is type(other)
    assert again.preprocessor.graph_layers[0].times == 3
    assert again.preprocessor.plan == task.preprocessor.plan
    for one, other in zip(predicted, again.predict(GRAPHS), strict=True):
        np.testing.assert_array_equal(one, other)


def test_unregistered_classes_are_refused_when_they_are_saved(tmp_path):
    task = task_of(layer=Nameless())
    # They work as long as nothing is saved.
    task.compile()
    task.fit(GRAPHS, verbose=0)
    assert len(task.predict(GRAPHS)) == len(GRAPHS)
    with pytest.raises(ValueError, match="registered class.*Nameless.*Decorate it"):
        task.save_to_preset(tmp_path / "preset")
    assert not (tmp_path / "preset").exists()


def test_unregistered_readouts_are_refused_when_they_are_saved(tmp_path):
    class Plain(keras.layers.Layer):
        units = 4

        def call(self, states, batch):
            slots = keras.ops.shape(batch["graph"]["mask"])[1]
            ids = batch["node"]["graph_id"]
            return kb.ops.batched_segment_sum(states, ids, slots)

    backbone = kb.models.GCNBackbone({"h": {"features": 3}}, 4, 1)
    task = kb.models.GraphClassifier(backbone, 2, readout=Plain())
    with pytest.raises(ValueError, match="Expected a registered class.*Plain"):
        task.save_to_preset(tmp_path / "preset")
    with pytest.raises(ValueError, match="Expected a registered class.*Plain"):
        task.save(tmp_path / "task.keras")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["preset", "keras"])
def test_frozen_backbones_are_loaded_frozen(kind, tmp_path):
    task = task_of()
    task.backbone.trainable = False
    task.compile("adam")
    task.fit(GRAPHS, epochs=1, verbose=0)
    if kind == "keras":
        task.save(tmp_path / "task.keras")
        again = keras.models.load_model(tmp_path / "task.keras")
    else:
        task.save_to_preset(tmp_path / "task")
        again = kb.models.Task.from_preset(tmp_path / "task")
    assert not again.backbone.trainable
    assert len(again.trainable_variables) == len(task.trainable_variables) > 0


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("task.json", ()),
        ("config.json", ()),
        ("preprocessor.json", ("config", "layers", 0)),
        ("preprocessor.json", ("config", "batcher")),
        ("preprocessor.json", ("config", "plan")),
    ],
)
def test_unknown_classes_are_refused_and_nothing_is_imported(file, place, tmp_path):
    task_of(plan=Short(1)).save_to_preset(tmp_path / "preset")
    path = tmp_path / "preset" / file
    config = json.loads(path.read_text())
    entry = config
    for step in place:
        entry = entry[step]
    entry.update(
        class_name="Antigravity",
        registered_name="antigravity>Antigravity",
        module="antigravity",
    )
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="Expected.*Received.*Antigravity") as e:
        kb.models.Task.from_preset(tmp_path / "preset")
    assert "'antigravity>Antigravity', of the module antigravity. Import the mod" in (
        str(e.value)
    )
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("ordering", [by_degree, Rotated(2)], ids=["function", "class"])
def test_orderings_of_ones_own_are_saved_and_loaded(ordering, tmp_path):
    task = task_of(layer=RCMKCompile(2, ordering))
    (compiled,) = task.preprocessor.transform(GRAPHS[-1:])
    np.testing.assert_array_equal(compiled.origin, ordering(GRAPHS[-1], 2))
    predicted = task.predict(GRAPHS)
    task.save_to_preset(tmp_path / "preset")
    again = kb.models.Task.from_preset(tmp_path / "preset")
    (layer,) = again.preprocessor.graph_layers
    assert layer.get_config() == {
        **task.preprocessor.graph_layers[0].get_config(),
        "name": layer.name,
    }
    assert type(layer.ordering) is type(ordering)
    if isinstance(ordering, Rotated):
        assert layer.ordering.by == 2
    for one, other in zip(predicted, again.predict(GRAPHS), strict=True):
        np.testing.assert_array_equal(one, other)


def test_orderings_need_a_name_only_in_files(tmp_path):
    def nameless(graph, block_size):
        return np.arange(graph.num_nodes)[::-1]

    layer = RCMKCompile(2, nameless)
    task = task_of(layer=layer)
    assert len(task.predict(GRAPHS)) == len(GRAPHS)
    assert copy.deepcopy(layer).ordering is nameless
    assert pickle.loads(pickle.dumps(RCMKCompile(2, by_degree))).ordering is by_degree
    with pytest.raises(ValueError, match="registered function.*nameless.*Decorate it"):
        task.save_to_preset(tmp_path / "preset")
    assert not (tmp_path / "preset").exists()


@pytest.mark.parametrize("entry", ["antigravity>Antigravity", "someone>Widened", None])
def test_unknown_orderings_are_refused_and_nothing_is_imported(entry, tmp_path):
    task_of(layer=RCMKCompile(2, by_degree)).save_to_preset(tmp_path / "preset")
    path = tmp_path / "preset" / "preprocessor.json"
    config = json.loads(path.read_text())
    (layer,) = config["config"]["layers"]
    assert layer["config"]["ordering"] == {"registered_name": "someone>by_degree"}
    layer["config"]["ordering"]["registered_name"] = entry
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"Expected `ordering`.*Received.*{entry}"):
        kb.models.Task.from_preset(tmp_path / "preset")
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("order", [[0, 0], [0], [[0, 1]], [1.5, 0.0]])
def test_orderings_return_each_node_once(order):
    layer = RCMKCompile(2, lambda graph, block_size: order)
    with pytest.raises(ValueError, match="each of 2 nodes once.*Received"):
        layer(kb.Graph(2, [0], [1]))


@pytest.mark.parametrize("ordering", ["best", 3, None, Rotated])
def test_orderings_are_names_or_functions(ordering):
    with pytest.raises(ValueError, match="Expected `ordering` to be.*Received"):
        RCMKCompile(2, ordering)


def test_primitives_of_ones_own_carry_their_edges(tmp_path):
    task = task_of(plan=Plan(Near(1)))
    task.fit(GRAPHS, epochs=1, verbose=0)
    (x, *_) = task.loader(GRAPHS)[0]
    assert x["plan"]["someone>Near:1:both"]["mask"].sum() == x["edge"]["mask"].sum() > 0
    found = task.predict(GRAPHS)
    task.preprocessor = GraphPreprocessor([Reversed(3)], DynamicBatcher(1), Plan())
    np.testing.assert_allclose(task.predict(GRAPHS), found, atol=1e-5)
    # With other arguments, and by a subclass, they are others.
    assert Near(1) != Near(2) != Distant(2)
    assert Near.from_key("someone>Near:2:up").get_config() == {"width": 2, "kind": "up"}


def test_unregistered_primitives_are_refused_when_they_are_saved(tmp_path):
    task = task_of(plan=Plan(Distant(1)))
    assert len(task.predict(GRAPHS)) == len(GRAPHS)
    with pytest.raises(ValueError, match="registered class.*Distant.*Decorate it"):
        task.save_to_preset(tmp_path / "preset")
    assert not (tmp_path / "preset").exists()


@pytest.mark.parametrize("key", ["antigravity>Antigravity:1", "someone>Widened", "no"])
def test_unknown_primitives_are_refused_and_nothing_is_imported(key, tmp_path):
    task_of(plan=Plan(Near(1))).save_to_preset(tmp_path / "preset")
    path = tmp_path / "preset" / "preprocessor.json"
    config = json.loads(path.read_text())
    assert config["config"]["plan"]["primitives"] == ["someone>Near:1:both", "segment"]
    config["config"]["plan"]["primitives"][0] = key
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"key of a primitive.*Received: '{key}'"):
        kb.models.Task.from_preset(tmp_path / "preset")
    assert "antigravity" not in sys.modules


def test_primitives_of_ones_own_are_candidates_of_auto_plans(monkeypatch):
    def candidates(cls, num_types, block_size):
        return [cls(block_size // 64)]

    monkeypatch.setattr(Near, "candidates", classmethod(candidates))
    parts = [kb.data.FlatGraphs.from_graphs(GRAPHS)]
    hardware = machines.machine(machines.CPU)
    choice = choose_plan(parts, 1, hardware=hardware, block_size=128)
    plans = [row["plan"] for row in choice.table]
    assert Plan(Near(2)) in plans


@pytest.mark.parametrize("value", [2.5, "a:b", "1"])
def test_keys_hold_the_arguments_of_primitives(value):
    with pytest.raises(ValueError, match="key of Near to hold its arguments.*Received"):
        Plan(Near(1, value))


@register
class Pairs(Batcher):
    """A batcher of one's own that defines no more than it must."""

    def __init__(self, graphs=2, budget=None, oversize="bucket", **kwargs):
        super().__init__(graphs, budget, oversize, **kwargs)

    def estimate_budget(self, sizes):
        most = {name: 2 * int(np.max(values)) for name, values in sizes.items()}
        return {**most, "node": most["node"] + 1, "graph": 3, **self.given}

    def pack(self, sizes, order, budget):
        return np.split(np.asarray(order), range(2, len(order), 2))

    def room_for(self, largest):
        return 2 * largest + 1


def test_a_batcher_needs_three_methods(tmp_path):
    task = task_of(batcher=Pairs())
    task.compile()
    task.fit(GRAPHS, verbose=0)
    loader = task.preprocessor.loader(GRAPHS * 3, num_edge_types=1)
    assert [len(s.members) for s in loader.composition(0)] == [2] * 6
    larger = kb.Graph(9, [0], [8], node={"kind": np.arange(9) % 3}, label=0)
    predicted = task.predict([*GRAPHS, larger])
    task.save_to_preset(tmp_path / "preset")
    again = kb.models.Task.from_preset(tmp_path / "preset")
    assert again.preprocessor.batcher.budget == task.preprocessor.batcher.budget
    for one, other in zip(predicted, again.predict([*GRAPHS, larger]), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def takes_signature(cls: type) -> bool:
    return cls.get_config.__code__.co_filename.endswith("registration.py")


@pytest.mark.parametrize(
    "name",
    [n for n, c in registered(keras.layers.Layer).items() if takes_signature(c)],
)
def test_configurations_from_signatures_have_the_arguments_of_constructors(name):
    cls = registered(keras.layers.Layer)[name]
    config = sample(cls).get_config()
    _, *parameters = inspect.signature(cls.__init__).parameters.values()
    names = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
    assert names and names <= config.keys()
    assert cls.from_config(config).get_config() == config
