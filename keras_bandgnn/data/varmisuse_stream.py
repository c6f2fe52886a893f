"""Streams of JSON samples: arrays and lines, compressed or not."""

import codecs
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from keras_bandgnn.data.reading import open_unpacked, parse_json

_CHUNK = 2**20


def samples(file: Path) -> Iterator[tuple[str, Any]]:
    """Yields each sample with its place, or a ValueError in the place of a bad one."""
    where = "line 1"
    try:
        with open_unpacked(file) as stream:
            head = stream.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
            for where, sample in _array(stream) if head == b"[" else _lines(stream):
                yield where, sample
    except (ValueError, OSError) as error:
        packed = file.suffix == ".gz"
        what = "a whole gzip file" if packed else "a file of UTF-8 text"
        after = f"an unreadable file after {where} ({type(error).__name__}: {error})"
        message = f"Expected {what}. Received: {after}. Copy or download it again."
        yield where, ValueError(message)


def _not_json(error: Exception) -> ValueError:
    return ValueError(
        f"Expected valid JSON. Received: {error}. Copy or download the file again."
    )


def _lines(stream: BinaryIO) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            sample = parse_json(line)
        except ValueError as error:
            sample = _not_json(error)
        yield f"line {number}", sample


def _array(stream: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Parses an array element by element, holding about one of them as text."""
    text = _Text(stream)
    text.take()  # the opening bracket
    if text.peek() == "]":
        return
    for position in itertools.count():
        where = f"array position {position}"
        try:
            sample = text.value()
        except (ValueError, RecursionError) as error:
            yield where, _not_json(error)
            return
        yield where, sample
        if (mark := text.take()) != ",":
            break
    if mark != "]":
        found = repr(mark) if mark else "the end of the file"
        yield where, _not_json(ValueError(f"{found} instead of ',' or ']' after it"))
    elif rest := text.peek():
        yield where, _not_json(ValueError(f"{rest!r} after the end of the array"))


class _Text:
    """Decoded text of a stream, read in chunks, from which values are parsed."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._parse = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._ended = False

    def _grow(self) -> None:
        # At least twice the text, so that long values take few attempts.
        size = max(_CHUNK, len(self._text) - self._at)
        data = self._stream.read(size)
        self._ended = not data
        self._text = self._text[self._at :] + self._decode(data, self._ended)
        self._at = 0

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in " \t\r\n":
                    return self._text[self._at]
                self._at += 1
            if self._ended:
                return ""
            self._grow()

    def take(self) -> str:
        """Like `peek`, and steps over it."""
        character = self.peek()
        self._at += len(character)
        return character

    def value(self) -> Any:
        """Parses the next value, reading on until it is complete."""
        self.peek()
        while True:
            try:
                value, end = self._parse(self._text, self._at)
                # A number at the end of the text may go on.
                if end < len(self._text) or self._ended:
                    self._at = end
                    return value
            except ValueError:
                if self._ended:
                    raise
            self._grow()
