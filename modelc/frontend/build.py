"""The Graph while it is being imported: ONNX nodes go in one by one, normalised Nodes of static shapes come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import ModelError
from modelc.ir.graph import Node, Value
from modelc.ops import operator_of

Array = NDArray[Any]
LARGEST = 1 << 36  # elements of a value, at most


@dataclass(frozen=True)
class OnnxNode:
    """An ONNX node with the Graph's value names in place of its own. `version` is that of its domain's operator set;
    `source` names the node of the model that it belongs to."""

    op: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    source: str

    def input(self, k: int) -> str:
        """The name of input `k`, empty if it is absent."""
        return self.inputs[k] if k < len(self.inputs) else ""

    def wants(self, k: int) -> bool:
        """Whether output `k` is named."""
        return k < len(self.outputs) and bool(self.outputs[k])

    def fail(self, sentence: str) -> ModelError:
        return ModelError(f"node {self.name!r} ({self.op}): {sentence}")


@dataclass
class Builder:
    """What is known so far. Every emitted node is inferred at once, so every value has its dtype and static shape."""

    values: dict[str, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    reserved: set[str] = field(default_factory=set)  # value names of the model, not to be taken for new values
    node_names: set[str] = field(default_factory=set)

    def value(self, name: str) -> Value:
        return self.values[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    def data(self, name: str) -> Array | None:
        """The data of a constant; None for what is absent or computed."""
        return self.values[name].data if name else None

    def steering(self, node: OnnxNode, k: int, what: str) -> Array | None:
        """The data of input `k`, which has to be a constant; None if it is absent."""
        name = node.input(k)
        if not name:
            return None
        data = self.data(name)
        if data is None:
            raise node.fail(
                f"expected a constant as {what}, found {name!r}, which depends on the model's input data; "
                "modelc compiles static shapes only"
            )
        return data

    def fresh(self, base: str) -> str:
        name, k = base, 0
        while name in self.values or name in self.reserved:
            k += 1
            name = f"{base}_{k}"
        return name

    def constant(self, data: Any, base: str, dtype: str | None = None) -> str:
        """A new constant; plain numbers become int64."""
        array = np.asarray(data, dtype) if dtype else np.asarray(data)
        name = self.fresh(base)
        self.values[name] = Value(name, array.dtype.name, array.shape, array)
        return name

    def emit(
        self,
        node: OnnxNode,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Any] | None = None,
        outputs: Sequence[str] | None = None,
    ) -> str:
        """Adds one node that is part of the meaning of `node`; its outputs are new values unless given. Returns the
        first output's name."""
        trimmed = list(inputs)
        while trimmed and not trimmed[-1]:
            trimmed.pop()
        names = tuple(outputs) if outputs is not None else (self.fresh(f"{node.outputs[0]}_{op.lower()}"),)
        new = Node(op, self._node_name(node.name, op), tuple(trimmed), names, dict(attrs or {}), (node.source,))
        types = operator_of(new).infer(new, tuple(self.values[x] if x else None for x in trimmed))
        for name, (dtype, shape) in zip(names, types, strict=False):
            if prod(shape) > LARGEST:
                raise node.fail(f"its result {name!r} has {prod(shape)} elements; expected at most {LARGEST}")
            if name:
                self.values[name] = Value(name, dtype, tuple(int(d) for d in shape))
        self.nodes.append(new)
        return names[0]

    def _node_name(self, base: str, op: str) -> str:
        name, k = base, 0
        while name in self.node_names:
            name = f"{base}/{op}" if not k else f"{base}/{op}_{k}"
            k += 1
        self.node_names.add(name)
        return name

    def bind(self, node: OnnxNode, output: str, name: str) -> None:
        """Lets `output` be the value `name`."""
        value = self.values[name]
        if value.data is not None:
            self.values[output] = Value(output, value.dtype, value.shape, value.data)
        else:
            self.emit(node, "Identity", (name,), outputs=(output,))

    def reshape(self, node: OnnxNode, x: str, shape: Sequence[int], output: str | None = None) -> str:
        target = self.constant(np.asarray(shape, np.int64), f"{output or node.outputs[0]}_shape")
        attrs = {"allowzero": 1} if 0 in shape else {}
        return self.emit(node, "Reshape", (x, target), attrs, (output,) if output else None)
