"""The benchmark of neighbour searches, on made cells."""

import argparse

import numpy as np
import pytest

pytest.importorskip("matscipy")
pytest.importorskip("vesin")

from examples.benchmarks import neighbours  # noqa: E402


def test_both_searches_find_the_same_pairs():
    options = argparse.Namespace(cutoff=5.0, runs=1)
    for name, structures in neighbours.made().items():
        count, raw, kept = neighbours.compare(options, structures)
        assert (raw, kept) == (0, 0), name
        assert int(count.replace(",", "")) > 0 or name.startswith("wide")


def test_pairs_are_compared_one_by_one():
    structure = neighbours.made()["thin, periodic"][0]
    search = neighbours.searches(5.0)["matscipy"]
    pairs, distance = neighbours.pairs_of(search, structure)
    assert pairs.shape == (384, 5) and distance.max() <= 5.0
    assert len(np.unique(pairs, axis=0)) == len(pairs)
    assert all(
        t > 0
        for t in neighbours.milliseconds(
            argparse.Namespace(cutoff=5.0, runs=1), [structure]
        )
    )
