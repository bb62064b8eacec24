"""The whole beside ONNX Runtime: what hides in it is refused; what the model amplifies passes, with where it begins."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_model as small
from onnx import helper, numpy_helper
from other_reading import read_as

import modelc
from modelc.compile.verification import blueprints_of
from modelc.frontend.witness.reference_evaluator import evaluated_by_onnx
from modelc.frontend.witness.surgery import Span
from modelc.ir.graph import Node
from modelc.ops.direct import computed
from modelc.ops.operator import Inputs
from modelc.package import read_package
from modelc.verify.beginning import Apart, beginning_of, made_of
from modelc.verify.compare import BF16, scaled, unsettled
from modelc.verify.kernels.calls import KernelCall
from modelc.verify.kernels.judge import Judge
from modelc.verify.kernels.reading import BOTH_RIGHT, Explanation
from modelc.verify.pieces import Limits, Piece, Written
from modelc.verify.verdict import verify_outputs
from modelc.verify.witness import compare_pieces

RNG = np.random.default_rng(0)


def compiled(model: Path) -> Path:
    """A package that nobody has verified."""
    modelc.compile(model, output=model.with_suffix(".modelc"), database=False, verify=False)
    return model.with_suffix(".modelc")


def of_opset(path: Path, version: int) -> Path:
    model = onnx.load(path)
    model.opset_import[0].version = version
    onnx.save(model, path)
    return path


# --- what hides in the whole --------------------------------------------------------------------------------------


def four_products(path: Path, row: int = 0, column: int = 0, factor: float = 1.0) -> Path:
    """Four products of 256 x 256 with Relu, of which the second has one weight times `factor`."""
    rng = np.random.default_rng(7)
    weights = {f"w{k}": (rng.standard_normal((256, 256)) / 16).astype(np.float32) for k in range(4)}
    weights["w1"][row, column] *= factor
    nodes, read = [], "x"
    for k in range(4):
        nodes.append(helper.make_node("MatMul", [read, f"w{k}"], [f"p{k}"], f"product{k}"))
        nodes.append(helper.make_node("Relu", [f"p{k}"], [read := f"r{k}" if k < 3 else "y"], f"relu{k}"))
    return small.save(path, nodes, {"x": [64, 256]}, {"y": [64, 256]}, weights)


@pytest.mark.parametrize(("row", "column"), [(3, 5), (100, 200)])
def test_one_weight_times_three_is_no_amplified_rounding(tmp_path: Path, row: int, column: int) -> None:
    package = compiled(four_products(tmp_path / "bad.onnx", row, column, 3.0))
    report = modelc.verify(package, four_products(tmp_path / "good.onnx"), samples=3)
    assert not report.passed and "amplif" not in report.sentence()


def softmax_of_a_constant(path: Path) -> Path:
    """Before operator set 13 a Softmax is over all dimensions from `axis` on."""
    nodes = [
        helper.make_node("Softmax", ["c"], ["p"], axis=1),
        helper.make_node("Mul", ["x", "p"], ["m"]),
        helper.make_node("ReduceSum", ["m"], ["y"], axes=[2], keepdims=0),
    ]
    constant = {"c": RNG.standard_normal((1, 8, 16)).astype(np.float32)}
    return of_opset(small.save(path, nodes, {"x": [1, 8, 16]}, {"y": [1, 8]}, constant), 11)


def test_a_softmax_of_a_constant_is_what_its_operator_set_says(tmp_path: Path) -> None:
    result = modelc.compile(softmax_of_a_constant(tmp_path / "m.onnx"), output=tmp_path / "m.modelc", database=False)
    assert result.report is not None and result.report.passed
    assert all(output.near for output in result.report.outputs)


def softmax_over_the_axis_alone(node: Node, inputs: Inputs) -> tuple[np.ndarray, ...]:
    if node.op != "Softmax":
        return computed(node, inputs)
    e = np.exp(inputs[0].data.reshape(8, 16))
    return ((e / e.sum(axis=0)).reshape(inputs[0].shape),)


def test_a_constant_that_is_folded_wrongly_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are right by the folded constant, and ONNX Runtime's piece is not."""
    monkeypatch.setattr("modelc.frontend.building.fold.computed", softmax_over_the_axis_alone)
    model = softmax_of_a_constant(tmp_path / "m.onnx")
    report = modelc.verify(compiled(model), model)
    assert not report.passed and report.first_wrong is None and report.first_departure is not None


def small_product(path: Path, factor: float) -> Path:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Mul", ["p", "s"], ["y"])]
    weights = {"w": np.random.default_rng(3).standard_normal((64, 32)).astype(np.float32), "s": np.float32(factor)}
    return small.save(path, nodes, {"x": [4, 64]}, {"y": [4, 32]}, weights)


def test_an_output_that_is_small_and_wrong_does_not_hide_below_the_tolerance(tmp_path: Path) -> None:
    package, model = compiled(small_product(tmp_path / "bad.onnx", -1e-7)), small_product(tmp_path / "good.onnx", 1e-7)
    report = verify_outputs(package, model)  # without its kernels
    assert not report.passed and report.outputs[0].distance.max_abs < 1e-4
    assert report.outputs[0].distance.rms_rel == pytest.approx(2, rel=0.1)


def test_an_output_that_is_small_and_right_passes(tmp_path: Path) -> None:
    model = small_product(tmp_path / "m.onnx", 1e-7)
    report = modelc.verify(compiled(model), model)
    assert report.passed and report.outputs[0].near and report.outputs[0].distance.share < 0.2


def with_rounded(package: Path, *names: str) -> Path:
    manifest = json.loads((package / "manifest.json").read_text())
    for variant in manifest["variants"]:
        variant["rounded"] = [*names]
    (package / "manifest.json").write_text(json.dumps(manifest))
    return package


@pytest.mark.parametrize("judged", [True, False])
def test_rounded_in_a_manifest_is_not_believed(tmp_path: Path, judged: bool) -> None:
    model = small_product(tmp_path / "m.onnx", 1.0)
    package = with_rounded(compiled(model), "y")
    report = modelc.verify(package, model) if judged else verify_outputs(package, model)
    assert not report.passed and not report.outputs[0].rounded
    assert report.sentence().startswith("is not as its manifest says: output 'y'")


# --- what the model amplifies -------------------------------------------------------------------------------------


def cancelling(path: Path, factor: float) -> Path:
    """The same sums in two orders, whose difference is what rounding leaves, times `factor`."""
    rng = np.random.default_rng(1)
    order = rng.permutation(512)
    weights = {"w": rng.standard_normal((512, 48)).astype(np.float32), "order": order, "s": np.float32(factor)}
    weights["v"] = weights["w"][order]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node("Gather", ["x", "order"], ["z"], "mix", axis=1),
        helper.make_node("MatMul", ["z", "v"], ["b"], "second"),
        helper.make_node("Sub", ["a", "b"], ["d"], "difference"),
        helper.make_node("Mul", ["d", "s"], ["y"], "scale"),
    ]
    return small.save(path, nodes, {"x": [8, 512]}, {"y": [8, 48]}, weights)


def test_what_a_model_amplifies_passes_with_where_it_begins(tmp_path: Path) -> None:
    model = cancelling(tmp_path / "m.onnx", 1e5)
    result = modelc.compile(model, output=tmp_path / "m.modelc", database=False)
    assert result.report is not None and result.report.passed
    (output,) = result.report.outputs
    assert output.amplified and output.distance.rms_rel > 0.1
    said = result.report.sentence()
    assert re.search(r"'y' departs by \S+, and every kernel is right: a difference of \S+ at '[ab]' \(kernel", said)
    assert output.begins is not None and output.begins.difference < 1e-6 and output.begins.factor > 1e5


def test_values_are_compared_in_lots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = cancelling(tmp_path / "m.onnx", 1e5)
    package = compiled(model)
    at_once = modelc.verify(package, model, per_layer=True)
    monkeypatch.setattr("modelc.verify.witness.LOT", 1)
    one_by_one = modelc.verify(package, model, per_layer=True)
    assert one_by_one.passed and one_by_one.layers == at_once.layers and len(at_once.layers) > 1


def test_many_points_are_evaluated_some_after_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = four_products(tmp_path / "m.onnx")
    package = compiled(model)
    at_once = modelc.verify(package, model, check="quick")
    monkeypatch.setattr("modelc.verify.kernels.computed.AT_ONCE", 1 << 14)
    in_parts = modelc.verify(package, model, check="quick")
    assert at_once.passed and in_parts.passed
    assert [k.worst for k in in_parts.kernels] == pytest.approx([k.worst for k in at_once.kernels], rel=1e-6)
    assert not any(kernel.unjudged for kernel in in_parts.kernels)


def test_of_many_departing_elements_the_farthest_and_some_others_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cancelling(tmp_path / "m.onnx", 1e5)
    package, evaluated, is_computed = compiled(model), list[int](), Judge._is_computed

    def counted(judge: Judge, call: KernelCall, buffer: str, index: tuple[np.ndarray, ...]) -> bool:
        evaluated.append(len(index[0]))
        return is_computed(judge, call, buffer, index)

    monkeypatch.setattr(Judge, "_is_computed", counted)
    monkeypatch.setattr("modelc.verify.kernels.judge.MOST_DEPARTING", 8)
    monkeypatch.setattr("modelc.verify.kernels.judge.DEPARTING_TERMS", 1)
    for module in ("kernels.judge", "pieces"):  # as if all elements departed
        monkeypatch.setattr(f"modelc.verify.{module}.unsettled", lambda ours, *_: np.ones(ours.shape, bool))
    report = modelc.verify(package, model)
    assert report.passed and report.outputs[0].amplified
    assert len(evaluated) > 1 and set(evaluated) == {8}


def test_what_is_left_by_rounding_alone_is_small(tmp_path: Path) -> None:
    """The reference is 1e-6 where its terms are 20: no two engines agree on a digit of it."""
    model = cancelling(tmp_path / "m.onnx", 1.0)
    result = modelc.compile(model, output=tmp_path / "m.modelc", database=False)
    assert result.report is not None and result.report.passed
    assert result.report.outputs[0].small and "amplif" not in result.report.sentence()
    assert result.report.to_json()["summary"]["small"] == ["y"]


def test_a_chaotic_kernel_moves_as_far_as_its_inputs_are_moved(tmp_path: Path) -> None:
    nodes, read = [], "x"
    for k in range(40):  # x = 4 x (1 - x)
        nodes += [
            helper.make_node("Sub", ["one", read], [f"a{k}"]),
            helper.make_node("Mul", [read, f"a{k}"], [f"b{k}"]),
        ]
        nodes.append(helper.make_node("Mul", ["four", f"b{k}"], [read := f"x{k}"]))
    nodes = [helper.make_node("Sigmoid", ["in"], ["x"]), *nodes, helper.make_node("Identity", [read], ["y"])]
    known = {"one": np.float32(1), "four": np.float32(4)}
    model = small.save(tmp_path / "m.onnx", nodes, {"in": [4, 64]}, {"y": [4, 64]}, known)
    result = modelc.compile(model, output=tmp_path / "m.modelc", database=False)
    assert result.report is not None and result.report.passed
    assert result.report.outputs[0].amplified and result.report.outputs[0].distance.rms_rel > 0.1


# --- what is near, and another model's ---------------------------------------------------------------------------


def normalised(path: Path, epsilon: float) -> Path:
    node = helper.make_node("LayerNormalization", ["x", "g"], ["y"], axis=-1, epsilon=epsilon)
    return small.save(path, [node], {"x": [8, 32]}, {"y": [8, 32]}, {"g": np.ones(32, np.float32)})


def test_an_epsilon_that_the_importer_misreads_is_seen_within_the_tolerance(tmp_path: Path) -> None:
    wrong, right = normalised(tmp_path / "wrong.onnx", 1e-4), normalised(tmp_path / "right.onnx", 1e-5)
    package = compiled(wrong)
    blueprints = blueprints_of(read_package(package), wrong)
    with read_as(right):
        report = verify_outputs(package, wrong, blueprints=blueprints)
    assert not report.passed and report.first_wrong is None
    assert report.outputs[0].distance.share < 1
    assert re.search(r"is near .*: two readings differ at 'y' \(kernel .*\) by \S+e-05: ", report.sentence())
    assert verify_outputs(package, wrong, blueprints=blueprints).passed


def test_a_package_of_another_epsilon_is_not_the_model(tmp_path: Path) -> None:
    package = compiled(normalised(tmp_path / "wrong.onnx", 1e-4))
    right = normalised(tmp_path / "right.onnx", 1e-5)
    report = modelc.verify(package, right)
    assert not report.passed and "stay nearer when the inputs move" in report.sentence()
    assert modelc.verify(package, right, rtol=2e-3).passed


def test_what_moves_as_far_by_itself_is_the_model(tmp_path: Path) -> None:
    """What rounding leaves of two sums, times 3, beside 1: within the tolerance, and hundreds of roundoffs."""
    model = onnx.load(cancelling(tmp_path / "m.onnx", 3.0))
    model.graph.node[-1].output[0] = "scaled"
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1), "one"))
    model.graph.node.append(helper.make_node("Add", ["scaled", "one"], ["y"]))
    onnx.save(model, model_path := tmp_path / "m.onnx")
    report = verify_outputs(compiled(model_path), model_path)  # without its kernels
    assert report.passed and report.outputs[0].distance.of_scale * 2**24 > 100


def test_subnormal_weights_that_are_zero_in_the_package_are_the_model_s(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    weights[3, 5] = 1e-41
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = small.save(tmp_path / "m.onnx", [node], {"x": [4, 16]}, {"y": [4, 8]}, {"w": weights})
    report = modelc.verify(compiled(model), model)
    assert report.passed, report.sentence()


def test_what_cannot_be_judged_is_not_amplified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why = "kernel matmul_0 could not be judged: it is too large"
    monkeypatch.setattr("modelc.verify.kernels.judge.Judge.judged_wholly", lambda *_: why)
    model = cancelling(tmp_path / "m.onnx", 1e5)
    report = modelc.verify(compiled(model), model)
    assert not report.passed and report.outputs[0].doubt == why
    assert f"for {why}: give data with --inputs F.npz, or look at more with --check thorough" in report.sentence()


def test_two_readings_are_named_where_a_third_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if ONNX Runtime had read the last node otherwise."""
    model, other = small_product(tmp_path / "m.onnx", 1.0), small_product(tmp_path / "other.onnx", 2.0)
    package = compiled(model)
    monkeypatch.setattr(
        "modelc.verify.witness.evaluated_by_onnx", lambda _, name, given: evaluated_by_onnx(model, name, given)
    )
    with read_as(other):
        report = verify_outputs(package, model, blueprints=blueprints_of(read_package(package), model))
    assert report.passed and "two readings of the model differ at 'y'" in report.sentence()
    assert "ONNX Runtime's, and ours, with which the reference evaluator of onnx agrees" in report.sentence()


# --- what is printed ----------------------------------------------------------------------------------------------


def test_kernels_are_counted_alike(tmp_path: Path) -> None:
    """The first convolution has two phases."""
    result = modelc.compile(small.model(), output=tmp_path / "m.modelc", shapes=small.SHAPES, database=False)
    assert result.report is not None
    assert result.kernels == modelc.inspect(tmp_path / "m.modelc")["kernels"] == result.report.distinct
    assert any("." in step.name for step in read_package(tmp_path / "m.modelc").manifest.variants[0].steps)


def test_errors_are_shown_as_a_share_of_what_is_allowed() -> None:
    said = modelc.verify(small.package(), small.model()).sentence()
    shown = r"agrees with onnxruntime \S+: at most \S+ % of what is allowed "
    shown += r"\(largest difference \S+ of the output's scale\); "
    assert re.match(shown + r"\d+ kernels right( in \d+ places)? on [0-9,]+ samples", said)


# --- where it begins ----------------------------------------------------------------------------------------------


def test_a_departure_begins_at_the_first_value_beyond_roundoff() -> None:
    apart = [
        Apart("k0", "a", 1e-7, False),
        Apart("k1", "other", 1e-2, True),
        Apart("k2", "b", 1e-5, True),
    ]
    apart += [Apart("k3", "c", 1e-3, True), Apart("k4", "y", 0.5, True)]
    reads = {"a": ["x"], "b": ["a"], "c": ["b"], "y": ["c"], "other": ["x"]}
    begins = beginning_of(0.5, "y", made_of(reads, "y"), apart)
    assert begins is not None and (begins.value, begins.kernel) == ("b", "k2")
    assert begins.factor == pytest.approx(5e4)


def test_a_choice_begins_at_what_is_chosen_among() -> None:
    apart = [
        Apart("k0", "scores", 3e-7, False),
        Apart("k1", "order", 0.4, True),
        Apart("k2", "y", 0.4, True),
    ]
    begins = beginning_of(0.4, "y", {"scores", "order", "y"}, apart)
    assert begins is not None and begins.value == "scores"
    assert beginning_of(0.4, "y", {"y"}, apart) is None


# --- elements, and sizes ------------------------------------------------------------------------------------------


def test_elements_are_settled_by_the_size_of_their_channel() -> None:
    theirs = np.ones((1, 2, 4), np.float32)
    theirs[0, 1] = 1e-3
    ours = theirs + np.float32(5e-7)
    assert unsettled(ours, theirs).reshape(2, 4).any(axis=1).tolist() == [False, True]
    assert not unsettled(ours[0], theirs[0]).any()  # a matrix is one channel
    assert not unsettled(theirs * np.float32(1 + 1e-3), theirs, 2.0**-11).any()


def test_whole_numbers_infinities_and_nans_are_settled_where_they_are_equal() -> None:
    assert unsettled(np.array([1, 2]), np.array([1, 3])).tolist() == [False, True]
    a = np.array([np.nan, np.inf, 1, np.nan], np.float32)
    assert unsettled(a, np.array([np.nan, np.inf, np.inf, 1], np.float32)).tolist() == [False, False, True, True]


def test_the_absolute_tolerance_is_in_proportion_to_what_is_small() -> None:
    assert scaled(1e-4, np.array([0.5, -0.2])) == pytest.approx(5e-5)
    assert scaled(1e-4, np.array([30.0, np.inf])) == 1e-4


# --- the third reader ---------------------------------------------------------------------------------------------

SILENT = {
    "a softmax before operator set 13": (helper.make_node("Softmax", ["x"], ["y"], axis=1), 11, {}),
    "a slice backwards": (
        helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"]),
        17,
        {"starts": [99], "ends": [0], "axes": [1], "steps": [-1]},
    ),
    "a norm of magnitudes": (helper.make_node("LpNormalization", ["x"], ["y"], p=1), 17, {}),
    "local responses": (helper.make_node("LRN", ["x"], ["y"], size=3), 17, {}),
    "in the order of their first": (helper.make_node("Unique", ["x"], ["y"], sorted=0), 17, {}),
}


@pytest.mark.parametrize("what", SILENT)
def test_onnx_is_not_asked_what_it_misreads(tmp_path: Path, what: str) -> None:
    node, version, known = SILENT[what]
    constants = {name: np.asarray(array) for name, array in known.items()}
    path = small.save(tmp_path / "m.onnx", [node], {"x": [1, 4, 4]}, {"y": [1, 4, 4]}, constants)
    x = RNG.standard_normal((1, 4, 4)).astype(np.float32)
    assert evaluated_by_onnx(of_opset(path, version), "y", {"x": x}) is None


def test_onnx_is_asked_about_what_the_importer_folds(tmp_path: Path) -> None:
    nodes = [helper.make_node("Exp", ["c"], ["e"]), helper.make_node("Mul", ["x", "e"], ["y"])]
    path = small.save(tmp_path / "m.onnx", nodes, {"x": [3]}, {"y": [3]}, {"c": np.ones(3, np.float32)})
    x = RNG.standard_normal(3).astype(np.float32)
    np.testing.assert_allclose(evaluated_by_onnx(path, "y", {"x": x}), x * np.exp(np.float32(1)), rtol=1e-6)


def test_onnx_is_asked_what_it_reads_rightly(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["s"]),
        helper.make_node("Shape", ["s"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["sizes"], axis=0),
        helper.make_node("Reshape", ["s", "sizes"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=1),
    ]
    whole = {"starts": [0], "ends": [4], "axes": [1], "steps": [2], "first": [0], "rest": [-1]}
    constants = {name: np.asarray(array) for name, array in whole.items()}
    path = small.save(tmp_path / "m.onnx", nodes, {"x": [2, 4, 3]}, {"y": [2, 6]}, constants)
    x = RNG.standard_normal((2, 4, 3)).astype(np.float32)
    read = evaluated_by_onnx(path, "y", {"x": x})
    e = np.exp(x[:, ::2].reshape(2, 6))
    np.testing.assert_allclose(read, e / e.sum(axis=1, keepdims=True), rtol=1e-5)


def test_numbers_that_become_more_do_not_move_as_far() -> None:
    """What NonMaxSuppression finds on moved inputs may be another number of boxes."""
    ours, theirs = np.zeros((17, 3), np.int64), np.ones((17, 3), np.int64)
    piece = Piece(Written("k", ("n",), ours), "y", theirs, Span(None, 0), Limits(1e-3, 1e-4, BF16, False, 32.0))
    assert not piece.moves_as_far([np.zeros((16, 3), np.int64)])
    assert piece.moves_as_far([np.zeros((17, 3), np.int64)])


def test_what_is_near_in_the_whole_model_is_not_evaluated(tmp_path: Path) -> None:
    """A value 100 roundoffs of its scale away is asked about where roundings ordinarily take one no farther than 10."""
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    model = small.save(tmp_path / "m.onnx", nodes, {"x": [64]}, {"y": [64]}, {})
    x = np.ones(64, np.float32)
    written = {"a": Written("relu", ("r",), x * np.float32(1 + 100 * 2**-24)), "y": Written("neg", ("n",), -x)}
    for units, expected in ((200.0, []), (10.0, ["a"])):
        asked: list[str] = []

        def explains(name: str, theirs: np.ndarray, asked: list[str] = asked) -> Explanation:
            asked.append(name)
            return BOTH_RIGHT

        limits = Limits(1e-3, 1e-4, BF16, False, units)
        witnessed = compare_pieces(model, {"x": x}, written, limits, explains, True)
        assert all(layer.passed for layer in witnessed.layers) and asked == expected
