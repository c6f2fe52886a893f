"""Jobs in worker processes: a stream of them, in order, whatever happens to them."""

import os

import pytest

from keras_bandgnn.workers import ordered_map


@pytest.mark.release
def test_a_stream_is_read_a_few_jobs_ahead():
    taken = []

    def jobs():
        for k in range(40):
            taken.append(k)
            yield (-k,)

    outcomes = ordered_map(abs, jobs(), 2, None, ahead=3)
    assert next(outcomes) == 0 and len(taken) == 6
    assert list(outcomes) == list(range(1, 40))


@pytest.mark.parametrize("processes", [0, 1])
def test_a_single_process_is_this_one(processes):
    assert list(ordered_map(os.getpid, [()] * 2, processes, None)) == [os.getpid()] * 2
    assert os.getpid() not in ordered_map(os.getpid, [()], 1, None, here=False)


def exit_at(number, last):
    if number == last:
        os._exit(3)
    return number


@pytest.mark.release
def test_jobs_after_one_whose_process_dies_are_run_again():
    jobs = ((k, 4) for k in range(12))
    expected = [*range(4), "died", *range(5, 12)]
    assert list(ordered_map(exit_at, jobs, 2, "died")) == expected
