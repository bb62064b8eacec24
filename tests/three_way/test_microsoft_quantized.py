"""Quantized operators of ONNX Runtime's own domain mean what they mean there, to the last rounding.

Weights of int8 have seven bits: without instructions for bytes ONNX Runtime adds two products in 16 bits, which may
saturate.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from microsoft_models import ms, three_ways, two_ways, write

from modelc.errors import ModelError
from modelc.frontend.onnx import import_model

F = np.float32
WAYS = {"uint8": three_ways, "int8": two_ways}


def draws(dtype: str, seed: int = 0):
    """(draw an array, a zero point by its distance from the least number) of `dtype`."""
    rng, least = np.random.default_rng(seed), np.iinfo(dtype).min
    return lambda *shape: rng.integers(least, least + 256, shape).astype(dtype), lambda v: np.array(least + v, dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_element_by_element(tmp_path: Path, dtype: str) -> None:
    """Scales with a common measure put many sums and products at ties, and zero points are odd."""
    draw, zero = draws(dtype)
    feeds = {"a": draw(4, 99), "b": draw(4, 99), "c": np.random.default_rng(1).random((4, 99)) < 0.5}
    known = dict(sa=F(0.5), za=zero(131), sb=F(0.25), zb=zero(7), sc=F(0.0625), zc=zero(121), so=F(1 / 256), zo=zero(0))
    a, b, c = "a sa za", "b sb zb", "sc zc"
    nodes = [
        ms("QLinearAdd", f"{a} {b} {c}", "sum"),
        ms("QLinearMul", f"{a} {b} so zc", "product"),
        ms("QLinearWhere", f"c {a} {b} {c}", "where"),
        ms("QLinearConcat", f"{c} {a} {b} a {c}", "concat", axis=-1),
        ms("QLinearSigmoid", "a so za so zo", "sigmoid"),
        ms("QLinearLeakyRelu", f"{a} sb zc", "leaky", alpha=0.1),
        ms("QLinearSoftmax", "a so za so zo", "softmax", axis=-1, opset=13),
        ms("QLinearSoftmax", "b so zb so zo", "flat_softmax", axis=0, opset=12),
    ]
    outputs = "sum product where concat sigmoid leaky softmax flat_softmax"
    WAYS[dtype](write(tmp_path / "m.onnx", nodes, feeds, known, outputs), feeds)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_windows_and_reductions(tmp_path: Path, dtype: str) -> None:
    draw, zero = draws(dtype)
    feeds = {"a": draw(2, 5, 7, 6)}
    known = dict(sa=F(0.02), za=zero(131), sc=F(0.013), zc=zero(121))
    window = dict(kernel_shape=[3, 2], pads=[1, 0, 1, 1])
    nodes = [
        ms("QLinearGlobalAveragePool", "a sa za sc zc", "mean"),
        ms("QLinearGlobalAveragePool", "a sa za sc zc", "mean_last", channels_last=1),
        ms("QLinearAveragePool", "a sa za sc zc", "pool", strides=[2, 1], count_include_pad=1, **window),
        ms("QLinearAveragePool", "a sa za sc zc", "pool_last", channels_last=1, **window),
        ms("NhwcMaxPool", "a", "highest", strides=[2, 1], **window),
    ]
    outputs = "mean mean_last pool pool_last highest"
    if dtype == "uint8":
        weights = np.random.default_rng(3).integers(-63, 64, (8, 6, 3, 3)).astype(np.int8)
        known |= dict(w=weights, sw=np.linspace(0.001, 0.01, 8, dtype=F), zw=np.zeros(8, np.int8))
        known |= dict(bias=np.arange(-400, 400, 100, dtype=np.int32))
        nodes.append(ms("QLinearConv", "a sa za w sw zw sc zc bias", "conv", pads=[1, 1, 1, 1], channels_last=1))
        outputs += " conv"
    WAYS[dtype](write(tmp_path / "m.onnx", nodes, feeds, known, outputs), feeds)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_matrix_products(tmp_path: Path, dtype: str) -> None:
    """Weights by column, with zero points, transposed, biases of whole numbers and real ones."""
    draw, zero = draws(dtype)
    rng, w = np.random.default_rng(2), draw(24, 16) // (2 if dtype == "int8" else 1)
    feeds = {"x": draw(9, 24), "r": rng.standard_normal((2, 9, 24)).astype(F)}
    known = dict(w=w, wt=np.ascontiguousarray(w.T), sw=rng.uniform(0.001, 0.01, 16).astype(F), s=F(0.003), z=zero(100))
    known |= dict(zw=np.array([zero(k) for k in rng.integers(90, 150, 16)]), so=F(0.7), zo=zero(101))
    known |= dict(c=rng.integers(-9000, 9000, 16).astype(np.int32), bias=rng.standard_normal(16).astype(F))
    nodes = [
        ms("QGemm", "x s z w sw zw c so zo", "gemm"),
        ms("QGemm", "x s z wt s z c", "gemm_real", transB=1, alpha=0.5),
        ms("DynamicQuantizeMatMul", "r w sw zw bias", "dynamic"),
        ms("DynamicQuantizeMatMul", "r w s", "dynamic_plain"),
        ms("QuantizeLinear", "r sq zq", "q", axis=2),
        ms("DequantizeLinear", "q sq zq", "d", axis=2),
    ]
    known |= dict(sq=np.linspace(0.01, 0.03, 24, dtype=F), zq=np.array([zero(100 + k) for k in range(24)]))
    outputs = "gemm gemm_real dynamic dynamic_plain q d"
    if dtype == "uint8":
        nodes += [
            ms("MatMulIntegerToFloat", "x w s sw z zw bias", "to_real"),
            ms("MatMulIntegerToFloat", "x w s s", "to_real_plain"),
        ]
        outputs += " to_real to_real_plain"
    result = WAYS[dtype](write(tmp_path / "m.onnx", nodes, feeds, known, outputs), feeds)
    assert result is None or not [note for note in result.notes if "run in float32" in note]


def test_what_is_no_such_operator_is_said(tmp_path: Path) -> None:
    draw, zero = draws("uint8")
    feeds = {"a": draw(4, 8)}
    known = dict(s=F(0.5), z=zero(3), many=np.ones(4, F))
    for node, sentence in (
        (ms("QLinearConcat", "s z a s", "y", axis=0), "three inputs for each part"),
        (ms("QLinearConcat", "s z a s z", "y"), "expected an attribute axis"),
        (ms("QLinearSigmoid", "a many z s z", "y"), r"expected one number as scale, found \[4\]"),
        (ms("QLinearSigmoid", "a s z", "y"), "inputs, found 3"),
    ):
        with pytest.raises(ModelError, match=sentence):
            import_model(write(tmp_path / "m.onnx", [node], feeds, known, "y"))
