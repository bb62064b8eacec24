"""Small float models, and what ONNX Runtime's own quantizers and optimizer make of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.capi._pybind_state import quantize_matmul_4bits, quantize_matmul_8bits
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

F = np.float32
KINDS = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8}


class Net:
    """A float model that is being written."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def node(self, op: str, inputs: str, output: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs.split(), output.split(), output, **attrs))
        return output

    def weight(self, name: str, *shape: int, scale: float = 0.3) -> str:
        self.weights[name] = (self.rng.standard_normal(shape) * scale).astype(F)
        return name

    def constant(self, name: str, data: Any) -> str:
        self.weights[name] = np.asarray(data)
        return name

    def save(self, path: Path, inputs: Mapping[str, list[int]], outputs: Mapping[str, list[int]]) -> Path:
        ends = [
            [helper.make_tensor_value_info(n, TensorProto.INT32 if n == "ids" else TensorProto.FLOAT, s) for n, s in x]
            for x in (inputs.items(), outputs.items())
        ]
        tensors = [numpy_helper.from_array(v, k) for k, v in self.weights.items()]
        graph = helper.make_graph(self.nodes, "net", ends[0], ends[1], tensors)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def conv_net(path: Path) -> Path:
    """Convolutions, pools, a residual, a concatenation and activations, each of which has a quantized operator."""
    m = Net(1)
    m.node("Conv", f"x {m.weight('w1', 16, 8, 3, 3, scale=0.1)} {m.weight('b1', 16)}", "c1", pads=[1, 1, 1, 1])
    m.node("Relu", "c1", "r1")
    m.node("MaxPool", "r1", "p1", kernel_shape=[2, 2], strides=[2, 2])
    m.node("Conv", f"p1 {m.weight('w2', 16, 16, 1, 1)} {m.weight('b2', 16)}", "c2")
    m.node("LeakyRelu", "c2", "l2", alpha=0.1)
    m.node("Add", "p1 l2", "a")
    m.node("Sigmoid", "a", "s")
    m.node("Mul", "a s", "g")
    m.node("Concat", "g p1", "k", axis=1)
    m.node("AveragePool", "k", "v", kernel_shape=[2, 2], strides=[1, 1])
    m.node("GlobalAveragePool", "v", "q")
    m.node("Flatten", "q", "f")
    m.node("Gemm", f"f {m.weight('w3', 16, 32)} {m.weight('b3', 16)}", "z", transB=1)
    m.node("Softmax", "z", "y", axis=-1)
    return m.save(path, {"x": [1, 8, 12, 12]}, {"y": [1, 16]})


def mlp(path: Path) -> Path:
    m = Net(2)
    m.node("Gemm", f"x {m.weight('w1', 32, 64)} {m.weight('b1', 64)}", "h")
    m.node("Relu", "h", "r")
    m.node("MatMul", f"r {m.weight('w2', 64, 32)}", "u")
    m.node("Add", f"u {m.weight('b2', 32)}", "y")
    return m.save(path, {"x": [4, 32]}, {"y": [4, 32]})


def recurrent(path: Path) -> Path:
    m = Net(3)
    weights = f"{m.weight('w', 1, 64, 8)} {m.weight('r', 1, 64, 16)} {m.weight('b', 1, 128)}"
    m.node("LSTM", f"x {weights}", "h", hidden_size=16)
    m.node("Squeeze", f"h {m.constant('axis', np.array([1]))}", "s")
    m.node("MatMul", f"s {m.weight('w2', 16, 16)}", "y")
    return m.save(path, {"x": [12, 1, 8]}, {"y": [12, 1, 16]})


def transformer(path: Path) -> Path:
    """An embedding and a layer as exporters of BERT write them: what the optimizer looks for."""
    m = Net(4)
    width, heads, length = 32, 4, 16
    size = width // heads
    m.node("Gather", f"{m.weight('words', 50, width, scale=1.0)} ids", "e")
    m.node("Add", f"e {m.weight('places', 1, length, width)}", "x0")
    m.node("LayerNormalization", f"x0 {m.weight('g0', width)} {m.weight('n0', width)}", "x", epsilon=1e-5)
    m.constant("split", np.array([1, length, heads, size]))
    m.constant("join", np.array([1, length, width]))
    for name, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        m.node("MatMul", f"x {m.weight(f'w{name}', width, width)}", f"{name}m")
        m.node("Add", f"{m.weight(f'b{name}', width)} {name}m", f"{name}a")
        m.node("Reshape", f"{name}a split", f"{name}r")
        m.node("Transpose", f"{name}r", f"{name}t", perm=perm)
    m.node("MatMul", "qt kt", "scores")
    m.node("Div", f"scores {m.constant('root', F(np.sqrt(size)))}", "scaled")
    m.node("Softmax", "scaled", "share", axis=-1)
    m.node("MatMul", "share vt", "mixed")
    m.node("Transpose", "mixed", "mt", perm=(0, 2, 1, 3))
    m.node("Reshape", "mt join", "mj")
    m.node("MatMul", f"mj {m.weight('wo', width, width)}", "om")
    m.node("Add", f"{m.weight('bo', width)} om", "oa")
    m.node("Add", "oa x", "o")
    m.node("LayerNormalization", f"o {m.weight('g1', width)} {m.weight('n1', width)}", "y1", epsilon=1e-5)
    m.node("MatMul", f"y1 {m.weight('wi', width, 64)}", "im")
    m.node("Add", f"{m.weight('bi', 64)} im", "ia")
    m.node("Div", f"ia {m.constant('two', F(np.sqrt(2)))}", "i0")
    m.node("Erf", "i0", "i1")
    m.node("Add", f"i1 {m.constant('one', F(1))}", "i2")
    m.node("Mul", "ia i2", "i3")
    m.node("Mul", f"i3 {m.constant('half', F(0.5))}", "i4")
    m.node("MatMul", f"i4 {m.weight('wd', 64, width)}", "dm")
    m.node("Add", f"{m.weight('bd', width)} dm", "da")
    m.node("Add", "da y1", "d")
    m.node("LayerNormalization", f"d {m.weight('g2', width)} {m.weight('n2', width)}", "y", epsilon=1e-5)
    return m.save(path, {"ids": [1, length]}, {"y": [1, length, width]})


def speech(path: Path) -> Path:
    """The first layers of an encoder of speech: convolutions over samples, of which a norm and dynamic quantization
    reduce whole tensors that threads have no even parts of."""
    m = Net(5)
    m.node("Conv", f"x {m.weight('w1', 72, 1, 10)}", "c1", strides=[5])
    m.node("InstanceNormalization", f"c1 {m.weight('g1', 72)} {m.weight('n1', 72)}", "i1")
    m.node("Sigmoid", "i1", "s1")
    m.node("Mul", "i1 s1", "a1")
    m.node("Conv", f"a1 {m.weight('w2', 16, 72, 3)}", "c2", strides=[2])
    m.node("Transpose", "c2", "t", perm=[0, 2, 1])
    m.node("LayerNormalization", f"t {m.weight('g2', 16)} {m.weight('n2', 16)}", "l")
    m.node("MatMul", f"l {m.weight('wm', 16, 16)}", "y")
    return m.save(path, {"x": [1, 1, 4605]}, {"y": [1, 459, 16]})


class Samples(CalibrationDataReader):
    """Eight inputs of a model to calibrate on."""

    def __init__(self, model: Path) -> None:
        self.feeds: Iterator[dict[str, np.ndarray]] = iter(tuple(feeds(model, k) for k in range(8)))

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.feeds, None)


def feeds(model: Path, seed: int = 0) -> dict[str, np.ndarray]:
    rng, found = np.random.default_rng(seed), {}
    for value in onnx.load(model).graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        real = value.type.tensor_type.elem_type == TensorProto.FLOAT
        found[value.name] = (
            rng.standard_normal(shape).astype(F) if real else rng.integers(0, 50, shape).astype(np.int32)
        )
    return found


def statically(source: Path, path: Path, qdq: bool, activations: str, weights: str, **options: Any) -> Path:
    quantize_static(
        source,
        path,
        Samples(source),
        quant_format=QuantFormat.QDQ if qdq else QuantFormat.QOperator,
        activation_type=KINDS[activations],
        weight_type=KINDS[weights],
        **options,
    )
    return path


def dynamically(source: Path, path: Path, weights: str, **options: Any) -> Path:
    quantize_dynamic(source, path, weight_type=KINDS[weights], **options)
    return path


def of_few_bits(source: Path, path: Path, bits: int, symmetric: bool, block: int = 32) -> Path:
    """Every MatMul of constant weights as MatMulNBits, quantized by what ONNX Runtime's quantizer calls (which itself
    asks for a package that the tests do not need otherwise)."""
    model = onnx.load(source)
    known = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in known:
            continue
        weights = known[node.input[1]]
        depth, columns = weights.shape
        blocks = -(-depth // block)
        packed = np.zeros((columns, blocks, block * bits // 8), np.uint8)
        scales = np.zeros(columns * blocks, F)
        zeros = np.zeros(columns * -(-blocks * bits // 8), np.uint8)
        quantize = quantize_matmul_4bits if bits == 4 else quantize_matmul_8bits
        quantize(packed, np.ascontiguousarray(weights), scales, zeros, block, columns, depth, symmetric)
        made = {"packed": packed, "scales": scales} | ({} if symmetric else {"zeros": zeros})
        inputs = [f"{node.output[0]}_{name}" for name in made]
        model.graph.initializer.extend(map(numpy_helper.from_array, made.values(), inputs))
        attrs = dict(K=depth, N=columns, bits=bits, block_size=block, accuracy_level=4)
        new = helper.make_node(
            "MatMulNBits", [node.input[0], *inputs], node.output, node.name, domain="com.microsoft", **attrs
        )
        node.CopyFrom(new)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)
    return path


def operators(path: Path) -> set[str]:
    return {n.op_type for n in onnx.load(path).graph.node}


def optimized(source: Path, path: Path) -> Path:
    """What ONNX Runtime fuses before it runs the model, as it writes it down; nothing that one machine alone has."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    return path
