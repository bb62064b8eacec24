"""Models as exporters write them, imported, and compared with ONNX Runtime before and after the passes."""

from __future__ import annotations

import numpy as np
import onnx
from graph_to_onnx import assert_same, random_feeds, run_onnx, to_onnx
from onnx import TensorProto, helper, numpy_helper

from modelc.frontend.onnx import import_model
from modelc.ir.verify_graph import verify_graph
from modelc.passes import infer, run_passes

F, I = TensorProto.FLOAT, TensorProto.INT64


def model(nodes, inputs, outputs=("Y",), constants=None, opset=17, functions=(), domains=("",), ir=8):
    """A model of `nodes` (made by helper.make_node); inputs are (name, element type, dims)."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, t, d) for n, t, d in inputs],
        [onnx.ValueInfoProto(name=o) if isinstance(o, str) else helper.make_tensor_value_info(*o) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid(d, opset if d == "" else 1) for d in domains]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=ir)


def node(op, inputs, outputs, name="", **attrs):
    return helper.make_node(op, inputs.split(","), outputs.split(","), name=name, **attrs)


def save(made, folder):
    path = folder / "m.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def imported(made, folder, **shapes):
    graph = import_model(save(made, folder), shapes)
    verify_graph(graph, "import", infer)
    return graph


def constants_of(graph):
    """The data of the outputs that are known when compiling, which are copies of constants; None for the others."""
    producers = {name: node for node in graph.nodes for name in node.outputs}
    copied = [producers[name].inputs[0] if producers[name].op == "Identity" else name for name in graph.given]
    return [graph.values[name].data for name in copied]


def check(made, folder, **shapes):
    """The Graph, after seeing that ONNX Runtime computes the same with the model, with it, and with it simplified."""
    graph = imported(made, folder, **shapes)
    feeds = random_feeds(graph, high=2)
    for o in made.graph.output:
        o.CopyFrom(onnx.ValueInfoProto(name=o.name))
    expected = run_onnx(typed(made, graph), feeds)
    assert_same(expected, run_onnx(to_onnx(graph), feeds))
    assert_same(expected, run_onnx(to_onnx(run_passes(graph)), feeds))
    return graph


def typed(made, graph):
    """ONNX Runtime wants outputs to be declared."""
    del made.graph.output[:]
    for name in graph.outputs:
        value = graph.values[name]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
        made.graph.output.append(helper.make_tensor_value_info(name, kind, value.shape))
    return made


def ops(graph):
    return [n.op for n in graph.nodes]
