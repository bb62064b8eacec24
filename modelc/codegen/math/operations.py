"""Scalar operations (ir/expr.py's table) as TIR, on scalars and on vectors of any number of lanes.

float32 has polynomials of our own for what occurs in hot loops (exp log erf tanh sigmoid softplus sin cos, and pow by a
constant multiple of 1/4), shorter ones for what is rounded to bfloat16: no call is left in the machine code. The rest
becomes LLVM intrinsics or libm calls lane by lane, float64 always does. float16 and bfloat16 are computed in float32,
but for sums and products of float16 where the CPU has instructions for them.
Bits of a bfloat16 travel as uint16: TVM's code generator has no bfloat16 of its own.

Three of TVM's readings are wrong for NaN, and avoided: a != b is false if either is NaN, x != x is always false, and
not (a < b) is taken for b <= a. Where a NaN goes is said by the order of a select's arms.
"""

from __future__ import annotations

from modelc.codegen.lean_tvm import tx
from modelc.codegen.math.casts import HALVES, between, cast
from modelc.codegen.math.code import Code, Expr, halves
from modelc.codegen.math.floats import FLOATS
from modelc.codegen.math.integers import BOOLS, COMPARISONS, INTEGERS
from modelc.codegen.math.rounded import erf, exp, sigmoid, tanh
from modelc.errors import InvalidIR

FLOAT_DTYPES = ("float32", "float64", "float16", "bfloat16")
PREDICATES = {*COMPARISONS, "isnan", "isinf"}
IN_HALF = ("add", "mul")  # which give the same in float32, rounded
ROUNDED = {"exp": exp, "erf": erf, "tanh": tanh, "sigmoid": sigmoid}


def lower_op(name: str, args: list[Expr], dtype: str, lanes: int, *, rounded: bool = False) -> Expr:
    """Operation `name` on `args`, all of `lanes` lanes. `dtype` is that of the value operands (of a comparison the
    operands', of a select the arms'), with bfloat16 as uint16 bits. `rounded`: what is made of the result is rounded to
    bfloat16. The current TVM target, if any, decides between equivalent instruction sequences. Raises InvalidIR for an
    operation that `dtype` does not have."""
    if name == "select":
        return tx.Select(*args)
    if name == "cast":
        raise InvalidIR("a cast is lowered by lower_cast, which knows the dtype it goes to")
    compute = "float32" if dtype in HALVES and not (dtype == "float16" and name in IN_HALF and halves()) else dtype
    code = Code(compute, lanes)
    table = BOOLS if dtype == "bool" else FLOATS if dtype in FLOAT_DTYPES else INTEGERS
    if name not in table:
        raise InvalidIR(f"operation {name!r} is not defined on {dtype}")
    function = ROUNDED[name] if rounded and compute == "float32" and name in ROUNDED else table[name]
    result = function(code, *[cast(code, compute, code.opened(a), dtype) for a in args])
    return code.wrapped(result if name in PREDICATES else cast(code, dtype, result, compute))


def lower_limited(dtype: str, x: Expr, most: float, added: float, lanes: int) -> Expr:
    """The float32 min(max(x, 0), most) + added as `dtype`: float32, or an integer which has that. Between the limits a
    NaN is 0."""
    code = Code("float32", lanes)
    limited = between(code, code.opened(x), 0.0, most)
    limited = limited + code.const(added) if added else limited
    return code.wrapped(
        limited if dtype == "float32" else tx.Cast(code.type(dtype), tx.Cast(code.type("int32"), limited))
    )


def lower_cast(dtype: str, x: Expr, from_dtype: str, lanes: int) -> Expr:
    """`x` of `from_dtype` converted to `dtype`. Floats go to integers by truncation (out of range: unspecified), to
    bool by not (x = 0), so that NaN is true; float64 goes to 16-bit floats through float32, which may round twice."""
    code = Code("float32", lanes)
    return code.wrapped(cast(code, dtype, code.opened(x), from_dtype))
