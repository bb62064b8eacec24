"""How large the whole numbers of an input may be, by what the model computes of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx

from modelc.frontend.control.structure import is_comparison, row_of
from modelc.frontend.steering.flow import Consumers, consumers_of, number, target_type
from modelc.frontend.steering.uses import Uses
from modelc.ops.row import Row

SMALL = 8  # magnitude of numbers of both signs; without a sign they go to twice as much
MOST_SHIFT = 7
MOST_POWER = 3
LEARNED = "ai.onnx.ml"
ENDING = {"ArgMax", "ArgMin", "NonZero", "Shape", "Size"}  # whose results do not grow with the numbers
GROWING = {"Pow", "ReduceMean", "ReduceL2", "DequantizeLinear"}
BEYOND = 2  # classes of OneHot on both sides of those that there are


@dataclass(frozen=True)
class Whole:
    """What whole numbers an input may hold: `low` to `high` in ordinary samples, None where the dtype decides; numbers
    of any size where `large`; no 0 where one divides by them."""

    low: int | None = None
    high: int | None = None
    large: bool = True
    nonzero: bool = False

    def within(self, low: int, high: int) -> Whole:
        return replace(
            self,
            low=low if self.low is None else max(low, self.low),
            high=high if self.high is None else min(high, self.high),
            large=False,
        )


@dataclass(frozen=True)
class _Value:
    """A value on the way of an input's numbers: `real` behind a cast to floats, `narrow` behind one to whole numbers,
    of which large ones may become 0, `moved` as long as the numbers are the input's own."""

    name: str
    real: bool = False
    narrow: bool = False
    moved: bool = True


def wholes(uses: Uses) -> dict[str, Whole]:
    """The range of each input of whole numbers, where the model does arithmetic with it. Steering inputs, indices, and
    operands of operators outside of these tables are left out."""
    consumers = consumers_of(uses)
    ranges = {name: _whole(uses, consumers, name) for name in uses.inputs if "int" in uses.types.get(name, "")}
    return {name: allowed for name, allowed in ranges.items() if allowed is not None}


def _whole(uses: Uses, consumers: Consumers, name: str) -> Whole | None:
    allowed, reached, pending = Whole(), {_Value(name)}, [_Value(name)]
    while pending:
        value = pending.pop()
        for node, position in consumers.get(value.name, ()):
            narrowed = _allowed(uses, node, position, value, allowed)
            if narrowed is None:
                return None
            allowed = narrowed
            results = [result for result in _onward(node, position, value) if result not in reached]
            reached.update(results)
            pending += results
    return allowed


def _allowed(uses: Uses, node: onnx.NodeProto, position: int, value: _Value, allowed: Whole) -> Whole | None:
    """What is left of the numbers that are allowed where a node reads them; None where nothing is known."""
    row = row_of(node)
    op = row.name
    if node.domain == LEARNED:
        return replace(allowed, large=False)
    if not op or position in row.addresses or position in row.steers:
        return None
    if op == "OneHot" and position == 0:
        depth = number(uses, node.input[1])
        if depth is None or not value.moved:
            return None
        return allowed.within(-int(depth) - BEYOND, int(depth) - 1 + BEYOND)
    if op in ("Div", "Mod", "Pow", "BitShift") and position == 1:
        if not value.moved:
            return allowed if value.real else None
        if op in ("Div", "Mod"):
            return replace(allowed, nonzero=True, large=allowed.large and not value.narrow)
        return allowed.within(0, MOST_POWER if op == "Pow" else MOST_SHIFT)
    if value.real:
        return allowed
    if op == "Cast":
        target = target_type(node)
        if "float" in target:
            return replace(allowed, large=False)
        return allowed if target == "bool" or "int" in target else None
    if op in GROWING:
        return replace(allowed, large=False)
    return allowed if row.holds or row.wraps or _ends(row) else None


def _ends(row: Row) -> bool:
    """Whether its results do not grow with the numbers."""
    return row.name in ENDING or is_comparison(row)


def _onward(node: onnx.NodeProto, position: int, value: _Value) -> Iterator[_Value]:
    """The results of a node that grow with the numbers."""
    row = row_of(node)
    op = row.name
    if not op or _ends(row):
        return
    real, narrow = value.real, value.narrow
    if op == "Cast":
        target = target_type(node)
        if target == "bool":
            return
        real, narrow = "float" in target, narrow or "int" in target
    elif op == "DequantizeLinear":
        real = True
    elif real and not (row.holds or row.scalar or callable(row.interval)):
        return
    for result in node.output[: 1 if op in ("TopK", "Unique") else None]:
        if result:
            yield _Value(result, real, narrow, value.moved and position in row.holds)
