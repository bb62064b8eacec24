"""Measuring candidates: what is right is timed; what crashes, hangs, is wrong or too large costs one candidate."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from measured_tasks import CONV, QUICK, TASKS, several
from repository import HELPERS
from three_ways import build, host_target, started, task_of, tensor_target

from modelc.database.record import MEASUREMENT
from modelc.database.record import read as read_fields
from modelc.errors import InvalidIR, ToolchainError, Unmeasurable
from modelc.ir.block import Block, Buffer, Iter, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.expr import Const, Load, Var, op
from modelc.ir.loop import ROOT, Loop
from modelc.measure import Effort, Limits, Measurement, Measurer, Setting, Subject, builder
from modelc.measure.builder import Prepare, input_file
from modelc.measure.data import bounds_of, difference, draw, slack_of, surely_close
from modelc.measure.job import Job, Part, Timing
from modelc.measure.pool import Builder
from modelc.measure.runner import Runner
from modelc.package import compile_kernel, emulator, find_toolchain, link_kernel
from modelc.scratch import remove_temporary
from modelc.space.choose import chosen
from modelc.space.rules import derivation
from modelc.space.rules.rule import Rule
from modelc.target import Target, load_target

RELU = task_of("Relu", {}, [(33, 70)])
FEW = task_of("Relu", {}, [(5, 14)])  # points enough, unrolled, to take longer to build than a loop over them


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    limits = Limits(run_seconds=4.0, buffer_bytes=1 << 28, statements=1000)
    with Measurer(tensor_target(), Setting(limits=limits), builders=1, effort=QUICK) as found:
        yield found


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.sweep(2)
def test_what_is_right_is_timed(name: str, measurer: Measurer) -> None:
    task = TASKS[name]
    subject = measurer.subject(task, cold_bytes=1 << 20)
    first, again = measurer.measure(subject, [chosen(task, measurer.target).candidate] * 2)
    for one, least in ((first, QUICK.least), (again, 1)):  # what looks slow beside a best is timed less often
        assert one.ok, one
        assert 0 < one.seconds < 1 and least <= one.repeats <= QUICK.most and one.noise >= 0 and one.build_seconds > 0
        assert Measurement(**read_fields(asdict(one), "a measurement", MEASUREMENT)) == one
    assert first.relative == 1.0 and 1e-3 < again.relative < 1e3
    assert measurer.subject(task, cold_bytes=1 << 20) is subject


def test_others_are_measured_beside_the_first_however_long_that_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = [unrolled(FEW), started(FEW, host_target()), unrolled(FEW)]
    with Measurer(host_target(), builders=2, effort=QUICK) as measurer:
        build, names, another = measurer.bench.build, list[str](), threading.Event()

        def building(name: str, *what: Any) -> tuple[Any, Any]:
            """The first is built when another is."""
            names.append(name)
            if name == "c1":
                assert another.wait(120)
            built = build(name, *what)
            another.set()
            return built

        monkeypatch.setattr(measurer.bench, "build", building)
        found = measurer.measure(measurer.subject(FEW), candidates)
        assert sorted(names) == ["c1", "c2", "c3"] and found[0].build_seconds > 0
        assert [one.reference for one in found] == [candidates[0].key] * 3 and found[0].relative == 1.0
        conv = measurer.measure(measurer.subject(CONV), [candidates[0], *several(2)])
        assert [(one.outcome, one.reference) for one in conv[1:]] == [("ok", several(1)[0].key)] * 2
        assert conv[0].outcome == "invalid"


def test_points_of_a_space_are_verified_when_they_are_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is slower is never looked at, and one whose Nest is refused then is no winner."""
    good, looked = started(FEW, host_target()), list[str]()

    def verifying(task: Task, candidate: Candidate, target: Target) -> None:
        looked.append(candidate.key)
        if candidate.key == unrolled(FEW).key:
            raise InvalidIR("it writes beyond y0")

    monkeypatch.setattr("modelc.measure.bench.accepted", verifying)
    with Measurer(host_target(), builders=1, effort=QUICK) as measurer:
        subject = measurer.subject(FEW)

        def outcome(candidate: Candidate, best: float, verify: bool = False) -> str:
            subject.best = best
            measurer.submit(subject, candidate, verify=verify)
            ((_, found),) = measurer.results()
            return found.outcome

        assert outcome(good, math.inf) == "ok" and looked == [good.key], "what others are compared with"
        assert (
            outcome(unrolled(FEW), 1e-9) == outcome(unrolled(FEW), math.inf, verify=True) == "ok" and len(looked) == 1
        )
        assert outcome(unrolled(FEW), math.inf) == "invalid" and looked[1:] == [unrolled(FEW).key]
        assert subject.best == math.inf, "it is no winner"


# --- candidates that go wrong ---------------------------------------------------------------------------------------


def relu_of(more: str) -> Task:
    """RELU in one Block with something else: what a wrong derivation rule would make of it."""
    i, j, k, l = (Var(name) for name in "ijkl")
    x: Load = Load("x0", (i, j))
    iters: tuple[Iter, ...] = (Iter("i", 33), Iter("j", 70))
    write = Load("y0", (i, j))
    buffers, local = RELU.buffers, Buffer("t0", "float32", (1 << 30,))
    if more == "wrong":
        blocks = (Block("relu", iters, (write,), (op("max", x, Const(0.5, "float32")),)),)
    elif more == "endless":  # sums of 2^60 products
        product = op("mul", Load("x0", (i, op("mod", k, 70))), Load("x0", (i, op("mod", l, 70))))
        sums = (*iters, Iter("k", 1 << 30, True), Iter("l", 1 << 30, True))
        blocks = (Block("relu", sums, (write,), (product,), "add"),)
    else:  # a local that nothing needs
        assert more == "large"
        zeros = (Iter("k", 1 << 30), Iter("l", 2, True))
        fill = Block("fill", zeros, (Load("t0", (k,)),), (Const(0.0, "float32"),), "add")
        relu = op("max", x, Load("t0", (op("mod", i, 1 << 30),)))
        blocks, buffers = (fill, Block("relu", iters, (write,), (relu,))), (*buffers, local)
    return replace(RELU, buffers=buffers, blocks=blocks, anchor="relu")


@pytest.fixture
def forged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A derivation rule of this process that makes wrong Tasks."""
    rules = {**derivation._RULES, "forge": Rule("forge", lambda task, more: relu_of(more))}
    monkeypatch.setattr(derivation, "_RULES", rules)


def forged_candidate(more: str) -> Candidate:
    found = started(relu_of(more), host_target())
    return replace(found, stages=(Stage("forge", {"more": more}), *found.stages))


def unrolled(task: Task = RELU) -> Candidate:
    """All points of `task` unrolled: 2310 of RELU's."""
    (block,) = task.blocks
    assert isinstance(block, Block)
    order = tuple(Loop(i.name, 0) for i in block.iters)
    return Candidate({block.name: BlockSchedule(ROOT, "arena", {}, order, dict.fromkeys(order, "unroll"))})


@pytest.mark.usefixtures("forged")
def test_each_costs_one_candidate(measurer: Measurer) -> None:
    good = started(RELU, host_target())
    unknown = replace(good, stages=(Stage("nothing", {}),))
    foreign = started(CONV, host_target())
    cases = {
        "good": (good, "ok", ""),
        "wrong": (forged_candidate("wrong"), "wrong", r"of y0, \d+ of 2310 elements are wrong, the first at \["),
        "endless": (forged_candidate("endless"), "timeout", "did not end within 4 s"),
        "large": (forged_candidate("large"), "invalid", r"takes \d+ bytes of memory, and may take 268435456"),
        "unrolled": (unrolled(), "invalid", "unrolls to 2310 statements, and may have 1000"),
        "unknown": (unknown, "invalid", "no derivation rule 'nothing'"),
        "foreign": (foreign, "invalid", "the task has no block 'conv'"),
        "good again": (good, "ok", ""),
    }
    found = measurer.measure(measurer.subject(RELU), [candidate for candidate, _, _ in cases.values()])
    for (name, (_, outcome, message)), one in zip(cases.items(), found, strict=True):
        assert one.outcome == outcome, f"{name}: {one}"
        assert re.search(message, one.message), f"{name}: {one}"
        assert (one.seconds > 0) == one.ok and bool(one.message) != one.ok
    assert measurer.bench.builders[0].replaced == 0


def test_what_is_stored_once_is_drawn_once(measurer: Measurer) -> None:
    """A row that is read 30 times has one value for each of its elements."""
    repeated = Buffer("x0", "int64", (30, 77), strides=(0, 1))
    task = task_of("Cast", {"to": "float32"}, [(30, 77)], dtypes=["int64"])
    task = replace(task, buffers=tuple(repeated if b.name == "x0" else b for b in task.buffers))
    rows = draw(task)["x0"]
    assert rows.shape == (30, 77) and (rows == rows[0]).all() and len(set(rows[0])) > 1
    assert measurer.measure(measurer.subject(task), [chosen(task, host_target()).candidate])[0].ok


# --- processes that die ---------------------------------------------------------------------------------------------


def test_a_builder_that_dies_costs_one_candidate(measurer: Measurer) -> None:
    subject = measurer.subject(CONV)
    assert measurer.measure(subject, several(1))[0].ok
    (builder,) = measurer.bench.builders
    before = builder.replaced
    os.kill(builder._pid, signal.SIGKILL)
    found = measurer.measure(subject, several(3))
    assert [one.outcome for one in found] == ["build-failed", "ok", "ok"]
    assert found[0].message.startswith("its builder died") and builder.replaced == before + 1


@pytest.mark.parametrize(
    ("limits", "outcome", "message"),
    [
        (Limits(build_seconds=0.002), "build-timeout", "not built within 0.002 s"),
        (Limits(build_bytes=1 << 20), "build-failed", "memory|builder died"),
    ],
)
def test_what_building_may_take(
    limits: Limits, outcome: str, message: str, measurer: Measurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = measurer.subject(RELU)
    assert measurer.measure(subject, [started(RELU, host_target())])[0].ok
    measurer.bench.builders[0].kill()
    with monkeypatch.context() as patch:
        patch.setattr(measurer.bench, "setting", Setting(limits=limits))
        found = measurer.measure(subject, [unrolled()] * 2)
    assert [one.outcome for one in found] == [outcome] * 2, found
    assert all(re.search(message, one.message) for one in found), found
    measurer.bench.builders[0].kill()  # its memory stays limited
    assert measurer.measure(subject, [started(RELU, host_target())])[0].ok


PROGRAM = """
import sys
sys.path.insert(0, {helpers!r})
from measured_tasks import CONV, QUICK, several
from three_ways import host_target
from modelc.measure import Measurer

with Measurer(host_target(), effort=QUICK) as measurer:
    print(measurer.bench.folder, flush=True)
    subject = measurer.subject(CONV)
    for candidate in several(10000):
        measurer.submit(subject, candidate)
    for number, one in measurer.results():
        print(one.outcome, flush=True)
"""


def processes_of(folder: str) -> list[str]:
    """Those that have the folder of a Measurer in their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if folder.encode() in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:  # it has ended
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.sweep(1)
def test_whoever_is_interrupted_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """Of one that is killed, what is left is the runner's folder, which the next command removes."""
    program = PROGRAM.format(helpers=str(HELPERS))
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )  # fmt: skip
    assert process.stdout is not None
    folder = process.stdout.readline().strip()
    assert [process.stdout.readline().strip() for _ in range(3)] == ["ok"] * 3
    assert Path(folder).parent == tmp_path and Path(folder).is_dir()
    assert len(processes_of(folder)) >= 2 + len(os.sched_getaffinity(0))  # runner, zygote, builders; a job at times
    process.send_signal(number)
    process.stdout.read()
    assert process.wait(120) != 0
    until = time.monotonic() + 120
    while (processes_of(folder) or Path(folder).exists()) and time.monotonic() < until:
        time.sleep(0.05)
    assert processes_of(folder) == [] and not Path(folder).exists()
    while any(tmp_path.iterdir()) and time.monotonic() < until:  # the last of a killed process are its locks
        remove_temporary(tmp_path)
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


# --- elsewhere ------------------------------------------------------------------------------------------------------


def test_emulated() -> None:
    target = load_target("cortex-a72")
    try:
        find_toolchain(target.triple), emulator(target.triple)
    except ToolchainError as error:
        pytest.skip(str(error))
    with Measurer(target, builders=1, effort=QUICK) as measurer:
        found = [
            measurer.measure(measurer.subject(task, cold_bytes=1 << 16), [started(task, target)])[0]
            for task in (TASKS["softmax"], TASKS["opaque"])
        ]
    assert [one.outcome for one in found] == ["ok"] * 2, found


SPOILS = """
#include <stdint.h>
static int32_t calls, places;
static const float *seen[64];
void %s(%s, uint8_t *scratch, int32_t begin, int32_t end) {
    int known = 0;
    if (begin >= end || !(x0[7] > 1)) __builtin_trap();
    if (!calls++) return; /* the call that is looked at, whose input must stay as it is */
    for (int32_t i = 0; i < places; i++) known |= seen[i] == y0;
    if (!known) seen[places++] = y0;
    if (calls > 12 && places != %d) __builtin_trap();
    ((float *)x0)[7] = 0;
}
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_samples_go_through_places_in_which_what_is_read_was_just_written(threads: int, tmp_path: Path) -> None:
    """A kernel that spoils its input, and wants to have been in so many places after a dozen calls."""
    target, task = host_target(), RELU
    kernel = build(task).kernel
    (step,) = kernel.steps
    runner, answers = Runner(target, tmp_path), {}
    runner.put("x", np.full((33, 70), 2, np.float32).tobytes())
    effort = Effort(sample_seconds=1e-9, least=20, most=20)
    for wanted in (4, 5):
        parameters = ", ".join(f"const float *{name}" if name == "x0" else f"float *{name}" for name in step.args)
        code = compile_kernel(find_toolchain(target.triple), SPOILS % (step.symbol, parameters, wanted), visible=True)
        runner.put("spoils.so", link_kernel(find_toolchain(target.triple), code))
        part = Part(kernel, "spoils.so", {"x0": "x"}, {"x0": 33 * 70 * 4}, {}, (True,))
        answers[wanted] = runner.run("job", Job(task, part, timing=Timing(effort), threads=threads))
    runner.close()
    assert answers[4].outcome == "crashed", answers[4]
    assert (answers[5].outcome, answers[5].repeats) == ("ok", 20), answers[5]


def test_threads_give_the_same(measurer: Measurer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurer.bench, "setting", Setting(threads=2))
    task = task_of("Conv", {"pads": [1] * 4}, [(1, 64, 28, 28), (64, 64, 3, 3)], (1,), True)
    (one,) = measurer.measure(measurer.subject(task), [chosen(task, host_target()).candidate])
    assert one.ok, one


# --- data -----------------------------------------------------------------------------------------------------------


def test_indices_are_drawn_within_what_they_index() -> None:
    gather = TASKS["int64 indices"]
    assert bounds_of(gather) == {"x1": 7}
    drawn = draw(gather)["x1"]
    assert drawn.dtype == np.int64 and drawn.min() >= 0 and drawn.max() < 7 and len(np.unique(drawn)) > 3
    assert bounds_of(TASKS["indices of opaque"]) == {"x1": 9} and bounds_of(CONV) == {}


def test_differences() -> None:
    ones = np.ones(4, np.float32)
    assert difference(ones, ones) == "" == difference(ones * np.float32(1 + 5e-5), ones)
    assert difference(ones * np.float32(1.001), ones).startswith("4 of 4 elements are wrong, the first at [0]: 1.001")
    assert difference(ones * np.float32(1.001), ones, coarser=160) == ""
    odd = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    assert difference(odd, odd) == "" and difference(odd[::-1], odd).startswith("4 of 4")
    assert difference(np.arange(3) + 1, np.arange(3)).startswith("3 of 3")


def test_what_is_surely_close_differs_nowhere() -> None:
    rng, sure = np.random.default_rng(0), 0
    for scale, off in ((1e-3, 1e-6), (1.0, 8e-6), (1.0, 1.2e-5), (100.0, 5e-4), (100.0, 1.2e-3), (1.0, 1.0)):
        wanted = (scale * rng.standard_normal(1000)).astype(np.float32)
        found = wanted + np.float32(off) * rng.uniform(-1, 1, 1000).astype(np.float32)
        if surely_close(found, wanted, slack_of(wanted)):
            sure += 1
            assert not difference(found, wanted)
        for bad in (np.nan, np.inf, 3 * scale):
            found[500] = bad
            assert not surely_close(found, wanted, slack_of(wanted))
    assert sure == 5  # all but the last
    whole = np.arange(4)
    assert not surely_close(whole, whole, 0.0)


def test_a_full_disk_is_no_candidates_fault(
    tmp_path: Path, measurer: Measurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing counts as failed for it: a database would never try it again."""
    request = Prepare("t", RELU, 0)
    assert builder._answer(request, tmp_path)[0] == "done"
    request = Prepare("u", RELU, 0)
    (tmp_path / input_file("u", RELU, "x0")).mkdir()  # so that it cannot be written
    assert builder._answer(request, tmp_path)[0] == "build-failed"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    assert builder._answer(request, tmp_path) == ("no-room", str(tmp_path.parent))
    monkeypatch.setattr(Builder, "ask", lambda self, request, seconds: ("no-room", "/tmp"))
    with pytest.raises(Unmeasurable, match="there is no room in /tmp to build in: make some there, or name another"):
        measurer.bench.build("c", Subject("t", RELU, 0), started(RELU, host_target()), measurer.bench.builders[0])
