"""`Compilation`: one compilation of a step, and the batch that caused it."""

import dataclasses
from typing import Any

import keras


@dataclasses.dataclass(frozen=True)
class Compilation:
    """One compilation of a step, and the batch that caused it.

    Args:
        kind: "train", "test" or "predict".
        epoch: Epoch, from 0.
        step: Step of the epoch, from 0. With `steps_per_execution` above 1 the first
            of the steps that run together.
        shapes: Path of each array of the batch ("edge/sender", "y") -> its shape. What
            TensorFlow leaves open is None.
        dtypes: Path of each array -> its dtype.
        changed: What differs from the compilation before, a line per array. Empty for
            the first one, and where no shape and no dtype differs.
    """

    kind: str
    epoch: int
    step: int
    shapes: dict[str, tuple | None]
    dtypes: dict[str, str]
    changed: tuple[str, ...]

    @classmethod
    def of(
        cls, kind: str, epoch: int, step: int, batch: Any, earlier: "Compilation | None"
    ) -> "Compilation":
        """Describes the compilation that a batch caused.

        Args:
            kind: "train", "test" or "predict".
            epoch: Epoch, from 0.
            step: Step of the epoch, from 0.
            batch: What a data set yields: x, (x,), (x, y) or (x, y, sample_weight),
                each an array or nested. Arrays in a dict x go by their own path.
            earlier: The compilation of the same step before this one.

        Example:
        >>> import numpy as np
        >>> batch = {"node": {"kind": np.zeros((1, 4), "int32")}}, np.zeros(2)
        >>> Compilation.of("train", 0, 0, batch, None).shapes
        {'node/kind': (1, 4), 'y': (2,)}
        """
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        shapes, dtypes = {}, {}
        parts = {"" if isinstance(x, dict) else "x": x, "y": y, "sample_weight": weight}
        for name, part in parts.items():
            for path, leaf in keras.tree.flatten_with_path(part):
                if hasattr(leaf, "shape"):
                    path = "/".join(str(key) for key in (name, *path) if key != "")
                    known = getattr(leaf.shape, "rank", 0) is not None
                    shapes[path] = tuple(leaf.shape) if known else None
                    dtypes[path] = keras.backend.standardize_dtype(leaf.dtype)
        changed = []
        if earlier:
            changed = _changes(earlier.shapes, shapes)
            changed = changed or _changes(earlier.dtypes, dtypes)
        return cls(kind, epoch, step, shapes, dtypes, tuple(changed))


def _changes(before: dict, after: dict) -> list[str]:
    return [
        f"{path}: {before.get(path, 'absent')} -> {after.get(path, 'absent')}"
        for path in dict.fromkeys([*before, *after])
        if before.get(path) != after.get(path)
    ]
