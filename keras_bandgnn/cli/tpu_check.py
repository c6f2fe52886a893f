"""Compiles a preset's training step for TPUs, on any machine.

Says whether the step fits a core's memory, how much it computes and what the cores send
to each other. It says nothing about speed. The exit code is 1 if a program does not
fit. Needs pip install "keras-bandgnn[tpu]".
"""

import argparse
import dataclasses
import datetime
from pathlib import Path

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("preset", help="name or folder of a preset")
    parser.add_argument(
        "--topology",
        action="append",
        metavar="NAME",
        help="TPU slice, such as v2:16x16, v4:2x2x1 or v5e:4x4; may be given several "
        "times (default: v5e:2x2)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    group = parser.add_argument_group("sizes of a supergraph, one per core")
    group.add_argument(
        "--nodes", type=shared.positive, help="of the preset's batcher, or 8192"
    )
    group.add_argument(
        "--edges", type=shared.positive, help="of the batcher, or 3.72 per node"
    )
    group.add_argument(
        "--graphs", type=shared.positive, help="of the batcher, or its batch size"
    )
    group.add_argument(
        "--candidates", type=shared.positive, help="of the batcher, or 16"
    )
    group = parser.add_argument_group("program")
    group.add_argument(
        "--plan",
        help="key of a primitive, such as banded:128 or segment; the preset's plan if "
        "omitted, and blocks where that is auto",
    )
    group.add_argument(
        "--block-size", type=shared.positive, default=128, help="S of the blocks"
    )
    group.add_argument(
        "--rest",
        choices=("drop", "segment", "grouped"),
        default="grouped",
        help="who carries the edges that the primitive does not",
    )
    group.add_argument(
        "--precision",
        choices=("float32", "mixed_bfloat16"),
        help="the preset's if omitted",
    )
    group.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd")
    group.add_argument(
        "--remat",
        action=argparse.BooleanOptionalAction,
        help="whether steps are computed again for the gradient; as the preset says "
        "if omitted",
    )


def make_plan(options: argparse.Namespace, preset_plan):
    """The plan that the options and the preset name."""
    from keras_bandgnn.primitives import Plan

    if options.plan is None and isinstance(preset_plan, Plan):
        return preset_plan
    key = options.plan or f"banded:{options.block_size}"
    alone = Plan.from_config({"primitives": [key], "drop_rest": True})
    (primitive,) = alone.primitives
    if primitive.covers_all:
        return Plan(rest=primitive)
    return alone if options.rest == "drop" else Plan(primitive, rest=options.rest)


def make_task(options: argparse.Namespace):
    """The task of the preset, with new weights and the wanted precision."""
    from keras_bandgnn.models import NodeSelector

    task = NodeSelector.from_preset(options.preset, load_weights=False)
    config = task.backbone.get_config()
    if options.precision is not None:
        config["dtype"] = options.precision
    if options.remat is not None:
        if "remat" not in config:
            raise ValueError(
                f"Expected a backbone with the option remat. Received: "
                f"{type(task.backbone).__name__}. Leave --remat out."
            )
        config["remat"] = options.remat
    backbone = type(task.backbone).from_config(config)
    task = NodeSelector(backbone, task.preprocessor, **task.head_config())
    task.compile(options.optimizer)
    return task


def make_sizes(options: argparse.Namespace, preprocessor):
    """The capacities that the options and the preset's batcher name."""
    from keras_bandgnn.training.tpu_check_batch import EDGES_PER_NODE, Sizes

    budget, batch_size = {}, 32
    if preprocessor is not None:
        budget, batch_size = (
            preprocessor.batcher.budget,
            preprocessor.batcher.batch_size,
        )
    nodes = options.nodes or budget.get("node", 8192)
    return Sizes(
        nodes=nodes,
        edges=options.edges or budget.get("edge", round(EDGES_PER_NODE * nodes)),
        graphs=options.graphs or budget.get("graph", batch_size) - 1,
        candidates=options.candidates or budget.get("candidate", 16),
    )


def show(checked: list, plan, sizes) -> None:
    """Prints the reports as two tables."""
    program, memory = [], []
    for step in checked:
        flops, sent = "", "does not compile"
        if step.costs is not None:
            flops = step.costs.flops / 1e12
            sent = ", ".join(
                f"{c.count} {kind} ({c.bytes / 1e6:.3g} MB)"
                for kind, c in step.costs.collectives.items()
            )
            if step.costs.unknown_loops:
                sent += f"; {step.costs.unknown_loops} loops counted once"
        program.append(
            [step.topology, step.cores, flops, sent or "none", step.compile_seconds]
        )
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
    for step in checked:
        if step.error is not None:
            report.say(f"{step.topology}: {step.error}")


def write(path: Path, options: argparse.Namespace, checked, plan, sizes) -> None:
    """Writes the figures and what they depend on."""
    import importlib.metadata

    from keras_bandgnn.data.files import atomic_write, json_text

    packages = ("jax", "keras", "keras-bandgnn", "libtpu")
    facts = {
        "date": datetime.date.today().isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "preset": options.preset,
        "plan": plan.get_config(),
        "sizes": dataclasses.asdict(sizes),
        "precision": options.precision,
        "optimizer": options.optimizer,
        "remat": options.remat,
        "steps": [dataclasses.asdict(step) for step in checked],
    }
    with atomic_write(path) as file:
        file.write(json_text("the figures", facts, indent=2).encode())


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    from keras_bandgnn.training.tpu_check import check_training_step, topology_devices

    topologies = options.topology or ["v5e:2x2"]
    for name in topologies:
        topology_devices(name)
    task = make_task(options)
    plan = make_plan(options, getattr(task.preprocessor, "plan", None))
    sizes = make_sizes(options, task.preprocessor)
    checked = []
    for name in topologies:
        report.say(f"compiling for {name}")
        checked.append(check_training_step(task, plan, sizes, name))
    show(checked, plan, sizes)
    if options.json is not None:
        write(options.json, options, checked, plan, sizes)
    return 0 if all(step.fits for step in checked) else 1
