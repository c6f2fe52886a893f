"""`bandgnn train --task potential`: energies, forces and stresses of structures."""

import argparse
from pathlib import Path

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import recipes, report, train_regression, training_callbacks
from keras_bandgnn.cli.report import make_card

GPA = 160.2176634
"""GPa in an eV per cubic Angstrom."""
QUANTITIES = {
    "atom": ("energy", 1000.0, "meV/atom"),
    "force": ("forces", 1000.0, "meV/Angstrom"),
    "stress": ("stress", GPA, "GPa"),
}
"""Metrics of a `ForceRegressor`: what they are of, and the units of the tables."""


def read(path: Path, options: argparse.Namespace):
    """Read the frames of a file, with energies, forces and stresses."""
    from keras_bandgnn.data import read_structures

    forces = None if options.forces_key == "forces" else options.forces_key
    stress = options.stress_key or True
    try:
        graphs = read_structures(path, options.energy_key, stress=stress, forces=forces)
    except ValueError as error:
        if "`label`" not in str(error):
            raise
        text = str(error).replace("`label` to be", "the energy to be")
        text = text.removesuffix("Choose one of these.").removesuffix(
            "Leave the frame out."
        )
        raise ValueError(
            f"{text}Name the key of the energies with --energy-key, or leave out the "
            "frames without one."
        ) from error
    if "force" not in graphs.node:
        raise ValueError(
            f"Expected forces in {_place(graphs, 0)} and all other frames. Received: "
            "none. Name their column with --forces-key."
        )
    return graphs


def _place(graphs, position: int) -> str:
    info = graphs[position].info
    return f"{info['file']}, frame {info['frame']}"


def load_splits(options: argparse.Namespace) -> dict:
    """Load the training and validation frames as `FlatGraphs`."""
    import numpy as np

    graphs = read(options.data, options)
    if isinstance(options.valid, Path):
        splits = {"train": graphs, "valid": read(options.valid, options)}
    else:
        count = max(1, round(options.valid * len(graphs)))
        if count >= len(graphs):
            raise ValueError(
                f"Expected frames to train on and to validate. Received: {len(graphs)} "
                f"in {options.data}, --valid {options.valid:g}. Add frames, or name a "
                "file with --valid."
            )
        order = np.random.default_rng(options.seed).permutation(len(graphs))
        picked = {"train": order[count:], "valid": order[:count]}
        splits = {split: graphs.take(np.sort(at)) for split, at in picked.items()}
    check_elements(splits)
    return splits


def check_elements(splits: dict) -> None:
    """Raise a ValueError for elements of validation that training lacks."""
    import numpy as np

    numbers = {name: part.node["atomic_number"] for name, part in splits.items()}
    unknown = ~np.isin(numbers["valid"], numbers["train"])
    if unknown.any():
        at = int(np.flatnonzero(unknown)[0])
        graph = int(np.searchsorted(splits["valid"].node_ptr, at, side="right")) - 1
        raise ValueError(
            "Expected validation frames with the elements of training, "
            f"{np.unique(numbers['train']).tolist()}. Received: "
            f"{int(numbers['valid'][at])} in {_place(splits['valid'], graph)}. Add "
            "frames that have it, or remove this one."
        )


def by_number(name: str, entries: list[tuple[str, float]]) -> dict | None:
    """Return the values of an option by atomic number; None without any.

    Args:
        name: The option.
        entries: Symbols of elements and values.
    """
    from keras_bandgnn.optional import optional_import

    if not entries:
        return None
    numbers = optional_import("ase.data", "keras-bandgnn[chem]").atomic_numbers
    names = [element for element, _ in entries]
    twice = sorted({element for element in names if names.count(element) > 1})
    if twice:
        raise shared.OptionError(
            f"Expected one value for each element of {name}. Received: several for "
            f"{', '.join(twice)}."
        )
    for element, value in entries:
        if numbers.get(element, 0) == 0:
            raise shared.OptionError(
                f"Expected {name} with symbols of elements, such as H={value:g}. "
                f"Received: {element!r}."
            )
    return {numbers[element]: value for element, value in entries}


def element_cutoffs(options: argparse.Namespace, elements) -> dict | None:
    """Return the cutoffs of elements that were passed, by atomic number.

    Args:
        options: The command line.
        elements: Atomic numbers of the data.
    """
    cutoffs = by_number("--element-cutoffs", options.element_cutoffs)
    other = sorted(set(cutoffs or ()) - set(elements))
    if other:
        raise shared.OptionError(
            f"Expected --element-cutoffs for elements of the data, {sorted(elements)}. "
            f"Received: {other}."
        )
    for element, radius in options.element_cutoffs:
        if radius > options.cutoff:
            raise shared.OptionError(
                f"Expected --element-cutoffs of at most --cutoff {options.cutoff:g}. "
                f"Received: {element}={radius:g}."
            )
    return cutoffs


def make_task(options: argparse.Namespace, graphs: dict):
    """Return a new, compiled `ForceRegressor`."""
    import keras
    import numpy as np

    from keras_bandgnn import compat, models, preprocessing

    compat.set_random_seed(options.seed)
    numbers = np.unique(graphs["train"].node["atomic_number"]).tolist()
    limits = element_cutoffs(options, numbers)
    backbone, head = train_regression.make_backbone(options, graphs, limits)
    stresses = not np.isnan(graphs["train"].context["stress"]).all()
    if not stresses and any("stress" in weights for _, weights in options.schedule):
        raise shared.OptionError(
            "Expected --schedule without stress, as no training frame has one. "
            "Received: a weight of stress."
        )
    if not stresses and options.stress_weight != recipes.STRESS_WEIGHT:
        raise shared.OptionError(
            "Expected no --stress-weight, as no training frame has a stress. Received: "
            f"{options.stress_weight:g}."
        )
    task = models.ForceRegressor(
        backbone,
        preprocessor=preprocessing.GraphPreprocessor(
            [preprocessing.RadiusGraph(options.cutoff, element_cutoffs=limits)],
            preprocessing.DynamicBatcher(options.batch_size),
        ),
        force_weight=options.force_weight,
        stress_weight=options.stress_weight if stresses else None,
        per_atom=True,
        normalizer=preprocessing.TargetNormalizer(
            "atom",
            "atomic_number",
            by_number("--atom-energies", options.atom_energies),
        ),
        zbl=options.zbl,
        **head,
    )
    momentum = averaging(options, len(graphs["train"]))
    averages = {"use_ema": True, "ema_momentum": momentum} if momentum else {}
    task.compile(
        keras.optimizers.Adam(options.learning_rate, global_clipnorm=10.0, **averages)
    )
    return task


def averaging(options: argparse.Namespace, frames: int) -> float:
    """Return the momentum of the averages of weights.

    Unless it was passed, they reach over at most a twentieth of the run: those of a
    short one with the usual momentum are hardly trained.

    Args:
        options: The command line.
        frames: Number of training frames.
    """
    if options.ema is not None:
        return options.ema
    steps = options.epochs * -(-frames // options.batch_size)
    return round(min(0.99, max(0.0, 1 - 20 / steps)), 4)


def rows_of(scores: dict, prefix: str = "") -> list[tuple[str, float, float, str]]:
    """Return quantity, MAE, RMSE and unit of each row of a table of errors.

    Args:
        scores: Metrics of a `ForceRegressor`, in eV and Angstrom.
        prefix: "val_" for those of validation in a history.
    """
    rows = []
    for key, (quantity, factor, unit) in QUANTITIES.items():
        if f"{prefix}{key}_mae" in scores:
            mae, rmse = (scores[f"{prefix}{key}_{name}"] for name in ("mae", "rmse"))
            rows.append((quantity, factor * mae, factor * rmse, unit))
    return rows


def epoch_lines(options: argparse.Namespace, stresses: bool):
    """Return the callback that prints the validation errors of each epoch."""
    import keras

    class EpochLines(keras.callbacks.Callback):
        """Prints the mean absolute errors in the units of the field."""

        def on_epoch_end(self, epoch, logs=None):
            errors = [
                f"{quantity} {mae:.4g} {unit}"
                for quantity, mae, _, unit in rows_of(logs, "val_")
                if stresses or quantity != "stress"
            ]
            rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            report.say(
                f"epoch {epoch + 1}/{options.epochs}: loss {logs['loss']:.4g}; "
                f"validation {', '.join(errors)}; rate {rate:.3g}"
            )

    return EpochLines()


def check_options(options: argparse.Namespace) -> None:
    """Raise an OptionError for a model or a schedule that cannot be trained."""
    if options.model not in ("painn", "schnet"):
        raise shared.OptionError(
            "Expected --model painn or schnet, whose energies are smooth, for --task "
            f"potential. Received: --model {options.model}."
        )
    epochs = [epoch for epoch, _ in options.schedule]
    if epochs != sorted(set(epochs)) or (epochs and epochs[-1] >= options.epochs):
        raise shared.OptionError(
            "Expected --schedule with ascending epochs below --epochs "
            f"{options.epochs}. Received: {' '.join(map(str, epochs))}."
        )


def run(options: argparse.Namespace) -> None:
    """Train one or several potentials, evaluate on the validation frames and save."""
    from keras_bandgnn import models

    check_options(options)
    training_callbacks.check_out(options, options.members)
    graphs = load_splits(options)
    # Errors of options and data come before there is a folder of the run.
    task, loader = make_task_and_loader(options, graphs)
    report.say(description(options, task, graphs))
    data = {
        split: [len(part), int(part.node_ptr[-1]), float(part.label.sum(dtype=float))]
        for split, part in graphs.items()
    }
    with training_callbacks.run_folder(options, data) as work:
        if options.members == 1:
            train(options, task, loader, graphs["valid"], work)
            entries = card_entries(options, task, loader, graphs)
            entries["score"] = evaluate(task, graphs["valid"])
            card = make_card(options, entries)
            training_callbacks.save(task, options, card)
        else:
            ensemble = models.Ensemble(train_members(options, graphs, work))
            entries = card_entries(options, task, loader, graphs)
            entries["recipe"] += f" {options.members} members with their own seeds."
            entries["score"] = evaluate_ensemble(ensemble, graphs["valid"])
            seeds = f"{options.seed} to {options.seed + options.members - 1}"
            ensemble_options = argparse.Namespace(**vars(options) | {"seed": seeds})
            card = make_card(ensemble_options, entries)
            training_callbacks.save(ensemble, options, card)
    report.say(f"model saved to {options.out}")


def known_stresses(graphs) -> int:
    """Return the number of frames with a stress."""
    import numpy as np

    return int((~np.isnan(graphs.context["stress"]).all(axis=1)).sum())


def frames_of(graphs: dict) -> str:
    """Return the numbers of frames, and of those with a stress, as text."""
    sizes = ", ".join(f"{len(part)} {split}" for split, part in graphs.items())
    counts = {split: known_stresses(part) for split, part in graphs.items()}
    stresses = ", ".join(f"{count} {split}" for split, count in counts.items())
    return f"frames: {sizes}; with stress: {stresses}"


def description(options: argparse.Namespace, task, graphs: dict) -> str:
    """Return a line about model, data and backend."""
    import keras

    from keras_bandgnn.saving.preset_files import count_parameters

    return (
        f"{options.model}: C = {options.hidden}, {count_parameters(task):,} "
        f"parameters; {frames_of(graphs)}; backend {keras.backend.backend()}"
    )


def make_task_and_loader(options: argparse.Namespace, graphs: dict) -> tuple:
    """Return a new task, and the loader of its training graphs."""
    task = make_task(options, graphs)
    loader = task.loader(graphs["train"], shuffle=True, seed=options.seed, adapt=True)
    return task, loader


def train(options: argparse.Namespace, task, loader, valid, work: Path) -> None:
    """Train a potential, resuming an interrupted run, and load the best weights.

    Args:
        options: The command line.
        task: The compiled task.
        loader: Training graphs.
        valid: Validation graphs.
        work: Folder of the run.
    """
    training_callbacks.fit(
        task,
        loader,
        valid,
        options,
        work,
        "val_loss",
        "min",
        options.patience,
        options.plateau,
        [epoch for epoch, _ in options.schedule],
        callbacks=[
            *schedules(options, task.stress_weight is not None),
            epoch_lines(options, known_stresses(valid) > 0),
        ],
        verbose=0,
    )


def schedules(options: argparse.Namespace, stresses: bool) -> list:
    """Return the callback that sets the weights of each epoch, if they change."""
    from keras_bandgnn.training import LossWeightScheduler

    if not options.schedule:
        return []

    def weights(epoch: int) -> dict:
        values = {"energy": 1.0, "force": options.force_weight}
        if stresses:
            values["stress"] = options.stress_weight
        for start, changes in options.schedule:
            if start <= epoch:
                values |= changes
        return values

    return [LossWeightScheduler(weights)]


def card_entries(options: argparse.Namespace, task, loader, graphs: dict) -> dict:
    """Return the texts of the card, without the score."""
    weights = f"energy per atom 1, forces {options.force_weight:g}"
    if task.stress_weight is not None:
        weights += f", stresses {task.stress_weight:g}"
    for epoch, changes in options.schedule:
        changed = ", ".join(f"{name} {value:g}" for name, value in changes.items())
        weights += f"; after {epoch} epochs {changed}"
    repulsion = "ZBL repulsion at short distances; " if task.zbl else ""
    limits = ", ".join(f"{name} {radius:g}" for name, radius in options.element_cutoffs)
    reach = f"cutoff {options.cutoff:g} Angstrom"
    repulsion += f"{reach}, of elements: {limits}; " if limits else f"{reach}; "
    return {
        "data": f"{options.data}: {frames_of(graphs)}. "
        "Energies in eV, forces in eV/Angstrom, stresses in eV/Angstrom^3, "
        "positive under tension.",
        "recipe": f"{repulsion}Adam, rate {options.learning_rate:g}, halved after "
        f"{options.plateau} epochs without improvement; {options.epochs} epochs "
        f"of {len(loader):,} batches; weights of the loss: {weights}; averages "
        f"of weights with momentum {averaging(options, len(graphs['train'])):g}; the "
        "weights with the best "
        "validation loss.",
    }


def train_members(options: argparse.Namespace, graphs: dict, work: Path) -> list:
    """Train the members of an ensemble one after another, and return them.

    A member that is complete has a preset in its folder, and is not trained again.

    Args:
        options: The command line.
        graphs: The splits.
        work: Folder of the run.
    """
    from keras_bandgnn import models

    members, count, valid = [], options.members, graphs["valid"]
    minutes = options.minutes and options.minutes / count
    for number in range(count):
        seed = options.seed + number
        member_options = argparse.Namespace(
            **vars(options) | {"seed": seed, "minutes": minutes}
        )
        name = f"member {number + 1} of {count}, seed {seed}"
        folder = work / f"member_{number}"
        preset = folder / "preset"
        if not preset.is_dir():
            report.say(name)
            folder.mkdir(exist_ok=True)
            task, loader = make_task_and_loader(member_options, graphs)
            train(member_options, task, loader, valid, folder)
            task.save_to_preset(preset)
        # As it was saved, and without the state of its optimizer.
        members.append(models.ForceRegressor.from_preset(preset))
        evaluate(members[-1], valid, f"validation, {name}")
    return members


def evaluate(task, graphs, title: str = "validation") -> str:
    """Print the table of validation errors; return it as text for the card."""
    lines = training_callbacks.progress_lines()
    scores = task.evaluate(graphs, return_dict=True, verbose=0, callbacks=lines)
    stresses = known_stresses(graphs) > 0
    rows = [row for row in rows_of(scores) if stresses or row[0] != "stress"]
    report.table(title, ("", "MAE", "RMSE", "unit"), rows)
    return f"{title}: " + "; ".join(
        f"{quantity} MAE {mae:.4g}, RMSE {rmse:.4g} {unit}"
        for quantity, mae, rmse, unit in rows
    )


def evaluate_ensemble(ensemble, graphs, title: str = "validation") -> str:
    """Print the errors of the means and their spread; return them for the card."""
    import numpy as np

    from keras_bandgnn.training import calibration_report

    atoms = graphs.num_nodes
    energies, stds = (np.ravel(rows) for rows in ensemble.predict_spread(graphs))
    values = {
        "energy": (graphs.label.ravel() / atoms, energies / atoms, stds / atoms),
        "forces": (graphs.node["force"], *ensemble.predict_forces_spread(graphs)),
    }
    if known_stresses(graphs):
        stresses = ensemble.predict_stress_spread(graphs)
        values["stress"] = (graphs.context["stress"], *stresses)
    rows = []
    for quantity, factor, unit in QUANTITIES.values():
        if quantity in values:
            calibration = calibration_report(*values[quantity])
            errors = [
                factor * calibration[name] for name in ("mae", "rmse", "mean_std")
            ]
            shape = calibration["rank_correlation"], calibration["scale"]
            rows.append((quantity, *errors, *shape, unit))
    names = ("", "MAE", "RMSE", "mean spread", "rank correlation", "scale", "unit")
    count = len(ensemble.members)
    report.table(f"{title}, mean of {count} members", names, rows)
    return f"{title}, mean of {count} members: " + "; ".join(
        f"{quantity} MAE {mae:.4g}, RMSE {rmse:.4g}, mean spread {std:.4g} {unit}, "
        f"rank correlation of spread and error {rank:.2f}, factor of the spread "
        f"{scale:.3g}"
        for quantity, mae, rmse, std, rank, scale, unit in rows
    )
