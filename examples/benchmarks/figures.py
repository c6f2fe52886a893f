"""Files with the figures of a benchmark: what was measured, where and with what.

A file is JSON: the subject, the command line, the date, versions, the machine, `rows`
to compare with those of another run, and `figures`, all that the benchmark measured.
"""

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

from keras_bandgnn.cli import options as shared

FORMAT = 1
_PACKAGES = (
    "keras",
    "jax",
    "tensorflow",
    "torch",
    "numpy",
    "scipy",
    "torch_geometric",
    "pyg-lib",
    "schnetpack",
    "kgcnn",
)
_FIELDS = ("name", "ours", "peer", "ratio", "unit")


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the file."""
    parser.add_argument(
        "--json",
        type=shared.written_file,
        metavar="FILE",
        help="file for the figures, to compare with those of another run",
    )


def row(
    name: str, ours: float, peer: float | None, unit: str, rate: bool = False
) -> dict:
    """Return a row of a file.

    Args:
        name: What was measured; unique in the file.
        ours: The figure of this library.
        peer: That of the other library, or None.
        unit: Unit of both.
        rate: Whether more is better, as for graphs per second.

    Returns:
        The row; `ratio` is how many times better ours is, None without a peer.
    """
    ratio = None
    if _is_number(ours) and _is_number(peer) and min(ours, peer) > 0:
        ratio = ours / peer if rate else peer / ours
    return {"name": name, "ours": ours, "peer": peer, "ratio": ratio, "unit": unit}


def _is_number(value) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
    )


def versions() -> dict[str, str]:
    """Return the versions of Python, this library and those that are compared."""
    from keras_bandgnn.version import __version__

    found = {"python": platform.python_version(), "keras_bandgnn": __version__}
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=Path(__file__).parent
        )
        if done.returncode == 0:
            found["revision"] = done.stdout.strip()
    except OSError:
        pass  # Without git.
    for name in _PACKAGES:
        # TensorFlow has a distribution for CPUs.
        for distribution in (name, f"{name}-cpu"):
            try:
                found[name] = importlib.metadata.version(distribution)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def machine() -> dict:
    """Return processor, cores, memory and accelerator of the machine."""
    from keras_bandgnn.config import cpu_model
    from keras_bandgnn.ops.backend import current

    kind, name = current.device()
    memory = None
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": None if memory is None else round(memory, 1),
        "accelerator": None if kind == "cpu" else name,
        "system": platform.platform(),
    }


def record(options: argparse.Namespace, rows: Sequence[dict], measured) -> dict:
    """Return what a file holds.

    Args:
        options: The parsed command line.
        rows: Results of `row`.
        measured: Further figures, as JSON.
    """
    import keras

    return {
        "format": FORMAT,
        "subject": options.subject,
        "command": options.line,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "backend": keras.backend.backend(),
        "versions": versions(),
        "machine": machine(),
        "rows": list(rows),
        "figures": measured,
    }


def plain(value):
    """Return nested values with None for numbers that JSON lacks, such as NaN."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_json(path: Path, value) -> None:
    """Write a file that appears when it is complete."""
    from keras_bandgnn.data.files import atomic_write

    text = json.dumps(plain(value), indent=1, allow_nan=False)
    with atomic_write(path) as stream:
        stream.write(text.encode() + b"\n")


def write(options: argparse.Namespace, rows: Sequence[dict], measured) -> None:
    """Write the file of `--json`, if it is passed; see `record`."""
    if options.json:
        write_json(options.json, record(options, rows, measured))


def read(path: Path) -> dict:
    """Return what a file holds.

    Raises:
        ValueError: If it is not such a file.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"Expected JSON of a benchmark in {path}. Received: {error}."
        ) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        given = found.get("format") if isinstance(found, dict) else type(found).__name__
        raise ValueError(
            f"Expected figures of format {FORMAT} in {path}. Received: {given!r}. "
            "Write them with the option --json of a benchmark that has a peer; that of "
            "`latency` holds other figures."
        )
    rows = found.get("rows")
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        raise ValueError(
            f"Expected `rows` in {path} to be a list of rows with "
            f"{', '.join(_FIELDS)}. Received: others."
        )
    names = [each["name"] for each in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"Expected every row of {path} to have a name of its own. Received: "
            f"{', '.join(twice)} more than once."
        )
    return found


def _is_row(each) -> bool:
    return (
        isinstance(each, dict)
        and set(_FIELDS) <= set(each)
        and isinstance(each["name"], str)
        and (each["ratio"] is None or _is_number(each["ratio"]) and each["ratio"] > 0)
    )
