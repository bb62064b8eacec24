"""Arithmetic element by element, products and normalisations of every operator set in the form of the newest."""

from __future__ import annotations

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.composed import batch_normalization_in_training
from modelc.frontend.operators.form import Form, axes_of, forms, moved_to_inputs, without
from modelc.ir.expr import NARROW_FLOATS

MOST_OPERANDS = 16  # of one Sum, Mean, Max or Min


def _aligned(b: Builder, n: OnnxNode) -> None:
    """Before operator set 7 the second operand was aligned at `axis` if `broadcast` was set."""
    a, second = n.inputs[0], n.input(1)
    shape, other = b.shape(a), b.shape(second)
    if n.version < 7 and n.attrs.get("broadcast", 0) and "axis" in n.attrs and len(other) < len(shape):
        (axis,) = axes_of(n, (n.attrs["axis"],), len(shape))
        second = b.reshape(n, second, (*other, *[1] * (len(shape) - axis - len(other))))
    b.emit(n, n.op, (a, second), without(n, "axis", "broadcast"), n.outputs)


def _variadic(b: Builder, n: OnnxNode) -> None:
    """Many operands are taken in turns, so that no expression is deep."""
    if len(n.inputs) <= MOST_OPERANDS:
        b.emit(n, n.op, n.inputs, without(n, "axis", "broadcast"), n.outputs)
        return
    op = "Sum" if n.op == "Mean" else n.op
    result, operands = n.inputs[0], n.inputs[1:]
    for k in range(0, len(operands), MOST_OPERANDS - 1):
        last = op == n.op and k + MOST_OPERANDS - 1 >= len(operands)
        result = b.emit(n, op, (result, *operands[k : k + MOST_OPERANDS - 1]), {}, n.outputs if last else None)
    if op != n.op:
        count = b.constant(len(n.inputs), f"{n.outputs[0]}_count", b.value(result).dtype)
        b.emit(n, "Div", (result, count), {}, n.outputs)


def _prelu(b: Builder, n: OnnxNode) -> None:
    """Before operator set 7 a slope of one dimension was per channel."""
    slope, rank = b.shape(n.inputs[1]), len(b.shape(n.inputs[0]))
    second = n.inputs[1]
    if n.version < 7 and len(slope) == 1 and slope[0] > 1:
        second = b.reshape(n, second, (*slope, *[1] * (rank - 2)))
    b.emit(n, "PRelu", (n.inputs[0], second), {}, n.outputs)


def _cast(b: Builder, n: OnnxNode) -> None:
    """How out of range numbers are rounded is a matter of narrow floats alone."""
    to = n.attrs.get("to") if n.op == "Cast" else b.value(n.inputs[1]).dtype
    attrs = n.attrs if to in NARROW_FLOATS else without(n, "saturate", "round_mode")
    b.emit(n, n.op, n.inputs, attrs, n.outputs)


def _batch_normalization(b: Builder, n: OnnxNode) -> None:
    training = n.attrs.get("training_mode", 0) or (n.version < 7 and not n.attrs.get("is_test", 0) and n.wants(1))
    if n.version >= 14 and training:
        batch_normalization_in_training(b, n)
        return
    if training or any(n.outputs[1:]):
        raise n.fail("this is batch normalisation in training mode; export the model for inference")
    if n.attrs.get("spatial", 1) != 1:
        raise n.fail("expected spatial=1, found statistics per element")
    b.emit(n, n.op, n.inputs, {"epsilon": n.attrs.get("epsilon", 1e-5)}, n.outputs[:1])


def _group_normalization(b: Builder, n: OnnxNode) -> None:
    """Before operator set 21 scale and bias were per group."""
    channels, groups = b.shape(n.inputs[0])[1], n.attrs.get("num_groups", 0)
    inputs = list(n.inputs)
    if n.version < 21 and groups and groups != channels:
        for k in (1, 2):
            data = b.data(inputs[k])
            if data is not None:
                b.make_room(n, channels * data.itemsize)
                inputs[k] = b.constant(np.repeat(data, channels // groups), f"{inputs[k]}_per_channel")
                continue
            column = b.reshape(n, inputs[k], (groups, 1))
            target = b.constant(np.asarray((groups, channels // groups), np.int64), f"{inputs[k]}_groups")
            inputs[k] = b.reshape(n, b.emit(n, "Expand", (column, target)), (channels,))
    b.emit(n, n.op, inputs, n.attrs, n.outputs)


def _layer_normalization(b: Builder, n: OnnxNode) -> None:
    """Mean and inverse deviation are float32, also of float64."""
    statistics = n.outputs[1:] if any(n.outputs[1:]) else ()
    computed = statistics
    if b.value(n.inputs[0]).dtype == "float64":
        computed = tuple(b.fresh(f"{name}_wide") if name else "" for name in statistics)
    b.emit(n, n.op, n.inputs, without(n, "stash_type"), (n.outputs[0], *computed))
    for name, wide in zip(statistics, computed, strict=True):
        if wide != name:
            b.emit(n, "Cast", (wide,), {"to": "float32"}, (name,))


def _gemm(b: Builder, n: OnnxNode) -> None:
    b.emit(n, n.op, n.inputs, without(n, "broadcast"), n.outputs)


FORMS = (
    *forms("Add Sub Mul Div And Or Xor Equal Less Greater Pow", _aligned),
    *forms("Sum Mean Max Min", _variadic),
    Form("PRelu", _prelu),
    Form("Cast", _cast),
    Form("Clip", moved_to_inputs((1, "min", "like"), (2, "max", "like"))),
    Form("BatchNormalization", _batch_normalization),
    Form("GroupNormalization", _group_normalization),
    Form("LayerNormalization", _layer_normalization),
    Form("Gemm", _gemm),
)
