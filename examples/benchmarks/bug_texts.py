"""Functions of held-out modules as texts that `bandgnn check` reads.

A corpus has functions, not files. `module_text` puts those of a module under their
classes, with empty definitions of the others, whose parameters a checker may want. All
models see the same texts.
"""

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from keras_bandgnn.programs import corpus_packages, read_corpus
from keras_bandgnn.programs.corpus_files import CorpusFunction
from keras_bandgnn.programs.function_source import FunctionSource
from keras_bandgnn.programs.linting.finding import FileFindings, Finding, FindingSource
from keras_bandgnn.programs.linting.source_code import SourceCode
from keras_bandgnn.programs.planted_bugs import plant
from keras_bandgnn.programs.python_source.unit import TooLarge

_WRONG = (SyntaxError, TooLarge, RecursionError)


class Bug(NamedTuple):
    """A wrong variable: its place in the text of its module, and what belongs there."""

    line: int
    column: int
    used: str
    repair: str


@dataclass
class Module:
    """A module of a corpus.

    Attributes:
        package: Name of its package.
        path: Its path in the package.
        functions: Its functions.
        text: The functions as they are, in one text.
        starts: First line of each function in the text.
        planted: The text with one wrong variable in each function.
        bugs: The wrong variable of each function; None where none can be planted.
    """

    package: str
    path: str
    functions: list[CorpusFunction]
    text: str
    starts: list[int]
    planted: str = ""
    bugs: list[Bug | None] = field(default_factory=list)

    @property
    def lines(self) -> int:
        """Lines of the functions."""
        return sum(f.source.count("\n") + 1 for f in self.functions)

    def with_sources(self, sources: Mapping[int, str]) -> str:
        """Return the text with other sources of functions, of as many lines."""
        lines = self.text.split("\n")
        for index, source in sources.items():
            new = source.split("\n")
            lines[self.starts[index] - 1 : self.starts[index] - 1 + len(new)] = new
        return "\n".join(lines)


def module_text(
    functions: Sequence[tuple[str, str]], signatures: Mapping[str, Iterable[str]]
) -> tuple[str, list[int]]:
    r"""Return a text with functions, and the first line of each.

    Args:
        functions: (qualified name, source) pairs; methods are indented.
        signatures: Qualified name -> parameters; those that are no `functions` are
            defined without a body.

    Example:
    >>> print(module_text([("A.f", "  def f(self): return g(1)")], {"g": ["x"]})[0])
    class A:
      def f(self): return g(1)
    def g(x): ...
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for index, (name, source) in enumerate(functions):
        indent = source[: len(source) - len(source.lstrip(" \t"))]
        groups.setdefault((name.rpartition(".")[0], indent), []).append(index)
    stubs: dict[tuple[str, str], list[str]] = {}
    names = {name for name, _ in functions}
    for name, parameters in signatures.items():
        if name not in names:
            owner, _, own = name.rpartition(".")
            depth = " " * (owner.count(".") + 1) if owner else ""
            group = next((key for key in groups if key[0] == owner), (owner, depth))
            line = f"{group[1]}def {own}({', '.join(parameters)}): ..."
            stubs.setdefault(group, []).append(line)
    lines: list[str] = []
    starts = [0] * len(functions)
    for owner, indent in dict.fromkeys([*groups, *stubs]):
        heads = [f"class {part}:" for part in owner.split(".")] if owner else []
        if indent and not heads:
            heads = ["if 1:"]
        lines += [indent[:depth] + head for depth, head in enumerate(heads)]
        lines += stubs.get((owner, indent), [])
        for index in groups.get((owner, indent), []):
            starts[index] = len(lines) + 1
            lines += functions[index][1].split("\n")
    return "\n".join(lines), starts


def function_source(function: CorpusFunction) -> FunctionSource | None:
    """Return a function with what it sees of its module, None if it is too large."""
    signatures = function.module["signatures"]
    try:
        return FunctionSource(function.source, (), signatures, function.name)
    except _WRONG:
        return None


def generator(function: CorpusFunction, seed: int, epoch: int = 0) -> random.Random:
    """Return the random numbers of a function, the same as in `bug_samples`."""
    package, path = function.package["package"], function.module["path"]
    key = f"{seed}:{epoch}:{package}:{path}:{function.name}:{function.line}"
    return random.Random(hashlib.sha256(key.encode()).digest())


def plant_bugs(module: Module, seed: int) -> None:
    """Put one wrong variable into each function of a module where that is possible."""
    sources = {}
    for index, function in enumerate(module.functions):
        module.bugs.append(None)
        read = function_source(function)
        try:
            planted = read and plant(read, generator(function, seed))
        except _WRONG:
            planted = None
        if not planted:
            continue
        changed, usage, repair = planted
        token = changed.usages[usage]
        line, column = changed.place(token.token)
        line += module.starts[index] - 1
        sources[index] = changed.source
        module.bugs[-1] = Bug(line, column + 1, token.variable.name, repair)
    module.planted = module.with_sources(sources)


def modules(
    corpus: Path, packages: Iterable[str] | None, limit: int | None, seed: int
) -> Iterator[Module]:
    """Yield modules of held-out packages, in random order if there is a limit.

    Args:
        corpus: Folder of `examples.corpora`.
        packages: Names of packages of the split test; all if omitted.
        limit: Number of functions after which no further module follows.
        seed: Seed of the order.
    """
    groups: dict[tuple[str, str], list[CorpusFunction]] = {}
    for function in read_corpus(corpus, "test", packages):
        key = function.package["package"], function.module["path"]
        groups.setdefault(key, []).append(function)
    keys, count = list(groups), 0
    if limit:
        random.Random(seed).shuffle(keys)
    for package, path in keys:
        functions = groups[package, path]
        pairs = [(function.name, function.source) for function in functions]
        text, starts = module_text(pairs, functions[0].module["signatures"])
        module = Module(package, path, functions, text, starts)
        yield module
        count += len(functions)
        if limit and count >= limit:
            return


def versions_of(corpus: Path, packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages of the split test."""
    chosen = set(packages)
    found = corpus_packages(corpus, "test")
    return {p["name"]: p["version"] for p in found if p["name"] in chosen}


def check_texts(
    source: FindingSource, texts: Sequence[str], advance
) -> Iterator[FileFindings]:
    """Yield what a model finds in texts, in order, and show progress."""
    codes = (SourceCode(str(number), text) for number, text in enumerate(texts))
    for done, result in enumerate(source.check(codes), 1):
        advance(done, len(texts))
        yield result


def at(findings: Iterable[Finding], line: int, column: int) -> Finding | None:
    """Return the finding at a place."""
    for finding in findings:
        if (finding.line, finding.column) == (line, column):
            return finding
    return None
