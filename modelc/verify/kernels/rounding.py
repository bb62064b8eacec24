"""Numbers with what rounding may have done to them: the running error analysis of scalar operations.

`Rounded` holds numbers in float64 beside how large the roundings of an arithmetic are, in two parts that are carried
through every operation to first order:

    sigma   the standard deviation of roundings, taken for independent: they add in quadrature
    bias    what polynomials of exp, erf, ... are off by, and what a rounding at a tie may change: adds up linearly

(J. H. Wilkinson, Rounding Errors in Algebraic Processes, section 1; N. J. Higham and T. Mary, A New Approach to
Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41(5), 2019, for the quadrature.) What jumps (floor, round,
casts to whole numbers, comparisons) is exact where the jump is farther away than `bias + SIGMAS * sigma`, and may be on
either side elsewhere. Whole numbers, moved data and results that need no rounding carry no error.

The size of roundings decides nothing by itself: roundings of like numbers are not independent. It says which numbers a
kernel's own arithmetic is asked about (machine.py), and, at the roundoff of FINE, whether two computations in float64
are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from modelc.ir.arithmetic import converted
from modelc.ir.expr import DTYPES, FLOATS, NARROW_FLOATS, Op
from modelc.ir.scalar import OPERATIONS

Array = NDArray[Any]
SIGMAS = 8.0  # within which of a jump a number may be on either side
PLACES = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # digits of a significand
TINY = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}
FINE = {**PLACES, "float64": 33, "float32": 33}  # of computations in float64, which agree far better than so
LARGEST = {name: float(np.finfo(DTYPES[name]).max) for name in ("float64", "float32", "float16")}
LARGEST["bfloat16"] = float((2 - 2.0**-7) * 2.0**127)

SHORT_POLYNOMIAL = 2.0**-12  # of exp, erf, tanh, sigmoid where results are rounded to bfloat16 (math/rounded.py)
WITHIN_PERIOD = 0.1  # an error of the argument, small enough that a function goes one way or stays near


@dataclass(frozen=True)
class Rounded:
    """Numbers of `dtype`: floats as float64, others as they are. `sigma` and `bias` are None where nothing was
    rounded; an infinite bias says that nothing can be told."""

    value: Array
    dtype: str
    sigma: Array | None = None
    bias: Array | None = None

    @property
    def exact(self) -> bool:
        return self.sigma is None and self.bias is None

    @property
    def bound(self) -> Array:
        """How far a right result may be away."""
        return bound_of(self.sigma, self.bias)


def bound_of(sigma: Array | None, bias: Array | None) -> Array:
    parts = ([] if sigma is None else [SIGMAS * sigma]) + ([] if bias is None else [bias])
    return sum(parts[1:], parts[0]) if parts else np.zeros(())


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def exact(array: Array, dtype: str | None = None) -> Rounded:
    """Numbers as they are."""
    name = dtype or array.dtype.name
    return Rounded(array.astype(np.float64) if is_float(name) else array, name)


def _square(x: Array | None) -> Array | float:
    return 0.0 if x is None else x * x


def or_zero(x: Array | float | None) -> Array | float:
    return 0.0 if x is None else x


def _without_nan(error: Array, value: Array) -> Array:
    """An error that is no number where the value is one says that nothing can be told; of an infinity or NaN that exact
    operands give, there is no error."""
    return np.where(np.isfinite(value), np.where(np.isnan(error), np.inf, error), 0.0)


def _exactly(e: Op, args: Sequence[Rounded]) -> Rounded:
    value = np.asarray(OPERATIONS[e.name].meaning(*(a.value for a in args)))
    dtype = "bool" if OPERATIONS[e.name].result == "bool" else args[0].dtype
    return Rounded(value.astype(np.float64 if is_float(dtype) else DTYPES[dtype], copy=False), dtype)


def _are_whole(x: Rounded) -> NDArray[np.bool_]:
    """Which numbers are whole, and so are those that a jump may have made of them: sums of such are not rounded."""
    unrounded = (or_zero(x.sigma) == 0) & (or_zero(x.bias) == np.rint(or_zero(x.bias)))
    return np.asarray((x.value == np.rint(x.value)) & unrounded)


def _product(a: Array, b: Array) -> Array:
    """a * b, where nothing times anything is nothing."""
    return np.where((a == 0) | (b == 0), 0.0, a * b)


def _quotient(value: Array, a: Array, b: Array) -> tuple[Array, Array]:
    return 1 / b, value / b


SLOPES: dict[str, Callable[..., tuple[Array, ...]]] = {
    "add": lambda value, a, b: (np.ones(()), np.ones(())),
    "sub": lambda value, a, b: (np.ones(()), np.ones(())),
    "mul": lambda value, a, b: (b, a),
    "div": _quotient,
}


def passed_on(e: Op, args: Sequence[Rounded], value: Array) -> tuple[Array, Array]:
    """What the operands' errors come to in a sum, difference, product or quotient: variance and bias."""
    variance, bias = np.zeros(value.shape), np.zeros(value.shape)
    for slope, a in zip(SLOPES[e.name](value, *(a.value for a in args)), args, strict=True):
        if a.sigma is not None:
            variance = variance + _product(slope, a.sigma) ** 2
        if a.bias is not None:
            bias = bias + _product(np.abs(slope), a.bias)
    return variance, bias


def has_digits_of(value: Array, dtype: str) -> NDArray[np.bool_]:
    """Which numbers a float dtype has as they are."""
    return np.asarray(value == value.astype(DTYPES[dtype]).astype(np.float64))


def _lipschitz(value: Array, dtype: str, args: Sequence[Rounded]) -> Rounded:
    """Of the greater or lesser of two: where they are farther apart than their errors, the error of the one that it
    is; else the larger."""
    a, b = args
    bounds = a.bound + b.bound
    with np.errstate(all="ignore"):
        near = ~(np.abs(a.value - b.value) > bounds)
        first = (value == a.value) & ~near
    parts: list[Array | None] = []
    for mine, theirs in ((a.sigma, b.sigma), (a.bias, b.bias)):
        if mine is None and theirs is None:
            parts.append(None)
            continue
        my_error, their_error = (np.broadcast_to(or_zero(x), value.shape) for x in (mine, theirs))
        parts.append(np.where(near, np.maximum(my_error, their_error), np.where(first, my_error, their_error)))
    return Rounded(value, dtype, *parts)


def _jump(step: Callable[[Array], Array], x: Rounded, value: Array) -> Array | None:
    """How far a step function may be from `value`, its value at x."""
    reach = x.bound if is_float(x.dtype) else x.bound.astype(x.value.dtype)
    with np.errstate(all="ignore"):
        apart = [np.abs(step(x.value + sign * reach).astype(np.float64) - value) for sign in (1.0, -1.0)]
        far = np.maximum(*apart)
    far = np.where(np.isfinite(reach), np.where(np.isnan(far), 0.0, far), np.inf)
    return far if far.any() else None


def _wrapped(x: Rounded, value: Array, dtype: str) -> Array:
    """How far `value`, the cast of x to whole numbers or bools, may be from that of a number within x's errors which
    `dtype` does not hold, and which wraps: as far as any number of `dtype`; 0 where there is no such number. Of bools
    0 is the number that both ends may lie beside."""
    kind = DTYPES[dtype]
    least, most = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    number, reach, whole = np.asarray(x.value, np.float64), np.asarray(x.bound), value.astype(np.float64)
    with np.errstate(all="ignore"):
        low, high = number - reach, number + reach
        wraps = (low <= 0) & (high >= 0) if kind.kind == "b" else (low <= least - 1.0) | (high >= most + 1.0)
    return np.where(wraps & (reach > 0), np.maximum(whole - least, most - whole), 0.0)


def _compared(e: Op, args: Sequence[Rounded]) -> Rounded:
    a, b = args
    value = np.asarray(OPERATIONS[e.name].meaning(a.value, b.value))
    reach = a.bound + b.bound
    with np.errstate(all="ignore"):
        apart = np.abs(np.asarray(a.value, np.float64) - np.asarray(b.value, np.float64))
        open_ = (apart <= reach) & (reach > 0) & ~((a.value == b.value) & ~np.isfinite(np.asarray(a.value, np.float64)))
    return Rounded(value, "bool", None, open_.astype(np.float64) if open_.any() else None)


def _logic(e: Op, args: Sequence[Rounded]) -> Rounded:
    """A bool that may be either (bias 1) decides where the others do not."""
    meaning = OPERATIONS[e.name].meaning
    value = np.asarray(meaning(*(a.value for a in args)))
    open_ = np.zeros(value.shape, bool)
    for k, a in enumerate(args):
        if a.bias is not None:
            turned = [~x.value.astype(bool) if i == k else x.value for i, x in enumerate(args)]
            open_ |= (np.asarray(meaning(*turned)) != value) & (a.bias > 0)
    both = [a.bias for a in args if a.bias is not None]
    if len(both) == 2:
        open_ |= (both[0] > 0) & (both[1] > 0)
    return Rounded(value, "bool", None, open_.astype(np.float64) if open_.any() else None)


def _whole(e: Op, args: Sequence[Rounded]) -> Rounded:
    """Whole numbers that a rounding before may have moved by some."""
    value = np.asarray(OPERATIONS[e.name].meaning(*(a.value for a in args))).astype(DTYPES[args[0].dtype], copy=False)
    numbers = [np.asarray(a.value, np.float64) for a in args]
    errors = [np.asarray(or_zero(a.bias), np.float64) for a in args]
    if e.name in ("add", "sub"):
        bias = errors[0] + errors[1]
    elif e.name == "mul":
        bias = np.abs(numbers[0]) * errors[1] + np.abs(numbers[1]) * errors[0] + errors[0] * errors[1]
    elif e.name in ("max", "min"):
        bias = np.maximum(errors[0], errors[1])
    elif e.name in ("neg", "abs"):
        bias = errors[0]
    elif e.name == "lookup":
        moved = (OPERATIONS[e.name].meaning(args[0].value + sign, *(a.value for a in args[1:])) for sign in (-1, 1))
        jump = np.maximum(*(np.abs(np.asarray(x, np.float64) - value) for x in moved))
        bias = np.where(errors[0] > 1, 255.0, np.where(errors[0] > 0, jump, 0.0))
    else:
        bias = np.where(sum(errors) > 0, np.inf, 0.0)
    return Rounded(value, args[0].dtype, None, np.broadcast_to(bias, value.shape))


def _selected(condition: Rounded, then: Rounded, otherwise: Rounded) -> Rounded:
    chosen = condition.value.astype(bool)
    value = np.where(chosen, then.value, otherwise.value)
    parts: list[Array | None] = []
    for a, b in ((then.sigma, otherwise.sigma), (then.bias, otherwise.bias)):
        merged = None if a is None and b is None else np.where(chosen, or_zero(a), or_zero(b))
        parts.append(None if merged is None else np.broadcast_to(merged, value.shape))
    sigma, bias = parts
    if condition.bias is not None:  # either arm may have been taken
        with np.errstate(all="ignore"):
            jump = np.abs(np.asarray(then.value, np.float64) - np.asarray(otherwise.value, np.float64))
        jump = np.where(np.isnan(jump), np.inf, jump) + then.bound + otherwise.bound
        same = np.broadcast_to(np.asarray(then.value == otherwise.value), jump.shape) & then.exact & otherwise.exact
        bias = or_zero(bias) + np.where((condition.bias > 0) & ~same, jump, 0.0)
    return Rounded(value, then.dtype, sigma, bias)


def _bits(x: Rounded, dtype: str) -> Rounded:
    native = np.asarray(x.value.astype(DTYPES[x.dtype]) if is_float(x.dtype) else x.value, order="C")
    value = native.view(DTYPES[dtype]).reshape(native.shape)
    plain = exact(value, dtype)
    if x.exact:
        return plain
    return Rounded(plain.value, dtype, None, np.where(x.bound > 0, np.inf, 0.0) + np.zeros(value.shape))


def extreme(terms: Rounded, axis: int, greatest: bool) -> Rounded:
    """The greatest or least of `terms` along `axis`."""
    value = np.asarray(terms.value.max(axis=axis) if greatest else terms.value.min(axis=axis))
    if terms.exact:
        return Rounded(value, terms.dtype)
    bound = np.broadcast_to(terms.bound, terms.value.shape)
    at = np.expand_dims(value, axis)
    with np.errstate(all="ignore"):
        near = ~(np.abs(terms.value - at) > bound + bound.max(axis=axis, keepdims=True))
    parts = [
        None if part is None else np.where(near, np.broadcast_to(part, near.shape), 0.0).max(axis=axis)
        for part in (terms.sigma, terms.bias)
    ]
    return Rounded(value, terms.dtype, *parts)


@dataclass(frozen=True)
class Sums:
    """Sums of terms: the `value`, the terms' sizes to an Analysis's `power` added up, the `largest` of the partial
    sums, and the terms' own variance and bias; an array each."""

    value: Array
    powers: Array
    largest: Array
    variance: Array | float
    bias: Array | float


@dataclass(frozen=True)
class Analysis:
    """How large the roundings of an arithmetic are that has so many `places`, binary digits, by float dtype; values are
    those of real numbers. `short`: functions may be those for results in bfloat16; `halves`: products are added up in
    float16."""

    places: Mapping[str, int] = field(default_factory=lambda: PLACES)
    short: bool = False
    halves: bool = False
    power: ClassVar[int] = 2  # of the terms' sizes in Sums: roundings add in quadrature

    def operate(self, e: Op, args: Sequence[Rounded]) -> Rounded:
        """The operation `e` on numbers with errors."""
        if e.name in ("cast", "bits"):
            assert e.dtype is not None
            return _bits(args[0], e.dtype) if e.name == "bits" else self.cast(args[0], e.dtype)
        if e.name == "select":
            return _selected(*args)
        if e.name == "claim":
            return args[0]
        row = OPERATIONS[e.name]
        if all(a.exact for a in args) and not (is_float(args[-1].dtype) and row.rounding == "rounded"):
            return _exactly(e, args)
        if row.rounding == "compares":
            return _compared(e, args)
        if row.rounding == "joins":
            return _logic(e, args)
        if e.name in ("isnan", "isinf"):
            return exact(OPERATIONS[e.name].meaning(args[0].value), "bool")
        if not is_float(args[0].dtype):
            return _whole(e, args)
        return self.real(e, args)

    def cast(self, x: Rounded, dtype: str) -> Rounded:
        """`x` converted: to a wider float as it is, to a narrower one rounded, to whole numbers by its steps."""
        if dtype == x.dtype:
            return x
        source_float, target_float = is_float(x.dtype), is_float(dtype)
        if x.exact:
            native = x.value.astype(DTYPES[x.dtype]) if source_float else x.value
            return exact(np.asarray(converted(native, DTYPES[dtype])), dtype)
        if target_float:
            if source_float and PLACES[dtype] >= PLACES[x.dtype]:
                return self.within_range(Rounded(x.value, dtype, x.sigma, x.bias))
            return self.rounded_once(np.asarray(x.value, np.float64), dtype, _square(x.sigma), x.bias)
        if dtype in NARROW_FLOATS or x.dtype in NARROW_FLOATS:
            return Rounded(np.asarray(converted(x.value, DTYPES[dtype])), dtype, None, np.full(x.value.shape, np.inf))

        def step(numbers: Array) -> Array:
            return np.asarray(converted(np.asarray(numbers), DTYPES[dtype]))

        value = step(x.value)
        far = np.maximum(or_zero(_jump(step, x, value.astype(np.float64))), _wrapped(x, value, dtype))
        return Rounded(value, dtype, None, far if far.any() else None)

    def real(self, e: Op, args: Sequence[Rounded]) -> Rounded:
        """An operation on floats of which some rounding follows."""
        dtype = args[0].dtype
        value = np.asarray(OPERATIONS[e.name].meaning(*(a.value for a in args)), np.float64)
        if e.name in ("max", "min"):
            return _lipschitz(value, dtype, args)
        if e.name in ("neg", "abs"):
            return Rounded(value, dtype, args[0].sigma, args[0].bias)
        if OPERATIONS[e.name].rounding == "jumps":
            return Rounded(
                value, dtype, None, _jump(lambda x: np.asarray(OPERATIONS[e.name].meaning(x)), args[0], value)
            )
        if e.name in ("mod", "fmod"):
            return self._remainder(args, value)
        if e.name in SLOPES:
            return self.sloped(e, args, value)
        return self.by_difference(e, args, value)

    def sloped(self, e: Op, args: Sequence[Rounded], value: Array) -> Rounded:
        """A sum, difference, product or quotient. Where no operand was rounded and the result has the digits of its
        dtype, it is not rounded either: a quotient that is a tie stays one."""
        variance, bias = passed_on(e, args, value)
        rounded = self.rounded_once(value, args[0].dtype, variance, bias)
        unrounded = (variance == 0) & (bias == 0) & has_digits_of(value, args[0].dtype)
        unrounded |= self.stay_whole(e, args, value, bias)
        if unrounded.all() and not bias.any():
            return Rounded(rounded.value, rounded.dtype)
        sigma, bias = np.where(unrounded, 0.0, or_zero(rounded.sigma)), np.where(unrounded, bias, or_zero(rounded.bias))
        return replace(rounded, sigma=sigma, bias=bias)

    def stay_whole(self, e: Op, args: Sequence[Rounded], value: Array, bias: Array) -> NDArray[np.bool_]:
        """Which results are sums or differences of whole numbers, and so small that none is rounded."""
        if e.name not in ("add", "sub"):
            return np.zeros(value.shape, bool)
        return _are_whole(args[0]) & _are_whole(args[1]) & (np.abs(value) + bias < 2.0 ** self.places[args[0].dtype])

    def by_difference(self, e: Op, args: Sequence[Rounded], value: Array) -> Rounded:
        """A function whose errors are those of its polynomial, and what its operands' errors change."""
        row, dtype = OPERATIONS[e.name], args[0].dtype
        variance: Array | float = 0.0
        bias: Array | float = 0.0
        for k, a in enumerate(args):
            for error, spread in ((a.sigma, True), (a.bias, False)):
                if error is None:
                    continue
                moved = np.zeros(np.broadcast_shapes(value.shape, error.shape))
                for sign in (1.0, -1.0):
                    shifted = [x.value + sign * error if i == k else x.value for i, x in enumerate(args)]
                    moved = np.maximum(moved, np.abs(np.asarray(row.meaning(*shifted)) - value))
                if row.period:  # two points a period apart are alike, and what is between is not
                    moved = np.where(error < WITHIN_PERIOD, moved, row.period)
                moved = np.where(np.isnan(moved) & (error == 0), 0.0, moved)
                variance, bias = (variance + moved**2, bias) if spread else (variance, bias + moved)
        roundoff = 2.0 ** -self.places["float32" if dtype in ("float16", "bfloat16") else dtype]
        relative, absolute = row.error
        off = roundoff * (relative * (np.abs(value) + bias) + absolute)
        if self.short and row.shortened:
            off = off + SHORT_POLYNOMIAL * np.abs(value)
        if e.name == "pow":  # exp(b * log(a)): the argument's own rounding grows with it
            with np.errstate(all="ignore"):
                power = np.abs(args[1].value * np.log(np.abs(args[0].value)))
            off = off + roundoff * np.where(np.isfinite(power), power, 0.0) * np.abs(value) * 4
        return self.rounded_once(value, dtype, variance, bias + off)

    def _remainder(self, args: Sequence[Rounded], value: Array) -> Rounded:
        a, b = args
        reach = a.bound + np.abs(np.trunc(a.value / b.value)) * b.bound
        edge = np.minimum(np.abs(value), np.abs(np.abs(b.value) - np.abs(value))) <= reach
        return self.rounded_once(value, a.dtype, 0.0, np.where(edge & (reach > 0), np.abs(b.value) + reach, reach))

    def rounded_once(self, value: Array, dtype: str, variance: Array | float, bias: Array | float | None) -> Rounded:
        """A result of `dtype` whose operands leave `variance` and `bias`, rounded once."""
        far = 0.0 if bias is None else bias
        size = np.abs(value) + far  # of what it may be, which is rounded too
        sigma = np.sqrt(variance + _square(2.0 ** -self.places[dtype] * size))
        floor = far + TINY[dtype]
        return self.within_range(
            Rounded(value, dtype, _without_nan(sigma, value), _without_nan(floor + np.zeros_like(value), value))
        )

    def within_range(self, x: Rounded) -> Rounded:
        """What is too large for its dtype is infinite."""
        if not is_float(x.dtype) or x.dtype == "float64":
            return x
        limit = LARGEST[x.dtype]
        beyond = np.abs(x.value) > limit
        if not beyond.any():
            return x
        close = np.isfinite(x.value) & (
            np.abs(np.abs(x.value) - limit) <= x.bound + limit * 2.0 ** -self.places[x.dtype]
        )
        bias = np.where(close, np.inf, 0.0 if x.bias is None else x.bias)
        return Rounded(np.where(beyond, np.copysign(np.inf, x.value), x.value), x.dtype, x.sigma, bias)

    def summed(self, terms: Rounded, axis: int, products: bool = False) -> Rounded:
        """The sum of `terms` along `axis`, in any order; `products`: of products. Roundings of partial sums are as
        large as these (natural order tells how large they get), and at least as those of a random walk of the terms."""
        count = terms.value.shape[axis]
        if not is_float(terms.dtype):
            total = np.asarray(terms.value.sum(axis=axis, dtype=terms.value.dtype))
            return Rounded(total, terms.dtype, None, None if terms.bias is None else terms.bias.sum(axis=axis))
        value = terms.value.sum(axis=axis)
        variance = 0.0 if terms.sigma is None else (terms.sigma**2).sum(axis=axis)
        bias = 0.0 if terms.bias is None else terms.bias.sum(axis=axis)
        largest = np.abs(np.cumsum(terms.value, axis=axis)).max(axis=axis, initial=0.0)
        sums = Sums(value, (terms.value**2).sum(axis=axis), largest, variance, bias)
        return self.accumulated(sums, terms.dtype, count, products)

    def accumulated(self, sums: Sums, dtype: str, count: int, products: bool) -> Rounded:
        """Sums of `count` terms each. Those of half-width floats are in float32 in a kernel, or rounded to their dtype
        where the model says so by its casts; where `halves`, those of `products` are in float16."""
        halves = self.halves and products
        places = self.places["float16" if halves else "float32" if dtype in ("float16", "bfloat16") else dtype]
        unit = 2.0 ** (-2 * places) / 3  # a rounding is uniform within a unit of roundoff
        variance = sums.variance + unit * count * (sums.largest**2 + sums.powers)
        tiny = TINY[dtype] + (TINY["float16"] if halves else 0.0)
        return self.rounded_once(sums.value, dtype, variance, sums.bias + count * tiny)

    def multiplied(self, terms: Rounded, axis: int) -> Rounded:
        """The product of `terms` along `axis`."""
        value = np.asarray(terms.value.prod(axis=axis))
        if not is_float(terms.dtype):
            open_ = None if terms.bias is None else np.where(terms.bias.any(axis=axis), np.inf, 0.0)
            return Rounded(value.astype(terms.value.dtype), terms.dtype, None, open_)
        with np.errstate(all="ignore"):
            relative = (
                0.0 if terms.sigma is None else np.nan_to_num((terms.sigma / np.abs(terms.value)) ** 2).sum(axis=axis)
            )
            far = 0.0 if terms.bias is None else np.nan_to_num(terms.bias / np.abs(terms.value)).sum(axis=axis)
        count = terms.value.shape[axis] * 2.0 ** (-2 * self.places[terms.dtype])
        return self.rounded_once(value, terms.dtype, (relative + count) * value**2, far * np.abs(value))
