"""Products and convolutions as Tasks."""

from __future__ import annotations

from three_ways import task_of


def product(m, k, n, before=(1,), bias=True):
    shapes = [(*before, m, k), (k, n)]
    return task_of("Gemm", {}, [(m, k), (k, n), (n,)], consts=(1, 2)) if bias else task_of("MatMul", {}, shapes, (1,))


def pointwise(n, c, size, o, stride=1):
    attrs = {"pads": (0,) * 4, "strides": (stride,) * 2, "group": 1}
    return task_of("Conv", attrs, [(n, c, *size), (o, c, 1, 1), (o,)], consts=(1, 2), channels_last=True)


def conv(n, c, size, o, pads=1, strides=1, kernel=3, dims=2, group=1, bias=True, dilation=1, channels_last=True):
    attrs = {"pads": (pads,) * (2 * dims), "strides": (strides,) * dims, "group": group}
    attrs["dilations"] = (dilation,) * dims
    shapes = [(n, c, *size), (o, c // group, *(kernel,) * dims), *[(o,)] * bias]
    return task_of("Conv", attrs, shapes, consts=range(1, len(shapes)), channels_last=channels_last)
