"""`EdgeTask`: a task whose head reads the two nodes of each edge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from keras_bandgnn.checks import mapping, optional
from keras_bandgnn.layers.edge_readout import EdgeReadout
from keras_bandgnn.models.masked_task import MaskedTask
from keras_bandgnn.preprocessing.loading.loader import Loader

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Activation


class EdgeTask(MaskedTask):
    """Predicts for the edges of graphs, in the caller's order.

    Base of `EdgeClassifier` and `EdgeRegressor`, whose head is an `EdgeReadout`.
    """

    output_level = "edge"

    def make_head(
        self,
        units: int,
        edge_inputs: Mapping | None,
        hidden: int | None,
        activation: Activation,
        use_bias: bool,
        symmetric: bool,
    ) -> EdgeReadout:
        """Return the head; see `EdgeReadout`."""
        optional(mapping, "edge_inputs", edge_inputs)
        return EdgeReadout(
            units,
            edge_inputs,
            hidden,
            activation,
            symmetric,
            use_bias,
            dtype="float32",
            name="head",
        )

    def check(self, loader: Loader) -> None:
        """Raise a ValueError if graphs lack a feature that the head reads."""
        super().check(loader)
        for part in loader.parts:
            self.head.check(part)

    def features_read(self) -> dict[str, tuple[str, ...]] | None:
        """Return the features that backbone and head read; None for any."""
        read = super().features_read()
        if read is None:
            return None
        # No entry for edges means that all are read.
        inputs = tuple(self.head.inputs)
        return {**read, "edge": (*read["edge"], *inputs)} if "edge" in read else read

    def head_config(self) -> dict:
        """Return the arguments of the head."""
        config = self.head.get_config()
        names = ("hidden", "activation", "use_bias", "symmetric")
        return {
            **super().head_config(),
            "edge_inputs": config["inputs"],
            **{name: config[name] for name in names},
        }
