"""Products with constant matrices, whatever spells them: the weights are real numbers, or of four bits by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from modelc.frontend.load.read import tensor_array
from modelc.frontend.quantize.floats import STANDARD, FloatModel
from modelc.frontend.quantize.layers import attribute, factor
from modelc.frontend.quantize.weights import MIDDLE, Floats, FourBits

LEAST = 4096  # numbers of a matrix that is worth fewer bits
BLOCKS = (16, 32, 64, 128, 256)  # that MatMulNBits and GatherBlockQuantized may have


@dataclass(frozen=True)
class Product:
    """The node `name` multiplies the value `x` with `weights` [K, N], which are real numbers, or of four bits already,
    and adds the value `bias`, if there is one, `beta` times."""

    name: str
    x: str
    weights: Floats | FourBits
    bias: str = ""
    beta: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        numbers = self.weights.numbers if isinstance(self.weights, FourBits) else self.weights
        depth, columns = numbers.shape
        return depth, columns

    @property
    def size(self) -> int:
        depth, columns = self.shape
        return depth * columns


def product_of(floats: FloatModel, node: NodeProto) -> Product | None:
    """What a node of the model's own graph multiplies; None where that is no constant matrix."""
    if node.op_type not in ("MatMul", "Gemm") or node.domain not in STANDARD or node.input[0] in floats.constants:
        return None
    gemm = node.op_type == "Gemm"
    if gemm and attribute(node, "transA", 0):
        return None
    weights = _matrix(floats, node.input[1], gemm and bool(attribute(node, "transB", 0)))
    alpha, bias = factor(node, "alpha"), node.input[2] if gemm and len(node.input) > 2 else ""
    if alpha != 1.0 and weights is not None:
        weights = None if isinstance(weights, FourBits) else weights * np.float32(alpha)
    return None if weights is None else Product(node.name, node.input[0], weights, bias, factor(node, "beta"))


def _matrix(floats: FloatModel, name: str, turned: bool) -> Floats | FourBits | None:
    """The weights [K, N] called `name`, which are stored the other way round where they are `turned`."""
    node = floats.producers.get(name)
    if node is not None and node.op_type == "Transpose" and node.domain in STANDARD:
        perm = next((tuple(a.ints) for a in node.attribute if a.name == "perm"), (1, 0))
        return _matrix(floats, node.input[0], not turned) if perm == (1, 0) else None
    if node is not None:
        return _dequantized(floats, node, turned)
    weights = floats.array(name)
    if weights is None or weights.ndim != 2 or not weights.size or not np.isfinite(weights).all():
        return None
    return np.ascontiguousarray(weights.T) if turned else weights


def _dequantized(floats: FloatModel, node: NodeProto, turned: bool) -> FourBits | None:
    """What DequantizeLinear makes of blocks of four bits along the depth."""
    block = attribute(node, "block_size", 0)
    if node.op_type != "DequantizeLinear" or node.domain not in STANDARD or block not in BLOCKS:
        return None
    whole, scales = _constant(floats, node.input[0]), _constant(floats, node.input[1])
    zeros = _constant(floats, node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if whole is None or scales is None or whole.ndim != 2 or scales.dtype != np.float32:
        return None
    if whole.dtype.name not in ("int4", "uint4") or (len(node.input) > 2 and node.input[2] and zeros is None):
        return None
    depth = 1 if turned else 0
    if attribute(node, "axis", 1) % 2 != depth or whole.shape[depth] % block:
        return None
    shift = MIDDLE if whole.dtype.name == "int4" else 0

    def unsigned(numbers: NDArray[Any]) -> NDArray[np.uint8]:
        shifted = (numbers.astype(np.int16) + shift).astype(np.uint8)
        return np.ascontiguousarray(shifted.T if turned else shifted)

    middles = unsigned(np.zeros(scales.shape, np.int8) if zeros is None else zeros)
    same = bool((middles == MIDDLE).all()) or not middles.size
    scale = np.ascontiguousarray(scales.T if turned else scales)
    return FourBits(unsigned(whole), scale, None if same else middles)


def _constant(floats: FloatModel, name: str) -> NDArray[Any] | None:
    tensor = floats.constants.get(name)
    return None if tensor is None else tensor_array(tensor, Path())


def with_bias(floats: FloatModel, product: Product, made: str, y: str) -> Iterator[NodeProto]:
    """The nodes that write `y`, the value `made` and the product's bias; none without one."""
    bias = product.bias
    if bias and product.beta != 1.0:
        beta, bias = floats.set(f"{product.name}/beta", np.float32(product.beta)), f"{product.name}/bias"
        yield helper.make_node("Mul", [product.bias, beta], [bias], f"{product.name}/scaled bias")
    if bias:
        yield helper.make_node("Add", [made, bias], [y], f"{product.name}/added")
