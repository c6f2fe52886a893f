import argparse
import json
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.cli import resuming, train_potential, training_callbacks
from keras_bandgnn.cli.main import main
from keras_bandgnn.data import files

pytest.importorskip("ase")
pytest.importorskip("vesin")
import ase.build  # noqa: E402
import ase.io  # noqa: E402
from ase.calculators.emt import EMT  # noqa: E402


def frames(count, seed=0, elements=("Cu", "Cu", "Cu", "Al")):
    """Disturbed cells with the labels of ASE's EMT potential."""
    rng, out = np.random.default_rng(seed), []
    for _ in range(count):
        atoms = ase.build.bulk("Cu", cubic=True)
        atoms.symbols = rng.permutation(elements)
        strain = np.eye(3) + rng.normal(scale=0.02, size=(3, 3))
        atoms.set_cell(atoms.cell @ strain, scale_atoms=True)
        atoms.positions += rng.normal(scale=0.1, size=(4, 3))
        atoms.calc = EMT()
        atoms.get_stress()
        out.append(atoms)
    return out


@pytest.fixture
def data(tmp_path):
    ase.io.write(tmp_path / "run.extxyz", frames(20))
    return tmp_path / "run.extxyz"


def command(data, tmp_path, *more):
    words = ["train", str(data), "--task", "potential", "--out", str(tmp_path / "out")]
    words += ["--hidden", "8", "--layers", "1", "--cutoff", "3.5", "--epochs", "3"]
    return [*words, *map(str, more)]


@pytest.mark.parametrize("model", ["painn", "schnet"])
def test_trains_validates_and_saves(data, tmp_path, model, capsys):
    ase.io.write(tmp_path / "valid.xyz", frames(5, seed=1), format="extxyz")
    options = ["--model", model, "--valid", tmp_path / "valid.xyz"]
    assert main(command(data, tmp_path, *options)) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "frames: 20 train, 5 valid; with stress: 20 train, 5 valid" in said
    epochs = [line for line in said.splitlines() if line.startswith("epoch ")]
    assert len(epochs) == 3
    assert "meV/atom, forces" in epochs[0] and "GPa; rate 0.001" in epochs[0]
    # The table is that of the weights that were saved.
    task = kb.models.ForceRegressor.from_preset(tmp_path / "out")
    assert isinstance(task.backbone, kb.models.PaiNNBackbone) == (model == "painn")
    graphs = kb.data.read_structures(tmp_path / "valid.xyz", "energy", stress=True)
    energies = np.ravel(task.predict(graphs))
    errors = {
        "energy": 1000 * (energies - graphs.label) / 4,
        "forces": 1000 * (np.concatenate(task.predict_forces(graphs)))
        - 1000 * graphs.node["force"],
        "stress": train_potential.GPA
        * (np.stack(task.predict_stress(graphs)) - graphs.context["stress"]),
    }
    table = {
        words[0]: words[1:]
        for words in map(str.split, said.splitlines())
        if words and words[0] in errors
    }
    for name, error in errors.items():
        mae, rmse, _ = table[name]
        assert float(mae.replace(",", "")) == pytest.approx(
            np.abs(error).mean(), rel=1e-2, abs=2e-3
        )
        assert float(rmse.replace(",", "")) == pytest.approx(
            np.sqrt(np.square(error).mean()), rel=1e-2, abs=2e-3
        )
    # Predictions are total energies: the references are those of the elements.
    fitted = task.normalizer.get_config()["references"]
    assert sorted(fitted) == ["13", "29"]
    atoms = frames(1, seed=3)[0]
    want = atoms.get_potential_energy()
    atoms.calc = task.as_calculator()
    assert atoms.get_potential_energy() == pytest.approx(want, abs=4.0)
    assert atoms.get_stress().shape == (6,)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "meV/atom" in card and "bandgnn train" in card and "stresses 1000" in card
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("more", [(), ("--schedule", "1:energy=50", "2:force=0")])
def test_resumes_as_if_it_had_not_stopped(data, tmp_path, capsys, monkeypatch, more):
    options = ["--plateau", 1, "--learning-rate", 0.02, *more]
    assert main(command(data, tmp_path, *options)) == 0
    straight = capsys.readouterr().out
    keep = kb.models.ForceRegressor.from_preset(tmp_path / "out")

    class Killed(BaseException):
        pass

    class Kill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise Killed

    limits = training_callbacks.limits
    monkeypatch.setattr(training_callbacks, "limits", lambda minutes: Kill())
    second = command(data, tmp_path, *options)
    second[second.index(str(tmp_path / "out"))] = str(tmp_path / "again")
    with pytest.raises(Killed):
        main(second)
    assert (tmp_path / "again.partial" / "best.weights.h5").is_file()
    monkeypatch.setattr(training_callbacks, "limits", limits)
    capsys.readouterr()
    assert main(second) == 0
    resumed = capsys.readouterr().out

    def last(said):
        return [line for line in said.splitlines() if line.startswith("epoch 3/3")]

    assert last(resumed) == last(straight)
    task = kb.models.ForceRegressor.from_preset(tmp_path / "again")
    graphs = kb.data.read_structures(data)
    np.testing.assert_allclose(task.predict(graphs), keep.predict(graphs), rtol=1e-5)
    # Another command is another run.
    assert "epoch 1/3" not in resumed


def test_zbl_repulsion_and_a_database(tmp_path, capsys):
    ase.io.write(tmp_path / "run.db", frames(12))
    options = ["--zbl", "--epochs", "1"]
    assert main(command(tmp_path / "run.db", tmp_path, *options)) == 0
    assert "with stress: 11 train, 1 valid" in capsys.readouterr().out
    task = kb.models.ForceRegressor.from_preset(tmp_path / "out")
    assert task.zbl
    assert "ZBL repulsion" in (tmp_path / "out" / "README.md").read_text()
    pair = ase.Atoms("CuAl", [[0, 0, 0], [0.3, 0, 0]], calculator=task.as_calculator())
    assert pair.get_forces()[1, 0] > 1000


def test_without_stresses_and_with_references(tmp_path, capsys):
    bare = frames(12)
    for atoms in bare:
        del atoms.calc.results["stress"]
        atoms.info["REF_energy"] = atoms.get_potential_energy()
        atoms.arrays["REF_forces"] = atoms.get_forces()
        atoms.calc = None
    ase.io.write(tmp_path / "run.xyz", bare, format="extxyz")
    options = ["--energy-key", "REF_energy", "--forces-key", "REF_forces", "--ema", 0]
    options += ["--atom-energies", "Cu=-3.5", "Al=-3.2", "--valid", 0.25]
    assert main(command(tmp_path / "run.xyz", tmp_path, *options)) == 0
    said = capsys.readouterr().out
    assert "frames: 9 train, 3 valid; with stress: 0 train, 0 valid" in said
    assert "GPa" not in said
    task = kb.models.ForceRegressor.from_preset(tmp_path / "out")
    assert task.stress_weight is None
    references = task.normalizer.get_config()["references"]
    assert references == {"13": [pytest.approx(-3.2)], "29": [pytest.approx(-3.5)]}


def epochs_of(losses, starts, split):
    """Best epochs, rates and ends of a run that is interrupted at an epoch."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    best, rates, ends, rows = [], [], [], []
    for first, last in ((0, split), (split, len(losses))):
        watch = {"monitor": "val_loss", "mode": "min"}
        checkpoint = resuming.Checkpoint(None, filepath="w.weights.h5", **watch)
        model.save_weights = lambda *args, **options: best.append(len(rows))
        others = [
            keras.callbacks.ReduceLROnPlateau(
                factor=0.5, patience=2, min_delta=0.0, **watch
            ),
            keras.callbacks.EarlyStopping(
                patience=2, start_from_epoch=max(starts, default=0), **watch
            ),
        ]
        metrics = resuming.Metrics(
            Path("h.json"), rows, checkpoint, others, starts, Path("trained")
        )
        metrics.rate = 0.5
        followers = [checkpoint, *others]
        callbacks = keras.callbacks.CallbackList([metrics, *followers], model=model)
        model.stop_training = False
        callbacks.on_train_begin()
        for epoch in range(first, last):
            callbacks.on_epoch_begin(epoch)
            rates.append(round(float(model.optimizer.learning_rate), 6))
            callbacks.on_epoch_end(epoch, {"val_loss": losses[epoch]})
            rows.append({"val_loss": losses[epoch]})
            ends.append(model.stop_training)
    return best, rates, ends


@pytest.mark.parametrize("split", [1, 3, 5, 7])
def test_rates_fall_and_training_ends_where_progress_does(tmp_path, monkeypatch, split):
    monkeypatch.chdir(tmp_path)
    losses = [5, 4, 4.5, 4.2, 4.1, 3, 3.5, 3.6, 3.7]
    best, rates, ends = epochs_of(losses, [], split)
    assert best == [0, 1, 5]
    assert rates == [0.5] * 4 + [0.25] * 4 + [0.125]
    assert ends[3] and ends[7] and not any(ends[:3])


@pytest.mark.parametrize("split", [1, 3, 4, 5, 6])
def test_losses_of_other_weights_are_not_compared(tmp_path, monkeypatch, split):
    monkeypatch.chdir(tmp_path)
    losses = [float("nan"), 4, 4.5, 4.2, 90, 80, 85, 86]
    best, rates, ends = epochs_of(losses, [4], split)
    assert best == [1, 4, 5]
    assert rates == [0.5] * 4 + [0.25] * 4
    # Training does not end before the last weights have had their epochs.
    assert ends == [False] * 7 + [True]


def test_schedule_of_weights(data, tmp_path, capsys, monkeypatch):
    set_weights, seen = kb.models.ForceRegressor.set_loss_weights, []
    monkeypatch.setattr(
        kb.models.ForceRegressor,
        "set_loss_weights",
        lambda task, **weights: seen.append(weights) or set_weights(task, **weights),
    )
    options = ["--schedule", "1:energy=50,force=5", "2:stress=7", "--force-weight", 20]
    assert main(command(data, tmp_path, *options)) == 0, capsys.readouterr().err
    assert seen == [
        {"energy": 1.0, "force": 20.0, "stress": 1000.0},
        {"energy": 50.0, "force": 5.0, "stress": 1000.0},
        {"energy": 50.0, "force": 5.0, "stress": 7.0},
    ]
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "after 1 epochs energy 50, force 5; after 2 epochs stress 7" in card

    def error(*wrong):
        try:
            assert main([*command(data, tmp_path, "--schedule", *wrong)]) == 2
        except SystemExit as left:
            assert left.code == 2
        return " ".join(capsys.readouterr().err.split())

    assert "below --epochs 3" in error("3:energy=2")
    assert "ascending" in error("2:energy=2", "1:energy=3")
    assert "at least 0" in error("1:energy=-1")
    for wrong in ("1:speed=2", "1:", "1:energy", "1:energy=1,energy=2"):
        assert "EPOCH:NAME=WEIGHT" in error(wrong), wrong
    assert "--schedule" in error("0:energy=1") and "--schedule" in error("energy=1")


@pytest.mark.parametrize("model", ["painn", "schnet"])
def test_cutoffs_of_elements(data, tmp_path, capsys, model):
    options = ["--element-cutoffs", "Cu=3", "--epochs", 1, "--model", model]
    assert main(command(data, tmp_path, *options)) == 0, capsys.readouterr().err
    task = kb.models.ForceRegressor.from_preset(tmp_path / "out")
    assert task.backbone.cutoff.element_cutoffs == {29: 3.0}
    assert task.preprocessor.graph_layers[-1].element_cutoffs == {29: 3.0}
    assert "cutoff 3.5 Angstrom, of elements: Cu 3" in (
        tmp_path / "out" / "README.md"
    ).read_text("utf-8")
    for wrong, word in (("Cu=4", "at most --cutoff 3.5"), ("Xx=1", "symbols of ele")):
        again = command(data, tmp_path, "--element-cutoffs", wrong, "--overwrite")
        assert main(again) == 2
        assert word in " ".join(capsys.readouterr().err.split())


def test_errors_name_the_file_and_the_frame(data, tmp_path, capsys):
    def error(*options, file=data, code=1):
        assert main(command(file, tmp_path, *options)) == code
        return " ".join(capsys.readouterr().err.split())

    ase.io.write(tmp_path / "gold.extxyz", [*frames(2), *frames(1, 2, ["Au"] * 4)])
    said = error("--valid", tmp_path / "gold.extxyz")
    assert "[13, 29]. Received: 79 in gold.extxyz, frame 2" in said
    bare = frames(2)
    bare[1].calc = None
    ase.io.write(tmp_path / "bare.extxyz", bare)
    assert "bare.extxyz, frame 1" in error(file=tmp_path / "bare.extxyz")
    for atoms in bare:
        atoms.info["energy"], atoms.calc = -1.5, None
    ase.io.write(tmp_path / "none.xyz", bare, format="extxyz")
    said = error(file=tmp_path / "none.xyz")
    assert "Expected forces in none.xyz, frame 0" in said and "--forces-key" in said
    assert "to validate. Received: 1 in" in error(file=first_of(data, tmp_path))
    assert "symbols of elements" in error("--atom-energies", "Xx=1", code=2)
    assert "painn or schnet" in error("--model", "mpeu", code=2)
    said = error("--references", "--dropout", "0.5", code=2)
    assert "--dropout (for --task selection or regression), --references (for" in said
    said = main(
        ["train", str(data), "--task", "regression", "--out", "x", "--ema", "0"]
    )
    assert said == 2
    assert "--ema (for --task potential)" in capsys.readouterr().err


def first_of(data, tmp_path):
    ase.io.write(tmp_path / "one.extxyz", ase.io.read(data))
    return tmp_path / "one.extxyz"


class Killed(BaseException):
    pass


def tables(said):
    """The rows of each table, by its title."""
    found, title = {}, None
    for line in said.splitlines():
        if line.startswith("validation"):
            title = line.strip()
        elif title and line.split()[:1] and line.split()[0] in UNITS:
            found.setdefault(title, {})[line.split()[0]] = line.split()[1:]
    return found


UNITS = ("energy", "forces", "stress")


# Between two members, and within the second.
@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.release
def test_an_ensemble_resumes_where_it_was_killed(
    data, tmp_path, capsys, monkeypatch, epoch
):
    class Kill(keras.callbacks.Callback):
        def on_epoch_begin(self, number, logs=None):
            if number == epoch:
                raise Killed

    limits, started = training_callbacks.limits, []

    def kill_second(minutes):
        started.append(minutes)
        return Kill() if len(started) == 2 else limits(minutes)

    options = ["--members", 3, "--seed", 5]
    assert main(command(data, tmp_path, *options)) == 0, capsys.readouterr().err
    straight = capsys.readouterr().out
    second = command(data, tmp_path, *options)
    second[second.index(str(tmp_path / "out"))] = str(tmp_path / "again")
    with monkeypatch.context() as patch:
        patch.setattr(training_callbacks, "limits", kill_second)
        with pytest.raises(Killed):
            main(second)
    work = tmp_path / "again.partial"
    assert (work / "member_0" / "preset").is_dir()
    assert not (work / "member_1" / "preset").exists()
    assert not (tmp_path / "again").exists()
    before = (work / "member_0" / "history.json").stat().st_mtime_ns
    capsys.readouterr()
    # Another number of members is another run.
    assert main([*second, "--members", "4"]) == 1
    assert "--members is 4, was 3" in " ".join(capsys.readouterr().err.split())
    kept, own = [], files.remove_folder

    def remove(folder):
        kept.append((folder / "member_0" / "history.json").stat().st_mtime_ns)
        return own(folder)

    monkeypatch.setattr(files, "remove_folder", remove)
    assert main(second) == 0
    resumed = capsys.readouterr().out
    assert kept == [before]
    assert tables(resumed) == tables(straight) and len(tables(straight)) == 4
    epochs = [line for line in resumed.splitlines() if line.startswith("epoch ")]
    assert [line.split(":")[0] for line in epochs] == [
        *(f"epoch {number}/3" for number in range(epoch + 1, 4)),
        *(f"epoch {number}/3" for number in range(1, 4)),
    ]
    assert not work.exists()
    one, other = (
        kb.models.Ensemble.from_preset(tmp_path / n) for n in ("out", "again")
    )
    graphs = kb.data.read_structures(data)
    for first, last in zip(
        one.predict_spread(graphs), other.predict_spread(graphs), strict=True
    ):
        np.testing.assert_allclose(
            np.ravel(first), np.ravel(last), rtol=1e-4, atol=1e-5
        )
    assert np.max(one.predict_spread(graphs)[1]) > 1e-4


@pytest.mark.release
def test_the_table_of_an_ensemble(data, tmp_path, capsys):
    ase.io.write(tmp_path / "valid.xyz", frames(6, seed=1), format="extxyz")
    options = ["--members", 2, "--valid", tmp_path / "valid.xyz", "--minutes", 10]
    assert main(command(data, tmp_path, *options)) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    found = tables(said)
    assert list(found) == [
        "validation, member 1 of 2, seed 0",
        "validation, member 2 of 2, seed 1",
        "validation, mean of 2 members",
    ]
    ensemble = kb.models.Ensemble.from_preset(tmp_path / "out")
    graphs = kb.data.read_structures(tmp_path / "valid.xyz", "energy", stress=True)
    want = {
        "energy": (
            1000,
            graphs.label / 4,
            *(np.ravel(each) / 4 for each in ensemble.predict_spread(graphs)),
        ),
        "forces": (1000, graphs.node["force"], *ensemble.predict_forces_spread(graphs)),
        "stress": (
            train_potential.GPA,
            graphs.context["stress"],
            *ensemble.predict_stress_spread(graphs),
        ),
    }
    for name, (factor, *values) in want.items():
        labels, mean, std = (
            np.ravel(np.concatenate(list(each)))
            if isinstance(each, list)
            else np.ravel(each)
            for each in values
        )
        mae, rmse, spread, rank, scale, _ = found["validation, mean of 2 members"][name]
        z = np.sqrt(np.mean(((labels - mean) / std) ** 2))
        for text, value in (
            (mae, factor * np.abs(labels - mean).mean()),
            (rmse, factor * np.sqrt(np.mean((labels - mean) ** 2))),
            (spread, factor * std.mean()),
            (scale, z),
        ):
            text = float(text.replace(",", ""))
            assert text == pytest.approx(value, rel=1e-2, abs=2e-3)
        assert -1 <= float(rank) <= 1
    card = (tmp_path / "out" / "README.md").read_text()
    assert "2 members" in card and "rank correlation" in card
    assert "Ensemble.from_preset" in card and "0 to 1, backend" in card
    # An ensemble is replaced by an ensemble.
    assert main(command(data, tmp_path, "--members", 2)) == 1
    assert "an existing model" in " ".join(capsys.readouterr().err.split())
    assert main(command(data, tmp_path, "--overwrite")) == 1
    assert "an empty folder or a preset" in " ".join(capsys.readouterr().err.split())
    # A member is a model of its own, which reads more than structures.
    assert main(["predict", str(tmp_path / "out"), "qm9"]) == 2
    assert "such as member_0" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ValueError, match="an ensemble. Name the folder of a member"):
        kb.models.Task.from_preset(tmp_path / "out")


def test_options_without_effect_are_refused(data, tmp_path, capsys):
    def error(*options, code=1):
        assert main(command(data, tmp_path, *options)) == code
        return " ".join(capsys.readouterr().err.split())

    assert "with the stress 'foo'" in error("--stress-key", "foo")
    assert "one value for each element" in error(
        "--element-cutoffs", "Cu=3", "Cu=2", code=2
    )
    assert "elements of the data, [13, 29]" in error("--element-cutoffs", "H=3", code=2)
    said = error("--energy-key", "E")
    assert "run.extxyz, frame 0" in said and "--energy-key" in said
    assert "Choose one" not in said
    molecules = frames(6)
    for atoms in molecules:
        atoms.calc.results.pop("stress")
    ase.io.write(tmp_path / "free.extxyz", molecules)
    options = ["--stress-weight", "10"]
    assert main(command(tmp_path / "free.extxyz", tmp_path, *options)) == 2
    assert "no --stress-weight" in " ".join(capsys.readouterr().err.split())


def test_averages_are_short_in_short_runs():
    options = argparse.Namespace(ema=None, epochs=5, batch_size=8)
    found = [train_potential.averaging(options, n) for n in (8, 80, 800, 80_000)]
    assert found == [0.0, 0.6, 0.96, 0.99]
    options.ema = 0.5
    assert train_potential.averaging(options, 8) == 0.5


@pytest.mark.parametrize("members", [1, 2])
def test_evaluates_and_predicts_files_of_structures(data, tmp_path, capsys, members):
    options = ["--members", members, "--epochs", 1, "--valid", data]
    assert main(command(data, tmp_path, *options)) == 0
    trained = tables(capsys.readouterr().out)
    out = str(tmp_path / "out")
    assert main(["evaluate", out, str(data)]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "frames: 20 test; with stress: 20 test" in said
    found = tables(said.replace("test", "validation"))
    # The validation frames of the training were the same.
    whole = "validation, mean of 2 members" if members > 1 else "validation"
    assert found[whole] == trained[whole]

    assert main(["predict", out, str(data), "--top", "3"]) == 0
    said = capsys.readouterr().out
    assert "first 3 of 20 frames" in said and "largest force" in said
    assert ("spread" in said) == (members > 1)
    bare = ase.io.read(data, ":4")
    for atoms in bare:
        atoms.calc = None
    bare[3].pbc = False
    ase.io.write(tmp_path / "bare.xyz", bare, format="extxyz")
    capsys.readouterr()
    code = main(["predict", out, str(data), str(tmp_path / "bare.xyz"), "--json", "-"])
    assert code == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["frame"] for line in lines] == [*range(20), *range(4)]
    assert lines[20]["file"] == "bare.xyz" and lines[20]["atoms"] == 4
    model = kb.models.Ensemble if members > 1 else kb.models.ForceRegressor
    task = model.from_preset(out)
    graphs = kb.data.read_structures(data)
    np.testing.assert_allclose(
        np.ravel([line["prediction"] for line in lines[:20]]),
        np.ravel(task.predict(graphs)),
        rtol=1e-5,
    )
    for line, force in zip(lines, task.predict_forces(graphs), strict=False):
        np.testing.assert_allclose(line["forces"], force, rtol=1e-3, atol=1e-4)
    assert np.shape(lines[0]["stress"]) == (6,)
    assert ("std" in lines[0]) == (members > 1) == ("forces_std" in lines[0])

    # Frames without labels cannot be evaluated; options of other data are refused.
    assert main(["evaluate", out, str(tmp_path / "bare.xyz")]) == 1
    assert "bare.xyz, frame 0" in capsys.readouterr().err
    assert main(["evaluate", out, str(data), "--split", "test"]) == 2
    assert "--split (for the name of a data set)" in capsys.readouterr().err
    assert main(["evaluate", out, str(tmp_path / "none.xyz")]) == 1
