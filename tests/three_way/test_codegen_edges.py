"""Scalar operations as compiled code at their edges: floats of all magnitudes, integers that overflow."""

import platform

import numpy as np
import pytest
from scalar_kernels import (
    BINARY_INTEGER,
    NATIVE,
    UNARY_FLOAT,
    WITHOUT_FMA,
    call,
    edges,
    function,
    library,
    multiple,
    operation,
)
from tvm import tirx as tx

from modelc.codegen.math.operations import ROUNDED, lower_cast, lower_op
from modelc.ir.arithmetic import converted
from modelc.ir.expr import DTYPES, FLOATS, INTEGERS
from modelc.ir.scalar import OPERATIONS

# --- floats -------------------------------------------------------------------------------------------------------

# How many units in the last place a result is off at most (of the smallest normal number: what is below may be 0).
# Polynomials of our own first; the rest are glibc's.
ULP = {
    **{"exp": 1.1, "log": 1.1, "erf": 6, "tanh": 1.5, "sigmoid": 3, "softplus": 2, "sin": 2.5, "cos": 2.5},
    **{"tan": 2, "asin": 1, "acos": 1, "atan": 1, "sinh": 2.5, "cosh": 2.5, "asinh": 2, "acosh": 2, "atanh": 2},
    "sqrt": 0.5,
}
EXACT = ("neg", "abs", "sign", "floor", "ceil", "round", "isnan", "isinf")
SMALLEST = 2.0**-126
SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 3.4028235e38, -3.4028235e38, SMALLEST, -SMALLEST, 7e6, -5.4e6])


def all_magnitudes() -> np.ndarray:
    """Float32 numbers of every exponent and both signs, subnormal ones too; multiples of pi/2; specials."""
    rng = np.random.default_rng(0)
    bits = (np.arange(255, dtype=np.uint32)[:, None] << 23) | rng.integers(0, 1 << 23, (255, 1000), dtype=np.uint32)
    near = np.concatenate([np.linspace(0, end, 50_000) for end in (1, 12, 100, 7000, 140_000)]).astype(np.float32)
    turns = (np.concatenate([np.arange(1, 90_000), np.geomspace(1e5, 1e38, 10_000)]) * (np.pi / 2)).astype(np.float32)
    positive = np.concatenate([bits.ravel().view(np.float32), near, turns])
    return multiple(np.concatenate([positive, -positive, SPECIAL.astype(np.float32)]), 16)


def off_by(got, exact):
    """Errors in units of the last place of a float32, at least of the smallest normal one."""
    unit = np.spacing(np.maximum(np.abs(exact), SMALLEST).astype(np.float32)).astype(np.longdouble)
    return np.where(np.isfinite(got), np.abs(got - exact) / unit, 0)


@pytest.mark.parametrize("target", [NATIVE, WITHOUT_FMA], ids=["native", "without-fma"])
def test_floats_of_all_magnitudes(tmp_path, target):
    if target is WITHOUT_FMA and platform.machine() != "x86_64":
        pytest.skip("the code without FMA is for x86-64")
    assert {*ULP, *EXACT} == set(UNARY_FLOAT)
    x = all_magnitudes()
    lib = library({f"{n}_float32": operation(n, "float32", 16, target)[0] for n in UNARY_FLOAT}, tmp_path, target)
    for name in UNARY_FLOAT:
        output = "bool" if OPERATIONS[name].result == "bool" else "float32"
        got = call(lib, f"{name}_float32", [x], output, 16)
        with np.errstate(all="ignore"):
            exact = OPERATIONS[name].meaning(x.astype(np.longdouble if name in ("sin", "cos", "tan") else np.float64))
            expected = exact.astype(np.float32)
        if name in EXACT:
            np.testing.assert_array_equal(got, expected.astype(got.dtype), err_msg=name)
            continue
        for ends in (np.isnan, np.isposinf, np.isneginf):
            assert np.array_equal(ends(got), ends(expected)), name
        finite = np.isfinite(expected)
        error = off_by(got[finite], exact[finite])
        # what is below the smallest normal number may be 0: off by that number
        flushed = (np.abs(exact[finite]) < SMALLEST) & (got[finite] == 0)
        error[flushed] = 0
        worst = int(error.argmax())
        assert error[worst] <= ULP[name], f"{name}({x[finite][worst]!r}): off by {error[worst]}"
        zeros = x == 0
        assert np.array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros])), name


def test_what_is_rounded_to_bfloat16_at_all_magnitudes(tmp_path):
    x = all_magnitudes()
    names = [f"{n}_float32" for n in ROUNDED]
    lib = library({f"{n}_float32": operation(n, "float32", 16, rounded=True)[0] for n in ROUNDED}, tmp_path)
    for symbol, name in zip(names, ROUNDED, strict=True):
        got = call(lib, symbol, [x], "float32", 16)
        with np.errstate(all="ignore"):
            exact = OPERATIONS[name].meaning(x.astype(np.float64))
            np.testing.assert_allclose(got, exact.astype(np.float32), rtol=2.0**-13, atol=SMALLEST, err_msg=name)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.25, 0.5, 0.75, 1.5, -0.5, -0.25, -1, -2, -3, -1.5])
def test_powers_by_a_constant_at_the_ends(tmp_path, exponent):
    """As C's pow, also of -infinity and -0."""
    ends = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 4, -4, 1e-9, -1e9, 1e18], np.float32)
    x = multiple(ends, 16)

    def build(a):
        return lower_op("pow", [a, tx.Broadcast(tx.FloatImm("float32", float(exponent)), 16)], "float32", 16)

    lib = library({"k": function("k", build, ["float32"], "float32", 16, NATIVE)}, tmp_path)
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), np.full(x.shape, exponent)).astype(np.float32)
        meant = OPERATIONS["pow"].meaning(x, np.float32(exponent))
    got = call(lib, "k", [x], "float32", 16)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    np.testing.assert_allclose(meant, expected, rtol=1e-6)
    assert np.array_equal(np.signbit(got[x == 0]), np.signbit(expected[x == 0]))


# --- integers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.sweep(2)
def test_integers_at_their_edges(tmp_path, dtype, lanes):
    """All pairs of edges: no signal, and what NumPy gives."""
    some = edges(dtype)
    a, b = (multiple(v.ravel(), 16) for v in np.meshgrid(some, some))
    names = {n: (a, b) for n in (*BINARY_INTEGER, "shl", "shr", "pow")}
    names |= {n: (a,) for n in ("neg", "abs", "sign", "bitnot")}
    made = {f"{n}_{dtype}": operation(n, dtype, lanes) for n in names}
    lib = library({n: f for n, (f, _, _) in made.items()}, tmp_path)
    for name, values in names.items():
        output = made[f"{name}_{dtype}"][2]
        with np.errstate(all="ignore"):
            expected = OPERATIONS[name].meaning(*values).astype(DTYPES[output])
        np.testing.assert_array_equal(call(lib, f"{name}_{dtype}", values, output, lanes), expected, err_msg=name)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint32", "int64"])
@pytest.mark.sweep(1)
def test_integers_by_a_constant(tmp_path, dtype):
    limits, a = np.iinfo(dtype), multiple(edges(dtype), 16)
    constants = [n for n in (0, 1, -1, 2, 7, -7, limits.min, limits.max, limits.bits) if n >= limits.min]
    cases = {
        (n, c): f"f{k}" for k, (n, c) in enumerate((n, c) for n in (*BINARY_INTEGER, "shl", "shr") for c in constants)
    }

    def build(name, constant):
        return lambda x: lower_op(name, [x, tx.Broadcast(tx.IntImm(dtype, int(constant)), 16)], dtype, 16)

    def result(name):
        return "bool" if OPERATIONS[name].result == "bool" else dtype

    lib = library(
        {f: function(f, build(*case), [dtype], result(case[0]), 16, NATIVE) for case, f in cases.items()}, tmp_path
    )
    for (name, constant), symbol in cases.items():
        with np.errstate(all="ignore"):
            expected = OPERATIONS[name].meaning(a, np.full_like(a, constant))
        got = call(lib, symbol, [a], result(name), 16)
        np.testing.assert_array_equal(got, expected, err_msg=f"{name} {constant}")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_floats_become_integers(tmp_path, dtype):
    """NaN, infinities and what is out of range, from every float dtype."""
    limits = np.iinfo(dtype)
    bounds = np.array(
        [float(limits.min), float(limits.max), 127, 255, 32767, 65535, 2.0**31, 2.0**32, 2.0**63, 2.0**64]
    )
    inside = np.nextafter(bounds.astype(np.float32), np.float32(0)).astype(np.float64)
    values = np.concatenate(
        [bounds, inside, bounds + 0.5, bounds + 1, bounds - 0.5, [0.5, 0.99, 1.5, 300, 7e4, 3e38, 1e-40]]
    )
    values = np.concatenate([values, -values, SPECIAL])
    made, arrays = {}, {}
    for source in FLOATS:
        for lanes in (1, 8):
            name = f"{source}_{lanes}"

            def build(x, source=source, lanes=lanes):
                return lower_cast(dtype, x, source, lanes)

            made[name] = function(name, build, [source], dtype, lanes, NATIVE)
            with np.errstate(all="ignore"):
                arrays[name] = multiple(values, 8).astype(DTYPES[source])
    lib = library(made, tmp_path)
    for name, x in arrays.items():
        got = call(lib, name, [x], dtype, int(name.split("_")[1]))
        expected = converted(x, DTYPES[dtype])
        np.testing.assert_array_equal(got, expected, err_msg=name)
