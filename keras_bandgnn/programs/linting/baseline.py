"""Known findings, recognised again wherever their lines have moved to."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from keras_bandgnn.data.files import write_json
from keras_bandgnn.programs.linting.finding import FileFindings, Finding
from keras_bandgnn.programs.linting.source_code import SourceCode

_VERSION = 1
_FIELDS = ("path", "function", "used", "suggested", "code")

Key = tuple[str, str, str, str, str]


def _key(code: SourceCode, finding: Finding, path: str) -> Key:
    """Return the identity of a finding: not its line, but the line's text."""
    line = code.lines[code.line_of(finding.cell, finding.line) - 1]
    text = " ".join(line.split())
    return path, finding.function, finding.used, finding.suggested, text


def fingerprints(result: FileFindings) -> list[str]:
    """Return a digest of each finding, equal wherever its line moves in the file."""
    counts: Counter = Counter()
    digests = []
    for finding in result.findings:
        key = _key(result.code, finding, Path(finding.path).as_posix())
        counts[key] += 1
        text = "\0".join((*key, str(counts[key])))
        text = text.encode("utf-8", "surrogateescape")
        digests.append(hashlib.sha256(text).hexdigest()[:32])
    return digests


class Baseline:
    """A file of known findings.

    Args:
        file: The file; its folder is the one that paths are relative to.
    """

    def __init__(self, file: str | os.PathLike):
        self._file = Path(file)
        self._counts: Counter = Counter()

    def _path(self, finding: Finding) -> str:
        folder = self._file.absolute().parent
        return Path(os.path.relpath(finding.path, folder)).as_posix()

    def read(self) -> "Baseline":
        """Read the file.

        Raises:
            FileNotFoundError: If there is no such file.
            OSError: If it cannot be read.
            ValueError: If it is not a baseline.
        """
        try:
            with open(self._file, "rb") as stream:
                content = json.loads(stream.read())
            if content["version"] != _VERSION:
                raise ValueError(f"version {content['version']!r}")
            for entry in content["findings"]:
                key, count = tuple(entry[name] for name in _FIELDS), entry["count"]
                if not all(isinstance(text, str) for text in key):
                    raise TypeError("a value that is not text")
                if type(count) is not int or count < 1:
                    raise ValueError(f"a count of {count!r}")
                self._counts[key] += count
        except OSError as error:
            raise type(error)(
                f"Expected a file of known findings. Received: {self._file}: "
                f"{error.strerror}. Write it with --write-baseline, or check the path."
            ) from error
        except (KeyError, RecursionError, TypeError, ValueError) as e:
            raise ValueError(
                f"Expected a baseline of version {_VERSION} in {self._file}. Received: "
                f"{type(e).__name__}: {e}. Write it again with --write-baseline."
            ) from e
        return self

    def unknown(self, result: FileFindings) -> tuple[Finding, ...]:
        """Return the findings in a file that the baseline does not have.

        Each entry stands for as many findings as it counts, and is used up by them.
        """
        findings = []
        for finding in result.findings:
            key = _key(result.code, finding, self._path(finding))
            if self._counts[key] > 0:
                self._counts[key] -= 1
            else:
                findings.append(finding)
        return tuple(findings)

    def write(self, results: Iterable[FileFindings]) -> int:
        """Write the file, and return the number of findings."""
        counts = Counter(
            _key(result.code, finding, self._path(finding))
            for result in results
            for finding in result.findings
        )
        entries = [
            {**dict(zip(_FIELDS, key, strict=True)), "count": count}
            for key, count in sorted(counts.items())
        ]
        write_json(self._file, {"version": _VERSION, "findings": entries}, indent=1)
        return counts.total()
