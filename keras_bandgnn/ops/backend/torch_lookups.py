"""Sums of rows of a table by id on CPUs in torch, and of rows with equal ids."""

import numpy as np
import torch
from torch import Tensor

from keras_bandgnn.ops.backend.torch_fused import fused_operation, operation


@operation
def grouped(ids: Tensor, real: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Return the order that puts equal ids side by side, and pointers to each id.

    Args:
        ids: Integers [E] or [E, K] in [0, count).
        real: int64, whose last entry is the number of rows to take, the first; None
            for all.
        count: Number of ids.

    Returns:
        Places of the flat ids, int64, in stable order; pointers, int64 [count + 1].
    """
    ids = ids.numpy()
    ids = (ids if real is None else ids[: int(real[-1])]).reshape(-1)
    # NumPy sorts 16 bits in linear time; torch does not.
    order = np.argsort(ids.astype(np.uint16), kind="stable")
    if count > 1 << 16:
        high = (ids >> 16).astype(np.uint16)[order]
        order = order[np.argsort(high, kind="stable")]
    pointers = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(ids, minlength=count), out=pointers[1:])
    return torch.from_numpy(order), torch.from_numpy(pointers)


def bag(rows, ids, pointers, weight=None):
    """Return the weighted sums of rows by id between pointers."""
    return torch.embedding_bag(rows, ids, pointers, False, 0, False, weight, True)[0]


# Sums [M, H] of K rows of a table by id.


def _lookup_sum(table, ids, weight: Tensor | None):
    pointers = torch.arange(0, ids.numel() + 1, ids.shape[1], dtype=ids.dtype)
    weight = None if weight is None else weight.reshape(-1)
    return bag(table, ids.reshape(-1), pointers, weight)


def _lookup_sum_gradient(d_out, ids, weight, places: list[Tensor]):
    order, pointers = places
    rows = torch.div(order, ids.shape[1], rounding_mode="floor")
    weight = None if weight is None else weight.reshape(-1)[order]
    return bag(d_out, rows, pointers, weight)


def _lookup_sum_reference(table, ids, weight):
    rows = table.index_select(0, ids.reshape(-1)).view(*ids.shape, -1)
    return (rows if weight is None else rows * weight[:, :, None]).sum(dim=1)


lookup_sum = fused_operation(
    _lookup_sum,
    _lookup_sum_gradient,
    _lookup_sum_reference,
    variables=1,
    derived={"places": lambda v: [*grouped(v["ids"], None, len(v["table"]))]},
)
