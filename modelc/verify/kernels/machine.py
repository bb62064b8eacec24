"""The arithmetic of a kernel: each result rounded to its dtype, sums added up in the order of the kernel's loops.

A `Rounded` of this arithmetic has the number that machine code computes, in float64, and no sigma. Its `bias` bounds
what is not known of the machine code, for every rounding:

    a * b + c    LLVM may contract it to one rounding: a roundoff of the product
    functions    what their polynomials are off by (rounding.py)
    orders       of sums by an instruction that adds up by itself: n roundoffs of the magnitudes that are added
    subnormals   CPUs may take them for zero: in x * sigmoid(x) the second factor, which the first makes a normal number

(N. J. Higham, Accuracy and Stability of Numerical Algorithms, section 4.2, for sums in any order.) LLVM reassociates
nothing: kernels are compiled without fast-math.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from modelc.ir.expr import DTYPES, Op
from modelc.verify.kernels.rounding import (
    PLACES,
    TINY,
    Analysis,
    Array,
    Rounded,
    Sums,
    has_digits_of,
    is_float,
    or_zero,
    passed_on,
)


@dataclass(frozen=True)
class Machine(Analysis):
    """`contracted`: whether the products that a loop adds up are not rounded by themselves, as on every CPU with fused
    multiply-adds; None: where loops are cut, some are and some are not."""

    contracted: bool | None = True

    power: ClassVar[int] = 1  # of the terms' sizes in Sums: their roundings are bounded, one by one

    def rounded_once(self, value: Array, dtype: str, variance: Array | float, bias: Array | float | None) -> Rounded:
        far = np.broadcast_to(np.asarray(or_zero(bias)), value.shape)
        with np.errstate(all="ignore"):
            number = value.astype(DTYPES[dtype]).astype(np.float64)
        error = np.where(far > 0, far + 2.0 ** -PLACES[dtype] * (np.abs(value) + far), 0.0)
        error = error + np.where(np.abs(value) < TINY[dtype], np.abs(value), 0.0)
        error = np.where(np.isfinite(value), np.where(np.isnan(error), np.inf, error), 0.0)
        return Rounded(number, dtype, None, error if error.any() else None)

    def sloped(self, e: Op, args: Sequence[Rounded], value: Array) -> Rounded:
        _, bias = passed_on(e, args, value)
        dtype = args[0].dtype
        rounded = self.rounded_once(value, dtype, 0.0, bias)
        unrounded = self.stay_whole(e, args, value, bias)
        if rounded.bias is not None and unrounded.any():
            rounded = replace(rounded, bias=np.where(unrounded, bias, rounded.bias))
        if PLACES[dtype] < PLACES["float32"]:  # LLVM may keep a chain of these in float32
            loose = np.where(has_digits_of(value, dtype), 0.0, 2.0 ** -PLACES[dtype] * np.abs(value))
            rounded = self.off_by(rounded, loose)
        return rounded

    def contracting(self, x: Rounded, product: Array) -> Rounded:
        """`x`, a sum of which one operand is a product that may not have been rounded."""
        return self.off_by(x, 2.0 ** -PLACES[x.dtype] * (np.abs(product) + 2 * np.abs(x.value)))

    def off_by(self, x: Rounded, error: Array) -> Rounded:
        """`x`, which the machine code may have further away."""
        bias = np.broadcast_to(or_zero(x.bias) + error, x.value.shape)
        return replace(x, bias=bias if bias.any() else None)

    def product(self, args: Sequence[Rounded]) -> Rounded:
        """The product of two floats, exact, as a fused multiply-add takes it."""
        value = np.asarray(args[0].value * args[1].value)
        _, bias = passed_on(Op("mul", ()), args, value)
        return Rounded(value, args[0].dtype, None, bias if bias.any() else None)

    def multiplied(self, terms: Rounded, axis: int) -> Rounded:
        made = super().multiplied(terms, axis)
        if not is_float(terms.dtype):
            return made
        error = terms.value.shape[axis] * 2.0 ** -PLACES[terms.dtype] * np.abs(made.value)
        return self.off_by(replace(made, sigma=None), np.asarray(error))

    def added(self, terms: Rounded, order: Array | None, loose: bool, products: bool) -> Rounded:
        """The sums of S x K `terms`: steps x lanes of `order` says which terms each step takes, of which the lanes are
        added up by halves first; None where a kernel's order is not known. `loose`: terms may be products that are
        contracted or not; `products`: they are products."""
        if not is_float(terms.dtype):
            return self.summed(terms, 1)
        dtype = self._added_in(terms.dtype, products)
        unit, sizes = 2.0 ** -PLACES[dtype], np.abs(terms.value).sum(axis=1)
        far = np.broadcast_to(np.asarray(or_zero(terms.bias)), terms.value.shape).sum(axis=1)
        if order is None:
            sums = Sums(terms.value.sum(axis=1), sizes, sizes, 0.0, far)
            return self.accumulated(sums, terms.dtype, terms.value.shape[1], products)
        far = far + (unit * sizes if loose else 0.0)
        total, passed = _in_order(terms.value, order, dtype)
        return self.rounded_once(
            total, terms.dtype, 0.0, np.where(far > 0, far + unit * (passed + order.shape[0] * far), 0.0)
        )

    def accumulated(self, sums: Sums, dtype: str, count: int, products: bool) -> Rounded:
        """Sums of `count` terms each in any order, which may be products that are rounded or not."""
        unit = 2.0 ** -PLACES[self._added_in(dtype, products)]
        return self.rounded_once(sums.value, dtype, 0.0, sums.bias + unit * (count + 1) * (sums.powers + sums.bias))

    def _added_in(self, dtype: str, products: bool) -> str:
        """The dtype of partial sums."""
        if self.halves and products:
            return "float16"
        return "float32" if dtype in ("float16", "bfloat16") else dtype


def _in_order(terms: Array, order: Array, dtype: str) -> tuple[Array, Array]:
    """Sums of S x K terms in an order, each step rounded; and of each sum its partial sums, without signs, added up."""
    native, steps = DTYPES[dtype], np.moveaxis(terms[:, order], 0, -1)  # steps x lanes x samples
    with np.errstate(all="ignore"):
        while steps.shape[1] > 1:
            half = steps.shape[1] // 2
            steps = steps.astype(native).astype(np.float64)
            steps = (steps[:, :half] + steps[:, half:]).astype(native).astype(np.float64)
        total = np.zeros(len(terms))
        passed = np.zeros(len(terms))
        for step in steps[:, 0]:
            total = (total + step).astype(native).astype(np.float64)
            passed += np.abs(total)
    return total, passed
