"""What is known, while a model is imported, of sizes that depend on data.

A value's shape has the most that there can be; `counts` says along which axes, and which int64 of the Graph says how
much there is: elements beyond it are of no use. Whole numbers among which such sizes are (what Shape gives) have
`elements`: their numbers, with a mark for each size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import ModelError
from modelc.ir.expr import DTYPES
from modelc.ir.graph import Node, Value
from modelc.ops import operator_of
from modelc.ops.counts import carried

if TYPE_CHECKING:
    from modelc.frontend.building.build import Builder, OnnxNode

Array = NDArray[Any]
_FIRST_MARK = 1 << 52  # no dimension is as large


@dataclass
class Sizes:
    counts: dict[str, dict[int, str]] = field(default_factory=dict)  # of a value, by axis
    bounds: dict[str, int] = field(default_factory=dict)  # of every count the most that it can be
    elements: dict[str, Array] = field(default_factory=dict)
    made: dict[tuple[object, ...], tuple[str, ...]] = field(default_factory=dict)  # what was found already
    rests: dict[str, tuple[int, str]] = field(default_factory=dict)  # (number, count): what the count leaves of it
    above: dict[str, frozenset[str]] = field(default_factory=dict)  # of the least of several counts: those
    copies: dict[str, str] = field(default_factory=dict)  # of what a value is a copy, element by element

    def of(self, value: str) -> Mapping[int, str]:
        return self.counts.get(value, {})

    def give(self, value: str, counts: Mapping[int, str]) -> None:
        """Says which counts the value has."""
        self.counts.pop(value, None)
        if counts:
            self.counts[value] = dict(counts)

    def mark(self, count: str) -> int:
        return _FIRST_MARK + list(self.bounds).index(count)

    def marked(self, number: int) -> str | None:
        """The count that `number` stands for."""
        return list(self.bounds)[number - _FIRST_MARK] if number >= _FIRST_MARK else None

    def bounded(self, elements: Array) -> Array:
        """The numbers with the most that can be in place of marks."""
        most = [self.bounds[c] if (c := self.marked(int(x))) else int(x) for x in elements.reshape(-1)]
        return np.asarray(most, np.int64).reshape(elements.shape)


def regrouped(source: tuple[int, ...], target: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """The axes of two shapes of as many elements, in groups of equal product, as small as can be."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        own, other = list[int](), list[int]()
        while True:
            a, b = prod(source[k] for k in own), prod(target[k] for k in other)
            if own and other and a == b:
                break
            if (a <= b and i < len(source)) or j == len(target):
                own.append(i)
                i += 1
            else:
                other.append(j)
                j += 1
            if i == len(source) and j == len(target):
                break
        groups.append((own, other))
    return groups


# --- numbers of the Graph -----------------------------------------------------------------------------------------


def count_of(b: Builder, n: OnnxNode, op: str, first: str, second: str | int) -> str:
    """A count that is computed of another, and its bound: of Add, Sub, Mul, Div, Min or Max."""
    sizes = b.sizes
    if op == "Min":
        if first == second or second in sizes.above.get(first, ()):
            return first
        if isinstance(second, int) and second >= sizes.bounds[first]:
            return first
        if isinstance(second, str) and first in sizes.above.get(second, ()):
            return second
    key = (op, first, second)
    if key not in sizes.made:
        other = sizes.bounds[second] if isinstance(second, str) else second
        operand = (
            second if isinstance(second, str) else b.constant(np.asarray(second, np.int64), f"{first}_{op.lower()}")
        )
        bound = sizes.bounds[first]
        most = {"Add": bound + other, "Sub": bound, "Mul": bound * other, "Min": min(bound, other)}
        most |= {"Max": max(bound, other), "Div": bound // max(other, 1)}
        made = b.emit(n, op, (first, operand), outputs=(b.fresh(f"{first}_{op.lower()}"),))
        sizes.bounds[made] = most[op]
        if op == "Min":
            operands = [x for x in (first, second) if isinstance(x, str)]
            sizes.above[made] = frozenset(operands).union(*(sizes.above.get(x, ()) for x in operands))
        sizes.made[key] = (made,)
    return sizes.made[key][0]


def less(b: Builder, n: OnnxNode, count: str, by: int) -> str:
    """So many fewer, and none at least."""
    return count_of(b, n, "Max", count_of(b, n, "Sub", count, by), 0) if by else count


def rest_of(b: Builder, n: OnnxNode, total: int, count: str) -> str:
    """How many are left of `total`, which is no fewer than there can be of the count."""
    key = ("rest", total, count)
    if key not in b.sizes.made:
        made = b.emit(
            n, "Sub", (b.constant(np.int64(total), f"{count}_all"), count), outputs=(b.fresh(f"{count}_rest"),)
        )
        b.sizes.bounds[made] = total
        b.sizes.rests[made] = (total, count)
        b.sizes.made[key] = (made,)
    return b.sizes.made[key][0]


def there(b: Builder, n: OnnxNode, count: str, extent: int, rank: int, axis: int) -> str:
    """Which of `extent` elements are there: bools along `axis` of `rank` dimensions."""
    key = ("there", count, extent, rank, axis)
    if key not in b.sizes.made:
        shape = [extent if k == axis else 1 for k in range(rank)]
        numbers = b.constant(np.arange(extent, dtype=np.int64).reshape(shape), f"{count}_numbers")
        b.sizes.made[key] = (b.emit(n, "Less", (numbers, count), outputs=(b.fresh(f"{count}_there"),)),)
    return b.sizes.made[key][0]


def whole(b: Builder, n: OnnxNode, value: str, axes: Collection[int] | None = None) -> str:
    """The value as if all of it along `axes` were there: for who does not take what is not."""
    counts = b.sizes.of(value)
    if not any(axes is None or k in axes for k in counts):
        return value
    alias = b.emit(n, "Identity", (value,), outputs=(b.fresh(f"{value}_whole"),))
    b.sizes.give(alias, {k: c for k, c in counts.items() if axes is not None and k not in axes})
    return alias


def masked(b: Builder, n: OnnxNode, value: str, axes: Collection[int], neutral: Any) -> str:
    """The value with `neutral` in place of what is not there along `axes`: after that all of it counts."""
    counts, shape = dict(b.sizes.of(value)), b.shape(value)
    result = whole(b, n, value)
    for axis in axes:
        if axis not in counts:
            continue
        mask = there(b, n, counts[axis], shape[axis], len(shape), axis)
        other = b.constant(np.asarray(neutral).astype(DTYPES[b.value(value).dtype]), f"{value}_neutral")
        result = b.emit(n, "Where", (mask, result, other), outputs=(b.fresh(f"{value}_masked"),))
    b.sizes.give(result, {k: c for k, c in counts.items() if k not in axes})
    return result


def refuse(n: OnnxNode, value: str, axis: int, why: str) -> ModelError:
    return n.fail(
        f"dimension {axis} of {value!r} has a size that depends on data, and {why}; cut the model before this node"
    )


# --- through a node -----------------------------------------------------------------------------------------------


def follow(b: Builder, n: OnnxNode, node: Node, values: Sequence[Value | None]) -> None:
    """Gives the outputs of a Node that was added the counts that they have by its inputs'. Raises ModelError."""
    counts = [b.sizes.of(x) for x in node.inputs]
    if node.op == "Reshape":
        b.sizes.give(node.outputs[0], _regrouped_counts(b, n, node))
        return
    if node.bodies:
        return  # who has imported the bodies knows (merged.py, carried.py)
    outputs = tuple(b.value(x) if x else None for x in node.outputs)
    definition = operator_of(node).define(node, tuple(values), outputs)
    for name, by_axis in zip(node.outputs, carried(node, definition, tuple(values), outputs, counts), strict=True):
        if name:
            b.sizes.give(name, by_axis)


def _regrouped_counts(b: Builder, n: OnnxNode, node: Node) -> dict[int, str]:
    """A dimension that comes first in its group is first in that of the result, times or divided by what follows."""
    x, y = node.inputs[0], node.outputs[0]
    source, target, result = b.shape(x), b.shape(y), dict[int, str]()
    for own, other in regrouped(source, target):
        counts = {k: b.sizes.of(x)[k] for k in own if k in b.sizes.of(x)}
        if not counts:
            continue
        axis = min(counts)
        inner = prod(source[k] for k in own if k > axis)
        first = next((k for k in other if target[k] > 1), other[0])
        others = prod(target[k] for k in other if k > first)
        if len(counts) > 1 or prod(source[k] for k in own if k < axis) > 1:
            raise refuse(n, x, axis, "it becomes one with a dimension before it")
        if inner % others and others % inner:
            raise refuse(n, x, axis, f"{inner} elements of each become rows of {others}")
        if inner >= others:
            result[first] = count_of(b, n, "Mul", counts[axis], inner // others) if inner > others else counts[axis]
        else:
            result[first] = count_of(b, n, "Div", counts[axis], others // inner)
    return result
