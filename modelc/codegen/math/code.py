"""How operations are written in TIR: expressions with their Lets, constants, what the current machine is.

TIR expressions are trees: what is used twice is bound by a Let, and all Lets are outermost. The caller should make
them statements that go through a local buffer, for TVM substitutes a Let's value into whatever uses it, during its
analyses: a chain of ten takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from modelc.codegen.lean_tvm import tvm, tx

Expr = Any  # a TIR expression
COMPARED = {"lt": tx.LT, "le": tx.LE, "gt": tx.GT, "ge": tx.GE, "eq": tx.EQ, "ne": tx.NE}


class Code:
    """An expression being written: its dtype, its lanes, and the Lets around it, outermost first."""

    def __init__(self, dtype: str, lanes: int) -> None:
        self.dtype, self.lanes = dtype, lanes
        self.bits = _bits(dtype)
        self.lets: list[tuple[Expr, Expr]] = []

    def type(self, dtype: str | None = None) -> str:
        return _vector(dtype or self.dtype, self.lanes)

    def const(self, value: float | int | bool, dtype: str | None = None) -> Expr:
        return _constant(value, dtype or self.dtype, self.lanes)

    def let(self, value: Expr) -> Expr:
        """A variable with this value. Constants and variables stand for themselves, and so do comparisons, which are
        cheap to repeat and which TVM's analyses cannot bind."""
        dtype = tir_dtype(value)
        if isinstance(value, tx.Var) or constant_value(value) is not None or dtype.startswith("bool"):
            return value
        var = tx.Var("t", dtype)
        self.lets.append((var, value))
        return var

    def opened(self, value: Expr) -> Expr:
        """`value` with its own Lets among those of this expression."""
        while isinstance(value, tx.Let):
            self.lets.append((value.var, value.value))
            value = value.body
        return value

    def wrapped(self, result: Expr) -> Expr:
        for var, value in reversed(self.lets):
            result = tx.Let(var, value, result)
        return result

    def intrinsic(self, name: str, *args: Expr) -> Expr:
        """LLVM's intrinsic; the backend splits it into libm calls where no instruction exists."""
        return tx.call_llvm_pure_intrin(self.type(), f"llvm.{name}", *args)

    def libm(self, name: str, *args: Expr) -> Expr:
        """A libm function called for each lane."""
        name = name + "f" * (self.dtype == "float32")
        if self.lanes == 1:
            return tx.call_pure_extern(self.dtype, name, *args)
        lanes = [[tx.Shuffle([a], [tx.IntImm("int32", k)]) for a in args] for k in range(self.lanes)]
        calls = [tx.call_pure_extern(self.dtype, name, *lane) for lane in lanes]
        return tx.Shuffle(calls, [tx.IntImm("int32", k) for k in range(self.lanes)])

    def as_int(self, x: Expr) -> Expr:
        return tx.reinterpret(self.type(f"int{self.bits}"), x)

    def as_float(self, x: Expr) -> Expr:
        return tx.reinterpret(self.type(), x)

    def int(self, value: int) -> Expr:
        """A constant of the signed integer as wide as this number."""
        return self.const(value, f"int{self.bits}")

    def polynomial(self, x: Expr, coefficients: tuple[float, ...]) -> Expr:
        """Horner's rule, highest power first."""
        result = self.const(coefficients[0])
        for c in coefficients[1:]:
            result = result * x + self.const(c)
        return result


def tir_dtype(value: Expr) -> str:
    """The dtype of a TIR expression, with its lanes: float32x8."""
    return str(value.ty.dtype)


@cache
def _bits(dtype: str) -> int:
    return int("".join(c for c in dtype if c.isdigit()) or 1)


def _vector(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def _constant(value: float | int | bool, dtype: str, lanes: int) -> Expr:
    if dtype.startswith("float"):
        scalar = tx.FloatImm(dtype, float(np.dtype(dtype).type(value)))
    else:
        scalar = tx.IntImm(dtype, int(value))
    return scalar if lanes == 1 else tx.Broadcast(scalar, lanes)


def constant_value(x: Expr) -> float | int | None:
    """The number, if `x` is a constant or a broadcast of one."""
    if isinstance(x, tx.Broadcast):
        x = x.value
    return x.value if isinstance(x, (tx.IntImm, tx.FloatImm)) else None


def target_arch() -> str:
    """aarch64, arm, x86_64, ... of the current TVM target; empty if there is none."""
    target = tvm.target.Target.current(allow_none=True)
    return str(target.attrs.get("mtriple", "")).partition("-")[0] if target is not None else ""


def is_arm32() -> bool:
    return target_arch().startswith("armv7") or target_arch() == "arm"


def is_risc_v() -> bool:
    return target_arch().startswith("riscv")


def fuses() -> bool:
    """Whether the current TVM target computes a * b + c at once; asked for where it does not, it is a call."""
    if target_arch().startswith(("aarch64", "riscv")):
        return True
    return any(map(tvm.target.codegen.llvm_cpu_has_features, ("fma", "vfp4")))  # x86's and 32-bit Arm's name for it


def halves() -> bool:
    """Whether the current TVM target computes in float16."""
    if target_arch().startswith("aarch64"):
        return bool(tvm.target.codegen.llvm_cpu_has_features("fullfp16"))
    return target_arch() == "x86_64" and bool(tvm.target.codegen.llvm_cpu_has_features("avx512fp16"))


def plain(node: Callable[..., Expr]) -> Callable[..., Expr]:
    """An operation that is one node of TIR."""
    return lambda code, *args: node(*args)


def let_operands(function: Callable[..., Expr]) -> Callable[..., Expr]:
    """For an operation that uses an operand more than once: its operands become variables."""
    return lambda code, *args: function(code, *[code.let(a) for a in args])
