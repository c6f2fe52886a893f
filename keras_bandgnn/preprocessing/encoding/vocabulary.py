"""Kinds of attributes of items: numbers, or categories with a vocabulary."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_bandgnn.checks import mapping, strings
from keras_bandgnn.data.converters.attributes import is_mask

# Integers with more distinct values are numbers.
MOST_CATEGORIES = 1000
# Degrees of nodes without attributes are below this.
MOST_DEGREES = 256
_SPECS = ({"number"}, {"number", "mean", "std"}, {"category"}, {"mask"})


def _kind(value: Any) -> str | None:
    """Return "category" or "number", or None for other values."""
    if isinstance(value, str | bool | np.bool_):
        return "category"
    array = _array(value)
    if array is None:
        return None
    return "category" if array.dtype.kind in "iu" and not array.ndim else "number"


def _array(value: Any) -> np.ndarray | None:
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    return array if array.dtype.kind in "biuf" and array.size else None


def is_missing(value: Any) -> bool:
    """Return whether a value stands for none: None, NaN, or `NA` of pandas."""
    if value is None or type(value).__name__ == "NAType":
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def plain(value: Any) -> Any:
    """Return a category as JSON has it: a str, an int or a bool."""
    return value.item() if isinstance(value, np.generic) else value


def checked_attributes(name: str, value: Any) -> list[str] | dict[str, dict] | None:
    """Return names of attributes to learn, or attributes that are known, or None.

    Args:
        name: Name of the argument, for errors.
        value: A list of names, or a result of `learn_attributes`.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return strings(name, value)
    mapping(name, value)
    for key, spec in value.items():
        is_spec = isinstance(spec, Mapping) and set(spec) in _SPECS
        if not is_spec or not all(isinstance(v, list | tuple) for v in spec.values()):
            raise ValueError(
                f"Expected {name}[{key!r}] to be {{'number': shape}}, with or without "
                "'mean' and 'std', {'category': values}, or {'mask': shape}. "
                f"Received: {spec!r}."
            )
    return {
        key: {kind: list(values) for kind, values in spec.items()}
        for key, spec in value.items()
    }


def _advice(what: str) -> str:
    """Return how to leave out an attribute, for errors."""
    if what in ("node", "edge", "graph", "context"):
        return f"Or choose the attributes to convert with {what}=[...]."
    return "Or leave the column out, or write it as numbers or strings."


def learn_attributes(
    what: str,
    columns: Mapping[str, Iterable[Any]],
    specs: Mapping[str, Any],
    standardize: bool = False,
) -> dict[str, dict]:
    """Learn the shapes or categories of attributes of nodes, edges or graphs.

    Args:
        what: "node", "edge" or "graph", for errors.
        columns: Values of each attribute in the data; None where missing.
        specs: Attributes that are not to be learnt, in the form of the result.
        standardize: Whether numbers get mean 0 and standard deviation 1.

    Returns:
        For each attribute `{"number": shape}`, which has `"mean"` and `"std"` of the
        data if numbers are standardized, or `{"category": values}` with the values in
        sorted order: id 0 is unknown or missing, id k the k-th value. Masks of splits,
        such as `train_mask`, of nodes, edges or graphs are `{"mask": shape}`.

    Raises:
        ValueError: For values that are neither, or numbers of several shapes.
    """
    learnt = dict(specs)
    for name, values in columns.items():
        if name in learnt:
            continue
        present = [value for value in values if not is_missing(value)]
        kinds = {_kind(value) for value in present}
        if not present:
            continue
        if what != "context" and is_mask(name, present):
            learnt[name] = {"mask": list(np.shape(present[0]))}
            continue
        if None in kinds:
            wrong = next(value for value in present if _kind(value) is None)
            raise ValueError(
                f"Expected the {what} attribute {name!r} to be a number, a vector of "
                f"numbers, a string or a bool. Received: {wrong!r:.60}. "
                f"{_advice(what)}"
            )
        if kinds == {"category"}:
            distinct = {plain(value) for value in present}
            words = any(isinstance(value, str | bool) for value in distinct)
            if words or len(distinct) <= MOST_CATEGORIES:
                order = sorted(distinct, key=lambda v: (type(v).__name__, v))
                learnt[name] = {"category": order}
                continue
        text = [v for v in present if isinstance(v, str | bool | np.bool_)]
        if text:
            number = next(
                v for v in present if not isinstance(v, str | bool | np.bool_)
            )
            raise ValueError(
                f"Expected the {what} attribute {name!r} to be all numbers or all "
                f"categories. Received: both {number!r:.30} and {text[0]!r:.30}. Write "
                f"one kind. {_advice(what)}"
            )
        learnt[name] = _learn_numbers(what, name, present, standardize)
    return learnt


def _learn_numbers(
    what: str, name: str, values: list, standardize: bool
) -> dict[str, list]:
    """Return the shape of numbers, with the mean and deviation if standardized."""
    shapes = {np.shape(value) for value in values}
    if len(shapes) > 1:
        raise ValueError(
            f"Expected the {what} attribute {name!r} to be numbers of one shape. "
            f"Received: shapes {sorted(shapes)}. Pad them to one shape. "
            f"{_advice(what)}"
        )
    spec = {"number": list(shapes.pop())}
    rows = np.array([np.ravel(value) for value in values], np.float64)
    # Infinite numbers are refused, with their position, when they are encoded.
    rows = rows[np.isfinite(rows).all(axis=1)]
    if standardize and rows.size:
        std = rows.std(axis=0)
        spec["mean"] = rows.mean(axis=0).tolist()
        spec["std"] = np.where(std > 0, std, 1.0).tolist()
    return spec


def encode_attribute(what: str, name: str, spec: Mapping, values: list) -> np.ndarray:
    """Return the ids of categories, masks, or float32 numbers, [n] or [n, ...].

    Args:
        what: "node", "edge" or "graph", for errors.
        name: Name of the attribute.
        spec: Its entry in the result of `learn_attributes`.
        values: Its values; None where missing, which categories and masks may be.

    Raises:
        ValueError: For numbers that are missing, or of another shape, and for masks
            with values other than 0 and 1.
    """
    if "mask" in spec:
        return _mask(what, name, tuple(spec["mask"]), values)
    if "category" in spec:
        ids = {value: k for k, value in enumerate(spec["category"], start=1)}
        return np.array([_id(ids, value) for value in values], np.int32)
    shape = tuple(spec["number"])
    for position, value in enumerate(values):
        array = None if is_missing(value) else _array(value)
        if array is None or array.shape != shape:
            numbers = f"numbers of shape {shape}" if shape else "a number"
            raise ValueError(
                f"Expected the {what} attribute {name!r} to be {numbers}. Received: "
                f"{value!r:.60} at {what} {position}. Set it. "
                f"{_advice(what)}"
            )
    rows = np.asarray(values, np.float64).reshape(len(values), math.prod(shape))
    if "mean" in spec:
        rows = (rows - spec["mean"]) / spec["std"]
    return rows.astype(np.float32).reshape(len(values), *shape)


def _mask(what: str, name: str, shape: tuple, values: list) -> np.ndarray:
    """Return a mask of 0 and 1, int32 [n] or [n, ...]; 0 where values are missing."""
    rows = [np.zeros(shape) if is_missing(value) else value for value in values]
    for position, row in enumerate(rows):
        if np.shape(row) != shape or not np.isin(row, (0, 1)).all():
            raise ValueError(
                f"Expected the {what} attribute {name!r} to be a mask of 0 and 1, "
                f"of shape {shape}. Received: {row!r:.60} at {what} {position}. "
                "Correct it, or rename the attribute."
            )
    return np.asarray(rows, np.int32).reshape(len(rows), *shape)


def _id(ids: Mapping, value: Any) -> int:
    if is_missing(value):
        return 0
    try:
        return ids.get(plain(value), 0)
    except TypeError:  # a list, for example
        return 0


def capped_degrees(degrees: Iterable[int]) -> np.ndarray:
    """Return degrees of nodes as ids, int32 [N] below `MOST_DEGREES`."""
    return np.minimum(np.asarray(degrees, np.int32), MOST_DEGREES - 1)


def several_categories(attributes: Mapping[str, Mapping]) -> list[str]:
    """Return the attributes with two or more categories.

    One category marks some items, and the others lack it.

    Args:
        attributes: A result of `learn_attributes`.
    """
    return [n for n, spec in attributes.items() if len(spec.get("category", ())) > 1]


def attribute_inputs(attributes: Mapping[str, Mapping]) -> dict[str, dict[str, int]]:
    """Return the `inputs` of a `NodeEncoder` for attributes that are not masks."""
    inputs = {}
    for name, spec in attributes.items():
        if "category" in spec:
            inputs[name] = {"ids": 1 + len(spec["category"])}
        elif "number" in spec and len(spec["number"]) <= 1:
            inputs[name] = {"features": int(np.prod(spec["number"], dtype=int))}
    return inputs
