"""modelc build"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelc.build.request import NAME, BuildRequest
from modelc.cli.importing import import_quickly
from modelc.cli.options import PATH, asked, request_options
from modelc.cli.output import complain, json_option, print_json, say, show, size
from modelc.cli.progress_bar import bar


@click.command()
@click.argument("source", metavar=f"[{NAME}]", type=PATH, default=Path(NAME))
@request_options(BuildRequest)
@json_option
def build(source: Path, as_json: bool, **options: Any) -> int:
    """Builds the models of modelc.yaml for its targets and precisions, and holds the packages to its gates.

    What was built before is kept, and proven by its key and checksums. Ends with a table; build.json, build.junit.xml
    and build.md lie beside the packages."""
    import_quickly("modelc.build.command")
    from modelc.build.command import build_request
    from modelc.build.summary import COLUMNS, failures_of, rows, sentence

    with bar() as view:
        said = asked(options)
        request = BuildRequest(source, **said, watch=view, progress=lambda stage, text: view.say(text))
        result = build_request(request)
    if as_json:
        print_json("build", result.to_json())
    else:
        table = [(*row[:2], *map(_size, row[2:5]), *row[5:]) for row in rows(result.build)]
        show(COLUMNS, table)
        if request.dry_run:
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
