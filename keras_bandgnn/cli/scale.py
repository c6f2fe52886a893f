"""Predicts training speed on many TPU cores, on any machine.

Compiles the training step ahead of time for slices of 8, 32, 128 and 512 cores and
prints the compiler's figures per core and step: memory, operations, communication. From
these and from published rates it predicts steps and graphs per second, and compares
them with the measurements of Balog et al. 2019. Nothing is run. The exit code is 1 if a
program does not fit. Needs pip install "keras-bandgnn[tpu]".
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report, tpu_options

# Output of `bandgnn scale`.


def print_tables(steps: Sequence, forecasts: Sequence, plan, sizes) -> None:
    """Print the compiled and the predicted figures.

    Args:
        steps: A `StepReport` per slice.
        forecasts: A `ScaleForecast` per slice; None where the step does not compile.
        plan: The plan.
        sizes: Capacities of a supergraph.
    """
    report.say(
        f"supergraph of each core: {sizes.nodes:,} nodes, {sizes.edges:,} edges, "
        f"{sizes.graphs} graphs; {plan}"
    )
    report.table(
        "compiled: a training step on one core, according to the TPU compiler",
        ["topology", "cores"]
        + [f"compiled\n{name}" for name in ("GiB", "of GiB", "TFLOP", "sent", "in s")],
        [_compiled(step) for step in steps],
    )
    columns = ["topology", "cores"]
    names = ("products, s", "cost model, s", "sending, ms", "steps/s", "graphs/s")
    columns += [f"predicted\n{name}" for name in names]
    rows = [
        [step.topology, step.cores, *_predicted(forecast)]
        for step, forecast in zip(steps, forecasts, strict=True)
    ]
    paper_speeds = _measured(plan, sizes)
    if paper_speeds:
        columns += ["paper, v2\nsteps/s", "paper, v2\ngraphs/s"]
        rows = [[*row, *paper_speeds.get(row[1], ("", ""))] for row in rows]
    report.table("predicted: nothing was run", columns, rows)
    for step in steps:
        if step.error is not None:
            report.say(f"{step.topology}: {step.error}")


def _compiled(step) -> list:
    flops, collectives = "", "does not compile"
    if step.costs is not None:
        flops = step.costs.flops / 1e12
        collectives = tpu_options.describe_collectives(step.costs)
    memory = [step.memory.get("total", ""), step.available]
    program = [flops, collectives, step.compile_seconds]
    return [step.topology, step.cores, *memory, *program]


def _predicted(forecast) -> list:
    if forecast is None:
        return [""] * 5
    model_seconds = forecast.model_seconds
    return [
        forecast.product_seconds,
        "" if model_seconds is None else model_seconds,
        1e3 * forecast.sending_seconds,
        forecast.steps_per_second,
        round(forecast.graphs_per_second),
    ]


def _measured(plan, sizes) -> dict[int, tuple[float, int]]:
    """Return cores -> the paper's speeds, if supergraphs and plan are the paper's."""
    from keras_bandgnn.primitives import Banded
    from keras_bandgnn.tpu import scaling

    first = plan.primitives[0]
    if plan.rest is not None or not isinstance(first, Banded):
        return {}
    size = first.block_size
    if scaling.SUPERGRAPHS.get(size) != (sizes.nodes, sizes.graphs):
        return {}
    speeds = zip(
        scaling.STEPS_PER_SECOND[size], scaling.GRAPHS_PER_SECOND[size], strict=True
    )
    return dict(zip(scaling.CORES, speeds, strict=True))


def print_paper() -> None:
    """Print the figures of Balog et al. 2019."""
    from keras_bandgnn.tpu import scaling

    columns = ["S", "nodes", "graphs"]
    for unit in ("steps/s", "graphs/s"):
        columns += [f"{unit}\n{cores} cores" for cores in scaling.CORES]
    rows = [
        [
            size,
            *scaling.SUPERGRAPHS[size],
            *scaling.STEPS_PER_SECOND[size],
            *scaling.GRAPHS_PER_SECOND[size],
        ]
        for size in sorted(scaling.SUPERGRAPHS)
    ]
    report.table(
        "paper: measured by Balog et al. 2019 on TPU v2 (Tables 1 and 2, Figure 2)",
        columns,
        rows,
    )


def print_assumptions(
    topology: str, share: float, hardware, model_seconds: float | None
) -> None:
    """Print the assumptions of the prediction."""
    from keras_bandgnn.tpu.generations import TPUGeneration

    generation = TPUGeneration.of(topology)
    peak = f"{generation.flops / 1e12:g} TFLOP/s"
    report.say(
        f"products: compiled FLOPs at {100 * share:g} % (a guess: --share) of the "
        f"published peak of a {generation.name} core, {peak}"
    )
    if model_seconds is None:
        report.say("cost model: not available for this backbone or this plan")
    elif hardware.date:
        report.say(
            f"cost model: constants measured on {hardware.date}, {hardware.name}; "
            "compute time is that of the cost model"
        )
    else:
        report.say(
            "cost model: default TPU constants, which are guesses and the same for all "
            "generations; compute time is the longer of both estimates"
        )
    report.say(
        f"communication: after compute, on one ring of {generation.link / 1e9:g} GB/s "
        "links (published) without latency; host work is not included"
    )
    report.say("measured: nothing here; the paper measured a different program")


def figures(
    steps: Sequence, forecasts: Sequence, share: float, hardware
) -> dict[str, object]:
    """Return the figures for a file, with compiled and predicted ones separated."""
    from keras_bandgnn.tpu import scaling
    from keras_bandgnn.tpu.generations import TPUGeneration

    return {
        "compiled": [dataclasses.asdict(step) for step in steps],
        "predicted": [_forecast(*pair) for pair in zip(steps, forecasts, strict=True)],
        "assumed": {
            "share": share,
            "generation": dataclasses.asdict(TPUGeneration.of(steps[0].topology)),
            "hardware": hardware.to_dict(),
        },
        "paper": {
            "cores": scaling.CORES,
            "supergraphs": scaling.SUPERGRAPHS,
            "steps_per_second": scaling.STEPS_PER_SECOND,
            "graphs_per_second": scaling.GRAPHS_PER_SECOND,
        },
    }


def _forecast(step, forecast) -> dict[str, object]:
    entry: dict[str, object] = {"topology": step.topology, "cores": step.cores}
    if forecast is not None:
        entry |= dataclasses.asdict(forecast)
        for name in ("computing_seconds", "steps_per_second", "graphs_per_second"):
            entry[name] = getattr(forecast, name)
    return entry


_CORES = (8, 32, 128, 512)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "preset", nargs="?", default="ggnn_varmisuse", help="name or folder of a preset"
    )
    parser.add_argument(
        "--topology",
        default="v2",
        metavar="NAME",
        help="TPU generation, such as v2 or v5e, or a slice to compile as well, such "
        "as v5e:16x16",
    )
    parser.add_argument(
        "--cores",
        type=shared.positive,
        nargs="+",
        metavar="N",
        help="slice sizes (default: 8 32 128 512, as far as the generation has them)",
    )
    parser.add_argument(
        "--json", type=shared.written_file, metavar="FILE", help="write the figures"
    )
    group = parser.add_argument_group("prediction")
    group.add_argument(
        "--share",
        type=_share,
        default=0.5,
        help="share of the published peak that matrix products reach (a guess)",
    )
    group.add_argument(
        "--hardware",
        type=shared.path,
        metavar="FILE",
        help="cost model constants that bandgnn calibrate wrote on such a TPU; if "
        "omitted, default constants, which are guesses",
    )
    tpu_options.add_program(parser)


def _share(text: str) -> float:
    value = shared.above_zero(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"must be at most 1, is {text}")
    return value


def make_topologies(topology: str, cores: list[int] | None) -> list[str]:
    """Return the slices to compile for, in order of size.

    Args:
        topology: A generation, or one of the slices.
        cores: Slice sizes; if None, the default ones that the generation has.
    """
    from keras_bandgnn.tpu.generations import TPUGeneration

    generation = TPUGeneration.of(topology)
    if cores is None:
        cores = [count for count in _CORES if generation.forms(count)]
    slices = {count: generation.topology(count) for count in cores}
    if ":" in topology:
        slices[generation.cores_of(topology)] = topology
    return [slices[count] for count in sorted(slices)]


def load_hardware(path: Path | None, dtype: str):
    """Load cost model constants from a file, or return the TPU defaults."""
    import json

    from keras_bandgnn.planning.cost import Hardware, bytes_of

    if path is None:
        return Hardware.default("jax", "tpu", dtype)
    hardware = Hardware.from_dict(json.loads(path.read_text()))
    if hardware.itemsize != bytes_of(dtype):
        raise ValueError(
            f"Expected constants for {dtype}. Received: --hardware {path}, of "
            f"{hardware.name!r}. Use those of `bandgnn calibrate --dtype {dtype}`."
        )
    return hardware


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from keras_bandgnn.tpu import aot_compile, scaling

    topologies = make_topologies(options.topology, options.cores)
    for name in topologies:
        aot_compile.topology_devices(name)
    task, plan, sizes = tpu_options.make_program(options)
    hardware = load_hardware(options.hardware, task.backbone.compute_dtype)
    model_seconds = scaling.step_seconds(task, plan, sizes, hardware)
    steps, forecasts = [], []
    for number, name in enumerate(topologies, 1):
        report.say(f"compiling for {name}, {number} of {len(topologies)}")
        step = aot_compile.check_training_step(task, plan, sizes, name)
        report.say(f"  {step.compile_seconds:.0f} s")
        steps.append(step)
        forecasts.append(
            scaling.ScaleForecast.of(
                step, sizes.graphs, options.share, model_seconds, bool(hardware.date)
            )
        )
    print_tables(steps, forecasts, plan, sizes)
    print_paper()
    print_assumptions(steps[0].topology, options.share, hardware, model_seconds)
    if options.json is not None:
        contents = figures(steps, forecasts, options.share, hardware)
        tpu_options.write_figures(options, plan, sizes, contents)
    return 0 if all(step.fits for step in steps) else 1
