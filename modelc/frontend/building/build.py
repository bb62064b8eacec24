"""The Graph while it is being imported: ONNX nodes go in one by one, normalised Nodes of static shapes come out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import ModelError, NotKnown
from modelc.frontend.building.limits import LARGEST_FOLDED, check_shape
from modelc.frontend.building.rooms import Rooms
from modelc.frontend.building.sizes import Sizes, follow
from modelc.frontend.building.trips import Trips
from modelc.ir.graph import Graph, Node, Value
from modelc.ops import operator_of

Array = NDArray[Any]
LEAST_INT64 = -(1 << 63)
COPIES = ("Identity", "Expand")  # operators of which a result of the same shape is a copy


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
    advice: Callable[[str], str] = lambda name: ""  # how a value becomes known, as the end of a sentence
    folded: int = 0  # bytes of constants made so far
    numbers: Counter[str] = field(default_factory=Counter)  # of values' names made of the same base
    node_numbers: Counter[str] = field(default_factory=Counter)
    sizes: Sizes = field(default_factory=Sizes)
    producers: dict[str, Node] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)  # what the user says that values of the model are at most
    limited: dict[str, int] = field(default_factory=dict)  # what sizes are made of, and the most that it can be
    promised: set[str] = field(default_factory=set)  # those of which the user says it: none of them is negative
    unbounded: dict[str, str] = field(default_factory=dict)  # sizes without a bound, and what the model calls them
    trips: Trips | None = None  # where sizes say how often nodes run; None: shapes are fixed
    rooms: Rooms | None = None  # where what is found has sizes of its own
    growing: Collection[str] = ()  # inputs that are caches, to which a run appends
    streams: int = 0  # nodes that draw random numbers from the handle's seed

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
                f"modelc compiles static shapes only{self.advice(name)}"
            )
        return data

    def stays_loop(self, node: OnnxNode, count: int) -> bool:
        """Whether a node that runs `count` times here has to be a loop, for sizes say how often."""
        return self.trips is not None and self.trips.stays(node.name, count)

    def has_room(self, size: int) -> bool:
        """Whether one more constant of so many bytes may be made."""
        return self.folded + size <= LARGEST_FOLDED

    def make_room(self, node: OnnxNode, size: int) -> None:
        """Counts the bytes of a constant that is going to be made. Raises ModelError where they are too many."""
        fits = self.has_room(size)
        self.folded += size
        if not fits:
            raise node.fail(
                f"computing constants when compiling has made {self.folded} bytes with this one; expected at most "
                f"{LARGEST_FOLDED}; store them in the model as initialisers"
            )

    def fresh(self, base: str) -> str:
        name = base
        while name in self.values or name in self.reserved:
            self.numbers[base] += 1
            name = f"{base}_{self.numbers[base]}"
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
        bodies: tuple[Graph, ...] = (),
    ) -> str:
        """Adds one node that is part of the meaning of `node`; its outputs are new values unless given. Returns the
        first output's name."""
        trimmed = list(inputs)
        while trimmed and not trimmed[-1]:
            trimmed.pop()
        names = tuple(outputs) if outputs is not None else (self.fresh(f"{node.outputs[0]}_{op.lower()}"),)
        new = Node(op, self._node_name(node.name, op), tuple(trimmed), names, dict(attrs or {}), (node.source,), bodies)
        try:
            types = operator_of(new).infer(new, tuple(self.values[x] if x else None for x in trimmed))
        except NotKnown as error:
            raise NotKnown(f"{error}{self.advice(error.value)}", error.value) from None
        for name, (dtype, shape) in zip(names, types, strict=False):
            check_shape(shape, f"node {node.name!r} ({node.op}): its result {name!r}")
            if name:
                self.values[name] = Value(name, dtype, tuple(int(d) for d in shape))
        self.nodes.append(new)
        self.producers |= {x: new for x in names if x}
        if op in COPIES and self.values[names[0]].shape == self.values[trimmed[0]].shape:
            self.sizes.copies[names[0]] = self.sizes.copies.get(trimmed[0], trimmed[0])
        if any(self.sizes.of(x) for x in trimmed):
            follow(self, node, new, [self.values[x] if x else None for x in trimmed])
        return names[0]

    def _node_name(self, base: str, op: str) -> str:
        name, inner = base, f"{base}/{op}"
        while name in self.node_names:
            k = self.node_numbers[inner]
            self.node_numbers[inner] += 1
            name = f"{inner}_{k}" if k else inner
        self.node_names.add(name)
        return name

    def bind(self, node: OnnxNode, output: str, name: str) -> None:
        """Lets `output` be the value `name`."""
        value = self.values[name]
        if value.data is not None and not self.sizes.of(name):
            self.values[output] = Value(output, value.dtype, value.shape, value.data)
        else:
            self.emit(node, "Identity", (name,), outputs=(output,))

    def backwards(self, node: OnnxNode, x: str) -> str:
        """x[::-1]"""
        bounds = [self.constant(np.asarray([n], np.int64), f"{x}_bound") for n in (-1, LEAST_INT64, 0, -1)]
        return self.emit(node, "Slice", (x, *bounds), {}, (self.fresh(f"{x}_backwards"),))

    def reshape(self, node: OnnxNode, x: str, shape: Sequence[int], output: str | None = None) -> str:
        target = self.constant(np.asarray(shape, np.int64), f"{output or node.outputs[0]}_shape")
        attrs = {"allowzero": 1} if 0 in shape else {}
        return self.emit(node, "Reshape", (x, target), attrs, (output,) if output else None)
