"""`LoaderPlace`: where within an epoch a loader is, and how to come back there."""

import hashlib
import json
from typing import Any

import numpy as np

from keras_bandgnn.checks import positive_int


class LoaderPlace:
    """The part of `GraphLoader` that saves and restores its place."""

    def state(self, batches: int = 0, epoch: int | None = None) -> dict[str, Any]:
        """Where training is, to go on later with `resume`.

        Args:
            batches: Batches of the epoch that were used.
            epoch: The epoch, by default the current one.

        Returns:
            A dict that JSON can hold.
        """
        return {
            "epoch": self.epoch if epoch is None else epoch,
            "batch": batches,
            "fingerprint": self.fingerprint(),
        }

    def fingerprint(self) -> str:
        """Tells apart loaders whose epochs differ."""
        facts = [self.shuffle, self.seed, self.replicas * self.num_hosts]
        digest = hashlib.sha256(json.dumps([facts, self._facts], default=str).encode())
        for part in self.parts:
            if part.label is not None:
                digest.update(np.ascontiguousarray(part.label))
        for name in sorted(self.sizes):
            digest.update(np.ascontiguousarray(self.sizes[name]))
        return digest.hexdigest()

    def resume(self, state: dict[str, Any], hold: bool = False) -> None:
        """Goes to a batch within an epoch; `len` counts what is left of it.

        Args:
            state: What `state()` returned.
            hold: Whether to stay there until `whole_epochs` is called. Keras ends an
                epoch that it only looks at, so `fit` needs that; in a loop of your
                own `on_epoch_end` goes on to a whole epoch.

        Raises:
            ValueError: If the graphs, the batcher, the plan or the seed differ.
        """
        if state["fingerprint"] != self.fingerprint():
            raise ValueError(
                "Expected the graphs, batcher, plan, seed and number of replicas that "
                "training began with. Received: others. Start again without the saved "
                "progress, or restore them."
            )
        self._skip = 0
        batch = positive_int("batch", state["batch"], 0)
        if batch > self._epochs.length:
            raise ValueError(
                f"Expected a batch in [0, {self._epochs.length}]. Received: {batch}."
            )
        self.epoch, self._skip = state["epoch"], batch
        self._held = hold

    @property
    def skipped(self) -> int:
        """Batches of the epoch that were used before `resume`."""
        return self._skip

    def whole_epochs(self) -> None:
        """Ends what `resume` began: epochs have all batches again."""
        self._skip, self._held = 0, False

    @property
    def batches_per_epoch(self) -> int:
        """Batches of a whole epoch."""
        return self._epochs.length
