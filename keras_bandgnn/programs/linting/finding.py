"""`Finding`: a variable that looks wrong, and `FindingSource`, which finds them."""

import abc
import collections
import dataclasses
import functools
from collections.abc import Iterable, Iterator

from keras_bandgnn.programs.linting.source_code import SourceCode


@dataclasses.dataclass(frozen=True)
class Finding:
    """A usage where another variable may belong.

    Attributes:
        path: The file, as it was named.
        line: Line, from 1; in a notebook the line of the cell.
        column: First column in characters, from 1.
        end_column: The column after the name.
        used: The variable in the source.
        suggested: The variable that may be meant instead.
        confidence: Probability of the suggested variable.
        candidates: (name, probability) of the variables to choose from, the most likely
            first.
        function: Name of the function, or `"<module>"`.
        cell: Cell of a notebook, from 1; None in other files.
    """

    path: str
    line: int
    column: int
    end_column: int
    used: str
    suggested: str
    confidence: float
    candidates: tuple[tuple[str, float], ...]
    function: str
    cell: int | None = None

    @property
    def message(self) -> str:
        """The finding in a sentence."""
        where = "" if self.function == "<module>" else f" in {self.function}"
        percent = 100 * self.confidence
        share = f"{percent:.1f}" if percent >= 1 else f"{percent:.3g}"
        return (
            f"`{self.used}` is used{where}, `{self.suggested}` may be meant ({share} %)"
        )

    @property
    def place(self) -> str:
        """File, cell, line and column, separated by colons."""
        cell = "" if self.cell is None else f"cell {self.cell}:"
        return f"{self.path}:{cell}{self.line}:{self.column}"


@dataclasses.dataclass(frozen=True)
class FileFindings:
    """The findings in a file.

    Attributes:
        code: The file.
        findings: Findings in source order. A `FindingSource` counts lines in the text,
            whatever its cells.
        skipped: Reasons why parts of the file were not checked.
        held_back: Findings below the least confidence, in source order.
        error: Why the file could not be checked, None if it was.
    """

    code: SourceCode
    findings: tuple[Finding, ...] = ()
    skipped: tuple[str, ...] = ()
    held_back: tuple[Finding, ...] = ()
    error: str | None = None


class FindingSource(abc.ABC):
    """Finds wrong variables with a model.

    Attributes:
        default_confidence: Confidence from which findings are worth a reader's time, as
            measured on code that the model has not seen.
    """

    default_confidence: float

    @functools.cached_property
    def seconds(self) -> collections.Counter:
        """Time so far, by kind of work, added up over processes."""
        return collections.Counter()

    @abc.abstractmethod
    def check(self, codes: Iterable[SourceCode]) -> Iterator[FileFindings]:
        """Yield the findings of each file, of any confidence, in the given order.

        Args:
            codes: Files; read a few at a time, so memory use does not grow with them.
        """
