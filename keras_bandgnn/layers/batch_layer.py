"""`BatchLayer`: a layer that is called with node states and the batch."""

from collections.abc import Mapping

import keras

# Names of the second argument in version 0.1.0.
_OLD_NAMES = ("x", "edge", "plan")


class BatchLayer(keras.layers.Layer):
    """A layer that is called as `layer(states, batch, ...)`.

    `batch` is the batch of a loader, or the result of the layer's `prepare(batch)`.
    Version 0.1.0 passed parts of it, such as `"plan"` and `"edge"`, as separate
    arguments; such calls, including those in saved functional models, still work.
    """

    def __call__(self, *args, **kwargs):
        """Call the layer; see `call`."""
        for name in _OLD_NAMES:
            if name in kwargs:
                kwargs["batch"] = kwargs.pop(name)
        if len(args) > 2 and not isinstance(args[1], Mapping):
            # The edges came last.
            places = [n for n, each in enumerate(args) if isinstance(each, Mapping)]
            if places:
                args = list(args)
                args.insert(1, args.pop(places[0]))
        return super().__call__(*args, **kwargs)

    def build_from_config(self, config):
        """Build the layer as it was when a model was saved."""
        if "shapes_dict" in config:
            old = {f"{name}_shape" for name in _OLD_NAMES}
            shapes = config["shapes_dict"]
            shapes = {name: shapes[name] for name in shapes if name not in old}
            config = {"shapes_dict": shapes}
        super().build_from_config(config)


def batch_part(batch, name: str, key: str | None = None):
    """Return `batch[name]`, or the argument if it is that part already.

    Args:
        batch: A batch, or `batch[name]`, which version 0.1.0 took.
        name: `"node"`, `"edge"` or `"plan"`.
        key: A key of that part, without which the argument is refused.

    Raises:
        ValueError: If the argument is neither.
    """
    if isinstance(batch, Mapping):
        if isinstance(batch.get(name), Mapping):
            return batch[name]
        if key is None or key in batch:
            return batch
    received = sorted(batch) if isinstance(batch, Mapping) else type(batch).__name__
    raise ValueError(
        f"Expected `batch` to be a batch with a part {name!r}. Received: {received}. "
        "Call the layer as layer(states, batch, ...), with a batch of a GraphLoader."
    )


def check_width(name: str, shape, units: int) -> None:
    """Raise a ValueError if the last axis is not `units` long."""
    if shape[-1] != units:
        raise ValueError(
            f"Expected `{name}` with {units} channels, as units={units}. "
            f"Received: shape {tuple(shape)}."
        )
