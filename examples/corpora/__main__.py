"""Collects functions of many Python packages, without duplicates, in splits.

Packages are downloaded by pip, one after another, as wheels, or read as they are
installed. Nothing of them is imported, built or run. Only packages with a permissive
licence are taken. A function is left out if it is a near duplicate of another one, and
no package is in two splits. A killed run resumes when it is started again; what an
earlier run has downloaded and read is used, whatever its options were.

python -m examples.corpora OUT ...        from a checkout
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.corpora.build import build_corpus
from examples.corpora.distributions import requirements
from examples.corpora.groups import GROUPS
from keras_bandgnn.cli import interrupts, report
from keras_bandgnn.cli import options as shared

_LISTS = Path(__file__).parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("out", type=shared.path, help="folder for the corpus")
    parser.add_argument(
        "--packages",
        nargs="+",
        metavar="FILE|NAME",
        help="names (click, click==8.1.7), archives (.whl, .tar.gz, .zip) and lists of "
        "names (.txt), each with its split (train, valid, test) behind it or not; if "
        "omitted, the lists beside this file",
    )
    parser.add_argument(
        "--valid",
        nargs="+",
        default=[],
        metavar="NAME",
        help="packages for validation; if omitted, a hash of the name decides",
    )
    parser.add_argument(
        "--test", nargs="+", default=[], metavar="NAME", help="packages for the test"
    )
    parser.add_argument(
        "--installed",
        action="store_true",
        help="read installed packages instead of downloads",
    )
    parser.add_argument(
        "--index-url",
        metavar="URL",
        help="package index; if omitted, that of pip's configuration",
    )
    parser.add_argument(
        "--any-license",
        action="store_true",
        help="also take packages whose licence is not permissive or not known",
    )
    group = parser.add_argument_group("files that are left out otherwise")
    group.add_argument(
        "--with-tests",
        action="store_true",
        help="take tests, examples, documentation and benchmarks",
    )
    group.add_argument(
        "--with-vendored",
        action="store_true",
        help="take folders that hold copies of other packages",
    )
    group.add_argument(
        "--with-generated", action="store_true", help="take generated files"
    )
    parser.add_argument(
        "--seed", type=shared.natural, default=0, help="seed of the split by names"
    )
    parser.add_argument(
        "--processes",
        "--workers",
        type=shared.positive,
        metavar="N",
        help="number of worker processes; one per core if omitted",
    )
    parser.add_argument(
        "--restart", action="store_true", help="read all packages again"
    )


def collect(options: argparse.Namespace) -> None:
    """Collect the corpus that the command line describes."""
    lists = [str(_LISTS / name) for name in ("packages.txt", "held_out.txt")]
    items = requirements(options.packages or lists, options.valid, options.test)
    summary = build_corpus(
        options.out,
        items,
        installed=options.installed,
        index_url=options.index_url,
        any_licence=options.any_license,
        groups=[name for name in GROUPS if getattr(options, f"with_{name}")],
        seed=options.seed,
        restart=options.restart,
        processes=options.processes,
        progress=report.progress,
    )
    _print(summary)
    report.say(f"corpus written to {options.out}")


def _print(summary: dict) -> None:
    columns = ["packages", "files", "lines", "functions", "exact_duplicates"]
    columns += ["near_duplicates", "kept", "kept_lines", "bytes"]
    rows = [
        [split, *(counts[name] for name in columns)]
        for split, counts in summary["splits"].items()
    ]
    report.table("corpus", ["split", *(c.replace("_", " ") for c in columns)], rows)
    report.table("licences", ["licence", "packages"], list(summary["licences"].items()))
    report.left_out([(x["name"], x["reason"]) for x in summary["left_out"]])


def _run(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.corpora",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_arguments(parser)
    options = parser.parse_args(arguments)
    again = " without --restart" if options.restart else ""
    interrupts.set_message(f"interrupted; run the same command again{again} to resume")
    try:
        collect(options)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        report.remark(f"error: {error}")
        return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Collect a corpus.

    Args:
        arguments: The command line without the program's name; `sys.argv` if omitted.

    Returns:
        Exit code: 0, 1 for an error in the data or the set-up, 130 after Ctrl-C, 143
        after SIGTERM.
    """
    return interrupts.run(_run, arguments)


if __name__ == "__main__":
    # Workers import the package by its name.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])
    )
    sys.exit(main())
