"""Bytes by row: products whose activations are rounded when they are computed, row by row, for which no samples are
needed, and tables whose rows are bytes.

    y = MatMul(x, W) + b
    scale = max(abs(x), axis=-1) / 127                           of each row, whatever it is in this run
    y = f32(MatMulInteger(u8(round(x / scale) + 128), Q, 128)) * columns * scale + b         W = Q * columns, by column

    y = Gather(T, i)
    y = f32(Gather(Q, i)) * Gather(rows, i)                                                  T = Q * rows, by row

Activations are unsigned, as most instructions multiply them with signed weights, and the reference exactly on every CPU
(frontend/witness/unsigned.py). Values that several products read are rounded once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from modelc.errors import ConfigError
from modelc.frontend.quantize.floats import STANDARD, FloatModel, drop_unread, drop_unread_nodes, operator_set
from modelc.frontend.quantize.layers import attribute
from modelc.frontend.quantize.products import Product, product_of, with_bias
from modelc.frontend.quantize.recipe import Recipe
from modelc.frontend.quantize.weights import LARGEST, FourBits, as_bytes

Floats = NDArray[np.float32]
ROWS = "/rows/"  # in the names of what rounds the rows of a value, behind its own
ZERO = 128  # the byte that stands for 0
LEAST_MAGNITUDE = 2.0**-100  # of a row: rows of smaller numbers are zeros, and nothing is divided by 0


@dataclass(frozen=True)
class Table:
    """The node `name` looks up rows of the constant `numbers`, called `constant`."""

    name: str
    constant: str
    indices: str
    y: str
    numbers: Floats


def products_of(floats: FloatModel) -> tuple[Product, ...]:
    """The products of the model's own graph with a constant matrix of real numbers, in its order."""
    every = (product_of(floats, node) for node in floats.model.graph.node)
    return tuple(product for product in every if product is not None and not isinstance(product.weights, FourBits))


def tables_of(floats: FloatModel) -> tuple[Table, ...]:
    """The lookups of rows that data chooses, in the model's order."""
    return tuple(table for node in floats.model.graph.node if (table := _table(floats, node)) is not None)


def _table(floats: FloatModel, node: NodeProto) -> Table | None:
    if node.op_type != "Gather" or node.domain not in STANDARD or attribute(node, "axis", 0):
        return None
    numbers = floats.array(node.input[0])
    if numbers is None or numbers.ndim != 2 or not np.isfinite(numbers).all() or node.input[1] in floats.constants:
        return None
    return Table(node.name, node.input[0], node.input[1], node.output[0], numbers)


def rounded_dynamically(floats: FloatModel, recipe: Recipe) -> None:
    """Has the products and tables of a Recipe that are dynamic in bytes. Raises ConfigError where it is another
    model's."""
    products = {product.name: product for product in products_of(floats) if product.name in recipe.dynamic}
    tables = {table.name: table for table in tables_of(floats) if table.name in recipe.tables}
    if unknown := sorted((recipe.dynamic - products.keys()) | (recipe.tables - tables.keys())):
        raise ConfigError(f"the choices quantize {unknown[0]!r}, which is no product or table of this model")
    values = dict.fromkeys(product.x for product in products.values())
    behind = {x: [*rounding_of_rows(floats, x)] for x in values}
    nodes = list[NodeProto]()
    for node in floats.model.graph.node:
        if node.name in products:
            product = products[node.name]
            nodes += product_of_bytes(floats, product, node.output[0], recipe.largest_weight)
        elif node.name in tables:
            nodes += rows_of_bytes(floats, tables[node.name])
        else:
            nodes.append(node)
    floats.put(floats.behind(nodes, behind))
    drop_unread_nodes(floats)
    drop_unread(floats)


def rounding_of_rows(floats: FloatModel, x: str) -> Iterator[NodeProto]:
    """The nodes that round each row of a value to bytes, x/rows/bytes, with x/rows/scale for each."""
    prefix, zero = f"{x}{ROWS}", floats.set("modelc:rows/zero", np.float32(ZERO))
    yield from _steps_of_rows(floats, x, prefix)
    yield helper.make_node("Add", [f"{prefix}whole", zero], [f"{prefix}moved"], f"{prefix}moved")
    yield helper.make_node("Cast", [f"{prefix}moved"], [f"{prefix}bytes"], f"{prefix}bytes", to=TensorProto.UINT8)


def rounding_nodes(model: ModelProto) -> dict[str, str]:
    """By the names of the nodes that round rows, the value whose rows these are."""
    return {node.name: node.name.rpartition(ROWS)[0] for node in model.graph.node if ROWS in node.name}


def rounding_nodes_of(path: Path) -> dict[str, str]:
    """The same of the model in a file."""
    return rounding_nodes(onnx.load(path, load_external_data=False))


def rounded_by_row(floats: FloatModel, x: str, prefix: str) -> list[NodeProto]:
    """The nodes that write what the bytes of each row of a value stand for, `prefix`/rounded."""
    steps = _steps_of_rows(floats, x, f"{prefix}/")
    return [*steps, helper.make_node("Mul", [f"{prefix}/whole", f"{prefix}/scale"], [f"{prefix}/rounded"])]


def _steps_of_rows(floats: FloatModel, x: str, prefix: str) -> Iterator[NodeProto]:
    """The nodes that write each row of a value in whole steps, and how large these are, `prefix`scale."""

    def made(op: str, inputs: Collection[str], name: str, **attributes: Any) -> NodeProto:
        return helper.make_node(op, [*inputs], [of(name)], of(name), **attributes)

    def of(name: str) -> str:
        return f"{prefix}{name}"

    def constant(name: str, number: float) -> str:
        return floats.set(f"modelc:rows/{name}", np.float32(number))

    axes = {"axes": [-1]} if operator_set(floats.model) < 18 else {}
    last = [] if axes else [floats.set("modelc:rows/axes", np.array([-1], np.int64))]
    yield made("Abs", [x], "magnitudes")
    yield made("ReduceMax", [of("magnitudes"), *last], "most", keepdims=1, **axes)
    yield made("Max", [of("most"), constant("least", LEAST_MAGNITUDE)], "largest")
    yield made("Mul", [of("largest"), constant("step", 1 / LARGEST)], "scale")
    yield made("Div", [constant("one", 1), of("scale")], "inverse")
    yield made("Mul", [x, of("inverse")], "steps")
    yield made("Round", [of("steps")], "whole")


def product_of_bytes(floats: FloatModel, product: Product, y: str, most: int) -> Iterator[NodeProto]:
    """The nodes that write `y` from the rounded rows of what a product reads, its weights from -most to most."""
    assert not isinstance(product.weights, FourBits)
    name, stored = product.name, as_bytes(product.weights, 1, most)
    weights, columns = (
        floats.set(f"{name}/weights/{part}", of) for part, of in (("bytes", stored.whole), ("scale", stored.scale))
    )
    zero = floats.set("modelc:rows/zero byte", np.uint8(ZERO))
    sums, real, scaled = f"{name}/sums", f"{name}/real", f"{name}/scaled"
    result = f"{name}/product" if product.bias else y
    yield helper.make_node("MatMulInteger", [f"{product.x}{ROWS}bytes", weights, zero], [sums], name)
    yield helper.make_node("Cast", [sums], [real], real, to=TensorProto.FLOAT)
    yield helper.make_node("Mul", [real, columns], [scaled], scaled)
    yield helper.make_node("Mul", [scaled, f"{product.x}{ROWS}scale"], [result], f"{name}/product")
    yield from with_bias(floats, product, result, y)


def rows_of_bytes(floats: FloatModel, table: Table) -> Iterator[NodeProto]:
    """The nodes in the place of a lookup."""
    name, stored = table.name, as_bytes(table.numbers, 0)
    numbers = floats.set(f"{table.constant}/bytes", stored.whole)
    scales = floats.set(f"{table.constant}/scale", stored.scale.reshape(-1, 1))
    whole, scale, real = f"{name}/bytes", f"{name}/scale", f"{name}/real"
    yield helper.make_node("Gather", [numbers, table.indices], [whole], name)
    yield helper.make_node("Gather", [scales, table.indices], [scale], scale)
    yield helper.make_node("Cast", [whole], [real], real, to=TensorProto.FLOAT)
    yield helper.make_node("Mul", [real, scale], [table.y], f"{name}/scaled")
