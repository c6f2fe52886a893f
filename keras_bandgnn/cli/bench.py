"""Measures what the library does, one subject at a time, in alternated runs."""

import argparse

from keras_bandgnn.cli import (
    bench_attention,
    bench_batching,
    bench_geometry,
    bench_host,
    bench_propagate,
    bench_train,
    options,
)

_SUBJECTS = {
    "host": (bench_host, "reading, compiling and packing program graphs"),
    "propagate": (bench_propagate, "message passing under every plan"),
    "train": (bench_train, "graphs per second of training, plan by plan"),
    "batching": (bench_batching, "padding, assembly and feeding of batches"),
    "geometry": (bench_geometry, "a training step of SchNet and PaiNN, beside peers"),
    "attention": (bench_attention, "attention along edges, beside peers"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subjects and their options."""
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    for name, (module, summary) in _SUBJECTS.items():
        subject = subjects.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=parser.formatter_class,
        )
        options.add_common(subject, again=True)
        module.add_arguments(subject)


def run(given: argparse.Namespace) -> None:
    """Runs the command."""
    _SUBJECTS[given.subject][0].run(given)
