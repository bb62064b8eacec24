"""Small words of TIR: statements in sequence, vectors made from scalars and taken apart, values held under a name."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from modelc.codegen.lean_tvm import tvm, tx
from modelc.codegen.math.code import COMPARED, tir_dtype
from modelc.ir.expr import DTYPES, NARROW, Const

INDEX_OPS: dict[str, Callable[..., Any]] = {  # plain nodes, which TVM understands when it looks for aligned ramps
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": tx.FloorDiv,
    "mod": tx.FloorMod,
    "min": tx.Min,
    "max": tx.Max,
    **COMPARED,
}


def sequence(stmts: list[Any]) -> Any:
    if not stmts:
        return tx.Evaluate(int32(0))
    return stmts[0] if len(stmts) == 1 else tx.SeqStmt(stmts)


def int32(value: int) -> Any:
    return integer("int32", value)


@lru_cache(maxsize=65536)
def integer(dtype: str, value: int) -> Any:
    return tx.IntImm(dtype, value)


def moved(base: Any, by: int) -> Any:
    """An element offset so many elements further on."""
    return tx.Add(base, integer(tir_dtype(base), by)) if by else base


def ramp(base: Any, step: int, lanes: int) -> Any:
    """The element offsets of a vector; of one lane the base itself."""
    return base if lanes == 1 else tx.Ramp(base, integer(tir_dtype(base), step), lanes)


def joined(parts: list[Any], lanes: int) -> Any:
    """A vector of what `parts` have, one after the other."""
    return parts[0] if len(parts) == 1 else tx.Shuffle(parts, [int32(k) for k in range(lanes)])


def constant(e: Const) -> Any:
    if e.dtype == "bool":
        return tx.IntImm("bool", int(e.value))
    if e.dtype == "bfloat16":
        return tx.IntImm("uint16", int(np.asarray(e.value, DTYPES["bfloat16"]).view(np.uint16)))
    if e.dtype in NARROW:
        return tx.IntImm("uint8", int(np.asarray(e.value, DTYPES[e.dtype]).view(np.uint8)))
    return tx.const(e.value, e.dtype)


def lanes_of(value: Any) -> int:
    return int(value.ty.dtype.lanes)


def local_buffer(elements: int, dtype: str, name: str) -> Any:
    """A buffer on the stack, which LLVM keeps in registers where indices are constants."""
    return tx.decl_buffer((int32(elements),), dtype, name, scope="local", layout=None)  # TVM takes 20 us for a layout


def parameter(name: str, dtype: str, elements: int, alignment: int) -> tuple[Any, Any, Any]:
    """(a pointer that a function takes, the buffer that it points to, the statement that says so)."""
    pointer = tx.Var(name, tvm.ir.PointerType(tvm.ir.PrimType(dtype)))
    buffer = tx.decl_buffer((elements,), dtype, f"{name}_", data_alignment=alignment)
    return pointer, buffer, tx.DeclBuffer(buffer, data=pointer)


def held(var: Any, value: Any) -> list[Any]:
    """Statements that name a value. It goes through a stack slot (which LLVM dissolves), because TVM's analysis would
    substitute a bound value into whatever uses it, again and again."""
    dtype, lanes = tir_dtype(var), lanes_of(var)
    slot = local_buffer(lanes, dtype.split("x")[0], var.name)
    at = [ramp(int32(0), 1, lanes)]
    return [tx.AllocBuffer(slot), tx.BufferStore(slot, value, at), tx.Bind(var, tx.BufferLoad(slot, at))]


def widen(value: Any, lanes: int, wanted: int) -> Any:
    return value if lanes == wanted else tx.Broadcast(value, wanted)


def lanes_at(value: Any, which: Sequence[int]) -> Any:
    """Some lanes of a vector."""
    return tx.Shuffle([value], [int32(k) for k in which])


def halved(
    values: list[Any],
    lanes: int,
    combine: Callable[[list[Any], list[Any], int], list[Any]],
    bound: Callable[[Any], Any],
) -> list[Any]:
    """Vectors of `lanes` lanes each combined to a single lane, half with half; `combine` is given both halves and how
    many lanes these have, `bound` names a value that is used twice. A lane that is left over comes last."""
    left_over: list[list[Any]] = []
    while lanes > 1:
        values = [bound(v) for v in values]
        if lanes % 2:
            left_over.append([lanes_at(v, range(lanes - 1, lanes)) for v in values])
            values = [lanes_at(v, range(lanes - 1)) for v in values]
            lanes -= 1
            continue
        half = lanes // 2
        low, high = ([lanes_at(v, part) for v in values] for part in (range(half), range(half, lanes)))
        values, lanes = combine(low, high, half), half
    for extra in left_over:
        values = combine(values, extra, 1)
    return values
