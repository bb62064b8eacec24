"""Windows over maps of one element have one tap there: the same as ONNX Runtime, with fewer multiplications."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from operator_cases import Case, check, defined
from three_ways import Example, host_target, random_inputs, started, task_of
from three_ways import check as check_kernel

from modelc.errors import ModelError
from modelc.ir.block import Block


def test_the_taps_of_small_maps_are_those_of_onnxruntime() -> None:
    single = [0]

    @settings(max_examples=120, deadline=None)
    @given(st.data(), st.booleans())
    def small(data: st.DataObject, transposed: bool) -> None:
        kernel, space, pads = [], [], ([], [])
        attrs: dict[str, list[int]] = {"dilations": [], "strides": []}
        for _ in range(2):
            kernel.append(data.draw(st.integers(1, 4)))
            space.append(data.draw(st.integers(1, 2)))
            attrs["dilations"].append(data.draw(st.integers(1, 2)))
            attrs["strides"].append(data.draw(st.integers(1, 3)))
            for side in pads:
                side.append(data.draw(st.integers(0, kernel[-1])))
        rng = np.random.default_rng(4)
        x = rng.standard_normal((1, 3, *space)).astype(np.float32)
        w = rng.standard_normal(((3, 2) if transposed else (2, 3)) + tuple(kernel)).astype(np.float32)
        case = Case("ConvTranspose" if transposed else "Conv", (x, w), {**attrs, "pads": [*pads[0], *pads[1]]})
        try:
            defined(case)
        except ModelError:
            assume(False)
        definition = check(case)
        (block,) = (b for b in definition.blocks if isinstance(b, Block) and b.reduction)
        for size, taps, one in zip(space, kernel, block.iters[-2:], strict=True):
            single[0] += size == 1 < taps and one.extent == 1

    small()
    assert single[0] > 5


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "points"),
    [
        ("ConvTranspose", [(1, 20, 1, 1), (20, 24, 4, 4)], {"pads": [0] * 4}, 20 * 24 * 16),  # of each tap one result
        ("ConvTranspose", [(1, 20, 1, 1), (20, 24, 4, 4)], {"pads": [1] * 4, "strides": [2, 2]}, 20 * 24 * 4),
        ("Conv", [(1, 20, 1, 1), (24, 20, 3, 3)], {"pads": [1] * 4}, 20 * 24),  # the middle tap alone
        ("Conv", [(1, 20, 5, 1), (24, 20, 3, 3)], {"pads": [1] * 4}, 20 * 24 * 15),  # the middle column
        ("Conv", [(1, 24, 1, 1), (24, 1, 3, 3)], {"pads": [1] * 4, "group": 24}, 24),
        ("Conv", [(1, 20, 2, 2), (24, 20, 3, 3)], {"pads": [1] * 4}, 20 * 24 * 4 * 9),  # no tap is known
    ],
    ids=["outer product", "phases", "one tap", "one column", "depthwise", "two"],
)
def test_kernels_multiply_once_for_each_tap_that_meets_something(op, shapes, attrs, points) -> None:
    task = task_of(op, attrs, shapes, consts=[1], channels_last=True)
    anchor = next(b for b in task.blocks if isinstance(b, Block) and b.name == task.anchor)
    assert anchor.points() == points
    check_kernel(Example(task, random_inputs(task)), started(task, host_target()), host_target())
