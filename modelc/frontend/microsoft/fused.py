"""Fused operators of ONNX Runtime (domain com.microsoft) in ONNX's own words."""

from __future__ import annotations

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.microsoft.attention import ATTENTION
from modelc.frontend.microsoft.blocks import BLOCKS
from modelc.frontend.microsoft.quantized import QUANTIZED
from modelc.frontend.microsoft.recurrent import RECURRENT
from modelc.frontend.operators.form import Fused
from modelc.frontend.operators.windows import windowed


def _gelu(b: Builder, n: OnnxNode) -> None:
    b.emit(n, "Gelu", n.inputs[:1], {}, n.outputs)


def _bias_gelu(b: Builder, n: OnnxNode) -> None:
    b.emit(n, "Gelu", (b.emit(n, "Add", n.inputs[:2]),), {}, n.outputs)


def _fast_gelu(b: Builder, n: OnnxNode) -> None:
    x = b.emit(n, "Add", n.inputs[:2]) if n.input(1) else n.inputs[0]
    b.emit(n, "Gelu", (x,), {"approximate": "tanh"}, n.outputs)


def _quick_gelu(b: Builder, n: OnnxNode) -> None:
    x = n.inputs[0]
    alpha = b.constant(np.asarray(n.attrs.get("alpha", 1.702), b.value(x).dtype), f"{n.outputs[0]}_alpha")
    gate = b.emit(n, "Sigmoid", (b.emit(n, "Mul", (x, alpha)),))
    b.emit(n, "Mul", (x, gate), {}, n.outputs)


def _fused_matmul(b: Builder, n: OnnxNode) -> None:
    operands = []
    for k, name in enumerate("AB"):
        x, rank = n.inputs[k], len(b.shape(n.inputs[k]))
        if n.attrs.get(f"transBatch{name}", 0):
            raise n.fail(f"expected transBatch{name}=0, found {n.attrs[f'transBatch{name}']}")
        if n.attrs.get(f"trans{name}", 0) and rank > 1:
            perm = (*range(rank - 2), rank - 1, rank - 2)
            x = b.emit(n, "Transpose", (x,), {"perm": perm})
        operands.append(x)
    alpha = n.attrs.get("alpha", 1.0)
    if alpha == 1.0:
        b.emit(n, "MatMul", operands, {}, n.outputs)
        return
    product = b.emit(n, "MatMul", operands)
    b.emit(
        n, "Mul", (product, b.constant(np.asarray(alpha, b.value(product).dtype), f"{product}_alpha")), {}, n.outputs
    )


def _activated(b: Builder, n: OnnxNode, x: str) -> None:
    """The activation of FusedConv and FusedGemm applied to `x`."""
    activation = n.attrs.get("activation", "") or "Identity"
    params = tuple(n.attrs.get("activation_params", ()))
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Elu": ("alpha",)}.get(activation, ())
    if activation == "Clip" and len(params) == 2:
        limits = [b.constant(np.asarray(p, b.value(x).dtype), f"{n.outputs[0]}_limit") for p in params]
        b.emit(n, "Clip", (x, *limits), {}, n.outputs)
    elif activation in ("Identity", "Relu", "Tanh", "Sigmoid") or names:
        attrs = dict(zip(names, params, strict=False)) or {
            name: n.attrs[f"activation_{name}"] for name in names if f"activation_{name}" in n.attrs
        }
        if missing := [name for name in names if name not in attrs]:
            raise n.fail(f"expected activation_params {', '.join(names)} of {activation}, found no {missing[0]}")
        b.emit(n, activation, (x,), attrs, n.outputs)
    else:
        raise n.fail(f"expected a known activation, found {activation!r}")


def _fused_conv(b: Builder, n: OnnxNode) -> None:
    plain = {k: v for k, v in n.attrs.items() if not k.startswith("activation")}
    product = b.fresh(f"{n.outputs[0]}_conv")
    conv = OnnxNode("Conv", "", 11, n.name, n.inputs[:3], (product,), plain, n.source)
    windowed(b, conv)
    if n.input(3):
        product = b.emit(n, "Add", (product, n.inputs[3]))
    _activated(b, n, product)


def _fused_gemm(b: Builder, n: OnnxNode) -> None:
    plain = {k: v for k, v in n.attrs.items() if not k.startswith("activation")}
    _activated(b, n, b.emit(n, "Gemm", n.inputs, plain))


def _layer_normalization(b: Builder, n: OnnxNode) -> None:
    attrs = {"axis": n.attrs.get("axis", -1), "epsilon": n.attrs.get("epsilon", 1e-5)}
    outputs = n.outputs if any(n.outputs[1:]) else n.outputs[:1]
    b.emit(n, "LayerNormalization", n.inputs, attrs, outputs)


def _rms_normalization(b: Builder, n: OnnxNode) -> None:
    if any(n.outputs[1:]):
        raise n.fail("expected only the normalised output to be used, found the inverse deviation too")
    attrs = {"axis": n.attrs.get("axis", -1), "epsilon": n.attrs.get("epsilon", 1e-5)}
    b.emit(n, "RMSNormalization", n.inputs, attrs, n.outputs[:1])


def _summed(b: Builder, n: OnnxNode, bias: int) -> str:
    """Input, skip and bias of a Skip...Normalization added up; that is output 3 if it is wanted."""
    total = b.emit(n, "Add", n.inputs[:2], outputs=n.outputs[3:4] if n.wants(3) and not n.input(bias) else None)
    if n.input(bias):
        total = b.emit(n, "Add", (total, n.inputs[bias]), outputs=n.outputs[3:4] if n.wants(3) else None)
    if n.wants(1) or n.wants(2):
        raise n.fail("expected mean and inverse deviation to be unused")
    return total


def _skip_layer_normalization(b: Builder, n: OnnxNode) -> None:
    attrs = {"axis": -1, "epsilon": n.attrs.get("epsilon", 1e-12)}
    scale = (n.inputs[2], n.inputs[3]) if n.input(3) else (n.inputs[2],)
    b.emit(n, "LayerNormalization", (_summed(b, n, 4), *scale), attrs, n.outputs[:1])


def _skip_rms_normalization(b: Builder, n: OnnxNode) -> None:
    attrs = {"axis": -1, "epsilon": n.attrs.get("epsilon", 1e-12)}
    b.emit(n, "RMSNormalization", (_summed(b, n, 3), n.inputs[2]), attrs, n.outputs[:1])


_WINDOW = "auto_pad:STRING group:INT dilations:INTS kernel_shape:INTS pads:INTS strides:INTS"
_MATRICES = "alpha:FLOAT transA:INT transB:INT"
_NUMBERS = "activation_alpha:FLOAT activation_beta:FLOAT activation_gamma:FLOAT"
DOMAINS = ("com.microsoft", "")  # ONNX Runtime keeps some of its own operators in ONNX's
_NORMAL = "axis:INT epsilon:FLOAT stash_type:INT"

_FUSED = (
    *QUANTIZED,
    *ATTENTION,
    *BLOCKS,
    *RECURRENT,
    Fused("Gelu", _gelu, "X"),
    Fused("BiasGelu", _bias_gelu, "A B"),
    Fused("FastGelu", _fast_gelu, "X bias?"),
    Fused("QuickGelu", _quick_gelu, "X", attributes="alpha:FLOAT"),
    Fused("FusedMatMul", _fused_matmul, "A B", attributes=f"{_MATRICES} transBatchA:INT transBatchB:INT"),
    Fused("FusedConv", _fused_conv, "X W B? Z?", attributes=f"{_WINDOW} activation:STRING activation_params:FLOATS"),
    Fused("FusedGemm", _fused_gemm, "A B C?", attributes=f"{_MATRICES} beta:FLOAT activation:STRING {_NUMBERS}"),
    Fused("LayerNormalization", _layer_normalization, "X Scale B?", 3, _NORMAL),
    Fused("SkipLayerNormalization", _skip_layer_normalization, "input skip gamma beta? bias?", 4, "epsilon:FLOAT"),
    *(
        Fused("SimplifiedLayerNormalization", _rms_normalization, "X scale", 2, _NORMAL, d)
        for d in ("com.microsoft", "")
    ),
    Fused("SkipSimplifiedLayerNormalization", _skip_rms_normalization, "input skip gamma bias?", 4, "epsilon:FLOAT"),
)
FUSED: dict[tuple[str, str], Fused] = {(fused.domain, fused.name): fused for fused in _FUSED}
