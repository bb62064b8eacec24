"""Small models that fuzzers damage: ONNX's own node tests, and graphs with what those lack."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F, I, B, U8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.UINT8
MOST_ELEMENTS = 1 << 14  # of a seed's input: a mutant is to be quick
STEERING = 64  # elements of a whole-number input that becomes a constant, at most
OPSET = 18

Seed = tuple[str, bytes]
Weights = dict[str, np.ndarray]
Values = list[tuple[str, int, list[int]]]


def node_tests() -> Iterator[Seed]:
    """ONNX's node tests; small whole-number inputs, which steer more often than not, are constants."""
    from onnx_cases import node_tests as cases

    for case in cases():
        if case.model is None or not case.data_sets:
            continue
        arrays = case.data_sets[0][0]
        if not all(isinstance(a, np.ndarray) and a.dtype.kind in "biuf" and a.size <= MOST_ELEMENTS for a in arrays):
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        for value, array in zip(list(model.graph.input), arrays, strict=False):
            if array.dtype == np.int64 and array.size <= STEERING:
                model.graph.input.remove(value)
                model.graph.initializer.append(numpy_helper.from_array(array, value.name))
        yield case.name, model.SerializeToString()


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: Values,
    outputs: Values,
    weights: Weights | None = None,
    domains: tuple[str, ...] = (),
    functions: tuple[onnx.FunctionProto, ...] = (),
    opset: int = OPSET,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "seed",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    sets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=sets, functions=functions, ir_version=8)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


node = helper.make_node


def convolutions() -> onnx.ModelProto:
    weights = {"w": drawn(8, 3, 3, 3), "b": drawn(8), "v": drawn(8, 1, 3, 3), "m": abs(drawn(8)), "p": drawn(72, 5)}
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", ["c", "b", "b", "b", "m"], ["n"], "norm", epsilon=1e-3),
        node("Relu", ["n"], ["r"], "relu"),
        node("Conv", ["r", "v"], ["d"], "depthwise", group=8, pads=[1, 1, 1, 1]),
        node("Add", ["r", "d"], ["a"], "skip"),
        node("MaxPool", ["a"], ["k"], "pool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        node("Flatten", ["k"], ["f"], "flatten"),
        node("Gemm", ["f", "p"], ["g"], "gemm", alpha=0.5),
        node("Softmax", ["g"], ["y"], "softmax", axis=1),
    ]
    return model_of(nodes, [("x", F, [1, 3, 12, 12])], [("y", F, [1, 5])], weights)


def attention() -> onnx.ModelProto:
    weights = {k: drawn(16, 16) for k in ("wq", "wk", "wv")} | {
        "scale": np.float32(0.25),
        "g": drawn(16),
        "h": drawn(16),
    }
    shape = np.array([1, 6, 2, 8], np.int64)
    weights |= {"split": shape, "merge": np.array([1, 6, 16], np.int64)}
    nodes = [node("LayerNormalization", ["x", "g", "h"], ["n"], "norm", axis=-1)]
    for k, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", ["n", f"w{k}"], [f"{k}0"], f"{k}_proj"),
            node("Reshape", [f"{k}0", "split"], [f"{k}1"], f"{k}_split"),
            node("Transpose", [f"{k}1"], [k], f"{k}_turn", perm=perm),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["s"], "scores"),
        node("Mul", ["s", "scale"], ["t"], "scaled"),
        node("Softmax", ["t"], ["p"], "softmax", axis=-1),
        node("MatMul", ["p", "v"], ["o"], "mix"),
        node("Transpose", ["o"], ["u"], "turn", perm=[0, 2, 1, 3]),
        node("Reshape", ["u", "merge"], ["m"], "merged"),
        node("Add", ["m", "x"], ["y"], "skip"),
    ]
    return model_of(nodes, [("x", F, [1, 6, 16])], [("y", F, [1, 6, 16])], weights)


def shapes() -> onnx.ModelProto:
    """Chains that compute shapes, with slices, splits, gathers, pads and resizes."""
    weights: Weights = {
        "zero": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "two": np.array([2], np.int64),
        "minus": np.array([-1], np.int64),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "few": np.array([1, 0, 1], np.int64),
        "sizes": np.array([1, 3], np.int64),
    }
    nodes = [
        node("Shape", ["x"], ["s"], "shape"),
        node("Gather", ["s", "zero"], ["b"], "batch", axis=0),
        node("Concat", ["b", "minus"], ["t"], "target", axis=0),
        node("Reshape", ["x", "t"], ["f"], "flat"),
        node("Slice", ["x", "zero", "two", "one"], ["l"], "slice"),
        node("Pad", ["l", "pads"], ["p"], "pad", mode="constant"),
        node("Resize", ["p", "", "scales"], ["r"], "resize", mode="nearest"),
        node("Split", ["x", "sizes"], ["e", "g"], "split", axis=1),
        node("Gather", ["g", "few"], ["h"], "gather", axis=1),
        node("ReduceMean", ["h", "two"], ["m"], "mean", keepdims=0),
        node("Unsqueeze", ["m", "one"], ["u"], "unsqueeze"),
        node("Expand", ["u", "one"], ["v"], "expand"),
        node("Tile", ["f", "few2"], ["w"], "tile"),
        node("TopK", ["f", "two"], ["k", "ki"], "topk", axis=1),
    ]
    weights["few2"] = np.array([1, 2], np.int64)
    outputs: Values = [("r", F, [1, 2, 12, 12]), ("v", F, [1, 1, 3, 4]), ("w", F, [1, 128]), ("k", F, [1, 2])]
    return model_of(nodes, [("x", F, [1, 4, 4, 4])], [*outputs, ("ki", I, [1, 2]), ("e", F, [1, 1, 4, 4])], weights)


def recurrent(op: str = "LSTM", gates: int = 4) -> onnx.ModelProto:
    weights = {"w": drawn(2, gates * 4, 3), "r": drawn(2, gates * 4, 4), "b": drawn(2, gates * 8)}
    more = ["c"] if op == "LSTM" else []
    nodes = [node(op, ["x", "w", "r", "b"], ["y", "h", *more], "cell", hidden_size=4, direction="bidirectional")]
    outputs: Values = [("y", F, [3, 2, 1, 4]), ("h", F, [2, 1, 4]), *((c, F, [2, 1, 4]) for c in more)]
    return model_of(nodes, [("x", F, [3, 1, 3])], outputs, weights)


def branches() -> onnx.ModelProto:
    """An If that captures, and a function that calls a function."""

    def branch(name: str, op: str) -> onnx.GraphProto:
        out = [helper.make_tensor_value_info(f"{name}_y", F, [2, 3])]
        held = [numpy_helper.from_array(drawn(3), f"{name}_w")]
        return helper.make_graph([node(op, ["x", f"{name}_w"], [f"{name}_y"], name)], name, [], out, held)

    sets = [helper.make_opsetid("", OPSET), helper.make_opsetid("own", 1)]
    leaky = node("LeakyRelu", ["a"], ["b"], "leaky")
    leaky.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    inner = helper.make_function("own", "Inner", ["a"], ["b"], [leaky], sets, attributes=["slope"])
    outer = helper.make_function(
        "own",
        "Outer",
        ["a", "b"],
        ["c"],
        [node("Inner", ["a"], ["i"], domain="own", slope=0.25), node("Add", ["i", "b"], ["c"])],
        sets,
    )
    nodes = [
        node("Constant", [], ["yes"], "constant", value=numpy_helper.from_array(np.array(True))),
        node("If", ["yes"], ["z"], "if", then_branch=branch("then", "Add"), else_branch=branch("else", "Mul")),
        node("Outer", ["z", "x"], ["y"], "call", domain="own"),
    ]
    return model_of(nodes, [("x", F, [2, 3])], [("y", F, [2, 3])], None, ("own",), (inner, outer))


def quantised() -> onnx.ModelProto:
    weights: Weights = {
        "s": np.float32(0.05),
        "z": np.uint8(128),
        "w": np.random.default_rng(0).integers(-9, 9, (4, 3, 3, 3)).astype(np.int8),
        "ws": np.full(4, 0.1, np.float32),
        "wz": np.zeros(4, np.int8),
        "m": np.random.default_rng(1).integers(0, 9, (16, 5)).astype(np.uint8),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantise"),
        node("QLinearConv", ["q", "s", "z", "w", "ws", "wz", "s", "z"], ["c"], "conv", strides=[2, 2]),
        node("DequantizeLinear", ["c", "s", "z"], ["d"], "dequantise"),
        node("Flatten", ["c"], ["f"], "flatten"),
        node("MatMulInteger", ["f", "m", "z"], ["i"], "product"),
        node("Cast", ["i"], ["y"], "cast", to=F),
    ]
    outputs: Values = [("d", F, [1, 4, 2, 2]), ("y", F, [1, 5])]
    return model_of(nodes, [("x", F, [1, 3, 6, 6])], outputs, weights)


def fused() -> onnx.ModelProto:
    """Operators of ONNX Runtime's own domain."""
    own = "com.microsoft"
    weights = {"w": drawn(4, 4, 1, 1), "m": drawn(6, 6), "b": drawn(6), "g": drawn(6)}
    nodes = [
        node("FusedConv", ["x", "w"], ["c"], "conv", domain=own, activation="LeakyRelu", activation_params=[0.1]),
        node("FusedMatMul", ["c", "m"], ["p"], "product", domain=own, transB=1, alpha=0.5),
        node("BiasGelu", ["p", "b"], ["e"], "gelu", domain=own),
        node("QuickGelu", ["e"], ["q"], "quick", domain=own, alpha=1.5),
        node("SkipLayerNormalization", ["u", "u", "g", "b"], ["n"], "norm", domain=own, epsilon=1e-5),
        node("Gelu", ["n"], ["z"], "plain", domain=own),
    ]
    inputs: Values = [("x", F, [1, 4, 6, 6]), ("u", F, [1, 3, 6])]
    return model_of(nodes, inputs, [("q", F, [1, 4, 6, 6]), ("z", F, [1, 3, 6])], weights, (own,))


def sparse() -> onnx.ModelProto:
    made = model_of([node("MatMul", ["x", "w"], ["y"], "product")], [("x", F, [2, 4])], [("y", F, [2, 3])])
    values = helper.make_tensor("w", F, [2], [1.0, -2.0])
    indices = helper.make_tensor("at", I, [2], [1, 7])
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 3]))
    return made


def external() -> onnx.ModelProto:
    """A weight in weights.bin, which has as many bytes as fuzzers write there."""
    made = model_of([node("Add", ["x", "w"], ["y"], "sum")], [("x", F, [4])], [("y", F, [4])])
    tensor = onnx.TensorProto(name="w", data_type=F, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    made.graph.initializer.append(tensor)
    return made


def old() -> onnx.ModelProto:
    """Operator set 6: attributes that are inputs today."""
    weights = {"w": drawn(4, 3, 3, 3), "b": drawn(4)}
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv", kernel_shape=[3, 3], auto_pad="SAME_UPPER"),
        node("Add", ["c", "b"], ["a"], "bias", axis=1, broadcast=1),
        node("Clip", ["a"], ["k"], "clip", min=0.0, max=6.0),
        node("Pad", ["k"], ["p"], "pad", pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.5),
        node("Slice", ["p"], ["s"], "slice", starts=[0, 0], ends=[3, 3], axes=[2, 3]),
        node("Squeeze", ["s"], ["q"], "squeeze", axes=[0]),
        node("Split", ["q"], ["y", "z"], "split", axis=0, split=[1, 3]),
    ]
    outputs: Values = [("y", F, [1, 3, 3]), ("z", F, [3, 3, 3])]
    return model_of(nodes, [("x", F, [1, 3, 6, 6])], outputs, weights, opset=6)


BUILT: tuple[Callable[[], onnx.ModelProto], ...] = (
    convolutions, attention, shapes, recurrent, branches, quantised, fused, sparse, external, old,
)  # fmt: skip


def built() -> Iterator[Seed]:
    for make in BUILT:
        yield make.__name__, make().SerializeToString()
    yield "gru", recurrent("GRU", 3).SerializeToString()
    yield "rnn", recurrent("RNN", 1).SerializeToString()
