"""--debug, which every verb takes, and what becomes of an error that reaches the command line."""

from __future__ import annotations

import traceback

import click

from modelc.cli.output import complain, print_json
from modelc.errors import ModelcError, OutputError, escaped


def add_debug_option(command: click.Command) -> None:
    """Gives --debug to a command and to all those below it; it sets `obj["debug"]` of the outermost context."""
    command.params.append(
        click.Option(
            ["--debug"], is_flag=True, expose_value=False, callback=_remember, help="Show the traceback of an error."
        )
    )
    if isinstance(command, click.Group):
        for below in command.commands.values():
            add_debug_option(below)


def _remember(context: click.Context, option: click.Parameter, value: bool) -> None:
    context.find_root().obj["debug"] |= value


def show_error(error: Exception, debug: bool, as_json: bool) -> int:
    """Says what is wrong, and returns the exit code. What is no ModelcError is a mistake of modelc's own."""
    failure = error if isinstance(error, ModelcError) else escaped(error)
    if debug:
        for line in "".join(traceback.format_exception(error)).splitlines():
            complain(line)
    as_json = as_json and not isinstance(failure, OutputError)  # stdout itself is what is wrong
    return show_failure(type(failure).__name__, str(failure), failure.exit_code, as_json)


def show_failure(kind: str, message: str, exit_code: int, as_json: bool, said: bool = False) -> int:
    """Prints a message on stderr, unless it is `said` there already, with --json a document on stdout too, and returns
    the exit code."""
    if not said:
        for line in f"modelc: {message}".split("\n"):
            complain(line)
    if as_json:
        try:
            print_json("error", {"error": {"kind": kind, "message": message, "exit_code": exit_code}}, indent=None)
        except OutputError as error:
            complain(f"modelc: {error}")
    return exit_code
