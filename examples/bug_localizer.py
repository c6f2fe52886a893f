"""Train a `BugLocalizer` on the functions of many packages.

    python -m examples.corpora CORPUS
    python examples/bug_localizer.py CORPUS --out MODEL
    python examples/bug_localizer.py CORPUS --out MODEL --backbone gt
    python examples/bug_localizer.py CORPUS --out WIDE --hidden 128 --grow MODEL
    python examples/bug_localizer.py CORPUS --out BETTER --start MODEL --traits \
        --mistakes likely --unread-share 0.3 --long --fixes FIXES --fold 0
    python examples/bug_localizer.py --short

Each pass reads every function twice, as it is and with one wrong variable, which is
another one in every pass. A process of its own makes the graphs of a chunk of packages
while the model trains on the chunk before. In the last part of the training the model
takes more steps, with the same weights, and half of the bugs are hard: variables that
the model itself finds plausible. A killed run resumes after its last chunk.
The backbone is a GGNN, or with --backbone gt a graph transformer, whose layers have
weights of their own, so that it has as many in the last part.
With --grow a wider GGNN starts as the one it is given: new channels are added beside
its own, which do not read them at first. With --start it has the weights of another
one, and those of --traits begin at 0.
With --mistakes likely, bugs are planted as developers make them. With --planted a
share of the planted bugs is used. With --fixes real ones are part of each chunk: each
function with its bug, and as the fix left it. FIXES is a folder with `cases.jsonl.gz`,
one object a line with `repo`, `function`, `function_start_line`, `line`, `col`, `used`,
`correct`, `before` and `after`. With --fold K the projects of one of five folds are
left out, and the bugs in them ranked; these bugs among correct code, one in 2,000
functions, calibrate the model. Without --fold, --calibration has the mean of the folds.
With --mean the model has the mean of the weights after the last chunks.
With --short the script makes a corpus of a few modules of this Python and trains on it
for a moment. Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import dataclasses
import functools
import gzip
import json
import multiprocessing
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_bandgnn import models, preprocessing, training
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.programs import (
    bug_samples,
    corpus_packages,
    encode_function,
    function_graph,
    read_corpus,
)

LIMITS: dict[str, Any] = {"max_nodes": 1200, "max_rewrites": 500}
# Of functions as long as those with real bugs, which have 366 nodes in the median.
LONG_LIMITS: dict[str, Any] = {"max_nodes": 2000, "max_rewrites": 4000}
LONG = 60
FOLDS = 5


def train_packages(options) -> list[dict]:
    """The packages for training, without those of `--without`."""
    packages = corpus_packages(options.corpus, "train")
    return [item for item in packages if item["name"] not in options.without]


def chunks(packages: list[dict], size: int, seed: int) -> list[list[str]]:
    """Names of packages in random order, with about `size` functions together."""
    random.Random(seed).shuffle(packages)
    found, count = [[]], 0
    for package in packages:
        if count >= size:
            found.append([])
            count = 0
        found[-1].append(package["name"])
        count += package["kept"]
    return found


def share_of(item) -> float:
    """How often a function is drawn: in proportion to its lines, as bugs are."""
    return min(1.0, (item.source.count("\n") + 1) / LONG)


def longer_ones(functions, epoch: int):
    """Functions drawn in proportion to their lines."""
    for item in functions:
        key = f"{epoch}:{item.module['path']}:{item.name}:{item.line}"
        if random.Random(key).random() < share_of(item):
            yield item


def chunk_graphs(
    corpus: str,
    names: list[str],
    epoch: int,
    encoder: dict,
    work: Path | None,
    long: bool,
    planted: float,
    sampling: dict[str, Any],
):
    """Graphs of the functions of packages, in a process of its own.

    The bugs are hard for the model that was last saved in `work`, if there is one. Of
    the functions with a planted bug a share is used.
    """
    encode = preprocessing.FunctionEncoder.from_config(encoder)
    judge = None
    saved = last_saved(work) if work else None
    if saved:
        task = keras.saving.load_model(saved, compile=False)
        judge = functools.partial(task.rewrite_probabilities, verbose=0)
    functions = read_corpus(corpus, "train", names)
    limits = LONG_LIMITS if long else LIMITS
    if long:
        functions = longer_ones(functions, epoch)
    samples = bug_samples(functions, epoch=epoch, judge=judge, **limits, **sampling)
    draw = random.Random(f"{epoch}:{names}").random
    used = (f for f in samples if f.correct < 0 or draw() < planted)
    return FlatGraphs.from_graphs([encode(without_info(f)) for f in used])


def without_info(function):
    """The graph without names and places, which training does not read."""
    return dataclasses.replace(function, info={})


def read_fixes(folder: Path) -> dict[str, list[tuple]]:
    """Pairs of functions before and after real fixes, by project, as graphs."""
    fixes: dict[str, list[tuple]] = {}
    with gzip.open(folder / "cases.jsonl.gz", "rt", encoding="utf-8") as lines:
        for case in map(json.loads, lines):
            fixes.setdefault(case["repo"], []).append(fix_pair(case))
    return fixes


def fix_pair(case: dict) -> tuple:
    """The graphs of a fix: the bug with its repair, and the function after it.

    None for both where the bug is none of the rewrites, as in a string.
    """
    before, after = (
        function_graph(case[k], name=case["function"], max_rewrites=25_000)
        for k in ("before", "after")
    )
    line = case["line"] - case["function_start_line"] + 1
    if before is None or after is None:
        return None, None
    repair = before.rewrite_to(line, case["col"], case["correct"])
    if repair is None:
        return None, None
    return before.repaired_by(repair), after.repaired_by(-1)


def fold_of(fixes: dict[str, list[tuple]], fold: int | None) -> tuple[list, list]:
    """The pairs of fixes for training, and those of the projects of a fold."""
    projects = sorted(fixes)
    random.Random(0).shuffle(projects)
    train, held_out = [], []
    for number, project in enumerate(projects):
        group = held_out if number % FOLDS == fold else train
        group += fixes[project]
    return train, held_out


def encoded_pairs(fixes: list[tuple], traits: bool) -> list[list]:
    """The graphs of fixes for training, without functions that are very long."""
    return [
        [encode_function(without_info(graph), traits=traits) for graph in pair]
        for pair in fixes
        if pair[0] is not None and len(pair[0].labels) <= 3000
    ]


def fix_ranks(task, pairs: list[tuple]) -> dict[str, float]:
    """How often the place of a bug, and its repair, are among the first of a function.

    Bugs that are no rewrite count as not found.
    """
    graphs = [before for before, _ in pairs if before is not None]
    places, repairs = [], []
    scores = task.rewrite_probabilities(graphs, verbose=0)
    for graph, (_, *shares) in zip(graphs, scores, strict=True):
        usages = graph.rewrites[:, 0]
        best = np.zeros(len(graph.usages))
        np.maximum.at(best, usages, shares)
        place = best[usages[graph.correct]]
        places.append((best >= place).sum())
        repairs.append(places[-1] if shares[graph.correct] == place else np.inf)
    return {
        f"{name} among {count}": float((np.array(ranks) <= count).sum() / len(pairs))
        for name, ranks in (("place", places), ("repair", repairs))
        for count in (1, 5, 10)
    }


def correct_functions(corpus: Path, split: str) -> tuple[list, int]:
    """Functions of a split as they are, and their lines."""
    functions, lines = [], 0
    for item in read_corpus(corpus, split):
        lines += item.source.count("\n") + 1
        graph = function_graph(item.source, name=item.name, **LONG_LIMITS)
        if graph is not None:
            functions.append(graph.repaired_by(-1))
    return functions, lines


def calibrate(task, corpus: Path, held_out: list[tuple], options) -> None:
    """Let a model expect as few bugs as there are, and report where it is worth it.

    Bugs are those of fixes that it was not trained on, among correct functions of
    packages that it was not trained on. It reports a function in 5,000 lines.
    """
    functions, lines = correct_functions(corpus, "valid")
    shares = task.rewrite_probabilities(functions, verbose=0)
    bugs = [before for before, _ in held_out if before is not None]
    found = task.rewrite_probabilities(bugs, verbose=0)
    task.calibration = options.calibration
    if bugs and task.calibration is None:
        task.calibration = training.localization_calibration(
            [*functions, *bugs], [*shares, *found], 1 / 2000
        )

    def best(shares):
        return task.calibrated(np.log(np.maximum(shares, 1e-30)))[1:].max()

    alarms = np.sort([best(scores) for scores in shares if scores is not None])
    task.min_confidence = float(alarms[-1 - int(lines / 5000)])
    print(
        f"calibration {task.calibration}; {len(functions)} functions, {lines:,} lines: "
        f"one finding in 5,000 lines above {task.min_confidence:.3g}"
    )
    if bugs:
        hits = [
            best(scores) > task.min_confidence
            and bug.rewrites[scores[1:].argmax(), 0] == bug.rewrites[bug.correct, 0]
            for bug, scores in zip(bugs, found, strict=True)
        ]
        print(f"  {100 * sum(hits) / len(held_out):.1f} % of bugs found")


def last_saved(work: Path) -> Path | None:
    """The newest model of a run."""
    return max(work.glob("chunk-*.keras"), default=None)


def chunks_ahead(jobs: list[tuple], here: bool) -> Iterator[FlatGraphs]:
    """Graphs of each chunk, of which the next is made meanwhile."""
    if here:
        yield from (chunk_graphs(*job) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        waiting = [pool.submit(chunk_graphs, *job) for job in jobs[:1]]
        for job in [*jobs[1:], None]:
            ready = waiting.pop()
            if job is not None:
                waiting.append(pool.submit(chunk_graphs, *job))
            yield ready.result()


def make_task(options, steps: int) -> models.BugLocalizer:
    """A model of so many steps, with random weights."""
    encoder = preprocessing.FunctionEncoder(traits=options.traits)
    types = encoder.num_edge_types
    if options.backbone == "gt":
        backbone = models.GTBackbone(
            encoder.inputs(),
            hidden_dim=options.hidden,
            num_layers=steps,
            num_heads=4,
            laplacian=0,
            # Type 0 is for pairs without an edge.
            num_edge_types=types + 1,
            # Rewrites and no change, the last two types, are predicted.
            target_type=types - 2,
            dropout=options.dropout,
        )
    else:
        backbone = models.GGNNBackbone(
            encoder.inputs(),
            hidden_dim=options.hidden,
            num_steps=steps,
            num_edge_types=types,
            dropout=options.dropout,
        )
    batcher = preprocessing.DynamicBatcher(options.batch)
    layers = [encoder, *backbone.graph_layers()]
    preprocessor = preprocessing.GraphPreprocessor(layers, batcher)
    return models.BugLocalizer(
        backbone, preprocessor, edge_inputs=encoder.edge_inputs()
    )


def start(task, other) -> None:
    """Give a task the weights of another one; tables that it lacks begin at 0."""
    weights = {weight.path.partition("/")[2]: weight for weight in other.weights}
    for new in task.weights:
        old = weights.get(new.path.partition("/")[2])
        new.assign(
            np.zeros(new.shape) if old is None else keras.ops.convert_to_numpy(old)
        )


def grow(task, narrow) -> None:
    """Give a task the weights of a narrower one, so that it predicts the same.

    What the channels of the narrow one read and write is kept; the new channels read
    all, and their random weights into the old ones are 0.
    """
    width = task.backbone.hidden_dim
    old_width = narrow.backbone.hidden_dim
    for new, old in zip(task.weights, narrow.weights, strict=True):
        value, kept = np.array(new), np.array(old)
        # The last axis are channels, those of the three gates, or the one output.
        parts = max(value.shape[-1] // width, 1)
        value = value.reshape(*value.shape[:-1], parts, -1)
        kept = kept.reshape(*kept.shape[:-1], parts, -1)
        if value.ndim >= 3 and value.shape[-3] == width:
            value[..., old_width:, :, : kept.shape[-1]] = 0.0
        value[tuple(slice(size) for size in kept.shape)] = kept
        new.assign(value.reshape(new.shape))


def score(task, corpus: Path, split: str, limit: int | None) -> dict:
    """What the model finds in a split that it is not trained on."""
    functions, lines = [], 0
    for graph in bug_samples(read_corpus(corpus, split), **LIMITS):
        functions.append(graph)
        if limit and len(functions) >= limit:
            break
    for graph in functions:
        lines += graph.info["lines"] if graph.correct < 0 else 0
    found = task.rewrite_probabilities(functions, verbose=0)
    return training.localization_report(functions, found, lines or None)


def show(split: str, report: dict) -> None:
    """Print a score."""
    names = ("joint", "located", "repaired", "false_alarms")
    print(split, ", ".join(f"{name} {100 * report[name]:.1f} %" for name in names))
    for rate, row in report["at"].items():
        alarms = row.get("per_1000_lines", float("nan"))
        print(f"  {100 * rate:.0f} % of bugs: {alarms:.2f} false alarms in 1,000 lines")


def show_fixes(task, held_out: list[tuple]) -> None:
    """Print how the bugs of fixes are ranked."""
    if held_out:
        ranks = fix_ranks(task, held_out).items()
        figures = ", ".join(f"{name} {100 * share:.1f} %" for name, share in ranks)
        print(f"{len(held_out)} fixes: {figures}", flush=True)


def compiled(task, options, steps: int, done: int = 0) -> models.BugLocalizer:
    """The task, to be trained from step `done` of `steps`."""
    warmup = min(1000, steps // 10 + 1)
    rate = training.WarmupDecay(options.rate, warmup, max(steps, warmup + 1))
    task.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0))
    task.optimizer.iterations.assign(done)
    return task


def count_steps(options, packages: list[dict]) -> int:
    """Steps of a whole run."""
    functions = sum(package["kept"] for package in packages)
    if options.long:
        names = [package["name"] for package in packages]
        functions = sum(map(share_of, read_corpus(options.corpus, "train", names)))
    samples = (1 + options.planted) * options.passes * functions
    if options.fixes:
        samples /= 1 - options.fix_share
    return max(int(samples / options.batch), 1)


def first_task(options, work: Path, steps: int) -> tuple[models.BugLocalizer, int]:
    """The model of an interrupted run, or a new one, and the chunks done."""
    saved = last_saved(work)
    if saved:
        done = int(saved.stem.rpartition("-")[2])
        print(f"resumed after chunk {done}")
        return keras.saving.load_model(saved), done
    task = make_task(options, options.steps)
    if options.grow:
        grow(task, models.BugLocalizer.from_preset(options.grow))
    if options.start:
        start(task, models.BugLocalizer.from_preset(options.start))
    print(f"{task.count_params():,} parameters, about {steps:,} steps")
    return compiled(task, options, steps), 0


def train(options) -> None:
    keras.utils.set_random_seed(options.seed)
    work = options.out.with_name(options.out.name + ".progress")
    work.mkdir(parents=True, exist_ok=True)
    packages = train_packages(options)
    parts = chunks(packages, options.chunk, options.seed)
    total = max(round(options.passes * len(parts)), 1)
    first_late = total - round(options.late * total)
    steps = count_steps(options, packages)
    task, done = first_task(options, work, steps)
    encoder = task.preprocessor.graph_layers[0].get_config()
    jobs = [
        (
            str(options.corpus),
            parts[k % len(parts)],
            k // len(parts),
            encoder,
            work if k >= first_late else None,
            options.long,
            options.planted,
            {"mistakes": options.mistakes, "unread_share": options.unread_share},
        )
        for k in range(done, total)
    ]
    fixes, held_out = fold_of(
        read_fixes(options.fixes) if options.fixes else {}, options.fold
    )
    pairs = encoded_pairs(fixes, options.traits)
    mean: list[list] = []
    ready = chunks_ahead(jobs, here=options.short)
    for number, graphs in enumerate(ready, done + 1):
        late = number > first_late and options.backbone == "ggnn"
        if late and task.backbone.num_steps < options.late_steps:
            step = int(task.optimizer.iterations)
            deeper = make_task(options, options.late_steps)
            deeper.set_weights(task.get_weights())
            task = compiled(deeper, options, steps, step)
            print(f"{options.late_steps} steps, hard bugs", flush=True)
        graphs = with_fixes(graphs, pairs, options.fix_share, number)
        began = time.perf_counter()
        history = task.fit(graphs, epochs=1, verbose=0, seed=number).history
        seconds = time.perf_counter() - began
        figures = ", ".join(f"{k} {v[0]:.4f}" for k, v in history.items())
        speed = 1000 * seconds / len(graphs)
        print(f"chunk {number}/{total}: {figures}, {speed:.1f} ms a graph", flush=True)
        if number > (1 - options.mean) * total:
            mean.append(task.get_weights())
        if number % options.every == 0 or number == total:
            # Under its name only when it is whole; the other process may read the last.
            task.save(work / "new.keras")
            (work / "new.keras").replace(work / f"chunk-{number:06d}.keras")
            for old in sorted(work.glob("chunk-*.keras"))[:-2]:
                old.unlink()
            show("valid", score(task, options.corpus, "valid", options.valid))
            show_fixes(task, held_out)
    if mean:
        task.set_weights(
            [np.mean(weights, axis=0) for weights in zip(*mean, strict=True)]
        )
        show("valid", score(task, options.corpus, "valid", options.valid))
        show_fixes(task, held_out)
    show("test", score(task, options.corpus, "test", options.valid))
    if options.fixes:
        calibrate(task, options.corpus, held_out, options)
    task.save_to_preset(options.out, weights="float16")
    print(f"model saved to {options.out}")


def with_fixes(graphs, pairs: list[list], share: float, number: int) -> FlatGraphs:
    """Graphs of a chunk, and of real fixes as a share of all."""
    if not pairs:
        return graphs
    count = round(share / (1 - share) * len(graphs) / 2)
    order = random.Random(0).sample(range(len(pairs)), len(pairs))
    drawn = [order[(number * count + k) % len(pairs)] for k in range(count)]
    real = [graph for k in drawn for graph in pairs[k]]
    return FlatGraphs.concatenate([graphs, FlatGraphs.from_graphs(real)])


def small_corpus(folder: Path) -> Path:
    """A corpus of a few modules of this Python, as if they were packages."""
    library = Path(sysconfig.get_path("stdlib"))
    modules = {"train": ("json", "textwrap.py"), "valid": ("shlex.py",)}
    modules["test"] = ("bisect.py", "heapq.py")
    archives, held_out = [], {"train": [], "valid": [], "test": []}
    for split, names in modules.items():
        for name in names:
            package = f"made_{Path(name).stem}"
            held_out[split].append(package.replace("_", "-"))
            archive = folder / f"{package}-1.0-py3-none-any.whl"
            with zipfile.ZipFile(archive, "w") as wheel:
                path = library / name
                files = path.glob("*.py") if path.is_dir() else [path]
                for file in files:
                    wheel.write(file, f"{package}/{file.name}")
                wheel.writestr(
                    f"{package}-1.0.dist-info/METADATA",
                    f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
                    "License: MIT\n",
                )
            archives.append(str(archive))
    command = [sys.executable, "-m", "examples.corpora", str(folder / "corpus")]
    command += ["--packages", *archives, "--valid", *held_out["valid"]]
    root = Path(__file__).parent.parent
    subprocess.run([*command, "--test", *held_out["test"]], check=True, cwd=root)
    return folder / "corpus"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("corpus", type=Path, nargs="?", help="of examples.corpora")
    parser.add_argument("--out", type=Path, help="folder for the model")
    parser.add_argument("--passes", type=float, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--backbone", choices=("ggnn", "gt"), default="ggnn")
    parser.add_argument("--grow", help="preset of a narrower GGNN to start from")
    parser.add_argument("--start", help="preset with weights to start from")
    parser.add_argument(
        "--traits", action="store_true", help="read what rewrites have in common"
    )
    parser.add_argument("--mistakes", choices=("uniform", "likely"), default="uniform")
    parser.add_argument(
        "--unread-share", type=float, default=0.0, help="functions with unread names"
    )
    parser.add_argument(
        "--long", action="store_true", help="draw functions by their lines"
    )
    parser.add_argument(
        "--planted", type=float, default=1.0, help="share of planted bugs that is used"
    )
    parser.add_argument("--fixes", type=Path, help="folder of real fixes")
    parser.add_argument(
        "--fix-share", type=float, default=0.2, help="share of fixes in a chunk"
    )
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="NAME", help="packages to leave out"
    )
    parser.add_argument("--fold", type=int, help="fold of projects to leave out")
    parser.add_argument(
        "--calibration", type=float, nargs=2, help="temperature, and b of no change"
    )
    parser.add_argument(
        "--mean", type=float, default=0.0, help="share of the end whose mean is taken"
    )
    parser.add_argument("--steps", type=int, default=4, help="steps, or layers of gt")
    parser.add_argument("--late", type=float, default=0.35, help="share of the end")
    parser.add_argument("--late-steps", type=int, default=6, help="of ggnn, at the end")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=32, help="graphs of a batch")
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--chunk", type=int, default=3000, help="functions of a chunk")
    parser.add_argument("--every", type=int, default=5, help="chunks between scores")
    parser.add_argument("--valid", type=int, help="most graphs to score")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="try it")
    options = parser.parse_args()
    if not options.short:
        if options.corpus is None or options.out is None:
            parser.error("expected CORPUS and --out, or --short")
        if options.grow and options.backbone != "ggnn":
            parser.error("--grow is for --backbone ggnn")
        train(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        options.corpus = small_corpus(Path(folder))
        options.out = Path(folder) / "model"
        options.hidden, options.steps, options.late_steps = 16, 2, 3
        options.every = 1
        train(options)


if __name__ == "__main__":
    main()
