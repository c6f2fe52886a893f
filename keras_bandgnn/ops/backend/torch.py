"""Torch implementations."""

import warnings

import torch

from keras_bandgnn import compat
from keras_bandgnn.ops.backend.torch_eager import (
    EdgeAttention,
    FilteredSum,
    GatedUpdate,
    GroupedMatmul,
    gated_rows,
    plain_gradients,
)
from keras_bandgnn.ops.context import is_portable

# Torch implementations of `ops.loops`.


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, forward, backward, *tensors):
        out, kept = forward(*tensors)
        ctx.forward_of, ctx.backward_of = forward, backward
        # As attributes, outputs and `ctx` would hold each other for ever.
        ctx.save_for_backward(*tensors, *kept)
        ctx.count = len(tensors)
        return tuple(out)

    @staticmethod
    def backward(ctx, *slopes):
        tensors = ctx.saved_tensors[: ctx.count]
        if torch.is_grad_enabled():

            def plain(*tensors):
                return ctx.forward_of(*tensors)[0]

            return None, None, *plain_gradients(plain, tensors, slopes)
        kept = ctx.saved_tensors[ctx.count :]
        return (None, None, *ctx.backward_of(kept, *slopes))


def with_gradient(forward, backward, tensors):
    """`forward(*tensors)`, with `backward` as its gradient; see `ops.loops`."""
    return _WithGradient.apply(forward, backward, *tensors)


def scan_chunks(step, carry, rows, size):
    """Fold `step` over pieces of rows; see `ops.loops`."""
    count = next(iter(rows.values())).shape[0]
    found = []
    for a in range(0, max(count, 1), size):
        carry, out = step(carry, {k: v[a : a + size] for k, v in rows.items()})
        found.append(out)
    if len(found) == 1 or found[0] is None:
        return carry, found[0]
    return carry, torch.cat(found)


def late_zeros(like):
    """Zeros; see `ops.loops`."""
    return torch.zeros_like(like)


def recomputed(function):
    """`function` of tensors, computed again for its gradient."""
    # The compiler that it imports takes a second.
    from torch.utils.checkpoint import checkpoint

    def run(*tensors):
        return checkpoint(function, *tensors, use_reentrant=False)

    return run


def map_pieces(function, pieces, shared):
    """`function` of each piece along axis 0, keeping nothing inside for gradients."""
    run = recomputed(function)
    outs = [run(*piece, *shared) for piece in zip(*pieces, strict=True)]
    return tuple(torch.stack(parts) for parts in zip(*outs, strict=True))


def numbered_dropout(x, rate, seed, number):
    """Dropout; its mask follows from torch's own state, which checkpoints restore."""
    del seed, number
    return torch.nn.functional.dropout(x, rate)


def index_add(out, ids, rows):
    """`out` with rows added at ids, in place; see `ops.loops`."""
    return out.index_add_(0, ids, rows)


copy = torch.clone
# Whether sparse products take the transpose for their gradient.
USES_TRANSPOSE = True


def gather(x, ids):
    """Rows `x[ids]`; ids must be in range."""
    rows = torch.index_select(x, 0, ids.reshape(-1))
    return rows.reshape(*ids.shape, *x.shape[1:])


def segment_sum(data, ids, num_segments, is_sorted=False):
    """Sums rows of `data` by segment; empty segments are 0."""
    del is_sorted
    shape = (num_segments, *data.shape[1:])
    ids = ids.long() if is_portable() else ids
    return torch.zeros(shape, dtype=data.dtype, device=data.device).index_add(
        0, ids, data
    )


def segment_max(data, ids, num_segments):
    """Largest rows of `data` by segment; empty segments are unspecified."""
    shape = (num_segments, *data.shape[1:])
    zeros = torch.zeros(shape, dtype=data.dtype, device=data.device)
    if is_portable():
        ids = ids.long().reshape(-1, *[1] * (data.ndim - 1)).expand_as(data)
        lowest = torch.full_like(zeros, torch.finfo(data.dtype).min)
        return lowest.scatter_reduce(0, ids, data, "amax")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # It is "in beta".
        return zeros.index_reduce(0, ids, data, "amax", include_self=False)


def scatter_add(indices, values, shape):
    """Zeros of `shape` with `values` added at the N-d positions `indices`."""
    zeros = torch.zeros(shape, dtype=values.dtype, device=values.device)
    indices = tuple(i.long() for i in indices)
    return zeros.index_put(indices, values, accumulate=True)


def has_accelerator() -> bool:
    """Whether a GPU or TPU is there."""
    return torch.accelerator.is_available()


def seed_global(seed: int) -> None:
    """Seed torch's global generator, which dropout draws from."""
    torch.manual_seed(seed)


def watch_step(model, name, report):
    """The model's step `name`, watched; see `ops.backend`."""
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
    """A sparse matrix (row ids, column ids, pointers, entries or None) times rows."""
    row, column, pointer, weight = side
    num_rows = pointer.shape[0] - 1
    if _is_eager(x):
        entries = x.new_ones(column.shape) if weight is None else weight.to(x.dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # CSR is "in beta".
            matrix = torch.sparse_csr_tensor(
                pointer, column, entries, (num_rows, x.shape[0]), check_invariants=False
            )
            # Written once: the operator @ fills and copies the result first.
            out = x.new_empty(num_rows, x.shape[1])
            return torch.addmm(out, matrix, x, beta=0, out=out)
    sent = gather(x, column)
    if weight is not None:
        sent = sent * weight[:, None].to(x.dtype)
    # Padded entries belong to a row behind the last one.
    return segment_sum(sent, row, num_rows + 1)[:num_rows]


class _SparseMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *sides):
        ctx.sides = sides
        return sparse_product(sides[:4], x)

    @staticmethod
    def backward(ctx, dy):
        # The transpose has a gradient in turn.
        sides = *ctx.sides[4:], *ctx.sides[:4]
        return (_SparseMatmul.apply(dy.contiguous(), *sides), *[None] * 8)


def flat_sparse_matmul(forward, backward, x):
    """Sparse matrix times dense rows; see `ops.backend`."""
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
    """Rows `x[index]`; `backward` is the transposed selection."""
    return _GatherRows.apply(x, index, *backward)


def flat_grouped_matmul(rows, kinds, kernel):
    """Rows times the kernel of their group; see `ops.backend`."""
    if _is_eager(rows):
        groups, size, width = rows.shape
        return GroupedMatmul.apply(
            rows.reshape(-1, width), None, None, kinds, kernel
        ).reshape(groups, size, -1)
    return torch.bmm(rows, gather(kernel, kinds))


def flat_gathered_grouped_matmul(x, index, backward, kinds, kernel):
    """`flat_grouped_matmul` of rows `x[index]`; see `ops.backend`."""
    if _is_eager(x):
        # The rows that are read are never held all at once.
        def add_up(dy):
            return sparse_product(backward, dy)

        return GroupedMatmul.apply(x, index, add_up, kinds, kernel)
    rows = flat_gather_rows(index, backward, x)
    rows = rows.reshape(kinds.shape[0], -1, x.shape[1])
    return flat_grouped_matmul(rows, kinds, kernel).reshape(-1, kernel.shape[2])


def _is_eager(x) -> bool:
    if x.device.type != "cpu" or is_portable():
        return False
    return not torch.compiler.is_compiling()


def gated_update(messages, states, kernel, bias, own_kernel, own_bias):
    """New states of a GRU; see `GRUUpdate`."""
    weights = (kernel, bias, own_kernel, own_bias)
    if _is_eager(messages) and messages.dtype == states.dtype == torch.float32:
        width = states.shape[-1]
        rows = messages.reshape(-1, messages.shape[-1]), states.reshape(-1, width)
        return GatedUpdate.apply(*rows, *weights).reshape(states.shape)
    return gated_rows(messages, states, *weights)


def flat_edge_attention(
    q, k, v, bias, weight, sender, receiver, num_heads, empty, plain
):
    """Attention of flat rows in one pass, or None; see `ops.edge_attention`."""
    if not _is_eager(q):
        return None
    facts = (weight, sender, receiver, num_heads, empty, plain)
    return EdgeAttention.apply(q, k, v, bias, *facts)


def filtered_sum(sent, edges, factor, weights, ends, size, activate):
    """Sums of filtered messages in one pass, or None; see `ops.filters`."""
    moving = edges.requires_grad or (factor is not None and factor.requires_grad)
    tensors = [t for t in (sent, edges, factor, *weights) if t is not None]
    if moving or not _is_eager(sent) or any(t.dtype != torch.float32 for t in tensors):
        return None
    return FilteredSum.apply(sent, *weights, edges, factor, ends, size, activate)


# `ops.remat` builds these from `copy` and `recomputed`.
checkpointed = repeat_checkpointed = None


def tile_matmul(tiles, x):
    """Products with dense blocks in column tiles; see `ops.densify`."""
    return sum(torch.matmul(tiles[:, :, q], x[:, :, q]) for q in range(tiles.shape[2]))


def value_and_gradient(function, x):
    """Values and the gradient of their sum; see `ops.backend`."""
    recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        if not (recorded and x.requires_grad):
            x = x.detach().requires_grad_()
        values = function(x)
        (slopes,) = torch.autograd.grad(values.sum(), x, create_graph=recorded)
    return (values, slopes) if recorded else (values.detach(), slopes)


def version() -> str:
    """Version of the backend."""
    return torch.__version__


def device() -> tuple[str, str]:
    """Kind of device in use, "cpu", "gpu" or "tpu", and its name."""
    if not has_accelerator():
        return "cpu", "cpu"
    kind = torch.accelerator.current_accelerator().type
    return "gpu", torch.cuda.get_device_name() if kind == "cuda" else kind


def compiled_timer_step(function, leaves, constants):
    """A compiled call that waits for its results; see `ops.backend`."""
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    cotangent = torch.ones_like(function(*leaves, *constants))

    def run():
        torch.autograd.grad(function(*leaves, *constants), leaves, cotangent)
        if has_accelerator():
            torch.accelerator.synchronize()

    return run
