"""Compiles a preset's training step ahead of time for TPU topologies; no TPU needed.

Reports whether the step fits a core's memory, its operations and its collectives. It
does not predict speed. The exit code is 1 if a program does not fit. Needs
pip install "keras-bandgnn[tpu]".
"""

import argparse
import dataclasses

from keras_bandgnn.cli import report, tpu_options

_MEMORY = ("arguments", "temporaries", "outputs", "total")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("preset", help="name or folder of a preset")
    parser.add_argument(
        "--topology",
        action="append",
        metavar="NAME",
        help="TPU slice, such as v2:16x16, v4:2x2x1 or v5e:4x4; repeatable (default: "
        "v5e:2x2)",
    )
    tpu_options.add_program(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from keras_bandgnn.tpu.aot_compile import check_training_step, topology_devices

    topologies = options.topology or ["v5e:2x2"]
    for name in topologies:
        topology_devices(name)
    task, plan, sizes = tpu_options.make_program(options)
    steps = []
    for name in topologies:
        report.say(f"compiling for {name}")
        steps.append(check_training_step(task, plan, sizes, name))
    report.table(
        f"one training step: {plan}, {sizes.nodes} nodes and {sizes.edges} edges per "
        "supergraph",
        ["topology", "cores", "TFLOP per core", "collectives", "compiled in s"],
        [[s.topology, s.cores, *tpu_options.program_cells(s)] for s in steps],
    )
    rows = [
        [s.topology, *(s.memory.get(part, "") for part in _MEMORY), s.available]
        + ["yes" if s.fits else "no"]
        for s in steps
    ]
    columns = ["topology", *_MEMORY, "available", "fits"]
    report.table("memory of a core, GiB", columns, rows)
    figures = {"steps": [dataclasses.asdict(step) for step in steps]}
    return tpu_options.finish(options, steps, plan, sizes, figures)
