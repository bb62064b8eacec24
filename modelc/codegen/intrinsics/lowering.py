"""Intrinsics -> TIR. What a lowering needs for one leaf:

    emit(intrinsic, {"C": acc, "A": Place(...), "B": vector})       the accumulator after one application
    load(operand, place), store(operand, place, vector)             between memory and one vector, row-major
    imported(intrinsics, body)                                      once around a function's body

and for intrinsics of tile registers, which are statements with literal tile numbers:

    set_up(intrinsic, {0: (rows, row_bytes), ...})   per thread, before any other
    zero(intrinsic, 0)   load_tile(intrinsic, operand, 4, place)   store_tile(intrinsic, operand, 0, place)
    multiply(intrinsic, {"C": 0, "A": 4, "B": 6})    release(intrinsic)

Values of bfloat16 are their bits in uint16, as everywhere in codegen.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import prod
from typing import Any

from modelc.codegen.lean_tvm import tvm, tx
from modelc.codegen.math.llvm_text import with_texts
from modelc.codegen.vectors import constant, int32, joined, lanes_at, moved, ramp, widen
from modelc.errors import TargetError
from modelc.ir.block import compact_strides
from modelc.ir.expr import DTYPES, Const
from modelc.target.intrinsic import Intrinsic, Operand, Tiles
from modelc.target.intrinsic_code import Call, Code, Name, Number, VectorType, calls

_BINARY = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
_LLVM_TYPES = {"float16": "half", "bfloat16": "bfloat", "float32": "float", "float64": "double"}


@dataclass(frozen=True)
class Place:
    """An operand in memory: dimension d moves by strides[d] elements from `base` (an int, or TIR's). `extents` are how
    much of an iterator there is, where that is less than the intrinsic takes: elements beyond load as zeros, and are
    neither read nor written."""

    buffer: Any
    base: Any
    strides: tuple[int, ...]
    extents: Mapping[str, int] = field(default_factory=dict)


def emit(intrinsic: Intrinsic, operands: Mapping[str, Any]) -> Any:
    """The accumulator after one application: a vector, as TIR. `operands` are vectors or Places, by name."""
    values = {
        o.name: load(o, operand) if isinstance(operand := operands[o.name], Place) else operand
        for o in intrinsic.operands
    }
    return _value(intrinsic.code, values)


def load(operand: Operand, place: Place) -> Any:
    """All elements of an operand as one vector, row-major."""
    lanes, stretches = prod(operand.shape), _stretches(operand, place)
    parts = [tx.BufferLoad(place.buffer, [at]) for at, _ in stretches]
    there = [lane for _, part in stretches for lane in part]
    if len(there) == lanes:
        return joined(parts, lanes)
    beyond = [lane for lane in range(lanes) if lane not in there]
    zeros = widen(constant(Const(0, operand.dtype)), 1, len(beyond))
    order = {lane: k for k, lane in enumerate([*there, *beyond])}
    return tx.Shuffle([*parts, zeros], [int32(order[lane]) for lane in range(lanes)])


def store(operand: Operand, place: Place, value: Any) -> list[Any]:
    """Statements that store a vector as the elements of an operand."""
    result = []
    for at, lanes in _stretches(operand, place):
        part = value if len(lanes) == prod(operand.shape) else lanes_at(value, lanes)
        result.append(tx.BufferStore(place.buffer, part, [at]))
    return result


def imported(intrinsics: Iterable[Intrinsic], body: Any) -> Any:
    """`body` with the LLVM functions that `emit` calls for these intrinsics; they are inlined."""
    called = [c for intrinsic in intrinsics for c in calls(intrinsic.code) if _wrapped(c)]
    wrappers = {_wrapper(c): _wrapper_text(c) for c in called}
    text = "\n".join(wrappers[name] for name in sorted(wrappers))
    return with_texts({"wrappers": text}, body) if wrappers else body


# --- vectors --------------------------------------------------------------------------------------------------------


def _value(code: Code, names: Mapping[str, Any]) -> Any:
    if isinstance(code, Name):
        return names[code.name]
    if isinstance(code, Number):
        number = tx.const(code.value, code.type.dtype)
        return number if code.type.lanes == 1 else tx.Broadcast(number, code.type.lanes)
    args = [_value(arg, names) for arg in code.args]
    if isinstance(code, Call):
        if code.type is None:
            return tx.call_llvm_intrin("void", _checked_name(code.llvm), *args)
        if _wrapped(code):
            return tx.call_pure_extern(_tvm_type(code.type), _wrapper(code), *args)
        return tx.call_llvm_pure_intrin(_tvm_type(code.type), _checked_name(code.llvm), *args)
    dtype = _tvm_type(code.type)
    if code.op == "bitcast":
        before = code.args[0].type
        assert before is not None
        return args[0] if dtype == _tvm_type(before) else tx.reinterpret(dtype, args[0])
    if code.op == "broadcast":
        return tx.Broadcast(args[0], code.type.lanes)
    if code.op == "widen":
        return tx.Cast(dtype, args[0])
    if code.op == "shuffle":
        return tx.Shuffle(args, [int32(lane) for lane in code.lanes])
    return _BINARY[code.op](*args)


def _checked_name(llvm: str) -> str:
    if not tvm.target.codegen.llvm_lookup_intrinsic_id(llvm):
        raise TargetError(f"LLVM has no intrinsic {llvm}")
    return llvm


def _tvm_type(type_: VectorType) -> str:
    return str(_of_bits(type_))


def _of_bits(type_: VectorType) -> VectorType:
    return VectorType("uint16", type_.lanes) if type_.dtype == "bfloat16" else type_


def _stretches(operand: Operand, place: Place) -> list[tuple[Any, list[int]]]:
    """Where elements of an operand are that are evenly spaced, as TIR, and which lanes they are."""
    points = [at for at in product(*map(range, operand.shape)) if _is_there(operand, place, at)]
    lanes = [sum(i * s for i, s in zip(at, compact_strides(operand.shape), strict=True)) for at in points]
    offsets = [sum(i * s for i, s in zip(at, place.strides, strict=True)) for at in points]
    result, done = [], 0
    for start, step, n in _runs(offsets):
        result.append((ramp(_at(place, start), step, n), lanes[done : done + n]))
        done += n
    return result


def _is_there(operand: Operand, place: Place, at: tuple[int, ...]) -> bool:
    """Whether an element is within the extents of the place."""
    values: dict[str, int] = {}
    for digit, i in zip(operand.digits, at, strict=True):
        values[digit.iterator] = values.get(digit.iterator, 0) + i * digit.step
    return all(values.get(name, 0) < extent for name, extent in place.extents.items())


def _runs(offsets: list[int]) -> list[tuple[int, int, int]]:
    """(start, step, count) of evenly spaced stretches; of consecutive ones unless a single step fits all."""
    if len(offsets) == 1:
        return [(offsets[0], 1, 1)]
    step = offsets[1] - offsets[0]
    if step > 0 and all(b - a == step for a, b in pairwise(offsets)):
        return [(offsets[0], step, len(offsets))]
    runs: list[tuple[int, int, int]] = []
    for offset in offsets:
        if runs and offset == runs[-1][0] + runs[-1][2]:
            runs[-1] = (runs[-1][0], 1, runs[-1][2] + 1)
        else:
            runs.append((offset, 1, 1))
    return runs


def _at(place: Place, offset: int) -> Any:
    return int32(place.base + offset) if isinstance(place.base, int) else moved(place.base, offset)


# --- bfloat16 -------------------------------------------------------------------------------------------------------
# TVM's code generator has no bfloat16. A call with such operands goes through a function of LLVM's own text that takes
# their bits; LLVM inlines it.


def _wrapped(call: Call) -> bool:
    types = (call.type, *(arg.type for arg in call.args))
    return any(t is not None and t.dtype == "bfloat16" for t in types)


def _wrapper(call: Call) -> str:
    types = [str(t) for t in (call.type, *(arg.type for arg in call.args))]
    return re.sub(r"\W", "_", f"modelc_{call.llvm}_{'_'.join(types)}")


def _wrapper_text(call: Call) -> str:
    types = [arg.type for arg in call.args if arg.type is not None]
    assert call.type is not None and len(types) == len(call.args)
    params = ", ".join(f"{_bits_type(t)} %b{k}" for k, t in enumerate(types))
    lines = [
        f"declare {_llvm_type(call.type)} @{_checked_name(call.llvm)}({', '.join(map(_llvm_type, types))})",
        f"define {_bits_type(call.type)} @{_wrapper(call)}({params}) {{",
    ]
    for k, t in enumerate(types):
        lines.append(f"  %a{k} = bitcast {_bits_type(t)} %b{k} to {_llvm_type(t)}")
    args = ", ".join(f"{_llvm_type(t)} %a{k}" for k, t in enumerate(types))
    lines += [
        f"  %r = call {_llvm_type(call.type)} @{call.llvm}({args})",
        f"  %s = bitcast {_llvm_type(call.type)} %r to {_bits_type(call.type)}",
        f"  ret {_bits_type(call.type)} %s",
        "}",
    ]
    return "\n".join(lines)


def _llvm_type(type_: VectorType) -> str:
    lane = _LLVM_TYPES.get(type_.dtype) or f"i{DTYPES[type_.dtype].itemsize * 8}"
    return lane if type_.lanes == 1 else f"<{type_.lanes} x {lane}>"


def _bits_type(type_: VectorType) -> str:
    return _llvm_type(_of_bits(type_))


# --- tile registers -------------------------------------------------------------------------------------------------


def set_up(intrinsic: Intrinsic, shapes: Mapping[int, tuple[int, int]]) -> list[Any]:
    """Statements that give tiles their shapes, (rows, bytes of a row) by number; the others are not to be used."""
    tiles = _tiles(intrinsic)
    table = tx.decl_buffer((tiles.table.bytes,), "uint8", "tile_table", scope="local", data_alignment=64)
    stores = [
        tx.BufferStore(table, tx.IntImm("uint8", byte), [int32(at)])
        for at, byte in enumerate(table_bytes(tiles, shapes))
    ]
    code = _value(tiles.setup, {"table": tx.address_of(tx.BufferLoad(table, [int32(0)]))})
    return [tx.AllocBuffer(table), *stores, tx.Evaluate(code)]


def table_bytes(tiles: Tiles, shapes: Mapping[int, tuple[int, int]]) -> bytes:
    """The table that sets tiles up."""
    table = tiles.table
    result = bytearray(table.bytes)
    for at, value in table.fixed:
        result[at] = value
    for tile, (rows, row_bytes) in shapes.items():
        if not (0 <= tile < tiles.count and 0 < rows <= tiles.rows and 0 < row_bytes <= tiles.row_bytes):
            raise ValueError(
                f"tile {tile} of {rows} rows of {row_bytes} bytes; {tiles.count} tiles are {tiles.rows} rows"
            )
        for start, width, value in (
            (table.rows_at, table.rows_width, rows),
            (table.row_bytes_at, table.row_bytes_width, row_bytes),
        ):
            result[start + tile * width : start + (tile + 1) * width] = value.to_bytes(width, "little")
    return bytes(result)


def zero(intrinsic: Intrinsic, tile: int) -> Any:
    """A statement: the tile is all zeros."""
    return tx.Evaluate(_value(_tiles(intrinsic).zero, {"tile": _tile(tile)}))


def load_tile(intrinsic: Intrinsic, operand: Operand, tile: int, place: Place, once: bool = False) -> Any:
    """A statement: the tile holds the operand at `place`, whose rows are compact, `strides[0]` elements apart. `once`:
    nothing reads it soon again."""
    tiles = _tiles(intrinsic)
    code = tiles.load_once if once and tiles.load_once is not None else tiles.load
    return tx.Evaluate(_value(code, _rows(operand, tile, place)))


def store_tile(intrinsic: Intrinsic, operand: Operand, tile: int, place: Place) -> Any:
    """A statement: the operand at `place` is what the tile holds."""
    return tx.Evaluate(_value(_tiles(intrinsic).store, _rows(operand, tile, place)))


def multiply(intrinsic: Intrinsic, tiles: Mapping[str, int]) -> Any:
    """A statement: one application, on the tiles of these numbers."""
    return tx.Evaluate(_value(intrinsic.code, {name: _tile(tile) for name, tile in tiles.items()}))


def release(intrinsic: Intrinsic) -> Any:
    """A statement: the thread is done with its tiles."""
    return tx.Evaluate(_value(_tiles(intrinsic).release, {}))


def _rows(operand: Operand, tile: int, place: Place) -> dict[str, Any]:
    if place.strides[1:] != compact_strides(operand.shape)[1:]:
        raise ValueError(f"{operand.name} of strides {place.strides} has no compact rows")
    stride = place.strides[0] * DTYPES[operand.dtype].itemsize
    address = tx.address_of(tx.BufferLoad(place.buffer, [_at(place, 0)]))
    return {"tile": _tile(tile), "address": address, "stride": tx.IntImm("int64", stride)}


def _tile(number: int) -> Any:
    return tx.IntImm("uint8", number)


def _tiles(intrinsic: Intrinsic) -> Tiles:
    assert intrinsic.tiles is not None, f"{intrinsic.name} has no tiles"
    return intrinsic.tiles
