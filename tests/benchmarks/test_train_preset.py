"""Every recipe of a preset trains, on a little data in the form that it names."""

import gzip
import json
import runpy
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.data.datasets.molecules import _BINARY_TARGETS, _OFFICIAL_TARGETS

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "examples" / "train_preset.py"))
RECIPES = SCRIPT["recipes"]()
# At each landing; all others before a release.
SOON = ("gine_esol", "gcn_coauthor_cs", "painn_qm9_u0", "complex_fb15k237")
RNG = np.random.default_rng(0)
COLUMNS = {
    "esol": _OFFICIAL_TARGETS[:1],
    "freesolv": ("expt",),
    "lipo": ("exp",),
    "bbbp": ("p_np",),
    "bace": ("Class",),
    "hiv": ("HIV_active",),
    "tox21": _BINARY_TARGETS[3:],
    "zinc": ("y_normalised",),
}
NODES = {
    "amazon_photo": "amazon_electronics_photo",
    "amazon_computers": "amazon_electronics_computers",
    "coauthor_cs": "ms_academic_cs",
}


def molecules(folder, name):
    """Rings with chains, in a table with the columns of a data set."""
    pytest.importorskip("rdkit")
    columns = COLUMNS[name]
    lines = ["smiles," + ",".join([*columns, *["split"] * (name == "zinc")])]
    for number in range(30):
        if columns[0] in _BINARY_TARGETS:
            labels = [str((number + i) % 2) for i in range(len(columns))]
        else:
            labels = [f"{RNG.normal():.3f}" for _ in columns]
        if name == "zinc":
            labels.append(("train", "valid", "test")[max(0, number - 27)])
        lines.append(",".join([f"OC1{'C' * (number % 10 + 1)}C1", *labels]))
    file = folder / f"{name}.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def nodes(folder, name):
    """A ring with two classes of nodes, in the arrays of gnn-benchmark."""
    count = 160
    order = np.arange(count)
    file = folder / f"{NODES[name]}.npz"
    np.savez(
        file,
        adj_data=np.ones(count, "float32"),
        adj_indices=((order + 1) % count).astype("int32"),
        adj_indptr=np.arange(count + 1, dtype="int32"),
        adj_shape=np.array([count, count]),
        attr_data=np.ones(count, "float32"),
        attr_indices=(order % 4).astype("int32"),
        attr_indptr=np.arange(count + 1, dtype="int32"),
        attr_shape=np.array([count, 4]),
        labels=order % 2,
    )
    return file


def stores(folder, chemistry):
    """Stores of chains of atoms, or of rings with the codes of the ZINC benchmark."""
    for split, count in (("train", 20), ("valid", 5), ("test", 5)):
        graphs = []
        for _ in range(count):
            ring = np.arange(RNG.integers(3, 7))
            ends, types = (ring, (ring + 1) % len(ring)), RNG.integers(0, 3, len(ring))
            node = {"atom": types}
            if chemistry == "qm9":
                number = np.array([1, 6, 8])[types]
                position = ring[:, None] * [1.1, 0, 0]
                node, ends = {"atomic_number": number, "position": position}, ([], [])
            label = float(types.sum())
            graphs.append(kb.Graph(len(ring), *ends, node=node, label=label))
        kb.data.write_store(folder / split, graphs)


def frames(folder, values):
    """Cells labelled by ASE's EMT potential, in the files that a recipe names."""
    build = pytest.importorskip("ase.build")
    pytest.importorskip("vesin")
    from ase.calculators.emt import EMT
    from ase.io import write

    for name in (values["data"], values["valid"]):
        cells = []
        for _ in range(6):
            atoms = build.bulk("Cu", cubic=True)
            atoms.positions += RNG.normal(scale=0.1, size=(4, 3))
            atoms.calc = EMT()
            atoms.get_stress()
            cells.append(atoms)
        write(folder / name, cells)


def programs(folder, values):
    """Stores of programs of this Python, in the folder that a recipe names."""
    from keras_bandgnn.cli.main import main

    example = runpy.run_path(str(ROOT / "examples" / "varmisuse_original.py"))
    example["write_small"](folder / "original")
    out = str(folder / values["data"])
    line = ["compile", str(folder / "original"), "--out", out, "--processes", "1"]
    assert main([*line, "--steps", "1"]) == 0


def triples(folder):
    """The next node of a ring, and the one before, in the arrays of FB15k-237."""
    node = np.arange(30)
    rows = [np.stack([node, node * 0 + r, (node + 1 - 2 * r) % 30], 1) for r in (0, 1)]
    rows = RNG.permutation(np.concatenate(rows)).astype("uint16")
    parts = {"train": rows[:40], "valid": rows[40:50], "test": rows[50:]}
    np.savez(folder / "triples.npz", entity=node, relation=np.arange(2), **parts)
    return folder / "triples.npz"


def fixes(folder):
    """Real fixes as in their file, of functions of some projects."""
    folder.mkdir()
    body = "(low, high):\n    step = low - low\n    return high + step\n"
    with gzip.open(folder / "cases.jsonl.gz", "wt") as lines:
        for number in range(10):
            before = f"def f{number}{body}"
            case = {
                "repo": f"project{number}",
                "function": f"f{number}",
                "function_start_line": 7,
                "line": 8,
                "col": 17,
                "used": "low",
                "correct": "high",
                "before": before,
                "after": before.replace("low - low", "low - high"),
            }
            lines.write(json.dumps(case) + "\n")


def prepare(folder, values):
    """Write the data of a recipe; return them, and options of a short training."""
    command = values.get("command", "train")
    if command == "accuracy":
        name = values["arguments"][0]
        write = nodes if name in NODES else molecules
        more = ["--seeds", "1", "--setting", "epochs=1", "--setting", "hidden_dim=8"]
        # Other files than those of the benchmark have no codes of atoms.
        more += ["--setting", "published=False"] if name == "zinc" else []
        # Another allocator would start the process again.
        return write(folder, name), [*more, "--allocator", "default"]
    if command == "bug_localizer":
        script = runpy.run_path(str(ROOT / "examples" / "bug_localizer.py"))
        more = ["--passes", "1", "--steps", "1", "--late-steps", "1", "--every", "1"]
        corpus = script["small_corpus"](folder)
        if "fixes" in values["options"]:
            fixes(corpus / values["options"]["fixes"])
        return corpus, more
    if command == "link_prediction":
        more = ["--epochs", "1", "--every", "1", "--width", "8", "--negatives", "0"]
        return triples(folder), more
    more = ["--epochs", "1", "--hidden", "8"]
    if values["task"] == "selection":
        programs(folder, values)
    elif values["task"] == "potential":
        frames(folder, values)
        more += ["--schedule"] if "schedule" in values else []
    else:
        stores(folder / values["data"], values["data"].partition("_")[0])
    return folder, more


def called(words, monkeypatch):
    """Run a command of Python in this process, and return its exit code."""
    module, name, *line = words if words[0] == "-m" else ("", *words)
    if module:
        name = f"{name}.__main__"
        if name == "keras_bandgnn.__main__":
            name = "keras_bandgnn.cli.main"
        return __import__(name, fromlist=["main"]).main(line)
    monkeypatch.setattr(sys, "argv", [name, *line])
    return runpy.run_path(name, run_name="__main__") and 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SOON else pytest.mark.release)
        for name in RECIPES
    ],
)
def test_every_recipe_trains(name, tmp_path, monkeypatch, capsys):
    values = tomllib.loads(RECIPES[name].read_text())
    data, more = prepare(tmp_path, values)
    for words in SCRIPT["command_lines"](values, RECIPES[name], data, tmp_path, more):
        assert called(words, monkeypatch) == 0, capsys.readouterr().err
    kb.models.Task.from_preset(tmp_path / "preset")
    if values.get("command") == "accuracy":
        # The command writes the recipe of what it has done.
        again = tomllib.loads((tmp_path / "preset" / "recipe.toml").read_text())
        assert again["arguments"] == values["arguments"]
        assert again["options"]["seeds"] == 1
        short = {"epochs", "hidden_dim", "published"}
        settings = again["options"]["setting"]
        for setting, value in values["options"].get("setting", {}).items():
            assert setting in short or settings[setting] == value


def test_every_preset_with_weights_has_a_recipe():
    weights = {f.parent.name for f in ROOT.glob("presets/*/model.weights.h5")}
    assert weights == set(RECIPES)
    backends = ("jax", "tensorflow", "torch")
    for file in RECIPES.values():
        values = tomllib.loads(file.read_text())
        assert values.get("backend", backends[0]) in backends
        assert file.read_text().startswith("# Data: ")


def test_options_are_words_of_a_command_line():
    options = {"a_b": 1, "c": {"x": True, "y": 0.5}, "d": True, "e": ["f", "g"]}
    words = SCRIPT["words_of"](options)
    expected = ["--a-b", "1", "--c", "x=True", "--c", "y=0.5", "--d", "--e", "f", "g"]
    assert words == expected


def test_a_training_before_another_makes_its_first_weights(tmp_path):
    options = {"passes": 0.1, "fixes": "fixes"}
    values = {"command": "bug_localizer", "before": {"passes": 1}, "options": options}
    first, second = SCRIPT["command_lines"](
        values, Path("recipe.toml"), Path("corpus"), tmp_path, ["--every", "1"]
    )
    script = str(ROOT / "examples" / "bug_localizer.py")
    before, more = str(tmp_path / "before"), ["--every", "1"]
    assert first == [script, "corpus", "--passes", "1", "--out", before, *more]
    expected = ["--passes", "0.1", "--fixes", str(Path("corpus") / "fixes")]
    expected += ["--start", before, "--out", str(tmp_path / "preset")]
    assert second == [script, "corpus", *expected, *more]
