"""Loops whose trip count is known when compiling, short ones and long ones: compiled packages beside ONNX Runtime, and
what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from control_models import INFO, B, F, I, saved
from onnx import helper, numpy_helper

import modelc
from modelc.errors import ModelError
from modelc.frontend.onnx import import_model, unsupported


def agrees(path: Path, feeds: dict[str, Any], constants: dict[str, Any] | None = None) -> dict[str, np.ndarray]:
    """The outputs of the compiled package, which were compared with ONNX Runtime's on the same data."""
    place = path.with_suffix(".modelc")
    result = modelc.compile(path, output=place, constants=constants, inputs=feeds)
    assert result.report is not None and result.report.passed and result.report.outputs
    with modelc.load(place) as model:
        found = model.run(feeds)
    wanted = ort.InferenceSession(str(path)).run(list(found), {**feeds, **(constants or {})})
    for name, array in zip(found, wanted, strict=True):
        assert found[name].shape == array.shape
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    return found


def looped(path: Path, limit: float = np.inf, count_is_input: bool = False, negated: bool = False) -> Path:
    """h' = tanh(h w + x[i]) up to `n` times or until i reaches `limit`: h, its last value, and all of them. The body
    has a weight of its own, reads x from outside, and chooses by the number of the iteration."""
    odd = helper.make_graph([helper.make_node("Neg", ["t"], ["minus"])], "odd", [], [INFO("minus", F, None)])
    even = helper.make_graph([helper.make_node("Identity", ["t"], ["plus"])], "even", [], [INFO("plus", F, None)])
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["x", "i"], ["row"], axis=0),
            helper.make_node("MatMul", ["h", "w"], ["hw"]),
            helper.make_node("Add", ["hw", "row"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["t"]),
            helper.make_node("Mod", ["i", "two"], ["rest"]),
            helper.make_node("Cast", ["rest"], ["is_odd"], to=B),
            helper.make_node("If", ["is_odd"], ["next"], then_branch=odd, else_branch=even),
            helper.make_node("Cast", ["i"], ["number"], to=F),
            helper.make_node("Less", ["number", "limit"], ["again"]),
        ],
        "body",
        [INFO("i", I, []), INFO("go", B, []), INFO("h", F, None)],
        [INFO("again", B, []), INFO("next", F, None), INFO("next2", F, None)],
        [numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32), "w")],
    )
    body.node.append(helper.make_node("Identity", ["next"], ["next2"]))
    nodes = [helper.make_node("Loop", ["n", "yes", "h0"], ["last", "every"], "loop", body=body)]
    inputs = [INFO("x", F, [7, 4]), INFO("h0", F, [2, 4])] + [INFO("n", I, [])] * count_is_input
    weights = {"two": np.asarray(2), "limit": np.float32(limit), "yes": np.asarray(not negated)}
    if not count_is_input:
        weights["n"] = np.asarray(7)
    return saved(path, nodes, inputs, ["last", "every"], weights)


def feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {"x": rng.standard_normal((7, 4)).astype(np.float32), "h0": rng.standard_normal((2, 4)).astype(np.float32)}


@pytest.mark.parametrize(("limit", "count"), [(np.inf, 7), (3, 4)])
def test_a_loop_runs_until_its_count_or_its_condition_ends_it(tmp_path, limit, count) -> None:
    assert agrees(looped(tmp_path / "m.onnx", limit), feeds())["every"].shape == (count, 2, 4)


def test_a_trip_count_that_is_an_input_is_asked_for_and_can_be_fixed(tmp_path) -> None:
    path = looped(tmp_path / "m.onnx", count_is_input=True)
    assert [row[1] for row in unsupported(path)] == ["Loop"]
    with pytest.raises(ModelError, match=r"how often it runs at most depends on data.*--constant n=VALUE"):
        import_model(path)
    assert agrees(path, feeds(), {"n": np.asarray(5)})["every"].shape == (5, 2, 4)


def test_a_loop_that_runs_no_time_hands_over_what_it_was_given(tmp_path) -> None:
    path = looped(tmp_path / "m.onnx", negated=True)
    outputs = agrees(path, feeds())
    assert outputs["every"].size == 0
    np.testing.assert_array_equal(outputs["last"], feeds()["h0"])
    model = onnx.load(path)
    del model.graph.output[1]
    del model.graph.node[0].output[1]
    del model.graph.node[0].attribute[0].g.output[2]
    onnx.save(model, path)
    np.testing.assert_array_equal(agrees(path, feeds())["last"], feeds()["h0"])


@pytest.mark.parametrize(
    ("trips", "condition"), [(0, None), (-2, None), (0, True), (3, False), (None, False), (0, "c")]
)
@pytest.mark.parametrize("shape", [(), (2, 3), (2, "free"), None], ids=str)
@pytest.mark.sweep(3)
def test_a_loop_of_no_iterations_is_what_it_is_in_onnx_runtime(tmp_path, trips, condition, shape) -> None:
    """Scalars too; dimensions that the body leaves open are 0 in what it hands out."""
    nodes = [
        helper.make_node("Identity", ["go"], ["on"]),
        helper.make_node("Add", ["h", "one"], ["next"]),
        helper.make_node("Mul", ["h", "h"], ["out"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [INFO("i", I, []), INFO("go", B, []), INFO("h", F, shape)],
        [INFO("on", B, []), INFO("next", F, shape), INFO("out", F, shape)],
    )
    steers = {name: x for name, x in (("n", trips), ("c", condition)) if x is not None}
    given = [name if name in steers else "" for name in "nc"]
    loop = helper.make_node("Loop", [*given, "x"], ["last", "every"], "loop", body=body)
    total = helper.make_node("ReduceSum", ["every"], ["total"], keepdims=0)
    known = {"n": np.asarray(2, np.int64), "c": np.asarray(True)}
    size = [2, 3] if shape != () else []
    computed = [name for name, x in steers.items() if isinstance(x, str)]
    inputs = [INFO("x", F, size), *(INFO(name, B, []) for name in computed)]
    weights = {n: np.asarray(x, known[n].dtype) for n, x in steers.items() if n not in computed}
    weights["one"] = np.asarray(1, np.float32)
    path = saved(tmp_path / "m.onnx", [loop, total], inputs, ["last", "every", "total"], weights)
    data = {"x": np.full(size, 3, np.float32), **{name: known[name] for name in computed}}
    outputs = agrees(path, data)
    assert outputs["last"].shape == tuple(size) and outputs["every"].size == 0 and outputs["total"] == 0


def test_what_a_loop_of_no_iterations_hands_out_needs_a_type(tmp_path) -> None:
    path = looped(tmp_path / "m.onnx", negated=True)
    model = onnx.load(path)
    model.graph.node[0].attribute[0].g.output[2].ClearField("type")
    onnx.save(model, path)
    with pytest.raises(ModelError, match="it runs no time, and its body does not declare the type of"):
        import_model(path)


def test_loops_without_end_and_of_too_many_nodes_are_refused(tmp_path, monkeypatch) -> None:
    for name in ("MOST_UNROLLED", "MOST_FORESEEN"):
        monkeypatch.setattr(f"modelc.frontend.control.unroll.{name}", 60)
    path = looped(tmp_path / "m.onnx")
    assert [n.op for n in import_model(path).nodes].count("Loop") == 1  # of a trip count that is known: left to a run
    model = onnx.load(path)
    model.graph.node[0].input[0] = ""
    onnx.save(model, path)
    with pytest.raises(ModelError, match=r"more than 60 nodes \(MOST_UNROLLED\)"):
        import_model(path)


def test_what_a_body_lacks_is_said_once(tmp_path) -> None:
    path = looped(tmp_path / "m.onnx")
    model = onnx.load(path)
    model.graph.node[0].attribute[0].g.node[3].op_type = "Nonsense"
    model.graph.node[0].attribute[0].g.node[3].domain = "none"
    model.opset_import.append(helper.make_opsetid("none", 1))
    onnx.save(model, path)
    with pytest.raises(ModelError, match="has 1 node") as error:
        import_model(path)
    assert str(error.value).count("(none.Nonsense)") == 1


@pytest.mark.parametrize("backwards", [0, 1])
def test_a_scan_along_any_axis_and_direction(tmp_path, backwards) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "a"], ["sum"]),
            helper.make_node("Mul", ["sum", "b"], ["product"]),
            helper.make_node("Sigmoid", ["sum"], ["s2"]),
        ],
        "body",
        [INFO("s", F, [3]), INFO("a", F, [3]), INFO("b", F, [3])],
        [INFO("s2", F, [3]), INFO("product", F, [3]), INFO("sum", F, [3])],
    )
    attrs = {
        "num_scan_inputs": 2,
        "scan_input_axes": [1, -2],
        "scan_input_directions": [backwards, 0],
        "scan_output_axes": [-1, 0],
        "scan_output_directions": [0, backwards],
    }
    nodes = [helper.make_node("Scan", ["s0", "A", "B"], ["s", "P", "S"], "scan", body=body, **attrs)]
    inputs = [INFO("s0", F, [3]), INFO("A", F, [3, 5]), INFO("B", F, [5, 3])]
    path = saved(tmp_path / "m.onnx", nodes, inputs, ["s", "P", "S"], {})
    rng = np.random.default_rng(0)
    shapes = {"s0": (3,), "A": (3, 5), "B": (5, 3)}
    found = agrees(path, {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})
    assert found["P"].shape == (3, 5) and found["S"].shape == (5, 3)


def test_a_scan_of_more_outputs_than_its_body(tmp_path) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "a"], ["s2"])], "body", [INFO("s", F, []), INFO("a", F, [])], [INFO("s2", F, [])]
    )
    nodes = [helper.make_node("Scan", ["s0", "A"], ["s", "P"], "scan", body=body, num_scan_inputs=1)]
    path = saved(tmp_path / "m.onnx", nodes, [INFO("s0", F, []), INFO("A", F, [5])], ["s"], {})
    with pytest.raises(ModelError, match="expected at most the 1 outputs of its body, found 2"):
        import_model(path)


# --- long ones ------------------------------------------------------------------------------------------------------

T, WIDTH = 300, 4


def recurrent(path: Path, fixed: bool) -> Path:
    """A recurrent network in a loop as TensorFlow writes it: it counts by itself, and goes on while the count is below
    T. What it carries has a shape that is computed of a state which never changes. `fixed`: a row is the last of all up
    to it, whose number has to be known."""
    rng = np.random.default_rng(2)
    node = helper.make_node
    if fixed:
        row = [
            node("Unsqueeze", ["t1", "zero"], ["end"]),
            node("Slice", ["x", "zero", "end"], ["part"]),
            node("Gather", ["part", "last_one"], ["row"], axis=0),
        ]
    else:
        row = [
            node("Unsqueeze", ["t", "zero"], ["begin"]),
            node("Unsqueeze", ["t1", "zero"], ["end"]),
            node("Slice", ["x", "begin", "end"], ["part"]),
            node("Squeeze", ["part", "zero"], ["row"]),
        ]
    body = helper.make_graph(
        [
            node("Add", ["t", "one"], ["t1"]),
            node("Less", ["t1", "most"], ["again"]),
            *row,
            node("Max", ["size", "size"], ["size1"]),
            node("Reshape", ["row", "size1"], ["row1"]),
            node("MatMul", ["h", "w"], ["hw"]),
            node("Add", ["hw", "row1"], ["sum"]),
            node("Tanh", ["sum"], ["h1"]),
            node("Mul", ["h1", "half"], ["each"]),
        ],
        "body",
        [INFO("i", I, []), INFO("go", B, []), INFO("t", I, []), INFO("size", I, [2]), INFO("h", F, None)],
        [INFO("again", B, []), *(INFO(n, F, None) for n in ("t1", "size1", "h1", "each"))],
    )
    for k in (1, 2):
        body.output[k].type.tensor_type.elem_type = I
    constants = {
        "w": rng.standard_normal((WIDTH, WIDTH)).astype(np.float32),
        "half": np.float32(0.5),
        "zero": np.array([0]),
        "last_one": np.asarray(-1),
        "one": np.asarray(1),
        "most": np.asarray(T),
        "begun": np.asarray(0),
        "shape": np.array([1, WIDTH]),
        "yes": np.asarray(True),
    }
    outputs = ["counted", "same", "last", "every"]
    nodes = [node("Loop", ["", "yes", "begun", "shape", "h0"], outputs, "while", body=body)]
    path = saved(path, nodes, [INFO("x", F, [T, WIDTH]), INFO("h0", F, [1, WIDTH])], outputs, constants)
    model = onnx.load(path)
    for k in (0, 1):
        model.graph.output[k].type.tensor_type.elem_type = I
    onnx.save(model, path)
    return path


def test_a_long_loop_is_one_in_the_package(tmp_path) -> None:
    """Its condition is computed beforehand; what never changes is known in its body, and a part begins where it
    counts."""
    path = recurrent(tmp_path / "m.onnx", False)
    (loop,) = [n for n in import_model(path).nodes if n.op == "Loop"]
    assert loop.attrs["limit"] == T and not loop.attrs["asks"] and loop.attrs["states"] == 2
    assert "Reshape" in [n.op for n in loop.bodies[0].nodes] and "Max" not in [n.op for n in loop.bodies[0].nodes]
    rng = np.random.default_rng(3)
    data = {"x": rng.standard_normal((T, WIDTH)).astype(np.float32), "h0": np.ones((1, WIDTH), np.float32)}
    found = agrees(path, data)
    assert found["every"].shape == (T, 1, WIDTH) and int(found["counted"]) == T


def test_what_needs_numbers_that_are_known_is_unrolled(tmp_path) -> None:
    nodes = [n.op for n in import_model(recurrent(tmp_path / "m.onnx", True)).nodes]
    assert "Loop" not in nodes and nodes.count("Tanh") == T


def test_what_is_computed_of_constants_is_none_of_the_package(tmp_path) -> None:
    path = recurrent(tmp_path / "m.onnx", True)
    constants = {"x": np.ones((T, WIDTH), np.float32), "h0": np.ones((1, WIDTH), np.float32)}
    graph = import_model(path, constants=constants)
    assert {n.op for n in graph.nodes} == {"Identity"} and graph.value("every").shape == (T, 1, WIDTH)


@pytest.mark.parametrize("back", [0, 1])
def test_a_long_scan_is_a_loop(tmp_path, back) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["s", "half"], ["f"]),
            helper.make_node("Add", ["f", "a"], ["s2"]),
            helper.make_node("Tanh", ["s2"], ["t"]),
        ],
        "body",
        [INFO("s", F, [3]), INFO("a", F, [3])],
        [INFO("s2", F, [3]), INFO("t", F, [3])],
    )
    attrs = {"num_scan_inputs": 1, "scan_input_axes": [1], "scan_input_directions": [back], "scan_output_axes": [1]}
    nodes = [helper.make_node("Scan", ["s0", "A"], ["s", "P"], "scan", body=body, **attrs)]
    inputs = [INFO("s0", F, [3]), INFO("A", F, [3, T])]
    path = saved(tmp_path / "m.onnx", nodes, inputs, ["s", "P"], {"half": np.float32(0.5)})
    assert "Loop" in [n.op for n in import_model(path).nodes]
    rng = np.random.default_rng(4)
    data = {"s0": rng.standard_normal(3).astype(np.float32), "A": rng.standard_normal((3, T)).astype(np.float32)}
    assert agrees(path, data)["P"].shape == (3, T)
