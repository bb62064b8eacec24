"""The nodes that random graphs are made of: each maker proposes some that read values that are there."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from onnx import helper
from random_draft import Draft, Maker, RandomGraph, Value, broadcasts, node

SMOOTH = ("Sigmoid", "Tanh", "Erf", "Softplus", "Elu", "Selu", "Gelu", "Mish", "HardSwish", "HardSigmoid", "Exp", "Sin")
PLAIN = ("Relu", "Abs", "Neg", "Identity")
STEPS = ("Floor", "Ceil", "Round", "Sign")
COMPARISONS = ("Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare", "ReduceLogSumExp")


def smooth(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.floating)
    return x and Draft([node(str(g.pick(SMOOTH)), [x.name], [g.fresh("v")])])


def plain(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.array.dtype.kind in "fi")
    return x and Draft([node(str(g.pick(PLAIN)), [x.name], [g.fresh("v")])], keeps_exact=True)


def step(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.floating and v.exact)
    return x and Draft([node(str(g.pick(STEPS)), [x.name], [g.fresh("v")])], keeps_exact=True)


def root(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.floating and (v.exact or v.array.itemsize > 2) and float(v.array.min()) > 0.05)
    return x and Draft([node(str(g.pick(("Sqrt", "Log", "Reciprocal"))), [x.name], [g.fresh("v")])])


def cast(g: RandomGraph) -> Draft | None:
    to = np.dtype(str(g.pick(("float32", "float64", "float16", "int32", "int64", "uint8", "bool"))))
    x = g.value(lambda v: (v.exact or (to.kind == "f" and v.floating)) and (to.kind != "u" or v.array.min() >= 0))
    number = helper.np_dtype_to_tensor_dtype(to)
    return x and Draft([node("Cast", [x.name], [g.fresh("v")], to=number)], keeps_exact=True)


def clip(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.floating)
    if x is None:
        return None
    draft = Draft([], keeps_exact=True)
    low = g.constant(draft, np.array(-0.5, x.array.dtype)) if g.chance(0.8) else ""
    high = g.constant(draft, np.array(1.5, x.array.dtype)) if g.chance(0.8) else ""
    draft.nodes.append(node("Clip", [x.name, low, high], [g.fresh("v")]))
    return draft


def partner(g: RandomGraph, x: Value, draft: Draft, wanted: Callable[[Value], bool]) -> str:
    """Another value that broadcasts against x, or a constant that does."""
    other = g.value(lambda v: v.array.dtype == x.array.dtype and wanted(v) and broadcasts(v.array.shape, x.array.shape))
    if other is not None and g.chance(0.6):
        return other.name
    shape = tuple(int(n) if g.chance(0.6) else 1 for n in x.array.shape)[int(g.rng.integers(0, x.array.ndim + 1)) :]
    if x.array.dtype == np.bool_:
        return g.constant(draft, g.rng.integers(0, 2, shape).astype(np.bool_))
    numbers = g.rng.uniform(0.5, 2, shape) if x.floating else g.rng.integers(1, 4, shape)
    return g.constant(draft, np.asarray(numbers).astype(x.array.dtype))


def binary(g: RandomGraph) -> Draft | None:
    op = str(g.pick(("Add", "Add", "Sub", "Mul", "Mul", "Div", "Max", "Min", "PRelu")))
    kinds = "f" if op in ("Div", "PRelu", "Max", "Min") else "fi"
    x = g.value(lambda v: v.array.dtype.kind in kinds)
    if x is None:
        return None
    draft = Draft([], keeps_exact=op in ("Max", "Min") or x.array.dtype.kind == "i")
    away = (lambda v: float(np.abs(v.array).min()) > 0.05) if op == "Div" else (lambda v: op != "PRelu")
    draft.nodes.append(node(op, [x.name, partner(g, x, draft, away)], [g.fresh("v")]))
    return draft


def compare(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.exact and v.array.dtype != np.bool_ and v.array.dtype.name in ("float32", "int64", "int32"))
    if x is None:
        return None
    draft = Draft([], keeps_exact=True)
    other = partner(g, x, draft, lambda v: v.exact)
    draft.nodes.append(node(str(g.pick(COMPARISONS)), [x.name, other], [g.fresh("b")]))
    return draft


def logic(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.array.dtype == np.bool_)
    if x is None:
        return None
    if g.chance(0.3):
        return Draft([node("Not", [x.name], [g.fresh("b")])], keeps_exact=True)
    draft = Draft([], keeps_exact=True)
    other = partner(g, x, draft, lambda v: True)
    draft.nodes.append(node(str(g.pick(("And", "Or", "Xor"))), [x.name, other], [g.fresh("b")]))
    return draft


def where(g: RandomGraph) -> Draft | None:
    b = g.value(lambda v: v.array.dtype == np.bool_)
    x = b and g.value(lambda v: v.floating and broadcasts(v.array.shape, b.array.shape))
    if not b or not x:
        return None
    draft = Draft([], keeps_exact=True)
    draft.nodes.append(node("Where", [b.name, x.name, partner(g, x, draft, lambda v: True)], [g.fresh("v")]))
    return draft


def matmul(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.floating and v.array.ndim >= 2)
    if x is None:
        return None
    draft, k = Draft([]), x.array.shape[-1]
    other = g.value(lambda v: v.array.dtype == x.array.dtype and v.array.ndim >= 2 and v.array.shape[-2] == k)
    weights = other.name if other is not None and g.chance(0.4) else None
    if weights is None:
        weights = g.weights(draft, x, g.normal(k, int(g.rng.integers(1, 20))) / k**0.5)
    if x.array.ndim == 2 and g.chance(0.4):
        out = draft.held[weights].shape[-1] if weights in draft.held else None
        bias = [g.weights(draft, x, g.normal(out))] if out else []
        draft.nodes.append(node("Gemm", [x.name, weights, *bias], [g.fresh("v")], alpha=0.5, beta=1.5))
    else:
        draft.nodes.append(node("MatMul", [x.name, weights], [g.fresh("v")]))
    return draft


def convolution(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.floating and v.array.ndim in (3, 4) and min(v.array.shape[2:]) >= 2)
    if x is None:
        return None
    draft, (_, channels, *space) = Draft([]), x.array.shape
    groups = int(g.pick([n for n in (1, 1, 2, channels) if channels % n == 0]))
    out = groups * int(g.rng.integers(1, 5))
    kernel = [int(g.rng.integers(1, min(4, n) + 1)) for n in space]
    transposed = g.chance(0.2)
    shape = (channels, out // groups, *kernel) if transposed else (out, channels // groups, *kernel)
    weights = g.weights(draft, x, g.normal(*shape) / prod(shape[1:]) ** 0.5)
    attrs: dict[str, object] = {
        "group": groups,
        "strides": [int(g.rng.integers(1, 3)) for _ in space],
        "dilations": [int(g.rng.integers(1, 3)) for _ in space],
        "pads": [int(g.rng.integers(0, k)) for _ in range(2) for k in kernel],
    }
    bias = [g.weights(draft, x, g.normal(out))] if g.chance(0.5) else []
    op = "ConvTranspose" if transposed else "Conv"
    draft.nodes.append(node(op, [x.name, weights, *bias], [g.fresh("v")], **attrs))
    return draft


def pool(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.floating and v.array.ndim in (3, 4))
    if x is None:
        return None
    if g.chance(0.2):
        return Draft([node(str(g.pick(("GlobalAveragePool", "GlobalMaxPool"))), [x.name], [g.fresh("v")])])
    kernel = [int(g.rng.integers(1, min(4, n) + 1)) for n in x.array.shape[2:]]
    attrs: dict[str, object] = {
        "kernel_shape": kernel,
        "strides": [int(g.rng.integers(1, 3)) for _ in kernel],
        "pads": [int(g.rng.integers(0, k)) for _ in range(2) for k in kernel],
        "ceil_mode": int(g.chance(0.3)),
    }
    op = str(g.pick(("MaxPool", "AveragePool")))
    if op == "AveragePool":
        attrs["count_include_pad"] = int(g.chance(0.5))
    return Draft([node(op, [x.name], [g.fresh("v")], **attrs)], keeps_exact=op == "MaxPool")


def normalise(g: RandomGraph) -> Draft | None:
    op = str(g.pick(("LayerNormalization", "InstanceNormalization", "BatchNormalization", "GroupNormalization", "RMS")))
    least = {"LayerNormalization": 1, "RMS": 1, "BatchNormalization": 2}.get(op, 3)
    x = g.value(lambda v: v.floating and v.array.ndim >= least)
    if x is None:
        return None
    draft, shape = Draft([]), x.array.shape
    if op in ("LayerNormalization", "RMS"):
        if float(x.array.std(axis=-1).min()) < 0.05:
            return None
        scale = g.weights(draft, x, g.rng.uniform(0.5, 2, shape[-1:]))
        if op == "RMS":  # as exporters spell it
            square, mean, shifted, norm, inverse = (g.fresh("v") for _ in range(5))
            epsilon = g.weights(draft, x, 1e-5)
            axes = g.constant(draft, np.array([-1], np.int64))
            draft.nodes += [
                node("Mul", [x.name, x.name], [square]),
                node("ReduceMean", [square, axes], [mean]),
                node("Add", [mean, epsilon], [shifted]),
                node("Sqrt", [shifted], [norm]),
                node("Div", [x.name, norm], [inverse]),
                node("Mul", [inverse, scale], [g.fresh("v")]),
            ]
            return draft
        bias = [g.weights(draft, x, g.normal(shape[-1]))] if g.chance(0.5) else []
        draft.nodes.append(node(op, [x.name, scale, *bias], [g.fresh("v")], axis=-1))
        return draft
    channels = shape[1]
    scale = g.weights(draft, x, g.rng.uniform(0.5, 2, channels))
    bias = [g.weights(draft, x, g.normal(channels))]
    if op == "BatchNormalization":
        mean = g.weights(draft, x, g.normal(channels))
        bias += [mean, g.weights(draft, x, g.rng.uniform(0.5, 2, channels))]
        draft.nodes.append(node(op, [x.name, scale, *bias], [g.fresh("v")]))
        return draft
    groups = int(g.pick([n for n in range(1, channels + 1) if channels % n == 0]))
    if op == "InstanceNormalization":
        groups = channels
    apart = x.array.reshape(shape[0], groups, -1)
    if float(apart.std(axis=-1).min()) < 0.05:
        return None
    attrs = {"num_groups": groups} if op == "GroupNormalization" else {}
    draft.nodes.append(node(op, [x.name, scale, *bias], [g.fresh("v")], **attrs))
    return draft


def softmax(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.floating)
    if x is None:
        return None
    axis = int(g.rng.integers(-x.array.ndim, x.array.ndim)) if x.array.ndim else 0
    return Draft([node(str(g.pick(("Softmax", "Softmax", "LogSoftmax"))), [x.name], [g.fresh("v")], axis=axis)])


def attention(g: RandomGraph) -> Draft | None:
    """Scores, softmax and values, as exporters spell it."""
    x = g.value(lambda v: v.floating and v.array.ndim >= 3)
    if x is None:
        return None
    draft, (*lead, _, d) = Draft([]), x.array.shape
    turned, scores, scaled, weights = (g.fresh("v") for _ in range(4))
    order = [*range(len(lead)), len(lead) + 1, len(lead)]
    scale = g.weights(draft, x, d**-0.5)
    draft.nodes += [
        node("Transpose", [x.name], [turned], perm=order),
        node("MatMul", [x.name, turned], [scores]),
        node("Mul", [scores, scale], [scaled]),
        node("Softmax", [scaled], [weights], axis=-1),
        node("MatMul", [weights, x.name], [g.fresh("v")]),
    ]
    return draft


def reduction(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.floating and v.array.ndim >= 1)
    if x is None:
        return None
    draft, op = Draft([]), str(g.pick(REDUCTIONS))
    draft.keeps_exact = op in ("ReduceMax", "ReduceMin")
    count = int(g.rng.integers(1, x.array.ndim + 1))
    axes = g.constant(draft, np.sort(g.rng.choice(x.array.ndim, count, replace=False)).astype(np.int64))
    draft.nodes.append(node(op, [x.name, axes], [g.fresh("v")], keepdims=int(g.chance(0.6))))
    return draft


def running(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.array.dtype.name in ("float32", "int64") and v.array.ndim >= 1)
    if x is None:
        return None
    draft = Draft([], keeps_exact=x.array.dtype.kind == "i")
    axis = g.constant(draft, np.array(int(g.rng.integers(x.array.ndim)), np.int64))
    attrs = {"exclusive": int(g.chance(0.3)), "reverse": int(g.chance(0.3))}
    draft.nodes.append(node("CumSum", [x.name, axis], [g.fresh("v")], **attrs))
    return draft


def order(g: RandomGraph) -> Draft | None:
    """The places of what is largest: of exact values alone, and without ties where places follow."""
    x = g.value(lambda v: v.exact and v.array.dtype == np.float32 and v.array.ndim >= 1)
    if x is None:
        return None
    axis = int(g.rng.integers(x.array.ndim))
    if g.chance(0.5):
        op = str(g.pick(("ArgMax", "ArgMin")))
        return Draft([node(op, [x.name], [g.fresh("i")], axis=axis, keepdims=int(g.chance(0.5)))], keeps_exact=True)
    if len(np.unique(x.array)) < x.array.size:
        return None
    draft = Draft([], keeps_exact=True)
    count = g.constant(draft, np.array([int(g.rng.integers(1, x.array.shape[axis] + 1))], np.int64))
    draft.nodes.append(node("TopK", [x.name, count], [g.fresh("v"), g.fresh("i")], axis=axis))
    return draft


def move(g: RandomGraph) -> Draft | None:
    """One of the operators that hand numbers on as they are."""
    x = g.value(lambda v: v.array.ndim >= 1 and v.array.size > 1)
    if x is None:
        return None
    draft, out = Draft([], keeps_exact=True), g.fresh("v")
    shape, rank = x.array.shape, x.array.ndim
    axis = int(g.rng.integers(rank))

    def held(*numbers: int) -> str:
        return g.constant(draft, np.array(numbers, np.int64))

    kind = str(
        g.pick(("transpose", "reshape", "slice", "pad", "tile", "gather", "split", "squeeze", "flatten", "twice"))
    )
    if kind == "transpose":
        draft.nodes.append(node("Transpose", [x.name], [out], perm=[int(n) for n in g.rng.permutation(rank)]))
    elif kind == "reshape":
        factors = [n for n in range(1, x.array.size + 1) if x.array.size % n == 0]
        first = int(g.pick(factors))
        draft.nodes.append(node("Reshape", [x.name, held(first, -1)], [out]))
    elif kind == "slice":
        at, step_ = int(g.rng.integers(0, shape[axis])), int(g.pick((1, 1, 2, -1)))
        ends = (-shape[axis] - 1) if step_ < 0 else shape[axis] + 3
        draft.nodes.append(node("Slice", [x.name, held(at), held(ends), held(axis), held(step_)], [out]))
    elif kind == "pad":
        pads = [int(g.rng.integers(0, 3)) for _ in range(2 * rank)]
        mode = str(g.pick(("constant", "edge", "reflect", "wrap")))
        if x.array.dtype not in (np.float32, np.int64, np.int32):
            return None
        draft.nodes.append(node("Pad", [x.name, held(*pads)], [out], mode=mode))
    elif kind == "tile":
        draft.nodes.append(node("Tile", [x.name, held(*(int(n) for n in g.rng.integers(1, 3, rank)))], [out]))
    elif kind == "gather":
        places = g.rng.integers(-shape[axis], shape[axis], tuple(g.rng.integers(1, 4, int(g.rng.integers(0, 3)))))
        indices = g.constant(draft, np.asarray(places, np.int64))
        draft.nodes.append(node("Gather", [x.name, indices], [out], axis=axis))
    elif kind == "split":
        at = int(g.rng.integers(1, shape[axis])) if shape[axis] > 1 else 0
        if not at:
            return None
        parts = held(at, shape[axis] - at)
        draft.nodes.append(node("Split", [x.name, parts], [out, g.fresh("v")], axis=axis))
    elif kind == "squeeze":
        ones = [k for k, n in enumerate(shape) if n == 1]
        if ones and g.chance(0.5):
            draft.nodes.append(node("Squeeze", [x.name, held(int(g.pick(ones)))], [out]))
        else:
            draft.nodes.append(node("Unsqueeze", [x.name, held(axis)], [out]))
    elif kind == "flatten":
        draft.nodes.append(node("Flatten", [x.name], [out], axis=axis))
    else:
        other = g.value(
            lambda v: (
                v.array.dtype == x.array.dtype
                and v.array.ndim == rank
                and all(a == b for k, (a, b) in enumerate(zip(v.array.shape, shape, strict=True)) if k != axis)
            )
        )
        draft.nodes.append(node("Concat", [x.name, (other or x).name], [out], axis=axis))
    return draft


def look_up(g: RandomGraph) -> Draft | None:
    """Rows of a table by numbers that are computed, and elements put back by them."""
    i = g.value(lambda v: v.array.dtype.name in ("int64", "int32") and v.exact and v.array.min() >= 0)
    if i is None:
        return None
    draft = Draft([], keeps_exact=True)
    table = g.constant(draft, g.normal(int(i.array.max()) + 1, 3))
    draft.nodes.append(node("Gather", [table, i.name], [g.fresh("v")], axis=0))
    return draft


def select(g: RandomGraph) -> Draft | None:
    """Rows that a comparison of exact values chooses, what is computed of them, and what of it has a known size."""
    x = g.value(lambda v: v.exact and v.array.dtype == np.float32 and v.array.ndim >= 1)
    if x is None:
        return None
    draft, rank = Draft([], keeps_exact=True), x.array.ndim
    if g.chance(0.3):
        outputs = [g.fresh("u") for _ in range(4)]
        draft.nodes.append(node("Unique", [x.name], outputs, axis=int(g.rng.integers(rank)), sorted=int(g.chance(0.5))))
        draft.sized |= {*outputs}
        return draft
    first, mask, rows, made = (g.fresh("s") for _ in range(4))
    greatest = x.array.max(tuple(range(1, rank)))
    level = g.constant(draft, np.array(np.median(greatest), np.float32))
    others = g.constant(draft, np.arange(1, rank))
    draft.nodes += [
        node("ReduceMax", [x.name, others], [first], keepdims=0, noop_with_empty_axes=1),
        node(str(g.pick(("LessOrEqual", "GreaterOrEqual"))), [first, level], [mask]),
        node("Compress", [x.name, mask], [rows], axis=0),
        node(str(g.pick(("Relu", "Neg", "Abs"))), [rows], [made]),
    ]
    draft.sized |= {rows, made}
    if g.chance(0.6):
        op, out = str(g.pick(("ReduceMax", "ReduceMin"))), g.fresh("v")
        axes = g.constant(draft, np.array([0], np.int64))
        draft.nodes.append(node(op, [made, axes], [out], keepdims=int(g.chance(0.5))))
    return draft


def space(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.array.dtype == np.float32 and v.array.ndim == 4)
    if x is None:
        return None
    draft, out = Draft([]), g.fresh("v")
    if g.chance(0.4):
        op = str(g.pick(("DepthToSpace", "SpaceToDepth")))
        draft.keeps_exact = True
        draft.nodes.append(node(op, [x.name], [out], blocksize=2))
    else:
        mode = str(g.pick(("nearest", "linear")))
        scales = g.constant(draft, np.array([1, 1, *(float(g.pick((0.5, 1, 2, 3))) for _ in range(2))], np.float32))
        ways = ("asymmetric",) if mode == "nearest" else ("asymmetric", "half_pixel", "align_corners")
        attrs = {"mode": mode, "coordinate_transformation_mode": str(g.pick(ways))}
        if mode == "nearest":
            attrs["nearest_mode"] = "floor"
        draft.nodes.append(node("Resize", [x.name, "", scales], [out], **attrs))
    return draft


PLAIN_MAKERS: tuple[Maker, ...] = (
    *(smooth, smooth, plain, plain, step, root, cast, clip, binary, binary, binary, compare, logic, where),
    *(matmul, matmul, convolution, convolution, pool, normalise, normalise, softmax, attention, reduction, running),
    *(order, move, move, move, look_up, select, space),
)
