"""Train a `BugLocalizer` on the functions of many packages.

    python -m examples.corpora CORPUS
    python examples/bug_localizer.py CORPUS --out MODEL
    python examples/bug_localizer.py CORPUS --out MODEL --backbone gt
    python examples/bug_localizer.py CORPUS --out WIDE --hidden 128 --grow MODEL
    python examples/bug_localizer.py --short

Each pass reads every function twice, as it is and with one wrong variable, which is
another one in every pass. A process of its own makes the graphs of a chunk of packages
while the model trains on the chunk before. In the last part of the training the model
takes more steps, with the same weights, and half of the bugs are hard: variables that
the model itself finds plausible. A killed run resumes after its last chunk.
The backbone is a GGNN, or with --backbone gt a graph transformer, whose layers have
weights of their own, so that it has as many in the last part.
With --grow a wider GGNN starts as the one it is given: new channels are added beside
its own, which do not read them at first.
With --short the script makes a corpus of a few modules of this Python and trains on it
for a moment. Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import functools
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
from keras_bandgnn.programs import bug_samples, corpus_packages, read_corpus

LIMITS: dict[str, Any] = {"max_nodes": 1200, "max_rewrites": 500}


def chunks(corpus: Path, size: int, seed: int) -> list[list[str]]:
    """Names of packages in random order, with about `size` functions together."""
    packages = corpus_packages(corpus, "train")
    random.Random(seed).shuffle(packages)
    found, count = [[]], 0
    for package in packages:
        if count >= size:
            found.append([])
            count = 0
        found[-1].append(package["name"])
        count += package["kept"]
    return found


def chunk_graphs(
    corpus: str, names: list[str], epoch: int, encoder: dict, work: Path | None
):
    """Graphs of the functions of packages, in a process of its own.

    The bugs are hard for the model that was last saved in `work`, if there is one.
    """
    encode = preprocessing.FunctionEncoder.from_config(encoder)
    judge = None
    saved = last_saved(work) if work else None
    if saved:
        task = keras.saving.load_model(saved, compile=False)
        judge = functools.partial(task.rewrite_probabilities, verbose=0)
    functions = read_corpus(corpus, "train", names)
    samples = bug_samples(functions, epoch=epoch, judge=judge, **LIMITS)
    graphs = [encode(f) for f in samples]
    return FlatGraphs.from_graphs(graphs)


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
    encoder = preprocessing.FunctionEncoder()
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
    return models.BugLocalizer(backbone, preprocessor)


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


def compiled(task, options, steps: int, done: int = 0) -> models.BugLocalizer:
    """The task, to be trained from step `done` of `steps`."""
    warmup = min(1000, steps // 10 + 1)
    rate = training.WarmupDecay(options.rate, warmup, max(steps, warmup + 1))
    task.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0))
    task.optimizer.iterations.assign(done)
    return task


def train(options) -> None:
    keras.utils.set_random_seed(options.seed)
    work = options.out.with_name(options.out.name + ".progress")
    work.mkdir(parents=True, exist_ok=True)
    parts = chunks(options.corpus, options.chunk, options.seed)
    total = max(round(options.passes * len(parts)), 1)
    first_late = total - round(options.late * total)
    packages = corpus_packages(options.corpus, "train")
    samples = 2 * options.passes * sum(package["kept"] for package in packages)
    steps = max(int(samples / options.batch), 1)
    saved = last_saved(work)
    if saved:
        done = int(saved.stem.rpartition("-")[2])
        task = keras.saving.load_model(saved)
        print(f"resumed after chunk {done} of {total}")
    else:
        done = 0
        task = make_task(options, options.steps)
        if options.grow:
            grow(task, models.BugLocalizer.from_preset(options.grow))
        task = compiled(task, options, steps)
        print(f"{task.count_params():,} parameters, about {steps:,} steps")
    encoder = task.preprocessor.graph_layers[0].get_config()
    jobs = [
        (
            str(options.corpus),
            parts[k % len(parts)],
            k // len(parts),
            encoder,
            work if k >= first_late else None,
        )
        for k in range(done, total)
    ]
    ready = chunks_ahead(jobs, here=options.short)
    for number, graphs in enumerate(ready, done + 1):
        late = number > first_late and options.backbone == "ggnn"
        if late and task.backbone.num_steps < options.late_steps:
            step = int(task.optimizer.iterations)
            deeper = make_task(options, options.late_steps)
            deeper.set_weights(task.get_weights())
            task = compiled(deeper, options, steps, step)
            print(f"{options.late_steps} steps, hard bugs", flush=True)
        start = time.perf_counter()
        history = task.fit(graphs, epochs=1, verbose=0, seed=number).history
        seconds = time.perf_counter() - start
        figures = ", ".join(f"{k} {v[0]:.4f}" for k, v in history.items())
        speed = 1000 * seconds / len(graphs)
        print(f"chunk {number}/{total}: {figures}, {speed:.1f} ms a graph", flush=True)
        if number % options.every == 0 or number == total:
            # Under its name only when it is whole; the other process may read the last.
            task.save(work / "new.keras")
            (work / "new.keras").replace(work / f"chunk-{number:06d}.keras")
            for old in sorted(work.glob("chunk-*.keras"))[:-2]:
                old.unlink()
            show("valid", score(task, options.corpus, "valid", options.valid))
    task.save_to_preset(options.out, weights="float16")
    show("test", score(task, options.corpus, "test", options.valid))
    print(f"model saved to {options.out}")


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
