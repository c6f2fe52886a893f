"""From a folder of Python source to a list of suspicious variable usages.

Every read of a local variable becomes a question: which of the variables in scope is
used here? The model is trained on most of the files. In the held-out files it lists the
usages where it prefers another variable.

    python examples/program_graphs.py path/to/code --save model
    python examples/program_graphs.py --short

Without a folder it reads the `email` package of this Python. The commands
`bandgnn compile`, `train`, `evaluate` and `predict` do the same for large sources,
with several processes and on disk. Choose the backend with KERAS_BACKEND=jax, torch or
tensorflow.
"""

import argparse
import sysconfig
from pathlib import Path

import keras
import numpy as np

from keras_bandgnn import models, preprocessing, training
from keras_bandgnn.programs import read_tree
from keras_bandgnn.training import (
    accuracy_interval,
    suspicious,
    trivial_scores,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("source", type=Path, nargs="?", help="folder of Python files")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--instances", type=int, default=50, help="usages per file")
    parser.add_argument("--top", type=int, default=10, help="usages to list")
    parser.add_argument("--save", type=Path, help="folder for the model")
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    package = "json" if options.short else "email"
    source = options.source or Path(sysconfig.get_path("stdlib")) / package
    if options.short:
        options.epochs, options.hidden, options.steps = 2, 16, 1
        options.instances = 4
    keras.utils.set_random_seed(0)

    # Graphs that share a file share names and code: split by file, never by usage.
    train, test = [], []
    files = read_tree(
        source,
        max_instances=options.instances,
        steps=options.steps,
        processes=1 if options.short else None,
    )
    for number, (_, programs) in enumerate(files):
        (test if number % 5 == 4 else train).extend(programs)
    if not train or not test:
        raise SystemExit(f"{source}: too few files with local variables")

    preprocessor = preprocessing.GraphPreprocessor(
        [
            preprocessing.ProgramEncoder("subtoken", language="python"),
            preprocessing.ReachabilityFilter(options.steps),
            preprocessing.RCMKCompile(block_size=128),
        ],
        preprocessing.DynamicBatcher(budget={"node": 4096}),
    )
    train_set, test_set = map(preprocessor.transform, (train, test))
    print(f"{len(train_set)} usages to train on, {len(test_set)} held out")

    backbone = models.GGNNBackbone(
        {"type": {"ids": 512}, "subtoken": {"ids": 16384}},
        hidden_dim=options.hidden,
        num_steps=options.steps,
        num_edge_types=22,
        dropout=0.1,
    )
    task = models.NodeSelector(backbone, preprocessor, readout="slot")
    # The graphs are compiled already and only need batching.
    loader = preprocessing.GraphLoader(
        train_set, preprocessor.batcher, num_edge_types=22
    )
    rate, steps = 3e-3, options.epochs * len(loader)
    task.compile(training.make_optimizer("adam", rate, decay_steps=steps))
    task.fit(loader, epochs=options.epochs, verbose=2)

    held_out = preprocessing.GraphLoader(
        test_set, preprocessor.batcher, shuffle=False, num_edge_types=22
    )
    logits = task.predict(held_out)
    graphs = list(test_set)
    scores = trivial_scores(graphs)
    scores["model"] = np.array(
        [
            float(row.argmax() == graph.label)
            for row, graph in zip(logits, graphs, strict=True)
        ]
    )
    for name, right in scores.items():
        low, high = accuracy_interval(right)
        print(f"{name:>9}: {right.mean():.3f} (95 %: {low:.3f} to {high:.3f})")
    for item in suspicious(graphs, logits, options.top):
        print(
            f"{item.filename}:{item.line}: {item.used} ({item.share_used:.2f}), "
            f"rather {item.suggested} ({item.share_suggested:.2f})"
        )
    if options.save is not None:
        task.save_to_preset(options.save)
        print(f"try: bandgnn predict {options.save} YOUR_FILE.py")


if __name__ == "__main__":
    main()
