"""Measures this machine, so that plan="auto" chooses the cheapest plan.

Times the library's kernels on the current backend, forward and backward, and stores
the constants in a file for this machine, backend, version and dtype.
"""

import argparse

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

DTYPES = ("float32", "bfloat16", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="type of the states"
    )
    parser.add_argument(
        "--seconds",
        type=shared.above_zero,
        default=30.0,
        help="time to measure, not counting compilation",
    )
    parser.add_argument(
        "--show",
        action="store_true",
        help="show the constants in use without measuring",
    )


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from keras_bandgnn.planning.calibration import calibrate
    from keras_bandgnn.planning.cost import Hardware

    path = Hardware.path(options.dtype)
    if options.show:
        hardware = Hardware.current(options.dtype)
    else:
        with report.progress("measuring") as advance:
            hardware = calibrate(options.dtype, options.seconds, advance)
        hardware.save(options.dtype)
    print_constants(hardware)
    if hardware.date:
        report.say(f"calibrated on {hardware.date}: {path}")
    else:
        report.say("default constants: not calibrated here; run bandgnn calibrate")


def print_constants(hardware) -> None:
    """Print the constants."""
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
        ["gather of rows", hardware.gather / 1e9, "GB/s"],
        ["scatter-add of rows", hardware.scatter / 1e9, "GB/s"],
    ]
    rows += [
        ["edge attention", hardware.edge_attention / 1e9, "G edges * channels / s"],
        ["tile attention", hardware.tile_attention / 1e9, "G entries * channels / s"],
        ["tile fill that pays off", 100 * hardware.tile_fill, "%"],
    ]
    rows += [
        [f"new arrays of {size / 2**20:.0f} MiB", rate / 1e9, "GB/s"]
        for size, rate in zip(WRITE_BYTES, hardware.write, strict=True)
    ]
    rows.append(["overhead of one operation", 1e6 * hardware.launch, "us"])
    report.table(hardware.name, ["forward and backward", "", ""], rows)
