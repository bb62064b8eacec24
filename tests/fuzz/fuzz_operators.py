"""Operators at their extremes: python tests/fuzz operators [--cases 300] [--seed 0] [--only FAMILY] [--json FILE]

Each case is a model of one node: dimensions of zero and of one, rank zero and rank eight, huge strides, pads and
dilations, k of zero, empty and negative axes, indices at their edges, infinities and NaNs. It is compiled, loaded and
run as a package in a forked child, and compared with ONNX Runtime (in a child of its own) and with the interpreter.
Good outcomes are equal results and refusals in a sentence; wrong results, exceptions, signals and hangs are not, and
each is shown once, with the case that reproduces it. The exit code is 1 if there are any.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from forked import Case, Limits, run_cases
from fuzzing import Report
from onnx import helper, numpy_helper
from packaged import check, native

Rng = np.random.Generator
Array = np.ndarray
OPSET = 21
SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-30, 3e38, -3e38, 1.0, -1.0, 0.5, 2.5)  # subnormals are flushed
EXTENTS = (0, 1, 1, 2, 3, 5, 17)
FLOATS = ("float32", "float32", "float32", "float64", "float16")
INTEGERS = ("int64", "int32", "int8", "uint8")


@dataclass(frozen=True)
class Extreme:
    """One node and its inputs; those at the positions `constants` are initialisers."""

    op: str
    inputs: Sequence[Array | None]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    constants: Sequence[int] = ()
    outputs: int = 1

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        names = [f"x{k}" if x is not None else "" for k, x in enumerate(self.inputs)]
        feeds = {n: x for k, (n, x) in enumerate(zip(names, self.inputs, strict=True)) if n and k not in self.constants}
        held = [numpy_helper.from_array(self.inputs[k], names[k]) for k in self.constants if names[k]]
        given = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in feeds.items()
        ]
        results = [f"y{k}" for k in range(self.outputs)]
        node = helper.make_node(self.op, names, results, **self.attrs)
        graph = helper.make_graph([node], "extreme", given, [onnx.ValueInfoProto(name=n) for n in results], held)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model), feeds

    def __str__(self) -> str:
        shown = [f"{x.dtype}{list(x.shape)}" if x is not None else "" for x in self.inputs]
        for k in self.constants:
            if self.inputs[k] is not None:
                shown[k] = f"{self.inputs[k].dtype} {np.array2string(self.inputs[k], threshold=12)}"
        attrs = "".join(f" {n}={v}" for n, v in self.attrs.items())
        return f"{self.op}({', '.join(shown)}){attrs}"


# --- what extremes are made of --------------------------------------------------------------------------------------


def pick(rng: Rng, values: Sequence[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


def shape(rng: Rng, low: int = 0, high: int = 8, extents: Sequence[int] = EXTENTS) -> tuple[int, ...]:
    """A shape of at most a few thousand elements."""
    rank = int(rng.integers(low, high + 1))
    while True:
        found = tuple(pick(rng, extents) for _ in range(rank))
        if np.prod(found, dtype=np.int64) <= 4096:
            return found


def array(rng: Rng, dims: Sequence[int], dtype: str = "float32", special: float = 0.2) -> Array:
    """Standard normal floats of which a share is special; whole numbers with the least and the greatest among them."""
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, dims).astype(bool))
    if dtype in INTEGERS:
        found = np.asarray(rng.integers(0 if dtype[0] == "u" else -9, 10, dims).astype(dtype))
        limits = np.iinfo(dtype)
        return np.where(rng.random(dims) < special, rng.choice([limits.min, limits.max], dims), found).astype(dtype)
    with np.errstate(over="ignore"):
        values = np.where(rng.random(dims) < special, rng.choice(SPECIAL, dims), rng.standard_normal(dims))
        return np.asarray(values).astype(dtype)


def plain(rng: Rng, dims: Sequence[int], dtype: str = "float32") -> Array:
    """Numbers that sums of them are exact enough of."""
    return array(rng, dims, dtype, special=0.0)


def whole(*values: int) -> Array:
    return np.array(values, np.int64)


def broadcast_pair(rng: Rng) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast, with dimensions of one and missing ones on either side."""
    full = shape(rng)
    sides = [tuple(1 if rng.random() < 0.3 else n for n in full) for _ in range(2)]
    cut = int(rng.integers(0, len(full) + 1))
    return sides[0], sides[1][cut:]


def axis(rng: Rng, rank: int) -> int:
    return int(rng.integers(-rank, rank)) if rank else 0


# --- families -------------------------------------------------------------------------------------------------------


def unary(rng: Rng) -> Extreme:
    op = pick(rng, ("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Elu", "Erf",
                    "Exp", "Floor", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg",
                    "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign",
                    "Sqrt", "Tan", "Tanh", "ThresholdedRelu", "Identity", "Gelu", "Celu", "Shrink"))  # fmt: skip
    return Extreme(op, [array(rng, shape(rng))])


def binary(rng: Rng) -> Extreme:
    op = pick(rng, ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu", "Less", "Greater", "Equal", "Mod"))
    a, b = broadcast_pair(rng)
    if op == "PRelu":
        a = tuple(np.broadcast_shapes(a, b))
    return Extreme(op, [array(rng, a), array(rng, b)], {"fmod": 1} if op == "Mod" else {})


def selection(rng: Rng) -> Extreme:
    a, b = broadcast_pair(rng)
    if rng.random() < 0.5:
        return Extreme("Where", [array(rng, b, "bool"), array(rng, a), array(rng, b)])
    low, high = (np.array(pick(rng, (0.0, -1.0, 1.0, np.inf, -np.inf)), np.float32) for _ in range(2))
    return Extreme("Clip", [array(rng, a), low, high])  # with one bound, ONNX Runtime makes infinities finite


def casting(rng: Rng) -> Extreme:
    to = pick(rng, ("float32", "float64", "float16", "bool"))
    source = pick(rng, (*FLOATS, *INTEGERS, "bool"))
    return Extreme("Cast", [array(rng, shape(rng), source)], {"to": helper.np_dtype_to_tensor_dtype(np.dtype(to))})


def reduction(rng: Rng) -> Extreme:
    op = pick(rng, ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
                    "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"))  # fmt: skip
    dims = shape(rng)
    count = int(rng.integers(0, len(dims) + 1))
    axes = [int(a) - (len(dims) if rng.random() < 0.5 else 0) for a in rng.permutation(len(dims))[:count]]
    attrs = {"keepdims": int(rng.integers(0, 2)), "noop_with_empty_axes": int(rng.integers(0, 2))}
    x = array(rng, dims, special=0.05) if op in ("ReduceMax", "ReduceMin", "ReduceSum") else plain(rng, dims)
    if op != "ReduceSum":  # which of NaN and number ONNX Runtime finds the greater depends on where they are
        x = np.where(np.isnan(x), np.float32(0), x)
    return Extreme(op, [x, whole(*axes) if rng.random() < 0.8 else None], attrs, [1])


def arg_reduction(rng: Rng) -> Extreme:
    dims = shape(rng, 1, extents=(1, 2, 5, 17))  # of no elements, ONNX Runtime gives another rank than it says
    attrs = {"axis": axis(rng, len(dims)), "keepdims": int(rng.integers(0, 2))}
    attrs["select_last_index"] = int(rng.integers(0, 2))
    return Extreme(pick(rng, ("ArgMax", "ArgMin")), [plain(rng, dims)], attrs)


def pooling(rng: Rng) -> Extreme:
    spatial = int(rng.integers(1, 4))
    dims = (pick(rng, (0, 1, 2)), pick(rng, (1, 3)), *(pick(rng, (1, 2, 7)) for _ in range(spatial)))
    kernel = [pick(rng, (1, 2, 3, 9)) for _ in range(spatial)]
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": [pick(rng, (1, 2, 1000)) for _ in kernel]}
    attrs["dilations"] = [pick(rng, (1, 2, 50)) for _ in kernel]
    attrs["pads"] = [int(rng.integers(0, k)) for k in kernel * 2]
    attrs["ceil_mode"] = int(rng.integers(0, 2))
    if rng.random() < 0.2:
        del attrs["pads"], attrs["dilations"]
        attrs["auto_pad"] = pick(rng, ("SAME_UPPER", "SAME_LOWER", "VALID"))
        attrs["strides"] = [min(s, k) for s, k in zip(attrs["strides"], kernel, strict=True)]  # else ONNX Runtime crops
    op = pick(rng, ("MaxPool", "AveragePool", "LpPool"))
    if op == "AveragePool":
        attrs["count_include_pad"] = int(rng.integers(0, 2))
    return Extreme(op, [plain(rng, dims)], attrs, outputs=pick(rng, (1, 2)) if op == "MaxPool" else 1)


def global_pooling(rng: Rng) -> Extreme:
    op = pick(rng, ("GlobalAveragePool", "GlobalMaxPool"))
    return Extreme(op, [plain(rng, shape(rng, 3, 6, (1, 1, 2, 3, 0)))])


def convolution(rng: Rng) -> Extreme:
    spatial, group = int(rng.integers(1, 4)), pick(rng, (1, 1, 2, 4))
    channels, filters = group * pick(rng, (1, 3)), group * pick(rng, (1, 2, 17))
    kernel = [pick(rng, (1, 2, 3, 7)) for _ in range(spatial)]
    dims = (pick(rng, (0, 1, 1, 2)), channels, *(pick(rng, (1, 2, 9)) for _ in kernel))
    attrs = {"strides": [pick(rng, (1, 2, 1000)) for _ in kernel], "dilations": [pick(rng, (1, 3, 40)) for _ in kernel]}
    attrs |= {"pads": [pick(rng, (0, 1, 3, 60)) for _ in kernel * 2], "group": group}
    if np.prod([n + 120 for n in dims[2:]]) > 50000:
        attrs["pads"] = [pick(rng, (0, 1, 9)) for _ in kernel * 2]
    weight = plain(rng, (filters, channels // group, *kernel))
    bias = plain(rng, (filters,)) if rng.random() < 0.5 else None
    return Extreme("Conv", [plain(rng, dims), weight, bias], attrs, pick(rng, ((), (1, 2))))


def transposed_convolution(rng: Rng) -> Extreme:
    spatial, group = int(rng.integers(1, 3)), pick(rng, (1, 1, 3))
    channels, filters = group * pick(rng, (1, 2)), pick(rng, (1, 5))
    kernel, strides = ([pick(rng, choices) for _ in range(spatial)] for choices in ((1, 2, 5), (1, 2, 30)))
    dims = (pick(rng, (0, 1, 2)), channels, *(pick(rng, (1, 4)) for _ in kernel))
    attrs = {"strides": strides, "group": group, "dilations": [pick(rng, (1, 2, 9)) for _ in kernel]}
    attrs["pads"] = [pick(rng, (0, 1, 2)) for _ in kernel * 2]
    attrs["output_padding"] = [int(rng.integers(0, s)) for s in strides]
    return Extreme("ConvTranspose", [plain(rng, dims), plain(rng, (channels, filters, *kernel))], attrs, [1])


def product(rng: Rng) -> Extreme:
    m, n, k = (pick(rng, (0, 1, 1, 2, 17, 33)) for _ in range(3))
    a, b = (m, k), (k, n)
    if rng.random() < 0.2:
        a = (k,)
    if rng.random() < 0.2:
        b = (k,)
    if k == 0 and len(a) + len(b) < 4:  # ONNX Runtime leaves such a result as its memory was
        k, a, b = 1, (*a[:-1], 1), (1, *b[1:])
    if len(a) == len(b) == 2:
        left, right = broadcast_pair(rng)
        while np.prod((*np.broadcast_shapes(left, right), m, n), dtype=np.int64) > 1 << 16:
            left, right = broadcast_pair(rng)
        a, b = (*left, *a), (*right, *b)
    return Extreme("MatMul", [plain(rng, a), plain(rng, b)], {}, pick(rng, ((), (1,), (0,))))


def gemm(rng: Rng) -> Extreme:
    m, n, k = (pick(rng, (0, 1, 1, 5, 33)) for _ in range(3))
    attrs = {"transA": int(rng.integers(0, 2)), "transB": int(rng.integers(0, 2)), "alpha": pick(rng, (1.0, 0.0, -2.0))}
    a, b = (k, m) if attrs["transA"] else (m, k), (n, k) if attrs["transB"] else (k, n)
    c = plain(rng, pick(rng, ((), (1,), (n,), (m, 1), (m, n)))) if rng.random() < 0.7 else None
    return Extreme(
        "Gemm", [plain(rng, a), plain(rng, b), c], {**attrs, "beta": pick(rng, (1.0, 0.0))}, pick(rng, ((), (1,)))
    )


def softmax(rng: Rng) -> Extreme:
    dims = shape(rng, 1)
    x = array(rng, dims, special=0.0) * pick(rng, (1.0, 1e4))
    return Extreme(pick(rng, ("Softmax", "LogSoftmax", "Hardmax")), [x.astype("f")], {"axis": axis(rng, len(dims))})


def normalisation(rng: Rng) -> Extreme:
    op = pick(rng, ("LayerNormalization", "InstanceNormalization", "BatchNormalization", "LpNormalization", "LRN"))
    dims = shape(rng, 3, 5, (1, 2, 5, 0))
    x, c = plain(rng, dims), dims[1]
    if op == "LayerNormalization":
        at = axis(rng, len(dims))
        return Extreme(op, [x, plain(rng, dims[at % len(dims) :]), None], {"axis": at})
    if op == "LRN":
        return Extreme(op, [x], {"size": pick(rng, (1, 3, 9))})
    if op == "LpNormalization":
        return Extreme(op, [x], {"axis": axis(rng, len(dims)), "p": pick(rng, (1, 2))})
    scale = [plain(rng, (c,)) for _ in range(3 if op[0] == "B" else 2)]
    return Extreme(op, [x, *scale, *([np.abs(plain(rng, (c,)))] if op[0] == "B" else [])])


def padding(rng: Rng) -> Extreme:
    mode = pick(rng, ("constant", "constant", "reflect", "edge", "wrap"))
    dims = shape(rng, 0 if mode == "constant" else 1, 5, EXTENTS if mode == "constant" else (1, 2, 3, 5))
    if mode == "constant":
        pads = [pick(rng, (0, 1, 9, -1, -n)) for n in dims * 2]
    else:
        pads = [int(rng.integers(-1, max(n - 1, 0) + 1)) for n in dims * 2]
    value = array(rng, (), special=0.5) if mode == "constant" and rng.random() < 0.6 else None
    return Extreme("Pad", [array(rng, dims), whole(*pads), value], {"mode": mode}, [1])


def slicing(rng: Rng) -> Extreme:
    dims = shape(rng, 1)
    axes = [int(a) for a in rng.permutation(len(dims))[: int(rng.integers(1, len(dims) + 1))]]
    ends = (0, 1, -1, 2, -2, 100, -100, 2**63 - 1, -(2**63))
    steps = [pick(rng, (1, 1, 2, -1, -3, 1000, -1000)) for _ in axes]
    signed = [a - len(dims) if rng.random() < 0.5 else a for a in axes]
    operands = [whole(*(pick(rng, ends) for _ in axes)) for _ in range(2)]
    return Extreme("Slice", [array(rng, dims), *operands, whole(*signed), whole(*steps)], {}, [1, 2, 3, 4])


def gathering(rng: Rng) -> Extreme:
    dims = shape(rng, 1, 6, (1, 2, 5, 17))
    at = axis(rng, len(dims))
    n = dims[at]
    if rng.random() < 0.5:
        indices = rng.integers(-n, n, shape(rng, 0, 3))
        return Extreme("Gather", [array(rng, dims), np.asarray(indices, np.int64)], {"axis": at}, pick(rng, ((), (1,))))
    like = list(dims)
    like[at] = pick(rng, (0, 1, 3))
    indices = np.asarray(rng.integers(-n, n, like), np.int64)
    return Extreme("GatherElements", [array(rng, dims), indices], {"axis": at}, pick(rng, ((), (1,))))


def gathering_nd(rng: Rng) -> Extreme:
    dims = shape(rng, 1, 5, (1, 2, 5))
    batch = int(rng.integers(0, len(dims)))
    depth = int(rng.integers(1, len(dims) - batch + 1))
    bounds = dims[batch : batch + depth]
    around = (*dims[:batch], *shape(rng, 0, 2, (0, 1, 3)))
    indices = np.stack([np.asarray(rng.integers(-n, n, around), np.int64) for n in bounds], -1)
    return Extreme("GatherND", [array(rng, dims), indices], {"batch_dims": batch})


def scattering(rng: Rng) -> Extreme:
    dims = shape(rng, 1, 4, (1, 2, 5))
    reduce = pick(rng, ("none", "add", "mul", "max", "min"))
    if rng.random() < 0.5:
        at = axis(rng, len(dims))
        count = int(rng.integers(0, dims[at] + 1))
        like = [*dims]
        like[at] = count
        lines = np.moveaxis(np.empty(like, np.int64), at, -1)
        for position in np.ndindex(lines.shape[:-1]):
            lines[position] = rng.permutation(dims[at])[:count] - (dims[at] if rng.random() < 0.5 else 0)
        indices = np.ascontiguousarray(np.moveaxis(lines, -1, at))
        return Extreme(
            "ScatterElements", [plain(rng, dims), indices, plain(rng, like)], {"axis": at, "reduction": reduce}
        )
    depth = int(rng.integers(1, len(dims) + 1))
    count = int(rng.integers(0, np.prod(dims[:depth], dtype=int) + 1))
    chosen = rng.permutation(int(np.prod(dims[:depth])))[:count]
    indices = np.stack(np.unravel_index(chosen, dims[:depth]), -1).astype(np.int64)
    updates = plain(rng, (count, *dims[depth:]))
    return Extreme("ScatterND", [plain(rng, dims), indices, updates], {"reduction": reduce})


def top_k(rng: Rng) -> Extreme:
    dims = shape(rng, 1, 4, (1, 2, 5, 17))
    at = axis(rng, len(dims))
    k = pick(rng, (0, 1, dims[at]))
    return Extreme("TopK", [plain(rng, dims), whole(k)], {"axis": at, "largest": int(rng.integers(0, 2))}, [1], 2)


def concatenation(rng: Rng) -> Extreme:
    dims = shape(rng, 1)
    at = axis(rng, len(dims))
    parts = []
    for _ in range(int(rng.integers(1, 5))):
        one = list(dims)
        one[at] = pick(rng, (0, 1, 3))
        parts.append(array(rng, one))
    return Extreme("Concat", parts, {"axis": at})


def splitting(rng: Rng) -> Extreme:
    dims = shape(rng, 1)
    at, sizes = axis(rng, len(dims)), []
    left = dims[at]
    while left and len(sizes) < 4:
        sizes.append(int(rng.integers(0, left + 1)))
        left -= sizes[-1]
    sizes.append(left)
    return Extreme("Split", [array(rng, dims), whole(*sizes)], {"axis": at}, [1], len(sizes))


def moving(rng: Rng) -> Extreme:
    op = pick(rng, ("Transpose", "Reshape", "Expand", "Tile", "Flatten", "Squeeze", "Unsqueeze", "Trilu", "CumSum"))
    dims = shape(rng, 2 if op == "Trilu" else 1 if op == "CumSum" else 0)
    x, rank = array(rng, dims), len(dims)
    if op == "Transpose":
        return Extreme(op, [x], {"perm": [int(p) for p in rng.permutation(rank)]} if rank else {})
    if op == "Reshape":
        target = list(dims) if x.size == 0 else [*(int(p) for p in rng.permutation(dims)), -1][: 1 + rank]
        return Extreme(op, [x, whole(*target)], {"allowzero": int(x.size == 0)}, [1])
    if op == "Expand":
        a, b = broadcast_pair(rng)
        return Extreme(op, [array(rng, a), whole(*b)], {}, [1])
    if op == "Tile":
        return Extreme(op, [x, whole(*(pick(rng, (0, 1, 1, 1, 2)) for _ in dims))], {}, [1])
    if op == "Flatten":
        return Extreme(op, [x], {"axis": int(rng.integers(-rank, rank + 1))})
    if op == "Squeeze":
        ones = [k - (rank if rng.random() < 0.5 else 0) for k, n in enumerate(dims) if n == 1]
        return Extreme(op, [x, whole(*ones)], {}, [1])
    if op == "Unsqueeze":
        return Extreme(op, [x, whole(*(int(a) for a in rng.permutation(rank + 2)[:2]))], {}, [1])
    if op == "Trilu":
        return Extreme(op, [x, np.asarray(pick(rng, (0, 1, -1, 1000, -1000)))], {"upper": int(rng.integers(0, 2))}, [1])
    attrs = {"exclusive": int(rng.integers(0, 2)), "reverse": int(rng.integers(0, 2))}
    return Extreme(op, [plain(rng, dims), np.asarray(axis(rng, rank), np.int64)], attrs, [1])


def resizing(rng: Rng) -> Extreme:
    dims = (1, pick(rng, (1, 3)), pick(rng, (1, 2, 5)), pick(rng, (1, 7)))
    mode = pick(rng, ("nearest", "linear", "cubic"))
    coordinates = ("half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners")
    attrs = {"mode": mode, "coordinate_transformation_mode": pick(rng, coordinates)}
    if mode == "nearest":
        attrs["nearest_mode"] = pick(rng, ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
    if mode == "linear":
        attrs["antialias"] = int(rng.integers(0, 2))
    sizes = whole(*dims[:2], *(pick(rng, (1, 2, 40)) for _ in range(2)))
    return Extreme("Resize", [plain(rng, dims), None, None, sizes], attrs, [3])


def spread(rng: Rng) -> Extreme:
    op = pick(rng, ("OneHot", "EyeLike", "DepthToSpace", "SpaceToDepth", "ReverseSequence"))
    if op == "OneHot":
        depth, indices = pick(rng, (1, 2, 5)), shape(rng, 0, 3)
        values = [np.asarray(rng.integers(-depth - 2, depth + 2, indices), np.int64), whole(depth), plain(rng, (2,))]
        return Extreme(op, values, {"axis": int(rng.integers(-len(indices) - 1, len(indices) + 1))}, [1])
    if op == "EyeLike":
        return Extreme(op, [plain(rng, shape(rng, 2, 2))], {"k": pick(rng, (0, 1, -1, 100, -100))})
    if op == "ReverseSequence":
        dims = shape(rng, 2, 4, (1, 2, 5))
        return Extreme(op, [array(rng, dims), np.asarray(rng.integers(0, dims[0] + 1, dims[1]), np.int64)],
                       {"time_axis": 0, "batch_axis": 1})  # fmt: skip
    size = pick(rng, (1, 2, 3))
    batch, c, h, w = pick(rng, (0, 1, 2)), pick(rng, (1, 2)), pick(rng, (1, 2)), pick(rng, (1, 3))
    if op == "DepthToSpace":
        x = plain(rng, (batch, c * size * size, h, w))
        return Extreme(op, [x], {"blocksize": size, "mode": pick(rng, ("DCR", "CRD"))})
    return Extreme(op, [plain(rng, (batch, c, h * size, w * size))], {"blocksize": size})


def recurrence(rng: Rng) -> Extreme:
    op, gates = pick(rng, (("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    time, batch, inputs, hidden = (pick(rng, (1, 1, 2)), pick(rng, (1, 3)), pick(rng, (1, 2)), pick(rng, (1, 5)))
    direction = pick(rng, ("forward", "reverse", "bidirectional"))
    d = 2 if direction == "bidirectional" else 1
    lengths = np.asarray(rng.integers(1, time + 1, batch), np.int32) if rng.random() < 0.5 else None
    bias = plain(rng, (d, 2 * gates * hidden)) if rng.random() < 0.5 else None
    given = [plain(rng, (time, batch, inputs)), plain(rng, (d, gates * hidden, inputs))]
    given += [plain(rng, (d, gates * hidden, hidden)), bias, lengths]
    return Extreme(op, given, {"hidden_size": hidden, "direction": direction}, [1, 2, 3], 3 if op == "LSTM" else 2)


def quantisation(rng: Rng) -> Extreme:
    dims = shape(rng, 1, 4)
    kind = pick(rng, ("int8", "uint8"))
    scale = np.asarray(pick(rng, (1.0, 0.01, 1e-3, 50.0)), np.float32)
    zero = np.asarray(pick(rng, (0, 5, 127)), kind)
    if rng.random() < 0.5:
        return Extreme("QuantizeLinear", [plain(rng, dims), scale, zero], {}, [1, 2])
    return Extreme("DequantizeLinear", [array(rng, dims, kind), scale, zero], {}, [1, 2])


def summation(rng: Rng) -> Extreme:
    equations = (
        "ij,jk->ik",
        "ij->ji",
        "ii->i",
        "i,i->",
        "bij,bjk->bik",
        "ij->",
        "i,j->ij",
        "...ij,jk->...ik",
        "bhqd,bhkd->bhqk",
    )
    equation = pick(rng, equations)
    extent = {letter: pick(rng, (0, 1, 2, 5)) for letter in "bdhijkq"}
    terms = equation.split("->")[0].split(",")
    around = shape(rng, 0, 2, (1, 3))
    dims = [(*(around if "..." in t else ()), *(extent[letter] for letter in t.replace("...", ""))) for t in terms]
    return Extreme("Einsum", [plain(rng, d) for d in dims], {"equation": equation})


FAMILIES: dict[str, Callable[[Rng], Extreme]] = {
    f.__name__: f
    for f in (
        unary, binary, selection, casting, reduction, arg_reduction, pooling, global_pooling, convolution,
        transposed_convolution, product, gemm, softmax, normalisation, padding, slicing, gathering, gathering_nd,
        scattering, top_k, concatenation, splitting, moving, resizing, spread, recurrence, quantisation, summation,
    )
}  # fmt: skip


def extreme(family: str, seed: int, number: int) -> Extreme:
    """The case of a family and number: the same for the same seed."""
    return FAMILIES[family](np.random.default_rng((seed, number, sorted(FAMILIES).index(family))))


def examine(family: str, seed: int, number: int) -> str:
    """Runs a case; raises Wrong or ModelcError. Says whether there was a reference."""
    with tempfile.TemporaryDirectory(prefix="modelc-extreme-") as folder:
        model, feeds = extreme(family, seed, number).model()
        return "ONNX Runtime gives nothing" if check(model, feeds, Path(folder)) else "equal"


def cases(count: int, seed: int, only: Sequence[str] = ()) -> Iterator[Case]:
    """`count` cases, of each family in turn."""
    chosen = [name for name in FAMILIES if not only or name in only]
    for k in range(count):
        family, number = chosen[k % len(chosen)], k // len(chosen)
        about = str(extreme(family, seed, number))
        yield Case(
            f"{family} {number}: {about}", partial(examine, family, seed, number), {"family": family, "number": number}
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=(), metavar="FAMILY", choices=[*FAMILIES], help="these families")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (2)")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit for each case (60)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    native()
    report, words = Report(given.seed), Counter[str]()
    for case, outcome in run_cases(cases(given.cases, given.seed, given.only), Limits(given.seconds), given.jobs):
        report.add(case, outcome)
        words[outcome.signature if outcome.kind == "done" else outcome.kind] += 1
        if not outcome.good:
            print(f"{outcome.kind}: {case.name}\n    {outcome.said.strip().splitlines()[-1][:300]}", flush=True)
    print(", ".join(f"{n} {word}" for word, n in words.most_common()))
    return report.finish(given.json)
