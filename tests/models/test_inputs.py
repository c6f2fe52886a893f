"""What `x` of a task's methods is, is decided once; after it there are loaders only."""

import collections
import itertools
import sys

import keras
import numpy as np
import pytest
from indexed import Items
from task_samples import TASKS, data_of, task_of

import keras_bandgnn as kb
from keras_bandgnn.models import graph_model, inputs, labelled_graphs
from keras_bandgnn.models.inputs import Inputs, read_inputs, read_validation
from keras_bandgnn.preprocessing.encoding import graph_encoder
from keras_bandgnn.preprocessing.loading.loader import Loader
from tests.test_rooms import walk


@pytest.fixture
def decisions(monkeypatch):
    """The arguments about which `read_inputs` had to decide."""
    counted = []

    def counting(name, x):
        if not isinstance(x, Inputs | Loader):
            counted.append(x)
        return read_inputs(name, x)

    # Imported on use, with the function of that time.
    assert labelled_graphs.read_inputs is read_inputs
    for name, module in list(sys.modules.items()):
        ours = name.startswith("keras_bandgnn.models")
        if ours and vars(module).get("read_inputs") is read_inputs:
            monkeypatch.setattr(module, "read_inputs", counting)
    # Nothing is trained.
    monkeypatch.setattr(graph_model, "fit_resumable", lambda *args, **kwargs: None)
    return counted


def once(decisions, call, count=1):
    decisions.clear()
    call()
    assert len(decisions) == count, decisions


@pytest.mark.parametrize("name", TASKS)
def test_every_method_decides_once(name, decisions):
    task, data = task_of(name), data_of(name, 4)
    once(decisions, lambda: task.fit(data, verbose=0))
    once(decisions, lambda: task.evaluate(data, verbose=0))
    once(decisions, lambda: task.predict(data))
    if name != "LinkPredictor":
        options = {"validation_data": data, "verbose": 0}
        once(decisions, lambda: task.fit(data, **options), 2)
        once(decisions, lambda: task.loader(data))
        once(decisions, lambda: task.embed(data))
    if hasattr(task, "errors"):
        once(decisions, lambda: task.errors(data))
    if task.output_level == "graph":
        once(decisions, lambda: kb.explain.saliency(task, data, 0, edges=False))


def test_posteriors_and_ensembles_decide_once(decisions):
    task, other = (task_of("GraphRegressor") for _ in range(2))
    data = data_of("GraphRegressor", 6)
    posterior = kb.models.LastLayerLaplace(task)
    once(decisions, lambda: posterior.fit(data))
    once(decisions, lambda: posterior.predict(data))
    ensemble = kb.models.Ensemble([task, other])
    once(decisions, lambda: ensemble.predict(data))


def test_the_walk_of_x_is_that_of_a_fit(decisions):
    class Items(graph_encoder.GraphEncoder):
        @classmethod
        def accepts(cls, item):
            return isinstance(item, complex)

        def encode_item(self, item):
            nodes = int(item.imag)
            return kb.Graph(nodes, [0], [1], node={"kind": [1] * nodes})

        def content(self, item):
            return repr(item).encode()

        def inputs(self):
            return {"kind": 2}

    keras.saving.register_keras_serializable("tests")(Items)
    steps = walk("### Following `x`")
    files = {step[0] for step in steps}
    names = {f"{module}.{function}" for module, function in steps}
    calls = []

    def profile(frame, event, _):
        module = frame.f_globals.get("__name__", "").removeprefix("keras_bandgnn.")
        if event == "call" and module in files:
            name = f"{module}.{frame.f_code.co_qualname}"
            calls.append(name)

    task = kb.models.GraphRegressor(kb.models.GCNBackbone({"kind": 2}, 4))
    sys.setprofile(profile)
    try:
        task.fit([2j, 3j, 4j], [1.0, 2.0, 3.0], verbose=0)
    finally:
        sys.setprofile(None)
        del keras.saving.get_custom_objects()["tests>Items"]
    calls = [name for name in calls if name in names]
    # In this order; the encoders are asked once.
    rest = iter(calls)
    for module, function in steps:
        assert f"{module}.{function}" in rest, (module, function, calls)
    assert calls.count("preprocessing.encoding.graph_encoder.is_raw") == 1


def test_kinds():
    graph = kb.Graph(2, [0], [1], node={"kind": [0, 1]})
    flat = kb.data.FlatGraphs.from_graphs([graph])
    loader = kb.preprocessing.GraphLoader([graph])
    batch = loader[0][0]
    kinds = {
        inputs.GRAPHS: (graph, [graph], (graph, graph), flat, [], (g for g in [graph])),
        inputs.ITEMS: ("CC", ["CC"], np.array(["CC"]), [graph, "CC"], (t for t in "C")),
        inputs.LOADER: (loader,),
        inputs.BATCHES: (batch, [batch]),
    }
    for kind, values in kinds.items():
        for x in values:
            one = read_inputs("x", x)
            assert one.kind == kind and read_inputs("x", one) is one
    # A pair of graphs is no pair of graphs and labels.
    assert read_validation((graph, graph))[1] == ()
    for x in (graph, [graph], flat, ["CC"]):
        assert read_validation((x, [1.0]))[1] == ([1.0],)
    assert read_validation((batch, np.zeros(3)))[0].kind == inputs.BATCHES
    for x in (None, 3, [3], np.zeros(3), {"a": 3}):
        with pytest.raises(ValueError, match="Expected `x`"):
            read_inputs("x", x)


def object_array(items):
    array = np.empty(len(items), object)
    array[:] = items
    return array


class Iterated:
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


ITERABLES = {
    "generator": lambda items: (item for item in items),
    "iterator": iter,
    "reversed": lambda items: reversed(items[::-1]),
    "map": lambda items: map(lambda item: item, items),
    "filter": lambda items: filter(lambda item: True, items),
    "chain": lambda items: itertools.chain(items[:1], items[1:]),
    "deque": collections.deque,
    "values": lambda items: dict(enumerate(items)).values(),
    "object array": object_array,
    "indexed": Items,
    "iterated": Iterated,
}


@pytest.mark.parametrize("name", TASKS)
def test_any_iterable_is_a_list(name):
    graphs = list(data_of(name, 4))
    for kind, convert in ITERABLES.items():
        one = read_inputs("x", convert(graphs))
        assert (one.kind, list(one.data)) == (inputs.GRAPHS, graphs), kind
        items = read_inputs("x", convert(["CC", "CO"]))
        assert (items.kind, list(items.items)) == (inputs.ITEMS, ["CC", "CO"]), kind
    assert read_inputs("x", iter([])).is_empty
    batches = [task_of(name).loader(graphs)[0]] if name != "LinkPredictor" else []
    for convert in (iter, lambda items: map(tuple, items)):
        assert not batches or read_inputs("x", convert(batches)).kind == inputs.BATCHES


def test_methods_take_iterators():
    graphs = list(data_of("GraphRegressor", 4))
    task = task_of("GraphRegressor")
    task.fit(map(lambda graph: graph, graphs), verbose=0)
    right = task.evaluate(graphs, verbose=0)
    assert task.evaluate(iter(graphs), verbose=0) == right
    np.testing.assert_array_equal(
        task.predict(filter(None, graphs)), task.predict(graphs)
    )


class Lists(keras.utils.PyDataset):
    """A data set of lists, as one writes for Keras."""

    def __init__(self, item):
        super().__init__()
        self.item = item

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.item


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_iterators_of_other_items_are_refused(method):
    graphs = list(data_of("GraphRegressor", 4))
    labels = np.zeros(4)
    pairs = "x = [x for x, y in pairs]"
    lists = "Pass all graphs in one list"
    shapes = "inputs = task.loader(graphs).inputs()"
    values = {
        "pairs": (zip(graphs, labels, strict=True), pairs),
        "pairs of text": (zip(["C", "CC"], labels, strict=False), pairs),
        "lists": (iter([graphs]), lists),
        "lists and labels": (iter([(graphs, labels)]), lists),
        "arrays": (iter([labels]), lists),
        "data set of lists": (Lists(graphs), lists),
        "data set of lists and labels": (Lists((graphs, labels)), lists),
        "data set of graphs": (Lists(graphs[0]), pairs),
        "symbolic": (keras.Input((3,)), shapes),
        "symbolic features": ({"kind": keras.Input((3,))}, shapes),
        "numbers": (range(3), "See keras_bandgnn.Graph"),
    }
    task = task_of("GraphRegressor")
    for name, (x, advice) in values.items():
        with pytest.raises(ValueError, match="^Expected `x`") as error:
            getattr(task, method)(x, verbose=0)
        assert advice in str(error.value), name


@pytest.mark.parametrize("name", TASKS)
def test_calls_with_other_than_batches_are_refused(name):
    task = task_of(name)
    for model in (task, task.backbone):
        for x in (keras.Input((3,)), {"kind": keras.Input((3,))}, np.zeros((2, 3))):
            with pytest.raises(ValueError, match="^Expected `batch`") as error:
                model(x)
            advice = "task.loader(graphs)"
            assert advice in str(error.value)
