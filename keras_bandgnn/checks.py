"""Checks of arguments, with one form of message."""

import math
import numbers
from typing import Any


def positive_int(name: str, value: Any, minimum: int = 1) -> int:
    """Returns `value` as an int of at least `minimum`, or raises."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(
            f"Expected `{name}` to be an integer. "
            f"Received: {name}={value!r} ({type(value).__name__})."
        )
    if value < minimum:
        raise ValueError(
            f"Expected `{name}` to be at least {minimum}. Received: {name}={value}."
        )
    return int(value)


def positive_number(name: str, value: Any) -> float:
    """Returns `value` as a float above 0, or raises."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(
            f"Expected `{name}` to be a number. Received: {name}={value!r}."
        )
    if not 0 < value < math.inf:
        raise ValueError(
            f"Expected `{name}` to be positive and finite. Received: {name}={value}."
        )
    return float(value)


def fraction(name: str, value: Any) -> float:
    """Returns `value` as a float in [0, 1), or raises."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(
            f"Expected `{name}` to be a number. Received: {name}={value!r}."
        )
    if not 0 <= value < 1:
        raise ValueError(f"Expected `{name}` in [0, 1). Received: {name}={value}.")
    return float(value)


def one_of(name: str, value: Any, choices: tuple) -> Any:
    """Returns `value` if it is among `choices`, or raises."""
    if value not in choices:
        listed = ", ".join(repr(c) for c in choices)
        raise ValueError(
            f"Expected `{name}` to be one of {listed}. Received: {name}={value!r}."
        )
    return value
