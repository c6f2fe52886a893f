"""Compiles a preset's training step ahead of time for TPU topologies; no TPU needed.

Reports whether the step fits a core's memory, its operations and its collectives. It
does not predict speed. The exit code is 1 if a program does not fit. Needs
pip install "keras-bandgnn[tpu]".
"""

import argparse
import dataclasses

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report, tpu_options


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
    parser.add_argument(
        "--json", type=shared.written_file, metavar="FILE", help="write the figures"
    )
    tpu_options.add_program(parser)


def print_reports(reports: list, plan, sizes) -> None:
    """Print the reports as two tables."""
    program, memory = [], []
    for step in reports:
        flops, collectives = "", "does not compile"
        if step.costs is not None:
            flops = step.costs.flops / 1e12
            collectives = tpu_options.describe_collectives(step.costs)
        figures = [flops, collectives, step.compile_seconds]
        program.append([step.topology, step.cores, *figures])
        parts = ("arguments", "temporaries", "outputs", "total")
        memory.append(
            [step.topology, *(step.memory.get(part, "") for part in parts)]
            + [step.available, "yes" if step.fits else "no"]
        )
    title = f"{plan}, {sizes.nodes} nodes and {sizes.edges} edges per supergraph"
    report.table(
        f"one training step: {title}",
        ["topology", "cores", "TFLOP per core", "collectives", "compiled in s"],
        program,
    )
    names = ["topology", "arguments", "temporaries", "outputs", "total", "available"]
    report.table("memory of a core, GiB", [*names, "fits"], memory)
    for step in reports:
        if step.error is not None:
            report.say(f"{step.topology}: {step.error}")


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from keras_bandgnn.tpu.aot_compile import check_training_step, topology_devices

    topologies = options.topology or ["v5e:2x2"]
    for name in topologies:
        topology_devices(name)
    task, plan, sizes = tpu_options.make_program(options)
    reports = []
    for name in topologies:
        report.say(f"compiling for {name}")
        reports.append(check_training_step(task, plan, sizes, name))
    print_reports(reports, plan, sizes)
    if options.json is not None:
        steps = [dataclasses.asdict(step) for step in reports]
        tpu_options.write_figures(options, plan, sizes, {"steps": steps})
    return 0 if all(step.fits for step in reports) else 1
