"""Numbers of less than a byte's worth of digits: as their operators say it, and through packages, against ml_dtypes."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

import modelc
from modelc.ir.evaluate import evaluate
from modelc.ir.expr import DTYPES, NARROW, NARROW_FLOATS, Const, Load, Op, Var, show
from modelc.ir.expr_syntax import parse
from modelc.ops.narrow import FORMATS, bits, decoded, encoded, limits_of, wide_of
from modelc.runtime import as_bits

AT = (Var("i"),)


def numbers() -> np.ndarray:
    """Of every exponent, with ties between narrow numbers, and what is no number."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 1 << 32, 20_000, dtype=np.uint32).view(np.float32)
    usual = rng.standard_normal(5000).astype(np.float32) * np.exp2(rng.integers(-20, 20, 5000)).astype(np.float32)
    ties = np.arange(-300, 300, dtype=np.float32)[:, None] * np.exp2(np.arange(-20, 8, dtype=np.float32))
    return np.concatenate([drawn, usual, ties.ravel(), np.array([np.nan, np.inf, -np.inf, 0, -0.0], np.float32)])


def by_bits(expr, x: np.ndarray) -> np.ndarray:
    return evaluate(expr, {"i": np.arange(x.size)}, {"x": x})


@pytest.mark.parametrize("dtype", FORMATS)
def test_floats_are_encoded_as_ml_dtypes_does(dtype: str) -> None:
    x = numbers()
    with np.errstate(all="ignore"):
        wanted = x.astype(DTYPES[dtype])
        clamped = np.clip(x, *(float(f(ml_dtypes.finfo(DTYPES[dtype]))) for f in (lambda i: i.min, lambda i: i.max)))
        clamped = clamped.astype(DTYPES[dtype])
    for saturate, reference in ((False, wanted), (True, clamped)):
        found = by_bits(encoded(Load("x", AT), "float32", dtype, saturate), x)
        number = ~np.isnan(x)
        assert found.dtype == DTYPES[dtype] and number.sum() > 20_000
        np.testing.assert_array_equal(found.astype(np.float32)[number], reference.astype(np.float32)[number])
        zero = number & (reference.astype(np.float32) == 0)
        np.testing.assert_array_equal(found.view(np.uint8)[zero], reference.view(np.uint8)[zero])
        if dtype != "float4_e2m1fn":
            assert np.isnan(found.astype(np.float32)[~number]).all()


@pytest.mark.parametrize("dtype", NARROW)
def test_every_code_is_decoded(dtype: str) -> None:
    width = 2 if dtype.endswith("int2") else 8 if dtype.startswith("float8") else 4
    x = np.arange(1 << width, dtype=np.uint8).view(DTYPES[dtype])
    found = by_bits(decoded(Load("x", AT), dtype), x)
    assert found.dtype == wide_of(dtype)
    np.testing.assert_array_equal(found.astype(np.float32), x.astype(np.float32))
    if dtype not in NARROW_FLOATS:
        assert (found.min(), found.max()) == limits_of(dtype)


def test_the_text_of_bits_reads_back() -> None:
    e = bits("uint8", Load("x", (Const(0),)))
    assert show(e) == "bits_uint8(x[0])" and parse(show(e)) == e and isinstance(e, Op)


def casts(of: str, to: str, op: str = "Cast", **attrs: int) -> onnx.ModelProto:
    kinds = [helper.np_dtype_to_tensor_dtype(DTYPES[d]) for d in (of, to)]
    node = helper.make_node(op, ["x"], ["y"], to=kinds[1], **attrs)
    given, result = (helper.make_tensor_value_info(n, k, [67]) for n, k in zip("xy", kinds, strict=True))
    graph = helper.make_graph([node], "g", [given], [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)], ir_version=13)


@pytest.mark.parametrize(
    ("of", "to", "attrs"),
    [
        ("float32", "float8_e4m3fn", {"saturate": 0}),
        ("float32", "float8_e5m2fnuz", {}),
        ("float8_e5m2", "float16", {}),
        ("float32", "float4_e2m1fn", {}),
        ("int4", "float8_e4m3fnuz", {}),
        ("float8_e8m0fnu", "float32", {}),
        ("int8", "uint2", {}),
        ("int4", "int8", {}),
    ],
)
def test_packages_take_and_give_them(tmp_path: Path, of: str, to: str, attrs: dict[str, int]) -> None:
    """Vectors and what is left of them; the loader takes bits too."""
    onnx.save(casts(of, to, **attrs), tmp_path / "m.onnx")
    modelc.compile(tmp_path / "m.onnx", output=tmp_path / "p", verify=False)
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(67) * 300).astype(np.float32)
    x = rng.integers(0, 4, 67).astype(DTYPES[of]) if of in ("int4", "int8") else x.astype(DTYPES[of])
    wanted = x.astype(np.float32)
    if to in NARROW_FLOATS and attrs.get("saturate", 1):
        largest = float(ml_dtypes.finfo(DTYPES[to]).max)
        wanted = np.clip(wanted, -largest, largest)
    wanted = wanted.astype(DTYPES[to])
    with modelc.load(tmp_path / "p") as package:
        found = package.run({"x": x})["y"]
        again = package.run({"x": as_bits(x)})["y"]
    assert found.dtype == DTYPES[to] and len(set(as_bits(found).tolist())) > 2
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))
    np.testing.assert_array_equal(as_bits(found), as_bits(again))


@pytest.mark.parametrize(
    ("of", "to"), [("float32", "int32"), ("float16", "bfloat16"), ("int4", "uint4"), ("bool", "int8")]
)
def test_bits_are_taken_for_those_of_another_dtype(tmp_path: Path, of: str, to: str) -> None:
    onnx.save(casts(of, to, "BitCast"), tmp_path / "m.onnx")
    modelc.compile(tmp_path / "m.onnx", output=tmp_path / "p", verify=False)
    x = (np.arange(67) % 8).astype(DTYPES[of])
    with modelc.load(tmp_path / "p") as package:
        found = package.run({"x": x})["y"]
    assert found.dtype == DTYPES[to]
    np.testing.assert_array_equal(as_bits(found).view(np.uint8), as_bits(x).view(np.uint8))
