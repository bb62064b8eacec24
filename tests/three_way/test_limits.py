"""Floats that become small whole numbers, and floats again: with no conversion that limits make needless."""

from __future__ import annotations

import numpy as np
import pytest
from three_ways import Example, check, run_kernel

from modelc.codegen.lower.limits import limited_whole, limited_wide
from modelc.ir.expr import Expr
from modelc.ir.text import parse_task

TASK = """task limits(x0) -> (y0) anchor a
  in x0: float32[5, 37]
  out y0: {to}[5, 37]
  block a [m:5 n:37] assign
    y0[m, n] = {body}
"""
BYTE = "uint8(min(max(round(x0[m, n]) + float32(114.0), float32(0.0)), float32(255.0)))"
LIMITED = {
    "bytes": ("uint8", BYTE),
    "signed bytes": ("int8", f"int8({BYTE} - uint8(128))"),
    "wide bytes": ("int32", f"int32({BYTE})"),
    "wide signed bytes": ("int32", f"int32(int8({BYTE} - uint8(128)))"),
    "a grid": ("float32", f"float32(1.0) / (float32(int32({BYTE}) - int32(114)) * float32(0.2))"),
    "a grid of another zero": ("float32", f"float32(1.0) / float32(int32({BYTE}) - int32(90))"),
    "a grid of signed bytes": ("float32", f"float32(1.0) / float32(int32(int8({BYTE} - uint8(128))) + int32(14))"),
    "halves": ("float32", "float32(uint8(min(max(x0[m, n], float32(0.0)), float32(99.5))))"),
}
CONVERTED = ("bytes", "signed bytes", "halves")


def converted(e: Expr, dtypes: dict[str, str]) -> bool:
    """Whether something limited in an expression becomes a whole number."""
    if limited_wide(e, dtypes) is not None:
        return False
    return limited_whole(e, dtypes) is not None or any(converted(x, dtypes) for x in getattr(e, "args", ()))


@pytest.mark.parametrize("what", LIMITED)
def test_limits_leave_the_numbers_as_they_are(what: str) -> None:
    """NaN and infinities too, and zeros with their sign: of these, 1 / x tells."""
    to, body = LIMITED[what]
    task = parse_task(TASK.format(to=to, body=body))
    specials = [
        np.nan,
        -np.nan,
        np.inf,
        -np.inf,
        -0.0,
        0.0,
        -0.4,
        0.5,
        1.5,
        -114,
        -114.5,
        -115,
        141,
        141.5,
        3e38,
        -3e38,
    ]
    x = np.concatenate([specials, np.random.default_rng(0).uniform(-200, 200, 5 * 37 - len(specials))])
    example = Example(task, {"x0": x.reshape(5, 37).astype(np.float32)}, rtol=1e-6, atol=0)
    with np.errstate(divide="ignore"):
        built = check(example)
        assert np.isfinite(run_kernel(built, example.inputs)[0]["y0"].astype(np.float64)).sum() > 100
    (block,) = task.blocks
    assert converted(block.body[0], task.dtypes) == (what in CONVERTED)
