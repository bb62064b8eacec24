"""Small quantized models: what ONNX Runtime's quantizer writes, and what is wrong with it where a test says so."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_model as small
from onnx import NodeProto, helper, numpy_helper

from modelc.target import Target, load_target

Arrays = dict[str, np.ndarray]
TARGETS = ("native", "x86-64-v3")  # the second multiplies 16-bit numbers, or weights of 7 bits


def run_here(name: str) -> Target:
    """The target, one of TARGETS. Skips the test where this machine does not run its packages."""
    if name != "native" and platform.machine() != "x86_64":
        pytest.skip(f"this machine does not run packages for {name}")
    return load_target(name)


class Written:
    """A QDQ model that is being written: nodes and constants by name."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.weights: Arrays = {}

    def node(self, op: str, inputs: list[str], output: str, **attrs: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], output, **attrs))
        return output

    def through(self, x: str, name: str, scale: float, zero: int, dtype: str = "uint8") -> str:
        """`x` quantized and dequantized."""
        self.weights |= {f"{name}_s": np.float32(scale), f"{name}_z": np.array(zero, dtype)}
        quantized = self.node("QuantizeLinear", [x, f"{name}_s", f"{name}_z"], f"{name}_q")
        return self.node("DequantizeLinear", [quantized, f"{name}_s", f"{name}_z"], name)

    def weight(self, name: str, shape: tuple[int, ...], axis: int | None, scale: float) -> str:
        """int8 weights, with a scale for each index of `axis` or one for all."""
        count = 1 if axis is None else shape[axis]
        scales = (scale * self.rng.uniform(0.3, 2, count)).astype(np.float32)
        self.weights |= {
            f"{name}_q": self.rng.integers(-127, 128, shape).astype(np.int8),
            f"{name}_s": scales[0] if axis is None else scales,
            f"{name}_z": np.zeros(() if axis is None else count, np.int8),
        }
        attrs = {} if axis is None else {"axis": axis}
        return self.node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], name, **attrs)

    def bias(self, name: str, x: str, w: str, count: int) -> str:
        """An int32 bias in units of the scales of what is multiplied."""
        scale = self.weights[f"{x}_s"] * self.weights[f"{w}_s"]
        self.weights |= {
            f"{name}_q": self.rng.integers(-4000, 4000, count).astype(np.int32),
            f"{name}_s": np.asarray(scale, np.float32),
            f"{name}_z": np.zeros(np.shape(scale), np.int32),
        }
        return self.node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], name, axis=0)

    def save(self, path: Path, inputs: Mapping[str, list[int]], outputs: Mapping[str, list[int]]) -> Path:
        return small.save(path, self.nodes, dict(inputs), dict(outputs), self.weights)


def conv_net(path: Path, dtype: str = "uint8") -> Path:
    """A convolution with weights by channel and a zero point at its border, a pool, a residual, a matrix product.
    Scales have no common measure: sums of two do not lie at ties."""
    w = Written()
    middle = 0 if dtype == "int8" else 128
    x = w.through("x", "xd", 0.0301, middle - 11, dtype)
    first = w.weight("w1", (8, 8, 3, 3), 0, 0.002)
    c = w.node("Conv", [x, first, w.bias("b1", "xd", "w1", 8)], "c", pads=[1, 1, 1, 1])
    r = w.through(w.node("Relu", [c], "r"), "rd", 0.0197, middle - 120, dtype)
    p = w.through(w.node("MaxPool", [r], "p", kernel_shape=[2, 2], strides=[2, 2]), "pd", 0.0197, middle - 120, dtype)
    second = w.weight("w2", (8, 8, 1, 1), None, 0.01)
    e = w.through(w.node("Conv", [p, second], "e"), "ed", 0.0493, middle + 3, dtype)
    a = w.through(w.node("Add", [p, e], "a"), "ad", 0.0613, middle + 5, dtype)
    f = w.node("Flatten", [a], "f")
    m = w.node("MatMul", [f, w.weight("w3", (128, 16), 1, 0.004)], "m")
    w.through(m, "y", 0.397, middle, dtype)
    return w.save(path, {"x": [1, 8, 8, 8]}, {"y": [1, 16]})


def changed(source: Path, path: Path, name: str, constant: object = None, **attrs: int) -> Path:
    """The model with another constant `name`, or with other attributes of the node that has it as its output."""
    model = onnx.load(source)
    for tensor in model.graph.initializer:
        if tensor.name == name:
            before = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(constant(before), before.dtype), name))  # type: ignore
            break
    else:
        (node,) = [n for n in model.graph.node if name in n.output]
        kept = [a for a in node.attribute if a.name not in attrs]
        del node.attribute[:]
        node.attribute.extend([*kept, *(helper.make_attribute(k, v) for k, v in attrs.items())])
    onnx.save(model, path)
    return path


def clipped(source: Path, path: Path, name: str, low: float, high: float) -> Path:
    """The model with what is rounded to `name` limited before: whole numbers that saturate too early."""
    model = onnx.load(source)
    (k,) = [k for k, n in enumerate(model.graph.node) if name in n.output]
    node = model.graph.node[k]
    limits = {"low": np.float32(low), "high": np.float32(high)}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in limits.items())
    model.graph.node.insert(k, helper.make_node("Clip", [node.input[0], "low", "high"], ["limited"], "limit"))
    model.graph.node[k + 1].input[0] = "limited"
    onnx.save(model, path)
    return path
