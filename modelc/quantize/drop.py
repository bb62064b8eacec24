"""A drop: how much worse the outputs of a quantized model are than those of the float model; relative errors, and how
figures of both are said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from modelc.quantize.samples import Arrays


class Drop(NamedTuple):
    """`share` is what is compared with --max-drop; `said` is the sentence."""

    share: float
    said: str


def relative_error(outputs: Sequence[Arrays], wanted: Sequence[Arrays], names: Sequence[str]) -> float:
    """The greatest relative error, root of the mean square, of the outputs `names`."""
    worst = 0.0
    for name in names:
        off, size = 0.0, 0.0
        for made, right in zip(outputs, wanted, strict=True):
            exact = right[name].astype(np.float64)
            off += float(np.square(made[name] - exact).sum())
            size += float(np.square(exact).sum())
        worst = max(worst, math.sqrt(off / size) if size else float(off > 0))
    return worst if math.isfinite(worst) else math.inf


def real_outputs(wanted: Sequence[Arrays]) -> tuple[str, ...]:
    """The outputs that are real numbers, and finite."""
    return tuple(
        name
        for name, array in wanted[0].items()
        if array.dtype.kind == "f" and array.size and all(np.isfinite(outputs[name]).all() for outputs in wanted)
    )


def rounded(number: float) -> float:
    """As many digits as say something."""
    return float(f"{number:.6g}")


def rows_of(outputs: Sequence[Arrays], name: str, dims: int) -> int:
    """How many rows an output has in all samples, along its first `dims` dimensions."""
    return sum(math.prod(made[name].shape[:dims]) for made in outputs) or 1
