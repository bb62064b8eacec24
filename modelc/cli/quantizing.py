"""The tables of what was decided for layers that are quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelc.cli.output import shortened, show

if TYPE_CHECKING:
    from modelc.frontend.quantize.packing import Packing
    from modelc.frontend.quantize.recipe import Recipe

MOST_NAME = 48  # characters of a layer's name in the table


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
