"""The parts of a loop whose length a run says: together they are all of it, whatever the size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelc.ir.expr import Size
from modelc.ir.sizes import at, sized
from modelc.space.nest.parts import rests

S = sized(Size("s", 1, 400))


@pytest.mark.parametrize("within", [["unroll"], ["vector"], ["unroll", "vector"], ["for", "unroll"]])
@given(tile=st.integers(2, 16), s=st.integers(1, 400))
def test_parts_cover_every_value_once(within: list[str], tile: int, s: int) -> None:
    full, parts = rests(*divmod(S, tile), tile, within)
    covered = [*range(at(full, {"s": s}) * tile)]
    for part in parts:
        start, count = at(part.start, {"s": s}), min(at(n, {"s": s}) for n in part.counts)
        extent = at(part.extent, {"s": s})
        covered += [start + k * part.step + i for k in range(count) for i in range(extent)]
    assert covered == [*range(s)]
    narrower = sum(at(part.counts[0], {"s": s}) for part in parts if part.whole)
    assert at(full, {"s": s}) + narrower + (narrower * (tile - 1) + at(full, {"s": s}) * tile < s) == -(-s // tile)


def test_what_is_left_of_unrolled_tiles_is_spread() -> None:
    full, parts = rests(*divmod(S, 6), 6, ["unroll"])
    assert at(full, {"s": 128}) == 18 and [at(part.counts[0], {"s": 128}) for part in parts] == [4, 0, 0, 0, 0]
    assert [part.extent for part in parts] == [5, 4, 3, 2, 1]
