"""Storage of parts that are touched together: no set of the first-level cache is crowded by them."""

from collections import Counter
from dataclasses import replace
from math import prod

import pytest
from contraction_tasks import conv, pointwise, product
from hypothesis import given
from hypothesis import strategies as st
from three_ways import Example, check, random_inputs

from modelc.ir.block import Buffer
from modelc.ir.layout import Layout
from modelc.ir.nest import Alloc, Region, walk
from modelc.space.nest.build import build_nest
from modelc.space.sketches.spread import CROWDED_SHARE, spread
from modelc.space.sketches.strassen import strassen_sketches
from modelc.space.sketches.winograd import winograd_sketches
from modelc.target import load_target

TARGET = load_target("x86-64-v4")
CACHE = TARGET.caches[0]
ENOUGH = CROWDED_SHARE * CACHE.ways


def fullest(stored: tuple[int, ...], parts: int) -> int:
    """Lines in the fullest set, of the first float32 of every part: counted address by address."""
    addresses = [4 * k * prod(stored[parts:]) for k in range(prod(stored[:parts]))]
    return max(Counter(a // CACHE.line % (CACHE.bytes // CACHE.line // CACHE.ways) for a in addresses).values())


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=2),
    st.lists(st.sampled_from([1, 2, 3, 7, 8, 16, 31, 64, 100]), max_size=2),
    st.sampled_from([16, 48, 64, 80, 128, 1024]),
)
def test_what_is_not_crowded_stays_and_the_rest_is_spread(parts: list[int], rows: list[int], row: int) -> None:
    shape = (*parts, *rows, row)
    buffer = Buffer("b", "float32", shape)
    found = spread(buffer, shape, len(parts), TARGET)
    before, after = (fullest(layout.shape(shape), len(parts)) for layout in (buffer.layout, found))
    assert found == buffer.layout or after < before
    assert found == buffer.layout if before <= ENOUGH else after <= ENOUGH or not rows or prod(parts) > ENOUGH
    stored = found.shape(shape)
    assert stored[: len(parts)] == shape[: len(parts)]
    assert all(0 <= more - less <= 16 for more, less in zip(stored, shape, strict=True))


def test_what_is_stored_otherwise_keeps_its_order() -> None:
    """Parts of 16 tiles of 256 channels, channels last, as Winograd's rule stores them."""
    order = Layout().then("reorder", 0, 1, 3, 4, 2)
    buffer = Buffer("tiles", "float32", (6, 6, 256, 4, 4), layout=order)
    found = spread(buffer, buffer.shape, 2, TARGET)
    assert found.primitives[0] == order.primitives[0] and found.shape(buffer.shape)[:2] == (6, 6)
    assert fullest(order.shape(buffer.shape), 2) == 36 and fullest(found.shape(buffer.shape), 2) <= ENOUGH


@pytest.mark.parametrize(
    ("task", "sketches", "names", "parts"),
    [
        (product(64, 512, 256), strassen_sketches, ("added", "products"), 1),
        (pointwise(1, 256, (16, 16), 256), strassen_sketches, ("added", "products"), 1),
        (conv(1, 256, (14, 14), 128), winograd_sketches, ("tiles", "products"), 2),
    ],
    ids=["product", "pointwise", "window"],
)
@pytest.mark.sweep(1)
def test_schedules_store_no_product_over_another(task, sketches, names: tuple[str, ...], parts: int) -> None:
    """In the Nests themselves, wherever sums and products are placed: at the start and where other loops go to threads;
    some of them were crowded, and what is stored otherwise computes the same."""
    checked = moved = 0
    for sketch in sketches(task, TARGET, []):
        start = sketch.values(sketch.start())
        for loop in next((k.values for k in sketch.knobs if k.name == "parallel"), [start["parallel"]]):
            candidate = sketch.candidate_of({**start, "parallel": loop})
            for name, region in regions(sketch.task, candidate, names).items():
                checked += 1
                plain = replace(candidate, layouts={n: x for n, x in candidate.layouts.items() if n != name})
                before = fullest(regions(sketch.task, plain, (name,))[name].shape, parts)
                assert fullest(region.shape, parts) <= ENOUGH or fullest(region.shape, parts) < before, name
                moved += name in candidate.layouts
        if any(name in candidate.layouts for name in names):
            check(Example(task, random_inputs(task), rtol=1e-3, atol=1e-3), candidate)
    assert checked >= 4 and moved


def regions(task, candidate, names: tuple[str, ...]) -> dict[str, Region]:
    """The largest region of each of the buffers with `names`: the last chunk or panel may be smaller."""
    nest = build_nest(task, replace(candidate, stages=()))
    local = [s.region for phase in nest.phases for s in walk(phase) if isinstance(s, Alloc)]
    found = [region for region in (*nest.temporaries, *local) if region.name in names]
    return {region.name: region for region in sorted(found, key=lambda region: prod(region.shape))}
