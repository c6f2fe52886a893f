"""Python packages as data: names, downloads, metadata and source files.

Nothing of a package is imported, built or run. Downloads are wheels, since pip runs the
build of a source distribution to read its metadata; a source distribution that is
already a file is only read.
"""

import email.parser
import email.policy
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from examples.corpora.licences import licence_of
from keras_bandgnn.checks import shown
from keras_bandgnn.data.datasets.archives import members
from keras_bandgnn.data.reading import reading
from keras_bandgnn.programs.python_source.listing import SPLITS

ARCHIVES = (".whl", ".tar.gz", ".tgz", ".zip")
MAX_BYTES = 1_000_000
"""Larger source files are left out."""

_REQUIREMENT = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9.!+_-]+))?"
)
_LICENCE_FILES = re.compile(r"(licen[cs]e|copying|unlicense)[^/]*", re.IGNORECASE)
_TEXT_BYTES = 200_000


# === Which packages ===


@dataclass(frozen=True)
class Requirement:
    """A package to collect.

    Attributes:
        name: Its normalised name.
        version: The version; None for the newest.
        split: `"train"`, `"valid"` or `"test"`; None to draw it from the name.
        archive: An archive to read instead of a download; None to download.
    """

    name: str
    version: str | None = None
    split: str | None = None
    archive: str | None = None


def normalised(name: str) -> str:
    """Return the name of a package as the index compares names.

    Example:
    >>> normalised("Flask_Login")
    'flask-login'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement(text: str, where: str, split: str | None = None) -> Requirement:
    """Parse a name, or a name and a version, of the form `name==1.2`.

    Raises:
        ValueError: For anything else, such as a URL or an option.
    """
    match = _REQUIREMENT.fullmatch(text)
    if match is None:
        raise ValueError(
            f"Expected names of packages, such as click or click==8.1.7, in {where}. "
            f"Received: {shown(text)}. Correct it."
        )
    return Requirement(normalised(match[1]), match[2], split)


def read_list(path: Path) -> list[Requirement]:
    """Read a list of packages.

    A line holds a name, or a name and a version (`name==1.2`), and optionally the split
    of the package. `#` begins a comment.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line cannot be read.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected a list of packages or an archive at {path}. Received: no such "
            "file. Check the path."
        )
    with reading(path, what="to be a list of packages, one a line"):
        lines = path.read_text("utf-8").splitlines()
    found = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}, line {number}"
        split = words[1] if len(words) > 1 else None
        if len(words) > 2 or split not in (None, *SPLITS):
            raise ValueError(
                f"Expected a name and train, valid or test in {where}. Received: "
                f"{shown(line.strip())}. Correct it."
            )
        found.append(requirement(words[0], where, split))
    return found


def requirements(
    packages: Sequence[str], valid: Sequence[str] = (), test: Sequence[str] = ()
) -> list[Requirement]:
    """Return the packages to collect, by name, each once.

    Args:
        packages: Names, archives, and files with lists of names.
        valid: Names of packages for validation.
        test: Names of packages for the test. With either, all others are for training.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a name cannot be read, or a package is in two splits.
    """
    listed: list[Requirement] = []
    for text in packages:
        path = Path(text)
        if path.name.endswith(ARCHIVES):
            name, version = _name_of_archive(path)
            listed.append(Requirement(name, version, None, str(path.absolute())))
        elif path.suffix in (".txt", ".list") or "/" in text or os.sep in text:
            listed += read_list(path)
        else:
            listed.append(requirement(text, "the packages"))
    found: dict[str, Requirement] = {}
    for item in listed:
        known = found.setdefault(item.name, item)
        if known != item:
            raise ValueError(
                f"Expected the package {item.name} once. Received: "
                f"{_described(known)} and {_described(item)}. Remove one."
            )
    given = {}
    for split, names in (("valid", valid), ("test", test)):
        for text in names:
            name = requirement(text, f"the packages for {split}").name
            if given.setdefault(name, split) != split:
                raise ValueError(
                    f"Expected the package {name} in one split. Received: valid and "
                    "test. Remove it from one."
                )
    missing = sorted(set(given) - set(found))
    if missing:
        raise ValueError(
            "Expected the packages for validation and test among the packages. "
            f"Received: also {shown(missing)}. Add them to the packages."
        )
    if given:
        for name, item in found.items():
            split = given.get(name, item.split or "train")
            found[name] = Requirement(name, item.version, split, item.archive)
    return [found[name] for name in sorted(found)]


def _described(item: Requirement) -> str:
    version = f"=={item.version}" if item.version else ""
    split = f" in {item.split}" if item.split else ""
    return f"{item.name}{version}{split}"


def _name_of_archive(path: Path) -> tuple[str, str]:
    name = path.name
    for suffix in ARCHIVES:
        name = name.removesuffix(suffix)
    # A name in a wheel has no hyphen; in an old source distribution it may.
    wheel = path.name.endswith(".whl")
    parts = name.split("-") if wheel else name.rsplit("-", 1)
    if len(parts) < 2 or not _REQUIREMENT.fullmatch(f"{parts[0]}=={parts[1]}"):
        raise ValueError(
            f"Expected {path} to be named NAME-VERSION, as archives of the package "
            f"index are. Received: {path.name}. Rename it."
        )
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected an archive at {path}. Received: no such file. Check the path."
        )
    return normalised(parts[0]), parts[1]


# === Downloads ===


class Unavailable(Exception):
    """A package that cannot be downloaded or read, with the reason."""


def downloaded(item: Requirement, folder: Path) -> Path | None:
    """Return the archive of a package from an earlier download, or None."""
    if not (folder / item.name).is_dir():
        return None
    for path in sorted((folder / item.name).iterdir()):
        if not path.name.startswith(".") and path.name.endswith(ARCHIVES):
            if item.version in (None, _name_of_archive(path)[1]):
                return path
    return None


def download(
    items: Sequence[Requirement],
    folder: Path,
    index_url: str | None = None,
    time_limit: float = 600.0,
) -> dict[str, Path | str]:
    """Download the wheels of packages, one after another, into folders of their names.

    Args:
        items: The packages; one call of pip asks for all of them. If it fails, halves
            of them are tried.
        folder: Parent of the new folders.
        index_url: Address of the package index; that of pip's configuration if omitted.
        time_limit: Seconds that a call of pip may take.

    Returns:
        By name the archive, or the reason why there is none.
    """
    line = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input"]
    line += ["--disable-pip-version-check", "--quiet", "--only-binary", ":all:"]
    line += ["--index-url", index_url] if index_url else []
    wanted = [x.name + (f"=={x.version}" if x.version else "") for x in items]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as place:
        try:
            done = subprocess.run(
                [*line, "--dest", place, "--", *wanted],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=time_limit,
            )
        except subprocess.TimeoutExpired:
            reason = f"more than {time_limit:g} s"
        else:
            if not done.returncode:
                return _moved(items, Path(place), folder)
            lines = [x for x in done.stderr.splitlines() if x.startswith("ERROR")]
            lines = lines or done.stderr.strip().splitlines()[-1:] or ["pip failed"]
            reason = lines[-1].removeprefix("ERROR: ")[:200]
    if len(items) == 1:
        return {items[0].name: f"no download: {reason}"}
    half = len(items) // 2
    return {
        **download(items[:half], folder, index_url, time_limit),
        **download(items[half:], folder, index_url, time_limit),
    }


def _moved(items: Sequence[Requirement], place: Path, folder: Path) -> dict:
    """Move downloads into the folders of their packages."""
    found: dict[str, Path | str] = {x.name: "no download: no wheel" for x in items}
    for archive in sorted(place.iterdir()):
        name, _ = _name_of_archive(archive)
        if name in found:
            (folder / name).mkdir(exist_ok=True)
            found[name] = folder / name / archive.name
            os.replace(archive, found[name])
    return found


def remove_downloads(folder: Path) -> None:
    """Remove what killed downloads left."""
    for path in folder.glob(".download-*"):
        shutil.rmtree(path, ignore_errors=True)


# === What a package holds ===


@dataclass(frozen=True)
class Distribution:
    """A package that was read.

    Attributes:
        name: Its normalised name.
        version: Its version.
        licence: Its licence, as its metadata names it.
        family: Family of the licence, see `licence_of`.
        files: (name, content) of its Python files, sorted by name.
        too_large: Number of Python files above `MAX_BYTES`.
    """

    name: str
    version: str
    licence: str
    family: str
    files: list[tuple[str, bytes]]
    too_large: int


def checksum_of(item: Requirement, archive: Path | None) -> str:
    """Return a SHA-256 of an archive, or of the files of an installed package.

    Raises:
        Unavailable: If the package is not installed.
    """
    total = hashlib.sha256()
    if archive is not None:
        with open(archive, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    found = read_installed(item)
    total.update(f"{found.name}=={found.version}\0{found.licence}\0".encode())
    for name, content in found.files:
        total.update(name.encode(errors="surrogateescape") + b"\0")
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()


def read_distribution(item: Requirement, archive: Path | None) -> Distribution:
    """Read a package from an archive, or as it is installed.

    Args:
        item: The package.
        archive: A wheel or source distribution; None for the installed package.

    Raises:
        Unavailable: If it is not installed.
        ValueError: If the archive is damaged, unsafe, or without metadata.
    """
    return read_installed(item) if archive is None else read_archive(item, archive)


def read_archive(item: Requirement, archive: Path) -> Distribution:
    """Read a wheel or a source distribution; see `members` for what is refused."""
    files, texts, metadata, too_large = [], [], None, 0
    wheel = archive.name.endswith(".whl")
    with reading(archive, what="to be a complete archive of a package"):
        for path, content in members(archive):
            place = _in_wheel(path) if wheel else _in_sdist(path)
            if place is None:
                continue
            kind, name = place
            data = content.read(MAX_BYTES + 1)
            if kind == "metadata":
                metadata = data
            elif kind == "licence":
                texts.append(data[:_TEXT_BYTES].decode(errors="replace"))
            elif len(data) > MAX_BYTES:
                too_large += 1
            else:
                files.append((name, data))
        if metadata is None:
            raise ValueError(
                f"Expected {archive} to hold the metadata of a package. Received: no "
                f"{'METADATA' if wheel else 'PKG-INFO'}. Download it again."
            )
    parser = email.parser.BytesHeaderParser(policy=email.policy.compat32)
    return _distribution(item, parser.parsebytes(metadata), files, texts, too_large)


def _in_wheel(path: PurePosixPath) -> tuple[str, str] | None:
    first, *rest = path.parts
    if first.endswith(".dist-info"):
        if rest == ["METADATA"]:
            return "metadata", str(path)
        is_licence = rest and _LICENCE_FILES.fullmatch(path.name)
        return ("licence", str(path)) if is_licence else None
    if first.endswith(".data"):
        # Files of `purelib` and `platlib` belong beside the others.
        if len(rest) < 2 or rest[0] not in ("purelib", "platlib"):
            return None
        path = PurePosixPath(*rest[1:])
    return ("source", str(path)) if path.suffix == ".py" else None


def _in_sdist(path: PurePosixPath) -> tuple[str, str] | None:
    _, *rest = path.parts
    if rest == ["PKG-INFO"]:
        return "metadata", str(path)
    if len(rest) == 1 and _LICENCE_FILES.fullmatch(path.name):
        return "licence", str(path)
    if not rest or path.suffix != ".py" or rest == ["setup.py"]:
        return None
    rest = rest[1:] if rest[0] == "src" and len(rest) > 1 else rest
    return "source", "/".join(rest)


def read_installed(item: Requirement) -> Distribution:
    """Read the files that an installed package lists as its own.

    Raises:
        Unavailable: If it is not installed in this version.
    """
    try:
        installed = importlib.metadata.distribution(item.name)
    except importlib.metadata.PackageNotFoundError:
        raise Unavailable("not installed") from None
    if item.version not in (None, installed.version):
        raise Unavailable(f"not installed: version {installed.version} is")
    files, texts, too_large = [], [], 0
    for path in sorted(installed.files or ()):
        located = Path(installed.locate_file(path))
        # Scripts lie outside of the folder of packages.
        if ".." in path.parts or not located.is_file() or located.is_symlink():
            continue
        place = _in_wheel(PurePosixPath(path.as_posix()))
        if place is None or place[0] == "metadata":
            continue
        with open(located, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        if place[0] == "licence":
            texts.append(data[:_TEXT_BYTES].decode(errors="replace"))
        elif len(data) > MAX_BYTES:
            too_large += 1
        else:
            files.append((place[1], data))
    return _distribution(item, installed.metadata, files, texts, too_large)


def _distribution(item: Requirement, metadata, files, texts, too_large) -> Distribution:
    def text(name: str) -> str | None:
        value = metadata[name] if name in metadata else None
        return None if value is None else str(value)

    licence, family = licence_of(
        text("License-Expression"),
        [str(value) for value in metadata.get_all("Classifier") or ()],
        text("License"),
        texts,
    )
    version = (text("Version") or item.version or "unknown")[:100]
    return Distribution(item.name, version, licence, family, sorted(files), too_large)
