"""Networks as small as boards run them, with seeded random weights: constants weigh as much as time there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from networks import Network, batch_norm, classifier, conv, gemm

SIZES = ((16, 32), (32, 64))  # channels of the U-Net's two levels, in and out


def _relu(net: Network, x: str, scope: str) -> str:
    return net.op("Relu", x, scope=scope)


def mlp(batch: int = 32) -> onnx.ModelProto:
    """784 to 256 to 128 to 10, `batch` rows at once."""
    net = Network("mlp")
    x = net.input("input", [batch, 784])
    for place, (features, out) in enumerate(((784, 256), (256, 128))):
        x = _relu(net, gemm(net, x, f"layers.{place}", features, out), f"layers.{place}")
    net.output("output", gemm(net, x, "head", 128, 10), [batch, 10])
    return net.build()


def keyword_cnn() -> onnx.ModelProto:
    """A depthwise separable CNN on 49 frames of 10 coefficients, as keyword spotters are (DS-CNN)."""
    net = Network("keyword-cnn")
    x = net.input("input", [1, 1, 49, 10])
    x = _relu(net, batch_norm(net, conv(net, x, "stem", 1, 64, (10, 4), 2, (5, 1)), "stem.norm", 64), "stem")
    for place in range(4):
        scope = f"blocks.{place}"
        x = conv(net, x, f"{scope}.depthwise", 64, 64, (3, 3), 1, 1, group=64)
        x = _relu(net, batch_norm(net, x, f"{scope}.depthwise.norm", 64), f"{scope}.depthwise")
        x = conv(net, x, f"{scope}.pointwise", 64, 64, (1, 1))
        x = _relu(net, batch_norm(net, x, f"{scope}.pointwise.norm", 64), f"{scope}.pointwise")
    classifier(net, x, "head", 64, 12)
    return net.build()


def lenet() -> onnx.ModelProto:
    """LeNet-5 on 32 x 32 pixels."""
    net = Network("lenet")
    x = net.input("input", [1, 1, 32, 32])
    for place, (channels, out) in enumerate(((1, 6), (6, 16))):
        x = _relu(net, conv(net, x, f"conv.{place}", channels, out, (5, 5), bias=True), f"conv.{place}")
        x = net.op("MaxPool", x, scope=f"conv.{place}", kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Flatten", x, axis=1)
    for place, (features, out) in enumerate(((400, 120), (120, 84))):
        x = _relu(net, gemm(net, x, f"linear.{place}", features, out), f"linear.{place}")
    net.output("output", gemm(net, x, "head", 84, 10), [1, 10])
    return net.build()


def unet() -> onnx.ModelProto:
    """A U-Net of two levels on 96 x 96 pixels."""
    net, skipped = Network("unet"), []
    x, channels = net.input("input", [1, 3, 96, 96]), 3

    def double(x: str, scope: str, channels: int, out: int) -> str:
        for place in range(2):
            x = conv(net, x, f"{scope}.{place}", channels if place == 0 else out, out, (3, 3), 1, 1, bias=True)
            x = _relu(net, x, f"{scope}.{place}")
        return x

    for level, (own, _) in enumerate(SIZES):
        x = double(x, f"down.{level}", channels, own)
        skipped.append(x)
        x, channels = net.op("MaxPool", x, scope=f"down.{level}", kernel_shape=[2, 2], strides=[2, 2]), own
    x, channels = double(x, "bottom", channels, SIZES[-1][1]), SIZES[-1][1]
    for level, (own, _) in reversed([*enumerate(SIZES)]):
        weight = net.normal(f"up.{level}.weight", (channels, own, 2, 2), (1 / channels) ** 0.5)
        x = net.op("ConvTranspose", x, weight, scope=f"up.{level}", kernel_shape=[2, 2], strides=[2, 2])
        x = net.op("Concat", skipped[level], x, scope=f"up.{level}", axis=1)
        x, channels = double(x, f"up.{level}.merge", 2 * own, own), own
    net.output("output", conv(net, x, "head", channels, 2, (1, 1), gain=1.0, bias=True), [1, 2, 96, 96])
    return net.build()


def gru(steps: int = 20, features: int = 40, hidden: int = 64) -> onnx.ModelProto:
    """A GRU over `steps` frames and a classifier of its last state."""
    net = Network("gru")
    x = net.input("input", [steps, 1, features])
    weights = (
        net.normal("gru.weight", (1, 3 * hidden, features), features**-0.5),
        net.normal("gru.recurrent", (1, 3 * hidden, hidden), hidden**-0.5),
        net.normal("gru.bias", (1, 6 * hidden), 0.1),
    )
    _, last = net.op("GRU", x, *weights, results=2, hidden_size=hidden, linear_before_reset=1)
    last = net.op("Squeeze", last, net.constant([0], dtype=np.int64))
    net.output("output", gemm(net, last, "head", hidden, 12), [1, 12])
    return net.build()


SMALL: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp": mlp,
    "keyword-cnn": keyword_cnn,
    "lenet": lenet,
    "unet": unet,
    "gru": gru,
}
