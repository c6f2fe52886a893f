"""JAX programs on several cores."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from keras_bandgnn.ops.backend.jax_sequence import SequenceAxis
from keras_bandgnn.ops.sequence import along

# Axes of a mesh: of supergraphs, and of successive nodes of one supergraph.
BATCH, SEQUENCE = "batch", "sequence"


def batch_specs(x, with_sequence: bool):
    """How a batch lies on a mesh: nodes and their edges split, the rest on all.

    Args:
        x: A batch; with `with_sequence` laid out by `SequenceLayout`.
        with_sequence: Whether the mesh has the axis "sequence".
    """
    rows, both = PartitionSpec(BATCH), PartitionSpec(BATCH, SEQUENCE)

    def specs(path, _):
        names = [key.key for key in path]
        split = names[0] == "node"
        split |= names[0] == "plan" and not names[1].startswith("tiles:")
        return both if with_sequence and split else rows

    return jax.tree_util.tree_map_with_path(specs, x)


def split_over_cores(call, mesh, node_outputs: bool = False):
    """A task's stateless call with each core on its own supergraphs, or nodes of one.

    Inside, nothing is shared: gathers and sums over nodes stay on a core, and the only
    communication is the sum of the weights' gradients and, with an axis "sequence" in
    the mesh, what layers ask of `ops.sequence.sequence_axis`.

    Args:
        call: `call(trainable, non_trainable, x, **options)` returns values with axis
            0 = G, the updated non-trainable variables and perhaps more.
        mesh: A mesh with the axis "batch", and perhaps "sequence".
        node_outputs: Whether axis 1 of the values is that of nodes.

    Returns:
        A function like `call`.
    """
    size = mesh.shape.get(SEQUENCE, 1)
    whole, rows = PartitionSpec(), PartitionSpec(BATCH)

    def shift(variables, sign):
        # Seeds of dropout: each core draws its own.
        core = jax.lax.axis_index(BATCH)
        if size > 1:
            core = core * size + jax.lax.axis_index(SEQUENCE)
        return [
            v + sign * core.astype(v.dtype) if v.dtype == jnp.uint32 else v
            for v in variables
        ]

    def split_call(trainable, non_trainable, x, **options):
        def run(trainable, non_trainable, x):
            values, updated, *rest = call(
                trainable, shift(non_trainable, 1), x, **options
            )
            return values, shift(updated, -1), *rest

        def run_sequence(trainable, non_trainable, x, node):
            with along(SequenceAxis(SEQUENCE, size, node)):
                return run(trainable, non_trainable, x)

        given = (trainable, non_trainable, x)
        specs = (whole, whole, batch_specs(x, size > 1))
        if size > 1:
            node = {name: x["node"][name] for name in ("mask", "graph_id")}
            given, specs = (*given, node), (*specs, rows)
        split = PartitionSpec(BATCH, SEQUENCE) if node_outputs and size > 1 else rows
        out_specs = (split, whole)
        if options.get("return_losses"):
            out_specs += (whole,)
        # Every core returns the same updates, which the checker cannot see.
        return jax.shard_map(
            run_sequence if size > 1 else run,
            mesh=mesh,
            in_specs=specs,
            out_specs=out_specs,
            check_vma=False,
        )(*given)

    return split_call
