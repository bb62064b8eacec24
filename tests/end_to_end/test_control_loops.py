"""Loops that are left to a run: trip counts and conditions that depend on data, bodies too long to be unrolled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from control_models import INFO, B, F, I, agree, body, node, saved
from graph_texts import parse_graph
from onnx import helper
from program_runs import run_program

import modelc
from modelc.errors import ModelError
from modelc.frontend.onnx import import_model, unsupported
from modelc.ir.graph_text import show_graph
from modelc.layout.program import partition
from modelc.ops import MEANINGS, evaluate_graph
from modelc.package import read_package
from modelc.passes import run_passes
from modelc.runtime import ModelError as LoadedError


def counting(path: Path) -> Path:
    """n times (a, b) = (b, tanh(a w + row i + what i inner iterations make of x)) with a factor that is carried as it
    is; then v = 2 v until its sum reaches a limit, counted."""
    rng = np.random.default_rng(0)
    inner = body(
        [
            node("Add", ["c", "x"], ["sum"]),
            node("Mul", ["sum", "half"], ["next"]),
            node("Identity", ["go2"], ["again"]),
        ],
        ["again", "next"],
        (INFO("j", I, []), INFO("go2", B, []), INFO("c", F, None)),
        {"half": np.float32(0.5)},
    )
    outer = body(
        [
            node("Gather", ["table", "i"], ["row"], axis=0),
            node("Loop", ["i", "yes", "b"], ["inside"], "inner", body=inner),
            node("MatMul", ["a", "w"], ["aw"]),
            node("Add", ["aw", "row"], ["with_row"]),
            node("Mul", ["inside", "factor"], ["scaled"]),
            node("Add", ["with_row", "scaled"], ["all"]),
            node("Tanh", ["all"], ["new"]),
            node("Identity", ["b"], ["old"]),
            node("Identity", ["factor"], ["factor_out"]),
            node("Identity", ["go"], ["on"]),
        ],
        ["on", "old", "new", "factor_out"],
        (INFO("i", I, []), INFO("go", B, []), INFO("a", F, None), INFO("b", F, None), INFO("factor", F, None)),
        {"w": rng.standard_normal((4, 4)).astype(np.float32)},
    )
    until = body(
        [
            node("Add", ["v", "v"], ["twice"]),
            node("Add", ["k", "one"], ["k1"]),
            node("ReduceSum", ["twice"], ["s"], keepdims=0),
            node("Less", ["s", "limit"], ["again"]),
        ],
        ["again", "twice", "k1"],
        (INFO("i2", I, []), INFO("go3", B, []), INFO("v", F, None), INFO("k", F, None)),
    )
    nodes = [
        node("Loop", ["n", "yes", "x", "y", "half2"], ["a_end", "b_end", "factor_end"], "count", body=outer),
        node("Loop", ["", "start", "x", "zero"], ["v_end", "k_end"], "until", body=until),
    ]
    weights = {
        "table": rng.standard_normal((6, 4)).astype(np.float32),
        "one": np.float32(1),
        "zero": np.float32(0),
        "half2": np.float32(0.25),
        "yes": np.asarray(True),
    }
    inputs = [INFO("n", I, []), INFO("start", B, []), INFO("limit", F, [])]
    inputs += [INFO(name, F, [2, 4]) for name in ("x", "y")]
    return saved(path, nodes, inputs, ["a_end", "b_end", "factor_end", "v_end", "k_end"], weights)


def feeds(n: int, start: bool = True, limit: float = 1000.0) -> dict[str, Any]:
    rng = np.random.default_rng(abs(n))
    x, y = (rng.uniform(0.1, 1, (2, 4)).astype(np.float32) for _ in range(2))
    return {"n": np.asarray(n), "start": np.asarray(start), "limit": np.asarray(limit, np.float32), "x": x, "y": y}


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("loops")
    model, package = counting(folder / "m.onnx"), folder / "m.modelc"
    result = modelc.compile(model, output=package, database=False, inputs=feeds(3))
    assert result.report is not None and result.report.passed
    return model, package


CASES = [feeds(0), feeds(1, False), feeds(2, True, 0.0), feeds(5, True, 1e6), feeds(6, True, 12.0), feeds(-3)]


def test_loops_run_as_often_as_data_says(loops) -> None:
    model, package = loops
    assert not unsupported(model)
    session = ort.InferenceSession(str(model))
    with modelc.load(package, threads=2) as loaded:
        for case in CASES:
            agree(loaded.run(case), session.run(None, case))
    (plan,) = read_package(package).manifest.variants
    assert len(plan.control) == 3 and len(plan.slots) == 2 * (2 + 1 + 2)


def test_the_interpreter_runs_them_too(loops) -> None:
    graph = import_model(loops[0])
    assert parse_graph(show_graph(graph)) == graph
    program = partition(run_passes(graph))
    session = ort.InferenceSession(str(loops[0]))
    for case in CASES:
        wanted = session.run(None, case)
        agree(evaluate_graph(graph, case), wanted)
        agree(run_program(program, case, MEANINGS), wanted)


def test_an_error_in_an_iteration_ends_the_run_and_the_handle_goes_on(loops) -> None:
    session = ort.InferenceSession(str(loops[0]))
    with modelc.load(loops[1], threads=2) as loaded:
        for _ in range(2):
            with pytest.raises(LoadedError, match=r"is 6; expected a number from -6 to 5"):
                loaded.run(feeds(9))
            agree(loaded.run(CASES[3]), session.run(None, CASES[3]))


def long(path: Path, scan: bool) -> Path:
    """Every sum of the parts of x before it, and the last: as a Loop, or as a Scan along the second dimension that goes
    backwards on both sides."""
    nodes = [node("Add", ["s", "part"], ["s1"]), node("Mul", ["s1", "w"], ["handed"])]
    states = (INFO("s", F, None),)
    weights = {"w": np.float32(3)}
    if scan:
        part = body(nodes, ["s1", "handed"], (*states, INFO("part", F, None)), weights)
        axes = {"scan_input_axes": [1], "scan_input_directions": [1]}
        axes |= {"scan_output_axes": [-1], "scan_output_directions": [1]}
        made = node("Scan", ["h", "x"], ["last", "every"], "long", body=part, num_scan_inputs=1, **axes)
    else:
        nodes = [node("Gather", ["x", "i"], ["part"], axis=1), node("Identity", ["go"], ["on"]), *nodes]
        part = body(nodes, ["on", "s1", "handed"], (INFO("i", I, []), INFO("go", B, []), *states), weights)
        made = node("Loop", ["count", "", "h"], ["last", "every"], "long", body=part)
    inputs = [INFO("h", F, [2, 3]), INFO("x", F, [2, 30, 3])]
    return saved(path, [made], inputs, ["last", "every"], {"count": np.asarray(30)})


@pytest.mark.parametrize("scan", [False, True])
def test_what_is_too_long_to_be_unrolled_is_left_to_a_run(tmp_path, monkeypatch, scan) -> None:
    path = long(tmp_path / "m.onnx", scan)
    rng = np.random.default_rng(1)
    case = {
        "h": rng.standard_normal((2, 3)).astype(np.float32),
        "x": rng.standard_normal((2, 30, 3)).astype(np.float32),
    }
    wanted = ort.InferenceSession(str(path)).run(None, case)
    assert not any(n.bodies for n in import_model(path).nodes)
    monkeypatch.setattr("modelc.frontend.control.unroll.MOST_UNROLLED", 50)
    graph = import_model(path)
    assert [len(n.bodies) for n in graph.nodes if n.bodies] == [1]
    agree(evaluate_graph(run_passes(graph), case), wanted)
    modelc.compile(path, output=tmp_path / "p", verify=False, database=False)
    with modelc.load(tmp_path / "p") as loaded:
        agree(loaded.run(case), wanted)


def test_what_cannot_be_left_to_a_run_says_what_to_type(tmp_path) -> None:
    path = counting(tmp_path / "m.onnx")
    model = onnx.load(path)
    first = model.graph.node[0]
    graph = next(a.g for a in first.attribute if a.name == "body")
    graph.node.append(helper.make_node("Neg", ["new"], ["handed"]))
    graph.output.append(INFO("handed", F, None))
    first.output.append("every")
    model.graph.output.append(INFO("every", F, None))
    onnx.save(model, path)
    assert [row[:2] for row in unsupported(path)] == [("count", "Loop")]
    with pytest.raises(ModelError, match=r"the length of what it hands out.*--constant n=VALUE") as refused:
        import_model(path)
    assert str(refused.value).count("--constant") == 1
    assert len([n for n in import_model(path, constants={"n": np.asarray(2)}).nodes if n.bodies]) == 1
    del graph.output[-1], first.output[-1], model.graph.output[-1]
    graph.output[2].name = "grown"
    graph.node[-1].CopyFrom(helper.make_node("Concat", ["new", "new"], ["grown"], axis=0))
    onnx.save(model, path)
    with pytest.raises(ModelError, match=r"takes float32\[2, 4\] and gives float32\[4, 4\].*--constant n=VALUE"):
        import_model(path)
