"""Variants of a package read one stored form of a weight where that costs next to nothing by estimate; where it would
cost more, the weight is stored in several, and nobody is slower for it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import modelc
from modelc.package import read_package
from modelc.space import shared_packing
from modelc.space.shared_packing import Reader, _assigned

DEPTH = 192


def products(path: Path, layers: int = 2) -> np.ndarray:
    """Matrix products one after the other over any number of rows; the first one's weights."""
    rng = np.random.default_rng(0)
    weights = [(rng.standard_normal((DEPTH, DEPTH)) / DEPTH**0.5).astype("f4") for _ in range(layers)]
    nodes, last = [], "x"
    for k in range(layers):
        nodes.append(helper.make_node("MatMul", [last, f"w{k}"], [f"m{k}"]))
        last = "y" if k == layers - 1 else f"r{k}"
        nodes.append(helper.make_node("Relu", [f"m{k}"], [last]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", DEPTH]) for name in "xy")
    initializers = [numpy_helper.from_array(w, f"w{k}") for k, w in enumerate(weights)]
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return weights[0]


def copies(package: Path, weight: np.ndarray) -> int:
    """How often a number that occurs once in a weight is in the parameters."""
    values, counts = np.unique(weight, return_counts=True)
    content = np.fromfile(package / "params.bin", np.float32)
    return int((content == values[counts == 1][0]).sum())


@pytest.mark.parametrize("rows, stored", [((6, 48), 1), ((4, 48), 2)])
def test_a_weight_is_stored_once_where_that_costs_next_to_nothing(tmp_path, rows, stored) -> None:
    """Six rows are best multiplied by three vectors of a panel, which leaves registers empty at 48, where it is two."""
    weight = products(tmp_path / "m.onnx")
    result = modelc.compile(
        tmp_path / "m.onnx", "x86-64-v3", tmp_path / "m.modelc", dims={"rows": rows}, database=False
    )
    assert result.report.passed and len(read_package(result.path).manifest.variants) == len(rows)
    assert copies(result.path, weight) == stored
    assert result.params_bytes == stored * 2 * weight.nbytes
    found = json.loads(json.dumps(result.to_json()))["agreement"]
    assert found["several_bytes"] == (stored - 1) * 2 * weight.nbytes
    assert (found["constants"], found["saved_bytes"]) == ((2, 2 * weight.nbytes) if stored == 1 else (0, 0))
    assert len(found["slower"]) == len(rows) and all(0 <= part <= shared_packing.SHARE for part in found["slower"])
    assert any(found["slower"]) == (stored == 1)
    again = modelc.compile(
        tmp_path / "m.onnx", output=tmp_path / "again.modelc", choices=result.path / "choices.json", verify=False
    )
    assert (again.path / "params.bin").read_bytes() == (result.path / "params.bin").read_bytes()


def test_nothing_is_given_up_for_nothing(tmp_path, monkeypatch) -> None:
    """Without a share to give, every Task has the schedule that it has by itself."""
    weight = products(tmp_path / "m.onnx")
    monkeypatch.setattr(shared_packing, "SHARE", 0.0)
    options = {"dims": {"rows": (6, 48)}, "database": False, "verify": False}
    result = modelc.compile(tmp_path / "m.onnx", "x86-64-v3", tmp_path / "m.modelc", **options)
    assert copies(result.path, weight) == 2 and not any(result.shared_packing.slower)
    tasks = json.loads((result.path / "choices.json").read_text())["tasks"]
    alone = {}
    for rows in (6, 48):
        one = modelc.compile(
            tmp_path / "m.onnx", "x86-64-v3", tmp_path / f"{rows}.modelc", **options | {"dims": {"rows": rows}}
        )
        assert copies(one.path, weight) == 1 and one.shared_packing.constants == 0
        alone |= json.loads((one.path / "choices.json").read_text())["tasks"]
    assert tasks == alone and len(tasks) >= 2


A, B, C = (frozenset({(0, (name,))}) for name in "abc")


def test_the_form_is_chosen_for_all_together() -> None:
    """Of the forms that the most can read the one of the least sum; who would lose too much keeps its own."""
    readers = {key: Reader(None, {}, {k: 1}) for k, key in enumerate("xyz")}
    offers = {
        "x": {A: (None, 0.0), B: (None, 3.0), C: (None, 1.0)},
        "y": {A: (None, 4.0), B: (None, 0.0), C: (None, 1.0)},
        "z": {B: (None, 0.0), C: (None, 0.5)},
    }
    assert [*_assigned(readers, "xyz", offers, [9.0] * 3)] == [(C, ["z", "x", "y"])]  # nobody's best, and 2.5 in all
    assert [*_assigned(readers, "xyz", offers, [9.0, 0.5, 0.0])] == [(B, ["y", "z", "x"])]
    assert [*_assigned(readers, "xyz", offers, [2.0, 0.5, 0.0])] == [(B, ["y", "z"]), (A, ["x"])]
    same = {key: Reader(None, {}, {0: 2}) for key in "xyz"}  # three Tasks of one Program, twice each
    assert [*_assigned(same, "xyz", offers, [5.0])] == [(C, ["z", "x", "y"])]
    assert [*_assigned(same, "xyz", offers, [4.9])] == [(B, ["y", "z"]), (A, ["x"])]


def test_variants_share_parameters_and_kernels(tmp_path) -> None:
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype("f4")
    nodes = [
        helper.make_node("MatMul", ["style", "w"], ["s"]),
        helper.make_node("Tanh", ["s"], ["t"]),
        helper.make_node("Add", ["x", "t"], ["y"]),
    ]
    shapes = {"x": ["seq", 64], "style": [1, 64], "y": ["seq", 64]}
    x, style, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in shapes.items())
    graph = helper.make_graph(nodes, "g", [x, style], [y], [numpy_helper.from_array(weight, "w")])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    modelc.compile(path, output=tmp_path / "p", dims={"seq": (3, 5, 9)}, verify=False, database=False)
    manifest = read_package(tmp_path / "p").manifest
    every = [{step.symbol for step in plan.steps} for plan in manifest.variants]
    assert [len(steps) for steps in every] == [2] * 3 and len(set[str]().union(*every)) == 1 + 3
    assert manifest.files["params.bin"].bytes == 64 * 64 * 4
