"""Loops in plans: they run the same kernels on the same data in the same order, in packages too."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recurrent_models import model

import modelc
from modelc.errors import PackageError
from modelc.package import Argument, Plan, Step, read_package
from modelc.package.check import check_plans
from modelc.package.manifest import NAME
from modelc.package.spec import RangeCheck, Rolled
from modelc.plan.roll import LEAST_COUNT, rolled


def laid_open(plan: Plan) -> list[tuple]:
    """Every call of a kernel: its symbol, where its arguments lie, and what it belongs to."""
    calls, at = [], 0
    while at < len(plan.steps):
        loop = next((x for x in plan.loops if x.first == at), Rolled(at, 1, 1))
        for turn in range(loop.count):
            for step in plan.steps[at : at + loop.length]:
                places = tuple((a.space, a.index, a.offset + turn * a.stride) for a in step.arguments)
                calls.append((step.symbol, places, step.nodes, step.checks))
        at += loop.length
    return calls


def with_loops(plan: Plan) -> Plan:
    steps, loops = rolled(plan.steps)
    return replace(plan, steps=steps, loops=loops)


def plan_of(*calls: tuple[str, tuple[int, ...], str]) -> Plan:
    steps = tuple(
        Step(f"{symbol}_{k}", symbol, tuple(Argument("arena", 0, at) for at in offsets), nodes=(node,))
        for k, (symbol, offsets, node) in enumerate(calls)
    )
    return Plan((), (), steps, 1 << 20)


def test_iterations_become_a_loop() -> None:
    """A state that is written and read in turns in two places makes an iteration of two; what is before and after, and
    another node's steps, stay."""
    body = []
    for t in range(20):
        body += [("mul", (64 * t, 8192 - 128 * t), "rec"), ("add", (512 * (t % 2 == 0), 512 * (t % 2)), "rec")]
    others = [("mul", (k, 9 * k), f"n{k}") for k in range(9)]
    plan = plan_of(("first", (0,), "rec"), *body, ("last", (0,), "rec"), *others)
    found = with_loops(plan)
    assert found.loops == (Rolled(1, 4, 10),) and len(found.steps) == 1 + 4 + 1 + 9
    assert [a.stride for step in found.steps[1:5] for a in step.arguments] == [128, -256, 0, 0, 128, -256, 0, 0]
    assert laid_open(found) == laid_open(plan) and sum(found.calls) == len(plan.steps)
    check_plans((found,), 0, "a test")


@settings(max_examples=75, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(0, 2), st.integers(0, 3)), max_size=8))
def test_loops_lay_open_to_what_they_were_made_of(parts) -> None:
    """Stretches of steps that repeat, of random lengths, strides and counts, some of them broken."""
    calls = []
    for length, count, stride, broken in parts:
        for t in range(count):
            for k in range(length):
                moved = stride * t + (7 if broken and t == broken + 1 else 0)
                calls.append((f"k{k}", (1000 + moved, 2000 - k), f"n{length % 2}"))
    plan = plan_of(*calls)
    found = with_loops(plan)
    assert laid_open(found) == laid_open(plan)
    assert all(loop.count >= LEAST_COUNT for loop in found.loops)
    check_plans((found,), 0, "a test")


def test_what_is_checked_before_it_runs_stays_as_it_is() -> None:
    plan = plan_of(*[("k", (8 * t,), "n") for t in range(12)])
    check = RangeCheck(Argument("arena", 0, 0), "int32", (1,), (1,), None, 0, 1, "v", "o")
    checked = replace(plan, steps=(*plan.steps[:6], replace(plan.steps[6], checks=(check,)), *plan.steps[7:]))
    looped = with_loops(checked)
    assert looped.loops == (Rolled(0, 1, 6), Rolled(2, 1, 5)) and laid_open(looped) == laid_open(checked)


@pytest.mark.parametrize("loop", [Rolled(0, 3, 2), Rolled(2, 1, 1), Rolled(0, 1, 0), Rolled(0, 0, 4), Rolled(0, 2, 9)])
def test_loops_that_cannot_be_are_refused(loop: Rolled) -> None:
    plan = plan_of(("k", (0,), "n"), ("k", ((1 << 20) - 8,), "n"))
    steps = tuple(replace(s, arguments=(replace(s.arguments[0], stride=2),)) for s in plan.steps)
    with pytest.raises(PackageError, match=r"has a loop over steps|uses offset"):
        check_plans((replace(plan, steps=steps, loops=(loop,)),), 0, "a test")


def test_a_package_runs_its_loops_and_says_what_they_take(tmp_path) -> None:
    feeds = model(tmp_path / "m.onnx", "LSTM", 50, "bidirectional", "BLh", as_inputs="XLh", size=(2, 6, 8))
    result = modelc.compile(tmp_path / "m.onnx", output=tmp_path / "p", inputs=feeds, database=False)
    assert result.report is not None and result.report.passed
    (plan,) = read_package(tmp_path / "p").manifest.variants
    assert len(plan.loops) == 2 and sum(plan.calls) > 200 and len(plan.steps) < sum(plan.calls) / 2
    with modelc.load(tmp_path / "p", threads=2) as loaded:
        first, again = loaded.run(feeds), loaded.run(feeds)
        calls = [step.calls for step in loaded.profile(feeds, repeat=3)]
    assert calls == [3 * n for n in plan.calls]
    assert all(np.array_equal(first[name], again[name]) for name in first)
    rows = modelc.profile(tmp_path / "p", repeat=2)["kernels"]
    assert [row["calls"] for row in rows] == list(plan.calls)
    manifest = json.loads((tmp_path / "p" / NAME).read_text())
    manifest["variants"][0]["loops"][0]["count"] = 1 << 30
    (tmp_path / "p" / NAME).write_text(json.dumps(manifest))
    with pytest.raises(PackageError, match=r"is damaged: step .* uses offset"):
        read_package(tmp_path / "p")
