"""JAX programs on several cores."""

import jax
import jax.numpy as jnp


def split_over_cores(call, mesh):
    """A task's stateless call with each core on its own supergraphs.

    Inside, nothing is shared: gathers and sums over nodes stay on a core, and the only
    communication is the sum of the weights' gradients.

    Args:
        call: `call(trainable, non_trainable, x, **options)` returns values with axis
            0 = G, the updated non-trainable variables and perhaps more.
        mesh: A mesh with the axis "batch".

    Returns:
        A function like `call`.
    """
    whole, split = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("batch")

    def shift(variables, sign):
        # Seeds of dropout: each core draws its own.
        core = jax.lax.axis_index("batch")
        return [
            v + sign * core.astype(v.dtype) if v.dtype == jnp.uint32 else v
            for v in variables
        ]

    def split_call(trainable, non_trainable, x, **options):
        def local(trainable, non_trainable, x):
            values, updated, *rest = call(
                trainable, shift(non_trainable, 1), x, **options
            )
            return values, shift(updated, -1), *rest

        out_specs = (split, whole)
        if options.get("return_losses"):
            out_specs += (whole,)
        # Every core returns the same updates, which the checker cannot see.
        return jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(whole, whole, split),
            out_specs=out_specs,
            check_vma=False,
        )(trainable, non_trainable, x)

    return split_call
