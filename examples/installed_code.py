"""Lists Python files of installed packages, up to a number of lines of code.

    bandgnn predict MODEL $(python examples/installed_code.py --lines 100000)

measures `bandgnn predict` on installed code. The seed determines the order of the
files; the number of lines is printed to standard error.
"""

import argparse
import random
import sys
import sysconfig
from pathlib import Path


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "folders", nargs="*", type=Path, help="the installed packages if omitted"
    )
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="list a few files only")
    return parser.parse_args()


def main() -> None:
    """Print one path per line."""
    options = parse()
    lines = 1000 if options.short else options.lines
    folders = options.folders or [Path(sysconfig.get_path("purelib"))]
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    random.Random(options.seed).shuffle(files)
    total = 0
    for path in files:
        if total >= lines:
            break
        total += path.read_bytes().count(b"\n")
        print(path)
    print(f"{total} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
