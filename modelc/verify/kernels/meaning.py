"""What a kernel should have computed: by the imported model's nodes between what it reads and writes, or by its Task.

The first judges passes, fusion and layouts too; it is there where what is written is a value of the imported model and
what it is made of can be traced to values that are known. The Task's own Blocks are always there; after the derivation
rules of a schedule they say how much more minimal filtering and Strassen's products round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from modelc.errors import ModelError
from modelc.ir.block import AnyBlock, Block, Buffer, Task
from modelc.ir.control import CONTROL
from modelc.ir.expr import Var
from modelc.ir.graph import Graph, Value
from modelc.ir.program import Placed
from modelc.ops import MEANINGS, operator_of
from modelc.ops.operator import written
from modelc.verify.kernels.definitions import Definitions, Order
from modelc.verify.kernels.inverse import CannotSay
from modelc.verify.kernels.rounding import Analysis

Array = NDArray[Any]
ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


Ordered = Sequence[tuple[Order, AnyBlock]]


def writers_of(blocks: Ordered) -> dict[str, Ordered]:
    """The Blocks that write each buffer."""
    writers: dict[str, list[tuple[Order, AnyBlock]]] = {}
    for order, block in blocks:
        for name in dict.fromkeys(written(block)):
            writers.setdefault(name, []).append((order, block))
    return dict(writers)


def of_task(task: Task, arrays: Mapping[str, Array], analysis: Analysis) -> Definitions:
    """The meaning of `task` where its inputs are `arrays`, by its buffers' names."""
    writers = writers_of([((number,), block) for number, block in enumerate(task.blocks)])

    def buffer(name: str) -> tuple[str, tuple[int, ...]]:
        declared = task.buffer(name)
        return declared.dtype, declared.shape

    return Definitions(arrays.get, lambda name: writers.get(name, ()), buffer, MEANINGS, analysis)


@dataclass
class Composed(ABC):
    """Definitions by number, each of which is asked for when something needs it, as Blocks over common names: those of
    values, and `number#name` for what is within a definition."""

    values: Mapping[str, Value] | Mapping[str, Placed]
    producers: Mapping[str, int]  # of values, by number
    locals: dict[str, Buffer] = field(default_factory=dict)
    _defined: dict[int, dict[str, Ordered]] = field(default_factory=dict)

    @abstractmethod
    def blocks(self, number: int) -> Sequence[AnyBlock]:
        """A definition's Blocks. Raises CannotSay."""

    def named(self, number: int, buffers: Iterable[Buffer]) -> dict[str, str]:
        """The common names of what is within a definition."""
        names = {buffer.name: f"{number}#{buffer.name}" for buffer in buffers}
        self.locals |= {names[buffer.name]: buffer for buffer in buffers}
        return names

    def writers(self, name: str) -> Ordered:
        number = int(name.partition("#")[0]) if name in self.locals else self.producers.get(name)
        if number is None:
            return ()
        if number not in self._defined:
            blocks = self.blocks(number)
            self._defined[number] = writers_of([((number, k), block) for k, block in enumerate(blocks)])
        return self._defined[number].get(name, ())

    def buffer(self, name: str) -> tuple[str, tuple[int, ...]]:
        value = self.locals.get(name) or self.values[name]
        return value.dtype, value.shape


class Imported(Composed):
    """The nodes of an imported Graph as Blocks."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.values, {x: k for k, node in enumerate(graph.nodes) for x in node.outputs if x})
        self.graph = graph
        self._tables: dict[str, Array] = {}

    def definitions(self, arrays: Mapping[str, Array], analysis: Analysis, roundoff: float = 0.0) -> Definitions:
        """The model's meaning where the values in `arrays` are given; kernels round numbers of float32 to `roundoff`
        before they multiply them. A constant of one number stands for a real one, as sqrt(2) does in a Gelu."""

        def given(name: str) -> Array | None:
            array = arrays.get(name)
            return self.table(name) if array is None else array

        def is_single(name: str) -> bool:
            value = self.graph.values.get(name)
            return value is not None and value.data is not None and value.data.size == 1

        return Definitions(given, self.writers, self.buffer, MEANINGS, analysis, roundoff, is_single)

    def table(self, name: str) -> Array | None:
        """A constant of the model, or one that an operator brings along."""
        value = self.graph.values.get(name)
        return self._tables.get(name) if value is None else value.data

    def blocks(self, number: int) -> Sequence[AnyBlock]:
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
        names |= self.named(number, (*definition.locals, *(b for b, _ in definition.constants)))
        self._tables |= {names[buffer.name]: data for buffer, data in definition.constants}
        return [block.renamed(names) for block in definition.blocks]


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
