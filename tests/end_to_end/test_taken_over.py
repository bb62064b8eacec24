"""What an importer misreads of an ONNX file's constants is found by comparing these, whatever samples read of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from classical_models import ML, ml
from control_models import branching
from node_models import model_of
from onnx import TensorProto, helper, numpy_helper

import modelc
from modelc.errors import VerificationError
from modelc.frontend.load import importing
from modelc.frontend.onnx import import_model
from modelc.verify.kernels.imported import taken_over
from modelc.verify.kernels.report import TakenOver

node = helper.make_node
RNG = np.random.default_rng(0)
X = np.zeros((3, 8), np.float32)
WEIGHTS = RNG.standard_normal((8, 8)).astype(np.float32)
Build = Callable[[bool], onnx.ModelProto]


def changed(numbers: np.ndarray, wrong: bool, place: Any = (5, 3)) -> np.ndarray:
    """The numbers, of which one is another where they are `wrong`."""
    other = numbers.copy()
    if wrong:
        other[place] = other[place] * 0.5 + np.asarray(3).astype(other.dtype)
    return other


def compared(folder: Path, build: Build, external: bool = False, imported: str = "wrong") -> TakenOver:
    """The right model, of which the importer read the wrong one, or the one named."""
    for wrong, name in enumerate(("right", "wrong")):
        data = {"save_as_external_data": True, "location": f"{name}.bin", "size_threshold": 0} if external else {}
        onnx.save(build(bool(wrong)), folder / f"{name}.onnx", **data)
    return taken_over([import_model(folder / f"{imported}.onnx")], folder / "right.onnx")


# --- initializers and Constants -----------------------------------------------------------------------------------


def product(dtype: Any) -> Build:
    def build(wrong: bool) -> onnx.ModelProto:
        weights = changed(WEIGHTS.astype(dtype), wrong)
        return model_of([node("MatMul", ["x", "w"], ["y"])], {"x": X.astype(dtype)}, {"": 21}, w=weights)

    return build


def convolution(wrong: bool) -> onnx.ModelProto:
    weights = changed(RNG.standard_normal((4, 2, 3, 3)).astype(np.float32) * 0 + 1, wrong, (3, 1, 2, 0))
    return model_of([node("Conv", ["x", "w"], ["y"])], {"x": np.zeros((1, 2, 8, 8), np.float32)}, {"": 21}, w=weights)


def rows(wrong: bool, table: np.ndarray = WEIGHTS, place: tuple[int, int] = (5, 3)) -> onnx.ModelProto:
    gather, indices = node("Gather", ["w", "i"], ["y"]), {"i": np.zeros(2, np.int64)}
    return model_of([gather], indices, {"": 21}, w=changed(table, wrong, place))


def nibbles(wrong: bool) -> onnx.ModelProto:
    numbers = np.arange(-8, 8).repeat(4).reshape(8, 8)
    numbers[5, 3] = -3 if wrong else 3
    nodes = [node("DequantizeLinear", ["w", "s"], ["d"]), node("MatMul", ["x", "d"], ["y"])]
    return model_of(nodes, {"x": X}, {"": 21}, w=numbers.astype(ml_dtypes.int4), s=np.float32(0.1))


def constant(wrong: bool) -> onnx.ModelProto:
    made = node("Constant", [], ["w"], value=numpy_helper.from_array(changed(WEIGHTS, wrong)))
    return model_of([made, node("Add", ["x", "w"], ["y"])], {"x": WEIGHTS}, {"": 21})


def copied(wrong: bool) -> onnx.ModelProto:
    """The importer has the copy alone."""
    nodes = [node("Identity", ["v"], ["u"]), node("Identity", ["u"], ["w"]), node("MatMul", ["x", "w"], ["y"])]
    return model_of(nodes, {"x": X}, {"": 21}, v=changed(WEIGHTS, wrong))


def zero(wrong: bool) -> onnx.ModelProto:
    numbers = np.array([1.0, np.nan, 2.0], np.float32)
    return model_of([node("Add", ["x", "w"], ["y"])], {"x": X[:, :3]}, {"": 21}, w=changed(numbers, wrong, 2))


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize(
    ("build", "size"),
    [
        (product(np.float32), 64),
        (product(np.float16), 64),
        (product(ml_dtypes.bfloat16), 64),
        (convolution, 72),
        (rows, 64),
        (nibbles, 64),
        (constant, 64),
        (copied, 64),
        (zero, 3),
    ],
)
def test_one_element_is_found(tmp_path: Path, build: Build, size: int, external: bool) -> None:
    """And the ordinary paths are compared at all."""
    right = compared(tmp_path, build, external, "right")
    assert right.elements >= size and right.compared >= 1 and not right.fault
    assert f"'w' has 1 of {size} elements that are not the model's" in compared(tmp_path, build, external).fault


def test_large_tensors_are_read_in_their_place(tmp_path: Path) -> None:
    """From 1 MB on they are read out of the file without the rest of it."""
    table = RNG.standard_normal((3000, 120)).astype(np.float32)

    def build(wrong: bool) -> onnx.ModelProto:
        return rows(wrong, table, (2999, 119))

    assert compared(tmp_path, build, imported="right") == TakenOver(1, table.size)
    assert "at [2999, 119]" in compared(tmp_path, build).fault


def test_constants_of_branches_are_compared(tmp_path: Path) -> None:
    model = branching(tmp_path / "right.onnx")
    other = onnx.load(model)
    graph = next(a.g for n in other.graph.node if n.op_type == "If" for a in n.attribute if a.name == "else_branch")
    (weights,) = (tensor for tensor in graph.initializer if tensor.name == "inside")
    weights.CopyFrom(numpy_helper.from_array(changed(numpy_helper.to_array(weights), True, (2, 2)), "inside"))
    onnx.save(other, tmp_path / "wrong.onnx")
    assert not taken_over([import_model(model)], model).fault
    fault = taken_over([import_model(tmp_path / "wrong.onnx")], model).fault
    assert "'choose/else_branch/inside' has 1 of 16 elements" in fault


def test_names_of_what_no_output_needs_say_nothing(tmp_path: Path) -> None:
    """The importer may take them for constants of its own."""
    nodes = [
        node("Reshape", ["x", "shape"], ["y"]),
        node("Constant", [], ["y_shape"], value=numpy_helper.from_array(np.array([7, 7]))),
    ]
    model = model_of(nodes, {"x": X}, {"": 21}, shape=np.array([4, -1]))
    del model.graph.output[1:]
    onnx.save(model, tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    assert "y_shape" in graph.values
    assert taken_over([graph], tmp_path / "m.onnx") == TakenOver()


# --- attributes ---------------------------------------------------------------------------------------------------


def test_real_attributes_are_compared(tmp_path: Path) -> None:
    def build(wrong: bool) -> onnx.ModelProto:
        norm = node("LayerNormalization", ["x", "s"], ["y"], "norm", epsilon=2e-5 if wrong else 1e-5)
        return model_of([norm], {"x": X}, {"": 21}, s=WEIGHTS[0])

    assert compared(tmp_path, build, imported="right") == TakenOver(2, 9)
    assert "attribute epsilon of node 'norm' is 2e-05, expected 1e-05" in compared(tmp_path, build).fault


KEYED: dict[str, Any] = {
    "nodes_treeids": [3, 3, 3, 1, 1, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 0, 4, 3, 2, 1],
    "nodes_featureids": [2, 0, 0, 5, 0, 0, 1, 0],
    "nodes_values": [0.5, 0.0, 0.0, -1.0, 0.0, 0.0, 1.5, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_GT", "LEAF"],
    "nodes_truenodeids": [1, 0, 0, 1, 0, 0, 3, 0],
    "nodes_falsenodeids": [2, 0, 0, 2, 0, 0, 4, 0],
    "target_treeids": [1, 3, 1, 3, 1, 1],
    "target_nodeids": [1, 1, 3, 2, 4, 4],
    "target_ids": [0, 1, 0, 0, 0, 1],
    "target_weights": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "n_targets": 2,
}
NUMBERED: dict[str, Any] = {
    "n_targets": 2,
    "tree_roots": [0, 2],
    "nodes_featureids": [2, 1, 5],
    "nodes_modes": np.array([0, 3, 0], np.uint8),
    "nodes_splits": np.array([0.5, 1.5, -1.0], np.float32),
    "nodes_truenodeids": [1, 0, 2],
    "nodes_trueleafs": [0, 1, 1],
    "nodes_falsenodeids": [3, 1, 4],
    "nodes_falseleafs": [1, 1, 1],
    "leaf_targetids": [0, 1, 0, 1, 0],
    "leaf_weights": np.array([1.0, 2.0, 3.0, 4.0, 5.0], np.float32),
}


@pytest.mark.parametrize(
    ("attrs", "change", "sentence"),
    [
        (KEYED, {"nodes_values": (6, 1.25)}, "the split 1.25 in tree node 6, expected 1.5"),
        (KEYED, {"nodes_featureids": (6, 4)}, "the feature 4 in tree node 6, expected 1"),
        (KEYED, {"nodes_modes": (6, "BRANCH_GTE")}, "the mode GTE in tree node 6, expected GT"),
        (
            KEYED,
            {"nodes_falsenodeids": (3, 1), "nodes_truenodeids": (3, 2)},
            "the mode LEAF in tree node 6, expected GT",
        ),
        (KEYED, {"target_weights": (4, 5.5)}, "the weight 5.5 in tree node 4, expected 5"),
        (KEYED, {"target_ids": (4, 1)}, "the target 1 in tree node 4, expected 0"),
        (KEYED, {"target_nodeids": (5, 3)}, "the number of weights 1 in tree node 4, expected 2"),
        (NUMBERED, {"nodes_splits": (1, 1.25)}, "the split 1.25 in tree node 1, expected 1.5"),
        (NUMBERED, {"leaf_weights": (3, 9.0)}, "the weight 9.0 in tree node 6, expected 4"),
        (NUMBERED, {"nodes_trueleafs": (0, 1)}, "the mode LEAF in tree node 1, expected GT"),
        (NUMBERED, {"tree_roots": (1, 1)}, "the mode GT in tree node 2, expected LEQ"),
    ],
)
def test_an_element_of_a_table_of_trees_is_found(tmp_path: Path, attrs: dict, change: dict, sentence: str) -> None:
    def build(wrong: bool) -> onnx.ModelProto:
        given = {name: value.copy() if isinstance(value, np.ndarray | list) else value for name, value in attrs.items()}
        for name, (place, value) in change.items() if wrong else ():
            given[name][place] = value
        tensors = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}
        op = "TreeEnsemble" if attrs is NUMBERED else "TreeEnsembleRegressor"
        return model_of([ml(op, "x", "y", **tensors)], {"x": X}, {"": 18, ML: 5 if attrs is NUMBERED else 3})

    right = compared(tmp_path, build, imported="right")
    assert right.compared == 1 and not right.fault
    assert sentence in compared(tmp_path, build).fault


@pytest.mark.parametrize(
    ("op", "name", "attrs"),
    [
        ("LabelEncoder", "keys_int64s", {"keys_int64s": [3, 1, 2], "values_floats": [0.5, 1.5, 2.5]}),
        ("LabelEncoder", "values_floats", {"keys_int64s": [3, 1, 2], "values_floats": [0.5, 1.5, 2.5]}),
        ("OneHotEncoder", "cats_int64s", {"cats_int64s": [4, 0, 2]}),
        ("LinearRegressor", "coefficients", {"coefficients": [1.0, 2.0, 3.0], "intercepts": [0.5]}),
    ],
)
def test_an_element_of_another_table_is_found(tmp_path: Path, op: str, name: str, attrs: dict[str, Any]) -> None:
    samples = X[:, :3].astype(np.float32 if op == "LinearRegressor" else np.int64)

    def build(wrong: bool) -> onnx.ModelProto:
        given = {**attrs, name: [attrs[name][0], 9, *attrs[name][2:]] if wrong else attrs[name]}
        given[name] = [type(attrs[name][0])(x) for x in given[name]]
        return model_of([ml(op, "x", "y", **given)], {"x": samples}, {"": 18, ML: 3})

    right = compared(tmp_path, build, imported="right")
    assert right.compared == len(attrs) and not right.fault
    assert "of node 'y' has 1 of 3 elements" in compared(tmp_path, build).fault


# --- as packages are compiled and verified ------------------------------------------------------------------------


def test_a_row_that_no_sample_reads_is_refused_where_it_is_misread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = RNG.standard_normal((20_000, 4)).astype(np.float32)
    model = model_of(
        [node("Gather", ["table", "i"], ["r"]), node("MatMul", ["r", "w"], ["y"])],
        {"i": np.zeros(3, np.int64)},
        {"": 21},
        table=table,
        w=RNG.standard_normal((4, 4)).astype(np.float32),
    )
    onnx.save(model, tmp_path / "m.onnx")
    report = modelc.compile(tmp_path / "m.onnx", output=tmp_path / "m.modelc", database=False).report
    assert report is not None and report.to_json()["summary"]["imported"] == {"compared": 2, "elements": 80_016}
    assert modelc.verify(tmp_path / "m.modelc", tmp_path / "m.onnx").imported == TakenOver(2, 80_016)
    read = importing.tensor_array

    def misread(tensor: TensorProto, folder: Path) -> np.ndarray:
        return changed(read(tensor, folder), tensor.name == "table", (12_345, 2))

    monkeypatch.setattr(importing, "tensor_array", misread)
    with pytest.raises(VerificationError, match=r"constant 'table' has 1 of 80,000 .* at \[12345, 2\]"):
        modelc.compile(tmp_path / "m.onnx", output=tmp_path / "n.modelc", database=False)
