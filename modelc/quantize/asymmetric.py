"""Which layers can have asymmetric weights: those whose outputs are nearer by a quarter of the squared error so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from modelc.frontend.quantize.floats import FloatModel
from modelc.frontend.quantize.layers import Layer
from modelc.frontend.quantize.weights import as_bytes
from modelc.quantize.samples import Arrays
from modelc.quantize.trials import Alone, Say, tried

WORTH = 0.75  # of a layer's squared error, for which its weights have zero points


def nearer(
    floats: FloatModel,
    layers: Sequence[Layer],
    symmetric: Alone,
    most: int,
    samples: Sequence[Arrays],
    folder: Path,
    threads: int,
    say: Say,
) -> tuple[list[Layer], Alone]:
    """Those of the `layers` that are nearer so, on samples, and what trials say of them; `symmetric` is what these say
    of the layers with symmetric weights. Only those are tried whose weights are nearer: what these are off by is part
    of what outputs are, and nothing else becomes less."""
    hopeful = [layer for layer in layers if _weights_are_nearer(floats, layer, most)]
    if not hopeful:
        return [], Alone({}, {}, {})
    ranges = {layer.rounded: (symmetric.ranges[layer.rounded],) for layer in hopeful}
    alone = tried(floats, hopeful, ranges, most, samples, folder, threads, say, asymmetric=True)
    worth = [layer for layer in hopeful if alone.errors[layer.name] ** 2 < WORTH * symmetric.errors[layer.name] ** 2]
    return worth, alone


def _weights_are_nearer(floats: FloatModel, layer: Layer, most: int) -> bool:
    weights = floats.array(layer.weights)
    assert weights is not None
    symmetric, asymmetric = (
        float(np.square(as_bytes(weights, layer.axis, most, zeros).real() - weights, dtype=np.float64).sum())
        for zeros in (False, True)
    )
    return asymmetric < WORTH * symmetric
