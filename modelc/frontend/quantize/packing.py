"""Which weights of a model are stored in few bits: those of products with a constant matrix, in float32 or dequantized
by block, and tables whose rows are looked up. With the model that makes one whose products are MatMulNBits (4 bits) or
of what is dequantized by column (8), and whose tables are GatherBlockQuantized (4) or rows of bytes with a scale for
each (8)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper

from modelc.errors import ConfigError
from modelc.frontend.quantize.dynamic import Table, rows_of_bytes, tables_of
from modelc.frontend.quantize.floats import FloatModel, drop_unread, drop_unread_nodes, float_model
from modelc.frontend.quantize.gptq import moved
from modelc.frontend.quantize.products import BLOCKS, LEAST, Product, product_of, with_bias
from modelc.frontend.quantize.recipe import INT8, NAMED
from modelc.frontend.quantize.weights import BITS, Floats, FourBits, as_bytes, in_four_bits, zeros_pay

INT4, INT4_FLOAT = "int4", "int4-float"
WEIGHTS = {INT8: 8, INT4: BITS, INT4_FLOAT: BITS}  # what may be asked for, and its bits
BLOCK = 32
SAMPLED = 1 << 18  # numbers of a matrix that this is asked of
LEVELS = {INT8: 1, INT4: 4, INT4_FLOAT: 1}  # accuracy_level: activations in int8 by block, or in float32
MS = "com.microsoft"


@dataclass(frozen=True)
class PackedLayer:
    """What the weights of one product, or the rows of a `table`, are stored as: of 4 bits in blocks of `block`, of 8 by
    column or row, or (0) as they were, which `why` explains. `error`: of the weights, relative. With samples, `output`
    is the relative error of what the product writes there, its inputs those of the float model; `nearest` what it is
    where each weight is rounded to the nearest number, and `moves` how others were chosen (gptq.py)."""

    name: str
    bits: int
    block: int = 0
    zeros: bool = False
    error: float = 0.0
    why: str = ""
    table: bool = False
    output: float | None = None
    nearest: float | None = None
    moves: str = ""

    def report(self) -> dict[str, Any]:
        """All but the numbers."""
        return {name: value for name, value in vars(self).items() if name != "moves"}


@dataclass(frozen=True)
class Packing:
    """`weights`: int8, int4, whose activations are bytes by block, or int4-float; of the others activations are
    float32. Weights of 4 bits in float32 get blocks of `block` numbers along the depth, or of fewer where it is no
    multiple of that; those that are of four bits already keep theirs. `summary` says of the whole what was
    measured."""

    layers: tuple[PackedLayer, ...]
    weights: str = INT4
    block: int = BLOCK
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def narrow(self) -> frozenset[str]:
        """The layers and tables of few bits."""
        return frozenset(layer.name for layer in self.layers if layer.bits)

    @property
    def notes(self) -> tuple[str, ...]:
        """What it comes to, for the manifest of a package."""
        said = [self._of_products([layer for layer in self.layers if not layer.table])]
        rounded = [layer for layer in self.layers if layer.error]
        if rounded:
            mean = sum(layer.error for layer in rounded) / len(rounded)
            worst = max(rounded, key=lambda layer: layer.error)
            said.append(f"these are off by {mean:.2%} on average, at most {worst.error:.2%} ({worst.name})")
        tables = [layer for layer in self.layers if layer.table]
        for bits in sorted({layer.bits for layer in tables} - {0}):
            count = sum(layer.bits == bits for layer in tables)
            said.append(f"{count} of {len(tables)} table{'s' * (len(tables) > 1)} in {bits} bits")
        solved = [layer for layer in self.layers if layer.moves and layer.output is not None and layer.nearest]
        if solved:
            before, after = (sum(getattr(x, of) for x in solved) / len(solved) for of in ("nearest", "output"))
            said.append(
                f"{len(solved)} rounded by samples, their outputs off by {after:.2%} on average instead of {before:.2%}"
            )
        kept = [layer.name for layer in self.layers if not layer.bits]
        said += [f"as they were: {', '.join(kept[:NAMED])}{', ...' * (len(kept) > NAMED)}"] if kept else []
        drop = [f"drop by rounding weights: {self.summary['said']}"] if self.summary else []
        return ("; ".join(said), *drop, *self.summary.get("unseen", ()))

    def _of_products(self, products: Sequence[PackedLayer]) -> str:
        counts = {bits: sum(layer.bits == bits for layer in products) for bits in (BITS, 8)}
        bits = WEIGHTS[self.weights]
        said = f"weights {self.weights}: {counts[bits]} of {len(products)} layers have weights of {bits} bits"
        said += f" in blocks of {self.block}" if bits == BITS else " by column"
        said += f", and multiply them by activations in {'int8 by block' if self.weights == INT4 else 'float32'}"
        return said + (f", {counts[8]} of 8 bits by column" if bits == BITS and counts[8] else "")

    def to_json(self) -> dict[str, Any]:
        layers = [{k: v for k, v in vars(layer).items() if v is not None} for layer in self.layers]
        return {"weights": self.weights, "block": self.block, "layers": layers, "summary": dict(self.summary)}

    def report(self) -> dict[str, Any]:
        """What was decided and measured."""
        return {**self.to_json(), "layers": [layer.report() for layer in self.layers]}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> Packing:
        """What to_json() wrote, which the schema has checked."""
        layers = tuple(PackedLayer(**entry) for entry in tree["layers"])
        return Packing(layers, tree["weights"], int(tree["block"]), tree["summary"])


def packing_of(model: str | Path, weights: str, block: int) -> Packing:
    """What of a model is stored in few bits, and what that does to the numbers. Raises ModelcError."""
    if weights not in WEIGHTS or block not in BLOCKS:
        raise ConfigError(
            f"weights {weights!r} in blocks of {block}; expected {', '.join(WEIGHTS)} in blocks of "
            f"{', '.join(map(str, BLOCKS))}"
        )
    floats, bits = float_model(model), WEIGHTS[weights]
    products, tables = packable(floats)
    layers = [layer_of(product, bits, block) for product in products]
    names = {*(product.name for product in products), *(table.name for table in tables)}
    layers += [table_of(floats, table, bits, block, names) for table in tables]
    places = {node.name: k for k, node in enumerate(floats.model.graph.node)}
    packing = Packing(tuple(sorted(layers, key=lambda layer: places[layer.name])), weights, block)
    if not packing.narrow:
        why = sorted({layer.why for layer in packing.layers})
        raise ConfigError(
            f"the model {model} has no MatMul or Gemm whose weights, and no Gather whose rows, can have {bits} bits"
            + (f" ({'; '.join(why)})" if why else ": none multiplies a constant matrix in float32")
        )
    return packing


def packable(floats: FloatModel) -> tuple[list[Product], list[Table]]:
    """The products with constant matrices of a model's own graph, and the lookups of rows of such."""
    products = [product for node in floats.model.graph.node if (product := product_of(floats, node)) is not None]
    return products, list(tables_of(floats))


def layer_of(product: Product, bits: int, block: int) -> PackedLayer:
    """What the weights of a product are stored as, if they are to have so many bits."""
    w, (depth, columns) = product.weights, product.shape
    if isinstance(w, FourBits):
        return PackedLayer(product.name, BITS, w.block, w.zeros is not None)
    if depth * columns < LEAST:
        return PackedLayer(product.name, 0, why=f"fewer than {LEAST} weights")
    if bits == 8:
        return PackedLayer(product.name, 8, error=_error(w, as_bytes(w, 1).real()))
    if not (block := _block(depth, block)):
        return PackedLayer(product.name, 0, why=f"a depth of {depth}, which is no multiple of {BLOCKS[0]}")
    return _by_block(PackedLayer(product.name, BITS, block), w)


def table_of(floats: FloatModel, table: Table, bits: int, block: int, narrow: Collection[str]) -> PackedLayer:
    """The same of the rows of a table; as they were where something else than `narrow` layers reads them."""
    layer = PackedLayer(table.name, 8, table=True)
    if table.numbers.size < LEAST:
        return replace(layer, bits=0, why=f"fewer than {LEAST} numbers")
    if others := readers_of(floats, table, narrow):
        return replace(layer, bits=0, why=f"{others[0]!r} reads it in float32")
    if bits == 8:
        return replace(layer, error=_error(table.numbers, as_bytes(table.numbers, 0).real()))
    if not (block := _block(table.numbers.shape[1], block)):
        why = f"rows of {table.numbers.shape[1]}, which is no multiple of {BLOCKS[0]}"
        return replace(layer, bits=0, why=why)
    return _by_block(replace(layer, bits=BITS, block=block), np.ascontiguousarray(table.numbers.T))


def readers_of(floats: FloatModel, table: Table, narrow: Collection[str]) -> list[str]:
    """The nodes that read the numbers of a table in float32, beside its lookup and those in `narrow`."""
    readers, reading = list[str](), [table.constant]
    while reading:
        for node in floats.readers.get(reading.pop(), ()):
            if node.op_type == "Transpose":
                reading += node.output
            elif node.name not in narrow and node.name != table.name:
                readers.append(node.name)
    return readers


def _block(depth: int, block: int) -> int:
    """The largest block of a depth, up to `block`; 0: none."""
    return next((b for b in reversed(BLOCKS) if b <= block and depth % b == 0), 0)


def _by_block(layer: PackedLayer, w: Floats) -> PackedLayer:
    """A layer of 4 bits with its zero points and its error."""
    some = np.ascontiguousarray(w[:, :: max(1, w.size // SAMPLED)])
    zeros = zeros_pay(some, lambda zeros: in_four_bits(some, layer.block, zeros).real())
    return replace(layer, zeros=zeros, error=_error(w, in_four_bits(w, layer.block, zeros).real()))


def _error(w: Floats, rounded: Floats) -> float:
    return float(f"{np.linalg.norm(rounded - w) / max(float(np.linalg.norm(w)), 1e-30):.6g}")


def stored_of(product: Product, layer: PackedLayer) -> FourBits:
    """The numbers of a product of 4 bits. Raises ConfigError."""
    if isinstance(product.weights, FourBits):
        return product.weights
    nearest = in_four_bits(product.weights, layer.block, layer.zeros)
    return moved(nearest, layer.moves) if layer.moves else nearest


def rows_of(table: Table, layer: PackedLayer) -> FourBits:
    """The numbers of a table of 4 bits, a column for each of its rows."""
    return in_four_bits(np.ascontiguousarray(table.numbers.T), layer.block, layer.zeros)


def packed_model(
    model: str | Path, packing: Packing, stored: Mapping[str, FourBits] = MappingProxyType({})
) -> onnx.ModelProto:
    """The model of a Packing. Numbers of 4 bits that are known are `stored`, by layer. Raises ConfigError where the
    Packing is of another model."""
    floats = float_model(model)
    chosen, nodes = {layer.name: layer for layer in packing.layers if layer.bits}, list[NodeProto]()
    tables = {table.name: table for table in tables_of(floats)}
    for node in floats.model.graph.node:
        layer = chosen.pop(node.name, None)
        if layer is None:
            nodes.append(node)
        elif layer.table:
            nodes += _looked_up(floats, tables.get(node.name), layer, stored)
        else:
            nodes += _multiplied(floats, node, layer, packing, stored)
    if chosen:
        raise ConfigError(f"the choices give {min(chosen)!r} weights of few bits, which is no layer of this model")
    floats.put(nodes)
    drop_unread_nodes(floats)
    drop_unread(floats)
    if MS not in (opset.domain for opset in floats.model.opset_import):
        floats.model.opset_import.append(helper.make_opsetid(MS, 1))
    del floats.model.graph.value_info[:]  # of values that there may no longer be
    return floats.model


def _multiplied(
    floats: FloatModel, node: NodeProto, layer: PackedLayer, packing: Packing, known: Mapping[str, FourBits]
) -> list[NodeProto]:
    """MatMulNBits, or a product with what is dequantized, in the place of a node, and the sum with its bias."""
    product, y = product_of(floats, node), node.output[0]
    real = product is not None and not isinstance(product.weights, FourBits)
    fits = layer.block in BLOCKS and product is not None and not (real and product.shape[0] % layer.block)
    if product is None or not (real if layer.bits == 8 else fits):
        raise ConfigError(
            f"the choices give {layer.name!r} weights of {layer.bits} bits, which it cannot have in this model"
        )
    result = f"{layer.name}/product" if product.bias else y
    if layer.bits == 8:
        assert not isinstance(product.weights, FourBits)
        stored, real_weights = as_bytes(product.weights, 1), f"{layer.name}/weights/real"
        parts: dict[str, NDArray[Any]] = {"bytes": stored.whole, "scale": stored.scale}
        names = [floats.set(f"{layer.name}/weights/{part}", numbers) for part, numbers in parts.items()]
        nodes = [helper.make_node("DequantizeLinear", names, [real_weights], real_weights, axis=1)]
        nodes.append(helper.make_node("MatMul", [product.x, real_weights], [result], node.name))
        return [*nodes, *with_bias(floats, product, result, y)]
    depth, columns = product.shape
    w = known[layer.name] if layer.name in known else stored_of(product, layer)
    attrs: dict[str, Any] = {"K": depth, "N": columns, "bits": BITS, "block_size": w.block}
    attrs["accuracy_level"] = LEVELS[packing.weights]
    rows = _by_row(w)
    rows["bits"] = rows["bits"].reshape(columns, depth // w.block, -1)
    names = [floats.set(f"{layer.name}/weights/{part}", numbers) for part, numbers in rows.items()]
    nodes = [helper.make_node("MatMulNBits", [product.x, *names], [result], node.name, domain=MS, **attrs)]
    return [*nodes, *with_bias(floats, product, result, y)]


def _looked_up(
    floats: FloatModel, table: Table | None, layer: PackedLayer, known: Mapping[str, FourBits]
) -> list[NodeProto]:
    """GatherBlockQuantized, or rows of bytes, in the place of a lookup."""
    fits = layer.bits == 8 or (layer.block in BLOCKS and table is not None and not table.numbers.shape[1] % layer.block)
    if table is None or not fits:
        raise ConfigError(f"the choices give {layer.name!r} rows of {layer.bits} bits, which it cannot have here")
    if layer.bits == 8:
        return [*rows_of_bytes(floats, table)]
    w = known[layer.name] if layer.name in known else rows_of(table, layer)
    bits, scales, *zeros = (floats.set(f"{table.constant}/{part}", numbers) for part, numbers in _by_row(w).items())
    attrs: dict[str, Any] = {"bits": BITS, "block_size": w.block, "gather_axis": 0, "quantize_axis": 1}
    inputs = [bits, table.indices, scales, *zeros]
    return [helper.make_node("GatherBlockQuantized", inputs, [table.y], layer.name, domain=MS, **attrs)]


def _by_row(w: FourBits) -> dict[str, NDArray[Any]]:
    """Four bits [K, N] as operators have them, a row for each of N: two of K in a byte, scales, perhaps zero points."""
    rows: dict[str, NDArray[Any]] = {"bits": _two_a_byte(w.numbers.T), "scales": np.ascontiguousarray(w.scales.T)}
    return rows if w.zeros is None else {**rows, "zeros": _two_a_byte(w.zeros.T)}


def _two_a_byte(numbers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Numbers of four bits along the last dimension, the first of two in the lower half of a byte."""
    even = numbers if numbers.shape[-1] % 2 == 0 else np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, 1)])
    return np.ascontiguousarray(even[..., ::2] | even[..., 1::2] << BITS)
