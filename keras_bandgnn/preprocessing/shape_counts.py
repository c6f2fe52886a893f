"""`ShapeCounts`: which padded shapes a training run meets, from sizes alone."""

import dataclasses
import time
from collections.abc import Mapping, Sequence

import numpy as np

from keras_bandgnn.preprocessing.assemble import Supergraph
from keras_bandgnn.preprocessing.batcher import Batcher
from keras_bandgnn.preprocessing.epochs import Epochs

# Where every supergraph of a budget has one shape, so many epochs say it all.
_FIXED_EPOCHS = 2


@dataclasses.dataclass(frozen=True)
class ShapeCounts:
    """The distinct padded shapes of a training run.

    Attributes:
        steps: Steps that were gone through.
        examples: A supergraph of each shape; its `budget` is the shape.
        counts: int [k], steps with each shape.
        first: int [k], the step, from 0, that meets each shape first.
        used: Resource -> what the real graphs of all steps need.
        graphs: Real graphs in all steps.
        exact: Whether these are all shapes of the steps that were asked for.
        compose_ms: Milliseconds per step that composing the epochs took.
    """

    steps: int
    examples: tuple[Supergraph, ...]
    counts: np.ndarray
    first: np.ndarray
    used: dict[str, int]
    graphs: int
    exact: bool
    compose_ms: float

    @property
    def graphs_per_step(self) -> float:
        """Real graphs per step, on average."""
        return self.graphs / self.steps

    def waste(self, name: str) -> float:
        """Share of a padded resource, such as "node", that is padding."""
        padded = sum(
            int(count) * example.budget[name]
            for count, example in zip(self.counts, self.examples, strict=True)
        )
        return 1 - self.used[name] / padded

    def after(self, steps: int) -> int:
        """Distinct shapes among the first `steps` steps."""
        return int((self.first < steps).sum())

    def at(self, quantiles: Sequence[float]) -> list[Supergraph]:
        """Supergraphs at these places among the steps, from small to large shapes."""
        sizes = np.array([[e.budget["node"], e.budget["edge"]] for e in self.examples])
        order = (sizes / sizes.mean(axis=0).clip(1)).sum(axis=1).argsort(kind="stable")
        share = self.counts[order].cumsum() / self.counts.sum()
        places = np.searchsorted(share, quantiles).clip(0, len(order) - 1)
        return [self.examples[i] for i in dict.fromkeys(order[places].tolist())]


def count_shapes(
    sizes: Mapping[str, np.ndarray],
    batcher: Batcher,
    steps: int,
    seed: int = 0,
    limit: int = 1_000_000,
) -> ShapeCounts:
    """Composes the epochs of a training run and counts their shapes.

    The compositions are those of a `GraphLoader` with one replica and this seed.

    Args:
        sizes: Resource -> int [n], what each graph needs.
        batcher: An adapted batcher.
        steps: Steps of the run.
        seed: Seed of the orders.
        limit: At most so many steps are composed; beyond it the shapes are a lower
            bound, and `exact` is False. Batchers of fixed shapes need two epochs.

    Example:
    >>> from keras_bandgnn.preprocessing.static_batcher import StaticBatcher
    >>> sizes = {"node": np.array([30, 30, 70, 70]), "edge": np.array([8, 8, 8, 8])}
    >>> batcher = StaticBatcher(2, padding="64")
    >>> batcher.adapt(sizes)
    >>> found = count_shapes(sizes, batcher, steps=8)
    >>> sorted(zip([e.budget["node"] for e in found.examples], found.counts.tolist()))
    [(64, 4), (128, 4)]
    """
    epochs = Epochs(sizes, batcher, seed, width=1)
    limit = min(steps, limit)
    if batcher.fixed_shapes:
        limit = min(limit, _FIXED_EPOCHS * epochs.length)
    shapes: dict[tuple, list] = {}
    used = {"node": 0, "edge": 0}
    done = epoch = graphs = 0
    seconds = 0.0
    while done < limit:
        began = time.perf_counter()
        composed = epochs.composition(epoch)
        seconds += time.perf_counter() - began
        made = composed[: limit - done]
        for step, supergraph in enumerate(made, start=done):
            shape = tuple(supergraph.budget.values())
            if shape in shapes:
                shapes[shape][1] += 1
            else:
                shapes[shape] = [supergraph, 1, step]
        members = np.concatenate([supergraph.members for supergraph in made])
        graphs += len(members)
        for name in used:
            used[name] += int(np.asarray(sizes[name])[members].sum())
        done += len(made)
        epoch += 1
    examples, counts, first = zip(*shapes.values(), strict=True)
    return ShapeCounts(
        steps=done,
        examples=examples,
        counts=np.array(counts),
        first=np.array(first),
        used=used,
        graphs=graphs,
        exact=batcher.fixed_shapes or done == steps,
        compose_ms=1e3 * seconds / (epoch * epochs.length),
    )
