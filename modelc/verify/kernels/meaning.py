"""What a kernel should have computed: by the imported model's nodes between what it reads and writes, or by its Task.

The first judges passes, fusion and layouts too; it is there where what is written is a value of the imported model and
what it is made of can be traced to values that are known. The Task's own Blocks are always there; after the derivation
rules of a schedule they say how much more minimal filtering and Strassen's products round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from modelc.errors import ModelError
from modelc.ir.block import AnyBlock, Block, Buffer, Task
from modelc.ir.control import CONTROL
from modelc.ir.expr import Var
from modelc.ir.graph import Graph
from modelc.ops import MEANINGS, operator_of
from modelc.ops.operator import written
from modelc.verify.kernels.demand import Definitions, Order
from modelc.verify.kernels.inverse import CannotSay
from modelc.verify.kernels.rounding import Analysis

Array = NDArray[Any]
ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def of_task(task: Task, arrays: Mapping[str, Array], analysis: Analysis) -> Definitions:
    """The meaning of `task` where its inputs are `arrays`, by its buffers' names."""
    writers: dict[str, list[tuple[Order, AnyBlock]]] = {}
    for number, block in enumerate(task.blocks):
        for name in written(block):
            writers.setdefault(name, []).append(((number,), block))

    def buffer(name: str) -> tuple[str, tuple[int, ...]]:
        declared = task.buffer(name)
        return declared.dtype, declared.shape

    return Definitions(arrays.get, lambda name: writers.get(name, ()), buffer, MEANINGS, analysis)


@dataclass
class Imported:
    """The nodes of an imported Graph as Blocks, each defined when it is asked for."""

    graph: Graph
    _producers: dict[str, int] = field(default_factory=dict)
    _defined: dict[int, Sequence[tuple[Order, AnyBlock]]] = field(default_factory=dict)
    _locals: dict[str, Buffer] = field(default_factory=dict)
    _owner: dict[str, int] = field(default_factory=dict)
    _tables: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, node in enumerate(self.graph.nodes):
            self._producers |= dict.fromkeys((name for name in node.outputs if name), number)

    @property
    def computed(self) -> Mapping[str, int]:
        """The values that nodes write, and which node of the Graph it is."""
        return self._producers

    def definitions(self, arrays: Mapping[str, Array], analysis: Analysis, roundoff: float = 0.0) -> Definitions:
        """The model's meaning where the values in `arrays` are given; kernels round numbers of float32 to `roundoff`
        before they multiply them. A constant of one number stands for a real one, as sqrt(2) does in a Gelu."""

        def given(name: str) -> Array | None:
            array = arrays.get(name)
            return self.table(name) if array is None else array

        def is_single(name: str) -> bool:
            value = self.graph.values.get(name)
            return value is not None and value.data is not None and value.data.size == 1

        return Definitions(given, self._writers, self._buffer, MEANINGS, analysis, roundoff, is_single)

    def _writers(self, name: str) -> Sequence[tuple[Order, AnyBlock]]:
        number = self._producers.get(name, self._owner.get(name))
        if number is None:
            return ()
        return [(order, block) for order, block in self._node(number) if name in written(block)]

    def _buffer(self, name: str) -> tuple[str, tuple[int, ...]]:
        value = self._locals.get(name) or self.graph.values[name]
        return value.dtype, value.shape

    def table(self, name: str) -> Array | None:
        """A constant of the model, or one that an operator brings along."""
        value = self.graph.values.get(name)
        return self._tables.get(name) if value is None else value.data

    def _node(self, number: int) -> Sequence[tuple[Order, AnyBlock]]:
        if number in self._defined:
            return self._defined[number]
        node = self.graph.nodes[number]
        if node.op in CONTROL:
            raise CannotSay(f"{node.name!r} is control flow, whose kernels are judged by themselves")
        inputs = tuple(self.graph.value(x) if x else None for x in node.inputs)
        outputs = tuple(self.graph.value(x) if x else None for x in node.outputs)
        try:
            definition = operator_of(node).define(node, inputs, outputs)
        except ModelError as error:
            raise CannotSay(str(error)) from None
        names = {f"x{k}": x for k, x in enumerate(node.inputs) if x}
        names |= {f"y{k}": x for k, x in enumerate(node.outputs) if x}
        for buffer in (*definition.locals, *(b for b, _ in definition.constants)):
            names[buffer.name] = f"{number}#{buffer.name}"
            self._locals[names[buffer.name]] = buffer
            self._owner[names[buffer.name]] = number
        self._tables |= {names[buffer.name]: data for buffer, data in definition.constants}
        blocks = [((number, k), block.renamed(names)) for k, block in enumerate(definition.blocks)]
        self._defined[number] = blocks
        return blocks


def every_graph(graph: Graph) -> Iterator[Graph]:
    """The Graph, and those that its control flow runs."""
    yield graph
    for node in graph.nodes:
        for body in node.bodies:
            yield from every_graph(body)


def channels_of(task: Task, output: str) -> tuple[int, ...]:
    """The dimensions of `output` along which, through all Blocks, constants of more than one element are indexed, the
    longest first."""
    along: dict[str, set[int]] = {name: set(range(len(task.buffer(name).shape))) for name in task.constants}
    for block in task.blocks:
        if not isinstance(block, Block):
            continue
        names = {
            index.name
            for read in block.reads
            for d, index in enumerate(read.indices)
            if isinstance(index, Var) and d in along.get(read.buffer, ())
        }
        for write in block.writes:
            dims = {d for d, index in enumerate(write.indices) if isinstance(index, Var) and index.name in names}
            along[write.buffer] = along.get(write.buffer, set()) | dims
    shape = task.buffer(output).shape
    return tuple(sorted((d for d in along.get(output, ()) if shape[d] > 1), key=lambda d: (-shape[d], d)))
