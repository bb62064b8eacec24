"""The Graph: a model after import. Immutable; every rewrite makes a new one.

    graph NAME
      input X: float32[1, 3, 224, 224]
      const W: float32[64, 3, 7, 7] = <base64 of zlib-compressed little-endian data>
      value Y: float32[1, 64, 112, 112]
      Y = Conv(X, W) strides=(2, 2) pads=(3, 3, 3, 3)  # conv1
      output Y

Operators carry ONNX's names and attributes, normalised by the frontend: see modelc/ops for their meaning. What a
branch or a loop runs are Graphs of its own, the Node's bodies; their inputs are given by position.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.expr import DTYPES

RANDOM_STATE = (
    "modelc:random"  # an input that the runtime gives: the handle's seed and the number of the run, uint64[2]
)
_SIZE = "modelc:size"  # begins the names of outputs that the runtime takes (size_name)
_ROOM = "modelc:room"  # begins the names of outputs that are sizes themselves (room_name)
Array = NDArray[Any]


def room_name(size: str) -> str:
    """The name of an int64 output that is, from there on, the size `size` of the run."""
    return f"{_ROOM}:{size}"


def room_of(name: str) -> str | None:
    """The size that the output `name` is; None for another output."""
    return name.removeprefix(f"{_ROOM}:") if name.startswith(f"{_ROOM}:") else None


def size_name(output: str, axis: int) -> str:
    """The name of an int64 output that says how much of another there is along `axis`, where that depends on data: its
    shape is what there can be at most, and what is there comes first."""
    return f"{_SIZE}:{axis}:{output}"


def sized(name: str) -> tuple[str, int] | None:
    """The output and the axis whose size is the output `name`; None for one that a user gets."""
    if not name.startswith(f"{_SIZE}:"):
        return None
    axis, _, output = name.removeprefix(f"{_SIZE}:").partition(":")
    return output, int(axis)


def is_given(name: str) -> bool:
    """Whether a user gets the output `name`."""
    return sized(name) is None and room_of(name) is None


def actual(outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Of the outputs those that a user gets, as much as there is of them."""
    arrays = {name: array for name, array in outputs.items() if is_given(name)}
    for name, size in outputs.items():
        if (what := sized(name)) is not None and what[0] in arrays:
            output, axis = what
            arrays[output] = arrays[output][(slice(None),) * axis + (slice(int(size)),)]
    return arrays


@dataclass(frozen=True)
class Value:
    """A tensor of the Graph: name, dtype (NumPy's name, or bfloat16), static shape; constants carry their data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Array | None = field(default=None, compare=False)

    @property
    def bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value):
            return NotImplemented
        if (self.name, self.dtype, self.shape) != (other.name, other.dtype, other.shape):
            return False
        if self.data is None or other.data is None:
            return self.data is other.data
        return self.data.tobytes() == other.data.tobytes()

    def __hash__(self) -> int:
        return hash((self.name, self.dtype, self.shape))


@dataclass(frozen=True)
class Node:
    """One operator. An absent optional input is the empty string. `attrs` values are int, float, str, tuples of them,
    or NumPy arrays; `source` names the ONNX nodes it came from; `bodies` are what control flow runs."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    source: tuple[str, ...] = ()
    bodies: tuple[Graph, ...] = ()

    def __hash__(self) -> int:
        return hash((self.op, self.name, self.inputs, self.outputs))


@dataclass(frozen=True)
class Grown:
    """A cache that grows: the input `past` is the beginning along `axis` of the output `present`, which lies where it
    lay in the run before, in memory that has `room` for so many along that axis."""

    past: str
    present: str
    axis: int
    room: int

    def stored(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the memory in which a value of this shape lies."""
        return (*shape[: self.axis], self.room, *shape[self.axis + 1 :])


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order over named Values. `inputs` and `outputs` keep the model's order and names. `grown`
    are inputs that are the beginning of an output."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, Value]
    nodes: tuple[Node, ...]
    notes: tuple[str, ...] = ()
    grown: tuple[Grown, ...] = ()

    @property
    def fed(self) -> tuple[str, ...]:
        """The inputs that a user gives."""
        return tuple(name for name in self.inputs if name != RANDOM_STATE)

    @property
    def given(self) -> tuple[str, ...]:
        """The outputs that a user gets."""
        return tuple(name for name in self.outputs if is_given(name))

    def value(self, name: str) -> Value:
        return self.values[name]

    def constant(self, name: str) -> Array | None:
        """The data of a constant, or None for what is computed, fed, or absent."""
        return self.values[name].data if name else None

    def producers(self) -> dict[str, Node]:
        return {out: node for node in self.nodes for out in node.outputs if out}

    @property
    def every_node(self) -> Iterator[Node]:
        """The nodes, and those of their bodies."""
        for node in self.nodes:
            yield node
            for body in node.bodies:
                yield from body.every_node

    @property
    def single_branches(self) -> frozenset[tuple[str, int]]:
        """The Ifs of which one branch alone can be run, and whether it is the one for true."""
        return frozenset((node.name, int(node.attrs["only"])) for node in self.every_node if "only" in node.attrs)

    @property
    def every_value(self) -> dict[str, Value]:
        """The values, and those of bodies."""
        bodies = (body for node in self.every_node for body in node.bodies)
        return {**self.values, **{name: value for body in bodies for name, value in body.values.items()}}

    def consumers(self) -> dict[str, list[Node]]:
        """Value -> nodes that read it (a node that reads it twice is listed once)."""
        readers: dict[str, list[Node]] = {name: [] for name in self.values}
        for node in self.nodes:
            for name in dict.fromkeys(x for x in node.inputs if x):
                readers[name].append(node)
        return readers

    def with_nodes(self, nodes: Iterable[Node], values: Iterable[Value] = ()) -> Graph:
        """The graph with other nodes and with `values` added; values that nothing mentions any more are dropped."""
        nodes = tuple(nodes)
        by_name = {**self.values, **{v.name: v for v in values}}
        used = {x for node in nodes for x in (*node.inputs, *node.outputs) if x} | {*self.inputs, *self.outputs}
        return replace(self, nodes=nodes, values={k: v for k, v in by_name.items() if k in used})

    def fresh(self, base: str, taken: Container[str] = ()) -> str:
        """A value name that is not in use yet: `base`, `base_1`, ..."""
        name, k = base, 0
        while name in self.values or name in taken:
            k += 1
            name = f"{base}_{k}"
        return name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        own, others = (
            (g.name, g.inputs, g.outputs, dict(g.values), tuple(map(_comparable, g.nodes)), g.notes, g.grown)
            for g in (self, other)
        )
        return own == others

    def __hash__(self) -> int:
        return hash((self.name, self.inputs, self.outputs, self.nodes))


def _comparable(node: Node) -> tuple[object, ...]:
    attrs = {k: (v.dtype.name, v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for k, v in node.attrs.items()}
    return node.op, node.name, node.inputs, node.outputs, attrs, node.source, node.bodies
