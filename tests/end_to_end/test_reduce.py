"""modelc reduce: what is left of a failing model fails as the whole does, and nothing in it can be left out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from modelc.cli import main
from modelc.compile.fixed import Inputs
from modelc.compile.minimise import minimised
from modelc.compile.reduction import Failure, Reduction, judged, reduce
from modelc.errors import ModelError
from modelc.frontend.onnx import import_model
from modelc.frontend.steering.flags import Steered
from modelc.frontend.witness.excerpt import Whole


def chain(*operators: str, size: int | str = 6) -> onnx.ModelProto:
    """x through one node after the other, each of which also reads a weight where it takes one."""
    nodes, weights = [], []
    for k, op in enumerate(operators):
        taken = [f"v{k}"]
        if op in ("Add", "Mul", "MatMul"):
            shape = (6, 6) if op == "MatMul" else (6,)
            weights.append(numpy_helper.from_array(np.full(shape, 0.5 + k, np.float32), f"w{k}"))
            taken.append(f"w{k}")
        nodes.append(helper.make_node(op, taken, [f"v{k + 1}"], name=f"node{k}"))
    given_ = [helper.make_tensor_value_info("v0", TensorProto.FLOAT, (4, size))]
    made = [helper.make_tensor_value_info(f"v{len(nodes)}", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "chain", given_, made, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def modelc(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "modelc", *map(str, arguments)], capture_output=True, text=True)


@given(st.sets(st.integers(0, 40), min_size=1, max_size=4))
def test_what_is_left_is_needed(needed: set[int]) -> None:
    tried = []

    def fails(kept: Sequence[int]) -> bool:
        tried.append(kept)
        return needed <= set(kept)

    assert set(minimised(range(41), fails)) == needed and len(tried) < 250


def test_every_excerpt_computes_what_the_whole_does(tmp_path: Path) -> None:
    import onnxruntime

    onnx.save(chain("Add", "Relu", "MatMul", "Sigmoid", "Mul"), tmp_path / "m.onnx")
    whole = Whole(tmp_path / "m.onnx", Steered(({},), {}))
    known = {"v0": np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)}
    for k, step in enumerate(whole.nodes):  # the truth, node by node
        found = whole.excerpt([k], {**known, step.output[0]: np.zeros((4, 6), np.float32)})
        assert found is not None
        one, feed = found
        session = onnxruntime.InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"])
        known[step.output[0]] = session.run(None, feed)[0]
    checked = 0
    for kept in ([0, 1], [2, 3, 4], [0, 4], [1, 3], range(5)):
        found = whole.excerpt(kept, known)
        assert found is not None
        model, feed = found
        onnx.checker.check_model(model, full_check=True)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        for info, array in zip(session.get_outputs(), session.run(None, feed), strict=True):
            np.testing.assert_allclose(array, known[info.name], rtol=1e-5)
            checked += 1
    assert checked == 7, "each part that stands alone has an output"
    assert whole.excerpt([1], {"v0": known["v0"]}) is None, "what it reads is not known"


def test_values_of_a_type_that_onnx_does_not_infer_can_be_inputs(tmp_path: Path) -> None:
    normalise = helper.make_node("GroupNormalization", ["x", "w", "b"], ["n"], num_groups=2)
    graph = helper.make_graph(
        [normalise, helper.make_node("Relu", ["n"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 4, 3))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 4, 3))],
        [numpy_helper.from_array(np.ones(4, np.float32), name) for name in "wb"],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    whole = Whole(tmp_path / "m.onnx", Steered(({},), {}))
    numbers = np.ones((2, 4, 3), np.float32)
    assert "n" not in whole.types
    found = whole.excerpt([1], {"x": numbers, "n": numbers, "y": numbers})
    assert found is not None and list(found[1]) == ["n"]
    assert found[0].graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_a_wrong_kernel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes of forty that go wrong together: ONNX Runtime's numbers are what the others hand them."""
    model = chain(*["Relu", "Add", "Mul", "Sigmoid"] * 10)
    onnx.save(model, tmp_path / "m.onnx")

    def judge(path: Path, inputs: Path, options: Sequence[str], seconds: float) -> Failure | None:
        ops = [n.op_type for n in onnx.load(path).graph.node]
        with np.load(inputs) as arrays:
            assert len(arrays.files) >= 1 and options == ("--config", "default", "--precision", "f32")
        together = ("Mul", "Sigmoid") in pairwise(ops)
        return Failure("wrong", f"{len(ops)} outputs are off") if together else None

    monkeypatch.setattr("modelc.compile.reduction.judged", judge)
    found = reduce(tmp_path / "m.onnx", tmp_path / "small.onnx", config="default", precision="f32")
    assert (found.nodes, found.left, found.failure.kind) == (40, 2, "wrong") and found.attempts < 40
    assert [n.op_type for n in onnx.load(found.path).graph.node] == ["Mul", "Sigmoid"]
    with np.load(found.inputs) as arrays:
        assert {x.shape for x in arrays.values()} == {(4, 6)}


def test_what_onnx_runtime_does_not_run_is_not_reduced(tmp_path: Path) -> None:
    model = chain("Add", "Relu")
    model.graph.node[1].op_type = "Hidden"
    onnx.save(model, tmp_path / "m.onnx")
    done = modelc("reduce", tmp_path / "m.onnx", "-o", tmp_path / "small.onnx")
    assert done.returncode == 2, done
    assert not list(tmp_path.glob("small*"))


def test_from_end_to_end(tmp_path: Path) -> None:
    """A cast to text, which ONNX Runtime runs and modelc refuses."""
    model = chain("Add", "Relu", "Mul", "Sigmoid", size="n")
    there = helper.make_node("Cast", ["v3"], ["text"], name="there", to=TensorProto.STRING)
    back = helper.make_node("Cast", ["text"], ["number"], name="back", to=TensorProto.FLOAT)
    model.graph.node.insert(3, back)
    model.graph.node.insert(3, there)
    model.graph.node[5].input[0] = "number"
    onnx.save(model, tmp_path / "m.onnx")
    small = tmp_path / "small.onnx"
    done = modelc("reduce", tmp_path / "m.onnx", "--dim", "n=6", "-o", small, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kind"] == "refused" and (found["nodes"], found["left"]) == (6, 2), found
    assert {n.name for n in onnx.load(small).graph.node} == {"there", "back"}
    again = judged(small, Path(found["inputs"]), (), 100)
    assert again is not None and again.sentence == found["sentence"]


def test_sizes_from_data_are_bounded_in_every_excerpt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--bound` goes with what is left of the value that it names, and inputs are drawn within it; a state begins with
    zeros, and is one where its output is left."""
    weights = {"zero": np.int64(0), "one": np.int64(1)}
    nodes = [
        helper.make_node("Add", ["past", "n"], ["present"], name="add"),
        helper.make_node("Range", ["zero", "n", "one"], ["r"], name="range"),
        helper.make_node("Mul", ["r", "r"], ["squares"], name="mul"),
        helper.make_node("Cast", ["squares"], ["text"], name="there", to=TensorProto.STRING),
        helper.make_node("Cast", ["text"], ["y"], name="back", to=TensorProto.INT64),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ()) for name in ("past", "n")]
    outputs = [helper.make_tensor_value_info(*one) for one in (("present", 7, ()), ("y", 7, ["k"]))]
    held = [numpy_helper.from_array(np.asarray(x), name) for name, x in weights.items()]
    graph = helper.make_graph(nodes, "sizes", inputs, outputs, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    whole = Whole(tmp_path / "m.onnx", Steered(({},), {}))
    known = {name: np.int64([1, 2, 3]) for name in whole.values} | {"past": np.int64(0), "n": np.int64(3)}
    reduction = Reduction(whole, known, ("--threads", "1"), Inputs(bounds={"n": 5}, states={"past": "present"}))
    found = {kept: reduction.excerpt(kept) for kept in ((0, 1), (1,), (0,), (2,))}
    flags = {kept: one.options[2:] for kept, one in found.items() if one is not None}
    bound, state = ("--bound", "n=5"), ("--state", "past=present")
    assert flags == {(0, 1): (*bound, *state), (1,): bound, (0,): state, (2,): ()}
    assert found[0, 1] is not None and {*found[0, 1].feed} == {"n"}
    with pytest.raises(ModelError, match="names no"):
        reduce(tmp_path / "m.onnx", tmp_path / "small.onnx", bounds={"m": 5})
    with pytest.raises(ModelError, match="names no"):
        reduce(tmp_path / "m.onnx", tmp_path / "small.onnx", states={"past": "y2"})

    def judge(path: Path, inputs: Path, options: Sequence[str], seconds: float) -> Failure | None:
        given = dict(zip(options[::2], options[1::2], strict=True))
        name, _, most = given.get("--bound", "").partition("=")
        bounds = {name: int(most)} if name else {}
        try:
            import_model(path, bounds=bounds)
        except ModelError as error:
            return Failure("refused", str(error))
        with np.load(inputs) as arrays:
            assert "past" not in arrays or "--state" not in given
            assert "n" not in arrays or 0 <= arrays["n"] <= 5
        return None

    monkeypatch.setattr("modelc.compile.reduction.judged", judge)
    given_ = ("--bound", "n=5", "--state", "past=present", "-o", str(tmp_path / "small.onnx"))
    with pytest.raises(SystemExit) as end:
        main(["reduce", str(tmp_path / "m.onnx"), *given_, "--json"])
    assert end.value.code == 0
    said = json.loads(capsys.readouterr().out)
    left = {n.name for n in onnx.load(tmp_path / "small.onnx").graph.node}
    assert (left, said["options"]) == ({"there", "back"}, []), "bounded, the Range is no reason to refuse"


def test_what_does_not_fail_is_not_reduced(tmp_path: Path) -> None:
    onnx.save(chain("Add", "Relu"), tmp_path / "m.onnx")
    done = modelc("reduce", tmp_path / "m.onnx", "-o", tmp_path / "small.onnx")
    assert done.returncode == 2 and "there is nothing to reduce" in done.stderr
    assert not (tmp_path / "small.onnx").exists()


def test_failures_that_are_the_same() -> None:
    one = Failure("refused", "m.onnx: 'conv_1' (Conv): has 3 groups of /tmp/x")
    assert one.signature == Failure("refused", "m.onnx: 'conv_27' (Conv): has 12 groups of /y/z").signature
    assert one.signature != Failure("refused", "m.onnx: 'conv_1' (Conv): is of strings").signature
    assert Failure("wrong", "y is off").signature == Failure("wrong", "z is off").signature
    inside = "model m, node 'a': internal error (KeyError: 'x'); this is a mistake of modelc; please report it"
    assert Failure("an internal error", inside).signature == ("an internal error", "KeyError: *")


def test_a_model_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        reduce(tmp_path / "no.onnx", tmp_path / "small.onnx")
