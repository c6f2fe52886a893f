"""Conversion from and to ASE."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from keras_bandgnn.checks import atomic_numbers, having, instance, one_of, refuse, shown
from keras_bandgnn.data.converters.attributes import refuse_sets
from keras_bandgnn.data.files import json_text
from keras_bandgnn.graph import Graph
from keras_bandgnn.optional import optional_import

if TYPE_CHECKING:
    import ase.calculators.calculator

_EXTRA = "keras-bandgnn[chem]"
# Feature names of the calculators' results; `ForceRegressor` reads "force".
_RESULTS = {"energy": "energy", "force": "forces"}
_FREE_ENERGY = {"free_energy": "free_energy"}


OCCUPANCY = ("raise", "highest")
"""How sites that several elements share, or that may be empty, are read."""

# Shares are rounded in files.
_FULL = 0.995

# Squared volume of unit vectors that count as dependent.
_FLAT = 1e-12

# Rows and columns of xx, yy, zz, yz, xz, xy.
_VOIGT = ([0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1])
# Where files keep a stress that is not the calculator's.
_STRESS_KEYS = ("stress", "virial", "virials")


def from_ase(
    atoms: ase.Atoms | Iterable[ase.Atoms],
    cutoff: float | Mapping | None = None,
    label: str | None = None,
    stress: bool | str = False,
    forces: str | None = None,
    occupancy: str = "raise",
) -> Graph:
    """Convert `ase.Atoms` to a graph.

    Features:
        `node["atomic_number"]`: int32 [N].
        `node["position"]`: float32 [N, 3], Angstrom.
        `context["cell"]`: float32 [3, 3], Angstrom, one vector per row; 0 without.
        `context["pbc"]`: int32 [3], 1 along periodic directions.
        `context["energy"]`, `node["force"]`: float32 scalar (eV) and [N, 3] (eV per
            Angstrom), if a calculator has stored them; nothing is computed.
        `context["stress"]`: float32 [6], with `stress`: xx, yy, zz, yz, xz, xy in eV
            per cubic Angstrom, positive under tension; NaN where it is not known.
        `edge["shift"]`: int32 [E, 3], with a cutoff. An edge points from the neighbour
            to the atom, from `position[sender] + shift @ cell` to
            `position[receiver]`.

    Entries of `atoms.info` that JSON can represent are stored in `info`.

    Needs `pip install "keras-bandgnn[chem]"`.

    Args:
        atoms: The structure.
        cutoff: Distance in Angstrom up to which atoms and their periodic images are
            neighbours, or a dictionary of distances by pairs of elements as in
            `ase.neighborlist`. Without a cutoff, the graph has no edges.
        label: The value to use as label: `"energy"`, `"free_energy"`, `"force"` (a
            node-level label) or a key of `atoms.info`.
        stress: True to add `context["stress"]`, from the calculator or from
            `atoms.info["stress"]`, `["virial"]` or `["virials"]`; or the key of
            `atoms.info` that holds it. Values are [6] as above, [9] or [3, 3]. A key
            with "virial" in its name holds virials in eV, -volume * stress. Cells
            without a volume have no stress.
        forces: Key of `atoms.arrays` with the forces, instead of those of the
            calculator.
        occupancy: What to do with sites that several elements share or that may be
            empty, as `atoms.info["occupancy"]` of ASE's reader of CIF says. `"raise"`
            refuses them. `"highest"` reads each site as the element with the largest
            share, the first one if equal, and leaves out sites that are more often
            empty. Energies, stresses and the forces on the other sites stay.

    Raises:
        ValueError: If the cutoff is not positive, or a periodic direction has no
            lattice vector with one, the label, the forces or a stress of
            the right shape are missing, an energy is not one number, an atomic number
            is not from 1 to 118, or a site is shared and `occupancy="raise"`.
        ImportError: If ASE is not installed.

    Example:
    >>> import ase.build  # doctest: +SKIP
    >>> from_ase(ase.build.bulk("Cu"), cutoff=3.0).num_edges  # doctest: +SKIP
    12
    """
    having("atoms", atoms, "get_atomic_numbers", "an Atoms of ASE")
    atoms = ordered_atoms(atoms, occupancy)
    node = {
        "atomic_number": atomic_numbers(
            atoms.get_atomic_numbers(), "Replace the atom, or leave out the structure."
        ),
        "position": atoms.get_positions(),
    }
    context = {
        "cell": np.asarray(atoms.get_cell()),
        "pbc": np.asarray(atoms.get_pbc()),
    }
    results = _results(atoms)
    if forces is not None:
        if forces not in atoms.arrays:
            raise ValueError(
                "Expected `forces` to be a key of atoms.arrays, one of "
                f"{sorted(atoms.arrays)}. Received: forces={forces!r}. Choose the one "
                "with the forces, or leave it out for those of the calculator."
            )
        results["force"] = atoms.arrays[forces]
    fields = {}
    if label is not None:
        values = {**atoms.info, **_results(atoms, _FREE_ENERGY), **results}
        if label not in values:
            finite = np.isfinite(node["position"]).all()
            alternatives = (
                f"one of {sorted(values)}" if values else "of which there is none"
            )
            advice = "Choose one of these." if values else "Leave the frame out."
            if label == "energy" and "free_energy" in values:
                advice = (
                    "The only energy is the free energy, whose derivatives are the "
                    "forces: pass label='free_energy'."
                )
            if not finite:
                # ASE's calculators then take the structure for another one.
                raise ValueError(
                    "Expected finite positions. Received: NaN or infinity. Leave the "
                    "frame out, or correct it."
                )
            raise ValueError(
                "Expected `label` to be a result of the calculator or a key of "
                f"atoms.info, {alternatives}. Received: label={label!r}. {advice}"
            )
        if isinstance(values[label], str) or (
            "energy" in label and _is_boolean(values[label])
        ):
            _refuse_number(label, values[label])
        fields["label"] = values[label]
        fields["label_level"] = "node" if label == "force" else "graph"
        results.pop(label, None)
    node |= {k: v for k, v in results.items() if k == "force"}
    context |= {k: v for k, v in results.items() if k == "energy"}
    if stress is not False:
        context["stress"] = _stress(atoms, stress)
    receivers = senders = np.zeros(0, np.int32)
    edge = {}
    if cutoff is not None:
        if not isinstance(cutoff, Mapping) and not cutoff > 0:
            refuse("cutoff", "positive", cutoff, "Pass a distance in Angstrom.")
        _check_periods(context["cell"], context["pbc"])
        neighbours = optional_import("ase.neighborlist", _EXTRA).neighbor_list
        receivers, senders, edge["shift"] = neighbours("ijS", atoms, cutoff)
    return Graph(
        len(atoms),
        senders,
        receivers,
        node=node,
        edge=edge,
        context=context,
        info={k: v for k, v in atoms.info.items() if k != label and _is_json(k, v)},
        **fields,
    )


def _check_periods(cell: np.ndarray, pbc: np.ndarray) -> None:
    """Raise a ValueError if a periodic direction has no lattice vector.

    ASE would take a cell about the atoms.
    """
    rows = cell[pbc]
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows / np.where(lengths > 0, lengths, 1)
    if np.linalg.det(rows @ rows.T) < _FLAT:
        raise ValueError(
            "Expected independent lattice vectors along the periodic directions. "
            f"Received: cell={cell.tolist()}, pbc={pbc.tolist()}. Set atoms.pbc to "
            "False along directions without a period."
        )


def ordered_atoms(
    atoms: Any, occupancy: str, labels: Sequence[str] | None = None
) -> Any:
    """Return atoms of one element per site; see `occupancy` of `from_ase`.

    Args:
        atoms: The structure.
        occupancy: One of `OCCUPANCY`.
        labels: Names of the sites by their numbers, for the error.
    """
    one_of("occupancy", occupancy, OCCUPANCY)
    sites = atoms.info.get("occupancy")
    if not isinstance(sites, Mapping):
        return atoms
    sites = {str(kind): _by_element(share) for kind, share in sites.items()}
    kinds = atoms.arrays.get("spacegroup_kinds", range(len(atoms)))
    shares = [sites.get(str(kind), {}) for kind in kinds]
    shared = {
        (int(kind), tuple(share.items()))
        for kind, share in zip(kinds, shares, strict=True)
        if share and (len(share) > 1 or sum(share.values()) < _FULL)
    }
    if not shared:
        return atoms
    if occupancy == "raise":
        names = [
            f"{labels[kind] if labels else kind} ("
            + ", ".join(f"{value:g} {symbol}" for symbol, value in share)
            + ")"
            for kind, share in sorted(shared)
        ]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise ValueError(
            "Expected every site to hold one element, always. Received: the sites "
            f"{', '.join(names[:5])}{more}. Pass occupancy='highest' to read each as "
            "the element with the largest share, or make ordered structures first."
        )
    if "spacegroup_kinds" not in atoms.arrays and len(sites) != len(atoms):
        raise ValueError(
            "Expected atoms.arrays['spacegroup_kinds'], the site of each atom. Received"
            f": none, and {len(sites)} sites of {len(atoms)} atoms. Read the file "
            "again."
        )
    symbols = [max(s, key=s.get, default=None) for s in shares]
    full = [not s or max(s.values()) >= 1 - sum(s.values()) for s in shares]
    ordered = atoms.copy()
    ordered.info.pop("occupancy")
    ordered.symbols = [
        new or old for new, old in zip(symbols, atoms.symbols, strict=True)
    ]
    ordered = ordered[np.flatnonzero(full)]
    _copy_results(atoms, ordered, np.asarray(full))
    return ordered


def _by_element(share: Any) -> dict[str, float]:
    """Return the shares of a site, with isotopes of hydrogen as hydrogen."""
    total: dict[str, float] = {}
    for symbol, value in share.items() if isinstance(share, Mapping) else ():
        symbol = "H" if symbol in ("D", "T") else symbol
        total[symbol] = total.get(symbol, 0.0) + value
    return total


def _copy_results(atoms: Any, ordered: Any, full: np.ndarray) -> None:
    """Give ordered atoms the results that are stored for all sites."""
    if atoms.calc is None:
        return
    names = ("energy", "free_energy", "forces", "stress")
    results = _results(atoms, {name: name for name in names})
    if "forces" in results:
        results["forces"] = np.asarray(results["forces"])[full]
    single = optional_import("ase.calculators.singlepoint", _EXTRA)
    ordered.calc = single.SinglePointCalculator(ordered, **results)


def _results(atoms: Any, names: Mapping[str, str] = _RESULTS) -> dict[str, Any]:
    results = {}
    for name, key in names.items() if atoms.calc is not None else ():
        # Calculators without free energies raise an error.
        with contextlib.suppress(NotImplementedError):
            value = atoms.calc.get_property(key, atoms, allow_calculation=False)
            if value is None:
                continue
            if "energy" in name and (
                isinstance(value, str) or np.size(value) != 1 or _is_boolean(value)
            ):
                _refuse_number(name, value)
            results[name] = value
    return results


def _is_boolean(value: Any) -> bool:
    return np.asarray(value).dtype == bool


def _refuse_number(name: str, value: Any) -> NoReturn:
    text = value if isinstance(value, str) else np.asarray(value).tolist()
    raise ValueError(
        f"Expected the value {name!r} to be one number. Received: {text!r:.80}. Write "
        "a point for decimals, as in -3.5, and E for exponents, as in 1E-3."
    )


def _stress(atoms: Any, key: bool | str) -> np.ndarray:
    """Return the stress of a structure as float32 [6], NaN if it has none."""
    missing = np.full(6, np.nan, np.float32)
    volume = abs(np.linalg.det(np.asarray(atoms.get_cell())))
    name, value = "stress", None
    if key in (True, "stress") and atoms.calc is not None:
        # Calculators without stresses raise an error.
        with contextlib.suppress(NotImplementedError):
            value = atoms.calc.get_property("stress", atoms, allow_calculation=False)
    if value is None:
        names = _STRESS_KEYS if key is True else (key,)
        name = next((name for name in names if name in atoms.info), None)
        if name is None:
            return missing
        value = atoms.info[name]
    if volume == 0:
        return missing
    try:
        value = np.asarray(value, float)
    except (TypeError, ValueError):
        value = np.zeros(0)
    if value.size == 9:
        value = value.reshape(3, 3)
        value = ((value + value.T) / 2)[_VOIGT]
    if value.shape != (6,):
        raise ValueError(
            f"Expected {name!r} to be a stress or virial of 6 numbers (xx, yy, zz, yz, "
            f"xz, xy), 9 or [3, 3]. Received: {shown(atoms.info.get(name, value))}."
        )
    if "virial" in name.lower():
        value = -value / volume
    return value.astype(np.float32)


def _is_json(name: str, value: Any) -> bool:
    try:
        return bool(json_text(name, value))
    except ValueError:
        return False


def to_ase(graph: Graph) -> ase.Atoms:
    """Convert a graph with the features of `from_ase` to `ase.Atoms`.

    Energy, forces and stress are stored in a `SinglePointCalculator`, `info` in
    `atoms.info`. Edges are dropped: ASE computes neighbours itself.

    Needs `pip install "keras-bandgnn[chem]"`.

    Args:
        graph: A graph with `node["atomic_number"]` and `node["position"]`, and
            optionally `context["cell"]`, `context["pbc"]`, `context["energy"]`,
            `context["stress"]` and `node["force"]`.

    Raises:
        ValueError: If atomic numbers or positions are missing.
        ImportError: If ASE is not installed.

    Example:
    >>> pair = {"atomic_number": [8, 1], "position": [[0, 0, 0], [0, 0, 0.97]]}
    >>> to_ase(Graph(2, [], [], node=pair)).get_chemical_formula()  # doctest: +SKIP
    'HO'
    """
    instance("graph", graph, Graph, "a Graph")
    refuse_sets(graph, "ASE")
    missing = {"atomic_number", "position"} - graph.node.keys()
    if missing:
        raise ValueError(
            "Expected node features 'atomic_number' and 'position'. Received: "
            f"{sorted(graph.node)}. Rename the features with graph.replace(node=...)."
        )
    package = optional_import("ase", _EXTRA)
    calculators = optional_import("ase.calculators.singlepoint", _EXTRA)
    atoms = package.Atoms(
        numbers=graph.node["atomic_number"],
        positions=graph.node["position"],
        cell=graph.context.get("cell"),
        pbc=graph.context.get("pbc"),
        info=dict(graph.info),
    )
    results = {}
    if "energy" in graph.context:
        results["energy"] = float(graph.context["energy"])
    if "force" in graph.node:
        results["forces"] = np.array(graph.node["force"], float)
    if "stress" in graph.context and not np.isnan(graph.context["stress"]).any():
        results["stress"] = np.array(graph.context["stress"], float)
    if results:
        atoms.calc = calculators.SinglePointCalculator(atoms, **results)
    return atoms
