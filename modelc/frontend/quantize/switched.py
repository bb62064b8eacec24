"""A model in which each layer multiplies bytes, float16 or float32, and each table has rows of bytes or float32, as
inputs say: what any choice of these adds to the outputs is measured without making another model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from modelc.frontend.quantize.dynamic import Table, rounded_by_row
from modelc.frontend.quantize.floats import FloatModel, copied
from modelc.frontend.quantize.layers import Layer, weights_of
from modelc.frontend.quantize.recipe import ASYMMETRIC, DYNAMIC, FLOAT16, INT8, SYMMETRIC, TABLE, Floats, Range
from modelc.frontend.quantize.weights import as_bytes
from modelc.frontend.quantize.write import Deviations, in_half, rounding, shares_bytes
from modelc.frontend.witness.surgery import save

CORRECTED = "modelc:corrected"
IN_BYTES = "switch"  # what the inputs of a layer are called behind its name
IN_FLOAT16 = "switch of float16"
BY_ROW = "switch of rows"
ASYMMETRICALLY = "switch of weights"


@dataclass(frozen=True)
class Switched:
    """The model `floats` with a switch for each of the `layers`: whether it is in bytes. `ranges` say how values are
    rounded, weights go from -most to most, and `corrections` are what is added to outputs by channel. Layers in
    `asymmetric` have a second switch for such weights, with the corrections that it says; those in `halves`, which says
    how much their sums are off then, one for float16; those in `dynamic` one for activations that are rounded by row;
    the `tables` one for rows of bytes."""

    floats: FloatModel
    layers: Sequence[Layer]
    ranges: Mapping[str, Range]
    most: int
    corrections: Mapping[str, Floats]
    asymmetric: Mapping[str, Floats | None] = field(default_factory=dict)
    halves: Deviations = field(default_factory=dict)
    dynamic: Collection[str] = ()
    tables: Sequence[Table] = ()

    def inputs(self, ways: Mapping[str, str], corrected: bool) -> dict[str, NDArray[Any]]:
        """With which layers are computed in these `ways`, by name: INT8, ASYMMETRIC, DYNAMIC, FLOAT16, float32 if
        nothing is said; and which tables as TABLE. Those in bytes by ranges have their corrections, or have not."""
        narrow = {name for name, way in ways.items() if way in (INT8, ASYMMETRIC)}
        rounded = {layer.rounded for layer in self.layers if layer.name in narrow}
        on = {f"{layer.rounded}/switch of value": layer.rounded in rounded for layer in self.layers}
        on |= {f"{layer.name}/{IN_BYTES}": layer.name in narrow for layer in self.layers}
        on |= {f"{name}/{BY_ROW}": ways.get(name) == DYNAMIC for name in self.dynamic}
        on |= {f"{table.name}/{IN_BYTES}": ways.get(table.name) == TABLE for table in self.tables}
        on |= {f"{name}/{ASYMMETRICALLY}": ways.get(name) == ASYMMETRIC for name in self.asymmetric}
        on |= {f"{name}/{IN_FLOAT16}": ways.get(name) == FLOAT16 for name in self.halves}
        return {**{name: np.array(value) for name, value in on.items()}, CORRECTED: np.array(corrected, np.float32)}

    def write(self, output: Path) -> None:
        """Writes the model."""
        model = self.floats.copy()
        graph, by_name = model.model.graph, {layer.name: layer for layer in self.layers}
        readers: dict[str, list[Layer]] = {}  # by the value that is rounded for them
        for layer in self.layers:
            readers.setdefault(layer.rounded, []).append(layer)
        for name, given in self.inputs({}, False).items():
            kind = TensorProto.FLOAT if name == CORRECTED else TensorProto.BOOL
            graph.input.append(helper.make_tensor_value_info(name, kind, given.shape))
        either = {value: [self._rounded(model, value)] for value in readers}
        tables = {table.name: table for table in self.tables}
        nodes = list[NodeProto]()
        for node in graph.node:
            if node.name in by_name:
                nodes.append(self._switched(model, by_name[node.name], node))
                continue
            if node.name in tables:
                nodes.append(self._looked_up(model, tables[node.name], node))
                continue
            nodes.append(copied(node))
            for k, name in enumerate(node.input):
                if name in readers and shares_bytes(readers[name], name):
                    nodes[-1].input[k] = f"{name}/either"
        model.put(model.behind(nodes, either))
        del graph.value_info[:]
        save(model.model, output)

    def _rounded(self, model: FloatModel, value: str) -> NodeProto:
        """A value rounded, or as it is."""
        on = rounding(model, value, value, self.ranges[value])
        off = helper.make_node("Identity", [value], [f"{value}/off"])
        return _if(f"{value}/switch of value", on, [off], f"{value}/either")

    def _switched(self, model: FloatModel, layer: Layer, node: NodeProto) -> NodeProto:
        """A layer that multiplies bytes, by weights of either kind, or float16 where it can, or is as it was."""
        on = self._in_bytes(model, layer, node, self.corrections.get(layer.name), SYMMETRIC)
        if layer.name in self.asymmetric:
            other = self._in_bytes(model, layer, node, self.asymmetric[layer.name], ASYMMETRIC)
            on = [_if(f"{layer.name}/{ASYMMETRICALLY}", other, on, f"{layer.y}/on")]
        off = copied(node, y=f"{layer.y}/off")
        if layer.name in self.halves:
            half = list(in_half(model, layer, node, self.halves[layer.name], f"{layer.y}/half"))
            off = _if(f"{layer.name}/{IN_FLOAT16}", half, [off], f"{layer.y}/real")
        if layer.name not in self.dynamic:
            return _if(f"{layer.name}/{IN_BYTES}", on, [off], layer.y)
        either = _if(f"{layer.name}/{IN_BYTES}", on, [off], f"{layer.y}/ranged")
        prefix, weights = f"{layer.name}/by row", self._weights(model, layer, SYMMETRIC)
        rows = rounded_by_row(model, layer.x, prefix)
        rows.append(copied(node, x=f"{prefix}/rounded", weights=weights, y=f"{layer.y}/by row"))
        return _if(f"{layer.name}/{BY_ROW}", rows, [either], layer.y)

    def _looked_up(self, model: FloatModel, table: Table, node: NodeProto) -> NodeProto:
        """A lookup of rows of bytes, or as it was."""
        numbers = model.set(f"{table.constant}/rounded", as_bytes(table.numbers, 0).real())
        on, off = copied(node, x=numbers, y=f"{table.y}/on"), copied(node, y=f"{table.y}/off")
        return _if(f"{table.name}/{IN_BYTES}", [on], [off], table.y)

    def _weights(self, model: FloatModel, layer: Layer, kind: str) -> str:
        """What a layer's weights in bytes stand for."""
        real = as_bytes(weights_of(model, layer), layer.axis, self.most, kind == ASYMMETRIC).real()
        return model.set(f"{layer.name}/{kind} weights", real)

    def _in_bytes(
        self, model: FloatModel, layer: Layer, node: NodeProto, added: Floats | None, kind: str
    ) -> list[NodeProto]:
        """The nodes of a layer that multiplies what is rounded by weights that are."""
        y = f"{layer.y}/{kind}"
        x = f"{layer.x}/either" if layer.x == layer.rounded else layer.x
        on = copied(node, x=x, weights=self._weights(model, layer, kind), y=y)
        if added is None:
            return [on]
        shape = (-1,) if layer.channels_last else (-1, *[1] * (weights_of(model, layer).ndim - 2))
        correction = model.set(f"{layer.name}/{kind} correction", added.reshape(shape))
        scaled = f"{correction}/scaled"
        return [
            on,
            helper.make_node("Mul", [correction, CORRECTED], [scaled]),
            helper.make_node("Add", [y, scaled], [f"{y}/corrected"]),
        ]


def _if(condition: str, on: Sequence[NodeProto], off: Sequence[NodeProto], output: str) -> NodeProto:
    """What the last of the nodes `on` writes, or that of `off`."""
    branches = {}
    for branch, nodes in (("then_branch", on), ("else_branch", off)):
        given = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
        branches[branch] = helper.make_graph(nodes, branch, [], [given])
    return helper.make_node("If", [condition], [output], f"{output}/if", **branches)
