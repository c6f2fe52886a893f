"""`Verdict`: an answer and the reason for it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is known about a condition.

    Attributes:
        answer: `"yes"`, `"no"`, or `"unknown"` where finding out would take too long.
        reason: Why, in a sentence.
    """

    answer: str
    reason: str

    def __str__(self) -> str:
        return f"{self.answer}: {self.reason}"
