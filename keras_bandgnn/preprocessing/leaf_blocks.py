"""How many ends of paths the blocks of a graph demand."""

import numpy as np


def path_ends(linked) -> int:
    """Fewest ends that paths through all nodes of a connected graph must have.

    Blocks are the largest parts that no single node cuts. One that hangs on the rest
    by a single node cannot be left again, so it holds an end. A node alone is a path
    with two ends.

    Args:
        linked: Symmetric CSR array [N, N] without loops, connected.

    Returns:
        The number of blocks that hang on one node, and 2 if there are fewer.

    Reference:
        Tarjan and Vishkin 1985: blocks from any spanning tree. It is taken breadth
        first here, so each step below works on one level of it.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    size = linked.shape[0]
    if size <= 2:
        return 2
    order, parent = breadth_first_order(linked, int(np.diff(linked.indptr).argmax()))
    place = np.empty(size, np.int64)
    place[order] = np.arange(size)
    # From here on nodes have their breadth-first numbers; 0 is the root.
    row = place[np.repeat(np.arange(size), np.diff(linked.indptr))]
    column = place[linked.indices]
    parent = np.concatenate([[0], place[parent[order[1:]]]])
    levels = _levels(parent)
    below = np.ones(size, np.int64)
    for first, last in reversed(levels):
        np.add.at(below, parent[first:last], below[first:last])
    # Numbers by which the nodes below one follow it without a gap.
    total = np.cumsum(below) - below
    eldest = np.searchsorted(parent[1:], np.arange(size)) + 1
    number = np.zeros(size, np.int64)
    number[1:] = 1 + total[1:] - total[eldest[parent[1:]]]
    for first, last in levels:
        number[first:last] += number[parent[first:last]]
    end = number + below
    # Smallest and largest number that the nodes below one are linked to.
    tree = (parent[row] == column) & (row > 0) | (parent[column] == row) & (column > 0)
    one, two = row[~tree], column[~tree]
    low, high = number.copy(), number.copy()
    np.minimum.at(low, one, number[two])
    np.maximum.at(high, one, number[two])
    for first, last in reversed(levels):
        np.minimum.at(low, parent[first:last], low[first:last])
        np.maximum.at(high, parent[first:last], high[first:last])
    # A node stands for its link to its parent; joined links are of one block.
    aside = end[one] <= number[two]
    above = parent[1:]
    outside = (low[1:] < number[above]) | (high[1:] >= end[above])
    outside &= above > 0
    joined = np.concatenate(
        [[one[aside], two[aside]], [np.arange(1, size)[outside], above[outside]]],
        axis=1,
    )
    joined = joined[:, (joined > 0).all(axis=0)] - 1
    entries = (np.ones(joined.shape[1]), (joined[0], joined[1]))
    matrix = csr_array(entries, shape=(size - 1, size - 1))
    count, block = connected_components(matrix, directed=False)
    # A block holds the node of each of its links and the parents of these.
    member = np.concatenate([np.arange(1, size), above])
    keys = np.sort(np.concatenate([block, block]).astype(np.int64) * size + member)
    block, member = np.divmod(keys[np.diff(keys, prepend=-1) > 0], size)
    cuts = np.bincount(member, minlength=size)[member] > 1
    return max(2, np.count_nonzero(np.bincount(block, cuts, count) == 1))


def _levels(parent: np.ndarray) -> list[tuple[int, int]]:
    """First and last node of each level of a breadth-first tree, without the root."""
    levels, first, last = [], 0, 1
    while last < parent.size:
        first, last = last, int(np.searchsorted(parent[1:], last - 1, "right")) + 1
        levels.append((first, last))
    return levels
