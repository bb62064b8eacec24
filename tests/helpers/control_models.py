"""Models with branches and loops, and how their outputs are compared with ONNX Runtime's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F, I, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
INFO = helper.make_tensor_value_info
node = helper.make_node


def body(nodes: list, outputs: list[str], inputs: tuple = (), weights: dict[str, Any] | None = None) -> onnx.GraphProto:
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    kinds = [INFO(n, B if n in ("on", "again") else F, None) for n in outputs]
    return helper.make_graph(nodes, "body", list(inputs), kinds, tensors)


def saved(path: Path, nodes: list, inputs: list, outputs: list[str], weights: dict[str, Any]) -> Path:
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, [INFO(n, F, None) for n in outputs], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def branching(path: Path) -> Path:
    """if flag: (x w + y, row of a table, x) else: nested by the sign of the sum of y. Weights lie outside and inside,
    a column of x is captured, and x is handed through."""
    rng = np.random.default_rng(0)
    inner = body([node("Relu", ["h"], ["r"])], ["r"]), body([node("Mul", ["t", "column"], ["m"])], ["m"])
    then = body(
        [
            node("MatMul", ["t", "w"], ["tw"]),
            node("Add", ["tw", "y"], ["a"]),
            node("Gather", ["table", "i"], ["row"], axis=0),
            node("Identity", ["t"], ["same"]),
        ],
        ["a", "row", "same"],
    )
    other = body(
        [
            node("MatMul", ["y", "inside"], ["h"]),
            node("ReduceSum", ["y"], ["total"], keepdims=0),
            node("Greater", ["total", "zero"], ["positive"]),
            node("If", ["positive"], ["e"], "nested", then_branch=inner[0], else_branch=inner[1]),
        ],
        ["e", "given", "h"],
        weights={"inside": rng.standard_normal((4, 4)).astype(np.float32), "given": np.arange(4, dtype=np.float32)},
    )
    nodes = [
        node("Tanh", ["x"], ["t"]),
        node("Slice", ["t", "one", "two", "one"], ["column"]),
        node("If", ["flag"], ["z", "picked", "last"], "choose", then_branch=then, else_branch=other),
        node("Add", ["z", "picked"], ["sum"]),
        node("Sub", ["sum", "column"], ["out"]),
    ]
    weights = {
        "w": rng.standard_normal((4, 4)).astype(np.float32),
        "table": rng.standard_normal((6, 4)).astype(np.float32),
        "zero": np.float32(0),
        "one": np.array([1]),
        "two": np.array([2]),
    }
    inputs = [INFO("flag", B, []), INFO("x", F, [3, 4]), INFO("y", F, [3, 4]), INFO("i", I, [])]
    return saved(path, nodes, inputs, ["out", "last"], weights)


def agree(found: dict[str, np.ndarray], wanted: list[np.ndarray]) -> None:
    assert found
    for name, array in zip(found, wanted, strict=True):
        assert found[name].shape == array.shape, name
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
