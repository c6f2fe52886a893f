"""Torch implementations."""

import warnings

import keras
import torch

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
    return torch.zeros(shape, dtype=data.dtype, device=data.device).index_add(
        0, ids, data
    )


def segment_max(data, ids, num_segments):
    """Largest rows of `data` by segment; empty segments are unspecified."""
    shape = (num_segments, *data.shape[1:])
    zeros = torch.zeros(shape, dtype=data.dtype, device=data.device)
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
    """Seeds torch's global generator, which dropout draws from."""
    torch.manual_seed(seed)


def watch_step(model, name, report):
    """The model's step `name`; it calls `report(batch)` when it compiles for a batch.

    Args:
        model: A compiled Keras model that does not run eagerly.
        name: "train_function", "test_function" or "predict_function".
        report: Called with each batch that makes the step compile.
    """
    step = getattr(model, name)
    if not model.jit_compile:
        return step
    # The compiler takes a second to import; eager training does without it.
    from torch._dynamo.utils import counters

    def watched(batches):
        before = counters["stats"]["unique_graphs"]
        outputs = step(batches)
        if counters["stats"]["unique_graphs"] > before:
            report(batches[0])
        return outputs

    return watched


def _product(side, x):
    row, column, pointer, weight = side
    num_rows = pointer.shape[0] - 1
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
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
        forward, ctx.backward_side = sides[:4], sides[4:]
        return _product(forward, x)

    @staticmethod
    def backward(ctx, dy):
        return (_product(ctx.backward_side, dy.contiguous()), *[None] * 8)


def flat_sparse_matmul(forward, backward, x):
    """Sparse matrix times dense rows; `backward` is the transposed matrix.

    Args:
        forward: Row ids [E] (sorted), column ids [E], pointers [N + 1], entries [E] or
            None.
        backward: The same of the transpose, M rows.
        x: [M, H].

    Returns:
        [N, H].
    """
    return _SparseMatmul.apply(x, *forward, *backward)


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index, *backward):
        ctx.backward_side = backward
        return torch.index_select(x, 0, index)

    @staticmethod
    def backward(ctx, dy):
        return (_product(ctx.backward_side, dy.contiguous()), *[None] * 5)


def flat_gather_rows(index, backward, x):
    """Rows `x[index]`; `backward` is the transposed selection."""
    return _GatherRows.apply(x, index, *backward)


def flat_grouped_matmul(rows, kinds, kernel):
    """Multiplies each group of rows with the kernel of its type.

    Args:
        rows: [groups, R, H].
        kinds: [groups].
        kernel: [P, H, U].

    Returns:
        [groups, R, U].
    """
    if rows.device.type == "cpu" and not torch.compiler.is_compiling():
        groups, size, width = rows.shape
        return _GroupedMatmul.apply(
            rows.reshape(-1, width), None, (), kinds, kernel, None
        ).reshape(groups, size, -1)
    return torch.bmm(rows, gather(kernel, kinds))


def can_gather_while_multiplying(x) -> bool:
    """Whether `flat_gathered_grouped_matmul` serves `x`."""
    on_host = x.device.type == "cpu" and not torch.compiler.is_compiling()
    return on_host and x.dtype == torch.float32


def flat_gathered_grouped_matmul(x, index, backward, kinds, kernel, bias):
    """`flat_grouped_matmul` of the rows `x[index]`, plus biases, [L, U].

    Args:
        x: [M, H].
        index: [L].
        backward: Row ids, column ids and pointers of the transposed selection.
        kinds: [groups].
        kernel: [P, H, U].
        bias: [P, U] or None.
    """
    return _GroupedMatmul.apply(x, index, backward, kinds, kernel, bias)


# Rows that are multiplied at a time: they stay in the cache.
_CHUNK = 8192


def _runs(kinds, size):
    """(type, first row, last row) of pieces of rows of one type."""
    types, counts = torch.unique_consecutive(kinds, return_counts=True)
    first = 0
    for kind, count in zip(types.tolist(), counts.tolist(), strict=True):
        last = first + count * size
        for start in range(first, last, _CHUNK):
            yield kind, start, min(start + _CHUNK, last)
        first = last


class _GroupedMatmul(torch.autograd.Function):
    """One product per run of groups of the same type, instead of one per group."""

    @staticmethod
    def forward(ctx, x, index, back, kinds, kernel, bias):
        length = x.shape[0] if index is None else index.shape[0]
        out = x.new_empty(length, kernel.shape[2])
        ctx.runs = list(_runs(kinds, length // kinds.shape[0]))
        room = x.new_empty(min(_CHUNK, length), x.shape[1])
        for kind, a, b in ctx.runs:
            rows = _rows(x, index, a, b, room)
            if bias is None:
                torch.mm(rows, kernel[kind], out=out[a:b])
            else:
                torch.addmm(bias[kind], rows, kernel[kind], out=out[a:b])
        ctx.save_for_backward(x, index, kernel)
        ctx.back, ctx.with_bias = back, bias is not None
        return out

    @staticmethod
    def backward(ctx, dy):
        x, index, kernel = ctx.saved_tensors
        dy = dy.contiguous()
        length = dy.shape[0]
        d_rows = x.new_empty(length, x.shape[1])
        d_kernel = torch.zeros_like(kernel)
        d_bias = kernel.new_zeros(kernel.shape[0], kernel.shape[2])
        room = x.new_empty(min(_CHUNK, length), x.shape[1])
        for kind, a, b in ctx.runs:
            if ctx.with_bias:
                d_bias[kind] += dy[a:b].sum(dim=0)
            torch.mm(dy[a:b], kernel[kind].t(), out=d_rows[a:b])
            rows = _rows(x, index, a, b, room)
            d_kernel[kind].addmm_(rows.t(), dy[a:b])
        dx = d_rows if index is None else _product((*ctx.back, None), d_rows)
        return dx, None, None, None, d_kernel, d_bias if ctx.with_bias else None


def _rows(x, index, a, b, room):
    if index is None:
        return x[a:b]
    return torch.index_select(x, 0, index[a:b], out=room[: b - a])


def gated_update(messages, states, kernel, bias, own_kernel, own_bias):
    """New states of a GRU; see `GRUUpdate`."""
    weights = (kernel, bias, own_kernel, own_bias)
    eager = messages.device.type == "cpu" and not torch.compiler.is_compiling()
    if eager and messages.dtype == states.dtype == torch.float32:
        width = states.shape[-1]
        rows = messages.reshape(-1, messages.shape[-1]), states.reshape(-1, width)
        return _GatedUpdate.apply(*rows, *weights).reshape(states.shape)
    given_z, given_r, given_n = (messages @ kernel + bias).chunk(3, dim=-1)
    own_z, own_r, own_n = (states @ own_kernel + own_bias).chunk(3, dim=-1)
    update = torch.sigmoid(given_z + own_z)
    reset = torch.sigmoid(given_r + own_r)
    candidate = torch.tanh(given_n + reset * own_n)
    return candidate + update * (states - candidate)


class _GatedUpdate(torch.autograd.Function):
    """A GRU in place and piece by piece: memory is what an eager one waits for."""

    @staticmethod
    def forward(ctx, messages, states, kernel, bias, own_kernel, own_bias):
        count, width = states.shape
        gates = states.new_empty(count, 4 * width)
        out = torch.empty_like(states)
        two = 2 * width
        both = bias[:two] + own_bias[:two]
        for a in range(0, count, _CHUNK):
            b = min(a + _CHUNK, count)
            m, h, piece = messages[a:b], states[a:b], gates[a:b]
            switch, n, own_n = piece[:, :two], piece[:, two:-width], piece[:, -width:]
            torch.addmm(both, m, kernel[:, :two], out=switch)
            switch.addmm_(h, own_kernel[:, :two]).sigmoid_()
            torch.addmm(own_bias[two:], h, own_kernel[:, two:], out=own_n)
            torch.addmm(bias[two:], m, kernel[:, two:], out=n)
            n.addcmul_(switch[:, width:], own_n).tanh_()
            torch.lerp(n, h, switch[:, :width], out=out[a:b])
        ctx.save_for_backward(messages, states, kernel, own_kernel, gates)
        return out

    @staticmethod
    def backward(ctx, d_out):
        messages, states, kernel, own_kernel, gates = ctx.saved_tensors
        count, width = states.shape
        two = 2 * width
        d_messages, d_states = torch.empty_like(messages), torch.empty_like(states)
        # Order n, z, r, n of the old state: each side is three neighbours.
        swapped = torch.cat([kernel[:, two:], kernel[:, :two]], dim=1)
        d_swapped, d_own = torch.zeros_like(kernel), torch.zeros_like(own_kernel)
        d_bias = kernel.new_zeros(4 * width)
        room = states.new_empty(min(_CHUNK, count), 4 * width)
        spare = states.new_empty(min(_CHUNK, count), width)
        for a in range(0, count, _CHUNK):
            b = min(a + _CHUNK, count)
            m, h, d, piece = messages[a:b], states[a:b], d_out[a:b], gates[a:b]
            z, r, n, own_n = piece.split(width, dim=1)
            grads, t = room[: b - a], spare[: b - a]
            g_n, g_z, g_r, g_own = grads.split(width, dim=1)
            # out = n + z (h - n)
            torch.sub(h, n, out=t)
            torch.mul(d, t, out=g_z)
            own_d = d_states[a:b]
            torch.mul(d, z, out=own_d)
            torch.sub(d, own_d, out=t)
            torch.ops.aten.tanh_backward.grad_input(t, n, grad_input=g_n)
            torch.mul(g_n, own_n, out=g_r)
            torch.mul(g_n, r, out=g_own)
            switch = grads[:, width : 3 * width]
            gate = piece[:, :two]
            # Times z (1 - z), in place: z g - z (z g).
            switch.mul_(gate).addcmul_(switch, gate, value=-1)
            given, own = grads[:, : 3 * width], grads[:, width:]
            torch.mm(given, swapped.t(), out=d_messages[a:b])
            own_d.addmm_(own, own_kernel.t())
            d_swapped.addmm_(m.t(), given)
            d_own.addmm_(h.t(), own)
            d_bias += grads.sum(dim=0)
        d_kernel = torch.cat([d_swapped[:, width:], d_swapped[:, :width]], dim=1)
        given = torch.cat([d_bias[width : 3 * width], d_bias[:width]])
        return d_messages, d_states, d_kernel, given, d_own, d_bias[width:]


def checkpointed(step, states, variables):
    """`step(states)`, computed again for the gradient; see `ops.remat`."""
    # The compiler that it imports takes a second.
    from torch.utils.checkpoint import checkpoint

    before = [torch.clone(v.value) for v in variables]
    after = []

    def pure(states):
        # Both computations begin with the same seeds, and neither assigns them.
        mapping = list(zip(variables, before, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            states = step(states)
        if not after:
            after.extend(scope.get_current_value(v) for v in variables)
        return states

    states = checkpoint(pure, states, use_reentrant=False)
    for variable, value in zip(variables, after, strict=True):
        variable.assign(value)
    return states


def repeat_checkpointed(step, states, num_steps, variables):
    """`num_steps` times `checkpointed`."""
    for _ in range(num_steps):
        states = checkpointed(step, states, variables)
    return states


def tile_matmul(tiles, x):
    """Products with dense blocks in column tiles; see `ops.densify`."""
    return sum(torch.matmul(tiles[:, :, q], x[:, :, q]) for q in range(tiles.shape[2]))


def device() -> tuple[str, str]:
    """Kind of device in use, "cpu", "gpu" or "tpu", and its name."""
    if not has_accelerator():
        return "cpu", "cpu"
    kind = torch.accelerator.current_accelerator().type
    return "gpu", torch.cuda.get_device_name() if kind == "cuda" else kind


def waiting_step(function, leaves, constants):
    """A call of `function` and its gradients that waits for the results.

    Args:
        function: Takes the leaves and the constants, returns one tensor.
        leaves: Tensors with a gradient.
        constants: Tensors without, or nested dicts of them.

    Returns:
        A function without arguments.
    """
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    cotangent = torch.ones_like(function(*leaves, *constants))

    def run():
        torch.autograd.grad(function(*leaves, *constants), leaves, cotangent)
        if has_accelerator():
            torch.accelerator.synchronize()

    return run
