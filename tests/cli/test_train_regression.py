import json
import shutil
import tomllib

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.cli import predict, training_callbacks
from keras_bandgnn.cli.main import main
from keras_bandgnn.cli.train_regression import SPLITS, graph_layer
from keras_bandgnn.data import files
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    for split, count in zip(SPLITS, (24, 6, 6), strict=True):
        graphs = []
        for _ in range(count):
            size = int(rng.integers(2, 6))
            number = rng.choice([1, 6, 8], size)
            position = np.arange(size)[:, None] * [1.1, 0, 0]
            node = {"atomic_number": number, "position": position}
            label = float(number.sum() + 0.05 * rng.normal())
            graphs.append(kb.Graph(size, [], [], node=node, label=label))
        kb.data.write_store(tmp_path / "data" / split, graphs)
    return tmp_path / "data"


@pytest.mark.parametrize("model", ["schnet", "mpeu", "painn"])
def test_trains_evaluates_and_saves(data, tmp_path, model, capsys):
    command = ["train", str(data), "--task", "regression", "--model", model]
    command += ["--out", str(tmp_path / "out"), "--hidden", "8", "--epochs", "2"]
    command += ["--batch-size", "8", "--reduce", "sum", "--references"]
    assert main([*command, "--graph", "radius:3", "--patience", "3"]) == 0
    said = capsys.readouterr().out
    assert "24 train, 6 valid, 6 test graphs" in said
    # The labels are a number per element and a little more.
    mae = float(said.split("unit: MAE ")[1].split(",")[0])
    assert mae < 0.5
    task = kb.models.GraphRegressor.from_preset(tmp_path / "out")
    graphs = list(kb.data.open_store(data / "test"))
    found = np.ravel(task.predict(graphs))
    error = np.abs(found - [g.label for g in graphs]).mean()
    assert error == pytest.approx(mae, rel=1e-3)
    assert not (tmp_path / "out.partial").exists()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "bandgnn train" in card and f"MAE {mae:.4g}" in card
    assert main(["evaluate", str(tmp_path / "out"), str(data / "test")]) == 0
    assert f"MAE {mae:.4g}" in capsys.readouterr().out
    written = tmp_path / "numbers.jsonl"
    again = ["predict", str(tmp_path / "out"), str(data / "test"), "--top", "2"]
    assert main([*again, "--json", str(written)]) == 0
    said = capsys.readouterr().out
    assert "first 2 of 6 graphs" in said and f"{found[1]:.4g}"[:4] in said
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(6))
    np.testing.assert_allclose([line["prediction"][0] for line in lines], found, 1e-5)
    np.testing.assert_allclose(
        [line["label"] for line in lines], [g.label for g in graphs]
    )
    assert main([*command]) == 1
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["graphormer", "gt"])
def test_graph_transformers(tmp_path, model, capsys):
    rng = np.random.default_rng(0)
    for split, count in zip(SPLITS, (24, 6, 6), strict=True):
        graphs = []
        for _ in range(count):
            size = int(rng.integers(3, 8))
            ring = np.arange(size)
            kind = rng.integers(0, 3, size)
            graphs.append(
                kb.Graph(
                    size,
                    np.concatenate([ring, (ring + 1) % size]),
                    np.concatenate([(ring + 1) % size, ring]),
                    edge_type=np.concatenate([kind, kind]) % 2,
                    node={"kind": kind},
                    label=float(kind.mean()),
                )
            )
        kb.data.write_store(tmp_path / "data" / split, graphs)
    command = ["train", str(tmp_path / "data"), "--task", "regression"]
    command += ["--model", model, "--out", str(tmp_path / "out"), "--hidden", "8"]
    command += ["--epochs", "2", "--layers", "1", "--decay", "warmup"]
    command += ["--weights", "float16", "--title", "Rings."]
    assert main(command) == 0, capsys.readouterr().err
    task = kb.models.GraphRegressor.from_preset(tmp_path / "out")
    assert task.backbone.num_layers == 1
    assert "Rings." in (tmp_path / "out" / "README.md").read_text()


def test_a_recipe_trains_again(data, tmp_path, capsys):
    """A model has the recipe of its training, which options of the line replace."""
    command = ["train", str(data), "--out"]
    options = ["--task", "regression", "--hidden", "4", "--epochs", "1", "--seed", "3"]
    options += ["--model", "painn", "--graph", "radius:3", "--references"]
    assert main([*command, str(tmp_path / "one"), *options]) == 0
    recipe = (tmp_path / "one" / "recipe.toml").read_text()
    assert 'model = "painn"' in recipe and "references = true" in recipe
    again = ["--recipe", str(tmp_path / "one")]
    assert main([*command, str(tmp_path / "two"), *again]) == 0
    assert (tmp_path / "two" / "recipe.toml").read_text() == recipe
    one, two = (
        kb.models.GraphRegressor.from_preset(tmp_path / name) for name in ("one", "two")
    )
    graphs = list(kb.data.open_store(data / "test"))
    np.testing.assert_allclose(one.predict(graphs), two.predict(graphs), rtol=1e-5)
    file = tmp_path / "mine.toml"
    for text, message in (
        (recipe.replace("epochs = 1", "epochs = 0"), "--epochs"),
        (recipe + 'plan = "auto"\n', "'plan' in"),
        (recipe + "speed = 1\n", "'speed' in"),
        (recipe.replace("regression", "other"), "to have a task among"),
        ("epochs", "recipe in TOML"),
        (None, "which is not there"),
    ):
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        assert main([*command, str(tmp_path / "three"), "--recipe", str(file)]) != 0
        assert message in " ".join(capsys.readouterr().err.split())
    other = [*command, str(tmp_path / "three"), *again, "--task", "potential"]
    assert main(other) == 2
    assert "a recipe of --task potential" in capsys.readouterr().err
    assert not (tmp_path / "three").exists()


class Killed(BaseException):
    """As a signal that cannot be caught."""


def test_an_interrupted_run_is_whole_or_refused(data, tmp_path, monkeypatch, capsys):
    """It neither saves worse weights for the best, nor fails once it has trained."""

    class Kill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise Killed

    out, work = tmp_path / "out", tmp_path / "out.partial"
    command = ["train", str(data), "--task", "regression", "--model", "schnet"]
    command += ["--out", str(out), "--hidden", "4", "--epochs", "3"]
    with monkeypatch.context() as patch:
        patch.setattr(training_callbacks, "limits", lambda minutes: Kill())
        with pytest.raises(Killed):
            main(command)
    names = ["best.weights.h5", "history.json", "recipe.toml"]
    names += [f"progress/{path.name}" for path in (work / "progress").iterdir()]
    assert len(names) == 5
    for name in names:
        whole = (work / name).read_bytes()
        for damage in (whole[: len(whole) // 2], None):
            (work / name).unlink()
            if damage is not None:
                (work / name).write_bytes(damage)
            if damage is None and name in ("recipe.toml", "progress/progress.json"):
                continue  # a run that has not begun, or saved nothing
            capsys.readouterr()
            assert main(command) == 1, name
            said = " ".join(capsys.readouterr().err.split())
            assert name.rpartition("/")[2] in said and "--restart" in said, said
            assert "Epoch" not in said
        (work / name).write_bytes(whole)
    # A folder of 0.2.0 has the same options in JSON.
    options = tomllib.loads((work / "recipe.toml").read_text())
    graphs = {name: json.loads(text) for name, text in options.pop("graphs").items()}
    old = [options | {"plan": "auto", "seed": 1}, graphs]
    (work / "recipe.toml").unlink()
    (work / "settings.json").write_text(json.dumps(old))
    assert main(command) == 1
    assert "--seed is 0, was 1. Pass" in capsys.readouterr().err
    old[0]["seed"] = 0
    (work / "settings.json").write_text(json.dumps(old))
    with monkeypatch.context() as patch:
        patch.setattr(GraphLoader, "fingerprint", lambda self: "another plan")
        assert main(command) == 1
    said = capsys.readouterr().err
    assert "the backend" in said and "--restart" in said
    # A model of somebody else is not replaced.
    out.mkdir()
    (out / "config.json").write_text("{}")
    assert main(command) == 1
    assert "--overwrite" in capsys.readouterr().err
    shutil.rmtree(out)
    # Killed once the model is saved: the same command ends what is left.
    with monkeypatch.context() as patch:

        def kill(folder):
            raise Killed

        patch.setattr(files, "remove_folder", kill)
        with pytest.raises(Killed):
            main(command)
    assert out.is_dir() and work.is_dir()
    assert main(command) == 0
    assert not work.exists()


def test_errors(data, tmp_path, capsys):
    for text in ("knn", "radius:x", "cube:3", "full:1", "knn:0"):
        with pytest.raises(ValueError, match="Expected .*--graph"):
            graph_layer(text)
    command = ["train", str(data), "--task", "regression", "--model", "mpeu"]
    assert main([*command, "--cutoff", "5", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "--cutoff (for --model schnet or painn). Limit the edges with" in said
    missing = ["train", str(tmp_path / "nothing"), "--task", "regression"]
    assert main([*missing, "--out", str(tmp_path / "out")]) == 1
    assert "Expected" in capsys.readouterr().err


def test_predicts_several_numbers_and_missing_labels(tmp_path, capsys):
    graphs = [kb.Graph(n, [], [], node={"k": [1] * n}) for n in (1, 2, 3)]
    backbone = kb.models.GGNNBackbone({"k": 2}, 4, 1, num_edge_types=1)
    task = kb.models.GraphRegressor(backbone, num_targets=2, normalizer=None)
    task.save_to_preset(tmp_path / "model")
    flat = kb.data.FlatGraphs.from_graphs(graphs)
    labels = np.array([[1, 2], [np.nan, 4], [5, np.nan]], "float32")
    known = kb.data.FlatGraphs.from_columns({**flat.columns(), "label/graph": labels})
    lines = predict.predict_numbers(task, known)
    assert [line["label"] for line in lines] == [[1, 2], [None, 4], [5, None]]
    np.testing.assert_allclose(
        [line["prediction"] for line in lines], task.predict(graphs), 1e-5
    )
    predict.print_predictions(lines, 2, 3)
    said = capsys.readouterr().out
    assert "prediction 1" in said and "label 1" in said and " - " in said
    kb.data.write_store(tmp_path / "store", graphs)
    command = ["predict", str(tmp_path / "model"), str(tmp_path / "store")]
    assert main([*command, "--json", str(tmp_path / "file")]) == 0
    assert "label" not in capsys.readouterr().out
    first = json.loads((tmp_path / "file").read_text().splitlines()[0])
    assert first["label"] is None and len(first["prediction"]) == 2
    for name in "predict", "evaluate":
        given = [name, *command[1:], "--exclude", "tests", "--seed", "0"]
        assert main(given) == 2
        said = capsys.readouterr().err
        assert "Received: --exclude (for node selection models), --seed (" in said
    kb.models.GraphClassifier(backbone, 2).save_to_preset(tmp_path / "classes")
    assert main(["predict", str(tmp_path / "classes"), command[2]]) == 2
    assert "a GraphClassifier. Call its predict(graphs)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "--model painn --option target=u0",
            "that --task selection reads. Received: --model (for --task regression or "
            "potential), --option (for --task regression). Pass the --task that",
        ),
        (
            "--task regression --attention full --plan banded:64 --shuffle-labels "
            "--readout candidate --batch-nodes 7 --dropout .5 --label-smoothing 0",
            "that --task regression --model schnet reads. Received: --batch-nodes (for "
            "--task selection), --label-smoothing (for --task selection), --readout "
            "(for --task selection), --plan (for --task selection), --shuffle-labels "
            "(for --task selection), --dropout (for --model graphormer or gt), "
            "--attention (for --model graphormer or gt).",
        ),
        ("--task regression --model gt --graph full", "--graph (for --model schnet, "),
        (
            "--task regression --path x",
            "--path with the name of a data set. Received: a st",
        ),
        ("", "names the layers []. For labels that are numbers of graphs, pass --task"),
    ],
)
def test_options_that_nothing_reads(data, tmp_path, capsys, given, message):
    command = ["train", str(data), "--out", str(tmp_path / "out"), *given.split()]
    # The last one is wrong about the data, not the options.
    assert main(command) == (2 if given else 1)
    assert message in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


def test_help_shows_the_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for text in (
        "supergraph (default: 49152, 32768, 16384 or 8192, the first",
        "(default: schnet for regression, painn for potential)",
        "batch (default: 32 for regression, 8 for potential)",
    ):
        assert text in said
    assert "default: None" not in said
