"""What the verbs share: JSON, sentences and tables on stdout, progress on stderr, and how these are written. What a
user or a model names is never taken for markup, and reaches a terminal without control characters."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import click

from modelc.errors import OutputError
from modelc.runtime.shown import size as size

F = TypeVar("F", bound=Callable[..., Any])

DOCUMENT_VERSION = 1  # of the documents: a key that changes its meaning, or goes, makes it another
READER_GONE = 128 + 13  # the exit code that a shell shows for what SIGPIPE ended


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")(
        function
    )


def print_json(schema: str, document: Mapping[str, Any], indent: int | None = 1) -> None:
    """One document on stdout, on one line without `indent`. It names its schema, SCHEMA.schema.json of the folder
    schemas, and the version of that."""
    write(json.dumps({"schema": schema, "version": DOCUMENT_VERSION, **document}, indent=indent) + "\n")


class Voice:
    """Whether what is said for people is wanted: with --quiet nothing is but what is wrong."""

    quiet = False


def quiet_option(command: click.Command) -> None:
    """Gives --quiet to a command and to all those below it."""

    def hush(context: click.Context, option: click.Parameter, value: bool) -> None:
        Voice.quiet |= value

    says = "Say nothing but what is wrong, and with --json the document."
    command.params.append(click.Option(["-q", "--quiet"], is_flag=True, expose_value=False, callback=hush, help=says))
    if isinstance(command, click.Group):
        for below in command.commands.values():
            quiet_option(below)


def say(line: str = "") -> None:
    """One line on stdout, unless nothing is to be said."""
    if Voice.quiet:
        return
    write(plain(line) + "\n")


def show(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout, likewise."""
    if Voice.quiet:
        return
    from rich.table import Table
    from rich.text import Text

    from modelc.cli.terminal import out

    table = Table(*headers, box=None)
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    with out.capture() as taken:
        out.print(table)
    write(taken.get())


def write(text: str) -> None:
    """`text` as it is on stdout. Raises OutputError where that fails."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        raise _unwritable(error) from None


def unwritable() -> OutputError | None:
    """What to raise where stdout did not take what was printed by other means than `write`."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return _unwritable(error)
    return None


def complain(line: str) -> None:
    """One line on stderr, if there is somebody to read it."""
    with suppress(OSError):
        sys.stderr.write(f"{plain(line)}\n")
        sys.stderr.flush()


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Says on a terminal what is being done; yields what says the next thing."""
    if Voice.quiet or not sys.stderr.isatty():
        yield lambda then: None
        return
    from rich.text import Text

    from modelc.cli.terminal import err

    with err.status(Text(plain(text))) as status:
        yield lambda then: status.update(Text(plain(then)))


def following(show: Callable[[str], None]) -> Callable[[str, str], None]:
    """Shows what each stage of a compilation does; where nobody watches stderr, a line says when a stage begins."""
    said: set[str] = set()

    def follow(stage: str, text: str) -> None:
        show(f"{stage} {text}")
        if not Voice.quiet and not sys.stderr.isatty() and stage not in said:
            complain(f"{stage} {text}")
        said.add(stage)

    return follow


def plain(text: str) -> str:
    """`text` with escapes for what has no business on a terminal: control characters and what is no Unicode, of which
    names of files and tensors may have any."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def standard_streams() -> None:
    """Makes up for standard streams that were closed before the start, so that no file takes their numbers, and lets
    stdout escape what its encoding lacks."""
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:  # what is written to stdout must fail: it is opened for reading
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), "r" if name == "stdin" else "w", closefd=False))
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


def _unwritable(error: OSError) -> OutputError:
    """What to raise. Whatever is left in stdout's buffer is dropped, or Python would try again at its end."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        sys.stdout.flush()
    if error.errno == errno.EPIPE:  # `| head` has seen enough
        raise SystemExit(READER_GONE)
    return OutputError(f"the result cannot be written to stdout: {error.strerror}")


def console_width() -> int:
    """Columns that a table on stdout may have."""
    from modelc.cli.terminal import out

    return out.width


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
