"""Control flow that a run decides: compiled packages and the interpreter beside ONNX Runtime."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort
import pytest
from control_models import INFO, B, F, I, agree, body, branching, node, saved
from graph_texts import parse_graph
from library_of import library_of
from onnx import GraphProto
from program_runs import run_program

import modelc
from modelc.errors import InputError, ModelError, PackageError
from modelc.frontend.onnx import import_model, unsupported
from modelc.ir.graph_text import show_graph
from modelc.layout.program import partition
from modelc.ops import MEANINGS, evaluate_graph
from modelc.package import TensorInfo, read_package
from modelc.package.manifest import NAME
from modelc.package.spec import Argument, Branch, Plan, Repeat, Step
from modelc.passes import run_passes
from modelc.runtime import ModelError as LoadedError
from modelc.verify.profile import profile
from modelc.verify.report import Report
from modelc.verify.ways import deciding, least_samples, not_run


def three_ways(seed: int, index: int = 2) -> list[dict[str, np.ndarray]]:
    """Inputs that take the first branch, and both ways through the second."""
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_normal((3, 4)).astype(np.float32) for _ in range(2))
    ways = ((True, y), (False, np.abs(y)), (False, -np.abs(y)))
    return [{"flag": np.asarray(flag), "x": x, "y": y, "i": np.asarray(index)} for flag, y in ways]


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(the model, its package, verified)."""
    folder = tmp_path_factory.mktemp("branches")
    model, package = branching(folder / "m.onnx"), folder / "m.modelc"
    result = modelc.compile(model, output=package, database=False)
    assert result.report is not None and result.report.passed and result.report.samples >= 2
    return model, package


def test_a_condition_known_only_at_run_time_takes_its_branch(branches) -> None:
    model, package = branches
    assert not unsupported(model)
    session = ort.InferenceSession(str(model))
    for threads in (1, 2):
        with modelc.load(package, threads=threads) as loaded:
            for feeds in three_ways(1):
                agree(loaded.run(feeds), session.run(None, feeds))


def test_the_interpreter_takes_it_before_and_after_passes_and_as_a_program(branches) -> None:
    graph = import_model(branches[0])
    assert parse_graph(show_graph(graph)) == graph and [len(n.bodies) for n in graph.nodes if n.bodies] == [2]
    simplified = run_passes(graph)
    program = partition(simplified)
    session = ort.InferenceSession(str(branches[0]))
    for feeds in three_ways(2):
        wanted = session.run(None, feeds)
        agree(evaluate_graph(graph, feeds), wanted)
        agree(evaluate_graph(simplified, feeds), wanted)
        agree(run_program(program, feeds, MEANINGS), wanted)


def test_what_a_branch_addresses_by_is_checked_only_where_it_is_taken(branches) -> None:
    first, *others = three_ways(3, index=6)
    with modelc.load(branches[1]) as loaded:
        for _ in range(2):
            with pytest.raises(LoadedError, match=r"'i' is 6; expected a number from -6 to 5"):
                loaded.run(first)
            for feeds in others:
                agree(loaded.run(feeds), ort.InferenceSession(str(branches[0])).run(None, feeds))


def test_branches_are_rebuilt_profiled_and_compared_layer_by_layer(branches, tmp_path, monkeypatch) -> None:
    model, package = branches
    modelc.compile(model, output=tmp_path / "again", choices=package, verify=False)
    for name in ("params.bin", library_of(package).name, "choices.json"):
        assert (package / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    report = modelc.verify(package, model, inputs=three_ways(4)[1], per_layer=True)
    assert report.passed and {"t", "out"} <= {layer.value for layer in report.layers}
    assert sum(bool(kernel.samples) for kernel in report.kernels) > len(report.layers), "those of the branch too"
    machine = SimpleNamespace(peak={"float32": 1.0}, measured="")  # measuring it takes seconds
    monkeypatch.setattr(sys.modules[profile.__module__], "probe", lambda fresh: machine)
    kernels = profile(package, repeat=2)["kernels"]
    (plan,) = read_package(package).manifest.variants
    assert [c.name for c in plan.control] == ["choose", "choose/nested"] and {k["calls"] for k in kernels} == {0, 1}


def test_a_branch_that_no_input_takes_is_named(branches, tmp_path) -> None:
    model, package = branches

    def untaken(report: Report) -> list[str]:
        return [note for note in report.notes if note.startswith("nothing was compared of")]

    assert not untaken(modelc.verify(package, model))  # drawn until every branch was taken
    first, second, _ = three_ways(5)
    (note,) = untaken(modelc.verify(package, model, inputs=first))
    assert note.startswith("nothing was compared of the else_branch of If 'choose': no input took it")
    (note,) = untaken(modelc.verify(package, model, inputs=second))
    assert "the then_branch of If 'choose', the else_branch of If 'choose/nested':" in note
    then, other = body([node("Relu", ["x"], ["a"])], ["a"]), body([node("Neg", ["x"], ["b"])], ["b"])
    nodes = [
        node("ReduceSumSquare", ["x"], ["sum"], keepdims=0),
        node("Less", ["sum", "zero"], ["never"]),
        node("If", ["never"], ["y"], "choose", then_branch=then, else_branch=other),
    ]
    path = saved(tmp_path / "m.onnx", nodes, [INFO("x", F, [2, 3])], ["y"], {"zero": np.float32(0)})
    report = modelc.compile(path, output=tmp_path / "p", database=False).report
    assert report is not None and report.passed and report.samples > 3
    assert [note.partition(":")[0] for note in untaken(report)] == [
        "nothing was compared of the then_branch of If 'choose'"
    ]


def test_flags_are_drawn_in_every_combination_and_trip_counts_from_none() -> None:
    flags = tuple(TensorInfo(name, "bool", (1,)) for name in ("a", "b"))
    at = [Argument("input", k) for k in range(3)]
    branches = (Branch("f", 0, 1, 2, at[0]), Branch("g", 2, 3, 4, at[1]), Branch("h", 3, 4, 4, at[1]))
    steps = tuple(Step(f"s{k}", "k", ()) for k in range(6))
    plan = Plan((*flags, TensorInfo("n", "int64", ())), (), steps, control=branches)
    drawn = [deciding(plan, k) for k in range(least_samples(plan))]
    assert {(bool(one["a"][0]), bool(one["b"][0])) for one in drawn} == {(x, y) for x in (0, 1) for y in (0, 1)}
    assert not_run(plan, [0, 3, 0, 0, 0, 1]) == [
        "the then_branch of If 'f'",
        "the then_branch of If 'g'",
        "the else_branch of If 'g'",
    ]
    loop = Repeat(name="l", first=0, end=6, limit=-1, count=at[2], number=Argument("arena"), carried=(), moving=())
    plan = replace(plan, control=(loop,))
    assert {int(deciding(plan, k)["n"]) for k in range(least_samples(plan))} == {0, 1, 2}
    assert not_run(plan, [0] * 6) == ["the body of Loop 'l'"] and not not_run(plan, [0] * 5 + [1])


def test_a_manifest_whose_control_flow_cannot_be_is_damaged(branches, tmp_path) -> None:
    data = json.loads((branches[1] / NAME).read_text())
    outer, inner = data["variants"][0]["control"]
    away = {k: v for k, v in inner.items() if k != "condition"}
    crossing = {**inner, "first": outer["middle"] - 1}
    for wrong in ([{**outer, "end": 99}], [{**outer, "middle": 98}], [outer, away], [outer, crossing], [inner, outer]):
        data["variants"][0]["control"] = wrong
        (tmp_path / NAME).write_text(json.dumps(data))
        with pytest.raises(PackageError, match="is damaged"):
            read_package(tmp_path)


def test_branches_of_different_ranks_are_refused_with_what_would_help(tmp_path) -> None:
    total = node("ReduceSum", ["x"], ["b"], keepdims=0)
    then, other = body([node("Relu", ["x"], ["a"])], ["a"]), body([total], ["b"])
    nodes = [node("If", ["flag"], ["y"], "choose", then_branch=then, else_branch=other)]
    path = saved(tmp_path / "m.onnx", nodes, [INFO("flag", B, [1]), INFO("x", F, [2, 3])], ["y"], {})
    sentence = r"'choose' \(If\): .*float32\[2, 3\] and float32\[\].*it would be with --constant flag=VALUE"
    with pytest.raises(ModelError, match=sentence):
        import_model(path)
    assert [n.op for n in import_model(path, constants={"flag": np.array([False])}).nodes] == ["ReduceSum"]


def test_what_no_node_reads_of_an_if_is_not_made(tmp_path) -> None:
    """Be it of another rank in each branch, or without a name."""
    then = body([node("Squeeze", ["x"], ["s"]), node("Relu", ["x"], ["a"])], ["s", "a"])
    other = body([node("Abs", ["x"], ["s2"]), node("Neg", ["x"], ["b"])], ["s2", "b"])
    total = [node("ReduceSum", ["x"], ["t"], keepdims=0), node("Greater", ["t", "zero"], ["flag"])]
    for name in ("", "unread"):  # without a name ONNX Runtime does not open it
        choose = node("If", ["flag"], [name, "y"], "choose", then_branch=then, else_branch=other)
        path = saved(tmp_path / "m.onnx", [*total, choose], [INFO("x", F, [1, 3])], ["y"], {"zero": np.float32(0)})
        (made,) = [n for n in import_model(path).nodes if n.bodies]
        assert made.outputs == ("y",) and [one.nodes[0].op for one in made.bodies] == ["Relu", "Neg"]
    assert modelc.compile(path, output=tmp_path / "p", database=False).report.passed


@pytest.mark.parametrize("first", [True, False])
def test_a_branch_that_the_shapes_do_not_allow_ends_a_run_that_takes_it(tmp_path, first) -> None:
    """As where a model takes two sampling rates, of which each goes with another length."""
    right, wrong = body([node("Relu", ["x"], ["a"])], ["a"]), body([node("MatMul", ["x", "w"], ["b"])], ["b"])
    ways = {"then_branch": right, "else_branch": wrong} if first else {"then_branch": wrong, "else_branch": right}
    inputs = [INFO("flag", B, []), INFO("x", F, ["n", "m"])]
    path = saved(
        tmp_path / "m.onnx",
        [node("If", ["flag"], ["y"], "choose", **ways)],
        inputs,
        ["y"],
        {"w": np.ones((4, 4), np.float32)},
    )
    assert parse_graph(show_graph(import_model(path, {"x": (2, 3)}))) == import_model(path, {"x": (2, 3)})
    result = modelc.compile(path, output=tmp_path / "p", dims={"n": 2, "m": 3}, database=False, verify=first)
    assert any("cannot be run" in note for note in result.notes)
    assert result.report is None or result.report.passed
    x = -np.ones((2, 3), np.float32)
    refusal = rf"'choose' \(If\): its {'else' if first else 'then'}_branch cannot be run with these shapes: .*MatMul"
    with modelc.load(tmp_path / "p") as loaded:
        for _ in range(2):
            assert not loaded.run({"flag": np.asarray(first), "x": x})["y"].any()
            with pytest.raises(LoadedError, match=refusal):
                loaded.run({"flag": np.asarray(not first), "x": x})
    with pytest.raises(InputError, match=refusal):
        evaluate_graph(import_model(path, {"x": (2, 3)}), {"flag": np.asarray(not first), "x": x})


def test_a_package_takes_the_sizes_at_which_the_same_branches_run(tmp_path) -> None:
    """Windows of 16 or 8 samples, of which each branch takes at most four: with 32 to 47 samples it is the first one
    alone, with the same maps of one element."""
    rng = np.random.default_rng(0)

    def way(window: int) -> GraphProto:
        weights = {f"w{k}_{window}": rng.standard_normal((4, 4, 3)).astype(np.float32) for k in (1, 2)}
        weights |= {f"w0_{window}": rng.standard_normal((4, 1, window)).astype(np.float32)}
        weights |= {f"last_{window}": np.array([2])}
        half = {"strides": [2], "pads": [1, 1]}
        nodes = [
            node("Conv", ["x", f"w0_{window}"], ["a"], strides=[window // 2]),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", f"w1_{window}"], ["c"], **half),
            node("Relu", ["c"], ["d"]),
            node("Conv", ["d", f"w2_{window}"], ["e"], **half),
            node("Squeeze", ["e", f"last_{window}"], ["f"]),
        ]
        return body(nodes, ["f"], weights=weights)

    ways = {"then_branch": way(16), "else_branch": way(8)}
    nodes = [node("Equal", ["rate", "sixteen"], ["fast"]), node("If", ["fast"], ["y"], "choose", **ways)]
    path = saved(
        tmp_path / "m.onnx",
        nodes,
        [INFO("x", F, [1, 1, "samples"]), INFO("rate", I, [])],
        ["y"],
        {"sixteen": np.int64(16)},
    )
    result = modelc.compile(path, output=tmp_path / "p", database=False)
    assert result.report is not None and result.report.passed
    session = ort.InferenceSession(str(path))
    with modelc.load(tmp_path / "p") as loaded:
        assert loaded.sizes == {"samples": range(32, 48)}
        for count in (32, 33, 39, 41, 47):
            feed = {"x": rng.standard_normal((1, 1, count)).astype(np.float32), "rate": np.array(16)}
            agree(loaded.run(feed), session.run(None, feed))
        with pytest.raises(LoadedError, match=r"'choose' \(If\): its else_branch cannot be run with these shapes"):
            loaded.run({**feed, "rate": np.array(8)})
    with pytest.raises(
        ModelError, match=r"'choose' \(If\): at samples=.* other branches can be run than at samples=17"
    ):
        modelc.compile(path, output=tmp_path / "q", dims={"samples": "16..47"})


def test_what_one_branch_lacks_is_said(tmp_path) -> None:
    then, other = body([node("Relu", ["x"], ["a"])], ["a"]), body([node("StringNormalizer", ["x"], ["b"])], ["b"])
    nodes = [node("If", ["flag"], ["y"], "choose", then_branch=then, else_branch=other)]
    path = saved(tmp_path / "m.onnx", nodes, [INFO("flag", B, []), INFO("x", F, [2, 3])], ["y"], {})
    assert [row[:2] for row in unsupported(path)] == [("choose/StringNormalizer_0", "StringNormalizer")]
    with pytest.raises(ModelError, match="choose/StringNormalizer_0"):
        import_model(path)
