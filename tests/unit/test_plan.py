"""The memory plan: nothing that lives at the same time overlaps; constants are stored once for each layout."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from lifetimes import LIVES

from modelc.ir.block import Buffer
from modelc.ir.layout import Layout, reordered
from modelc.package.spec import aligned
from modelc.plan.memory import Lifetime, plan_memory
from modelc.plan.parameters import Parameters


def overlap_in_time(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


@given(LIVES)
def test_buffers_that_live_together_lie_apart(items: list[Lifetime]) -> None:
    offsets, size = plan_memory(items)
    assert offsets.keys() == {i.name for i in items}
    for k, a in enumerate(items):
        assert offsets[a.name] % 64 == 0 and offsets[a.name] + a.bytes <= size
        for b in items[:k]:
            if overlap_in_time(a, b) and a.bytes and b.bytes:
                low, high = sorted((a, b), key=lambda i: offsets[i.name])
                assert offsets[low.name] + low.bytes <= offsets[high.name]


@given(LIVES)
def test_the_arena_is_no_smaller_than_what_lives_at_once_and_no_larger_than_all(items: list[Lifetime]) -> None:
    _, size = plan_memory(items)
    at_once = [sum(aligned(i.bytes) for i in items if i.first <= t <= i.last) for t in range(30)]
    assert max(at_once) <= size <= sum(aligned(i.bytes) for i in items)


@given(LIVES, st.randoms())
def test_the_plan_does_not_depend_on_the_order_of_the_items(items: list[Lifetime], random) -> None:
    shuffled = list(items)
    random.shuffle(shuffled)
    assert plan_memory(shuffled) == plan_memory(items)


def test_a_chain_of_values_takes_two_places() -> None:
    _, size = plan_memory([Lifetime(f"v{k}", 640, k, k + 1) for k in range(10)])
    assert size == 1280


def test_a_constant_is_stored_once_for_each_layout_and_shared_by_content() -> None:
    parameters = Parameters()
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer, turned = Buffer("b1", "float32", (2, 3)), reordered(1, 0)
    plain = parameters.place(data, buffer, Layout())
    assert parameters.place(data, buffer, turned) != plain
    assert parameters.place(data.copy(), buffer, Layout()) == plain
    assert parameters.place(data, Buffer("b7", "float32", (6,)), Layout()) == plain  # equal bytes
    assert [offset for offset, _ in parameters.arrays] == [0, 64]
    assert parameters.arrays[1][1].tolist() == [[0, 3], [1, 4], [2, 5]]
