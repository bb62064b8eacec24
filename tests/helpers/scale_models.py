"""Models that grow: of many nodes of mixed kinds, of long chains, of shared values, of nested functions.

`mixed(nodes)` repeats one stage of a network: a convolution with batch normalisation, a residual connection, branches
that are concatenated, attention's softmax over a reshape whose shape is computed, a matrix product with a norm, and a
chain of elementwise operators. Widths go through WIDTHS, so that some tasks are equal and others are not, and their
number does not grow with the model.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import onnx
from networks import IR_VERSION, OPSET, Network, conv
from onnx import TensorProto, helper

WIDTHS = (8, 12, 16, 20, 24, 32)
SIZE = 4  # rows and columns of the images
TAIL = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "HardSwish")


def mixed(nodes: int) -> onnx.ModelProto:
    """About `nodes` nodes."""
    net = Network(f"mixed{nodes}")
    channels = WIDTHS[0]
    x = net.input("x", [1, channels, SIZE, SIZE])
    stage = 0
    while len(net.nodes) < nodes:
        x, channels = _stage(net, x, channels, WIDTHS[stage % len(WIDTHS)], f"stage{stage}")
        stage += 1
    net.output("y", x, [1, channels, SIZE, SIZE])
    return net.build()


def _stage(net: Network, x: str, channels: int, width: int, scope: str) -> tuple[str, int]:
    """35 nodes; the value and its channels."""
    a = conv(net, x, f"{scope}.in", channels, width, (1, 1))
    a = _norm(net, a, width, f"{scope}.bn")
    a = net.op("Relu", a, scope=scope)
    b = conv(net, a, f"{scope}.mid", width, width, (3, 3), pad=1, bias=True)
    a = net.op("Add", net.op("Clip", b, "", net.constant(6.0, scope), scope=scope), a, scope=scope)
    halves = net.op("Split", a, scope=scope, results=2, axis=1)
    halves = [net.op("Sigmoid", halves[0], scope=scope), net.op("MaxPool", halves[1], scope=scope, **_POOL)]
    a = net.op("Concat", *halves, scope=scope, axis=1)
    a = _attended(net, a, width, scope)
    for name in TAIL[: 2 + len(scope) % 3]:
        a = net.op(name, a, scope=scope)
    return net.op("Add", a, b, scope=scope), width


_POOL = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}


def _norm(net: Network, x: str, width: int, scope: str) -> str:
    names = [
        net.normal(f"{scope}.weight", (width,), 0.1, 1.0),
        net.normal(f"{scope}.bias", (width,), 0.1),
        net.normal(f"{scope}.mean", (width,), 0.1),
        net.uniform(f"{scope}.var", width, 0.5, 1.5),
    ]
    return net.op("BatchNormalization", x, *names, scope=scope)


def _attended(net: Network, x: str, width: int, scope: str) -> str:
    """Rows of pixels, multiplied by weights, normalised, weighed by a softmax of themselves; as an image again."""
    shape = net.op("Shape", x, scope=scope)
    first = net.op("Gather", shape, net.constant([0, 1], scope, np.int64), scope=scope)
    rows = net.op("Concat", first, net.constant([-1], scope, np.int64), scope=scope, axis=0)
    a = net.op("Transpose", net.op("Reshape", x, rows, scope=scope), scope=scope, perm=[0, 2, 1])
    a = net.op("MatMul", a, net.normal(f"{scope}.weight", (width, width), width**-0.5), scope=scope)
    centred = net.op("Sub", a, net.op("ReduceMean", a, scope=scope, axes=[-1], keepdims=1), scope=scope)
    a = net.op("Mul", centred, net.op("Softmax", centred, scope=scope, axis=-1), scope=scope)
    return net.op("Reshape", net.op("Transpose", a, scope=scope, perm=[0, 2, 1]), shape, scope=scope)


def chain(operators: int, op: str = "Relu") -> onnx.ModelProto:
    """One elementwise operator after the other."""
    net = Network(f"chain{operators}")
    x = net.input("x", [2, 8])
    for _ in range(operators):
        x = net.op(op, x)
    net.output("y", x, [2, 8])
    return net.build()


def doublings(count: int, op: str = "Add") -> onnx.ModelProto:
    """`x + x`, of which `x + x`, ...: 2**count paths through `count` nodes."""
    net = Network(f"doublings{count}")
    x = net.input("x", [2, 8])
    for _ in range(count):
        x = net.op(op, x, x)
    net.output("y", x, [2, 8])
    return net.build()


def nested(depth: int, calls: int = 2) -> onnx.ModelProto:
    """A function that calls another one so many times, one after the other, `depth` deep; the last one negates."""
    domain, sets = "scale", [helper.make_opsetid("", OPSET), helper.make_opsetid("scale", 1)]
    functions = []
    for k in range(depth):
        op, where = (f"f{k - 1}", domain) if k else ("Neg", "")
        names = ["a", *(f"b{c}" for c in range(calls - 1)), "c"]
        inner = [helper.make_node(op, [u], [v], domain=where) for u, v in pairwise(names)]
        functions.append(helper.make_function(domain, f"f{k}", ["a"], ["c"], inner, sets))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in "xy")
    call = helper.make_node(f"f{depth - 1}", ["x"], ["y"], domain=domain)
    graph = helper.make_graph([call], f"nested{depth}", [x], [y])
    return helper.make_model(graph, opset_imports=sets, ir_version=IR_VERSION, functions=functions)


def shared(readers: int) -> onnx.ModelProto:
    """One value that is added in every layer, and every layer's value in one sum at the end."""
    net = Network(f"shared{readers}")
    x = net.input("x", [2, 8])
    hub = net.op("Relu", net.op("MatMul", x, net.normal("first", (8, 8), 0.3)))
    layers = [hub]
    for k in range(readers):
        product = net.op("MatMul", layers[-1], net.normal(f"w{k}", (8, 8), 0.3))
        layers.append(net.op("Add", net.op("Tanh", product), hub))
    total = layers[0]
    for layer in layers[1:]:
        total = net.op("Add", total, layer)
    net.output("y", total, [2, 8])
    return net.build()


def below_a_move(operators: int) -> onnx.ModelProto:
    """A matrix product, reshaped, and a chain of elementwise operators below that."""
    net = Network(f"below{operators}")
    x = net.op("MatMul", net.input("x", [2, 8]), net.normal("w", (8, 8), 0.3))
    x = net.reshape(x, [2, 2, 4], "move")
    for _ in range(operators):
        x = net.op("Sigmoid", x)
    net.output("y", x, [2, 2, 4])
    return net.build()


def wide(count: int, op: str) -> onnx.ModelProto:
    """One Split with so many outputs, or one operator (Sum, Concat) of so many inputs."""
    names = [f"v{k}" for k in range(count)]
    parts = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in names]
    whole = helper.make_tensor_value_info("w", TensorProto.FLOAT, [1 if op == "Sum" else count, 4])
    split = op == "Split"
    node = helper.make_node(
        op, ["w"] if split else names, names if split else ["w"], **({} if op == "Sum" else {"axis": 0})
    )
    graph = helper.make_graph([node], f"{op}{count}", [whole] if split else parts, parts if split else [whole])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=IR_VERSION)


def parallel(outputs: int) -> onnx.ModelProto:
    """So many operators of one input, each of them an output."""
    net = Network(f"parallel{outputs}")
    x = net.input("x", [2, 8])
    for k in range(outputs):
        net.output(f"y{k}", net.op(TAIL[k % len(TAIL)], x), [2, 8])
    return net.build()


def recurrent(steps: int) -> onnx.ModelProto:
    """A GRU of 16 features over so many steps."""
    net = Network(f"recurrent{steps}")
    x = net.input("x", [steps, 1, 8])
    weights = [net.normal("w", (1, 48, 8), 0.3), net.normal("r", (1, 48, 16), 0.3)]
    net.output("y", net.op("GRU", x, *weights, hidden_size=16), [steps, 1, 1, 16])
    return net.build()


MODELS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "mixed": mixed,
    "chain": chain,
    "doublings": doublings,
    "nested": nested,
    "shared": shared,
    "below_a_move": below_a_move,
    "parallel": parallel,
    "recurrent": recurrent,
}
