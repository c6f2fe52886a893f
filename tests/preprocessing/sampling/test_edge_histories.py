"""`EdgeHistories` against comparisons of all edges."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn.preprocessing.sampling.edge_histories import EdgeHistories

# Within int64, beyond int32 and beyond what floats tell apart.
TIMES = st.integers(-(2**61), 2**61) | st.integers(0, 4).map(lambda t: 2**40 + t)


@settings(max_examples=150, deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, 6), TIMES), max_size=60),
    questions=st.lists(st.tuples(st.integers(0, 6), TIMES), min_size=1, max_size=20),
)
def test_earlier_edges_are_the_first_of_a_row(edges, questions):
    rows = np.array([row for row, _ in edges], np.int64)
    times = np.array([time for _, time in edges], np.int64)
    histories = EdgeHistories(rows, times, 7)
    # Times of edges themselves are asked for, too.
    questions = [*questions, *edges]
    asked = np.array([row for row, _ in questions], np.int64)
    moments = np.array([time for _, time in questions], np.int64)
    first, counts = histories.before(asked, histories.ranks(moments))
    for row, moment, start, count in zip(asked, moments, first, counts, strict=True):
        earlier = histories.order[start : start + count]
        expected = np.flatnonzero((rows == row) & (times < moment))
        assert sorted(earlier) == expected.tolist()
        assert (np.diff(times[earlier]) >= 0).all()
    # Edges of one time keep their order.
    for row in range(7):
        whole = histories.order[histories.pointer[row] : histories.pointer[row + 1]]
        assert whole.tolist() == sorted(whole, key=lambda edge: (times[edge], edge))
