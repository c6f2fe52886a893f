"""Unfinished stores: their progress file, and whose they are."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_bandgnn.checks import shown
from keras_bandgnn.data.files import (
    FolderLock,
    refuse_link,
    replace_folder,
    restore_replaced,
)
from keras_bandgnn.data.reading import parse_json, read_json, reading
from keras_bandgnn.data.store_format import (
    DESCRIPTION,
    FORMAT,
    SIZES,
    check_file,
    check_header,
    check_units,
)

PROGRESS = "progress.jsonl"
# What a kill leaves of files that were being written.
_HIDDEN = re.compile(r"^\.[0-9a-f]{8}\.partial\.|\.tmp$")


def read_progress(partial: Path) -> tuple[dict | None, list[dict]]:
    """Returns the header and the finished units; a torn last line does not count."""
    progress = partial / PROGRESS
    if progress.exists():
        check_file(progress)
        lines = progress.read_bytes().split(b"\n")[:-1]
        with reading(progress):
            found = [parse_json(line) for line in lines]
        if found:
            check_units(progress, found[1:])
            return found[0], found[1:]
    if (partial / DESCRIPTION).exists():
        # Killed after the last step of writing but before the new name.
        check_file(partial / DESCRIPTION)
        description = read_json(partial / DESCRIPTION)
        check_header(partial / DESCRIPTION, description)
        check_units(partial / DESCRIPTION, description.get("units"))
        return description, description["units"]
    return None, []


def _is_store(path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return json.loads((path / DESCRIPTION).read_bytes()).get("format") == FORMAT
    return False


def check_target(path: Path, overwrite: bool) -> None:
    """Raises a FileExistsError unless `path` is free or a store to be replaced."""
    refuse_link(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not _is_store(path):
        raise FileExistsError(
            f"Expected nothing, or a store, at {path}. Received: something else is "
            "there, which is never overwritten. Choose another path."
        )
    if not overwrite:
        raise FileExistsError(
            f"Expected nothing at {path}. Received: a store is there. "
            "Pass overwrite=True (--overwrite) or choose another path."
        )


def put_in_place(partial: Path, path: Path) -> None:
    """Gives a complete directory its name; a store that had it is removed after.

    The progress file stays until then: by it `settle` knows, after a kill, that the
    directory `partial` is what was replaced.
    """
    replaces = _is_store(path)
    if not replaces:
        (partial / PROGRESS).unlink(missing_ok=True)
    # What is replaced gets the name `partial`, which nobody else may take up.
    with FolderLock(path) if replaces else contextlib.nullcontext():
        replace_folder(partial, path)
    (path / PROGRESS).unlink(missing_ok=True)


def settle(path: Path) -> None:
    """Completes the replacement of a store that was killed between its steps.

    Raises:
        RuntimeError: If another job is writing the store.
    """
    restore_replaced(path)
    if not (_is_store(path) and (path / PROGRESS).is_file()):
        return
    partial = path.with_name(path.name + ".partial")
    check_partial(partial)
    with FolderLock(partial):
        for file in partial.iterdir():
            file.unlink()
        partial.rmdir()
        (path / PROGRESS).unlink(missing_ok=True)


def is_unfinished(partial: Path) -> bool:
    """Whether a directory holds nothing but parts of an unfinished store."""
    if not partial.is_dir():
        return False
    if any(file.is_symlink() or file.is_dir() for file in partial.iterdir()):
        return False
    names = {_HIDDEN.sub("", file.name) for file in partial.iterdir()}
    names -= {PROGRESS, SIZES, DESCRIPTION}
    return all(n.startswith("shard-") and n.endswith(".arrow") for n in names)


def check_partial(partial: Path) -> None:
    """Raises a FileExistsError if something else than an unfinished store is there."""
    refuse_link(partial)
    if partial.exists() and not is_unfinished(partial):
        raise FileExistsError(
            f"Expected {partial} to be an unfinished store. Received: something else "
            "is there. Move it away or choose another path."
        )


def check_same_job(partial: Path, found: Mapping, fingerprint: Mapping) -> None:
    """Raises a ValueError if the header `found` there is that of another job."""
    check_header(partial / PROGRESS, found)
    if found.get("fingerprint") != fingerprint:
        differing = [*_differing(found.get("fingerprint"), fingerprint)]
        fields = "; ".join(differing[:5]) + "; ..." * (len(differing) > 5)
        raise ValueError(
            f"Expected the unfinished store {partial} to have the fingerprint "
            f"of this job. Received: another one: {fields}. Pass "
            "restart=True (--restart), or delete that directory, to begin anew."
        )


def _differing(old: Any, new: Any, name: str = "fingerprint") -> Iterator[str]:
    """Yields which fields differ, with their values in this job and before."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*new, *old]):
            if key not in old or key not in new:
                yield f"{name}.{key} is {'new' if key in new else 'missing'}"
            else:
                yield from _differing(old[key], new[key], f"{name}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for k, (before, now) in enumerate(zip(old, new, strict=True)):
            yield from _differing(before, now, f"{name}[{k}]")
    elif old != new:
        yield f"{name} is {shown(new)}, was {shown(old)}"


def check_job(path: Path, fingerprint: Mapping, overwrite: bool, restart: bool) -> None:
    """Raises the errors that a `StoreWriter` would raise, and touches nothing.

    Args:
        path: The store to be written.
        fingerprint: As JSON gives it back.
        overwrite: Whether a store there may be replaced.
        restart: Whether an unfinished store of another job may be thrown away.
    """
    check_target(path, overwrite)
    partial = path.with_name(path.name + ".partial")
    check_partial(partial)
    if partial.exists() and not restart:
        found, _ = read_progress(partial)
        if found is not None:
            check_same_job(partial, found, fingerprint)
