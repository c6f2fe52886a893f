"""Reads the variable-misuse files of Hellendoorn et al. (ICLR 2020)."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from keras_bandgnn.programs.function_graphs import function_graph
from keras_bandgnn.programs.program_graph import FunctionGraph
from keras_bandgnn.programs.python_source.tokens import UNPARSABLE, parse
from keras_bandgnn.programs.varmisuse import Paths, read_samples

_MARKS = ("#NEWLINE#", "#INDENT#", "#UNINDENT#")
_STRING = re.compile("[a-zA-Z]{0,2}['\"]")
# A name, also in tokens such as "def area(" and "**options".
_NAME = re.compile(r"(?:async def |def |class |\*+)?([^\W\d]\w*)\(?")
_KEYS = {"source_tokens": list, "has_bug": bool, "error_location": int}
_KEYS |= {"repair_targets": list}


@dataclass(frozen=True)
class GreatExample:
    """A Python function, correct or with one wrong variable.

    Attributes:
        source: Its source, rebuilt from tokens; layout and comments are lost.
        has_bug: Whether it has a wrong variable.
        place: (line, column) of the wrong variable, from 1 and from 0, in characters;
            None without a bug.
        used: The name that stands there; None without a bug.
        repairs: Names that are right there, usually one. Empty without a bug, and
            where the file names none.
        info: `path` and `licence` of its file, if they are known, and `where`, its
            place in the data.
    """

    source: str
    has_bug: bool
    place: tuple[int, int] | None = None
    used: str | None = None
    repairs: tuple[str, ...] = ()
    info: Mapping[str, str] = field(default_factory=dict)

    def graph(
        self, *, max_nodes: int | None = None, max_rewrites: int | None = None
    ) -> FunctionGraph | None:
        """Return the graph of the function, labelled; None if there is none.

        Usages and rewrites are those of `function_graph`, not those listed in the
        file. `correct` is None if the right one is not among them, as where the
        function assigns the wrong variable only later.

        Args:
            max_nodes: See `function_graph`.
            max_rewrites: See `function_graph`.
        """
        limits = {"max_nodes": max_nodes, "max_rewrites": max_rewrites}
        graph = function_graph(self.source, **limits)
        if graph is None:
            return None
        graph.info.update(self.info, lines=self.source.count("\n"))
        if not self.has_bug:
            return graph.repaired_by(-1)
        places = (graph.rewrite_to(*self.place, name) for name in self.repairs)
        right = next((place for place in places if place is not None), None)
        return graph if right is None else graph.repaired_by(right)


def read_great(
    path: Paths, *, on_error: str = "raise", report: list[str] | None = None
) -> Iterator[GreatExample]:
    """Read functions of the data set of GREAT, one at a time.

    Its files have one JSON object per line, compressed (`.gz`) or not, with
    `source_tokens`, `has_bug`, `error_location`, `repair_targets`, and others, which
    are not needed. Source text is rebuilt from the tokens and must be valid Python 3;
    about three in a thousand functions are not, such as those that call a parameter
    `async`. Source is parsed, never run.

    Args:
        path: A file, a directory (all its `.json`, `.jsonl` and `.gz` files, sorted
            by name), or several of these.
        on_error: `"raise"`, or `"skip"` to skip examples that are invalid or that
            cannot be rebuilt.
        report: With `"skip"`, gets one message per skipped example; each is a
            warning if omitted.

    Raises:
        ValueError: For an invalid file or example; the message names file, line and
            key.
        FileNotFoundError: If there is no such file.

    Reference:
        Hellendoorn et al., "Global Relational Models of Source Code", ICLR 2020; data:
        https://github.com/google-research-datasets/great

    Example:
    >>> skipped = []
    >>> for example in read_great("dev", on_error="skip", report=skipped):
    ...     graph = example.graph()  # doctest: +SKIP
    """
    return read_samples(path, _example, on_error, report)


def _example(sample: Any, where: str) -> GreatExample:
    kinds = {k: type(v) for k, v in sample.items()} if type(sample) is dict else {}
    wrong = [key for key, kind in _KEYS.items() if kinds.get(key) is not kind]
    if wrong:
        raise ValueError(
            f"{where}: Expected an object with {', '.join(_KEYS)}. Received: "
            f"{', '.join(wrong)} missing or of another type. Use a file of GREAT's "
            "variable-misuse data."
        )
    tokens = sample["source_tokens"]
    if not all(type(token) is str for token in tokens):
        raise ValueError(
            f"{where}: Expected `source_tokens` to be texts. Received: others."
        )
    source, places = _source(tokens)
    _parse(source, where)
    info = {"where": where, **_provenance(sample)}
    if not sample["has_bug"]:
        return GreatExample(source, False, info=info)
    bug = sample["error_location"]
    targets = [t for t in sample["repair_targets"] if type(t) is not str]
    names = [_NAME.fullmatch(token) for token in tokens]
    for name, ids in (("error_location", [bug]), ("repair_targets", targets)):
        for token in ids:
            inside = type(token) is int and 0 <= token < len(tokens)
            if not inside or names[token] is None:
                raise ValueError(
                    f"{where}: Expected `{name}` to be the position of a name in "
                    f"`source_tokens`, in [0, {len(tokens)}). Received: {token!r}."
                )
    used = names[bug][1]
    repairs = tuple(dict.fromkeys(names[token][1] for token in targets))
    if used in repairs:
        raise ValueError(
            f"{where}: Expected `repair_targets` to have another name than "
            f"`error_location`. Received: {used!r} for both."
        )
    line, column = places[bug]
    column += names[bug].start(1)
    return GreatExample(source, True, (line, column), used, repairs, info)


def _source(tokens: list[str]) -> tuple[str, list[tuple[int, int] | None]]:
    """Return source text, and line and column of each token; None for marks."""
    lines, places = [""], []
    indent = depth = 0
    for token in tokens:
        if token in _MARKS:
            places.append(None)
            # Lines within brackets have marks, too.
            if depth > 0:
                continue
            indent += {"#INDENT#": 1, "#UNINDENT#": -1}.get(token, 0)
            if token == "#NEWLINE#" and lines[-1].strip():
                lines.append("")
            if not lines[-1].strip():
                lines[-1] = " " * indent
            continue
        if lines[-1].strip():
            lines[-1] += " "
        places.append((len(lines), len(lines[-1])))
        first, *others = token.split("\n")
        lines[-1] += first
        lines += others
        if not _STRING.match(token):
            depth += sum(token.count(mark) for mark in "([{")
            depth -= sum(token.count(mark) for mark in ")]}")
    return "\n".join(lines).rstrip() + "\n", places


def _parse(source: str, where: str) -> None:
    try:
        parse(source)
    except UNPARSABLE as error:
        raise ValueError(
            f"{where}: Expected tokens of a function in Python 3. Received: "
            f"{type(error).__name__}: {error}. Leave such examples out with "
            'on_error="skip".'
        ) from error


def _provenance(sample: dict) -> dict[str, str]:
    """Return path and licence of the function's file, as far as they are known."""
    try:
        origin = sample["provenances"][0]["datasetProvenance"]
        values = {"path": origin["filepath"], "licence": origin["license"]}
    except (IndexError, KeyError, TypeError):
        return {}
    return {name: text for name, text in values.items() if type(text) is str}
