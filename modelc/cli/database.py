"""modelc database"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from modelc.cli.options import PATH, Finite
from modelc.cli.output import complain, json_option, print_json, progress, say, show, size, write

if TYPE_CHECKING:
    from modelc.database.exchange import Taken

F = TypeVar("F", bound=Callable[..., Any])


def _file(function: F) -> F:
    return click.option("--database", metavar="FILE", type=PATH, help="Default: the user's own database.")(function)


@click.group()
def database() -> None:
    """Measurements of modelc tune, kept between runs."""


@database.command("show")
@click.option("--tasks", is_flag=True, help="Task by Task: the untuned time and the best one.")
@click.option("--target", metavar="KEY", help="Of the Tasks, those measured for this target.")
@_file
@json_option
def show_(tasks: bool, target: str | None, database: Path | None, as_json: bool) -> None:
    """Says what was measured for which targets, by which versions of the code."""
    from modelc.database import show as shown

    seen = shown(database, tasks, target)
    _noted(*seen["notes"])
    if as_json:
        print_json("database-show", seen)
        return
    ours = seen["modelc"]
    say(f"{seen['path']}, {size(seen['bytes'])}; this modelc is {ours}")
    rows = [
        (
            count["target"],
            count["version"] + (" (this)" if count["version"].startswith(ours) else ""),
            str(count["threads"]),
            str(count["tasks"]),
            str(count["records"]),
            str(count["failures"]),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(count["last"])),
        )
        for count in seen["groups"]
    ]
    show(("target", "version", "threads", "tasks", "records", "failed", "last"), rows)
    if tasks:
        say()
        show(
            ("task", "outputs", "threads", "constants", "records", "failed", "untuned us", "best us", "gain"),
            [
                (
                    line["task"],
                    line["outputs"],
                    str(line["conditions"]["threads"]),
                    line["conditions"]["constants"],
                    str(line["records"]),
                    str(line["failures"]),
                    f"{1e6 * line['untuned_seconds']:.2f}" if line["untuned_seconds"] else "",
                    f"{1e6 * line['best_seconds']:.2f}" if line["best_seconds"] else "",
                    f"{line['untuned_seconds'] / line['best_seconds']:.2f}" if line["best_seconds"] else "",
                )
                for line in seen["tasks"]
            ],
        )


@database.command("export")
@click.option("-o", "output", metavar="FILE", type=PATH, help="Default: stdout.")
@click.option("--target", metavar="KEY", help="Records for this target alone.")
@click.option("--version", metavar="VERSION", help="Records of this version of the code alone.")
@_file
@json_option
def export(output: Path | None, target: str | None, version: str | None, database: Path | None, as_json: bool) -> None:
    """Writes records as JSON lines; with -o, and --json, says how many."""
    from modelc.database import Database, default_place
    from modelc.database import export as exported_to
    from modelc.database.exchange import exported

    if as_json and output is None:
        raise click.UsageError("--json says how many records went to -o FILE; without that they are JSON lines anyway")
    if output is None:
        with Database(database or default_place(), write=False) as opened:
            for line in exported(opened, target, version):
                write(line + "\n")
            _noted(opened.note)
        return
    written = exported_to(output, database, target, version)
    notes = _noted(written.note)
    if as_json:
        print_json("database-export", {"records": written.records, "notes": notes})
    else:
        say(f"{written.records} records were written to {output}")


@database.command("import")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@_file
@json_option
def import_(file: Path, database: Path | None, as_json: bool) -> None:
    """Adds records that export wrote ("-": from stdin). Every line is checked, and all are added or none."""
    from modelc.database import import_ as imported

    _taken([imported(file, database)], as_json)


@database.command("merge")
@click.argument("others", metavar="OTHER...", type=PATH, nargs=-1, required=True)
@_file
@json_option
def merge(others: tuple[Path, ...], database: Path | None, as_json: bool) -> None:
    """Adds the records of other databases, checked like what is imported: of each file all, or none; but what is
    damaged there is left out."""
    from modelc.database import merge as merged

    _taken(merged(others, database), as_json)


@database.command("best")
@click.option("-o", "output", metavar="FILE", type=PATH, required=True, help="The file of records.")
@click.option("--target", metavar="NAME", default="native", help="This machine, as it was tuned for.")
@click.option(
    "--threads", metavar="N", type=click.IntRange(1, 256), default=1, help="Of tune, and of what is measured."
)
@_file
@json_option
def best(output: Path, target: str, threads: int, database: Path | None, as_json: bool) -> None:
    """Writes what is at least 5 % faster than untuned, measured once more, as records for machines like this one."""
    from modelc.database import best as best_of

    with progress("reading the database") as then:
        written = best_of(output, database, target, threads, progress=lambda stage, text: then(f"{stage} {text}"))
    notes = _noted(written.note)
    if as_json:
        facts = {"records": written.records, "candidates": written.candidates}
        print_json("database-best", facts | {"notes": notes})
    else:
        say(f"{written.records} records of {written.candidates} candidates were written to {output}")


@database.command("prune")
@click.option("--stale", is_flag=True, help="Records of another version of the code than this modelc.")
@click.option("--target", metavar="KEY", help="Records for this target.")
@click.option("--older-than", metavar="DAYS", type=Finite(min=0), help="Records measured longer ago.")
@click.option("--failed", is_flag=True, help="Records of failed candidates; tune would try them again.")
@click.option("--damaged", is_flag=True, help="Unreadable records, of any target; it excludes the other flags.")
@_file
@json_option
def prune(damaged: bool, database: Path | None, as_json: bool, **conditions: Any) -> None:
    """Removes the records that satisfy all given conditions."""
    from modelc.database import prune as pruned

    limited = any(given is not None and given is not False for given in conditions.values())
    if not (limited or damaged):
        raise click.UsageError("say which records are to go: --stale, --target, --older-than, --failed; or --damaged")
    if limited and damaged:
        raise click.UsageError("--damaged goes with no other flag: what is damaged does not say what it is of")
    count = pruned(database, **conditions, damaged=damaged)
    if as_json:
        print_json("database-prune", {"removed": count})
    else:
        say(f"{count} records were removed")


def _noted(*notes: str) -> list[str]:
    """What is noteworthy, which has been said on stderr then."""
    said = list(filter(None, notes))
    for note in said:
        complain(f"modelc: {note}")
    return said


def _taken(taken: Sequence[Taken], as_json: bool) -> None:
    records, new = sum(source.records for source in taken), sum(source.new for source in taken)
    notes = _noted(*(source.note for source in taken))
    if as_json:
        print_json("database-import", {"records": records, "new": new, "notes": notes})
    else:
        say(f"{records} records were read, {new} of them are new")
