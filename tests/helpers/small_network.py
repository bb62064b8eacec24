"""A network of one Task of each kind that ResNet has, for scripts that compile the whole of it: a wide window with a
stride, a pool, a window, a pointwise convolution, means over an image, a product."""

from __future__ import annotations

from pathlib import Path

from networks import Network, batch_norm, classifier, conv, write


def write_small_network(path: Path) -> None:
    net = Network("small")

    def block(x: str, name: str, channels: int, out: int, kernel: int, stride: int = 1) -> str:
        x = conv(net, x, name, channels, out, [kernel] * 2, stride, pad=kernel // 2)
        relu = net.op("Relu", batch_norm(net, x, f"{name}.bn", out), scope=name)
        assert isinstance(relu, str)
        return relu

    x = block(net.input("input", [1, 3, 32, 32]), "conv1", 3, 8, kernel=7, stride=2)
    pooled = net.op("MaxPool", x, scope="maxpool", kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    assert isinstance(pooled, str)
    x = block(block(pooled, "conv2", 8, 8, kernel=3), "conv3", 8, 16, kernel=1)
    classifier(net, x, "fc", 16, 10)
    write(net.build(), path)
