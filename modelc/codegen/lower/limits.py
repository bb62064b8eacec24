"""Floats that are limited to what a small whole number can be, and converted to one: what is known of them then.

    uint8(min(max(x, 0), 255))                                    no other limits are needed for the conversion
    float32(int32(uint8(min(max(round(x) + 7, 0), 255))) - 7)     no conversion is: min(max(round(x) + 7, 0), 255) - 7

In either a NaN is 0 between its limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from modelc.ir.expr import Const, Expr, Op, dtype_of

WIDE = ("float32", "int32")
SMALL = ("uint8", "int8", "uint16", "int16")
MIDDLE = 128  # of the bytes: what is taken from unsigned ones that become signed
LARGEST = 1 << 20  # of a whole number that is added to others: sums stay exact in float32


@dataclass(frozen=True)
class Limited:
    """A float32 `number` between 0 and `most`, to which `added` is added."""

    number: Expr
    most: float
    added: float = 0.0


def limited_whole(e: Expr, dtypes: Mapping[str, str]) -> Limited | None:
    """What `e`, a cast to a whole number of 8 or 16 bits, converts, if that is min(max(x, 0), c) of a float32, and the
    whole number can be c."""
    if not isinstance(e, Op) or e.name != "cast" or e.dtype not in SMALL:
        return None
    above, most = _with_constant("min", e.args[0])
    number, least = _with_constant("max", above)
    if most is None or least != 0 or dtype_of(above, dtypes) != "float32" or not 0 <= most <= np.iinfo(e.dtype).max:
        return None
    return Limited(number, most)


def limited_wide(e: Expr, dtypes: Mapping[str, str]) -> Limited | None:
    """The same of a float32, or an int32, that such a whole number, and one more, was converted to, if it was whole
    before."""
    if not isinstance(e, Op) or e.name != "cast" or e.dtype not in WIDE:
        return None
    number, added = _added(e.args[0])
    if isinstance(number, Op) and number.name == "cast" and number.dtype == "int32":
        (number,) = number.args
    if isinstance(number, Op) and number.name == "cast" and number.dtype == "int8":  # bytes are limited unsigned
        moved, by = _added(number.args[0])
        number, added = (moved, added + by) if by == -MIDDLE else (number, added)
    limits = limited_whole(number, dtypes)
    if limits is None or limits.most != int(limits.most) or abs(added) > LARGEST:
        return None
    whole, more = _added(limits.number)
    if not isinstance(whole, Op) or whole.name != "round" or more != int(more):
        return None
    return Limited(limits.number, limits.most, added)


def _added(e: Expr) -> tuple[Expr, float]:
    """(x, c) where `e` is x + c or x - c; (e, 0) otherwise."""
    for name, sign in (("add", 1), ("sub", -1)):
        number, constant = _with_constant(name, e)
        if constant is not None:
            return number, sign * constant
    return e, 0.0


def _with_constant(name: str, e: Expr) -> tuple[Expr, float | None]:
    """(x, c) where `e` is the operation of x and a constant c; (e, None) otherwise."""
    if isinstance(e, Op) and e.name == name and isinstance(e.args[1], Const):
        return e.args[0], float(e.args[1].value)
    return e, None
