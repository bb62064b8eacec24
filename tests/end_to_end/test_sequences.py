"""Sequences of tensors become values of the Graph: beside ONNX Runtime, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from control_models import INFO, F, agree, node, saved
from onnx import TensorProto, helper

import modelc
from modelc.errors import ModelError
from modelc.frontend.onnx import import_model, unsupported
from modelc.ops import evaluate_graph

X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
INPUT = [INFO("x", F, [5, 4])]


def listed(path: Path) -> Path:
    """Split, insert, erase, take and put together again, in many ways; positions from either end."""
    nodes = [
        node("SplitToSequence", ["x", "two"], ["pairs"], axis=0),
        node("SplitToSequence", ["x", "sizes"], ["parts"], axis=-1),
        node("SplitToSequence", ["x"], ["columns"], axis=1, keepdims=0),
        node("SplitToSequence", ["x"], ["rows"]),
        node("SequenceLength", ["rows"], ["count"]),
        node("SequenceAt", ["pairs", "minus"], ["last"]),
        node("SequenceAt", ["parts", "zero"], ["first"]),
        node("SequenceErase", ["columns", "one"], ["fewer"]),
        node("SequenceInsert", ["fewer", "given", "minus"], ["more"]),
        node("SequenceInsert", ["more", "given"], ["most"]),
        node("Identity", ["most"], ["same"]),
        node("ConcatFromSequence", ["same"], ["stacked"], axis=-1, new_axis=1),
        node("SequenceErase", ["pairs"], ["two_pairs"]),
        node("ConcatFromSequence", ["two_pairs"], ["joined"], axis=0),
        node("SequenceConstruct", ["last", "joined"], ["made"]),
        node("ConcatFromSequence", ["made"], ["turned"], axis=0),
        node("SequenceEmpty", [], ["none"], dtype=F),
        node("SequenceInsert", ["none", "first"], ["only"]),
        node("ConcatFromSequence", ["only"], ["lone"], axis=1),
        node("Cast", ["count"], ["n"], to=F),
        node("Mul", ["lone", "n"], ["times"]),
    ]
    weights = {name: np.asarray(k) for name, k in (("zero", 0), ("one", 1), ("two", 2), ("minus", -1))}
    weights |= {"sizes": np.array([3, 1]), "given": np.arange(5, dtype=np.float32)}
    return saved(path, nodes, INPUT, ["stacked", "turned", "times"], weights)


def test_sequences_are_values_side_by_side(tmp_path) -> None:
    path = listed(tmp_path / "m.onnx")
    assert not unsupported(path)
    wanted = ort.InferenceSession(str(path)).run(None, {"x": X})
    graph = import_model(path)
    assert not [n.op for n in graph.nodes if "Sequence" in n.op]
    agree(evaluate_graph(graph, {"x": X}), wanted)
    modelc.compile(path, output=tmp_path / "p", verify=False, database=False)
    with modelc.load(tmp_path / "p") as loaded:
        agree(loaded.run({"x": X}), wanted)


def test_a_loop_that_is_unrolled_and_a_branch_hand_sequences_on(tmp_path) -> None:
    """As PyTorch writes a list that grows in a loop, and a branch that a constant takes."""
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(F, None))
    turn = helper.make_graph(
        [
            node("Gather", ["x", "i"], ["row"], axis=0),
            node("Exp", ["row"], ["grown"]),
            node("SequenceInsert", ["rows", "grown"], ["longer"]),
            node("Identity", ["go"], ["on"]),
        ],
        "turn",
        [INFO("i", TensorProto.INT64, []), INFO("go", TensorProto.BOOL, []), helper.make_value_info("rows", kind)],
        [INFO("on", TensorProto.BOOL, []), helper.make_value_info("longer", kind)],
    )
    nodes = [
        node("SequenceEmpty", [], ["none"], dtype=F),
        node("Loop", ["three", "yes", "none"], ["every"], body=turn),
        node("ConcatFromSequence", ["every"], ["y"], axis=0, new_axis=1),
    ]
    path = saved(tmp_path / "m.onnx", nodes, INPUT, ["y"], {"three": np.asarray(3), "yes": np.asarray(True)})
    agree(evaluate_graph(import_model(path), {"x": X}), ort.InferenceSession(str(path)).run(None, {"x": X}))


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        ([node("SequenceAt", ["s", "at"], ["y"])], r"SequenceAt.*constant as the position, found 'at'"),
        ([node("SequenceAt", ["s", "nine"], ["y"])], r"position from -5 to 4, found \[9\]"),
        ([node("SequenceInsert", ["s", "x", "nine"], ["t"])], "position from -5 to 5, found 9"),
        ([node("Relu", ["s"], ["y"])], "reads the sequence 's'; sequences are read by"),
        ([node("SequenceAt", ["x", "nine"], ["y"])], "expected a sequence that the model makes, found 'x'"),
        ([node("Identity", ["s"], ["y"])], "output 'y' of .* is a sequence of tensors"),
        ([node("SplitToSequence", ["x", "nine"], ["t"], axis=7)], "an axis from -2 to 1, found 7"),
        (
            [node("SequenceConstruct", ["x", "at"], ["t"]), node("ConcatFromSequence", ["t"], ["y"], axis=0)],
            "fit beside",
        ),
    ],
)
def test_what_sequences_cannot_be_is_a_sentence(tmp_path, nodes, sentence) -> None:
    if nodes[-1].output[0] == "t":
        nodes = [*nodes, node("SequenceAt", ["t", "zero"], ["y"])]
    split = node("SplitToSequence", ["x"], ["s"])
    inputs = [*INPUT, INFO("at", TensorProto.INT64, [])]
    weights = {"nine": np.asarray(9), "zero": np.asarray(0)}
    path = saved(tmp_path / "m.onnx", [split, *nodes], inputs, ["y"], weights)
    assert onnx.load(path).graph.node
    with pytest.raises(ModelError, match=sentence):
        import_model(path)
