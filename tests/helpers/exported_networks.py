"""Networks as torch's exporters write torchvision's: averages are ReduceMean or GlobalAveragePool, layer normalisation
is one node, GELU is made of Erf. Batch normalisation is folded into the convolution before it, or stays.

The weights are drawn as torch initialises them. Where normalisations are folded they are those of before training, and
activations become small behind many layers; where they stay they are as training leaves them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx
from networks import Network, batch_norm, conv, gelu

MobileBlock = tuple[int, int, int, bool, str, int]  # kernel, expanded, out, whether squeezed, activation, stride
MOBILE_V3: tuple[MobileBlock, ...] = (
    (3, 16, 16, False, "Relu", 1),
    (3, 64, 24, False, "Relu", 2),
    (3, 72, 24, False, "Relu", 1),
    (5, 72, 40, True, "Relu", 2),
    (5, 120, 40, True, "Relu", 1),
    (5, 120, 40, True, "Relu", 1),
    (3, 240, 80, False, "HardSwish", 2),
    (3, 200, 80, False, "HardSwish", 1),
    (3, 184, 80, False, "HardSwish", 1),
    (3, 184, 80, False, "HardSwish", 1),
    (3, 480, 112, True, "HardSwish", 1),
    (3, 672, 112, True, "HardSwish", 1),
    (5, 672, 160, True, "HardSwish", 2),
    (5, 960, 160, True, "HardSwish", 1),
    (5, 960, 160, True, "HardSwish", 1),
)

EfficientStage = tuple[int, int, int, int, int]  # expansion, kernel, stride of the first, out, blocks
EFFICIENT_B0: tuple[EfficientStage, ...] = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


# --- layers ---------------------------------------------------------------------------------------------------------


class Convolutional(Network):
    """A network of convolutions with normalisations, which are `folded` or not."""

    def __init__(self, name: str, folded: bool) -> None:
        super().__init__(name)
        self.folded = folded


def plain_convolution(
    net: Network, x: str, name: str, channels: int, out: int, kernel: int, stride: int = 1, group: int = 1
) -> str:
    """A convolution with weights of variance 2 / (out * kernel^2), kaiming_normal of fan_out. Its bias is zero, and
    exporters leave it out."""
    within = channels // group
    return conv(net, x, name, channels, out, [kernel] * 2, stride, pad=kernel // 2, group=group, gain=2 * within / out)


def convolution(
    net: Convolutional, x: str, name: str, channels: int, out: int, kernel: int, stride: int = 1, group: int = 1
) -> str:
    """A convolution and its normalisation. What is trained has activations of order 1."""
    if net.folded:
        return plain_convolution(net, x, name, channels, out, kernel, stride, group)
    x = conv(net, x, name, channels, out, [kernel] * 2, stride, pad=kernel // 2, group=group, gain=1.5)
    return str(batch_norm(net, x, f"{name}.norm", out))


def silu(net: Network, x: str, name: str) -> str:
    return str(net.op("Mul", x, net.op("Sigmoid", x, scope=name), scope=name))


def squeezed(net: Network, x: str, name: str, channels: int, middle: int, mobile: bool) -> str:
    """Squeeze and excitation: as MobileNet-V3 has it (`mobile`), or EfficientNet."""
    if mobile:
        y = str(net.op("GlobalAveragePool", x, scope=name))
    else:
        y = str(net.op("ReduceMean", x, scope=name, axes=[2, 3], keepdims=1))
    y = plain_convolution(net, y, f"{name}.fc1", channels, middle, 1)
    y = str(net.op("Relu", y, scope=name)) if mobile else silu(net, y, name)
    y = plain_convolution(net, y, f"{name}.fc2", middle, channels, 1)
    y = str(net.op("HardSigmoid", y, scope=name, alpha=1 / 6) if mobile else net.op("Sigmoid", y, scope=name))
    return str(net.op("Mul", y, x, scope=name))


def linear_head(net: Network, x: str, name: str, features: int, out: int, deviation: float = 0.01) -> str:
    weight, bias = net.normal(f"{name}.weight", (out, features), deviation), net.weight(f"{name}.bias", _zeros(out))
    return str(net.op("Gemm", x, weight, bias, scope=name, alpha=1.0, beta=1.0, transB=1))


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


# --- convolutional networks -----------------------------------------------------------------------------------------


def efficientnet(
    stages: Sequence[EfficientStage] = EFFICIENT_B0,
    image: int = 224,
    stem: int = 32,
    head: int = 1280,
    folded: bool = True,
) -> onnx.ModelProto:
    """EfficientNet: inverted residuals with squeeze and excitation, silu everywhere; averages are ReduceMean."""
    net = Convolutional("efficientnet", folded)
    x = net.input("x", [1, 3, image, image])
    x = silu(net, convolution(net, x, "features.0", 3, stem, 3, 2), "features.0")
    channels = stem
    for stage, (expansion, kernel, first_stride, out, count) in enumerate(stages, 1):
        for index in range(count):
            name, middle, y = f"features.{stage}.{index}", channels * expansion, x
            stride = 1 if index else first_stride
            if expansion != 1:
                y = silu(net, convolution(net, y, f"{name}.0", channels, middle, 1), f"{name}.0")
            y = convolution(net, y, f"{name}.1", middle, middle, kernel, stride, group=middle)
            y = squeezed(net, silu(net, y, f"{name}.1"), f"{name}.2", middle, max(1, channels // 4), False)
            y = convolution(net, y, f"{name}.3", middle, out, 1)
            x = str(net.op("Add", y, x, scope=name)) if stride == 1 and channels == out else y
            channels = out
    x = silu(net, convolution(net, x, "head", channels, head, 1), "head")
    x = net.reshape(str(net.op("ReduceMean", x, axes=[2, 3], keepdims=1)), [1, head], "avgpool")
    net.output("output", linear_head(net, x, "classifier", head, 1000, (1 / 3000) ** 0.5), [1, 1000])
    return net.build()


def mobilenet_v3(
    blocks: Sequence[MobileBlock] = MOBILE_V3, image: int = 224, last: int = 960, head: int = 1280, folded: bool = True
) -> onnx.ModelProto:
    """MobileNet-V3: HardSwish, and HardSigmoid where channels are weighed."""
    net = Convolutional("mobilenet-v3", folded)
    x = net.input("x", [1, 3, image, image])
    channels = 16
    x = str(net.op("HardSwish", convolution(net, x, "features.0", 3, channels, 3, 2), scope="features.0"))
    for index, (kernel, middle, out, is_squeezed, activation, stride) in enumerate(blocks, 1):
        name, y = f"features.{index}", x
        if middle != channels:
            y = str(net.op(activation, convolution(net, y, f"{name}.0", channels, middle, 1), scope=name))
        y = convolution(net, y, f"{name}.1", middle, middle, kernel, stride, group=middle)
        y = str(net.op(activation, y, scope=name))
        if is_squeezed:
            y = squeezed(net, y, f"{name}.2", middle, max(8, (middle // 4 + 4) // 8 * 8), True)
        y = convolution(net, y, f"{name}.3", middle, out, 1)
        x = str(net.op("Add", y, x, scope=name)) if stride == 1 and channels == out else y
        channels = out
    x = str(net.op("HardSwish", convolution(net, x, "last", channels, last, 1), scope="last"))
    x = str(net.op("Flatten", net.op("GlobalAveragePool", x, scope="avgpool"), axis=1))
    x = str(net.op("HardSwish", linear_head(net, x, "classifier.0", last, head), scope="classifier"))
    net.output("output", linear_head(net, x, "classifier.3", head, 1000), [1, 1000])
    return net.build()


def densenet(blocks: Sequence[int] = (6, 12, 24, 16), image: int = 224, growth: int = 32) -> onnx.ModelProto:
    """DenseNet: every layer reads all before it; normalisations that no convolution is before stay."""
    net, channels, bottleneck = Network("densenet"), 2 * growth, 4 * growth

    def normalised(x: str, name: str, channels: int) -> str:
        return str(net.op("Relu", batch_norm(net, x, name, channels), scope=name))

    def conv_in(x: str, name: str, channels: int, out: int, kernel: int) -> str:
        return conv(net, x, name, channels, out, [kernel] * 2, pad=kernel // 2)

    x = conv(net, net.input("x", [1, 3, image, image]), "features.conv0", 3, channels, [7, 7], 2, 3)
    x = str(net.op("Relu", x, scope="features"))
    x = str(net.op("MaxPool", x, scope="features", kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]))
    for number, count in enumerate(blocks, 1):
        parts = [x]
        for index in range(count):
            name = f"features.denseblock{number}.denselayer{index + 1}"
            joined = str(net.op("Concat", *parts, scope=name, axis=1)) if index else x
            y = conv_in(normalised(joined, f"{name}.norm1", channels), f"{name}.conv1", channels, bottleneck, 1)
            parts.append(conv_in(str(net.op("Relu", y, scope=name)), f"{name}.conv2", bottleneck, growth, 3))
            channels += growth
        name = f"features.transition{number}"
        x = normalised(str(net.op("Concat", *parts, scope=name, axis=1)), f"{name}.norm", channels)
        if number < len(blocks):
            x = conv_in(x, f"{name}.conv", channels, channels // 2, 1)
            x = str(net.op("AveragePool", x, scope=name, kernel_shape=[2, 2], strides=[2, 2]))
            channels //= 2
    x = net.reshape(str(net.op("ReduceMean", x, axes=[2, 3], keepdims=1)), [1, channels], "avgpool")
    net.output("output", linear_head(net, x, "classifier", channels, 1000, (3 * channels) ** -0.5), [1, 1000])
    return net.build()


# --- transformers, and convolutions that are like them --------------------------------------------------------------


def _norm(net: Network, x: str, name: str, features: int) -> str:
    parameters = net.weight(f"{name}.weight", _ones(features)), net.weight(f"{name}.bias", _zeros(features))
    return str(net.op("LayerNormalization", x, *parameters, scope=name, axis=-1, epsilon=1e-6))


def _product(net: Network, x: str, name: str, features: int, out: int, deviation: float = 0.02) -> str:
    weight, bias = net.normal(f"{name}.weight", (features, out), deviation), net.weight(f"{name}.bias", _zeros(out))
    return str(net.op("Add", bias, net.op("MatMul", x, weight, scope=name), scope=name))


def convnext(
    depths: Sequence[int] = (3, 3, 9, 3), widths: Sequence[int] = (96, 192, 384, 768), image: int = 224
) -> onnx.ModelProto:
    """ConvNeXt: depthwise 7x7, LayerNormalization over channels that are put last for it, a layer scale of 1e-6."""
    net = Network("convnext")

    def channels_last(x: str, name: str) -> str:
        return str(net.op("Transpose", x, scope=name, perm=[0, 2, 3, 1]))

    def channels_first(x: str, name: str) -> str:
        return str(net.op("Transpose", x, scope=name, perm=[0, 3, 1, 2]))

    def norm_2d(x: str, name: str, channels: int) -> str:
        return channels_first(_norm(net, channels_last(x, name), name, channels), name)

    def patches(x: str, name: str, channels: int, out: int, size: int) -> str:
        gain = 0.02**2 * channels * size**2
        return conv(net, x, name, channels, out, [size] * 2, size, gain=gain)

    x = patches(net.input("x", [1, 3, image, image]), "features.0.0", 3, widths[0], 4)
    x = norm_2d(x, "features.0.1", widths[0])
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        if stage:
            x = norm_2d(x, f"features.{2 * stage}.0", widths[stage - 1])
            x = patches(x, f"features.{2 * stage}.1", widths[stage - 1], width, 2)
        for index in range(depth):
            name = f"features.{2 * stage + 1}.{index}"
            y = conv(net, x, f"{name}.0", width, width, [7, 7], pad=3, group=width, gain=0.02**2 * 49)
            y = _norm(net, channels_last(y, name), f"{name}.2", width)
            y = gelu(net, _product(net, y, f"{name}.3", width, 4 * width), f"{name}.4")
            y = channels_first(_product(net, str(y), f"{name}.5", 4 * width, width), name)
            scale = net.weight(f"{name}.layer_scale", np.full((width, 1, 1), 1e-6, np.float32))
            x = str(net.op("Add", net.op("Mul", scale, y, scope=name), x, scope=name))
    x = norm_2d(str(net.op("GlobalAveragePool", x, scope="avgpool")), "classifier.0", widths[-1])
    x = str(net.op("Flatten", x, axis=1))
    net.output("output", linear_head(net, x, "classifier.2", widths[-1], 1000, 0.02), [1, 1000])
    return net.build()


def vision_transformer(
    layers: int = 12, hidden: int = 768, heads: int = 12, image: int = 224, patch: int = 16
) -> onnx.ModelProto:
    """ViT of torchvision: tokens come first within attention, q, k and v are one product that is taken apart by
    Gather, and queries and keys are both scaled by the root of the scale. Its head is zero before training; here it is
    drawn, or nothing of the network would reach an output."""
    net = Network("vit")
    size, tokens = hidden // heads, (image // patch) ** 2 + 1

    def split_heads(x: str, name: str) -> str:
        return str(net.op("Transpose", net.reshape(x, [tokens, heads, size], name), scope=name, perm=[1, 0, 2]))

    def attention(x: str, name: str) -> str:
        x = str(net.op("Transpose", x, scope=name, perm=[1, 0, 2]))
        joint = _product(net, x, f"{name}.in_proj", hidden, 3 * hidden, (2 / (4 * hidden)) ** 0.5)
        joint = net.reshape(joint, [tokens, 1, 3, hidden], name)
        joint = str(net.op("Unsqueeze", joint, net.constant([0], name, np.int64), scope=name))
        joint = str(net.op("Transpose", joint, scope=name, perm=[3, 1, 2, 0, 4]))
        joint = str(net.op("Squeeze", joint, net.constant([3], name, np.int64), scope=name))
        parts = [str(net.op("Gather", joint, net.constant(k, name, np.int64), scope=name, axis=0)) for k in range(3)]
        query, key, value = (split_heads(part, name) for part in parts)
        query, value = (net.reshape(part, [1, heads, tokens, size], name) for part in (query, value))
        key = str(net.op("Transpose", key, scope=name, perm=[0, 2, 1]))
        key = net.reshape(key, [1, heads, size, tokens], name)
        query, key = (str(net.op("Mul", p, net.constant(size**-0.25, name), scope=name)) for p in (query, key))
        weights = net.op("Softmax", net.op("MatMul", query, key, scope=name), scope=name, axis=-1)
        x = str(net.op("Transpose", net.op("MatMul", weights, value, scope=name), scope=name, perm=[2, 0, 1, 3]))
        x = linear_head(
            net, net.reshape(x, [tokens, hidden], name), f"{name}.out", hidden, hidden, (3 * hidden) ** -0.5
        )
        return str(net.op("Transpose", net.reshape(x, [tokens, 1, hidden], name), scope=name, perm=[1, 0, 2]))

    x = conv(net, net.input("x", [1, 3, image, image]), "conv_proj", 3, hidden, [patch] * 2, patch, gain=1)
    x = str(net.op("Transpose", net.reshape(x, [1, hidden, tokens - 1], "conv_proj"), perm=[0, 2, 1]))
    x = str(net.op("Concat", net.weight("class_token", _zeros(1, 1, hidden)), x, axis=1))
    x = str(net.op("Add", x, net.normal("pos_embedding", (1, tokens, hidden), 0.02)))
    for index in range(layers):
        name = f"encoder.{index}"
        x = str(net.op("Add", attention(_norm(net, x, f"{name}.ln_1", hidden), f"{name}.attention"), x, scope=name))
        y = _product(net, _norm(net, x, f"{name}.ln_2", hidden), f"{name}.mlp.0", hidden, 4 * hidden)
        y = _product(net, str(gelu(net, y, f"{name}.mlp.1")), f"{name}.mlp.3", 4 * hidden, hidden)
        x = str(net.op("Add", x, y, scope=name))
    x = str(net.op("Gather", _norm(net, x, "encoder.ln", hidden), net.constant(0, "", np.int64), axis=1))
    net.output("output", linear_head(net, x, "heads", hidden, 1000, 0.02), [1, 1000])
    return net.build()


EXPORTED: dict[str, Callable[[], onnx.ModelProto]] = {
    "efficientnet-b0": efficientnet,
    "efficientnet-b0-unfolded": partial(efficientnet, folded=False),
    "mobilenet-v3-large": mobilenet_v3,
    "mobilenet-v3-large-unfolded": partial(mobilenet_v3, folded=False),
    "densenet121": densenet,
    "convnext-tiny": convnext,
    "vit-b16-torchvision": vision_transformer,
}
SLICES: dict[str, Callable[[], onnx.ModelProto]] = {  # the same in small
    "efficientnet": lambda: efficientnet(EFFICIENT_B0[:3], 96, 16, 64),
    "efficientnet-unfolded": lambda: efficientnet(EFFICIENT_B0[:3], 96, 16, 64, folded=False),
    "mobilenet-v3": lambda: mobilenet_v3(MOBILE_V3[3:8], 64, 48, 64),
    "densenet": lambda: densenet((2, 3), 64, 8),
    "convnext": lambda: convnext((1, 1), (16, 32), 64),
    "vit": lambda: vision_transformer(2, 32, 2, 64, 16),
}
