"""modelc diff"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelc.cli.options import PATH
from modelc.cli.output import json_option, print_json, progress, say, show

SHOWN = 6  # changes of one kernel, and layouts, unless --verbose asks for all


@click.command()
@click.argument("before", metavar="PKG", type=PATH)
@click.argument("after", metavar="PKG", type=PATH)
@click.option("--no-times", is_flag=True, help="Do not time the kernels: loading a package executes its library.")
@click.option("--all", "every", is_flag=True, help="Show every change of every kernel.")
@json_option
def diff(before: Path, after: Path, no_times: bool, every: bool, as_json: bool) -> None:
    """Says what changed from one package to another: kernels, schedules, layouts, dtypes, sizes, times."""
    from modelc.verify.diff import diff as compare

    with progress("comparing") as then:
        seen = compare(before, after, not no_times, lambda stage, text: then(text))
    if as_json:
        print_json("diff", seen)
        return
    if seen["same"]:
        say("the packages are the same, but for where they lie")
    if seen["facts"]:
        show(("", "before", "after"), [(name, *map(_word, pair)) for name, pair in seen["facts"].items()])
    layouts = seen["layouts"]
    shown = layouts if every else layouts[:SHOWN]
    if shown:
        show(("value stored", "before", "after"), [(row["value"], row["before"], row["after"]) for row in shown])
        if len(layouts) > len(shown):
            say(f"and {len(layouts) - len(shown)} more values are stored otherwise: --all")
    rows = [_row(row, every) for row in seen["kernels"] if row["changes"] or every]
    if rows:
        show(("kernel", "us before", "after", "ratio", "changed"), rows)
    for side, kernels in zip(("before", "after"), seen["only"], strict=True):
        if kernels:
            gone = [(k["kernel"], f"{k['us']:.1f}" if "us" in k else "", ", ".join(k["nodes"])) for k in kernels]
            show((f"only {side}", "us", "nodes"), gone)
    if seen["timed"]:
        totals = [
            sum(row["us"][k] for row in seen["kernels"]) + sum(row["us"] for row in seen["only"][k]) for k in (0, 1)
        ]
        say(f"{totals[0]:.0f} us in kernels before, {totals[1]:.0f} after ({totals[1] / totals[0]:.3f} times)")
    elif not no_times:
        say(f"not timed: {seen['untimed_because']}")
    say(f"{seen['unchanged']} kernels are unchanged")


def _row(row: dict[str, Any], every: bool) -> tuple[str, ...]:
    us = row.get("us")
    times = ("", "", "") if us is None else (f"{us[0]:.1f}", f"{us[1]:.1f}", f"{us[1] / us[0]:.2f}" if us[0] else "")
    changes = row["changes"] if every else row["changes"][:SHOWN]
    said = [f"{c['what']}: {_word(c['before'])} -> {_word(c['after'])}" for c in changes]
    more = len(row["changes"]) - len(changes)
    return (row["kernel"], *times, "; ".join([*said, f"and {more} more"] if more else said))


def _word(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value in (None, "", []) else str(value)
