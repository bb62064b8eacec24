"""What the import computes of constants is what kernels compute of data, and what ONNX Runtime says of both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from imported_models import constants_of
from onnx import helper, numpy_helper
from packaged import agree, run_packaged, run_reference

from modelc.frontend.onnx import import_model
from modelc.ir.graph import Node, Value
from modelc.ops import evaluate_node
from modelc.ops.direct import computed

rng = np.random.default_rng(0)


def f(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def i(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


# --- what onnx's reference evaluator reads otherwise -----------------------------------------------------------------

MISREAD = {
    "softmax": ("Softmax", [f(2, 3, 4)], {"axis": 1}, 11),
    "log-softmax": ("LogSoftmax", [f(2, 3, 4)], {}, 11),
    "hardmax": ("Hardmax", [f(2, 3, 4)], {"axis": 1}, 11),
    "slice backwards": ("Slice", [f(3, 5), i(99), i(-99), i(1), i(-2)], {}, 17),
    "local responses": ("LRN", [f(1, 6, 3, 3)], {"size": 3, "alpha": 0.5}, 17),
    "norm of magnitudes": ("LpNormalization", [f(2, 3, 4)], {"p": 1, "axis": 1}, 17),
    "unique": ("Unique", [i(4, 1, 4, 3, 1)], {"sorted": 0}, 17),
    "ceil_mode": ("MaxPool", [f(1, 2, 7, 7)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, 17),
}


@pytest.mark.parametrize("what", MISREAD)
def test_a_constant_is_what_a_kernel_computes(tmp_path: Path, what: str) -> None:
    """A model that computes the same of an input and of a constant that is equal to it."""
    op, inputs, attrs, version = MISREAD[what]
    steering = {f"s{k}": x for k, x in enumerate(inputs[1:], 1)}
    nodes = [helper.make_node(op, [x, *steering], [y], **attrs) for x, y in (("x", "of_data"), ("c", "of_constant"))]
    kind = helper.np_dtype_to_tensor_dtype(inputs[0].dtype)
    graph = helper.make_graph(
        nodes,
        "twins",
        [helper.make_tensor_value_info("x", kind, inputs[0].shape)],
        [onnx.ValueInfoProto(name=name) for name in ("of_data", "of_constant")],
        [numpy_helper.from_array(x, name) for name, x in {"c": inputs[0], **steering}.items()],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8), path)
    assert constants_of(import_model(path))[1] is not None
    refusal, reference = run_reference(path, {"x": inputs[0]}, tmp_path)
    assert not refusal
    outputs = run_packaged(path, {"x": inputs[0]}, tmp_path)
    agree(outputs, reference, "package and ONNX Runtime")
    agree({"y": outputs["of_constant"]}, {"y": outputs["of_data"]}, "constant and kernel")


# --- what NumPy does in place of the interpreter ----------------------------------------------------------------------

SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)
DTYPES = st.sampled_from(["int64", "int32", "float32", "float16", "uint8"])


@st.composite
def direct_nodes(draw: st.DrawFn) -> tuple[Node, list[np.ndarray]]:
    """A node that NumPy computes alone, and what it reads."""
    op = draw(st.sampled_from(["Transpose", "Concat", "Gather", "Cast", "CumSum"]))
    shape, dtype = draw(SHAPES), draw(DTYPES)
    numbers = arrays(dtype, shape, elements={"min_value": 0, "max_value": 100})
    x, axis = draw(numbers), draw(st.integers(-len(shape), len(shape) - 1))
    inputs, attrs = [x], {}
    if op == "Transpose":
        attrs = {"perm": tuple(draw(st.permutations(range(len(shape)))))}
    elif op == "Concat":
        inputs, attrs = [x, draw(numbers), x], {"axis": axis}
    elif op == "Gather":
        extent = shape[axis]
        indices = st.integers(-extent, extent - 1) if extent else st.nothing()
        inputs.append(draw(arrays("int64", draw(SHAPES) if extent else (0,), elements=indices)))
        attrs = {"axis": axis}
    elif op == "Cast":
        attrs = {"to": draw(st.sampled_from(["int64", "int32", "float32", "float64", "bool"]))}
    else:
        inputs.append(np.asarray(axis))
        attrs = {"exclusive": draw(st.integers(0, 1)), "reverse": draw(st.integers(0, 1))}
    return Node(op, "node", tuple(f"in{k}" for k in range(len(inputs))), ("out",), attrs), inputs


@settings(deadline=None)
@given(direct_nodes())
def test_numpy_computes_what_blocks_say(drawn: tuple[Node, list[np.ndarray]]) -> None:
    node, inputs = drawn
    values = tuple(Value(n, x.dtype.name, x.shape, x) for n, x in zip(node.inputs, inputs, strict=True))
    (own,), (meant,) = computed(node, values), evaluate_node(node, values)
    assert (own.dtype, own.shape, own.tobytes()) == (meant.dtype, meant.shape, meant.tobytes())
