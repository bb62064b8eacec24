"""Weights of few bits, a scale for each block of them (MatMulNBits and GatherBlockQuantized of com.microsoft), in
ONNX's own words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.formula import Formula
from modelc.frontend.operators.form import Fused

BITS = (2, 4, 8)
BYTES = 4  # the accuracy_level that allows activations in int8


def unpacked(data: NDArray[Any], bits: int, count: int) -> NDArray[Any]:
    """The first `count` numbers of each row, the lowest bits of a byte first."""
    parts = [(data >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*data.shape[:-1], -1)[..., :count]


def _matmul_nbits(b: Builder, n: OnnxNode) -> None:
    """A product with weights [N, K] that are dequantized block by block along K."""
    f = Formula(b, n)
    columns, depth, bits, block = (int(n.attrs[name]) for name in ("N", "K", "bits", "block_size"))
    if bits not in BITS or block < 16 or block & (block - 1) or min(columns, depth) < 1:
        raise n.fail(f"expected 2, 4 or 8 bits in blocks of a power of two, found {bits} bits in blocks of {block}")
    if n.attrs.get("weight_prepacked", 0):
        raise n.fail("expected weights as they are stored in models, found some that are packed for a machine")
    blocks = -(-depth // block)
    packed = _stored(b, n, 1, "weights", columns * blocks * block * bits // 8)
    whole = unpacked(packed.reshape(columns, -1), bits, depth)
    scales = f.reshaped(n.inputs[2], columns, blocks)
    zeros = _zeros(f, bits, columns, blocks)
    if n.input(4):
        if bits != 4 or (n.input(3) and f.dtype(n.inputs[3]) == "uint8"):
            raise n.fail("expected g_idx with 4 bits and without packed zero points: ONNX Runtime computes no others")
        group = np.asarray(b.steering(n, 4, "g_idx")).reshape(-1)[:depth]
        if len(group) != depth or group.min() < 0 or group.max() >= blocks:
            raise n.fail(f"expected g_idx of {depth} numbers below {blocks}, found others")
        at = f.constant(group, "int64")
        scales, zeros = (f("Gather", x, at, axis=1) for x in (scales, zeros))
        number = f.cast(f.constant(whole, "uint8"), f.dtype(scales))
        weights = f("Mul", f("Sub", number, f.cast(zeros, f.dtype(scales))), scales)
    elif f.dtype(zeros) == f.dtype(scales):
        number = f("Sub", f.cast(f.constant(whole, "uint8"), f.dtype(scales)), _by_element(f, zeros, block, depth))
        weights = f("Mul", number, _by_element(f, scales, block, depth))
    else:
        kind = f.constant(whole, "uint8")
        weights = f("DequantizeLinear", kind, scales, zeros, axis=1, block_size=block)
    x = n.inputs[0]
    if rounds_to_bytes(int(n.attrs.get("accuracy_level", 0)), bits, depth, block) and f.dtype(x) == "float32":
        x = f("RoundBlocks", x, block=block)
    product = f("MatMul", x, f.transposed(weights, 1, 0), outputs=None if n.input(5) else n.outputs)
    if n.input(5):
        f("Add", product, n.inputs[5], outputs=n.outputs)


def rounds_to_bytes(level: int, bits: int, depth: int, block: int) -> bool:
    """Whether activations are rounded to bytes, with a scale for each block of them, as ONNX Runtime's are."""
    return level == BYTES and bits == 4 and block > 0 and depth % block == 0


def _by_element(f: Formula, x: str, block: int, depth: int) -> str:
    """[N, blocks] as [N, depth]."""
    at = f.constant(np.arange(depth) // block, "int64")
    return f("Gather", x, at, axis=1)


def _stored(b: Builder, n: OnnxNode, k: int, what: str, size: int) -> NDArray[Any]:
    data = b.steering(n, k, what)
    if data is None or data.dtype != np.uint8 or data.size != size:
        stored = "none" if data is None else f"{data.dtype} {list(data.shape)}"
        raise n.fail(f"expected {size} bytes of {what}, found {stored}")
    return data


def _zeros(f: Formula, bits: int, columns: int, blocks: int) -> str:
    """Zero points [N, blocks]: packed like the weights, real numbers like the scales, or the middle."""
    n = f.n
    if not n.input(3):
        return f.constant(np.full((columns, blocks), 1 << (bits - 1)), "uint8")
    if f.dtype(n.inputs[3]) == f.dtype(n.inputs[2]):
        return f.reshaped(n.inputs[3], columns, blocks)
    packed = _stored(f.b, n, 3, "zero points", columns * -(-blocks * bits // 8))
    return f.constant(unpacked(packed.reshape(columns, -1), bits, blocks), "uint8")


def _gather_blocks(b: Builder, n: OnnxNode) -> None:
    """Rows [V, D] of few bits that are looked up, and dequantized block by block along D."""
    f = Formula(b, n)
    bits, block = int(n.attrs.get("bits", 4)), int(n.attrs.get("block_size", 128))
    data, scales = b.steering(n, 0, "data"), n.inputs[2]
    narrow = data is not None and data.dtype.name in ("int4", "uint4")
    if data is None or data.ndim != 2 or not (narrow or data.dtype == np.uint8) or bits not in (4, 8):
        raise n.fail("expected a constant matrix as data, of uint8 with 4 or 8 bits, int4 or uint4")
    if (int(n.attrs.get("gather_axis", 0)), int(n.attrs.get("quantize_axis", 1)) % 2) != (0, 1):
        raise n.fail("expected rows that are looked up (gather_axis 0) in blocks along them (quantize_axis 1)")
    signed, bits = data.dtype.name == "int4", 4 if narrow else bits
    whole = unpacked(data, bits, data.shape[1] * 8 // bits) if not narrow else data.astype(np.int8) + 8 * signed
    depth, blocks = whole.shape[1], f.shape(scales)[-1]
    if depth % 2 or blocks * block != depth:
        raise n.fail(f"expected rows of whole blocks of {block}, found {depth} numbers in {blocks}")
    middle = 8 if signed or not narrow else 0
    zeros = np.full((len(whole), blocks), middle if bits == 4 else 128, np.uint8)
    if n.input(3):
        points = b.steering(n, 3, "zero_points")
        assert points is not None
        zeros = points.astype(np.int8) + 8 * signed if narrow else unpacked(points, bits, blocks)
    rows = f("Gather", f.constant(halves(whole) if bits == 4 else whole, "uint8"), n.inputs[1], axis=0)
    lead = f.shape(n.inputs[1])
    if bits == 4:
        first = f("BitwiseAnd", rows, f.constant(15, "uint8"))
        second = f("BitShift", rows, f.constant(4, "uint8"), direction="RIGHT")
        rows = f("Concat", first, second, axis=len(lead))
    dtype = f.dtype(scales)
    numbers = f.cast(f.reshaped(rows, *lead, blocks, block), dtype)
    zero = f.constant(zeros.flat[0], dtype)
    if (zeros != zeros.flat[0]).any():
        by_row = f("Gather", f.constant(zeros, "uint8"), n.inputs[1], axis=0)
        zero = f.cast(f.reshaped(by_row, *lead, blocks, 1), dtype)
    scale = f.reshaped(f("Gather", scales, n.inputs[1], axis=0), *lead, blocks, 1)
    f.hand(0, f.reshaped(f("Mul", f("Sub", numbers, zero), scale), *lead, depth))


def halves(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Rows of an even count of numbers of 4 bits: the first half of them in the lower bits of bytes, so that what is
    taken apart is in order."""
    first, second = np.split(rows.astype(np.uint8), 2, axis=-1)
    merged: NDArray[np.uint8] = np.bitwise_or(first, second << 4, dtype=np.uint8)
    return merged


BLOCKS = (
    Fused(
        "MatMulNBits",
        _matmul_nbits,
        "A B scales zero_points? g_idx? bias?",
        attributes="K:INT! N:INT! bits:INT! block_size:INT! accuracy_level:INT weight_prepacked:INT",
    ),
    Fused(
        "GatherBlockQuantized",
        _gather_blocks,
        "data indices scales zero_points?",
        attributes="gather_axis:INT quantize_axis:INT block_size:INT bits:INT",
    ),
)
