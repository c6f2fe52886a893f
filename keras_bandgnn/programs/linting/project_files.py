"""Files of a project to check: those that git does not ignore, and changed lines."""

import dataclasses
import os
import re
import stat
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from keras_bandgnn.programs.linting.source_code import SUFFIXES
from keras_bandgnn.programs.python_source.listing import pattern_spec

# Skipped where git does not say what is ignored.
_NO_SOURCE = ("__pycache__", "node_modules", "site-packages", "venv")
_HUNK = re.compile(rb"@@ -\S+ \+(\d+)(?:,(\d+))? @@")
_UNREADABLE = re.compile(
    r"^warning: could not open directory '(.*?)/?': ([^'\n]*)$",
    re.MULTILINE | re.DOTALL,
)


class Exclude:
    """Patterns of files and folders to skip, as those of a .gitignore in `folder`.

    But "./tests" means "tests", and "../a.py" is a file beside the folder. Of files
    elsewhere only the name counts.

    Args:
        patterns: The patterns.
        folder: The folder that paths in patterns are relative to.

    Raises:
        ValueError: For what is no pattern.
    """

    def __init__(self, patterns: Iterable[str], folder: str | os.PathLike = os.curdir):
        patterns = [re.sub(r"^(\./)+(?=.)", "", pattern) for pattern in patterns]
        self._skipped = pattern_spec(patterns)
        self._beside = pattern_spec([p for p in patterns if p.startswith("../")])
        self._folder = os.path.abspath(folder)

    def matches(self, file: str, searched: str | None = None) -> bool:
        """Return whether a file is skipped.

        Args:
            file: The file, or a folder.
            searched: A folder that the file is in, which is not skipped itself; that of
                the patterns if omitted.
        """
        folder = self._folder
        if searched is not None and self.matches(searched):
            # Patterns then tell of what is in it.
            folder = os.path.abspath(searched)
        path = PurePath(os.path.abspath(file))
        end = "/" if os.path.isdir(path) else ""
        if path == PurePath(folder):
            return False
        if path.is_relative_to(folder):
            return self._skipped.match_file(path.relative_to(folder).as_posix() + end)
        if self._skipped.match_file(path.name + end):
            return True
        if path.anchor != PurePath(folder).anchor:
            return False
        name = PurePath(os.path.relpath(path, folder)).as_posix()
        return self._beside.match_file(name + end)


@dataclasses.dataclass
class ProjectFiles:
    """Files to check.

    Attributes:
        files: (file, name) of each.
        errors: (name, reason) of folders that cannot be read.
        remarks: What a reader should know of the selection, in sentences.
    """

    files: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    errors: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    remarks: list[str] = dataclasses.field(default_factory=list)


def _environment() -> dict[str, str]:
    """Return the environment for git, which finds the repository of a folder itself.

    Git sets these for hooks, and would take the repository of the hook for that of any
    folder, and any folder for the root of a linked work tree.
    """
    names = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_PREFIX")
    if "GIT_WORK_TREE" in os.environ:
        names = ()
    return {k: v for k, v in os.environ.items() if k not in names} | {"LC_ALL": "C"}


def _run_git(folder: str, *arguments: str) -> tuple[bytes | None, str]:
    """Run git in a folder; return its output, None if it fails, and its errors."""
    try:
        done = subprocess.run(
            ["git", "-C", folder, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=_environment(),
        )
    except OSError:
        return None, "git is not installed"
    errors = os.fsdecode(done.stderr)
    return (done.stdout, errors) if done.returncode == 0 else (None, errors)


def _git(folder: str, *arguments: str) -> bytes | None:
    """Run git in a folder; return its output, None if it fails."""
    return _run_git(folder, *arguments)[0]


def _complaint(folder: str) -> str:
    """Return git's error for a folder that it does not work in."""
    # Such as no repository, or one of another user, which `safe.directory` permits.
    return " ".join(_run_git(folder, "rev-parse")[1].split()) or "no work tree"


def _names(output: bytes | None) -> list[str]:
    return [os.fsdecode(name) for name in (output or b"").split(b"\0") if name]


def list_files(
    paths: Sequence[str], exclude: Sequence[Exclude] = (), force: bool = False
) -> ProjectFiles:
    """Return the Python files and notebooks in folders, sorted.

    In a git repository, ignored files are left out; elsewhere, hidden folders and
    those of installed packages are. A file that is named itself is listed, ignored or
    not, and an ignored folder that is named itself is searched.

    Args:
        paths: Files and folders.
        exclude: What to skip in folders.
        force: Whether to skip excluded files and folders also if they are named
            themselves.

    Raises:
        FileNotFoundError: If a path does not exist.
    """
    project = ProjectFiles()
    names: dict[str, str] = {}

    def excluded(file: str, searched: str | None = None) -> bool:
        searched = None if force else searched
        return any(patterns.matches(file, searched) for patterns in exclude)

    for path in paths:
        if not os.path.lexists(path):
            raise FileNotFoundError(
                "Expected files and folders that exist. Received: "
                f"{path}. Check the path."
            )
        if force and excluded(path):
            continue
        if not os.path.isdir(path):
            names.setdefault(os.path.abspath(path), path)
            continue
        part = _in_folder(path)
        for name in sorted(part.files, key=lambda name: PurePath(name).parts):
            # `.` is not part of the names that a reader wants to see.
            file = os.path.normpath(os.path.join(path, name))
            if not excluded(file, path):
                names.setdefault(os.path.abspath(file), file)
        for name, reason in part.errors:
            folder = os.path.normpath(os.path.join(path, name))
            if folder == os.path.normpath(path) or not excluded(folder, path):
                project.errors.append((folder, reason))
        project.remarks += part.remarks
    project.errors = list(dict.fromkeys(project.errors))
    project.files = list(names.items())
    return project


@dataclasses.dataclass
class _Part:
    """Names in a folder: files, folders that cannot be read, and remarks."""

    files: list[str]
    errors: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    remarks: list[str] = dataclasses.field(default_factory=list)


def _in_folder(folder: str) -> _Part:
    # Exits with 1 if it is not ignored, with 128 outside of a repository.
    if _git(folder, "check-ignore", "-q", ".") is not None:
        return _walk(folder)
    options = ("--cached", "--others", "--exclude-standard")
    listed, warnings = _run_git(folder, "ls-files", "-z", *options)
    if listed is None:
        part = _walk(folder)
        if _repository(os.path.realpath(folder)) is not None:
            part.remarks.append(
                f"{folder}: files that git ignores are checked, too, as git does not "
                f"work there: {_complaint(folder)}"
            )
        return part
    part = _Part([])
    for name in dict.fromkeys(_names(listed)):
        if name.endswith(SUFFIXES) and _is_file(os.path.join(folder, name)):
            part.files.append(name)
    # Git names them from the root of the work tree.
    prefix = _git(folder, "rev-parse", "--show-prefix") if warnings else b""
    prefix = os.fsdecode((prefix or b"").removesuffix(b"\n"))
    for name, reason in _UNREADABLE.findall(warnings):
        part.errors.append((name.removeprefix(prefix) or os.curdir, reason))
    return part


def _walk(root: str) -> _Part:
    part = _Part([])

    def unreadable(error: OSError) -> None:
        name = os.path.relpath(error.filename, root)
        part.errors.append((name, error.strerror or type(error).__name__))

    for folder, folders, files in os.walk(root, onerror=unreadable):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _NO_SOURCE
        ]
        for file in files:
            path = os.path.join(folder, file)
            if file.endswith(SUFFIXES) and _is_file(path):
                part.files.append(os.path.relpath(path, root))
    return part


def _is_file(path: str) -> bool:
    """Return whether a path is a file, or may be one that cannot be read."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


def _repository(path: str) -> str | None:
    """Return the nearest folder at or above a path that has a `.git`."""
    parent = os.path.dirname(path)
    if os.path.lexists(os.path.join(path, ".git")):
        return path
    return None if parent == path else _repository(parent)


def changed_lines(files: Iterable[str], reference: str) -> dict[str, set[int] | None]:
    """Return the lines that differ from a git reference, by absolute file.

    The work tree is compared with the last common ancestor of the reference and HEAD,
    so that what others have changed since does not count. If there is none, as in a
    shallow clone, it is compared with the reference itself.

    Args:
        files: Files or folders, of whose repositories lines are returned.
        reference: A branch, tag or commit of each of the repositories.

    Returns:
        Lines of each changed file, from 1; None for all lines of an untracked file, of
        one that was a link, and of one that git takes for binary.

    Raises:
        ValueError: If a file is in no repository, or the reference does not exist.
    """
    roots: dict[str | None, set[str]] = {}
    for file in files:
        folder = os.path.realpath(file)
        if not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        roots.setdefault(_repository(folder), set()).add(folder)
    changed: dict[str, set[int] | None] = {}
    for root, folders in roots.items():
        changed |= _changed_in(root or os.path.commonpath(folders), reference)
    return changed


def _changed_in(folder: str, reference: str) -> dict[str, set[int] | None]:
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
    lines = ("--diff-filter=ACMR", "--ignore-submodules")
    names = _names(_diff(root, base, *lines, "--name-only", "-z"))
    patch = _diff(root, base, *lines, "--unified=0", "--patch")
    # One part for each name, in the same order; lines of content never begin so.
    parts = re.split(rb"^diff --git .*\n", patch, flags=re.MULTILINE)[1:]
    changed: dict[str, set[int] | None] = {}
    for name, part in zip(names, parts, strict=True):
        numbers = changed[os.path.join(root, name)] = set()
        for line in part.split(b"\n"):
            if hunk := _HUNK.match(line):
                start, count = int(hunk[1]), int(hunk[2] or 1)
                numbers.update(range(start, start + count))
        if re.search(rb"^Binary files ", part, re.MULTILINE):
            # The attribute -diff of .gitattributes hides which lines have changed.
            changed[os.path.join(root, name)] = None
    whole = _names(_git(root, "ls-files", "-z", "--others", "--exclude-standard"))
    # Files in the place of links and submodules.
    typed = ("--diff-filter=T", "--ignore-submodules=dirty", "--name-only", "-z")
    whole += _names(_diff(root, base, *typed))
    changed |= dict.fromkeys(os.path.join(root, name) for name in whole)
    # The target of a link, which a reader sees, has changes of its own.
    return {
        os.path.realpath(file): lines
        for file, lines in changed.items()
        if not os.path.islink(file)
    }


def _diff(root: str, base: str, *arguments: str) -> bytes:
    options = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-relative", "-M")
    output, errors = _run_git(root, "diff", *options, *arguments, base)
    if output is None:
        raise ValueError(
            f"Expected git to compare {root} with {base}, for --diff. Received: "
            f"{' '.join(errors.split())}. Correct that, or leave --diff out."
        )
    return output
