"""Taps and channels as one reduction: the rule, text in and text out; where it is used; three ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from contractions import contractions
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_tasks import anchor_of, contraction, from_end_to_end, intrinsics_in
from three_ways import Example, check, emulated_target, random_inputs, run_task, task_of

from modelc.ir.block import Task
from modelc.ir.candidate import Stage
from modelc.ir.text import parse_task
from modelc.ir.verify import verify_task
from modelc.partition.narrow_task import in_narrow
from modelc.space.rules.derivation import constant_data, derive
from modelc.space.rules.fuse import fuse_rule
from modelc.space.rules.rule import DoesNotApply
from modelc.space.sketches.fusing import fused_taps, taps_of
from modelc.space.sketches.tensorized import IntrinsicUnit
from modelc.space.sketches.tiled_candidate import tiled_candidate
from modelc.space.sketches.tiled_rules import default_knobs
from modelc.target import load_target

SERVER = replace(
    load_target("x86-64-v4"),
    features=(*load_target("x86-64-v4").features, "avx512vnni", "avx512bf16", "amx-tile", "amx-int8", "amx-bf16"),
    intrinsics=None,
)
BF16 = ("bfloat16", "bfloat16")

CONV = """\
task conv(x0, x1) -> (y0) anchor conv
  in x0: float32[3, 9]
  const x1: float32[4, 3, 5]
  out y0: float32[4, 3]
  block conv [o:4 w:3 | c:3 s:5] add
    y0[o, w] += x0[c, w * 2 + s] * x1[o, c, s]"""


def conv(shape: Sequence[int], kernel: Sequence[int], last: bool = False, kinds: Sequence[str] = BF16, **attrs: Any):
    """A convolution of data as it is stored by models, or channels last."""
    shapes = [tuple(shape), (kernel[0], shape[1] // attrs.get("group", 1), *kernel[1:])]
    if kinds != BF16:
        return task_of("ConvInteger", attrs, shapes, [1], last, list(kinds))
    return in_narrow(task_of("Conv", attrs, shapes, [1], last), ["x0", "x1"], ["x0", "x1"])


def same(task: Task, stages: tuple[Stage, ...]) -> Task:
    """The Task after `stages`, which have to leave its meaning as it was."""
    after = derive(task, stages)
    verify_task(after)
    inputs = random_inputs(task)
    given = {n: constant_data(task, stages, n, x) if n in task.constants else x for n, x in inputs.items()}
    wanted, found = run_task(task, inputs), run_task(after, given)
    for name in task.outputs:
        np.testing.assert_allclose(
            found[name].astype(np.float64), wanted[name].astype(np.float64), rtol=1e-4, atol=1e-4
        )
    return after


# --- the rule ---------------------------------------------------------------------------------------------------------


def test_before_and_after() -> None:
    after = same(parse_task(CONV), (Stage("fuse", {"block": "conv", "outer": "s", "inner": "c", "multiple": 8}),))
    assert (
        str(after)
        == """\
task conv(x0, x1) -> (y0) anchor conv
  in x0: float32[3, 9]
  const x1: float32[4, 16]
  out y0: float32[4, 3]
  block conv [o:4 w:3 | sc:16] add
    where w * 2 + sc // 3 < 9
    y0[o, w] += x0[sc % 3, w * 2 + sc // 3] * x1[o, sc]"""
    )


def test_constants_have_zeros_after_the_taps() -> None:
    kernel = np.arange(60, dtype=np.float32).reshape(4, 3, 5)
    stages = (Stage("fuse", {"block": "conv", "outer": "s", "inner": "c", "multiple": 2}),)
    fused = constant_data(parse_task(CONV), stages, "x1", kernel)
    np.testing.assert_array_equal(fused[:, :15], kernel.transpose(0, 2, 1).reshape(4, 15))
    assert fused.shape == (4, 16) and not fused[:, 15].any()
    data = np.ones((3, 9), np.float32)
    assert constant_data(parse_task(CONV), stages, "x0", data) is data


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        (CONV, ("s", "s")),
        (CONV, ("s", "o")),  # not summed over
        (CONV.replace("x1[o, c, s]", "x1[o, c, s] * x0[c, w]"), ("s", "c")),
        (CONV.replace("const", "in"), ("s", "c")),
        (CONV.replace("x1[o, c, s]", "x1[o, c, 4 - s]"), ("s", "c")),
        (CONV.replace("[4, 3, 5]", "[4, 3, 5] stored reorder(0, 2, 1)"), ("s", "c")),
    ],
)
def test_what_is_no_dimension_of_a_constant_is_refused(text: str, pair: tuple[str, str]) -> None:
    with pytest.raises(DoesNotApply):
        fuse_rule(parse_task(text), "conv", *pair, multiple=2)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    channels=st.integers(1, 4),
    size=st.tuples(st.integers(5, 11), st.integers(5, 11)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 5)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    dilations=st.tuples(st.integers(1, 2), st.just(1)),
    multiple=st.integers(1, 9),
    last=st.booleans(),
)
def test_any_window(channels, size, kernel, strides, pads, dilations, multiple, last) -> None:
    """Both orders of the two reductions, before and after their conditions became a padded copy."""
    attrs = {"pads": list(pads), "strides": list(strides), "dilations": list(dilations)}
    task = conv((1, channels, *size), (4, *kernel), last, **attrs)
    for outer, inner in (("s", "c"), ("c", "s")):
        fuse = Stage("fuse", {"block": "conv", "outer": outer, "inner": inner, "multiple": multiple})
        after = same(task, (fuse,))
        if anchor_of(after).where:
            same(task, (fuse, Stage("pad", {"block": "conv", "buffer": "x0"})))


# --- where it is used -------------------------------------------------------------------------------------------------


def test_the_last_dimension_slides() -> None:
    task = conv((1, 3, 8, 9, 10), (8, 3, 3, 3))
    taps = taps_of(task, anchor_of(task))
    assert taps is not None and (taps.across, taps.channels) == (1, 3)
    assert f"+ {taps.tap}" in str(anchor_of(task).reads[0].indices[-1])


@pytest.mark.parametrize(
    "task",
    [
        conv((1, 3, 8, 8), (8, 3, 3), dilations=[1, 2]),  # taps that lie apart
        conv((1, 8, 8, 8), (8, 3, 3), group=4),  # some of the channels
        contraction(("MatMul", {}, (4, 8), (8, 16)), BF16),
        task_of("MaxPool", {"kernel_shape": [3, 3]}, [(1, 3, 8, 8)]),
        task_of("Conv", {}, [(1, 3, 8, 8), (8, 3, 3, 3)]),  # computed weights
    ],
    ids=["dilated", "groups", "matmul", "pool", "computed"],
)
def test_what_has_no_taps_and_channels(task: Task) -> None:
    assert taps_of(task, anchor_of(task)) is None and not list(fused_taps(task, SERVER, []))


@pytest.mark.parametrize(
    ("shape", "kernel", "depths"),
    [
        ((1, 3, 9, 9), (8, 3, 3), {10}),  # tiles and vectors take pairs
        ((1, 3, 40, 40), (8, 11, 11), {34, 36}),  # two tiles of 18, or pairs
        ((1, 3, 32, 32), (8, 16, 16), {48}),
        ((1, 16, 9, 9), (8, 3, 3), {48}),
        ((1, 32, 9, 9), (8, 3, 3), set()),  # the channels fill a tile
    ],
)
def test_how_deep_units_are(shape, kernel, depths: set[int]) -> None:
    found = [task for task, _ in fused_taps(conv(shape, kernel), SERVER, [])]
    assert {max(i.extent for i in anchor_of(task).reduction) for task in found} == depths


def test_bytes_are_taken_by_fours() -> None:
    (task, stages), *_ = fused_taps(conv((1, 3, 9, 9), (8, 3, 3), kinds=("uint8", "int8")), SERVER, [])
    assert max(i.extent for i in anchor_of(task).reduction) == 12 and stages[-1].rule == "cache_read"


# --- three ways -------------------------------------------------------------------------------------------------------

CASES: dict[str, Task] = {
    "7x7": conv((1, 3, 20, 20), (32, 7, 7), pads=[3] * 4, strides=[2, 2]),
    "3x3": conv((1, 3, 9, 11), (24, 3, 3), pads=[1] * 4),
    "unpadded": conv((2, 3, 9, 11), (16, 3, 3)),
    "channels last": conv((1, 3, 9, 11), (20, 3, 3), True, pads=[1] * 4),
    "patches": conv((1, 3, 32, 32), (32, 16, 16), strides=[16, 16]),
    "1D": conv((2, 2, 30), (17, 5), pads=[2, 2]),
    "3D": conv((1, 3, 4, 7, 9), (16, 3, 3, 3), pads=[1] * 6, strides=[1, 2, 2]),
    "one channel": conv((1, 1, 12, 12), (16, 5, 5), pads=[2] * 4),
    "half a tile": conv((1, 12, 6, 7), (16, 3, 3), True, pads=[1] * 4),
}


@pytest.mark.parametrize("case", CASES)
def test_blocks_nest_and_kernel_agree(case: str) -> None:
    task, target = CASES[case], emulated_target()
    tiled = [s.tiled for s in contractions(task, target)]
    units = [w for w in tiled if isinstance(w.unit, IntrinsicUnit) and any(s.rule == "fuse" for s in w.stages)]
    if not units:
        pytest.skip("this machine multiplies no bfloat16")
    for way in units:
        check(from_end_to_end(task), tiled_candidate(way, default_knobs(way)), target)


@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("int8", "int8")])
def test_bytes_agree(kinds: tuple[str, str]) -> None:
    task = conv((1, 3, 9, 11), (24, 3, 3), kinds=kinds, pads=[1] * 4)
    assert any(isinstance(s.tiled.unit, IntrinsicUnit) for s in contractions(task, SERVER))
    check(from_end_to_end(task), None, emulated_target())


def test_data_in_float32_is_rounded_on_the_way() -> None:
    """What the network is given: rounded where it is padded, in the order of the model, then turned."""
    text = str(conv((1, 3, 16, 16), (32, 3, 3), pads=[1] * 4)).replace("x0: bfloat16", "x0: float32")
    rounding = """\
  local r: bfloat16[1, 3, 16, 16]
  block round [a:1 b:3 c:16 d:16] assign
    r[a, b, c, d] = bfloat16(x0[a, b, c, d])
  block conv"""
    task = parse_task(text.replace("  block conv", rounding).replace("32(x0", "32(r"))
    sketch = next(s for s in contractions(task, SERVER) if s.name.startswith("amx-bf16"))
    candidate = sketch.candidate(sketch.start())
    assert intrinsics_in(candidate) == {"amx-bf16"}
    rules = [s.rule for s in candidate.stages]
    assert rules[rules.index("fuse") :][:4] == ["fuse", "pad", "inline", "cache_read"]
    check(Example(task, random_inputs(task)), None, emulated_target())
