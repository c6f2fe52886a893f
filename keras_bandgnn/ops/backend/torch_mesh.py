"""`SequenceAxis`: communication between processes that share a sequence of nodes."""

import torch
import torch.distributed as dist

from keras_bandgnn.checks import check_heads


class SequenceAxis:
    """The processes that share a supergraph; see `ops.backend.jax_mesh.SequenceAxis`.

    All of them call the same methods in the same order, and their gradients come back
    in the opposite order. The gradient of a value that all processes have, such as a
    weight, is the sum of those of the processes.

    Args:
        group: The process group.
        size: P, its number of processes.
        index: Index of this process among them.
        node: `mask` and `graph_id` of all nodes, [G, N].
    """

    def __init__(self, group, size: int, index: int, node: dict):
        self.group, self.size, self.index, self.node = group, size, index, node

    def whole(self, x):
        """Return the batch with the masks of all nodes instead of this process's."""
        return {**x, "node": self.node}

    def halo(self, x, size: int):
        """Return [G, S + n + S, H], with S rows of either neighbour around x [G, n, H].

        At the ends of the axis these rows are 0.
        """
        first, last = x[:, :size], x[:, -size:]
        sizes = [0] * self.size
        parts = []
        for index, rows in ((self.index - 1, first), (self.index + 1, last)):
            if 0 <= index < self.size:
                sizes[index] = rows.numel()
                parts.append(rows.reshape(-1))
        # What a neighbour sends is as large as what it gets.
        flat = torch.cat(parts) if parts else x.new_zeros(0)
        arrived = _Exchange.apply(flat, sizes, self.group).split(sizes)
        before, after = (
            arrived[index].reshape(first.shape)
            if 0 <= index < self.size
            else torch.zeros_like(first)
            for index in (self.index - 1, self.index + 1)
        )
        return torch.cat([before, x, after], dim=1)

    def exchange(self, rows):
        """Exchange rows [G, P R, H] all-to-all: part p goes to and comes from p."""
        groups, count, channels = rows.shape
        parts = rows.reshape(groups, self.size, count // self.size, channels)
        arrived = self._all_to_all(parts.movedim(1, 0))
        return arrived.movedim(0, 1).reshape(rows.shape)

    def to_heads(self, rows):
        """Reshard from rows [.., n, C] to columns [.., N, C/P]."""
        *axes, count, channels = rows.shape
        parts = rows.reshape(*axes, count, self.size, channels // self.size)
        arrived = self._all_to_all(parts.movedim(-2, 0)).movedim(0, -3)
        return arrived.reshape(*axes, self.size * count, channels // self.size)

    def to_rows(self, rows):
        """Reshard from columns [.., N, C/P] to rows [.., n, C]."""
        *axes, count, channels = rows.shape
        parts = rows.reshape(*axes, self.size, count // self.size, channels)
        arrived = self._all_to_all(parts.movedim(-3, 0)).movedim(0, -2)
        return arrived.reshape(*axes, count // self.size, self.size * channels)

    def local_columns(self, values):
        """Return this process's columns [.., C/P]."""
        check_heads(values.shape[-1], self.size)
        width = values.shape[-1] // self.size
        return values.narrow(-1, self.index * width, width)

    def columns(self, values):
        """Gather the columns [.., C] of all processes."""
        parts = self._all_to_all(values.expand(self.size, *values.shape))
        joined = parts.movedim(0, -2)
        return joined.reshape(*values.shape[:-1], self.size * values.shape[-1])

    def total(self, values):
        """Sum over the processes (all-reduce)."""
        return _Total.apply(values, self.group)

    def largest(self, values):
        """Return the maximum over the processes; it has no gradient."""
        values = values.detach().clone()
        dist.all_reduce(values, dist.ReduceOp.MAX, self.group)
        return values

    def same(self, values):
        """Broadcast the values of the first process."""
        # Gradients flow in every process, so that all take part in their sum.
        first = torch.tensor(self.index == 0, device=values.device)
        return self.total(torch.where(first, values, 0))

    def rows(self, states, ids):
        """Gather rows from any process; see `ops.sequence.rows_at`."""
        count = states.shape[1]
        place = torch.as_tensor(ids, device=states.device).long() - self.index * count
        here = (place >= 0) & (place < count)
        place = torch.where(here, place, 0).reshape(len(place), -1, 1)
        values = states.gather(1, place.expand(-1, -1, states.shape[-1]))
        values = values.reshape(*here.shape, states.shape[-1])
        return self.total(torch.where(here[..., None], values, 0))

    def _all_to_all(self, parts):
        """Exchange parts [P, ...]: part p goes to and comes from p."""
        sizes = [parts[0].numel()] * self.size
        return _Exchange.apply(parts.reshape(-1), sizes, self.group).reshape(
            parts.shape
        )


class _Exchange(torch.autograd.Function):
    """All-to-all of parts of a flat tensor, which are as large both ways."""

    @staticmethod
    def forward(ctx, flat, sizes, group):
        ctx.sizes, ctx.group = sizes, group
        flat = flat.detach().contiguous()
        out = torch.empty_like(flat)
        dist.all_to_all_single(out, flat, sizes, sizes, group)
        return out

    @staticmethod
    def backward(ctx, gradient):
        return _Exchange.apply(gradient, ctx.sizes, ctx.group), None, None


class _Total(torch.autograd.Function):
    """All-reduce; its gradient is the sum of those of the processes."""

    @staticmethod
    def forward(ctx, values, group):
        ctx.group = group
        values = values.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(values, group=group)
        return values

    @staticmethod
    def backward(ctx, gradient):
        return _Total.apply(gradient, ctx.group), None
