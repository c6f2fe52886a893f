"""Settings of a project: the table `[tool.bandgnn]` of pyproject.toml."""

import dataclasses
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_MAX_BYTES = 4_000_000


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a project; None where nothing is said.

    Attributes:
        file: The file, None if there is none.
        model: Folder or name of a preset.
        min_confidence: Least confidence of a finding.
        fail_on: Number of findings from which the exit code is 1; None also for
            "never", with `never_fail`.
        never_fail: Whether the exit code is 0 whatever is found.
        exclude: Patterns of files and folders to skip.
        baseline: File of known findings.
        cache_dir: Folder of the cache.
    """

    file: Path | None = None
    model: str | None = None
    min_confidence: float | None = None
    fail_on: int | None = None
    never_fail: bool = False
    exclude: tuple[str, ...] = ()
    baseline: Path | None = None
    cache_dir: Path | None = None


_KEYS = ("baseline", "cache-dir", "exclude", "fail-on", "min-confidence", "model")


def find_settings(paths: Iterable[str | os.PathLike]) -> Settings:
    """Read the nearest pyproject.toml with settings, at or above all paths.

    Args:
        paths: Files and folders.

    Raises:
        ValueError: If the file is not TOML, or for unknown keys or values.
    """
    absolute = [os.path.abspath(path) for path in paths]
    folders = [p if os.path.isdir(p) else os.path.dirname(p) for p in absolute]
    try:
        common = Path(os.path.commonpath(folders))
    except ValueError:  # several drives
        return Settings()
    for folder in (common, *common.parents):
        file = folder / "pyproject.toml"
        table = _table(file) if os.path.isfile(file) else None
        if table is not None:
            return _settings(file, table)
    return Settings()


def _table(file: Path) -> dict | None:
    with open(file, "rb") as stream:
        data = stream.read(_MAX_BYTES + 1)
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES} bytes")
        tables = tomllib.loads(data.decode()).get("tool", {})
        table = tables.get("bandgnn") if isinstance(tables, dict) else None
    except (RecursionError, ValueError) as error:
        raise ValueError(
            f"Expected TOML in {file}. Received: {error}. Correct the file."
        ) from error
    if table is not None and not isinstance(table, dict):
        raise ValueError(
            f"Expected a table [tool.bandgnn] in {file}. Received: tool.bandgnn = "
            f"{table!r}. Write [tool.bandgnn] on a line of its own."
        )
    return table


def _settings(file: Path, table: dict[str, Any]) -> Settings:
    unknown = sorted(set(table) - set(_KEYS))
    if unknown:
        raise ValueError(
            f"Expected keys of [tool.bandgnn] in {file} among {', '.join(_KEYS)}. "
            f"Received: {', '.join(unknown)}. Correct or remove them."
        )

    def value(key: str, kind: type | tuple, what: str, ok=lambda value: True):
        if key not in table:
            return None
        entry = table[key]
        if isinstance(entry, bool) or not isinstance(entry, kind) or not ok(entry):
            raise ValueError(
                f"Expected {key} in [tool.bandgnn] of {file} to be {what}. "
                f"Received: {entry!r}. Correct it."
            )
        return entry

    def place(key: str) -> Path | None:
        text = value(key, str, "a path", bool)
        return None if text is None else file.parent / Path(text).expanduser()

    fail_on = value(
        "fail-on",
        int | str,
        'an integer of at least 1, or "never"',
        lambda n: n == "never" or (isinstance(n, int) and n >= 1),
    )
    exclude = value(
        "exclude",
        list,
        "a list of patterns",
        lambda patterns: all(isinstance(p, str) and p for p in patterns),
    )
    least = value(
        "min-confidence", int | float, "a probability, 0 to 1", lambda p: 0 <= p <= 1
    )
    model = value("model", str, "the folder or name of a preset", bool)
    if model is not None and os.path.isdir(file.parent / model):
        model = str(file.parent / model)
    return Settings(
        file=file,
        model=model,
        min_confidence=least,
        fail_on=None if fail_on == "never" else fail_on,
        never_fail=fail_on == "never",
        exclude=tuple(exclude or ()),
        baseline=place("baseline"),
        cache_dir=place("cache-dir"),
    )
