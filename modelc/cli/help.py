"""modelc help"""

from __future__ import annotations

from difflib import get_close_matches

import click

from modelc.cli.output import write


@click.command("help")
@click.argument("verbs", metavar="[VERB...]", nargs=-1)
@click.pass_context
def help_(context: click.Context, verbs: tuple[str, ...]) -> None:
    """Says how a verb is called, as its --help does."""
    inner = context.find_root()
    command: click.Command = inner.command
    for verb in verbs:
        verbs_here = command.commands if isinstance(command, click.Group) else {}
        if verb not in verbs_here:
            close = get_close_matches(verb, verbs_here, 1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise click.UsageError(f"there is no verb {verb!r}; expected {', '.join(verbs_here) or 'nothing'}.{hint}")
        command = verbs_here[verb]
        inner = click.Context(command, parent=inner, info_name=verb)
    write(command.get_help(inner) + "\n")
