"""Every example runs in short form; the Python of every page runs."""

import functools
import inspect
import pkgutil
import re
import runpy
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from docstrings import public
from registered import registered_primitives

import keras_bandgnn as kb
from keras_bandgnn.primitives import Banded, Plan, ReceptiveField
from keras_bandgnn.primitives.base import primitive_of

ROOT = Path(__file__).resolve().parents[1]
# All but the reference, which `docs/names.py` writes.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "api" not in page.relative_to(ROOT).parts]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
EXAMPLES += sorted((ROOT / "examples" / "keras_io").glob("*.py"))
EXAMPLES = [path for path in EXAMPLES if path.name != "tables.py"]


def name_of(page):
    return page.relative_to(ROOT).as_posix().removeprefix("docs/")


@pytest.fixture
def page_registry():
    """Forget the classes that a page registers: encoders would take items of others."""
    registry = keras.saving.get_custom_objects()
    before = dict(registry)
    yield
    registry.clear()
    registry.update(before)


# torch_geometric deprecates parts of torch as it loads.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is dep:DeprecationWarning")
@pytest.mark.usefixtures("page_registry")
@pytest.mark.every_backend("README.md")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    if not blocks:
        pytest.skip("no Python on the page")
    monkeypatch.chdir(tmp_path)
    # Figures are drawn, but no window is opened.
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.delenv("DISPLAY", raising=False)
    namespace = {"__name__": "__page__"}
    for block in blocks:
        if page.parent.name == "tutorials":  # `mkdocs build` runs them in full
            block = re.sub(r"\bepochs=\d+", "epochs=1", block)
        exec(compile(block, str(page), "exec"), namespace)
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


# In short form they start no processes that would read them again.
@pytest.mark.every_backend("data_parallel.py")
@pytest.mark.filterwarnings("ignore:Skipping variable loading:UserWarning")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.name)
def test_example_runs_in_short_form(example, tmp_path, monkeypatch, capfd):
    if example.name == "optuna_search.py":
        pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(example.parent)
    monkeypatch.setattr(sys, "argv", [str(example), "--short"])
    runpy.run_path(str(example), run_name="__main__")
    assert capfd.readouterr().out.strip()


def test_batching_study_refuses_edges_without_lengths(monkeypatch, capsys):
    study = runpy.run_path(str(ROOT / "examples" / "batching_study.py"))
    monkeypatch.setattr(sys, "argv", ["study", "--model", "painn", "--edges", "bonds"])
    with pytest.raises(SystemExit):
        study["parse"]()
    assert "reads lengths of edges. Received: ['bonds']" in capsys.readouterr().err


def test_links_between_pages_lead_somewhere():
    for page in (*PAGES, ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def leaves(tree, path=()):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def plans_of_everything():
    """A plan with each primitive that is registered, and each kind of schedule."""
    for name in registered_primitives():
        try:
            primitive = primitive_of(name)
        except ValueError:
            primitive = primitive_of(f"{name}:4")
        yield Plan(primitive)
    yield kb.preprocessing.AttentionPlan(block_size=2, share=4.0)
    for primitive in (kb.primitives.Segment(), kb.primitives.Grouped()):
        yield Plan(rest=primitive, schedule=ReceptiveField(2))
    field = ReceptiveField(2, merge=False, order="blocks")
    yield Plan(Banded(4), schedule=field)


def rows_of(page, key):
    """The cells of a table of the contract with the names of a primitive's arrays."""
    first = ""
    for line in page.splitlines():
        if line.startswith("| "):
            _, head, names, *_ = line.split("|")
            first = head.strip() or first
            # "banded:4" is documented as "banded:S".
            if re.fullmatch(rf"`{key.partition(':')[0]}(:\w)?`", first):
                yield names


@pytest.mark.parametrize("plan", list(plans_of_everything()), ids=str)
def test_architecture_names_every_array_of_a_batch(plan):
    page = (ROOT / "docs" / "architecture.md").read_text()
    contract = page[page.index("## The batch contract") : page.index("## Following")]
    graph = kb.Graph(
        5,
        [0, 1, 1, 3],
        [1, 2, 4, 0],
        node={"kind": np.arange(5)},
        edge={"length": np.ones(4)},
        candidates=[2, 3],
        slot=1,
        label=1,
    )
    weight = None if plan.schedule else "length"
    batcher = kb.preprocessing.StaticBatcher(1)
    loader = kb.preprocessing.GraphLoader([graph], batcher, plan, edge_weight=weight)
    for path, values in leaves(loader[0][0]):
        assert values.shape[0] == 1, path
        if path[-1] in ("kind", "length"):
            continue
        names = (f"`{path[-1]}`", f'["{path[-1]}"]')
        assert any(name in contract for name in names), (
            f"add x{list(path)} to the tables of docs/architecture.md"
        )
        if path[0] != "plan":
            assert f"`{path[-1]}`" in kb.batch.__doc__, path
        elif not plan.schedule and path[-1] != "weight":
            assert f"`{path[-1]}`" in " ".join(rows_of(contract, path[1])), (
                f"add `{path[-1]}` of `{path[1]}` to the table of primitives"
            )


@pytest.mark.parametrize("name", registered_primitives())
def test_the_page_of_plans_names_every_primitive(name):
    page = (ROOT / "docs" / "plans-and-cost.md").read_text()
    assert f"`{registered_primitives()[name].__name__}" in page


@pytest.mark.parametrize("name", kb.data.list_datasets())
def test_the_page_of_data_sets_names_each(name):
    page = (ROOT / "docs" / "datasets.md").read_text()
    # The names of a collection share a row.
    collection = name.partition(":")[0] + ":<name>"
    assert f"`{name}`" in page or f"`{collection}`" in page


@functools.cache
def names_on_pages():
    """Names that pages and examples set in code: `name`, or as an argument."""
    examples = (ROOT / "examples").rglob("*.py")
    text = "\n".join(path.read_text() for path in [*PAGES, *examples])
    return set(re.findall(r"`(\w+)", text)) | set(re.findall(r"\b(\w+) ?=(?!=)", text))


def functions_of(value):
    """A function, or the constructor and the methods of a class, with docstrings."""
    if not inspect.isclass(value):
        return [(value, value.__doc__)]
    functions = [getattr(f, "__func__", f) for f in vars(value).values()]
    named = [f for f in functions if inspect.isfunction(f) and f.__name__[0] != "_"]
    return [(value.__init__, value.__doc__), *((f, f.__doc__) for f in named)]


# Shapes of inputs, and options of every Keras layer.
BY_KERAS = re.compile(r"\w+_shape|activity_regularizer|autocast")


@pytest.mark.parametrize("name", sorted(public()))
def test_options_are_on_a_page_in_an_example_or_in_their_docstring(name):
    missing = []
    for function, text in functions_of(public()[name]):
        if not inspect.isfunction(function):
            continue
        for parameter in inspect.signature(function).parameters.values():
            option = parameter.name
            if parameter.default is parameter.empty or BY_KERAS.fullmatch(option):
                continue
            described = re.search(rf"^ +(\w+, )*{option}(, \w+)*:", text or "", re.M)
            if not described and option not in names_on_pages():
                missing.append(f"{function.__qualname__}: {option}")
    assert not missing, missing


_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_UNIT = r"(?=\s?(?:times|ms|%|seconds|minutes|GiB|MB|eV|h\b|s\b|TFLOP))"
_FIGURES = re.compile(rf"(?:{_NUMBER}(?:,? to |,? and |, | or ))*{_NUMBER}{_UNIT}")
_RECORD = re.compile(r"\]\((?:docs/)?((?:studies/[\w-]+|benchmarks|check|presets)\.md)")


def numbers(text):
    return [number.replace(",", "") for number in re.findall(_NUMBER, text)]


@functools.cache
def record(page):
    """All numbers of a record, and of its tables of values."""
    text = (ROOT / "docs" / page).read_text()
    for table in re.findall(r"records/\w+\.csv", text):
        text += (ROOT / "docs" / "studies" / table).read_text()
    return {float(number) for number in numbers(text)}


def test_records_have_the_figures_that_pages_quote():
    for page in PAGES:
        for paragraph in page.read_text().split("\n\n"):
            names = _RECORD.findall(paragraph)
            if not names or page.parent.name == "studies":
                continue
            values = set().union(*map(record, names))
            for figure in _FIGURES.findall(paragraph):
                for number in numbers(figure):
                    digits = len(number.partition(".")[2])
                    # Rounded, or a share as a percentage.
                    assert any(
                        float(number)
                        in (round(value, digits), round(100 * value, digits))
                        for value in values
                    ), f"{page.name}: {figure} is not in {', '.join(names)}"


def test_versions_on_pages_are_of_the_package():
    """Pages on upgrading and choices speak of earlier ones."""
    for page in PAGES:
        text = page.read_text()
        for words in (
            r"[Tt]his release \(",
            r"[Tt]his is version ",
            r"keras-bandgnn==",
        ):
            for version in re.findall(words + r"(\d+\.\d+\.\d+)", text):
                assert version == kb.__version__, page.name
    table = (ROOT / "docs" / "comparison.md").read_text()
    assert f"| {kb.__version__} |" in table


def test_the_page_of_training_has_the_default_optimizer_of_each_task():
    page = (ROOT / "docs" / "training.md").read_text()
    for name in kb.models.__all__:
        cls = getattr(kb.models, name)
        if not (isinstance(cls, type) and issubclass(cls, kb.models.Task)):
            continue
        if cls in (kb.models.Task, kb.models.NodeSelector):
            continue  # The page is about the second.
        rate = cls.default_optimizer(object.__new__(cls)).get_config()["learning_rate"]
        if isinstance(rate, dict):
            rate = rate["config"]["initial_learning_rate"]
        row = next(
            row for row in page.splitlines() if f"`{name}`" in row and "|" in row
        )
        assert float(row.split("|")[2].split(",")[0]) == pytest.approx(rate), row


def test_dotted_names_in_the_code_resolve():
    package = ROOT / "keras_bandgnn"
    rooms = "|".join(path.parent.name for path in package.glob("*/__init__.py"))
    stale = []
    for path in package.rglob("*.py"):
        for name in re.findall(rf"`((?:{rooms})(?:\.\w+)+)", path.read_text()):
            try:
                pkgutil.resolve_name(f"keras_bandgnn.{name}")
            except (ImportError, AttributeError):
                stale.append(f"{path.relative_to(ROOT)}: {name}")
    assert not stale, stale


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_names_that_maintainers_read_are_in_the_code(page):
    text = (ROOT / page).read_text()
    # Names of arrays are compared with batches above.
    text = re.sub(r"## The batch contract.*?## Following", "", text, flags=re.S)
    files = [f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.rglob("*.py")]
    for name in re.findall(r"`([\w/]+\.py)`", text):
        assert any(path.endswith(f"/{name}") for path in files), name
    for folder in re.findall(r"`((?:tests|docs|keras_bandgnn)(?:/\w+)*)/`", text):
        assert (ROOT / folder).is_dir(), folder
    folders = ("keras_bandgnn", "tests", "docs")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in sources)))
    for name in re.findall(r"`([A-Za-z_][\w.]*)(?:\(.*?\))?`", text):
        if not name.endswith((".py", ".md", ".json")):
            missing = set(name.split(".")) - words
            assert not missing, f"{page} speaks of {name}"
