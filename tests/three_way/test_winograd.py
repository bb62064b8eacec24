"""Winograd's rule: equal results by the interpreter, by kernels, and when it is chosen."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from contraction_tasks import conv
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_points import accepted_points
from three_ways import Example, build, check, close, random_inputs, run_kernel, run_task, stored_in_bfloat16, task_of

from modelc.compile.config import load_config
from modelc.ir.candidate import Candidate
from modelc.ir.expr import Load, Op
from modelc.ir.verify import verify_task
from modelc.policy import Policy
from modelc.space.choose import accepted, chosen
from modelc.space.construct import constructed
from modelc.space.rules.derivation import constant_data, derive, rounding_error
from modelc.space.rules.filters import TAPS, sizes, transform
from modelc.space.rules.rule import DoesNotApply
from modelc.space.rules.windows import products, windows, worthwhile
from modelc.space.rules.winograd import winograd_rule
from modelc.space.sketches.listing import sketches
from modelc.space.sketches.winograd import Shape, Winograd, filtered, winograd_sketches
from modelc.target import load_target

TARGET = load_target("x86-64-v4")
ONE_CORE = replace(TARGET, cores=1)


def transposed(n, c, size, o, kernel=4, strides=2, pads=1, more=0, bias=True, channels_last=True):
    dims = len(size)
    attrs = {"pads": (pads,) * (2 * dims), "strides": (strides,) * dims, "output_padding": (more,) * dims}
    shapes = [(n, c, *size), (c, o, *(kernel,) * dims), *[(o,)] * bias]
    return task_of("ConvTranspose", attrs, shapes, consts=range(1, len(shapes)), channels_last=channels_last)


def every(task):
    """The Sketches of every transform, of those too that are not worthwhile."""
    return [Winograd(filtered(task, TARGET, [], m), shape) for m in sizes_of(task) for shape in Shape]


def sizes_of(task):
    return sizes(windows(task, task.block(task.anchor)).taps)


@pytest.mark.parametrize(
    "task",
    [
        conv(1, 4, (8, 8), 8),
        conv(2, 3, (7, 10), 5),
        conv(1, 4, (9, 6), 4, pads=0),
        conv(1, 3, (4, 7, 6), 5, dims=3),
        conv(1, 4, (1, 2), 4),
        conv(2, 6, (5, 7), 9, group=3),
        conv(1, 4, (5, 4), 6, group=2, bias=False),
        conv(1, 3, (9, 10), 4, pads=2, dilation=2),
        conv(2, 4, (7, 11), 6, pads=1, dilation=3, group=2),
        conv(1, 3, (6, 7, 8), 4, pads=2, dims=3, dilation=2),
        conv(1, 4, (5, 6), 4, kernel=2, pads=0),
        transposed(1, 6, (5, 4), 8),
        transposed(2, 3, (3, 4, 3), 4, bias=False),
        transposed(1, 4, (5, 4), 6, kernel=3, more=1),
        transposed(1, 4, (5, 4), 6, kernel=5, strides=3),
        transposed(1, 4, (5, 4), 6, kernel=3, strides=1, bias=False),
        task_of(
            "ConvTranspose",
            {"pads": (1, 1, 0) * 2, "strides": (2, 2, 1)},
            [(1, 3, 3, 4, 2), (3, 4, 4, 4, 1)],
            consts=(1,),
            channels_last=True,
        ),
        conv(2, 6, (7, 10), 5, strides=2),
        conv(1, 3, (16, 21), 8, pads=3, kernel=7, strides=2),
        conv(1, 4, (9, 10), 6, kernel=4, strides=3),
        conv(1, 3, (4, 7, 6), 5, dims=3, strides=2),
        conv(2, 6, (8, 7), 9, group=3, strides=2, bias=False),
        conv(1, 4, (6, 7), 5, kernel=5, pads=2),
        conv(2, 6, (17,), 5, dims=1),
        conv(1, 6, (19,), 4, pads=3, dims=1, dilation=3, group=2),
        conv(1, 4, (14,), 6, dims=1, strides=2, bias=False),
        transposed(2, 6, (7,), 5),
        task_of("Conv", {"pads": (0, 1, 0, 1)}, [(1, 4, 5, 9), (6, 4, 1, 3), (6,)], consts=(1, 2), channels_last=True),
        task_of(
            "Conv",
            {"pads": (1,) * 4, "strides": (2, 1)},
            [(1, 4, 8, 9), (6, 4, 3, 3), (6,)],
            consts=(1, 2),
            channels_last=True,
        ),
        stored_in_bfloat16(conv(2, 6, (7, 10), 5)),
        stored_in_bfloat16(transposed(1, 6, (5, 4), 8)),
    ],
    ids=[
        "square",
        "edges",
        "unpadded",
        "3d",
        "smaller than a tile",
        "groups",
        "groups alone",
        "dilated",
        "dilated groups",
        "dilated 3d",
        "two taps",
        "transposed",
        "transposed 3d",
        "transposed, a tap that not all phases have",
        "transposed by phases of three",
        "transposed with stride 1",
        "transposed along depth and height",
        "stride 2",
        "seven taps with stride 2",
        "stride 3",
        "3d with stride 2",
        "groups with stride 2",
        "five taps",
        "1d",
        "1d groups, dilated",
        "1d alone with stride 2",
        "1d transposed",
        "along columns only",
        "other strides along rows and columns",
        "bfloat16",
        "transposed bfloat16",
    ],
)
def test_the_rule_computes_the_same(task) -> None:
    for m in sizes_of(task):
        the_same(task, filtered(task, TARGET, [], m).stages)


def the_same(task, stages) -> None:
    derived = derive(task, stages)
    verify_task(derived, "winograd")
    plain = random_inputs(task)
    transformed = dict(plain)
    for name in task.constants:
        transformed[name] = constant_data(task, stages, name, plain[name])
    wanted, found = run_task(task, plain), run_task(derived, transformed)
    for name in task.outputs:
        close(found[name], wanted[name], Example(task, plain, rtol=1e-4, atol=1e-4), name)


def slow(task):
    return pytest.param(task, marks=pytest.mark.slow)


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("m", sizes(3))
@pytest.mark.sweep(2)
def test_kernels_of_every_transform(m, shape) -> None:
    """In every shape, where channels, rows and columns fill no vector and no tile."""
    task = conv(1, 17, (13, 9), 20)
    found = Winograd(filtered(task, TARGET, [], m), shape)
    check(Example(task, random_inputs(task), rtol=1e-4, atol=1e-4), found.candidate(found.start()))


@pytest.mark.parametrize(
    "task",
    [
        conv(1, 16, (14, 14), 32),
        conv(2, 8, (6, 12, 12), 16, dims=3),
        slow(conv(1, 64, (14, 14), 64, group=4, bias=False)),
        conv(1, 20, (9, 10), 40, dilation=2),
        slow(conv(2, 17, (9, 10), 40, pads=3, dilation=3, bias=False)),
        slow(conv(1, 16, (7, 9), 32, pads=2, dilation=2, group=2)),
        transposed(1, 20, (5, 6), 40),
        conv(2, 17, (13, 9), 40, strides=2),
        conv(1, 3, (26, 25), 40, kernel=7, pads=3, strides=2, bias=False),
        slow(conv(1, 34, (14, 15), 40, group=2, strides=2)),
        conv(1, 17, (9, 12), 20, kernel=5, pads=2),
        conv(2, 17, (21,), 40, dims=1),
        slow(conv(1, 20, (30,), 40, dims=1, strides=2, bias=False)),
        stored_in_bfloat16(conv(1, 17, (13, 9), 40)),
        stored_in_bfloat16(conv(1, 17, (13, 9), 40, strides=2)),
        slow(stored_in_bfloat16(conv(2, 34, (13, 9), 40, group=2, bias=False))),
        task_of("Conv", {"pads": (1,) * 4}, [(1, 17, 13, 9), (40, 17, 3, 3)], (1,), True, ["float16"] * 2),
        conv(2, 34, (13, 9), 40, group=2),
        slow(transposed(2, 17, (7, 4), 33, kernel=3, more=1, bias=False)),
    ],
    ids=[
        "whole vectors",
        "3d",
        "groups alone",
        "dilated",
        "dilated alone",
        "dilated groups",
        "transposed",
        "stride 2",
        "seven taps with stride 2, alone",
        "groups with stride 2",
        "five taps",
        "1d",
        "1d alone with stride 2",
        "bfloat16",
        "bfloat16 with stride 2",
        "groups of bfloat16 alone",
        "float16",
        "groups",
        "transposed alone",
    ],
)
@pytest.mark.sweep(1)
def test_kernels_of_other_windows(task) -> None:
    """Every other transform, in one of the shapes by turns."""
    for number, m in enumerate(sizes_of(task)[::2]):
        found = Winograd(filtered(task, TARGET, [], m), [*Shape][number % len(Shape)])
        check(Example(task, random_inputs(task), rtol=1e-4, atol=1e-4), found.candidate(found.start()))


@pytest.mark.parametrize(
    ("task", "checked"),
    [
        (conv(2, 20, (13, 9), 40), ("F(2, 3) by rows", "F(2, 3) by points")),
        (conv(2, 8, (4, 9, 7), 20, dims=3), ("F(2, 3) by panels",)),
        (conv(2, 36, (18, 7), 40, group=2), ("F(2, 3) by rows", "F(4, 3) by points")),
        (conv(1, 20, (12, 9), 40, pads=2, dilation=2), ("F(2, 3) by rows", "F(6, 3) by panels")),
        (transposed(1, 20, (5, 7), 40), ("F(2, 2) by rows", "F(3, 2) by panels")),
        (conv(1, 20, (17, 14), 40, strides=2), ("F(2, 2) by rows", "F(3, 2) by points")),
        (conv(2, 20, (50,), 40, dims=1), ("F(2, 3) by rows", "F(4, 3) by panels")),
    ],
    ids=["vectors that do not divide", "3d", "groups", "dilated", "transposed", "stride 2", "1d"],
)
@pytest.mark.sweep(1)
def test_points_of_every_shape_are_right(task, checked) -> None:
    """Every shape of every transform has points, all of them accepted; of some shapes they run."""
    ran, generator = list[str](), np.random.default_rng(1)
    sketches = winograd_sketches(task, TARGET, [])
    for sketch in sketches:
        (point,) = sketch.random(1, generator)
        assert (sketch.estimate(point[None, :], 4) > 0).all() and sketch.legal(sketch.start()[None, :]).all()
        candidate = sketch.candidate(point)
        assert Candidate.from_json(candidate.to_json()) == candidate
        accepted(task, candidate, TARGET)
        if sketch.name in checked:
            check(Example(task, random_inputs(task), rtol=1e-4, atol=1e-4), candidate)
            ran.append(sketch.name)
    assert sketches and {*ran} == {*checked}


def test_knobs_have_more_than_one_value_and_none_is_worse_than_what_rules_take() -> None:
    sketches = winograd_sketches(conv(1, 32, (56, 56), 32), TARGET, [])
    names = {s.shape: {k.name for k in s.knobs} for s in sketches}
    assert all(len(k.values) > 1 for s in sketches for k in s.knobs)
    assert "chunk" in names[Shape.ROWS] and "chunk" not in names[Shape.POINTS]
    assert "multiplying" in names[Shape.POINTS] and "order" not in names[Shape.PANELS]
    for sketch in sketches:
        (first, *_) = constructed(sketch, 1, 3)
        assert first.seconds <= float(sketch.estimate(sketch.start()[None, :], 1)[0])
    one = winograd_sketches(conv(1, 16, (4, 4), 16), replace(TARGET, cores=1), [])
    assert not {k.name for s in one for k in s.knobs} & {"parallel", "multiplying", "vectors.in", "vectors.out"}


def test_phases_that_share_a_kernel_are_rows_of_its_register_tile() -> None:
    """Of a dilated window, one tile for each of four phases: a panel of the kernel is gone through once for all. The
    phases of a transposed one have kernels of their own, and are outside the products."""
    for task, lead in (
        (conv(1, 32, (12, 12), 64, pads=2, dilation=2), []),
        (transposed(1, 32, (6, 6), 64), ["hp", "wp"]),
    ):
        by_panels = [s for s in winograd_sketches(task, ONE_CORE, []) if s.shape is Shape.PANELS]
        sketch = next(s for s in by_panels if s.roles.m > 5)
        roles, candidate = sketch.roles, sketch.candidate(sketch.start())
        outer = candidate.blocks[roles.owner.name].order
        spot = candidate.blocks[roles.product.name].at
        assert [loop.iterator for loop in outer[: outer.index(spot.loop) + 1]] == [sketch.v, *lead]
        assert roles.around(sketch.gemm) == lead


def test_a_chunk_of_all_rows_leaves_cores_without_work() -> None:
    (by_rows, *_) = winograd_sketches(conv(1, 32, (28, 28), 32), TARGET, [])
    start = by_rows.values(by_rows.start())
    points = np.array([by_rows.point({**start, "chunk": n}) for n in (by_rows.roles.tile_rows, start["chunk"])])
    whole, chunked = by_rows.estimate(points, 4)
    assert whole > 2 * chunked


@pytest.mark.parametrize("channels", [1, 64])
@pytest.mark.sweep(1)
def test_errors_stay_below_the_bound(channels: int) -> None:
    """The bound is a transform's: each has a kernel, in one of the shapes by turns."""
    task = conv(1, 2 * channels, (12, 12), 16)
    inputs = random_inputs(task)
    inputs["x2"] = np.zeros_like(inputs["x2"])
    exact = run_task(task, inputs)["y0"].astype(np.float64)
    largest = float(np.abs(inputs["x0"]).max()) * float(np.abs(inputs["x1"]).max())
    bounds = []
    for number, m in enumerate(sizes_of(task)):
        found = Winograd(filtered(task, TARGET, [], m), [*Shape][number % len(Shape)])
        kernel = run_kernel(build(task, found.candidate(found.start())), inputs)[0]["y0"]
        bounds.append(rounding_error(task, found.stages))
        assert 0 < np.abs(kernel - exact).max() <= bounds[-1] * largest
    assert len(bounds) == len(sizes_of(task)) and rounding_error(task, ()) == 0
    assert bounds == sorted(bounds) and bounds[0] < bounds[-1]  # larger tiles round no less


@pytest.mark.parametrize(
    "task",
    [
        conv(1, 8, (8, 8), 8, strides=3),
        conv(1, 8, (13, 13), 8, strides=2, dilation=2),
        conv(1, 8, (8, 8), 8, kernel=1, pads=0),
        conv(1, 8, (8, 8), 8, group=8),
        transposed(1, 4, (3, 4, 3), 6, kernel=3, more=1),
        transposed(1, 4, (4, 5), 6, kernel=3, pads=0),
    ],
    ids=[
        "stride 3",
        "stride and dilation",
        "no window",
        "depthwise",
        "a tap too many in depth",
        "an output that phases do not divide",
    ],
)
def test_where_it_does_not_apply(task) -> None:
    assert winograd_sketches(task, TARGET, []) == []
    with pytest.raises(DoesNotApply):
        winograd_rule(task, task.anchor, 2)


def test_a_single_result_is_not_filtered() -> None:
    """What lies side by side are points of a tile then."""
    assert winograd_sketches(conv(1, 8, (1,), 1, dims=1), TARGET, []) == []


@pytest.mark.parametrize("channels", [3, 40])
@pytest.mark.sweep(1)
def test_phases_that_lie_side_by_side_are_no_vectors(channels: int) -> None:
    """Stored channels first, every other column of the result is of another phase, with tiles of its own."""
    task = transposed(1, 24, (8, 8), channels, channels_last=False)
    found = sketches(task, TARGET, Policy())
    assert sum(accepted_points(sketch, task, 1) for sketch in found) >= len(found) > 1


def test_groups_are_filtered_and_their_kernels_counted_once() -> None:
    """Each group has tiles and a kernel of its own: neither is read once for each group."""
    task = conv(1, 256, (14, 14), 256, group=4)
    assert "winograd" in {s.rule for s in chosen(task, ONE_CORE).candidate.stages}
    for grouped, apart in zip(
        winograd_sketches(task, TARGET, []), winograd_sketches(conv(1, 64, (14, 14), 64), TARGET, []), strict=True
    ):
        four, one = (float(s.estimate(s.start()[None, :], 1)[0]) for s in (grouped, apart))
        assert [s.roles.kernels[1] for s in (grouped, apart)] == [4, 1]
        assert 3 < four / one < 9


@pytest.mark.parametrize(
    "task",
    [
        conv(1, 64, (14, 14), 96, group=2, channels_last=False),
        conv(2, 51, (9, 10), 60, group=3, bias=False, channels_last=False),
        conv(1, 64, (9, 10), 64, group=4, channels_last=False),
        conv(1, 40, (30,), 20, dims=1, kernel=5, pads=2, channels_last=False),
        conv(1, 20, (17, 14), 40, strides=2, channels_last=False),
    ],
    ids=["groups", "vectors that do not divide", "four", "1d", "stride 2"],
)
@pytest.mark.sweep(1)
def test_windows_that_are_stored_channels_first(task) -> None:
    """Operand and result are copied into storage of our own order, and filtered there: transforms and shapes by
    turns."""
    found = sketches(task, load_target("native"), Policy())  # others than Winograd's name what the machine has
    for sketch in found[::4]:
        check(Example(task, random_inputs(task), rtol=1e-4, atol=1e-4), sketch.candidate(sketch.start()))
    assert any(s.kind == "winograd" for s in found[::4])
    filtering = [s for s in found if s.kind == "winograd"]
    assert all({"cache_read", "stage_write"} <= {s.rule for s in one.stages} for one in filtering)


@pytest.mark.parametrize(
    "task",
    [
        conv(1, 64, (56, 56), 64, pads=2, dilation=2),
        transposed(1, 128, (16, 16), 64),
        conv(1, 3, (224, 224), 64, kernel=7, pads=3, strides=2),
        conv(1, 128, (56, 56), 128, strides=2),
        conv(1, 256, (512,), 256, dims=1),
        conv(1, 64, (14, 14), 96, group=2, channels_last=False),
        conv(1, 64, (9, 10), 64, group=4, channels_last=False),
    ],
    ids=["dilated", "transposed", "seven taps with stride 2", "stride 2", "1d", "groups", "four groups"],
)
def test_other_windows_are_filtered(task) -> None:
    assert "winograd" in {s.rule for s in chosen(task, ONE_CORE, Policy(strassen=False)).candidate.stages}


def test_there_is_no_other_size_of_tiles() -> None:
    task = conv(1, 8, (12, 12), 8)
    with pytest.raises(DoesNotApply, match=r"there is no F\(8, 3\); m is one of 2, 3, 4, 5, 6, 7"):
        winograd_rule(task, task.anchor, 8)


@st.composite
def geometries(draw):
    """A Conv, or a ConvTranspose, of one to three spatial dimensions, with any padding, dilations and groups."""
    dims, groups, over = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.booleans())
    few = [st.integers(1, 2)] * dims
    strides = [2] * dims if draw(st.booleans()) else [1] * dims
    dilations = [1] * dims if over or strides[0] > 1 else draw(st.tuples(*few))
    kernel = draw(st.tuples(*[st.integers(2, 4 if over else 2 + strides[0])] * dims))
    pads = [draw(st.integers(0, k - 1)) for k in kernel * 2]
    size = [draw(st.integers((k - 1) * d + 1, (k - 1) * d + 3)) for k, d in zip(kernel, dilations, strict=True)]
    attrs = {"strides": strides, "dilations": dilations, "pads": pads, "group": groups}
    channels, outputs = 2 * groups, groups * draw(st.integers(1, 3))
    kernels = (channels, outputs // groups) if over else (outputs, 2)
    shapes = [(1, channels, *size), (*kernels, *kernel), *[(outputs,)] * draw(st.booleans())]
    attrs = {name: tuple(value) if name != "group" else value for name, value in attrs.items()}
    consts = range(1, len(shapes))
    return task_of("ConvTranspose" if over else "Conv", attrs, shapes, consts=consts, channels_last=draw(st.booleans()))


def test_the_rule_computes_the_same_whatever_the_window() -> None:
    applied = 0

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(geometries())
    def check_one(task) -> None:
        nonlocal applied
        if windows(task, task.block(task.anchor)) is None:
            return
        for m in sizes_of(task)[:3]:
            try:
                roles = filtered(task, TARGET, [], m)
            except DoesNotApply:  # groups of one output each, say
                continue
            the_same(task, roles.stages)
            applied += 1

    check_one()
    assert applied > 30


@pytest.mark.parametrize("taps", TAPS)
def test_transforms_are_exact_in_whole_numbers(taps: int) -> None:
    """F(m, r) of every m gives the sums of a sliding window of small whole numbers, but for roundings of fractions."""
    generator = np.random.default_rng(taps)
    for m in sizes(taps):
        matrices = transform(m, taps)
        data, kernel = (generator.integers(-9, 9, n).astype(float) for n in (m + taps - 1, taps))
        wanted = [data[i : i + taps] @ kernel for i in range(m)]
        found = np.array(matrices.output) @ ((np.array(matrices.kernel) @ kernel) * (np.array(matrices.input) @ data))
        np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_large_images_are_filtered_unless_the_configuration_forbids_it() -> None:
    task = conv(1, 64, (56, 56), 64)
    rules = {
        flag: {s.rule for s in chosen(task, TARGET, Policy(winograd=flag)).candidate.stages} for flag in (True, False)
    }
    assert "winograd" in rules[True] and "winograd" not in rules[False]
    assert load_config().allowing(winograd=False).to_json()["schedule"]["winograd"] is False


def test_the_derived_products_are_as_many_times_fewer_as_the_papers_say() -> None:
    task = conv(1, 8, (420, 420), 8)  # whole tiles of every size
    direct = prod(i.extent for i in task.block(task.anchor).iters)
    for m in sizes(3):
        derived = winograd_rule(task, task.anchor, m)
        assert direct / derived.block(task.anchor).points() == pytest.approx(9 * m * m / (m + 2) ** 2)


@pytest.mark.parametrize(
    ("size", "dilation", "wanted"),
    [
        ((56, 56), 1, (2, 4, 6, 7)),
        ((14, 14), 1, (2, 4, 5, 7)),
        ((10, 10), 1, (2, 4, 5)),
        ((7, 7), 1, (2, 4, 7)),
        ((6, 6), 1, (2, 3, 6)),
        ((9, 9), 1, (2, 3, 5)),
        ((2, 2), 1, (2,)),
        ((12, 12), 2, (2, 3, 6)),
        ((5, 5), 2, (2, 3)),
        ((16, 16), 2, (2, 4)),
    ],
)
def test_tiles_are_as_large_as_the_image_makes_worthwhile(size, dilation, wanted) -> None:
    task = conv(1, 8, size, 8, pads=dilation, dilation=dilation)
    anchor = task.block(task.anchor)
    found = windows(task, anchor)
    assert worthwhile(anchor, found) == wanted
    for m in sizes(3):
        derived = winograd_rule(task, task.anchor, m).block(task.anchor)
        assert derived.points() == products(anchor, found, m) * 8 * 8


def test_derive_applies_the_stage() -> None:
    task = conv(1, 64, (56, 56), 64)
    candidate = chosen(task, TARGET).candidate
    assert "gather" in {b.name for b in derive(task, candidate.stages).blocks}


def values_in(e):
    """`e` and what it is computed from, without indices."""
    return [e, *(x for arg in (e.args if isinstance(e, Op) else ()) for x in values_in(arg))]


@pytest.mark.parametrize("task", [conv(1, 32, (24, 24), 32), conv(1, 32, (48,), 32, dims=1)])
def test_estimates_count_what_transforms_do(task) -> None:
    """The vectors that both Blocks of a transform load, add up and store for one tile, what they share once."""
    found = winograd_sketches(task, ONE_CORE, [])
    assert found
    for sketch in found:
        roles, (rows, columns) = sketch.roles, sketch.roles.matrices
        both = ((roles.rows, roles.columns, "input"), (roles.gather, roles.results, "output"))
        for first, second, side in both:
            loaded = added = stored = 0
            for block in (first, second):
                parts = {e for value in block.body for e in values_in(value)}
                times = block.spatial[-1].extent
                loaded += times * sum(isinstance(e, Load) for e in parts)
                added += times * sum(isinstance(e, Op) and e.name in ("add", "sub") for e in parts)
                stored += times * len(block.writes)
            wanted = ONE_CORE.cost.winograd_sums_ratio * sketch.sum_cycles(loaded, added, stored)
            assert sketch.transform_cycles(getattr(rows, side), getattr(columns, side)) == pytest.approx(wanted)
