"""Drawn inputs tell models apart that differ beyond N(0, 1), beyond 0 and 1, or at ties: the package of a mutant is
compared with the right model, and the right package with its own, which no drawn input may refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from three_ways import host_target

import modelc
from modelc.errors import VerificationError

F, I64, I32, U8, I8 = (getattr(TensorProto, name) for name in ("FLOAT", "INT64", "INT32", "UINT8", "INT8"))
Nodes = Sequence[onnx.NodeProto]
node = helper.make_node


@dataclass(frozen=True)
class Pair:
    """A right model and a mutant of the same inputs, outputs and constants."""

    right: Nodes
    mutant: Nodes
    inputs: Mapping[str, tuple[int, Sequence[int]]]
    output: int = F
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)


def f32(*numbers: float) -> np.ndarray:
    return np.array(numbers[0] if len(numbers) == 1 else numbers, np.float32)


def quantized(scale: float) -> Pair:
    """Rounding half to even, and half up."""
    half_up = [
        node("Div", ["x", "scale"], ["quotient"]),
        node("Add", ["quotient", "half"], ["more"]),
        node("Floor", ["more"], ["floor"]),
        node("Clip", ["floor", "least", "most"], ["kept"]),
        node("Cast", ["kept"], ["y"], to=I8),
    ]
    constants = {"scale": f32(scale), "half": f32(0.5), "least": f32(-128), "most": f32(127)}
    constants["zero"] = np.array(0, np.int8)
    return Pair([node("QuantizeLinear", ["x", "scale", "zero"], ["y"])], half_up, {"x": (F, (4, 64))}, I8, constants)


def suppressed(overlap: str) -> Nodes:
    return [node("NonMaxSuppression", ["boxes", "scores", "most", overlap, "least"], ["y"])]


def through_int32() -> Nodes:
    casts = [node("Cast", [x], [f"{x}_narrow"], to=I32) for x in "ab"]
    return [*casts, node("Mul", ["a_narrow", "b_narrow"], ["product"]), node("Cast", ["product"], ["y"], to=I64)]


def last_of_ties(op: str) -> Pair:
    first, last = (node(op, ["x"], ["y"], axis=1, keepdims=0, select_last_index=k) for k in (0, 1))
    return Pair([first], [last], {"x": (F, (8, 24))}, I64)


def largest() -> Pair:
    """The first of equal numbers, and the last."""
    reverse = node("Slice", ["x", "end", "before", "one", "minus"], ["reversed"])
    top = node("TopK", ["reversed", "k"], ["values", "places"], axis=1)
    constants = {"k": np.array([3]), "end": np.array([-1]), "before": np.array([-100]), "one": np.array([1])}
    constants |= {"minus": np.array([-1]), "most": np.array(23)}
    mutant = [reverse, top, node("Sub", ["most", "places"], ["y"])]
    return Pair([node("TopK", ["x", "k"], ["values", "y"], axis=1)], mutant, {"x": (F, (8, 24))}, I64, constants)


def chosen(limit: str) -> Nodes:
    return [node("Greater", ["x", limit], ["far"]), node("Where", ["far", "zero", "x"], ["y"])]


def in_dtype(op: str, kind: int, *inputs: str) -> Nodes:
    """A binary operator on operands that are cast, and its result cast back."""
    casts = [node("Cast", [x], [f"{x}_cast"], to=kind) for x in inputs]
    return [*casts, node(op, [f"{x}_cast" for x in inputs], ["made"]), node("Cast", ["made"], ["y"], to=I64)]


def remainders() -> Pair:
    whole, truncated = (node("Mod", ["x", "seven"], ["y"], fmod=k) for k in (0, 1))
    return Pair([whole], [truncated], {"x": (I64, (1, 2))}, I64, {"seven": np.array(7)})


def shifted() -> Pair:
    """The topmost bit is lost."""
    constants = {"three": np.array(3, np.uint32), "mask": np.array(2**31 - 1, np.uint32)}
    shift = node("BitShift", ["x", "three"], ["shifted"], direction="LEFT")
    right, mutant = node("Identity", ["shifted"], ["y"]), node("BitwiseAnd", ["shifted", "mask"], ["y"])
    return Pair([shift, right], [shift, mutant], {"x": (TensorProto.UINT32, (1, 20))}, TensorProto.UINT32, constants)


def compared(kind: int, shape: Sequence[int]) -> Pair:
    right, mutant = (node(op, ["a", "b"], ["y"]) for op in ("Less", "LessOrEqual"))
    return Pair([right], [mutant], {"a": (kind, shape), "b": (kind, shape)}, TensorProto.BOOL)


def indexed_from_end() -> Pair:
    right = [node("GatherElements", ["x", "index"], ["y"], axis=1)]
    mutant = [node("Max", ["index", "zero"], ["clamped"]), node("GatherElements", ["x", "clamped"], ["y"], axis=1)]
    return Pair(right, mutant, {"x": (F, (3, 8)), "index": (I64, (3, 5))}, F, {"zero": np.array(0)})


VECTOR, TWO = {"x": (I64, (3, 20))}, {"a": (I64, (3, 20)), "b": (I64, (3, 20))}
REAL, IMAGE = {"x": (F, (4, 64))}, {"x": (F, (1, 3, 32, 32))}
PAIRS = {
    "square": Pair([node("Mul", ["x", "x"], ["y"])], [node("Identity", ["x"], ["y"])], VECTOR, I64),
    "quotient": Pair(
        [node("Div", ["x", "seven"], ["y"])],
        [node("Identity", ["x"], ["y"])],
        VECTOR,
        I64,
        {"seven": np.array(7)},
    ),
    "product_in_int32": Pair([node("Mul", ["a", "b"], ["y"])], through_int32(), TWO, I64),
    "sum_in_float64": Pair([node("Add", ["a", "b"], ["y"])], in_dtype("Add", TensorProto.DOUBLE, "a", "b"), TWO, I64),
    "remainder_of_few": remainders(),
    "shift": shifted(),
    "less_bytes": compared(U8, (4, 8)),
    "less_reals": compared(F, (4, 8)),
    "less_of_few": compared(I64, (1, 1)),
    "class_beyond_depth": Pair(
        [node("OneHot", ["x", "depth", "choices"], ["y"])],
        [node("Mod", ["x", "depth"], ["within"]), node("OneHot", ["within", "depth", "choices"], ["y"])],
        VECTOR,
        F,
        {"depth": np.array(5), "choices": f32(0, 1)},
    ),
    "index_from_end": indexed_from_end(),
    "clip": Pair(
        [node("Clip", ["x", "least", "six"], ["y"])],
        [node("Clip", ["x", "least", "more"], ["y"])],
        REAL,
        F,
        {"least": f32(0), "six": f32(6), "more": f32(6.01)},
    ),
    "scaled_clip": Pair(
        [node("Mul", ["x", "part"], ["small"]), node("Clip", ["small", "least", "six"], ["y"])],
        [node("Mul", ["x", "part"], ["small"]), node("Clip", ["small", "least", "more"], ["y"])],
        REAL,
        F,
        {"least": f32(0), "six": f32(6), "more": f32(6.01), "part": f32(0.1)},
    ),
    "where": Pair(chosen("limit"), [node("Identity", ["x"], ["y"])], REAL, F, {"limit": f32(4.5), "zero": f32(0)}),
    "where_at": Pair(
        chosen("limit"),
        [node("GreaterOrEqual", ["x", "limit"], ["far"]), node("Where", ["far", "zero", "x"], ["y"])],
        REAL,
        F,
        {"limit": f32(4.5), "zero": f32(0)},
    ),
    "hard_sigmoid": Pair([node("HardSigmoid", ["x"], ["y"])], [node("HardSigmoid", ["x"], ["y"], alpha=0.17)], REAL),
    "hard_swish": Pair(
        [node("HardSwish", ["x"], ["y"])],
        [node("Clip", ["x", "least", "most"], ["kept"]), node("HardSwish", ["kept"], ["y"])],
        REAL,
        F,
        {"least": f32(-5), "most": f32(5)},
    ),
    "exponential": Pair(
        [node("Exp", ["x"], ["y"])],
        [node("Min", ["x", "eight"], ["kept"]), node("Exp", ["kept"], ["y"])],
        REAL,
        F,
        {"eight": f32(8)},
    ),
    "shrink": Pair([node("Shrink", ["x"], ["y"], lambd=5.0)], [node("Shrink", ["x"], ["y"], lambd=5.1)], REAL),
    "quantized": quantized(0.125),
    "quantized_wide": quantized(1.0),
    "round": Pair(
        [node("Round", ["x"], ["y"])],
        [node("Add", ["x", "half"], ["more"]), node("Floor", ["more"], ["y"])],
        REAL,
        F,
        {"half": f32(0.5)},
    ),
    "overlap": Pair(
        suppressed("half"),
        suppressed("more"),
        {"boxes": (F, (1, 64, 4)), "scores": (F, (1, 2, 64))},
        I64,
        {"most": np.array([64]), "half": f32(0.5), "more": f32(0.55), "least": f32(0.1)},
    ),
    "largest": largest(),
    "argmax": last_of_ties("ArgMax"),
    "argmin": last_of_ties("ArgMin"),
    "pixels": Pair(
        [node("Sub", ["x", "mean"], ["y"])],
        [node("Min", ["x", "most"], ["kept"]), node("Sub", ["kept", "mean"], ["y"])],
        IMAGE,
        F,
        {"mean": np.array([123.7, 116.8, 103.9], np.float32).reshape(1, 3, 1, 1), "most": f32(200)},
    ),
}


def written(path: Path, nodes: Nodes, pair: Pair) -> Path:
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in pair.inputs.items()]
    outputs = [helper.make_tensor_value_info("y", pair.output, None)]
    read = {x for made in nodes for x in made.input}
    held = [numpy_helper.from_array(array, name) for name, array in pair.constants.items() if name in read]
    graph = helper.make_graph(list(nodes), "pair", inputs, outputs, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return path


def agrees(package: Path, model: Path, seed: int) -> bool:
    try:
        return modelc.verify(package, model, seed=seed, check="quick").passed
    except VerificationError:
        return False


@pytest.mark.parametrize("name", PAIRS)
def test_a_mutant_is_seen_and_the_right_one_is_not_refused(name: str, tmp_path: Path) -> None:
    pair = PAIRS[name]
    right, mutant = (written(tmp_path / f"{k}.onnx", getattr(pair, k), pair) for k in ("right", "mutant"))
    for model in (right, mutant):
        modelc.compile(model, host_target(), model.with_suffix(".modelc"), verify=False)
    for seed in (0, 1, 2):
        assert agrees(right.with_suffix(".modelc"), right, seed)
    assert not agrees(mutant.with_suffix(".modelc"), right, 0)


@pytest.mark.parametrize(("columns", "samples"), [(1, 16), (32, 8), (64, 4), (1000, 2)])
def test_small_models_of_few_inputs_get_more_samples(columns: int, samples: int, tmp_path: Path) -> None:
    pair = Pair([node("Neg", ["x"], ["y"])], (), {"x": (F, (1, columns))})
    model = written(tmp_path / "m.onnx", pair.right, pair)
    modelc.compile(model, host_target(), tmp_path / "p.modelc", verify=False)
    assert modelc.verify(tmp_path / "p.modelc", model).samples == samples
    assert modelc.verify(tmp_path / "p.modelc", model, samples=20).samples == 20


# --- right packages ---------------------------------------------------------------------------------------------------


ARITHMETIC = {  # operators on whole numbers, with what they read; what is no constant is an input of its own
    **{op: (op, ["a", "b"]) for op in ("Add", "Sub", "Mul", "Min", "Max", "Equal", "Less", "Div", "Mod")},
    **{f"{op}_seven": (op, ["a", "seven"]) for op in ("Div", "Mod")},
    **{f"Reduce{x}": (f"Reduce{x}", ["a", "axis"]) for x in ("Sum", "Max", "Mean", "Prod", "SumSquare", "L1")},
    **{op: (op, ["a"]) for op in ("Neg", "Abs", "Sign")},
    **{"CumSum": ("CumSum", ["a", "last"]), "MatMul": ("MatMul", ["a", "turned"]), "Pow": ("Pow", ["a", "b"])},
    "OneHot": ("OneHot", ["a", "depth", "choices"]),
}
SHIFTS = {"BitShift": ("BitShift", ["a", "b"])}
CONSTANTS = {"axis": np.array([1]), "last": np.array(1), "depth": np.array(12), "choices": np.array([0, 1], np.float32)}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(k, name) for k in (I32, I64) for name in ARITHMETIC if (k, name) != (I32, "OneHot")]
    + [
        (k, name) for k in (TensorProto.UINT32, TensorProto.UINT64) for name in ("Add", "Sub", "Mul", "Div", "BitShift")
    ],
)
def test_large_whole_numbers_refuse_no_right_package(kind: int, name: str, tmp_path: Path) -> None:
    """What overflows wraps in both; divisors are not 0, and powers and shifts are small."""
    op, read = {**ARITHMETIC, **SHIFTS}[name]
    constants = CONSTANTS | {"seven": np.array(7, helper.tensor_dtype_to_np_dtype(kind))}
    shapes = {x: (20, 3) if x == "turned" else (3, 20) for x in read if x not in constants}
    attributes = {"direction": "LEFT"} if op == "BitShift" else {}
    output = {"Equal": TensorProto.BOOL, "Less": TensorProto.BOOL, "OneHot": F}.get(op, kind)
    pair = Pair([node(op, read, ["y"], **attributes)], (), {x: (kind, s) for x, s in shapes.items()}, output, constants)
    model = written(tmp_path / "m.onnx", pair.right, pair)
    modelc.compile(model, host_target(), tmp_path / "p.modelc", verify=False)
    assert all(agrees(tmp_path / "p.modelc", model, seed) for seed in (0, 1))
