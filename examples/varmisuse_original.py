"""The variable-misuse files of Allamanis et al. 2018: three seeds, with intervals.

PATH holds the folders graphs-train, graphs-valid and graphs-test, or folders of
projects that hold them, each with files `.json`, `.jsonl` or the same with `.gz`.

    python examples/varmisuse_original.py --data PATH --work FOLDER
    python examples/varmisuse_original.py --short

FOLDER receives the compiled graphs, so that a second run starts at once. With --short
the script writes a tiny data set of the same format, made of Python source, and trains
two seeds. Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import sysconfig
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
from scipy.stats import t

from keras_bandgnn import models, preprocessing, training
from keras_bandgnn.data import open_store
from keras_bandgnn.preprocessing import compile_programs
from keras_bandgnn.programs import find_programs, program_graphs, write_varmisuse
from keras_bandgnn.training import accuracy_interval, trivial_scores

SPLITS = ("train", "valid", "test")
SMALL = {
    "train": ("json/decoder.py", "heapq.py", "shlex.py", "textwrap.py", "queue.py"),
    "valid": ("fnmatch.py",),
    "test": ("bisect.py", "json/scanner.py"),
}


def write_small(folder: Path) -> None:
    """Write a data set of a few modules of this Python in the original format."""
    library = Path(sysconfig.get_path("stdlib"))
    for split, names in SMALL.items():
        (folder / f"graphs-{split}").mkdir(parents=True)
        programs = [
            program
            for name in names
            for program in program_graphs(
                (library / name).read_bytes(), name, max_instances=6, steps=1
            )
        ]
        path = folder / f"graphs-{split}" / "chunk_0-0.jsonl.gz"
        write_varmisuse(path, programs, correct_first=True)


def open_splits(data: Path, work: Path, preprocessor, processes: int | None) -> dict:
    """Stores of compiled graphs by split, made where they are missing."""
    kind, files = find_programs(data)
    missing = [split for split in SPLITS if split not in files]
    if kind != "varmisuse" or missing:
        raise SystemExit(f"{data}: expected graphs-train, graphs-valid and graphs-test")
    stores = {}
    for split in SPLITS:
        if (work / split).is_dir():
            stores[split] = open_store(work / split)
        else:
            stores[split] = compile_programs(
                kind, files[split], work / split, preprocessor, processes=processes
            )
    return stores


def make_task(options: argparse.Namespace, preprocessor) -> models.NodeSelector:
    """A new model with random weights."""
    backbone = models.GGNNBackbone(
        {"type": {"ids": 512}, "subtoken": {"ids": 16384}},
        hidden_dim=options.hidden,
        num_steps=options.steps,
        num_edge_types=22,
        dropout=options.dropout,
    )
    return models.NodeSelector(backbone, preprocessor, readout=options.readout)


def chosen(store, count: int | None, seed: int):
    """`count` graphs of a store, others for each seed; all of them for None."""
    if count is None or count >= len(store):
        return store
    drawn = np.random.default_rng(seed).permutation(len(store))[:count]
    return store.take(np.sort(drawn))


def run(options: argparse.Namespace, data: Path, work: Path) -> None:
    """Train once per seed and print the accuracies on the test split."""
    preprocessor = preprocessing.GraphPreprocessor(
        [
            preprocessing.ProgramEncoder("subtoken", language="csharp"),
            preprocessing.ReachabilityFilter(options.steps),
            preprocessing.RCMKCompile(block_size=128),
        ],
        preprocessing.DynamicBatcher(budget={"node": options.batch_nodes}),
    )
    processes = 1 if options.short else None
    stores = open_splits(data, work, preprocessor, processes)
    print({split: len(store) for split, store in stores.items()}, "graphs")
    test = stores["test"]
    guesses = {k: v.mean() for k, v in trivial_scores(list(test)).items()}
    print("guesses:", ", ".join(f"{k} {v:.3f}" for k, v in guesses.items()))

    means = []
    for seed in range(options.seeds):
        keras.utils.set_random_seed(seed)
        start = time.process_time()
        task = make_task(options, preprocessor)
        loader = task.loader(
            chosen(stores["train"], options.graphs, seed), shuffle=True, seed=seed
        )
        steps = options.epochs * len(loader)
        task.compile(training.make_optimizer("adam", 2e-3, decay_steps=steps))
        best = work / f"best-{seed}.weights.h5"
        keep = keras.callbacks.ModelCheckpoint(
            best,
            monitor="val_accuracy",
            mode="max",
            save_best_only=True,
            save_weights_only=True,
        )
        task.fit(
            loader,
            validation_data=chosen(stores["valid"], options.valid_graphs, 0),
            epochs=options.epochs,
            callbacks=[keep],
            verbose=2,
        )
        task.load_weights(best)
        logits = task.predict(test)
        right = np.array(
            [
                float(row.argmax() == graph.label)
                for row, graph in zip(logits, test, strict=True)
            ]
        )
        low, high = accuracy_interval(right)
        minutes = (time.process_time() - start) / 60
        print(
            f"seed {seed}: {right.mean():.3f} (95 %: {low:.3f} to {high:.3f}), "
            f"{minutes:.1f} min of processor time"
        )
        means.append(right.mean())
    if len(means) == 1:
        return
    # Student's t: how the seeds scatter.
    half = t.ppf(0.975, len(means) - 1) * np.std(means, ddof=1) / np.sqrt(len(means))
    print(f"mean of the seeds: {np.mean(means):.3f} +- {half:.3f} (95 %)")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with the original files")
    parser.add_argument("--work", type=Path, help="folder for the compiled graphs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--graphs", type=int, help="training graphs; all if omitted")
    parser.add_argument(
        "--valid-graphs", type=int, help="graphs for choosing an epoch; all if omitted"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch-nodes", type=int, default=8192)
    parser.add_argument("--readout", choices=("slot", "candidate"), default="slot")
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    if options.data is None and not options.short:
        parser.error("pass --data PATH, or --short")
    if options.short:
        options.epochs, options.hidden, options.steps = 1, 16, 1
        options.batch_nodes, options.seeds = 1024, 2
    with tempfile.TemporaryDirectory() as folder:
        data, work = options.data, options.work or Path(folder) / "stores"
        if data is None:
            data = Path(folder) / "data"
            write_small(data)
        run(options, data, work)


if __name__ == "__main__":
    main()
