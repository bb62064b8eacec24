"""scripts/spatial_tiles.py: a Task on tiles by unfold computes what the whole does, in three ways."""

from __future__ import annotations

import numpy as np
import pytest
import spatial_tiles
from three_ways import Example, check, random_inputs, run_task, task_of

from modelc.ir.evaluate import evaluate
from modelc.ir.expr import Var
from modelc.ir.layout import Layout


@pytest.mark.parametrize(
    ("op", "attrs", "shapes", "size"),
    [
        ("Conv", {"pads": [1] * 4}, [(1, 3, 8, 12), (16, 3, 3, 3), (16,)], 4),
        ("Conv", {"pads": [3] * 4, "strides": [2, 2]}, [(2, 3, 16, 16), (16, 3, 7, 7), (16,)], 2),
        ("Conv", {"pads": [2] * 4, "dilations": [2, 2], "group": 16}, [(1, 16, 6, 6), (16, 1, 3, 3), (16,)], 3),
    ],
)
def test_tiles_that_overlap_compute_what_the_whole_does(op, attrs, shapes, size) -> None:
    task = task_of(op, attrs, shapes, (1, 2))
    stored, layout = spatial_tiles.tiled(task, size), spatial_tiles.unfolded(task, size)
    inputs = random_inputs(task)
    wanted = run_task(task, inputs)["y0"]
    n, o, h, w = wanted.shape
    wanted = wanted.reshape(n, o, h // size, size, w // size, size).transpose(0, 2, 4, 1, 3, 5)
    given = {**inputs, "x0": unfolded(inputs["x0"], layout)}
    assert given["x0"].shape == stored.buffer("x0").shape
    np.testing.assert_allclose(run_task(stored, given)["y0"], wanted, rtol=1e-4, atol=1e-4)
    check(Example(stored, given, {"y0": np.ascontiguousarray(wanted)}))


def unfolded(x: np.ndarray, layout: Layout) -> np.ndarray:
    """Every element of the layout, by the index that it inverts to (S_X^-1), zeros in its padding; N H/h W/w C .."""
    physical = layout.shape(x.shape)
    names = [f"i{d}" for d in range(len(physical))]
    grid = dict(zip(names, np.ogrid[tuple(map(slice, physical))], strict=True))
    indices = [np.asarray(evaluate(e, grid, {})) for e in layout.invert(tuple(map(Var, names)), x.shape)]
    inside = np.ones(physical, bool)
    for index, extent in zip(indices, x.shape, strict=True):
        inside &= (index >= 0) & (index < extent)
    clipped = [np.clip(index, 0, extent - 1) for index, extent in zip(indices, x.shape, strict=True)]
    return np.ascontiguousarray(np.where(inside, x[tuple(clipped)], 0).transpose(0, 2, 4, 1, 3, 5).astype(x.dtype))
