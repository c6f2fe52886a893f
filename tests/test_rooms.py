"""Which room may import which: arrows go down, and no files import in a circle."""

import ast
import functools
import itertools
import runpy
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import keras_bandgnn

PACKAGE = Path(keras_bandgnn.__file__).parent
# From the ground up. A file imports its own room and rooms before it.
ROOMS = (
    "checks optional version aliases default_backend host_keras keras_bases".split()
    + "compat plugins".split()
    + "registration config arrays progress workers graph batch".split()
    + "data saving ops primitives plans assembly planning".split()
    + [
        f"preprocessing.{room}"
        for room in (
            "graph_layer ordering geometry attention batching sampling loading".split()
        )
    ]
    + ["preprocessing", "preprocessing.forecast"]
    + "layers distribution training serving models explain tpu".split()
    + "tuning plotting".split()
    # Another name of `plotting`.
    + ["visualization"]
    + "testing cli __main__".split()
    # The code-analysis tool, which no other room imports: see `plugins.PLUGINS`.
    + ["programs"]
    + [f"programs.{room}" for room in "models linting commands".split()]
)
# These import no backend and no Keras.
PLAIN = ("graph", "data", "assembly", "programs")


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


class _Running(ast.NodeTransformer):
    """Leaves out what only type checkers read: annotations may name rooms above."""

    def visit_If(self, node):
        if ast.unparse(node.test) == "TYPE_CHECKING":
            return node.orelse
        return self.generic_visit(node)


def nodes(path: Path) -> Iterator[ast.AST]:
    """The syntax of a file as it runs."""
    return ast.walk(_Running().visit(ast.parse(path.read_text())))


def imports(path: Path) -> set[str]:
    """Modules of the library that a file imports, at its top or in a function."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: write the whole name of the module"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            room, _, rest = name.partition(".")
            if room != "keras_bandgnn":
                continue
            while rest not in FILES:
                rest = rest.rpartition(".")[0]
            found.add(rest)
    return found


def room_of(name: str) -> str:
    parts = name.split(".")
    for length in (2, 1):
        if (room := ".".join(parts[:length])) in ROOMS:
            return room
    raise AssertionError(f"add the room of {name} to ROOMS in {__file__}")


# Packages forward names; what they forward is imported by nobody on the way.
@functools.cache
def arrows() -> dict[str, set[str]]:
    """The modules that each module imports."""
    return {
        name: imports(path) - {name, ""}
        for name, path in FILES.items()
        if path.name != "__init__.py"
    }


def test_no_file_imports_a_room_above_its_own():
    up = [
        f"{name} -> {other}"
        for name, others in arrows().items()
        for other in others
        if ROOMS.index(room_of(other)) > ROOMS.index(room_of(name))
    ]
    assert not up, "\n".join(up)


def test_only_the_table_of_plugins_leads_to_programs():
    modules = [n for n in FILES if n and not n.startswith("programs")]
    script = (
        "import importlib, sys\n"
        "sys.argv[0] = 'bandgnn'\n"  # which registers nothing
        "from keras_bandgnn import plugins\n"
        "plugins.PLUGINS.clear()\n"
        "plugins.REGISTERED = ()\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        importlib.import_module(f'keras_bandgnn.{name}')\n"
        "    except ImportError as error:\n"
        "        assert 'keras_bandgnn' not in (error.name or ''), error\n"
        "loaded = [n for n in sys.modules if n.startswith('keras_bandgnn.programs')]\n"
        "assert not loaded, loaded\n"
    )
    # Each backend has files that import it.
    modules = [n for n in modules if ".backend." not in n and n != "__main__"]
    subprocess.run([sys.executable, "-c", script, *modules], check=True)


def test_no_files_import_each_other_in_a_circle():
    done, path = set(), []

    def visit(name):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        path.append(name)
        for other in sorted(arrows().get(name, ())):
            visit(other)
        path.pop()
        done.add(name)

    for name in arrows():
        visit(name)


def test_rooms_of_plain_arrays_import_no_keras():
    for name, path in FILES.items():
        if not name or room_of(name) not in PLAIN:
            continue
        for node in nodes(path):
            if isinstance(node, ast.Import):
                modules = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules = {node.module.partition(".")[0]}
            else:
                continue
            assert not modules & {"keras", "jax", "tensorflow", "torch"}, name


def test_few_files_have_a_single_importer():
    importers = defaultdict(set)
    for name, others in arrows().items():
        for other in others:
            importers[other].add(name)
    # A newcomer looks for these by their names: layers, backbones, commands, readers.
    by_name = ("layers.", "models.", "cli.", "data.datasets.", "data.converters.")
    by_name += ("programs.commands.",)
    files = [name for name in arrows() if not name.startswith(by_name)]
    single = [name for name in files if len(importers[name]) == 1]
    assert len(single) <= 0.15 * len(arrows()), single


def test_picture_of_the_rooms_is_the_one_that_the_script_draws():
    script = runpy.run_path(str(PACKAGE.parent / "docs" / "rooms.py"))
    drawn = script["picture"](sys.modules[__name__])
    message = "the rooms have changed: run `python docs/rooms.py` and commit"
    assert script["FIGURE"].read_text() == drawn, message


def walk(title: str) -> list[tuple[str, str]]:
    """The module and the function of each step of a table of docs/architecture.md."""
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    table = page.split(title, 1)[1].split("| --- |", 1)[1].split("\n\n", 1)[0]
    steps, module = [], None
    for row in table.splitlines()[1:]:
        file, function = (cell.strip().strip("`") for cell in row.split("|")[1:3])
        module = file.removesuffix(".py").replace("/", ".") or module
        steps.append((module, function))
    return steps


FOLLOWING = (
    "## Following a batch",
    "Then the device",
    "### Following a sampler",
    "### Following the precision",
    "### Following the loss",
    "### Following the block size",
)


@pytest.mark.parametrize("title", FOLLOWING)
def test_steps_on_the_way_of_a_batch_are_in_the_files_that_the_page_names(title):
    steps = walk(title)
    assert len(steps) > 5
    for module, function in steps:
        *owner, name = function.split(".")
        body = ast.parse(FILES[module].read_text()).body
        if owner:
            (body,) = [n.body for n in body if getattr(n, "name", None) == owner[0]]
        assert name in [getattr(n, "name", None) for n in body], (module, function)


@pytest.mark.parametrize("title", FOLLOWING[:-1])
def test_a_batch_is_followed_down_the_rooms(title):
    files = [file for file, _ in itertools.groupby(module for module, _ in walk(title))]
    assert len(files) <= 10 and len(set(files)) == len(files), files
    rooms = [ROOMS.index(room_of(file)) for file in files]
    assert rooms == sorted(rooms, reverse=True), files


def test_the_way_of_x_is_short():
    title = "### Following `x`"
    test_steps_on_the_way_of_a_batch_are_in_the_files_that_the_page_names(title)
    files = [module for module, _ in walk(title)]
    rooms = [ROOMS.index(room_of(file)) for file in files]
    climbs = sum(after > before for before, after in itertools.pairwise(rooms))
    assert len(files) <= 20 and len(set(files)) <= 10 and climbs <= 3
