"""Recipes of runs of `bandgnn train`: their options, and the file `recipe.toml`."""

import argparse
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli.recipes import BY_NAME, TASKS, Option, add_options
from keras_bandgnn.saving.preset_paths import RECIPE as FILE


def _plain(value: Any) -> Any:
    """Return a value as TOML has it: text for options that parse it."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple) and isinstance(value[1], dict):
        entries = (f"{name}={weight!r}" for name, weight in value[1].items())
        return f"{value[0]}:{','.join(entries)}"
    if isinstance(value, tuple):
        return f"{value[0]}={value[1]!r}"
    return str(value) if isinstance(value, Path) else value


def unused_options(task: str, model: str | None) -> dict[str, str]:
    """Return the options that a task and its model do not read, and which do."""
    unused = {}
    for option in BY_NAME.values():
        if task not in option.tasks:
            unused[option.name] = option.reader()
        elif task == "regression" and option.models and model not in option.models:
            *others, last = option.models
            names = f"{', '.join(others)} or {last}" if others else last
            unused[option.name] = f"--model {names}"
    return unused


def complete(options: argparse.Namespace) -> None:
    """Check the options that were passed, and set the others.

    These are read from the recipe that `--recipe` names, or are the task's defaults.

    Raises:
        OptionError: For options that the task or its model does not read.
    """
    recipe = read(options.recipe) if options.recipe is not None else None
    if options.task is None:
        options.task = TASKS[0] if recipe is None else recipe.task
    if recipe is not None and recipe.task != options.task:
        raise shared.OptionError(
            f"Expected --recipe with a recipe of --task {options.task}. Received: "
            f"{options.recipe}, of --task {recipe.task}."
        )
    task = options.task
    model = options.model or getattr(recipe, "model", None)
    if model is None and task in BY_NAME["model"].tasks:
        model = BY_NAME["model"].default_of(task)
    reader = f"--task {task}" + (f" --model {model}" if task == "regression" else "")
    advice = ""
    if task == "selection":
        advice = "Pass the --task that reads them, or leave them out."
    if options.cutoff is not None and model == "mpeu":
        advice = "Limit the edges with --graph radius:R."
    shared.reject_unused_options(options, unused_options(task, model), reader, advice)
    for option in BY_NAME.values():
        if task not in option.tasks or getattr(options, option.name) is not None:
            continue
        value = None if recipe is None else getattr(recipe, option.name)
        default = option.default_of(task)
        setattr(options, option.name, default if value is None else value)
    if options.seed is None:
        options.seed = 0 if recipe is None else recipe.seed


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the recipe of a run as values of TOML.

    Paths of existing files are absolute, so that they name the same files elsewhere.
    """
    values = {"task": options.task, "data": options.data, "seed": options.seed}
    for option in BY_NAME.values():
        if options.task in option.tasks:
            values[option.name] = getattr(options, option.name)
    values = {name: value for name, value in values.items() if value is not None}
    values = {name: _plain(value) for name, value in values.items()}
    return shared.resolved(values)


def from_json(values: Mapping) -> dict[str, Any]:
    """Return the options of a run of version 0.2.0, in JSON, as options of a recipe."""
    names = ("schedule", "atom_energies", "element_cutoffs")
    pairs = {name: list(map(tuple, values.get(name) or ())) for name in names}
    return {**values, **{name: _plain(entries) for name, entries in pairs.items()}}


def write(file: Path, values: Mapping[str, Any], graphs: Mapping | None = None) -> None:
    """Write a recipe.

    Args:
        file: The file.
        values: The options, from `settings`.
        graphs: Values of JSON that identify the graphs of a run, written as texts.
    """
    from keras_bandgnn.data.files import atomic_write

    # Texts, numbers and lists are written alike in JSON and TOML.
    def entries(table: Mapping) -> list[str]:
        dumped = {k: json.dumps(v, ensure_ascii=False) for k, v in table.items()}
        return [f"{name} = {text}" for name, text in dumped.items()]

    lines = entries(values)
    if graphs is not None:
        texts = {name: json.dumps(value) for name, value in graphs.items()}
        lines += ["", "[graphs]", *entries(texts)]
    with atomic_write(file) as stream:
        stream.write(("\n".join(lines) + "\n").encode())


def read_values(file: Path) -> dict[str, Any]:
    """Return the values of a recipe.

    Raises:
        ValueError: If the file is no recipe.
    """
    from keras_bandgnn.data.reading import read_text, refuse_file

    try:
        values = tomllib.loads(read_text(file))
    except tomllib.TOMLDecodeError as error:
        refuse_file(file, "to be a recipe in TOML", str(error))
    if values.get("task") not in TASKS:
        refuse_file(file, f"to have a task among {TASKS}", values.get("task"))
    return values


def _words(option: Option, value: Any) -> list[str]:
    """Return an option and its value as on a command line."""
    name = shared.flag(option.name)
    if option.kind is bool:
        return [name] if value is True else []
    if option.nargs == "append":
        return [f"{name}={item}" for item in value]
    if isinstance(value, list):
        return [name, *map(str, value)] if value else []
    return [f"{name}={value}"]


class _Parser(argparse.ArgumentParser):
    """Raises an error in place of ending the process."""

    def error(self, message: str):
        raise ValueError(message)


def read(file: Path) -> argparse.Namespace:
    """Return the options of a recipe, parsed like a command line.

    Raises:
        OptionError: If the file has no valid recipe.
    """
    if file.is_dir():
        file = file / FILE
    if not file.is_file():
        raise shared.OptionError(
            f"Expected --recipe with a {FILE}, or the folder of a model that has one. "
            f"Received: {file}, which is not there."
        )
    values = read_values(file)
    words = []
    for name in values.keys() - {"task", "data", "seed", "graphs"}:
        option = BY_NAME.get(name)
        if option is None or values["task"] not in option.tasks:
            raise shared.OptionError(
                f"Expected --recipe with options of --task {values['task']}. Received: "
                f"{name!r} in {file}."
            )
        words += _words(option, values[name])
    parser = _Parser(add_help=False, allow_abbrev=False)
    add_options(parser)
    try:
        recipe = parser.parse_args(words)
        recipe.seed = shared.natural(str(values.get("seed", 0)))
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise shared.OptionError(
            f"Expected --recipe with a valid recipe. Received: {file}: {error}"
        ) from error
    recipe.task = values["task"]
    return recipe
