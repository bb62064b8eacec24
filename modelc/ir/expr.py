"""Scalar expressions: what a Block computes for one point of its iteration space, and where it reads and writes.

The grammar, whole:

    Expr = Var(name)                      an iterator, an int64
         | Size(name, least, most)        a free dimension of the model's inputs, an int64 that a run says
         | Const(value, dtype)
         | Load(buffer, indices)          one element of a buffer
         | Op(name, args, dtype)          `name` is a key of OPERATIONS; dtype is set on casts alone

Index expressions are the same grammar over Var, Size, int64 Const, `add sub mul floordiv mod` (quasi-affine: see
affine.py). The text form is Python's expression syntax (`X[n, c, h + r - 1] * float32(0.5)`), so Python's own parser
reads it (expr_syntax.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from modelc.ir.arithmetic import converted
from modelc.ir.scalar import OPERATIONS

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
NARROW_FLOATS, NARROW_INTEGERS = (*FLOAT8, "float4_e2m1fn"), ("int4", "uint4", "int2", "uint2")
NARROW = (*NARROW_FLOATS, *NARROW_INTEGERS)  # a byte each, of which operators take the bits (ops/narrow.py)
DTYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name) for name in (*FLOATS[:3], *INTEGERS, "bool")},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", *NARROW)},
}


class _Arithmetic:
    """Python's operators on expressions; numbers on the right or left become constants of the other side's kind.

    Expressions never change: what was found out about one is kept with it (hash, linear form, order, what is in it)."""

    __slots__ = ("_hash", "_linear", "_loads", "_operations", "_order", "_variables")
    _hash: int
    _linear: Any  # of affine.py
    _loads: tuple[Load, ...]
    _operations: frozenset[str]
    _order: Any  # of interpret.py
    _variables: frozenset[str]

    def __add__(self, other: Operand) -> Expr:
        return op("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return op("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return op("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return op("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return op("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return op("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return op("div", self, other)

    def __floordiv__(self, other: Operand) -> Expr:
        return op("floordiv", self, other)

    def __mod__(self, other: Operand) -> Expr:
        return op("mod", self, other)

    def __neg__(self) -> Expr:
        return op("neg", self)

    def __str__(self) -> str:
        return show(self)  # type: ignore[arg-type]


def _kept_hash(e: Any) -> int:
    """The hash of a Const, a Load or an Op: of what equal ones have alike."""
    try:
        return e._hash  # type: ignore[no-any-return]
    except AttributeError:
        if isinstance(e, Const):
            code = hash((repr(e.value), e.dtype))
        else:
            code = hash((e.buffer, e.indices) if isinstance(e, Load) else (e.name, e.args, e.dtype))
        object.__setattr__(e, "_hash", code)
        return code


@dataclass(frozen=True, slots=True)
class Var(_Arithmetic):
    name: str

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class Size(_Arithmetic):
    """A free dimension of the model's inputs, of `least` to `most` (both included); sizes.py computes with them."""

    name: str
    least: int
    most: int

    def __hash__(self) -> int:
        return hash((self.name, self.least, self.most))


@dataclass(frozen=True, slots=True)
class Const(_Arithmetic):
    """A number of a dtype, held as the Python number of its kind (float, int or bool)."""

    value: float | int | bool
    dtype: str = "int64"

    def __post_init__(self) -> None:
        kind = float if self.dtype in FLOATS or self.dtype in NARROW_FLOATS else bool if self.dtype == "bool" else int
        if type(self.value) is not kind:
            value = kind(self.value)
            if kind is not float and value != self.value:
                raise ValueError(f"{self.value!r} is no constant of {self.dtype}; say const({self.value!r}, dtype)")
            object.__setattr__(self, "value", value)

    def __eq__(self, other: object) -> bool:
        """Equal values of equal dtype; NaN equals NaN, and -0.0 differs from 0.0 (they print apart)."""
        if not isinstance(other, Const) or self.dtype != other.dtype:
            return False
        if isinstance(self.value, float):
            return repr(self.value) == repr(other.value)
        return self.value == other.value

    __hash__ = _kept_hash


@dataclass(frozen=True, slots=True)
class Load(_Arithmetic):
    buffer: str
    indices: tuple[Expr, ...]

    __hash__ = _kept_hash


@dataclass(frozen=True, slots=True)
class Op(_Arithmetic):
    name: str
    args: tuple[Expr, ...]
    dtype: str | None = None

    __hash__ = _kept_hash


Expr = Var | Size | Const | Load | Op
Operand = Expr | int | float | _Arithmetic


KINDS = frozenset((Var, Size, Const, Load, Op))
ZERO = Const(0)


def op(name: str, *args: Any) -> Expr:
    """An Op with its numbers made constants and integer index arithmetic folded (`x + 0`, `2 * 3`, `x * 1`)."""
    exprs = args
    for a in args:
        if type(a) not in KINDS:
            typed = next((x.dtype for x in args if type(x) is Const), "int64")
            exprs = tuple([x if type(x) in KINDS else getattr(x, "expr", None) or Const(x, typed) for x in args])
            break
    if len(exprs) == 2:
        a, b = exprs
        left: Any = a.value if type(a) is Const and a.dtype == "int64" else None
        right: Any = b.value if type(b) is Const and b.dtype == "int64" else None
        if left is None and right is None:
            return Op(name, exprs)
        fold = OPERATIONS[name].fold if left is not None and right is not None and name in OPERATIONS else None
        if fold is not None and (right or name not in ("floordiv", "mod")):
            return Const(fold(left, right))
        if (name == "add" and left == 0) or (name == "mul" and left == 1):
            return b  # type: ignore[no-any-return]
        if (right == 0 and name in ("add", "sub")) or (right == 1 and name in ("mul", "floordiv")):
            return a  # type: ignore[no-any-return]
        if (name == "mul" and (left == 0 or right == 0)) or (name == "mod" and right == 1):
            return ZERO
    return Op(name, exprs)


def cast(dtype: str, x: Expr) -> Expr:
    """`x` converted to `dtype`; a constant is converted now."""
    if isinstance(x, Const):
        return const(x.value, dtype)
    return Op("cast", (x,), dtype)


def const(value: Any, dtype: str) -> Const:
    """A constant rounded to its dtype, held as a Python number."""
    with np.errstate(all="ignore"):
        rounded = converted(np.asarray(value), DTYPES[dtype])
    return Const(float(rounded) if dtype in ("float16", "bfloat16", *NARROW_FLOATS) else rounded.item(), dtype)


def select(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    return Op("select", (condition, then, otherwise))


def conjunction(conditions: tuple[Expr, ...]) -> Expr:
    """All of `conditions` (at least one)."""
    result = conditions[0]
    for condition in conditions[1:]:
        result = Op("and", (result, condition))
    return result


def children(e: Expr) -> tuple[Expr, ...]:
    if isinstance(e, Load):
        return e.indices
    return e.args if isinstance(e, Op) else ()


def walk(e: Expr) -> Iterator[Expr]:
    """`e` and everything below it, parents first; what is shared comes once for every use."""
    stack = [e]
    while stack:
        e = stack.pop()
        yield e
        if isinstance(e, Op):
            stack += e.args[::-1]
        elif isinstance(e, Load):
            stack += e.indices[::-1]


def rewrite(e: Expr, visit: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuilds `e` bottom up; `visit` gives the replacement of a node whose children are done, or None to keep it.
    What is shared is visited once, and its replacement is shared."""
    if isinstance(e, (Var, Size, Const)):
        replaced = visit(e)
        return e if replaced is None else replaced
    done: dict[int, Expr] = {}
    stack: list[tuple[Expr, bool]] = [(e, False)]
    while stack:
        x, ready = stack.pop()
        if id(x) in done:
            continue
        below = children(x)
        if below and not ready:
            stack.append((x, True))
            for child in reversed(below):
                if id(child) not in done:
                    stack.append((child, False))
            continue
        new = rebuilt(x, tuple([done[id(child)] for child in below])) if below else x
        replaced = visit(new)
        done[id(x)] = new if replaced is None else replaced
    return done[id(e)]


def rebuilt(e: Expr, below: tuple[Expr, ...]) -> Expr:
    """`e` over other children; index arithmetic on constants is folded."""
    if isinstance(e, Load):
        return Load(e.buffer, below)
    if not isinstance(e, Op) or below == e.args:
        return e
    if e.name == "bits":
        return Op("bits", below, e.dtype)
    return cast(e.dtype, below[0]) if e.dtype else op(e.name, *below)


def size(e: Expr, loaded: Mapping[str, int]) -> int:
    """Operations on values in `e` as a tree, what is shared counted for every use; an element of a buffer counts as
    `loaded` says (0 where it does not)."""
    sizes: dict[int, int] = {}
    stack: list[tuple[Expr, bool]] = [(e, False)]
    while stack:
        x, ready = stack.pop()
        if id(x) in sizes:
            continue
        if not isinstance(x, Op):
            sizes[id(x)] = loaded.get(x.buffer, 0) if isinstance(x, Load) else 0
        elif ready:
            sizes[id(x)] = 1 + sum(sizes[id(child)] for child in x.args)
        else:
            stack.append((x, True))
            stack += [(child, False) for child in x.args]
    return sizes[id(e)]


def substitute(e: Expr, values: Mapping[str, Expr]) -> Expr:
    """`e` with each Var named in `values` replaced."""
    replaced = {name: value for name, value in values.items() if value != Var(name)}
    if not any([name in replaced for name in variables(e)]):
        return e
    return rewrite(e, lambda x: replaced.get(x.name) if isinstance(x, Var) else None)


def variables(e: Expr) -> frozenset[str]:
    """The names of the Vars in `e`."""
    return _names(e, "_variables", Var)


def operations(e: Expr) -> frozenset[str]:
    """The names of the Ops in `e`."""
    return _names(e, "_operations", Op)


def sizes(e: Expr) -> tuple[Size, ...]:
    """The Sizes in `e`, each once."""
    return tuple(dict.fromkeys(x for x in walk(e) if isinstance(x, Size)))


def _names(e: Expr, kept: str, kind: type[Var | Op]) -> frozenset[str]:
    """The names of those below `e` that are of one kind, which are kept as the attribute `kept`."""
    names: frozenset[str] | None = getattr(e, kept, None)
    if names is None:
        collected: set[str] = set()
        stack = [e]
        while stack:
            x = stack.pop()
            below = getattr(x, kept, None)
            if below is not None:
                collected |= below
                continue
            if isinstance(x, kind):
                collected.add(x.name)
            stack += children(x)
        names = frozenset(collected)
        object.__setattr__(e, kept, names)
    return names


def loads(e: Expr) -> tuple[Load, ...]:
    """The Loads in `e`, those around others first; what is shared comes once for every use."""
    if not isinstance(e, Op):
        return (e, *[x for i in e.indices for x in loads(i)]) if isinstance(e, Load) else ()
    try:
        return e._loads
    except AttributeError:
        accesses = tuple([x for x in walk(e) if isinstance(x, Load)])
        object.__setattr__(e, "_loads", accesses)
        return accesses


def uncast(e: Expr) -> Expr:
    """What casts, one around the other, convert."""
    return uncast(e.args[0]) if isinstance(e, Op) and e.name == "cast" else e


def dtype_of(e: Expr, buffers: Mapping[str, str]) -> str:
    """The dtype of an expression, given the dtype of each buffer. Index arithmetic is int64."""
    if isinstance(e, (Var, Size)):
        return "int64"
    if isinstance(e, Const):
        return e.dtype
    if isinstance(e, Load):
        return buffers[e.buffer]
    result = OPERATIONS[e.name].result
    if result == "cast":
        assert e.dtype is not None
        return e.dtype
    if result == "bool":
        return "bool"
    return dtype_of(e.args[1] if result == "select" else e.args[0], buffers)


# --- text ---------------------------------------------------------------------------------------------------------


def show(e: Expr, above: int = 0) -> str:
    """The text of `e`; expr_syntax.parse() reads it back to an equal expression."""
    if isinstance(e, Var):
        return e.name
    if isinstance(e, Size):
        return f"size_{e.name}({e.least}, {e.most})"
    if isinstance(e, Const):
        if e.dtype == "int64":
            return str(e.value) if e.value >= 0 or above < 5 else f"({e.value})"
        return f"{e.dtype}({e.value!r})"
    if isinstance(e, Load):
        return f"{e.buffer}[{', '.join(show(i) for i in e.indices) or '()'}]"
    if e.name == "cast":
        (x,) = e.args  # float32(int64(2)) is a cast, float32(2.0) a constant
        return f"{e.dtype}({f'int64({x})' if isinstance(x, Const) and x.dtype == 'int64' else show(x)})"
    if e.name == "bits":
        return f"bits_{e.dtype}({show(e.args[0])})"
    row = OPERATIONS.get(e.name)
    if row is not None and row.infix:
        level = row.level
        text = f"{show(e.args[0], level)} {row.infix} {show(e.args[1], level + 1)}"
        return f"({text})" if level < above or (level == 4 == above) else text
    return _called(e)


def show_conditions(conditions: tuple[Expr, ...]) -> str:
    """Conditions joined by `and`; one that is itself a conjunction keeps apart as `all_of(a, b)`."""
    return " and ".join(_called(c) if isinstance(c, Op) and c.name == "and" else show(c, 3) for c in conditions)


def _called(e: Op) -> str:
    row = OPERATIONS.get(e.name)
    return f"{row.called if row and row.called else e.name}({', '.join(map(show, e.args))})"
