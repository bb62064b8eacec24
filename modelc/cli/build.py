"""modelc build"""

from __future__ import annotations

from pathlib import Path

import click

from modelc.cli.importing import import_quickly
from modelc.cli.output import complain, database_of, database_options, json_option, print_json, say, show, size
from modelc.cli.progress_bar import bar


@click.command()
@click.argument("source", metavar="[modelc.yaml]", type=click.Path(path_type=Path), default=Path("modelc.yaml"))
@click.option("--only", metavar="MODEL:TARGET:PRECISION", multiple=True, help="Cells that fit, with * and ?.")
@click.option("--shard", metavar="K/N", default="", help="Every N-th cell, from the K-th on.")
@click.option("--jobs", metavar="N", type=click.IntRange(1, 256), help="Cells made at a time (default: processors).")
@click.option("--cluster", metavar="dask://HOST:PORT", default="", help="Make cells on the workers of a Dask cluster.")
@click.option("--cache", metavar="DIR", type=click.Path(path_type=Path), help="Of cells (default: in the user's own).")
@click.option("-o", "output", metavar="DIR", type=click.Path(path_type=Path), help="In place of the file's output.")
@click.option(
    "--baseline",
    metavar="build.json",
    type=click.Path(path_type=Path),
    help="An earlier build with its packages, for max-slowdown.",
)
@click.option(
    "--allow-code", is_flag=True, help="Execute the metrics that the file names, and reach the runners that tune."
)
@click.option("--dry-run", is_flag=True, help="Say what would be made, and make nothing.")
@database_options
@json_option
def build(
    source: Path,
    only: tuple[str, ...],
    shard: str,
    jobs: int | None,
    cluster: str,
    cache: Path | None,
    output: Path | None,
    baseline: Path | None,
    allow_code: bool,
    dry_run: bool,
    database: Path | None,
    no_database: bool,
    as_json: bool,
) -> int:
    """Builds the models of modelc.yaml for its targets and precisions, and holds the packages to its gates.

    What was built before is kept, and proven by its key and checksums. Ends with a table; build.json, build.junit.xml
    and build.md lie beside the packages."""
    import_quickly("modelc.build.command")
    from modelc.build.command import BuildRequest, build_request
    from modelc.build.summary import COLUMNS, failures_of, rows, sentence

    with bar() as view:
        result = build_request(
            BuildRequest(
                source=source,
                only=only,
                shard=shard,
                jobs=jobs,
                cluster=cluster,
                cache=cache,
                output=output,
                baseline=baseline,
                allow_code=allow_code,
                dry_run=dry_run,
                database=database_of(database, no_database),
                watch=view,
                progress=lambda stage, text: view.say(text),
            )
        )
    if as_json:
        print_json("build", result.to_json())
    else:
        table = [(*row[:2], *map(_size, row[2:5]), *row[5:]) for row in rows(result.build)]
        show(COLUMNS, table)
        if dry_run:
            missing = sum(row["outcome"] == "to build" for row in result.build["cells"])
            say(f"of {len(table)} cell{'s' * (len(table) != 1)}, {missing} would be built; nothing was made or judged")
        else:
            say(f"{sentence(result.build)}, in {result.build['seconds']:.1f} s")
        for path in result.files:
            say(f"  {path}")
    for failure in failures_of(result.build):
        complain(f"modelc: {failure}")
    return 0 if result.passed else 1


def _size(text: str) -> str:
    return size(float(text.replace(",", ""))) if text else ""
