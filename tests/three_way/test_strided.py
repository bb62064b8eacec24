"""Vectors whose lanes lie a few elements apart are taken out of vectors that are loaded whole."""

import pytest
from contractions import contractions
from three_ways import check, host_target, task_of

from modelc.ir.text import parse_task
from modelc.space.analysis.access import MOST_STEP, near, pieces

EVERY = """\
task every(x0) -> (y0) anchor every
  in x0: {dtype}[3, {extent}]
  out y0: {dtype}[3, {count}]
  block every [b:3 c:{count}] assign
    y0[b, c] = {value}"""


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "bool"])
@pytest.mark.parametrize("step", range(2, MOST_STEP + 2))
@pytest.mark.parametrize("count", [5, 16, 37])
@pytest.mark.sweep(8)
def test_nothing_is_read_beyond_the_last_lane(dtype: str, step: int, count: int) -> None:
    """The operand ends with the last element that is wanted."""
    for value in (f"x0[b, c * {step}]", f"x0[b, c * {step}] + x0[b, c * {step} + 1]"):
        if "+ x0" in value and dtype == "bool":
            continue
        extent = (count - 1) * step + 1 + ("+ x0" in value)
        check(parse_task(EVERY.format(dtype=dtype, extent=extent, count=count, value=value)))


@pytest.mark.parametrize("strides", [1, 2, 3])
@pytest.mark.sweep(1)
def test_depthwise_convolutions_walk_along_rows_of_pixels(strides: int) -> None:
    attrs = {"pads": (1,) * 4, "strides": (strides,) * 2, "group": 6}
    task = task_of("Conv", attrs, [(2, 6, 23, 41), (6, 1, 3, 3)], consts=(1,))
    way = contractions(task, host_target())[-1].tiled
    assert way.vector == "w" and {r.strides["w"] for r in way.reads} == {strides, 0}
    check(task)


def test_steps() -> None:
    assert [near(s) for s in (None, -2, 0, 1, 2, MOST_STEP, MOST_STEP + 1)] == [False] * 4 + [True] * 2 + [False]
    assert [pieces(s) for s in (0, 1, 2, 4, 5)] == [1, 1, 3, 7, 1]
