"""Planted bugs: what a model finds of them, at which false alarms.

All modules are checked as they are and with one wrong variable in each function. No
function sees the body of another, so the second check gives the findings of a function
as if all others were as they are: among those, its bug is ranked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from examples.benchmarks.bug_texts import Module, check_texts
from keras_bandgnn.cli import report
from keras_bandgnn.programs.linting.finding import FindingSource

RATES = (0.1, 0.2, 0.3, 0.4)
ALARMS = (0.2, 0.5, 1.0, 5.0)
FIRST = (1, 5, 10)


def wilson(count: float, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return the Wilson interval of a share."""
    if not total:
        return float("nan"), float("nan")
    share, square = count / total, z * z / total
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * np.sqrt(share * (1 - share) / total + square / total / 4)
    return float(middle - half), float(middle + half)


@dataclass
class Alarms:
    """Findings in code that counts as correct.

    Attributes:
        confidence: Confidence of each finding.
        function: Number of its function; functions of all modules are counted.
    """

    confidence: np.ndarray
    function: np.ndarray


@dataclass
class Judgement:
    """What a model says of the modules.

    Attributes:
        clean: Findings in the functions as they are.
        changed: Findings in the functions with a bug.
        score: For each function its bug's confidence; -1 if the right repair is not
            suggested there, NaN without a bug.
        located: The same with any repair.
    """

    clean: Alarms
    changed: Alarms
    score: np.ndarray
    located: np.ndarray


def alarms_of(
    source: FindingSource, modules: Sequence[Module], texts: Sequence[str], title: str
) -> tuple[Alarms, list]:
    """Return the findings in texts of modules, as arrays and as they are."""
    confidence, function, results, first = [], [], [], 0
    with report.progress(title) as advance:
        found = check_texts(source, texts, advance)
        for module, result in zip(modules, found, strict=True):
            if result.error is not None:
                report.remark(f"{module.package} {module.path}: {result.error}")
            lines = [finding.line for finding in result.findings]
            confidence += [finding.confidence for finding in result.findings]
            order = np.argsort(module.starts)
            starts = np.asarray(module.starts)[order]
            place = order[np.searchsorted(starts, lines, "right") - 1]
            function += (first + place).tolist()
            first += len(module.functions)
            results.append(result.findings)
    return Alarms(np.array(confidence), np.array(function, np.int64)), results


def judge(source: FindingSource, modules: Sequence[Module], name: str) -> Judgement:
    """Check modules as they are and with bugs."""
    texts = [module.text for module in modules]
    clean, _ = alarms_of(source, modules, texts, f"{name}, as it is")
    texts = [module.planted for module in modules]
    changed, results = alarms_of(source, modules, texts, f"{name}, with bugs")
    score, located = [], []
    for module, findings in zip(modules, results, strict=True):
        places = {(finding.line, finding.column): finding for finding in findings}
        for bug in module.bugs:
            finding = bug and places.get((bug.line, bug.column))
            right = finding and finding.suggested == bug.repair
            nothing = np.nan if bug is None else -1.0
            score.append(finding.confidence if right else nothing)
            located.append(finding.confidence if finding else nothing)
    return Judgement(clean, changed, np.array(score), np.array(located))


def ranks(judgement: Judgement, group: np.ndarray) -> np.ndarray:
    """Return the place of each bug among the findings of its group, from 1.

    Findings of the same confidence come before it. Infinity where it is not found, and
    NaN for functions without a bug.

    Args:
        judgement: The findings.
        group: Number of the group of each function, such as its file.
    """
    clean, changed = judgement.clean, judgement.changed
    rank = np.where(np.isnan(judgement.score), np.nan, np.inf)
    by_group = _sorted_by(clean, group[clean.function])
    own_clean = _sorted_by(clean, clean.function)
    own_changed = _sorted_by(changed, changed.function)
    none = np.zeros(0)
    for function in np.flatnonzero(judgement.score >= 0):
        score = judgement.score[function]
        ahead = _at_least(by_group.get(group[function], none), score)
        ahead -= _at_least(own_clean.get(function, none), score)
        # The finding itself is one of them, and stands for the place of the rank.
        rank[function] = ahead + _at_least(own_changed.get(function, none), score)
    return rank


def _sorted_by(alarms: Alarms, group: np.ndarray) -> dict[int, np.ndarray]:
    order = np.lexsort((alarms.confidence, group))
    values, starts = np.unique(group[order], return_index=True)
    parts = np.split(alarms.confidence[order], starts[1:])
    return dict(zip(values.tolist(), parts, strict=True)) if len(values) else {}


def _at_least(ascending: np.ndarray, least: float) -> int:
    return len(ascending) - int(np.searchsorted(ascending, least, "left"))


def threshold_of(scores: np.ndarray, rate: float, weight: np.ndarray) -> float:
    """Return the confidence at which a share of the bugs is found, NaN if none is."""
    order = np.argsort(-scores, kind="stable")
    reached = np.cumsum(weight[order]) >= rate * weight.sum() - 1e-9
    place = int(np.argmax(reached))
    score = scores[order[place]] if reached.any() and weight.sum() else -1.0
    return float(score) if score >= 0 else float("nan")


def _alarms_at_rates(judgement, lines, weight) -> list[tuple[float, float]]:
    """Return (threshold, false alarms per 1,000 lines) at `RATES`."""
    bugs = ~np.isnan(judgement.score)
    total = (lines * weight).sum()
    clean = judgement.clean
    found = []
    for rate in RATES:
        threshold = threshold_of(judgement.score[bugs], rate, weight[bugs])
        count = weight[clean.function][clean.confidence >= threshold].sum()
        found.append((threshold, 1000 * count / total if threshold >= 0 else np.nan))
    return found


def threshold_at(judgement: Judgement, lines: np.ndarray, alarms: float) -> float:
    """Return the least threshold with at most so many alarms per 1,000 lines."""
    descending = np.sort(judgement.clean.confidence)[::-1]
    allowed = int(alarms * lines.sum() / 1000)
    if allowed >= len(descending):
        return 0.0
    return float(np.nextafter(descending[allowed], 2))


def summary(judgement: Judgement, modules: Sequence[Module], seed: int = 0) -> dict:
    """Return figures of a model, with intervals of 95 %.

    Those of the false alarms are of a bootstrap over files, those of shares Wilson's.
    """
    files = np.repeat(np.arange(len(modules)), [len(m.functions) for m in modules])
    names = list(dict.fromkeys(module.package for module in modules))
    packages = np.array([names.index(module.package) for module in modules])[files]
    lines = np.array(
        [f.source.count("\n") + 1 for module in modules for f in module.functions]
    )
    bugs = ~np.isnan(judgement.score)
    count = int(bugs.sum())
    rng = np.random.default_rng(seed)
    draws = [
        _alarms_at_rates(judgement, lines, rng.multinomial(len(modules), p)[files])
        for p in [np.full(len(modules), 1 / len(modules))] * 200
    ]
    at_rates = {}
    for index, rate in enumerate(RATES):
        threshold, alarms = _alarms_at_rates(judgement, lines, np.ones(len(lines)))[
            index
        ]
        drawn = np.array([draw[index][1] for draw in draws])
        low, high = (
            np.nanpercentile(drawn, [2.5, 97.5]) if alarms >= 0 else (np.nan,) * 2
        )
        at_rates[str(rate)] = {
            "threshold": threshold,
            "per_1000_lines": float(alarms),
            "interval": [float(low), float(high)],
        }

    def share(mask: np.ndarray) -> dict:
        hits = int(mask.sum())
        value = hits / count if count else float("nan")
        return {"share": value, "interval": list(wilson(hits, count))}

    at_alarms = {}
    for alarms in ALARMS:
        threshold = threshold_at(judgement, lines, alarms)
        with np.errstate(invalid="ignore"):
            hits = share(judgement.score >= max(threshold, 0))
        at_alarms[str(alarms)] = {"threshold": threshold, **hits}
    groups = {"function": np.arange(len(files)), "file": files, "package": packages}
    first = {}
    for name, group in groups.items():
        rank = ranks(judgement, group)
        first[name] = {str(k): share(rank <= k) for k in FIRST}
    return {
        "packages": names,
        "files": len(modules),
        "functions": len(files),
        "lines": int(lines.sum()),
        "bugs": count,
        "findings": len(judgement.clean.confidence),
        "at_recall": at_rates,
        "at_alarms": at_alarms,
        "first": first,
    }
