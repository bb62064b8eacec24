"""Small models for sessions: free dimensions, scalars, an initialiser that is an input too, what a model says of
itself."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FEED = {"x": np.ones((2, 3), np.float32), "flag": np.array(3, np.int64), "u": np.ones((1, 2), np.float32)}


def info(name: str, dims: list | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def described() -> bytes:
    """y = x * w + b, z = float(flag), v = -u."""
    weights = [numpy_helper.from_array(np.full(3, n, np.float32), name) for n, name in ((2, "w"), (1, "b"))]
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
        helper.make_node("Cast", ["flag"], ["z"], to=TensorProto.FLOAT),
        helper.make_node("Neg", ["u"], ["v"]),
    ]
    inputs = [info("x", ["batch", 3]), info("flag", [], TensorProto.INT64), info("u", [-1, 2]), info("w", [3])]
    outputs = [info("y", ["batch", 3]), info("z", None), info("v", None)]
    graph = helper.make_graph(nodes, "scaled", inputs, outputs, weights, doc_string="of the graph")
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
        producer_name="maker",
        producer_version="1.2",
        domain="some.where",
        model_version=7,
        doc_string="of the model",
    )
    helper.set_model_props(model, {"character": "a\nb\n☃", "names": '{"0": "cat"}'})
    return model.SerializeToString()


def scaled(factor: float, dims: list | None = None) -> bytes:
    """y = factor * x, of any length."""
    node = helper.make_node("Mul", ["x", "factor"], ["y"])
    weight = numpy_helper.from_array(np.asarray(factor, np.float32), "factor")
    graph = helper.make_graph([node], "scaled", [info("x", dims or ["n"])], [info("y", dims or ["n"])], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def branching() -> bytes:
    """Where `loud`, y = x in rows of 2, else in rows of 3: only one of these can be had of 4 or 9 numbers."""
    branches = {}
    for name, width in (("then_branch", 2), ("else_branch", 3)):
        shape = numpy_helper.from_array(np.array([-1, width]), "shape")
        node = helper.make_node("Reshape", ["x", "shape"], [f"of_{name}"])
        branches[name] = helper.make_graph([node], name, [], [info(f"of_{name}", None)], [shape])
    node = helper.make_node("If", ["loud"], ["y"], **branches)
    inputs = [info("x", ["n"]), info("loud", [], TensorProto.BOOL)]
    graph = helper.make_graph([node], "branching", inputs, [info("y", None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def foreign() -> bytes:
    """An operator of a domain that nobody knows."""
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="elsewhere")
    graph = helper.make_graph([node], "foreign", [info("x", [3])], [info("y", [3])])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("elsewhere", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString()
