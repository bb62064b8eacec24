"""Contractions without windows: MatMul, Gemm, Einsum."""

from __future__ import annotations

from collections.abc import Sequence

from modelc.ir.block import Block, Buffer, Iter
from modelc.ir.expr import Const, Expr, Load, Var, cast, const
from modelc.ir.graph import Node, Value
from modelc.ops.conv import in_accumulator
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Shape,
    Types,
    accumulator,
    aligned,
    assign,
    broadcast,
    fail,
    fold,
    given,
    grid,
    point,
    renamed_output,
    required,
    scalar,
    text,
    widened,
)

_BATCH = {0: (), 1: ("b",), 2: ("b", "h")}


def rounded(contraction: Block, shape: Shape, dtype: str, summed: str) -> Definition:
    """`contraction` (which writes `sum`) as it is if `summed` is the output's dtype, else followed by a cast."""
    if summed == dtype:
        return Definition((), (renamed_output(contraction, "y0"),))
    iters = grid(shape)
    over = point(iters)
    block = assign("round", iters, Load("y0", over), cast(dtype, Load("sum", over)))
    return Definition((Buffer("sum", summed, shape),), (contraction, block))


# --- MatMul -------------------------------------------------------------------------------------------------------


def matmul_shape(node: Node, a: Value, b: Value) -> Shape:
    if not a.shape or not b.shape:
        fail(node, "expected operands of at least one dimension, found a scalar")
    inner = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    if a.shape[-1] != inner:
        fail(node, f"expected operands that multiply, found {list(a.shape)} and {list(b.shape)}")
    batch = broadcast(node, a.shape[:-2], b.shape[:-2])
    return (*batch, *a.shape[-2:-1], *(b.shape[-1:] if len(b.shape) > 1 else ()))


def matmul_block(node: Node, a: Value, b: Value, read: tuple[str, str] = ("x0", "x1")) -> Block:
    """The contraction into `sum`, with plain Loads of `read` as operands."""
    matmul_shape(node, a, b)
    batch = broadcast(node, a.shape[:-2], b.shape[:-2])
    named = _BATCH.get(len(batch), tuple(f"b{k}" for k in range(len(batch))))
    iters = list(grid(batch, named)) if batch else []
    over = point(named)
    rows, columns = len(a.shape) > 1, len(b.shape) > 1
    iters += ([Iter("m", a.shape[-2])] if rows else []) + ([Iter("n", b.shape[-1])] if columns else [])
    iters.append(Iter("k", a.shape[-1], True))
    left = Load(read[0], (*aligned(a.shape[:-2], over, batch), *[Var("m")] * rows, Var("k")))
    right = Load(read[1], (*aligned(b.shape[:-2], over, batch), Var("k"), *[Var("n")] * columns))
    write = Load("sum", (*over, *[Var("m")] * rows, *[Var("n")] * columns))
    return fold("add", "matmul", iters, write, left * right)


def matmul_infer(node: Node, inputs: Inputs) -> Types:
    a, b = required(node, inputs, 0), required(node, inputs, 1)
    return ((a.dtype, matmul_shape(node, a, b)),)


def matmul_define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    a, b = required(node, inputs, 0), required(node, inputs, 1)
    block = in_accumulator(matmul_block(node, a, b), a.dtype)
    return rounded(block, matmul_shape(node, a, b), a.dtype, accumulator(a.dtype))


# --- Gemm ---------------------------------------------------------------------------------------------------------


def gemm_infer(node: Node, inputs: Inputs) -> Types:
    a, b, c = required(node, inputs, 0), required(node, inputs, 1), given(inputs, 2)
    if len(a.shape) != 2 or len(b.shape) != 2:
        fail(node, f"expected two matrices, found {list(a.shape)} and {list(b.shape)}")
    m, k = reversed(a.shape) if node.attrs.get("transA", 0) else a.shape
    inner, n = reversed(b.shape) if node.attrs.get("transB", 0) else b.shape
    if k != inner:
        fail(node, f"expected operands that multiply, found inner extents {k} and {inner}")
    if c is not None and broadcast(node, c.shape, (m, n)) != (m, n):
        fail(node, f"expected C to broadcast to {[m, n]}, found {list(c.shape)}")
    return ((a.dtype, (m, n)),)


def gemm_define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    a, c = required(node, inputs, 0), given(inputs, 2)
    ((dtype, (m, n)),) = gemm_infer(node, inputs)
    alpha, beta = float(node.attrs.get("alpha", 1.0)), float(node.attrs.get("beta", 1.0))
    k = a.shape[0] if node.attrs.get("transA", 0) else a.shape[1]
    iters = (Iter("m", m), Iter("n", n), Iter("k", k, True))
    left = Load("x0", (Var("k"), Var("m")) if node.attrs.get("transA", 0) else (Var("m"), Var("k")))
    right = Load("x1", (Var("n"), Var("k")) if node.attrs.get("transB", 0) else (Var("k"), Var("n")))
    over = (Var("m"), Var("n"))
    block = in_accumulator(fold("add", "gemm", iters, Load("sum", over), left * right), dtype)
    summed = accumulator(dtype)
    if alpha == 1.0 and (c is None or beta == 0.0):
        return rounded(block, (m, n), dtype, summed)
    body: Expr = Load("sum", over)
    if alpha != 1.0:
        body = body * const(alpha, summed)
    if c is not None and beta != 0.0:
        added: Expr = scalar(c) or Load("x2", aligned(c.shape, over, (m, n)))
        added = widened(added, dtype, summed)
        body = body + (added if beta == 1.0 else added * const(beta, summed))
    final = assign("bias", grid((m, n)), Load("y0", over), widened(body, summed, dtype))
    return Definition((Buffer("sum", summed, (m, n)),), (block, final))


# --- Einsum -------------------------------------------------------------------------------------------------------


def _equation(node: Node, inputs: Inputs) -> tuple[list[list[str]], list[str], dict[str, int]]:
    """Labels of every operand, labels of the output, extent of every label. An ellipsis is the labels e0, e1, ..."""
    equation = text(node, "equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(inputs):
        fail(node, f"expected an equation of {len(inputs)} operands, found {equation!r}")
    dots = max(
        (len(required(node, inputs, k).shape) - len(t) + 3 for k, t in enumerate(terms) if "..." in t), default=0
    )

    def labels(term: str, rank: int | None) -> list[str]:
        head, ellipsis, tail = term.partition("...")
        count = dots if rank is None else rank - len(head) - len(tail)
        middle = [f"e{k}" for k in range(dots - count, dots)] if ellipsis else []
        return [*head, *middle, *tail]

    extents: dict[str, int] = {}
    operands = []
    for k, term in enumerate(terms):
        value = required(node, inputs, k)
        names = labels(term, len(value.shape))
        if len(names) != len(value.shape):
            fail(node, f"expected operand {k} to have the dimensions {term!r}, found {list(value.shape)}")
        for name, extent in zip(names, value.shape, strict=True):
            if extents.setdefault(name, extent) == 1:
                extents[name] = extent
            if extent not in (1, extents[name]):
                fail(node, f"expected one extent for {name!r}, found {extents[name]} and {extent}")
        operands.append(names)
    every = "".join(terms).replace(".", "")
    implicit = [f"e{k}" for k in range(dots)] + sorted(c for c in set(every) if every.count(c) == 1)
    result = labels(right, None) if arrow else implicit
    if unknown := [x for x in result if x not in extents]:
        fail(node, f"expected an output of known labels, found {unknown[0]!r} in {equation!r}")
    return operands, result, extents


def einsum_infer(node: Node, inputs: Inputs) -> Types:
    _, result, extents = _equation(node, inputs)
    return ((required(node, inputs, 0).dtype, tuple(extents[x] for x in result)),)


def einsum_define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    operands, result, extents = _equation(node, inputs)
    dtype = required(node, inputs, 0).dtype
    iters = [Iter(x, extents[x]) for x in result]
    iters += [Iter(x, e, True) for x, e in extents.items() if x not in result]

    def read(k: int, labels: Sequence[str]) -> Expr:
        shape = required(node, inputs, k).shape
        at = [Const(0) if e == 1 and extents[x] != 1 else Var(x) for x, e in zip(labels, shape, strict=True)]
        return Load(f"x{k}", tuple(at))

    body = read(0, operands[0])
    for k in range(1, len(operands)):
        body = body * read(k, operands[k])
    write = Load("sum", point(result))
    shape = tuple(extents[x] for x in result)
    if len(iters) == len(result):
        return Definition((), (assign("einsum", iters, Load("y0", write.indices), body),))
    block = in_accumulator(fold("add", "einsum", iters, write, body), dtype)
    return rounded(block, shape, dtype, accumulator(dtype))


OPERATORS = (
    Operator("MatMul", matmul_infer, matmul_define, wraps=True),
    Operator("Gemm", gemm_infer, gemm_define),
    Operator("Einsum", einsum_infer, einsum_define, wraps=True),
)
