"""Loops tagged `pipeline`: what they become, that it computes the same, and where they stay as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_texts import parse_nest
from tensor_tasks import EVEN, RAGGED, SERVER, SHIPPED, contraction_of, from_end_to_end, ways_of
from three_ways import check, emulated_target

from modelc.codegen.lower.pipelining import pipelined
from modelc.ir.interpret import run_nest
from modelc.ir.nest import For, Nest, Stmt
from modelc.space.nest.build import build_nest
from modelc.space.sketches.tiled_candidate import tiled_candidate
from modelc.space.sketches.tiled_rules import kernels
from modelc.space.tiling.tiled import TiledKnobs


def piped(rows: int, columns: int, steps: tuple[int, int]) -> Nest:
    """Sums over `steps` of three tiles of `rows` x `columns`, then twice the sum of each."""
    first, second = steps
    return parse_nest(f"""\
nest sums(x: int32[3, {rows}, {columns}, {first}, {second}]; y: int32[3, {rows}, {columns}]) -> (y)
  phase
    pipeline t0:3
      register acc: int32[{rows}, {columns}]
      local sum: int32[{rows}, {columns}]
      unroll m0:{rows}
        unroll n0:{columns}
          init s[t=t0, m=m0, n=n0] add
            acc[m0, n0] = int32(0)
      for k0:{first}
        for l0:{second}
          unroll m0:{rows}
            unroll n0:{columns}
              update s[t=t0, m=m0, n=n0, k=k0, l=l0] add
                acc[m0, n0] += x[t0, m0, n0, k0, l0]
      unroll m0:{rows}
        unroll n0:{columns}
          assign d[t=t0, m=m0, n=n0] assign
            sum[m0, n0] = acc[m0, n0]
      unroll m0:{rows}
        unroll k0:{columns}
          assign e[t=t0, m=m0, n=k0] assign
            y[t0, m0, k0] = sum[m0, k0] + sum[m0, k0]""")


def plainly(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A body without loops tagged `pipeline`."""
    result: list[Stmt] = []
    for s in body:
        if isinstance(s, For) and s.tag == "pipeline":
            result += pipelined(s)
        else:
            result.append(replace(s, body=plainly(s.body)) if isinstance(s, For) else s)
    return tuple(result)


def plain(nest: Nest) -> Nest:
    return replace(nest, phases=tuple(map(plainly, nest.phases)))


def test_maps_run_beside_the_next_reduction() -> None:
    """Three rows over two steps: two in the first, the third when the reduction is done."""
    assert str(plain(piped(3, 1, (1, 2)))) == (
        """\
nest sums(x: int32[3, 3, 1, 1, 2]; y: int32[3, 3, 1]) -> (y)
  phase
    local sum: int32[3, 1]
    register acc: int32[3, 1]
    unroll m0:3
      unroll n0:1
        init s[t=0, m=m0, n=n0] add
          acc[m0, n0] = int32(0)
    for k0:1
      for l0:2
        unroll m0:3
          unroll n0:1
            update s[t=0, m=m0, n=n0, k=k0, l=l0] add
              acc[m0, n0] += x[0, m0, n0, k0, l0]
    unroll m0:3
      unroll n0:1
        assign d[t=0, m=m0, n=n0] assign
          sum[m0, n0] = acc[m0, n0]
    for t0:2
      register acc: int32[3, 1]
      unroll m0:3
        unroll n0:1
          init s[t=t0 + 1, m=m0, n=n0] add
            acc[m0, n0] = int32(0)
      for k0:1
        for l0:2
          unroll m0:3
            unroll n0:1
              update s[t=t0 + 1, m=m0, n=n0, k=k0, l=l0] add
                acc[m0, n0] += x[t0 + 1, m0, n0, k0, l0]
          if k0 * 2 + l0 < 1
            unroll m0_:2
              unroll k0_:1
                assign e[t=t0, m=(k0 * 2 + l0) * 2 + m0_, n=k0_] assign
                  y[t0, (k0 * 2 + l0) * 2 + m0_, k0_] = sum[(k0 * 2 + l0) * 2 + m0_, k0_] + """
        """sum[(k0 * 2 + l0) * 2 + m0_, k0_]
      unroll m0_:1
        unroll k0_:1
          assign e[t=t0, m=2, n=k0_] assign
            y[t0, 2, k0_] = sum[2, k0_] + sum[2, k0_]
      unroll m0:3
        unroll n0:1
          assign d[t=t0 + 1, m=m0, n=n0] assign
            sum[m0, n0] = acc[m0, n0]
    unroll m0:3
      unroll k0:1
        assign e[t=2, m=m0, n=k0] assign
          y[2, m0, k0] = sum[m0, k0] + sum[m0, k0]"""
    )


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 7), st.integers(1, 5), st.tuples(st.integers(1, 4), st.integers(1, 5)))
def test_it_computes_the_same(rows: int, columns: int, steps: tuple[int, int]) -> None:
    nest = piped(rows, columns, steps)
    x = np.random.default_rng(0).integers(-9, 9, (3, rows, columns, *steps)).astype(np.int32)
    found = []
    for one in (nest, plain(nest)):
        y = np.zeros((3, rows, columns), np.int32)
        run_nest(one, {"x": x, "y": y})
        found.append(y)
    np.testing.assert_array_equal(found[0], 2 * x.sum((3, 4)))
    np.testing.assert_array_equal(found[1], found[0])


@pytest.mark.parametrize(
    "new",
    [
        "y[t0, m0, k0] = sum[m0, k0] + y[0, m0, k0]",  # reads what another iteration writes
        "x[t0, m0, k0, 0, 0] = sum[m0, k0] + sum[m0, k0]",  # writes what the next reduction reads
    ],
)
def test_what_depends_on_the_iteration_before_stays(new: str) -> None:
    text = str(piped(2, 1, (1, 2))).replace("y[t0, m0, k0] = sum[m0, k0] + sum[m0, k0]", new)
    (loop,) = parse_nest(text).phases[0]
    assert isinstance(loop, For)
    assert pipelined(loop) == (replace(loop, tag="for"),)


@pytest.mark.parametrize("case", [*EVEN, *RAGGED])
def test_accumulators_are_stored_beside_the_next(case: str) -> None:
    """Register tiles small enough that there are several; three ways where the machine has the instructions."""
    one = SHIPPED["amx-bf16"]
    task = contraction_of(one, (EVEN | RAGGED)[case])
    way = ways_of(task, SERVER)[one.name]
    *counts, vectors = min(np.column_stack(kernels(way)).tolist())
    rows = tuple(zip(way.inside, counts, strict=True))
    knobs = TiledKnobs(rows, vectors, rows[0][1] if rows else 1, False, None)
    if case in EVEN:
        nest = build_nest(task, tiled_candidate(way, knobs))
        assert any(isinstance(s, For) and s.tag == "pipeline" for s in nest.statements())
    if set(one.features) <= set(emulated_target().features):
        check(from_end_to_end(task), tiled_candidate(way, knobs), emulated_target())
