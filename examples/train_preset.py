"""Makes a preset again from its recipe, or goes on with an interrupted training.

    python examples/train_preset.py --list
    python examples/train_preset.py gine_esol --data FOLDER --out runs/gine_esol
    python examples/train_preset.py gine_esol --data FOLDER --out short -- --seeds 1
    python examples/train_preset.py --short

`presets/NAME/recipe.toml` names the command that trains the preset, and its options:
data, split, model, optimizer, schedule, epochs and seeds. A table `before` has those of
a training whose weights are the first ones of it. A comment in it says which data it
takes; `--data` is their file, or the folder of the files it names. Options
behind `--` are those of the command, and replace the recipe's. Started again with the
same options, an interrupted training goes on after its last epoch, chunk or seed.
With `--short` it makes a preset of a few molecules.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Command(NamedTuple):
    """How a command is called.

    Attributes:
        words: The command.
        data: Option of its data; None if they are an argument.
        out: Options of what it writes, to names in the folder of the run.
    """

    words: tuple[str, ...]
    data: str | None
    out: dict[str, str]


SCRIPTS = ROOT / "examples"
COMMANDS = {
    "train": Command(("-m", "keras_bandgnn", "train"), None, {"--out": "preset"}),
    "accuracy": Command(
        ("-m", "examples.benchmarks", "accuracy"),
        "--path",
        {"--results": "scores.json", "--preset": "preset"},
    ),
    "bug_localizer": Command(
        (str(SCRIPTS / "bug_localizer.py"),), None, {"--out": "preset"}
    ),
    "link_prediction": Command(
        (str(SCRIPTS / "link_prediction.py"),), "--data", {"--save": "preset"}
    ),
}


def recipes() -> dict[str, Path]:
    """The recipes of the presets, by name."""
    return {f.parent.name: f for f in sorted(ROOT.glob("presets/*/recipe.toml"))}


def words_of(options: dict[str, Any]) -> list[str]:
    """Options as on a command line; a table repeats its option for each entry."""
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, dict):
            words += [word for k, v in value.items() for word in (flag, f"{k}={v}")]
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        elif value is True:
            words.append(flag)
        elif value is not False:
            words += [flag, str(value)]
    return words


def command_line(values: dict[str, Any], recipe: Path, data: Path | None) -> list[str]:
    """The command of a recipe, as Python takes it, without what it writes."""
    command = COMMANDS[values.get("command", "train")]
    words = list(command.words)
    if "command" in values:
        words += values.get("arguments", [])
        if data is not None:
            words += [str(data)] if command.data is None else [command.data, str(data)]
        options = values.get("options", {})
        if "fixes" in options:
            options = {**options, "fixes": (data or Path()) / options["fixes"]}
        return words + words_of(options)
    # `bandgnn train` reads its recipes itself.
    folder = data or Path()
    words += [str(folder / values["data"]), "--recipe", str(recipe)]
    if isinstance(values.get("valid"), str):
        words += ["--valid", str(folder / values["valid"])]
    return words


def command_lines(
    values: dict[str, Any], recipe: Path, data: Path | None, out: Path, more: list[str]
) -> list[list[str]]:
    """The commands of a recipe: of the training before it, if any, and its own."""
    lines = []
    start: list[str] = []
    if "before" in values:
        first = {**values, "options": values["before"]}
        words = command_line(first, recipe, data)
        lines.append([*words, "--out", str(out / "before"), *more])
        start = ["--start", str(out / "before")]
    words = command_line(values, recipe, data) + start
    for flag, file in COMMANDS[values.get("command", "train")].out.items():
        words += [flag, str(out / file)]
    return [*lines, [*words, *more]]


def run(name: str, data: Path | None, out: Path, more: list[str]) -> int:
    """Train a preset; return the exit code of its command."""
    recipe = recipes()[name]
    values = tomllib.loads(recipe.read_text())
    out.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    backend = {"KERAS_BACKEND": values["backend"]} if "backend" in values else {}
    environment = {**backend, **os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    data = data and data.resolve()
    for words in command_lines(values, recipe, data, out.resolve(), more):
        print("python", *words, flush=True)
        code = subprocess.run([sys.executable, *words], env=environment).returncode
        if code:
            if not any(out.iterdir()):
                out.rmdir()
            return code
    print(f"preset: {out / 'preset'}")
    return 0


def short() -> int:
    """Make `gine_esol` of twenty rings with chains, and random labels."""
    rng = random.Random(0)
    lines = ["smiles,measured log solubility in mols per litre"]
    lines += [f"OC1{'C' * n}C1,{rng.gauss(0, 1):.3f}" for n in range(1, 21)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "delaney-processed.csv").write_text("\n".join(lines) + "\n")
        more = ["--seeds", "1", "--setting", "epochs=1", "--setting", "hidden_dim=8"]
        return run("gine_esol", Path(folder), Path(folder) / "run", more)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=str(__doc__).split("\n")[0], epilog="More options behind --."
    )
    parser.add_argument("name", nargs="?", help="the preset")
    parser.add_argument("--data", type=Path, help="file or folder of its data")
    parser.add_argument("--out", type=Path, help="folder of the run (runs/NAME)")
    parser.add_argument("--list", action="store_true", help="presets with recipes")
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    arguments, more = sys.argv[1:], []
    if "--" in arguments:
        place = arguments.index("--")
        arguments, more = arguments[:place], arguments[place + 1 :]
    options = parser.parse_args(arguments)
    if options.short:
        return short()
    if options.list or options.name is None:
        print(*recipes(), sep="\n")
        return 0
    if options.name not in recipes():
        parser.error(f"expected one of {', '.join(recipes())}, is {options.name}")
    out = options.out or Path("runs") / options.name
    return run(options.name, options.data, out, more)


if __name__ == "__main__":
    code = main()
    if code:
        sys.exit(code)
