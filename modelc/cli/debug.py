"""--debug, which every verb takes, and what becomes of an error that reaches the command line."""

from __future__ import annotations

import traceback

import click

from modelc.errors import ModelcError, escaped


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


def show_error(error: Exception, debug: bool) -> int:
    """Says on stderr what is wrong, and returns the exit code. What is no ModelcError is a mistake of modelc's own."""
    known = error if isinstance(error, ModelcError) else escaped(error)
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    click.echo(f"modelc: {known}", err=True)
    return known.exit_code
