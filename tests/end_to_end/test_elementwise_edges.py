"""Every elementwise operator on special values, as a compiled package: against ONNX Runtime where that has the operator
and an answer, and against the NumPy interpreter everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime_session import session_of
from three_ways import host_target

import modelc
from modelc.compile.config import load_config
from modelc.ir.expr import DTYPES, INTEGERS, NARROW
from modelc.ir.graph import Node, Value
from modelc.ops import evaluate_node
from modelc.ops.elementwise import OPERATORS, UNARY

FLOATS = ("float32", "float64", "float16")
TYPES = {"float32": "float", "float64": "double"}  # ONNX's names
OPSET = 24


@dataclass(frozen=True)
class Case:
    """One node of the model: its operator, inputs (a, b, or constants by name), attributes."""

    op: str
    inputs: tuple[str, ...]
    attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "_".join([self.op, *self.inputs[1:], *(f"{k}_{v}" for k, v in self.attrs.items())]).lower()


def near(case: Case, dtype: str) -> float:
    """How far ONNX Runtime's own approximations are off."""
    if dtype == "float64" and case.name == "gelu_approximate_tanh":  # its constants are of float32
        return 1e-8
    return 1e-6 if case.op in ("Sigmoid", "Swish") else 0.0


def defined(case: Case, dtype: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where ONNX Runtime's answer is one: elements of the operands."""
    everywhere, size = np.ones(a.size, bool), np.abs(a.astype(np.float64))
    if case.op in ("Div", "Mod") and dtype in INTEGERS:
        everywhere &= (b != 0) & (b.astype(object) != -1)  # an error, and a signal for the least number
        if case.attrs.get("fmod"):  # through float64
            everywhere &= (size < 2.0**53) & (np.abs(b.astype(np.float64)) < 2.0**53)
    if case.op == "Shrink" and dtype != "float16":  # through float32
        everywhere &= (size < 2.0**24) | ~np.isfinite(size)
    if case.op == "Clip" and not case.inputs[2]:  # on the side without a bound infinities become finite
        everywhere &= np.isfinite(size)
    if dtype == "float16" and (case.op == "Sign" or case.attrs.get("to") == "uint32"):  # NaN becomes 0
        everywhere &= np.isfinite(size)
    return everywhere


def edge_values(dtype: str) -> np.ndarray:
    """The ends of a dtype, what is next to them and to 0, ordinary numbers, numbers of all magnitudes."""
    rng, kind = np.random.default_rng(3), DTYPES[dtype]
    if dtype == "bool":
        return np.array([False, True])
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        some = [
            limits.min,
            limits.min + 1,
            -3,
            -1,
            0,
            1,
            2,
            5,
            limits.bits - 1,
            limits.bits,
            limits.max - 1,
            limits.max,
        ]
        return np.array([n for n in some if limits.min <= n <= limits.max], kind)
    limits = np.finfo(kind)
    ends = [0.0, np.inf, np.nan, limits.max, limits.tiny, limits.smallest_subnormal, limits.eps]
    ordinary = [0.3, 0.5, 1, 1.5, 2, 2.5, 3, 7.25, 300, 2.0**15, 7e6, 3e9]
    drawn = np.exp2(rng.uniform(np.log2(float(limits.tiny)), np.log2(float(limits.max)), 12))
    with np.errstate(over="ignore"):
        positive = np.concatenate([ends, ordinary, drawn]).astype(kind)
    return np.concatenate([positive, -positive])


FORMS: dict[str, list[dict[str, Any]]] = {
    "Gelu": [{}, {"approximate": "tanh"}],
    "IsInf": [{}, {"detect_negative": 0}, {"detect_positive": 0}],
    "BitShift": [{"direction": "LEFT"}, {"direction": "RIGHT"}],
    "Cast": [{"to": to} for to in DTYPES if to not in ("bfloat16", *NARROW)],
}


ONE_OPERAND = {operator.name for operator in UNARY}
NEWER = {"BitCast"}  # than OPSET: test_narrow.py


def cases(dtype: str) -> Iterator[Case]:
    """Every operator of the room in each of its forms, of `dtype` if ONNX has it so."""
    for name in (operator.name for operator in OPERATORS if operator.name not in NEWER):
        schema = onnx.defs.get_schema(name, OPSET)
        operands: list[tuple[str, ...]] = [("a", "b")]
        if name == "Where":
            operands = [("condition", "a", "b")]
        elif name == "Clip":
            operands = [("a", "one", "three"), ("a", "three", "one"), ("a", "one", "")]
        elif name == "CastLike":
            operands = [("a", "condition")]
        elif name in ONE_OPERAND or name == "Cast":
            operands = [("a",)]
        elif name == "Pow" and dtype in FLOATS:
            operands += [("a", exponent) for exponent in ("half", "three", "minus")]
        formal = schema.inputs[operands[0].index("a")]
        if f"tensor({TYPES.get(dtype, dtype)})" not in formal.types:
            continue
        forms = FORMS.get(name, [{}])
        if name == "Mod":
            forms = [{"fmod": 1}] if dtype in FLOATS else [{}, {"fmod": 1}]
        yield from (Case(name, inputs, attrs) for inputs in operands for attrs in forms)


def constants(dtype: str) -> dict[str, np.ndarray]:
    kind = DTYPES[dtype]
    return {
        name: np.array(value, kind)
        for name, value in {"one": 1, "three": 3, "half": 0.5, "minus": -1}.items()
        if dtype in FLOATS or value in (1, 3)
    }


def onnx_model(made: list[Case], dtype: str, count: int) -> onnx.ModelProto:
    """One node for each case, each an output of the model."""
    kind = helper.np_dtype_to_tensor_dtype(DTYPES[dtype])
    inputs = [helper.make_tensor_value_info(n, kind, [count]) for n in ("a", "b")]
    inputs.append(helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, [count]))
    nodes = [helper.make_node(c.op, c.inputs, [c.name], **_for_onnx(c.attrs)) for c in made]
    outputs = [onnx.ValueInfoProto(name=c.name) for c in made]
    known = [onnx.numpy_helper.from_array(data, name) for name, data in constants(dtype).items()]
    used = {x for c in made for x in c.inputs}
    graph = helper.make_graph(
        nodes, "edges", [i for i in inputs if i.name in used], outputs, [k for k in known if k.name in used]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def _for_onnx(attrs: dict[str, Any]) -> dict[str, Any]:
    return {k: helper.np_dtype_to_tensor_dtype(DTYPES[v]) if k == "to" else v for k, v in attrs.items()}


def known_to_ort(case: Case, dtype: str) -> bool:
    try:
        session_of(onnx_model([case], dtype, 1))
    except Exception:  # whatever it says of what it lacks
        return False
    return True


def interpreted(case: Case, arrays: dict[str, np.ndarray]) -> np.ndarray:
    values = tuple(Value(n, arrays[n].dtype.name, arrays[n].shape, arrays[n]) if n else None for n in case.inputs)
    return evaluate_node(Node(case.op, case.name, case.inputs, (case.name,), case.attrs), values)[0]


def same(found: np.ndarray, wanted: np.ndarray, what: str, tolerance: float = 0.0) -> None:
    """Whole numbers are equal; floats are near, with NaN and infinities in the same places."""
    assert found.dtype == wanted.dtype, what
    if found.dtype.kind != "f":
        np.testing.assert_array_equal(found, wanted, what)
        return
    limits = np.finfo(found.dtype)
    # where e**x - 1 or a * x + b cancels, and below the smallest normal number, errors are absolute
    cancels = any(name in what for name in ("elu", "mish", "hard"))
    atol = 4 * float(limits.eps) if cancels else float(limits.tiny)
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(a, b, rtol=16 * float(limits.eps), atol=max(atol, tolerance), err_msg=what)


def of_ort(made: list[Case], dtype: str, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Its results; divisors that it does not take are 1."""
    b = arrays["b"]
    if dtype in INTEGERS:
        b = np.where((b != 0) & (b.astype(object) != -1), b, np.ones_like(b))
    plain = [c for c in made if c.op not in ("Div", "Mod")]
    results: dict[str, np.ndarray] = {}
    for some, second in ((plain, arrays["b"]), ([c for c in made if c not in plain], b)):
        if some:
            model = onnx_model(some, dtype, b.size)
            names = {i.name for i in model.graph.input}
            feed = {n: x for n, x in {**arrays, "b": second}.items() if n in names}
            results |= dict(zip([c.name for c in some], session_of(model).run(None, feed), strict=True))
    return [results[c.name] for c in made]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
@pytest.mark.sweep(2)
def test_every_elementwise_operator_at_its_edges(dtype: str, tmp_path: Path) -> None:
    made = list(cases(dtype))
    some = edge_values(dtype)
    a, b = (v.ravel() for v in np.meshgrid(some, some))
    arrays = {"a": a, "b": b, "condition": np.arange(a.size) % 3 == 0}
    onnx.save(onnx_model(made, dtype, a.size), tmp_path / "m.onnx")
    config = replace(load_config("default"), flush_denormals=False)
    target = host_target()
    modelc.compile(tmp_path / "m.onnx", target, tmp_path / "m.modelc", config=config, verify=False)
    with modelc.load(tmp_path / "m.modelc", threads=1) as package:
        found = package.run(arrays)
    wrong, checked = [], 0
    for case in made:
        with np.errstate(all="ignore"):
            wanted = interpreted(case, {**arrays, **constants(dtype)})
        try:
            same(found[case.name], wanted, f"{case.name} on {dtype} against the interpreter")
        except AssertionError as error:
            wrong.append(str(error))
    known = [c for c in made if known_to_ort(c, dtype)]
    for case, wanted in zip(known, of_ort(known, dtype, arrays), strict=True):
        there = defined(case, dtype, a, b)
        what = f"{case.name} on {dtype} against ONNX Runtime"
        try:
            same(found[case.name][there], wanted[there], what, near(case, dtype))
        except AssertionError as error:
            wrong.append(str(error))
        checked += int(there.sum())
    assert not wrong, "\n".join(wrong)
    assert checked > 0


def test_no_elementwise_operator_is_left_out() -> None:
    covered = {case.op for dtype in (*FLOATS, *INTEGERS, "bool") for case in cases(dtype)}
    assert covered == {operator.name for operator in OPERATORS} - NEWER
