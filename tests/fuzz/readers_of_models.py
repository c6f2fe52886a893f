"""Readers of stores, presets, exported models, searches, progress and settings."""

from collections.abc import Iterator

from tests.fuzz.readers import Reader


def readers() -> Iterator[Reader]:
    """One reader for each kind."""
    yield from ()
