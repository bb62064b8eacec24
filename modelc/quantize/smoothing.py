"""What the channels of a value are divided by, so that one scale fits them (modelc/frontend/quantize/equalise.py)."""

from __future__ import annotations

import numpy as np

from modelc.frontend.quantize.recipe import Floats

LEAST = 1e-3  # of the greatest divisor


def divisors_of(activations: Floats, weights: Floats | None) -> Floats:
    """From the greatest magnitudes of each channel, and of what it is multiplied with: without `weights` those read it
    that have a scale for each channel, and all channels become alike; otherwise half of the difference goes into the
    weights, as SmoothQuant has it (alpha = 0.5). The greatest divisor is 1."""
    used = activations > 0
    if weights is None:
        divisors = np.where(used, activations, activations.max(initial=0))
    else:
        used &= weights > 0
        ratios = np.sqrt(np.divide(activations, weights, out=np.ones_like(activations), where=used))
        divisors = np.where(used, ratios, ratios[used].max(initial=1))
    largest = divisors.max(initial=0)
    if largest <= 0:
        return np.ones_like(activations)
    scaled: Floats = np.maximum(divisors / largest, LEAST).astype(np.float32)
    return scaled
