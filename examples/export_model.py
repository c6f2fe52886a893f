"""Exports a trained model to other runtimes, and compares outputs and speed.

A model learns from Python files which variable is used where, as in program_graphs.py.
It is then exported in every format that this backend supports and whose packages are
installed (pip install "keras-bandgnn[onnx,litert]"). Each file is loaded in its runtime
and run on held-out files.

    python examples/export_model.py path/to/code --to exported
    python examples/export_model.py --short

Without a folder of code it reads the `email` package of this Python. Choose the backend
with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import sysconfig
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import models, preprocessing
from keras_bandgnn.programs import read_tree

FORMATS = ("tf_saved_model", "onnx", "litert", "torch")


def read(options) -> tuple[list, list]:
    """Programs to learn from, and programs of other files."""
    package = "json" if options.short else "email"
    source = options.source or Path(sysconfig.get_path("stdlib")) / package
    files = read_tree(
        source, max_instances=options.instances, steps=options.steps, processes=1
    )
    train, test = [], []
    for number, (_, programs) in enumerate(files):
        (test if number % 5 == 4 else train).extend(programs)
    if not train or not test:
        raise SystemExit(f"{source}: too few files with local variables")
    return train, test


def make(options) -> models.NodeSelector:
    """A model that has not learnt yet."""
    layers = [
        preprocessing.ProgramEncoder("subtoken", language="python"),
        preprocessing.ReachabilityFilter(options.steps),
        preprocessing.RCMKCompile(block_size=128),
    ]
    backbone = models.GGNNBackbone(
        {"type": {"ids": 512}, "subtoken": {"ids": 16384}},
        hidden_dim=options.hidden,
        num_steps=options.steps,
        num_edge_types=22,
    )
    batcher = preprocessing.DynamicBatcher(budget={"node": options.nodes})
    preprocessor = preprocessing.GraphPreprocessor(layers, batcher)
    return models.NodeSelector(backbone, preprocessor, readout="slot")


def try_format(task, form: str, path: Path, programs: list) -> str:
    """Exports, loads and runs; returns a line about it."""
    try:
        # The largest graph of the sample determines the largest supported size.
        task.export(path, form, programs)
        exported = kb.serving.ExportedModel(path, trusted=True)
    except (ImportError, ValueError) as error:
        return f"{form:>15}: {error}"
    start = time.perf_counter()
    outputs = exported.predict(programs)
    seconds = time.perf_counter() - start
    expected = task.predict(programs)
    apart = max(np.abs(a - b).max() for a, b in zip(outputs, expected, strict=True))
    files = [f for f in path.rglob("*") if f.is_file() and f.name != "packing.json"]
    megabytes = sum(f.stat().st_size for f in files) / 1e6
    return (
        f"{form:>15}: {megabytes:.1f} MB, {1e3 * seconds / len(programs):.2f} ms per "
        f"graph with packing, at most {apart:.1e} from {keras.backend.backend()}"
    )


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("source", type=Path, nargs="?", help="folder of Python files")
    parser.add_argument("--to", type=Path, help="folder for the exported models")
    parser.add_argument("--formats", nargs="*", default=FORMATS, choices=FORMATS)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=4096, help="per supergraph")
    parser.add_argument("--instances", type=int, default=50, help="usages per file")
    parser.add_argument("--int8", action="store_true", help="weights of 8 bits")
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args(arguments)
    if options.short:
        options.epochs, options.hidden, options.steps = 1, 8, 1
        options.instances, options.nodes = 2, 512
        options.formats = ("torch",)
        if keras.backend.backend() != "torch":
            options.formats = ("tf_saved_model",)
    keras.utils.set_random_seed(0)

    train, test = read(options)
    task = make(options)
    task.fit(train, epochs=options.epochs, verbose=2)
    if options.int8:
        before = task.predict(test)
        task.quantize("int8")
        same = [
            a.argmax() == b.argmax()
            for a, b in zip(before, task.predict(test), strict=True)
        ]
        print(f"int8: the same choice for {np.mean(same):.1%} of the usages")
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.to or Path(scratch)
        for form in options.formats:
            print(try_format(task, form, folder / form, test), flush=True)


if __name__ == "__main__":
    main()
