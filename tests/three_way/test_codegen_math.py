"""Scalar operations as compiled code, against the NumPy meanings of ir/expr.py."""

import ctypes
import platform
import re
import time

import ml_dtypes
import numpy as np
import pytest
from scalar_kernels import (
    ARITHMETIC,
    BINARY_INTEGER,
    COMPARISONS,
    NATIVE,
    UNARY_FLOAT,
    WITHOUT_FMA,
    call,
    compiled,
    function,
    library,
    multiple,
    operation,
)
from scipy import special
from tvm import tirx as tx

from modelc.codegen.math.operations import ROUNDED, lower_cast, lower_op
from modelc.errors import InvalidIR
from modelc.ir.expr import DTYPES, NARROW
from modelc.ir.scalar import OPERATIONS

X86 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}
V4 = {**X86, "mcpu": "x86-64-v4", "mattr": ["-prefer-256-bit"]}
V3 = {**X86, "mcpu": "x86-64-v3"}
AARCH64 = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}
ARMV7 = {
    "kind": "llvm",
    "mtriple": "armv7l-linux-gnueabihf",
    "mcpu": "cortex-a9",
    "mattr": ["+neon"],
    "mfloat-abi": "hard",
}
RISCV64 = {
    "kind": "llvm",
    "mtriple": "riscv64-unknown-linux-gnu",
    "mcpu": "generic-rv64",
    "mattr": ["+m", "+a", "+f", "+d", "+c", "+v"],
    "mabi": "lp64d",
}
POLYNOMIALS = ("exp", "log", "erf", "tanh", "sigmoid", "softplus", "sin", "cos")
BINARY_FLOAT = [*ARITHMETIC, "div", "pow"]
SPECIALS = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2.5, -2.5, 3e38, -3e38, 1e-38, -1e-38])


# --- compiling an expression --------------------------------------------------------------------------------------


def run(folder, name, arrays, lanes=16, target=NATIVE, **how):
    dtype = arrays[0].dtype.name
    made, _, output = operation(name, dtype, lanes, target, **how)
    return call(library({f"{name}_{dtype}": made}, folder, target), f"{name}_{dtype}", arrays, output, lanes)


def assembly(name, lanes, target, **how):
    made, _, _ = operation(name, "float32", lanes, target, **how)
    text = compiled({f"{name}_float32": made}, target).inspect_source("s")
    return text.split(f"\n{name}_float32:")[1].split(".Lfunc_end0")[0]


def calls(text):
    return set(re.findall(r"\t(?:callq?|bl|blx)\t(\w+)", text))


# --- accuracy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [NATIVE, WITHOUT_FMA], ids=["native", "without-fma"])
@pytest.mark.parametrize("name", ROUNDED)
def test_what_is_rounded_to_bfloat16_is_off_by_a_sixteenth_of_that(tmp_path, name, target):
    if target is WITHOUT_FMA and platform.machine() != "x86_64":
        pytest.skip("for x86-64")
    small = np.geomspace(1e-30, 1, 100_000)
    wide = np.concatenate([np.linspace(-87, 88, 400_000), np.linspace(-6, 6, 400_000), small, -small])
    x = multiple(wide.astype(np.float32))
    result = run(tmp_path, name, [x], 16, target, rounded=True).astype(np.float64)
    expected = np.asarray(OPERATIONS[name].meaning(x.astype(np.float64)))
    assert np.all(np.abs(result - expected) <= 2.0**-13 * np.abs(expected))
    if name in ("erf", "tanh"):  # 1 + either, as a gate has it: no further off, but for float32's rounding
        expected = special.erfc(-x.astype(np.float64)) if name == "erf" else 2 * special.expit(2 * x.astype(np.float64))
        assert np.all(np.abs(1 + result - expected) <= 2.0**-13 * expected + 2.0**-22)
    if name == "exp":
        expected = np.expm1(x.astype(np.float64))
        assert np.all(np.abs(result - 1 - expected) <= 2.0**-13 * np.abs(expected) + 2.0**-22 * np.maximum(1, result))
    ends = run(tmp_path, name, [multiple(SPECIALS.astype(np.float32))], 16, target, rounded=True)
    with np.errstate(over="ignore"):
        known = OPERATIONS[name].meaning(multiple(SPECIALS.astype(np.float32)))
    np.testing.assert_allclose(ends, known, rtol=2.0**-13)
    np.testing.assert_array_equal(np.signbit(ends[~np.isnan(ends)]), np.signbit(known[~np.isnan(known)]))


@pytest.mark.parametrize("target", [NATIVE, WITHOUT_FMA], ids=["native", "without-fma"])
@pytest.mark.parametrize(
    ("name", "low", "high", "ulp"),
    [
        ("exp", -87.3, 88.7, 1.1),
        ("log", 1e-38, 3.4e38, 1.1),
        ("log", 0.5, 2, 1.1),
        ("erf", -6, 6, 6),
        ("tanh", -12, 12, 1.5),
        ("sigmoid", -87, 100, 3),
        ("softplus", -87, 100, 2),
        ("sin", -3, 3, 1.5),
        ("cos", -1.5, 1.5, 1.5),
    ],
)
def test_accuracy(tmp_path, name, low, high, ulp, target):
    if target is WITHOUT_FMA and platform.machine() != "x86_64":
        pytest.skip("the code without FMA is for x86-64")
    rng = np.random.default_rng(0)
    spread = np.exp2(rng.uniform(-126, 127, 100_000))
    spread = np.concatenate([spread, -spread])
    spread = spread[(spread >= low) & (spread <= high)]
    x = multiple(np.concatenate([np.linspace(low, high, 400_000), spread]).astype(np.float32))
    got = run(tmp_path, name, [x], target=target).astype(np.float64)
    expected = OPERATIONS[name].meaning(x.astype(np.float64))
    floor = np.maximum(np.abs(expected), 2.0**-126).astype(np.float32)
    error = np.abs(got - expected) / np.spacing(floor)
    worst = int(error.argmax())
    assert error[worst] < ulp, f"{name}({x[worst]!r}) = {got[worst]!r}, expected {expected[worst]!r}"
    if name == "erf":  # or the gate of a large number would not be closed
        assert np.abs(got).max() == 1 and (np.abs(got[np.abs(x) > 4]) == 1).all()


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_periodic_functions_far_out(tmp_path, name):
    x = multiple(np.linspace(-1e4, 1e4, 500_000).astype(np.float32))
    got = run(tmp_path, name, [x])
    assert np.abs(got - OPERATIONS[name].meaning(x.astype(np.float64))).max() < 1e-7
    x = multiple(np.geomspace(1e4, 3e38, 100_000).astype(np.float32))
    assert np.abs(run(tmp_path, name, [x]) - OPERATIONS[name].meaning(x.astype(np.float64))).max() < 1e-7


@pytest.mark.parametrize("lanes", [1, 3, 8, 15, 16])
@pytest.mark.sweep(3)
def test_float32_operations(tmp_path, lanes):
    """Every operation, on specials and ordinary numbers."""
    rng = np.random.default_rng(1)
    x = multiple(np.concatenate([SPECIALS, rng.normal(size=200) * 3]).astype(np.float32))
    pairs = np.array(np.meshgrid(SPECIALS, SPECIALS)).reshape(2, -1)
    pairs = np.concatenate([pairs, rng.normal(size=(2, 200)) * 3], axis=1).astype(np.float32)
    a, b = (multiple(p) for p in pairs)
    made = {f"{n}_float32": operation(n, "float32", lanes) for n in [*UNARY_FLOAT, *BINARY_FLOAT]}
    lib = library({n: f for n, (f, _, _) in made.items()}, tmp_path)
    for symbol, (_, inputs, output) in made.items():
        name = symbol.removesuffix("_float32")
        arguments = [x] if len(inputs) == 1 else [a, b]
        got = call(lib, symbol, arguments, output, lanes)
        with np.errstate(all="ignore"):
            expected = OPERATIONS[name].meaning(*[v.astype(np.float64) for v in arguments])
            if name in ("floordiv", "mod", "fmod"):  # NumPy's float32 is exact; its float64 rounds elsewhere
                expected = OPERATIONS[name].meaning(*arguments)
            expected = expected.astype(bool if output == "bool" else np.float32)
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=2e-38, err_msg=name)


def test_rounding_where_vectors_have_no_such_instruction(tmp_path, monkeypatch):
    monkeypatch.setattr("modelc.codegen.math.select.is_arm32", lambda: True)
    halves = np.arange(-20, 20) / 2
    large = np.exp2(np.arange(18, 40))[:, None] + [0, 0.5, 1, 1.5]
    numbers = np.concatenate([SPECIALS, halves, np.nextafter(halves, 99), large.ravel(), -large.ravel()])
    x = multiple(numbers.astype(np.float32), 16)
    for name in ("round", "floor", "ceil"):
        got, expected = run(tmp_path, name, [x]), OPERATIONS[name].meaning(x)
        np.testing.assert_array_equal(got, expected, err_msg=name)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(expected), err_msg=name)


def test_a_nan_reaches_the_result_whatever_its_bits(tmp_path):
    bits = np.array([0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FA12345], np.uint32)
    x = multiple(bits.view(np.float32), 16)
    for name in ("exp", "log", "erf", "tanh", "sigmoid", "softplus", "sin", "cos", "sqrt", "floor", "sign", "neg"):
        assert np.isnan(run(tmp_path, name, [x])).all(), name
    for name in ("max", "min"):
        for arrays in ([x, np.ones_like(x)], [np.ones_like(x), x], [x, x]):
            assert np.isnan(run(tmp_path, name, arrays)).all(), name


def test_negated_comparisons_see_nan(tmp_path):
    def build(a, b):
        return lower_op("not", [lower_op("lt", [a, b], "float32", 8)], "bool", 8)

    lib = library({"k": function("k", build, ["float32"] * 2, "bool", 8, NATIVE)}, tmp_path)
    a, b = multiple(np.array([1, 2, np.nan, 1], np.float32), 8), multiple(np.array([2, 1, 1, np.nan], np.float32), 8)
    assert np.array_equal(call(lib, "k", [a, b], "bool", 8), ~(a < b))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, 16, -1, -2, 0.5, -0.5, 0.75, 1.25, 1.3, -2.7, 40])
def test_power_by_a_constant(tmp_path, exponent):
    x = multiple(np.geomspace(0.01, 30, 300).astype(np.float32), 16)

    def build(a):
        return lower_op("pow", [a, tx.Broadcast(tx.FloatImm("float32", float(exponent)), 16)], "float32", 16)

    lib = library({"k": function("k", build, ["float32"], "float32", 16, NATIVE)}, tmp_path)
    with np.errstate(over="ignore"):
        expected = (x.astype(np.float64) ** np.float32(exponent)).astype(np.float32)
    np.testing.assert_allclose(call(lib, "k", [x], "float32", 16), expected, rtol=1.5e-6)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_floats(tmp_path, dtype):
    rng = np.random.default_rng(2)
    lanes, scale = 4, 3
    x = multiple(np.concatenate([SPECIALS[:11], rng.normal(size=200) * scale]), 8).astype(DTYPES[dtype])
    y = rng.permutation(x)
    made = {f"{n}_{dtype}": operation(n, dtype, lanes) for n in [*UNARY_FLOAT, *BINARY_FLOAT]}
    lib = library({n: f for n, (f, _, _) in made.items()}, tmp_path)
    for symbol, (_, inputs, output) in made.items():
        name = symbol.removesuffix(f"_{dtype}")
        arguments = [x] if len(inputs) == 1 else [x, y]
        got = call(lib, symbol, arguments, output, lanes)
        compute = np.float64 if dtype == "float64" else np.float32
        with np.errstate(all="ignore"):
            expected = OPERATIONS[name].meaning(*[v.astype(compute) for v in arguments])
            expected = expected.astype(DTYPES[output])
        rtol = {"float64": 1e-13, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
        wide = [v.astype(np.float64) for v in (got, expected)]
        np.testing.assert_allclose(*wide, rtol=rtol, atol=1e-7 if dtype != "float64" else 1e-15, err_msg=name)


# --- integers and bools -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("lanes", [1, 3, 16])
@pytest.mark.sweep(4)
def test_integer_operations(tmp_path, dtype, lanes):
    rng = np.random.default_rng(3)
    low, high = (0, 200) if dtype.startswith("u") else (-100, 100)
    a, b = (rng.integers(low, high, 480).astype(dtype) for _ in range(2))
    b[b == 0] = 7
    amount = rng.integers(0, 2 * a.itemsize * 8, 480).astype(dtype)
    exponent = rng.integers(0, 9, 480).astype(dtype)
    arguments = {n: (a, b) for n in BINARY_INTEGER} | {n: (a,) for n in ("bitnot", "neg", "abs", "sign", "isnan")}
    arguments |= {"shl": (a, amount), "shr": (a, amount), "pow": (a, exponent)}
    made = {f"{n}_{dtype}": operation(n, dtype, lanes) for n in arguments}
    lib = library({n: f for n, (f, _, _) in made.items()}, tmp_path)
    for name, values in arguments.items():
        output = made[f"{name}_{dtype}"][2]
        got = call(lib, f"{name}_{dtype}", list(values), output, lanes)
        with np.errstate(all="ignore"):
            expected = OPERATIONS[name].meaning(*values).astype(DTYPES[output])
        np.testing.assert_array_equal(got, expected, err_msg=name)


def test_integer_power_with_a_negative_exponent(tmp_path):
    a = np.array([1, -1, -1, 2, 3, -3, 1, -1], np.int32)
    b = np.array([-1, -1, -2, -1, -3, -2, -9, -9], np.int32)
    assert run(tmp_path, "pow", [a, b], lanes=8).tolist() == [1, -1, 1, 0, 0, 0, 1, -1]


@pytest.mark.parametrize("lanes", [1, 4])
def test_bools(tmp_path, lanes):
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    names = ["and", "or", "xor", "bitand", "bitor", "bitxor", "add", "mul", "max", "min", *COMPARISONS]
    made = {f"{n}_bool": operation(n, "bool", lanes) for n in [*names, "not", "bitnot"]}
    lib = library({n: f for n, (f, _, _) in made.items()}, tmp_path)
    for name in names:
        got = call(lib, f"{name}_bool", [a, b], "bool", lanes)
        np.testing.assert_array_equal(got, OPERATIONS[name].meaning(a, b), err_msg=name)
    assert np.array_equal(call(lib, "not_bool", [a], "bool", lanes), ~a)


def test_select(tmp_path):
    def build(c, a, b):
        return lower_op("select", [c, a, b], "float32", 4)

    lib = library({"k": function("k", build, ["bool", "float32", "float32"], "float32", 4, NATIVE)}, tmp_path)
    c, a, b = np.array([True, False] * 4), np.arange(8, dtype=np.float32), -np.arange(8, dtype=np.float32)
    assert np.array_equal(call(lib, "k", [c, a, b], "float32", 4), np.where(c, a, b))


# --- casts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 8])
def test_casts(tmp_path, lanes):
    values = np.array([0, 1, 2, 3, 5.5, 100.25, 17, 120, 0.25, 7, 64, 127, 31.75, 0, 99, 1.5])
    known = [d for d in DTYPES if d not in NARROW]
    pairs = [(a, b) for a in known for b in known if a != b]

    def build(a, b):
        return lambda x: lower_cast(b, x, a, lanes)

    made = {f"{a}_{b}": function(f"{a}_{b}", build(a, b), [a], b, lanes, NATIVE) for a, b in pairs}
    lib = library(made, tmp_path)
    for a, b in pairs:
        x = values.astype(DTYPES[a])
        got, expected = call(lib, f"{a}_{b}", [x], b, lanes), x.astype(DTYPES[b])
        np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64), err_msg=f"{a} to {b}")


def test_halves_by_their_bits(tmp_path, monkeypatch):
    """As on RISC-V: every float16, every boundary between two of them and its neighbours, and bits at random."""
    monkeypatch.setattr("modelc.codegen.math.casts.is_risc_v", lambda: True)
    functions = {
        "wide": function("wide", lambda v: lower_cast("float32", v, "float16", 8), ["float16"], "float32", 8, NATIVE),
        "half": function("half", lambda v: lower_cast("float16", v, "float32", 8), ["float32"], "float16", 8, NATIVE),
    }
    lib = library(functions, tmp_path)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    np.testing.assert_array_equal(call(lib, "wide", [halves], "float32", 8), halves.astype(np.float32))
    bits = halves[np.isfinite(halves)].astype(np.float32).view(np.uint32)
    step = np.uint32(1 << 12)
    near = [bits, bits + step, bits + step - np.uint32(1), bits + step + np.uint32(1)]
    middles = (halves[:0x7C00].astype(np.float64) + halves[1:0x7C01].astype(np.float64)) / 2
    drawn = np.random.default_rng(6).integers(0, 2**32, 1 << 16, dtype=np.uint32)
    x = multiple(
        np.concatenate([*(b.view(np.float32) for b in near), middles.astype(np.float32), drawn.view(np.float32)])
    )
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    got = call(lib, "half", [x], "float16", 8)
    np.testing.assert_array_equal(got, expected)
    numbers = ~np.isnan(x)
    assert np.array_equal(np.signbit(got[numbers]), np.signbit(x[numbers]))


def test_rounding_to_bfloat16(tmp_path):
    rng = np.random.default_rng(4)
    x = rng.integers(0, 2**32, 1 << 16, dtype=np.uint32)
    x[:4] = [0x7F7FFFFF, 0x3F808000, 0x3F818000, 0xFF7FFFFF]
    x = x.view(np.float32)
    made = function("k", lambda v: lower_cast("bfloat16", v, "float32", 16), ["float32"], "bfloat16", 16, NATIVE)
    got = call(library({"k": made}, tmp_path), "k", [x], "bfloat16", 16)
    assert np.array_equal(np.isnan(got), np.isnan(x))
    numbers = ~np.isnan(x)
    assert np.array_equal(got[numbers].view(np.uint16), x[numbers].astype(ml_dtypes.bfloat16).view(np.uint16))


def test_what_a_dtype_does_not_have():
    with pytest.raises(InvalidIR, match="'exp' is not defined on int32"):
        lower_op("exp", [tx.Var("x", "int32")], "int32", 1)


# --- machine code -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*POLYNOMIALS, "max", "min", "floor", "round", "sqrt", "abs", "sign"])
def test_vector_code_calls_nothing(name):
    wide = assembly(name, 16, V4)
    rare = {f"{name}f"} if name in ("sin", "cos") else set()  # of arguments beyond the bound
    assert calls(wide) == rare
    assert "zmm" in wide
    assert calls(assembly(name, 8, V3)) == rare
    assert calls(assembly(name, 4, AARCH64)) == rare
    assert calls(assembly(name, 4, ARMV7)) - {"sqrtf"} == rare
    assert calls(assembly(name, 4, RISCV64)) == rare
    for lanes, target in ((16, V4), (8, V3), (4, AARCH64), (4, ARMV7), (4, RISCV64)):
        if name in ROUNDED:
            assert not calls(assembly(name, lanes, target, rounded=True))


def test_maximum_is_short():
    assert assembly("max", 4, AARCH64).count("fmax\t") >= 1
    assert "vmax.f32" in assembly("max", 4, ARMV7)
    body = assembly("max", 8, V3)
    assert "vcmp" not in body
    assert body.count("vmaxps") == 2 * body.count("vorps")


@pytest.mark.parametrize("target", [V3, V4, AARCH64, ARMV7, RISCV64])
def test_every_operation_compiles(target):
    made = {f"{n}_float32": operation(n, "float32", 4, target)[0] for n in [*UNARY_FLOAT, *BINARY_FLOAT]}
    made |= {f"{n}_int32": operation(n, "int32", 4, target)[0] for n in [*BINARY_INTEGER, "pow", "shl", "shr"]}
    made |= {f"{n}_float16": operation(n, "float16", 4, target)[0] for n in ("add", "exp")}
    made |= {f"{n}_bfloat16": operation(n, "bfloat16", 4, target)[0] for n in ("add", "exp")}
    assert compiled(made, target).inspect_source("s")


def test_print_time_of_exp(tmp_path):
    """Prints, asserts nothing about time: pytest -s -k test_print_time_of_exp"""
    lib = library({"exp_float32": operation("exp", "float32", 16)[0]}, tmp_path)
    x = np.random.default_rng(5).normal(size=4096).astype(np.float32)
    out = np.zeros_like(x)
    arguments = (ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int32(x.size // 16))
    best = float("inf")
    for _ in range(1000):
        start = time.perf_counter()
        lib.exp_float32(*arguments)
        best = min(best, time.perf_counter() - start)
    print(f"exp: {best / x.size * 1e9:.3f} ns an element")
    np.testing.assert_allclose(out, np.exp(x), rtol=1e-6)
