"""Every public callable refuses wrong arguments, in one form of message.

The examples of docstrings run, and before each call of a public class, function or
method in them the same call with a wrong argument must be refused: of another type, out
of range, not finite, too large, or empty. `wrong_values.py` says what is wrong.
"""

import doctest
import functools
import importlib
import inspect
import pkgutil
import re
import types
from pathlib import Path

import docstrings
import keras
import numpy as np
import pytest
from wrong_values import INFINITY, NAN, RAGGED, wrong_values

import keras_bandgnn as kb
from keras_bandgnn import checks

PUBLIC = docstrings.public()
NAMES = {id(value): name for name, value in PUBLIC.items()}
# Keras takes these, and says what it takes.
OF_KERAS = {
    "activation",
    "embeddings_initializer",
    "args",
    "callbacks",
    "dtype",
    "loss",
    "name",
    "optimizer",
    "reduction",
    "steps",
    "verbose",
}
# Loaders and Keras call the methods of these, with arrays.
PROTOCOLS = (
    keras.Metric,
    kb.preprocessing.Batcher,
    kb.plans.Primitive,
    kb.preprocessing.Sampler,
)
# What annotations and docstrings cannot say.
EXCEPTIONS = {
    "data.StoreWriter.fingerprint": "a wrong one begins a store of another job",
    **dict.fromkeys(
        (
            "programs.load_varmisuse.report",
            "programs.read_great.report",
            "programs.read_varmisuse.report",
        ),
        "a list, touched where a sample is skipped",
    ),
    "data.StoreWriter.add.report": "anything that JSON can hold",
    "Graph.label": "any number is one",
    "data.from_scipy.label": "any number is one",
    "data.from_sets.label": "any number is one",
    "layers.shifted_softplus.x": "a tensor, whose type the backend checks",
    "preprocessing.NegativeSampler.sample.node_types": "checked with `node_type`",
    "preprocessing.TableEncoder.adapt.items": "the error names the missing column",
    "training.localization_calibration.probabilities": "checked with `functions`",
    "training.localization_report.probabilities": "checked with `functions`",
}
# Functions of the library and classes of users make them.
RESULTS = """
    data.FlatGraphs data.GraphStore data.LinkSplit explain.Explanation explain.Fidelity
    models.AttentionWeights models.JointSelection ops.CSR ops.CSRPair ops.RowIndex
    programs.FunctionGraph programs.GreatExample programs.ProgramGraph
    serving.ExportedModel serving.GraphPacker serving.PackedGraphs
    training.RecompilationError tuning.DatasetSpec
""".split()
BASES = """
    models.Backbone models.MessagePassingBackbone models.Task plans.Primitive
    preprocessing.Batcher preprocessing.GraphEncoder preprocessing.GraphLayer
    preprocessing.Sampler tuning.GraphHyperModel
""".split()
# Their examples need packages that are not installed everywhere.
OPTIONAL = ["programs.RayPool"]


@functools.cache
def graph(label=1, **changes):
    return kb.Graph(
        3, [0, 1], [1, 2], node={"kind": [0, 1, 1], "h": [[1.0, 2.0]] * 3}, label=label
    )


@functools.cache
def graphs():
    return [graph(label) for label in (0, 1, 0, 1)]


@functools.cache
def molecules():
    return [
        kb.Graph(
            2,
            [1, 0],
            [0, 1],
            label=float(index),
            node={"atomic_number": [1, 8], "force": [[0.0, 0.0, 1.0]] * 2},
            edge={"displacement": [[0, 0, 1.0], [0, 0, -1.0]]},
        )
        for index in range(4)
    ]


def node_graph():
    return graph().replace(label=[0, 1, 1], label_level="node")


@functools.cache
def backbone():
    return kb.models.GCNBackbone({"kind": 2}, hidden_dim=4)


@functools.cache
def classifier():
    return kb.models.GraphClassifier(backbone(), 2)


@functools.cache
def regressor():
    return kb.models.GraphRegressor(
        kb.models.SchNetBackbone([1, 8], hidden_dim=4, num_steps=1, num_gaussians=4)
    )


@functools.cache
def flat():
    return kb.data.FlatGraphs.from_graphs(graphs())


@functools.cache
def gat():
    body = kb.models.GATBackbone({"kind": 2}, hidden_dim=4, num_heads=2)
    return kb.models.GraphClassifier(body, 2)


def export_format() -> str:
    """One that needs no converter of its own."""
    torch = keras.backend.backend() == "torch"
    return "torch" if torch else "tf_saved_model"


def store(tmp):
    path = tmp / "old.store"
    if not path.exists():
        kb.data.write_store(path, graphs()).close()
    return path


@functools.cache
def ensemble():
    body = [kb.models.SchNetBackbone([1, 8], 4, num_gaussians=4) for _ in range(2)]
    return kb.models.Ensemble([kb.models.GraphRegressor(one) for one in body])


@functools.cache
def laplace():
    return kb.models.LastLayerLaplace(regressor()).fit(molecules())


def preset(tmp, model):
    path = tmp / f"preset of {type(model).__name__}"
    if not path.exists():
        model.save_to_preset(path)
    return path


CODE = "def f(a, b):\n    c = a + b\n    return c * a\n"


def program():
    return kb.programs.program_graphs(CODE, max_instances=1)[0]


def corpus(folder):
    """A corpus without packages."""
    (folder / "corpus.json").write_text('{"packages": []}')
    return folder


# === Examples ===


def modules() -> list[str]:
    """The modules of the library without those of other backends."""
    names = ["keras_bandgnn"]
    other = {"jax", "tensorflow", "torch"} - {keras.backend.backend()}
    for info in pkgutil.walk_packages(kb.__path__, "keras_bandgnn."):
        backend = info.name.rpartition(".")[2].partition("_")[0]
        if backend not in other and not info.name.endswith("__main__"):
            names.append(info.name)
    return names


def entry_of(function) -> tuple[str, str] | None:
    """The public name of a function, class or method, and its module."""
    if id(function) in NAMES:
        return NAMES[id(function)], function.__module__
    owner = getattr(function, "__self__", None)
    cls = owner if inspect.isclass(owner) else type(owner)
    if id(cls) not in NAMES or issubclass(cls, PROTOCOLS):
        return None
    if not inspect.ismethod(function) or function.__name__.startswith("_"):
        return None
    if not function.__module__.startswith("keras_bandgnn"):
        return None
    return f"{NAMES[id(cls)]}.{function.__name__}", cls.__module__


def outcome(call, name: str) -> str:
    """What is wrong with how a wrong call ends; nothing for a clear error."""
    try:
        result = call()
        if isinstance(result, types.GeneratorType):
            next(result, None)
    except (ValueError, TypeError, OSError, IndexError) as error:
        text = str(error)
        clear = "Expected" in text and "Received" in text
        named = re.search(rf"\b{re.escape(name)}|[Gg]raph", text)
        clear = clear and (named or isinstance(error, IndexError))
        return "" if clear else f"{type(error).__name__}: {text[:200]}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


class Refusals:
    """Makes wrong calls before each new call that it observes.

    Args:
        module: Name of a module whose classes and functions are tried; None for all.
        make: Whether functions and methods are then called as they should be.

    Attributes:
        wrong: The wrong calls without a clear error.
        entries: The names of what was called.
        count: Number of wrong calls.
    """

    def __init__(self, module: str | None = None, make: bool = True):
        self.module, self.make = module, make
        self.wrong, self.entries, self.count = [], set(), 0

    def __call__(self, function, args, kwargs):
        entry, module = entry_of(function) or (None, None)
        skip = entry is not None and not self.make and not inspect.isclass(function)
        if entry is None or entry in self.entries or self.module not in (None, module):
            return skip
        self.entries.add(entry)
        signature = inspect.signature(function)
        valid = signature.bind(*args, **kwargs).arguments
        for name, parameter in signature.parameters.items():
            variadic = (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if parameter.kind in variadic or name in OF_KERAS:
                continue
            if f"{entry}.{name}" in EXCEPTIONS:
                continue
            value = valid.get(name, parameter.empty)
            for wrong in wrong_values(function, parameter, value):
                bound = signature.bind(*args, **kwargs)
                bound.arguments[name] = wrong
                self.count += 1
                text = outcome(lambda b=bound: function(*b.args, **b.kwargs), name)
                if text:
                    self.wrong.append(f"{entry}({name}={wrong!r:.40}): {text}")
        return skip


def calls_without_example(tmp):
    """Calls of methods and functions that have no example of their own."""
    columns = {"num_nodes": [2], "num_edges": [1]}
    kb.data.FlatGraphs(**columns, senders=[0], receivers=[1])
    kb.data.FlatGraphs.from_graphs(graphs())
    kb.data.FlatGraphs.concatenate([flat()])
    flat().take([0])
    kb.data.GraphStore(store(tmp)).take([0])
    graph().subgraph([0, 1])
    loader = kb.preprocessing.GraphLoader(graphs())
    loader.build(0, 0)
    loader.usage(0)
    loader.to_torch()
    loader.to_grain()
    kb.preprocessing.GraphPreprocessor().transform(graphs())
    kb.config.set_cache_folder(tmp)
    classifier().fit(graphs())
    classifier().evaluate(graphs())
    classifier().embed(graphs())
    gat().attention_weights(graphs())
    classifier().save_to_preset(tmp / "preset")
    kb.models.GraphClassifier.from_preset(preset(tmp, classifier()))
    classifier().export(tmp / "exported", format=export_format(), graphs=graphs())
    kb.serving.GraphPacker.of_task(classifier(), graphs())
    kb.serving.GraphPacker.load(tmp)
    backbone().save_to_preset(tmp / "backbone")
    kb.models.GCNBackbone.from_preset(preset(tmp, classifier()))
    kb.models.NodeClassifier(backbone(), 2).fit([node_graph()])
    kb.models.NodeClassifier(backbone(), 2).evaluate([node_graph()])
    kb.models.LinkPredictor(backbone()).fit(graph())
    kb.models.LinkPredictor(backbone()).evaluate(graph(), [[0, 1]])
    kb.models.LinkPredictor(backbone()).rank(graph(), [[0, 1]])
    ensemble().predict_forces_spread(molecules())
    ensemble().save_to_preset(tmp / "ensemble")
    kb.models.Ensemble.from_preset(preset(tmp, ensemble()))
    kb.models.LastLayerLaplace(regressor()).fit(molecules())
    laplace().calibrate(molecules())
    laplace().save_to_preset(tmp / "laplace")
    kb.models.LastLayerLaplace.from_preset(preset(tmp, laplace()))
    kb.programs.encode_program(program())
    kb.programs.encode_function(kb.programs.function_graph(CODE))
    kb.programs.find_programs(tmp)
    kb.programs.load_varmisuse(tmp, "train")
    kb.programs.python_files(tmp)
    kb.programs.read_tree(tmp)
    kb.programs.corpus_packages(corpus(tmp), "train")
    kb.programs.read_corpus(corpus(tmp), "train")
    kb.programs.read_great(tmp)
    kb.programs.bug_samples([])
    kb.training.make_optimizer()
    kb.distribution.sequence_parallel(1)
    kb.tuning.make_tuner(kb.tuning.GraphTransformerHyperModel(graphs()), tmp / "search")
    kb.tuning.GraphHyperModel(graphs())


def test_calls_without_example(tmp_path):
    refusals = Refusals(make=False)
    docstrings.observed(calls_without_example, refusals)(tmp_path)
    assert not refusals.wrong, "\n".join(refusals.wrong)
    assert refusals.count > 500


@pytest.mark.parametrize("name", modules())
def test_examples_and_wrong_arguments(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} says nothing about itself"
    refusals = Refusals(name)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module):
        assert docstrings.run(test, refusals).failed == 0
    assert not refusals.wrong, "\n".join(refusals.wrong)
    for entry, cls in PUBLIC.items():
        if not inspect.isclass(cls) or cls.__module__ != name:
            continue
        if entry not in [*RESULTS, *BASES, *OPTIONAL]:
            message = f"show in the docstring of {entry} how to make one"
            assert entry in refusals.entries, message


CONVERTERS = [n for n in kb.data.__all__ if n.startswith(("from_", "to_"))]


@pytest.mark.parametrize("name", [*CONVERTERS, "read_structures"])
@pytest.mark.parametrize(
    "value", [None, 3, {}, [3], "(", np.zeros(3)], ids=lambda value: repr(value)
)
def test_converters(name, value):
    with pytest.raises((ValueError, OSError, ImportError), match="Expected.*Received"):
        getattr(kb.data, name)(value)


def pairs():
    return graphs(), np.zeros(4)


def attentive():
    return kb.models.GTBackbone({"kind": 2}, 4, num_layers=1, num_heads=1)


def sequences(**options):
    return kb.preprocessing.SequenceLoader(node_graph(), 2, **options)


# What signatures do not tell: options that go on to Keras, and combinations.
OTHERS = {
    "fit(callbacks)": ("callbacks", lambda: classifier().fit(graphs(), callbacks="x")),
    "fit([callbacks])": (
        "callbacks",
        lambda: classifier().fit(graphs(), callbacks=[3]),
    ),
    "fit(epochs)": ("epochs", lambda: classifier().fit(graphs(), epochs=-1)),
    "fit(epochs='x')": ("epochs", lambda: classifier().fit(graphs(), epochs="x")),
    "fit(initial_epoch)": (
        "initial_epoch",
        lambda: classifier().fit(graphs(), initial_epoch=-1),
    ),
    "fit(shuffle)": ("shuffle", lambda: classifier().fit(graphs(), shuffle="x")),
    "fit(pair)": ("x", lambda: classifier().fit(pairs())),
    "fit(validation_data=pair)": (
        "validation_data",
        lambda: classifier().fit(graphs(), validation_data=[graphs(), [0, 1]]),
    ),
    "fit(mixed)": ("graphs", lambda: classifier().fit([graph(), 3])),
    "evaluate(callbacks)": (
        "callbacks",
        lambda: classifier().evaluate(graphs(), callbacks="x"),
    ),
    "predict(mixed)": ("graphs", lambda: classifier().predict([graph(), None])),
    "DynamicBatcher(10**9)": (
        "graphs",
        lambda: kb.preprocessing.DynamicBatcher(10**9),
    ),
    "StaticBatcher(10**9)": (
        "graphs",
        lambda: kb.preprocessing.StaticBatcher(10**9),
    ),
    "budget of a word": (
        "budget",
        lambda: kb.preprocessing.DynamicBatcher(budget={"node": "x"}),
    ),
    "budget by number": (
        "budget",
        lambda: kb.preprocessing.DynamicBatcher(budget={3: 64}),
    ),
    "Plan of a string": ("primitives", lambda: kb.plans.Plan("banded:128")),
    "inputs with a wrong kind": (
        "inputs",
        lambda: kb.models.GCNBackbone({"kind": {"words": 3}}),
    ),
    "inputs without a size": ("inputs", lambda: kb.models.GCNBackbone({"kind": 0})),
    "no inputs": ("inputs", lambda: kb.models.GCNBackbone({})),
    "too many heads": (
        "num_heads",
        lambda: kb.models.GATBackbone({"kind": 2}, 8, num_heads=3),
    ),
    "inputs={'kind': 4.0}": (
        r"inputs\['kind'\].*Received: 4\.0\.",
        lambda: kb.models.GCNBackbone({"kind": 4.0}),
    ),
    "fit(verbose)": ("verbose", lambda: classifier().fit(graphs(), verbose="loud")),
    "evaluate(verbose)": (
        "verbose",
        lambda: classifier().evaluate(graphs(), verbose=3),
    ),
    "predict(verbose)": (
        "verbose",
        lambda: classifier().predict(graphs(), verbose="loud"),
    ),
    "fit(array)": ("x", lambda: classifier().fit(np.zeros((3, 4)))),
    "evaluate(array)": ("x", lambda: classifier().evaluate(np.zeros((3, 4)))),
    "predict(array)": ("x", lambda: classifier().predict(np.zeros((3, 4)))),
    "predict([array])": ("x", lambda: classifier().predict([np.zeros((3, 4))])),
    "task(graphs)": (r"Received: graphs.*predict", lambda: classifier()(graphs())),
    "backbone(graph)": (r"Received: graphs.*loader", lambda: backbone()(graph())),
    "SequenceLoader.predict(None)": ("task", lambda: sequences().predict(None)),
    "SequenceLoader without graph layers": (
        "graph_layers",
        lambda: kb.models.NodeClassifier(attentive(), 2).fit(
            sequences(plan=attentive().auto_plan()), verbose=0, shuffle=False
        ),
    ),
    "SequenceLoader.predict without graph layers": (
        "graph_layers",
        lambda: sequences(plan=attentive().auto_plan()).predict(
            kb.models.NodeClassifier(attentive(), 2)
        ),
    ),
    "SequenceLoader without clusters": (
        "cluster.*ClusterCompile",
        lambda: sequences(order="clusters"),
    ),
    "SequenceLoader of mixed clusters": (
        "ascending.*ClusterCompile",
        lambda: kb.preprocessing.SequenceLoader(
            node_graph().replace(node={"cluster": [1, 0, 1]}), 2, "clusters"
        ),
    ),
    "compile(loss='foo')": (
        'loss.*Write loss="sparse',
        lambda: classifier().compile("adam", "foo"),
    ),
    "compile(loss=3)": ("loss.*Write", lambda: classifier().compile("adam", 3)),
    "compile(metrics=['foo'])": (
        r'metrics.*Write metrics=\["accuracy"\]',
        lambda: classifier().compile("adam", metrics=["foo"]),
    ),
    "labels that are too large": (
        "squares.*9.8e.30",
        lambda: regressor().evaluate([g.replace(label=9.8e30) for g in molecules()]),
    ),
    "a store that is a file": ("store", lambda: kb.data.open_store(__file__)),
    "target=[]": (
        "target",
        lambda: kb.data.load("qm9", path=Path(__file__).parent, target=[]),
    ),
}


WITH_HEADS = [
    name
    for name in kb.models.__all__
    if isinstance(getattr(kb.models, name), type)
    and {"hidden_dim", "num_heads"}
    <= {*inspect.signature(getattr(kb.models, name)).parameters}
]


@pytest.mark.parametrize("name", WITH_HEADS)
def test_widths_that_heads_do_not_divide(name):
    message = "Expected `hidden_dim` to be a multiple of `num_heads`"
    with pytest.raises(ValueError, match=message):
        getattr(kb.models, name)({"kind": 2}, hidden_dim=10, num_heads=3)


@pytest.mark.parametrize("index", ["a", 1.0, np.array([1, 2]), None, (0, 1)], ids=repr)
def test_an_index_is_an_integer(index, tmp_path):
    for graphs in (flat(), kb.data.open_store(store(tmp_path))):
        with pytest.raises(TypeError, match=r"integer index.*Received.*take\("):
            graphs[index]


def test_no_graphs_make_an_empty_store(tmp_path):
    with kb.data.write_store(tmp_path / "empty.store", []) as made:
        assert len(made) == 0 and list(made) == []
    with pytest.raises(ValueError, match="at least one graph"):
        kb.preprocessing.GraphLoader(kb.data.open_store(made.path))


@pytest.mark.parametrize("name", OTHERS)
def test_other_wrong_calls(name):
    word, call = OTHERS[name]
    with pytest.raises((ValueError, TypeError, OSError), match=rf"Expected.*{word}"):
        call()


@pytest.mark.parametrize(
    "check, good, bad",
    [
        (checks.positive_int, [1, np.int32(3)], [0, True, 1.0, "1", 2**31]),
        (checks.positive_ints, [3, [1, 2]], [[], [0], "12", {3: 1}]),
        (checks.boolean, [True, np.bool_(False)], [0, 1, "no", None]),
        (checks.fraction, [0, 0.5], [1, -0.1, NAN, True]),
        (checks.non_negative_number, [0, INFINITY], [-1, NAN, "0"]),
        (checks.as_path, ["a", Path("a")], ["", b"a", None, "a\0b"]),
        (checks.mapping, [{}, {"a": 1}], [[], {"": 1}, {1: 1}]),
        (checks.strings, [[], ["a"]], ["a", [""], [1], None]),
        (checks.array, [[1, 2], 3.0], [RAGGED, "x", None]),
    ],
)
def test_checks(check, good, bad):
    for value in good:
        check("name", value)
    for value in bad:
        with pytest.raises(ValueError, match=r"Expected.*name.*Received: "):
            check("name", value)


def test_values_are_shown_in_one_short_line():
    class Rude:
        def __repr__(self):
            raise RuntimeError

    for value in ("x" * 10_000, "a\nb", list(range(10**5)), Rude(), np.zeros(10**6)):
        text = checks.shown(value)
        assert len(text) < 120 and "\n" not in text
