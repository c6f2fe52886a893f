"""Measures this machine, so that plan="auto" chooses the cheapest plan.

Times the library's kernels on the current backend, forward and backward, and stores
the constants in a file for this machine, backend, version and dtype.
"""

import argparse

from keras_bandgnn.cli import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    dtypes = ("float32", "bfloat16", "float16")
    help = "type of the states"
    parser.add_argument("--dtype", choices=dtypes, default="float32", help=help)
    help = "show the constants in use without measuring"
    parser.add_argument("--show", action="store_true", help=help)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from keras_bandgnn.planning.cost import SIZES, Hardware, calibrate

    if options.show:
        hardware = Hardware.calibrated(options.dtype)
        if hardware is None:
            report.say("not calibrated here: run bandgnn calibrate")
            return
    else:
        with report.progress("measuring") as advance:
            hardware = calibrate(options.dtype, advance)
        hardware.save(options.dtype)
    rows = [
        [name, size, rate]
        for name, sizes in SIZES.items()
        for size, rate in zip(sizes, hardware.rates[name], strict=True)
    ]
    report.table(f"per second: {hardware.name}", ["rate", "size", ""], rows)
    path = Hardware.path(options.dtype)
    report.say(f"calibrated on {hardware.date}: {path}")
