"""Weights of signed bytes stated as unsigned ones, which changes no product: what ONNX Runtime is compared by.

Where a CPU has no instruction that multiplies bytes and adds to 32 bits, ONNX Runtime adds two products of an unsigned
and a signed byte in 16 bits, which hold no more than half of what these may come to; larger sums become 32,767. It
computes products of unsigned bytes exactly on every CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from modelc.frontend.load.outline import read_outline
from modelc.frontend.witness.surgery import save

HALF = 128  # what makes a signed byte unsigned
SUMMED = 64  # products of a sum that shows whether they saturate


@dataclass(frozen=True)
class Product:
    """Places among an operator's inputs: what is multiplied and its zero point (None: always unsigned), the weights and
    their zero point."""

    by: int | None
    by_zero: int | None
    weights: int
    zero: int


PRODUCTS = {
    "QLinearConv": Product(0, 2, 3, 5),
    "QLinearMatMul": Product(0, 2, 3, 5),
    "QGemm": Product(0, 2, 3, 5),
    "ConvInteger": Product(0, 2, 1, 3),
    "MatMulInteger": Product(0, 2, 1, 3),
    "MatMulIntegerToFloat": Product(0, 4, 1, 5),
    "DynamicQuantizeMatMul": Product(None, None, 1, 3),
    "QAttention": Product(0, 6, 1, 7),
}


def largest_product(output: Path) -> tuple[dict[str, NDArray[np.uint8]], NDArray[np.int32]]:
    """Writes a product of the largest bytes, 255 and 127, to `output`: what it takes, and what it is."""
    weights = numpy_helper.from_array(np.full((SUMMED, SUMMED), 127, np.int8), "weights")
    taken, made = (
        helper.make_tensor_value_info(n, t, [1, SUMMED])
        for n, t in (("x", TensorProto.UINT8), ("y", TensorProto.INT32))
    )
    node = helper.make_node("MatMulInteger", ["x", "weights"], ["y"])
    graph = helper.make_graph([node], "product", [taken], [made], [weights])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), output)
    return {"x": np.full((1, SUMMED), 255, np.uint8)}, np.full((1, SUMMED), SUMMED * 255 * 127, np.int32)


def multiplies_bytes(path: str | Path) -> bool:
    """Whether the model's own graph has products of bytes."""
    return any(node.op_type in PRODUCTS for node in read_outline(path).graph.node)


def with_unsigned_weights(path: str | Path, output: Path) -> Path:
    """`output`, to which the model is written with unsigned weights where it multiplies unsigned bytes with constant
    signed ones; `path` where it does so nowhere."""
    outline = read_outline(path)
    if not any(_signed(outline)):
        return Path(path)
    model = onnx.load(path)
    constants = {t.name: t for t in model.graph.initializer}
    made: dict[str, TensorProto] = {}
    for node, product in _signed(model):
        weights = constants[node.input[product.weights]]
        zero = _input(node, product.zero)
        node.input.extend([""] * (product.zero + 1 - len(node.input)))
        node.input[product.weights] = _unsigned(weights.name, numpy_helper.to_array(weights), made)
        given = numpy_helper.to_array(constants[zero]) if zero else np.int8(0)
        node.input[product.zero] = _unsigned(zero or "no zero point", np.asarray(given), made)
    model.graph.initializer.extend(made.values())
    save(model, output)
    return output


def _signed(model: onnx.ModelProto) -> Iterator[tuple[NodeProto, Product]]:
    """The products of unsigned bytes with constant signed ones in the model's own graph."""
    constants = {t.name: t.data_type for t in model.graph.initializer}
    types = _types(model.graph) | constants
    for node in model.graph.node:
        product = PRODUCTS.get(node.op_type)
        if product is None or constants.get(_input(node, product.weights)) != TensorProto.INT8:
            continue
        zero = _input(node, product.zero)
        by = (types.get(_input(node, place)) for place in (product.by, product.by_zero))
        if (not zero or zero in constants) and (product.by is None or TensorProto.UINT8 in by):
            yield node, product


def _types(graph: GraphProto) -> dict[str, int]:
    """The types of values, as far as they are said or quantizing says them."""
    said = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in said}
    for node in graph.node:
        if node.op_type == "DynamicQuantizeLinear":
            types |= {node.output[0]: TensorProto.UINT8, node.output[2]: TensorProto.UINT8}
    return types


def _input(node: NodeProto, place: int | None) -> str:
    return "" if place is None or place >= len(node.input) else node.input[place]


def _unsigned(name: str, signed: NDArray[np.int8], made: dict[str, TensorProto]) -> str:
    """The name of the same numbers, HALF more."""
    new = f"{name}/unsigned"
    if new not in made:
        made[new] = numpy_helper.from_array((signed.astype(np.int16) + HALF).astype(np.uint8), new)
    return new
