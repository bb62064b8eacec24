"""modelc verify"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from modelc.cli.importing import import_quickly
from modelc.cli.options import PATH, Finite, asked, no_package, package_argument
from modelc.cli.output import complain, json_option, print_json, say, show
from modelc.cli.progress_bar import VERIFYING, Staged, bar

if TYPE_CHECKING:
    from modelc.verify.kernels.report import KernelReport
    from modelc.verify.report import LayerReport, OutputReport, Report

CHECKS = ("quick", "default", "thorough")  # EFFORTS of samples.py, whose import takes long


USAGE = "modelc verify PKG.modelc --against MODEL.onnx"


def _by_against(context: click.Context, option: click.Parameter, given: str | None) -> None:
    if given is not None:
        raise click.UsageError(f"verify takes the model by --against, not by --model: {USAGE}", context)


@click.command()
@package_argument(USAGE)
@click.option("--against", "model", metavar="MODEL.onnx", required=True, type=PATH, callback=no_package(USAGE))
@click.option("--model", "misnamed", hidden=True, expose_value=False, is_eager=True, callback=_by_against)
@click.option("--inputs", metavar="F.npz", type=PATH, help="Inputs by name.")
@click.option("--seed", metavar="N", type=click.IntRange(0), default=0, show_default=True, help="Of the drawn inputs.")
@click.option("--samples", metavar="N", type=click.IntRange(1), default=2, show_default=True, help="Inputs to draw.")
@click.option("--rtol", metavar="X", type=Finite(0), default=1e-3, show_default=True)
@click.option("--atol", metavar="X", type=Finite(0), default=1e-4, show_default=True)
@click.option("--per-layer", is_flag=True, help="Show every kernel, and compare each with ONNX Runtime's piece too.")
@click.option(
    "--check",
    type=click.Choice(CHECKS),
    default="default",
    show_default=True,
    help="How many numbers of each kernel to judge.",
)
@json_option
def verify(package: Path, model: Path, per_layer: bool, as_json: bool, **options: Any) -> int:
    """Judges every kernel of a package by itself, on samples and in float64, and compares the whole with ONNX Runtime:
    |a - b| <= ATOL + RTOL * |b|. Loading a package executes the library in it."""
    import_quickly("modelc.compile.verification")
    from modelc.compile.verification import verify as verify_package

    values = asked(options, package)
    with bar() as view:
        follow = Staged(view, VERIFYING, lines=False).follow
        report = verify_package(package, model, per_layer=per_layer, **values, progress=follow)
    for note in (*report.notes, *filter(None, [report.opening])):
        complain(f"modelc: {note}")
    if as_json:
        print_json("verify", report.to_json())
        return 0 if report.passed else 1
    if per_layer:
        show_kernels(report)
    rows = []
    for output in report.outputs:
        d = output.distance
        share = f"{100 * d.share:.2g} %" if output.near or not output.passed else ""
        of_scale = "" if output.small else f"{d.of_scale:.1e}"
        figures = (f"{d.max_abs:.1e}", of_scale, share, f"{d.cosine:.7f}")
        rows.append((output.name, *figures, _word(output)))
    show(("output", "largest difference", "of its scale", "of what is allowed", "cosine", ""), rows)
    say(f"{package} {report.sentence()}")
    return 0 if report.passed else 1


def show_kernels(report: Report) -> None:
    """Every kernel: by its meaning, and beside ONNX Runtime's piece where there is one."""
    pieces = {layer.kernel: layer for layer in report.layers}
    rows = []
    for kernel in report.kernels:
        piece = pieces.get(kernel.kernel)
        beside = f"{piece.distance.rms_rel:.1e}" if piece else ""
        judged = f"{kernel.worst:.2f}" if kernel.samples else ""
        value = piece.value if piece else ""
        rows.append((kernel.kernel, value, f"{kernel.samples:,}", judged, beside, _kernel_word(kernel, piece)))
    show(("kernel", "value", "samples", "of what is allowed", "from ONNX Runtime", ""), rows)
    first = report.first_departure
    where = f"{first.kernel} ({', '.join(first.nodes)})" if first else "none"
    say(f"first kernel that departs: {where}")


def _word(output: OutputReport) -> str:
    if not output.passed:
        return "FAILED"
    return "amplified" if output.amplified else "small, its kernels right" if output.small else "passed"


def _kernel_word(kernel: KernelReport, piece: LayerReport | None) -> str:
    if not kernel.passed:
        return "WRONG"
    if piece is not None and not piece.passed:
        return "departs"
    if kernel.unjudged:
        return "not judged"
    return f"{piece.steps} at ties" if piece is not None and piece.steps else ""
