"""Settings of the C library's memory allocator, and the memory that is held."""

import argparse
import os
import sys
from pathlib import Path

# Keeps freed memory, in large pages: page faults are slow on many machines, and every
# operation of an eager backend allocates.
TUNED = {
    "GLIBC_TUNABLES": ":".join(
        [
            "glibc.malloc.hugetlb=1",
            "glibc.malloc.mmap_threshold=8589934592",
            "glibc.malloc.trim_threshold=17179869184",
            "glibc.malloc.top_pad=268435456",
            "glibc.malloc.arena_max=1",
        ]
    ),
}


def add_option(parser: argparse.ArgumentParser, default: str = "tuned") -> None:
    """Add the option that chooses the settings.

    Args:
        parser: Of the command.
        default: "default" for what users have without `config.tune_process`.
    """
    parser.add_argument(
        "--allocator",
        choices=("tuned", "default"),
        default=default,
        help="tuned: keep freed memory, in large pages (Linux with glibc)",
    )


def apply(choice: str) -> str:
    """Restart the command with the settings, if they are not in effect.

    Returns:
        The settings, for the report.
    """
    if choice == "default" or not sys.platform.startswith("linux"):
        return "allocator: default"
    if any(os.environ.get(name) != value for name, value in TUNED.items()):
        arguments = [sys.executable, "-m", "examples.benchmarks", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, **TUNED})
    return "allocator: " + " ".join(f"{k}={v}" for k, v in TUNED.items())


def peak() -> float:
    """Return the GiB that the process has held at most since `forget` (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    held = {line.split(":")[0]: line.split() for line in lines}
    return int(held["VmHWM"][1]) / 2**20


def forget() -> float:
    """Forget the peak; return the GiB that the process holds now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()
