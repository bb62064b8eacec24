"""Random numbers as maps: every element is a hash of a key and of its own position, so that it does not matter which
thread computes it. The key is a hash of the handle's seed (or the node's own), of the run, and of which node draws.

The hash is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
"""

from __future__ import annotations

from math import pi

import numpy as np

from modelc.ir.expr import Const, Expr, Load, cast, const, op
from modelc.ir.graph import RANDOM_STATE, Node, Value
from modelc.ops.operator import (
    FLOATS,
    Definition,
    Inputs,
    Operator,
    Types,
    accumulator,
    assign,
    fail,
    grid,
    names,
    point,
    text,
    widened,
)

WORD = "uint64"
GOLDEN = 0x9E3779B97F4A7C15  # odd, and near 2**64 over the golden ratio: keys of neighbours differ in many bits
MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31


def _word(value: int) -> Const:
    return Const(value % (1 << 64), WORD)


def mixed(word: Expr) -> Expr:
    """A permutation of 64 bits in which every bit of the result depends on every bit of `word`."""
    for shift, factor in MIXING:
        word = op("bitxor", word, op("shr", word, _word(shift))) * _word(factor)
    return op("bitxor", word, op("shr", word, _word(LAST_SHIFT)))


# --- the key ------------------------------------------------------------------------------------------------------


def _key_infer(node: Node, inputs: Inputs) -> Types:
    return ((WORD, (1,)),)


def _key(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    """Of the seed and the number of the run; `stream` tells apart the nodes that draw from the handle's seed, and a
    node's own seed (the bits of a float32) stands in place of that."""
    if "seed" in node.attrs:
        own = int(np.float32(node.attrs["seed"]).view(np.uint32))
        start: Expr = _word(own * GOLDEN)
    else:
        start = Load("x0", (Const(0),)) + _word((int(node.attrs["stream"]) + 1) * GOLDEN)
    body = mixed(mixed(start) + Load("x0", (Const(1),)) * _word(GOLDEN))
    return Definition((), (assign("key", grid((1,)), Load("y0", point(names(1))), body),))


# --- draws --------------------------------------------------------------------------------------------------------


def _infer(node: Node, inputs: Inputs) -> Types:
    dtype = text(node, "dtype", "float32")
    if dtype not in FLOATS:
        fail(node, f"expected one of {', '.join(FLOATS)} as dtype, found {dtype}")
    return ((dtype, tuple(int(n) for n in node.attrs["shape"])),)


def _bits(shape: tuple[int, ...]) -> Expr:
    """64 random bits for each element."""
    position: Expr = Const(0)
    for index, extent in zip(point(names(len(shape))), shape, strict=True):
        position = position * extent + index
    return mixed(Load("x0", (Const(0),)) + (cast(WORD, position) + _word(1)) * _word(GOLDEN))


def _uniform(word: Expr, t: str) -> Expr:
    """As many of the upper bits as a number of dtype `t` has digits, as a number in [0, 1)."""
    digits, whole = (24, "int32") if t == "float32" else (53, "int64")
    return cast(t, cast(whole, op("shr", word, _word(64 - digits)))) * const(2.0**-digits, t)


def _normal(word: Expr, t: str) -> Expr:
    """Of the upper and the lower half a point in the plane, by Box and Muller; its first coordinate."""
    upper = cast("int32", op("shr", word, _word(33)))
    lower = cast("int32", op("bitand", word, _word((1 << 31) - 1)))
    radius = (cast(t, upper) + const(1, t)) * const(2.0**-31, t)
    angle = cast(t, lower) * const(2 * pi * 2.0**-31, t)
    return op("sqrt", op("log", radius) * const(-2, t)) * op("cos", angle)


def _draw(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    ((dtype, shape),) = _infer(node, inputs)
    t = accumulator(dtype)
    if node.op == "RandomUniform":
        low, high = float(node.attrs.get("low", 0.0)), float(node.attrs.get("high", 1.0))
        value, scale, shift = _uniform(_bits(shape), t), high - low, low
    else:
        scale, shift = float(node.attrs.get("scale", 1.0)), float(node.attrs.get("mean", 0.0))
        value = _normal(_bits(shape), t)
    value = value if scale == 1 else value * const(scale, t)
    value = value if shift == 0 else value + const(shift, t)
    over = point(names(len(shape)))
    return Definition((), (assign("draw", grid(shape), Load("y0", over), widened(value, t, dtype)),))


OPERATORS = (
    Operator("RandomKey", _key_infer, _key),
    Operator("RandomUniform", _infer, _draw),
    Operator("RandomNormal", _infer, _draw),
)
DRAWS = ("RandomUniform", "RandomNormal")


def state(seed: int, run: int) -> Value:
    """What the runtime gives for RANDOM_STATE in the run of that number of a handle opened with this seed."""
    return Value(RANDOM_STATE, WORD, (2,), np.array([seed, run], np.uint64))
