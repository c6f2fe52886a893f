"""Each extra names all that its packages import, even what they forget to require."""

import importlib.metadata
import os
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Extras for development, and those that need other hardware or interpreters.
OTHERS = {"dev", "docs", "tpu"}
EXTRAS = sorted(
    set(importlib.metadata.metadata("keras-bandgnn").get_all("Provides-Extra")) - OTHERS
)
BACKENDS = ("jax", "tensorflow", "torch")
# Packages that are for one backend alone.
OF_BACKEND = {"tf2onnx": "tensorflow"}

# Imports modules as if only some distributions were installed.
SCRIPT = """
import importlib, importlib.machinery, importlib.metadata, re, sys

modules, installed = (words.split(",") for words in sys.argv[1:])
homes = importlib.metadata.packages_distributions()
before = set(sys.path)

class Installed:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        found = {re.sub("[-_.]+", "-", each).lower() for each in homes.get(name, ())}
        if not found or found & set(installed):
            return self.finder.find_spec(name, path, target)
        # Some packages hold copies of others.
        copies = [folder for folder in sys.path if folder not in before]
        return importlib.machinery.PathFinder.find_spec(name, copies)

sys.meta_path[:] = map(Installed, sys.meta_path)
for module in modules:
    importlib.import_module(module)
"""


def required(name: str, extras=()) -> set[str]:
    """Returns all distributions that a distribution and its extras require."""
    found: set[str] = set()
    waiting = [(name, frozenset(extras))]
    seen = set()
    while waiting:
        name, extras = pair = waiting.pop()
        if pair in seen:
            continue
        seen.add(pair)
        found.add(canonicalize_name(name))
        for line in importlib.metadata.requires(name) or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(
                marker.evaluate({"extra": extra}) for extra in extras or {""}
            ):
                waiting.append((requirement.name, frozenset(requirement.extras)))
    return found


def modules_of(distribution: str) -> list[str]:
    """Returns the top-level modules of a distribution that can be imported by name."""
    homes = importlib.metadata.packages_distributions()
    name = canonicalize_name(distribution)
    return [
        module
        for module, distributions in homes.items()
        if module.isidentifier()
        and not module.startswith("_")
        and name in map(canonicalize_name, distributions)
    ]


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.release
def test_its_packages_import_without_any_other(extra):
    backend = extra if extra in BACKENDS else os.environ.get("KERAS_BACKEND", "jax")
    own = [
        requirement.name
        for requirement in map(
            Requirement, importlib.metadata.requires("keras-bandgnn")
        )
        if requirement.marker is not None
        and requirement.marker.evaluate({"extra": extra})
        and not requirement.marker.evaluate({"extra": ""})
    ]
    assert own, f"{extra}: no packages"
    try:
        installed = required("keras-bandgnn", {extra, backend})
    except importlib.metadata.PackageNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    own = [name for name in own if OF_BACKEND.get(name, backend) == backend]
    modules = [module for name in own for module in modules_of(name)]
    if extra in BACKENDS:
        modules.append("keras_bandgnn")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ",".join(modules), ",".join(sorted(installed))],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": backend},
    )
    assert done.returncode == 0, f"keras-bandgnn[{extra}]: {done.stderr[-2000:]}"
