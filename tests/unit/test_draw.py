"""What is drawn for each input, by what the model makes of it, and which rows of tables are never read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from modelc.frontend.steering.aims import Boxes, Threshold, aims
from modelc.frontend.steering.unread import index_inputs, unread_rows
from modelc.frontend.steering.uses import Span, Uses
from modelc.frontend.steering.wholes import Whole, wholes
from modelc.package import TensorInfo
from modelc.verify.draw import Roles, draw_inputs, roles_of

I64, F = TensorProto.INT64, TensorProto.FLOAT
node = helper.make_node


def uses_of(
    nodes: Sequence[onnx.NodeProto], inputs: dict[str, int], shape: tuple[int, ...] = (4, 8), **held: Any
) -> Uses:
    described = [helper.make_tensor_value_info(name, kind, shape) for name, kind in inputs.items()]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()]
    return Uses(helper.make_graph(list(nodes), "m", described, [], tensors))


def drawn(uses: Uses, dtype: str, shape: tuple[int, ...] = (4, 8), sample: int = 0, seed: int = 0) -> NDArray[Any]:
    return draw_inputs([TensorInfo("x", dtype, shape)], roles_of(uses, ()), seed, sample)["x"]


@dataclass
class Counting:
    """A graph that counts how often somebody asks for its initialisers."""

    graph: onnx.GraphProto
    count: int = 0

    def __getattr__(self, name: str) -> Any:
        self.count += name == "initializer"
        return getattr(self.graph, name)


def test_initialisers_are_gone_through_a_few_times_however_many_nodes_there_are() -> None:
    names = ["x", *(f"t{k}" for k in range(200))]
    nodes = [node("Mul" if k % 2 else "Add", [a, f"c{k}"], [b]) for k, (a, b) in enumerate(pairwise(names))]
    graph = Counting(uses_of(nodes, {"x": F}, **{f"c{k}": np.float32(k) for k in range(200)}).graph)
    roles_of(Uses(graph), ())
    assert graph.count < 20


# --- whole numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("Mul", ["x", "x"], ["y"])], Whole()),
        ([node("Cast", ["x"], ["real"], to=F), node("Exp", ["real"], ["y"])], Whole(large=False)),
        ([node("Pad", ["x", "pads"], ["more"]), node("ReduceProd", ["more"], ["y"])], Whole()),
        ([node("Mod", ["seven", "x"], ["y"])], Whole(nonzero=True)),
        (
            [node("Cast", ["x"], ["narrow"], to=TensorProto.INT32), node("Div", ["seven", "narrow"], ["y"])],
            Whole(large=False, nonzero=True),
        ),
        ([node("Add", ["x", "seven"], ["more"]), node("Div", ["seven", "more"], ["y"])], None),
        ([node("Pow", ["seven", "x"], ["y"])], Whole(0, 3, large=False)),
        ([node("BitShift", ["seven", "x"], ["y"], direction="LEFT")], Whole(0, 7, large=False)),
        ([node("OneHot", ["x", "seven", "choices"], ["y"])], Whole(-9, 8, large=False)),
        ([node("Reshape", ["table", "x"], ["y"])], None),
        ([node("Range", ["seven", "x", "seven"], ["y"])], None),
        ([node("Add", ["x", "x"], ["twice"]), node("Tile", ["table", "twice"], ["y"])], None),
        ([node("Abs", ["x"], ["place"]), node("Gather", ["table", "place"], ["y"])], None),
        ([node("Loop", ["x", "", "seven"], ["y"])], None),
        ([node("Unheard", ["x"], ["y"], domain="elsewhere")], None),
    ],
)
def test_how_large_whole_numbers_may_be(nodes: Sequence[onnx.NodeProto], expected: Whole | None) -> None:
    uses = uses_of(nodes, {"x": I64}, seven=7, choices=[0, 1], pads=[0, 1, 0, 1], table=np.zeros((4, 4)))
    assert wholes(uses).get("x") == expected
    first, second = (drawn(uses, "int64", sample=sample) for sample in (0, 1))
    if expected is None:
        assert set(np.unique([first, second])) == {0, 1}
        return
    low, high = (-8 if expected.low is None else expected.low), (8 if expected.high is None else expected.high)
    assert first.min() >= low - 2 and first.max() <= high + 2 and len(np.unique(first)) > 3
    assert expected.low == 0 or first.min() < 0
    assert (np.abs(second.astype(float)).max() > 1 << 40) == expected.large
    assert not expected.nonzero or ((first != 0).all() and (second != 0).all())


def test_whole_numbers_are_drawn_beside_what_they_are_compared_with() -> None:
    uses = uses_of([node("Greater", ["x", "limit"], ["y"])], {"x": I64}, limit=1000)
    assert {999, 1000, 1001} <= set(drawn(uses, "int64", (100,)).tolist())


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "uint16", "uint32", "uint64"])
def test_large_whole_numbers_have_all_bits_or_one(dtype: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    uses = uses_of([node("Add", ["x", "x"], ["y"])], {"x": kind})
    small, large = (drawn(uses, dtype, (40, 10), sample).astype(object).reshape(-1) for sample in (0, 1))
    limits = np.iinfo(dtype)
    assert max(abs(small)) <= 16
    assert max(large) > limits.max // 8 * 7 and min(large) <= min(0, limits.min // 8 * 7)
    assert min(large) > limits.min or limits.min == 0, "whose quotient by -1 overflows"
    sizes = [abs(number) for number in large if abs(number) > 256]
    assert 10 < sum(size & (size - 1) == 0 for size in sizes) < len(sizes) // 2, "powers of two"
    assert 0 in large.tolist()


def test_bytes_are_drawn_beside_what_they_are_compared_with_and_equal_where_they_are_chosen_from() -> None:
    nodes = [node("Greater", ["x", "limit"], ["y"]), node("ArgMax", ["x"], ["z"], axis=1)]
    numbers = drawn(uses_of(nodes, {"x": TensorProto.UINT8}, limit=np.uint8(100)), "uint8", (40, 9))
    assert {99, 100, 101} <= set(numbers.reshape(-1).tolist()) and numbers.min() < 20 and numbers.max() > 235
    assert 5 < ((numbers == numbers.max(1, keepdims=True)).sum(1) > 1).sum() < 40


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])
def test_inputs_that_are_compared_are_equal_in_places(dtype: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    roles = roles_of(uses_of([node("Less", ["x", "z"], ["y"])], {"x": kind, "z": kind}), ())
    for shape in ((10, 10), (25,)):
        tensors = [TensorInfo("x", dtype, (10, 10)), TensorInfo("z", dtype, shape)]
        for sample in (0, 1):
            feed = draw_inputs(tensors, roles, 0, sample)
            z = feed["z"].reshape(-1)
            shared = z == feed["x"].reshape(-1) if z.size == 100 else np.isin(z, feed["x"])
            assert 2 < shared.sum() < (60 if z.size == 100 else 26)
    if dtype == "int64":
        feed = draw_inputs([TensorInfo(name, dtype, (10, 10)) for name in "xz"], roles, 0, 1)
        turned = [abs(number) for number in (feed["x"] ^ feed["z"]).reshape(-1).tolist()]
        assert any(bits >= 1 << 32 and bits & (bits - 1) == 0 for bits in turned), "equal in their lower halves"


def test_without_the_model_whole_numbers_are_0_and_1() -> None:
    assert set(np.unique(draw_inputs([TensorInfo("x", "int64", (50,))], roles_of(None, ()), 0)["x"])) == {0, 1}


def test_indices_walk_over_what_they_address() -> None:
    roles = Roles({"x": [Span(None, -50, 49)]})
    for seed in (0, 3):
        samples = [draw_inputs([TensorInfo("x", "int64", (10,))], roles, seed, k)["x"] for k in range(5)]
        assert {0, 49} <= set(samples[0].tolist())
        assert set(np.concatenate(samples).tolist()) == set(range(50))
    single = [draw_inputs([TensorInfo("x", "int64", ())], roles, 0, k)["x"].item() for k in range(50)]
    assert single[:2] == [0, 49] and set(single) == set(range(50))


@pytest.mark.parametrize("places", [1, 2, 3, 4, 7, 100])
def test_a_walk_visits_every_place(places: int) -> None:
    roles = Roles({"x": [Span(None, 5, 4 + places)]})
    drawn_places = draw_inputs([TensorInfo("x", "int64", (places,))], roles, 1, 2)["x"]
    assert sorted(drawn_places.tolist()) == [5 + k for k in range(places)]


# --- real numbers -----------------------------------------------------------------------------------------------------


def test_thresholds_are_those_of_what_reads_the_numbers_scaled_and_shifted() -> None:
    nodes = [
        node("Mul", ["x", "two"], ["twice"]),
        node("Add", ["twice", "two"], ["more"]),
        node("Clip", ["more", "", "six"], ["kept"]),
        node("Greater", ["kept", "three"], ["far"]),
        node("Less", ["twice", "three"], ["near"]),
    ]
    aimed = aims(uses_of(nodes, {"x": F}, two=np.float32(2), six=np.float32(6), three=np.float32(3)))["x"]
    assert set(aimed.thresholds) == {Threshold(2.0), Threshold(0.5, hit=False), Threshold(1.5)}


def test_trees_branch_at_thresholds_of_columns() -> None:
    tree = node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml")
    lists = {"nodes_values": [5.5, 0.0, -7.0, 0.0], "nodes_featureids": [1, 0, 2, 0]}
    tree.attribute.extend(helper.make_attribute(name, numbers) for name, numbers in lists.items())
    tree.attribute.append(helper.make_attribute("nodes_modes", ["BRANCH_LEQ", "LEAF", "BRANCH_LEQ", "LEAF"]))
    uses = uses_of([tree], {"x": F}, (20, 3))
    assert aims(uses)["x"].thresholds == (Threshold(-7.0, column=2), Threshold(5.5, column=1))
    numbers = drawn(uses, "float32", (20, 3))
    assert (numbers[:, 1] == 5.5).any() and (numbers[:, 1] > 5.5).any() and (numbers[:, 2] < -7).any()
    assert not {5.5, -7.0} & set(numbers[:, 0].tolist())


def test_numbers_lie_below_above_and_at_a_threshold() -> None:
    uses = uses_of([node("Clip", ["x", "", "six"], ["y"])], {"x": F}, six=np.float32(6))
    numbers = drawn(uses, "float32")
    assert (numbers == 6).any() and (numbers > 6).any() and ((numbers > 4) & (numbers < 6)).any()


def test_no_zero_is_drawn_where_one_divides_by_it() -> None:
    uses = uses_of([node("Relu", ["x"], ["a"]), node("Reciprocal", ["x"], ["b"])], {"x": F})
    assert "x" not in aims(uses)


@pytest.mark.parametrize(("scale", "step"), [(0.25, 0.25), (0.3, None)])
def test_ties_are_drawn_where_quotients_are_exact(scale: float, step: float | None) -> None:
    quantize = node("QuantizeLinear", ["turned", "scale", "zero"], ["y"])
    nodes = [node("Transpose", ["x"], ["turned"]), quantize]
    uses = uses_of(nodes, {"x": F}, scale=np.float32(scale), zero=np.int8(0))
    assert aims(uses)["x"].steps == (() if step is None else (step,))
    if step is not None:
        quotients = drawn(uses, "float32") / step
        ties = quotients[quotients % 1 == 0.5]
        assert {0.5, 1.5} <= set((ties % 2).tolist()) and ties.min() < 0 < ties.max()


def test_equal_numbers_lie_along_the_axis_of_a_choice() -> None:
    uses = uses_of([node("ArgMax", ["x"], ["y"], axis=1)], {"x": F})
    assert aims(uses)["x"].tied == (1,)
    numbers = drawn(uses, "float32", (40, 9))
    assert 5 < ((numbers == numbers.max(1, keepdims=True)).sum(1) > 1).sum() < 40
    unsorted = uses_of([node("TopK", ["x", "k"], ["y", "z"], sorted=0)], {"x": F}, k=[2])
    assert "x" not in aims(unsorted)


@pytest.mark.parametrize("centered", [0, 1])
def test_boxes_overlap_about_as_much_as_is_allowed(centered: int) -> None:
    nodes = [node("NonMaxSuppression", ["x", "scores", "", "overlap"], ["y"], center_point_box=centered)]
    uses = uses_of(nodes, {"x": F, "scores": F}, overlap=np.float32(0.5))
    assert aims(uses)["x"].boxes == Boxes(bool(centered), 0.5) and aims(uses)["scores"].scores
    tensors = [TensorInfo("x", "float32", (1, 60, 4)), TensorInfo("scores", "float32", (1, 1, 60))]
    feed = draw_inputs(tensors, roles_of(uses, ()), 0)
    corners = feed["x"][0]
    if centered:
        corners = np.concatenate([corners[:, :2] - corners[:, 2:] / 2, corners[:, :2] + corners[:, 2:] / 2], -1)
    low = np.maximum(corners[:, None, :2], corners[None, :, :2])
    high = np.minimum(corners[:, None, 2:], corners[None, :, 2:])
    common, areas = np.maximum(high - low, 0).prod(-1), (corners[:, 2:] - corners[:, :2]).prod(-1)
    shares = (common / (areas[:, None] + areas - common))[np.triu_indices(60, 1)]
    assert (areas > 0).all() and ((shares > 0.42) & (shares < 0.5)).any() and ((shares > 0.5) & (shares < 0.58)).any()
    assert len(np.unique(feed["scores"])) == 60 and 0 < feed["scores"].min() < feed["scores"].max() < 1


@pytest.mark.parametrize(("op", "number", "most"), [("Sub", 127.5, 255), ("Div", 255, 255), ("Sub", 0.45, 1)])
def test_pixels_are_drawn_where_the_first_operator_expects_them(op: str, number: float, most: float) -> None:
    uses = uses_of([node(op, ["x", "number"], ["y"])], {"x": F}, number=np.float32(number))
    pixels, normal = (drawn(uses, "float32", (1, 3, 32, 32), sample) for sample in (0, 1))
    assert pixels.min() >= 0 and 0.8 * most < pixels.max() <= most and normal.min() < 0


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_drawn_is_finite_and_normal(dtype: str) -> None:
    kinds = ("Relu", "Round", "Exp", "Sign", "Tanh")
    uses = uses_of([node(op, ["x"], [op]) for op in kinds], {"x": F})
    for sample in range(4):
        numbers = drawn(uses, dtype, (300,), sample)
        sizes = np.abs(numbers[numbers != 0])
        assert np.isfinite(numbers).all() and sizes.min() > np.finfo(dtype).tiny and sizes.max() < 11
    assert np.abs(drawn(uses_of([], {"x": F}), dtype, (300,), 1)).max() > 6


# --- rows of tables ---------------------------------------------------------------------------------------------------


def test_rows_that_no_sample_named() -> None:
    nodes = [node("Cast", ["x"], ["wide"], to=I64), node("Gather", ["words", "wide"], ["y"])]
    uses = uses_of(nodes, {"x": TensorProto.INT32}, words=np.zeros((2000, 2)))
    assert index_inputs(uses) == {"x"}
    feeds = [{"x": np.arange(1024, dtype=np.int32)}, {"x": np.array([-1])}]
    assert unread_rows(uses, feeds) == ("rows 1,024 to 1,998 of the table 'words' were not read",)
    most = np.setdiff1d(np.arange(2000), [7])
    assert unread_rows(uses, [{"x": most}]) == ("row 7 of the table 'words' was not read",)
    holes = np.setdiff1d(most, [1500, 1501])
    assert unread_rows(uses, [{"x": holes}]) == ("rows 7 and 1,500 to 1,501 of the table 'words' were not read",)
    odd = "1,000 of the 2,000 rows of the table 'words' were not read, row 1 the first of them"
    assert unread_rows(uses, [{"x": np.arange(0, 2000, 2)}]) == (odd,)
    assert unread_rows(uses, [{"x": np.arange(2000)}]) == ()


def test_tables_that_are_read_otherwise_have_no_unread_rows() -> None:
    gather = node("Gather", ["words", "x"], ["y"])
    tied = node("MatMul", ["y", "words"], ["z"])
    computed = [node("Add", ["x", "x"], ["twice"]), node("Gather", ["words", "twice"], ["z"])]
    for nodes in ([gather, tied], [gather, *computed]):
        uses = uses_of(nodes, {"x": I64}, words=np.zeros((20, 20)))
        assert index_inputs(uses) == frozenset() and unread_rows(uses, [{"x": np.array([1])}]) == ()


def test_two_inputs_may_read_one_table_and_its_rows_may_be_quantized() -> None:
    nodes = [
        node("DequantizeLinear", ["bytes", "scale"], ["words"]),
        node("Gather", ["words", "x"], ["a"]),
        node("Gather", ["words", "z"], ["b"]),
    ]
    uses = uses_of(nodes, {"x": I64, "z": I64}, bytes=np.zeros((4, 2), np.int8), scale=np.float32(1))
    assert unread_rows(uses, [{"x": np.array([0]), "z": np.array([1])}]) == (
        "rows 2 to 3 of the table 'bytes' were not read",
    )
