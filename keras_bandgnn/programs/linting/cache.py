"""`FindingCache`: findings on disk, by the model and the content of a file."""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import sys
from pathlib import Path

from keras_bandgnn.config import cache_folder
from keras_bandgnn.data.files import atomic_write, json_text
from keras_bandgnn.programs.linting.finding import FileFindings, Finding
from keras_bandgnn.programs.linting.source_code import SourceCode
from keras_bandgnn.saving.preset_paths import NAMES
from keras_bandgnn.version import __version__

_VERSION = 3
_MAX_BYTES = 256_000_000
# Model, first digits, and digest of the text.
_ENTRY = re.compile(r"\w+/[0-9a-f]{2}/[0-9a-f]{64}\.json")
_FIELDS = [field.name for field in dataclasses.fields(Finding) if field.name != "path"]


def default_folder() -> Path:
    """Return the folder of the cache in the user's cache folder."""
    return cache_folder() / "check"


def model_key(preset: Path) -> str:
    """Return a digest of a preset's files and of the library's version."""
    # Another Python may read syntax that this one does not.
    python = sys.version_info[:2]
    digest = hashlib.sha256(f"{_VERSION} {__version__} {python}".encode())
    for name in NAMES:
        with contextlib.suppress(FileNotFoundError), open(preset / name, "rb") as file:
            digest.update(name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


class FindingCache:
    """Findings of a model, in a file for each text.

    What cannot be read counts as missing; a folder that cannot be written to is left
    alone.

    Args:
        folder: The folder; created with the first entry.
        model: From `model_key`.
        max_bytes: Size that `trim` keeps to.
    """

    def __init__(self, folder: Path, model: str, max_bytes: int = _MAX_BYTES):
        self._folder = folder
        self._model = model
        self._max_bytes = max_bytes

    def _file(self, code: SourceCode) -> Path:
        text = code.text.encode("utf-8", "surrogatepass")
        name = hashlib.sha256(text).hexdigest()
        return self._folder / self._model / name[:2] / f"{name}.json"

    def get(self, code: SourceCode) -> FileFindings | None:
        """Return the findings in a file, None if they are not known."""
        file = self._file(code)
        try:
            with open(file, "rb") as stream:
                entry = json.loads(stream.read())
            findings = tuple(_finding(code, row) for row in entry["findings"])
            skipped = tuple(entry["skipped"])
            if not all(isinstance(reason, str) for reason in skipped):
                raise TypeError("a reason that is not text")
            # The oldest are removed first.
            os.utime(file)
        except (
            KeyError,
            OSError,
            OverflowError,
            RecursionError,
            TypeError,
            ValueError,
        ):
            return None
        return FileFindings(code, findings, (*code.skipped, *skipped))

    def put(self, result: FileFindings) -> None:
        """Keep the findings in a file."""
        if result.error is not None:
            return
        skipped = result.skipped[len(result.code.skipped) :]
        rows = [[getattr(f, name) for name in _FIELDS] for f in result.findings]
        text = json_text("findings", {"findings": rows, "skipped": skipped})
        file = self._file(result.code)
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(file) as stream:
                stream.write(text.encode())

    def trim(self) -> None:
        """Remove the entries used least recently, of all models, above the size.

        Other files in the folder do not count, and stay.
        """
        entries = []
        # The folder may hold other files, which are not the cache's to remove.
        for file in self._folder.glob("*/*/*.json"):
            if not _ENTRY.fullmatch(file.relative_to(self._folder).as_posix()):
                continue
            with contextlib.suppress(OSError):
                state = os.stat(file)
                entries.append((state.st_mtime_ns, state.st_size, file))
        size = sum(entry[1] for entry in entries)
        if size <= self._max_bytes:
            return
        for _, bytes_, file in sorted(entries):
            # Some room, so that not every run has to remove some.
            if size <= 0.8 * self._max_bytes:
                break
            with contextlib.suppress(OSError):
                os.unlink(file)
                size -= bytes_


def _finding(code: SourceCode, row: list) -> Finding:
    values = dict(zip(_FIELDS, row, strict=True))
    values["candidates"] = tuple((str(n), float(p)) for n, p in values["candidates"])
    finding = Finding(path=code.path, **values)
    numbers = (finding.line, finding.column, finding.end_column)
    texts = (finding.used, finding.suggested, finding.function)
    shares = (finding.confidence, *(share for _, share in finding.candidates))
    # Shares in single precision may exceed 1 a little.
    if not (
        all(type(number) is int for number in numbers)
        and all(type(text) is str for text in texts)
        and all(type(share) is float and 0 <= share <= 1.001 for share in shares)
        and finding.cell is None
        and 1 <= finding.line <= len(code.lines)
        and 1 <= finding.column < finding.end_column
        and finding.end_column <= len(code.lines[finding.line - 1]) + 1
    ):
        raise ValueError("not an entry of the cache for this text")
    return finding
