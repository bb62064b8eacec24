"""Schedules with tensor intrinsics: three ways for every one that this machine runs, and what their Nests say."""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_texts import parse_nest
from schedules import loops
from tensor_tasks import (
    EVEN,
    NO_TILES,
    ODD,
    PLAIN,
    RAGGED,
    SERVER,
    SHIPPED,
    Case,
    contraction,
    contraction_of,
    from_end_to_end,
    intrinsics_in,
    kinds_of,
    ways_of,
)
from three_ways import check, emulated_target

from modelc.codegen.lower.nest import lower_nest
from modelc.errors import InvalidIR
from modelc.ir.candidate import Candidate
from modelc.ir.nest import For, Nest
from modelc.partition.narrow_task import in_narrow
from modelc.policy import Policy
from modelc.space.choose import chosen
from modelc.space.nest.build import build_nest
from modelc.space.sketches.tiled_candidate import tiled_candidate
from modelc.space.sketches.tiled_rules import best_kernel, default_knobs, kernels, parallel_loop
from modelc.space.tiling.tiled import TiledKnobs
from modelc.target import Intrinsic, Target
from modelc.target.isa import architecture

HOST = architecture(platform.machine())
MINE = [one.name for one in SHIPPED.values() if HOST is not None and one.architecture == HOST.name]


def here(name: str) -> Intrinsic:
    """A shipped intrinsic, if this machine runs it."""
    one = SHIPPED[name]
    if lacking := [feature for feature in one.features if feature not in emulated_target().features]:
        pytest.skip(f"this machine lacks {lacking[0]}")
    return one


# --- three ways -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*EVEN, *RAGGED, *ODD])
@pytest.mark.parametrize("name", MINE)
@pytest.mark.sweep(20)
def test_blocks_nest_and_kernel_agree(name: str, case: str) -> None:
    one = here(name)
    task = contraction_of(one, (EVEN | RAGGED | ODD)[case])
    ways = ways_of(task, emulated_target())
    if case in ODD and one.tiles is not None:
        assert name not in ways
        return
    way = ways[name]
    candidate = tiled_candidate(way, default_knobs(way))
    assert intrinsics_in(candidate) == {name}
    built = check(from_end_to_end(task), candidate, emulated_target())
    assert parse_nest(str(built.nest)) == built.nest
    assert Candidate.from_json(candidate.to_json()) == candidate


@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_register_tile_of_any_shape(data: st.DataObject) -> None:
    """Rows, columns and depth of a product, and every register tile and order of chunks that the space allows."""
    names = [name for name in MINE if set(SHIPPED[name].features) <= set(emulated_target().features)]
    one = SHIPPED[data.draw(st.sampled_from(names))]
    step = 1 if one.tiles is None else 4
    rows, columns = data.draw(st.integers(2, 40)), data.draw(st.integers(2, 70))
    depth = step * data.draw(st.integers(2, 40 // step))
    task = contraction_of(one, ("MatMul", {}, (rows, depth), (depth, columns)))
    way = ways_of(task, emulated_target()).get(one.name)
    if way is None:  # columns that are mostly padding
        return
    *tile, vectors = data.draw(st.sampled_from(np.column_stack(kernels(way)).tolist()))
    rows_of = tuple(zip(way.inside, tile, strict=True))
    chunk = tile[0] * data.draw(st.integers(1, 3)) if way.inside else 1
    knobs = TiledKnobs(rows_of, vectors, chunk, data.draw(st.booleans()), None)
    knobs = replace(knobs, parallel=parallel_loop(way, way.macro_loops(knobs), way.tiles(knobs)))
    check(from_end_to_end(task), tiled_candidate(way, knobs), emulated_target())


@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_products_of_computed_operands_of_any_shape(data: st.DataObject) -> None:
    """The operand that moves with the columns is copied, with zeros after what no whole step takes."""
    names = [name for name in MINE if set(SHIPPED[name].features) <= set(emulated_target().features)]
    one = SHIPPED[data.draw(st.sampled_from([n for n in names if any(i.reduce for i in SHIPPED[n].semantics.iters)]))]
    batch = (data.draw(st.integers(2, 3)),) * data.draw(st.integers(0, 1))
    rows, depth, columns = data.draw(st.integers(8, 24)), data.draw(st.integers(2, 40)), data.draw(st.integers(8, 40))
    case: Case = ("MatMul", {}, (*batch, rows, depth), (*batch, depth, columns))
    task = contraction(case, kinds_of(one), constants=())
    way = ways_of(task, emulated_target()).get(one.name)
    if way is None:  # columns that are mostly padding, numbers that it takes within bounds alone
        return
    candidate = tiled_candidate(way, default_knobs(way))
    check(from_end_to_end(task), candidate, emulated_target())


@pytest.mark.parametrize(("rows", "depth", "columns", "vectors"), [(16, 33, 112, 3), (9, 8, 80, 4), (24, 5, 512, 3)])
@pytest.mark.parametrize("name", ["avx512-bf16", "avx512-vnni"])
def test_copies_of_panels_that_do_not_divide(name: str, rows: int, depth: int, columns: int, vectors: int) -> None:
    """A copy holds one panel, padded to whole register tiles; the last panel has fewer columns."""
    task = contraction(("MatMul", {}, (rows, depth), (depth, columns)), kinds_of(here(name)), constants=())
    way = ways_of(task, emulated_target())[name]
    knobs = replace(default_knobs(way), rows=((way.inside[0], 4),), vectors=vectors, chunk=rows, by_rows=False)
    knobs = replace(knobs, parallel=parallel_loop(way, way.macro_loops(knobs), way.tiles(knobs)))
    check(from_end_to_end(task), tiled_candidate(way, knobs), emulated_target())


@pytest.mark.parametrize("case", PLAIN)
@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("bfloat16", "bfloat16")])
def test_what_no_dot_product_computes_is_computed_by_vectors(kinds: tuple[str, str], case: str) -> None:
    task = contraction(PLAIN[case], kinds)
    assert not ways_of(task, SERVER)
    built = check(from_end_to_end(task), None, emulated_target())
    assert not intrinsics_in(built.candidate)


# --- what is chosen ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        (("bfloat16", "bfloat16"), "amx-bf16"),
        (("uint8", "int8"), "amx-u8s8"),
        (("int8", "int8"), "amx-s8s8"),
        (("float32", "float32"), "avx512-f32"),
    ],
)
def test_the_default_is_the_fastest_by_estimate(kinds: tuple[str, str], name: str) -> None:
    task = contraction(("MatMul", {}, (512, 512), (512, 512)), kinds)
    assert intrinsics_in(chosen(task, SERVER, Policy(strassen=False)).candidate) == {name}
    assert intrinsics_in(chosen(task, SERVER, Policy(tensorize=False)).candidate) == set()


def test_without_tiles_dot_products_are_next() -> None:
    less = replace(SERVER, features=tuple(f for f in SERVER.features if not f.startswith("amx")))
    task = contraction(EVEN["matmul"], ("uint8", "int8"))
    assert intrinsics_in(chosen(task, less).candidate) == {"avx512-vnni"}


@pytest.mark.parametrize("cores", [1, 2, 4, 16, 64])
@pytest.mark.parametrize(
    ("kinds", "features", "name"),
    [
        (("bfloat16", "bfloat16"), SERVER.features, "amx-bf16"),
        (("uint8", "int8"), SERVER.features, "amx-u8s8"),
        (("uint8", "int8"), NO_TILES, "avx512-vnni"),
    ],
)
@pytest.mark.sweep(7)
def test_units_win_on_any_number_of_cores(kinds: tuple[str, str], features: Any, name: str, cores: int) -> None:
    """Sketches of units and of vectors are compared on the same cores."""
    task = contraction(("MatMul", {}, (512, 512), (512, 512)), kinds)
    found = chosen(task, replace(SERVER, features=features, cores=cores))
    assert intrinsics_in(found.candidate) == {name}


@pytest.mark.parametrize("shape", [(1, 256, 2, 7, 7), (1, 256, 4, 14, 14)])
def test_panels_that_outweigh_the_rows_pass_once(shape: tuple[int, ...]) -> None:
    """Rows that stay in half of the second-level cache cost nothing from beyond it."""
    case: Case = ("Conv", {"pads": [1] * 6}, shape, (512, 256, 3, 3, 3))
    way = ways_of(contraction(case, ("bfloat16", "bfloat16")), SERVER)["amx-bf16"]
    knobs = replace(default_knobs(way), by_rows=False, parallel=None)
    panels, depth = loops("o0 d0")
    assert way.macro_loops(knobs)[:2] == [panels, depth]
    assert way.macro_loops(replace(knobs, parallel=depth))[:2] == [depth, panels]
    many: Case = ("Conv", {"pads": [1] * 6}, (1, 32, 8, 56, 56), (128, 32, 3, 3, 3))
    way = ways_of(contraction(many, ("bfloat16", "bfloat16")), SERVER)["amx-bf16"]
    assert way.macro_loops(replace(knobs, rows=default_knobs(way).rows))[:2] == [depth, panels]


def test_lines_of_the_result_are_written_whole() -> None:
    """32 of 16 columns at a time are a line of bfloat16: half of it for each of two tiles of rows costs more."""
    task = in_narrow(contraction(("MatMul", {}, (3136, 24), (24, 144)), ("bfloat16", "bfloat16")), ["y0"])
    assert best_kernel(ways_of(task, SERVER)["amx-bf16"])[1] > 1


@pytest.mark.parametrize(("rows", "by_rows"), [(196, False), (3136, True)])
def test_panels_that_are_more_than_what_is_written_pass_once(rows: int, by_rows: bool) -> None:
    task = in_narrow(contraction(("MatMul", {}, (rows, 1024), (1024, 256)), ("bfloat16", "bfloat16")), ["y0"])
    assert default_knobs(ways_of(task, SERVER)["amx-bf16"]).by_rows == by_rows


def test_a_square_of_tiles_loads_least() -> None:
    """Two tiles of rows by two of columns: each line that is loaded costs, from wherever it comes."""
    case: Case = ("Conv", {"pads": [1] * 6}, (1, 256, 4, 14, 14), (256, 256, 3, 3, 3))
    rows, vectors, _ = best_kernel(ways_of(contraction(case, ("bfloat16", "bfloat16")), SERVER)["amx-bf16"])
    assert (rows, vectors) == ((("h", 2), ("w", 14)), 2)


@pytest.mark.parametrize(("shapes", "once"), [((64, 512, 64), "B"), ((640, 64, 64), "A"), ((64, 64, 64), "")])
def test_what_passes_by_is_loaded_past_the_first_cache(shapes: tuple[int, int, int], once: str) -> None:
    """Panels that one register tile meets one after the other, or rows that one panel does: before what stays."""
    rows, depth, columns = shapes
    task = contraction(("MatMul", {}, (rows, depth), (depth, columns)), kinds_of(SHIPPED["amx-bf16"]))
    way = ways_of(task, SERVER)["amx-bf16"]
    candidate = tiled_candidate(way, TiledKnobs((("m", 32),), 2, 32 if once == "B" else rows, once == "B", None))
    nest = build_nest(task, candidate)
    assert parse_nest(str(nest)) == nest and Candidate.from_json(candidate.to_json()) == candidate
    assert {s.once for s in nest.statements() if isinstance(s, For) and s.intrinsic} == {(), tuple(once)}
    (phase,) = lower_nest(nest, "k", SERVER.available_intrinsics)
    loads = re.findall(r"llvm\.x86\.(tileload\w+)", str(phase.function))
    assert loads[0] == ("tileloaddt164" if once else "tileloadd64"), "what comes from afar is asked for first"
    assert phase.step.scratch_bytes == 32 * 32 * 4, "what accumulators are stored to lies in whole lines"
    if set(SHIPPED["amx-bf16"].features) <= set(emulated_target().features):
        check(from_end_to_end(task), candidate, emulated_target())


# --- what Nests say ---------------------------------------------------------------------------------------------------


def nest_of(name: str, rows: int, target: Target = SERVER) -> Nest:
    """20 x 64 times 64 x 24 in register tiles of `rows` x 2 vectors."""
    task = contraction(("MatMul", {}, (20, 64), (64, 24)), kinds_of(SHIPPED[name]))
    way = ways_of(task, target)[name]
    return build_nest(task, tiled_candidate(way, TiledKnobs((("m", rows),), 2, 20, False, None)))


def test_tile_registers_are_zeroed_filled_and_stored() -> None:
    """Two tiles of ten rows by two of sixteen columns; a tail of eight columns is cut off when results are written."""
    assert str(nest_of("amx-bf16", 20)) == (
        """\
nest matmul(x0: bfloat16[20, 64]; x1: bfloat16[1, 2, 2, 16, 16, 2]; y0: float32[20, 24]) -> (y0)
  phase
    register y0_acc_acc: float32[20, 32]
    local y0_acc: float32[20, 32]
    unroll m2:2
      unroll n1:2
        intrin:amx-bf16 m3:10
          intrin:amx-bf16 n2:16
            init matmul[m=m2 * 10 + m3, n=n1 * 16 + n2] add
              y0_acc_acc[m2 * 10 + m3, n1 * 16 + n2] = float32(0.0)
    for k0:2
      unroll m2:2
        unroll n1:2
          intrin:amx-bf16 m3:10
            intrin:amx-bf16 n2:16
              intrin:amx-bf16 k1:32
                update matmul[m=m2 * 10 + m3, n=n1 * 16 + n2, k=k0 * 32 + k1] add
                  y0_acc_acc[m2 * 10 + m3, n1 * 16 + n2] += """
        """float32(x0[m2 * 10 + m3, k0 * 32 + k1]) * float32(x1[0, k0, n1, k1 // 2, n2, k1 % 2])
    unroll m0:2
      unroll n0:2
        intrin:amx-bf16 m1:10
          intrin:amx-bf16 n1:16
            assign write_y0_acc[m=m0 * 10 + m1, n=n0 * 16 + n1] assign
              y0_acc[m0 * 10 + m1, n0 * 16 + n1] = y0_acc_acc[m0 * 10 + m1, n0 * 16 + n1]
    unroll m0:20
      vector n1:16
        assign write_y0[m=m0, n=n1] assign
          y0[m0, n1] = y0_acc[m0, n1]
      vector n1:8
        assign write_y0[m=m0, n=n1 + 16] assign
          y0[m0, n1 + 16] = y0_acc[m0, n1 + 16]"""
    )


def test_vectors_of_dot_products_are_read_by_the_epilogue_as_they_are() -> None:
    assert str(nest_of("avx512-vnni", 5)) == (
        """\
nest matmulinteger(x0: uint8[20, 64]; x1: int8[1, 16, 2, 16, 4]; y0: int32[20, 24]) -> (y0)
  phase
    for m1:4
      register y0_acc: int32[5, 32]
      unroll m2:5
        unroll n1:2
          intrin:avx512-vnni n2:16
            init matmul[m=m1 * 5 + m2, n=n1 * 16 + n2] add
              y0_acc[m2, n1 * 16 + n2] = int32(0)
      for k0:16
        unroll m2:5
          unroll n1:2
            intrin:avx512-vnni n2:16
              intrin:avx512-vnni k1:4
                update matmul[m=m1 * 5 + m2, n=n1 * 16 + n2, k=k0 * 4 + k1] add
                  y0_acc[m2, n1 * 16 + n2] += int32(x0[m1 * 5 + m2, k0 * 4 + k1]) * int32(x1[0, k0, n1, n2, k1])
      unroll m0:5
        vector n1:16
          assign write_y0[m=m1 * 5 + m0, n=n1] assign
            y0[m1 * 5 + m0, n1] = y0_acc[m0, n1]
        vector n1:8
          assign write_y0[m=m1 * 5 + m0, n=n1 + 16] assign
            y0[m1 * 5 + m0, n1 + 16] = y0_acc[m0, n1 + 16]"""
    )


# --- what cannot be applied -------------------------------------------------------------------------------------------


def rejected(text: str, sentence: str, *intrinsics: str) -> None:
    with pytest.raises(InvalidIR, match=sentence):
        lower_nest(parse_nest(text), "k", [SHIPPED[name] for name in intrinsics])


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("intrin:avx512-vnni", "intrin:mine", "block matmul is computed by mine, which the target has not"),
        (
            "        intrin:avx512-vnni k1:4",
            "        for k1:4",
            "something else than one leaf lies in the loops of avx512-vnni",
        ),
        ("intrin:avx512-vnni k1:4", "intrin:avx512-vnni k1:8", "block matmul: avx512-vnni has no part with 8 of k"),
        ("intrin:avx512-vnni", "intrin:avx512-vnni/Z", "block matmul: avx512-vnni has no operand Z to load once"),
        ("unroll n1:2", "intrin:avx512-vnni n1:2", "2 loops are avx512-vnni in block matmul, expected 1"),
        ("+= int32(x0[", "+= int32(1) + int32(x0[", "does not compute what avx512-vnni does"),
        ("int32(x1[0, k0, n1, n2, k1])", "int32(x1[0, k0, n1, k1, k1])", "does not compute what avx512-vnni does"),
        ("x0[m1 * 5 + m2, k0 * 4 + k1]", "x0[m1 * 5 + m2, k0 * 4 + k1 % 3]", "operand A does not move evenly"),
    ],
)
def test_loops_that_are_not_the_intrinsic(old: str, new: str, sentence: str) -> None:
    text = str(nest_of("avx512-vnni", 5))
    assert old in text
    rejected(text.replace(old, new), sentence, "avx512-vnni")


def test_more_accumulators_than_tiles() -> None:
    text = str(nest_of("amx-bf16", 20))
    for old, new in (("[20, 32]", "[20, 80]"), ("unroll n1:2", "unroll n1:5"), ("[1, 2, 2, 16", "[1, 2, 5, 16")):
        text = text.replace(old, new)
    rejected(text, "amx-bf16 has no tile left for", "amx-bf16")


def test_a_target_without_the_intrinsic_has_no_such_kernel() -> None:
    rejected(str(nest_of("amx-bf16", 20)), "is computed by amx-bf16, which the target has not", "avx512-vnni")
