"""modelc database"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from modelc.cli.number import Finite
from modelc.cli.output import complain, json_option, print_json, say, show, size, write
from modelc.errors import DatabaseError
from modelc.scratch import beside

if TYPE_CHECKING:
    from modelc.database.exchange import Taken

F = TypeVar("F", bound=Callable[..., Any])
DAY = 86400.0


def _file(function: F) -> F:
    return click.option(
        "--database", metavar="FILE", type=click.Path(path_type=Path), help="Default: the user's own database."
    )(function)


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
    from modelc.database import Database, code_version, default_place
    from modelc.database.summary import lines

    ours = code_version()
    with Database(database or default_place(), write=False) as opened:
        counts = opened.counts()
        listed = [line for line in lines(opened, target) if line.conditions.version.startswith(ours)] if tasks else []
        bytes_ = opened.path.stat().st_size
    notes = _noted(opened.note)
    if as_json:
        groups = [asdict(count) for count in counts]
        summary = {"path": str(opened.path), "bytes": bytes_, "modelc": ours, "groups": groups, "notes": notes}
        print_json("database-show", summary | ({"tasks": [asdict(line) for line in listed]} if tasks else {}))
        return
    say(f"{opened.path}, {size(bytes_)}; this modelc is {ours}")
    rows = [
        (
            count.target,
            count.version + (" (this)" if count.version.startswith(ours) else ""),
            str(count.threads),
            str(count.tasks),
            str(count.records),
            str(count.failures),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(count.last)),
        )
        for count in counts
    ]
    show(("target", "version", "threads", "tasks", "records", "failed", "last"), rows)
    if tasks:
        say()
        show(
            ("task", "outputs", "threads", "constants", "records", "failed", "untuned us", "best us", "gain"),
            [
                (
                    line.task,
                    line.outputs,
                    str(line.conditions.threads),
                    line.conditions.constants,
                    str(line.records),
                    str(line.failures),
                    f"{1e6 * line.untuned_seconds:.2f}" if line.untuned_seconds else "",
                    f"{1e6 * line.best_seconds:.2f}" if line.best_seconds else "",
                    f"{line.untuned_seconds / line.best_seconds:.2f}" if line.best_seconds else "",
                )
                for line in listed
            ],
        )


@database.command("export")
@click.option("-o", "output", metavar="FILE", type=click.Path(path_type=Path), help="Default: stdout.")
@click.option("--target", metavar="KEY", help="Records for this target alone.")
@click.option("--version", metavar="VERSION", help="Records of this version of the code alone.")
@_file
@json_option
def export(output: Path | None, target: str | None, version: str | None, database: Path | None, as_json: bool) -> None:
    """Writes records as JSON lines; with -o, and --json, says how many."""
    from modelc.database import Database, default_place
    from modelc.database.exchange import exported

    if as_json and output is None:
        raise click.UsageError("--json says how many records went to -o FILE; without that they are JSON lines anyway")
    with Database(database or default_place(), write=False) as opened:
        lines = exported(opened, target, version)
        if output is None:
            for line in lines:
                write(line + "\n")
            _noted(opened.note)
            return
        count = 0
        try:
            with beside(output, folder=False) as made:
                with made.open("w") as file:
                    for line in lines:
                        file.write(line + "\n")
                        count += line.startswith('{"record"')
                os.replace(made, output)
        except OSError as error:
            raise DatabaseError(f"{output} cannot be written: {error.strerror}") from None
    notes = _noted(opened.note)
    if as_json:
        print_json("database-export", {"records": count, "notes": notes})
    else:
        say(f"{count} records were written to {output}")


@database.command("import")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@_file
@json_option
def import_(file: Path, database: Path | None, as_json: bool) -> None:
    """Adds records that export wrote ("-": from stdin). Every line is checked, and all are added or none."""
    from modelc.database import Database, default_place
    from modelc.database.exchange import imported, lines_of

    try:
        stream = sys.stdin.buffer if str(file) == "-" else file.open("rb")
        with stream, Database(database or default_place()) as opened:
            taken = imported(opened, lines_of(stream, str(file)), str(file))
    except OSError as error:
        raise DatabaseError(f"{file} cannot be read: {error.strerror}") from None
    _taken([taken], as_json)


@database.command("merge")
@click.argument("others", metavar="OTHER...", type=click.Path(path_type=Path), nargs=-1, required=True)
@_file
@json_option
def merge(others: tuple[Path, ...], database: Path | None, as_json: bool) -> None:
    """Adds the records of other databases, checked like what is imported: of each file all, or none; but what is
    damaged there is left out."""
    from modelc.database import Database, default_place
    from modelc.database.exchange import merged

    for other in others:
        Database(other, write=False).close()  # before a database is made of nothing
    with Database(database or default_place()) as opened:
        taken = [merged(opened, other) for other in others]
    _taken(taken, as_json)


@database.command("prune")
@click.option("--stale", is_flag=True, help="Records of another version of the code than this modelc.")
@click.option("--target", metavar="KEY", help="Records for this target.")
@click.option("--older-than", metavar="DAYS", type=Finite(min=0), help="Records measured longer ago.")
@click.option("--failed", is_flag=True, help="Records of failed candidates; tune would try them again.")
@click.option("--damaged", is_flag=True, help="Unreadable records, of any target; it excludes the other flags.")
@_file
@json_option
def prune(
    stale: bool,
    target: str | None,
    older_than: float | None,
    failed: bool,
    damaged: bool,
    database: Path | None,
    as_json: bool,
) -> None:
    """Removes the records that satisfy all given conditions."""
    from modelc.database import Database, code_version, default_place

    conditions = stale or failed or target is not None or older_than is not None
    if not (conditions or damaged):
        raise click.UsageError("say which records are to go: --stale, --target, --older-than, --failed; or --damaged")
    if conditions and damaged:
        raise click.UsageError("--damaged goes with no other flag: what is damaged does not say what it is of")
    with Database(_there(database or default_place())) as opened:
        before = None if older_than is None else time.time() - older_than * DAY
        stale_version = code_version() if stale else None
        count = opened.remove_damaged() if damaged else opened.prune(target, stale_version, before, failed)
    if as_json:
        print_json("database-prune", {"removed": count})
    else:
        say(f"{count} records were removed")


def _there(path: Path) -> Path:
    if not os.path.lexists(path):
        raise DatabaseError(f"there is no database {path}")
    return path


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
