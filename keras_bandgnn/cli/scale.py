"""Plans training on many TPU cores on paper, on any machine.

Compiles the training step for slices of 8, 32, 128 and 512 cores and says, per core and
step, what the compiler says: memory, operations, what is sent. From that and from
published rates it predicts steps and graphs per second, beside those that Balog et al.
2019 measured. Nothing is run. The exit code is 1 if a program does not fit. Needs
pip install "keras-bandgnn[tpu]".
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report, tpu_options

# What `bandgnn scale` prints and writes.


def show(steps: Sequence, forecasts: Sequence, plan, sizes) -> None:
    """Prints what is compiled and what is predicted.

    Args:
        steps: A `StepReport` per slice.
        forecasts: A `ScaleForecast` per slice; None where the step does not compile.
        plan: Who carries which edge.
        sizes: Capacities of a supergraph.
    """
    report.say(
        f"supergraph of each core: {sizes.nodes:,} nodes, {sizes.edges:,} edges, "
        f"{sizes.graphs} graphs; {plan}"
    )
    report.table(
        "compiled: a training step of one core, as the TPU compiler says",
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
    measured = _measured(plan, sizes)
    if measured:
        columns += ["paper, v2\nsteps/s", "paper, v2\ngraphs/s"]
        rows = [[*row, *measured.get(row[1], ("", ""))] for row in rows]
    report.table("predicted: nothing was run", columns, rows)
    for step in steps:
        if step.error is not None:
            report.say(f"{step.topology}: {step.error}")


def _compiled(step) -> list:
    flops, sent = "", "does not compile"
    if step.costs is not None:
        flops, sent = step.costs.flops / 1e12, tpu_options.sent(step.costs)
    memory = [step.memory.get("total", ""), step.available]
    return [step.topology, step.cores, *memory, flops, sent, step.compile_seconds]


def _predicted(forecast) -> list:
    if forecast is None:
        return [""] * 5
    modelled = forecast.model_seconds
    return [
        forecast.product_seconds,
        "" if modelled is None else modelled,
        1e3 * forecast.sending_seconds,
        forecast.steps_per_second,
        round(forecast.graphs_per_second),
    ]


def _measured(plan, sizes) -> dict[int, tuple[float, int]]:
    """Cores to the paper's speed, if supergraphs and plan are those of the paper."""
    from keras_bandgnn.primitives import Banded
    from keras_bandgnn.tpu import scaling as balog2019

    first = plan.primitives[0]
    if plan.rest is not None or not isinstance(first, Banded):
        return {}
    size = first.block_size
    if balog2019.SUPERGRAPHS.get(size) != (sizes.nodes, sizes.graphs):
        return {}
    speeds = zip(
        balog2019.STEPS_PER_SECOND[size], balog2019.GRAPHS_PER_SECOND[size], strict=True
    )
    return dict(zip(balog2019.CORES, speeds, strict=True))


def show_paper() -> None:
    """Prints the figures of Balog et al. 2019."""
    from keras_bandgnn.tpu import scaling as balog2019

    columns = ["S", "nodes", "graphs"]
    for unit in ("steps/s", "graphs/s"):
        columns += [f"{unit}\n{cores} cores" for cores in balog2019.CORES]
    rows = [
        [
            size,
            *balog2019.SUPERGRAPHS[size],
            *balog2019.STEPS_PER_SECOND[size],
            *balog2019.GRAPHS_PER_SECOND[size],
        ]
        for size in sorted(balog2019.SUPERGRAPHS)
    ]
    report.table(
        "paper: measured by Balog et al. 2019 on TPU v2 (Tables 1 and 2, Figure 2)",
        columns,
        rows,
    )


def show_basis(topology: str, share: float, hardware, modelled: float | None) -> None:
    """Prints what the prediction rests on."""
    from keras_bandgnn.tpu.generations import TPUGeneration

    generation = TPUGeneration.of(topology)
    peak = f"{generation.flops / 1e12:g} TFLOP/s"
    report.say(
        f"products: compiled FLOPs at {100 * share:g} % (a guess: --share) of the "
        f"published peak of a {generation.name} core, {peak}"
    )
    if modelled is None:
        report.say("cost model: does not know this backbone or this plan")
    elif hardware.date:
        report.say(
            f"cost model: constants measured on {hardware.date}, {hardware.name}; its "
            "time is that of computing"
        )
    else:
        report.say(
            "cost model: default constants of TPUs, which are guesses and the same for "
            "all generations; computing takes the longer of both times"
        )
    report.say(
        f"sending: after computing, on one ring of links of {generation.link / 1e9:g} "
        "GB/s (published) without latency; the hosts' work is left out"
    )
    report.say("measured: nothing here; what the paper measured is not this program")


def facts(
    steps: Sequence, forecasts: Sequence, share: float, hardware
) -> dict[str, object]:
    """The figures for a file, compiled and predicted apart."""
    from keras_bandgnn.tpu import scaling as balog2019
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
            "cores": balog2019.CORES,
            "supergraphs": balog2019.SUPERGRAPHS,
            "steps_per_second": balog2019.STEPS_PER_SECOND,
            "graphs_per_second": balog2019.GRAPHS_PER_SECOND,
        },
    }


def _forecast(step, forecast) -> dict[str, object]:
    found: dict[str, object] = {"topology": step.topology, "cores": step.cores}
    if forecast is not None:
        found |= dataclasses.asdict(forecast)
        for name in ("computing_seconds", "steps_per_second", "graphs_per_second"):
            found[name] = getattr(forecast, name)
    return found


_CORES = (8, 32, 128, 512)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "preset", nargs="?", default="ggnn_varmisuse", help="name or folder of a preset"
    )
    parser.add_argument(
        "--topology",
        default="v2",
        metavar="NAME",
        help="generation of TPUs, such as v2 or v5e, or a slice of one, such as "
        "v5e:16x16, which is compiled too",
    )
    parser.add_argument(
        "--cores",
        type=shared.positive,
        nargs="+",
        metavar="N",
        help="sizes of slices (default: those of 8 32 128 512 that there are)",
    )
    parser.add_argument(
        "--json", type=shared.written_file, metavar="FILE", help="write the figures"
    )
    group = parser.add_argument_group("prediction")
    group.add_argument(
        "--share",
        type=_share,
        default=0.5,
        help="of the published peak that products reach: a guess",
    )
    group.add_argument(
        "--hardware",
        type=shared.path,
        metavar="FILE",
        help="constants of the cost model that bandgnn calibrate wrote on such a TPU; "
        "default constants, which are guesses, if omitted",
    )
    tpu_options.add_program(parser)


def _share(text: str) -> float:
    value = shared.above_zero(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"must be at most 1, is {text}")
    return value


def make_topologies(topology: str, cores: list[int] | None) -> list[str]:
    """The slices to compile for, small ones first.

    Args:
        topology: A generation, or a slice that is one of them.
        cores: Sizes; the usual ones that the generation has if None.
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
    """Constants of the cost model: those of a file, or the default ones of TPUs."""
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
    """Runs the command."""
    from keras_bandgnn.tpu import aot_compile as tpu_check
    from keras_bandgnn.tpu import scaling

    topologies = make_topologies(options.topology, options.cores)
    for name in topologies:
        tpu_check.topology_devices(name)
    task, plan, sizes = tpu_options.make(options)
    hardware = load_hardware(options.hardware, task.backbone.compute_dtype)
    modelled = scaling.step_seconds(task, plan, sizes, hardware)
    steps, forecasts = [], []
    for number, name in enumerate(topologies, 1):
        report.say(f"compiling for {name}, {number} of {len(topologies)}")
        step = tpu_check.check_training_step(task, plan, sizes, name)
        report.say(f"  {step.compile_seconds:.0f} s")
        steps.append(step)
        forecasts.append(
            scaling.ScaleForecast.of(
                step, sizes.graphs, options.share, modelled, bool(hardware.date)
            )
        )
    show(steps, forecasts, plan, sizes)
    show_paper()
    show_basis(steps[0].topology, options.share, hardware, modelled)
    if options.json is not None:
        found = facts(steps, forecasts, options.share, hardware)
        tpu_options.write(options, plan, sizes, found)
    return 0 if all(step.fits for step in steps) else 1
