"""What a terminal shows while a model is tuned."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from modelc.cli.output import plain
from modelc.cli.terminal import err

if TYPE_CHECKING:
    from modelc.tune.search.standing import ModelStanding, Standing

SHOWN = 12  # Tasks, of the largest shares


class View:
    """The stage that is under way and, since the first round, how tuning stands: the time goes on between rounds."""

    def __init__(self) -> None:
        self.stage = "starting"
        self.standing: Standing | None = None
        self._at = 0.0
        self._spinner = Spinner("dots")

    def stands(self, standing: Standing) -> None:
        self.standing, self._at = standing, time.monotonic()

    def __rich__(self) -> RenderableType:
        self._spinner.update(text=Text(plain(self.stage)))
        if self.standing is None:
            return self._spinner
        now = self.standing
        each = [Text(plain(model(standing))) for standing in now.each] if len(now.each) > 1 else []
        each += [
            Text(plain(f"  {standing.model} with {standing.leading}")) for standing in now.each if standing.leading
        ]
        return Group(Text(head(now, time.monotonic() - self._at)), *each, tasks(now), self._spinner)


@contextmanager
def viewing(console: Console = err) -> Iterator[View]:
    """The view on a terminal; nowhere else is anything shown."""
    view = View()
    if not console.is_terminal:
        yield view
        return
    with Live(view, console=console, refresh_per_second=4, transient=True):
        yield view


def head(now: Standing, later: float = 0.0) -> str:
    """One line: the budget, the rate, what is predicted; `later` seconds after the round."""
    if now.seconds_left is not None:
        left = f"{clock(max(0.0, now.seconds_left - later))} left"
    else:
        left = f"{now.trials_left} measurements left"
    stage = "layouts and loops, " if now.stage == "joint" else ""
    rate = f"{now.trials} measured, {now.trials_per_second:.1f}/s"
    return f"{stage}{clock(now.seconds + later)}, {left}; {rate}; " + predicted(
        now.predicted_seconds, now.untuned_seconds, now.each[0].ort_ratio if len(now.each) == 1 else None
    )


def predicted(seconds: float, untuned: float, ort_ratio: float | None) -> str:
    """What is predicted, beside what was known of it."""
    ratio = untuned / seconds if seconds else 1.0
    beside = "" if ort_ratio is None else f", {ort_ratio:.3f} times as fast as ONNX Runtime"
    return f"{1e3 * seconds:.3f} ms predicted, {ratio:.3f} times as fast as untuned{beside}"


def model(standing: ModelStanding) -> str:
    """One line for one of several models."""
    return f"  {standing.model}: {predicted(standing.predicted_seconds, standing.untuned_seconds, standing.ort_ratio)}"


def tasks(now: Standing) -> Table:
    """The Tasks that take most of the time."""
    table = Table("", "task", "share", "best us", "gain", "roofline", "measured", "improved", box=None)
    for task in now.tasks[:SHOWN]:
        since = "" if task.improved is None else f"{clock(now.seconds - task.improved)} ago"
        cells = (
            "*" if task.task == now.task else "",
            plain(task.name),
            f"{100 * task.share:.1f} %",
            f"{1e6 * task.best_seconds:.2f}",
            f"{task.gain:.3f}",
            f"{100 * task.roofline:.0f} %" if task.roofline else "",
            str(task.measured),
            since,
        )
        table.add_row(*map(Text, cells))
    if len(now.tasks) > SHOWN:
        share = sum(one.share for one in now.tasks[SHOWN:])
        table.add_row("", f"{len(now.tasks) - SHOWN} more", f"{100 * share:.1f} %")
    return table


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
