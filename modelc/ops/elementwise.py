"""Operators that compute each element on its own, with NumPy's broadcasting: tables from ONNX name to expression."""

from __future__ import annotations

import math
from collections.abc import Callable

from modelc.ir.expr import DTYPES, Const, Expr, Load, cast, const, op, select
from modelc.ir.graph import Node, Value
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


def _plain(name: str) -> Callable[[Node, str, Expr], Expr]:
    return lambda node, t, x: op(name, x)


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


def _leaky(node: Node, t: str, x: Expr) -> Expr:
    return select(op("lt", x, const(0, t)), _attr(node, "alpha", 0.01, t) * x, x)


_PLAIN = {
    "Abs": "abs", "Neg": "neg", "Sign": "sign", "Floor": "floor", "Ceil": "ceil", "Round": "round", "Sqrt": "sqrt",
    "Exp": "exp", "Log": "log", "Erf": "erf", "Tanh": "tanh", "Sigmoid": "sigmoid", "Softplus": "softplus",
    "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh",
    "Cosh": "cosh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh", "Not": "not", "BitwiseNot": "bitnot",
    "IsNaN": "isnan",
}  # fmt: skip
UNARY: dict[str, Callable[[Node, str, Expr], Expr]] = {
    **{onnx: _plain(name) for onnx, name in _PLAIN.items()},
    "Identity": lambda node, t, x: x,
    "Reciprocal": lambda node, t, x: const(1, t) / x,
    "Relu": lambda node, t, x: op("max", x, const(0, t)),
    "LeakyRelu": _leaky,
    "Elu": _elu,
    "Selu": _selu,
    "Celu": _celu,
    "ThresholdedRelu": lambda node, t, x: select(op("gt", x, _attr(node, "alpha", 1.0, t)), x, const(0, t)),
    "HardSigmoid": lambda node, t, x: _hard_sigmoid(t, x, _attr(node, "alpha", 0.2, t), _attr(node, "beta", 0.5, t)),
    "HardSwish": lambda node, t, x: x * _hard_sigmoid(t, x, const(1 / 6, t), const(0.5, t)),
    "Swish": lambda node, t, x: (
        x * op("sigmoid", _attr(node, "alpha", 1.0, t) * x)
        if node.attrs.get("alpha", 1.0) != 1.0
        else x * op("sigmoid", x)
    ),
    "Mish": lambda node, t, x: x * op("tanh", op("softplus", x)),
    "Softsign": lambda node, t, x: x / (op("abs", x) + const(1, t)),
    "Gelu": _gelu,
    "Shrink": _shrink,
    "IsInf": _isinf,
}
# Of several operations: half floats are rounded once, at the end.
COMPOUND = frozenset(
    ("LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish", "Swish", "Mish", "Softsign", "Gelu")
)


# --- two operands -------------------------------------------------------------------------------------------------


def _div(node: Node, t: str, a: Expr, b: Expr) -> Expr:
    return op("div" if t in FLOATS else "truncdiv", a, b)


def _mod(node: Node, t: str, a: Expr, b: Expr) -> Expr:
    return op("fmod" if node.attrs.get("fmod", 0) else "mod", a, b)


def _shift(node: Node, t: str, a: Expr, b: Expr) -> Expr:
    direction = text(node, "direction", "")
    if direction not in ("LEFT", "RIGHT"):
        fail(node, f"expected direction LEFT or RIGHT, found {direction!r}")
    return op("shl" if direction == "LEFT" else "shr", a, b)


def _prelu(node: Node, t: str, x: Expr, slope: Expr) -> Expr:
    return select(op("lt", x, const(0, t)), slope * x, x)


def _of(name: str) -> Callable[[Node, str, Expr, Expr], Expr]:
    return lambda node, t, a, b: op(name, a, b)


BINARY: dict[str, Callable[[Node, str, Expr, Expr], Expr]] = {
    "Add": _of("add"),
    "Sub": _of("sub"),
    "Mul": _of("mul"),
    "Div": _div,
    "Mod": _mod,
    "And": _of("and"),
    "Or": _of("or"),
    "Xor": _of("xor"),
    "Equal": _of("eq"),
    "Greater": _of("gt"),
    "GreaterOrEqual": _of("ge"),
    "Less": _of("lt"),
    "LessOrEqual": _of("le"),
    "BitwiseAnd": _of("bitand"),
    "BitwiseOr": _of("bitor"),
    "BitwiseXor": _of("bitxor"),
    "BitShift": _shift,
    "PRelu": _prelu,
}
TO_BOOL = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor", "Not", "IsNaN", "IsInf"}
VARIADIC = {"Sum": "add", "Max": "max", "Min": "min"}


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
    name: str, meaning: Callable[[Node, Inputs, list[Expr]], Expr], result: Callable[[Node, Inputs], str], arity: int
) -> Operator:
    """An elementwise operator of `arity` operands (0: any number), whose result has the dtype `result` says."""

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

    return Operator(name, infer, define)


def _dtype(node: Node, inputs: Inputs) -> str:
    return required(node, inputs, 0).dtype


def _agreed(node: Node, inputs: Inputs) -> str:
    """The dtype that all operands share."""
    dtypes = [v.dtype for v in inputs if v is not None]
    if len(set(dtypes)) > 1:
        fail(node, f"expected operands of one dtype, found {' and '.join(dtypes)}")
    return dtypes[0]


def _unary(name: str) -> Operator:
    expression = UNARY[name]
    result = (lambda node, inputs: "bool") if name in TO_BOOL else _dtype

    def meaning(node: Node, inputs: Inputs, xs: list[Expr]) -> Expr:
        t = _dtype(node, inputs)
        wide = accumulator(t) if name in COMPOUND else t
        return widened(expression(node, wide, widened(xs[0], t, wide)), wide, t)

    return _map(name, meaning, result, 1)


def _binary(name: str) -> Operator:
    expression = BINARY[name]

    def result(node: Node, inputs: Inputs) -> str:
        agreed = _agreed(node, inputs)
        return "bool" if name in TO_BOOL else agreed

    return _map(name, lambda node, inputs, xs: expression(node, _dtype(node, inputs), *xs), result, 2)


def _variadic(name: str) -> Operator:
    def meaning(node: Node, inputs: Inputs, xs: list[Expr]) -> Expr:
        result = xs[0]
        for x in xs[1:]:
            result = op(VARIADIC[name], result, x)
        return result

    return _map(name, meaning, _agreed, 0)


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


OPERATORS: tuple[Operator, ...] = (
    *map(_unary, UNARY),
    *map(_binary, BINARY),
    *map(_variadic, VARIADIC),
    _map("Mean", _mean, _agreed, 0),
    _map("Pow", _pow, _dtype, 2),
    _map("Where", _where, lambda node, inputs: _agreed(node, inputs[1:]), 3),
    _map("Cast", _cast, _cast_to, 1),
    _map("BitCast", _bit_cast, _cast_to, 1),
    Operator(
        "CastLike",
        lambda node, inputs: ((_cast_to(node, inputs), required(node, inputs, 0).shape),),
        lambda node, inputs, outputs: _map("CastLike", _cast, _cast_to, 1).meaning(node, inputs, outputs),
    ),
    Operator("Clip", _clip_infer, _clip_define),
)
