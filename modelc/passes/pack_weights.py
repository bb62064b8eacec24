"""Weights that are dequantized stay packed where a product is faster so.

    MatMul(x, Transpose(DequantizeLinear(w, s, z)))               ->  PackedMatMul(x, packed, s, z)
    MatMul(RoundBlocks(x), Transpose(DequantizeLinear(w, s, z)))  ->  PackedDot(QuantizeBlocks(x), words, s, z)

A product of one row waits for its weights: bytes that hold several of them come in a fraction of the time, and are
taken apart in registers. So does one of few rows where the network's weights would not stay in the caches as float32.
For many rows that costs more than it saves, and the weights become float32 when compiling, as those of everything else.
Scales are by block of the depth, by column, or one for all.
Where activations are rounded to bytes by block anyway, and the target has dot products of bytes, the second form adds
up products of a block as whole numbers, which is faster for any number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.graph import Graph
from modelc.ops.packed import BITS, packed, words
from modelc.passes.machine import ANY, Machine
from modelc.passes.pattern import Bind, Editor, Match, Op, Rule, rewrite

Array = NDArray[Any]
LOWEST = {"uint8": 0, "int8": -128, "uint4": 0, "int4": -8, "uint2": 0, "int2": -2}  # of each dtype of weights


@dataclass(frozen=True)
class Weights:
    """(numbers - zeros) * scales: numbers [K, N] of so many bits, the others [K / block, N]."""

    numbers: Array
    scales: Array
    zeros: Array
    bits: int

    @property
    def block(self) -> int:
        return int(len(self.numbers) // len(self.scales))


@dataclass(frozen=True)
class PackWeights:
    """`rows`: of a product of float32 activations, at most, where weights come from memory; of those in caches one."""

    rows: int = 16
    machine: Machine = ANY

    def __call__(self, graph: Graph) -> Graph:
        real_bytes = 4 * sum(prod(value.shape) for value in graph.values.values() if value.data is not None)
        most = self.rows if real_bytes > self.machine.kept_bytes else min(self.rows, 1)

        def product(e: Editor, m: Match) -> str | None:
            if self.machine.dots and (dot := _dot(e, m)) is not None:
                return dot
            return None if prod(e.shape(m["x"])[:-1]) > most else _product(e, m)

        return rewrite(graph, (Rule(Op("MatMul", Bind("x"), Bind("w")), product, private=False),))


def _product(e: Editor, m: Match) -> str | None:
    x = e.value(m["x"])
    w = _weights(e, m["w"]) if x.dtype == "float32" and len(x.shape) > 0 else None
    if w is None:
        return None
    return _packed(e, "PackedMatMul", (m["x"],), m["w"], w, ("packed", packed(w.numbers, w.bits, w.block), "uint8"))


def _dot(e: Editor, m: Match) -> str | None:
    rounding = e.producer(m["x"])
    if rounding is None or rounding.op != "RoundBlocks" or (w := _weights(e, m["w"])) is None:
        return None
    if w.bits not in (2, 4) or w.block != rounding.attrs["block"] or w.block * w.bits % 32:
        return None
    bytes_ = e.add_several("QuantizeBlocks", (rounding.inputs[0],), 3, {"block": w.block})
    return _packed(e, "PackedDot", bytes_, m["w"], w, ("words", words(w.numbers, w.bits, w.block), "int32"))


def _packed(e: Editor, op: str, x: Sequence[str], name: str, w: Weights, numbers: tuple[str, NDArray[Any], str]) -> str:
    """A node that multiplies `x` by the weights `name`, whose `numbers` are stored so: (their name, data, dtype)."""
    attrs: dict[str, Any] = {"bits": w.bits, "block": w.block}
    constants = [numbers, ("scales", w.scales, "float32")]
    first_zero = w.zeros.reshape(-1)[:1]
    if (w.zeros == first_zero).all():
        attrs["zero"] = float(first_zero.item())
    else:
        constants.append(("zeros", w.zeros, "uint8"))
    return e.add(op, (*x, *(e.constant(data, f"{name}_{part}", dtype) for part, data, dtype in constants)), attrs)


def _weights(e: Editor, name: str) -> Weights | None:
    """What is dequantized to the matrix `name`, perhaps transposed; None if that is not of a form that is packed."""
    node = e.producer(name)
    turned = node is not None and node.op == "Transpose" and len(e.shape(name)) == 2
    if turned and node is not None and tuple(node.attrs.get("perm", (1, 0))) == (1, 0):
        node = e.producer(node.inputs[0])
    if node is None or node.op != "DequantizeLinear" or len(e.shape(node.inputs[0])) != 2:
        return None
    whole, scale = e.data(node.inputs[0]), e.data(node.inputs[1])
    dtype = e.value(node.inputs[0]).dtype
    zero = e.data(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros((), np.int16)
    if whole is None or scale is None or zero is None or dtype not in LOWEST or e.value(name).dtype != "float32":
        return None
    if e.value(node.inputs[1]).dtype != "float32":
        return None
    along, block = int(node.attrs.get("axis", 1)) % 2, int(node.attrs.get("block_size", 0))
    depth = 1 if turned else 0  # the axis of the matrix as it is stored that is summed over
    extent = whole.shape[depth]
    if scale.size > 1 and (along == depth) != bool(block):
        return None
    block = block if block and scale.size > 1 else extent
    if extent % block:
        return None

    def by_block(given: Array) -> Array:
        """[K / block, N]"""
        shape = [whole.shape[0], whole.shape[1]]
        shape[depth] = extent // block
        rank = given.reshape(-1) if given.ndim < 2 else given
        full = np.broadcast_to(rank.reshape(-1, 1) if turned and rank.ndim == 1 else rank, shape)
        return full.T if turned else full

    lowest = LOWEST[dtype]
    numbers = ((whole.T if turned else whole).astype(np.int16) - lowest).astype(np.uint8)
    bits = next(b for b in BITS if numbers.max(initial=0) < 1 << b)
    if block % (8 // bits):
        return None
    zeros = (by_block(zero).astype(np.int16) - lowest).astype(np.uint8)
    return Weights(numbers, np.ascontiguousarray(by_block(scale), np.float32), np.ascontiguousarray(zeros), bits)
