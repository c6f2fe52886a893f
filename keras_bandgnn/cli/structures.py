"""Files of atomic structures, for `bandgnn evaluate` and `bandgnn predict`."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report, train_potential, train_regression
from keras_bandgnn.cli.training_callbacks import progress_lines


def load_model(preset: str):
    """Return the task of a preset, or the `Ensemble` of a folder that holds one."""
    from keras_bandgnn.models import Ensemble, Task
    from keras_bandgnn.saving.preset_paths import ENSEMBLE

    if (Path(preset) / ENSEMBLE).is_file():
        return Ensemble.from_preset(preset)
    return Task.from_preset(preset)


def reads_structures(task, paths: Sequence[Path]) -> bool:
    """Return whether paths are files of structures, for a model over atoms.

    Args:
        task: A task or an `Ensemble`.
        paths: What the command line names.

    Raises:
        ValueError: For an ensemble and other data.
    """
    from keras_bandgnn.models import Ensemble, GraphRegressor
    from keras_bandgnn.models.atomistic_backbone import AtomisticBackbone

    several = isinstance(task, Ensemble)
    first = task.members[0] if several else task
    atoms = isinstance(first, GraphRegressor)
    atoms = atoms and isinstance(first.backbone, AtomisticBackbone)
    if atoms and all(_holds_structures(path) for path in paths):
        return True
    if several:
        raise ValueError(
            "Expected an ensemble of models over atoms, and files of structures. "
            f"Received: members {type(first).__name__} over "
            f"{type(first.backbone).__name__}, and {', '.join(map(str, paths))}. Name "
            "the folder of one member, such as member_0."
        )
    return False


def _holds_structures(path: Path) -> bool:
    from keras_bandgnn.data.converters.structure_checks import is_structure_file

    if (path / "store.json").is_file():
        return False
    return is_structure_file(path) or any(map(is_structure_file, path.rglob("*")))


def check_options(options: argparse.Namespace) -> None:
    """Set defaults; reject options that structures do not use."""
    unused = dict.fromkeys(("path", "split", "option"), "the name of a data set")
    unused |= dict.fromkeys(shared.READING, "node selection models")
    shared.reject_unused_options(options, unused, "files of structures")
    shared.fill_defaults(options)


def evaluate(task, options: argparse.Namespace) -> None:
    """Print the errors of a model on labelled frames.

    Args:
        task: A regressor over atoms, or an `Ensemble` of such.
        options: The command line.
    """
    from keras_bandgnn.data import read_structures
    from keras_bandgnn.models import Ensemble, ForceRegressor

    first = task.members[0] if isinstance(task, Ensemble) else task
    path = Path(options.data)
    if not isinstance(first, ForceRegressor):
        if task is not first:
            raise ValueError(
                "Expected an ensemble of ForceRegressor. Received: members "
                f"{type(first).__name__}. Name the folder of one member, or call "
                "predict_spread(graphs) in Python."
            )
        train_regression.evaluate(task, read_structures(path, options.energy_key))
        return
    graphs = train_potential.read(path, options)
    report.say(train_potential.frames_of({"test": graphs}))
    if task is first:
        train_potential.evaluate(task, graphs, "test")
    else:
        train_potential.evaluate_ensemble(task, graphs, "test")


def predict(task, options: argparse.Namespace) -> int:
    """Print and write a model's predictions for frames; return the exit code.

    Args:
        task: A regressor over atoms, or an `Ensemble` of such.
        options: The command line.
    """
    from keras_bandgnn.data import read_structures
    from keras_bandgnn.data.files import atomic_write

    lines = predictions(task, read_structures(options.paths, unlabelled=True))
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    if options.json == Path("-"):
        sys.stdout.write(text)
        return 0
    show(lines, options.top)
    if options.json is not None:
        with atomic_write(options.json) as file:
            file.write(text.encode())
    return 0


def predictions(task, graphs) -> list[dict]:
    """Return a dict for each frame.

    It has the `file`, the `frame`, the number of `atoms` and the `prediction`, for an
    ensemble also its `std`; of a `ForceRegressor` the `forces` of the atoms, for an
    ensemble `forces_std`, and the `stress` of cells.
    """
    import numpy as np

    from keras_bandgnn.models import Ensemble, ForceRegressor

    several = isinstance(task, Ensemble)
    first = task.members[0] if several else task
    columns: dict[str, list] = {}
    if several:
        columns["prediction"], columns["std"] = task.predict_spread(graphs)
    else:
        lines = progress_lines()
        columns["prediction"] = task.predict(graphs, callbacks=lines)
    if isinstance(first, ForceRegressor):
        if several:
            columns["forces"], columns["forces_std"] = task.predict_forces_spread(
                graphs
            )
        else:
            columns["forces"] = task.predict_forces(graphs)
        if "cell" in graphs.context:
            columns["stress"] = task.predict_stress(graphs)
    rows = []
    for at, info in enumerate(graphs.info):
        row = {"file": info["file"], "frame": info["frame"]}
        row["atoms"] = int(graphs.num_nodes[at])
        for name, values in columns.items():
            value = np.asarray(values[at], np.float64)
            if name == "stress" and np.isnan(value).all():
                row[name] = None
                continue
            if not np.isfinite(value).all():
                raise ValueError(
                    f"Expected a finite {name}. Received: NaN or infinity for "
                    f"{info['file']}, frame {info['frame']}; the model diverged in "
                    "training. Train it again with a smaller learning rate."
                )
            row[name] = value.tolist()
        rows.append(row)
    return rows


def show(lines: list[dict], count: int) -> None:
    """Print the first predictions, with the largest force of their atoms."""
    import numpy as np

    first = lines[0]
    columns = ["file", "frame", "atoms", "prediction"]
    columns += ["spread"] if "std" in first else []
    columns += ["largest force"] if "forces" in first else []
    rows = []
    for line in lines[:count]:
        row = [line["file"], line["frame"], line["atoms"]]
        row.append(" ".join(f"{value:.6g}" for value in line["prediction"]))
        if "std" in line:
            row.append(" ".join(f"{value:.2g}" for value in line["std"]))
        if "forces" in line:
            row.append(f"{np.linalg.norm(line['forces'], axis=1).max(initial=0):.4g}")
        rows.append(row)
    report.table(f"first {len(rows)} of {len(lines)} frames", columns, rows)
