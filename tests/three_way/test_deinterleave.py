"""Convolutions with a stride read copies in which every so many elements lie side by side."""

from math import prod

import pytest
from contractions import contractions
from derivations import derived, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from three_ways import check, host_target, task_of

from modelc.ir.block import Task
from modelc.ir.nest import Leaf, walk
from modelc.policy import Policy
from modelc.space.choose import chosen
from modelc.space.sketches.tiled_candidate import tiled_candidate
from modelc.space.sketches.tiled_rules import default_knobs
from modelc.space.tiling.tiled import Tiled
from modelc.target import load_target

STRIDED = """\
task conv(x0, x1) -> (y0) anchor conv
  in x0: float32[2, {wide}]
  in x1: float32[3, 2, {taps}]
  out y0: float32[3, {out}]
  local p: float32[2, {wide}]
  block pad [c:2 x:{wide}] assign
    p[c, x] = {value}
  block conv [o:3 w:{out} | c:2 s:{taps}] add
    y0[o, w] += p[c, {index}] * x1[o, c, s]"""


def test_every_remainder_that_is_read_is_a_row_of_its_own() -> None:
    text = STRIDED.format(wide=9, taps=3, out=4, value="x0[c, x]", index="w * 2 + s")
    assert (
        derived(text, "deinterleave", buffer="p", dim=1, size=2)
        == """\
task conv(x0, x1) -> (y0) anchor conv
  in x0: float32[2, 9]
  in x1: float32[3, 2, 3]
  out y0: float32[3, 4]
  local p: float32[2, 2, 5]
  block pad [c:2 xr:2 xq:5] assign
    p[c, xr, xq] = select(xq * 2 + xr < 9, x0[c, xq * 2 + xr], float32(0.0))
  block conv [o:3 w:4 | c:2 s:3] add
    y0[o, w] += p[c, s % 2, w + s // 2] * x1[o, c, s]"""
    )


def test_what_is_never_read_is_not_copied() -> None:
    text = STRIDED.format(wide=9, taps=2, out=2, value="x0[c, x]", index="w * 3 + s * 3 + 1")
    after = derived(text, "deinterleave", buffer="p", dim=1, size=3)
    assert "local p: float32[2, 1, 3]" in after and "p[c, xr, xq] = x0[c, xq * 3 + 1]" in after
    assert "p[c, 0, w + s]" in after


def test_padding_needs_no_more_padding() -> None:
    value = "select(x - 1 >= 0, select(x - 1 < 7, x0[c, x - 1], float32(0.0)), float32(0.0))"
    text = STRIDED.format(wide=9, taps=3, out=4, value=value, index="w * 2 + s")
    after = derived(text, "deinterleave", buffer="p", dim=1, size=2)
    assert "< 9" not in after and "local p: float32[2, 2, 5]" in after


def test_a_copy_in_another_order_keeps_it() -> None:
    text = STRIDED.format(wide=9, taps=1, out=4, value="x0[c, x]", index="w * 2")
    text = text.replace("local p: float32[2, 9]", "local p: float32[2, 9] stored reorder(1, 0)")
    after = derived(text, "deinterleave", buffer="p", dim=1, size=2)
    assert "local p: float32[2, 1, 5] stored reorder(1, 2, 0)" in after and "p[c, 0, w]" in after


def test_refusals() -> None:
    text = STRIDED.format(wide=9, taps=3, out=4, value="x0[c, x]", index="w * 2 + s")
    assert "no copy" in refused(text, "deinterleave", buffer="x0", dim=1, size=2)
    assert "no copy" in refused(text, "deinterleave", buffer="y0", dim=1, size=2)
    crossed = text.replace("p[c, x] =", "p[c, x // 1] =")
    assert "plainly" in refused(crossed, "deinterleave", buffer="p", dim=1, size=2)


def unstaged(task: Task) -> Tiled:
    return contractions(task, host_target())[-1].tiled


def strided(height: int, wide: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]) -> Task:
    attrs = {
        "strides": (1, stride),
        "dilations": (1, dilation),
        "pads": (0, pads[0], 0, pads[1]),
    }
    return task_of("Conv", attrs, [(2, 3, height, wide), (20, 3, 1, kernel)], consts=(1,))


@settings(deadline=None, max_examples=6)
@given(
    st.integers(1, 3),
    st.integers(9, 90),
    st.integers(1, 4),
    st.integers(2, 4),
    st.integers(1, 2),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_strided_convolutions(
    height: int, wide: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]
) -> None:
    task = strided(height, wide, kernel, stride, dilation, pads)
    way = unstaged(task)
    if way.vector == "w":  # whose copy begins with another dimension, if windows do not overlap
        copies = [s for s in way.stages if s.rule == "deinterleave"]
        rows = [r.strides["w"] for r in way.reads]
        assert (len(copies) == 1 and {*rows} <= {0, 1}) or kernel == stride
    check(task, tiled_candidate(way, default_knobs(way)))


def test_copies_end_where_the_last_vector_does() -> None:
    """19 elements are two vectors, of which the second is read whole."""
    task = strided(2, 39, 3, 2, 1, (0, 0))
    way = unstaged(task)
    candidate = tiled_candidate(way, default_knobs(way))
    assert way.vector == "w" and [s.rule for s in way.stages][-2:] == ["deinterleave", "extend"]
    assert candidate.blocks[way.anchor.name].padded == ("w",)
    check(task, candidate)


@pytest.mark.parametrize("strides", [(2, 2), (1, 3), (3, 1)])
def test_what_a_stride_leaves_out_is_not_transposed(strides: tuple[int, int]) -> None:
    """Channels innermost, of the pixels that are read."""
    attrs = {"strides": strides}
    task = task_of("Conv", attrs, [(2, 32, 9, 14), (256, 32, 1, 1)], consts=(1,))
    way = contractions(task, host_target())[0].tiled
    (copy,) = (b for b in way.task.locals if b.name == "x0_packed")
    assert prod(copy.shape) == 2 * 32 * -(-9 // strides[0]) * -(-14 // strides[1])
    check(task, tiled_candidate(way, default_knobs(way)))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_small_first_convolution_is_stored_as_it_is_computed(stride: int) -> None:
    """Vectors along pixels: nothing is transposed, and copies have no conditions left in their vectors."""
    attrs = {"strides": (stride, stride), "pads": (3,) * 4}
    task = task_of("Conv", attrs, [(1, 3, 64, 64), (64, 3, 7, 7)], consts=(1,))
    found = chosen(task, load_target("x86-64-v4"), policy=Policy(tensorize=False, winograd=False))
    rules = [s.rule for s in found.candidate.stages]
    assert ("deinterleave" in rules) == (stride == 2)
    leaves = [s for phase in found.nest.phases for s in walk(phase) if isinstance(s, Leaf)]
    assert not any("select" in str(leaf) for leaf in leaves)
