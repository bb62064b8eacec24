"""modelc reduce"""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from modelc.cli.fixing import data_option, fixed, fixing_options, given_data, kept, kept_options
from modelc.cli.output import config_option, json_option, precision_option, print_json, progress, say, target_option
from modelc.cli.places import model_argument


@click.command()
@model_argument("modelc reduce MODEL.onnx -o SMALL.onnx")
@click.option(
    "-o", "output", metavar="SMALL.onnx", type=click.Path(path_type=Path), help="Default: MODEL-reduced.onnx."
)
@target_option("The machine to compile for (default: native, this one)")
@config_option
@precision_option
@fixing_options
@kept_options
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
def reduce(
    model: Path,
    output: Path | None,
    target: str | None,
    config: str | None,
    precision: str | None,
    shapes: tuple[str, ...],
    dims: tuple[str, ...],
    constants: tuple[str, ...],
    states: tuple[str, ...],
    bounds: tuple[str, ...],
    inputs: Path | None,
    seed: int,
    seconds: float,
    as_json: bool,
) -> int:
    """Makes a failing model small: the few nodes that modelc refuses, computes wrongly or stumbles over, with inputs
    that show it."""
    from modelc.compile.reduction import reduce as reduced

    given = fixed(shapes, dims, constants) | kept(states, bounds) | {"inputs": given_data(inputs, model)}
    with progress("reading the model") as then:
        reduction = reduced(
            model,
            output,
            target,
            config,
            precision,
            **given,
            seed=seed,
            seconds=seconds,
            progress=lambda stage, text: then(text),
        )
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
