"""Bad command lines of every command: refused before any work, in a line that helps.

What is wrong follows from the parser: from the type, the choices and the number of
values of each option. An option with a type of its own needs an entry in `WRONG`.
"""

import argparse
import ast
import re
from pathlib import Path

import pytest

import keras_bandgnn
from keras_bandgnn.cli import options, recipes, report
from keras_bandgnn.cli.main import _parser, main
from keras_bandgnn.cli.recipes import (
    atom_energy,
    element_cutoff,
    share_or_path,
    stage,
)
from keras_bandgnn.cli.scale import _share
from keras_bandgnn.programs.commands.check import fail_on

# Values that an option of a type must refuse.
WRONG = {
    options.positive: ("x", "0", "-1", "2.5", "", "9" * 20),
    options.above_zero: ("x", "0", "-1", "nan", "inf", ""),
    options.fraction: ("x", "-0.1", "1", "nan", ""),
    options.finite: ("x", "nan", "inf", ""),
    options.natural: ("x", "-1", "1.5", ""),
    options.written_file: ("", "no/such/folder/file", "."),
    _share: ("x",),
    options.path: ("",),
    fail_on: ("x", "0", "-1", "2.5", "", "Never"),
    share_or_path: ("", "0", "1", "-0.5", "1.5", "nan"),
    element_cutoff: ("x", "H=x", "H=0", "H=-1", "=1", ""),
    stage: ("x", "0:energy=1", "1:", "1:energy", "1:x=1", "1:force=-1", ""),
    atom_energy: ("x", "H=x", "=1", ""),
    options.probability: ("x", "-0.1", "1.1", "90", "nan", ""),
    None: (),
}
NOWHERE = "no-such-place"


def commands(parser=None, words=()):
    """Yields (words, parser) of every command that runs."""
    parser = _parser() if parser is None else parser
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for action in inner:
        for name, each in action.choices.items():
            yield from commands(each, (*words, name))
    if not inner:
        yield words, parser


COMMANDS = dict(commands())


def required(parser) -> list[str]:
    """Arguments without which a command does not begin: places where nothing is."""
    given = []
    for action in parser._actions:
        if not action.required:
            continue
        given += [*action.option_strings[:1], NOWHERE]
    return given


def bad_lines(words, parser):
    """Yields (arguments, what the message has to name)."""
    start = [*words, *required(parser)]
    yield [*start, "--no-such-option"], "--no-such-option"
    if required(parser):
        yield list(words), "required"
    for action in parser._actions:
        if not action.option_strings or isinstance(action, argparse._HelpAction):
            continue
        option = action.option_strings[0]
        if action.nargs == 0:
            yield [*start, f"{option}=value"], option
            continue
        if action.nargs != "*":
            yield [*start, option], option
        if action.choices is not None:
            yield [*start, option, "no-such-choice"], option
        assert action.type in WRONG, (
            f"{option} of {words} has a type without wrong values: take one of "
            f"keras_bandgnn.cli.options, or add it to WRONG in {__file__}."
        )
        for value in WRONG[action.type]:
            yield [*start, f"{option}={value}"], option


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir()), "a bad command line has written files"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_options(words, capsys):
    accepted = []
    for line, name in bad_lines(words, COMMANDS[words]):
        try:
            code = main(line)
        except SystemExit as stop:
            code = stop.code
        message = capsys.readouterr().err
        last = message.strip().rpartition("\n")[2]
        if code != 2 or "error:" not in last or name not in last:
            accepted.append((line, code, message[-200:]))
        assert "Traceback" not in message
    assert not accepted


def test_there_are_many():
    lines = [line for words, p in COMMANDS.items() for line in bad_lines(words, p)]
    assert len(lines) > 400


@pytest.mark.parametrize(
    "words", [w for w, p in COMMANDS.items() if required(p)], ids=" ".join
)
def test_what_is_not_there(words, capsys):
    line = [*words, *required(COMMANDS[words])]
    if any("--allocator" in a.option_strings for a in COMMANDS[words]._actions):
        # The other one begins a process of its own.
        line += ["--allocator", "default"]
    code = main(line)
    message = capsys.readouterr().err
    assert code == (2 if words in (("predict",), ("check",)) else 1)
    (line,) = re.findall(r"^error: .*", message, re.M)
    # What needs another backend, or a package that is missing, says so first.
    assert any(text in line for text in (NOWHERE, "KERAS_BACKEND=jax", "pip install"))
    assert "Expected" in line
    assert "Traceback" not in message


@pytest.mark.parametrize("line", [[], ["no-such-command"], ["bench"], ["bench", "x"]])
def test_no_command(line, capsys):
    with pytest.raises(SystemExit) as stop:
        main(line)
    assert stop.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        ["train", NOWHERE, "--out", "o", "--plan", "bad"],
        ["train", NOWHERE, "--out", "o", "--plan", "segment,bad"],
        ["train", NOWHERE, "--out", "o", "--graph", "full"],
        ["train", NOWHERE, "--out", "o", "--task", "regression", "--plan", "auto"],
        ["train", NOWHERE, "--out", "o", "--task", "regression", "--option", "a"],
        ["compile", NOWHERE, "--out", "o", "--ray-address", "auto"],
        ["tune", "demo", "--out", "o", "--path", "."],
    ],
    ids=" ".join,
)
def test_options_that_only_the_work_can_judge(line, capsys):
    if line[0] == "tune":
        pytest.importorskip("keras_tuner")
    assert main(line) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"bandgnn {line[0]}: error: Expected")
    assert line[-2] in said and f"See bandgnn {line[0]} --help" in said


def advice_of_the_library():
    """Yields (place, text) of every error text; what is put in is {}."""
    folder = Path(keras_bandgnn.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Raise | ast.Return | ast.Expr) and node.lineno:
                for part in ast.walk(node):
                    if isinstance(part, ast.JoinedStr):
                        values = part.values
                    elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                        values = [part]
                    else:
                        continue
                    text = "".join(
                        str(v.value) if isinstance(v, ast.Constant) else "{}"
                        for v in values
                    )
                    if "Received:" in text:
                        yield f"{file.relative_to(folder)}:{node.lineno}", text


def test_errors_name_options_and_no_python():
    """What has an option is named by it, and advice for Python alone is left out."""
    python = re.compile(
        r"\b(overwrite|restart|load_weights|oversize)='?\w|from_preset\("
    )
    found = list(advice_of_the_library())
    assert sum(bool(python.search(text)) for _, text in found) > 5
    wrong = [
        (place, shown)
        for place, text in found
        if python.search(shown := report.in_options(text))
    ]
    assert not wrong, (
        "write 'argument=value (--option)', or put advice for Python last: "
        f"'In Python, ...': {wrong}"
    )
    text = "Expected x. Received: y. Pass overwrite=True (--overwrite). In Python, z()."
    assert report.in_options(text) == "Expected x. Received: y. Pass --overwrite."


@pytest.mark.parametrize("task", recipes.TASKS)
def test_every_option_of_a_task_is_read(task):
    """The table names the tasks that read an option; the others refuse it."""
    folder = Path(keras_bandgnn.__file__).parent / "cli"
    names = {"selection": ["train"], "regression": ["train_regression", "data_sets"]}
    names["potential"] = ["train_potential", "train_regression"]
    read = set()
    for name in (*names[task], "training_callbacks", "report"):
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.Attribute):
                if isinstance(node.value, ast.Name) and node.value.id == "options":
                    read.add(node.attr)
    options = {o.name for o in recipes.BY_NAME.values() if task in o.tasks}
    assert options <= read, f"nothing reads {sorted(options - read)}"
