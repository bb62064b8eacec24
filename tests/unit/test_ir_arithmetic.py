"""The NumPy meanings of operations on whole numbers, against Python's unbounded ones."""

import math

import numpy as np
import pytest

from modelc.ir.arithmetic import converted, erf, sigmoid
from modelc.ir.expr import DTYPES, INTEGERS, const
from modelc.ir.scalar import OPERATIONS

NAMES = ("add", "sub", "mul", "truncdiv", "fmod", "floordiv", "mod", "shl", "shr", "pow")


def exact(name: str, a: int, b: int, bits: int) -> int:
    """The unbounded result where there is one, else what is documented."""
    if name in ("shl", "shr"):
        if not 0 <= b < bits:
            return -1 if name == "shr" and a < 0 else 0
        return a << b if name == "shl" else a >> b
    if name == "pow":
        return pow(a, b, 1 << bits) if b >= 0 else {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)
    if name in ("add", "sub", "mul"):
        return {"add": a + b, "sub": a - b, "mul": a * b}[name]
    if b == 0:
        return 0
    if name in ("floordiv", "mod"):
        return a // b if name == "floordiv" else a % b
    if name == "truncdiv":
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return abs(a) % abs(b) * (-1 if a < 0 else 1)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_whole_numbers_at_their_edges(dtype):
    limits = np.iinfo(dtype)
    bits = limits.bits
    edges = [limits.min, limits.min + 1, -7, -2, -1, 0, 1, 2, 3, 63, bits - 1, bits, bits + 1, 100, limits.max]
    edges = [n for n in edges if limits.min <= n <= limits.max]
    a, b = (v.ravel() for v in np.meshgrid(np.array(edges, dtype), np.array(edges, dtype)))
    for name in NAMES:
        got = OPERATIONS[name].meaning(a, b)
        assert got.dtype == dtype
        for x, y, result in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
            wrapped = (exact(name, x, y, bits) - limits.min) % (1 << bits) + limits.min
            assert result == wrapped, f"{name}({x}, {y})"


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64"])
def test_floats_become_whole_numbers(source, dtype):
    """Within 32 bits, or 64 of 64-bit dtypes: truncated and wrapped. Beyond: the least number's lower bits."""
    limits = np.iinfo(dtype)
    wide = 64 if limits.bits == 64 else 32
    numbers = [
        0.0,
        0.9,
        1.5,
        127.5,
        128,
        255.9,
        256,
        300,
        3e4,
        7e4,
        2.0**31 - 1,
        2.0**31,
        3e9,
        2.0**32,
        2.0**63,
        2.0**64,
    ]
    numbers += [-n for n in numbers] + [float(limits.max), float(limits.min), math.inf, -math.inf, math.nan]
    with np.errstate(over="ignore"):
        x = np.array(numbers).astype(DTYPES[source])
    most = 1 << (wide if limits.min == 0 and limits.bits == wide else wide - 1)
    for number, result in zip(x.astype(np.float64).tolist(), converted(x, DTYPES[dtype]).tolist(), strict=True):
        if math.isfinite(number) and -(1 << (wide - 1)) <= math.trunc(number) < most:
            expected = math.trunc(number)
        elif number > 0 and most == 1 << wide:
            expected = 0  # 2**(bits - 1) twice
        else:
            expected = -(1 << (wide - 1))
        assert result == (expected - limits.min) % (1 << limits.bits) + limits.min, number
        assert const(number, dtype).value == result


def test_the_error_function_is_that_of_the_c_library():
    rng = np.random.default_rng(0)
    edges = [0.0, -0.0, 6.0, -6.0, 5.998, 1 / 512, np.inf, -np.inf, 5e-324, 1e300]
    x = np.concatenate((rng.uniform(-7, 7, 20_000), 10.0 ** -rng.uniform(0, 300, 1_000), edges))
    exact = np.array([math.erf(v) for v in x])
    np.testing.assert_array_max_ulp(erf(x), exact, 2)
    assert (np.signbit(erf(x)) == np.signbit(x)).all() and np.isnan(erf(np.nan))
    half = rng.uniform(-7, 7, 1_000).astype(np.float16)
    np.testing.assert_array_equal(erf(half), [np.float16(math.erf(v)) for v in half])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_sigmoid_does_not_overflow(dtype):
    x = np.array([-np.inf, -1e4, -80, -1, -0.0, 0.5, 80, 1e4, np.inf], dtype)
    with np.errstate(over="raise"):
        values = sigmoid(x)
    assert values.dtype == dtype and np.isnan(sigmoid(np.array(np.nan, dtype)))
    exact = [0.0 if v < -700 else 1.0 if v > 700 else 1 / (1 + math.exp(-v)) for v in x]
    np.testing.assert_allclose(values, np.array(exact).astype(dtype), rtol=2 * np.finfo(dtype).eps, atol=1e-45)
