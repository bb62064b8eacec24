"""Fused operators of ONNX Runtime (domain com.microsoft) in ONNX's own words."""

from __future__ import annotations

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.microsoft.attention import ATTENTION, ATTENTION_SIGNATURES
from modelc.frontend.microsoft.blocks import BLOCK_SIGNATURES, BLOCKS
from modelc.frontend.microsoft.quantized import QUANTIZED, QUANTIZED_SIGNATURES
from modelc.frontend.microsoft.recurrent import RECURRENT, RECURRENT_SIGNATURES
from modelc.frontend.operators.form import Normaliser
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


# (domain, operator) -> meaning. ONNX Runtime keeps some of its own operators in ONNX's domain.
FUSED: dict[tuple[str, str], Normaliser] = {
    **QUANTIZED,
    **ATTENTION,
    **BLOCKS,
    **RECURRENT,
    ("com.microsoft", "Gelu"): _gelu,
    ("com.microsoft", "BiasGelu"): _bias_gelu,
    ("com.microsoft", "FastGelu"): _fast_gelu,
    ("com.microsoft", "QuickGelu"): _quick_gelu,
    ("com.microsoft", "FusedMatMul"): _fused_matmul,
    ("com.microsoft", "FusedConv"): _fused_conv,
    ("com.microsoft", "FusedGemm"): _fused_gemm,
    ("com.microsoft", "LayerNormalization"): _layer_normalization,
    ("com.microsoft", "SkipLayerNormalization"): _skip_layer_normalization,
    ("com.microsoft", "SimplifiedLayerNormalization"): _rms_normalization,
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _skip_rms_normalization,
    ("", "SimplifiedLayerNormalization"): _rms_normalization,
}

_WINDOW = "auto_pad:STRING group:INT dilations:INTS kernel_shape:INTS pads:INTS strides:INTS"
_MATRICES = "alpha:FLOAT transA:INT transB:INT"

# (domain, operator) -> inputs (? for an optional one, * for any number), most outputs, attributes with their types
# (! for one that has to be there).
SIGNATURES: dict[tuple[str, str], tuple[str, int, str]] = {
    **QUANTIZED_SIGNATURES,
    **ATTENTION_SIGNATURES,
    **BLOCK_SIGNATURES,
    **RECURRENT_SIGNATURES,
    ("com.microsoft", "Gelu"): ("X", 1, ""),
    ("com.microsoft", "BiasGelu"): ("A B", 1, ""),
    ("com.microsoft", "FastGelu"): ("X bias?", 1, ""),
    ("com.microsoft", "QuickGelu"): ("X", 1, "alpha:FLOAT"),
    ("com.microsoft", "FusedMatMul"): ("A B", 1, f"{_MATRICES} transBatchA:INT transBatchB:INT"),
    ("com.microsoft", "FusedConv"): ("X W B? Z?", 1, f"{_WINDOW} activation:STRING activation_params:FLOATS"),
    ("com.microsoft", "FusedGemm"): (
        "A B C?",
        1,
        f"{_MATRICES} beta:FLOAT activation:STRING activation_alpha:FLOAT activation_beta:FLOAT activation_gamma:FLOAT",
    ),
    ("com.microsoft", "LayerNormalization"): ("X Scale B?", 3, "axis:INT epsilon:FLOAT stash_type:INT"),
    ("com.microsoft", "SkipLayerNormalization"): ("input skip gamma beta? bias?", 4, "epsilon:FLOAT"),
    ("com.microsoft", "SimplifiedLayerNormalization"): ("X scale", 2, "axis:INT epsilon:FLOAT stash_type:INT"),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): ("input skip gamma bias?", 4, "epsilon:FLOAT"),
    ("", "SimplifiedLayerNormalization"): ("X scale", 2, "axis:INT epsilon:FLOAT stash_type:INT"),
}
