"""JAX implementations of `ops.remat`."""

import jax
import jax.numpy as jnp


def _threaded(step, variables):
    """`step` with the values of Keras variables as further inputs and outputs."""

    def pure(states, values):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return step(states), [jnp.asarray(v.value) for v in variables]

    return pure


def _run_threaded(run, states, variables):
    before = [jnp.asarray(v.value) for v in variables]
    try:
        states, after = run(states, before)
    except BaseException:
        after = before
        raise
    finally:
        # What a step assigns while it is traced is of no use outside.
        for variable, value in zip(variables, after, strict=True):
            variable.assign(value)
    return states


def checkpointed(step, states, variables):
    """`step(states)`, computed again for the gradient; see `ops.remat`."""

    def run(states, values):
        # What the step uses besides its arguments becomes arguments too.
        given = _threaded(step, variables), states, values
        body, used = jax.closure_convert(*given)
        return _again(body)(states, values, *used)

    return _run_threaded(run, states, variables)


def _again(body):
    """`body` with a gradient that keeps the arguments alone."""
    run = jax.custom_vjp(body)

    def forward(*given):
        return body(*given), given

    def pull(given, slopes):
        moving = [jnp.issubdtype(g.dtype, jnp.inexact) for g in jax.tree.leaves(given)]
        leaves, tree = jax.tree.flatten(given)

        def gradient(leaves, slope):
            def of_moving(*some):
                some = iter(some)
                pairs = zip(leaves, moving, strict=True)
                every = [next(some) if m else leaf for leaf, m in pairs]
                return body(*jax.tree.unflatten(tree, every))[0]

            some = [leaf for leaf, m in zip(leaves, moving, strict=True) if m]
            return jax.vjp(of_moving, *some)[1](slope)

        # XLA on CPUs would merge the second computation with the first and keep all.
        # It does not merge branches; that this one is always taken it cannot know.
        slope = slopes[0]
        first = slope.reshape(-1)[0]
        found = jax.lax.cond(
            (first == first) | (first != 0),
            gradient,
            lambda leaves, slope: tuple(
                jnp.zeros_like(leaf)
                for leaf, m in zip(leaves, moving, strict=True)
                if m
            ),
            leaves,
            slope,
        )
        found = iter(found)
        return jax.tree.unflatten(tree, [next(found) if m else None for m in moving])

    run.defvjp(forward, pull)
    return run


def repeat_checkpointed(step, states, num_steps, variables):
    """`num_steps` times `checkpointed`, as one loop in the program."""
    body = jax.checkpoint(_threaded(step, variables))

    def run(states, values):
        def once(carry, _):
            return body(*carry), None

        return jax.lax.scan(once, (states, values), length=num_steps)[0]

    return _run_threaded(run, states, variables)
