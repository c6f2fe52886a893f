"""Shared options and output files of the commands that compile for TPUs."""

import argparse
import dataclasses
import datetime
from collections.abc import Mapping

from keras_bandgnn.cli import options as shared


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add the options of the supergraphs and of the program."""
    group = parser.add_argument_group("sizes of a supergraph, one per core")
    group.add_argument(
        "--nodes",
        type=shared.positive,
        help="if omitted, from the preset's batcher, or 8192",
    )
    group.add_argument(
        "--edges",
        type=shared.positive,
        help="if omitted, from the preset's batcher, or 3.72 per node",
    )
    group.add_argument(
        "--graphs",
        type=shared.positive,
        help="if omitted, from the preset's batcher, or its batch size",
    )
    group.add_argument(
        "--candidates",
        type=shared.positive,
        help="if omitted, from the preset's batcher, or 16",
    )
    group = parser.add_argument_group("program")
    group.add_argument(
        "--plan",
        help="key of a primitive, such as banded:128 or segment; if omitted, the "
        "preset's plan, or banded if that is auto",
    )
    group.add_argument(
        "--block-size",
        type=shared.positive,
        help="S of the banded plan; if omitted, that of the preset's node ordering",
    )
    group.add_argument(
        "--rest",
        choices=("drop", "segment", "grouped"),
        default="grouped",
        help="how edges that the primitive does not cover are processed",
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
        help="gradient checkpointing (rematerialisation); the preset's setting if "
        "omitted",
    )


def make_program(options: argparse.Namespace) -> tuple:
    """Return the task, the plan and the sizes that the options name."""
    task = _make_task(options)
    plan = _make_plan(options, task.preprocessor)
    return task, plan, _make_sizes(options, task.preprocessor)


def _make_plan(options: argparse.Namespace, preprocessor):
    """Return the plan from the options or the preset's preprocessor."""
    from keras_bandgnn.preprocessing.ordering.rcmk_compile import block_size_of
    from keras_bandgnn.primitives import Banded, Plan
    from keras_bandgnn.primitives.base import primitive_of

    if options.plan is not None:
        primitive = primitive_of(options.plan, "--plan")
    elif options.block_size is not None:
        primitive = Banded(options.block_size)
    elif preprocessor is not None and isinstance(preprocessor.plan, Plan):
        return preprocessor.plan
    else:
        layers = () if preprocessor is None else preprocessor.layers_config()
        primitive = Banded(block_size_of(None, layers))
    plan = Plan(primitive, rest="drop")
    if primitive.covers_all:
        return Plan(rest=primitive)
    return plan if options.rest == "drop" else Plan(primitive, rest=options.rest)


def _make_task(options: argparse.Namespace):
    """Return the preset's task with new weights and the requested precision."""
    from keras_bandgnn.models import NodeSelector

    task = NodeSelector.from_preset(options.preset, load_weights=False)
    config = task.backbone.get_config()
    if options.precision is not None:
        config["dtype"] = options.precision
    if options.remat is not None:
        if "remat" not in config:
            raise shared.OptionError(
                "Expected a backbone with the option remat. Received: "
                f"{type(task.backbone).__name__}. Leave --remat out."
            )
        config["remat"] = options.remat
    backbone = type(task.backbone).from_config(config)
    task = NodeSelector(backbone, task.preprocessor, **task.head_config())
    task.compile(options.optimizer)
    return task


def _make_sizes(options: argparse.Namespace, preprocessor):
    """Return the capacities from the options or the preset's batcher."""
    from keras_bandgnn.tpu.aot_compile import EDGES_PER_NODE, Sizes

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


def describe_collectives(costs) -> str:
    """Describe the collectives of a step and the bytes that a core sends."""
    parts = (
        f"{collective.count} {kind} ({collective.bytes / 1e6:.3g} MB)"
        for kind, collective in costs.collectives.items()
    )
    text = ", ".join(parts) or "none"
    if costs.unknown_loops:
        text += f"; {costs.unknown_loops} loops counted once"
    return text


def write_figures(options: argparse.Namespace, plan, sizes, figures: Mapping) -> None:
    """Write the figures and their settings to `options.json`."""
    import importlib.metadata

    from keras_bandgnn.data.files import atomic_write, json_text

    packages = ("jax", "keras", "keras-bandgnn", "libtpu")
    contents = {
        "date": datetime.date.today().isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "preset": options.preset,
        "plan": plan.get_config(),
        "sizes": dataclasses.asdict(sizes),
        "precision": options.precision,
        "optimizer": options.optimizer,
        "remat": options.remat,
        **figures,
    }
    with atomic_write(options.json) as file:
        file.write(json_text("the figures", contents, indent=2).encode())
