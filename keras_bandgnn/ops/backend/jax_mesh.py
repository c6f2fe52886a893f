"""`SequenceAxis`: communication between devices that share a sequence of nodes."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from keras_bandgnn.checks import check_heads
from keras_bandgnn.ops.backend.jax import over_replicas
from keras_bandgnn.ops.sequence import along


class SequenceAxis:
    """An axis of a mesh, inside `jax.shard_map`.

    Args:
        name: Its name.
        size: P, its number of devices.
        node: `mask` and `graph_id` of all nodes, [G, N].
    """

    def __init__(self, name: str, size: int, node: dict):
        self.name, self.size, self.node = name, size, node

    def whole(self, x):
        """Return the batch with the masks of all nodes instead of this device's."""
        return {**x, "node": self.node}

    def halo(self, x, size: int):
        """Exchange halos with the previous and the next device.

        Args:
            x: [G, n, H].
            size: S, halo rows on either side; zeros at the ends of the axis.

        Returns:
            [G, S + n + S, H].
        """
        up = [(number, number + 1) for number in range(self.size - 1)]
        down = [(number + 1, number) for number in range(self.size - 1)]
        before = jax.lax.ppermute(x[:, -size:], self.name, up)
        after = jax.lax.ppermute(x[:, :size], self.name, down)
        return jnp.concatenate([before, x, after], axis=1)

    def exchange(self, rows):
        """Exchange rows [G, P R, H] all-to-all: part p goes to and comes from p."""
        return jax.lax.all_to_all(
            rows, self.name, split_axis=1, concat_axis=1, tiled=True
        )

    def to_heads(self, rows):
        """Reshard from rows [.., n, C] to columns [.., N, C/P]."""
        axes = rows.ndim - 1, rows.ndim - 2
        return jax.lax.all_to_all(rows, self.name, *axes, tiled=True)

    def to_rows(self, rows):
        """Reshard from columns [.., N, C/P] to rows [.., n, C]."""
        axes = rows.ndim - 2, rows.ndim - 1
        return jax.lax.all_to_all(rows, self.name, *axes, tiled=True)

    def local_columns(self, values):
        """Return this device's columns [.., C/P]."""
        check_heads(values.shape[-1], self.size)
        width = values.shape[-1] // self.size
        start = jax.lax.axis_index(self.name) * width
        return jax.lax.dynamic_slice_in_dim(values, start, width, values.ndim - 1)

    def columns(self, values):
        """Gather the columns [.., C] of all devices."""
        return jax.lax.all_gather(values, self.name, axis=values.ndim - 1, tiled=True)

    def total(self, values):
        """Sum over the devices (all-reduce)."""
        return jax.lax.psum(values, self.name)

    def largest(self, values):
        """Return the maximum over the devices; it has no gradient."""
        return jax.lax.pmax(values, self.name)

    def same(self, values):
        """Broadcast the values of the first device."""
        first = jax.lax.axis_index(self.name) == 0
        return self.total(jnp.where(first, values, jnp.zeros_like(values)))

    def rows(self, states, ids):
        """Gather rows from any device; see `ops.sequence.rows_at`."""
        count = states.shape[1]
        place = jnp.asarray(ids) - jax.lax.axis_index(self.name) * count
        here = (place >= 0) & (place < count)
        values = jnp.take_along_axis(
            states,
            jnp.where(here, place, 0).reshape(len(place), -1)[..., None],
            axis=1,
        ).reshape(*place.shape, states.shape[-1])
        return self.total(jnp.where(here[..., None], values, 0))


# Programs sharded over several cores.


# Mesh axes: over supergraphs, and over contiguous nodes of one supergraph.
BATCH, SEQUENCE = "batch", "sequence"


def batch_specs(x, with_sequence: bool, splits_part=lambda key: True):
    """Return the partition specs of a batch; only nodes and edges are sharded.

    Args:
        x: A batch; with `with_sequence` one that `SequenceLayout` laid out.
        with_sequence: Whether the mesh has the axis "sequence".
        splits_part: Whether the part of `x["plan"]` with a key is sharded.
    """
    rows, both = PartitionSpec(BATCH), PartitionSpec(BATCH, SEQUENCE)

    def specs(path, _):
        names = [key.key for key in path]
        split = names[0] == "node"
        split |= names[0] == "plan" and splits_part(names[1])
        return both if with_sequence and split else rows

    return jax.tree_util.tree_map_with_path(specs, x)


def split_over_cores(
    call, mesh, node_outputs: bool = False, splits_part=lambda key: True
):
    """Shard a task's stateless call over supergraphs, and over nodes of each.

    Gathers and sums over nodes stay on one core. The only communication is the
    all-reduce of the weights' gradients and of the sums of batch normalisation, and,
    with an axis "sequence" in the mesh, the calls of layers to
    `ops.sequence.sequence_axis`.

    Args:
        call: `call(trainable, non_trainable, x, **options)` returns values with axis
            0 = G, the updated non-trainable variables and optionally more.
        mesh: A mesh with the axis "batch", and optionally "sequence". The compiler
            shards over further axes, as the layouts of the weights say.
        node_outputs: Whether axis 1 of the values is the node axis.
        splits_part: See `batch_specs`.

    Returns:
        A function like `call`.
    """
    size = mesh.shape.get(SEQUENCE, 1)
    whole, rows = PartitionSpec(), PartitionSpec(BATCH)

    def shift(variables, sign):
        # Shift the dropout seeds: each core needs different masks.
        core = jax.lax.axis_index(BATCH)
        if size > 1:
            core = core * size + jax.lax.axis_index(SEQUENCE)
        return [
            v + sign * core.astype(v.dtype) if v.dtype == jnp.uint32 else v
            for v in variables
        ]

    def split_call(trainable, non_trainable, x, **options):
        def run(trainable, non_trainable, x):
            with over_replicas(BATCH):
                values, updated, *losses = call(
                    trainable, shift(non_trainable, 1), x, **options
                )
            return values, shift(updated, -1), *losses

        def run_sequence(trainable, non_trainable, x, node):
            with along(SequenceAxis(SEQUENCE, size, node)):
                return run(trainable, non_trainable, x)

        arguments = (trainable, non_trainable, x)
        specs = (whole, whole, batch_specs(x, size > 1, splits_part))
        if size > 1:
            node = {name: x["node"][name] for name in ("mask", "graph_id")}
            arguments, specs = (*arguments, node), (*specs, rows)
        split = PartitionSpec(BATCH, SEQUENCE) if node_outputs and size > 1 else rows
        out_specs = (split, whole)
        if options.get("return_losses"):
            out_specs += (whole,)
        # All cores return the same updates, which the checker cannot infer.
        return jax.shard_map(
            run_sequence if size > 1 else run,
            mesh=mesh,
            in_specs=specs,
            out_specs=out_specs,
            axis_names={BATCH, SEQUENCE} & set(mesh.axis_names),
            check_vma=False,
        )(*arguments)

    return split_call
