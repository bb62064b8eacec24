"""The judge of kernels: bounds that hold and are narrow, samples that reach everything, wrong kernels found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_model as small
from hypothesis import example, given, settings
from hypothesis import strategies as st
from meaning_in_float64 import every_element, outputs_with_bounds
from onnx import TensorProto, helper, numpy_helper
from onnx_cases import node_tests
from onnx_node_tests import Unsupported, value_of

import modelc
from modelc.compile.choices import digest_of
from modelc.compile.config import load_config
from modelc.compile.pipeline import Run
from modelc.compile.verification import blueprints_of
from modelc.errors import ModelError
from modelc.frontend.onnx import import_model
from modelc.ir.arithmetic import converted
from modelc.ir.block import Block, Iter
from modelc.ir.expr import Load, Op, Var, op
from modelc.ir.interpret import run_block
from modelc.ir.layout import Layout, reordered
from modelc.ir.program import Placed
from modelc.ir.scalar import OPERATIONS
from modelc.ops import evaluate_graph
from modelc.package import PackageSpec, read_package, write_package
from modelc.target import load_target
from modelc.verify.kernels.blueprint import Blueprint
from modelc.verify.kernels.calls import looked_at, rows_of, uses_by_step
from modelc.verify.kernels.definitions import Definitions
from modelc.verify.kernels.demand import LAST, Evaluator
from modelc.verify.kernels.inverse import CannotSay
from modelc.verify.kernels.machine import Machine
from modelc.verify.kernels.meaning import Imported
from modelc.verify.kernels.memory import ExpectedMemory
from modelc.verify.kernels.products import matrix_products
from modelc.verify.kernels.rounding import Analysis, Rounded, exact
from modelc.verify.kernels.samples import EFFORTS, chosen, edges, telling
from modelc.verify.verdict import verify_outputs

# --- rounding -----------------------------------------------------------------------------------------------------

FUNCTIONS = ("exp", "tanh", "erf", "sigmoid", "sqrt", "log", "abs", "neg", "floor", "round", "sin", "cos")
BINARY = ("add", "sub", "mul", "div", "max", "min")


@settings(max_examples=75, deadline=None)
@example(["exp", "exp", "exp", "sin"], 0)
@given(st.lists(st.sampled_from((*FUNCTIONS, *BINARY)), min_size=1, max_size=8), st.integers(0, 2**32 - 1))
def test_chains_of_operations_in_float32_stay_within_the_bound(names: list[str], seed: int) -> None:
    """The same operations one after another in float32, by NumPy, whose functions are exact to an ulp or two."""
    rng = np.random.default_rng(seed)
    number = rng.uniform(0.1, 2, 500).astype(np.float32)
    wide, narrow = exact(number), number
    with np.errstate(all="ignore"):
        for name in names:
            if name in BINARY:
                other = rng.uniform(-2, 2, 500).astype(np.float32)
                args, given_args = [wide, exact(other)], [narrow, other]
            else:
                args, given_args = [wide], [narrow]
            expression = Op(name, tuple(Var(f"v{k}") for k in range(len(args))))
            wide = Analysis().operate(expression, args)
            narrow = np.asarray(OPERATIONS[name].meaning(*given_args)).astype(np.float32)
        bound = np.broadcast_to(wide.bound, narrow.shape)
        apart = np.abs(narrow - wide.value)
        assert (~(apart > bound) | ~np.isfinite(bound) | ~np.isfinite(wide.value)).all()


def test_the_bound_of_a_sum_is_near_what_rounding_does() -> None:
    rng = np.random.default_rng(0)
    terms = rng.standard_normal((2000, 576)).astype(np.float32)
    total = Analysis().summed(exact(terms), 1)
    apart = np.abs(np.add.accumulate(terms, axis=1, dtype=np.float32)[:, -1] - total.value)
    assert (apart <= total.bound).all()
    assert np.median(total.bound / np.sqrt(np.mean(apart**2))) < 40, "a wrong weight would hide in it"


def test_what_jumps_is_exact_away_from_the_jump() -> None:
    near = Rounded(np.array([0.49, 0.4999999, 0.51, 1.2]), "float32", np.full(4, 1e-6), None)
    rounded = Analysis().operate(Op("round", (Var("x"),)), [near])
    assert rounded.bound.tolist() == [0, 1, 0, 0]
    whole = Analysis().cast(near, "int32")
    assert whole.exact and whole.value.tolist() == [0, 0, 0, 1]
    above = Analysis().operate(Op("gt", (Var("x"), Var("y"))), [near, exact(np.full(4, 0.5, np.float32))])
    assert above.bias is not None and above.bias.tolist() == [0, 1, 0, 0]
    arms = [exact(np.full(4, value, np.float32)) for value in (3.0, 1.0)]
    picked = Analysis().operate(Op("select", (Var("c"), Var("a"), Var("b"))), [above, *arms])
    assert picked.bound.tolist() == [0, 2, 0, 0]


def test_sums_of_whole_numbers_are_not_rounded() -> None:
    """Of a quantized number a zero point off by one shows, wherever the number is far from a tie."""
    near = Rounded(np.array([0.49, 0.4999999, 0.51, 2e7]), "float32", np.full(4, 1e-6), None)
    whole = Analysis().operate(Op("round", (Var("x"),)), [near])
    moved = Analysis().operate(Op("add", (Var("x"), Var("y"))), [whole, exact(np.full(4, 117.0, np.float32))])
    byte = Analysis().cast(
        Analysis().operate(Op("min", (Var("x"), Var("y"))), [moved, exact(np.full(4, 255.0, np.float32))]), "uint8"
    )
    assert byte.value.tolist() == [117, 117, 118, 255] and byte.bound.tolist() == [0, 1, 0, 0]
    assert moved.bound[3] > 1, "beyond 2^24 sums of whole numbers are rounded"


@settings(max_examples=200, deadline=None)
@example(118.0, 256.0, "uint8", 0)  # both ends wrap to 118
@example(2.0, 3.0, "bool", 0)
@given(
    st.floats(-600, 600), st.floats(0, 700), st.sampled_from(("bool", "int8", "uint8", "int32")), st.integers(0, 9999)
)
def test_a_cast_is_off_as_far_as_any_number_within_the_errors(number: float, far: float, dtype: str, seed: int) -> None:
    made = Analysis().cast(Rounded(np.array([number]), "float32", None, np.array([far])), dtype)
    within = np.random.default_rng(seed).uniform(number - far, number + far, 300)
    within = np.concatenate([within, np.rint(within)])
    within = within[np.abs(within - number) <= far]
    apart = np.abs(converted(within, np.dtype(dtype)).astype(np.float64) - made.value.astype(np.float64))
    assert (apart <= made.bound).all()


def test_whole_numbers_of_a_machine_are_off_by_whole_numbers() -> None:
    """A tie moves a quantized number by one step, not by two, also where its zero point is added."""
    machine, x, y = Machine(contracted=False), Var("x"), Var("y")
    near = Rounded(np.array([0.4999999, 0.51]), "float32", None, np.full(2, 1e-6))
    whole = machine.operate(Op("round", (x,)), [near])
    moved = machine.operate(Op("add", (x, y)), [whole, exact(np.full(2, 117.0, np.float32))])
    byte = machine.cast(moved, "uint8")
    assert byte.value.tolist() == [117, 118] and byte.bound.tolist() == [1, 0]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 700), st.booleans(), st.integers(0, 2**32 - 1))
def test_a_sum_of_products_in_no_known_order_is_within_the_bound(depth: int, fused: bool, seed: int) -> None:
    """In float32, in a drawn order, products rounded or not; and the bound is no wider than a sum of all roundings."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((3, depth)).astype(np.float32) for _ in range(2))
    every = np.arange(3)
    sums = matrix_products(exact(a), exact(b), every, every, every, 3, Machine(contracted=False))
    assert sums is not None
    wide = a.astype(np.float64) * b.astype(np.float64)
    total = np.zeros(3, np.float32)
    for k in rng.permutation(depth):
        term = wide[:, k] if fused else (a * b)[:, k].astype(np.float64)
        total = (total + term).astype(np.float32)
    assert (np.abs(total - sums.value) <= sums.bound).all()
    assert (sums.bound <= 2.0**-24 * (depth + 3) * np.abs(wide).sum(axis=1)).all()


def measured(name: str, x: np.ndarray, target: str = "native") -> tuple[np.ndarray, Rounded]:
    """What a compiled kernel makes of `x`, and its meaning."""
    import tempfile

    operator = {"exp": "Exp", "log": "Log", "erf": "Erf", "tanh": "Tanh", "sigmoid": "Sigmoid", "softplus": "Softplus"}
    kind = operator.get(name, name.capitalize())
    with tempfile.TemporaryDirectory() as folder:
        node = helper.make_node(kind, ["x"], ["y"])
        path = small.save(Path(folder) / "m.onnx", [node], {"x": list(x.shape)}, {"y": list(x.shape)}, {})
        modelc.compile(path, target, Path(folder) / "m.modelc", verify=False, database=False)
        with modelc.load(Path(folder) / "m.modelc") as model:
            return model.run({"x": x})["y"], outputs_with_bounds(path, {"x": x})["y"]


@pytest.mark.parametrize("name", ["exp", "log", "erf", "tanh", "sigmoid", "softplus", "sin", "cos", "sqrt"])
def test_polynomials_are_as_exact_as_is_stated(name: str) -> None:
    rng = np.random.default_rng(0)
    spread = np.concatenate([rng.uniform(-9, 9, 20_000), rng.uniform(-1, 1, 20_000), 10.0 ** rng.uniform(-9, 1, 8_000)])
    x = np.abs(spread) if name in ("log", "sqrt") else spread
    if name == "exp":
        x = np.concatenate([x, rng.uniform(-86, 88, 8_000)])
    ours, meaning = measured(name, x.astype(np.float32))
    assert (np.abs(ours - meaning.value) <= meaning.bound).all()


# --- demanded elements --------------------------------------------------------------------------------------------


def test_every_node_of_onnx_is_evaluated_element_by_element(tmp_path: Path) -> None:
    """ONNX's own node tests, a tenth of them: all elements of the outputs in float64 beside the interpreter's."""
    compared, unsampled = 0, list[str]()
    for case in node_tests()[::10]:
        onnx.save(case.model, tmp_path / "m.onnx")
        try:
            (inputs, _), *_ = case.data_sets
            feed = {
                declared.name: value_of(declared.name, data).data
                for declared, data in zip(case.model.graph.input, inputs, strict=False)
            }
            graph = import_model(tmp_path / "m.onnx", {name: array.shape for name, array in feed.items()})
            whole = evaluate_graph(graph, feed)
        except (Unsupported, ModelError, KeyError):
            continue
        evaluator = Evaluator(Imported(graph).definitions(feed, Analysis()), 1 << 24)
        for name, array in whole.items():
            try:
                with np.errstate(all="ignore"):
                    meaning = evaluator.elements(name, every_element(array.shape))
            except CannotSay as reason:
                unsampled.append(f"{case.name}: {reason}")
                continue
            flat = array.reshape(-1)
            if flat.dtype.kind not in "biu":
                flat = flat.astype(np.float64)
            with np.errstate(all="ignore"):
                numbers = (flat.astype(np.float64), np.asarray(meaning.value, np.float64))
                near = np.abs(numbers[0] - numbers[1]) <= meaning.bound
                same = (flat == meaning.value) | (np.isnan(numbers[0]) & np.isnan(numbers[1]))
            assert (near | same).all(), case.name
            compared += 1
    assert compared > 75
    assert len(unsampled) < compared / 20, unsampled


def writes(*indices) -> Block:
    """A map that writes 10 * i + j to places that it computes."""
    i, j = Var("i"), Var("j")
    return Block("b", (Iter("i", 4), Iter("j", 6)), (Load("y", tuple(x(i, j) for x in indices)),), (i * 10 + j,))


@pytest.mark.parametrize(
    ("block", "shape"),
    [
        (writes(lambda i, j: i, lambda i, j: j), (4, 6)),
        (writes(lambda i, j: j + 3, lambda i, j: i * 2 + 1), (9, 8)),
        (writes(lambda i, j: i * 6 + j), (24,)),
        (writes(lambda i, j: i * 8 + j), (32,)),
        (writes(lambda i, j: j * 4 + i), (24,)),
        (writes(lambda i, j: j // 2, lambda i, j: i * 2 + j % 2), (3, 8)),
        (writes(lambda i, j: i * 2 - i, lambda i, j: op("sub", 5, j)), (4, 6)),
    ],
)
def test_points_are_found_that_write_an_element(block: Block, shape: tuple[int, ...]) -> None:
    written = np.full(shape, -1, np.int64)
    run_block(block, {"y": written})
    definitions = Definitions({}.get, lambda name: [((0,), block)], lambda name: ("int64", shape), {})
    found = Evaluator(definitions, 1 << 20).elements("y", every_element(shape))
    there = written.reshape(-1) >= 0
    assert (found.value[there] == written.reshape(-1)[there]).all()
    assert found.bias is None or (np.isinf(found.bias) == ~there).all()


def test_a_contraction_of_scattered_samples_is_that_of_all() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 5, 9, 9), (7, 5, 3, 3)))
    n, o, h, v, c, r, s = (Var(name) for name in "nohvcrs")
    iters = [Iter(name, extent) for name, extent in (("n", 2), ("o", 7), ("h", 9), ("v", 9))]
    iters += [Iter(name, extent, True) for name, extent in (("c", 5), ("r", 3), ("s", 3))]
    at = (h + r - 1, v + s - 1)
    inside = tuple(op("ge", a, 0) for a in at) + tuple(op("lt", a, 9) for a in at)
    product = Load("x", (n, c, *at)) * Load("w", (o, c, r, s))
    block = Block("conv", tuple(iters), (Load("y", (n, o, h, v)),), (product,), "add", inside)
    whole = np.zeros((2, 7, 9, 9), np.float32)
    run_block(block, {"x": x, "w": w, "y": whole})
    kinds = {"x": x, "w": w, "y": whole}
    definitions = Definitions(
        {"x": x, "w": w}.get, lambda name: [((0,), block)], lambda name: ("float32", kinds[name].shape), {}
    )
    for count in (1, 3, 50, 1134):
        index = np.unravel_index(rng.permutation(whole.size)[:count], whole.shape)
        found = Evaluator(definitions, 1 << 30).elements("y", index, LAST)
        assert (np.abs(found.value - whole[index]) <= found.bound).all() and (found.bound < 1e-4).all()


# --- samples ------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 70), min_size=1, max_size=4),
    st.integers(0, 3),
    st.lists(st.integers(2, 40), max_size=3),
    st.sampled_from(sorted(EFFORTS)),
)
def test_samples_reach_every_channel_every_corner_and_every_edge(
    shape: list[int], channel: int, tiles: list[int], effort: str
) -> None:
    along = channel % len(shape)
    index = chosen(shape, [along], [tiles] * len(shape), EFFORTS[effort], np.random.default_rng(0))
    assert len({len(i) for i in index}) == 1 and all(
        (i >= 0).all() and (i < n).all() for i, n in zip(index, shape, strict=True)
    )
    assert set(index[along]) == set(range(shape[along])), "a channel is left out"
    corner = [np.isin(i, (0, n - 1)) for i, n in zip(index, shape, strict=True)]
    assert np.logical_and.reduce(corner).any()
    for d, extent in enumerate(shape):
        assert {0, extent - 1} <= set(index[d])


@pytest.mark.parametrize(("shape", "channels"), [((1, 300, 200), (1, 2)), ((4, 30_000), (1,))])
def test_every_element_of_a_constant_weighs_on_a_sample(shape: tuple[int, ...], channels: tuple[int, ...]) -> None:
    """Of a table of positions x channels, and of more channels than there are samples otherwise."""
    index = chosen(shape, channels, [[]] * len(shape), EFFORTS["default"], np.random.default_rng(0))
    along = [index[d] for d in channels]
    assert len(set(zip(*along, strict=True))) == np.prod([shape[d] for d in channels])


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_what_a_rectifier_leaves_is_looked_at(channel: int) -> None:
    """Of a channel with one number above zero that number; of one with several, several."""
    array, rng = np.zeros((5, 40, 6), np.float32), np.random.default_rng(0)
    channels = np.moveaxis(array, channel, 0)
    channels[1, 4, 3], channels[3, 2] = 7, np.arange(1, channels.shape[2] + 1)
    index = telling(array, channel, EFFORTS["default"], rng)
    places = {tuple(int(i) for i in place) for place in zip(*index, strict=True)}
    above = {tuple(int(i) for i in place) for place in np.argwhere(array)}
    assert above & places >= {place for place in above if place[channel] == 1}
    assert len({place for place in above & places if place[channel] == 3}) >= 5


def test_both_sides_of_every_boundary_of_a_tile_are_edges() -> None:
    places = set(edges(56, [14]))
    assert {13, 14, 27, 28, 41, 42, 0, 55} <= places
    assert {31, 32} <= set(edges(40, [])), "a vector's"


# --- packages -----------------------------------------------------------------------------------------------------


def classifier(path: Path, change: Callable[[dict[str, np.ndarray]], None] = lambda weights: None) -> Path:
    """Three convolutions, one of 1 x 1, a pool, a product and a softmax, as in SqueezeNet; `change` spoils weights."""
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * (2 / np.prod(shape[1:])) ** 0.5).astype(np.float32)

    weights = {"w1": drawn(16, 3, 3, 3), "w2": drawn(24, 16, 1, 1), "w3": drawn(32, 24, 3, 3), "w4": drawn(10, 32)}
    weights |= {
        f"b{k}": rng.standard_normal(n).astype(np.float32) * 0.1 for k, n in ((1, 16), (2, 24), (3, 32), (4, 10))
    }
    weights["w4"] = weights["w4"].T.copy()
    change(weights)
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("Conv", ["r2", "w3", "b3"], ["c3"], pads=[1] * 4),
        helper.make_node("Relu", ["c3"], ["r3"]),
        helper.make_node("GlobalAveragePool", ["r3"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w4", "b4"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"], axis=1),
    ]
    return small.save(path, nodes, {"x": [1, 3, 40, 40]}, {"y": [1, 10]}, weights)


def one_weight(weights: dict[str, np.ndarray]) -> None:
    weights["w2"][5, 3] *= 1.1


def all_of_a_layer(weights: dict[str, np.ndarray]) -> None:
    weights["w3"] *= 1.001


def a_bias_under_softmax(weights: dict[str, np.ndarray]) -> None:
    weights["b4"][3] += 0.1


def a_channel(weights: dict[str, np.ndarray]) -> None:
    weights["w3"][7] = 0


def two_channels(weights: dict[str, np.ndarray]) -> None:
    weights["w1"][[2, 9]] = weights["w1"][[9, 2]]


def a_zeroed_tap(weights: dict[str, np.ndarray]) -> None:
    weights["w3"][:, :, 0, 0] = 0


ATTACKS = (one_weight, all_of_a_layer, a_bias_under_softmax, a_channel, two_channels, a_zeroed_tap)


@pytest.mark.parametrize(
    ("target", "attacks"),
    [
        ("native", ATTACKS[3:4]),
        pytest.param("native", (*ATTACKS[:3], *ATTACKS[4:]), marks=pytest.mark.slow),
        pytest.param("cortex-a76", ATTACKS[:2], marks=pytest.mark.slow),
    ],
    ids=["native", "others", "cortex-a76"],
)
def test_wrong_weights_are_found_whatever_the_outputs_say(tmp_path: Path, target: str, attacks) -> None:
    from tiny_package import skip_without_tools

    skip_without_tools(load_target(target).triple)
    right = classifier(tmp_path / "right.onnx")
    for attack in attacks:
        wrong = classifier(tmp_path / "wrong.onnx", attack)
        modelc.compile(wrong, target, tmp_path / "wrong.modelc", database=False, verify=False)
        report = modelc.verify(tmp_path / "wrong.modelc", right, samples=1)
        assert not report.passed and report.first_wrong is not None, attack.__name__
        assert "is wrong in kernel" in report.sentence() and "expected" in report.sentence()
    result = modelc.compile(right, target, tmp_path / "right.modelc", database=False)
    assert result.report is not None and result.report.passed and not result.report.unjudged
    assert all(kernel.worst < 0.5 and kernel.samples for kernel in result.report.kernels)


def test_a_channel_that_never_varies_is_said(tmp_path: Path) -> None:
    def dead(weights: dict[str, np.ndarray]) -> None:
        weights["b2"][4] = -100

    model = classifier(tmp_path / "m.onnx", dead)
    modelc.compile(model, output=tmp_path / "m.modelc", database=False, verify=False)
    report = modelc.verify(tmp_path / "m.modelc", model)
    assert report.passed
    assert any("not compared: 1 of 24 channels of 'r2'" in note for note in report.notes)


def parts_of(path: Path) -> tuple[PackageSpec, tuple[Blueprint, ...]]:
    """What the package of a model is written from, and what its kernels are judged by."""
    run = Run(path, digest_of(path), load_target("native"), load_config(), ({},))
    programs = run.programs()
    compiled = run.kernels(programs.rounded)
    return run.spec(programs, compiled), run.blueprints(programs, compiled)


def test_a_kernel_that_reads_what_nobody_wrote_there_is_found(tmp_path: Path) -> None:
    """Two steps that work on the same shapes, swapped."""
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.standard_normal((16, 16)).astype(np.float32) for k in range(3)}
    names = ["x", "a", "b", "y"]
    nodes = [helper.make_node("MatMul", [names[k], f"w{k}"], [names[k + 1]]) for k in range(3)]
    path = small.save(tmp_path / "m.onnx", nodes, {"x": [4, 16]}, {"y": [4, 16]}, weights)
    spec, blueprints = parts_of(path)
    (plan,) = spec.variants
    assert len(plan.steps) == 3
    kept = write_package(spec, tmp_path / "right.modelc").path
    assert verify_outputs(kept, path, blueprints=blueprints).passed
    first, second, third = plan.steps
    names_of = [step.name for step in plan.steps]
    swapped = tuple(replace(s, name=n) for s, n in zip((first, third, second), names_of, strict=True))
    wrong = write_package(replace(spec, variants=(replace(plan, steps=swapped),)), tmp_path / "wrong.modelc").path
    assert not verify_outputs(wrong, path, blueprints=blueprints).passed


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_expected_memory_knows_what_was_written_to_the_parts_of_a_root(data: st.DataObject) -> None:
    """A concatenation along any dimension, stored in any order of dimensions: read as a whole, and each part again."""
    order = tuple(data.draw(st.permutations(range(3))))
    shape = tuple(data.draw(st.tuples(*[st.integers(1, 4)] * 3)))
    axis, extent = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    layout = reordered(*order)
    whole = Placed("whole", "float32", tuple(n + extent * (d == axis) for d, n in enumerate(shape)), layout)
    strides = whole.physical_strides
    first = Placed("first", "float32", shape, layout, strides, "whole")
    second_shape = tuple(extent if d == axis else n for d, n in enumerate(shape))
    second = Placed(
        "second", "float32", second_shape, layout, strides, "whole", shape[axis] * strides[order.index(axis)]
    )
    held = rng.standard_normal(whole.elements).astype(np.float32)

    def bytes_of(part: Placed) -> bytes:
        return held[part.offset : part.offset + part.elements].tobytes()

    expected = ExpectedMemory({part.name: part for part in (whole, first, second)})
    expected.write("first", bytes_of(first))
    assert expected.holds("first", bytes_of(first)) and expected.holds("whole", bytes_of(whole))
    expected.write("second", bytes_of(second))
    assert all(expected.holds(part.name, bytes_of(part)) for part in (whole, first, second))
    held[rng.integers(held.size)] += 1
    assert not expected.holds("whole", bytes_of(whole))
    assert expected.holds("first", bytes_of(first)) != expected.holds("second", bytes_of(second))
    expected.forget(["whole"])
    assert expected.holds("whole", bytes_of(whole))


def test_what_was_written_as_a_whole_is_there_once_for_all_who_read_it() -> None:
    whole = Placed("whole", "float32", (4, 4))
    half = Placed("half", "float32", (2, 4), Layout(), whole.physical_strides, "whole", 0)
    expected = ExpectedMemory({"whole": whole, "half": half})
    data = np.arange(16, dtype=np.float32).tobytes()
    expected.write("whole", data)
    read = expected.shared("whole", bytes(bytearray(data)))
    assert len(read) == len(data) and np.shares_memory(np.frombuffer(read, "u1"), np.frombuffer(data, "u1"))
    part = data[:32]
    assert expected.shared("half", part) is part
    expected.write("half", bytes(32))  # into a copy: what was read stays
    assert bytes(read) == data and expected.shared("whole", data) is data


def test_a_part_of_a_concatenation_that_another_kernel_spoils_is_found(tmp_path: Path) -> None:
    """The second part is written over the first, and the third where nobody wrote: what is read as a whole is not what
    was written to its parts."""
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.standard_normal((16, 16)).astype(np.float32) for k in range(2)}
    weights["v"] = rng.standard_normal((32, 8)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("MatMul", ["x", "w1"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["c"], axis=1),
        helper.make_node("MatMul", ["c", "v"], ["y"]),
    ]
    path = small.save(tmp_path / "m.onnx", nodes, {"x": [4, 16]}, {"y": [4, 8]}, weights)
    spec, blueprints = parts_of(path)
    (plan,) = spec.variants
    assert len(plan.steps) == 3, "the concatenation is no step: its parts are written in place"
    first, second, third = plan.steps
    theirs = {argument.offset for step in (first, second) for argument in step.arguments if argument.space == "arena"}
    assert len(theirs) == 2
    spoilt = replace(
        second, arguments=tuple(replace(a, offset=min(theirs)) if a.space == "arena" else a for a in second.arguments)
    )
    wrong = write_package(
        replace(spec, variants=(replace(plan, steps=(first, spoilt, third)),)), tmp_path / "wrong.modelc"
    )
    report = verify_outputs(wrong.path, path, blueprints=blueprints)
    assert "'c' is read as something else than what was written there before" in report.sentence()


def test_kernels_of_loops_and_branches_are_judged_where_they_ran(tmp_path: Path) -> None:
    """A Loop that a run counts, with a Task in its body."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 8)).astype(np.float32) * 0.3}
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["p"]),
            helper.make_node("Tanh", ["p"], ["h_next"]),
            helper.make_node("Identity", ["go"], ["go_next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h", TensorProto.FLOAT, [2, 8]),
        ],
        [
            helper.make_tensor_value_info("go_next", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h_next", TensorProto.FLOAT, [2, 8]),
        ],
    )
    nodes = [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)]
    inputs = {"n": ([], TensorProto.INT64), "x": [2, 8]}
    path = small.save(tmp_path / "m.onnx", nodes, inputs, {"y": [2, 8]}, weights)
    feed = {"n": np.array(40), "x": rng.standard_normal((2, 8)).astype(np.float32)}
    result = modelc.compile(path, output=tmp_path / "m.modelc", inputs=feed, database=False)
    assert result.report is not None and result.report.passed
    calls = {kernel.kernel: (kernel.calls, kernel.samples) for kernel in result.report.kernels}
    assert calls and all(count >= 4 and samples for count, samples in calls.values()), calls
    model = onnx.load(path)
    tensor = next(t for t in model.graph.initializer if t.name == "w")
    tensor.CopyFrom(numpy_helper.from_array(weights["w"] * np.float32(1.0001), "w"))
    onnx.save(model, tmp_path / "other.onnx")
    report = modelc.verify(tmp_path / "m.modelc", tmp_path / "other.onnx", feed)
    assert not report.passed and report.first_wrong is not None


def test_every_place_of_a_package_is_looked_at_once() -> None:
    read = read_package(small.package())
    for number, blueprint in enumerate(blueprints_of(read, small.model())):
        plan = read.manifest.variants[number]
        of_steps = uses_by_step(blueprint.program, plan, blueprint.phases)
        rows = rows_of(of_steps, plan, blueprint.phases, 3)
        wanted = sum(len(looked_at(bound, blueprint.phases)) for bound in blueprint.program.kernels)
        assert len(rows) == wanted > 6
        assert {row.use.bound.values[row.buffer] for row in rows if row.after} >= {"r1", "y"}


@pytest.mark.parametrize("target", ["native", "cortex-a76"])
def test_numbers_without_dimensions_stay_so(tmp_path: Path, target: str) -> None:
    """Products of two scalar scales, as quantizers write them, against ONNX Runtime's pieces; a scalar input."""
    from tiny_package import skip_without_tools

    skip_without_tools(load_target(target).triple)
    weights = {"s": np.array(0.5, np.float32), "w": np.ones((4, 4), np.float32)}
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Mul", ["most", "s"], ["scale"]),
        helper.make_node("Div", ["x", "scale"], ["z"]),
        helper.make_node("Mul", ["z", "by"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    path = small.save(tmp_path / "m.onnx", nodes, {"x": [4, 4], "by": []}, {"y": [4, 4], "scale": []}, weights)
    modelc.compile(path, target, tmp_path / "m.modelc", database=False)
    report = modelc.verify(tmp_path / "m.modelc", path, per_layer=True)
    layers = {layer.value: layer for layer in report.layers}
    assert report.passed and "scale" in layers and all(layer.passed for layer in layers.values())


def test_later_runs_are_judged_too(tmp_path: Path) -> None:
    """What data decides, a size for one, may be wrong for some data alone."""
    path = classifier(tmp_path / "m.onnx")
    modelc.compile(path, output=tmp_path / "m.modelc", database=False, verify=False)
    counts = [[k.samples for k in modelc.verify(tmp_path / "m.modelc", path, samples=n).kernels] for n in (1, 2)]
    assert all(few < many for few, many in zip(*counts, strict=True))


def test_an_ill_conditioned_model_passes_by_its_kernels(tmp_path: Path) -> None:
    """A difference of nearly equal sums, amplified: no two orders of additions agree, and each kernel is right."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((512, 64)).astype(np.float32), "big": np.full(1, 3e5, np.float32)}
    weights["v"] = weights["w"][:, ::-1].copy()
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("ReduceSum", ["a"], ["one"], keepdims=1),
        helper.make_node("MatMul", ["x", "v"], ["b"]),
        helper.make_node("ReduceSum", ["b"], ["two"], keepdims=1),
        helper.make_node("Sub", ["one", "two"], ["d"]),
        helper.make_node("Mul", ["d", "big"], ["y"]),
    ]
    path = small.save(tmp_path / "m.onnx", nodes, {"x": [3, 512]}, {"y": [1, 1]}, weights)
    result = modelc.compile(path, output=tmp_path / "m.modelc", database=False)
    assert result.report is not None and result.report.passed
    (output,) = result.report.outputs
    assert output.amplified or output.distance.rms_rel < 1e-3
