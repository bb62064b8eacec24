"""Which weights of a model are stored in four bits: those of products with a constant matrix, in float32 or dequantized
by block. With the model that makes one whose products are MatMulNBits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper

from modelc.errors import ConfigError
from modelc.frontend.load.read import tensor_array
from modelc.frontend.quantize.floats import STANDARD, FloatModel, drop_unread, drop_unread_nodes, float_model
from modelc.frontend.quantize.layers import attribute, factor
from modelc.frontend.quantize.weights import BITS, MIDDLE, Floats, FourBits, in_four_bits, zeros_pay

INT4, INT4_FLOAT = "int4", "int4-float"
WEIGHTS = (INT4, INT4_FLOAT)
BLOCKS = (16, 32, 64, 128, 256)  # that MatMulNBits may have
BLOCK = 32
LEAST = 4096  # numbers of a matrix that is worth it
SAMPLED = 1 << 18  # numbers of a matrix that this is asked of
LEVELS = {INT4: 4, INT4_FLOAT: 1}  # accuracy_level: activations in int8 by block, or in float32
MS = "com.microsoft"
NAMED = 3  # layers that a note names


@dataclass(frozen=True)
class PackedLayer:
    """What the weights of one product are stored as: of 4 bits in blocks of `block`, or (0) as they were, which `why`
    explains. `error`: of the weights, relative."""

    name: str
    bits: int
    block: int = 0
    zeros: bool = False
    error: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Packing:
    """`weights`: int4, whose activations are bytes by block, or int4-float, whose are float32. Weights in float32 get
    blocks of `block` numbers along the depth, or of fewer where it is no multiple of that; those that are of four bits
    already keep theirs."""

    layers: tuple[PackedLayer, ...]
    weights: str = INT4
    block: int = BLOCK

    @property
    def narrow(self) -> frozenset[str]:
        """The layers whose weights have four bits."""
        return frozenset(layer.name for layer in self.layers if layer.bits == BITS)

    @property
    def notes(self) -> tuple[str, ...]:
        """What it comes to, for the manifest of a package."""
        activations = "int8 by block" if self.weights == INT4 else "float32"
        said = f"weights {self.weights}: {len(self.narrow)} of {len(self.layers)} layers have weights of 4 bits in "
        said += f"blocks of {self.block}, and multiply them by activations in {activations}"
        rounded = [layer for layer in self.layers if layer.error]
        if rounded:
            mean = sum(layer.error for layer in rounded) / len(rounded)
            worst = max(rounded, key=lambda layer: layer.error)
            said += f"; these are off by {mean:.2%} on average, at most {worst.error:.2%} ({worst.name})"
        kept = [layer.name for layer in self.layers if layer.name not in self.narrow]
        return (said + (f"; as they were: {', '.join(kept[:NAMED])}{', ...' * (len(kept) > NAMED)}" if kept else ""),)

    def to_json(self) -> dict[str, Any]:
        return {"weights": self.weights, "block": self.block, "layers": [vars(layer) for layer in self.layers]}

    report = to_json

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> Packing:
        """What to_json() wrote, which the schema has checked."""
        return Packing(tuple(PackedLayer(**entry) for entry in tree["layers"]), tree["weights"], int(tree["block"]))


def packing_of(model: str | Path, weights: str, block: int) -> Packing:
    """What of a model is stored in four bits, and what that does to the numbers. Raises ModelcError."""
    if weights not in WEIGHTS or block not in BLOCKS:
        raise ConfigError(
            f"weights {weights!r} in blocks of {block}; expected {' or '.join(WEIGHTS)} in blocks of "
            f"{', '.join(map(str, BLOCKS))}"
        )
    floats = float_model(model)
    products = (product_of(floats, node) for node in floats.model.graph.node)
    packing = Packing(tuple(_layer(p, block) for p in products if p is not None), weights, block)
    if not packing.narrow:
        why = sorted({layer.why for layer in packing.layers})
        raise ConfigError(
            f"the model {model} has no MatMul or Gemm whose weights can have 4 bits"
            + (f" ({'; '.join(why)})" if why else ": none multiplies a constant matrix in float32")
        )
    return packing


def _layer(product: Product, block: int) -> PackedLayer:
    w, (depth, columns) = product.weights, product.shape
    if isinstance(w, FourBits):
        return PackedLayer(product.name, BITS, w.block, w.zeros is not None)
    if depth * columns < LEAST:
        return PackedLayer(product.name, 0, why=f"fewer than {LEAST} weights")
    block = next((b for b in reversed(BLOCKS) if b <= block and depth % b == 0), 0)
    if not block:
        return PackedLayer(product.name, 0, why=f"a depth of {depth}, which is no multiple of {BLOCKS[0]}")
    some = np.ascontiguousarray(w[:, :: max(1, w.size // SAMPLED)])
    zeros = zeros_pay(some, lambda zeros: in_four_bits(some, block, zeros).real())
    error = float(np.linalg.norm(in_four_bits(w, block, zeros).real() - w) / max(float(np.linalg.norm(w)), 1e-30))
    return PackedLayer(product.name, BITS, block, zeros, float(f"{error:.6g}"))


def packed_model(model: str | Path, packing: Packing) -> onnx.ModelProto:
    """The model of a Packing. Raises ConfigError where the Packing is of another one."""
    floats = float_model(model)
    chosen, nodes = {layer.name: layer for layer in packing.layers if layer.bits == BITS}, list[NodeProto]()
    for node in floats.model.graph.node:
        layer = chosen.pop(node.name, None)
        product = None if layer is None or layer.block not in BLOCKS else product_of(floats, node)
        if layer is None:
            nodes.append(node)
            continue
        if product is None or (not isinstance(product.weights, FourBits) and product.shape[0] % layer.block):
            raise ConfigError(f"the choices give {layer.name!r} weights of 4 bits, which it cannot have in this model")
        nodes += _multiplied(floats, node, product, layer, packing)
    if chosen:
        raise ConfigError(f"the choices give {min(chosen)!r} weights of 4 bits, which is no layer of this model")
    floats.put(nodes)
    drop_unread_nodes(floats)
    drop_unread(floats)
    if MS not in (opset.domain for opset in floats.model.opset_import):
        floats.model.opset_import.append(helper.make_opsetid(MS, 1))
    del floats.model.graph.value_info[:]  # of values that there may no longer be
    return floats.model


def _multiplied(
    floats: FloatModel, node: NodeProto, product: Product, layer: PackedLayer, packing: Packing
) -> list[NodeProto]:
    """MatMulNBits in the place of a node, and the sum with its bias."""
    w, (depth, columns) = product.weights, product.shape
    w = w if isinstance(w, FourBits) else in_four_bits(w, layer.block, layer.zeros)
    blocks = depth // w.block
    by_column = np.ascontiguousarray(w.numbers.T).reshape(columns, blocks, w.block)
    constants = {"bits": _two_a_byte(by_column), "scales": np.ascontiguousarray(w.scales.T).reshape(columns, blocks)}
    if w.zeros is not None:
        constants["zeros"] = _two_a_byte(np.ascontiguousarray(w.zeros.T).reshape(columns, blocks))
    names = [floats.set(f"{layer.name}/weights/{part}", numbers) for part, numbers in constants.items()]
    attrs: dict[str, Any] = {
        "K": depth,
        "N": columns,
        "bits": BITS,
        "block_size": w.block,
        "accuracy_level": LEVELS[packing.weights],
    }
    y = node.output[0]
    made = f"{layer.name}/product" if product.bias else y
    nodes = [helper.make_node("MatMulNBits", [product.x, *names], [made], node.name, domain=MS, **attrs)]
    return [*nodes, *with_bias(floats, product, made, y)]


def with_bias(floats: FloatModel, product: Product, made: str, y: str) -> Iterator[NodeProto]:
    """The nodes that write `y`, the value `made` and the product's bias; none without one."""
    bias = product.bias
    if bias and product.beta != 1.0:
        beta, bias = floats.set(f"{product.name}/beta", np.float32(product.beta)), f"{product.name}/bias"
        yield helper.make_node("Mul", [product.bias, beta], [bias], f"{product.name}/scaled bias")
    if bias:
        yield helper.make_node("Add", [made, bias], [y], f"{product.name}/added")


def _two_a_byte(numbers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Numbers of four bits along the last dimension, the first of two in the lower half of a byte."""
    even = numbers if numbers.shape[-1] % 2 == 0 else np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, 1)])
    return np.ascontiguousarray(even[..., ::2] | even[..., 1::2] << BITS)


# --- products -------------------------------------------------------------------------------------------------------


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
