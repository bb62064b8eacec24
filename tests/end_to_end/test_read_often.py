"""What several reductions and a rounding read is computed once; what is an output too is written as it is made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import modelc
from modelc.runtime import load

FLOAT, INT8, UINT8 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8
TOLERANCE = {"f32": 1e-4, "bf16": 3e-2}  # of the largest number
Shapes = dict[str, tuple[int, list[int]]]


def written(path: Path, nodes: list[onnx.NodeProto], inputs: Shapes, outputs: Shapes, **constants: np.ndarray) -> Path:
    values = [[helper.make_tensor_value_info(n, *v) for n, v in part.items()] for part in (inputs, outputs)]
    initializers = [numpy_helper.from_array(data, name) for name, data in constants.items()]
    graph = helper.make_graph(nodes, path.stem, *values, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def compiled(path: Path, tolerance: float = 1e-4, **options: object) -> str:
    """The Nests of the package that a model becomes, which ONNX Runtime agrees with on drawn inputs."""
    out, dump = path.with_suffix(".modelc"), path.parent / "dump"
    modelc.compile(path, output=out, dump_dir=dump, threads=1, database=False, verify=False, **options)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(0)
    feeds = {i.name: draw.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    with load(out) as model:
        ours, theirs = model.run(feeds), session.run(None, feeds)
    for output, wanted in zip(session.get_outputs(), theirs, strict=True):
        off = np.abs(ours[output.name].astype(np.float64) - wanted.astype(np.float64))
        if wanted.dtype == np.float32:
            assert off.max() <= tolerance * np.abs(wanted).max()
        else:  # a number that lies at a tie may go either way
            assert off.max() <= 1 and np.mean(off > 0) < 0.01
    (schedule,) = dump.glob("*schedule*")
    return "".join(text.partition("\n\n")[0] for text in schedule.read_text().split("\nnest ")[1:])


def rounded_rows(path: Path, function: str, rows: int, length: int, second: bool = False) -> Path:
    """int8 by row: the largest magnitude of each row over 127 is its scale; a `second` output is what is rounded."""
    node = helper.make_node
    nodes = [
        node("Add", ["x", "y"], ["s"]),
        node(function, ["s"], ["t"]),
        node("Abs", ["t"], ["a"]),
        node("ReduceMax", ["a"], ["m"], axes=[1], keepdims=1),
        node("Div", ["m", "most"], ["scale"]),
        node("Div", ["t", "scale"], ["d"]),
        node("Round", ["d"], ["r"]),
        node("Cast", ["r"], ["q"], to=INT8),
    ]
    outputs = {"q": (INT8, [rows, length]), "scale": (FLOAT, [rows, 1])} | (
        {"t": (FLOAT, [rows, length])} if second else {}
    )
    inputs = dict.fromkeys("xy", (FLOAT, [rows, length]))
    return written(path, nodes, inputs, outputs, most=np.array(127, np.float32))


@pytest.mark.parametrize("function", ["Tanh", "Erf"])
def test_a_row_is_computed_once_for_its_maximum_and_its_rounding(function: str, tmp_path: Path) -> None:
    nests = compiled(rounded_rows(tmp_path / "m.onnx", function, 36, 320))
    assert nests.count("task(") == 1 and "arena" not in nests  # all of a row while it is near
    assert nests.count(f"{function.lower()}(") == 1


@pytest.mark.parametrize(("rows", "length"), [(1, 7), (37, 1), (23, 131)])
def test_rows_of_any_length(rows: int, length: int, tmp_path: Path) -> None:
    assert compiled(rounded_rows(tmp_path / "m.onnx", "Tanh", rows, length)).count("task(") == 1


def test_rows_that_are_an_output_too_are_stored_first(tmp_path: Path) -> None:
    nests = compiled(rounded_rows(tmp_path / "m.onnx", "Tanh", 24, 130, second=True))
    assert nests.count("task(") == 2 and "tanh(" in nests


@pytest.mark.parametrize("rows", [1, 20])
def test_a_tensor_is_computed_once_for_its_range_and_its_rounding(rows: int, tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("Add", ["x", "y"], ["s"]),
        node("Tanh", ["s"], ["t"]),
        node("DynamicQuantizeLinear", ["t"], ["q", "scale", "zero"]),
    ]
    outputs = {"q": (UINT8, [rows, 256]), "scale": (FLOAT, []), "zero": (UINT8, [])}
    nests = compiled(written(tmp_path / "m.onnx", nodes, dict.fromkeys("xy", (FLOAT, [rows, 256])), outputs))
    assert nests.count("task(") == nests.count("tanh(") == 1


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_probabilities_that_are_an_output_leave_the_one_kernel_of_attention(precision: str, tmp_path: Path) -> None:
    node, shape = helper.make_node, [1, 2, 45, 32]
    nodes = [
        node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "t"], ["s"]),
        node("Mul", ["s", "c"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o"]),
    ]
    outputs = {"o": (FLOAT, shape), "p": (FLOAT, [1, 2, 45, 45])}
    path = written(tmp_path / "m.onnx", nodes, dict.fromkeys("qkv", (FLOAT, shape)), outputs, c=np.float32(0.17))
    nests = compiled(path, TOLERANCE[precision], precision=precision)
    assert nests.count("task(") == 1 and ("bfloat16(" in nests) == (precision == "bf16")
