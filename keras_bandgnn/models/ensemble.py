"""`Ensemble`: the mean prediction of several trained tasks, and its uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import keras
import numpy as np

from keras_bandgnn.checks import (
    as_path,
    instance,
    mapping,
    optional,
    refuse,
    sequence,
)
from keras_bandgnn.data.files import atomic_folder, restore_replaced
from keras_bandgnn.data.reading import reading, refuse_file
from keras_bandgnn.models.calculator import (
    Potential,
    geometry_layer,
    has_atom_energies,
    make_calculator,
)
from keras_bandgnn.models.forces import check_energy, force_program, stress_program
from keras_bandgnn.models.graph_regressor import GraphRegressor
from keras_bandgnn.models.task import Task
from keras_bandgnn.models.task_program import compiled, task_output
from keras_bandgnn.saving import preset_files as files
from keras_bandgnn.saving.preset_paths import CARD, ENSEMBLE
from keras_bandgnn.version import __version__

if TYPE_CHECKING:
    import ase.calculators.calculator

    from keras_bandgnn.aliases import Data, DType, FilePath

# Arguments of tasks that determine the meaning of a prediction.
_TARGETS = (
    *("num_targets", "target_names", "num_classes", "class_names"),
    *("multi_label", "ordinal"),
)


class Ensemble:
    """The mean prediction of several trained tasks, and its uncertainty.

    Members differ by the seed of their weights and of the order of the graphs, or by
    their training graphs. Where they disagree, the training graphs say little: the
    standard deviation over the members, their spread, is small near the training
    graphs and grows away from them. Its scale is not that of the errors;
    `training.calibration_report` compares them and gives the factor between them.

    Graphs are compiled and packed once, and one program runs all members. Regressors
    average their predictions, classifiers and `NodeSelector` their probabilities.

    Args:
        members: M >= 2 trained tasks of one class with the same targets and the same
            preprocessing. Backbones may differ in width and depth.

    Raises:
        ValueError: For members that differ in class, targets, preprocessing or types
            of edges, for the same task twice, and for tasks without a mean.

    Reference:
        Lakshminarayanan et al., "Simple and Scalable Predictive Uncertainty Estimation
        using Deep Ensembles", NeurIPS 2017.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [
    ...     kb.Graph(n, [0], [n - 1], node={"kind": [1] * n}, label=2.0 * n)
    ...     for n in (1, 2, 3, 4)
    ... ]
    >>> members = []
    >>> for seed in range(3):
    ...     task = kb.models.GraphRegressor(kb.models.GCNBackbone({"kind": 2}, 8))
    ...     history = task.fit(graphs, epochs=1, seed=seed, verbose=0)
    ...     members.append(task)
    >>> ensemble = Ensemble(members)
    >>> mean, std = ensemble.predict_spread(graphs)
    >>> mean[0].shape, std[0].shape
    ((1,), (1,))
    """

    def __init__(self, members: Iterable[Task]):
        self.members = _checked_members(members)

    def predict(self, x: Data) -> list:
        """Return the mean of the members' predictions.

        Args:
            x: Graphs, or raw data, in any form that `Task.predict` takes.

        Returns:
            For each graph an array as from `Task.predict`: numbers in the units of the
            labels, or probabilities of classes and of candidates; None for graphs that
            have no prediction.
        """
        return self.predict_spread(x)[0]

    def predict_spread(self, x: Data) -> tuple[list, list]:
        """Return the mean and the standard deviation of the members' predictions.

        Args:
            x: See `predict`.

        Returns:
            Two lists as from `predict`: mean and standard deviation over the members
            (of the members themselves: the divisor is M), in the same units.
        """
        scale = [member.ensemble_outputs for member in self.members]
        return _moments(compiled(self, task_output).predict(x), scale)

    def predict_forces(self, x: Data) -> list:
        """Return the mean of the forces; see `GraphRegressor.predict_forces`.

        Args:
            x: Graphs whose edges have displacements.
        """
        return self.predict_forces_spread(x)[0]

    def predict_forces_spread(self, x: Data) -> tuple[list, list]:
        """Return the mean and the standard deviation of the members' forces.

        Args:
            x: Graphs whose edges have displacements.

        Returns:
            Two lists with, for each graph, float32 [N, 3], the label's unit per
            angstrom: the mean, and the standard deviation of each component. The norm
            of a node's three standard deviations does not depend on the axes.

        Raises:
            ValueError: For members without forces, see `GraphRegressor.predict_forces`.
        """
        self._check_regressors("forces")
        return _moments(force_program(self).predict(x))

    def predict_stress(self, x: Data) -> list:
        """Return the mean of the stresses; see `GraphRegressor.predict_stress`.

        Args:
            x: Graphs whose edges have displacements and which have cells.
        """
        return self.predict_stress_spread(x)[0]

    def predict_stress_spread(self, x: Data) -> tuple[list, list]:
        """Return the mean and the standard deviation of the members' stresses.

        Args:
            x: Graphs whose edges have displacements and which have cells.

        Returns:
            Two lists with, for each graph, float32 [6], the label's unit per cubic
            angstrom, in the order of `GraphRegressor.predict_stress`.

        Raises:
            ValueError: For members without stresses.
        """
        self._check_regressors("stress")
        return _moments(stress_program(self).predict(x))

    def as_calculator(self, skin: float = 0.5) -> ase.calculators.calculator.Calculator:
        """Return a calculator of ASE whose results are the means of the members.

        It is that of `GraphRegressor.as_calculator`, with one neighbour list and one
        compiled program for all members. Its results also have "energy_std", eV, the
        standard deviation of the energy over the members, and "forces_std" float
        [N, 3], eV/Angstrom, that of each component of the forces.

        Args:
            skin: See `GraphRegressor.as_calculator`.

        Returns:
            An `ase.calculators.calculator.Calculator`.

        Raises:
            ValueError: For members that are no regressors of energies over atoms.
            ImportError: Without ASE, `pip install "keras-bandgnn[chem]"`.

        Example:
        >>> import ase, keras_bandgnn as kb  # doctest: +SKIP
        >>> tasks = [  # doctest: +SKIP
        ...     kb.models.GraphRegressor(kb.models.PaiNNBackbone((1, 8), 16))
        ...     for _ in range(3)
        ... ]
        >>> pair = ase.Atoms("HH", [[0, 0, 0], [0.8, 0, 0]])  # doctest: +SKIP
        >>> pair.calc = Ensemble(tasks).as_calculator()  # doctest: +SKIP
        >>> energy = pair.get_potential_energy()  # doctest: +SKIP
        >>> pair.calc.results["forces_std"].shape  # doctest: +SKIP
        (2, 3)
        """
        self._check_regressors("a calculator")
        return make_calculator(self, skin, EnsemblePotential)

    def _check_regressors(self, what: str) -> None:
        first = self.members[0]
        if not isinstance(first, GraphRegressor):
            raise ValueError(
                f"Expected members that predict energies of graphs, for {what}. "
                f"Received: {type(first).__name__}. Train tasks of ForceRegressor."
            )
        check_energy(first)

    def save_to_preset(
        self, path: FilePath, weights: str = "float32", card: Mapping | None = None
    ) -> None:
        """Write all members to a folder, atomically.

        It has `ensemble.json`, a card and the folders `member_0`, `member_1` and so on,
        each a preset that `Task.from_preset` reads.

        Args:
            path: The folder: new, empty or an ensemble, which is replaced.
            weights: See `Task.save_to_preset`.
            card: Texts for the cards, see `Task.save_to_preset`.

        Raises:
            ValueError: For a folder with other content.
            OSError: If it cannot be written.
        """
        path = as_path("path", path)
        card = dict(optional(mapping, "card", card) or {})
        names = files.member_names(len(self.members))
        contents = files.ensemble_names(path, len(self.members))
        with atomic_folder(path, contents, "an ensemble") as folder:
            for name, member in zip(names, self.members, strict=True):
                member.save_to_preset(folder / name, weights, card)
            count = len(self.members)
            first = self.members[0]
            text = files.make_card(path.name, first, weights, card, count)
            (folder / CARD).write_text(text, "utf-8")
            entry = {
                "members": names,
                "keras_version": keras.__version__,
                "keras_bandgnn_version": __version__,
            }
            files.write(folder / ENSEMBLE, entry)

    @classmethod
    def from_preset(cls, preset: FilePath, dtype: DType = None) -> Ensemble:
        """Load an ensemble from a folder that `save_to_preset` wrote.

        Args:
            preset: The folder.
            dtype: See `Task.from_preset`.

        Raises:
            ValueError: For a folder that holds no ensemble, or a damaged one.
        """
        folder = as_path("preset", preset)
        restore_replaced(folder)
        path = folder / ENSEMBLE
        if not path.is_file():
            refuse(
                "preset",
                f"a folder with {ENSEMBLE}, as Ensemble.save_to_preset writes it",
                str(preset),
                "Load a single model with Task.from_preset.",
            )
        names = files.read(path).get("members")
        right = isinstance(names, list) and len(names) > 1
        right = right and all(
            isinstance(name, str) and files.MEMBER.fullmatch(name) for name in names
        )
        if not right or len(set(names)) < len(names):
            refuse_file(
                path,
                'to have "members", a list of at least two of "member_0", "member_1" '
                "and so on",
                f"{str(names)[:80]}",
                "Copy the ensemble again.",
            )
        for name in names:
            if not (folder / name).is_dir():
                refuse_file(
                    path,
                    f"to name folders beside it, such as {name}",
                    f"no folder {folder / name}",
                    "Copy the ensemble again.",
                )
        members = [Task.from_preset(folder / name, dtype=dtype) for name in names]
        with reading(path):
            return cls(members)


class EnsemblePotential(Potential):
    """Mean energies, forces and stresses of one structure after another, with spread.

    Args:
        ensemble: An `Ensemble` of regressors with one target, in eV.
        skin: See `NeighbourList`.
    """

    def __init__(self, ensemble: Ensemble, skin: float):
        layers = [geometry_layer(member) for member in ensemble.members]
        first, *others = (layer.plain_config() for layer in layers)
        for number, other in enumerate(others, 1):
            if other != first:
                # Without preprocessors, the cutoffs of backbones matter.
                raise ValueError(
                    "Expected members with the same neighbours. Received: "
                    f"{first} of member 0 and {other} of member {number}. Train them "
                    "with the same RadiusGraph in the preprocessor."
                )
        super().__init__(ensemble.members[0], skin)
        self.members = ensemble.members
        self.apart = all(has_atom_energies(member) for member in self.members)
        # The first member checks structures and holds the programs.
        self.task = compiled(ensemble, task_output)
        self.properties = (
            *Potential.properties,
            *(("energies",) if self.apart else ()),
            *("energy_std", "forces_std"),
        )

    def results(self, structure, pairs, energies, slopes) -> dict:
        """Return the means, and the standard deviations of energy and forces.

        Args:
            structure: One structure.
            pairs: Its E edges.
            energies: float64 [N, M] or [1, M].
            slopes: float64 [E, 3, M].
        """
        members = [
            super(EnsemblePotential, self).results(
                structure, pairs, energies[:, number], slopes[..., number], number
            )
            for number in range(len(self.members))
        ]
        values = {
            name: np.stack([member[name] for member in members]) for name in members[0]
        }
        results = {name: value.mean(axis=0) for name, value in values.items()}
        for name in ("energy", "free_energy"):
            results[name] = float(results[name])
        results["energy_std"] = float(values["energy"].std())
        results["forces_std"] = values["forces"].std(axis=0)
        return results


def _moments(outputs, scale: list | None = None) -> tuple:
    """Return mean and standard deviation over members, for each graph's outputs.

    Args:
        outputs: A list of arrays [..., M], with None for graphs without an output; or
            an array [..., M] for a batch.
        scale: For each member a function of its outputs to apply before averaging.
    """
    if not isinstance(outputs, list):
        (mean,), (std,) = _moments([outputs], scale)
        return mean, std
    means, stds = [], []
    for rows in outputs:
        if rows is None:
            means.append(None)
            stds.append(None)
            continue
        members = np.moveaxis(rows, -1, 0)
        if scale is not None:
            members = [
                function(member)
                for function, member in zip(scale, members, strict=True)
            ]
        values = np.asarray(members, np.float64)
        means.append(values.mean(axis=0).astype(rows.dtype))
        stds.append(values.std(axis=0).astype(rows.dtype))
    return means, stds


def _checked_members(members) -> list[Task]:
    """Return the members of an ensemble as a list, after checks.

    Raises:
        ValueError: If they are no members of one ensemble.
    """
    members = sequence("members", members, "a list of tasks")
    for member in members:
        instance("members", member, Task, "a list of tasks")
    if len(members) < 2:
        raise ValueError(
            "Expected `members` to be at least two tasks, as one has no spread. "
            f"Received: {len(members)}. Train more with other seeds."
        )
    if len({id(member) for member in members}) < len(members):
        raise ValueError(
            "Expected `members` to be different tasks. Received: the same task twice. "
            "Train each with its own seed."
        )
    first = members[0]
    if type(first).ensemble_outputs is Task.ensemble_outputs:
        refuse("members", "regressors, classifiers or NodeSelectors", first)
    for number, member in enumerate(members):
        _check_alike(first, member, number)
    return members


def _check_alike(first: Task, member: Task, number: int) -> None:
    """Raise a ValueError if a member cannot share programs or means with the first."""

    def compare(what, one, other, advice):
        if one != other:
            raise ValueError(
                f"Expected `members` with the same {what}. Received: {one} of member "
                f"0 and {other} of member {number}. {advice}"
            )

    compare("class", type(first), type(member), "Make an ensemble of each class.")
    configs = first.head_config(), member.head_config()
    targets = [{k: c[k] for k in _TARGETS if k in c} for c in configs]
    compare("targets", *targets, "Train all members on the same labels.")
    advice = "Train all members with the same preprocessor."
    compare("preprocessing", *map(_preprocessing, (first, member)), advice)
    types = first.backbone.num_edge_types, member.backbone.num_edge_types
    compare("num_edge_types", *types, "Set it alike in all backbones.")
    fields = first.receptive_field(False), member.receptive_field(False)
    compare("schedule", *fields, "Give all backbones the same number of steps.")


def _preprocessing(task: Task) -> dict | None:
    """Return the preprocessing of a task, without the batcher."""
    if task.preprocessor is None:
        return None
    preprocessor = task.preprocessor
    return {
        "layers": preprocessor.layers_config(),
        "plan": preprocessor.plan,
        "edge_weight": preprocessor.edge_weight,
    }
