"""A model that draws random numbers in every way that ONNX has."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F = TensorProto.FLOAT


def model_of(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list[int]]], outputs: dict[str, int], **data):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()],
        [numpy_helper.from_array(np.asarray(x), n) for n, x in data.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def speech() -> onnx.ModelProto:
    """What is random in text to speech: noise times a learned deviation, upsampled; a phase; choices."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (0.2 * rng.standard_normal(shape)).astype(np.float32)

    nodes = [
        helper.make_node("Gather", ["embed", "text"], ["e"]),
        helper.make_node("MatMul", ["e", "wm"], ["mean"]),
        helper.make_node("MatMul", ["e", "wl"], ["logs"]),
        helper.make_node("RandomNormalLike", ["mean"], ["eps"]),
        helper.make_node("Exp", ["logs"], ["std"]),
        helper.make_node("Mul", ["eps", "std"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "noise"], ["noisy"]),
        helper.make_node("Add", ["mean", "noisy"], ["z"]),
        helper.make_node("Transpose", ["z"], ["zt"], perm=[0, 2, 1]),
        helper.make_node("ConvTranspose", ["zt", "filter"], ["audio"], strides=[4], pads=[2, 2]),
        helper.make_node("RandomUniform", [], ["phase"], shape=[1, 4, 1], seed=3.0, low=-3.0, high=3.0),
        helper.make_node("Add", ["audio", "phase"], ["shifted"]),
        helper.make_node("Tanh", ["shifted"], ["wave"]),
        helper.make_node("Bernoulli", ["prob"], ["hits"]),
        helper.make_node("Multinomial", ["logits"], ["token"], sample_size=6, dtype=TensorProto.INT64),
        helper.make_node("Dropout", ["wave", "ratio", "train"], ["dropped", "mask"]),
    ]
    inputs = {"text": (TensorProto.INT64, [1, 12]), "prob": (F, [50, 20]), "logits": (F, [3, 7])}
    outputs = {"wave": F, "phase": F, "eps": F, "hits": F, "dropped": F}
    outputs |= {"token": TensorProto.INT64, "mask": TensorProto.BOOL}
    data = {"embed": weights(40, 16), "wm": weights(16, 8), "wl": weights(16, 8), "filter": weights(8, 4, 8)}
    data |= {"noise": np.float32(0.667), "ratio": np.float32(0.3), "train": np.array(True)}
    return model_of(nodes, inputs, outputs, **data)
