"""Scalar expressions: what a Block computes for one point of its iteration space, and where it reads and writes.

The grammar, whole:

    Expr = Var(name)                      an iterator, an int64
         | Const(value, dtype)
         | Load(buffer, indices)          one element of a buffer
         | Op(name, args, dtype)          `name` is a key of OPERATIONS; dtype is set on casts alone

Index expressions are the same grammar over Var, int64 Const, `add sub mul floordiv mod` (quasi-affine: see affine.py).
The text form is Python's expression syntax (`X[n, c, h + r - 1] * float32(0.5)`), so Python's own parser reads it
(expr_syntax.py).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from modelc.ir.arithmetic import (
    converted,
    dot_of_bytes,
    erf,
    power,
    shifted_left,
    shifted_right,
    sigmoid,
    truncated_quotient,
)

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

    Expressions never change: what was found out about one is kept with it (hash, linear form, what is in it)."""

    __slots__ = ("_hash", "_linear", "_loads", "_operations", "_variables")
    _hash: int
    _linear: Any  # of affine.py
    _loads: tuple[Load, ...]
    _operations: frozenset[str]
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


def _kept_hash(e: Const | Load | Op) -> int:
    try:
        return e._hash
    except AttributeError:
        code = hash(e.content())
        object.__setattr__(e, "_hash", code)
        return code


@dataclass(frozen=True, slots=True)
class Var(_Arithmetic):
    name: str

    def __str__(self) -> str:
        return show(self)

    def __hash__(self) -> int:
        return hash(self.name)


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

    def __str__(self) -> str:
        return show(self)

    def __eq__(self, other: object) -> bool:
        """Equal values of equal dtype; NaN equals NaN, and -0.0 differs from 0.0 (they print apart)."""
        if not isinstance(other, Const) or self.dtype != other.dtype:
            return False
        if isinstance(self.value, float):
            return repr(self.value) == repr(other.value)
        return self.value == other.value

    def __hash__(self) -> int:
        return _kept_hash(self)

    def content(self) -> tuple[object, ...]:
        """What equal ones have alike."""
        return repr(self.value), self.dtype


@dataclass(frozen=True, slots=True)
class Load(_Arithmetic):
    buffer: str
    indices: tuple[Expr, ...]

    def __str__(self) -> str:
        return show(self)

    def __hash__(self) -> int:
        return _kept_hash(self)

    def content(self) -> tuple[object, ...]:
        return self.buffer, self.indices


@dataclass(frozen=True, slots=True)
class Op(_Arithmetic):
    name: str
    args: tuple[Expr, ...]
    dtype: str | None = None

    def __str__(self) -> str:
        return show(self)

    def __hash__(self) -> int:
        return _kept_hash(self)

    def content(self) -> tuple[object, ...]:
        return self.name, self.args, self.dtype


Expr = Var | Const | Load | Op
Operand = Expr | int | float | _Arithmetic


@dataclass(frozen=True)
class Operation:
    """One scalar operation: how many operands, its meaning on NumPy arrays, the dtype of its result."""

    arity: int
    meaning: Callable[..., Any]
    result: str = "same"  # "same": as the first value operand; "bool"; "cast": as Op.dtype says
    infix: str | None = None


DOTS = {"dot4": 1, "dot8": 2, "dot16": 4, "dot32": 8}  # of so many pairs of words
OPERATIONS: dict[str, Operation] = {
    "add": Operation(2, np.add, infix="+"),
    "sub": Operation(2, np.subtract, infix="-"),
    "mul": Operation(2, np.multiply, infix="*"),
    "div": Operation(2, np.true_divide, infix="/"),
    "floordiv": Operation(2, np.floor_divide, infix="//"),
    "mod": Operation(2, np.mod, infix="%"),
    "truncdiv": Operation(2, truncated_quotient),  # integers, rounded towards zero as C and ONNX do
    "fmod": Operation(2, np.fmod),
    "pow": Operation(2, power),
    "max": Operation(2, np.maximum),  # a NaN in either operand gives NaN
    "min": Operation(2, np.minimum),
    "lt": Operation(2, np.less, "bool", "<"),
    "le": Operation(2, np.less_equal, "bool", "<="),
    "gt": Operation(2, np.greater, "bool", ">"),
    "ge": Operation(2, np.greater_equal, "bool", ">="),
    "eq": Operation(2, np.equal, "bool", "=="),
    "ne": Operation(2, np.not_equal, "bool", "!="),
    "and": Operation(2, np.logical_and, "bool", "and"),
    "or": Operation(2, np.logical_or, "bool", "or"),
    "xor": Operation(2, np.logical_xor, "bool"),
    "not": Operation(1, np.logical_not, "bool"),
    "bitand": Operation(2, np.bitwise_and),
    "bitor": Operation(2, np.bitwise_or),
    "bitxor": Operation(2, np.bitwise_xor),
    "bitnot": Operation(1, np.invert),
    "shl": Operation(2, shifted_left),
    "shr": Operation(2, shifted_right),
    **{name: Operation(2 * pairs, dot_of_bytes) for name, pairs in DOTS.items()},  # of int32, four bytes each
    "neg": Operation(1, np.negative),
    "abs": Operation(1, np.abs),
    "sign": Operation(1, np.sign),
    "floor": Operation(1, np.floor),
    "ceil": Operation(1, np.ceil),
    "round": Operation(1, np.rint),  # halves go to even
    "sqrt": Operation(1, np.sqrt),
    "exp": Operation(1, np.exp),
    "log": Operation(1, np.log),
    "erf": Operation(1, erf),
    "tanh": Operation(1, np.tanh),
    "sigmoid": Operation(1, sigmoid),
    "softplus": Operation(1, lambda x: np.logaddexp(x, x.dtype.type(0))),
    "sin": Operation(1, np.sin),
    "cos": Operation(1, np.cos),
    "tan": Operation(1, np.tan),
    "asin": Operation(1, np.arcsin),
    "acos": Operation(1, np.arccos),
    "atan": Operation(1, np.arctan),
    "sinh": Operation(1, np.sinh),
    "cosh": Operation(1, np.cosh),
    "asinh": Operation(1, np.arcsinh),
    "acosh": Operation(1, np.arccosh),
    "atanh": Operation(1, np.arctanh),
    "isnan": Operation(1, np.isnan, "bool"),
    "isinf": Operation(1, np.isinf, "bool"),
    "select": Operation(3, np.where, "select"),  # select(condition, then, else)
    "cast": Operation(1, lambda x: x, "cast"),
    "bits": Operation(1, lambda x: x, "cast"),  # the bits of a number taken for those of another dtype as wide
    "claim": Operation(3, lambda x, low, high: x),  # x, of which an operator says that low <= x <= high (addresses.py)
}
KINDS = frozenset((Var, Const, Load, Op))
ZERO = Const(0)
FOLDS: dict[str, Callable[[int, int], int]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod")},
    **{"max": max, "min": min},
}


def op(name: str, *args: Any) -> Expr:
    """An Op with its numbers made constants and integer index arithmetic folded (`x + 0`, `2 * 3`, `x * 1`)."""
    exprs = args
    for a in args:
        if type(a) not in KINDS:
            typed = next((x.dtype for x in args if type(x) is Const), "int64")
            exprs = tuple([x if type(x) in KINDS else Const(x, typed) for x in args])
            break
    if len(exprs) == 2:
        a, b = exprs
        left: Any = a.value if type(a) is Const and a.dtype == "int64" else None
        right: Any = b.value if type(b) is Const and b.dtype == "int64" else None
        if left is None and right is None:
            return Op(name, exprs)
        if left is not None and right is not None and name in FOLDS and (right or name not in ("floordiv", "mod")):
            return Const(FOLDS[name](left, right))
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
    if isinstance(e, (Var, Const)):
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
    if isinstance(e, Var):
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

_PRECEDENCE = {"or": 1, "and": 2, "lt": 4, "le": 4, "gt": 4, "ge": 4, "eq": 4, "ne": 4}
_PRECEDENCE |= {"add": 5, "sub": 5, "mul": 6, "div": 6, "floordiv": 6, "mod": 6}
CALLED = {"and": "all_of", "or": "any_of", "not": "negation"}  # Python's own keywords cannot be called


def show(e: Expr, above: int = 0) -> str:
    """The text of `e`; expr_syntax.parse() reads it back to an equal expression."""
    if isinstance(e, Var):
        return e.name
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
    if e.name in _PRECEDENCE:
        level = _PRECEDENCE[e.name]
        text = f"{show(e.args[0], level)} {OPERATIONS[e.name].infix} {show(e.args[1], level + 1)}"
        return f"({text})" if level < above or (level == 4 == above) else text
    return _called(e)


def show_conditions(conditions: tuple[Expr, ...]) -> str:
    """Conditions joined by `and`; one that is itself a conjunction keeps apart as `all_of(a, b)`."""
    return " and ".join(_called(c) if isinstance(c, Op) and c.name == "and" else show(c, 3) for c in conditions)


def _called(e: Op) -> str:
    return f"{CALLED.get(e.name, e.name)}({', '.join(map(show, e.args))})"
