"""modelc reduce"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from modelc.cli.options import PATH, asked, data_option, model_argument, request_options
from modelc.cli.output import json_option, print_json, progress, say
from modelc.compile.request import CompileRequest


@click.command()
@model_argument("modelc reduce MODEL.onnx -o SMALL.onnx")
@click.option("-o", "output", metavar="SMALL.onnx", type=PATH, help="Default: MODEL-reduced.onnx.")
@request_options(CompileRequest, "target", "config", "precision", "shapes", "dims", "constants", "states", "bounds")
@data_option("What it fails with (default: drawn).")
@click.option("--seed", metavar="N", type=click.IntRange(0, (1 << 63) - 1), default=0, help="Of what is drawn.")
@click.option(
    "--seconds",
    metavar="N",
    type=click.FloatRange(1, 86400),
    default=120,
    show_default=True,
    help="For one attempt, after which it counts as one that hangs.",
)
@json_option
def reduce(model: Path, as_json: bool, **options: Any) -> int:
    """Makes a failing model small: the few nodes that modelc refuses, computes wrongly or stumbles over, with inputs
    that show it."""
    from modelc.compile.reduction import reduce as reduced

    values = asked(options, model)
    with progress("reading the model") as then:
        reduction = reduced(model, **values, progress=lambda stage, text: then(text))
    if as_json:
        print_json("reduce", reduction.to_json())
    else:
        again = shlex.join(
            ["modelc", "compile", str(reduction.path), "--inputs", str(reduction.inputs), *reduction.options]
        )
        say(
            f"{reduction.left} of {reduction.nodes} nodes are left, after {reduction.attempts} attempts: "
            f"{reduction.path}"
        )
        failure = reduction.failure
        say(f"  fails as      {failure.kind}{f': {failure.sentence}' if failure.sentence else ''}")
        say(f"  inputs        {reduction.inputs}")
        say(f"  see it with   {again}")
    return 0
