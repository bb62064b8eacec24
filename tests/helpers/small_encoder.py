"""A transformer encoder of one layer, whose embeddings are also its head, as exporters write it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS, WIDTH, HEADS, INNER, CLASSES = 600, 128, 4, 512, 40
PRODUCTS = ("query", "key", "value", "joined", "inner", "outer", "pooled", "head")
F, I = TensorProto.FLOAT, TensorProto.INT64


def encoder(path: Path, batch: int | str = 2, length: int | str = 32) -> Path:
    """encoder_model() in a file."""
    onnx.save(encoder_model(batch, length), path)
    return path


def encoder_model(batch: int | str = 2, length: int | str = 32) -> onnx.ModelProto:
    """Of ids [batch, length]: hidden [batch, length, WIDTH], logits [batch, length, WORDS], which the embeddings give,
    and labels [batch, CLASSES] of the first word, a Gemm with factors."""
    rng, weights = np.random.default_rng(0), dict[str, np.ndarray]()

    def matrix(name: str, *shape: int) -> str:
        weights[f"{name}.weight"] = rng.standard_normal(shape).astype(np.float32) / np.float32(shape[0] ** 0.5)
        return f"{name}.weight"

    def vector(name: str, numbers: object) -> str:
        weights[name] = np.asarray(numbers)
        return name

    nodes = list[onnx.NodeProto]()

    def add(op: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], output, **attributes))
        return output

    def dense(x: str, name: str, inputs: int, outputs: int) -> str:
        add("MatMul", [x, matrix(name, inputs, outputs)], name)
        bias = vector(f"{name}.bias", rng.standard_normal(outputs).astype(np.float32) * np.float32(0.1))
        return add("Add", [name, bias], f"{name}+bias")

    def norm(x: str, name: str) -> str:
        scale = vector(f"{name}.scale", rng.uniform(0.5, 1.5, WIDTH).astype(np.float32))
        return add("LayerNormalization", [x, scale, vector(f"{name}.bias", np.zeros(WIDTH, np.float32))], name)

    def headed(x: str, name: str, perm: tuple[int, ...]) -> str:
        shape = vector("heads", np.array([0, 0, HEADS, WIDTH // HEADS]))
        return add("Transpose", [add("Reshape", [x, shape], f"{name} heads")], f"{name} turned", perm=perm)

    weights["table"] = rng.standard_normal((WORDS, WIDTH)).astype(np.float32)
    x = norm(add("Gather", ["table", "ids"], "looked up"), "first")
    q, k, v = (headed(dense(x, n, WIDTH, WIDTH), n, p) for n, p in zip(PRODUCTS, TURNED, strict=False))
    root = vector("root", np.float32((WIDTH // HEADS) ** 0.5))
    scores = add("Softmax", [add("Div", [add("MatMul", [q, k], "scores"), root], "scaled")], "shares", axis=-1)
    turned = add("Transpose", [add("MatMul", [scores, v], "mixed")], "mixed turned", perm=(0, 2, 1, 3))
    joined = add("Reshape", [turned, vector("whole", np.array([0, 0, WIDTH]))], "mixed rows")
    y = norm(add("Add", [dense(joined, "joined", WIDTH, WIDTH), x], "behind attention"), "second")
    inner = add("Mul", [add("Sigmoid", [dense(y, "inner", WIDTH, INNER)], "gate"), "inner+bias"], "swish")
    add("Add", [dense(inner, "outer", INNER, WIDTH), y], "behind both")
    hidden = norm("behind both", "hidden")
    add("MatMul", [hidden, add("Transpose", ["table"], "table turned", perm=(1, 0))], "head")
    add("Gather", [hidden, vector("zeroth", np.array(0))], "first words", axis=1)
    pooled = [matrix("pooled", CLASSES, WIDTH), vector("pooled.bias", np.ones(CLASSES, np.float32))]
    nodes.append(
        helper.make_node("Gemm", ["first words", *pooled], ["labels"], "pooled", transB=1, alpha=0.5, beta=2.0)
    )
    outputs = {"hidden": [batch, length, WIDTH], "head": [batch, length, WORDS], "labels": [batch, CLASSES]}
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("ids", I, [batch, length])],
        [helper.make_tensor_value_info(name, F, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(numbers, name) for name, numbers in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


TURNED = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))  # the dimensions of queries, keys and values by head
