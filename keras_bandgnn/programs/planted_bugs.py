"""Wrong variables planted in functions."""

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from keras_bandgnn.checks import fraction, optional, seed_number, string, strings
from keras_bandgnn.programs.function_source import (
    FoundUsage,
    FunctionSource,
    VariableUsage,
)

Rewrite = tuple[int, int, str]
"""Line and column of a usage, and the name of the variable to put there."""


@dataclass(frozen=True)
class PlantedBug:
    """A function, with a wrong variable or as it was.

    Attributes:
        source: The source.
        usages: All its usages, found in this source.
        bug: Position in `usages` of the wrong variable; None if there is none.
        repair: The name that belongs there; None if there is no bug.
    """

    source: str
    usages: tuple[VariableUsage, ...]
    bug: int | None
    repair: str | None


def plant_bug(
    source: str,
    module_variables: Iterable[str] = (),
    *,
    seed: int = 0,
    epoch: int = 0,
    key: str | None = None,
    correct_share: float = 0.5,
) -> PlantedBug:
    r"""Put a wrong variable into a function, or leave it as it is.

    The usage and the wrong variable are drawn uniformly. Usages and candidates are
    those of the changed source, so that they tell nothing of the change. The result
    depends only on the arguments.

    Args:
        source: Source of one function, indented or not.
        module_variables: Names that are variables of its module.
        seed: Seed.
        epoch: Another number draws another bug.
        key: Name of the function for the draw, as two functions may be equal; the
            source if omitted.
        correct_share: Share of functions that are left as they are. One in which no
            wrong variable can be planted is left, too.

    Raises:
        SyntaxError: If the source does not parse.

    Example:
    >>> made = plant_bug("def f(a, b):\n    return a - b", correct_share=0.0)
    >>> made.usages[made.bug].name in "ab", made.repair in "ab"
    (True, True)
    """
    string("source", source)
    read = FunctionSource(source, strings("module_variables", module_variables))
    seed_number("seed", seed)
    seed_number("epoch", epoch)
    optional(string, "key", key)
    if correct_share is True or correct_share != 1:
        fraction("correct_share", correct_share)
    drawn = f"{seed}:{epoch}:{source if key is None else key}".encode(
        errors="surrogatepass"
    )
    rng = random.Random(hashlib.sha256(drawn).digest())
    unchanged = PlantedBug(source, tuple(read.listed()), None, None)
    if rng.random() < correct_share:
        return unchanged
    planted = plant(read, rng)
    if planted is None:
        return unchanged
    changed, position, repair = planted
    return PlantedBug(changed.source, tuple(changed.listed()), position, repair)


def plant(
    read: FunctionSource,
    rng: random.Random,
    weights: Mapping[Rewrite, float] | None = None,
) -> tuple[FunctionSource, int, str] | None:
    """Put a wrong variable into a function.

    Args:
        read: The function.
        rng: Draws the change.
        weights: How likely each rewrite is to be drawn, of those that may be; None to
            draw a usage and then a variable uniformly.

    Returns:
        The changed function, the position of the wrong variable in its usages, and the
        name that belongs there; None where none can be planted.
    """
    draws = _uniform(read, rng) if weights is None else _weighted(read, rng, weights)
    for usage, wrong in draws:
        repair = usage.variable.name
        changed = read.changed(usage, wrong)
        place = read.place(usage.token)
        for position, other in enumerate(changed.usages):
            # The change may make both names equal.
            names = [variable.name for variable in other.others]
            if changed.place(other.token) == place and repair in names:
                return changed, position, repair
    return None


def _uniform(
    read: FunctionSource, rng: random.Random
) -> Iterator[tuple[FoundUsage, str]]:
    for usage in rng.sample(read.usages, len(read.usages)):
        yield usage, rng.choice(usage.others).name


def _weighted(
    read: FunctionSource, rng: random.Random, weights: Mapping[Rewrite, float]
) -> list[tuple[FoundUsage, str]]:
    """Return rewrites in the order of draws without replacement."""
    drawn = []
    for usage in read.usages:
        place = read.place(usage.token)
        for other in usage.others:
            # The times of events at these rates are in the order of such draws.
            if rate := weights.get((*place, other.name), 0.0):
                drawn.append((rng.expovariate(1.0) / rate, usage, other.name))
    drawn.sort(key=lambda draw: draw[0])
    return [draw[1:] for draw in drawn]
