"""Collects functions of many Python packages, without duplicates, in splits.

Packages are downloaded by pip, one after another, as wheels, or read as they are
installed. Nothing of them is imported, built or run. Only packages with a permissive
licence are taken. A function is left out if it is a near duplicate of another one, and
no package is in two splits. A killed run resumes when it is started again; what an
earlier run has downloaded and read is used, whatever its options were.
"""

import argparse
import contextlib
from pathlib import Path

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report
from keras_bandgnn.cli.compile import make_pool

_LISTS = Path(__file__).parent.parent / "programs" / "corpus"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("out", type=shared.path, help="folder for the corpus")
    parser.add_argument(
        "--packages",
        nargs="+",
        metavar="FILE|NAME",
        help="names (click, click==8.1.7), archives (.whl, .tar.gz, .zip) and lists of "
        "names (.txt), each with its split (train, valid, test) behind it or not; if "
        "omitted, the lists that come with the library",
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
        "--engine",
        choices=("process", "ray"),
        default="process",
        help="processes of this machine, or workers of a Ray cluster",
    )
    parser.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="cluster to join: auto or host:port; if omitted, a local Ray that other "
        "machines cannot reach",
    )
    parser.add_argument(
        "--restart", action="store_true", help="read all packages again"
    )


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from keras_bandgnn.programs.corpus.build import build_corpus
    from keras_bandgnn.programs.corpus.distributions import requirements
    from keras_bandgnn.programs.corpus.functions import GROUPS

    pool = make_pool(options)
    lists = [str(_LISTS / name) for name in ("packages.txt", "held_out.txt")]
    items = requirements(options.packages or lists, options.valid, options.test)
    groups = [name for name in GROUPS if getattr(options, f"with_{name}")]
    with pool or contextlib.nullcontext():
        summary = build_corpus(
            options.out,
            items,
            installed=options.installed,
            index_url=options.index_url,
            any_licence=options.any_license,
            groups=groups,
            seed=options.seed,
            restart=options.restart,
            processes=options.processes,
            pool=pool,
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
