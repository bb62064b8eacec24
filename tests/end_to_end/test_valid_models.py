"""Valid models of unusual form, as compiled packages, by the interpreter and by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import packaged
import pytest
from graph_to_onnx import assert_same, random_feeds, run_onnx, to_onnx
from imported_models import imported, model, node, save, typed
from onnx import TensorProto, helper, numpy_helper

import modelc
from modelc.errors import ModelError
from modelc.frontend.onnx import import_model
from modelc.ir.block import Task
from modelc.layout.program import partition
from modelc.passes import run_passes
from modelc.space.choose import accepted, chosen
from modelc.space.sketches.phases import separate

TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "int32": TensorProto.INT32}


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(np.float32)


def model_of(nodes, inputs, outputs, constants=()) -> onnx.ModelProto:
    """A model of these nodes: inputs are arrays by name, constants too; outputs are names."""
    given = [helper.make_tensor_value_info(n, TYPES[x.dtype.name], x.shape) for n, x in inputs.items()]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    held = [numpy_helper.from_array(x, n) for n, x in dict(constants).items()]
    graph = helper.make_graph(nodes, "g", given, results, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def recurrent(op, outputs, time=4, batch=3, inputs=5, hidden=6, lengths=None, held=False, **attrs) -> tuple:
    """A recurrent node with constant weights: the model, and what it is fed."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    shapes = {"W": (gates * hidden, inputs), "R": (gates * hidden, hidden), "B": (2 * gates * hidden,)}
    weights = {n: floats(directions, *s, seed=k) for k, (n, s) in enumerate(shapes.items())}
    feeds = {"x": floats(time, batch, inputs, seed=4)}
    names = ["x", "W", "R", "B"]
    if lengths is not None:
        (weights if held else feeds)["lengths"] = np.asarray(lengths, np.int32)
        names.append("lengths")
    node = helper.make_node(op, names, outputs, hidden_size=hidden, **attrs)
    return model_of([node], feeds, [o for o in outputs if o], weights), feeds


@pytest.mark.parametrize(
    ("op", "outputs", "options"),
    [
        ("LSTM", ["", "h"], {}),  # what a classifier uses
        ("LSTM", ["", "h"], {"batch": 1}),
        ("LSTM", ["", "", "c"], {"direction": "bidirectional"}),
        ("GRU", ["", "h"], {"linear_before_reset": 1}),
        ("RNN", ["y", "h"], {"direction": "reverse"}),
        ("RNN", ["", "h"], {"direction": "bidirectional"}),
        ("LSTM", ["y", "h", "c"], {"time": 1, "inputs": 64, "hidden": 32}),
        ("LSTM", ["y", "h", "c"], {"lengths": [4, 1, 2]}),
        ("LSTM", ["y", "h", "c"], {"lengths": [2, 4, 3], "direction": "bidirectional"}),
        ("GRU", ["", "h"], {"lengths": [3, 1, 4], "direction": "reverse"}),
        ("RNN", ["y", ""], {"lengths": [1, 2, 4], "direction": "reverse"}),
        ("GRU", ["y", "h"], {"lengths": [3], "held": True, "batch": 1}),
    ],
)
@pytest.mark.sweep(5)
def test_recurrent(tmp_path, op, outputs, options) -> None:
    assert not packaged.check(*recurrent(op, outputs, **options), tmp_path)


def test_a_pool_of_a_constant(tmp_path) -> None:
    pool = helper.make_node("MaxPool", ["w"], ["p"], kernel_shape=[2], strides=[1], pads=[1, 0], ceil_mode=1)
    add, feeds = helper.make_node("Add", ["x", "p"], ["y"]), {"x": floats(1, 1, 4)}
    assert not packaged.check(model_of([pool, add], feeds, ["y"], {"w": floats(1, 1, 4, seed=1)}), feeds, tmp_path)


def test_recurrent_of_nothing(tmp_path) -> None:
    """A batch of no sequences, at which ONNX Runtime ends the process."""
    assert "signal" in packaged.check(*recurrent("LSTM", ["y", "h"], batch=0), tmp_path)


@pytest.mark.parametrize(("op", "outputs"), [("LSTM", ["y", "h", "c"]), ("GRU", ["y", "h"])])
def test_recurrent_without_steps(tmp_path, op, outputs) -> None:
    """States stay as they were; ONNX Runtime gives what lay in memory, or ends the process."""
    model, feeds = recurrent(op, outputs, time=0, direction="bidirectional")
    onnx.save(model, tmp_path / "m.onnx")
    modelc.compile(tmp_path / "m.onnx", output=tmp_path / "p", verify=False)
    with modelc.load(tmp_path / "p") as package:
        found = package.run(feeds)
    assert found["y"].shape == (0, 2, 3, 6)
    assert all(found[n].shape == (2, 3, 6) and not found[n].any() for n in outputs[1:])


def tasks_of(model: onnx.ModelProto, folder: Path) -> list[Task]:
    onnx.save(model, folder / "m.onnx")
    return [bound.task.canonical() for bound in partition(run_passes(import_model(folder / "m.onnx"))).tasks]


def test_recurrences_have_no_rows_and_their_first_schedule_is_valid(tmp_path) -> None:
    (task,) = tasks_of(recurrent("LSTM", ["", "h"])[0], tmp_path)
    assert chosen(task, packaged.native()).rejected == ()
    assert accepted(task, separate(task, packaged.native()), packaged.native()).task == task


def single(op, *inputs, outputs=("y",), **attrs) -> tuple:
    """One node on these arrays; those that are not floats are constants."""
    names = [f"x{k}" for k in range(len(inputs))]
    known = dict(zip(names, inputs, strict=True))
    feeds = {n: x for n, x in known.items() if x.dtype == np.float32 and x.ndim}
    constants = {n: x for n, x in known.items() if n not in feeds}
    return model_of([helper.make_node(op, names, outputs, **attrs)], feeds, outputs, constants), feeds


def whole(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


NUMBERS = np.array([1, -1, 0, -0.0, np.inf, -np.inf, np.nan, 2], np.float32)


@pytest.mark.parametrize(
    "case",
    [
        single("Div", NUMBERS, np.array(0, np.float32)),
        single("Div", NUMBERS, np.array(-0.0, np.float32)),
        single("ReduceMean", floats(0, 2)),
        single("ReduceSum", floats(3, 0, 2), whole(1)),
        single("MatMul", floats(3, 0), floats(0, 4)),
        single("Split", floats(2, 4), whole(0, 3, 1), outputs=("a", "b", "c"), axis=1),
        single("Concat", floats(2, 0), floats(2, 3), axis=1),
        single("Pad", floats(0, 2), whole(1, 0, 1, 0), np.array(7, np.float32)),
        single("Expand", floats(1, 1), whole(0, 4)),
        single("Slice", floats(5), whole(-(2**63)), whole(-100), whole(0), whole(-3)),
        single("Slice", floats(5), whole(-1), whole(2**63 - 1), whole(0), whole(-2)),
    ],
)
def test_numbers_at_the_edge_and_dimensions_of_nothing(tmp_path, case) -> None:
    assert not packaged.check(*case, tmp_path)


def test_inputs_that_are_declared_without_elements(tmp_path) -> None:
    """Compiled, verified and run as they are declared: a dimension of 0 is a number, not a free one."""
    feeds = {"x": floats(0, 4), "z": floats(3, 4)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["empty"]),
        helper.make_node("Concat", ["x", "z"], ["rest"], axis=0),
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
    ]
    onnx.save(model_of(nodes, feeds, ["empty", "rest", "turned"], {"w": floats(4, 6)}), tmp_path / "m.onnx")
    result = modelc.compile(tmp_path / "m.onnx", output=tmp_path / "p")
    assert result.report is not None and result.report.passed
    with modelc.load(tmp_path / "p") as package:
        found = package.run(feeds)
    assert {n: x.shape for n, x in found.items()} == {"empty": (0, 6), "rest": (3, 4), "turned": (4, 0)}
    assert (found["rest"] == feeds["z"]).all()


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        (single("ArgMax", floats(0, 4), axis=0), "elements along axis 0 to choose from"),
        (single("Gather", floats(0, 4), whole(0)), "indices into a dimension that has elements"),
    ],
)
def test_nothing_to_choose_from(tmp_path, case, sentence) -> None:
    onnx.save(case[0], tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=sentence):
        modelc.compile(tmp_path / "m.onnx", output=tmp_path / "p")


@pytest.mark.parametrize("columns", [1, 2])
def test_a_product_of_what_is_repeated_over_the_batch(tmp_path, columns) -> None:
    feeds = {"x": floats(1, 3, 5)}
    nodes = [helper.make_node("Expand", ["x", "s"], ["e"]), helper.make_node("MatMul", ["e", "w"], ["y"])]
    model = model_of(nodes, feeds, ["y"], {"s": whole(2, 3, 5), "w": floats(5, columns)})
    assert not packaged.check(model, feeds, tmp_path)
    for task in tasks_of(model, tmp_path):
        assert chosen(task, packaged.native()).rejected == ()


@pytest.mark.parametrize("opset", [11, 12])
@pytest.mark.parametrize(("inputs", "attrs"), [
    ("X,,scales", {"mode": "nearest"}),
    ("X,,scales", {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    ("X,,,sizes", {"mode": "linear"}),
    ("X,,none,sizes", {"mode": "cubic"}),
])  # fmt: skip
@pytest.mark.sweep(3)
def test_a_resize_may_leave_out_its_region_as_from_operator_set_13_on(tmp_path, opset, inputs, attrs):
    """ONNX Runtime refuses it before: it is compared with that of empty tensors."""
    data = {"scales": np.float32([1, 1, 2, 1.5]), "sizes": np.array([1, 2, 7, 3]), "none": np.zeros(0, np.float32)}
    constants = {k: v for k, v in data.items() if k in inputs.split(",")}
    old, new = (
        model(
            [node("Resize", inputs, "Y", **attrs)],
            [("X", TensorProto.FLOAT, [1, 2, 4, 5])],
            constants=constants,
            opset=k,
        )
        for k in (opset, 13)
    )
    graph, later = imported(old, tmp_path), imported(new, tmp_path)
    feeds = random_feeds(graph)
    assert_same(run_onnx(typed(new, later), feeds), run_onnx(to_onnx(graph), feeds))
    result = modelc.compile(save(old, tmp_path), output=tmp_path / "p", database=False)
    assert result.report.passed and "leave out roi or scales" in result.notes[0]
