"""Benchmarks of the library, one subject at a time, with alternating runs.

python -m examples.benchmarks SUBJECT ...        from a checkout
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from examples.benchmarks import (
    accelerator,
    accuracy,
    attention,
    batching,
    bugs,
    compare,
    explain,
    geometry,
    growth,
    guard,
    host,
    kgcnn,
    large_graphs,
    latency,
    links_in_time,
    messages,
    models,
    node_sets,
    pooling,
    potentials,
    propagate,
    train,
)
from keras_bandgnn.cli import interrupts, options
from keras_bandgnn.cli.backend import choose_backend, without_tensorflow
from keras_bandgnn.progress import heartbeat

_SUBJECTS = {
    "host": (host, "reading, compiling and packing program graphs"),
    "propagate": (propagate, "message passing under every plan"),
    "train": (train, "graphs per second of training, plan by plan"),
    "batching": (batching, "padding, assembly and feeding of batches"),
    "geometry": (geometry, "a training step of SchNet and PaiNN, against peers"),
    "potentials": (potentials, "errors of potentials, molecular dynamics, relaxation"),
    "growth": (growth, "how time and memory of a step grow with the nodes"),
    "attention": (attention, "attention along edges, against peers"),
    "messages": (messages, "a training step of message passing, against a peer"),
    "accelerator": (accelerator, "the claims for dense hardware, on a GPU or TPU"),
    "guard": (guard, "twelve ratios to a peer in ten minutes, for each change"),
    "latency": (latency, "predictions of one graph, and cold starts"),
    "models": (models, "training of every model, against peers"),
    "large_graphs": (large_graphs, "sampled training of GraphSAGE, against a peer"),
    "links_in_time": (links_in_time, "ranks of the next links, against plain torch"),
    "node_sets": (node_sets, "RGCN and HGT on several node sets, against a peer"),
    "pooling": (pooling, "classes of graphs with and without pooling, ten folds"),
    "kgcnn": (kgcnn, "an epoch and the accuracy of GCN, against kgcnn"),
    "accuracy": (accuracy, "scores of published protocols, beside those in print"),
    "explain": (explain, "explanations of predictions, against a peer"),
    "bugs": (bugs, "wrong variables found: planted, real and published ones"),
    "compare": (compare, "two files of figures, row by row"),
}
# What imports no backend.
_READERS = ("compare",)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all subjects."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.benchmarks", description=__doc__.partition("\n")[0]
    )
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    for name, (module, summary) in _SUBJECTS.items():
        subject = subjects.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        options.add_common(subject)
        module.add_arguments(subject)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a benchmark.

    Args:
        arguments: The command line without the program's name; `sys.argv` if omitted.

    Returns:
        Exit code: 0, 1 for an error in the data or the set-up, 130 after Ctrl-C, 143
        after SIGTERM.
    """
    return interrupts.run(_run, arguments)


def _run(arguments: Sequence[str] | None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parsed = parser().parse_args(arguments)
    parsed.line = shlex.join(["python", "-m", "examples.benchmarks", *arguments])
    kept = getattr(parsed, "results", None)
    again = "goes on after the last run" if kept else "starts over"
    interrupts.set_message(f"interrupted; the same command {again}")
    try:
        if parsed.subject not in _READERS:
            choose_backend(parsed.backend)
        with without_tensorflow(), heartbeat(parsed.subject):
            return int(_SUBJECTS[parsed.subject][0].run(parsed) or 0)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        if parsed.debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    # Workers import the package by its name.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])
    )
    sys.exit(main())
