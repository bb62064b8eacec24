"""Matching Blocks with intrinsics: what becomes of iterators and operands, and that it computes the same."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from three_ways import task_of

from modelc.ir.block import Block, Buffer, Task
from modelc.ir.evaluate import evaluate
from modelc.ir.expr import DTYPES, Expr, conjunction
from modelc.ir.interpret import run_block
from modelc.ir.layout import Layout
from modelc.ir.pack import pack_constant
from modelc.ir.text import parse_block
from modelc.space.analysis.match import CannotPack, Match, matches
from modelc.target import Intrinsic, parse_intrinsics, shipped_intrinsics

SHIPPED = {one.name: one for one in shipped_intrinsics()}
Arrays = dict[str, np.ndarray[Any, Any]]

# An instruction as wide as an odd tile: padding is seen at small shapes.
ODD = parse_intrinsics(
    """
intrinsics:
  - name: odd
    architecture: x86_64
    features: [avx512f]
    instruction: invented
    operands:
      C: {dtype: int32, shape: [2, 3], lies: vector}
      A: {dtype: uint8, shape: [2, 4], lies: vector}
      B: {dtype: int8, shape: [2, 3, 2], lies: vector}
    semantics: |
      block mma [i:2 j:3 | k:4] add
        C[i, j] += int32(A[i, k]) * int32(B[k // 2, j, k % 2])
    implementation: C
    roundings: 0
    throughput: 1.0
    latency: 4
    temporaries: 0
""",
    "odd.yaml",
)[0]


def contraction(task: Task) -> Block:
    return next(b for b in task.blocks if isinstance(b, Block) and b.reduction)


def matched(task: Task, intrinsic: Intrinsic) -> Match | None:
    """The way to match in which the intrinsic's first operand is the Task's."""
    ways = matches(contraction(task), {b.name: b for b in task.buffers}, intrinsic, ("x1",))
    return next((way for way in ways if way.operands["A"].buffer == "x0"), None)


# --- what it finds --------------------------------------------------------------------------------------------------


def test_a_convolution_in_channels_last_reads_its_input_as_it_lies() -> None:
    attrs = {"pads": [1, 1, 1, 1]}
    task = task_of("ConvInteger", attrs, [(1, 64, 7, 7), (80, 64, 3, 3)], [1], True, ["uint8", "int8"])
    found = matched(task, SHIPPED["avx512-vnni"])
    assert found is not None
    assert [(g.iterator, g.inner, g.outer) for g in found.groups] == [("i", "o", ()), ("k", "c", ("r", "s"))]
    assert found.loops == ("n", "h", "w") and not found.guards and found.efficiency == 1
    assert found.strides["A"] == (1,) and found.strides["C"] == (1,)
    packing = found.packing("B", {"i": 4})
    assert str(packing) == "pad(0, 0, 48).split(0, 4, 16).split(3, 4).reorder(0, 5, 6, 3, 1, 2, 4)"
    assert packing.shape((80, 64, 3, 3)) == (2, 3, 3, 16, 4, 16, 4)


def test_tiles_of_rows_and_columns() -> None:
    task = task_of("ConvInteger", {}, [(1, 64, 8, 32), (32, 64, 1, 1)], [1], True, ["uint8", "int8"])
    found = matched(task, SHIPPED["amx-u8s8"])
    assert found is not None
    assert [(g.iterator, g.inner) for g in found.groups] == [("i", "w"), ("j", "o"), ("k", "c")]
    assert found.strides["A"] == (64, 1) and found.strides["C"] == (32, 1)
    assert found.packing("B", {"j": 2}).shape((32, 64, 1, 1)) == (1, 1, 1, 1, 2, 16, 16, 4)


def test_conditions_within_a_tile_are_named() -> None:
    task = task_of(
        "ConvInteger", {"pads": [0, 1, 0, 1]}, [(1, 64, 3, 16), (16, 64, 1, 3)], [1], True, ["uint8", "int8"]
    )
    found = matched(task, SHIPPED["amx-u8s8"])
    assert found is not None and [str(c) for c in found.guards] == ["w + s - 1 >= 0", "w + s - 1 < 16"]


def test_groups_and_phases_are_loops() -> None:
    grouped = matched(
        task_of("ConvInteger", {"group": 2}, [(1, 8, 5, 5), (40, 4, 3, 3)], [1], True, ["uint8", "int8"]),
        SHIPPED["avx512-vnni"],
    )
    assert grouped is not None and "g" in grouped.loops
    assert grouped.packing("B").shape((40, 4, 3, 3)) == (2, 2, 3, 3, 1, 16, 4)
    transposed = matched(
        task_of("ConvTranspose", {"strides": [2, 2], "pads": [1] * 4}, [(1, 6, 5, 5), (6, 40, 3, 3)], [1], True),
        SHIPPED["avx512-f32"],
    )
    assert transposed is not None and {"ph", "pw", "hq", "wq"} <= set(transposed.loops)
    assert transposed.packing("B").shape((6, 40, 3, 3)) == (3, 3, 3, 6, 16)


def test_a_product_matches_both_ways_round() -> None:
    task = task_of("MatMul", {}, [(32, 8), (8, 32)])
    buffers = {b.name: b for b in task.buffers}
    every = list(matches(contraction(task), buffers, SHIPPED["avx512-f32"]))
    assert {(m.group("i").inner, m.strides["B"]) for m in every} == {("m", (8,)), ("n", (1,))}


def test_bfloat16_matches_under_its_casts() -> None:
    task = task_of("MatMul", {}, [(4, 8), (8, 32)], [1], dtypes=["bfloat16", "bfloat16"])
    found = matched(task, SHIPPED["avx512-bf16"])
    assert found is not None and found.group("k").inner == "k"
    assert found.packing("B").shape((8, 32)) == (2, 4, 16, 2)


def test_casts_that_lose_nothing_are_one_cast() -> None:
    buffers = {
        "y": Buffer("y", "int32", (4, 16)),
        "a": Buffer("a", "uint8", (4, 8)),
        "b": Buffer("b", "int8", (16, 8)),
    }
    text = "block m [m:4 n:16 | k:8] add\n  y[m, n] += int32({})*int32(b[n, k])"
    for wrapped, expected in (("int16(a[m, k])", True), ("int8(a[m, k])", False), ("a[m, k]", True)):
        block = parse_block(text.format(wrapped))
        assert isinstance(block, Block)
        assert any(matches(block, buffers, SHIPPED["avx512-vnni"])) == expected


@pytest.mark.parametrize(
    ("task", "intrinsic"),
    [
        (
            task_of("ConvInteger", {"group": 8}, [(1, 8, 5, 5), (8, 1, 3, 3)], [1], True, ["uint8", "int8"]),
            "avx512-vnni",
        ),
        (task_of("MatMulInteger", {}, [(4, 8), (8, 16)], [1], dtypes=["int8", "int8"]), "avx512-vnni"),
        (task_of("MatMul", {}, [(4, 8), (8, 16)], [1]), "avx512-bf16"),
        (task_of("MatMul", {}, [(8,), (8, 16)], [1], dtypes=["bfloat16", "bfloat16"]), "neon-bfmmla"),
        (task_of("ReduceSum", {}, [(4, 8)]), "avx512-f32"),
        (task_of("MaxPool", {"kernel_shape": [3, 3]}, [(1, 4, 9, 9)]), "avx512-f32"),
    ],
    ids=["depthwise", "signs", "dtypes", "no rows", "no product", "another aggregation"],
)
def test_what_does_not_match(task: Task, intrinsic: str) -> None:
    assert matched(task, SHIPPED[intrinsic]) is None


def test_an_operand_that_tiles_cut_across_cannot_be_packed() -> None:
    task = task_of("ConvInteger", {}, [(1, 64, 8, 32), (32, 64, 3, 3)], [1], True, ["uint8", "int8"])
    found = matched(task, SHIPPED["amx-u8s8"])
    assert found is not None
    with pytest.raises(CannotPack, match="mixes w"):
        found.packing("A")


# --- that it computes the same --------------------------------------------------------------------------------------


def executed(found: Match, data: Arrays, together: Mapping[str, int]) -> np.ndarray[Any, Any]:
    """The Block's result by applications of the intrinsic's semantics, one tile at a time. Each operand comes from
    where `found` says that it lies: packed, in place by strides, or copied element by element."""
    block, intrinsic = found.block, found.intrinsic
    ranges = block.ranges
    accumulator = intrinsic.accumulator
    result = np.zeros(found.buffers[block.writes[0].buffer].shape, DTYPES[accumulator.dtype])
    sources = {o.name: source_of(found, o.name, data, together) for o in intrinsic.operands if o != accumulator}
    around = [*found.loops, *(n for g in found.groups for n in g.outer)]
    for outer in product(*(range(ranges[n]) for n in around)):
        for tile in product(*(range(g.padded // g.tile) for g in found.groups)):
            place = dict(zip(around, outer, strict=True))
            start = {g.iterator: t * g.tile for g, t in zip(found.groups, tile, strict=True)}
            arrays = {o.name: np.zeros(o.shape, DTYPES[o.dtype]) for o in intrinsic.operands}
            for name, source in sources.items():
                arrays[name] = tile_of(found, name, source, place, start)
            run_block(intrinsic.semantics, arrays)
            add_tile(found, result, arrays[accumulator.name], place, start)
    return result


def source_of(found: Match, name: str, data: Arrays, together: Mapping[str, int]) -> tuple[str, Any, Any]:
    buffer = found.buffers[found.operands[name].buffer]
    stored = data[buffer.name]
    if buffer.name == "x1":
        try:
            layout = found.packing(name, together)
        except CannotPack:
            return "copied", stored, None
        return "packed", pack_constant(stored, buffer, layout).ravel(), (buffer, layout)
    if found.strides[name] is None or found.guards:
        return "copied", stored, None
    return "in place", pack_constant(stored, buffer, buffer.layout).ravel(), (buffer, buffer.layout)


def digits(found: Match, name: str) -> tuple[dict[str, np.ndarray[Any, Any]], tuple[int, ...]]:
    """The intrinsic's iterators at each element of an operand."""
    operand = found.intrinsic.operand(name)
    grid = np.indices(operand.shape)
    values = {g.iterator: np.zeros(operand.shape, np.int64) for g in found.groups}
    for d, digit in enumerate(operand.digits):
        values[digit.iterator] = values[digit.iterator] + grid[d] * digit.step
    return values, operand.shape


def points(
    found: Match, values: Mapping[str, np.ndarray[Any, Any]], place: Mapping[str, int], start: Mapping[str, int]
) -> tuple[dict[str, np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """The Block's iterators at those of the intrinsic; and where they are not padding."""
    env = {n: np.asarray(v) for n, v in place.items()}
    inside = np.ones(next(iter(values.values())).shape, bool)
    for group in found.groups:
        position = values[group.iterator] + start[group.iterator]
        inside &= position < group.extent
        env[group.inner] = position % group.extent
    return env, inside


def tile_of(
    found: Match, name: str, source: tuple[str, Any, Any], place: Mapping[str, int], start: Mapping[str, int]
) -> np.ndarray[Any, Any]:
    kind, stored, where = source
    access = found.operands[name]
    values, shape = digits(found, name)
    env, inside = points(found, values, place, start)
    if kind == "copied":
        value = evaluate(access, env, {access.buffer: stored})
        value = np.where(inside, np.broadcast_to(value, shape), stored.dtype.type(0))
    else:
        buffer, layout = where
        first = flat_of(layout.apply(access.indices, buffer.shape), layout.shape(buffer.shape), env)
        base = int(np.broadcast_to(first, shape).ravel()[0])
        strides = found.strides[name] if kind == "in place" else row_major(shape)
        at = base + sum(i * s for i, s in zip(np.indices(shape), strides, strict=True))
        value = stored[np.clip(at, 0, stored.size - 1)].reshape(shape)
    if name == "A" and found.block.where:  # conditions that hold for all of a tile, or operands that are copied
        holds = np.broadcast_to(evaluate(conjunction(found.block.where), env_of(found, env), {}), shape)
        value = np.where(holds | ~inside, value, value.dtype.type(0))
    return value


def env_of(found: Match, env: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    return {n: env.get(n, np.asarray(0)) for n in found.block.ranges}


def flat_of(indices: tuple[Expr, ...], shape: tuple[int, ...], env: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """Addresses; every one of them is inside."""
    found = [evaluate(i, env, {}) for i in indices]
    return sum(f * s for f, s in zip(found, row_major(shape), strict=True))


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[k + 1 :]) for k in range(len(shape)))


def add_tile(
    found: Match,
    result: np.ndarray[Any, Any],
    tile: np.ndarray[Any, Any],
    place: Mapping[str, int],
    start: Mapping[str, int],
) -> None:
    values, shape = digits(found, found.intrinsic.accumulator.name)
    env, inside = points(found, values, place, start)
    index = [np.broadcast_to(evaluate(i, env, {}), shape) for i in found.block.writes[0].indices]
    inside = inside & np.all([i < n for i, n in zip(index, result.shape, strict=True)], axis=0)
    np.add.at(result, tuple(i[inside] for i in index), tile[inside])


def check(task: Task, intrinsic: Intrinsic, together: Mapping[str, int], seed: int) -> Match:
    """Every way to match gives what the Block gives."""
    block, buffers = contraction(task), {b.name: b for b in task.buffers}
    rng = np.random.default_rng(seed)
    data: Arrays = {}
    for name in dict.fromkeys(r.buffer for r in block.reads):
        dtype, shape = DTYPES[buffers[name].dtype], buffers[name].shape
        low = -9 if dtype.kind in "if" else 0
        data[name] = rng.integers(low, 9, shape).astype(dtype)
    output = buffers[block.writes[0].buffer]
    wanted: Arrays = {**data, output.name: np.zeros(output.shape, DTYPES[output.dtype])}
    run_block(block, wanted)
    every = list(matches(block, buffers, intrinsic, ("x1",)))
    every = [found for found in every if found.operands["A"].buffer == "x0"]  # conditions are applied to A
    assert every
    for found in every:
        np.testing.assert_array_equal(executed(found, data, together), wanted[output.name])
    return every[0]


INT8 = [ODD, SHIPPED["avx512-vnni"], SHIPPED["neon-usmmla"]]
SMALL = settings(max_examples=16, deadline=None)


@SMALL
@given(st.data())
def test_convolutions(data: st.DataObject) -> None:
    draw = data.draw
    rank = draw(st.integers(1, 3))
    group = draw(st.sampled_from([1, 1, 2, 3]))
    kernel = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    strides = draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank))
    dilations = draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank))
    pads = draw(st.lists(st.integers(0, 1), min_size=2 * rank, max_size=2 * rank))
    space = [(k - 1) * d + 1 + draw(st.integers(0, 3)) for k, d in zip(kernel, dilations, strict=True)]
    per_group, channels = draw(st.integers(2, 5)), draw(st.integers(2, 5))
    attrs = {"group": group, "strides": strides, "dilations": dilations, "pads": pads}
    shapes = [(draw(st.integers(1, 2)), channels * group, *space), (per_group * group, channels, *kernel)]
    task = task_of("ConvInteger", attrs, shapes, [1], draw(st.booleans()), ["uint8", "int8"])
    check(task, draw(st.sampled_from(INT8)), {"i": draw(st.integers(1, 3)), "j": 2}, 0)


@SMALL
@given(st.data())
def test_products_of_matrices(data: st.DataObject) -> None:
    draw = data.draw
    batch = draw(st.lists(st.integers(1, 2), max_size=2))
    m, n, k = (draw(st.integers(1, 9)) for _ in range(3))
    shared = draw(st.booleans())
    shapes = [(*batch, m, k), (k, n) if shared else (*batch, k, n)]
    task = task_of("MatMulInteger", {}, shapes, [1], dtypes=["uint8", "int8"])
    check(task, draw(st.sampled_from(INT8)), {"i": draw(st.integers(1, 3)), "j": draw(st.integers(1, 3))}, 1)


@SMALL
@given(st.data())
def test_transposed_convolutions(data: st.DataObject) -> None:
    draw = data.draw
    strides, kernel = (draw(st.lists(st.integers(1, 3), min_size=2, max_size=2)) for _ in range(2))
    space = draw(st.lists(st.integers(2, 4), min_size=2, max_size=2))
    group = draw(st.sampled_from([1, 2]))
    shapes = [(1, 3 * group, *space), (3 * group, draw(st.integers(2, 5)), *kernel)]
    attrs = {"strides": strides, "group": group}
    task = task_of("ConvTranspose", attrs, shapes, [1], draw(st.booleans()))
    check(task, SHIPPED["neon-f32"], {"i": draw(st.integers(1, 3))}, 2)


def test_packing_a_large_convolution_is_a_plain_layout() -> None:
    task = task_of("Conv", {"pads": [1, 1, 1, 1]}, [(1, 64, 8, 8), (64, 64, 3, 3)], [1], True)
    found = matched(task, SHIPPED["avx512-f32"])
    assert found is not None
    assert found.packing("B", {"i": 2}) == Layout.parse("split(0, 2, 16).reorder(0, 4, 5, 3, 1, 2)")
