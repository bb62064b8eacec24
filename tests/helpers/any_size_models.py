"""Small models whose inputs have free dimensions: rows, tokens, pictures, steps in time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from control_models import INFO, node, saved
from onnx import TensorProto
from recurrent_models import model as recurrent_model

F, I = TensorProto.FLOAT, TensorProto.INT64
Feed = dict[str, np.ndarray]


def perceptron(path: Path) -> Path:
    """Rows of any number -> two products, a softmax."""
    rng = np.random.default_rng(0)
    nodes = [
        node("MatMul", ["x", "w1"], ["a"]),
        node("Add", ["a", "b1"], ["b"]),
        node("Relu", ["b"], ["c"]),
        node("MatMul", ["c", "w2"], ["d"]),
        node("Softmax", ["d"], ["y"], axis=-1),
    ]
    weights = {"w1": (40, 72), "b1": (72,), "w2": (72, 10)}
    drawn = {name: rng.standard_normal(shape).astype(np.float32) / 8 for name, shape in weights.items()}
    return _of_opset(path, nodes, [INFO("x", F, ["rows", 40])], ["y"], drawn)


def filtered(path: Path) -> Path:
    """Pictures of any number -> a convolution that Winograd's rule takes."""
    weights = {"w": np.random.default_rng(0).standard_normal((32, 32, 3, 3)).astype(np.float32)}
    nodes = [node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["y"])]
    return _of_opset(path, nodes, [INFO("x", F, ["batch", 32, 64, 64])], ["y"], weights)


def strided(path: Path) -> Path:
    """Pictures of any height -> a convolution of every 32nd row."""
    weights = {"w": np.random.default_rng(0).standard_normal((16, 8, 1, 3)).astype(np.float32)}
    nodes = [node("Conv", ["x", "w"], ["y"], pads=[0, 1, 0, 1], strides=[32, 1])]
    return _of_opset(path, nodes, [INFO("x", F, [1, 8, "height", 16])], ["y"], weights)


def averaged(path: Path) -> Path:
    """A picture of any height -> every sixteenth row, averaged."""
    nodes = [node("Conv", ["x", "w"], ["a"], strides=[16, 1]), node("GlobalAveragePool", ["a"], ["y"])]
    weights = {"w": np.random.default_rng(0).standard_normal((8, 3, 1, 1)).astype(np.float32)}
    return _of_opset(path, nodes, [INFO("x", F, [1, 3, "height", 20])], ["y"], weights)


def one_hot(path: Path) -> Path:
    """Rows of 2,048 numbers of 0 to 256 -> which each is, times a matrix."""
    weights = {"every": np.arange(257, dtype=np.int32), "w": np.ones((257, 64), np.float32)}
    nodes = [
        node("Unsqueeze", ["x", "last"], ["each"]),
        node("Equal", ["each", "every"], ["is"]),
        node("Cast", ["is"], ["y"], to=F),
        node("MatMul", ["y", "w"], ["z"]),
    ]
    inputs = [INFO("x", TensorProto.INT32, ["batch", 2048])]
    return _of_opset(path, nodes, inputs, ["z"], {**weights, "last": np.array([-1])}, opset=13)


def encoder(path: Path) -> Path:
    """Tokens and a mask of any length -> attention, the beginning of a table, sums over all."""
    rng = np.random.default_rng(0)
    nodes = [
        node("Gather", ["table", "ids"], ["words"]),
        node("Shape", ["ids"], ["shape"]),
        node("Slice", ["shape", "one", "two"], ["length"]),
        node("Slice", ["positions", "zero", "length", "one"], ["places"]),
        node("Add", ["words", "places"], ["x"]),
        *(node("MatMul", ["x", f"w{n}"], [n]) for n in "qkv"),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Cast", ["mask"], ["there"], to=F),
        node("Sub", ["there", "unit"], ["away"]),
        node("Mul", ["away", "huge"], ["bias"]),
        node("Unsqueeze", ["bias", "one"], ["over"]),
        node("Add", ["scores", "over"], ["kept"]),
        node("Softmax", ["kept"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["hidden"]),
        node("ReduceMean", ["hidden"], ["pooled"], axes=[1], keepdims=0),
    ]
    weights = {f"w{n}": rng.standard_normal((24, 24)).astype(np.float32) / 4 for n in "qkv"}
    weights |= {"table": rng.standard_normal((50, 24)), "positions": rng.standard_normal((1, 40, 24))}
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    weights |= {"unit": np.float32(1), "huge": np.float32(1e9)}
    weights |= {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2])}
    inputs = [INFO("ids", I, [1, "seq"]), INFO("mask", I, [1, "seq"])]
    return _of_opset(path, nodes, inputs, ["hidden", "pooled"], weights, opset=13)


def pictures(path: Path) -> Path:
    """Pictures of any height and width, in steps of 8 -> convolutions (one by Winograd's rule), windows, sums."""
    rng = np.random.default_rng(0)
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1], group=16),
        node("Conv", ["c", "w2"], ["d"]),
        node("MaxPool", ["d"], ["e"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", ["e", "", "scales"], ["f"], mode="nearest"),
        node("Conv", ["f", "w3"], ["g"], pads=[1, 1, 1, 1]),
        node("Add", ["d", "g"], ["map"]),
        node("GlobalAveragePool", ["map"], ["pooled"]),
    ]
    shapes = {"w0": (16, 3, 3, 3), "w1": (16, 1, 3, 3), "w2": (24, 16, 1, 1), "w3": (24, 24, 3, 3)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) / 3 for name, shape in shapes.items()}
    weights |= {"scales": np.array([1, 1, 2, 2], np.float32)}
    return _of_opset(path, nodes, [INFO("x", F, [1, 3, "height", "width"])], ["map", "pooled"], weights, opset=13)


def pooled(path: Path) -> Path:
    """Sequences of any batch -> their means, weighed by a softmax of scores that are rounded to bytes."""
    rng = np.random.default_rng(0)
    nodes = [
        node("MatMul", ["x", "keys"], ["h"]),
        node("Tanh", ["h"], ["t"]),
        node("MatMul", ["t", "values"], ["scores"]),
        node("QuantizeLinear", ["scores", "scale", "zero"], ["bytes"]),
        node("DequantizeLinear", ["bytes", "scale", "zero"], ["rounded"]),
        node("Softmax", ["rounded"], ["weights"], axis=1),
        node("Mul", ["x", "weights"], ["weighed"]),
        node("ReduceSum", ["weighed", "axes"], ["y"], keepdims=0),
    ]
    constants = {name: rng.standard_normal(shape).astype(np.float32) / 5 for name, shape in POOLED.items()}
    constants |= {"scale": np.array(0.05, np.float32), "zero": np.array(128, np.uint8), "axes": np.array([1], np.int64)}
    return saved(path, nodes, [INFO("x", F, ["batch", 40, 32])], ["y"], constants)


POOLED = {"keys": (32, 16), "values": (16, 1)}


def _of_opset(
    path: Path, nodes: list[onnx.NodeProto], inputs: list, outputs: list[str], weights: Feed, opset: int = 17
) -> Path:
    saved(path, nodes, inputs, outputs, weights)
    model = onnx.load(path)
    model.opset_import[0].version = opset
    onnx.save(model, path)
    return path


def recurrent(path: Path) -> Path:
    """Sequences of any number and length, and their first states -> a GRU in both directions, one Loop each."""
    recurrent_model(path, "GRU", 9, "bidirectional", "Bh", "YH", "Xh", 0, (6, 6, 10), linear_before_reset=1)
    return opened(path, {"X": {0: "time", 1: "batch"}, "h": {1: "batch"}})


def opened(path: Path, dims: Mapping[str, Mapping[int, str]]) -> Path:
    """The model with names in place of some extents of its inputs."""
    model = onnx.load(path)
    for given in model.graph.input:
        for axis, name in dims.get(given.name, {}).items():
            given.type.tensor_type.shape.dim[axis].dim_param = name
    onnx.save(model, path)
    return path
