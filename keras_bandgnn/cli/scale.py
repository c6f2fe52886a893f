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

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report, tpu_options


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
    group = parser.add_argument_group("prediction")
    group.add_argument(
        "--share",
        type=_share,
        default=0.5,
        help="share of the published peak that matrix products reach (a guess)",
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
    from keras_bandgnn.tpu.scaling import CORES, TPUGeneration

    generation = TPUGeneration.of(topology)
    if cores is None:
        cores = [count for count in CORES if generation.forms(count)]
    slices = {count: generation.topology(count) for count in cores}
    if ":" in topology:
        slices[generation.cores_of(topology)] = topology
    return [slices[count] for count in sorted(slices)]


def print_tables(steps: Sequence, forecasts: Sequence, plan, sizes) -> None:
    """Print the compiled, the predicted and the measured figures."""
    from keras_bandgnn.tpu.scaling import CORES, PAPER, paper_speeds

    report.say(
        f"supergraph of each core: {sizes.nodes:,} nodes, {sizes.edges:,} edges, "
        f"{sizes.graphs} graphs; {plan}"
    )
    names = ("GiB", "of GiB", "TFLOP", "sent", "in s")
    memory = [[s.memory.get("total", ""), s.available] for s in steps]
    report.table(
        "compiled: a training step on one core, according to the TPU compiler",
        ["topology", "cores", *(f"compiled\n{name}" for name in names)],
        [
            [s.topology, s.cores, *pair, *tpu_options.program_cells(s)]
            for s, pair in zip(steps, memory, strict=True)
        ],
    )
    names = ("computing, s", "sending, ms", "steps/s", "graphs/s")
    columns = ["topology", "cores", *(f"predicted\n{name}" for name in names)]
    speeds = paper_speeds(plan, sizes)
    columns += [f"paper, v2\n{unit}" for unit in ("steps/s", "graphs/s") if speeds]
    rows = []
    for step, forecast in zip(steps, forecasts, strict=True):
        cells = [""] * 4
        if forecast is not None:
            times = [forecast.computing_seconds, 1e3 * forecast.sending_seconds]
            speed = forecast.steps_per_second, round(forecast.graphs_per_second)
            cells = [*times, *speed]
        beside = speeds.get(step.cores, ("", "")) if speeds else ()
        rows.append([step.topology, step.cores, *cells, *beside])
    report.table("predicted: nothing was run", columns, rows)
    columns = ["S", "nodes", "graphs"]
    columns += [f"{unit}\n{n} cores" for unit in ("steps/s", "graphs/s") for n in CORES]
    report.table(
        "paper: measured by Balog et al. 2019 on TPU v2 (Tables 1 and 2, Figure 2)",
        columns,
        [
            [size, row.nodes, row.graphs, *row.steps_per_second, *row.graphs_per_second]
            for size, row in sorted(PAPER.items())
        ],
    )


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from keras_bandgnn.tpu import aot_compile, scaling

    topologies = make_topologies(options.topology, options.cores)
    for name in topologies:
        aot_compile.topology_devices(name)
    task, plan, sizes = tpu_options.make_program(options)
    steps, forecasts = [], []
    for number, name in enumerate(topologies, 1):
        report.say(f"compiling for {name}, {number} of {len(topologies)}")
        step = aot_compile.check_training_step(task, plan, sizes, name)
        steps.append(step)
        forecast = scaling.ScaleForecast.of(step, sizes.graphs, options.share)
        forecasts.append(forecast)
    print_tables(steps, forecasts, plan, sizes)
    generation = scaling.TPUGeneration.of(steps[0].topology)
    report.say(
        f"computing: compiled FLOPs at {100 * options.share:g} % (a guess: --share) of "
        f"the published {generation.flops / 1e12:g} TFLOP/s of a {generation.name} core"
    )
    report.say(
        f"communication: after compute, on one ring of {generation.link / 1e9:g} GB/s "
        "links (published) without latency; host work is not included"
    )
    figures = {
        "compiled": [dataclasses.asdict(step) for step in steps],
        "predicted": [f and f.to_dict() for f in forecasts],
        "share": options.share,
        "paper": {size: dataclasses.asdict(row) for size, row in scaling.PAPER.items()},
    }
    return tpu_options.finish(options, steps, plan, sizes, figures)
