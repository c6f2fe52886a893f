"""`SequenceAxis`: what devices that share a sequence of nodes send to each other."""

import jax
import jax.numpy as jnp


class SequenceAxis:
    """An axis of a mesh, inside `jax.shard_map`.

    Args:
        name: Its name.
        size: P, its devices.
        node: `mask` and `graph_id` of all nodes, [G, N].
    """

    def __init__(self, name: str, size: int, node: dict):
        self.name, self.size, self.node = name, size, node

    def whole(self, x):
        """The batch with the masks of all nodes, in the place of this device's."""
        return {**x, "node": self.node}

    def halo(self, x, size: int):
        """Rows with the last ones of the device before and the first of the next.

        Args:
            x: [G, n, H].
            size: S rows on either side; zeros where there is no device.

        Returns:
            [G, S + n + S, H].
        """
        up = [(number, number + 1) for number in range(self.size - 1)]
        down = [(number + 1, number) for number in range(self.size - 1)]
        before = jax.lax.ppermute(x[:, -size:], self.name, up)
        after = jax.lax.ppermute(x[:, :size], self.name, down)
        return jnp.concatenate([before, x, after], axis=1)

    def exchange(self, rows):
        """Sends part p of [G, P R, H] to device p; part p is then what p sent."""
        return jax.lax.all_to_all(
            rows, self.name, split_axis=1, concat_axis=1, tiled=True
        )

    def to_heads(self, rows):
        """All columns of own rows, [.., n, C], to own ones of all rows [.., N, C/P]."""
        axes = rows.ndim - 1, rows.ndim - 2
        return jax.lax.all_to_all(rows, self.name, *axes, tiled=True)

    def to_rows(self, rows):
        """Own columns of all rows, [.., N, C/P], to all of own rows [.., n, C]."""
        axes = rows.ndim - 2, rows.ndim - 1
        return jax.lax.all_to_all(rows, self.name, *axes, tiled=True)

    def own(self, values):
        """The columns [.., C/P] of this device."""
        if values.shape[-1] % self.size:
            raise ValueError(
                f"Expected a number of heads that {self.size} devices of a sequence "
                f"divide. Received: {values.shape[-1]}. Take fewer devices per "
                "sequence, or other heads."
            )
        width = values.shape[-1] // self.size
        start = jax.lax.axis_index(self.name) * width
        return jax.lax.dynamic_slice_in_dim(values, start, width, values.ndim - 1)

    def columns(self, values):
        """The columns [.., C] of all devices."""
        return jax.lax.all_gather(values, self.name, axis=values.ndim - 1, tiled=True)

    def total(self, values):
        """The sum over the devices."""
        return jax.lax.psum(values, self.name)

    def largest(self, values):
        """The maximum over the devices; it has no gradient."""
        return jax.lax.pmax(values, self.name)

    def same(self, values):
        """The values of the first device, on all."""
        first = jax.lax.axis_index(self.name) == 0
        return self.total(jnp.where(first, values, jnp.zeros_like(values)))

    def rows(self, states, ids):
        """See `ops.sequence.rows_at`."""
        count = states.shape[1]
        place = jnp.asarray(ids) - jax.lax.axis_index(self.name) * count
        here = (place >= 0) & (place < count)
        found = jnp.take_along_axis(
            states,
            jnp.where(here, place, 0).reshape(len(place), -1)[..., None],
            axis=1,
        ).reshape(*place.shape, states.shape[-1])
        return self.total(jnp.where(here[..., None], found, 0))
