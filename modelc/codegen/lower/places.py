"""Where Regions are while a Nest is lowered: in memory, in registers, in what an intrinsic accumulates in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from modelc.codegen.intrinsics.applications import Slots, TileFile
from modelc.codegen.lean_tvm import tx
from modelc.codegen.lower.leaves import slot_pieces
from modelc.codegen.vectors import int32, lanes_at, sequence
from modelc.ir.affine import Linear
from modelc.ir.expr import NARROW, Const, Expr, Var
from modelc.ir.nest import Region


def stored_dtype(dtype: str) -> str:
    """How a dtype lies in memory: bools as bytes, bfloat16 and narrow numbers as their bits."""
    return {"bool": "uint8", "bfloat16": "uint16", **dict.fromkeys(NARROW, "uint8")}.get(dtype, dtype)


@dataclass
class Memory:
    """Addressable storage: a TIR buffer and where the Region starts in it (elements)."""

    region: Region
    buffer: Any
    offset: int = 0


@dataclass
class Registers:
    """Storage as separate vectors of `width` elements."""

    region: Region
    slots: list[Any]
    width: int


Storage = Memory | Registers | Slots | TileFile


@dataclass(frozen=True)
class Scope:
    """What is known at a place: loop variables (numbers once unrolled), storage, the vector loop around, scratch."""

    values: Mapping[str, Expr] = field(default_factory=dict)
    ranges: Mapping[str, int] = field(default_factory=dict)
    storage: Mapping[str, Storage] = field(default_factory=dict)
    vector: tuple[str, int] | None = None
    scratch: int = 0


def bind(scope: Scope, var: str, value: Expr, extent: int) -> Scope:
    ranges = {**scope.ranges, var: extent} if isinstance(value, Var) else scope.ranges
    return Scope({**scope.values, var: value}, ranges, scope.storage, scope.vector, scope.scratch)


def number(flat: Linear | Expr) -> int:
    """An element offset that is a constant: registers are indexed by constants."""
    if isinstance(flat, Linear) and not flat.terms:
        return flat.constant
    assert isinstance(flat, Const), f"registers are indexed by {flat}"
    return int(flat.value)


def load_slots(place: Registers | Slots, start: int, step: int, lanes: int) -> Any:
    if isinstance(place, Slots):
        return tx.BufferLoad(place.at(start), [tx.Ramp(int32(0), int32(1), lanes)])
    if lanes == 1:
        return tx.BufferLoad(place.slots[start // place.width], [int32(start % place.width)])
    if step != 1:
        scalars = [load_slots(place, start + step * k, 0, 1) for k in range(lanes)]
        return tx.Shuffle(scalars, [int32(k) for k in range(lanes)])
    parts = []
    for slot, offset, count in slot_pieces(start, lanes, place.width):
        index = tx.Ramp(int32(offset), int32(1), count) if count > 1 else int32(offset)
        parts.append(tx.BufferLoad(place.slots[slot], [index]))
    return parts[0] if len(parts) == 1 else tx.Shuffle(parts, [int32(k) for k in range(lanes)])


def store_slots(place: Registers | Slots, start: int, step: int, value: Any, lanes: int) -> Any:
    if isinstance(place, Slots):
        return tx.BufferStore(place.at(start), value, [tx.Ramp(int32(0), int32(1), lanes)])
    if lanes == 1:
        return tx.BufferStore(place.slots[start // place.width], value, [int32(start % place.width)])
    if step != 1:
        ends = [divmod(start + step * k, place.width) for k in range(lanes)]
        parts = [lanes_at(value, range(k, k + 1)) for k in range(lanes)]
        pairs = zip(ends, parts, strict=True)
        return sequence([tx.BufferStore(place.slots[slot], p, [int32(at)]) for (slot, at), p in pairs])
    stores, done = [], 0
    for slot, offset, count in slot_pieces(start, lanes, place.width):
        piece = value if count == lanes else lanes_at(value, range(done, done + count))
        at = tx.Ramp(int32(offset), int32(1), count) if count > 1 else int32(offset)
        stores.append(tx.BufferStore(place.slots[slot], piece, [at]))
        done += count
    return sequence(stores)
