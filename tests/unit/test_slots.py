"""Storage in registers is cut into slots where vectors end."""

from __future__ import annotations

import pytest
from nest_texts import parse_nest

from modelc.codegen.lower.leaves import slot_width, vectors_along
from modelc.ir.nest import Alloc


@pytest.mark.parametrize(
    ("columns", "lanes", "width"),
    [(48, 16, 16), (24, 8, 8), (28, 14, 14), (24, 4, 12), (12, 12, 12), (64, 8, 16), (7, 7, 7), (20, 8, 10)],
)
def test_no_vector_lies_across_two_slots(columns: int, lanes: int, width: int) -> None:
    whole, rest = divmod(columns, lanes)
    nest = parse_nest(f"""\
nest fill(y: float32[2, {columns}]) -> (y)
  phase
    register acc: float32[2, {columns}]
    unroll m:2
      unroll n0:{whole}
        vector n1:{lanes}
          assign a[m=m, n=n0 * {lanes} + n1] assign
            acc[m, n0 * {lanes} + n1] = float32(0.0)
    unroll m_:2
      vector n_:{lanes}
        assign b[m=m_, n=n_] assign
          y[m_, n_] = acc[m_, n_]""")
    (phase,) = nest.phases
    (alloc,) = (s for s in phase if isinstance(s, Alloc))
    assert vectors_along("acc", phase) == {lanes}
    assert slot_width(alloc.region, phase, 16) == width
    assert rest or width % lanes == 0
