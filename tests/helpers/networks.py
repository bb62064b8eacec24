"""The papers' networks with seeded random weights, and what networks are put together of.

The graphs are what PyTorch's exporter writes at opset 17 (batch normalisation not folded). The weights are
He-initialised from a NumPy generator, so that activations stay of order 1 through the net. The same name always gives
the same bytes.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 17, 8
LOWEST = np.finfo(np.float32).min


class Network:
    """An ONNX graph in the making. Weights come from one generator; values are named as PyTorch names them."""

    def __init__(self, name: str, seed: int = 0):
        self.name = name
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.taken: Counter[str] = Counter()

    def input(self, name: str, shape: Sequence[int], dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, value: str, shape: Sequence[int]) -> None:
        """Makes `value` an output and gives it that name, wherever it is used."""
        for node in self.nodes:
            node.input[:] = [name if used == value else used for used in node.input]
            node.output[:] = [name if made == value else made for made in node.output]
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def weight(self, name: str, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, name: str, shape: Sequence[int], deviation: float, mean: float = 0.0) -> str:
        values = self.random.standard_normal(shape, dtype=np.float32)
        return self.weight(name, values * np.float32(deviation) + np.float32(mean))

    def uniform(self, name: str, size: int, low: float, high: float) -> str:
        return self.weight(name, self.random.uniform(low, high, size).astype(np.float32))

    def op(self, op_type: str, *inputs: str, scope: str = "", results: int = 1, **attributes) -> str | list[str]:
        """Appends a node under `scope`; returns the name of its result, or the list of them if there are several."""
        base = f"/{scope}/{op_type}" if scope else f"/{op_type}"
        name = f"{base}_{self.taken[base]}" if self.taken[base] else base
        self.taken[base] += 1
        made = [f"{name}_output_{index}" for index in range(results)]
        self.nodes.append(helper.make_node(op_type, inputs, made, name, **attributes))
        return made[0] if results == 1 else made

    def constant(self, value, scope: str = "", dtype=np.float32) -> str:
        return self.op("Constant", scope=scope, value=numpy_helper.from_array(np.array(value, dtype)))

    def reshape(self, x: str, shape: Sequence[int], scope: str) -> str:
        return self.op("Reshape", x, self.constant(shape, scope, np.int64), scope=scope)

    def build(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, producer_name="make_networks", opset_imports=[opset], ir_version=IR_VERSION)


# Layers: each appends its nodes and returns the name of its result. `name` is the module's path in PyTorch.


def per_axis(value: int | Sequence[int], axes: int) -> list[int]:
    return [value] * axes if isinstance(value, int) else list(value)


def conv(
    net: Network,
    x: str,
    name: str,
    channels: int,
    out: int,
    kernel: Sequence[int],
    stride: int | Sequence[int] = 1,
    pad: int | Sequence[int] = 0,
    group: int = 1,
    gain: float = 2.0,
    bias: bool = False,
) -> str:
    """A convolution over as many axes as the kernel has. gain: 2 behind a Relu (He), 1 behind a linear layer."""
    axes = len(kernel)
    shape = (out, channels // group, *kernel)
    inputs = [x, net.normal(f"{name}.weight", shape, (gain / np.prod(shape[1:])) ** 0.5)]
    if bias:
        inputs.append(net.normal(f"{name}.bias", (out,), 0.1))
    return net.op(
        "Conv",
        *inputs,
        scope=name,
        dilations=[1] * axes,
        group=group,
        kernel_shape=kernel,
        pads=per_axis(pad, axes) * 2,
        strides=per_axis(stride, axes),
    )


def batch_norm(net: Network, x: str, name: str, channels: int, scale: float = 1.0) -> str:
    """Batch normalisation at inference; `scale` damps the last one of a residual branch, as training does."""
    parameters = (
        net.uniform(f"{name}.weight", channels, 0.7 * scale, 1.3 * scale),
        net.normal(f"{name}.bias", (channels,), 0.1),
        net.normal(f"{name}.running_mean", (channels,), 0.1),
        net.uniform(f"{name}.running_var", channels, 0.6, 1.6),
    )
    return net.op("BatchNormalization", x, *parameters, scope=name, epsilon=1e-5, momentum=0.9, training_mode=0)


def classifier(net: Network, x: str, name: str, channels: int, classes: int) -> None:
    """Global average pooling and a linear layer, as the output of the net."""
    x = net.op("Flatten", net.op("GlobalAveragePool", x, scope="avgpool"), axis=1)
    net.output("output", gemm(net, x, name, channels, classes), [1, classes])


def gemm(net: Network, x: str, name: str, features: int, out: int) -> str:
    """A linear layer on a matrix: PyTorch keeps the weight as [out, features]."""
    weight = net.normal(f"{name}.weight", (out, features), features**-0.5)
    bias = net.normal(f"{name}.bias", (out,), 0.1)
    return net.op("Gemm", x, weight, bias, scope=name, alpha=1.0, beta=1.0, transB=1)


def linear(net: Network, x: str, name: str, features: int, out: int, scale: float = 1.0) -> str:
    """A linear layer on a tensor of higher rank: MatMul with the transposed weight, then Add."""
    weight = net.normal(f"{name}.weight_transposed", (features, out), scale * features**-0.5)
    product = net.op("MatMul", x, weight, scope=name)
    return net.op("Add", net.normal(f"{name}.bias", (out,), 0.1), product, scope=name)


def norm_parameters(net: Network, name: str, features: int) -> tuple[str, str]:
    return net.uniform(f"{name}.weight", features, 0.7, 1.3), net.normal(f"{name}.bias", (features,), 0.1)


def layer_norm(net: Network, x: str, name: str, features: int, epsilon: float) -> str:
    return net.op("LayerNormalization", x, *norm_parameters(net, name, features), scope=name, axis=-1, epsilon=epsilon)


def decomposed_layer_norm(net: Network, x: str, name: str, features: int, epsilon: float) -> str:
    """Layer normalisation as PyTorch writes it below opset 17, and as most published BERTs carry it."""
    op = partial(net.op, scope=name)
    weight, bias = norm_parameters(net, name, features)
    centred = op("Sub", x, op("ReduceMean", x, axes=[-1]))
    variance = op("ReduceMean", op("Pow", centred, net.constant(2, name)), axes=[-1])
    deviation = op("Sqrt", op("Add", variance, net.constant(epsilon, name)))
    return op("Add", op("Mul", op("Div", centred, deviation), weight), bias)


def gelu(net: Network, x: str, name: str) -> str:
    """x * (1 + erf(x / sqrt 2)) / 2"""
    op = partial(net.op, scope=name)
    error = op("Erf", op("Div", x, net.constant(2**0.5, name)))
    product = op("Mul", x, op("Add", error, net.constant(1, name)))
    return op("Mul", product, net.constant(0.5, name))


def tanh_gelu(net: Network, x: str, name: str) -> str:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), GPT-2's"""
    op = partial(net.op, scope=name)
    half = op("Mul", x, net.constant(0.5, name))
    cubic = op("Mul", op("Pow", x, net.constant(3, name)), net.constant(0.044715, name))
    inner = op("Mul", op("Add", x, cubic), net.constant((2 / np.pi) ** 0.5, name))
    return op("Mul", half, op("Add", op("Tanh", inner), net.constant(1, name)))


# Networks.


def resnet(depth: int, width: int = 64, image: int = 224, classes: int = 1000) -> onnx.ModelProto:
    """ResNet 18 (basic blocks) or 50 (bottlenecks, the stride on the 3x3), as in torchvision."""
    blocks, expansion = {18: ([2, 2, 2, 2], 1), 50: ([3, 4, 6, 3], 4)}[depth]
    net = Network(f"resnet{depth}")

    def conv_norm(x, name, index, channels, out, kernel, stride=1, scale=1.0):
        x = conv(net, x, f"{name}.conv{index}", channels, out, [kernel] * 2, stride, pad=kernel // 2)
        return batch_norm(net, x, f"{name}.bn{index}", out, scale)

    def relu(x, name):
        return net.op("Relu", x, scope=name)

    def branch(x, name, channels, out, stride):
        if expansion == 1:
            x = relu(conv_norm(x, name, 1, channels, out, 3, stride), name)
            return conv_norm(x, name, 2, out, out, 3, scale=0.5)
        middle = out // expansion
        x = relu(conv_norm(x, name, 1, channels, middle, 1), name)
        x = relu(conv_norm(x, name, 2, middle, middle, 3, stride), name)
        return conv_norm(x, name, 3, middle, out, 1, scale=0.5)

    x = net.input("input", [1, 3, image, image])
    x = conv(net, x, "conv1", 3, width, [7, 7], stride=2, pad=3, gain=1)
    x = relu(batch_norm(net, x, "bn1", width), "relu")
    x = net.op("MaxPool", x, scope="maxpool", ceil_mode=0, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    channels = width
    for stage, count in enumerate(blocks):
        out = width * 2**stage * expansion
        for index in range(count):
            name, stride = f"layer{stage + 1}.{index}", 2 if stage and not index else 1
            y, shortcut = branch(x, name, channels, out, stride), x
            if channels != out or stride != 1:
                down = f"{name}.downsample"
                shortcut = conv(net, x, f"{down}.0", channels, out, [1, 1], stride, gain=1)
                shortcut = batch_norm(net, shortcut, f"{down}.1", out)
            x, channels = relu(net.op("Add", y, shortcut, scope=name), name), out
    classifier(net, x, "fc", channels, classes)
    return net.build()


def resnet3d(width: int = 64, frames: int = 16, image: int = 112, classes: int = 400) -> onnx.ModelProto:
    """ResNet-18 over video (torchvision's r3d_18): every 3x3 becomes 3x3x3, and no pooling behind the stem."""
    net = Network("resnet3d-18")
    x = net.input("input", [1, 3, frames, image, image])
    x = conv(net, x, "stem.0", 3, width, [3, 7, 7], stride=[1, 2, 2], pad=[1, 3, 3], gain=1)
    x = net.op("Relu", batch_norm(net, x, "stem.1", width), scope="stem.2")
    channels = width
    for stage in range(4):
        out = width * 2**stage
        for index in range(2):
            name, stride = f"layer{stage + 1}.{index}", 2 if stage and not index else 1
            y = conv(net, x, f"{name}.conv1.0", channels, out, [3] * 3, stride, pad=1)
            y = net.op("Relu", batch_norm(net, y, f"{name}.conv1.1", out), scope=name)
            y = conv(net, y, f"{name}.conv2.0", out, out, [3] * 3, pad=1)
            y = batch_norm(net, y, f"{name}.conv2.1", out, scale=0.5)
            if channels != out:
                x = conv(net, x, f"{name}.downsample.0", channels, out, [1] * 3, stride, gain=1)
                x = batch_norm(net, x, f"{name}.downsample.1", out)
            x, channels = net.op("Relu", net.op("Add", y, x, scope=name), scope=name), out
    classifier(net, x, "fc", channels, classes)
    return net.build()


def mobilenet(width: float = 1.0, image: int = 224, classes: int = 1000) -> onnx.ModelProto:
    """MobileNet-V2: inverted residuals (expand 1x1, depthwise 3x3, project 1x1), Clip(0, 6), as in torchvision."""
    # expansion, channels, repeats, stride of the first
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    net = Network("mobilenet-v2")

    def scaled(channels):
        return max(8, int(channels * width + 4) // 8 * 8)

    def clipped(x, name, channels, out, kernel, **options):
        x = batch_norm(net, conv(net, x, f"{name}.0", channels, out, [kernel] * 2, **options), f"{name}.1", out)
        return net.op("Clip", x, net.constant(0, f"{name}.2"), net.constant(6, f"{name}.2"), scope=f"{name}.2")

    x = net.input("input", [1, 3, image, image])
    channels = scaled(32)
    x = clipped(x, "features.0", 3, channels, 3, stride=2, pad=1, gain=1)
    index = 1
    for expansion, out, repeats, first_stride in stages:
        out = scaled(out)
        for stride in [first_stride] + [1] * (repeats - 1):
            name, middle, part, y = f"features.{index}", channels * expansion, 0, x
            if expansion != 1:
                y, part = clipped(y, f"{name}.conv.0", channels, middle, 1, gain=1), 1
            y = clipped(y, f"{name}.conv.{part}", middle, middle, 3, stride=stride, pad=1, group=middle)
            y = conv(net, y, f"{name}.conv.{part + 1}", middle, out, [1, 1])
            y = batch_norm(net, y, f"{name}.conv.{part + 2}", out)
            x = net.op("Add", x, y, scope=name) if stride == 1 and channels == out else y
            channels, index = out, index + 1
    last = max(scaled(1280), channels)
    x = clipped(x, f"features.{index}", channels, last, 1, gain=1)
    classifier(net, x, "classifier.1", last, classes)
    return net.build()


def dcgan(width: int = 64, latent: int = 100) -> onnx.ModelProto:
    """DCGAN's generator as in PyTorch's examples: [1, latent, 1, 1] to a 64x64 picture in -1..1."""
    net = Network("dcgan")
    x, channels = net.input("z", [1, latent, 1, 1]), latent
    outs = [width * 8, width * 4, width * 2, width, 3]
    for index, out in enumerate(outs):
        name, first, last = f"main.{3 * index}", index == 0, index == len(outs) - 1
        stride, pad = (1, 0) if first else (2, 1)
        # An output element of the first layer sees one tap of its 4x4 kernel, of the others 4.
        fan_in, gain = (channels, 1) if first else (channels * 4, 2)
        weight = net.normal(f"{name}.weight", (channels, out, 4, 4), (gain / fan_in) ** 0.5 * (0.3 if last else 1))
        x = net.op(
            "ConvTranspose",
            *(x, weight),
            scope=name,
            dilations=[1, 1],
            group=1,
            kernel_shape=[4, 4],
            pads=[pad] * 4,
            strides=[stride] * 2,
        )
        if not last:
            x = batch_norm(net, x, f"main.{3 * index + 1}", out)
            x, channels = net.op("Relu", x, scope=f"main.{3 * index + 2}"), out
    net.output("output", net.op("Tanh", x, scope="main.13"), [1, 3, 64, 64])
    return net.build()


def bert(layers: int, hidden: int, heads: int, tokens: int = 128, vocabulary: int = 30522) -> onnx.ModelProto:
    """BERT's encoder with pooler: decomposed layer norm and GELU, the mask as (1 - mask) * lowest float."""
    net = Network(f"bert-{layers}x{hidden}")
    ids, mask, types = (
        net.input(name, [1, tokens], TensorProto.INT64) for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    norm = partial(decomposed_layer_norm, net, features=hidden, epsilon=1e-12)
    size = hidden // heads

    def embedding(name, rows, indices):
        table = net.normal(f"embeddings.{name}.weight", (rows, hidden), 0.05)
        return net.op("Gather", table, indices, scope=f"embeddings/{name}")

    def split_heads(x, perm, scope):
        return net.op("Transpose", net.reshape(x, [1, tokens, heads, size], scope), scope=scope, perm=perm)

    def attention(x, name):
        op = partial(net.op, scope=name)
        query, key, value = (linear(net, x, f"{name}.{part}", hidden, hidden) for part in ("query", "key", "value"))
        key = split_heads(key, [0, 2, 3, 1], name)
        value, query = (split_heads(part, [0, 2, 1, 3], name) for part in (value, query))
        scores = op("Div", op("MatMul", query, key), net.constant(size**0.5, name))
        weights = op("Softmax", op("Add", scores, bias), axis=-1)
        merged = op("Transpose", op("MatMul", weights, value), perm=[0, 2, 1, 3])
        return net.reshape(merged, [1, tokens, hidden], name)

    bias = mask
    for axis in (1, 2):
        bias = net.op("Unsqueeze", bias, net.constant([axis], dtype=np.int64))
    bias = net.op("Sub", net.constant(1), net.op("Cast", bias, to=TensorProto.FLOAT))
    bias = net.op("Mul", bias, net.constant(LOWEST))

    x = net.op("Add", embedding("word_embeddings", vocabulary, ids), embedding("token_type_embeddings", 2, types))
    positions = net.weight("embeddings.position_ids", np.arange(tokens, dtype=np.int64)[None])
    x = norm(net.op("Add", x, embedding("position_embeddings", max(tokens, 512), positions)), "embeddings.LayerNorm")
    for index in range(layers):
        name = f"encoder.layer.{index}"
        y = linear(net, attention(x, f"{name}.attention.self"), f"{name}.attention.output.dense", hidden, hidden)
        x = norm(net.op("Add", y, x, scope=f"{name}.attention.output"), f"{name}.attention.output.LayerNorm")
        y = gelu(net, linear(net, x, f"{name}.intermediate.dense", hidden, 4 * hidden), f"{name}.intermediate")
        y = linear(net, y, f"{name}.output.dense", 4 * hidden, hidden)
        x = norm(net.op("Add", y, x, scope=f"{name}.output"), f"{name}.output.LayerNorm")
    first = net.op("Gather", x, net.constant(0, "pooler", np.int64), scope="pooler", axis=1)
    pooled = net.op("Tanh", gemm(net, first, "pooler.dense", hidden, hidden), scope="pooler")
    net.output("last_hidden_state", x, [1, tokens, hidden])
    net.output("pooler_output", pooled, [1, hidden])
    return net.build()


def gpt2(
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    tokens: int = 128,
    vocabulary: int = 50257,
    context: int = 1024,
) -> onnx.ModelProto:
    """GPT-2 without its head: causal mask by Slice and Where, Gemm on flattened tokens, tanh GELU, pre-norm."""
    net = Network(f"gpt2-{layers}x{hidden}")
    size = hidden // heads
    norm = partial(layer_norm, net, features=hidden, epsilon=1e-5)
    causal = net.weight("attn.bias", np.tri(context, dtype=bool)[None, None])

    def projection(x, name, features, out, scale=1.0):
        """GPT-2's Conv1D: the weight is [features, out], the tokens are flattened around it."""
        flat = net.reshape(x, [-1, features], name)
        weight = net.normal(f"{name}.weight", (features, out), scale * features**-0.5)
        bias = net.normal(f"{name}.bias", (out,), 0.02)
        return net.reshape(net.op("Gemm", flat, weight, bias, scope=name, alpha=1.0, beta=1.0), [1, tokens, out], name)

    def split_heads(x, perm, scope):
        return net.op("Transpose", net.reshape(x, [1, tokens, heads, size], scope), scope=scope, perm=perm)

    def visible(scope):
        """The causal mask's first `tokens` rows and columns."""
        mask = causal
        for axis in (2, 3):
            start, end, axes, step = (net.constant([value], scope, np.int64) for value in (0, tokens, axis, 1))
            mask = net.op("Slice", mask, start, end, axes, step, scope=scope)
        return mask

    def attention(x, name):
        op = partial(net.op, scope=name)
        parts = op("Split", projection(x, f"{name}.c_attn", hidden, 3 * hidden), split, results=3, axis=2)
        query, key, value = (
            split_heads(part, perm, name)
            for part, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
        )
        scores = op("Div", op("MatMul", query, key), net.constant(size**0.5, name))
        weights = op("Softmax", op("Where", visible(name), scores, net.constant(LOWEST, name)), axis=-1)
        merged = op("Transpose", op("MatMul", weights, value), perm=[0, 2, 1, 3])
        return projection(net.reshape(merged, [1, tokens, hidden], name), f"{name}.c_proj", hidden, hidden, damped)

    ids = net.input("input_ids", [1, tokens], TensorProto.INT64)
    split = net.weight("split", np.array([hidden] * 3, np.int64))
    damped = (2 * layers) ** -0.5  # GPT-2 scales the projections that feed the residual stream
    words = net.op("Gather", net.normal("wte.weight", (vocabulary, hidden), 1.0), ids, scope="wte")
    positions = net.weight("position_ids", np.arange(tokens, dtype=np.int64)[None])
    places = net.op("Gather", net.normal("wpe.weight", (context, hidden), 0.5), positions, scope="wpe")
    x = net.op("Add", words, places)
    for index in range(layers):
        name = f"h.{index}"
        x = net.op("Add", attention(norm(x, f"{name}.ln_1"), f"{name}.attn"), x, scope=name)
        y = projection(norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc", hidden, 4 * hidden)
        y = projection(tanh_gelu(net, y, f"{name}.mlp.act"), f"{name}.mlp.c_proj", 4 * hidden, hidden, damped)
        x = net.op("Add", x, y, scope=name)
    net.output("last_hidden_state", norm(x, "ln_f"), [1, tokens, hidden])
    return net.build()


def vit(
    layers: int = 12, hidden: int = 768, heads: int = 12, image: int = 224, patch: int = 16, classes: int = 1000
) -> onnx.ModelProto:
    """Vision transformer as in timm: patches by a strided Conv, one MatMul for q, k and v, taken apart by Gather."""
    net = Network(f"vit-{layers}x{hidden}")
    size, patches = hidden // heads, (image // patch) ** 2
    norm = partial(layer_norm, net, features=hidden, epsilon=1e-6)

    def attention(x, name):
        op = partial(net.op, scope=name)
        joint = linear(net, x, f"{name}.qkv", hidden, 3 * hidden)
        joint = op("Transpose", net.reshape(joint, [1, patches + 1, 3, heads, size], name), perm=[2, 0, 3, 1, 4])
        query, key, value = (op("Gather", joint, net.constant(part, name, np.int64), axis=0) for part in range(3))
        query = op("Mul", query, net.constant(size**-0.5, name))
        scores = op("MatMul", query, op("Transpose", key, perm=[0, 1, 3, 2]))
        merged = op("Transpose", op("MatMul", op("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
        merged = net.reshape(merged, [1, patches + 1, hidden], name)
        return linear(net, merged, f"{name}.proj", hidden, hidden, scale=0.5)

    x = net.input("input", [1, 3, image, image])
    x = conv(net, x, "patch_embed.proj", 3, hidden, [patch] * 2, stride=patch, gain=1, bias=True)
    x = net.op("Transpose", net.reshape(x, [1, hidden, patches], "patch_embed"), scope="patch_embed", perm=[0, 2, 1])
    x = net.op("Concat", net.normal("cls_token", (1, 1, hidden), 1.0), x, axis=1)
    x = net.op("Add", x, net.normal("pos_embed", (1, patches + 1, hidden), 0.5))
    for index in range(layers):
        name = f"blocks.{index}"
        x = net.op("Add", x, attention(norm(x, f"{name}.norm1"), f"{name}.attn"), scope=name)
        y = gelu(net, linear(net, norm(x, f"{name}.norm2"), f"{name}.mlp.fc1", hidden, 4 * hidden), f"{name}.mlp.act")
        x = net.op("Add", x, linear(net, y, f"{name}.mlp.fc2", 4 * hidden, hidden, scale=0.5), scope=name)
    first = net.op("Gather", norm(x, "norm"), net.constant(0, "", np.int64), axis=1)
    net.output("output", gemm(net, first, "head", hidden, classes), [1, classes])
    return net.build()


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet18": partial(resnet, 18),
    "resnet50": partial(resnet, 50),
    "mobilenet-v2": mobilenet,
    "bert-tiny": partial(bert, 2, 128, 2),
    "bert-base": partial(bert, 12, 768, 12),
    "dcgan": dcgan,
    "resnet3d-18": resnet3d,
    "gpt2": gpt2,
    "vit-b16": vit,
}


def random_inputs(model: onnx.ModelProto, shape: dict[str, list[int]] | None = None, seed: int = 0) -> dict:
    """Inputs by name: floats from N(0, 1); integers below 2, or for a Gather below the rows of its table.

    `shape` says the shape of inputs that have free dimensions.
    """
    random = np.random.default_rng(seed)
    graph = model.graph
    rows = {weight.name: weight.dims[0] for weight in graph.initializer if weight.dims}
    limits = {
        node.input[1]: rows[node.input[0]] for node in graph.node if node.op_type == "Gather" and node.input[0] in rows
    }
    feeds = {}
    for value in graph.input:
        if value.name in rows:
            continue
        tensor = value.type.tensor_type
        dims = (shape or {}).get(value.name) or [dim.dim_value for dim in tensor.shape.dim]
        if tensor.elem_type == TensorProto.INT64:
            feeds[value.name] = random.integers(0, limits.get(value.name, 2), dims, dtype=np.int64)
        else:
            feeds[value.name] = random.standard_normal(dims, dtype=np.float32)
    return feeds


def run(model: onnx.ModelProto | Path, feeds: dict) -> dict[str, np.ndarray]:
    """The outputs by name, from ONNX Runtime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def write(model: onnx.ModelProto, path: Path) -> None:
    """Writes the model in one file (beside, then renamed)."""
    unfinished = path.with_suffix(".partial")
    unfinished.write_bytes(model.SerializeToString(deterministic=True))
    unfinished.rename(path)
