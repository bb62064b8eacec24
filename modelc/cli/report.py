"""modelc report"""

from __future__ import annotations

from pathlib import Path

import click

from modelc.cli.importing import import_quickly
from modelc.cli.options import PATH
from modelc.cli.output import json_option, print_json, progress, say, size


@click.command()
@click.argument("subject", metavar="PKG|build.json|DATABASE", type=PATH)
@click.option("--against", metavar="PKG", type=PATH, help="A package to be shown beside.")
@click.option("--model", metavar="MODEL.onnx", type=PATH, help="Shows ONNX Runtime's time on this too.")
@click.option("-o", "output", metavar="report.html", type=PATH, default=Path("report.html"), show_default=True)
@click.option("--threads", metavar="N", type=click.IntRange(1, 256), default=1, show_default=True, help="For timing.")
@json_option
def report(subject: Path, against: Path | None, model: Path | None, output: Path, threads: int, as_json: bool) -> None:
    """Makes one page of a package, a build or a tuning database, with plots. It needs nothing beside it, nor a network.

    A package is timed, where this machine can run it: loading it executes the library in it."""
    import_quickly("modelc.report.command")
    from modelc.report.command import ReportRequest, report_request

    with progress("reading") as then:
        path = report_request(ReportRequest(subject, output, against, threads, model, lambda stage, text: then(text)))
    if as_json:
        print_json("report", {"report": str(path), "bytes": path.stat().st_size})
        return
    say(f"{path} ({size(path.stat().st_size)})")
