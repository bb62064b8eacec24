"""Operators that compute each element on its own, with NumPy's broadcasting: a row for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from math import ceil, floor, trunc
from typing import Any

from modelc.ir.expr import DTYPES, Const, Expr, Load, cast, const, op, select
from modelc.ir.graph import Node, Value
from modelc.ir.scalar import OPERATIONS
from modelc.ops.interval import (
    ANY,
    SIGNED_UNIT,
    UNIT,
    Interval,
    absolute,
    added,
    divided,
    exponential,
    greatest,
    least,
    mapped,
    multiplied,
    negated,
    rectified,
    remainder,
    root,
    subtracted,
    union,
)
from modelc.ops.narrow import bits, decoded, encoded, is_narrow, wide_of
from modelc.ops.operator import (
    FLOATS,
    Definition,
    Inputs,
    Operator,
    Types,
    accumulator,
    aligned,
    assign,
    broadcast,
    fail,
    given,
    grid,
    point,
    required,
    scalar,
    text,
    widened,
)
from modelc.ops.row import of_operands

Meaning = Callable[[Node, Inputs, list[Expr]], Expr]
Result = Callable[[Node, Inputs], str]


def _attr(node: Node, name: str, default: float, t: str) -> Const:
    return const(node.attrs.get(name, default), t)


def _elu(node: Node, t: str, x: Expr) -> Expr:
    return select(op("lt", x, const(0, t)), _attr(node, "alpha", 1.0, t) * (op("exp", x) - const(1, t)), x)


def _selu(node: Node, t: str, x: Expr) -> Expr:
    alpha = _attr(node, "alpha", 1.67326319217681884765625, t)
    gamma = _attr(node, "gamma", 1.05070102214813232421875, t)
    return gamma * select(op("gt", x, const(0, t)), x, alpha * op("exp", x) - alpha)


def _celu(node: Node, t: str, x: Expr) -> Expr:
    alpha = _attr(node, "alpha", 1.0, t)
    zero = const(0, t)
    return op("max", x, zero) + op("min", alpha * (op("exp", x / alpha) - const(1, t)), zero)


def _hard_sigmoid(t: str, x: Expr, alpha: Expr, beta: Expr) -> Expr:
    return op("max", op("min", alpha * x + beta, const(1, t)), const(0, t))


def _gelu(node: Node, t: str, x: Expr) -> Expr:
    half, one = const(0.5, t), const(1, t)
    if text(node, "approximate", "none") == "tanh":
        inner = const(math.sqrt(2 / math.pi), t) * (x + const(0.044715, t) * x * x * x)
        return half * x * (one + op("tanh", inner))
    return half * x * (one + op("erf", x * const(math.sqrt(0.5), t)))


def _shrink(node: Node, t: str, x: Expr) -> Expr:
    """Of whole numbers too the limits may be fractions."""
    bias, lambd, wide = node.attrs.get("bias", 0.0), node.attrs.get("lambd", 0.5), t if t in FLOATS else "float64"
    x = widened(x, t, wide)
    above = select(op("gt", x, const(lambd, wide)), x - const(bias, wide), const(0, wide))
    return widened(select(op("lt", x, const(-lambd, wide)), x + const(bias, wide), above), wide, t)


def _isinf(node: Node, t: str, x: Expr) -> Expr:
    negative, positive = node.attrs.get("detect_negative", 1), node.attrs.get("detect_positive", 1)
    if negative and positive:
        return op("isinf", x)
    if not negative and not positive:
        return Const(False, "bool")
    return op("eq", x, const(-math.inf if negative else math.inf, t))


def _swish(node: Node, t: str, x: Expr) -> Expr:
    alpha = node.attrs.get("alpha", 1.0)
    return x * op("sigmoid", x if alpha == 1.0 else _attr(node, "alpha", 1.0, t) * x)


def _leaky(node: Node, t: str, x: Expr) -> Expr:
    return select(op("lt", x, const(0, t)), _attr(node, "alpha", 0.01, t) * x, x)


# --- two operands -------------------------------------------------------------------------------------------------


def _mod(node: Node, t: str, a: Expr, b: Expr) -> Expr:
    return op("fmod" if node.attrs.get("fmod", 0) else "mod", a, b)


def _shift(node: Node, t: str, a: Expr, b: Expr) -> Expr:
    direction = text(node, "direction", "")
    if direction not in ("LEFT", "RIGHT"):
        fail(node, f"expected direction LEFT or RIGHT, found {direction!r}")
    return op("shl" if direction == "LEFT" else "shr", a, b)


def _prelu(node: Node, t: str, x: Expr, slope: Expr) -> Expr:
    return select(op("lt", x, const(0, t)), slope * x, x)


def _power(t: str, x: Expr, exponent: Expr, of: str) -> Expr:
    """`x ** exponent`; exponents that are known become products and roots."""
    number = exponent.value if isinstance(exponent, Const) else None
    if number == 1:
        return x
    if number == 2:
        return x * x
    if number == 3:
        return x * x * x
    if t in FLOATS:
        if number == -1:
            return const(1, t) / x
        return op("pow", x, exponent if of == t else cast(t, exponent))
    return cast(t, op("pow", cast("float64", x), cast("float64", exponent)))


# --- from expression to operator ----------------------------------------------------------------------------------


def operand(inputs: Inputs, k: int, over: tuple[Expr, ...], extents: tuple[int, ...]) -> Expr:
    """Input `k` at a point of the output; a constant of one element is the number itself."""
    value = inputs[k]
    assert value is not None
    return scalar(value) or Load(f"x{k}", aligned(value.shape, over, extents))


def _map(
    name: str,
    meaning: Meaning,
    result: Result,
    arity: int,
    interval: Callable[..., Interval] | Interval | None = None,
    **facts: Any,
) -> Operator:
    """An elementwise operator of `arity` operands (0: any number), whose result has the dtype `result` says and lies
    in `interval`, or where this says by the operands' intervals."""

    def infer(node: Node, inputs: Inputs) -> Types:
        count = arity or len(inputs)
        values = [required(node, inputs, k) for k in range(max(count, 1))]
        shape = values[0].shape if len(values) == 1 else broadcast(node, *(v.shape for v in values))
        if name == "PRelu" and shape != values[0].shape:
            fail(node, f"expected a slope that broadcasts to {list(values[0].shape)}, found {list(values[1].shape)}")
        return ((result(node, inputs), shape),)

    def define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
        ((_, shape),) = infer(node, inputs)
        iters = grid(shape)
        over = point(iters)
        operands = [operand(inputs, k, over, shape) for k in range(arity or len(inputs))]
        return Definition((), (assign(name.lower(), iters, Load("y0", over), meaning(node, inputs, operands)),))

    lies = of_operands(interval) if callable(interval) else interval
    return Operator(name, infer, define, elementwise=True, interval=lies, **facts)


def _dtype(node: Node, inputs: Inputs) -> str:
    return required(node, inputs, 0).dtype


def _agreed(node: Node, inputs: Inputs) -> str:
    """The dtype that all operands share."""
    dtypes = [v.dtype for v in inputs if v is not None]
    if len(set(dtypes)) > 1:
        fail(node, f"expected operands of one dtype, found {' and '.join(dtypes)}")
    return dtypes[0]


def _to_bool(node: Node, inputs: Inputs) -> str:
    _agreed(node, inputs)
    return "bool"


def _function(name: str, body: Callable[[Node, str, Expr], Expr], result: Result = _dtype, **facts: Any) -> Operator:
    """Of one operand and its dtype."""
    return _map(name, lambda node, inputs, xs: body(node, _dtype(node, inputs), *xs), result, 1, **facts)


def _compound(name: str, body: Callable[[Node, str, Expr], Expr], **facts: Any) -> Operator:
    """Of several operations on one operand: half floats are rounded once, at the end."""

    def meaning(node: Node, t: str, x: Expr) -> Expr:
        wide = accumulator(t)
        return widened(body(node, wide, widened(x, t, wide)), wide, t)

    return _function(name, meaning, **facts)


def _scalar(name: str, scalar: str, **facts: Any) -> Operator:
    """One scalar operation."""
    row, result = OPERATIONS[scalar], _agreed
    if row.result == "bool":
        result, facts = _to_bool, {"interval": UNIT, **facts}
    return _map(name, lambda node, inputs, xs: op(scalar, *xs), result, row.arity, scalar=scalar, **facts)


def _pair(name: str, body: Callable[[Node, str, Expr, Expr], Expr], **facts: Any) -> Operator:
    return _map(name, lambda node, inputs, xs: body(node, _dtype(node, inputs), *xs), _agreed, 2, **facts)


def _variadic(name: str, operation: str, **facts: Any) -> Operator:
    return _map(name, lambda node, inputs, xs: reduce(partial(op, operation), xs), _agreed, 0, **facts)


def _mean(node: Node, inputs: Inputs, xs: list[Expr]) -> Expr:
    t = _dtype(node, inputs)
    wide = accumulator(t)
    total = widened(xs[0], t, wide)
    for x in xs[1:]:
        total = total + widened(x, t, wide)
    return widened(total / const(len(xs), wide), wide, t) if len(xs) > 1 else xs[0]


def _pow(node: Node, inputs: Inputs, xs: list[Expr]) -> Expr:
    return _power(_dtype(node, inputs), xs[0], xs[1], required(node, inputs, 1).dtype)


def _where(node: Node, inputs: Inputs, xs: list[Expr]) -> Expr:
    return select(xs[0], xs[1], xs[2])


def converted(x: Expr, dtype: str, to: str) -> Expr:
    """ONNX's Cast: floats become integers by truncation, anything but zero is true."""
    if dtype == to:
        return x
    if to == "bool":
        return op("ne", x, const(0, dtype))
    return cast(to, x)


def _cast_to(node: Node, inputs: Inputs) -> str:
    if node.op == "CastLike":
        return required(node, inputs, 1).dtype
    to = str(node.attrs.get("to", ""))
    if to not in DTYPES:
        fail(node, f"expected attribute to among {', '.join(DTYPES)}, found {to!r}")
    return to


def _cast(node: Node, inputs: Inputs, xs: list[Expr]) -> Expr:
    (x,), of, to = xs, _dtype(node, inputs), _cast_to(node, inputs)
    if of != to and is_narrow(of):
        x, of = decoded(x, of), wide_of(of)
    if of == to or not is_narrow(to):
        return converted(x, of, to)
    return encoded(x, of, to, bool(node.attrs.get("saturate", 1)), text(node, "round_mode", "up"))


def _bit_cast(node: Node, inputs: Inputs, xs: list[Expr]) -> Expr:
    (x,), of, to = xs, _dtype(node, inputs), _cast_to(node, inputs)
    if DTYPES[of].itemsize != DTYPES[to].itemsize:
        fail(node, f"expected numbers as wide as {of}, found {to}")
    if of == "bool":
        x, of = cast("uint8", x), "uint8"
    if to == "bool":
        return op("ne", x if of == "uint8" else bits("uint8", x), const(0, "uint8"))
    return x if of == to else bits(to, x)


def _clip_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    for k, what in ((1, "min"), (2, "max")):
        bound = given(inputs, k)
        if bound is not None and (bound.dtype != x.dtype or math.prod(bound.shape) != 1):
            fail(node, f"expected a {x.dtype} scalar as {what}, found {bound.dtype}{list(bound.shape)}")
    return ((x.dtype, x.shape),)


def _clip_define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x = required(node, inputs, 0)
    iters = grid(x.shape)
    over = point(iters)
    body = operand(inputs, 0, over, x.shape)
    for k, name in ((1, "max"), (2, "min")):  # the lower bound first: of crossed bounds the upper one wins
        bound = given(inputs, k)
        if bound is not None:
            body = op(name, body, scalar(bound) or Load(f"x{k}", (Const(0),) * len(bound.shape)))
        elif {"max": "min", "min": "max"}[name] in node.attrs:
            body = op(name, body, const(node.attrs[{"max": "min", "min": "max"}[name]], x.dtype))
    return Definition((), (assign("clip", iters, Load("y0", over), body),))


def _limited(node: Node, inputs: Inputs, operands: Sequence[Interval]) -> Interval:
    low, high = (operands[k] if k < len(inputs) and inputs[k] is not None else ANY for k in (1, 2))
    return min(max(operands[0][0], low[0]), high[1]), min(max(operands[0][1], low[1]), high[1])


def _truncated(node: Node, inputs: Inputs, operands: Sequence[Interval]) -> Interval:
    return operands[0] if _cast_to(node, inputs) in FLOATS else mapped(trunc)(operands[0])


def _remainder(node: Node, inputs: Inputs, operands: Sequence[Interval]) -> Interval:
    return remainder(operands[0], operands[1], bool(node.attrs.get("fmod", 0)))


UNARY: tuple[Operator, ...] = (
    _scalar("Abs", "abs", interval=absolute, partly=True, wraps=True),
    _scalar("Neg", "neg", interval=negated, wraps=True),
    _scalar("Sign", "sign", interval=SIGNED_UNIT, wraps=True),
    _scalar("Floor", "floor", interval=mapped(floor), partly=True),
    _scalar("Ceil", "ceil", interval=mapped(ceil), partly=True),
    _scalar("Round", "round", interval=mapped(round), partly=True),
    _scalar("Sqrt", "sqrt", interval=root),
    _scalar("Exp", "exp", interval=exponential, bends=(-9.0, 9.0)),
    _scalar("Erf", "erf", interval=SIGNED_UNIT, bends=(-5.0, 5.0)),
    _scalar("Tanh", "tanh", interval=SIGNED_UNIT, bends=(-5.0, 5.0)),
    _scalar("Sigmoid", "sigmoid", interval=UNIT, bends=(-9.0, 9.0)),
    _scalar("Softplus", "softplus", interval=lambda a: (0, max(a[1], 0) + 1), bends=(-9.0, 9.0)),
    _scalar("Sin", "sin", interval=SIGNED_UNIT),
    _scalar("Cos", "cos", interval=SIGNED_UNIT),
    *(_scalar(name, name.lower()) for name in ("Log", "Tan", "Asin", "Acos", "Atan")),
    *(_scalar(name, name.lower()) for name in ("Sinh", "Cosh", "Asinh", "Acosh", "Atanh")),
    _scalar("Not", "not"),
    _scalar("BitwiseNot", "bitnot", wraps=True),
    _scalar("IsNaN", "isnan"),
    _function("IsInf", _isinf, lambda node, inputs: "bool", interval=UNIT),
    _function("Identity", lambda node, t, x: x, numbers="moves"),
    _function("Reciprocal", lambda node, t, x: const(1, t) / x, interval=lambda a: divided((1, 1), a)),
    _function(
        "Relu",
        lambda node, t, x: op("max", x, const(0, t)),
        interval=rectified,
        bends=(0.0,),
        partly=True,
        wraps=True,
    ),
    _function(
        "ThresholdedRelu",
        lambda node, t, x: select(op("gt", x, _attr(node, "alpha", 1.0, t)), x, const(0, t)),
    ),
    _function("Shrink", _shrink),
    _compound("LeakyRelu", _leaky, bends=(0.0,)),
    _compound("Elu", _elu, bends=(0.0,)),
    _compound("Selu", _selu, bends=(0.0,)),
    _compound("Celu", _celu, bends=(0.0,)),
    _compound(
        "HardSigmoid",
        lambda node, t, x: _hard_sigmoid(t, x, _attr(node, "alpha", 0.2, t), _attr(node, "beta", 0.5, t)),
        interval=UNIT,
    ),
    _compound(
        "HardSwish", lambda node, t, x: x * _hard_sigmoid(t, x, const(1 / 6, t), const(0.5, t)), bends=(-3.0, 0.0, 3.0)
    ),
    _compound("Swish", _swish),
    _compound("Mish", lambda node, t, x: x * op("tanh", op("softplus", x)), bends=(-9.0, 9.0)),
    _compound("Softsign", lambda node, t, x: x / (op("abs", x) + const(1, t)), interval=SIGNED_UNIT, bends=(-5.0, 5.0)),
    _compound("Gelu", _gelu, bends=(-5.0, 5.0)),
)
OPERATORS: tuple[Operator, ...] = (
    *UNARY,
    _scalar("Add", "add", interval=added, wraps=True),
    _scalar("Sub", "sub", interval=subtracted, wraps=True),
    _scalar("Mul", "mul", interval=multiplied, wraps=True),
    _pair(
        "Div",
        lambda node, t, a, b: op("div" if t in FLOATS else "truncdiv", a, b),
        scalar="div",
        interval=divided,
        wraps=True,
    ),
    replace(_pair("Mod", _mod, wraps=True), interval=_remainder),
    _scalar("And", "and"),
    _scalar("Or", "or"),
    _scalar("Xor", "xor"),
    _scalar("Equal", "eq"),
    _scalar("Greater", "gt"),
    _scalar("GreaterOrEqual", "ge"),
    _scalar("Less", "lt"),
    _scalar("LessOrEqual", "le"),
    _scalar("BitwiseAnd", "bitand", wraps=True),
    _scalar("BitwiseOr", "bitor", wraps=True),
    _scalar("BitwiseXor", "bitxor", wraps=True),
    _pair("BitShift", _shift, wraps=True),
    _pair("PRelu", _prelu, bends=(0.0,)),
    _variadic("Sum", "add", interval=added, wraps=True),
    _variadic("Max", "max", scalar="max", numbers="joins", interval=greatest),
    _variadic("Min", "min", scalar="min", numbers="joins", interval=least),
    _map("Mean", _mean, _agreed, 0),
    _map("Pow", _pow, _dtype, 2, scalar="pow"),
    _map(
        "Where",
        _where,
        lambda node, inputs: _agreed(node, inputs[1:]),
        3,
        holds=(1, 2),
        interval=lambda c, a, b: union((a, b)),
    ),
    replace(_map("Cast", _cast, _cast_to, 1, holds=(0,)), interval=_truncated),
    _map("BitCast", _bit_cast, _cast_to, 1),
    _map("CastLike", _cast, _cast_to, 1),
    Operator("Clip", _clip_infer, _clip_define, holds=(0,), elementwise=True, interval=_limited),
)
