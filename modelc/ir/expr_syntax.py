"""Expressions read from their text, by Python's own parser."""

from __future__ import annotations

import ast
import math
from functools import reduce

from modelc.ir.expr import DTYPES, Const, Expr, Load, Op, Size, Var
from modelc.ir.scalar import OPERATIONS

_BINARY: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
    ast.And: "and", ast.Or: "or",
}  # fmt: skip
NUMBERS = {"inf": math.inf, "nan": math.nan}  # that are names to Python's parser


class ExprSyntaxError(ValueError):
    """The text is not an expression of this grammar."""


def parse(text: str) -> Expr:
    """Reads what show() prints. Raises ExprSyntaxError, naming the part that is not understood."""
    return expression(_syntax(text, "an expression"))


def parse_conditions(text: str) -> tuple[Expr, ...]:
    """Reads what show_conditions() prints."""
    node = _syntax(text, "a condition")
    parts = node.values if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) else [node]
    return tuple(expression(p) for p in parts)


def _syntax(text: str, expected: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ExprSyntaxError(f"not {expected}: {text!r} ({error.msg})") from None


def _literal(node: ast.expr) -> float | int | bool | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, bool)):
        return node.value
    return NUMBERS.get(node.id) if isinstance(node, ast.Name) else None


def expression(node: ast.expr) -> Expr:
    """One node of Python's syntax tree as an expression. Raises ExprSyntaxError."""
    if isinstance(node, ast.Name) and node.id not in NUMBERS:
        return Var(node.id)
    literal = _literal(node)
    if literal is not None:
        return _constant(literal, "int64")
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return Op(_BINARY[type(node.op)], (expression(node.left), expression(node.right)))
    if isinstance(node, ast.BoolOp):
        return reduce(lambda a, b: Op(_BINARY[type(node.op)], (a, b)), map(expression, node.values))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _BINARY:
        return Op(_BINARY[type(node.ops[0])], (expression(node.left), expression(node.comparators[0])))
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        parts_ = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return Load(node.value.id, tuple(expression(p) for p in parts_))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _call(node.func.id, node.args)
    raise ExprSyntaxError(f"not part of an expression: {ast.unparse(node)!r}")


def _call(name: str, args: list[ast.expr]) -> Expr:
    if name in DTYPES and len(args) == 1:
        literal = _literal(args[0])
        return Op("cast", (expression(args[0]),), name) if literal is None else _constant(literal, name)
    if name.startswith("bits_") and name[5:] in DTYPES and len(args) == 1:
        return Op("bits", (expression(args[0]),), name[5:])
    if name.startswith("size_") and len(args) == 2:
        bounds = [_literal(a) for a in args]
        if not all(type(n) is int for n in bounds):
            raise ExprSyntaxError(f"{name} takes the least and the most that it can be, as numbers")
        return Size(name[5:], *bounds)  # type: ignore[arg-type]
    name = {row.called: plain for plain, row in OPERATIONS.items() if row.called}.get(name, name)
    if name not in OPERATIONS or name in ("cast", "bits"):
        raise ExprSyntaxError(f"unknown operation {name!r}; known are {', '.join(sorted(OPERATIONS))}")
    if len(args) != OPERATIONS[name].arity:
        raise ExprSyntaxError(f"{name} takes {OPERATIONS[name].arity} operands, found {len(args)}")
    return Op(name, tuple(expression(a) for a in args))


def _constant(value: float | int | bool, dtype: str) -> Const:
    try:
        return Const(value, dtype)
    except (ValueError, OverflowError):
        raise ExprSyntaxError(f"{value!r} is no constant of {dtype}") from None
