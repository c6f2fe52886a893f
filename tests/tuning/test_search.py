import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import keras_bandgnn as kb

keras_tuner = pytest.importorskip("keras_tuner")
from keras_bandgnn.data.files import FolderLock  # noqa: E402

# A hypermodel that trains nothing: its score follows from the values.
STUB = """
import json, os, sys, time
import keras
import keras_bandgnn as kb
from keras_bandgnn.tuning import make_tuner, trial_table
from keras_bandgnn.tuning.failures import FailedTrialError, failed_trials
from keras_bandgnn.tuning.hypermodel import GraphHyperModel

GRAPHS = [kb.Graph(1, [], [], node={"k": [0]}, label=i % 2) for i in range(2)]

class Stub(GraphHyperModel):
    log = pause = None
    def space(self, hp):
        return {"x": hp.Choice("x", [0.1, 0.3, 0.7]), "y": hp.Float("y", 0.0, 1.0)}
    def build(self, hp):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model
    def fit(self, hp, model, graphs, **options):
        values = self.space(hp)
        if self.log:
            with open(self.log, "a") as file:
                print(json.dumps([os.getpid(), values]), file=file)
        while self.pause and os.path.exists(self.pause):
            time.sleep(0.1)
        with failed_trials():
            if values["y"] > 0.8:
                raise ValueError("y is too large")
        return {"val_accuracy": values["x"] * values["y"], "seconds": 1.0}

def make(folder, trials=6, tuner="random", **options):
    hypermodel = Stub(GRAPHS, epochs=options.pop("epochs", None))
    return make_tuner(hypermodel, folder, tuner, trials, **options)
"""
MAIN = (
    STUB
    + """
from keras_bandgnn.tuning.search import is_worker
folder = sys.argv[1]
tuner = make(folder + "/search")
tuner.hypermodel.log, tuner.hypermodel.pause = folder + "/log", folder + "/pause"
tuner.search(GRAPHS, verbose=0)
print(json.dumps(trial_table(tuner)) if not is_worker() else "")
"""
)


@pytest.fixture(scope="module")
def stub():
    namespace = {"__name__": "stub"}
    exec(STUB, namespace)
    return namespace


def finished(rows):
    return {row["trial"]: (row["status"], row["score"], row["values"]) for row in rows}


def run_to_end(stub, folder, **options):
    tuner = stub["make"](folder, **options)
    tuner.search(stub["GRAPHS"], verbose=0)
    return kb.tuning.trial_table(tuner)


def test_finds_the_best_and_keeps_failures(stub, tmp_path):
    tuner = stub["make"](tmp_path / "s", trials=12, seed=3)
    seen = []
    tuner.oracle.ended = lambda trial: seen.append(trial.trial_id)
    tuner.search(stub["GRAPHS"], verbose=0)
    rows = kb.tuning.trial_table(tuner)
    assert len(rows) == 12 and sorted(seen) == sorted(row["trial"] for row in rows)
    done = [row for row in rows if row["status"] == "completed"]
    failed = [row for row in rows if row["status"] == "failed"]
    assert [row["score"] for row in done] == sorted(
        (row["values"]["x"] * row["values"]["y"] for row in done), reverse=True
    )
    assert {row["reason"] for row in failed} == {"does not fit: y is too large"}
    assert all(row["values"]["y"] > 0.8 for row in failed)
    # What is there is not run again, and more trials may be asked for.
    tuner = stub["make"](tmp_path / "s", trials=13, seed=3)
    assert tuner.remaining_trials == 1
    tuner.search(stub["GRAPHS"], verbose=0)
    again = finished(kb.tuning.trial_table(tuner))
    assert len(again) == 13 and finished(rows).items() <= again.items()
    assert stub["make"](tmp_path / "s", overwrite=True).remaining_trials == 6


def test_the_search_of_another_hypermodel_is_refused(stub, tmp_path):
    folder = tmp_path / "s"
    rows = run_to_end(stub, folder, trials=2)
    with pytest.raises(ValueError, match=r"same hypermodel.*epochs=3, was 10\. Choose"):
        stub["make"](folder, epochs=3)

    class Other(stub["Stub"]):
        def fixed(self):
            return super().fixed() | {"widths": range(2)}

    found = r"class='Other', was 'Stub', widths=\[0, 1\], was None\. Choose"
    with pytest.raises(ValueError, match=found):
        kb.tuning.make_tuner(Other(stub["GRAPHS"]), folder)
    # What was refused has changed nothing.
    assert finished(run_to_end(stub, folder, trials=2)) == finished(rows)
    other = kb.tuning.make_tuner(Other(stub["GRAPHS"]), folder, overwrite=True)
    assert other.remaining_trials == 40
    # Nothing was tried yet, so nothing would be taken over.
    stub["make"](folder)
    run_to_end(stub, folder, trials=1)
    with pytest.raises(ValueError, match="class='Other'"):
        kb.tuning.make_tuner(Other(stub["GRAPHS"]), folder)
    # Folders from before this was kept.
    (folder / "hypermodel.json").unlink()
    assert stub["make"](folder, trials=2, epochs=3).remaining_trials == 1


def test_fixed_facts_are_those_of_each_hypermodel():
    node = {"atomic_number": [8, 1], "position": [[0.0, 0, 0], [0.97, 0, 0]]}
    atoms = [kb.Graph(2, [], [], node=node, label=float(n)) for n in range(4)]
    edges = [kb.preprocessing.RadiusGraph(3.0)]
    regressor = kb.tuning.GraphRegressorHyperModel(atoms, edges=edges, hidden_dim=8)
    fixed = regressor.fixed()
    assert fixed["class"] == "GraphRegressorHyperModel" and fixed["epochs"] == 10
    assert fixed["metric"] == "val_rmse" and fixed["hidden_dim"] == 8
    assert "RadiusGraph(cutoff=3.0" in fixed["edges"][0]
    kinds = [kb.Graph(2, [0], [1], node={"k": [0, 1]}, label=i % 2) for i in range(4)]
    fixed = kb.tuning.GraphTransformerHyperModel(kinds, attention=["full"]).fixed()
    assert fixed["attention"] == ("full",) and fixed["num_heads"] == 8
    fixed = kb.tuning.GGNNHyperModel(kinds, batch_size=range(8, 10)).fixed()
    assert fixed["space"] == "paper" and fixed["batch_size"] == [8, 9]


def test_all_trials_may_fail(stub, tmp_path):
    tuner = stub["make"](tmp_path / "s", trials=5)
    tuner.hypermodel.space = lambda hp: {
        "x": 0.1,
        "y": 0.9 + 0 * hp.Float("z", 0.0, 1.0),
    }
    tuner.search(stub["GRAPHS"], verbose=0)
    assert [row["status"] for row in kb.tuning.trial_table(tuner)] == ["failed"] * 5


def test_hyperband_and_its_objective(stub, tmp_path):
    rows = run_to_end(stub, tmp_path / "h", tuner="hyperband", epochs=3)
    assert len(rows) >= 5
    timed = stub["Stub"](stub["GRAPHS"], objective="accuracy-in-time", seconds=1.0)
    with pytest.raises(ValueError, match="hyperband"):
        kb.tuning.make_tuner(timed, tmp_path / "t", "hyperband")
    with pytest.raises(ValueError, match="`tuner`"):
        kb.tuning.make_tuner(timed, tmp_path / "t", "grid")


def test_bayesian_search_fits_its_scores(stub, tmp_path):
    pytest.importorskip("sklearn")
    rows = run_to_end(stub, tmp_path / "b", tuner="bayesian", trials=8)
    assert len(rows) == 8 and any(row["status"] == "completed" for row in rows)
    assert finished(rows) == finished(
        run_to_end(stub, tmp_path / "again", tuner="bayesian", trials=8)
    )


def torn(folder, trial, oracle):
    """Writes files of a search as a kill at another moment leaves them."""
    state = json.loads((folder / "oracle.json").read_text())
    state.update(oracle)
    (folder / "oracle.json").write_text(json.dumps(state))
    path = folder / f"trial_{trial}" / "trial.json"
    state = json.loads(path.read_text())
    state["status"] = "RUNNING"
    path.write_text(json.dumps(state))


def test_a_kill_during_a_trial_repeats_it(stub, tmp_path):
    whole = finished(run_to_end(stub, tmp_path / "a", trials=4))
    folder = tmp_path / "b"
    run_to_end(stub, folder, trials=3)
    torn(folder, "2", {"ongoing_trials": {"tuner0": "2"}, "end_order": ["0", "1"]})
    tuner = stub["make"](folder, trials=4)
    assert tuner.remaining_trials == 1
    tuner.search(stub["GRAPHS"], verbose=0)
    assert finished(kb.tuning.trial_table(tuner)) == whole


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_kills_of_a_search_are_no_fault_of_its_trial(stub, tmp_path, error):
    for _ in range(3):
        tuner = stub["make"](tmp_path / "s", trials=2)

        def end(*args, **options):
            raise error

        tuner.hypermodel.fit = end
        with pytest.raises(error):
            tuner.search(stub["GRAPHS"], verbose=0)
    rows = run_to_end(stub, tmp_path / "s", trials=2)
    assert finished(rows) == finished(run_to_end(stub, tmp_path / "t", trials=2))


def test_a_full_disk_ends_the_search_not_the_trial(stub, tmp_path):
    tuner = stub["make"](tmp_path / "s", trials=2)

    def full(*args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    tuner.hypermodel.fit = full
    with pytest.raises(OSError, match="No space left"):
        tuner.search(stub["GRAPHS"], verbose=0)
    assert run_to_end(stub, tmp_path / "s", trials=2)[0]["trial"] in "01"


def test_one_search_at_a_time_in_a_folder(stub, tmp_path):
    tuner = stub["make"](tmp_path / "s", trials=2)
    with FolderLock(tmp_path / "s"):
        with pytest.raises(RuntimeError, match="one job at a time"):
            tuner.search(stub["GRAPHS"], verbose=0)
        with pytest.raises(RuntimeError, match="one job at a time"):
            stub["make"](tmp_path / "s", overwrite=True)


# === Processes ===


def environment():
    root = str(Path(kb.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])}


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def lines(path):
    return (
        [json.loads(line) for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )


@pytest.mark.release
def test_killed_and_resumed(tmp_path):
    script, log = tmp_path / "main.py", tmp_path / "log"
    script.write_text(MAIN)
    (tmp_path / "pause").touch()
    command = [sys.executable, str(script), str(tmp_path)]
    first = subprocess.Popen(command, env=environment())
    wait_for(lambda: lines(log))
    first.send_signal(signal.SIGKILL)
    first.wait()
    (tmp_path / "pause").unlink()
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=True
    )
    rows = json.loads(done.stdout.splitlines()[-1])
    assert len(rows) == 6
    drawn = [values for _, values in lines(log)]
    # The trial that was under way came first again, with its values.
    assert len(drawn) == 7 and drawn[0] == drawn[1]


def test_a_chief_and_two_workers(stub, tmp_path):
    """keras-tuner's distributed mode, which reports what one process does."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = str(server.getsockname()[1])
    (tmp_path / "main.py").write_text(MAIN)
    # A search that one process began.
    first = run_to_end(stub, tmp_path / "search", trials=1)
    command = [sys.executable, str(tmp_path / "main.py"), str(tmp_path)]
    shared = {"KERASTUNER_ORACLE_IP": "127.0.0.1", "KERASTUNER_ORACLE_PORT": port}
    names = ("chief", "worker0", "worker1")
    processes = [
        subprocess.Popen(
            command, env=environment() | shared | {"KERASTUNER_TUNER_ID": name}
        )
        for name in names
    ]
    try:
        for process in processes[1:]:
            assert process.wait(300) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    rows = kb.tuning.trial_table(stub["make"](tmp_path / "search"))
    expected = run_to_end(stub, tmp_path / "serial")
    # The same values, exactly, and the same reasons of failures.
    assert {r["trial"]: (r["values"], r["reason"]) for r in rows} == {
        r["trial"]: (r["values"], r["reason"]) for r in expected
    }
    assert any(row["reason"] for row in rows)
    assert finished(first).items() <= finished(rows).items()


@pytest.mark.release
def test_without_keras_tuner(tmp_path):
    (tmp_path / "keras_tuner.py").write_text("raise ImportError('absent')")
    code = (
        "import keras_bandgnn as kb, keras_bandgnn.tuning\n"
        "try:\n    kb.tuning.GGNNHyperModel\n"
        "except ImportError as error:\n    print(error)"
    )
    paths = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "keras-bandgnn[tuner]" in done.stdout
