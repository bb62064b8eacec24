"""The state of one import, as bodies of branches and loops see it too; onnx.py goes over the nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.functions import Functions
from modelc.frontend.load.read import sparse_array, tensor_array
from modelc.ir.graph import Value


@dataclass(frozen=True)
class Unsupported:
    """A node that cannot be compiled, and why."""

    node: str
    op: str
    domain: str
    reason: str

    def __str__(self) -> str:
        op = f"{self.domain}.{self.op}" if self.domain else self.op
        return f"{self.node!r} ({op}): {self.reason}"


@dataclass
class Scope:
    """Names as a graph, branch or function body uses them, and what they are in the Graph; operator sets; the
    attributes of the function called."""

    versions: Mapping[str, int]
    names: dict[str, str] = field(default_factory=dict)
    attrs: Mapping[str, AttributeProto] = field(default_factory=dict)
    around: Scope | None = None
    prefix: str = ""
    depth: int = 0

    def find(self, name: str) -> str:
        if name in self.names or self.around is None:
            return self.names[name]
        return self.around.find(name)

    def within(self, prefix: str) -> Scope:
        """The scope of a branch or body in this one."""
        return Scope(self.versions, {}, self.attrs, self, prefix, self.depth + 1)

    def has(self, name: str) -> bool:
        return name in self.names or (self.around is not None and self.around.has(name))


@dataclass
class Importing(ABC):
    """The state of one import: what its nodes have become."""

    folder: Path
    functions: Functions
    builder: Builder = field(default_factory=Builder)
    lacking: list[Unsupported] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)  # values that unsupported nodes would have produced
    notes: list[str] = field(default_factory=list)  # for the user
    sizes: frozenset[str] = frozenset()  # what the model calls values that sizes are made of
    sequences: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the values that each is a list of

    def inputs(self, values: list[Value], scope: Scope) -> None:
        for value in values:
            self.builder.values[value.name] = value
            scope.names[value.name] = value.name

    def initialisers(self, graph: onnx.GraphProto, scope: Scope) -> None:
        for tensor in graph.initializer:
            self._constant(tensor.name, tensor_array(tensor, self.folder), scope)
        for sparse in graph.sparse_initializer:
            self._constant(sparse.values.name, sparse_array(sparse, self.folder), scope)

    def _constant(self, name: str, data: Any, scope: Scope) -> None:
        own = name if scope.around is None and not scope.prefix else self.builder.fresh(scope.prefix + name)
        scope.names[name] = own
        self.builder.values[own] = Value(own, data.dtype.name, data.shape, data)

    def defined(self, name: str, scope: Scope) -> str:
        """The Graph's name of a value that is produced now."""
        if name not in scope.names:
            inner = scope.around is not None or scope.prefix
            scope.names[name] = self.builder.fresh(scope.prefix + name) if inner else name
            self.builder.reserved.add(scope.names[name])
        return scope.names[name]

    def hand(self, node: OnnxNode, output: str, name: str) -> None:
        """Lets `output` be the value or sequence `name`."""
        if name in self.sequences:
            self.sequences[output] = self.sequences[name]
        else:
            self.builder.bind(node, output, name)

    @abstractmethod
    def visit(self, proto: onnx.NodeProto, name: str, source: str, scope: Scope) -> None:
        """Imports one node; `source` is the node of the model's graph that it belongs to."""
