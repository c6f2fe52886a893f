"""`ExportBatcher`: supergraphs of one shape, and errors for larger graphs."""

from collections.abc import Mapping

import numpy as np

from keras_bandgnn.preprocessing.dynamic_batcher import DynamicBatcher


class ExportBatcher(DynamicBatcher):
    """A `DynamicBatcher` of an exported model, whose shapes cannot change."""

    def split(self, sizes: Mapping[str, np.ndarray]) -> tuple[np.ndarray, list[dict]]:
        """See `Batcher.split`.

        Raises:
            ValueError: If a graph is above the budget.
        """
        fits = self.fits(sizes)
        if not fits.all():
            first = int(np.flatnonzero(~fits)[0])
            # A node and a graph slot are padding.
            room = {name: n - (name == "node") for name, n in self.budget.items()}
            above = {
                name: f"{int(values[first])} (at most {room[name]})"
                for name, values in sizes.items()
                if values[first] > room[name]
            }
            raise ValueError(
                "Expected graphs within the budget that the model was exported for. "
                f"Received: {int((~fits).sum())} above it; graph {first} needs {above}."
                " Export again with larger graphs or a larger budget."
            )
        return np.zeros(len(fits), np.int8), [dict(self.budget)]
