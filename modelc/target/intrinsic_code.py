"""How an intrinsic is computed: a small declarative grammar over vectors, which code generation reads.

The grammar, whole (its text is read with Python's expression syntax):

    Code = NAME                                  an operand, all its elements as one vector
         | call("llvm.NAME", TYPE, Code, ...)    an intrinsic of LLVM; TYPE is left out if it gives nothing
         | bitcast(TYPE, Code)                   the same bits as another type
         | broadcast(Code, LANES)                one element in all lanes
         | widen(TYPE, Code)                     whole numbers as wider ones, lane by lane
         | shuffle(Code, ..., [LANE, ...])       some lanes of one or more vectors of a type, one after the other
         | Code + Code | Code - Code | Code * Code
         | TYPE(NUMBER)                          a number, in all lanes
    TYPE = float32, int8x64, ...

Files with it are not trusted: it has plain arithmetic and the intrinsics of permitted.py, which reach no memory. Those
that load and store tile registers are of shipped files alone (intrinsics.py).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from modelc.ir.expr import DTYPES
from modelc.target.permitted import Permitted

_LLVM = re.compile(r"llvm\.[a-z0-9_]+(\.[a-z0-9_]+)*")
_TYPE = re.compile(r"([a-z]+\d+)(?:x([1-9]\d{0,3}))?")
_MOST_LANES = 1 << 12


class CodeError(ValueError):
    """The text is not of this grammar, or its types do not fit."""


@dataclass(frozen=True)
class VectorType:
    """`lanes` elements of a dtype. `address` is where an operand lies, `tile` the number of a tile register."""

    dtype: str
    lanes: int = 1

    @property
    def bits(self) -> int:
        return DTYPES[self.dtype].itemsize * 8 * self.lanes

    def __str__(self) -> str:
        return self.dtype if self.lanes == 1 else f"{self.dtype}x{self.lanes}"


ADDRESS, TILE = VectorType("address"), VectorType("tile")


@dataclass(frozen=True)
class Name:
    name: str
    type: VectorType


@dataclass(frozen=True)
class Call:
    llvm: str
    args: tuple[Code, ...]
    type: VectorType | None


@dataclass(frozen=True)
class Vector:
    """What an operation makes of vectors; `lanes` are those that a shuffle takes."""

    op: str  # "bitcast", "broadcast", "widen", "shuffle", "add", "sub" or "mul"
    args: tuple[Code, ...]
    type: VectorType
    lanes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Number:
    value: int | float
    type: VectorType


Code = Name | Call | Vector | Number
_OPERATORS: dict[type, str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}


def parse_code(text: str, names: Mapping[str, VectorType], permitted: Permitted) -> Code:
    """Reads code over `names` that calls permitted intrinsics. Raises CodeError."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        return _Reader(names, permitted).code(node)
    except SyntaxError as error:
        raise CodeError(f"not an expression ({error.msg})") from None
    except (RecursionError, MemoryError):  # of Python's parser, too
        raise CodeError("nested too deeply") from None


def calls(code: Code) -> tuple[Call, ...]:
    """Every call in `code`."""
    below = code.args if isinstance(code, Call | Vector) else ()
    own = (code,) if isinstance(code, Call) else ()
    return (*own, *(call for part in below for call in calls(part)))


def parse_type(text: str) -> VectorType | None:
    """`int8x64` as a type; None for any other word."""
    match = _TYPE.fullmatch(text)
    if match is None or match[1] not in DTYPES:
        return None
    lanes = int(match[2] or 1)
    return VectorType(match[1], lanes) if lanes <= _MOST_LANES else None


@dataclass(frozen=True)
class _Reader:
    names: Mapping[str, VectorType]
    permitted: Permitted

    def code(self, node: ast.expr) -> Code:
        if isinstance(node, ast.Name):
            if node.id not in self.names:
                raise CodeError(f"{node.id!r} is none of {', '.join(self.names)}")
            return Name(node.id, self.names[node.id])
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return self.binary(_OPERATORS[type(node.op)], self.value(node.left), self.value(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            name, args = node.func.id, node.args
            if name == "call":
                return self.call(args)
            if name == "bitcast" and len(args) == 2:
                return self.bitcast(self.type(args[0]), self.value(args[1]))
            if name == "broadcast" and len(args) == 2:
                return self.broadcast(self.value(args[0]), self.lanes(args[1]))
            if name == "widen" and len(args) == 2:
                return self.widen(self.type(args[0]), self.value(args[1]))
            if name == "shuffle" and len(args) >= 2:
                return self.shuffle(tuple(map(self.value, args[:-1])), args[-1])
            if parse_type(name) is not None and len(args) == 1:
                return self.number(self.type(node.func), args[0])
        raise CodeError(
            f"{ast.unparse(node)[:60]!r} is no name, call, bitcast, broadcast, widen, shuffle, sum, product or number"
        )

    def value(self, node: ast.expr) -> Code:
        """Code that gives a vector."""
        code = self.code(node)
        if code.type is None or code.type in (ADDRESS, TILE):
            raise CodeError(f"{ast.unparse(node)[:60]!r} is no vector")
        return code

    def type(self, node: ast.expr) -> VectorType:
        kind = parse_type(node.id) if isinstance(node, ast.Name) else None
        if kind is None:
            raise CodeError(f"{ast.unparse(node)[:60]!r} is no type such as int8x64")
        return kind

    def lanes(self, node: ast.expr) -> int:
        value = node.value if isinstance(node, ast.Constant) else None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_LANES:
            raise CodeError(f"{ast.unparse(node)[:60]!r} is no number of lanes")
        return value

    def call(self, nodes: list[ast.expr]) -> Code:
        name = nodes[0].value if nodes and isinstance(nodes[0], ast.Constant) else None
        if not isinstance(name, str) or not _LLVM.fullmatch(name):
            raise CodeError('call takes the name of an intrinsic first, such as call("llvm.fma.v4f32", ...)')
        if not self.permitted.names.fullmatch(name):
            raise CodeError(f"{name[:60]} is not permitted; expected {self.permitted.what}")
        operands = nodes[1:]
        first = operands[0] if operands else None
        gives = parse_type(first.id) if isinstance(first, ast.Name) and first.id not in self.names else None
        args = tuple(map(self.code, operands if gives is None else operands[1:]))
        if any(isinstance(arg, Call) and arg.type is None for arg in args):
            raise CodeError(f"an operand of {name} gives nothing")
        return Call(name, args, gives)

    def bitcast(self, to: VectorType, value: Code) -> Code:
        before = _type(value)
        if before.bits != to.bits:
            raise CodeError(f"a bitcast of {before} ({before.bits} bits) to {to} ({to.bits} bits)")
        return Vector("bitcast", (value,), to)

    def broadcast(self, value: Code, lanes: int) -> Code:
        element = _type(value)
        if element.lanes != 1 or lanes < 2:
            raise CodeError(f"a broadcast of {element} to {lanes} lanes; one element goes to two or more")
        return Vector("broadcast", (value,), VectorType(element.dtype, lanes))

    def widen(self, to: VectorType, value: Code) -> Code:
        before = _type(value)
        whole = all(DTYPES[t.dtype].kind in "iu" for t in (before, to))
        if not whole or before.lanes != to.lanes or before.bits >= to.bits:
            raise CodeError(f"{before} widened to {to}; whole numbers become as many wider ones")
        return Vector("widen", (value,), to)

    def shuffle(self, values: tuple[Code, ...], node: ast.expr) -> Code:
        lanes = tuple(map(self.lanes, node.elts)) if isinstance(node, ast.List) else ()
        types = {_type(value) for value in values}
        whole = sum(_type(value).lanes for value in values)
        if len(types) != 1 or not lanes or max(lanes) >= whole:
            raise CodeError(f"a shuffle takes vectors of one type, then a list of lanes below {whole}")
        return Vector("shuffle", values, VectorType(types.pop().dtype, len(lanes)), lanes)

    def binary(self, op: str, left: Code, right: Code) -> Code:
        a, b = _type(left), _type(right)
        if a != b:
            raise CodeError(f"{op} of {a} and {b}")
        if a.dtype in ("float16", "bfloat16", "bool"):
            raise CodeError(f"{op} of {a}; arithmetic is on whole numbers, float32 and float64")
        return Vector(op, (left, right), a)

    def number(self, type_: VectorType, node: ast.expr) -> Code:
        negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        inner = node.operand if isinstance(node, ast.UnaryOp) and negative else node
        value = inner.value if isinstance(inner, ast.Constant) else None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise CodeError(f"{ast.unparse(node)[:60]!r} is no number")
        value = -value if negative else value
        whole = DTYPES[type_.dtype].kind in "iu"
        if type_.dtype in ("bfloat16", "bool") or not _fits(value, type_.dtype):
            raise CodeError(f"{ast.unparse(node)[:60]} is no constant of {type_.dtype}")
        return Number(value if whole else float(value), type_)


def _type(code: Code) -> VectorType:
    assert code.type is not None
    return code.type


def _fits(value: int | float, dtype: str) -> bool:
    if DTYPES[dtype].kind not in "iu":
        return abs(value) <= float(np.finfo(DTYPES[dtype]).max)
    bits = DTYPES[dtype].itemsize * 8
    low, high = (0, 1 << bits) if dtype.startswith("u") else (-(1 << (bits - 1)), 1 << (bits - 1))
    return isinstance(value, int) and low <= value < high
