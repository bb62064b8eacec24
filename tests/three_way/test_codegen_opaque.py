"""Opaque Blocks as compiled C, against their NumPy meanings."""

import numpy as np
import pytest
from opaque_functions import run

from modelc.codegen.opaque import IMPLEMENTATIONS, opaque_source
from modelc.errors import InvalidIR
from modelc.ir.expr import DTYPES, NARROW
from modelc.ops.opaque import MEANINGS


def check(folder, meaning, attrs, arrays):
    expected = MEANINGS[meaning](attrs, *arrays)
    for cuts in ((0, 1), (0, 0.3, 0.31, 0.8, 1)):
        got = run(folder, meaning, attrs, arrays, [np.zeros(e.shape, e.dtype) for e in expected], cuts)
        for g, e in zip(got, expected, strict=True):
            np.testing.assert_array_equal(g.astype(np.float64), e.astype(np.float64), err_msg=f"{meaning} {attrs}")


def values(dtype, shape, seed=0):
    """Few different numbers, so that there are ties."""
    rng = np.random.default_rng(seed)
    low = 0 if dtype.startswith("uint") else -9
    return rng.integers(0, 2, shape).astype(bool) if dtype == "bool" else rng.integers(low, 9, shape).astype(dtype)


def typed(dtype, shape, seed=0):
    return values("int8" if dtype == "bfloat16" else dtype, shape, seed).astype(DTYPES[dtype])


def test_every_meaning_is_implemented():
    assert set(IMPLEMENTATIONS) == set(MEANINGS)


def test_an_unknown_meaning():
    with pytest.raises(InvalidIR, match="no implementation of the opaque 'sort'"):
        opaque_source("kernel", "sort", {}, [], [])


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in NARROW])
@pytest.mark.sweep(2)
def test_top_k_of_every_dtype(tmp_path, dtype):
    for largest in (True, False):
        check(tmp_path, "topk", {"axis": 1, "k": 5, "largest": largest}, [typed(dtype, (3, 17))])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("k", [0, 1, 2, 4])
@pytest.mark.sweep(7)
def test_top_k_along_every_axis(tmp_path, axis, k):
    check(tmp_path, "topk", {"axis": axis, "k": k, "largest": True}, [typed("float32", (4, 5, 6))])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("largest", [True, False])
def test_top_k_of_special_values(tmp_path, dtype, largest):
    row = [np.nan, 1, -0.0, 0.0, np.inf, -np.inf, -1e-7, 1e-7, -np.nan, 5, -5, 0.0, -0.0]
    x = np.array([row, row[::-1]], dtype)
    for k in (3, len(row)):
        check(tmp_path, "topk", {"axis": 1, "k": k, "largest": largest}, [x])


def test_top_k_of_a_long_row(tmp_path):
    x = np.random.default_rng(1).normal(size=(2, 20000)).astype(np.float32)
    check(tmp_path, "topk", {"axis": 1, "k": 300, "largest": True}, [x])


def test_top_k_without_indices(tmp_path):
    x = typed("float32", (3, 9))
    attrs = {"axis": 1, "k": 4, "largest": True}
    (got,) = run(tmp_path, "topk", attrs, [x], [np.zeros((3, 4), np.float32)])
    assert np.array_equal(got, MEANINGS["topk"](attrs, x)[0])


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_empty_tensors(tmp_path, shape):
    x, indices = np.zeros(shape, np.float32), np.zeros(shape, np.int64)
    check(tmp_path, "scatter_elements", {"axis": 1, "reduction": "add"}, [x, indices, x])
    check(tmp_path, "topk", {"axis": 0, "k": 0, "largest": True}, [x])
    full = np.ones((3, 4), np.float32)
    check(
        tmp_path, "scatter_nd", {"reduction": "none"}, [full, np.zeros((0, 1), np.int64), np.zeros((0, 4), np.float32)]
    )


REDUCTIONS = ["none", "add", "mul", "max", "min"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in NARROW])
@pytest.mark.sweep(9)
def test_scatter_of_every_dtype(tmp_path, dtype, reduction):
    x, updates = typed(dtype, (5, 6)), typed(dtype, (7, 6), 1)
    rows = np.array([[0], [4], [0], [-1], [2], [0], [-5]], np.int64)
    with np.errstate(over="ignore"):
        check(tmp_path, "scatter_nd", {"reduction": reduction}, [x, rows, updates])
        columns = np.random.default_rng(2).integers(-6, 6, (5, 4))
        attrs = {"axis": 1, "reduction": reduction}
        check(tmp_path, "scatter_elements", attrs, [x, columns, typed(dtype, (5, 4), 3)])


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scatter_nd_of_every_depth(tmp_path, depth):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(3, 4, 5)).astype(np.float32)
    indices = np.stack([rng.integers(-s, s, (2, 6)) for s in x.shape[:depth]], axis=-1)
    updates = rng.normal(size=(2, 6, *x.shape[depth:])).astype(np.float32)
    for reduction in ("none", "add"):
        check(tmp_path, "scatter_nd", {"reduction": reduction}, [x, indices, updates])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 4, 3), (3, 2, 5), (1, 1, 1), (3, 9, 5)])
@pytest.mark.sweep(9)
def test_scatter_elements_along_every_axis(tmp_path, axis, shape):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(3, 4, 5)).astype(np.float32)
    shape = tuple(s if d == axis % 3 else min(s, n) for d, (s, n) in enumerate(zip(shape, x.shape, strict=True)))
    indices = rng.integers(0, x.shape[axis], shape).astype(np.int32)
    updates = rng.normal(size=shape).astype(np.float32)
    check(tmp_path, "scatter_elements", {"axis": axis % 3, "reduction": "add"}, [x, indices, updates])


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_scatter_keeps_nan(tmp_path, reduction):
    x = np.array([[np.nan, 1, 2, np.nan]], np.float32)
    updates = np.array([[1, np.nan, 5, np.nan]], np.float32)
    attrs = {"axis": 1, "reduction": reduction}
    check(tmp_path, "scatter_elements", attrs, [x, np.arange(4)[None], updates])


def test_indices_out_of_range_write_nothing(tmp_path):
    x, updates = np.zeros((4, 2), np.float32), np.ones((3, 2), np.float32)
    (got,) = run(tmp_path, "scatter_nd", {"reduction": "none"}, [x, np.array([[4], [-5], [1]]), updates], [x + 7])
    assert got.tolist() == [[0, 0], [1, 1], [0, 0], [0, 0]]
    attrs = {"axis": 0, "reduction": "none"}
    indices = np.array([[9, -9], [1, 2], [-1, 4]])
    (got,) = run(tmp_path, "scatter_elements", attrs, [x, indices, updates], [x + 7])
    assert got.tolist() == [[0, 0], [1, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_floats_are_rounded_as_numpy_does(tmp_path, dtype):
    rng = np.random.default_rng(6)
    bits = rng.integers(0, 1 << 16, (2, 1, 40000), dtype=np.uint16)
    bits[0, 0, ::2] = bits[1, 0, ::2] ^ rng.integers(0, 1 << 8, 20000).astype(np.uint16)  # near each other
    x, updates = bits.view(DTYPES[dtype])
    attrs = {"axis": 1, "reduction": "add"}
    with np.errstate(all="ignore"):
        expected = x + updates
    indices = np.arange(x.size)[None]
    (got,) = run(tmp_path, "scatter_elements", attrs, [x, indices, updates], [np.zeros_like(x)])
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    numbers = ~np.isnan(expected)
    assert np.array_equal(got[numbers].view(np.uint16), expected[numbers].view(np.uint16))
