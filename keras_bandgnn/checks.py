"""Argument validation with uniform error messages.

Each check returns the normalised value, or raises a ValueError: "Expected `name` ...
Received: name=value." Public entry points run them before reading data or compiling.
"""

import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

INT32_MAX = 2**31 - 1
LAST_ELEMENT = 118
_LENGTH = 80


def shown(value: Any) -> str:
    """Format a value for error messages: short, in one line, with its type."""
    kind = type(value).__name__
    if value is None or isinstance(value, type | bool | int | float):
        return str(value)[:_LENGTH]
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    try:
        text = repr(value)
    except Exception:  # a failing `repr` must not hide the message
        return f"a {kind}"
    text = " ".join(text.split())
    if len(text) > _LENGTH:
        text = f"{text[: _LENGTH - 4]} ..."
    return f"{text} ({kind})"


def refuse(name: str, expected: str, value: Any, advice: str = "") -> NoReturn:
    """Raise the ValueError for an invalid argument.

    Args:
        name: The argument.
        expected: The expectation, such as "an integer".
        value: The value.
        advice: What to do instead.
    """
    advice = advice and f" {advice}"
    raise ValueError(
        f"Expected `{name}` to be {expected}. Received: {name}={shown(value)}.{advice}"
    )


def optional(check: Callable, name: str, value: Any, *options: Any) -> Any:
    """Return None for None, otherwise `check(name, value, *options)`."""
    return None if value is None else check(name, value, *options)


def positive_int(
    name: str, value: Any, minimum: int = 1, maximum: int = INT32_MAX
) -> int:
    """Return `value` as an int in [minimum, maximum], or raise.

    The default maximum is that of int32, the type of sizes and ids on the device.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral):
        refuse(name, "an integer", value)
    if value < minimum:
        refuse(name, f"at least {minimum}", value)
    if value > maximum:
        refuse(name, f"at most {maximum}", value)
    return int(value)


def divisor(name: str, value: Any, multiple: str, size: int) -> int:
    """Return `value` as a positive int that divides another argument, or raise.

    Args:
        name: The argument.
        value: Its value.
        multiple: The argument that it divides.
        size: The value of that one.
    """
    value = positive_int(name, value)
    if size % value:
        raise ValueError(
            f"Expected `{multiple}` to be a multiple of `{name}`. "
            f"Received: {multiple}={size}, {name}={value}."
        )
    return value


def check_heads(num_heads: int, devices: int) -> None:
    """Raise a ValueError if devices cannot share the heads of attention evenly."""
    if num_heads % devices:
        raise ValueError(
            f"Expected a number of heads that is a multiple of {devices}, the devices "
            f"per sequence. Received: {num_heads}. Use fewer devices per sequence, or "
            "another number of heads."
        )


def positive_ints(name: str, value: Any) -> int | list[int]:
    """Return a positive int, or several in a list, or raise."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        items = [positive_int(name, item) for item in value]
        if not items:
            refuse(name, "a list that is not empty", value)
        return items
    return positive_int(name, value)


def seed_number(name: str, value: Any) -> int:
    """Return `value` as an int seed, or raise."""
    return positive_int(name, value, 0, 2**62)


def number(name: str, value: Any) -> float:
    """Return `value` as a finite float, or raise."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        refuse(name, "a number", value)
    if not math.isfinite(value):
        refuse(name, "a finite number", value)
    return float(value)


def positive_number(name: str, value: Any) -> float:
    """Return `value` as a finite float above 0, or raise."""
    _real(name, value)
    if not 0 < value < math.inf:
        refuse(name, "positive and finite", value)
    return float(value)


def non_negative_number(name: str, value: Any) -> float:
    """Return `value` as a float of at least 0, including infinity, or raise."""
    _real(name, value)
    if not value >= 0:
        refuse(name, "at least 0", value)
    return float(value)


def fraction(name: str, value: Any) -> float:
    """Return `value` as a float in [0, 1), or raise."""
    _real(name, value)
    if not 0 <= value < 1:
        raise ValueError(
            f"Expected `{name}` in [0, 1). Received: {name}={shown(value)}."
        )
    return float(value)


def _real(name: str, value: Any) -> None:
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        refuse(name, "a number", value)


def boolean(name: str, value: Any) -> bool:
    """Return `value` as a bool, or raise, since strings such as "no" are truthy."""
    if not isinstance(value, bool | np.bool_):
        refuse(name, "True or False", value)
    return bool(value)


def string(name: str, value: Any) -> str:
    """Return `value` if it is a non-empty string, or raise."""
    if not isinstance(value, str):
        refuse(name, "a string", value)
    if not value:
        refuse(name, "a string that is not empty", value)
    return value


def one_of(name: str, value: Any, choices: Iterable) -> Any:
    """Return `value` if it is among `choices`, or raise."""
    for choice in choices:
        if isinstance(value, type(choice)) and value == choice:
            return value
    listed = ", ".join(repr(choice) for choice in choices)
    raise ValueError(
        f"Expected `{name}` to be one of {listed}. Received: {name}={value!r:.80}."
    )


def as_path(name: str, value: Any) -> Path:
    """Return `value` as a `Path`, or raise."""
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes):
        refuse(name, "a path", value)
    if not os.fspath(value) or "\0" in os.fspath(value):
        refuse(name, "a path", value)
    return Path(value)


def existing_folder(name: str, value: Any) -> Path:
    """Return `value` as the `Path` of a folder, or raise."""
    place = as_path(name, value)
    expected = (
        f"Expected `{name}` to be a folder. Received: {name}={str(place)!r}, which"
    )
    if not place.exists():
        raise FileNotFoundError(f"{expected} does not exist.")
    if not place.is_dir():
        raise NotADirectoryError(f"{expected} is a file.")
    return place


def mapping(name: str, value: Any) -> Mapping:
    """Return `value` if it is a mapping with string keys, or raise."""
    if not isinstance(value, Mapping):
        refuse(name, "a dict", value)
    for key in value:
        if not isinstance(key, str) or not key:
            raise ValueError(
                f"Expected the names in `{name}` to be strings that are not empty. "
                f"Received: {shown(key)}."
            )
    return value


def element_cutoffs(value: Any, cutoff: float) -> dict[int, float] | None:
    """Return a copy of cutoffs by atomic number; None for none.

    Args:
        value: A mapping from atomic numbers, also as text, to Angstrom; or None.
        cutoff: The largest that an element may have, Angstrom.

    Example:
    >>> element_cutoffs({1: 3.5}, cutoff=5.0)
    {1: 3.5}
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        refuse("element_cutoffs", "a dict from atomic numbers to Angstrom", value)
    cutoffs = {}
    for key, radius in value.items():
        # JSON has text as keys.
        element = int(key) if isinstance(key, str) and key.isdecimal() else key
        element = positive_int("element_cutoffs (atomic numbers)", element)
        radius = positive_number(f"element_cutoffs[{element}]", radius)
        if element > LAST_ELEMENT or radius > cutoff:
            refuse(
                "element_cutoffs",
                f"atomic numbers up to {LAST_ELEMENT}, and at most cutoff={cutoff:g}",
                {element: radius},
            )
        cutoffs[element] = radius
    return cutoffs or None


def atomic_numbers(values: Any, advice: str) -> np.ndarray:
    """Return `values` as an array, or raise unless all are atomic numbers.

    Everything that makes graphs of structures calls it.

    Args:
        values: int [N].
        advice: What to do, for the error.
    """
    values = np.asarray(values)
    bad = np.flatnonzero((values < 1) | (values > LAST_ELEMENT))
    if bad.size:
        number = int(values[bad[0]])
        dummy = ", ASE's X, an atom without an element," if number == 0 else ""
        raise ValueError(
            f"Expected atomic numbers from 1 to {LAST_ELEMENT}. Received: {number}"
            f"{dummy} for atom {bad[0]}. {advice}"
        )
    return values


def sequence(name: str, value: Any, what: str = "a list") -> list:
    """Return the items of `value` as a list, or raise, also for strings."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        refuse(name, what, value)
    return list(value)


def strings(name: str, value: Any) -> list[str]:
    """Return `value` as a list of strings, or raise."""
    items = sequence(name, value, "a list of strings")
    return [string(f"{name}[{i}]", item) for i, item in enumerate(items)]


def instance(name: str, value: Any, kind: type | tuple, expected: str) -> Any:
    """Return `value` if it is an instance of `kind`, or raise.

    Args:
        name: The argument.
        value: Its value.
        kind: A class, or several.
        expected: The expectation for the message, such as "a Graph".
    """
    if not isinstance(value, kind):
        refuse(name, expected, value)
    return value


def having(name: str, value: Any, attribute: str, expected: str) -> Any:
    """Return `value` if it has an attribute, or raise; import no class."""
    if not hasattr(value, attribute):
        refuse(name, expected, value)
    return value


def function(name: str, value: Any) -> Callable:
    """Return `value` if it is callable, or raise."""
    if not callable(value):
        refuse(name, "a function", value)
    return value


def array(name: str, value: Any) -> np.ndarray:
    """Return `value` as a numeric array, or raise."""
    try:
        values = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"Expected `{name}` to be a rectangular array of numbers. Received: "
            f"{shown(value)}. Pad rows of differing lengths to one length first."
        ) from error
    if values.dtype.kind not in "biuf":
        refuse(name, "an array of numbers", value)
    return values


def int_array(name: str, value: Any, ndim: int = 1) -> np.ndarray:
    """Return `value` as an array of integers of `ndim` axes, or raise."""
    values = array(name, value)
    if values.ndim != ndim or (values.size and values.dtype.kind not in "iu"):
        raise ValueError(
            f"Expected `{name}` to be a {ndim}-D array of integers. Received: {name} "
            f"of shape {values.shape} and dtype {values.dtype}."
        )
    return values if values.size else values.astype(np.int64)
