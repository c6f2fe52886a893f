"""Cutoffs by element: how far the edges of an atom reach, by its atomic number."""

from collections.abc import Mapping

import numpy as np

from keras_bandgnn.checks import positive_int, positive_number, refuse

NUM_ELEMENTS = 119
"""Atomic numbers are below it."""


def checked_cutoffs(value, cutoff: float) -> dict[int, float] | None:
    """Return a copy of cutoffs by atomic number.

    Args:
        value: A mapping from atomic numbers, also as text, to Angstrom; or None.
        cutoff: The largest that an element may have, Angstrom.

    Raises:
        ValueError: For other values.

    Example:
    >>> checked_cutoffs({1: 3.5}, cutoff=5.0)
    {1: 3.5}
    """
    if value is None:
        return None
    if not isinstance(value, Mapping) or not value:
        refuse("element_cutoffs", "a dict from atomic numbers to Angstrom", value)
    found = {}
    for key, radius in value.items():
        element = int(key) if isinstance(key, str) and key.isdecimal() else key
        element = positive_int("element_cutoffs (atomic numbers)", element)
        radius = positive_number(f"element_cutoffs[{element}]", radius)
        if element >= NUM_ELEMENTS or radius > cutoff:
            refuse(
                "element_cutoffs",
                f"atomic numbers below {NUM_ELEMENTS} and at most cutoff={cutoff:g}",
                {element: radius},
            )
        found[element] = radius
    return found


def cutoff_table(cutoffs: Mapping[int, float], cutoff: float) -> np.ndarray:
    """Return the cutoff of each atomic number, float64 [120]; the last is for others.

    Args:
        cutoffs: Those that differ from `cutoff`.
        cutoff: That of all other elements.
    """
    table = np.full(NUM_ELEMENTS + 1, cutoff)
    for element, radius in cutoffs.items():
        table[element] = radius
    return table
