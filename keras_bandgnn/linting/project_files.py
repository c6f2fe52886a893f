"""Files of a project to check: what git does not ignore, and lines changed since."""

import fnmatch
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath

from keras_bandgnn.linting.source_code import SUFFIXES

# Skipped where git does not say what is ignored.
_NO_SOURCE = ("__pycache__", "node_modules", "site-packages", "venv")
_HUNK = re.compile(rb"@@ -\S+ \+(\d+)(?:,(\d+))? @@")


def _environment() -> dict[str, str]:
    """Return the environment for git, which finds the repository of a folder itself.

    In a linked work tree git sets GIT_DIR for hooks, and would take any folder for the
    root of the work tree.
    """
    names = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_PREFIX")
    if "GIT_DIR" not in os.environ or "GIT_WORK_TREE" in os.environ:
        names = ()
    return {k: v for k, v in os.environ.items() if k not in names} | {"LC_ALL": "C"}


def _git(folder: str, *arguments: str) -> bytes | None:
    """Run git in a folder; return what it prints, None if it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", folder, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=_environment(),
        )
    except OSError:  # git is not installed
        return None
    return done.stdout if done.returncode == 0 else None


def _complaint(folder: str) -> str:
    """Return what git says of a folder that it does not work in."""
    try:
        done = subprocess.run(
            ["git", "-C", folder, "rev-parse"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=_environment(),
        )
    except OSError:
        return "git is not installed"
    # Such as no repository, or one of another user, which `safe.directory` permits.
    return " ".join(os.fsdecode(done.stderr).split()) or "no work tree"


def _names(output: bytes | None) -> list[str]:
    return [os.fsdecode(name) for name in (output or b"").split(b"\0") if name]


def list_files(
    paths: Sequence[str], exclude: Iterable[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield (file, name) of the Python files and notebooks in folders, sorted.

    In a git repository, ignored files are left out; elsewhere, hidden folders and
    those of installed packages are. A file that is named itself is always listed, and
    an ignored folder that is named itself is searched.

    Args:
        paths: Files and folders.
        exclude: `fnmatch` patterns. A file or folder is skipped if its name, or its
            path in the searched folder, matches one.

    Raises:
        FileNotFoundError: If a path does not exist.
    """
    # "tests/" and "./tests" mean "tests", as in .gitignore.
    patterns = tuple(
        re.sub(r"^(\./)+(?=.)|(?<=.)/+$", "", pattern) for pattern in exclude
    )
    names: dict[str, str] = {}
    for path in paths:
        if os.path.isdir(path):
            found = sorted(_in_folder(path), key=lambda name: PurePath(name).parts)
            for name in found:
                if not _excluded(name, patterns):
                    # `.` is not part of the names that a reader wants to see.
                    file = os.path.normpath(os.path.join(path, name))
                    names.setdefault(os.path.abspath(file), file)
        elif os.path.lexists(path):
            names.setdefault(os.path.abspath(path), path)
        else:
            raise FileNotFoundError(
                "Expected files and folders that exist. Received: "
                f"{path}. Check the path."
            )
    yield from names.items()


def _in_folder(folder: str) -> Iterator[str]:
    listed = None
    # Exits with 1 if it is not ignored, with 128 outside of a repository.
    if _git(folder, "check-ignore", "-q", ".") is None:
        listed = _git(
            folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard"
        )
    if listed is None:
        yield from _walk(folder)
        return
    for name in dict.fromkeys(_names(listed)):
        if name.endswith(SUFFIXES) and os.path.isfile(os.path.join(folder, name)):
            yield name


def _walk(root: str) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _NO_SOURCE
        ]
        for file in files:
            path = os.path.join(folder, file)
            if file.endswith(SUFFIXES) and os.path.isfile(path):
                yield os.path.relpath(path, root)


def _excluded(name: str, patterns: tuple[str, ...]) -> bool:
    path = PurePath(name)
    return any(
        fnmatch.fnmatchcase(part, pattern)
        for inner in (path, *path.parents)
        for part in (inner.as_posix(), inner.name)
        for pattern in patterns
        if part
    )


def changed_lines(folder: str, reference: str) -> dict[str, set[int] | None]:
    """Return the lines that differ from a git reference, by absolute file.

    The work tree is compared with the last common ancestor of the reference and HEAD,
    so that what others have changed since does not count. If there is none, as in a
    shallow clone, it is compared with the reference itself.

    Args:
        folder: A folder of the repository.
        reference: A branch, tag or commit.

    Returns:
        Lines of each changed file, from 1; None for all lines of an untracked file, and
        of one that git takes for binary.

    Raises:
        ValueError: If the folder is in no repository, or the reference does not exist.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        raise ValueError(
            f"Expected {os.path.abspath(folder)} to be in a git repository, for "
            f"--diff. Received: {_complaint(folder)}. Correct that, or leave --diff "
            "out."
        )
    root = os.fsdecode(top.removesuffix(b"\n"))
    commit = _git(
        root,
        "rev-parse",
        "--verify",
        "-q",
        "--end-of-options",
        f"{reference}^{{commit}}",
    )
    if commit is None:
        raise ValueError(
            f"Expected a branch, tag or commit of {root} for --diff. Received: "
            f"{reference!r}. Check it, or fetch it first."
        )
    commit = commit.decode().strip()
    base = _git(root, "merge-base", commit, "HEAD")
    base = commit if base is None else base.decode().split()[0]
    options = ("--no-ext-diff", "--no-textconv", "--no-color", "-M")
    options += ("--diff-filter=ACMR", "--ignore-submodules", "--no-relative")
    names = _names(_git(root, "diff", *options, "--name-only", "-z", base))
    patch = _git(root, "diff", *options, "--unified=0", "--patch", base) or b""
    # One part for each name, in the same order; lines of content never begin so.
    parts = re.split(rb"^diff --git .*\n", patch, flags=re.MULTILINE)[1:]
    changed: dict[str, set[int] | None] = {}
    for name, part in zip(names, parts, strict=True):
        lines = changed[os.path.join(root, name)] = set()
        for line in part.split(b"\n"):
            if hunk := _HUNK.match(line):
                start, count = int(hunk[1]), int(hunk[2] or 1)
                lines.update(range(start, start + count))
        if re.search(rb"^Binary files ", part, re.MULTILINE):
            # The attribute -diff of .gitattributes hides which lines have changed.
            changed[os.path.join(root, name)] = None
    untracked = _git(root, "ls-files", "-z", "--others", "--exclude-standard")
    changed |= dict.fromkeys(os.path.join(root, name) for name in _names(untracked))
    return {os.path.realpath(file): lines for file, lines in changed.items()}


def common_folder(paths: Sequence[str]) -> str:
    """Return the folder that contains all paths."""
    folders = [Path(p).resolve() for p in paths]
    folders = [p if p.is_dir() else p.parent for p in folders]
    return os.path.commonpath(folders)
