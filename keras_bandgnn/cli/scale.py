"""Plans training on many TPU cores on paper, on any machine.

Compiles the training step for slices of 8, 32, 128 and 512 cores and says, per core and
step, what the compiler says: memory, operations, what is sent. From that and from
published rates it predicts steps and graphs per second, beside those that Balog et al.
2019 measured. Nothing is run. The exit code is 1 if a program does not fit. Needs
pip install "keras-bandgnn[tpu]".
"""

import argparse
from pathlib import Path

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report, scale_report, tpu_options

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
    from keras_bandgnn.training.tpu_generation import TPUGeneration

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

    from keras_bandgnn.primitives.cost import Hardware, bytes_of

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
    from keras_bandgnn.training import scaling, tpu_check

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
    scale_report.show(steps, forecasts, plan, sizes)
    scale_report.show_paper()
    scale_report.show_basis(steps[0].topology, options.share, hardware, modelled)
    if options.json is not None:
        found = scale_report.facts(steps, forecasts, options.share, hardware)
        tpu_options.write(options, plan, sizes, found)
    return 0 if all(step.fits for step in steps) else 1
