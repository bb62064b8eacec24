"""Strassen's rule: its coefficients, equal results by interpreter, kernels and packages, and when it is chosen."""

import itertools

import numpy as np
import onnx
import pytest
from contraction_tasks import pointwise, product
from hypothesis import given, settings
from hypothesis import strategies as st
from three_ways import Example, build, check, random_inputs, run_kernel, run_task, task_of

import modelc
from modelc.compile.config import load_config, parse_config
from modelc.ir.candidate import Candidate, Stage
from modelc.ir.loop import ROOT
from modelc.ir.verify import verify_task
from modelc.policy import Policy
from modelc.space.choose import accepted, chosen
from modelc.space.rules.derivation import constant_data, derive, rounding_error
from modelc.space.rules.rule import DoesNotApply
from modelc.space.rules.strassen import LEVELS, coefficients, operands, strassen_rule
from modelc.space.sketches.strassen import strassen_sketches
from modelc.target import load_target

TARGET = load_target("x86-64-v4")


def conv(n, c, size, o, kernel=3, pad=1, stride=1, dilation=1):
    dims = len(size)
    attrs = {"pads": (pad,) * (2 * dims), "strides": (stride,) * dims, "dilations": (dilation,) * dims, "group": 1}
    shapes = [(n, c, *size), (o, c, *(kernel,) * dims), (o,)]
    return task_of("Conv", attrs, shapes, consts=(1, 2), channels_last=True)


def phases(c, size, o):
    attrs = {"pads": (1,) * 4, "strides": (2, 2), "group": 1}
    return task_of("ConvTranspose", attrs, [(1, c, *size), (c, o, 4, 4), (o,)], consts=(1, 2), channels_last=True)


@pytest.mark.parametrize("levels", LEVELS)
def test_products_of_parts_add_up_to_the_product(levels: int) -> None:
    """The bilinear identity itself, for every entry of every part: exact in whole numbers."""
    by = coefficients(levels)
    parts = range(by.parts)
    assert by.products == 7**levels and by.parts == 2**levels
    made = np.einsum("tik,tlj,tab->ikljab", by.data, by.kernel, by.result)
    for i, k, l, j in itertools.product(parts, repeat=4):
        wanted = np.zeros((by.parts, by.parts), np.int64)
        wanted[i, j] = k == l
        assert (made[i, k, l, j] == wanted).all()


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.sampled_from(LEVELS), st.booleans())
def test_the_rule_computes_the_same(m: int, k: int, n: int, levels: int, conv: bool) -> None:
    parts = 2**levels
    rows, deep, wide = m * parts - (m > 1), k * parts, n * parts
    task = pointwise(2, deep, (rows, 3), wide) if conv else product(rows, deep, wide)
    names = {"rows": "h", "columns": "o", "depth": "c"} if conv else {"rows": "m", "columns": "n", "depth": "k"}
    assert operands(task, task.block(task.anchor)).columns == (names["columns"],)
    stages = (Stage("strassen", {"block": task.anchor, **names, "levels": levels}),)
    derived = derive(task, stages)
    verify_task(derived, "strassen")
    plain = random_inputs(task)
    summed = {name: constant_data(task, stages, name, x) if name in task.constants else x for name, x in plain.items()}
    wanted, found = run_task(task, plain), run_task(derived, summed)
    assert wanted.keys() == found.keys() and wanted
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("task", "count"),
    [
        (product(128, 256, 256), 2),
        (product(7, 256, 256), 1),
        (product(19, 256, 256, (3,), bias=False), 2),
        (pointwise(1, 128, (14, 7), 160), 2),
        (pointwise(2, 64, (18, 12), 192, stride=2), 1),
        (conv(1, 64, (9, 4), 64), 1),
        (conv(1, 64, (19, 7), 64, stride=2), 1),
        (conv(1, 64, (9, 10), 64, pad=2, dilation=2), 1),
        (conv(1, 64, (35,), 128, kernel=4, pad=2), 1),
        (conv(2, 64, (8, 3, 5), 64), 1),
        (phases(64, (6, 5), 64), 1),
    ],
    ids=[
        *("product", "odd rows", "batch", "convolution", "strided", "window", "strided window", "dilated"),
        *("long window", "3d", "phases"),
    ],
)
@pytest.mark.sweep(1)
def test_kernels_are_right_at_the_start_and_at_random_points(task, count: int) -> None:
    """Through the Nest, the compiled kernel and its packed constant; every point is plain data and accepted."""
    sketches = strassen_sketches(task, TARGET, [])
    generator, checked = np.random.default_rng(1), 0
    for sketch in sketches:
        points = np.stack([sketch.start(), *sketch.random(2, generator)])
        assert sketch.legal(points).all() and (sketch.estimate(points, 4) > 0).all()
        for candidate in map(sketch.candidate, points):
            assert Candidate.from_json(candidate.to_json()) == candidate
            accepted(task, candidate, TARGET)
            check(Example(task, random_inputs(task), rtol=1e-4, atol=1e-4), candidate)
            checked += 1
    assert len(sketches) == count and checked == 3 * count


def test_every_loop_may_go_to_threads() -> None:
    """Chunks of rows, panels of columns (sums are a phase before), and samples outside both."""
    task = pointwise(2, 128, (28, 14), 128, stride=2)
    (sketch, *_) = strassen_sketches(task, TARGET, [])
    (loops,) = (k.values for k in sketch.knobs if k.name == "parallel")
    assert len(loops) == 3 and sketch.panels in loops
    places = {}
    for loop in loops:
        candidate = sketch.candidate_of({**sketch.values(sketch.start()), "parallel": loop})
        assert candidate.blocks[sketch.roles.owner.name].tags[loop] == "parallel"
        places[loop] = candidate.blocks[sketch.roles.sums.name].at
        check(Example(task, random_inputs(task), rtol=1e-4, atol=1e-4), candidate)
    assert [loop for loop, place in places.items() if place is ROOT] == [sketch.panels]


def test_errors_stay_below_the_bound() -> None:
    task = product(32, 256, 256)
    inputs = random_inputs(task)
    exact = inputs["x0"].astype(np.float64) @ inputs["x1"].astype(np.float64) + inputs["x2"]
    largest = float(np.abs(inputs["x0"]).max()) * float(np.abs(inputs["x1"]).max())
    bounds = []
    for sketch in strassen_sketches(task, TARGET, []):
        kernel = run_kernel(build(task, sketch.candidate(sketch.start())), inputs)[0]["y0"]
        bounds.append(rounding_error(task, sketch.stages))
        assert 0 < np.abs(kernel - exact).max() <= bounds[-1] * largest
    assert len(bounds) == 2 and bounds[0] < bounds[1]


@pytest.mark.parametrize(
    "task",
    [
        product(3, 256, 256),
        product(128, 32, 256),
        product(128, 256, 48),
        task_of("MatMul", {}, [(8, 256), (256, 256)]),
        conv(1, 128, (3, 3), 128),
        conv(1, 128, (16, 16), 32),
    ],
    ids=["few rows", "short depth", "few columns", "both computed", "small map", "few filters"],
)
def test_where_it_does_not_apply(task) -> None:
    assert strassen_sketches(task, TARGET, []) == []


def test_wrong_arguments_are_refused_with_what_is_wrong() -> None:
    task = product(8, 12, 16)
    names = {"block": task.anchor, "rows": "m", "columns": "n", "depth": "k"}
    for changed, why in (({"levels": 3}, "3 times"), ({"rows": "n"}, "iterator n"), ({"rows": "k"}, "iterator k")):
        with pytest.raises(DoesNotApply, match=why):
            strassen_rule(task, **{**names, "levels": 1, **changed})


def test_large_products_are_cut_unless_the_configuration_forbids_it() -> None:
    task = product(1024, 768, 768)
    rules = {
        flag: {s.rule for s in chosen(task, TARGET, Policy(strassen=flag)).candidate.stages} for flag in (True, False)
    }
    assert "strassen" in rules[True] and "strassen" not in rules[False]
    tree = load_config().allowing(strassen=False).to_json()
    assert tree["schedule"]["strassen"] is False and not parse_config(tree, "here").policy.strassen
    del tree["schedule"]["strassen"]
    assert not parse_config(tree, "a file of before").policy.strassen


def test_a_package_agrees_with_onnx_runtime_and_rebuilds_byte_for_byte(tmp_path) -> None:
    """What compile ships: the chosen schedule, packed constants, the loader; and again from choices.json."""
    weights = np.random.default_rng(0).standard_normal((512, 512), dtype=np.float32) / 16
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 1024, 512])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 1024, 512])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = tmp_path / "product.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    one, two = tmp_path / "one.modelc", tmp_path / "two.modelc"
    result = modelc.compile(model, output=one, database=False)
    assert '"strassen"' in (one / "choices.json").read_text()
    assert result.report.passed and "Strassen" in result.report.sentence()
    assert result.report.outputs[0].distance.rms_rel < 1e-5
    modelc.compile(model, output=two, choices=one / "choices.json", database=False)
    assert (one / "params.bin").read_bytes() == (two / "params.bin").read_bytes()
    with modelc.load(one) as package:
        x = np.random.default_rng(1).standard_normal((1, 1024, 512), dtype=np.float32)
        np.testing.assert_allclose(package.run({"x": x})["y"], x @ weights, rtol=1e-3, atol=1e-4)
