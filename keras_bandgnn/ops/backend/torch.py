"""Torch implementations."""

import re
import sys
import types

import keras
import torch

from keras_bandgnn import compat
from keras_bandgnn.ops.backend import (
    torch_attention,
    torch_edges,
    torch_filters,
    torch_gates,
    torch_lookups,
    torch_norms,
)
from keras_bandgnn.ops.backend.torch_fused import operation, plain_gradients
from keras_bandgnn.ops.backend.torch_steps import batch_data as batch_data
from keras_bandgnn.ops.backend.torch_steps import (
    check_recordable,
    is_recording,
    specialise,
)
from keras_bandgnn.ops.backend.torch_steps import random_states as random_states
from keras_bandgnn.ops.backend.torch_steps import recorded as recorded
from keras_bandgnn.ops.backend.torch_steps import repeated as repeated
from keras_bandgnn.ops.backend.torch_steps import (
    set_random_states as set_random_states,
)
from keras_bandgnn.ops.backend.torch_steps import step_data as step_data
from keras_bandgnn.ops.context import is_portable

# Torch implementations of `ops.loops`.


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, forward, backward, *tensors):
        out, residuals = forward(*tensors)
        ctx.forward_of, ctx.backward_of = forward, backward
        # As attributes, outputs would form a reference cycle with `ctx`.
        ctx.save_for_backward(*tensors, *residuals)
        ctx.count = len(tensors)
        return tuple(out)

    @staticmethod
    def backward(ctx, *cotangents):
        # Read once: a checkpoint computes them for the first reader alone.
        saved = ctx.saved_tensors
        tensors, residuals = saved[: ctx.count], saved[ctx.count :]
        if torch.is_grad_enabled():

            def reference(*tensors):
                return ctx.forward_of(*tensors)[0]

            return None, None, *plain_gradients(reference, tensors, cotangents)
        return (None, None, *ctx.backward_of(residuals, *cotangents))


def with_gradient(forward, backward, tensors):
    """Call `forward(*tensors)` with `backward` as its gradient; see `ops.loops`."""
    return _WithGradient.apply(forward, backward, *tensors)


def scan_chunks(step, carry, rows, size, like=None):
    """Scan `step` over chunks of rows; see `ops.loops`."""
    del like
    count = next(iter(rows.values())).shape[0]
    outputs = []
    for a in range(0, max(count, 1), size):
        carry, out = step(carry, {k: v[a : a + size] for k, v in rows.items()})
        outputs.append(out)
    if len(outputs) == 1 or outputs[0] is None:
        return carry, outputs[0]
    return carry, torch.cat(outputs)


def late_zeros(like, after):
    """Return zeros like a tensor; see `ops.loops`."""
    del after
    return torch.zeros_like(like)


def recomputed(function):
    """Return `function` with gradient checkpointing."""
    # This import takes a second: it imports the compiler.
    from torch.utils.checkpoint import checkpoint

    # It restores the state of random numbers, which a record cannot.
    check_recordable("gradient checkpointing")

    def run(*tensors):
        return checkpoint(function, *tensors, use_reentrant=False)

    return run


def can_branch():
    """Return whether branches work: not while torch traces anything but a step."""
    if is_recording():
        return True
    recorder = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return recorder is None or recorder.get_proxy_mode() is None


def branch(condition, if_true, if_false):
    """Return the result of one branch; a recorded step is specialised on it."""
    if not is_recording():
        return keras.ops.cond(condition, if_true, if_false)
    return if_true() if specialise(condition) else if_false()


def map_pieces(function, pieces, shared):
    """Map a checkpointed function over axis 0; see `ops.loops`."""
    run = recomputed(function)
    outs = [run(*piece, *shared) for piece in zip(*pieces, strict=True)]
    return tuple(torch.stack(parts) for parts in zip(*outs, strict=True))


@operation
def _dropout_mask(x: torch.Tensor, rate: float) -> torch.Tensor:
    """Draw factors for the entries of x, 0 or 1 / (1 - rate)."""
    # Four numbers of 16 bits from each word of the generator.
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64)
    bits = words.random_(-(2**63), None).view(torch.int16)[: x.numel()]
    keep = bits.view(x.shape) >= round(rate * 2**16) - 2**15
    return keep.to(x.dtype).mul_(1 / (1 - rate))


def dropout(x, rate):
    """Apply dropout with torch's global generator, whose state checkpoints restore."""
    if not _is_eager(x):
        return torch.nn.functional.dropout(x, rate)
    return x * _dropout_mask(x.detach(), rate)


def index_add(out, ids, rows):
    """Add rows to `out` at ids, in place; see `ops.loops`."""
    return out.index_add_(0, ids, rows)


copy = torch.clone
# Only JAX has a faster sort of ids.
sorted_ids = None
# Only compiled programs store more than gradients read.
map_rows = None
# Whether sparse products use the transpose for their gradient.
USES_TRANSPOSE = True


def gather(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Gather rows `x[ids]`; ids must be in range."""
    # Torch has slower sums for ids of 32 bits, here in the gradient.
    rows = torch.index_select(x, 0, ids.reshape(-1).long())
    return rows.reshape(*ids.shape, *x.shape[1:])


def segment_sum(
    data: torch.Tensor, ids: torch.Tensor, num_segments: int, is_sorted: bool = False
) -> torch.Tensor:
    """Sum rows of `data` by segment; empty segments are 0."""
    del is_sorted
    shape = (num_segments, *data.shape[1:])
    # Torch has slower sums for ids of 32 bits.
    ids = ids.long()
    return torch.zeros(shape, dtype=data.dtype, device=data.device).index_add(
        0, ids, data
    )


def segment_max(
    data: torch.Tensor, ids: torch.Tensor, num_segments: int
) -> torch.Tensor:
    """Return segment maxima of `data`; empty segments are unspecified."""
    shape = (num_segments, *data.shape[1:])
    # Faster than `index_reduce`.
    ids = ids.long().reshape(-1, *[1] * (data.ndim - 1)).expand_as(data)
    lowest = torch.full(
        shape, torch.finfo(data.dtype).min, dtype=data.dtype, device=data.device
    )
    return lowest.scatter_reduce(0, ids, data, "amax")


def _num_processes() -> int:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size()


class _ReplicaSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        values = values.detach().clone()
        torch.distributed.all_reduce(values)
        return values

    @staticmethod
    def backward(ctx, gradient):
        return _ReplicaSum.apply(gradient)


def sum_over_replicas(values):
    """Return the sum over the processes of `data_parallel`."""
    # Shapes are traced on the device "meta", by each process alone.
    if values.is_meta or _num_processes() == 1:
        return values
    return _ReplicaSum.apply(values)


def normalized_rows(rows, mask, scale, shift, averages, momentum, epsilon):
    """Normalise rows over those of a mask, or return None; see `ops.backend`."""
    if not _is_eager(rows) or _num_processes() > 1:
        return None
    out, *averages = torch_norms.norm(
        rows.reshape(-1, rows.shape[-1]),
        scale,
        shift,
        real=[*torch_norms.real_rows(mask.reshape(-1))],
        moving_mean=averages[0],
        moving_variance=averages[1],
        momentum=momentum,
        epsilon=epsilon,
    )
    return out.reshape(rows.shape), averages


def scatter_add(indices, values, shape):
    """Scatter-add `values` into zeros of `shape` at the N-d positions `indices`."""
    zeros = torch.zeros(shape, dtype=values.dtype, device=values.device)
    indices = tuple(i.long() for i in indices)
    return zeros.index_put(indices, values, accumulate=True)


def top_k(values, k: int):
    """Return the k largest of rows and their places; see `ops.backend`."""
    # `torch.topk` has any of equal values.
    values, places = torch.sort(values, dim=-1, descending=True, stable=True)
    return values[..., :k], places[..., :k].to(torch.int32)


def has_accelerator() -> bool:
    """Return whether Keras makes tensors on a GPU or TPU."""
    return _device_type() not in ("cpu", "meta")


def _device_type() -> str:
    return re.match("[a-z]*", str(compat.torch_device()))[0]


def seed_global(seed: int) -> None:
    """Seed torch's global generator, which dropout draws from."""
    if has_accelerator():
        torch.manual_seed(seed)
    else:
        # `torch.manual_seed` also queues a seed, with a stack trace, for unused GPUs.
        torch.default_generator.manual_seed(seed)


def watch_step(model, name, report):
    """Return the model's step `name`, which reports compilations; see `ops.backend`."""
    step = getattr(model, name)
    if not model.jit_compile:
        return step
    counters = compat.torch_compilations()

    def watched(batches):
        before = counters["unique_graphs"]
        outputs = step(batches)
        if counters["unique_graphs"] > before:
            report(batches[0])
        return outputs

    return watched


def sparse_product(side, x):
    """Multiply a matrix (rows, columns, pointers, entries or None) by dense rows."""
    row, column, pointer, weight = side
    num_rows = pointer.shape[0] - 1
    if _is_eager(x):
        return torch_edges.rows_sum(pointer, column, weight, x)
    sent = gather(x, column)
    if weight is not None:
        sent = sent * weight[:, None].to(x.dtype)
    # Padded entries belong to one extra row after the last.
    return segment_sum(sent, row, num_rows + 1)[:num_rows]


class _SparseMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *sides):
        ctx.sides = sides
        return sparse_product(sides[:4], x)

    @staticmethod
    def backward(ctx, dy):
        # So that the product with the transpose is differentiable, too.
        sides = *ctx.sides[4:], *ctx.sides[:4]
        return (_SparseMatmul.apply(dy.contiguous(), *sides), *[None] * 8)


def flat_sparse_matmul(forward, backward, x):
    """Multiply a sparse matrix by dense rows; see `ops.backend`."""
    return _SparseMatmul.apply(x, *forward, *backward)


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index, *backward):
        ctx.backward_side, ctx.index, ctx.count = backward, index, x.shape[0]
        return torch.index_select(x, 0, index)

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():
            dx = dy.new_zeros(ctx.count, dy.shape[1]).index_add(0, ctx.index, dy)
        else:
            dx = sparse_product(ctx.backward_side, dy.contiguous())
        return (dx, *[None] * 5)


def flat_gather_rows(index, backward, x):
    """Gather rows `x[index]`; `backward` is the transpose of the gather."""
    return _GatherRows.apply(x, index, *backward)


# Maximum size of the kernels of all groups, in elements, for a recorded step to gather
# them: one batched product is then faster than a loop in Python.
_FEW_WEIGHTS = 1 << 20


def _takes_runs(x, kinds, kernel) -> bool:
    """Return whether to multiply run by run of groups."""
    weights = kinds.shape[0] * kernel.shape[1] * kernel.shape[2]
    return _is_eager(x) and not (is_recording() and weights <= _FEW_WEIGHTS)


def flat_grouped_matmul(rows, kinds, kernel):
    """Multiply rows by the kernel of their group; see `ops.backend`."""
    if _takes_runs(rows, kinds, kernel):
        groups, size, width = rows.shape
        out = _run_by_run(rows.reshape(-1, width), kinds, kernel)
        return out.reshape(groups, size, -1)
    return torch.bmm(rows, gather(kernel, kinds))


def flat_gathered_grouped_matmul(x, index, backward, kinds, kernel):
    """Compute `flat_grouped_matmul` of rows `x[index]`; see `ops.backend`."""
    if _takes_runs(x, kinds, kernel):
        # Never materialises all gathered rows at once.
        _, column, pointer, _ = backward
        return _run_by_run(x, kinds, kernel, index, pointer, column)
    rows = flat_gather_rows(index, backward, x)
    rows = rows.reshape(kinds.shape[0], -1, x.shape[1])
    return flat_grouped_matmul(rows, kinds, kernel).reshape(-1, kernel.shape[2])


def _run_by_run(x, kinds, kernel, index=None, pointer=None, column=None):
    return torch_edges.grouped_matmul(x, kernel, kinds, index, pointer, column)


def lookup_sum(table, ids, weight):
    """Sum K rows of a table per row of ids, or return None; see `ops.lookup`."""
    if not _is_eager(table):
        return None
    flat = ids.reshape(-1, ids.shape[-1])
    weight = None if weight is None else weight.reshape(flat.shape)
    return torch_lookups.lookup_sum(table, flat, weight).reshape(*ids.shape[:-1], -1)


def _is_eager(x) -> bool:
    if x.device.type != "cpu" or is_portable():
        return False
    return not torch.compiler.is_compiling()


fused_edges = types.SimpleNamespace(
    apply_to=lambda x, edges: _is_eager(x),
    ends=torch_edges.ends,
    relu_sum=torch_edges.relu_sum,
    gated_sum=torch_edges.gated_sum,
    scores=torch_edges.scores,
    share_sum=torch_edges.share_sum,
    score_attention=torch_attention.score_attention,
    # Operations one by one are as fast.
    vector_sum=None,
)


def affine(rows, kernel, bias):
    """Return `rows @ kernel + bias` in one operation, or None; see `ops.backend`."""
    if not _is_eager(rows) or not rows.dtype == kernel.dtype == bias.dtype:
        return None
    return torch.addmm(bias, rows, kernel)


def gated_update(messages, states, kernel, bias, state_kernel, state_bias):
    """Return new states of a GRU; see `GRUUpdate`."""
    weights = (kernel, bias, state_kernel, state_bias)
    if _is_eager(messages) and messages.dtype == states.dtype == torch.float32:
        width = states.shape[-1]
        rows = messages.reshape(-1, messages.shape[-1]), states.reshape(-1, width)
        return torch_gates.gated_update(*rows, *weights).reshape(states.shape)
    return torch_gates.gated_rows(messages, states, *weights)


def flat_edge_attention(q, k, v, bias, weight, sender, receiver, num_heads, empty):
    """Compute fused attention of flat rows, or None; see `ops.edge_attention`."""
    # A product at the entries of a sparse matrix has no more of them than a dense one.
    if not _is_eager(q) or len(sender) > len(q) * len(k):
        return None
    return torch_attention.edge_attention(
        *(q, k, v, bias),
        weight=weight,
        ends=torch_edges.ends(sender, receiver, len(q)),
        num_heads=num_heads,
        empty=empty,
    )


def segment_attention(q, k, v, mask, num_heads):
    """Compute attention within segments by a fused kernel, or return None."""
    if not _is_eager(q) or any(t.dtype != torch.float32 for t in (q, k, v)):
        return None
    return torch_attention.segment_attention(q, k, v, mask, num_heads)


def equal_values(values):
    """Return the groups of equal values [E], or None; see `ops.backend`."""
    if values.requires_grad or not _is_eager(values) or values.dtype != torch.float32:
        return None
    return torch_filters.equal_values(values)


def filtered_sum(sent, edges, factor, weights, ends, equal, size, activate):
    """Compute the fused `ops.sparse.filtered_sum`, or return None."""
    is_differentiated = edges.requires_grad or (
        factor is not None and factor.requires_grad
    )
    tensors = [t for t in (sent, edges, factor, *weights) if t is not None]
    if (
        is_differentiated
        or not _is_eager(sent)
        or any(t.dtype != torch.float32 for t in tensors)
    ):
        return None
    (sender, receiver), (kernel, bias, last, last_bias) = ends, weights
    if equal is None:
        number = torch.arange(len(sender))
        equal = number, number, torch.arange(len(sender) + 1)
    return torch_filters.filtered_sum(
        sent,
        kernel,
        kernel.new_zeros(kernel.shape[1]) if bias is None else bias,
        last,
        last.new_zeros(last.shape[1]) if last_bias is None else last_bias,
        edges=edges,
        factor=factor,
        ends=[sender, receiver, torch_edges.pointer(receiver, size)],
        equal=list(equal),
        activate=activate,
    )


def column_sum(rows):
    """Sum rows [M, H] over M."""
    return torch.sum(rows, dim=0)


# Keras calls one operation of torch.
layer_normalization = None

# `ops.remat` composes these from `copy` and `recomputed`.
checkpointed = repeat_checkpointed = on_device = None


def tile_matmul(tiles, x):
    """Multiply dense blocks, stored as column tiles; see `primitives.banded`."""
    return sum(torch.matmul(tiles[:, :, q], x[:, :, q]) for q in range(tiles.shape[2]))


def value_and_gradient(function, x):
    """Return values and the gradient of their sum; see `ops.backend`."""
    recorded = torch.is_grad_enabled()
    several = isinstance(x, list)
    with torch.enable_grad():
        leaves = [
            leaf if recorded and leaf.requires_grad else leaf.detach().requires_grad_()
            for leaf in (x if several else [x])
        ]
        values = function(leaves if several else leaves[0])
        slopes = torch.autograd.grad(
            values.sum(), leaves, create_graph=recorded, materialize_grads=True
        )
    slopes = list(slopes) if several else slopes[0]
    return (values, slopes) if recorded else (values.detach(), slopes)


def version() -> str:
    """Return the version of the backend."""
    return torch.__version__


def device() -> tuple[str, str]:
    """Return the kind of the default device, "cpu", "gpu" or "tpu", and its name."""
    if not has_accelerator():
        return "cpu", "cpu"
    kind = _device_type()
    return "gpu", torch.cuda.get_device_name() if kind == "cuda" else kind


def compiled_timer_step(function, leaves, constants):
    """Return a call that blocks until its results are ready; see `ops.backend`."""
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    cotangent = torch.ones_like(function(*leaves, *constants))

    def run():
        torch.autograd.grad(function(*leaves, *constants), leaves, cotangent)
        if has_accelerator():
            torch.accelerator.synchronize()

    return run
