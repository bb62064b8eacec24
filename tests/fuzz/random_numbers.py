"""Nodes on whole numbers for random graphs: integer arithmetic, quantized products, and floats of few bits."""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import TensorProto, helper
from random_draft import Array, Draft, Maker, RandomGraph, Value, node
from random_nodes import partner

BITS = ("uint8", "int8")


def integer(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.array.dtype.kind in "iu" and v.exact)
    if x is None:
        return None
    op = str(g.pick(("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Sum")))
    draft = Draft([], keeps_exact=True)
    away = (lambda v: bool((v.array != 0).all())) if op in ("Div", "Mod") else (lambda v: True)
    unsigned = x.array.dtype.kind == "u"
    if unsigned and g.chance(0.3):
        shift = g.weights(draft, x, g.rng.integers(0, 3, x.array.shape))
        direction = str(g.pick(("LEFT", "RIGHT")))
        draft.nodes.append(node("BitShift", [x.name, shift], [g.fresh("v")], direction=direction))
        return draft
    draft.nodes.append(node(op, [x.name, partner(g, x, draft, away)], [g.fresh("v")]))
    return draft


def as_integer(g: RandomGraph) -> Draft | None:
    """A cast to one of the rarer types of whole numbers, or to one of few bits and back."""
    x = g.value(lambda v: v.exact and v.array.size > 0 and v.array.dtype != np.bool_ and np.abs(v.array).max() < 100)
    if x is None:
        return None
    to = np.dtype(str(g.pick(("int8", "int16", "uint16", "uint32", "uint64", "uint8", "int32", "int64"))))
    if to.kind == "u" and x.array.min() < 0:
        return None
    number = helper.np_dtype_to_tensor_dtype(to)
    return Draft([node("Cast", [x.name], [g.fresh("v")], to=number)], keeps_exact=True)


def few_bits(g: RandomGraph) -> Draft | None:
    """Moves of bfloat16 or float8, which come from floats and become such again."""
    x = g.value(lambda v: v.exact and v.array.dtype == np.float32 and v.array.ndim >= 1)
    if x is None:
        return None
    names = [g.fresh("v") for _ in range(3)]
    to = int(g.pick((TensorProto.BFLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2)))
    nodes = [node("Cast", [x.name], [names[0]], to=to)]
    if to == TensorProto.BFLOAT16:
        nodes.append(node("Transpose", [names[0]], [names[1]], perm=[int(n) for n in g.rng.permutation(x.array.ndim)]))
    else:
        nodes.append(node("Identity", [names[0]], [names[1]]))
    nodes.append(node("Cast", [names[1]], [names[2]], to=TensorProto.FLOAT))
    return Draft(nodes, keeps_exact=True, hidden={*names[:2]})


def _scale(array: Array) -> Array:
    """A scale with which an array's numbers nearly fill, or a little overflow, 256 steps: no power of two, so that
    ties are rare."""
    return np.array(max(float(np.abs(array).max()), 0.1) / 118.3, np.float32)


def _zero(g: RandomGraph, bits: str) -> Array:
    return np.array(int(g.rng.integers(100, 156)) if bits == "uint8" else int(g.pick((0, 0, -7, 11))), bits)


def quantized(g: RandomGraph, draft: Draft, x: Value, bits: str, axis: int | None = None) -> tuple[list[str], str]:
    """x -> QuantizeLinear; the names of (numbers, scale, zero point)."""
    scale = g.constant(draft, _scale(x.array))
    zero = g.constant(draft, _zero(g, bits))
    out = g.fresh("q")
    draft.nodes.append(node("QuantizeLinear", [x.name, scale, zero], [out]))
    return [out, scale, zero], out


def _restored(g: RandomGraph, draft: Draft, parts: list[str]) -> str:
    out = g.fresh("v")
    draft.nodes.append(node("DequantizeLinear", parts, [out]))
    return out


def _weights(g: RandomGraph, draft: Draft, shape: tuple[int, ...], axis: int) -> str:
    """Dequantized weights, by channel or as one."""
    scales = g.rng.uniform(0.002, 0.02, shape[axis] if g.chance(0.5) else ()).astype(np.float32)
    numbers = g.constant(draft, g.rng.integers(-127, 128, shape).astype(np.int8))
    parts = [numbers, g.constant(draft, scales)]
    if g.chance(0.7):
        parts.append(g.constant(draft, np.zeros(scales.shape, np.int8)))
    out = g.fresh("w")
    draft.nodes.append(node("DequantizeLinear", parts, [out], axis=axis))
    return out


def qdq(g: RandomGraph) -> Draft | None:
    """A quantized product, convolution, sum or plain function as exporters write it: between restored numbers."""
    x = g.value(lambda v: v.array.dtype == np.float32 and v.array.ndim >= 2)
    if x is None:
        return None
    draft, bits = Draft([]), str(g.pick(BITS))
    parts, _ = quantized(g, draft, x, bits)
    restored, out = _restored(g, draft, parts), g.fresh("v")
    kind = str(g.pick(("MatMul", "Conv", "Add", "Relu", "Sigmoid", "MaxPool", "GlobalAveragePool", "Softmax")))
    shape = x.array.shape
    attrs: dict[str, object] = {}
    inputs = [restored]
    if kind == "MatMul":
        inputs.append(_weights(g, draft, (shape[-1], int(g.rng.integers(1, 20))), 1))
    elif kind == "Conv":
        if len(shape) != 4 or min(shape[2:]) < 3:
            return None
        inputs.append(_weights(g, draft, (int(g.rng.integers(1, 9)), shape[1], 3, 3), 0))
        attrs = {"pads": [int(g.chance(0.5))] * 4, "strides": [int(g.rng.integers(1, 3))] * 2}
    elif kind in ("MaxPool", "GlobalAveragePool"):
        if len(shape) != 4:
            return None
        attrs = {"kernel_shape": [1, 2]} if kind == "MaxPool" else {}
        if kind == "MaxPool" and shape[3] < 2:
            return None
    elif kind == "Add":
        inputs.append(_restored(g, draft, quantized(g, draft, x, bits)[0]) if g.chance(0.4) else restored)
    draft.nodes.append(node(kind, inputs, [out], **attrs))
    if g.chance(0.5) and kind != "Softmax":
        after = g.constant(draft, np.array(float(np.abs(x.array).max()) / 61.7 + 0.01, np.float32))
        zero, rounded = g.constant(draft, _zero(g, bits)), g.fresh("q")
        draft.nodes.append(node("QuantizeLinear", [out, after, zero], [rounded]))
        _restored(g, draft, [rounded, after, zero])
    return draft


def as_integers(g: RandomGraph) -> Draft | None:
    """Products and convolutions of whole numbers."""
    x = g.value(lambda v: v.exact and v.array.dtype == np.float32 and v.array.ndim >= 2)
    if x is None:
        return None
    draft, shape = Draft([], keeps_exact=True), x.array.shape
    out = g.fresh("v")
    if g.chance(0.3):
        parts = [g.fresh("q"), g.fresh("f"), g.fresh("q")]
        draft.nodes.append(node("DynamicQuantizeLinear", [x.name], parts))
        number, zero = parts[0], parts[2]
    else:
        (number, _, zero), _ = quantized(g, draft, x, "uint8")
    if len(shape) == 4 and min(shape[2:]) >= 2 and g.chance(0.5):
        weights = g.constant(draft, g.rng.integers(-3, 4, (int(g.rng.integers(1, 5)), shape[1], 2, 2)).astype(np.int8))
        made, op = [number, weights, zero], "ConvInteger"
    else:
        weights = g.constant(draft, g.rng.integers(-3, 4, (shape[-1], int(g.rng.integers(1, 9)))).astype(np.int8))
        made, op = [number, weights, zero], "MatMulInteger"
    large = g.fresh("n")
    scale = g.constant(draft, np.array(1 / 256 / prod(shape[1:]), np.float32))
    draft.nodes += [
        node(op, made, [large]),
        node("Cast", [large], [f"{out}_f"], to=TensorProto.FLOAT),
        node("Mul", [f"{out}_f", scale], [out]),
    ]
    draft.hidden |= {large, f"{out}_f"}  # larger than others are to be
    return draft


NUMBER_MAKERS: tuple[Maker, ...] = (integer, integer, as_integer, as_integer, few_bits, qdq, qdq, qdq, as_integers)
