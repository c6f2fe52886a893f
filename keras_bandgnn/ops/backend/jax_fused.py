"""Operations on edges in JAX with hand-written gradients, for CPUs."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero


def fused_operation(
    forward: Callable, backward: Callable, fixed: tuple[int, ...] = ()
) -> Callable:
    """Return an operation of `(*tensors, ends)` with a custom gradient.

    On CPUs it loops over chunks of edges, elsewhere it takes all edges at once.

    Args:
        forward: `forward(chunked, *tensors, ends)` returns the output and residuals.
            It is the reference, too: JAX can differentiate it where it is not chunked.
        backward: `backward(chunked, slope, residuals, *tensors, ends)` returns the
            gradients of the tensors. Second derivatives differentiate it.
        fixed: Positions of tensors without a gradient in `backward`. If one needs it,
            as for forces, JAX differentiates `forward` instead.
    """

    def by_platform(function, *arguments):
        return jax.lax.platform_dependent(
            *arguments,
            cpu=functools.partial(function, True),
            default=functools.partial(function, False),
        )

    @jax.custom_vjp
    def run(*arguments):
        return by_platform(forward, *arguments)[0]

    def run_forward(*primals):
        *tensors, ends = arguments = jax.tree.map(lambda leaf: leaf.value, primals)
        constants = [primals[place] for place in fixed]
        if any(leaf.perturbed for leaf in jax.tree.leaves(constants)):
            # The gradient that JAX derives can be differentiated again.
            return jax.vjp(lambda *t: forward(False, *t, ends)[0], *tensors)
        out, residuals = by_platform(forward, *arguments)
        return out, (residuals, *arguments)

    def run_backward(saved, slope):
        slope = jax.tree.map(
            lambda leaf: (
                jnp.zeros(leaf.shape, leaf.dtype)
                if isinstance(leaf, SymbolicZero)
                else leaf
            ),
            slope,
        )
        if not isinstance(saved, tuple):
            return *saved(slope), None
        return *by_platform(backward, slope, *saved), None

    run.defvjp(run_forward, run_backward, symbolic_zeros=True)
    return run
