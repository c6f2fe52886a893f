"""`Signature`: the nested arrays of a batch as named inputs in a fixed order."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_bandgnn.checks import one_of, positive_int

_MAX_AXES = 32  # of NumPy before 2.0
_DTYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "uint32", "float16")
_DTYPES += ("bfloat16", "float32", "float64")


@dataclasses.dataclass(frozen=True)
class Input:
    """One array of a batch.

    Args:
        name: Input name in the exported model, such as `"node_kind"`.
        path: Keys of the array in `x`.
        shape: Static shape, with axis 0 = G = 1.
        dtype: Name of the dtype.
    """

    name: str
    path: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str


class Signature:
    """Names, shapes and dtypes of the inputs of an exported model.

    Args:
        inputs: The arrays, in order.
        empty: Paths of the empty dicts of a batch.

    Example:
    >>> x = {"node": {"kind": np.zeros((1, 4), "int32")}, "plan": {}}
    >>> signature = Signature.of(x)
    >>> signature.names, signature.empty
    (['node_kind'], [('plan',)])
    >>> sorted(signature.nested(signature.flat(x)))
    ['node', 'plan']
    """

    def __init__(self, inputs: Sequence[Input], empty: Sequence[Sequence[str]] = ()):
        self.inputs = list(inputs)
        self.empty = [tuple(path) for path in empty]
        if len(set(self.names)) < len(self.names):
            raise ValueError(
                "Expected features whose names differ in letters, digits or "
                f"underscores. Received: inputs {sorted(self.names)}."
            )

    @classmethod
    def of(cls, x: Mapping, unread: Sequence[tuple[str, ...]] = ()) -> "Signature":
        """Return the signature of a batch, without the `unread` paths."""
        inputs, empty = [], []
        for path, value in _walk(x):
            if path in unread:
                continue
            if value is None:
                empty.append(path)
                continue
            # Some formats allow no other characters in tensor names.
            name = re.sub(r"[^0-9A-Za-z]", "_", "_".join(path))
            inputs.append(Input(name, path, tuple(value.shape), str(value.dtype)))
        return cls(inputs, empty)

    @property
    def names(self) -> list[str]:
        """Names of the inputs."""
        return [spec.name for spec in self.inputs]

    def flat(self, x: Mapping) -> dict[str, np.ndarray]:
        """Return the arrays of a batch by name.

        Raises:
            ValueError: If one is missing or has another shape or dtype.
        """
        arrays = {path: value for path, value in _walk(x) if value is not None}
        out = {}
        for spec in self.inputs:
            if spec.path not in arrays:
                raise ValueError(
                    f"Expected graphs with {'/'.join(spec.path)!r}, an input of the "
                    "exported model. Received: graphs without it."
                )
            value = np.ascontiguousarray(arrays[spec.path])
            if value.shape != spec.shape or str(value.dtype) != spec.dtype:
                raise ValueError(
                    f"Expected {'/'.join(spec.path)!r} as {spec.dtype} of shape "
                    f"{spec.shape}, as the model was exported. Received: "
                    f"{value.dtype} of shape {value.shape}."
                )
            out[spec.name] = value
        return out

    def nested(self, values: Mapping[str, Any]) -> dict:
        """Return the nested batch of tensors by name."""
        out: dict = {}
        for path in self.empty:
            _dict_at(out, path)
        for spec in self.inputs:
            _dict_at(out, spec.path[:-1])[spec.path[-1]] = values[spec.name]
        return out

    def get_config(self) -> dict:
        """Return the configuration for `Signature.from_config`."""
        return {
            "inputs": [dataclasses.asdict(spec) for spec in self.inputs],
            "empty": [list(path) for path in self.empty],
        }

    @classmethod
    def from_config(cls, config: Mapping) -> "Signature":
        """Build the signature from `get_config()`.

        Raises:
            ValueError: If an entry is invalid.
        """
        inputs = []
        for entry in config["inputs"]:
            name, path, shape = entry["name"], entry["path"], entry["shape"]
            one_of(f"dtype of {name}", entry["dtype"], _DTYPES)
            if not isinstance(name, str) or not _is_path(path):
                raise ValueError(
                    "Expected an input with a name and a path, a list of names. "
                    f"Received: {str(entry)[:200]}."
                )
            if len(shape) > _MAX_AXES:
                raise ValueError(
                    f"Expected shapes of at most {_MAX_AXES} axes. Received: "
                    f"{len(shape)} of {name}."
                )
            sizes = tuple(positive_int(f"shape of {name}", size, 0) for size in shape)
            inputs.append(Input(name, tuple(path), sizes, entry["dtype"]))
        if not all(map(_is_path, config["empty"])):
            raise ValueError(
                f"Expected paths of empty parts. Received: {str(config['empty'])[:200]}"
                "."
            )
        return cls(inputs, config["empty"])


def _is_path(path: Any) -> bool:
    return isinstance(path, list) and all(isinstance(key, str) for key in path)


def _walk(tree: Mapping, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Yield paths and arrays; empty dicts yield their path and None."""
    if not tree:
        yield path, None
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _walk(value, (*path, key))
        else:
            yield (*path, key), value


def _dict_at(tree: dict, path: Sequence[str]) -> dict:
    for key in path:
        tree = tree.setdefault(key, {})
    return tree
