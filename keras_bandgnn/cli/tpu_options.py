"""Shared options and output of the commands that compile for TPUs."""

import argparse
import dataclasses
import datetime
from collections.abc import Mapping, Sequence

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add the options of the supergraphs, of the program and of the output."""
    parser.add_argument(
        "--json", type=shared.written_file, metavar="FILE", help="write the figures"
    )
    group = parser.add_argument_group("supergraphs, one per core")
    for name, default in {"nodes": "8192", "graphs": "its batch size"}.items():
        help = f"if omitted, from the preset's batcher, or {default}"
        group.add_argument(f"--{name}", type=shared.positive, help=help)
    group = parser.add_argument_group("program")
    group.add_argument(
        "--plan",
        help="key of a primitive, such as banded:128 or segment; if omitted, the "
        "preset's plan, or banded if that is auto",
    )
    group.add_argument(
        "--rest",
        choices=("drop", "segment", "grouped"),
        default="grouped",
        help="how edges that the primitive does not cover are processed",
    )
    precisions = ("float32", "mixed_bfloat16")
    help = "the preset's if omitted"
    group.add_argument("--precision", choices=precisions, help=help)
    action = argparse.BooleanOptionalAction
    help = "gradient checkpointing (rematerialisation); the preset's if omitted"
    group.add_argument("--remat", action=action, help=help)


def make_program(options: argparse.Namespace) -> tuple:
    """Return the preset's task with new weights, the plan and the sizes."""
    from keras_bandgnn.models import NodeSelector
    from keras_bandgnn.tpu.aot_compile import EDGES_PER_NODE, Sizes

    task = NodeSelector.from_preset(options.preset, load_weights=False)
    preprocessor = task.preprocessor
    config = task.backbone.get_config()
    changes = {"dtype": options.precision, "remat": options.remat}
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes.keys() <= config.keys():
        raise shared.OptionError(
            "Expected a backbone with the option remat. Received: "
            f"{type(task.backbone).__name__}. Leave --remat out."
        )
    backbone = type(task.backbone).from_config(config | changes)
    task = NodeSelector(backbone, preprocessor, **task.head_config())
    task.compile("sgd")
    budget, graphs = {}, 32
    if preprocessor is not None:
        budget, graphs = preprocessor.batcher.budget, preprocessor.batcher.graphs
    nodes = options.nodes or budget.get("node", 8192)
    edges = round(EDGES_PER_NODE * nodes)
    if options.nodes is None:
        edges = budget.get("edge", edges)
    graphs = options.graphs or budget.get("graph", graphs + 1) - 1
    sizes = Sizes(nodes, edges, graphs, budget.get("candidate", 16))
    return task, make_plan(options, preprocessor), sizes


def make_plan(options: argparse.Namespace, preprocessor):
    """Return the plan from the options or the preset's preprocessor."""
    from keras_bandgnn.preprocessing.ordering.rcmk_compile import block_size_of
    from keras_bandgnn.primitives import Banded, Plan
    from keras_bandgnn.primitives.base import primitive_of

    if options.plan is not None:
        primitive = primitive_of(options.plan, "--plan")
    elif preprocessor is not None and isinstance(preprocessor.plan, Plan):
        return preprocessor.plan
    else:
        layers = () if preprocessor is None else preprocessor.layers_config()
        primitive = Banded(block_size_of(None, layers))
    if primitive.covers_all:
        return Plan(rest=primitive)
    return Plan(primitive, rest=options.rest)


def program_cells(step) -> list:
    """Return TFLOP, collectives and compile time of a `StepReport` for a table."""
    if step.costs is None:
        return ["", "does not compile", step.compile_seconds]
    collectives = ", ".join(
        f"{collective.count} {kind} ({collective.bytes / 1e6:.3g} MB)"
        for kind, collective in step.costs.collectives.items()
    )
    if step.costs.unknown_loops:
        collectives += f"; {step.costs.unknown_loops} loops counted once"
    return [step.costs.flops / 1e12, collectives or "none", step.compile_seconds]


def finish(
    options: argparse.Namespace, steps: Sequence, plan, sizes, figures: Mapping
) -> int:
    """Print errors, write figures and settings to `--json`; return the exit code."""
    import importlib.metadata

    from keras_bandgnn.data.files import write_json

    for step in steps:
        if step.error is not None:
            report.say(f"{step.topology}: {step.error}")
    if options.json is not None:
        packages = ("jax", "keras", "keras-bandgnn", "libtpu")
        settings = {
            "date": datetime.date.today().isoformat(),
            "versions": {name: importlib.metadata.version(name) for name in packages},
            "preset": options.preset,
            "plan": plan.get_config(),
            "sizes": dataclasses.asdict(sizes),
            "precision": options.precision,
            "remat": options.remat,
        }
        write_json(options.json, settings | dict(figures), indent=2)
    return 0 if all(step.fits for step in steps) else 1
