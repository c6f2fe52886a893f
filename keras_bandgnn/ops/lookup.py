"""Rows of a table by id: sums of several, and states that are kept as ids."""

from typing import NamedTuple

from keras_bandgnn.host_keras import keras, ops
from keras_bandgnn.ops.backend import current as backend


class LookedUp(NamedTuple):
    """Values of edges [G, E, H], states or biases, that are rows of one table.

    A layer that only adds them to others need not store them for each edge, and a map
    of them is that of the table.

    Attributes:
        table: float [C, H].
        ids: int32 [G, E] in [0, C).
    """

    table: object
    ids: object

    def rows(self):
        """Return the states, float [G, E, H]."""
        return ops.cast(backend.gather(self.table, self.ids), self.table.dtype)

    def added(self, more: "LookedUp") -> "LookedUp":
        """Return the sums with other states, from the table of all sums of two rows."""
        table = ops.expand_dims(self.table, 1) + ops.expand_dims(more.table, 0)
        ids = self.ids * more.table.shape[0] + more.ids
        return LookedUp(ops.reshape(table, (-1, table.shape[-1])), ids)

    def mapped(self, function) -> "LookedUp":
        """Return the states after a map of single states [1, C, H]."""
        return self._replace(table=function(ops.expand_dims(self.table, 0))[0])


def rows_of(states):
    """Return states [G, E, H] that may be `LookedUp`, as an array."""
    return states.rows() if isinstance(states, LookedUp) else states


def first_of(states, count):
    """Return the states of the first edges of each supergraph, `LookedUp` or not."""
    if isinstance(states, LookedUp):
        return states._replace(ids=states.ids[:, :count])
    return states[:, :count]


def map_states(function, states):
    """Return the results [G, E, U] of a map of single states, which may be `LookedUp`.

    Args:
        function: From float [G, E, H] to [G, E, U].
        states: The states.
    """
    if isinstance(states, LookedUp):
        return states.mapped(function).rows()
    return function(states)


def lookup_sum(table, ids, weight=None):
    """Return the weighted sum over k of `table[ids[..., k]]`, or None.

    None where the backend has no operation for it, which is then best composed of
    single lookups.

    Args:
        table: float [V, H].
        ids: int32 [G, N, K] in [0, V).
        weight: float32 [G, N, K], constants; None for 1.

    Returns:
        float [G, N, H], or None.
    """
    if not _has_sum(table):
        return None
    return backend.lookup_sum(table, ids, weight)


def _has_sum(table) -> bool:
    """Return whether the backend may have a sum of rows of a table."""
    dtype = keras.backend.standardize_dtype(table.dtype)
    return backend.lookup_sum is not None and dtype == "float32"


def sum_of_rows(parts):
    """Return the sum of states that are rows of tables, or None as `lookup_sum`.

    Args:
        parts: Pairs of a table, float [V, H], and ids in it, int32 [G, E] or
            [G, E, K], of which all K rows are added.

    Returns:
        float [G, E, H], or None.
    """
    if not _has_sum(parts[0][0]):
        return None
    tables, columns, first = [], [], 0
    for table, ids in parts:
        ids = ids if len(ids.shape) == 3 else ops.expand_dims(ids, -1)
        columns.append(ids + first)
        tables.append(table)
        first += table.shape[0]
    return lookup_sum(ops.concatenate(tables), ops.concatenate(columns, -1))
