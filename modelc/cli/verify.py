"""modelc verify"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelc.arrays import read_npz
from modelc.cli.number import Finite
from modelc.cli.output import complain, json_option, print_json, progress, say, show
from modelc.cli.places import no_package, package_argument

if TYPE_CHECKING:
    from modelc.verify.report import LayerReport


USAGE = "modelc verify PKG.modelc --against MODEL.onnx"


def _by_against(context: click.Context, option: click.Parameter, given: str | None) -> None:
    if given is not None:
        raise click.UsageError(f"verify takes the model by --against, not by --model: {USAGE}", context)


@click.command()
@package_argument(USAGE)
@click.option(
    "--against",
    "model",
    metavar="MODEL.onnx",
    required=True,
    type=click.Path(path_type=Path),
    callback=no_package(USAGE),
)
@click.option("--model", "misnamed", hidden=True, expose_value=False, is_eager=True, callback=_by_against)
@click.option("--inputs", metavar="F.npz", type=click.Path(path_type=Path), help="Inputs by name.")
@click.option("--seed", metavar="N", type=click.IntRange(0), default=0, show_default=True, help="Of the drawn inputs.")
@click.option("--samples", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="Inputs to draw.")
@click.option("--rtol", metavar="X", type=Finite(0), default=1e-3, show_default=True)
@click.option("--atol", metavar="X", type=Finite(0), default=1e-4, show_default=True)
@click.option("--per-layer", is_flag=True, help="Compare every kernel's result, and name the first that departs.")
@json_option
def verify(
    package: Path,
    model: Path,
    inputs: Path | None,
    seed: int,
    samples: int,
    rtol: float,
    atol: float,
    per_layer: bool,
    as_json: bool,
) -> int:
    """Compares a package with ONNX Runtime: passed where |a - b| <= ATOL + RTOL * |b|. Loading a package executes the
    library in it."""
    from modelc.verification import verify as verify_package

    feed = None if inputs is None else read_npz(inputs)
    with progress("comparing with ONNX Runtime"):
        report = verify_package(package, model, feed, seed, samples, rtol, atol, per_layer)
    for note in report.notes:
        complain(f"modelc: {note}")
    if as_json:
        print_json(report.to_json())
        return 0 if report.passed else 1
    if per_layer:
        layers = [(x.kernel, x.value, x.distance, _verdict(x)) for x in report.layers]
        show(
            ("kernel", "value", "max abs", "rms rel", ""),
            [(kernel, value, f"{d.max_abs:.1e}", f"{d.rms_rel:.1e}", verdict) for kernel, value, d, verdict in layers],
        )
        first = report.first_departure
        where = f"{first.kernel} ({', '.join(first.nodes)})" if first else "none"
        say(f"first kernel that departs: {where}")
    rows = []
    for output in report.outputs:
        d, f = output.distance, output.float64
        truth = f"{f.ours_rms:.1e} / {f.reference_rms:.1e}" if f else ""
        figures = (f"{d.max_abs:.1e}", f"{d.max_rel:.1e}", f"{d.rms_rel:.1e}", f"{d.cosine:.7f}", truth)
        rows.append((output.name, *figures, "passed" if output.passed else "FAILED"))
    show(("output", "max abs", "max rel", "rms rel", "cosine", "float64: ours / reference", ""), rows)
    say(f"{package} {report.sentence()}")
    return 0 if report.passed else 1


def _verdict(layer: LayerReport) -> str:
    if not layer.distance.passed:
        return "departs"
    return f"{layer.steps} at ties" if layer.steps else ""
