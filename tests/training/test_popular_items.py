"""`most_popular` against a loop over users."""

import numpy as np
import pytest

from keras_bandgnn.data import NodePairs
from keras_bandgnn.training import most_popular

USERS, ITEMS = 25, 17


@pytest.mark.parametrize("k", [1, 5, ITEMS, ITEMS + 4])
@pytest.mark.parametrize("seed", range(4))
def test_items_are_those_of_a_loop(seed, k):
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, [USERS, ITEMS], (90, 2))
    pairs = np.concatenate([pairs, pairs[:7]])
    # A user has everything, another one nothing.
    every = np.stack([np.full(ITEMS, 3), np.arange(ITEMS)], axis=1)
    other = rng.integers(0, [USERS - 1, ITEMS], (60, 2))
    counts = np.bincount(np.unique(pairs, axis=0)[:, 1], minlength=ITEMS)
    order = np.argsort(-counts, kind="stable")
    for exclude in (None, pairs, np.concatenate([every, other])):
        left_out = set() if exclude is None else {(u, i) for u, i in exclude.tolist()}
        expected = np.full((USERS, k), -1)
        for user in range(USERS):
            row = [i for i in order.tolist() if (user, i) not in left_out][:k]
            expected[user, : len(row)] = row
        found = most_popular(pairs, USERS, ITEMS, k, exclude)
        np.testing.assert_array_equal(found, expected)
    named = NodePairs(*pairs.T, edge_set=("user", "buys", "item"))
    np.testing.assert_array_equal(
        most_popular(named, USERS, ITEMS, k, named),
        most_popular(pairs, USERS, ITEMS, k, pairs),
    )


def test_wrong_arguments_are_refused():
    for arguments, message in (
        (([[2, 0]], 2, 3), "users below num_users=2"),
        (([[0, 3]], 2, 3), "items below num_items=3"),
        (([[0, 0]], 2, 3, 0), "`k`"),
        (([[0, 0]], 2, 3, 1, [[0, 5]]), "`exclude`"),
        (([[0, 0]], 0, 3), "num_users"),
    ):
        with pytest.raises(ValueError, match=message):
            most_popular(*arguments)
