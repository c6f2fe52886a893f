"""Entry point: parses the command line, chooses the backend, reports errors."""

import argparse
import contextlib
import importlib
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from keras_bandgnn import config
from keras_bandgnn.cli import interrupts, options
from keras_bandgnn.cli.backend import choose_backend, without_tensorflow
from keras_bandgnn.plugins import PLUGINS
from keras_bandgnn.progress import heartbeat


class _Command(NamedTuple):
    """Description of a command, available before its module is imported.

    Args:
        summary: A line of help.
        resumes: The option that discards an interrupted run, or keeps none of it; None
            if the command does not resume.
        waits: Whether it waits for another program, and is silent meanwhile.
        computes: Whether it runs a model for long, which `config.tune_process` speeds
            up.
    """

    summary: str
    resumes: str | None
    waits: bool = False
    computes: bool = False


_COMMANDS = {
    "demo": _Command(
        "train on Python's standard library and list suspicious variable usages",
        resumes=None,
        computes=True,
    ),
    "compile": _Command(
        "turn source code or program graphs into stores of compiled graphs",
        resumes="restart",
    ),
    "train": _Command(
        "train a model: variable misuse, or regression on molecules and graphs",
        resumes="restart",
        computes=True,
    ),
    "tune": _Command(
        "search hyperparameters, and how to run the model fastest",
        resumes="overwrite",
        computes=True,
    ),
    "evaluate": _Command(
        "score a model, compared with simple baselines",
        resumes=None,
        computes=True,
    ),
    "predict": _Command(
        "list the most suspicious variable usages, or predict numbers of graphs",
        resumes=None,
        computes=True,
    ),
    "check": _Command(
        "find wrong variables in Python code, for terminals, CI and code review",
        resumes="no-cache",
    ),
    "lsp": _Command(
        "show wrong variables in an editor: a language server",
        resumes=None,
        waits=True,
    ),
    "inspect": _Command(
        "show sizes and bandwidths before and after reordering",
        resumes=None,
    ),
    "batching": _Command(
        "forecast which batching algorithm trains fastest",
        resumes=None,
        computes=True,
    ),
    "calibrate": _Command(
        'measure this machine, so that plan="auto" chooses the cheapest plan',
        resumes=None,
    ),
    "tpu-check": _Command(
        "ahead-of-time compile a training step for a TPU topology (no TPU needed)",
        resumes=None,
    ),
    "scale": _Command(
        "predict training speed on many TPU cores from compiled programs",
        resumes=None,
    ),
}
# Programs of the repository that were commands.
_EXAMPLES = {"bench": "benchmarks", "corpus": "corpora"}
_EPILOG = """\
a first session:
  bandgnn demo                              all steps at once, in a few minutes
  bandgnn compile src/ --out data/          your own Python code
  bandgnn train data/ --out model/
  bandgnn evaluate model/ data/test
  bandgnn predict model/ src/package/file.py

wrong variables in your code, with a trained model:
  bandgnn check src/
"""


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, except None, False and empty lists."""

    def _get_help_string(self, action):
        if action.default in (None, False, []):
            return action.help
        return super()._get_help_string(action)


def _usage_error(program: str, message: str) -> str:
    """Return the line printed for a wrong command line."""
    from keras_bandgnn.cli.report import escaped  # slow to import, rarely needed

    text = escaped(message).rstrip(".")
    return f"{program}: error: {text}. See {program} --help.\n"


class _Parser(argparse.ArgumentParser):
    """Prints an error in one line that points to --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, _usage_error(self.prog, message))


def _parser(arguments: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Build the parser.

    Args:
        arguments: A command line. Only the commands that it names get their options,
            since importing all commands is slow. All commands do if omitted.
    """
    from keras_bandgnn.version import __version__

    parser = _Parser(
        prog="bandgnn",
        description="Graph neural networks compiled to dense, static-shape "
        "computation.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, entry in _COMMANDS.items():
        if arguments is not None and name not in arguments:
            commands.add_parser(name, help=entry.summary)
            continue
        home = f"cli.{name.replace('-', '_')}"
        home = PLUGINS.get(home, home)
        module = importlib.import_module(f"keras_bandgnn.{home}")
        command = commands.add_parser(
            name,
            help=entry.summary,
            description=module.__doc__,
            formatter_class=_Help,
        )
        options.add_common(command)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _after_interruption(parsed: argparse.Namespace) -> str:
    """Return the message of an interrupted command."""
    option = _COMMANDS[parsed.command].resumes
    if option is None:
        return "interrupted; the same command starts over"
    is_set = getattr(parsed, option.replace("-", "_"))
    if is_set and option == "no-cache":
        return "interrupted; with --no-cache the same command starts over"
    again = f" without --{option}" if is_set else ""
    return f"interrupted; run the same command again{again} to resume"


def _progress(command: str) -> contextlib.AbstractContextManager:
    """Print that a command runs while it says nothing else; see `heartbeat`."""
    if _COMMANDS[command].waits:
        return contextlib.nullcontext()
    return heartbeat(command)


def _run(arguments: Sequence[str] | None, whole_process: bool = False) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments and arguments[0] in _EXAMPLES:
        _parser([]).error(
            f"Expected one of the commands above. Received: {arguments[0]}. It is in "
            f"the repository: run python -m examples.{_EXAMPLES[arguments[0]]} there."
        )
    parsed = _parser(arguments).parse_args(arguments)
    interrupts.set_message(_after_interruption(parsed))
    parsed.line = shlex.join(["bandgnn", *arguments])
    try:
        choose_backend(parsed.backend)
        if whole_process and _COMMANDS[parsed.command].computes:
            config.tune_process()
        with without_tensorflow(), _progress(parsed.command):
            return int(parsed.run(parsed) or 0)
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does.
        sys.stderr.close()
        return 0
    except options.OptionError as error:
        if parsed.debug:
            raise
        sys.stderr.write(_usage_error(f"bandgnn {parsed.command}", str(error)))
        return 2
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        if parsed.debug:
            raise
        from keras_bandgnn.cli import report

        report.remark(f"error: {report.in_options(str(error))}")
        # `predict` and `check` use 1 for findings, and so another code for errors.
        return getattr(parsed, "failed", 1)
    except Exception:
        failed = getattr(parsed, "failed", 1)
        if failed == 1:
            raise
        # A traceback exits with 1, which would say that there are findings.
        traceback.print_exc()
        return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The command line without the program's name; `sys.argv` if omitted.

    Returns:
        Exit code: 0 for success, 1 for an error in the data or the set-up, 2 for a
        wrong command line, 130 after Ctrl-C, 143 after SIGTERM. `predict` and `check`
        return 1 if they found suspicious usages, 2 for any error.
    """
    return interrupts.run(_run, arguments)


def command() -> None:
    """Run a command and exit the process with the exit code of `main`."""
    with interrupts.handle_signals(whole_process=True):
        sys.exit(_run(None, whole_process=True))
