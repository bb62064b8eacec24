"""The command line: one file per verb, each parses, calls the library, prints."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

import click

from modelc import __version__
from modelc.cli.bench import bench
from modelc.cli.build import build
from modelc.cli.cache import cache
from modelc.cli.compile import compile_
from modelc.cli.database import database
from modelc.cli.debug import add_debug_option, show_error, show_failure
from modelc.cli.diff import diff
from modelc.cli.doctor import doctor
from modelc.cli.examples import add_examples
from modelc.cli.help import help_
from modelc.cli.inspect import inspect
from modelc.cli.output import Voice, complain, quiet_option, standard_streams, unwritable
from modelc.cli.profile import profile
from modelc.cli.reduce import reduce
from modelc.cli.report import report
from modelc.cli.run import run
from modelc.cli.targets import targets
from modelc.cli.tune import tune
from modelc.cli.verify import verify
from modelc.scratch import is_private, user_cache
from modelc.signals import Ended, sentence, tidy_ends

VERBS = (
    compile_,
    build,
    tune,
    verify,
    bench,
    diff,
    profile,
    report,
    run,
    inspect,
    reduce,
    targets,
    database,
    cache,
    doctor,
    help_,
)


def _json_goes_behind(context: click.Context, option: click.Parameter, value: bool) -> None:
    if value:
        raise click.UsageError("--json goes behind the verb: modelc VERB --json, as in modelc doctor --json", context)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="modelc")
@click.option("--json", is_flag=True, expose_value=False, hidden=True, callback=_json_goes_behind)
def group() -> None:
    """Compiles ONNX models to self-contained native packages for a described CPU."""


for verb in VERBS:
    group.add_command(verb)
add_debug_option(group)
quiet_option(group)
add_examples(group)


def main(arguments: list[str] | None = None) -> None:
    """The entry point: a user's mistake and our own are a sentence on stderr and an exit code, with --json also a
    document on stdout; a traceback only with --debug. Whatever ends the process by a signal, nothing half-written is
    left; what SIGKILL left is removed by the next command that writes there."""
    with tidy_ends():
        standard_streams()
        _warn_of_cache()
        _call(sys.argv[1:] if arguments is None else arguments)


def _warn_of_cache() -> None:
    """Says so where $MODELC_CACHE is a folder in which others can write: what is kept there is not taken."""
    with suppress(OSError):
        if os.environ.get("MODELC_CACHE") and not is_private(user_cache()):
            complain(
                f"modelc: others can write in $MODELC_CACHE, {user_cache()}, or it is somebody else's: of what lies "
                "there the database alone is used (--no-database); name a folder that is yours alone"
            )


def _call(given: list[str]) -> None:
    settings = {"debug": False}
    Voice.quiet = False
    as_json = "--json" in (given[: given.index("--")] if "--" in given else given)
    try:
        code = group.main(given, prog_name="modelc", standalone_mode=False, obj=settings)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(show_failure("Interrupted", sentence(signal.SIGINT), 128 + signal.SIGINT, as_json))
    except Ended as end:
        sys.exit(show_failure("Interrupted", sentence(end.number), 128 + end.number, as_json))
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        sys.exit(show_failure("UsageError", error.format_message(), error.exit_code, as_json, said=True))
    except Exception as error:
        sys.exit(show_error(unwritable() or error, settings["debug"], as_json))
    sys.exit(code if isinstance(code, int) else 0)
