"""What a model does with its inputs, before shapes are known: which ones steer it (conditions, scales, trip counts,
shapes), and which ones become indices, of what range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from modelc.errors import ModelError
from modelc.frontend.control.structure import every_node, reads, row_of
from modelc.frontend.load.importing import Unsupported
from modelc.frontend.load.outline import read_outline
from modelc.frontend.load.read import ELEMENT_TYPES, tensor_array
from modelc.frontend.steering.specialise import declared_shapes

MOST_STEERING = 16  # elements of an input that looks like a steering constant
SOME_BOXES = 16  # of a class: so many at most are asked for where an input says how many
DEEPEST = 100  # nodes between a size and what bounds it
MOST_OFFSET = 1 << 16  # elements of a constant that is added to an index
STATIC = {"Shape", "Size"}  # what they give is known when shapes are
ARITHMETIC = ("add", "sub", "mul", "div")  # of sizes


@dataclass(frozen=True)
class Steering:
    """An input of few numbers that steers nodes: `places` are (node, operator, what of it)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    places: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Span:
    """Where the numbers of a value, or of one `column` of its last dimension, have to lie: [low, high]. `distinct`: two
    that are equal would write to the same place."""

    column: int | None
    low: int
    high: int
    distinct: bool = False


@dataclass
class Uses:
    """A model's values by name, those of its branches and loops among them, and what produces them."""

    graph: onnx.GraphProto
    folder: Path = field(default_factory=Path)

    @cached_property
    def nodes(self) -> tuple[tuple[str, onnx.NodeProto], ...]:
        return tuple(every_node(self.graph))

    @cached_property
    def by_name(self) -> dict[str, onnx.NodeProto]:
        return dict(self.nodes)

    @cached_property
    def producers(self) -> dict[str, onnx.NodeProto]:
        return {out: node for _, node in self.nodes for out in node.output if out}

    @cached_property
    def initialisers(self) -> dict[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self.graph.initializer}

    @cached_property
    def inputs(self) -> dict[str, Any]:
        return declared_shapes(self.graph)

    @cached_property
    def types(self) -> dict[str, str]:
        return {i.name: ELEMENT_TYPES.get(i.type.tensor_type.elem_type, "unknown") for i in self.graph.input}

    @cached_property
    def _reached_inputs(self) -> dict[str, frozenset[str]]:
        return {name: frozenset((name,)) for name in self.inputs}

    def reached(self, value: str) -> frozenset[str]:
        """The model's inputs whose data the value depends on."""
        inputs_of, waiting, begun = self._reached_inputs, [value], set[str]()
        while waiting:
            name = waiting[-1]
            node = self.producers.get(name)
            before = list(reads(node)) if node is not None and node.op_type not in STATIC else []
            new = [x for x in before if x not in inputs_of and x not in begun]
            if name not in inputs_of and new and name not in begun:
                begun.add(name)
                waiting += new
                continue
            waiting.pop()
            if name not in inputs_of:
                inputs_of[name] = frozenset[str]().union(*(inputs_of.get(x, frozenset()) for x in before))
        return inputs_of[value]

    @cached_property
    def sizes(self) -> dict[str, tuple[str, str]]:
        """The values that a node takes for sizes, or computes them of by moving, adding and multiplying; and a node of
        which that is so, with its operator."""
        takers: dict[str, tuple[str, str]] = {}
        for name, node, waiting in self._size_takers():
            while waiting:
                value = waiting.pop()
                if value not in takers:
                    takers[value] = (name, node.op_type)
                    waiting += self._made_of(value)
        return takers

    def unbounded(self) -> list[tuple[str, str, str]]:
        """Sizes that depend on data and that nothing seems to bound: the value, and who takes it for one."""
        takers: dict[str, tuple[str, str]] = {}
        seen: dict[str, bool] = {}
        for name, node, waiting in self._size_takers():
            while waiting:
                value = waiting.pop()
                before = self.producers.get(value)
                if before is None or self._seems_bounded(value, seen) or not self.reached(value):
                    continue
                if before.op_type == "Cast" or not (sources := self._made_of(value)):
                    takers.setdefault(value, (name, node.op_type))
                else:
                    waiting += sources
        return [(value, *place) for value, place in takers.items()]

    def _size_takers(self) -> Iterator[tuple[str, onnx.NodeProto, list[str]]]:
        """The nodes that make tensors of sizes, and these."""
        for name, node in self.nodes:
            if sizes := row_of(node).sizes:
                yield name, node, [node.input[k] for k in sizes if k < len(node.input) and node.input[k]]

    def _made_of(self, value: str) -> list[str]:
        """What a size is made of by moving, adding and multiplying."""
        node = self.producers.get(value)
        if node is None:
            return []
        row = row_of(node)
        return [x for x in node.input if x] if row.scalar in ARITHMETIC else row.held(node.input)

    def _seems_bounded(self, value: str, seen: dict[str, bool], depth: int = 0) -> bool:
        if value in seen or depth > DEEPEST:
            return seen.get(value, False)
        seen[value] = False
        node = self.producers.get(value)
        if node is None or node.op_type in ("Constant", *STATIC):
            seen[value] = value not in self.inputs
            return seen[value]
        row = row_of(node)
        before = row.held(node.input) or [x for x in node.input if x]
        if node.op_type == "Clip" and (len(node.input) > 2 or any(a.name == "max" for a in node.attribute)):
            seen[value] = True
        elif callable(row.interval) and node.op_type not in ("ArgMax", "ArgMin"):
            every = any if node.op_type == "Min" else all
            seen[value] = every(self._seems_bounded(x, seen, depth + 1) for x in before)
        else:
            seen[value] = row.interval is not None
        return seen[value]

    def is_small(self, name: str) -> bool:
        """Whether an input has few numbers, whatever its free dimensions."""
        dims = self.inputs[name]
        return dims is not None and all(isinstance(d, int) for d in dims) and prod(dims) <= MOST_STEERING

    def steering(self) -> tuple[Steering, ...]:
        """The inputs that look like steering constants, in the model's order."""
        places: dict[str, list[tuple[str, str, str]]] = {}
        for name, node in self.nodes:
            for k, what in row_of(node).steers.items():
                for x in self.reached(node.input[k]) if k < len(node.input) and node.input[k] else ():
                    if self.is_small(x):
                        places.setdefault(x, []).append((name, node.op_type, what))
        return tuple(
            Steering(name, self.types[name], tuple(self.inputs[name]), tuple(places[name]))
            for name in self.inputs
            if name in places
        )

    def advice(self, value: str) -> str:
        """How a value becomes known when compiling, as the end of a sentence; empty where there is nothing to say."""
        inputs = sorted(self.reached(value))
        if inputs and all(map(self.is_small, inputs)):
            return "; it would be with " + " ".join(f"--constant {name}=VALUE" for name in inputs)
        return f"; it depends on the data of {', '.join(map(repr, inputs))}" if inputs else ""


def advised(uses: Uses, unsupported: Iterable[Unsupported]) -> list[Unsupported]:
    """What is unsupported for steering that is not known, with the flags that would make it known."""
    result: list[Unsupported] = []
    for refused in unsupported:
        nodes = uses.by_name
        node = nodes.get(refused.node)
        if node is not None and node.op_type == refused.op and not refused.domain:
            values = [node.input[k] for k in row_of(node).steers if k < len(node.input) and node.input[k]]
            text = next((text for text in map(uses.advice, values) if text), "")
            refused = refused if refused.reason.endswith(text) else replace(refused, reason=refused.reason + text)
        result.append(refused)
    return result


# --- inputs that become indices -------------------------------------------------------------------------------------


def check_named(uses: Uses, states: Mapping[str, str], bounds: Mapping[str, int]) -> None:
    """Raises ModelError for a name that is none of the model's inputs, outputs and values."""
    outputs, values = {o.name for o in uses.graph.output}, {*uses.inputs, *uses.producers}
    flags = [(f"--state {a}={b}", a in uses.inputs and b in outputs, "input and output") for a, b in states.items()]
    flags += [(f"--bound {name}={most}", name in values, "value") for name, most in bounds.items()]
    for flag, exists, what in flags:
        if not exists:
            raise ModelError(f"{flag} names no {what} of the model")


def read_uses(path: str | Path) -> Uses:
    """Raises ModelError if the file is no model."""
    return Uses(read_outline(path).graph, Path(path).parent)


def index_spans(uses: Uses, claimed: Iterable[tuple[str, Span]] = ()) -> dict[str, tuple[Span, ...]]:
    """Where the numbers of each input that becomes indices have to lie: `claimed` of the model's values, and what
    Gather and GatherElements read of inputs and constants, handed back through what hands numbers through, or adds a
    constant. Nothing is found through what computes otherwise."""
    spans: dict[str, tuple[Span, ...]] = {}
    for value, span in (*claimed, *_tables(uses), *_kept_lengths(uses), *_limits(uses)):
        for name, handed_span in _handed_back(uses, value, span):
            spans[name] = (*spans.get(name, ()), handed_span)
    return spans


def _tables(uses: Uses) -> Iterator[tuple[str, Span]]:
    shapes = {x: tuple(d) for x, d in uses.inputs.items() if d is not None and all(isinstance(n, int) for n in d)}
    shapes |= {t.name: tuple(t.dims) for t in uses.graph.initializer}
    for _, node in uses.nodes:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                shapes[node.output[0]] = tuple(attribute.t.dims)
    for _, node in uses.nodes:
        shape = shapes.get(node.input[0]) if node.op_type in ("Gather", "GatherElements") else None
        if shape and len(node.input) > 1:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            if -len(shape) <= axis < len(shape):
                yield node.input[1], Span(None, -shape[axis], shape[axis] - 1)


def _kept_lengths(uses: Uses) -> Iterator[tuple[str, Span]]:
    """Sequences whose keys GroupQueryAttention keeps are as long as the longest, whose length is a constant."""
    for _, node in uses.nodes:
        if node.op_type == "GroupQueryAttention" and len(node.input) > 6:
            total = _constant(uses, node.input[6])
            if total is not None and total.size == 1:
                yield node.input[5], Span(None, int(total.item()) - 1, int(total.item()) - 1)


def _limits(uses: Uses) -> Iterator[tuple[str, Span]]:
    """How many boxes are asked of NonMaxSuppression, and how much they may overlap."""
    for node in (node for _, node in uses.nodes if node.op_type == "NonMaxSuppression"):
        yield from zip(node.input[2:4], (Span(None, 1, SOME_BOXES), Span(None, 0, 1)), strict=False)


def _handed_back(uses: Uses, value: str, span: Span) -> Iterator[tuple[str, Span]]:
    waiting, seen = [(value, span)], {value}
    while waiting:
        name, own_span = waiting.pop()
        if name in uses.inputs:
            yield name, own_span
        elif (node := uses.producers.get(name)) is not None:
            new = [(x, s) for x, s in _before(uses, node, own_span) if x not in seen]
            seen.update(x for x, _ in new)
            waiting += new


def _before(uses: Uses, node: onnx.NodeProto, span: Span) -> list[tuple[str, Span]]:
    """Where the inputs of a node may lie for its result to lie in the span."""
    whole = replace(span, column=None)
    if node.op_type == "Concat" and span.column is not None and span.column < len(node.input):
        return [(node.input[span.column], whole)]  # coordinates, one beside the other
    if held_inputs := row_of(node).held(node.input):
        kept = span if node.op_type in ("Cast", "Identity") else whole
        return [(x, kept) for x in held_inputs]
    if node.op_type not in ("Add", "Sub", "Mul") or len(node.input) != 2:
        return []
    a, b = node.input
    first, second = _constant(uses, a), _constant(uses, b)
    if first is None and second is None:
        return [(x, Span(None, 0, max(span.high, 0) // 2)) for x in (a, b)] if node.op_type == "Add" else []
    if second is None and node.op_type != "Sub":
        a, b, first, second = b, a, second, first
    if second is None or not second.size:
        return []
    least, most = int(second.min()), int(second.max())
    if node.op_type == "Mul":
        return [(a, Span(None, -(-span.low // most), span.high // most))] if least == most > 0 else []
    less, more = (least, most) if node.op_type == "Add" else (-most, -least)
    return [(a, Span(None, span.low - less, span.high - more))]


def not_negative(uses: Uses) -> frozenset[str]:
    """The inputs of which the model takes logarithms or roots: magnitudes of a spectrum, for one. They are found
    through what hands numbers through, and what adds or multiplies by a constant."""
    waiting = [node.input[0] for _, node in uses.nodes if _refuses_negative(uses, node)]
    seen = set(waiting)
    while waiting:
        node = uses.producers.get(waiting.pop())
        if node is None:
            continue
        before = row_of(node).held(node.input)
        if node.op_type in ("Add", "Mul", "Div") and any(held(uses, x) is not None for x in node.input):
            before = [x for x in node.input if held(uses, x) is None]
        new = [x for x in dict.fromkeys(before) if x and x not in seen]
        seen.update(new)
        waiting += new
    return frozenset(seen & uses.inputs.keys())


def _refuses_negative(uses: Uses, node: onnx.NodeProto) -> bool:
    """Whether the node gives numbers for what is not negative alone."""
    if node.op_type != "Pow":
        return node.op_type in ("Log", "Sqrt")
    power = held(uses, node.input[1])
    return power is not None and bool((power != np.floor(power)).any())


def _constant(uses: Uses, name: str) -> NDArray[Any] | None:
    """Whole numbers that the model holds; None for what it computes."""
    array = held(uses, name)
    return array if array is not None and array.dtype.kind in "iu" else None


def held(uses: Uses, name: str) -> NDArray[Any] | None:
    """Numbers that the model holds; None for what it computes, and for what is large."""
    tensor, node = uses.initialisers.get(name), uses.producers.get(name)
    if node is not None and node.op_type == "Constant":
        tensor = next((a.t for a in node.attribute if a.name == "value"), None)
    if tensor is None or prod(tensor.dims) > MOST_OFFSET:
        return None
    try:
        array = tensor_array(tensor, uses.folder)
    except ModelError:
        return None
    return np.asarray(array) if array.dtype.kind in "iuf" else None
