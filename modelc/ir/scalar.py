"""The scalar operations of expressions: a row for each, with all that modelc knows of it by its name. Its lowering to
TIR is in codegen/math, by dtype.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from modelc.ir.arithmetic import (
    dot_of_bytes,
    erf,
    looked_up,
    power,
    shifted_left,
    shifted_right,
    sigmoid,
    truncated_quotient,
)

# Of exact operands the result is exact; jumps to a whole number; compares numbers; joins truth values; is rounded.
Rounding = Literal["exact", "jumps", "compares", "joins", "rounded"]
Cost = Literal["free", "one", "slow", "extreme"]


@dataclass(frozen=True)
class ScalarRow:
    """One scalar operation.

    arity       how many operands it has
    meaning     what it gives, on NumPy arrays
    result      its dtype: the "same" as that of the first value operand, "bool", or "cast": as Op.dtype says
    takes       the dtypes of its value operands: "any", "float", "bits" (whole numbers and bool), "bool", "int32"
    infix       its text between two operands, which binds as `level` says (Python's order); called: the name in text
                where its own is a keyword of Python's
    fold        what it gives on whole numbers when compiling
    aggregates  whether results of a reduction may be combined by it, in any order
    otherwise   the comparison that holds where it does not, of numbers that are no NaN
    rounding    what it does to exact operands
    error       what the function of codegen/math is off by, beside the rounding of its result: units of roundoff of
                the result, and of 1 (test_kernel_judge.py measures them)
    shortened   whether it has a shorter polynomial, for results that are rounded to bfloat16
    period      how far apart two values of a periodic function are at most
    constants   whether its polynomial has many, which LLVM keeps in registers over loops
    cost        vector operations (space/tiling/operations.py)
    """

    arity: int
    meaning: Callable[..., Any]
    result: Literal["same", "bool", "cast", "select"] = "same"
    takes: Literal["any", "float", "bits", "bool", "int32"] = "any"
    infix: str = ""
    level: int = 0
    called: str = ""
    fold: Callable[[int, int], int] | None = None
    aggregates: bool = False
    otherwise: str = ""
    rounding: Rounding = "rounded"
    error: tuple[float, float] = (4, 0)
    shortened: bool = False
    period: float = 0.0
    constants: bool = False
    cost: Cost = "one"


def _infix(meaning: Any, infix: str, level: int, fold: Any = None, **more: Any) -> ScalarRow:
    return ScalarRow(2, meaning, infix=infix, level=level, fold=fold, **more)


def _compared(meaning: Any, infix: str, otherwise: str = "") -> ScalarRow:
    return ScalarRow(2, meaning, "bool", infix=infix, level=4, otherwise=otherwise, rounding="compares")


def _joined(meaning: Any, arity: int = 2, infix: str = "", level: int = 0, called: str = "", **more: Any) -> ScalarRow:
    row = ScalarRow(arity, meaning, "bool", "bool", infix=infix, level=level, called=called, rounding="joins")
    return replace(row, **more)


def _function(meaning: Any, error: tuple[float, float] = (4, 0), **more: Any) -> ScalarRow:
    return ScalarRow(1, meaning, takes="float", error=error, **more)


def _polynomial(meaning: Any, error: tuple[float, float], **more: Any) -> ScalarRow:
    return _function(meaning, error, constants=True, **{"cost": "slow", **more})


DOTS = {"dot4": 1, "dot8": 2, "dot16": 4, "dot32": 8}  # of so many pairs of words
TABLE_WORDS = 64  # of a table of 256 bytes, which are constants
OPERATIONS: dict[str, ScalarRow] = {
    "add": _infix(np.add, "+", 5, operator.add, aggregates=True),
    "sub": _infix(np.subtract, "-", 5, operator.sub),
    "mul": _infix(np.multiply, "*", 6, operator.mul, aggregates=True),
    "div": _infix(np.true_divide, "/", 6, cost="slow"),
    "floordiv": _infix(np.floor_divide, "//", 6, operator.floordiv),
    "mod": _infix(np.mod, "%", 6, operator.mod),
    "truncdiv": ScalarRow(2, truncated_quotient),  # integers, rounded towards zero as C and ONNX do
    "fmod": ScalarRow(2, np.fmod),
    "pow": ScalarRow(2, power, error=(32, 0), constants=True, cost="slow"),
    # a NaN in either operand gives NaN
    "max": ScalarRow(2, np.maximum, fold=max, aggregates=True, rounding="exact", cost="extreme"),
    "min": ScalarRow(2, np.minimum, fold=min, aggregates=True, rounding="exact", cost="extreme"),
    "lt": _compared(np.less, "<", "ge"),
    "le": _compared(np.less_equal, "<=", "gt"),
    "gt": _compared(np.greater, ">", "le"),
    "ge": _compared(np.greater_equal, ">=", "lt"),
    "eq": _compared(np.equal, "=="),
    "ne": _compared(np.not_equal, "!="),
    "and": _joined(np.logical_and, infix="and", level=2, called="all_of", cost="free"),
    "or": _joined(np.logical_or, infix="or", level=1, called="any_of", cost="free"),
    "xor": _joined(np.logical_xor),
    "not": _joined(np.logical_not, 1, called="negation", cost="free"),
    "bitand": ScalarRow(2, np.bitwise_and, takes="bits"),
    "bitor": ScalarRow(2, np.bitwise_or, takes="bits"),
    "bitxor": ScalarRow(2, np.bitwise_xor, takes="bits"),
    "bitnot": ScalarRow(1, np.invert, takes="bits"),
    "shl": ScalarRow(2, shifted_left, takes="bits"),
    "shr": ScalarRow(2, shifted_right, takes="bits"),
    **{name: ScalarRow(2 * pairs, dot_of_bytes, takes="int32") for name, pairs in DOTS.items()},  # four bytes a word
    "lookup": ScalarRow(1 + TABLE_WORDS, looked_up, takes="int32", constants=True, cost="slow"),
    "neg": ScalarRow(1, np.negative, rounding="exact"),
    "abs": ScalarRow(1, np.abs, rounding="exact"),
    "sign": ScalarRow(1, np.sign, rounding="jumps"),
    "floor": _function(np.floor, rounding="jumps"),
    "ceil": _function(np.ceil, rounding="jumps"),
    "round": _function(np.rint, rounding="jumps"),  # halves go to even
    "sqrt": _function(np.sqrt, (1, 0), cost="slow"),
    "exp": _polynomial(np.exp, (4, 0), shortened=True),
    "log": _polynomial(np.log, (4, 1)),
    "erf": _polynomial(erf, (8, 0), shortened=True),
    "tanh": _polynomial(np.tanh, (8, 0), shortened=True),
    "sigmoid": _polynomial(sigmoid, (6, 0), shortened=True),
    "softplus": _polynomial(lambda x: np.logaddexp(x, x.dtype.type(0)), (6, 0), cost="one"),
    "sin": _polynomial(np.sin, (4, 4), period=2.0),
    "cos": _polynomial(np.cos, (4, 4), period=2.0),
    "tan": _function(np.tan, (8, 4), period=np.inf),
    "asin": _function(np.arcsin),
    "acos": _function(np.arccos, (4, 1)),
    "atan": _function(np.arctan),
    "sinh": _function(np.sinh),
    "cosh": _function(np.cosh),
    "asinh": _function(np.arcsinh),
    "acosh": _function(np.arccosh),
    "atanh": _function(np.arctanh),
    "isnan": _function(np.isnan, result="bool", rounding="exact"),
    "isinf": _function(np.isinf, result="bool", rounding="exact"),
    "select": ScalarRow(3, np.where, "select", rounding="exact", cost="free"),  # select(condition, then, else)
    "cast": ScalarRow(1, lambda x: x, "cast", cost="free"),
    "bits": ScalarRow(1, lambda x: x, "cast", rounding="exact"),  # a number's bits taken for those of a dtype as wide
    # x, of which an operator says that low <= x <= high (addresses.py)
    "claim": ScalarRow(3, lambda x, low, high: x, rounding="exact"),
}
