"""The flags of quantizing: --calibrate, --metric, --max-drop; --weights, --block; --emit-onnx. The table of what was
decided."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from modelc.cli.output import shortened, show

if TYPE_CHECKING:
    from modelc.frontend.quantize.packing import Packing
    from modelc.frontend.quantize.recipe import Recipe
    from modelc.quantize.calibration import Calibration

F = TypeVar("F", bound=Callable[..., Any])
_SHARE = re.compile(r"([0-9]{1,3}\.?[0-9]{0,9}|\.[0-9]{1,9})( ?%)?")
MOST_NAME = 48  # characters of a layer's name in the table


def quantizing_options(function: F) -> F:
    """What `calibration_of` takes, --weights, --block and --emit-onnx."""
    path = click.Path(path_type=Path)
    for option in (
        click.option(
            "--emit-onnx",
            metavar="Q.onnx",
            type=path,
            help="Also write the quantized model, for other engines: layers in float16 are float32 in it.",
        ),
        click.option(
            "--block",
            metavar="N",
            type=click.Choice(["16", "32", "64", "128", "256"]),
            help="How many weights of 4 bits have one scale, for --weights (default: 32).",
        ),
        click.option(
            "--weights",
            type=click.Choice(["int4", "int4-float"]),
            help="Store the weights of MatMul and Gemm in 4 bits by block, and multiply them by activations in int8 by "
            "block (int4), or in float32 (int4-float).",
        ),
        click.option(
            "--max-drop",
            metavar="SHARE",
            help="How much worse than the float model outputs may be on samples that are held back: 1% (the default), "
            "0.005.",
        ),
        click.option(
            "--metric",
            metavar="FILE.py:FUNCTION",
            help="What the drop is measured by: a function of the outputs and of the sample, arrays by name, more for "
            "better (default: classes that agree, or the relative error). The file is executed.",
        ),
        click.option(
            "--calibrate",
            metavar="DATA.npz|FOLDER",
            type=path,
            help="Samples by which the model is quantized: arrays with a leading axis of samples, or a file for each. "
            "For --precision int8 or auto.",
        ),
    ):
        function = option(function)
    return function


def calibration_of(calibrate: Path | None, metric: str | None, max_drop: str | None) -> Calibration | None:
    """What the flags say; None where the model is not calibrated."""
    if calibrate is None:
        for flag, given in (("--metric", metric), ("--max-drop", max_drop)):
            if given is not None:
                raise click.UsageError(f"{flag} is for --calibrate DATA.npz, which is not given")
        return None
    from modelc.quantize.calibration import MAX_DROP, Calibration

    return Calibration(calibrate, metric, MAX_DROP if max_drop is None else share_of(max_drop))


def share_of(text: str) -> float:
    """1% or 0.01 as a share."""
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text[:80]!r}: expected a share, such as 1% or 0.01", param_hint="--max-drop")
    return float(match[1]) / (100 if match[2] else 1)


def show_packing(packing: Packing) -> None:
    """The table of the products, and what their weights are off by."""
    rows = [
        (
            shortened(layer.name, MOST_NAME),
            f"{layer.bits} bits by {layer.block}" if layer.bits else "as they were",
            "by block" if layer.zeros else "",
            f"{layer.error:.2%}" if layer.bits else "",
            layer.why,
        )
        for layer in packing.layers
    ]
    show(("layer", "weights", "zero points", "error of weights", "why"), rows)


def show_recipe(recipe: Recipe) -> None:
    """The table of the layers, and the drop."""
    rows = [
        (
            shortened(layer.name, MOST_NAME),
            layer.dtype,
            layer.weights,
            f"{layer.alone:.3%}",
            f"{layer.network:.3%}",
            f"{1e6 * layer.saved_seconds:.1f}",
            layer.why,
        )
        for layer in recipe.layers
    ]
    show(("layer", "dtype", "weights", "error alone", "error in the network", "saved µs, estimated", "why"), rows)
