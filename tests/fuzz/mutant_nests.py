"""Wrong kernels: Nests with one thing changed. A kind of change names what a compiler could get wrong:

    rectifier     a clamp or an activation is left out
    bias          an addend or a factor that is read from a buffer is left out
    mask          a condition is taken for true
    zero point    a whole number that is added is off by one
    scale         a constant is scaled by 1 + 2^-k
    border        a bound is off by one: a tap too many, or one too few, at one border
    tap           what is read lies one element beside
    stride        an index moves by one element less with every iteration
    tile          the last iteration of a loop is skipped
    operands      a difference or a quotient has its operands swapped
    accumulator   a reduction begins elsewhere than at its identity
    precision     numbers are rounded to bfloat16 on the way

Every change keeps what the kernel takes: a buffer that is not wanted any more is read and multiplied by zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from modelc.ir.expr import FLOATS, Const, Expr, Load, Op, Var, children, const, dtype_of, rewrite, show, uncast
from modelc.ir.nest import Alloc, Branch, For, Leaf, Nest, Stmt

COMPARISONS = ("lt", "le", "gt", "ge")
FUNCTIONS = ("sigmoid", "tanh", "erf", "exp", "softplus", "sqrt", "abs", "round", "floor")
SHORTENED = ("for", "unroll", "pipeline")  # of a vector loop the lanes would change
SHIFTS = (2, 17)  # of k in 1 + 2^-k
SHOWN = 60  # characters of an expression


@dataclass(frozen=True)
class Change:
    """Statement `number` of a Nest, in the order of walk(), becomes `changed`."""

    kind: str
    about: str
    number: int
    changed: Stmt


@dataclass(frozen=True)
class Edit:
    """A part of an expression and what it becomes."""

    kind: str
    before: Expr
    after: Expr

    def __str__(self) -> str:
        return f"{shown(self.before)} becomes {shown(self.after)}"


@dataclass(frozen=True)
class Scope:
    """The dtypes and shapes of all storage of a Nest, of which `parameters` come from outside, and the extents of its
    loops."""

    dtypes: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    parameters: frozenset[str]
    extents: Mapping[str, int]

    @classmethod
    def of(cls, nest: Nest) -> Scope:
        regions = (*nest.params, *nest.temporaries, *(s.region for s in nest.statements() if isinstance(s, Alloc)))
        dtypes, shapes = {r.name: r.dtype for r in regions}, {r.name: r.shape for r in regions}
        extents = {stmt.var: stmt.extent for stmt in nest.statements() if isinstance(stmt, For)}
        return cls(dtypes, shapes, frozenset(r.name for r in nest.params), extents)


def changes(nest: Nest, rng: np.random.Generator) -> list[Change]:
    """Everything that can be changed in a kernel; `rng` draws by how much."""
    scope = Scope.of(nest)
    listed: list[Change] = []
    for number, stmt in enumerate(nest.statements()):
        edits = _of_leaf(stmt, scope, rng) if isinstance(stmt, Leaf) else _of_control(stmt)
        listed += [Change(kind, about, number, wrong) for kind, about, wrong in edits]
    return listed


def changed(nest: Nest, change: Change) -> Nest:
    """The Nest with `change`."""
    numbers = iter(range(1 << 62))

    def rebuilt(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple([statement(stmt) for stmt in body])

    def statement(stmt: Stmt) -> Stmt:
        if next(numbers) == change.number:
            return change.changed
        if isinstance(stmt, For):
            return replace(stmt, body=rebuilt(stmt.body))
        if isinstance(stmt, Branch):
            return replace(stmt, then=rebuilt(stmt.then), otherwise=rebuilt(stmt.otherwise))
        return stmt

    return replace(nest, phases=tuple([rebuilt(phase) for phase in nest.phases]))


def shown(e: Expr) -> str:
    text = show(e)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


# --- statements -----------------------------------------------------------------------------------------------------


def _of_control(stmt: Stmt) -> Iterator[tuple[str, str, Stmt]]:
    if isinstance(stmt, For) and stmt.tag in SHORTENED and stmt.extent > 1:
        about = f"loop {stmt.var} runs {stmt.extent - 1} times instead of {stmt.extent}"
        yield "tile", about, replace(stmt, extent=stmt.extent - 1)
    elif isinstance(stmt, Branch):
        for edit in _bounds(stmt.condition):
            yield edit.kind, str(edit), replace(stmt, condition=_edited(stmt.condition, edit))


def _of_leaf(leaf: Leaf, scope: Scope, rng: np.random.Generator) -> Iterator[tuple[str, str, Stmt]]:
    for k, body in enumerate(leaf.body):
        for edit in _of_body(body, leaf, scope, rng):
            bodies = (*leaf.body[:k], _edited(body, edit), *leaf.body[k + 1 :])
            yield edit.kind, f"in {leaf.block} {edit}", replace(leaf, body=bodies)
    for k, condition in enumerate(leaf.where):
        without = replace(leaf, where=(*leaf.where[:k], *leaf.where[k + 1 :]))
        yield "mask", f"in {leaf.block} {shown(condition)} is left out", without
        for edit in _bounds(condition):
            where = (*leaf.where[:k], _edited(condition, edit), *leaf.where[k + 1 :])
            yield edit.kind, f"in {leaf.block} {edit}", replace(leaf, where=where)
    for k, write in enumerate(leaf.writes):
        for edit in _strides(write, scope):
            writes = (*leaf.writes[:k], _edited(write, edit), *leaf.writes[k + 1 :])
            yield edit.kind, f"{leaf.block} writes where {edit}", replace(leaf, writes=writes)


# --- expressions ----------------------------------------------------------------------------------------------------


def _edited(e: Expr, edit: Edit) -> Expr:
    if edit.before is e:
        return edit.after
    return rewrite(e, lambda x: edit.after if x == edit.before else None)


def _distinct(e: Expr, inside_loads: bool) -> Iterator[Expr]:
    """Everything below `e` once, what Loads are indexed by only where that is asked for."""
    stack, seen = [e], set[int]()
    while stack:
        x = stack.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        yield x
        if inside_loads or not isinstance(x, Load):
            stack += children(x)


def _of_body(body: Expr, leaf: Leaf, scope: Scope, rng: np.random.Generator) -> Iterator[Edit]:
    for x in _distinct(body, inside_loads=False):
        if isinstance(x, Load):
            yield from _taps(x, scope)
            yield from _strides(x, scope)
        elif isinstance(x, Const):
            yield from _begun_elsewhere(x, rng) if leaf.part == "init" else _scaled(x, rng)
        elif isinstance(x, Op):
            yield from _of_operation(x, leaf, scope)
    if leaf.part != "init" and not isinstance(body, Const) and dtype_of(body, scope.dtypes) == "float32":
        yield Edit("precision", body, Op("cast", (Op("cast", (body,), "bfloat16"),), "float32"))


def _of_operation(x: Op, leaf: Leaf, scope: Scope) -> Iterator[Edit]:
    if x.name in ("max", "min"):
        for bound, value in (x.args, x.args[::-1]):
            if isinstance(bound, Const):
                yield Edit("rectifier", x, value)
    elif x.name in FUNCTIONS:
        yield Edit("rectifier", x, x.args[0])
    elif x.name == "select":
        yield Edit("mask", x, x.args[1])
    elif x.name in COMPARISONS:
        yield from _bounds(x)
    if x.name in ("sub", "div"):
        yield Edit("operands", x, Op(x.name, x.args[::-1]))
    if x.name in ("add", "sub"):
        yield from _zero_points(x)
    if x.name in ("add", "sub", "mul") and leaf.part == "assign":
        for k, operand in enumerate(x.args):
            load = uncast(operand)
            if isinstance(load, Load) and load.buffer in scope.parameters:
                yield Edit("bias", x, Op(x.name, (*x.args[:k], _neutral(x, operand, scope), *x.args[k + 1 :])))


def _neutral(x: Op, operand: Expr, scope: Scope) -> Expr:
    """What changes nothing in place of `operand`, and reads it all the same."""
    dtype = dtype_of(operand, scope.dtypes)
    nothing = Op("mul", (operand, const(0, dtype)))
    return Op("add", (nothing, const(1, dtype))) if x.name == "mul" else nothing


def _bounds(condition: Expr) -> Iterator[Edit]:
    """Comparisons of index expressions with a number, which is off by one."""
    for x in _distinct(condition, inside_loads=False):
        if isinstance(x, Op) and x.name in COMPARISONS:
            for k, side in enumerate(x.args):
                if isinstance(side, Const) and side.dtype == "int64":
                    for step in (-1, 1):
                        off = Const(int(side.value) + step)
                        yield Edit("border", x, Op(x.name, (*x.args[:k], off, *x.args[k + 1 :])))


def _zero_points(x: Op) -> Iterator[Edit]:
    for k, side in enumerate(x.args):
        if isinstance(side, Const) and side.value and isfinite(side.value) and int(side.value) == side.value:
            for step in (-1, 1):
                off = const(side.value + step, side.dtype)
                yield Edit("zero point", x, Op(x.name, (*x.args[:k], off, *x.args[k + 1 :])))


def _scaled(x: Const, rng: np.random.Generator) -> Iterator[Edit]:
    if x.dtype in FLOATS and x.value and isfinite(x.value):
        scaled = const(x.value * (1 + 2.0 ** -int(rng.integers(*SHIFTS))), x.dtype)
        if isfinite(scaled.value) and scaled != x:
            yield Edit("scale", x, scaled)


def _begun_elsewhere(x: Const, rng: np.random.Generator) -> Iterator[Edit]:
    if x.dtype in FLOATS:
        begin = x.value + 2.0 ** -int(rng.integers(*SHIFTS)) if isfinite(x.value) else 0.0
        yield Edit("accumulator", x, const(begin, x.dtype))
    elif x.dtype != "bool":
        yield Edit("accumulator", x, Const(int(x.value) + 1, x.dtype))


def _taps(x: Load, scope: Scope) -> Iterator[Edit]:
    for d, (index, extent) in enumerate(zip(x.indices, scope.shapes[x.buffer], strict=True)):
        if extent > 1:
            for step in (-1, 1):
                beside = Op("add", (index, Const(step)))
                yield Edit("tap", x, Load(x.buffer, (*x.indices[:d], beside, *x.indices[d + 1 :])))


def _strides(x: Load, scope: Scope) -> Iterator[Edit]:
    """Multiples of a loop variable in an index, of one less."""
    for d, index in enumerate(x.indices):
        for product in _distinct(index, inside_loads=False):
            if not (isinstance(product, Op) and product.name == "mul" and isinstance(product.args[0], Var)):
                continue
            by = product.args[1]
            if isinstance(by, Const) and by.value > 1 and scope.extents.get(product.args[0].name, 0) > 1:
                shorter = Edit("stride", product, Op("mul", (product.args[0], Const(int(by.value) - 1))))
                indices = (*x.indices[:d], _edited(index, shorter), *x.indices[d + 1 :])
                yield Edit("stride", x, Load(x.buffer, indices))
