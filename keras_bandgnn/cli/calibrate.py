"""Measures this machine, so that plan="auto" takes the cheapest plan.

Times the library's own kernels on the backend in use, forward and backward, and keeps
the constants in a file for this machine, backend, version and dtype.
"""

import argparse

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

DTYPES = ("float32", "bfloat16", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="type of the states"
    )
    parser.add_argument(
        "--seconds",
        type=shared.above_zero,
        default=30.0,
        help="how long to measure; compiling comes on top",
    )
    parser.add_argument(
        "--show", action="store_true", help="show what is known, measure nothing"
    )


def run(options: argparse.Namespace) -> None:
    """Runs the command."""
    from keras_bandgnn.planning.calibration import calibrate
    from keras_bandgnn.planning.cost import Hardware

    path = Hardware.path(options.dtype)
    if options.show:
        hardware = Hardware.current(options.dtype)
    else:
        with report.progress("measuring") as advance:
            hardware = calibrate(options.dtype, options.seconds, advance)
        hardware.save(options.dtype)
    show(hardware)
    if hardware.date:
        report.say(f"calibrated on {hardware.date}: {path}")
    else:
        report.say("default constants: nothing was measured here; bandgnn calibrate")


def show(hardware) -> None:
    """Prints the constants."""
    from keras_bandgnn.planning.cost import (
        BLOCK_SIZES,
        GROUP_SIZES,
        PRODUCT_SIZES,
        WRITE_BYTES,
    )

    rows = [
        [f"product, inner {inner}, columns {columns}", rate / 1e9, "GFLOP/s"]
        for inner, rates in zip(PRODUCT_SIZES, hardware.matmul, strict=True)
        for columns, rate in zip(PRODUCT_SIZES, rates, strict=True)
    ]
    rows += [
        [f"dense blocks of {size}", rate / 1e9, "GFLOP/s"]
        for size, rate in zip(BLOCK_SIZES, hardware.blocks, strict=True)
    ]
    rows += [
        [f"kernels by group of {size} rows", rate / 1e9, "GFLOP/s"]
        for size, rate in zip(GROUP_SIZES, hardware.grouped, strict=True)
    ]
    rows += [
        ["sparse products", hardware.sparse / 1e9, "G entries * channels / s"],
        ["reading rows by index", hardware.gather / 1e9, "GB/s"],
        ["summing rows by index", hardware.scatter / 1e9, "GB/s"],
    ]
    rows += [
        ["attention, edges", hardware.edge_attention / 1e9, "G edges * channels / s"],
        ["in tiles", hardware.tile_attention / 1e9, "G entries * channels / s"],
        ["a tile pays when filled", 100 * hardware.tile_fill, "%"],
    ]
    rows += [
        [f"new arrays of {size / 2**20:.0f} MiB", rate / 1e9, "GB/s"]
        for size, rate in zip(WRITE_BYTES, hardware.write, strict=True)
    ]
    rows.append(["an operation, however small", 1e6 * hardware.launch, "us"])
    report.table(hardware.name, ["forward and backward", "", ""], rows)
