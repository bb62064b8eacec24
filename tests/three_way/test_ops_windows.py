"""Convolution and pooling of any geometry, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from operator_cases import Case, check, defined

from modelc.errors import ModelError


@st.composite
def windows(draw: st.DrawFn, rank: int, transposed: bool = False) -> tuple[list[int], list[int], dict[str, list[int]]]:
    """Space, kernel and attributes of a window that fits."""
    few = st.integers(1, 3)
    kernel = [draw(few) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    strides = [draw(few) for _ in range(rank)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = [draw(st.integers(0, k - 1)) for k in kernel * 2]
    space = [draw(st.integers(1 if transposed else r, 8)) for r in reach]
    return space, kernel, {"dilations": dilations, "strides": strides, "pads": pads}


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.booleans())
def test_convolution(
    data: st.DataObject, rank: int, groups: int, channels: int, outputs: int, transposed: bool
) -> None:
    space, kernel, attrs = data.draw(windows(rank, transposed))
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, groups * channels, *space)).astype(np.float32)
    first, second = (groups * channels, outputs) if transposed else (groups * outputs, channels)
    w = rng.standard_normal((first, second, *kernel)).astype(np.float32)
    case = Case("ConvTranspose" if transposed else "Conv", (x, w), {**attrs, "group": groups})
    try:
        defined(case)
    except ModelError:
        assume(False)
    check(case)


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(1, 3), st.sampled_from(["MaxPool", "AveragePool"]), st.booleans(), st.booleans())
def test_pooling(data: st.DataObject, rank: int, op: str, ceil: bool, include: bool) -> None:
    space, kernel, attrs = data.draw(windows(rank))
    x = np.random.default_rng(2).standard_normal((1, 2, *space)).astype(np.float32)
    extra = {"count_include_pad": int(include)} if op == "AveragePool" else {}
    case = Case(op, (x,), {**attrs, "kernel_shape": kernel, "ceil_mode": int(ceil), **extra})
    check(case)


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(1, 2), st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
def test_automatic_padding(data: st.DataObject, rank: int, mode: str) -> None:
    space, kernel, attrs = data.draw(windows(rank))
    rng = np.random.default_rng(3)
    x = rng.standard_normal((1, 2, *space)).astype(np.float32)
    w = rng.standard_normal((3, 2, *kernel)).astype(np.float32)
    check(Case("Conv", (x, w), {"strides": attrs["strides"], "auto_pad": mode}))
