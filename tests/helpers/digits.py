"""Pictures of digits, and networks that are trained on them here: filters that are drawn, and a last layer that is
solved for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

GLYPHS = (  # five columns of seven rows each
    "0111010001100111010111001100010111000100011000010000100001000010001110",
    "0111010001000010001000100010001111111111000100010000010000011000101110",
    "0001000110010101001011111000100001011111100001111000001000011000101110",
    "0011001000100001111010001100010111011111000010001000100010000100001000",
    "0111010001100010111010001100010111001110100011000101111000010001001100",
)
SIZE, BATCH = 12, 32
F = np.float32


def glyphs() -> np.ndarray:
    bits = np.array([int(c) for c in "".join(GLYPHS)], F)
    return bits.reshape(10, 7, 5)


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """So many pictures [count, 1, SIZE, SIZE], and what they show: glyphs anywhere, in noise."""
    rng, shapes = np.random.default_rng(seed), glyphs()
    labels = rng.integers(0, 10, count)
    images = rng.normal(0, 0.15, (count, 1, SIZE, SIZE)).astype(F)
    for image, label, top, left in zip(
        images, labels, rng.integers(1, 4, count), rng.integers(2, 5, count), strict=True
    ):
        image[0, top : top + 7, left : left + 5] += shapes[label] * F(rng.uniform(0.8, 1.2))
    return images, labels


def batches(count: int, seed: int) -> dict[str, np.ndarray]:
    """Samples of BATCH pictures each, with their labels."""
    images, labels = pictures(count * BATCH, seed)
    return {"x": images.reshape(count, BATCH, 1, SIZE, SIZE), "labels": labels.reshape(count, BATCH)}


def features(activation: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "first", pads=[1, 1, 1, 1]),
        helper.make_node(activation, ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "second", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
        helper.make_node("Flatten", ["r2"], ["f"], "flat"),
    ]


def classifier(path: Path, outlier: float = 1.0, activation: str = "Relu") -> Path:
    """A network of two convolutions and a product that tells digits apart. With an `outlier` one channel between the
    convolutions has numbers that are so many times as large, and the same meaning."""
    rng = np.random.default_rng(7)
    weights = {
        "w1": rng.normal(0, 0.4, (16, 1, 3, 3)).astype(F),
        "b1": rng.normal(0, 0.1, 16).astype(F),
        "w2": rng.normal(0, 0.15, (32, 16, 3, 3)).astype(F),
        "b2": rng.normal(0, 0.1, 32).astype(F),
    }
    images, labels = pictures(1500, 1)
    given = network(features(activation), weights, len(images), "f", (len(images), 32 * (SIZE // 2) ** 2))
    columns = np.concatenate([run(given, images), np.ones((len(images), 1), F)], 1).astype(np.float64)
    wanted = np.eye(10)[labels]
    ridge = columns.T @ columns + 3 * np.eye(columns.shape[1])
    solved = np.linalg.solve(ridge, columns.T @ wanted)
    weights |= {"w3": solved[:-1].astype(F), "b3": solved[-1].astype(F)}
    weights["w1"][3] *= F(outlier)
    weights["b1"][3] *= F(outlier)
    weights["w2"][:, 3] /= F(outlier)
    nodes = [*features(activation), helper.make_node("Gemm", ["f", "w3", "b3"], ["scores"], "third")]
    onnx.save(network(nodes, weights, BATCH, "scores", (BATCH, 10)), path)
    return path


def network(
    nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], batch: int, output: str, shape: tuple[int, ...]
) -> onnx.ModelProto:
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", (batch, 1, SIZE, SIZE)), (output, shape))
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "digits", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: onnx.ModelProto | Path, images: np.ndarray) -> np.ndarray:
    """The first output, by ONNX Runtime."""
    import onnxruntime

    given = str(model) if isinstance(model, Path) else model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"]).run(None, {"x": images})[0]
