"""Pairs of models of whole numbers: the wrong one computes in another dtype, or rounds, compares, addresses or breaks
ties otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from layer_draft import LayerDraft, Rng, Sampler, whole
from layers_of_sums import chance, number, pick
from onnx import TensorProto, helper


def _integers(d: LayerDraft, dtype: str = "int64", most: int = 2_000_000_000) -> str:
    shape = (number(d, 1, 8), number(d, 2, 40))
    return d.input(*shape, dtype=dtype, sampler=whole(shape, 0 if dtype[0] == "u" else -most, most, dtype))


def square(d: LayerDraft, wrong: bool) -> None:
    """Mul(x, x) for Identity."""
    x = _integers(d, pick(d, "int32", "int64"), 30_000)
    d.output(d.op("Mul", x, x) if wrong else d.op("Identity", x))


def quotient(d: LayerDraft, wrong: bool) -> None:
    dtype = pick(d, "int32", "int64")
    right, other = pick(d, (7, 8), (7, 5), (3, -3), (2, 1000))
    d.output(d.op("Div", _integers(d, dtype, 30_000), d.weight(other if wrong else right, dtype)))


def narrow_product(d: LayerDraft, wrong: bool) -> None:
    """A product, sum or square of int64 in int32."""
    x, factor = _integers(d), pick(d, 1, 3, 1000)
    op = pick(d, "Mul", "Add")
    y = d.weight(factor if op == "Mul" else 2**31, "int64")
    if not wrong:
        d.output(d.op(op, d.op("Mul", x, x) if factor == 1 else x, y))
        return
    small, other = (d.op("Cast", v, to=TensorProto.INT32) for v in (x, y))
    product = d.op(op, d.op("Mul", small, small) if factor == 1 else small, other)
    d.output(d.op("Cast", product, to=TensorProto.INT64))


def remainder(d: LayerDraft, wrong: bool) -> None:
    """The sign of a remainder is the dividend's in place of the divisor's."""
    dtype = pick(d, "int32", "int64")
    x, divisor = _integers(d, dtype, 30_000), d.weight(pick(d, 7, -5, 3), dtype)
    d.output(d.op("Mod", x, divisor, fmod=int(wrong)))


def shift(d: LayerDraft, wrong: bool) -> None:
    dtype, most = pick(d, ("uint8", 2**8 - 1), ("uint32", 2**32 - 1), ("uint64", 2**64 - 1))
    direction, by = pick(d, "RIGHT", "LEFT"), int(d.rng.integers(1, 7))
    other = by + 1 if direction == "RIGHT" else by
    y = d.op("BitShift", _integers(d, dtype, most), d.weight(other if wrong else by, dtype), direction=direction)
    if direction == "LEFT" and wrong:  # the uppermost bit is lost
        y = d.op("BitwiseAnd", y, d.weight(2 ** (np.dtype(dtype).itemsize * 8 - 1) - 1, dtype))
    d.output(y)


def wrapped(d: LayerDraft, wrong: bool) -> None:
    """A sum of whole numbers that is narrowed in between."""
    x = _integers(d, "int32", 1_000_000)
    narrow = d.op("Cast", d.op("Cast", x, to=TensorProto.INT16), to=TensorProto.INT32)
    d.output(d.op("Add", narrow if wrong else d.op("Identity", x), d.weight(1, "int32")))


# --- of few numbers -------------------------------------------------------------------------------------------------


def _few(d: LayerDraft) -> tuple[int, int]:
    return (number(d, 1, 4), number(d, 1, 8))


def _whole(d: LayerDraft, dtype: str, shape: tuple[int, ...], low: int | None = None, high: int | None = None) -> str:
    """Numbers from `low` to `high`, where none are given of the dtype's whole range but for the least of signed ones,
    whose quotient by -1 overflows."""
    limits = np.iinfo(dtype)
    low = (limits.min + (limits.min < 0)) if low is None else low
    return d.input(*shape, dtype=dtype, sampler=whole(shape, low, limits.max if high is None else high, dtype))


def _cast(d: LayerDraft, x: str, dtype: str) -> str:
    return d.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def signed(d: LayerDraft, wrong: bool) -> None:
    """Unsigned numbers taken for signed ones."""
    dtype, op = pick(d, "uint32", "uint64"), pick(d, "Greater", "Div", "Max", "Cast")
    computed = dtype[1:] if wrong else dtype
    x = _cast(d, _whole(d, dtype, _few(d)), computed)
    y = x if op == "Cast" else d.op(op, x, d.weight(7, computed))
    d.output(y if op == "Greater" else _cast(d, y, "int64" if op == "Cast" else dtype))


def through_floats(d: LayerDraft, wrong: bool) -> None:
    """A sum of int64 in float64, or in float32."""
    shape = _few(d)
    total, real = d.op("Add", *(_whole(d, "int64", shape) for _ in range(2))), pick(d, "float64", "float32")
    d.output(_cast(d, _cast(d, total, real), "int64") if wrong else d.op("Identity", total))


def lower_half(d: LayerDraft, wrong: bool) -> None:
    """The lower 32 bits of int64 decide."""
    shape, op = _few(d), pick(d, "Equal", "Less", "Max", "CumSum", "bool")

    def apart_above(rng: Rng) -> np.ndarray:
        return rng.integers(-2, 3, shape) * 2**32 + rng.integers(0, 3, shape)

    read = [d.input(*shape, dtype="int64", sampler=apart_above) for _ in range(1 + (op in ("Equal", "Less", "Max")))]
    read = [_cast(d, x, "int32") if wrong else x for x in read]
    if op == "bool":
        d.output(_cast(d, read[0], "bool"))
        return
    y = d.op(op, *read, d.weight(1, "int64")) if op == "CumSum" else d.op(op, *read)
    d.output(_cast(d, y, "int64") if op in ("Max", "CumSum") else y)


def saturating(d: LayerDraft, wrong: bool) -> None:
    """A cast that saturates in place of wrapping."""
    x, dtype = _whole(d, "int64", _few(d)), pick(d, "int8", "uint8", "int16", "int32")
    limits = (d.weight(getattr(np.iinfo(dtype), end), "int64") for end in ("min", "max"))
    d.output(_cast(d, d.op("Clip", x, *limits) if wrong else x, dtype))


def floor_quotient(d: LayerDraft, wrong: bool) -> None:
    """A quotient that is rounded down in place of to zero."""
    dtype, shape = pick(d, "int32", "int64"), _few(d)
    x = _whole(d, dtype, shape, -1000, 1000)
    y = d.input(*shape, dtype=dtype, sampler=_without_zero(shape, dtype)) if chance(d) else d.weight(7, dtype)
    d.output(d.op("Div", d.op("Sub", x, d.op("Mod", x, y)) if wrong else x, y))


def _without_zero(shape: tuple[int, ...], dtype: str) -> Sampler:
    return lambda rng: (rng.integers(1, 20, shape) * rng.choice((-1, 1), shape)).astype(dtype)


def or_equal(d: LayerDraft, wrong: bool) -> None:
    """A comparison of two inputs, or with a number, to which equal ones belong."""
    dtype, shape, op = pick(d, "float32", "uint8", "int8", "int64"), _few(d), pick(d, "Greater", "Less")
    few = [d.input(*shape, dtype=dtype, sampler=_from_few(shape, dtype)) for _ in range(1 + chance(d))]
    few += [] if len(few) == 2 else [d.weight(77, dtype)]
    d.output(d.op(f"{op}OrEqual" if wrong else op, *few))


def _from_few(shape: tuple[int, ...], dtype: str) -> Sampler:
    return lambda rng: rng.integers(70, 80, shape).astype(dtype)


def last_of_whole(d: LayerDraft, wrong: bool) -> None:
    """Of equal whole numbers the last one for the first."""
    dtype, shape = pick(d, "int8", "uint8", "int32"), (number(d, 1, 4), number(d, 2, 8))
    x = d.input(*shape, dtype=dtype, sampler=_from_few(shape, dtype))
    d.output(d.op(pick(d, "ArgMax", "ArgMin"), x, axis=1, select_last_index=int(wrong)))


def beyond_depth(d: LayerDraft, wrong: bool) -> None:
    """OneHot of classes that there are not, modulo those that there are."""
    depth = number(d, 3, 8)
    x = _whole(d, "int64", _few(d), -2 * depth, 2 * depth)
    x = d.op("Mod", x, d.weight(depth, "int64")) if wrong else x
    d.output(d.op("OneHot", x, d.weight(depth, "int64"), d.weight([0, 1])))


def before_first(d: LayerDraft, wrong: bool) -> None:
    """Indices below zero name the first row in place of the last ones."""
    rows, width, op = number(d, 3, 10), number(d, 1, 8), pick(d, "Gather", "GatherElements")
    index = _whole(d, "int64", (2, width), -rows, rows - 1)
    data = d.input(rows, width) if op == "GatherElements" else d.normal(rows, width)
    d.output(d.op(op, data, d.op("Max", index, d.weight(0, "int64")) if wrong else index))


WHOLE_NUMBERS: Mapping[str, Callable[[LayerDraft, bool], None]] = {
    "square for identity": square,
    "divisor": quotient,
    "int64 in int32": narrow_product,
    "sign of a remainder": remainder,
    "shift": shift,
    "narrowed in between": wrapped,
    "unsigned as signed": signed,
    "int64 through floats": through_floats,
    "lower half of int64": lower_half,
    "saturating cast": saturating,
    "quotient rounded down": floor_quotient,
    "greater or equal": or_equal,
    "last of equal whole numbers": last_of_whole,
    "OneHot beyond its depth": beyond_depth,
    "index below zero": before_first,
}
