"""Readers of stores, presets, packings, searches, progress and settings."""

import argparse
import dataclasses
import functools
import hashlib
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from keras_bandgnn.data import from_sets, open_store
from keras_bandgnn.data.store_files import DESCRIPTION
from keras_bandgnn.data.store_writer import PROGRESS, StoreWriter, write_store
from keras_bandgnn.graph import Graph
from keras_bandgnn.saving import preset_paths
from tests.fuzz import invariants
from tests.fuzz.readers import Files, Reader, contents
from tests.planning import machines


def graphs(count: int = 5, labels: bool = True) -> list[Graph]:
    """Small graphs with everything that a store can hold."""
    rng = np.random.default_rng(0)
    out = []
    for number in range(count):
        n = int(rng.integers(3, 7))
        more = {"label": number % 2, "slot": 0} if labels else {}
        out.append(
            Graph(
                n,
                *rng.integers(0, n, (2, 2 * n)),
                edge_type=rng.integers(0, 2, 2 * n),
                node={"kind": rng.integers(0, 4, n)},
                edge={"length": rng.random((2 * n, 2), np.float32)},
                candidates=[0, 2],
                info={"number": number},
                **more,
            )
        )
    return out


def _in_folder(make: Callable[[Path], object], name: str = "") -> Files:
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        return contents(Path(folder) / name)


# Stores -------------------------------------------------------------------------------


def store() -> Files:
    """A store of three shards."""

    def make(folder):
        write_store(folder / "a", graphs(), shard_size=2, metadata={"x": [1]})

    return _in_folder(make, "a")


def store_of_sets() -> Files:
    """A store of graphs with node sets and times, of two shards."""
    rng = np.random.default_rng(0)
    made = [
        from_sets(
            {"a": {"x": rng.normal(size=(n, 2)), "k": np.arange(n)}, "b.c": 2},
            {
                ("a", "to", "b.c"): {
                    "edge_index": rng.integers(0, [[n], [2]], (2, 5)),
                    "time": 2**40 + np.arange(5),
                }
            },
            label={"a": np.arange(n) % 2},
        )
        for n in (1, 3, 4)
    ]

    def make(folder):
        write_store(folder / "a", made, shard_size=2)

    return _in_folder(make, "a")


def _read_store(folder: Path):
    with open_store(folder) as found:
        everything = found.take(range(len(found)))
        sizes = [found.num_nodes, found.num_edges]
        return everything, found[-1].num_nodes if len(found) else 0, sizes, [*found]


def _check_store(found) -> str | None:
    everything, _, (num_nodes, num_edges), single = found
    if not np.array_equal(num_nodes, everything.num_nodes):
        return "sizes.arrow tells other numbers of nodes than the shards"
    if not np.array_equal(num_edges, everything.num_edges):
        return "sizes.arrow tells other numbers of edges than the shards"
    if len(single) != len(everything):
        return "iterating gives another number of graphs"
    return invariants.flat_graphs(everything)


def repair_store(files: Files) -> Files:
    """Sizes and checksums in `store.json` or the progress file become right."""
    files = dict(files)
    for name, text in list(files.items()):
        own = name.rpartition("/")[2] in (DESCRIPTION, PROGRESS)
        if not own or not isinstance(text, bytes):
            continue
        folder = name.rpartition("/")[0]
        lines = files[name].split(b"\n") if name.endswith("l") else [files[name]]
        for at, line in enumerate(lines):
            try:
                tree = json.loads(line)
            except (ValueError, RecursionError):
                continue
            units = tree.get("units", [tree]) if isinstance(tree, dict) else []
            for unit in units if isinstance(units, list) else []:
                if not isinstance(unit, dict) or "sha256" not in unit:
                    continue
                content = files.get(f"{folder}/{unit.get('file')}".lstrip("/"))
                if isinstance(content, bytes):
                    unit["bytes"] = len(content)
                    unit["sha256"] = hashlib.sha256(content).hexdigest()
            lines[at] = json.dumps(tree).encode()
        files[name] = b"\n".join(lines)
    return files


def unfinished() -> Files:
    """A store that is half written."""

    def make(folder):
        with StoreWriter(folder / "a", fingerprint={"files": 2}) as writer:
            writer.add(graphs()[:2])
            writer.add(graphs()[2:])

    return _in_folder(make)


def _resume(folder: Path):
    with StoreWriter(folder / "a", fingerprint={"files": 2}) as writer:
        done = writer.done
        writer.add(graphs()[:1])
        with writer.finish() as found:
            return found.take(range(len(found))), done


def _check_resumed(found) -> str | None:
    return invariants.flat_graphs(found[0])


# Presets ------------------------------------------------------------------------------


def _regressor():
    import keras_bandgnn as kb

    random.seed(0)
    backbone = kb.models.SchNetBackbone(
        [1, 6, 8], hidden_dim=4, num_steps=1, num_gaussians=5
    )
    layers = [kb.preprocessing.RadiusGraph(3.0)]
    preprocessor = kb.preprocessing.GraphPreprocessor(layers)
    return kb.models.GraphRegressor(backbone, preprocessor=preprocessor)


def _selector():
    import keras_bandgnn as kb

    random.seed(0)
    backbone = kb.models.GGNNBackbone({"kind": 4}, 4, 1, num_edge_types=2)
    return kb.models.NodeSelector(backbone)


def preset(make_task: Callable, weights: str = "float32") -> Files:
    """A preset."""
    return _in_folder(lambda f: make_task().save_to_preset(f / "p", weights), "p")


def _read_preset(folder: Path, load_weights: bool = True):
    from keras_bandgnn.models import Task

    return Task.from_preset(folder, load_weights=load_weights)


def _check_task(task) -> str | None:
    if task.backbone.hidden_dim < 1 or task.backbone.depth < 1:
        return "a model without width or depth"
    return invariants.finite(weight.numpy() for weight in task.weights)


def repair_preset(files: Files) -> Files:
    """Checksums of weights in `metadata.json` become right."""
    return _repaired_sums(files, preset_paths.METADATA)


def _repaired_sums(files: Files, name: str) -> Files:
    content = files.get(name)
    if not isinstance(content, bytes):
        return files
    try:
        tree = json.loads(content)
        for file in tree["sha256"]:
            tree["sha256"][file] = hashlib.sha256(files[file]).hexdigest()
    except (ValueError, TypeError, KeyError, RecursionError):
        return files
    return {**files, name: json.dumps(tree).encode()}


def ensemble() -> Files:
    """An ensemble of two regressors."""
    import keras_bandgnn as kb

    def make(folder):
        members = [_regressor(), _regressor()]
        kb.models.Ensemble(members).save_to_preset(folder / "e")

    return _in_folder(make, "e")


def _read_ensemble(folder: Path):
    from keras_bandgnn.models import Ensemble

    return Ensemble.from_preset(folder)


def _check_ensemble(found) -> str | None:
    if len(found.members) < 2:
        return "an ensemble of one"
    problems = (_check_task(member) for member in found.members)
    return next(filter(None, problems), None)


def laplace() -> Files:
    """A regressor with the posterior of its last layer."""
    import keras_bandgnn as kb

    def make(folder):
        task = kb.models.GraphRegressor(kb.models.GCNBackbone({"kind": 4}, 4))
        numbers = [
            kb.Graph(n, [0], [n - 1], node={"kind": [1] * n}, label=float(n))
            for n in (1, 2, 3)
        ]
        task.adapt(task.loader(numbers))
        kb.models.LastLayerLaplace(task).fit(numbers).save_to_preset(folder / "l")

    return _in_folder(make, "l")


def _read_laplace(folder: Path):
    from keras_bandgnn.models import LastLayerLaplace

    return LastLayerLaplace.from_preset(folder)


def _check_laplace(found) -> str | None:
    arrays = found.covariance, found.noise_std, found.factor
    return _check_task(found.task) or invariants.finite(arrays)


# Exported models ----------------------------------------------------------------------


def packing() -> Files:
    """`packing.json` alone."""
    import keras_bandgnn as kb

    def make(folder):
        packer = kb.serving.GraphPacker.of_task(_selector(), graphs(labels=False))
        packer.save(folder, format="torch")

    return _in_folder(make)


def _read_packing(folder: Path):
    import keras_bandgnn as kb

    packer = kb.serving.GraphPacker.load(folder)
    try:
        return packer, list(packer.pack(graphs(labels=False)))
    except ValueError:  # of graphs that do not fit another signature
        return packer, []


def _check_packing(found) -> str | None:
    for arrays in found[1]:
        wrong = invariants.finite(arrays.values())
        if wrong:
            return wrong
    return None


# Training and searches ----------------------------------------------------------------


def _progress_task():
    import keras

    import keras_bandgnn as kb

    task = _selector()
    task.preprocessor = kb.preprocessing.GraphPreprocessor(
        [], kb.preprocessing.DynamicBatcher(1)
    )
    task.compile(keras.optimizers.SGD(0.01), run_eagerly=True)
    return task


def progress() -> Files:
    """What `SaveProgress` keeps, of a run that was broken off."""
    import keras

    import keras_bandgnn as kb

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise InterruptedError

    def make(folder):
        saver = kb.training.SaveProgress(folder, save_freq=1)
        task = _progress_task()
        try:
            task.fit(graphs(), callbacks=[saver, Stop()], verbose=0)
        except InterruptedError:
            pass

    return _in_folder(make)


def _read_progress(folder: Path):
    import keras_bandgnn as kb

    task = _progress_task()
    loader = task.loader(graphs(), shuffle=True)
    saver = kb.training.SaveProgress(folder)
    try:
        return saver.restore(task, loader), task
    finally:
        saver.release()


def _check_progress(found) -> str | None:
    place, task = found
    if place is not None:
        epoch, batch = place
        if not (type(epoch) is type(batch) is int and epoch >= 0 <= batch):
            return f"the place {place}"
    return invariants.finite(weight.numpy() for weight in task.weights)


@functools.cache
def _hypermodel():
    import keras_bandgnn as kb

    given = [
        Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, i % 2]}, label=i % 2)
        for i in range(8)
    ]
    return kb.tuning.GraphTransformerHyperModel(given, hidden_dim=8)


def search() -> Files:
    """The folder of a search: a trial that is done, one that failed, one running."""
    from keras_bandgnn.tuning import make_tuner

    def make(folder):
        tuner = make_tuner(_hypermodel(), folder / "s", max_trials=4)
        oracle = tuner.oracle
        for number in range(3):
            trial = oracle.create_trial(f"tuner{number}")
            if number == 0:
                oracle.update_trial(trial.trial_id, {tuner.oracle.objective.name: 0.5})
                trial.status = "COMPLETED"
                oracle.end_trial(trial)
            if number == 1:
                trial.status, trial.message = "INVALID", "ValueError: too large"
                oracle.end_trial(trial)
            beginnings = Path(tuner.get_trial_dir(trial.trial_id)) / "beginnings"
            beginnings.parent.mkdir(parents=True, exist_ok=True)
            beginnings.write_text("1")
        tuner.save()

    return _in_folder(make, "s")


def _read_search(folder: Path):
    from keras_bandgnn.tuning import make_tuner, trial_table

    tuner = make_tuner(_hypermodel(), folder, max_trials=4)
    return trial_table(tuner), tuner.remaining_trials


def _check_search(found) -> str | None:
    table, left = found
    if left is not None and not 0 <= left <= 4:
        return f"{left} trials left of 4"
    for row in table:
        if row["status"] not in ("completed", "failed", "invalid"):
            return f"the status {row['status']}"
        if row["status"] == "completed" and not np.isfinite(row["score"]):
            return f"the score {row['score']}"
    return None


def calibration() -> Files:
    """The constants of a machine."""
    found = dataclasses.asdict(machines.machine(machines.CPU))
    return {"hardware.json": json.dumps(found).encode()}


def _read_calibration(folder: Path):
    from keras_bandgnn.planning.cost import Hardware

    class Here(Hardware):
        @staticmethod
        def path(dtype="float32"):
            return folder / "hardware.json"

    found = Here.calibrated()
    return None if found is None else found.rates


def _check_calibration(found) -> str | None:
    if found is None:
        return None
    flat = np.concatenate([np.asarray(v, float) for v in found.values()])
    return None if np.isfinite(flat).all() and (flat > 0).all() else "no constants"


def _options() -> argparse.Namespace:
    from keras_bandgnn.cli import train

    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    options = parser.parse_args(["a", "--out", "o", "--epochs", "3"])
    train.recipe_files.complete(options)
    return options


def settings() -> Files:
    """The folder of a training that was interrupted."""
    from keras_bandgnn.cli.training_callbacks import check_run

    def make(folder):
        check_run(_options(), {"train": [3, 5]}, folder)
        rows = [{"loss": 1.5, "val_loss": 2.5 - epoch} for epoch in range(2)]
        (folder / "history.json").write_text(json.dumps(rows))

    return _in_folder(make)


def _read_settings(folder: Path):
    from keras_bandgnn.cli.training_callbacks import check_run, read_history

    check_run(_options(), {"train": [3, 5]}, folder)
    rows = read_history(folder / "history.json", "val_loss")
    return rows, (folder / "recipe.toml").read_bytes()


def log_of_training() -> Files:
    """What `keras.callbacks.CSVLogger` writes."""
    rows = ["epoch,loss,mae,val_loss,val_mae", "0,2.5,1.25,3.5,1.5"]
    rows += ["1,0.75,0.5,NA,NA", "2,0.5,0.25,0.625,0.375", ""]
    return {"log.csv": "\r\n".join(rows).encode()}


def _read_log(folder: Path):
    from keras_bandgnn.plotting.history import read_log

    epochs, columns = read_log(folder / "log.csv")
    return {"epoch": epochs, **columns}


def _check_log(found: dict) -> str | None:
    lengths = {values.shape for values in found.values()}
    return None if len(lengths) == 1 else f"columns of shapes {lengths}"


def readers() -> Iterator[Reader]:
    """Return one reader for each kind."""
    of_preset = functools.partial(
        Reader, check=_check_task, repair=repair_preset, mutants=40
    )
    bare = functools.partial(_read_preset, load_weights=False)
    yield Reader("store", store, _read_store, _check_store, repair_store)
    yield Reader(
        "store of node sets", store_of_sets, _read_store, _check_store, repair_store
    )
    yield Reader("unfinished store", unfinished, _resume, _check_resumed, repair_store)
    yield of_preset("preset", functools.partial(preset, _regressor), _read_preset)
    yield of_preset(
        "preset without weights", functools.partial(preset, _regressor, "none"), bare
    )
    yield Reader("packing.json", packing, _read_packing, _check_packing, mutants=40)
    yield Reader("ensemble", ensemble, _read_ensemble, _check_ensemble, mutants=30)
    yield Reader("last layer", laplace, _read_laplace, _check_laplace, mutants=30)
    yield Reader("settings", settings, _read_settings, lambda result: None)
    yield Reader("log of training", log_of_training, _read_log, _check_log)
    yield Reader("progress", progress, _read_progress, _check_progress, mutants=30)
    yield Reader(
        *("search", search, _read_search, _check_search),
        modules=("keras_tuner",),
        mutants=30,
    )
    yield Reader("calibration", calibration, _read_calibration, _check_calibration)
