"""`Checker`: files in, the findings that a reader should see out."""

import collections
import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from keras_bandgnn.data.reading import read_json
from keras_bandgnn.programs.linting.cache import FindingCache, model_key
from keras_bandgnn.programs.linting.finding import FileFindings, Finding, FindingSource
from keras_bandgnn.programs.linting.function_findings import FunctionFindings
from keras_bandgnn.programs.linting.source_code import SourceCode
from keras_bandgnn.programs.linting.usage_findings import UsageFindings
from keras_bandgnn.saving.preset_hub import preset_folder
from keras_bandgnn.saving.preset_paths import TASK

DEFAULT_MODEL = "ggnn_bug_fixes_python"
# Tasks that find wrong variables, and what turns their predictions into findings.
_SOURCES = {"NodeSelector": UsageFindings, "BugLocalizer": FunctionFindings}


def _source_class(task_class: type) -> type[FindingSource]:
    for kind in task_class.__mro__:
        if kind.__name__ in _SOURCES and kind.__module__.startswith("keras_bandgnn."):
            return _SOURCES[kind.__name__]
    names = ", ".join(_SOURCES)
    raise ValueError(
        f"Expected a model that finds wrong variables: {names}. Received: a "
        f"{task_class.__name__}. Choose another, such as {DEFAULT_MODEL}."
    )


def _confidence_in(folder: Path) -> float | None:
    """Return the default of a preset's task without loading it, None if unknown."""
    try:
        entry = read_json(folder / TASK, dict)
        source = _SOURCES[entry["registered_name"].removeprefix("keras_bandgnn>")]
        if source is FunctionFindings:
            return float(entry["config"]["min_confidence"])
        return source.default_confidence
    except (AttributeError, KeyError, OSError, TypeError, ValueError):
        return None


class Checker:
    """Checks files with a model, which is loaded when the first file needs it.

    Args:
        model: Folder or name of a preset.
        min_confidence: Least confidence of a finding; the model's default if omitted.
        cache: Folder of the cache; none if omitted.
        processes: Processes that read files; the source's default if omitted.

    Attributes:
        lines: Lines of the files so far that the cache did not know.
        loaded: Time of `time.monotonic` when the model was loaded, None before.
    """

    def __init__(
        self,
        model: str | Path = DEFAULT_MODEL,
        min_confidence: float | None = None,
        cache: Path | None = None,
        processes: int | None = None,
    ):
        self._folder = preset_folder(str(model))
        self._cache = None
        if cache is not None:
            self._cache = FindingCache(cache, model_key(self._folder))
        self._processes = processes
        self._source: FindingSource | None = None
        self._min_confidence = min_confidence
        self.lines = 0
        self.loaded: float | None = None
        self._loading = 0.0

    @property
    def min_confidence(self) -> float:
        """Least confidence of a finding."""
        if self._min_confidence is None:
            self._min_confidence = self.default_confidence
        return self._min_confidence

    @property
    def default_confidence(self) -> float:
        """Least confidence of a finding if not told otherwise."""
        confidence = _confidence_in(self._folder) if self._source is None else None
        return confidence or self.source.default_confidence

    @property
    def source(self) -> FindingSource:
        """The model that finds wrong variables; loaded at the first use."""
        if self._source is None:
            began = time.monotonic()
            from keras_bandgnn.models.task import Task

            task = Task.from_preset(self._folder)
            self._source = _source_class(type(task))(task, self._processes)
            self.loaded = time.monotonic()
            self._loading = self.loaded - began
        return self._source

    def check(self, codes: Iterable[SourceCode]) -> Iterator[FileFindings]:
        """Yield the findings of each file, in any order.

        Files that the cache knows come first where that saves waiting for the model.
        Ignored findings are left out, and those below the least confidence are
        `held_back`; lines are those of notebook cells.

        Args:
            codes: Files.
        """
        hits: collections.deque[FileFindings] = collections.deque()
        codes = iter(codes)

        def is_cached(code: SourceCode) -> bool:
            result = None if self._cache is None else self._cache.get(code)
            if result is not None:
                hits.append(self._shown(result))
            return result is not None

        for code in codes:
            # A run that was interrupted has left its files at the beginning.
            if not is_cached(code):
                others = itertools.filterfalse(is_cached, codes)
                for result in self.source.check(itertools.chain([code], others)):
                    self.lines += len(result.code.lines)
                    if self._cache is not None:
                        self._cache.put(result)
                    yield self._shown(result)
                    while hits:
                        yield hits.popleft()
            while hits:
                yield hits.popleft()
        if self._cache is not None:
            self._cache.trim()

    @property
    def seconds(self) -> Mapping[str, float]:
        """Time spent on files that the cache did not know; see `FindingSource`.

        That of loading the model comes first.
        """
        if self._source is None:
            return {}
        return {"loading": self._loading, **self._source.seconds}

    def _shown(self, result: FileFindings) -> FileFindings:
        code = result.code
        findings: list[Finding] = []
        held_back: list[Finding] = []
        for finding in result.findings:
            if finding.line in code.ignored:
                continue
            cell, line = code.place(finding.line)
            sure = finding.confidence >= self.min_confidence
            group = findings if sure else held_back
            group.append(dataclasses.replace(finding, cell=cell, line=line))
        return dataclasses.replace(
            result, findings=tuple(findings), held_back=tuple(held_back)
        )
