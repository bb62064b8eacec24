"""The command line: one file per verb, each parses, calls the library, prints."""

from __future__ import annotations

import signal
import sys

import click

from modelc import __version__
from modelc.cli.bench import bench
from modelc.cli.compile import compile_
from modelc.cli.inspect import inspect
from modelc.cli.profile import profile
from modelc.cli.run import run
from modelc.cli.targets import targets
from modelc.cli.verify import verify
from modelc.errors import ModelcError

VERBS = (compile_, verify, bench, profile, run, inspect, targets)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="modelc")
def group() -> None:
    """Compiles ONNX models to self-contained native packages for a described CPU."""


for verb in VERBS:
    group.add_command(verb)


def main(arguments: list[str] | None = None) -> None:
    """The entry point: a user's mistake is a sentence on stderr and an exit code, never a traceback. Whatever ends the
    process by a signal, nothing half-written is left."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        code = group.main(arguments, prog_name="modelc", standalone_mode=False)
    except ModelcError as error:
        click.echo(f"modelc: {error}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        click.echo("modelc: interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)
