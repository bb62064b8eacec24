"""Where the numbers of an input go: the nodes that read them as they are, moved, or scaled and shifted by one
number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import frexp, isfinite

import numpy as np
import onnx

from modelc.frontend.control.structure import row_of
from modelc.frontend.load.read import ELEMENT_TYPES
from modelc.frontend.steering.uses import Uses, held

Consumers = Mapping[str, Sequence[tuple[onnx.NodeProto, int]]]


@dataclass(frozen=True)
class Reader:
    """Input number `position` of `node` is scale * x + offset, where x are the numbers of an input of the model:
    without any rounding where `exact`, along the axes of the model's input where `axes_kept`."""

    node: onnx.NodeProto
    position: int
    scale: float = 1.0
    offset: float = 0.0
    exact: bool = True
    axes_kept: bool = True

    def original(self, number: float) -> float:
        """The number of the model's input that the node reads as `number`."""
        return (number - self.offset) / self.scale


def consumers_of(uses: Uses) -> Consumers:
    """The nodes that read each value, with the position among their inputs."""
    consumers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for _, node in uses.nodes:
        for position, value in enumerate(node.input):
            if value:
                consumers.setdefault(value, []).append((node, position))
    return consumers


def readers(uses: Uses, consumers: Consumers, name: str) -> Iterator[Reader]:
    """Every node that the numbers of input `name` reach; each value is followed once."""
    followed = {name}
    waiting = [Reader(node, position) for node, position in consumers.get(name, ())]
    while waiting:
        reader = waiting.pop()
        yield reader
        onward = _onward(uses, reader)
        if onward is None:
            continue
        for value in reader.node.output:
            if value and value not in followed:
                followed.add(value)
                waiting += [replace(onward, node=node, position=k) for node, k in consumers.get(value, ())]


def target_type(node: onnx.NodeProto) -> str:
    """The element type that a Cast gives."""
    kind: str = ELEMENT_TYPES.get(next((a.i for a in node.attribute if a.name == "to"), 0), "unknown")
    return kind


def number(uses: Uses, value: str) -> float | None:
    """The one finite number that every element of a constant is."""
    array = held(uses, value) if value else None
    if array is None or not array.size or (array != array.flat[0]).any():
        return None
    return float(array.flat[0]) if isfinite(float(array.flat[0])) else None


def is_power_of_two(scale: float) -> bool:
    return scale > 0 and frexp(scale)[0] == 0.5


def _onward(uses: Uses, reader: Reader) -> Reader | None:
    """What is known of the node's results; None where they are something else than a scale and a shift."""
    node, row = reader.node, row_of(reader.node)
    op, along_axes = row.name, reader.axes_kept and row.elementwise
    if op == "Cast":
        real = "float" in target_type(node)
        return replace(reader, exact=False) if real else None
    if op == "Neg":
        return replace(reader, scale=-reader.scale, offset=-reader.offset, axes_kept=along_axes)
    if reader.position in row.holds or (row.partly and reader.position == 0):
        return replace(reader, axes_kept=along_axes)
    if op not in ("Add", "Sub", "Mul", "Div") or len(node.input) != 2:
        return None
    operand = number(uses, node.input[1 - reader.position])
    if operand is None:
        return None
    if op in ("Add", "Sub"):
        sign = -1.0 if op == "Sub" and reader.position == 1 else 1.0
        shift = -operand if op == "Sub" and reader.position == 0 else operand
        return replace(
            reader, scale=sign * reader.scale, offset=sign * reader.offset + shift, exact=False, axes_kept=along_axes
        )
    if not operand or (op == "Div" and reader.position == 1):
        return None
    factor = operand if op == "Mul" else 1 / operand
    if not isfinite(reader.scale * factor) or not reader.scale * factor:
        return None
    exact = reader.exact and is_power_of_two(abs(factor))
    return replace(
        reader, scale=reader.scale * factor, offset=reader.offset * factor, exact=exact, axes_kept=along_axes
    )


def constants(uses: Uses, value: str, most: int) -> tuple[float, ...]:
    """The different finite numbers of a constant, at most so many; none for what is computed."""
    array = held(uses, value) if value else None
    if array is None:
        return ()
    different = np.unique(array.astype(np.float64))
    return tuple(different[np.isfinite(different)][:most].tolist())
