"""`ElementEmbedding`: initial states of atoms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import LAST_ELEMENT, positive_int, refuse
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions, Shape, Tensor


@serializable
class ElementEmbedding(keras_bases.Layer):
    """One learned vector per element: a one-hot vector times a matrix.

    Elements outside the table get zeros. Tasks reject such graphs before they run
    (`check`); a plain Keras call cannot.

    Args:
        units: Width C of a state.
        elements: The atomic numbers that occur, or an integer V for all below V.

    Input shape:
        int32 [G, N], atomic numbers; any values for padding.

    Output shape:
        float [G, N, C].

    Raises:
        ValueError: For repeated numbers, none, or numbers that no element has.

    Reference:
        Schuett et al. 2017 (SchNet).

    Example:
    >>> import numpy as np
    >>> embedding = ElementEmbedding(4, elements=(1, 6, 7, 8, 9))
    >>> embedding(np.array([[6, 1, 1]])).shape[-1], embedding.count_params()
    (4, 20)
    """

    splits_sequences = True

    def __init__(
        self, units: int, elements: int | Iterable[int], **kwargs: Unpack[LayerOptions]
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.units = positive_int("units", units)
        if isinstance(elements, Iterable) and not isinstance(elements, str | Mapping):
            self.elements = [
                positive_int("elements", number, 0, LAST_ELEMENT) for number in elements
            ]
            if not self.elements or len(set(self.elements)) < len(self.elements):
                refuse(
                    "elements", "distinct atomic numbers, at least one", self.elements
                )
        else:
            self.elements = positive_int("elements", elements, maximum=LAST_ELEMENT + 1)
        # === Layers ===
        numbers = self._atomic_numbers()
        self.table = keras.layers.Embedding(
            len(numbers),
            self.units,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0),
            dtype=self.dtype_policy,
            name="table",
        )
        # The row of each number; -1 below, between and above the known ones.
        self._rows = np.full(max(numbers) + 3, -1, np.int32)
        self._rows[np.array(numbers) + 1] = np.arange(len(numbers))

    def _atomic_numbers(self) -> list[int]:
        if isinstance(self.elements, int):
            return list(range(self.elements))
        return self.elements

    def build(self, shape: Shape | None = None) -> None:
        """Build the table; its shape follows from the configuration."""
        self.table.build((None, None))
        self.built = True

    def check(self, atomic_numbers: np.ndarray) -> None:
        """Raise a ValueError if an element is not known.

        Args:
            atomic_numbers: int [N].
        """
        unknown = sorted(
            set(np.unique(atomic_numbers).tolist()) - set(self._atomic_numbers())
        )
        if unknown:
            raise ValueError(
                f"Expected atomic numbers among elements={self.elements}. Received: "
                f"{unknown}. Add them to the model's `elements`."
            )

    def known_ids(self) -> dict[str, dict]:
        """Return the listed elements, if any; see `Backbone.known_ids`."""
        listed = not isinstance(self.elements, int)
        return {"atomic_number": {"among": list(self.elements)}} if listed else {}

    def call(self, atomic_numbers: Tensor) -> Tensor:
        """Return the vector of each atom."""
        places = ops.clip(ops.cast(atomic_numbers, "int32"), -1, len(self._rows) - 2)
        rows = graph_ops.gather(ops.convert_to_tensor(self._rows), places + 1)
        is_listed = ops.expand_dims(rows >= 0, -1)
        vectors = self.table(ops.maximum(rows, 0))
        return ops.where(is_listed, vectors, ops.zeros_like(vectors))

    def compute_output_shape(self, shape: Shape) -> Shape:
        """[G, N, C]."""
        return (*shape, self.units)
