"""A source of findings without a model, and results to print."""

import re

from keras_bandgnn.programs.linting.finding import FileFindings, Finding, FindingSource
from keras_bandgnn.programs.linting.source_code import SourceCode


class Spelled(FindingSource):
    """Finds variables called `bad_x` (0.999) and `odd_x` (0.8), and suggests `x`."""

    default_confidence = 0.99

    def __init__(self):
        self.checked = []

    def check(self, codes):
        for code in codes:
            self.checked.append(code.path)
            if "def f(:" in code.text:
                yield FileFindings(code, error="SyntaxError: invalid syntax")
                continue
            findings = []
            for number, line in enumerate(code.lines, start=1):
                for match in re.finditer(r"\b(bad|odd)_(\w+)", line):
                    share = 0.999 if match[1] == "bad" else 0.8
                    findings.append(finding(code.path, number, match, share))
            skipped = ("too large",) if "# huge" in code.text else ()
            yield FileFindings(code, tuple(findings), (*code.skipped, *skipped))


def finding(path, line, match, share) -> Finding:
    return Finding(
        path,
        line,
        match.start() + 1,
        match.end() + 1,
        match[0],
        match[2],
        share,
        ((match[2], share), (match[0], 1 - share)),
        "function",
    )


def result(text: str, path: str = "file.py") -> FileFindings:
    (found,) = Spelled().check([SourceCode(path, text)])
    return found
