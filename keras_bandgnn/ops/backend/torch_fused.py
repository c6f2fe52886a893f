"""Custom torch operations on CPUs with hand-written gradients.

Kernels may read values of tensors on the host, which `make_fx` cannot trace: in a
recorded step each kernel is one opaque operation.
"""

import inspect
import itertools
import typing
from collections.abc import Callable

import torch
from torch import Tensor

_library = torch.library.Library("keras_bandgnn", "DEF")
_TYPES = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    list[Tensor]: "Tensor[]",
    int: "int",
    float: "float",
    bool: "bool",
}


def _parameters(function: Callable) -> dict:
    """Return the types of the parameters of a function by name, tensors by default."""
    parameters = inspect.signature(function).parameters.values()
    types = {parameter.name: parameter.annotation for parameter in parameters}
    return {n: Tensor if t is inspect.Parameter.empty else t for n, t in types.items()}


def _register(function: Callable, types: dict, num_results: int):
    name = function.__name__.lstrip("_")
    arguments = ", ".join(f"{_TYPES[kind]} {n}" for n, kind in types.items())
    results = ", ".join(["Tensor"] * num_results)
    _library.define(f"{name}({arguments}) -> ({results})")
    _library.impl(name, function, "CPU")
    return getattr(torch.ops.keras_bandgnn, name).default


def operation(function: Callable):
    """Register a function, without leading underscores, as an operation on CPUs.

    `torch.library.custom_op` does as much, but its calls take 27 microseconds longer,
    and 42 with a gradient by `register_autograd` in place of an `autograd.Function`.

    Args:
        function: Takes tensors, None, lists of tensors and numbers, as annotated, and
            returns a tensor or a tuple of tensors. It changes no argument.
    """
    returns = inspect.signature(function).return_annotation
    num_results = len(typing.get_args(returns)) or 1
    return _register(function, _parameters(function), num_results)


def fused_operation(
    forward: Callable,
    backward: Callable,
    reference: Callable,
    variables: int,
    results: tuple[str, ...] = ("out",),
    outputs: int = 1,
    derived: dict[str, Callable] | None = None,
) -> Callable:
    """Return an operation with a custom gradient and second derivatives.

    Args:
        forward: Kernel, see `operation`. Parameters without annotations are tensors.
        backward: Kernel of the gradient, a tensor or None for each variable. It takes,
            by name, arguments of `forward`, results and `d_<result>`, the gradients of
            results, of which some may be None if there are several. Results without
            one are constant.
        reference: The results that have gradients, by differentiable operations; takes
            arguments of `forward` by name. It gives the second derivatives, at its cost
            in time and memory.
        variables: Number of the arguments of `forward`, the first, that have gradients.
        results: Names of the results of `forward`.
        outputs: Number of results that are returned; others are for the gradient alone.
        derived: Further lists of tensors that `backward` takes, as functions of the
            other values by name.

    Returns:
        A function of the arguments of `forward`, by position or by name.
    """
    fused = _Fused(forward, backward, reference, variables, results, derived or {})

    def call(*arguments, **named):
        if named:
            arguments += tuple(
                named[name] for name in fused.arguments[len(arguments) :]
            )
        out = _Function.apply(fused, *arguments)
        if len(results) == 1:
            return out
        return out[0] if outputs == 1 else out[:outputs]

    return call


class _Fused:
    """The operation of `fused_operation`: registered kernels and names of arguments."""

    def __init__(self, forward, backward, reference, variables, results, derived):
        types, slopes = _parameters(forward), [f"d_{name}" for name in results]
        self.arguments, self.variables = [*types], [*types][:variables]
        self.forward = _register(forward, types, len(results))
        self.backward_names = [*_parameters(backward)]
        self.reference_names = [*_parameters(reference)]
        has_slope = [name in self.backward_names for name in slopes]
        self.constant = [place for place, has in enumerate(has_slope) if not has]
        types |= dict.fromkeys(results, Tensor)
        self.names = [*types]
        # Values that gradients read.
        reads = {*self.backward_names, *self.reference_names}
        names, numbers = [n for n in self.names if n in reads], (int, float, bool)
        self.lists = [n for n in names if types[n] == list[Tensor]]
        self.numbers = [n for n in names if types[n] in numbers]
        self.tensors = [n for n in names if n not in (*self.lists, *self.numbers)]
        types |= dict.fromkeys(slopes, Tensor if sum(has_slope) == 1 else Tensor | None)
        types |= dict.fromkeys(derived, list[Tensor])
        types = {name: types[name] for name in self.backward_names}
        self.backward = _register(backward, types, variables)
        self.reference, self.slopes, self.derived = reference, slopes, derived

    def gradients(self, values: dict, slopes) -> tuple:
        """Return the gradients of the variables."""
        for name, slope in zip(self.slopes, slopes, strict=True):
            values[name] = None if slope is None else slope.contiguous()
        for name, function in self.derived.items():
            values[name] = function(values)
        out = self.backward(*[values[name] for name in self.backward_names])
        return out if isinstance(out, tuple) else (out,)

    def differentiable_gradients(self, values: dict, slopes) -> list:
        """Return differentiable gradients of the variables."""
        names = self.variables

        def reference(*variables):
            named = values | dict(zip(names, variables, strict=True))
            return self.reference(*[named[name] for name in self.reference_names])

        return plain_gradients(reference, [values[name] for name in names], slopes)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fused, *arguments):
        results = fused.forward(*arguments)
        several = results if isinstance(results, tuple) else (results,)
        values = dict(zip(fused.names, arguments + several, strict=True))
        lists = [values[name] for name in fused.lists]
        tensors = [values[name] for name in fused.tensors]
        ctx.save_for_backward(*tensors, *itertools.chain(*lists))
        ctx.fused, ctx.lengths = fused, [*map(len, lists)]
        ctx.numbers = {name: values[name] for name in fused.numbers}
        if fused.constant:
            ctx.mark_non_differentiable(*[several[place] for place in fused.constant])
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx, *slopes):
        fused, needed = ctx.fused, ctx.needs_input_grad
        if all(slope is None for slope in slopes):
            return (None,) * len(needed)
        # Read once: a checkpoint computes them for the first reader alone.
        saved = iter(ctx.saved_tensors)
        values = {name: next(saved) for name in fused.tensors} | ctx.numbers
        for name, length in zip(fused.lists, ctx.lengths, strict=True):
            values[name] = [*itertools.islice(saved, length)]
        if torch.is_grad_enabled():
            gradients = fused.differentiable_gradients(values, slopes)
        else:
            gradients = fused.gradients(values, slopes)
        constants = [None] * (len(needed) - 1 - len(gradients))
        pairs = zip(needed[1:], gradients, strict=False)
        return None, *[slope if need else None for need, slope in pairs], *constants


def plain_gradients(function: Callable, arguments, slopes) -> list:
    """Return differentiable gradients, for second derivatives in `backward`.

    Custom gradients are not differentiable, so this differentiates plain operations
    instead, at their cost in time and memory.

    Args:
        function: Computes the outputs by differentiable operations.
        arguments: Its arguments, tensors or None; not all require a gradient.
        slopes: Gradients of the outputs, or None.

    Returns:
        A gradient, or None, for each argument.
    """
    needed = [t is not None and t.requires_grad for t in arguments]
    # Views cut the graph: an argument may have been computed from another one.
    pairs = [*zip(arguments, needed, strict=True)]
    arguments = [t.view_as(t) if need else t for t, need in pairs]
    inputs = [t for t, need in zip(arguments, needed, strict=True) if need]
    outputs = function(*arguments)
    outputs = outputs if isinstance(outputs, tuple | list) else [outputs]
    pairs = zip(outputs, slopes, strict=False)
    outputs, slopes = zip(*[pair for pair in pairs if pair[1] is not None], strict=True)
    gradients = iter(
        torch.autograd.grad(
            outputs, inputs, slopes, create_graph=True, allow_unused=True
        )
    )
    return [next(gradients) if need else None for need in needed]
