"""Potentials: errors by the number of frames, molecular dynamics, relaxation.

FILES are `.npz` of frames with `z`, `node_ptr`, energies and forces, and `pos` or
`frac` and `lattice`; `group` or `split` 0 marks the frames to train on, another value
those to test. Parts:

- `curve`: a PaiNN for each number of frames, trained for the same number of steps, and
  its errors on the frames of the test.
- `dynamics`: a run at constant energy with the first file's model: drift, momentum,
  programs compiled, time per step and where it goes; beside it the time per step of
  SchNetPack's PaiNN of the same size, if it is installed, with random weights: only
  the time counts.
- `ensemble`: several models of the first file with different seeds: errors of their
  means, the spread beside the errors, and the time of all beside that of one.
- `relax`: disturbed crystals of the test, relaxed with their cells.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

PARTS = ("curve", "dynamics", "ensemble", "relax")
GPA = 160.2176634


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("files", nargs="+", type=shared.path, metavar="FILE")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--element", type=shared.positive, help="only its crystals")
    parser.add_argument(
        "--frames", type=shared.positive, nargs="+", default=[50, 200, 950]
    )
    parser.add_argument("--steps", type=shared.positive, default=10_000)
    parser.add_argument("--batch-size", type=shared.positive, default=5)
    parser.add_argument("--hidden", type=shared.positive, default=64)
    parser.add_argument("--layers", type=shared.positive, default=3)
    parser.add_argument("--cutoff", type=shared.above_zero, default=5.0)
    parser.add_argument("--rate", type=shared.above_zero, default=1e-3)
    parser.add_argument("--force-weight", type=shared.above_zero, default=100.0)
    parser.add_argument("--md-steps", type=shared.positive, default=10_000)
    parser.add_argument("--timestep", type=shared.above_zero, default=0.5, help="fs")
    parser.add_argument("--temperature", type=shared.above_zero, default=300.0)
    parser.add_argument("--members", type=shared.positive, default=4)
    parser.add_argument("--crystals", type=shared.positive, default=50)
    parser.add_argument("--relax-steps", type=shared.positive, default=1000)
    parser.add_argument("--models", type=shared.path, help="folder that keeps models")
    parser.add_argument("--figure", type=shared.written_file, help="of the calibration")
    parser.add_argument("--json", type=shared.written_file, help="file for the figures")


def read(path: Path, element: int | None) -> tuple[list, list]:
    """Return graphs to train on and to test, in eV and Angstrom."""
    import numpy as np

    import keras_bandgnn as kb

    with np.load(path) as data:
        arrays = {name: data[name] for name in data.files}
    periodic = "lattice" in arrays
    splits: tuple[list, list] = ([], [])
    kind = arrays["split"] if "split" in arrays else arrays["group"]
    for at, (low, high) in enumerate(itertools.pairwise(arrays["node_ptr"])):
        number = arrays["z"][low:high].astype("int32")
        if element is not None and not (number == element).all():
            continue
        context = {}
        if periodic:
            cell = arrays["lattice"][at]
            position = arrays["frac"][low:high] @ cell
            context = {"cell": cell, "stress": arrays["stress_ev_per_ang3"][at]}
        else:
            position = arrays["pos"][low:high]
        force = arrays["forces_ev_per_ang"][low:high]
        graph = kb.Graph(
            int(high - low),
            [],
            [],
            node={"atomic_number": number, "position": position, "force": force},
            context=context,
            label=float(arrays["energy_ev"][at]),
        )
        splits[int(kind[at] != 0)].append(graph)
    return splits


def make_task(graphs: list, steps: int, options: argparse.Namespace, seed: int = 0):
    """Return a new potential, compiled for so many steps."""
    import keras
    import numpy as np

    from keras_bandgnn import models, preprocessing, training

    keras.utils.set_random_seed(seed)
    numbers = np.concatenate([graph.node["atomic_number"] for graph in graphs])
    layer = preprocessing.RadiusGraph(options.cutoff)
    batcher = preprocessing.DynamicBatcher(options.batch_size)
    stresses = "stress" in graphs[0].context
    task = models.ForceRegressor(
        models.PaiNNBackbone(
            np.unique(numbers).tolist(),
            options.hidden,
            options.layers,
            cutoff=options.cutoff,
            basis="sine",
        ),
        preprocessor=preprocessing.GraphPreprocessor([layer], batcher),
        force_weight=options.force_weight,
        stress_weight=100 * options.force_weight if stresses else None,
        per_atom=True,
        normalizer=preprocessing.TargetNormalizer("atom", "atomic_number"),
    )
    rate = training.WarmupDecay(options.rate, min(500, steps // 10 + 1), steps)
    task.compile(
        keras.optimizers.Adam(
            rate, global_clipnorm=10.0, use_ema=True, ema_momentum=0.99
        )
    )
    return task


def trained(
    path: Path, train: list, count: int, options: argparse.Namespace, seed: int = 0
):
    """Return a potential trained on some frames, and the seconds it took.

    A model that an earlier run has kept is read instead.
    """
    import keras
    import numpy as np

    from keras_bandgnn import models

    kept = None
    if options.models:
        name = f"{path.stem}-{options.element or 'all'}-{count}"
        kept = options.models / (f"{name}-seed{seed}" if seed else name)
        if kept.is_dir():
            return models.ForceRegressor.from_preset(str(kept)), float("nan")
    order = np.random.default_rng(0).permutation(len(train))[:count]
    frames = [train[at] for at in order]
    batches = -(-len(frames) // options.batch_size)
    epochs = max(1, options.steps // batches)
    task = make_task(frames, epochs * batches, options, seed)
    start = time.perf_counter()
    with report.progress(f"training on {len(frames)} frames") as advance:
        line = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: advance(epoch + 1, epochs)
        )
        callbacks = [line, keras.callbacks.SwapEMAWeights()]
        task.fit(frames, epochs=epochs, verbose=0, seed=seed, callbacks=callbacks)
    seconds = time.perf_counter() - start
    if kept is not None:
        task.save_to_preset(str(kept))
    return task, seconds


def curve(path: Path, options: argparse.Namespace) -> list[dict]:
    """Return errors by the number of frames."""
    train, test = read(path, options.element)
    rows = []
    for count in options.frames:
        count = min(count, len(train))
        task, seconds = trained(path, train, count, options)
        some = test or train[count:]
        scores = task.evaluate(some, return_dict=True, verbose=0)
        row = {
            "file": path.stem,
            "frames": count,
            "tested on": len(some),
            "energy, meV": 1000 * scores["mae"],
            "energy, meV/atom": 1000 * scores["atom_mae"],
            "forces, meV/A": 1000 * scores["force_mae"],
            "minutes": seconds / 60,
        }
        if "stress_mae" in scores:
            row["stress, GPa"] = GPA * scores["stress_mae"]
        rows.append(row)
        if count == len(train):
            break
    report.table(
        f"errors on other frames, {options.steps:,} steps of {options.batch_size}",
        list(rows[0]),
        [list(row.values()) for row in rows],
    )
    return rows


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    import numpy as np

    from examples.benchmarks import potential_runs

    figures: dict = {}
    if "curve" in options.parts:
        figures["curve"] = [
            row for path in options.files for row in curve(path, options)
        ]
    path = options.files[0]
    if {"dynamics", "ensemble", "relax"} & set(options.parts):
        train, test = read(path, options.element)
        count = min(max(options.frames), len(train))
        task, _ = trained(path, train, count, options)
        test = test or train[count:]
        if "dynamics" in options.parts:
            figures["dynamics"] = potential_runs.dynamics(task, test[0], options)
        if "ensemble" in options.parts:
            order = np.random.default_rng(0).permutation(len(train))[:count]
            frames = [train[at] for at in order]
            members = [task] + [
                trained(path, train, count, options, seed)[0]
                for seed in range(1, options.members)
            ]
            found = potential_runs.ensemble(members, frames, test, options)
            figures["ensemble"] = found
        if "relax" in options.parts:
            figures["relax"] = potential_runs.relax(task, test, options)
    if options.json:
        from keras_bandgnn.data.files import atomic_write

        with atomic_write(options.json) as stream:
            stream.write(json.dumps(figures, indent=1).encode())
