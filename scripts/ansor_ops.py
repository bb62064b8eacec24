"""The operators and subgraphs of Ansor's evaluation (sections 7.1 and 7.2, shapes of Appendix C), as ONNX models.

How the appendix is read: tensors are channels-first as ONNX has them, weights are constants, there is no bias. Where
it leaves something open, the authors' own definitions in TVM decide:

- GMM multiplies two inputs, [batch, N, K] and [batch, K, M]: with a batch, each product has its own second operand.
- GRP's first shape, (224, 224, 3, 64, 7, 2, 3) in 4 groups, cannot be, as 3 channels make no 4 groups. The workloads
  that TVM kept from the paper have (56, 56, 64, 128, 3, 2, 1) in its place.
- T2D's padding crops its output: 4x4 becomes 8x8.
- CAP multiplies capsules, matrices of 4x4, where a convolution multiplies numbers:
  Y[n,i,j,o,h,w] += X[n,i,k,c,h',w'] * W[j,o,k,c,r,s]. As i only counts and (k, c) are summed together, this is one Conv
  over batch (n, i) and channels (k, c) between two Reshapes that move nothing.
- NRM is one number for each matrix of the batch.
- TBS takes two inputs [batch, length, heads, hidden], hidden per head, and does not scale the product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
import paths  # noqa: F401
from networks import Network, batch_norm

BATCHES = (1, 16)

# As printed, but for GRP's first. The comment is the appendix's format.
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    # length, input channel, output channel, kernel size, stride, padding
    "C1D": ((256, 64, 128, 3, 2, 1), (128, 128, 256, 1, 2, 0), (64, 256, 256, 5, 1, 2), (32, 512, 512, 3, 1, 1)),
    # height, width, input channel, output channel, kernel size, stride, padding
    "C2D": (
        (224, 224, 3, 64, 7, 2, 3),
        (56, 56, 64, 64, 1, 1, 0),
        (14, 14, 256, 256, 3, 1, 1),
        (7, 7, 512, 512, 3, 1, 1),
    ),
    # depth, height, width, input channel, output channel, kernel size, stride, padding
    "C3D": (
        (16, 224, 224, 3, 64, 7, 2, 3),
        (16, 56, 56, 64, 64, 1, 1, 0),
        (16, 14, 14, 256, 256, 3, 1, 1),
        (16, 7, 7, 512, 512, 3, 1, 1),
    ),
    # N, M, K
    "GMM": ((128, 128, 128), (512, 32, 512), (512, 512, 512), (1024, 1024, 1024)),
    # height, width, input channel, output channel, kernel size, stride, padding, groups
    "GRP": (
        (56, 56, 64, 128, 3, 2, 1, 4),
        (56, 56, 64, 64, 1, 1, 0, 4),
        (14, 14, 256, 256, 3, 1, 1, 4),
        (7, 7, 512, 512, 3, 1, 1, 4),
    ),
    # height, width, input channel, output channel, kernel size, stride, padding, dilation
    "DIL": (
        (224, 224, 3, 64, 7, 2, 3, 2),
        (56, 56, 64, 64, 1, 1, 0, 2),
        (14, 14, 256, 256, 3, 1, 1, 2),
        (7, 7, 512, 512, 3, 1, 1, 2),
    ),
    # height, width, channel, kernel size, stride, padding
    "DEP": ((112, 112, 32, 3, 1, 1), (112, 112, 64, 3, 2, 1), (14, 14, 512, 3, 2, 1), (7, 7, 1024, 3, 1, 1)),
    # height, width, input channel, output channel, kernel size, stride, padding
    "T2D": ((4, 4, 512, 256, 4, 2, 1), (8, 8, 256, 128, 4, 2, 1), (16, 16, 128, 64, 4, 2, 1), (32, 32, 64, 3, 4, 2, 1)),
    # height, width, input channel, output channel, kernel size, stride, padding, capsule size
    "CAP": (
        (16, 16, 32, 32, 3, 2, 1, 4),
        (8, 8, 32, 32, 3, 1, 1, 4),
        (16, 16, 8, 16, 3, 2, 1, 4),
        (8, 8, 16, 16, 3, 1, 1, 4),
    ),
    # N, M
    "NRM": ((256, 256), (512, 512), (1024, 1024), (4096, 4096)),
    # height, width, input channel, output channel, kernel size, stride, padding
    "ConvLayer": (
        (224, 224, 3, 64, 7, 2, 3),
        (56, 56, 64, 64, 3, 2, 1),
        (28, 28, 128, 256, 1, 2, 0),
        (7, 7, 512, 512, 3, 1, 1),
    ),
    # sequence length, number of heads, hidden dimension
    "TBS": ((128, 12, 64), (128, 16, 64), (64, 12, 128), (128, 12, 128)),
}
SUBGRAPHS = ("ConvLayer", "TBS")


@dataclass(frozen=True)
class Made:
    """The value that a builder's last node makes. `work`: multiply-adds, those with padding included, those that a
    transposed convolution crops included, a softmax or an activation not."""

    value: str
    shape: tuple[int, ...]
    work: int


def convolution(net: Network, batch: int, image: Sequence[int], channels: int, *rest: int, groups: int = 1) -> Made:
    x = net.input("x", [batch, channels, *image])
    return convolved(net, x, batch, image, channels, *rest, groups=groups)


def convolved(
    net: Network,
    x: str,
    batch: int,
    image: Sequence[int],
    channels: int,
    out: int,
    kernel: int,
    stride: int,
    pad: int,
    dilation: int = 1,
    groups: int = 1,
) -> Made:
    axes = len(image)
    per_output = channels // groups * kernel**axes
    weight = net.normal("weight", (out, channels // groups, *[kernel] * axes), per_output**-0.5)
    attributes = {"kernel_shape": [kernel] * axes, "strides": [stride] * axes, "pads": [pad] * 2 * axes}
    y = net.op("Conv", x, weight, dilations=[dilation] * axes, group=groups, **attributes)
    sizes = [(size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for size in image]
    shape = (batch, out, *sizes)
    return Made(y, shape, math.prod(shape) * per_output)


def c1d(net: Network, batch: int, length: int, *rest: int) -> Made:
    return convolution(net, batch, [length], *rest)


def c2d(net: Network, batch: int, height: int, width: int, *rest: int) -> Made:
    return convolution(net, batch, [height, width], *rest)


def c3d(net: Network, batch: int, depth: int, height: int, width: int, *rest: int) -> Made:
    return convolution(net, batch, [depth, height, width], *rest)


def grouped(net: Network, batch: int, height: int, width: int, *rest: int) -> Made:
    *rest, groups = rest
    return convolution(net, batch, [height, width], *rest, groups=groups)


def depthwise(
    net: Network, batch: int, height: int, width: int, channels: int, kernel: int, stride: int, pad: int
) -> Made:
    return convolution(net, batch, [height, width], channels, channels, kernel, stride, pad, groups=channels)


def transposed(
    net: Network, batch: int, height: int, width: int, channels: int, out: int, kernel: int, stride: int, pad: int
) -> Made:
    x = net.input("x", [batch, channels, height, width])
    weight = net.normal("weight", (channels, out, kernel, kernel), (channels * kernel**2 / stride**2) ** -0.5)
    attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    y = net.op("ConvTranspose", x, weight, **attributes)
    shape = (batch, out, *((size - 1) * stride - 2 * pad + kernel for size in (height, width)))
    return Made(y, shape, batch * channels * height * width * out * kernel**2)


def capsule(
    net: Network,
    batch: int,
    height: int,
    width: int,
    channels: int,
    out: int,
    kernel: int,
    stride: int,
    pad: int,
    size: int,
) -> Made:
    x = net.input("x", [batch, size, size, channels, height, width])
    x = net.reshape(x, [batch * size, size * channels, height, width], "capsules")
    y = convolved(net, x, batch * size, [height, width], size * channels, size * out, kernel, stride, pad)
    shape = (batch, size, size, out, *y.shape[2:])
    return Made(net.reshape(y.value, shape, "product"), shape, y.work)


def matmul(net: Network, batch: int, n: int, m: int, k: int) -> Made:
    y = net.op("MatMul", net.input("x", [batch, n, k]), net.input("y", [batch, k, m]))
    return Made(y, (batch, n, m), batch * n * m * k)


def norm(net: Network, batch: int, n: int, m: int) -> Made:
    y = net.op("ReduceL2", net.input("x", [batch, n, m]), axes=[1, 2], keepdims=0)
    return Made(y, (batch,), batch * n * m)


def conv_layer(net: Network, batch: int, height: int, width: int, *rest: int) -> Made:
    y = c2d(net, batch, height, width, *rest)
    return Made(net.op("Relu", batch_norm(net, y.value, "bn", y.shape[1])), y.shape, y.work)


def attention_scores(net: Network, batch: int, length: int, heads: int, hidden: int) -> Made:
    query, key = (net.input(name, [batch, length, heads, hidden]) for name in ("query", "key"))
    query, key = (net.op("Transpose", x, perm=perm) for x, perm in ((query, [0, 2, 1, 3]), (key, [0, 2, 3, 1])))
    y = net.op("Softmax", net.op("MatMul", query, key), axis=-1)
    return Made(y, (batch, heads, length, length), batch * heads * length**2 * hidden)


BUILDERS: dict[str, Callable[..., Made]] = {
    "C1D": c1d,
    "C2D": c2d,
    "C3D": c3d,
    "GMM": matmul,
    "GRP": grouped,
    "DIL": c2d,
    "DEP": depthwise,
    "T2D": transposed,
    "CAP": capsule,
    "NRM": norm,
    "ConvLayer": conv_layer,
    "TBS": attention_scores,
}


@dataclass(frozen=True)
class Case:
    """One shape of an operator with one batch size; `number` counts the appendix's shapes from 1."""

    operator: str
    number: int
    batch: int
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.operator}-{self.number}-b{self.batch}"

    def build(self) -> tuple[onnx.ModelProto, int]:
        """The model, and the floating-point operations of one run."""
        net = Network(self.name)
        made = BUILDERS[self.operator](net, self.batch, *self.shape)
        net.output("output", made.value, made.shape)
        return net.build(), 2 * made.work


def cases(batches: Sequence[int] = BATCHES) -> list[Case]:
    """All of them, in the appendix's order."""
    return [
        Case(operator, number, batch, shape)
        for operator, shapes in SHAPES.items()
        for batch in batches
        for number, shape in enumerate(shapes, 1)
    ]
