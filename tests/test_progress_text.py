"""Progress of long work, with a clock that tests move."""

import sys
import threading
import time

import pytest

from keras_bandgnn import progress


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        moment = 1000.0

        def __call__(self):
            return self.moment

    monkeypatch.setattr(progress, "now", clock := Clock())
    monkeypatch.setattr(progress, "_last_line", -float("inf"))
    return clock


def test_a_line_every_thirty_seconds_without_a_terminal(clock, capsys):
    with progress.progress_bar("Reading", 48_000, shown=True) as advance:
        for _ in range(12):
            clock.moment += 7.5
            advance(2_000)
    assert capsys.readouterr().err.splitlines() == [
        "Reading: 8,000 of 48,000 (17 %), 267/s, 2.5 min left",
        "Reading: 16,000 of 48,000 (33 %), 267/s, 2 min left",
        "Reading: 24,000 of 48,000 (50 %), 267/s, 1.5 min left",
    ]


def test_without_a_total_the_time_left_is_unknown(clock, capsys):
    with progress.progress_bar("Reading", None, shown=True) as advance:
        clock.moment += 40
        advance(100)
    assert capsys.readouterr().err == "Reading: 100, 2.5/s\n"


def test_a_line_of_anybody_postpones_the_next(clock, capsys):
    with progress.progress_bar("Reading", 100, shown=True) as advance:
        clock.moment += 30
        progress.print_line("command: running for 30 s")
        clock.moment += 3
        advance(10)
        assert capsys.readouterr().err == "command: running for 30 s\n"
        clock.moment += 27
        advance(10)
        assert capsys.readouterr().err.startswith("Reading: 20 of 100")


def test_short_and_hidden_work_prints_nothing(clock, capsys):
    with progress.progress_bar("Reading", 3, shown=True) as advance:
        clock.moment += 24
        advance(3)
    with progress.progress_bar("Reading", 3, shown=False) as advance:
        clock.moment += 100
        advance(3)
    assert capsys.readouterr().err == ""


def test_lines_go_to_standard_error_at_once(clock, monkeypatch):
    class Stream:
        text, flushed = "", 0

        def write(self, text):
            self.text += text

        def flush(self):
            self.flushed += 1

        def isatty(self):
            return False

    monkeypatch.setattr(sys, "stderr", stream := Stream())
    progress.print_line("Reading: 1")
    assert stream.text == "Reading: 1\n" and stream.flushed == 1


def test_work_that_says_nothing_shows_that_it_runs(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", 0.2)
    with progress.heartbeat("scale"):
        time.sleep(0.5)
    lines = capsys.readouterr().err.splitlines()
    assert lines and set(lines) <= {"scale: running for 0 s", "scale: running for 1 s"}
    with progress.heartbeat("scale"):
        for _ in range(10):
            progress.print_line("a line")
            time.sleep(0.05)
    assert set(capsys.readouterr().err.splitlines()) == {"a line"}
    # The bar has a quarter of a second to be first, on a machine with other work, too.
    monkeypatch.setattr(progress, "EVERY", 1.5)
    with (
        progress.heartbeat("scale"),
        progress.progress_bar("Reading", 80, True) as advance,
    ):
        for _ in range(80):
            advance(1)
            time.sleep(0.02)
    lines = capsys.readouterr().err.splitlines()
    assert lines and all(line.startswith("Reading: ") for line in lines)
    assert "heartbeat" not in {each.name for each in threading.enumerate()}


def test_a_terminal_has_bars_instead(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress.heartbeat("scale"):
        time.sleep(0.1)
    with progress.progress_bar("Reading", 3, shown=True) as advance:
        advance(1)
    assert capsys.readouterr().err == ""
