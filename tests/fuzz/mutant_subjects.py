"""What wrong packages are made of: a right one, and all that it was compiled from.

Models are named as their files are (MODELS/NAME.onnx, with the shapes of tests/models.yaml), or as the small ones that
are built here, or graph-SEED for a random one (random_graphs.py); NAME:bf16 and NAME:f16 are compiled so, and NAME:int8
is quantized without samples first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import model_seeds
import numpy as np
import onnx
from networks import Network, batch_norm, classifier, conv
from onnx import helper
from random_graphs import draw
from small_encoder import encoder_model
from trained_models import catalogue, shapes_of

from modelc.compile.choices import digest_of
from modelc.compile.config import load_config
from modelc.compile.pipeline import Run
from modelc.compile.programs import Programs
from modelc.compile.request import CompileRequest
from modelc.errors import ModelError
from modelc.frontend.quantize.recipe import INT8
from modelc.frontend.quantize.write import write_quantized
from modelc.frontend.steering.flags import steered
from modelc.package import PackageSpec
from modelc.plan.program import Compiled
from modelc.quantize.dynamic import dynamic_recipe
from modelc.target import Target
from modelc.verify.kernels.blueprint import Blueprint


@dataclass(frozen=True)
class Subject:
    """A right package before it is written, and what its kernels are judged by: of one variant."""

    name: str
    model: Path
    run: Run
    programs: Programs
    compiled: Mapping[str, Compiled]  # by the Task's hash
    spec: PackageSpec
    blueprints: tuple[Blueprint, ...]

    @classmethod
    def of(cls, name: str, models: Path, target: Target, folder: Path) -> Subject:
        """The model `name` compiled for `target`; one that is built is written to `folder`. Raises ModelcError."""
        stem, _, precision = name.partition(":")
        model = _file_of(stem, models, folder)
        constants = catalogue().get(stem, {}).get("constant", {})
        steering = steered(model, tuple(shapes_of(stem)), constants=constants)
        digest, recipe = digest_of(model), None
        if precision == INT8:
            shapes = dict(steering.shapes[0]) if steering.shapes else {}
            recipe = dynamic_recipe(CompileRequest(model, target, shapes=shapes, precision=INT8))
            precision, float_model, model = "", model, folder / f"{stem}-int8.onnx"
            write_quantized(float_model, recipe, model)
        config = load_config().allowing(precision=precision or "f32")
        run = Run(model, digest, target, config, steering.shapes, constants=steering.constants, recipe=recipe)
        programs = run.programs()
        compiled = run.kernels(programs.rounded)
        spec = run.spec(programs, compiled)
        return cls(name, model, run, programs, compiled, spec, run.blueprints(programs, compiled))


def _file_of(stem: str, models: Path, folder: Path) -> Path:
    kind, _, seed = stem.partition("-")
    if stem in SMALL or (kind == "graph" and seed.isdigit()):
        path = folder / f"{stem}.onnx"
        onnx.save(SMALL[stem]() if stem in SMALL else draw(int(seed))[0], path)
        return path
    path = models / f"{stem}.onnx"
    if not path.exists():
        raise ModelError(f"there is no model {path}; built here are {', '.join(SMALL)}, and graph-SEED")
    return path


# --- small models ---------------------------------------------------------------------------------------------------


def windows() -> onnx.ModelProto:
    """Convolutions of every kind, larger than their tiles: wide, strided, by channel, pointwise; pools, a residual."""
    net = Network("windows")

    def block(x: str, name: str, channels: int, out: int, kernel: int, **options: int) -> str:
        x = conv(net, x, name, channels, out, [kernel] * 2, pad=kernel // 2, **options)
        return str(net.op("Relu", batch_norm(net, x, f"{name}.bn", out), scope=name))

    x = block(net.input("input", [1, 3, 37, 37]), "conv1", 3, 20, kernel=5, stride=2)
    x = str(net.op("MaxPool", x, scope="maxpool", kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1]))
    deep = block(block(x, "conv2", 20, 20, kernel=3, group=20), "conv3", 20, 20, kernel=1)
    x = str(net.op("Add", x, block(deep, "conv4", 20, 20, kernel=3), scope="skip"))
    x = str(net.op("AveragePool", x, scope="mean", kernel_shape=[2, 2], strides=[2, 2]))
    classifier(net, x, "fc", 20, 10)
    return net.build()


def qdq(largest: int = 127, mixed: bool = False) -> onnx.ModelProto:
    """Convolutions and a product as ONNX Runtime's quantizer writes them, with zero points; weights up to `largest`.
    Where it is `mixed`, others are before, between and behind them that are not quantized."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}

    def through(x: str, name: str, scale: float, zero: int) -> str:
        weights.update({f"{name}_s": np.float32(scale), f"{name}_z": np.array(zero, np.uint8)})
        nodes.append(helper.make_node("QuantizeLinear", [x, f"{name}_s", f"{name}_z"], [f"{name}_q"], f"{name}_quant"))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [name], name))
        return name

    def weight(name: str, shape: tuple[int, ...], axis: int) -> str:
        scales = (0.004 * rng.uniform(0.3, 2, shape[axis])).astype(np.float32)
        weights.update({f"{name}_s": scales, f"{name}_z": np.zeros(shape[axis], np.int8)})
        weights[f"{name}_q"] = rng.integers(-largest, largest + 1, shape).astype(np.int8)
        node = helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [name], name, axis=axis)
        nodes.append(node)
        return name

    def real(op: str, x: str, name: str, shape: tuple[int, ...], **attrs: Any) -> str:
        weights[f"{name}_w"] = (rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32)
        nodes.append(helper.make_node(op, [x, f"{name}_w"], [name], f"{name}_node", **attrs))
        return name

    x = through(real("Conv", "x", "first", (8, 8, 3, 3), pads=[1] * 4) if mixed else "x", "xd", 0.0301, 117)
    weights["bias"] = rng.standard_normal(24).astype(np.float32)
    nodes.append(helper.make_node("Conv", [x, weight("w1", (24, 8, 3, 3), 0), "bias"], ["c"], "conv", pads=[1] * 4))
    nodes.append(helper.make_node("Relu", ["c"], ["r"], "relu"))
    between = real("Conv", "r", "each", (24, 1, 3, 3), pads=[1] * 4, group=24) if mixed else "r"
    r = through(between, "rd", 0.0497, 90 if mixed else 3)
    nodes.append(helper.make_node("Conv", [r, weight("w2", (24, 24, 1, 1), 0)], ["e"], "point"))
    e = through("e", "ed", 0.0613, 131)
    nodes.append(helper.make_node("Add", [r, e], ["a"], "skip"))
    nodes.append(helper.make_node("GlobalAveragePool", [through("a", "ad", 0.0713, 90)], ["g"], "mean"))
    nodes.append(helper.make_node("Flatten", ["g"], ["f"], "flatten"))
    if mixed:
        real("MatMul", "f", "y", (24, 20))
    else:
        product = [through("f", "fd", 0.0193, 70), weight("w3", (24, 20), 1)]
        nodes.append(helper.make_node("MatMul", product, ["m"], "fc"))
        through("m", "y", 0.0397, 128)
    return model_seeds.model_of(nodes, [("x", model_seeds.F, [1, 8, 18, 18])], [("y", model_seeds.F, [1, 20])], weights)


def int4() -> onnx.ModelProto:
    """Products with weights of four bits and activations that are bytes by block: of several rows and of one, with zero
    points and without, with a bias and an activation behind them."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {"bias": rng.standard_normal(48).astype(np.float32)}

    def product(x: str, name: str, depth: int, columns: int, block: int, more: tuple[str, ...] = ()) -> str:
        blocks = depth // block
        weights[f"{name}_w"] = rng.integers(0, 256, (columns, blocks, block // 2)).astype(np.uint8)
        weights[f"{name}_s"] = (rng.uniform(0.2, 1, (columns, blocks)) / depth**0.5).astype(np.float32)
        inputs = [x, f"{name}_w", f"{name}_s", *more]
        attrs = {"K": depth, "N": columns, "bits": 4, "block_size": block, "accuracy_level": 4}
        nodes.append(helper.make_node("MatMulNBits", inputs, [name], name, domain="com.microsoft", **attrs))
        return name

    weights |= {"zeros": rng.integers(0, 256, (48, 1)).astype(np.uint8), "rows": np.array([0])}
    a = product("x", "a", 64, 48, 32, ("zeros", "", "bias"))
    nodes.append(helper.make_node("Relu", [a], ["r"], "relu"))
    b = product("r", "b", 48, 64, 16)
    nodes.append(helper.make_node("Add", ["x", b], ["skip"], "skip"))
    nodes.append(helper.make_node("ReduceMean", ["skip", "rows"], ["mean"], "mean", keepdims=1))
    c = product("mean", "c", 64, 20, 64)
    nodes.append(helper.make_node("Tanh", [c], ["y"], "tanh"))
    given, made = [("x", model_seeds.F, [5, 64])], [("y", model_seeds.F, [1, 20])]
    return model_seeds.model_of(nodes, given, made, weights, ("com.microsoft",))


def halves() -> onnx.ModelProto:
    """Convolutions of every kind in a model of float16, a sum of more terms than one in float16 may have, a product of
    one row, whose weights stay in float16 where everything else is computed in float32."""
    rng, half = np.random.default_rng(0), onnx.TensorProto.FLOAT16
    shapes = {"w1": (24, 8, 3, 3), "w2": (24, 1, 3, 3), "w3": (320, 24, 1, 1), "w4": (16, 320, 1, 1), "w5": (16, 12)}
    weights = {n: (rng.standard_normal(s) / np.prod(s[1:]) ** 0.5).astype(np.float16) for n, s in shapes.items()}
    weights |= {n: np.float16(bound) for n, bound in (("low", 0), ("high", 6))}
    weights["bias"] = rng.standard_normal(12).astype(np.float16)
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], "conv", pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w2"], ["c2"], "each", pads=[1] * 4, group=24, strides=[2, 2]),
        helper.make_node("Clip", ["c2", "low", "high"], ["l"], "clip"),
        helper.make_node("Conv", ["l", "w3"], ["c3"], "wide"),
        helper.make_node("Relu", ["c3"], ["d"], "deep"),
        helper.make_node("Conv", ["d", "w4"], ["c4"], "narrow"),
        helper.make_node("GlobalAveragePool", ["c4"], ["g"], "mean"),
        helper.make_node("Flatten", ["g"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w5", "bias"], ["y"], "fc"),
    ]
    return model_seeds.model_of(nodes, [("x", half, [1, 8, 15, 15])], [("y", half, [1, 12])], weights)


def control() -> onnx.ModelProto:
    """A Loop as often as data says, over rows of a table and what it carries, a Scan along its result, and an If."""
    f, i, b = model_seeds.F, model_seeds.I, model_seeds.B
    info, node = helper.make_tensor_value_info, helper.make_node
    rng = np.random.default_rng(0)
    repeated = [
        node("Gather", ["table", "i"], ["row"], "row", axis=0),
        node("MatMul", ["a", "w"], ["aw"], "product"),
        node("Add", ["aw", "row"], ["sum"], "sum"),
        node("Tanh", ["sum"], ["next"], "tanh"),
        node("Identity", ["go"], ["on"], "on"),
    ]
    given = [info("i", i, []), info("go", b, []), info("a", f, [3, 12])]
    loop = helper.make_graph(repeated, "loop_body", given, [info("on", b, []), info("next", f, [3, 12])])
    scanned = [
        node("Add", ["total", "part"], ["more"], "more"),
        node("Mul", ["more", "half"], ["seen"], "seen"),
    ]
    vectors = [[info(name, f, [12]) for name in names] for names in (("total", "part"), ("more", "seen"))]
    scan = helper.make_graph(scanned, "scan_body", *vectors)
    then, otherwise = (
        helper.make_graph([node(op, ["every", "half"], [f"{op}_y"], op)], op, [], [info(f"{op}_y", f, [40, 12])])
        for op in ("Add", "Mul")
    )
    nodes = [
        node("Loop", ["n", "yes", "x"], ["last"], "loop", body=loop),
        node("MatMul", ["spread", "last"], ["wide"], "wide"),
        node("Scan", ["zeros", "wide"], ["end", "every"], "scan", body=scan, num_scan_inputs=1),
        node("ReduceSum", ["end"], ["s"], "total_sum", keepdims=0),
        node("Less", ["s", "limit"], ["small"], "small"),
        node("If", ["small"], ["z"], "if", then_branch=then, else_branch=otherwise),
        node("MatMul", ["z", "w"], ["y"], "last_product"),
    ]
    weights = {
        "table": rng.standard_normal((9, 12)).astype(np.float32),
        "w": (0.5 * rng.standard_normal((12, 12))).astype(np.float32),
        "spread": rng.standard_normal((40, 3)).astype(np.float32),
        "zeros": np.zeros(12, np.float32),
        "half": np.float32(0.5),
        "limit": np.float32(0),
        "yes": np.asarray(True),
    }
    return model_seeds.model_of(nodes, [("n", i, []), ("x", f, [3, 12])], [("y", f, [40, 12])], weights)


SMALL: dict[str, Callable[[], onnx.ModelProto]] = {
    "windows": windows,
    "convolutions": model_seeds.convolutions,
    "attention": model_seeds.attention,
    "recurrent": model_seeds.recurrent,
    "quantised": model_seeds.quantised,
    "qdq": qdq,
    "qdq7": lambda: qdq(63),
    "mixed": lambda: qdq(mixed=True),
    "int4": int4,
    "halves": halves,
    "control": control,
    "encoder": encoder_model,
}
DEFAULT = (*SMALL, "encoder:int8")
