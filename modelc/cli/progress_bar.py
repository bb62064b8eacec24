"""A bar with percentage and time left, on a terminal; elsewhere a line for each thing that is done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from modelc.cli.output import Voice, complain, plain

if TYPE_CHECKING:
    from rich.progress import Progress


class Bar:
    """How far a command is."""

    def __init__(self, drawn: Progress | None) -> None:
        self._drawn = drawn
        self._task = None if drawn is None else drawn.add_task("starting", total=None)

    def stands(self, done: int, total: int, text: str) -> None:
        """So many of `total` are done, and this is under way."""
        if self._drawn is not None and self._task is not None:
            self._drawn.update(self._task, completed=done, total=total, description=plain(text)[:60])

    def say(self, text: str) -> None:
        """What has become of something."""
        if Voice.quiet:
            return
        if self._drawn is None:
            complain(text)
        elif self._task is not None:
            self._drawn.update(self._task, description=plain(text)[:60])


@contextmanager
def bar() -> Iterator[Bar]:
    if Voice.quiet or not sys.stderr.isatty():
        yield Bar(None)
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from modelc.cli.terminal import err

    columns = (SpinnerColumn(), BarColumn(20), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}", markup=False), console=err, transient=True) as drawn:
        yield Bar(drawn)
