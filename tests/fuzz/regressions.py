"""Mutants that were once read badly, kept as small files."""

import base64
import json
import re
from pathlib import Path

from tests.fuzz.mutators import Link
from tests.fuzz.outcomes import Mutant

FOLDER = Path(__file__).with_name("regressions")
LARGEST = 30_000


def save(folder: Path, reader: str, mutant: Mutant, was: str) -> Path | None:
    """Writes a mutant as JSON; a large one is left out."""
    files = {
        name: {"link": content.target}
        if isinstance(content, Link)
        else base64.b64encode(content).decode()
        for name, content in mutant.files.items()
    }
    text = json.dumps(
        {"reader": reader, "seed": mutant.seed, "was": was, "files": files}, indent=1
    )
    if len(text) > LARGEST:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", reader.lower()).strip("-")
    path = folder / f"{slug}-{mutant.seed}.json"
    path.write_text(text + "\n")
    return path


def load(path: Path) -> tuple[str, Mutant]:
    """The reader and the mutant of a file that `save` wrote."""
    kept = json.loads(path.read_text())
    files = {
        name: Link(content["link"])
        if isinstance(content, dict)
        else base64.b64decode(content)
        for name, content in kept["files"].items()
    }
    return kept["reader"], Mutant(kept["seed"], files)


def load_all() -> dict[str, dict[int, Mutant]]:
    """All that are kept: by reader, mutants by number."""
    found: dict[str, dict[int, Mutant]] = {}
    for path in sorted(FOLDER.glob("*.json")):
        name, mutant = load(path)
        of_reader = found.setdefault(name, {})
        of_reader[len(of_reader)] = mutant
    return found
