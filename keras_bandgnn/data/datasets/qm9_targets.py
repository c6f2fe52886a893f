"""Targets of QM9: one set of names and units for all its forms."""

from collections.abc import Mapping

import numpy as np

from keras_bandgnn.data.datasets.parts import check_elements

UNITS = {
    "mu": "D",
    "alpha": "a0^3",
    "homo": "Ha",
    "lumo": "Ha",
    "gap": "Ha",
    "r2": "a0^2",
    "zpve": "Ha",
    "u0": "Ha",
    "u298": "Ha",
    "h298": "Ha",
    "g298": "Ha",
    "cv": "cal/mol/K",
    "u0_atom": "kcal/mol",
    "u298_atom": "kcal/mol",
    "h298_atom": "kcal/mol",
    "g298_atom": "kcal/mol",
}
"""Unit of each target. `*_atom` are energies of atomisation, below 0; the other
energies are totals."""

_KCAL_PER_HARTREE = 627.5094740631
# Energies of the free atoms at the level of theory of the data, as published with it.
_FREE_ATOMS = {
    "u0": {1: -0.500273, 6: -37.846772, 7: -54.583861, 8: -75.064579, 9: -99.71873},
    "u298": {1: -0.498857, 6: -37.845355, 7: -54.582445, 8: -75.063163, 9: -99.717314},
    "h298": {1: -0.497912, 6: -37.844411, 7: -54.581501, 8: -75.062219, 9: -99.71637},
    "g298": {1: -0.510927, 6: -37.861317, 7: -54.598897, 8: -75.079532, 9: -99.733544},
}


def with_atomisation(
    totals: Mapping[str, np.ndarray], atomic_number: np.ndarray, node_ptr: np.ndarray
) -> dict[str, np.ndarray]:
    """Adds the energies of atomisation to targets that have total energies.

    Args:
        totals: Targets [n] by name, with `u0`, `u298`, `h298`, `g298` in Ha.
        atomic_number: int [N].
        node_ptr: int [n + 1], the atoms of molecule i are `[ptr[i], ptr[i + 1])`.

    Returns:
        The targets, with `u0_atom` and so on in kcal/mol.
    """
    check_elements(atomic_number)
    out = dict(totals)
    for name, atoms in _FREE_ATOMS.items():
        energy = np.zeros(int(atomic_number.max(initial=0)) + 1)
        for number, value in atoms.items():
            if number < len(energy):
                energy[number] = value
        free = np.add.reduceat(energy[atomic_number], node_ptr[:-1])
        out[f"{name}_atom"] = (totals[name] - free) * _KCAL_PER_HARTREE
    return out
