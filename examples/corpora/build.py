"""`build_corpus`: functions of many packages, without duplicates, in splits."""

import collections
import contextlib
import dataclasses
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from examples.corpora.distributions import (
    Distribution,
    Requirement,
    Unavailable,
    checksum_of,
    download,
    downloaded,
    read_distribution,
    remove_downloads,
)
from examples.corpora.groups import GROUPS, group_of
from examples.corpora.licences import PERMISSIVE
from examples.corpora.near_duplicates import (
    BANDS,
    ROWS,
    Fingerprints,
    leaders,
)
from keras_bandgnn.data.files import (
    FolderLock,
    atomic_write,
    json_text,
    sync_directory,
    write_json,
)
from keras_bandgnn.data.reading import open_npz
from keras_bandgnn.programs.corpus_files import (
    SUMMARY,
    read_lines,
    write_lines,
)
from keras_bandgnn.programs.functions import read_module
from keras_bandgnn.programs.python_source.files import reason_of
from keras_bandgnn.programs.python_source.listing import SPLITS, split_of
from keras_bandgnn.programs.python_source.tokens import decode
from keras_bandgnn.workers import ordered_map

CARD = "README.md"
_WORK = "work"
# Pieces of another form, or of another version of Python's parser, are made again.
_FORM = f"1, Python {sys.version_info.major}.{sys.version_info.minor}"
# Packages of one call of pip, which takes seconds to start; a kill loses them.
_AT_ONCE = 20
_FIELDS = [field.name for field in dataclasses.fields(Fingerprints)]

Advance = Callable[[int, int], None]
Progress = Callable[[str, str], AbstractContextManager[Advance]]


# === One package ===


def read_package(
    item: Requirement,
    archive: str | None,
    piece: str,
    any_licence: bool,
    groups: Sequence[str],
    again: bool = False,
) -> dict:
    """Write the piece of a package, in a worker, unless it is there.

    Args:
        item: The package.
        archive: Its archive; None for the installed package.
        piece: Path of the piece.
        any_licence: Whether licences that are not permissive are taken.
        groups: Groups of files that are taken, see `group_of`.
        again: Whether to write it even if it is there.

    Returns:
        What the piece says of the package, or its `name` and the `reason` why it is
        left out.
    """
    path, source = Path(piece), None if archive is None else Path(archive)
    try:
        key = [checksum_of(item, source), any_licence, sorted(groups), _FORM]
        earlier = None if again else _earlier(path, key)
        if earlier is not None:
            return earlier
        found = read_distribution(item, source)
    except Unavailable as error:
        return {"name": item.name, "reason": str(error)}
    except (OSError, ValueError) as error:
        return {"name": item.name, "reason": f"unreadable: {reason_of(error)}"}
    about = {"name": item.name, "version": found.version, "licence": found.licence}
    about["family"] = found.family
    if not any_licence and found.family not in PERMISSIVE:
        return {**about, "reason": f"licence: {found.licence}"}
    modules, counts = _modules(found, groups)
    functions = [f["source"] for m in modules for f in m["functions"]]
    if not functions:
        return {**about, "reason": "no functions in Python"}
    prints = Fingerprints.of(functions)
    with atomic_write(path.with_suffix(".npz")) as file:
        np.savez(file, **{name: getattr(prints, name) for name in _FIELDS})
    about |= {"counts": counts, "sha256": key[0]}
    header = {"package": item.name, "version": found.version}
    header |= {"licence": found.licence, "key": key, "about": about}
    # Last: a piece without this file is not there.
    write_lines(path, [header, *modules])
    return about


def died(item: Requirement, *rest: Any) -> dict:
    """Return the result of a package whose processes die."""
    return {"name": item.name, "reason": "unreadable: its process died"}


def _earlier(path: Path, key: list) -> dict | None:
    if not path.is_file() or not path.with_suffix(".npz").is_file():
        return None
    with contextlib.suppress(ValueError):
        with contextlib.closing(read_lines(path)) as lines:
            header = next(lines)
        if header.get("key") == key:
            return header["about"]
    return None


def _modules(found: Distribution, groups: Sequence[str]) -> tuple[list[dict], dict]:
    """Return the modules of a package and counts of what it holds."""
    modules = []
    counts = dict.fromkeys(("files", "lines", "functions", "unreadable", *GROUPS), 0)
    counts["unreadable"] = found.too_large
    for name, content in found.files:
        try:
            group = group_of(name, decode(content))
            if group is not None and group not in groups:
                counts[group] += 1
                continue
            module = read_module(name, content)
            # Names of files and text may hold what is no Unicode.
            json_text(name, module).encode()
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            counts["unreadable"] += 1
            continue
        modules.append(module)
        counts["files"] += 1
        counts["lines"] += module["lines"]
        counts["functions"] += len(module["functions"])
    return modules, counts


def write_package(piece: str, path: str, kept: Sequence[int]) -> dict:
    """Write the functions of a package that are kept, in a worker.

    Args:
        piece: Its piece.
        path: The file to write.
        kept: Which of its functions are kept, in order.

    Returns:
        The `bytes` and the `sha256` of the file, and the `kept_lines` in it.
    """
    which, place, lines = set(kept), 0, 0

    def values() -> Iterator[dict]:
        nonlocal place, lines
        header, *modules = read_lines(Path(piece))
        yield {name: header[name] for name in ("package", "version", "licence")}
        for module in modules:
            functions = []
            for item in module["functions"]:
                if place in which:
                    functions.append(item)
                    lines += item["source"].count("\n") + 1
                place += 1
            yield {**module, "functions": functions}

    write_lines(Path(path), values())
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": os.path.getsize(path), "sha256": checksum, "kept_lines": lines}


# === All packages ===


@contextlib.contextmanager
def _silent(title: str, unit: str) -> Iterator[Advance]:
    yield lambda done, total: None


def _map(
    function: Callable, jobs: list[tuple], processes: int | None, advance: Advance
) -> list:
    """Return the results in order; a job whose process dies gives `died`."""
    results: list = []
    advance(0, len(jobs))
    outcomes = ordered_map(function, jobs, processes or os.cpu_count() or 1, None)
    for job, outcome in zip(jobs, outcomes, strict=True):
        if outcome is None and function is not read_package:
            raise RuntimeError(
                "Expected each process to finish. Received: one died while it "
                "wrote a package. Run the same command again; it resumes."
            )
        results.append(died(*job) if outcome is None else outcome)
        advance(len(results), len(jobs))
    return results


def build_corpus(
    out: Path,
    items: Sequence[Requirement],
    *,
    installed: bool = False,
    index_url: str | None = None,
    any_licence: bool = False,
    groups: Sequence[str] = (),
    seed: int = 0,
    restart: bool = False,
    processes: int | None = None,
    progress: Progress = _silent,
) -> dict:
    """Collect packages and write their functions without duplicates, by split.

    What an earlier run has downloaded and read is not done again, whatever its options
    were. The summary is written last: without it there is no corpus.

    Args:
        out: The folder to write.
        items: The packages.
        installed: Whether to read installed packages instead of downloads.
        index_url: Address of the package index; that of pip's configuration if omitted.
        any_licence: Whether to take licences that are not permissive.
        groups: Groups of files to take that are left out otherwise: `"tests"`,
            `"vendored"`, `"generated"`.
        seed: Seed of the split of packages that have none.
        restart: Whether to read packages again that an earlier run has read.
        processes: Number of local processes; one per core if omitted.
        progress: Returns a context of a function of (done, total), for a title and a
            unit.

    Returns:
        The summary, which is also in `corpus.json`.

    Raises:
        ValueError: If the folder holds something else, or no package can be used.
    """
    _check_folder(out)
    with FolderLock(out):
        pieces, archives = out / _WORK / "pieces", out / _WORK / "archives"
        pieces.mkdir(parents=True, exist_ok=True)
        archives.mkdir(exist_ok=True)
        remove_downloads(archives)
        archive_of = {item.name: item.archive for item in items}
        if not installed:
            archive_of |= _downloads(items, archives, index_url, progress)
        left_out, jobs, sources = [], [], {}
        for item in items:
            archive = archive_of[item.name]
            if isinstance(archive, Unavailable):
                left_out.append({"name": item.name, "reason": str(archive)})
                continue
            piece = str((pieces / f"{item.name}.jsonl.gz").absolute())
            jobs.append((item, archive, piece, any_licence, tuple(groups), restart))
            sources[item.name] = item.split, archive
        with progress("read", "packages") as advance:
            found = _map(read_package, jobs, processes, advance)
        packages = []
        for about in found:
            if "reason" in about:
                left_out.append(about)
                continue
            split, archive = sources[about["name"]]
            split = split or split_of(about["name"], by="package", seed=seed)
            name = os.path.basename(archive) if archive else "installed"
            packages.append({**about, "split": split, "source": name})
        if not packages:
            reasons = "; ".join(f"{x['name']}: {x['reason']}" for x in left_out[:3])
            raise ValueError(
                f"Expected at least one package that can be read, for {out}. Received: "
                f"none of {len(items)} ({reasons}). Choose other packages."
            )
        packages.sort(key=lambda p: (SPLITS.index(p["split"]), p["name"]))
        kept = _kept(packages, pieces, progress)
        # The files of an earlier corpus stay until all new ones are written.
        new = out / _WORK / "new"
        shutil.rmtree(new, ignore_errors=True)
        jobs = []
        for package, which in zip(packages, kept, strict=True):
            package["file"] = f"{package['split']}/{package['name']}.jsonl.gz"
            package["kept"] = len(which)
            path = new.absolute() / package["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            piece = str((pieces / f"{package['name']}.jsonl.gz").absolute())
            jobs.append((piece, str(path), which.tolist()))
        with progress("write", "packages") as advance:
            written = _map(write_package, jobs, processes, advance)
        for package, file in zip(packages, written, strict=True):
            package["file_sha256"] = file["sha256"]
            package |= {k: file[k] for k in ("bytes", "kept_lines")}
        options = {"any_licence": any_licence, "groups": sorted(groups), "seed": seed}
        summary = _summary(packages, left_out, options)
        with atomic_write(new / CARD) as file:
            file.write(card(summary).encode())
        write_json(new / SUMMARY, summary, indent=1)
        _replace(out, new, [package["file"] for package in packages])
        return summary


def _replace(out: Path, new: Path, files: list[str]) -> None:
    """Move the files of a new corpus into its folder, the summary last."""
    (out / SUMMARY).unlink(missing_ok=True)
    for split in SPLITS:
        for path in (out / split).glob("*.jsonl.gz"):
            if f"{split}/{path.name}" not in files:
                path.unlink()
    for name in [*files, CARD, SUMMARY]:
        (out / name).parent.mkdir(exist_ok=True)
        os.replace(new / name, out / name)
    sync_directory(out)
    shutil.rmtree(new)


def _downloads(
    items: Sequence[Requirement],
    folder: Path,
    index_url: str | None,
    progress: Progress,
) -> dict[str, str | Unavailable]:
    """Return the archive of each package that has none, downloaded if necessary."""
    items = [item for item in items if item.archive is None]
    found: dict[str, str | Unavailable] = {}
    for item in items:
        earlier = downloaded(item, folder)
        if earlier is not None:
            found[item.name] = str(earlier.absolute())
    left = [item for item in items if item.name not in found]
    with progress("download", "packages") as advance:
        for start in range(0, len(left), _AT_ONCE):
            advance(len(found), len(items))
            part = left[start : start + _AT_ONCE]
            for name, archive in download(part, folder, index_url).items():
                is_path = isinstance(archive, Path)
                found[name] = (
                    str(archive.absolute()) if is_path else Unavailable(archive)
                )
        advance(len(found), len(items))
    return found


def _check_folder(out: Path) -> None:
    names = {SUMMARY, CARD, _WORK, *SPLITS}
    present = {path.name for path in out.iterdir()} if out.is_dir() else set()
    others = {name for name in present - names if not name.startswith(".")}
    if out.is_file() or others or (present and _WORK not in present):
        raise ValueError(
            f"Expected {out} to be new, empty, or a corpus. Received: "
            f"{'a file' if out.is_file() else sorted(present)[:5]}. Choose another "
            "folder."
        )


# === Duplicates ===


def _kept(packages: list[dict], pieces: Path, progress: Progress) -> list[np.ndarray]:
    """Return which functions of each package are kept; adds counts to the packages."""
    parts = []
    for package in packages:
        path = pieces / f"{package['name']}.jsonl.npz"
        with open_npz(path) as arrays:
            shapes = {name: (None,) for name in _FIELDS}
            shapes["signatures"] = (None, BANDS * ROWS)
            rows = {k: arrays.take(k, "integers", s) for k, s in shapes.items()}
            parts.append(Fingerprints(**rows))
    prints = Fingerprints.joined(parts)
    with progress("find duplicates", "functions") as advance:
        leader, exact = leaders(prints, advance)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    split = np.array([SPLITS.index(p["split"]) for p in packages])[owner]
    kept = leader == np.arange(len(prints))
    # A leader for validation or test whose duplicates are in another split goes, too.
    spanning = np.zeros(len(prints), bool)
    np.logical_or.at(spanning, leader, split != split[leader])
    leaks = kept & spanning & (split != SPLITS.index("train"))
    removed = ~kept
    across = removed & (owner != owner[leader])
    kinds = {
        "exact_duplicates": removed & exact,
        "near_duplicates": removed & ~exact,
        "duplicates_of_other_packages": across,
        "duplicates_of_other_splits": removed & (split != split[leader]) | leaks,
    }
    for number, package in enumerate(packages):
        own = owner == number
        package |= {name: int((own & mask).sum()) for name, mask in kinds.items()}
    kept &= ~leaks
    ends = np.cumsum([len(part) for part in parts])
    starts = ends - [len(part) for part in parts]
    return [np.flatnonzero(kept[a:b]) for a, b in zip(starts, ends, strict=True)]


# === Summary ===

_DUPLICATES = ("exact_duplicates", "near_duplicates", "duplicates_of_other_packages")
_DUPLICATES += ("duplicates_of_other_splits",)


def _summary(packages: list[dict], left_out: list[dict], options: dict) -> dict:
    splits = {}
    for split in SPLITS:
        members = [p for p in packages if p["split"] == split]
        splits[split] = {
            "packages": len(members),
            **{k: sum(p["counts"][k] for p in members) for k in ("files", "lines")},
            "functions": sum(p["counts"]["functions"] for p in members),
            **{name: sum(p[name] for p in members) for name in _DUPLICATES},
            **{k: sum(p[k] for p in members) for k in ("kept", "kept_lines", "bytes")},
        }
    families = collections.Counter(package["family"] for package in packages)
    return {
        "format": "keras-bandgnn corpus 1",
        "options": options,
        "splits": splits,
        "licences": dict(sorted(families.items())),
        "packages": packages,
        "left_out": sorted(left_out, key=lambda entry: entry["name"]),
    }


def card(summary: dict) -> str:
    """Return the tables of a corpus for a model card, in Markdown."""

    def cell(value: Any) -> str:
        text = f"{value:,}" if isinstance(value, int) else str(value)
        return "".join(c for c in text if c.isprintable()).replace("|", "\\|")

    def table(columns: Sequence[str], rows: Sequence[Sequence]) -> str:
        lines = [columns, ["---"] * len(columns), *rows]
        return "\n".join(f"| {' | '.join(map(cell, row))} |" for row in lines) + "\n"

    rows = [
        [split, counts["packages"], counts["files"], counts["lines"]]
        + [counts[k] for k in ("functions", "exact_duplicates", "near_duplicates")]
        + [counts["kept"], counts["kept_lines"]]
        for split, counts in summary["splits"].items()
    ]
    columns = ["split", "packages", "files", "lines", "functions"]
    columns += ["exact duplicates", "near duplicates", "kept", "lines kept"]
    parts = ["# Corpus\n", table(columns, rows)]
    licences = sorted(summary["licences"].items(), key=lambda item: (-item[1], item[0]))
    parts += ["## Licences\n", table(["licence", "packages"], licences)]
    rows = [
        [p["name"], p["version"], p["licence"], p["split"]]
        + [p["counts"][k] for k in ("files", "lines", "functions")]
        + [p["kept"]]
        for p in sorted(summary["packages"], key=lambda p: p["name"])
    ]
    columns = ["package", "version", "licence", "split", "files", "lines", "functions"]
    parts += ["## Packages\n", table([*columns, "kept"], rows)]
    if summary["left_out"]:
        for title, licence in (("Left out: licence", True), ("Left out", False)):
            rows = [
                [entry["name"], entry.get("version", ""), entry["reason"]]
                for entry in summary["left_out"]
                if entry["reason"].startswith("licence: ") == licence
            ]
            if rows:
                parts += [f"## {title}\n", table(["package", "version", "why"], rows)]
    return "\n".join(parts)
