"""ONNX's own tests of nodes, collected in a fifth of the time: its reference implementation pools one pixel after
another, in Python, which takes ten seconds."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from onnx.backend.test.case.node import collect_testcases
from onnx.reference.ops import op_pool_common


def pool(
    padded: np.ndarray, x_shape: Sequence[int], kernel: Sequence[int], strides: Sequence[int] | None,
    out_shape: Sequence[int], pooling_type: str, pads_required: Sequence[int] | None = None,
    pads: Sequence[int] | None = None, dilations: Sequence[int] | None = None, count_include_pad: int = 0, p: int = 1,
) -> np.ndarray:  # fmt: skip
    """What ONNX's function of this name gives: a NaN, and what lies beyond the padding, is in no window."""
    rank = len(kernel)
    strides, dilations, pads = strides or [1] * rank, [1] * rank if dilations is None else dilations, pads or [0] * 2
    pads = [*pads] * rank if len(pads) != 2 * rank else pads
    used = tuple(slice(x_shape[i + 2] + pads[i] + pads[i + rank]) for i in range(rank))
    inside = padded[(..., *used)].astype(np.float64)
    reach = [(out_shape[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 for i in range(rank)]
    missing = [(0, max(reach[i] - inside.shape[i + 2], 0)) for i in range(rank)]
    inside = np.pad(inside, [(0, 0), (0, 0), *missing], constant_values=np.nan)
    places = itertools.product(*(range(0, kernel[i] * dilations[i], dilations[i]) for i in range(rank)))
    windows = np.stack(
        [
            inside[(..., *(slice(at[i], at[i] + out_shape[i] * strides[i], strides[i]) for i in range(rank)))]
            for at in places
        ]
    )
    if pooling_type == "MAX":
        pooled = np.nanmax(windows, 0)
    elif pooling_type == "AVG":
        pooled = np.nanmean(windows, 0)
    else:
        pooled = np.nansum(np.abs(windows) ** p, 0) ** (1 / p)
    return pooled.astype(padded.dtype)


@cache
def node_tests() -> list[Any]:
    """ONNX's own tests of nodes. From then on pooling is quick in this process."""
    op_pool_common.pool = pool
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(collect_testcases(None))
