"""What makes a byte of a byte is a table of 256 bytes, which is computed when compiling.

    Q(f(DQ(q)))                      ->  ByteTable(q)        f: Tanh, x * Sigmoid(x), Gelu in any spelling, ...
    Q(g(DQ(Q(f(DQ(q))))))            ->  ByteTable(q)

f are elementwise operators of that one value and of constants of one number, and what is between them nothing else
reads. The operators themselves say what each of the 256 bytes becomes. A table is looked up where that costs less than
computing f: tanh, say, but not LeakyRelu.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from modelc.ir.block import Block
from modelc.ir.expr import DTYPES, walk
from modelc.ir.expr import Op as Operation
from modelc.ir.graph import Graph, Node, Value
from modelc.ir.scalar import OPERATIONS
from modelc.ops import OPERATORS, operator_of
from modelc.ops.direct import computed
from modelc.passes.machine import ANY, BYTES, Machine
from modelc.passes.pattern import Bind, Editor, Match, Op, Rule, rewrite

STEPS = ("QuantizeLinear", "DequantizeLinear")
MOST_NODES = 64  # of a function: an exporter's longest spelling has less than 20


@dataclass(frozen=True)
class ByteTables:
    machine: Machine = ANY

    def __call__(self, graph: Graph) -> Graph:
        pattern = Op("QuantizeLinear|ByteTable", Bind("x"), more=True)
        return rewrite(graph, (Rule(pattern, self.tabled, private=False),))

    def tabled(self, e: Editor, m: Match) -> str | None:
        function = function_of(e, m.root)
        if function is None or len(function.nodes) < 2 or not self.pays(e, function):
            return None
        table = function.table(e)
        e.source = tuple(dict.fromkeys(s for node in function.nodes for s in node.source))
        return e.add("ByteTable", (function.byte,), {"to": e.value(m.root.outputs[0]).dtype, "table": table})

    def pays(self, e: Editor, function: Function) -> bool:
        """Whether a lookup costs less, in operations of a vector of float32. What dequantizes the bytes and what
        quantizes the result are not counted: without a table, kernels around them often have no work with these."""
        *inner, _ = (node for node in function.nodes if node.inputs[0] != function.byte or node.op not in STEPS)
        return sum(map(partial(_operations, e, self.machine.slow_operations), inner)) > self.machine.lookup_operations


def _operations(e: Editor, slow: float, node: Node) -> float:
    """Of a vector, that a node computes; `slow`: of a rounded function. Quotients by a constant are products."""
    by_constant = len(node.inputs) > 1 and e.data(node.inputs[1]) is not None

    def own(operation: Operation) -> float:
        row = OPERATIONS[operation.name]
        if operation.name == "div" and by_constant:
            return 1.0
        if row.cost == "slow" or (row.takes == "float" and row.rounding == "rounded"):
            return slow
        return 0.0 if row.cost == "free" else 1.0

    inputs = tuple(e.value(x) if x else None for x in node.inputs)
    blocks = operator_of(node).define(node, inputs, tuple(e.value(x) if x else None for x in node.outputs)).blocks
    bodies = (body for block in blocks if isinstance(block, Block) for body in block.body)
    return sum(own(x) for body in bodies for x in walk(body) if isinstance(x, Operation))


# --- functions of a byte --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function:
    """What `nodes`, in order, make of the value `byte`; the last one's result is bytes."""

    byte: str
    nodes: tuple[Node, ...]

    def table(self, e: Editor) -> tuple[int, ...]:
        """What the last node gives for each byte, by the byte's bits, less the least of its dtype."""
        bits = np.arange(256, dtype=np.uint8)
        data = bits.view(DTYPES[e.value(self.byte).dtype])
        values = {self.byte: Value(self.byte, e.value(self.byte).dtype, data.shape, data)}
        for node in self.nodes:
            inputs = tuple(values.get(x) or _scalar(e.value(x)) if x else None for x in node.inputs)
            out = node.outputs[0]
            (result, *_) = computed(node, inputs)
            values[out] = Value(out, e.value(out).dtype, data.shape, np.asarray(result).reshape(data.shape))
        return tuple((result.astype(np.int64) - np.iinfo(result.dtype).min).tolist())


def _scalar(value: Value) -> Value:
    assert value.data is not None
    return replace(value, shape=(), data=value.data.reshape(()))


def function_of(e: Editor, root: Node) -> Function | None:
    """The function that `root` is the last node of, from the bytes farthest back that there is one of."""
    if e.value(root.outputs[0]).dtype not in BYTES:
        return None
    for far in (True, False):
        byte = _Walk(e, far).source(root)
        nodes = () if byte is None else tuple(dict.fromkeys(_between(e, root, byte)))
        if byte is not None and _is_whole(e, root, nodes, byte):
            return Function(byte, nodes)
    return None


@dataclass
class _Walk:
    """Back from a node to the bytes that it is a function of; `far`: beyond the first that are on the way."""

    e: Editor
    far: bool
    sources: dict[str, str | None] = field(default_factory=dict)

    def source(self, node: Node) -> str | None:
        """None where there are none, or several."""
        if node.name not in self.sources:
            self.sources[node.name] = None  # also of what is more than MOST_NODES away
            if len(self.sources) <= MOST_NODES and _is_of_one(node):
                inputs = [x for x in node.inputs if x and not self.is_number(x)]
                every = {self.of_value(x) for x in inputs}
                self.sources[node.name] = every.pop() if len(every) == 1 else None
        return self.sources[node.name]

    def is_number(self, name: str) -> bool:
        data = self.e.data(name)
        return data is not None and data.size == 1

    def of_value(self, name: str) -> str | None:
        is_byte, producer = self.e.value(name).dtype in BYTES and self.e.data(name) is None, self.e.producer(name)
        followed = producer is not None and name not in self.e.outputs and (self.far or not is_byte)
        source = self.source(producer) if followed and producer is not None else None
        return name if source is None and is_byte else source


def _is_of_one(node: Node) -> bool:
    """Whether each number of the node's one result is made of those at the same place of its operands."""
    known = node.op in STEPS or (node.op in OPERATORS and OPERATORS[node.op].elementwise)
    return known and not node.bodies and not any(node.outputs[1:])


def _between(e: Editor, node: Node, byte: str) -> Iterator[Node]:
    """The nodes from the value `byte` to `node`, in order."""
    for x in node.inputs:
        producer = e.producer(x) if x and x != byte else None
        if producer is not None:
            yield from _between(e, producer, byte)
    yield node


def _is_whole(e: Editor, root: Node, nodes: tuple[Node, ...], byte: str) -> bool:
    """Whether no other node reads what is between, but for what is dequantized, and all have the shape of the bytes."""
    names, shape = {node.name for node in nodes}, e.shape(byte)
    for node in nodes:
        out = node.outputs[0]
        shared = out in e.outputs or any(reader.name not in names for reader in e.readers(out))
        if e.shape(out) != shape or (shared and node is not root and node.inputs[0] != byte):
            return False
    return True
