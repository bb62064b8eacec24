"""Matrix products with weights of few bits, which are taken apart where they are multiplied: as real numbers, or as
bytes with activations that are rounded to bytes block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Block, Buffer, Iter
from modelc.ir.expr import Const, Expr, Load, Var, cast, const, op, select
from modelc.ir.graph import Node, Value
from modelc.ir.scalar import DOTS
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Shape,
    Types,
    assign,
    fail,
    fold,
    given,
    grid,
    point,
    required,
)

BITS = (2, 4, 8)


def packed(numbers: NDArray[np.uint8], bits: int, block: int) -> NDArray[np.uint8]:
    """[K, N] numbers of so many bits as [K / block, block * bits / 8, N] bytes. A byte holds numbers that lie as far
    apart in the block as it has bytes, the first in its lowest bits: so each part of all bytes is in order."""
    depth, columns = numbers.shape
    parts = 8 // bits
    apart = numbers.reshape(depth // block, parts, block // parts, columns).astype(np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, parts, 1, 1)
    merged: NDArray[np.uint8] = np.bitwise_or.reduce(apart << shifts, axis=1)
    return merged


def _shape(node: Node, x: Value, weights: Value, scales: Value) -> Shape:
    bits, block = int(node.attrs["bits"]), int(node.attrs["block"])
    blocks, rows, columns = weights.shape
    if bits not in BITS or rows * 8 != block * bits or scales.shape != (blocks, columns):
        fail(node, f"expected weights {[blocks, block * bits // 8, columns]} and scales {[blocks, columns]}")
    if not x.shape or x.shape[-1] != blocks * block:
        fail(node, f"expected rows of {blocks * block} numbers, found {list(x.shape)}")
    return (*x.shape[:-1], columns)


def _infer(node: Node, inputs: Inputs) -> Types:
    x, weights, scales = (required(node, inputs, k) for k in range(3))
    return ((x.dtype, _shape(node, x, weights, scales)),)


def _define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    """Each byte is read once, and gives as many products as it holds numbers; scales and zero points are by block. Of
    one block alone the sum is scaled; else numbers of a byte each, which are the same for all rows; else what the
    products of one byte add up to."""
    x, weights, zeros = required(node, inputs, 0), required(node, inputs, 1), given(inputs, 3)
    bits, block = int(node.attrs["bits"]), int(node.attrs["block"])
    blocks, rows, columns = weights.shape
    lead = grid(x.shape[:-1], [f"m{k}" for k in range(len(x.shape) - 1)])
    over, (n, b, i) = point(lead), map(Var, ("n", "b", "i"))
    scale: Expr = Load("x2", (b, n))
    zero: Expr = const(float(node.attrs.get("zero", 0.0)), "float32")
    if zeros is not None:
        zero = cast("float32", Load("x3", (b, n)))
    numbers = [cast("float32", digits) - zero for digits in _apart(cast("int32", Load("x1", (b, i, n))), bits)]
    if blocks > 1 and len(numbers) == 1:
        numbers = [numbers[0] * scale]
    products = [Load("x0", (*over, b * block + i + k * rows)) * number for k, number in enumerate(numbers)]
    body = reduce(add, products)
    if blocks > 1 and len(products) > 1:
        body = body * scale
    column, column_iter = (*over, n), Iter("n", columns)
    iters = (*lead, column_iter, Iter("b", blocks, True), Iter("i", rows, True))
    product = fold("add", "packed_matmul", iters, Load("y0" if blocks > 1 else "sum", column), body)
    if blocks > 1:
        return Definition((), (product,))
    scaled = assign("scale", (*lead, column_iter), Load("y0", column), Load("sum", column) * Load("x2", (Const(0), n)))
    return Definition((Buffer("sum", x.dtype, (*x.shape[:-1], columns)),), (product, scaled))


def _apart(byte: Expr, bits: int) -> Iterator[Expr]:
    """The numbers of so many bits in a byte, the lowest first."""
    for first in range(0, 8, bits):
        digits = byte if not first else op("shr", byte, const(first, "int32"))
        yield digits if first + bits == 8 else op("bitand", digits, const((1 << bits) - 1, "int32"))


# --- activations as bytes, by block --------------------------------------------------------------------------------

LARGEST = 127.0
MOST_WORDS = 4  # of a column's weights in one step of the sum


def words(numbers: NDArray[np.uint8], bits: int, block: int) -> NDArray[np.int32]:
    """[K, N] numbers of so many bits as int32 [K / block, block * bits / 32, N]: a word has four of the bytes of
    `packed`, the first lowest."""
    bytes_ = packed(numbers, bits, block)
    by_word = bytes_.reshape(len(bytes_), -1, 4, bytes_.shape[-1]).transpose(0, 1, 3, 2)
    merged: NDArray[np.int32] = np.ascontiguousarray(by_word).view("<i4")[..., 0].astype(np.int32)
    return merged


def _scaled(node: Node, x: Value) -> tuple[tuple[Iter, ...], tuple[Buffer, ...], tuple[Block, ...], int]:
    """Iterators over rows, and by block the largest magnitude, 127 over it, and it over 127: what ONNX Runtime rounds
    activations with."""
    block = int(node.attrs["block"])
    if not x.shape or x.dtype != "float32" or block < 1 or x.shape[-1] % block:
        fail(node, f"expected rows of whole blocks of {block} float32, found {x.dtype}{list(x.shape)}")
    lead = grid(x.shape[:-1], [f"m{k}" for k in range(len(x.shape) - 1)])
    blocks = x.shape[-1] // block
    by_block, over = (*lead, Iter("b", blocks)), (*point(lead), Var("b"))
    magnitude = op("abs", Load("x0", (*point(lead), Var("b") * block + Var("i"))))
    most = Load("most", over)
    inverse = select(op("gt", most, const(0.0, "float32")), const(LARGEST, "float32") / most, const(0.0, "float32"))
    shape = (*x.shape[:-1], blocks)
    made = (
        fold("max", "most", (*by_block, Iter("i", block, True)), most, magnitude),
        assign("inverse", by_block, Load("inverse", over), inverse),
        assign("scale", by_block, Load("y1", over), most / const(LARGEST, "float32")),
    )
    return lead, tuple(Buffer(name, "float32", shape) for name in ("most", "inverse")), made, block


def _round_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    return ((x.dtype, x.shape),)


def _round_define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    """What is left of activations when they are bytes, times a scale for each block."""
    x = required(node, inputs, 0)
    lead, buffers, made, block = _scaled(node, x)
    scale = Buffer("scale", "float32", buffers[0].shape)
    made = tuple(b.renamed({"y1": "scale"}) for b in made)
    over, at = (*point(lead), Var("k")), (*point(lead), Var("k") // block)
    rounded = op("round", Load("x0", over) * Load("inverse", at)) * Load("scale", at)
    final = assign("rounded", (*lead, Iter("k", x.shape[-1])), Load("y0", over), rounded)
    return Definition((*buffers, scale), (*made, final))


def _quantize_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    shape = (*x.shape[:-1], x.shape[-1] // int(node.attrs["block"]))
    return (("int32", (*x.shape[:-1], x.shape[-1] // 4)), ("float32", shape), ("float32", shape))


def _quantize_define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    """Activations as bytes, four to a word so that a product loads a word whatever their layout is; the scale of each
    block, and what each block adds up to."""
    x = required(node, inputs, 0)
    lead, buffers, made, block = _scaled(node, x)
    over, by_block = (*point(lead), Var("w")), (*point(lead), Var("b"))
    inverse = Load("inverse", (*point(lead), Var("w") // (block // 4)))
    numbers = [op("round", Load("x0", (*point(lead), Var("w") * 4 + t)) * inverse) for t in range(4)]
    codes = assign("codes", (*lead, Iter("w", x.shape[-1] // 4)), Load("y0", over), _word(numbers))
    each = op("round", Load("x0", (*point(lead), Var("b") * block + Var("i"))) * Load("inverse", by_block))
    iters = (*lead, Iter("b", x.shape[-1] // block))
    total = Load("total", by_block)
    added = fold("add", "total", (*iters, Iter("i", block, True)), total, each)
    sums = assign("sums", iters, Load("y2", by_block), total * Load("y1", by_block))
    return Definition((*buffers, Buffer("total", "float32", buffers[0].shape)), (*made, codes, added, sums))


def _dot_infer(node: Node, inputs: Inputs) -> Types:
    x, weights = required(node, inputs, 0), required(node, inputs, 3)
    bits, block = int(node.attrs["bits"]), int(node.attrs["block"])
    blocks, rows, columns = weights.shape
    if x.dtype != "int32" or weights.dtype != "int32" or bits not in (2, 4) or rows * 32 != block * bits:
        fail(
            node,
            f"expected words, those of {bits} bits second, found {x.dtype} and {weights.dtype}{list(weights.shape)}",
        )
    if not x.shape or x.shape[-1] * 4 != blocks * block:
        fail(node, f"expected rows of {blocks * block // 4} words, found {list(x.shape)}")
    return (("float32", (*x.shape[:-1], columns)),)


def _dot_define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    """A step of the sum takes the words of a block (of a long one as many as give no long code), adds up products in
    whole numbers, and scales them once; its part of the zero point times the activations' sum is taken off."""
    x, weights, zeros = required(node, inputs, 0), required(node, inputs, 3), given(inputs, 5)
    bits, block = int(node.attrs["bits"]), int(node.attrs["block"])
    blocks, rows, columns = weights.shape
    lead = grid(x.shape[:-1], [f"m{k}" for k in range(len(x.shape) - 1)])
    taken = next(n for n in range(min(rows, MOST_WORDS), 0, -1) if rows % n == 0)
    over, (n, b, h) = point(lead), map(Var, ("n", "b", "h"))
    mask = const(sum(((1 << bits) - 1) << shift for shift in range(0, 32, 8)), "int32")
    pairs = list[tuple[Expr, Expr]]()
    for k in range(taken):
        word = Load("x3", (b, h * taken + k, n))
        for part in range(8 // bits):
            numbers = op("bitand", op("shr", word, const(part * bits, "int32")) if part else word, mask)
            place = b * (block // 4) + h * taken + (part * rows + k)
            pairs.append((numbers, Load("x0", (*over, place))))
    zero: Expr = const(float(node.attrs.get("zero", 0.0)), "float32")
    if zeros is not None:
        zero = cast("float32", Load("x5", (b, n)))
    by_block, parts = (*over, b), rows // taken
    sums = Load("x2", by_block) * const(1.0 / parts, "float32") if parts > 1 else Load("x2", by_block)
    part_ = cast("float32", reduce(add, _dots(pairs))) * Load("x1", by_block) - zero * sums
    iters = (*lead, Iter("n", columns), Iter("b", blocks, True), *([Iter("h", parts, True)] if parts > 1 else []))
    body = part_ * Load("x4", (b, n))
    product = fold("add", "packed_dot", iters, Load("y0", (*over, n)), body)
    return Definition((), (product if parts > 1 else product.mapped(lambda e: Const(0) if e == h else None),))


def _dots(pairs: list[tuple[Expr, Expr]]) -> Iterator[Expr]:
    """The products of pairs of words in as few sums as there are operations for."""
    while pairs:
        name, count = max(((n, c) for n, c in DOTS.items() if c <= len(pairs)), key=lambda named: named[1])
        yield op(name, *(word for pair in pairs[:count] for word in pair))
        pairs = pairs[count:]


def _word(numbers: Sequence[Expr]) -> Expr:
    """Four whole numbers of a byte as one int32, the first in its lowest bits."""
    low = const(255, "int32")
    each = [op("bitand", cast("int32", x), low) for x in numbers]
    shifted = [op("shl", e, const(8 * k, "int32")) if k else e for k, e in enumerate(each)]
    return reduce(lambda a, b: op("bitor", a, b), shifted)


OPERATORS = (
    Operator("PackedMatMul", _infer, _define),
    Operator("RoundBlocks", _round_infer, _round_define),
    Operator("QuantizeBlocks", _quantize_infer, _quantize_define),
    Operator("PackedDot", _dot_infer, _dot_define),
)
