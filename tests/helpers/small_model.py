"""Small models and packages of them, which the tests of pipeline, verification and command line share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import modelc

FOLDER = TemporaryDirectory(prefix="modelc-small-", dir=os.environ.get("MODELC_TESTS_CACHE"))


def save(path: Path, nodes: Sequence, inputs: dict, outputs: dict, weights: dict[str, np.ndarray]) -> Path:
    def info(name: str, shape: Sequence, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    described = [info(k, *v) if isinstance(v, tuple) else info(k, v) for k, v in inputs.items()]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "small", described, [info(k, v) for k, v in outputs.items()], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def conv_net(path: Path) -> Path:
    """Two convolutions, a pool and a matrix product, for any batch and any size of image."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((8, 3, 3, 3)).astype(np.float32) * 0.2,
        "b1": rng.standard_normal(8).astype(np.float32),
        "w2": rng.standard_normal((16, 8, 3, 3)).astype(np.float32) * 0.2,
        "w3": rng.standard_normal((16, 10)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "second", strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c2"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("MatMul", ["f", "w3"], ["y"], "product"),
    ]
    return save(path, nodes, {"x": ["batch", 3, "h", "w"]}, {"y": ["batch", 10]}, weights)


@cache
def model() -> Path:
    return conv_net(Path(FOLDER.name) / "net.onnx")


SHAPES = ({"x": (1, 3, 20, 24)}, {"x": (2, 3, 12, 12)})


@cache
def package() -> Path:
    """The network compiled for two sets of shapes."""
    path = Path(FOLDER.name) / "net.modelc"
    modelc.compile(model(), output=path, shapes=SHAPES)
    return path
