"""Entry point: parses the command line, chooses the backend, reports errors."""

import argparse
import importlib
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from keras_bandgnn.cli import interrupts, options
from keras_bandgnn.cli.backend import choose_backend, without_tensorflow


class _Command(NamedTuple):
    """What is said of a command before its module is imported.

    Args:
        summary: A line of help.
        resumes: The option that throws away what an interrupted run has done; None
            if the command resumes none.
    """

    summary: str
    resumes: str | None


_COMMANDS = {
    "demo": _Command(
        "train on the standard library of this Python and show what it finds",
        resumes=None,
    ),
    "compile": _Command(
        "turn source code or program graphs into stores of compiled graphs",
        resumes="restart",
    ),
    "train": _Command(
        "train a model: the right variable, or numbers of molecules",
        resumes="restart",
    ),
    "tune": _Command(
        "search for the best model, and the best way to run it",
        resumes="overwrite",
    ),
    "evaluate": _Command(
        "score a model beside trivial guesses",
        resumes=None,
    ),
    "predict": _Command(
        "list the most suspicious variable usages, or numbers of graphs",
        resumes=None,
    ),
    "inspect": _Command(
        "show sizes and bandwidths before and after reordering",
        resumes=None,
    ),
    "batching": _Command(
        "forecast which batching algorithm trains fastest",
        resumes=None,
    ),
    "calibrate": _Command(
        "measure this machine, so that automatic plans are cheap ones",
        resumes=None,
    ),
    "tpu-check": _Command(
        "compile a training step for TPUs that are not there",
        resumes=None,
    ),
    "scale": _Command(
        "plan training on many TPU cores: what is compiled, what is predicted",
        resumes=None,
    ),
}
_EPILOG = """\
a first session:
  bandgnn demo                              everything at once, in a few minutes
  bandgnn compile src/ --out data/          your own Python code
  bandgnn train data/ --out model/
  bandgnn evaluate model/ data/test
  bandgnn predict model/ src/package/file.py
"""


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults where they say something."""

    def _get_help_string(self, action):
        if action.default in (None, False, []):
            return action.help
        return super()._get_help_string(action)


def _wrong(program: str, message: str) -> str:
    """What a wrong command line is answered with."""
    from keras_bandgnn.cli.report import escaped  # takes time, and is seldom needed

    text = escaped(message).rstrip(".")
    return f"{program}: error: {text}. See {program} --help.\n"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and where the options are explained."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, _wrong(self.prog, message))


def _parser(arguments: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser.

    Args:
        arguments: A command line: the commands that it does not name get no options,
            since importing them all takes longer than showing help. All if omitted.
    """
    from keras_bandgnn.version import __version__

    parser = _Parser(
        prog="bandgnn",
        description="Graph networks as dense, static-shape work: learns from program "
        "graphs which variable belongs where.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (summary, _) in _COMMANDS.items():
        if arguments is not None and name not in arguments:
            commands.add_parser(name, help=summary)
            continue
        module = importlib.import_module(f"keras_bandgnn.cli.{name.replace('-', '_')}")
        command = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=_Help,
        )
        options.add_common(command)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _after_interruption(given: argparse.Namespace) -> str:
    """What an interrupted command says."""
    option = _COMMANDS[given.command].resumes
    if option is None:
        return "interrupted; the same command begins anew"
    again = f" without --{option}" if getattr(given, option) else ""
    return f"interrupted; run the same command again{again} to resume"


def _run(arguments: Sequence[str] | None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["bench"]:
        _parser([]).error(
            "Expected one of the commands above. Received: bench. The benchmarks are "
            "in the repository: run python -m examples.benchmarks there."
        )
    given = _parser(arguments).parse_args(arguments)
    interrupts.set_message(_after_interruption(given))
    given.line = shlex.join(["bandgnn", *arguments])
    try:
        choose_backend(given.backend)
        with without_tensorflow():
            return int(given.run(given) or 0)
    except BrokenPipeError:
        # The reader of our output has seen enough.
        sys.stderr.close()
        return 0
    except options.OptionError as error:
        if given.debug:
            raise
        sys.stderr.write(_wrong(f"bandgnn {given.command}", str(error)))
        return 2
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        if given.debug:
            raise
        from keras_bandgnn.cli import report

        report.remark(f"error: {report.in_options(str(error))}")
        # A command whose 1 means that it found something has another code.
        return getattr(given, "failed", 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: The command line without the program's name; `sys.argv` if omitted.

    Returns:
        Exit code: 0 for success, 1 for an error in the data or the set-up, 2 for a
        wrong command line, 130 after Ctrl-C, 143 after SIGTERM. Of `predict`: 1 if it
        found something, 2 for any error.
    """
    try:
        with interrupts.listen(whole_process=False):
            return _run(arguments)
    except KeyboardInterrupt as error:
        print(interrupts.message(), file=sys.stderr)
        return getattr(error, "code", 128 + signal.SIGINT)


def command() -> None:
    """Runs a command as a process: ends it with the exit code of `main`."""
    with interrupts.listen(whole_process=True):
        sys.exit(_run(None))
