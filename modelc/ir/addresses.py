"""Addresses that come from data: what the data has to be, and the proof that this is enough.

An operator says what an index that it reads may be: `x0[claim(x1[i], -5, 4)]`. Where a Task is bound to values these
claims leave its Blocks and become Guards, which a run checks before the Task's kernel touches memory. What is left is
proved for every Task: an index that contains a Load lies inside its dimension for all data that the Guards let pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from modelc.errors import InvalidIR
from modelc.ir.block import Block, OpaqueBlock, Task
from modelc.ir.expr import INTEGERS, Const, Expr, Load, Op, Var, dtype_of, loads, op, walk
from modelc.ir.scalar import OPERATIONS

Limits = tuple[int, int]  # least and greatest, both included
Known = Callable[[str], NDArray[Any] | None]  # the data of a buffer, if it is constant
Form = dict[Expr, int]  # sum of integer multiples of atoms; the constant stands under ONE
ONE = Const(1)
UNKNOWN: Limits = (-(2**63), 2**63 - 1)
NEVER: Limits = (1, 0)  # of what is not computed for any data


@dataclass(frozen=True)
class Guard:
    """What has to hold of a buffer of whole numbers before a Task reads it: all of them, or those in `column` of the
    last dimension, lie in [low, high]. `operator` is who says so."""

    buffer: str
    column: int | None
    low: int
    high: int
    operator: str = ""

    def __str__(self) -> str:
        place = self.buffer if self.column is None else f"{self.buffer}[..., {self.column}]"
        return f"{self.low} <= {place} <= {self.high}"


def claim(index: Expr, low: int, high: int) -> Expr:
    """The index, said to lie in [low, high]; `index` is a Load."""
    return op("claim", index, low, high)


def claims(block: Block, operator: str = "") -> tuple[Guard, ...]:
    """What the Block says of the data that it addresses by."""
    return tuple(dict.fromkeys(_guard(e, operator) for e in _expressions(block) if _is_claim(e)))


def addressing(block: Block) -> frozenset[str]:
    """The buffers that the Block makes claims about: to be checked they must be stored before it runs."""
    return frozenset(guard.buffer for guard in claims(block))


def without_claims(block: Block) -> Block:
    return block.mapped(lambda e: e.args[0] if isinstance(e, Op) and _is_claim(e) else None)


def _expressions(block: Block) -> Iterable[Expr]:
    return (e for root in (*block.writes, *block.body, *block.where) for e in walk(root))


def _is_claim(e: Expr) -> bool:
    return isinstance(e, Op) and e.name == "claim"


def _guard(e: Expr, operator: str) -> Guard:
    assert isinstance(e, Op)
    index, low, high = e.args
    if not isinstance(index, Load) or not isinstance(low, Const) or not isinstance(high, Const):
        raise InvalidIR(f"{e}: only what is loaded can be checked, against constants")
    return Guard(index.buffer, _column(index), int(low.value), int(high.value), operator)


def _column(read: Load) -> int | None:
    """Which of the last dimension is read, if it is one."""
    last = read.indices[-1] if read.indices else None
    return int(last.value) if isinstance(last, Const) else None


# --- the proof ------------------------------------------------------------------------------------------------------


def unproved(task: Task, guards: Iterable[Guard], data_of: Known) -> str | None:
    """An access of the Task that data could lead outside its buffer, in a sentence; None if there is none."""
    for block in task.blocks:
        if isinstance(block, OpaqueBlock):
            continue
        prover = _Prover(task, block, tuple(guards), data_of)
        for access in (e for e in _expressions(block) if isinstance(e, Load)):
            shape = task.buffer(access.buffer).shape
            for index, extent in zip(access.indices, shape, strict=True):
                low, high = prover.limits(index) if loads(index) else (0, extent - 1)
                if low < 0 or high >= extent:
                    values = "anything" if (low, high) == UNKNOWN else f"{low} to {high}"
                    place = f"block {block.name}: the index {index} of {access.buffer}"
                    return f"{place} can be {values}; the dimension has {extent}"
    return None


@dataclass(frozen=True)
class _Prover:
    """Limits of whole-number expressions of one Block."""

    task: Task
    block: Block
    guards: tuple[Guard, ...]
    data_of: Known

    def limits(self, e: Expr, facts: tuple[Form, ...] = ()) -> Limits:
        """The least and the greatest that `e` can be where each of `facts` is not negative."""
        form = _form(e)
        low = high = form.get(ONE, 0)
        for atom, c in form.items():
            if atom == ONE:
                continue
            least, greatest = _narrowed({atom: 1}, self._atom(atom, facts), facts)
            if least > greatest:
                return NEVER
            low, high = low + min(c * least, c * greatest), high + max(c * least, c * greatest)
        if low < UNKNOWN[0] or high > UNKNOWN[1]:  # it may wrap
            low, high = UNKNOWN
        return _narrowed(form, (low, high), facts)

    def _atom(self, e: Expr, facts: tuple[Form, ...]) -> Limits:
        if isinstance(e, Var):
            return 0, self.block.ranges[e.name] - 1
        if isinstance(e, Load):
            return self._loaded(e)
        assert isinstance(e, Op)
        if e.name == "select":
            condition, then, otherwise = e.args
            sides = [
                self.limits(then, (*facts, *self._facts(condition, True))),
                self.limits(otherwise, (*facts, *self._facts(condition, False))),
            ]
            sides = [side for side in sides if side != NEVER] or [NEVER]
            return min(low for low, _ in sides), max(high for _, high in sides)
        if e.name in ("min", "max") and self._whole(e):
            pick = min if e.name == "min" else max
            sides = [self.limits(a, facts) for a in e.args]
            if NEVER in sides:
                return NEVER
            return pick(low for low, _ in sides), pick(high for _, high in sides)
        if e.name == "cast" and e.dtype == "int64" and self._whole(e.args[0]):
            return self.limits(e.args[0], facts)
        if e.name in ("mod", "floordiv") and isinstance(e.args[1], Const) and self._whole(e) and e.args[1].value > 0:
            by, (low, high) = int(e.args[1].value), self.limits(e.args[0], facts)
            if low > high:
                return NEVER
            if e.name == "floordiv":
                return low // by, high // by
            return (low % by, high % by) if low // by == high // by else (0, by - 1)
        return UNKNOWN

    def _loaded(self, e: Load) -> Limits:
        column, data = _column(e), self.data_of(e.buffer)
        if data is not None and data.dtype.kind in "iu":
            part = data if column is None or data.ndim != len(e.indices) else data[..., column]
            return (int(part.min()), int(part.max())) if part.size else NEVER
        ranges = [(g.low, g.high) for g in self.guards if g.buffer == e.buffer and g.column in (None, column)]
        return (max(low for low, _ in ranges), min(high for _, high in ranges)) if ranges else UNKNOWN

    def _facts(self, condition: Expr, holds: bool) -> tuple[Form, ...]:
        """Forms that are not negative where the condition holds, or where it does not."""
        if (
            not isinstance(condition, Op)
            or not OPERATIONS[condition.name].otherwise
            or not all(map(self._whole, condition.args))
        ):
            return ()
        a, b = (_form(x) for x in condition.args)
        name = condition.name if holds else OPERATIONS[condition.name].otherwise
        more, less = (b, a) if name in ("lt", "le") else (a, b)
        return (_sum(more, less, -1, -1 if name in ("lt", "gt") else 0),)

    def _whole(self, e: Expr) -> bool:
        return dtype_of(e, self.task.dtypes) in INTEGERS


def _narrowed(form: Form, limits: Limits, facts: tuple[Form, ...]) -> Limits:
    """`limits` of `form`, narrowed by facts that differ from it or from its negation by a constant."""
    low, high = limits
    for fact in facts:
        above, below = _sum(form, fact, -1), _sum(form, fact, 1)
        if above.keys() <= {ONE}:
            low = max(low, above.get(ONE, 0))
        if below.keys() <= {ONE}:
            high = min(high, below.get(ONE, 0))
    return (low, high) if low <= high else NEVER


def _form(e: Expr) -> Form:
    """The linear form of a whole-number expression over Vars, Loads and whatever is no sum or multiple."""
    if isinstance(e, Const):
        return {ONE: int(e.value)}
    if isinstance(e, Op) and e.name in ("add", "sub"):
        return _sum(_form(e.args[0]), _form(e.args[1]), 1 if e.name == "add" else -1)
    if isinstance(e, Op) and e.name == "mul" and isinstance(e.args[1], Const):
        return _sum({}, _form(e.args[0]), int(e.args[1].value))
    return {e: 1}


def _sum(a: Form, b: Form, scale: int, more: int = 0) -> Form:
    """a + scale * b + more"""
    atoms = {*a, *b, ONE}
    coefficients = {x: a.get(x, 0) + scale * b.get(x, 0) + (more if x == ONE else 0) for x in atoms}
    return {x: c for x, c in coefficients.items() if c}


__all__ = ["Guard", "Limits", "addressing", "claim", "claims", "unproved", "without_claims"]
