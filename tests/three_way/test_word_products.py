"""Products of words whose bytes are taken apart, with results that others read row by row or column by column."""

from __future__ import annotations

import pytest
from three_ways import check, host_target

from modelc.ir.layout import Layout
from modelc.ir.loop import Loop
from modelc.ir.text import parse_task

TASK = """\
task words(x0, x1, x2) -> (y0) anchor dot
  in x0: int32[{rows}, 32] stored {layout}
  const x1: int32[4, 8, 24]
  in x2: float32[{rows}, 24] stored {layout}
  local sum: float32[{rows}, 24] stored {layout}
  out y0: float32[{rows}, 24] stored {layout}
  block dot [m:{rows} n:24 | b:4] add
    sum[m, n] += float32(dot16({pairs}))
  block added [m:{rows} n:24] assign
    y0[m, n] = sum[m, n] + x2[m, n]"""
WORDS = ["x1[b, 0, n]", "x1[b, 1, n]"]
LOW = "int32(252645135)"  # of each byte of a word the lowest four bits
PAIRS = [f"bitand({word}, {LOW}), x0[m, b * 8 + {k}]" for k, word in enumerate(WORDS)]
PAIRS += [f"bitand(shr({word}, int32(4)), {LOW}), x0[m, b * 8 + {k + 2}]" for k, word in enumerate(WORDS)]


@pytest.mark.parametrize("layout", ["row-major", "reorder(1, 0)"])
@pytest.mark.parametrize("rows", [6, 40])
def test_words_that_are_taken_apart_are_vectors(rows, layout):
    """Accumulators lie along vectors, whatever the layout of what is made of them."""
    task = parse_task(TASK.format(rows=rows, layout=layout, pairs=", ".join(PAIRS)))
    candidate = check(task, target=host_target()).candidate
    schedule = candidate.blocks["dot"]
    assert [loop.iterator for loop, tag in schedule.tags.items() if tag == "vector"] == ["n"]
    assert Loop("b", 0) not in schedule.tags  # which would be long code
    assert candidate.layouts.get("sum", task.buffer("sum").layout) == Layout()
