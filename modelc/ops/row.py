"""What is known of an operator by its name: a row for each, which its entry in the library says (operator.py), or its
place in the importer where other operators take its place."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

from modelc.ir.graph import Node, Value
from modelc.ops.interval import ANY, Interval, union

Inputs = tuple[Value | None, ...]
Intervals = Callable[[Node, Inputs, Sequence[Interval]], Interval]
EVERY = range(1 << 31)  # inputs


@dataclass(frozen=True)
class Row:
    """One operator. Inputs are said by position.

    steers      inputs that have to be known when compiling, and what of the operator they say
    sizes       inputs that say how large a result is
    addresses   inputs by which it addresses, or counts
    numbers     what its results hold of the numbers of its first input: it `moves` all of them, `selects` some by their
                places, or `chooses` by their order; or it `joins` those of all inputs. What moves, selects or chooses
                does so of bytes that stand for numbers as well
    holds       inputs of which its results hold numbers as they are, and no others; those of `numbers` need not say it
    elementwise whether the axes of its result are those of its inputs
    partly      whether it leaves the positive numbers as they are, or the whole ones
    scalar      the scalar operation that it is
    interval    where its results lie, from where its operands lie
    bends       numbers of its first input at which its result bends
    wraps       whether every engine lets whole numbers wrap that are too large for it
    """

    name: str
    _: KW_ONLY
    steers: Mapping[int, str] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    addresses: tuple[int, ...] = ()
    numbers: Literal["", "moves", "selects", "chooses", "joins"] = ""
    holds: Container[int] = ()
    elementwise: bool = False
    partly: bool = False
    scalar: str = ""
    interval: Interval | Intervals | None = None
    bends: tuple[float, ...] = ()
    wraps: bool = False

    def __post_init__(self) -> None:
        if self.numbers in ("moves", "selects"):
            object.__setattr__(self, "holds", (0,))
        if self.numbers == "joins":
            object.__setattr__(self, "holds", EVERY)
        if self.numbers and self.interval is None:
            object.__setattr__(self, "interval", _joined if self.numbers == "joins" else first)

    def held(self, inputs: Sequence[str]) -> list[str]:
        """Those of a node's inputs of which its results hold numbers."""
        return [x for k, x in enumerate(inputs) if x and k in self.holds]

    def bounded(self, node: Node, inputs: Inputs, operands: Sequence[Interval]) -> Interval:
        """The least and the greatest that an element of its results can be."""
        if callable(self.interval):
            return self.interval(node, inputs, operands)
        return ANY if self.interval is None else self.interval


def first(node: Node, inputs: Inputs, operands: Sequence[Interval]) -> Interval:
    return operands[0]


def _joined(node: Node, inputs: Inputs, operands: Sequence[Interval]) -> Interval:
    return union(operands)


def of_operands(interval: Callable[..., Interval]) -> Intervals:
    """What the operands say alone."""
    return lambda node, inputs, operands: interval(*operands)
