"""Minimal filtering of whole numbers: bit for bit what the convolution is, by the interpreter, by kernels, and when
`compile` chooses it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_tasks import contraction, contraction_of, from_end_to_end, intrinsics_in
from three_ways import check, emulated_target, run_task

from modelc.ir.block import Task
from modelc.policy import Policy
from modelc.space.choose import chosen
from modelc.space.rules.derivation import constant_data, derive, rounding_error
from modelc.space.rules.filters import TAPS, sizes, whole_transform
from modelc.space.rules.rule import DoesNotApply
from modelc.space.rules.windows import tile_sizes, windows
from modelc.space.sketches.winograd import Shape, Winograd, filtered, winograd_sketches
from modelc.target import load_target, shipped_intrinsics

SHIPPED = {one.name: one for one in shipped_intrinsics()}
INT16 = SHIPPED["avx2-int16"]  # bytes less a zero point by bytes, as targets without VNNI multiply them
TARGET = load_target("x86-64-v3")


def conv(channels: int, size: tuple[int, ...], outputs: int, kernel: int = 3, **attrs: Any) -> Task:
    dims = len(size)
    pads = (attrs.pop("pad", 1),) * (2 * dims)
    shapes = (1, channels, *size), (outputs, channels // attrs.get("group", 1), *(kernel,) * dims)
    return contraction_of(INT16, ("Conv", {"pads": pads, **attrs}, *shapes))


def sizes_of(task: Task) -> tuple[int, ...]:
    anchor = task.block(task.anchor)
    slid = windows(task, anchor)
    return () if slid is None else tile_sizes(anchor, slid)


def extreme(task: Task, seed: int) -> dict[str, np.ndarray]:
    """The least and the largest numbers that there may be, in any order: sums are as large as they get."""
    rng, (data, weights) = np.random.default_rng(seed), task.inputs
    ends = {data: [-255, 255], weights: [-128, 127]}
    return {n: rng.choice(ends[n], task.buffer(n).shape).astype(task.buffer(n).dtype) for n in task.inputs}


def the_same(task: Task, m: int, inputs: dict[str, np.ndarray]) -> None:
    stages = filtered(task, TARGET, [], m).stages
    transformed = {n: constant_data(task, stages, n, x) if n in task.constants else x for n, x in inputs.items()}
    wanted, computed = run_task(task, inputs), run_task(derive(task, stages), transformed)
    for name in task.outputs:
        np.testing.assert_array_equal(computed[name], wanted[name])


@pytest.mark.parametrize("taps", TAPS)
def test_matrices_are_whole_and_exact(taps: int) -> None:
    rng, applied = np.random.default_rng(taps), []
    for m in sizes(taps):
        matrices = whole_transform(m, taps)
        if matrices is None:
            continue
        applied.append(m)
        data, kernel = (rng.integers(-99, 99, n) for n in (m + taps - 1, taps))
        before, weights, after = (np.array(x) for x in (matrices.input, matrices.kernel, matrices.output))
        assert all((x == np.rint(x)).all() for x in (before, weights, after))
        wanted = [data[i : i + taps] @ kernel for i in range(m)]
        assert ((after @ ((weights @ kernel) * (before @ data))) / matrices.divisor).tolist() == wanted
    assert applied == {2: [2, 3], 3: [2]}.get(taps, [])


def test_every_window_to_the_bit() -> None:
    """Whatever its padding, strides and groups, of numbers as large as they may be."""
    applied = 0

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(st.data())
    def check_one(data: st.DataObject) -> None:
        nonlocal applied
        dims, group, strides = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
        kernel = data.draw(st.integers(2, 3))
        size = tuple(data.draw(st.integers(kernel, 7)) for _ in range(dims))
        pad = data.draw(st.integers(0, kernel - 1))
        task = conv(4 * group, size, 8 * group, kernel, pad=pad, group=group, strides=(strides,) * dims)
        for m in sizes_of(task):
            try:
                the_same(task, m, extreme(task, data.draw(st.integers(0, 99))))
            except DoesNotApply:  # one result in all, say
                continue
            applied += 1

    check_one()
    assert applied > 20


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize(
    "task",
    [conv(6, (13, 9), 20), conv(16, (8, 12), 16, strides=(2, 2)), conv(8, (21,), 24), conv(20, (9, 7), 24, group=2)],
    ids=["no vector is full", "stride 2", "1d", "groups"],
)
@pytest.mark.sweep(2)
def test_kernels_of_every_shape(task: Task, shape: Shape) -> None:
    target = emulated_target()
    ways = [Winograd(filtered(task, target, [], m), shape) for m in sizes_of(task)]
    assert ways, "nothing was checked"
    for way in ways:
        check(from_end_to_end(task), way.candidate(way.start()), target)


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4", "cortex-a72", "armv7-neon", "wasm32-simd"])
def test_it_is_chosen_where_it_is_faster_and_rounds_nothing(name: str) -> None:
    task, target = conv(64, (28, 28), 64), replace(load_target(name), cores=1)
    candidate = chosen(task, target).candidate
    assert [s.args["m"] for s in candidate.stages if s.rule == "winograd"] == [2]
    assert [name for name in intrinsics_in(candidate) if name.endswith("int16x16")]
    assert rounding_error(task, candidate.stages) == 0
    for policy in (Policy(winograd=False), Policy(tensorize=False)):
        other = chosen(task, target, policy).candidate
        assert not any(s.rule == "winograd" for s in other.stages)


def test_what_is_not_exact_is_left_alone() -> None:
    """Sums that leave int32, numbers of which nothing is said, windows of more taps, and targets without the
    instruction."""
    assert sizes_of(conv(512, (8, 8), 16)) == (2,) and sizes_of(conv(576, (8, 8), 16)) == ()
    assert sizes_of(conv(8, (9, 9), 16, 5, pad=2)) == ()
    unbounded = contraction(("Conv", {"pads": (1,) * 4}, (1, 8, 8, 8), (16, 8, 3, 3)), ("int16", "int8"))
    assert sizes_of(unbounded) == ()
    bytes_alone = contraction(("Conv", {"pads": (1,) * 4}, (1, 8, 8, 8), (16, 8, 3, 3)), ("uint8", "int8"))
    assert sizes_of(bytes_alone) == (2,)  # all that a byte can be
    without = replace(TARGET, intrinsics=tuple(x for x in TARGET.intrinsics or () if not x.name.endswith("x16")))
    assert winograd_sketches(conv(64, (28, 28), 64), TARGET, []) != []
    assert winograd_sketches(conv(64, (28, 28), 64), without, []) == []
