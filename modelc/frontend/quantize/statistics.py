"""A model that says what ranges the activations of another have: the least and the greatest number of each value, and
some of its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from modelc.frontend.quantize.floats import FloatModel
from modelc.frontend.witness.surgery import save

SAMPLED = 4096  # numbers that are taken of a value in one run, some of them more than once where it has fewer
PLACES = "modelc:places"


def low(value: str) -> str:
    return f"{value}/low"


def high(value: str) -> str:
    return f"{value}/high"


def sampled(value: str) -> str:
    return f"{value}/sampled"


def channels(value: str) -> str:
    return f"{value}/channels"


def write_statistics(floats: FloatModel, values: Sequence[str], ranks: Mapping[str, int], output: Path) -> None:
    """Writes the model with outputs low(), high() and sampled() of each value, and channels(), the greatest magnitudes
    by channel, of those that `ranks` names: of images their rank, of rows, whose last dimension is their channels, 0.
    Its own outputs are left out."""
    model = type(floats.model)()
    model.CopyFrom(floats.model)
    graph = model.graph
    places = np.random.default_rng(0).integers(0, 1 << 40, SAMPLED)
    graph.initializer.append(numpy_helper.from_array(places, PLACES))
    graph.initializer.append(numpy_helper.from_array(np.array([-1]), f"{PLACES}/flat"))
    del graph.output[:]
    for value in values:
        graph.node.extend(
            [
                helper.make_node("ReduceMin", [value], [low(value)], keepdims=0),
                helper.make_node("ReduceMax", [value], [high(value)], keepdims=0),
                helper.make_node("Size", [value], [f"{value}/size"]),
                helper.make_node("Mod", [PLACES, f"{value}/size"], [f"{value}/places"]),
                helper.make_node("Reshape", [value, f"{PLACES}/flat"], [f"{value}/flat"]),
                helper.make_node("Gather", [f"{value}/flat", f"{value}/places"], [sampled(value)], axis=0),
            ]
        )
        for name in (low(value), high(value), sampled(value)):
            graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    for value, rank in ranks.items():
        graph.node.append(helper.make_node("Abs", [value], [f"{value}/magnitudes"]))
        reads, axes = f"{value}/magnitudes", (0, *range(2, rank))
        if not rank:
            reads = f"{value}/rows"
            graph.node.append(helper.make_node("Flatten", [f"{value}/magnitudes"], [reads], axis=-1))
        graph.node.append(reduced("ReduceMax", reads, channels(value), axes, opset, model))
        graph.output.append(helper.make_tensor_value_info(channels(value), TensorProto.FLOAT, None))
    save(model, output)


def reduced(op: str, x: str, y: str, axes: Sequence[int], opset: int, model: object) -> object:
    """A node that reduces along `axes`, as the operator set says it."""
    takes_input = opset >= (13 if op == "ReduceSum" else 18)
    if not takes_input:
        return helper.make_node(op, [x], [y], axes=list(axes), keepdims=0)
    name = f"{y}/axes"
    model.graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), name))  # type: ignore[attr-defined]
    return helper.make_node(op, [x, name], [y], keepdims=0)
