"""How good explanations are: fidelity, known motifs, and a check of their sanity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from keras import ops

from keras_bandgnn.checks import (
    fraction,
    function,
    instance,
    one_of,
    refuse,
    seed_number,
    sequence,
)
from keras_bandgnn.explain.explanation import LEVELS, Explanation
from keras_bandgnn.explain.probe import EDGE, Probe, output_kind, run_probe
from keras_bandgnn.explain.request import ExplanationRequest, run_program
from keras_bandgnn.models.task import Task
from keras_bandgnn.models.task_program import compiled

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Data


class Masked(Probe):
    """The output for graphs of which a part is left out."""

    def compute(self, batch) -> dict:
        """Return the rows for "keep_edge" [G, E] and "keep_node" [G, N]."""
        request, inputs = batch["request"], self.inputs(batch)
        for name, values in inputs.items():
            mask = request["keep_edge" if name == EDGE else "keep_node"]
            mask = ops.convert_to_tensor(mask)
            axes = (1,) * (len(values.shape) - 2)
            inputs[name] = values * ops.reshape(mask, (*ops.shape(mask), *axes))
        return {"rows": self.rows(batch, inputs)}


def masked_rows(
    task: Task, explanations: Sequence[Explanation], masks: Sequence, level: str
) -> list[np.ndarray]:
    """Return the outputs for explained graphs of which a part is left out.

    Args:
        task: The task.
        explanations: The explanations.
        masks: For each of them [E] or [N], 1 for the edges or nodes that remain and 0
            for those that are removed or have features of 0; or anything between.
        level: `"edge"` or `"node"`.

    Returns:
        For each explanation float32 [C].
    """
    sources = [explanation.source for explanation in explanations]
    if any(source is None for source in sources):
        raise ValueError(
            "Expected explanations of graphs, which can be changed. Received: those of "
            "a loader or a compiled store. Explain the graphs themselves."
        )
    index = [explanation.index for explanation in explanations]
    index = index if task.output_level == "node" else None
    target = [explanation.target for explanation in explanations]
    edges = level == "edge"
    request = ExplanationRequest(
        task, sources, target, index, not edges, edges
    ).checked()
    program = compiled(task, run_probe, Masked, not edges, edges)
    loader = program.loader(request.graphs, training=False)
    out: list = [None] * len(sources)
    for batch, records in request.records(program, loader):
        keep = {
            f"keep_{name}": np.ones(batch[name]["mask"].shape, np.float32)
            for name in LEVELS
        }
        for record in records:
            mask = np.asarray(masks[record.number], np.float32)
            group = record.rows.group
            if edges:
                keep["keep_edge"][group, record.rows.edges] = record.edges.to_model(
                    mask
                )
            else:
                keep["keep_node"][group, record.rows.nodes] = mask[record.nodes]
        rows = run_program(program, {**batch, "request": {**batch["request"], **keep}})
        for record in records:
            out[record.number] = rows["rows"][record.rows.group, record.rows.slot]
    return out


class Fidelity(NamedTuple):
    """How decisions depend on the parts of graphs that explanations select.

    Attributes:
        plus: Share of the decisions that change without the selected part: whether it
            is necessary. Higher is better.
        minus: Share of the decisions that change with the selected part alone: whether
            it suffices. Lower is better.
        unfaithfulness: Mean of 1 - exp(-KL(p, q)) between the probabilities p of the
            graph and q of the selected part alone. Lower is better.
    """

    plus: float
    minus: float
    unfaithfulness: float

    @property
    def characterization(self) -> float:
        """Harmonic mean of `plus` and `1 - minus`; higher is better."""
        total = self.plus + 1.0 - self.minus
        return 2.0 * self.plus * (1.0 - self.minus) / total if total else 0.0


def fidelity(
    task: Task,
    explanations: Sequence[Explanation],
    share: float = 0.2,
    level: str = "edge",
) -> Fidelity:
    """Measure whether the selection of explanations is necessary and sufficient.

    Selected is the `share` of the edges (or nodes) of each graph with the largest
    scores. The model sees the graphs without them, and with them alone: edges are
    removed, features of nodes set to 0.

    Args:
        task: The task, over classes or binary targets.
        explanations: Of its predictions; None, of items that the encoder skips or
            graphs that the batcher drops, does not count.
        share: Share of the edges or nodes that is selected.
        level: `"edge"` or `"node"`.

    Raises:
        ValueError: For a task that predicts numbers, explanations of a loader, or
            arguments that do not fit.

    Reference:
        Amara et al. 2022, https://arxiv.org/abs/2206.09677; Agarwal et al. 2023 for
        unfaithfulness. `torch_geometric.explain.metric` has the same measures.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, 1]})
    >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
    >>> measured = fidelity(task, kb.explain.saliency(task, [graph]), share=0.5)
    >>> 0 <= measured.minus <= 1
    True
    """
    instance("task", task, Task, "a task, such as a GraphClassifier")
    one_of("level", level, LEVELS)
    explanations = _explanations(explanations, some=True)
    kind = output_kind(task)
    if kind == "number":
        raise ValueError(
            "Expected `task` to predict classes or binary targets, which can change. "
            f"Received: {type(task).__name__}. Compare its outputs instead."
        )
    selections = [explanation.selection(share, level) for explanation in explanations]
    without = masked_rows(task, explanations, [~mask for mask in selections], level)
    alone = masked_rows(task, explanations, selections, level)
    changes, divergences = [], []
    for entry, *rows in zip(explanations, without, alone, strict=True):
        whole, *parts = (
            _probabilities(row, entry.target, kind) for row in (entry.prediction, *rows)
        )
        changes.append([np.argmax(part) != np.argmax(whole) for part in parts])
        ratio = np.log(np.maximum(whole, 1e-12) / np.maximum(parts[1], 1e-12))
        divergences.append(max(float((whole * ratio).sum()), 0.0))
    plus, minus = np.mean(changes, axis=0)
    return Fidelity(
        float(plus), float(minus), float(np.mean(1.0 - np.exp(-np.array(divergences))))
    )


def _probabilities(row: np.ndarray, target: int, kind: str) -> np.ndarray:
    """Return the probabilities of classes; of a binary target those of no and yes."""
    logits = np.array([0.0, row[target]]) if kind == "binary" else row
    shares = np.exp(logits.astype(np.float64) - logits.max())
    return shares / shares.sum()


def sparsity(
    explanations: Sequence[Explanation], threshold: float = 0.5, level: str = "edge"
) -> float:
    """Return the mean share of edges or nodes that do not matter.

    Those are edges (or nodes) with scores below `threshold` times the largest score of
    their graph, all by their size.

    Args:
        explanations: The explanations.
        threshold: In [0, 1), see above.
        level: `"edge"` or `"node"`.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, 1]})
    >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
    >>> 0 <= sparsity(kb.explain.saliency(task, [graph])) <= 0.5
    True
    """
    fraction("threshold", threshold)
    one_of("level", level, LEVELS)
    shares = []
    for explanation in _explanations(explanations, some=True):
        size = np.abs(explanation.scores(level))
        if len(size):
            shares.append(np.mean(size < threshold * size.max()))
    return float(np.mean(shares)) if shares else 0.0


def ground_truth_auc(
    explanations: Sequence[Explanation], truth: Sequence, level: str = "edge"
) -> np.ndarray:
    """Return how well scores rank the true edges or nodes, as the area under the ROC.

    Args:
        explanations: The explanations.
        truth: For each of them bool [E] or [N], the edges or nodes that matter.
        level: `"edge"` or `"node"`.

    Returns:
        float [n]: 1 if all that matters has larger scores, by size, than all else; 0.5
        for scores without any relation. NaN where all or nothing matters, and for
        explanations that are None.

    Raises:
        ValueError: For a truth of another length.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, 1]})
    >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
    >>> ground_truth_auc(kb.explain.saliency(task, [graph]), [[True, False]]).shape
    (1,)
    """
    from scipy.stats import rankdata

    one_of("level", level, LEVELS)
    explanations = _explanations(explanations)
    truth = sequence("truth", truth, "a list of masks")
    out = np.full(len(explanations), np.nan)
    if len(truth) != len(explanations):
        raise ValueError(
            f"Expected `truth` to have a mask for each of the {len(explanations)} "
            f"explanations. Received: {len(truth)}. Pass one each."
        )
    for number, (explanation, mask) in enumerate(zip(explanations, truth, strict=True)):
        if explanation is None:
            continue
        size, mask = np.abs(explanation.scores(level)), np.asarray(mask)
        if mask.shape != size.shape or mask.dtype.kind not in "biu":
            raise ValueError(
                f"Expected `truth` to have {len(size)} booleans for explanation "
                f"{number}, one for each {level}. Received: {mask.dtype} of shape "
                f"{mask.shape}. Give them in the order of the graph."
            )
        mask = mask.astype(bool)
        some, none = int(mask.sum()), int((~mask).sum())
        if some and none:
            ranks = rankdata(size)[mask].sum()
            out[number] = (ranks - some * (some + 1) / 2) / (some * none)
    return out


def randomization_check(
    task: Task,
    graphs: Data,
    method: Callable,
    level: str = "edge",
    seed: int = 0,
    **options: object,
) -> np.ndarray:
    """Return how alike explanations of the task and of one that knows nothing are.

    The weights of the task are shuffled, each array on its own, the same predictions
    explained once more, and the weights restored. A method that explains the model,
    not the graph alone, has low correlations.

    Args:
        task: The trained task.
        graphs: Graphs, in any form that `predict` takes.
        method: Function of this package, such as `integrated_gradients`.
        level: `"edge"` or `"node"`.
        seed: Seed of the shuffling.
        **options: Arguments of the method.

    Returns:
        float [n]: for each graph the rank correlation of the sizes of its scores, 1 if
        the ranks are the same; 0 where all scores are equal, and NaN for items that the
        encoder skips and graphs that the batcher drops.

    Reference:
        Adebayo et al. 2018, https://arxiv.org/abs/1810.03292.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(4, [0, 1, 2], [1, 2, 3], node={"kind": [0, 1, 1, 0]})
    >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
    >>> randomization_check(task, [graph], kb.explain.saliency).shape
    (1,)
    """
    instance("task", task, Task, "a task, such as a GraphClassifier")
    function("method", method)
    one_of("level", level, LEVELS)
    rng = np.random.default_rng(seed_number("seed", seed))
    if isinstance(graphs, Iterator):
        graphs = list(graphs)
    trained = method(task, graphs, **options)
    options["target"] = [
        0 if explanation is None else explanation.target for explanation in trained
    ]
    before = task.get_weights()
    try:
        task.set_weights([_shuffled(weight, rng) for weight in before])
        shuffled = method(task, graphs, **options)
    finally:
        task.set_weights(before)
    pairs = zip(trained, shuffled, strict=True)
    return np.array(
        [
            np.nan
            if None in pair
            else _rank_correlation(
                *(np.abs(explanation.scores(level)) for explanation in pair)
            )
            for pair in pairs
        ]
    )


def _shuffled(weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(weight.reshape(-1)).reshape(weight.shape)


def _rank_correlation(one: np.ndarray, two: np.ndarray) -> float:
    from scipy.stats import rankdata

    ranks = [rankdata(scores) - (len(scores) + 1) / 2 for scores in (one, two)]
    sizes = [np.linalg.norm(rank) for rank in ranks]
    return float(ranks[0] @ ranks[1] / (sizes[0] * sizes[1])) if all(sizes) else 0.0


def _explanations(explanations: Any, some: bool = False) -> list:
    """Return explanations in a list, or raise a ValueError.

    Args:
        explanations: What a method of `explain` returned.
        some: Whether to leave out what is None.
    """
    expected = "a list of what the methods of explain return"
    listed = sequence("explanations", explanations, expected)
    present = [explanation for explanation in listed if explanation is not None]
    for explanation in present:
        instance("explanations", explanation, Explanation, expected)
    if not present:
        refuse("explanations", "at least one explanation", explanations)
    return present if some else list(listed)
