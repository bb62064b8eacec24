"""A bar with percentage and time left, on a terminal; elsewhere a line for each thing that is done, where that is
wanted."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from modelc.cli.output import Voice, complain, plain
from modelc.forks import harmless

if TYPE_CHECKING:
    from rich.progress import Progress


class Bar:
    """How far a command is."""

    def __init__(self, drawn: Progress | None) -> None:
        self._drawn = drawn
        self._task = None if drawn is None else drawn.add_task("starting", total=None)

    @property
    def drawn(self) -> bool:
        return self._drawn is not None

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


COMPILING: Mapping[str, float] = {  # what stages take of the whole, as a rule
    "import": 0.03,
    "simplify": 0.02,
    "partition": 0.25,
    "schedule": 0.07,
    "codegen": 0.22,
    "package": 0.06,
    "verify": 0.35,
}
VERIFYING: Mapping[str, float] = {"import": 0.05, "simplify": 0.05, "partition": 0.3, "verify": 0.6}


class Staged:
    """What has stages, on a bar: each takes its share of the whole; within one, `N of M` says how far it is. `lines`:
    where nobody watches, a line says when a stage begins."""

    def __init__(self, view: Bar, shares: Mapping[str, float] = COMPILING, lines: bool = True) -> None:
        self._view, self._lines = view, lines
        self._shares = {stage: share / sum(shares.values()) for stage, share in shares.items()}
        self._farthest = 0.0
        self._said: set[str] = set()

    def follow(self, stage: str, text: str) -> None:
        """What a Request's `progress` is told."""
        if not self._view.drawn:
            if self._lines and stage not in self._said:
                self._view.say(f"{stage} {text}")
            self._said.add(stage)
            return
        before = sum(share for name, share in self._shares.items() if _earlier(name, stage, tuple(self._shares)))
        match = re.search(r"\b(\d+) of (\d+)\b", text)
        within = min(int(match[1]) / int(match[2]), 1.0) if match and int(match[2]) else 0.0
        self._farthest = max(self._farthest, before + within * self._shares.get(stage, 0.0))
        self._view.stands(round(1000 * self._farthest), 1000, f"{stage} {text}")


def _earlier(name: str, stage: str, order: tuple[str, ...]) -> bool:
    return stage in order and order.index(name) < order.index(stage)


def times(seconds: float, share: float) -> str:
    """The seconds since the start, and an estimate of those that are left where a twentieth is done. It grows while the
    share stands still."""
    left = f", {_clock(seconds * (1 - share) / share)} left" if 0.05 <= share < 1 else ""
    return f"{_clock(seconds)}{left}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


@contextmanager
def bar() -> Iterator[Bar]:
    if Voice.quiet or not sys.stderr.isatty():
        yield Bar(None)
        return
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskProgressColumn, TextColumn
    from rich.text import Text

    from modelc.cli.terminal import err

    class TimesColumn(ProgressColumn):
        """Drawn ten times a second, also while nothing is told."""

        def render(self, task: Task) -> Text:
            return Text(times(task.elapsed or 0.0, task.completed / task.total if task.total else 0.0))

    columns = (SpinnerColumn(), BarColumn(20), TaskProgressColumn(), TimesColumn())
    before = {*threading.enumerate()}
    with Progress(*columns, TextColumn("{task.description}", markup=False), console=err, transient=True) as drawn:
        harmless.update({*threading.enumerate()} - before)  # what draws has locks of its own alone
        yield Bar(drawn)
