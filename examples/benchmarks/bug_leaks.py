"""Whether planted bugs give themselves away by other signs than their meaning."""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from examples.benchmarks.bug_planted import Judgement, alarms_of, wilson
from examples.benchmarks.bug_texts import Module, function_source, generator
from keras_bandgnn.cli import report
from keras_bandgnn.programs import (
    FunctionGraph,
    bug_samples,
    encode_function,
    read_corpus,
)
from keras_bandgnn.programs.corpus_files import CorpusFunction, corpus_packages
from keras_bandgnn.programs.linting.finding import FindingSource

_LIMITS = {"max_nodes": 1200, "max_rewrites": 500}
# Small functions: the chance of the right rewrite among few is easier to tell from 0.
_SMALL = {"max_nodes": 400, "max_rewrites": 40}
# Fields of syntax nodes that hold the name of a variable.
_NAMED = {
    "id": ast.Name,
    "arg": ast.arg,
    "name": (ast.ExceptHandler, ast.MatchAs, ast.MatchStar),
    "rest": ast.MatchMapping,
}


def pairs(
    corpus: Path, split: str, limit: int, seed: int, **limits: int
) -> list[FunctionGraph]:
    """Return functions of random packages, each as it is and with a bug.

    Args:
        corpus: Folder of `examples.corpora`.
        split: Split.
        limit: Number of functions.
        seed: Seed of the order of the packages.
        **limits: Limits of the functions' size.
    """
    names = [package["name"] for package in corpus_packages(corpus, split)]
    names = np.random.default_rng(seed).permutation(names).tolist()
    # A few functions of each package, not many of one.
    share = -(-limit // max(len(names), 1)) if split == "test" else 60
    found: list[FunctionGraph] = []
    with report.progress(f"functions for {split}") as advance:
        for name in names:
            taken = 0
            last = None
            for graph in bug_samples(read_corpus(corpus, split, [name]), **limits):
                if graph.correct < 0:
                    last = graph
                    continue
                found += [last, graph]
                taken += 1
                advance(len(found) // 2, limit)
                if taken >= share or len(found) >= 2 * limit:
                    break
            if len(found) >= 2 * limit:
                break
    return found


def token_counts(graphs: Sequence[FunctionGraph]):
    """Return a sparse matrix of how often each id of the model is in a graph.

    Ids are those of subtokens of labels and of the nodes' kinds.
    """
    from scipy import sparse

    kinds, words = 512, 16384
    rows, columns = [], []
    with report.progress("counting tokens") as advance:
        for number, graph in enumerate(graphs):
            node = encode_function(
                graph, num_type_buckets=kinds, num_subtoken_buckets=words
            ).node
            ids = node["subtoken"][node["subtoken"] > 0] + kinds
            ids = np.concatenate([node["type"], ids])
            rows.append(np.full(len(ids), number))
            columns.append(ids)
            advance(number + 1, len(graphs))
    places = np.concatenate(rows), np.concatenate(columns)
    shape = (len(graphs), kinds + words)
    counts = sparse.coo_matrix((np.ones(len(places[0])), places), shape).tocsr()
    counts.data = np.log1p(counts.data)
    return counts


def signs(graph: FunctionGraph) -> list[float]:
    """Return counts of variables that a wrong one changes.

    A wrong variable may leave the right one unused, and occur twice in a row. These are
    signs of real bugs, too.
    """
    variables = np.unique(np.append(graph.used, graph.rewrites[:, 1]))
    size = len(graph.labels)
    occurring = np.bincount(graph.edges["Occurrence"][:, 0], minlength=size)[variables]
    reads = np.bincount(graph.used, minlength=size)[variables]
    repeated = int((graph.used[1:] == graph.used[:-1]).sum())
    counts = [
        (occurring == 1).sum(),
        (reads == 0).sum(),
        (reads == 1).sum(),
        reads.max(),
        repeated,
        len(variables),
        len(graph.used),
    ]
    shares = [c / len(variables) for c in counts[:3]]
    shares += [c / len(graph.used) for c in counts[3:5]]
    return [*np.log1p(counts).tolist(), *shares]


def fit_logistic(features, labels: np.ndarray, penalty: float = 1e-3):
    """Return weights and bias of a logistic regression.

    Args:
        features: Matrix [N, F], dense or sparse.
        labels: 0 and 1.
        penalty: Weight of the squared weights.
    """
    from scipy.optimize import minimize

    sign = 2.0 * labels - 1.0

    def loss(values):
        weights, bias = values[:-1], values[-1]
        margin = sign * (features @ weights + bias)
        slope = -sign / (1 + np.exp(np.clip(margin, -50, 50))) / len(sign)
        gradient = np.append(features.T @ slope + penalty * weights, slope.sum())
        value = np.logaddexp(0, -margin).mean() + penalty / 2 * weights @ weights
        return value, gradient

    start = np.zeros(features.shape[1] + 1)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return found.x[:-1], found.x[-1]


def roc_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the area under the ROC curve."""
    from scipy.stats import rankdata

    ones = labels == 1
    count = ones.sum()
    total = rankdata(scores)[ones].sum() - count * (count + 1) / 2
    return float(total / (count * (len(scores) - count)))


def separation(
    train: Sequence[FunctionGraph],
    test: Sequence[FunctionGraph],
    features: Callable[[Sequence[FunctionGraph]], np.ndarray],
    seed: int = 0,
) -> dict:
    """Return how well features tell functions with a bug from those without.

    Args:
        train: Functions to learn from, each as it is and then with a bug.
        test: Functions for the score.
        features: Features of functions.
        seed: Seed of the bootstrap over functions.

    Returns:
        `auc`, the area under the ROC curve, and `higher`, the share of the functions
        whose version with a bug has the higher score, with intervals.
    """
    labels = np.arange(len(train)) % 2
    weights, bias = fit_logistic(features(train), labels)
    scores = features(test) @ weights + bias
    clean, wrong = scores[0::2], scores[1::2]
    count = len(clean)
    truth = np.repeat([0, 1], count)
    rng, drawn = np.random.default_rng(seed), []
    for _ in range(200):
        chosen = rng.integers(0, count, count)
        both = np.concatenate([clean[chosen], wrong[chosen]])
        drawn.append(roc_auc(both, truth))
    higher = float((wrong > clean).sum() + 0.5 * (wrong == clean).sum())
    return {
        "functions": count,
        "trained_on": len(train) // 2,
        "auc": roc_auc(np.concatenate([clean, wrong]), truth),
        "interval": np.percentile(drawn, [2.5, 97.5]).tolist(),
        "higher": higher / count,
        "higher_interval": list(wilson(higher, count)),
    }


def token_leak(corpus: Path, functions: int, seed: int) -> dict[str, dict]:
    """Return how well counts of tokens, and telling signs, tell of a bug."""
    train = pairs(corpus, "train", functions, seed, **_LIMITS)
    test = pairs(corpus, "test", functions, seed, **_LIMITS)
    table = np.array([signs(graph) for graph in train])
    mean, deviation = table.mean(0), table.std(0) + 1e-9

    def scaled(graphs):
        return (np.array([signs(graph) for graph in graphs]) - mean) / deviation

    return {
        "counts of tokens": separation(train, test, token_counts),
        "telling signs": separation(train, test, scaled),
    }


def shuffled(graphs: Iterable[FunctionGraph], seed: int) -> list[FunctionGraph]:
    """Return functions with a random label: no change, or any of their rewrites."""
    rng = np.random.default_rng(seed)
    return [
        graph.repaired_by(int(rng.integers(-1, len(graph.rewrites))))
        for graph in graphs
    ]


def small_task(hidden: int = 32, steps: int = 4):
    """Return a small model."""
    import keras

    from keras_bandgnn import models, preprocessing

    encoder = preprocessing.FunctionEncoder(num_subtoken_buckets=4096)
    backbone = models.GGNNBackbone(
        encoder.inputs(),
        hidden_dim=hidden,
        num_steps=steps,
        num_edge_types=encoder.num_edge_types,
    )
    batcher = preprocessing.DynamicBatcher(31)
    task = models.BugLocalizer(
        backbone, preprocessing.GraphPreprocessor([encoder], batcher)
    )
    task.compile(keras.optimizers.Adam(3e-3, global_clipnorm=1.0))
    return task


def label_leak(corpus: Path, functions: int, epochs: int, seed: int) -> dict:
    """Return how often small models are right, with labels as they are and shuffled.

    The one trained on shuffled labels is scored on shuffled ones: it must be at chance,
    1 in the number of rewrites and no change.
    """
    import keras

    from keras_bandgnn.training import localization_report

    train = pairs(corpus, "train", functions, seed, **_SMALL)
    test = pairs(corpus, "test", functions, seed, **_SMALL)
    figures = {}
    sets = {
        "as they are": (list(train), list(test)),
        "shuffled": (shuffled(train, seed), shuffled(test, seed + 1)),
    }
    for name, (known, held_out) in sets.items():
        keras.utils.set_random_seed(seed)
        task = small_task()
        with report.progress(f"training, labels {name}") as advance:
            for epoch in range(epochs):
                task.fit(known, epochs=1, verbose=0, seed=epoch)
                advance(epoch + 1, epochs)
        found = task.rewrite_probabilities(held_out, verbose=0)
        right = sum(
            int(np.argmax(shares)) == graph.correct + 1
            for graph, shares in zip(held_out, found, strict=True)
        )
        count = len(held_out)
        # As they are, half of the functions need no change.
        chance = [
            1 / (1 + len(g.rewrites)) if name == "shuffled" else 0.5 for g in test
        ]
        figures[f"labels {name}"] = {
            "trained_on": len(known),
            "functions": count,
            "right": right / count,
            "interval": list(wilson(right, count)),
            "chance": float(np.mean(chance)),
            "joint": localization_report(held_out, found)["joint"],
        }
    return figures


def renamed(function: CorpusFunction, seed: int, names: Sequence[str]) -> str | None:
    """Return a function with one local variable renamed everywhere.

    Functions are left out where the name also occurs otherwise, as in an f-string, or
    where it may be read by other means, as by `locals` or a call of the function.

    Args:
        function: The function.
        seed: Seed of the choice of the variable and its new name.
        names: New names to choose from.

    Returns:
        The source, with as many lines; None if no variable can be renamed.
    """
    read = function_source(function)
    if read is None:
        return None
    rng = generator(function, seed)
    words = set(re.findall(r"\w+", function.source))
    new = [name for name in rng.sample(names, min(len(names), 50)) if name not in words]
    own = function.name.rpartition(".")[2]
    local = {
        usage.variable
        for usage in read.usages
        if getattr(usage.variable.scope.node, "name", None) == own
        and usage.variable.name not in ("self", "cls")
    }
    recursive = function.source.count(f"{own}(") > 1
    if not local or not new or recursive or "locals" in words:
        return None
    variable = rng.choice(sorted(local, key=lambda variable: variable.tokens[0]))
    lines = read.source.split("\n")
    for token in reversed(variable.tokens):
        line, column = read.place(token)
        text, end = lines[line - 1], column + len(variable.name)
        if line < 1 or text[column:end] != variable.name:
            return None
        lines[line - 1] = text[:column] + new[0] + text[end:]
    source = "\n".join(lines)
    head = "if 1:\n" if source[:1] in (" ", "\t") else ""
    trees = [ast.parse(head + text) for text in (read.source, source)]
    if variable.name in _names(trees[1], {}):
        return None
    _names(trees[1], {new[0]: variable.name})
    return source if ast.dump(trees[0]) == ast.dump(trees[1]) else None


def _names(tree: ast.AST, changed: dict[str, str]) -> Counter[str]:
    """Count names of variables, and replace some."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        for attribute, kinds in _NAMED.items():
            if isinstance(node, kinds):
                name = getattr(node, attribute)
                found[name] += 1
                setattr(node, attribute, changed.get(name, name))
    return found


def local_names(modules: Sequence[Module]) -> list[str]:
    """Return the names that functions assign or take."""
    names = set()
    for module in modules:
        names |= set(_names(ast.parse(module.text), {})) - {None, "self", "cls"}
    return sorted(names)


def rename_alarms(
    source: FindingSource,
    modules: Sequence[Module],
    judgement: Judgement,
    thresholds: dict[str, float],
    name: str,
    seed: int,
) -> dict[str, dict]:
    """Compare false alarms in functions as they are and with a variable renamed.

    Args:
        source: The model.
        modules: The modules.
        judgement: What the model says of them as they are.
        thresholds: Label -> confidence.
        name: Name of the model.
        seed: Seed of the names.
    """
    files = np.repeat(np.arange(len(modules)), [len(m.functions) for m in modules])
    lines = np.array(
        [f.source.count("\n") + 1 for module in modules for f in module.functions]
    )
    rng = np.random.default_rng(seed)
    draws = [
        rng.multinomial(len(modules), np.full(len(modules), 1 / len(modules)))[files]
        for _ in range(200)
    ]
    kinds = {"x1": ["x1"], "names of other functions": local_names(modules)}
    figures = {}
    for kind, names in kinds.items():
        texts, changed = [], []
        for module in modules:
            sources = {
                index: text
                for index, function in enumerate(module.functions)
                if (text := renamed(function, seed, names)) is not None
            }
            texts.append(module.with_sources(sources))
            changed += [index in sources for index in range(len(module.functions))]
        alarms, _ = alarms_of(source, modules, texts, f"{name}, renamed to {kind}")
        mask = np.array(changed)
        total = lines[mask].sum()
        at_thresholds = {}
        for label, threshold in thresholds.items():
            counts = [
                np.bincount(
                    found.function[found.confidence >= threshold], minlength=len(lines)
                )
                * mask
                for found in (judgement.clean, alarms)
            ]
            difference = (counts[1] - counts[0]).astype(float)
            drawn = [
                1000 * (w @ difference) / max(w @ (lines * mask), 1) for w in draws
            ]
            at_thresholds[label] = {
                "threshold": threshold,
                "as_it_is": 1000 * float(counts[0].sum()) / total,
                "renamed": 1000 * float(counts[1].sum()) / total,
                "difference_interval": np.percentile(drawn, [2.5, 97.5]).tolist(),
            }
        figures[kind] = {
            "functions": int(mask.sum()),
            "lines": int(total),
            "at": at_thresholds,
        }
    return figures
