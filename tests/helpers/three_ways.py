"""A Task three ways on the same inputs: its Blocks with NumPy, its Nest with NumPy, its compiled kernel.

The kernel runs in a process of its own, on buffers that lie against unmapped pages: an access out of bounds ends that,
not the tests (modelc/measure/runner.c). It runs several times, over placements of the buffers (against the page before,
against the page after, one element off any alignment), poisons of what it may not read, and divisions of its parallel
range; all have to give the same bits.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from modelc.codegen.kernels import Kernel, compile_nest
from modelc.ir.addresses import without_claims
from modelc.ir.block import Block, Buffer, OpaqueBlock, Task
from modelc.ir.candidate import Candidate
from modelc.ir.expr import DTYPES
from modelc.ir.graph import Node, Value
from modelc.ir.interpret import run_nest
from modelc.ir.layout import Layout, reordered
from modelc.ir.nest import Nest
from modelc.ir.verify_nest import verify_nest
from modelc.measure.build import link
from modelc.measure.data import between, from_storage, packed, run_task, stored_bytes, to_storage
from modelc.measure.data import draw as random_inputs
from modelc.measure.data import draw_array as random_array
from modelc.measure.job import Job, Part, Way
from modelc.measure.runner import Runner
from modelc.ops import OPERATORS
from modelc.package.emulators import TILES, lacking
from modelc.partition.narrow_products import products
from modelc.partition.narrow_task import in_narrow
from modelc.policy import Policy
from modelc.space.choose import DEFAULT, chosen
from modelc.space.nest.build import build_nest
from modelc.space.rules.derivation import derive
from modelc.space.sketches.listing import sketches
from modelc.target import Target, list_targets, load_target

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
SECONDS = 120  # that a kernel may run
__all__ = ["random_array", "random_inputs", "run_task"]  # for the tests, beside what is defined here


@cache
def host_target() -> Target:
    """A shipped target that this machine runs (so that schedules do not depend on its timing), else this machine."""
    native = load_target("native")
    return load_target(native.cpu) if native.cpu in list_targets() else native


@cache
def tensor_target() -> Target:
    """The same with every intrinsic that this machine runs."""
    return replace(host_target(), features=load_target("native").features, intrinsics=None)


@cache
def emulated_target() -> Target:
    """The same with Intel's tile registers where these alone are lacking: kernels run under an emulator then. Packages
    for it are not for opening in this process."""
    native = tensor_target()
    tiles = lacking(TILES) if lacking(load_target("x86-64-v4").features) == [] else []
    return replace(native, features=(*native.features, *tiles))


def started(task: Task, target: Target, policy: Policy = DEFAULT) -> Candidate:
    """The Candidate that closed forms take, without a look around, in the Sketch that they estimate to be fastest."""
    found = sketches(task, target, policy)
    best = min(found, key=lambda s: float(s.estimate(s.start()[None, :], 1)[0]))
    return best.candidate(best.start())


# --- Tasks of one operator ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """A Task with inputs (logical shapes, by buffer name), and what it should give if that is known."""

    task: Task
    inputs: Arrays
    wanted: Mapping[str, Array] = field(default_factory=dict)
    rtol: float = 1e-4
    atol: float = 1e-5


def task_of(
    op: str,
    attrs: Mapping[str, Any],
    shapes: Sequence[tuple[int, ...] | None],
    consts: Sequence[int] = (),
    channels_last: bool = False,
    dtypes: Sequence[str] | None = None,
    steering: Mapping[int, Array] | None = None,
    outputs: int = 1,
) -> Task:
    """The Task of one operator. Tables that the operator brings along are constants `t0, t1, ...` (see tables_of)."""
    return _task(op, attrs, shapes, consts, channels_last, dtypes, steering, outputs)[0]


def _task(
    op: str,
    attrs: Mapping[str, Any],
    shapes: Sequence[tuple[int, ...] | None],
    consts: Sequence[int] = (),
    channels_last: bool = False,
    dtypes: Sequence[str] | None = None,
    steering: Mapping[int, Array] | None = None,
    outputs: int = 1,
) -> tuple[Task, Arrays]:
    dtypes, steering = dtypes or ["float32"] * len(shapes), steering or {}
    values = tuple(
        None if s is None else Value(f"v{k}", d, tuple(s), steering.get(k))
        for k, (s, d) in enumerate(zip(shapes, dtypes, strict=True))
    )
    node = Node(op, "n", tuple(v.name if v else "" for v in values), tuple(f"o{k}" for k in range(outputs)), attrs)
    types = OPERATORS[op].infer(node, values)
    results = tuple(Value(n, *t) for n, t in zip(node.outputs, types, strict=True))
    definition = OPERATORS[op].define(node, values, results)
    used = {x for b in definition.blocks for x in _mentioned(b)}

    def stored(shape: tuple[int, ...]) -> Layout:
        rank = len(shape)
        return reordered(0, *range(2, rank), 1) if channels_last and rank >= 3 else Layout()

    boundary = {v.shape for v in (*values, *results) if v}
    inputs = [
        Buffer(f"x{k}", v.dtype, v.shape, Layout() if k in consts else stored(v.shape))
        for k, v in enumerate(values)
        if v is not None and f"x{k}" in used
    ]
    tables = [b for b, _ in definition.constants]
    locals_ = [replace(b, layout=stored(b.shape)) if b.shape in boundary else b for b in definition.locals]
    outs = [Buffer(f"y{k}", v.dtype, v.shape, stored(v.shape)) for k, v in enumerate(results)]
    reductions = [b.name for b in definition.blocks if isinstance(b, Block) and b.reduction]
    task = Task(
        op.lower(),
        (*inputs, *tables, *locals_, *outs),
        tuple(b.name for b in (*inputs, *tables)),
        tuple(b.name for b in outs),
        tuple(without_claims(b) if isinstance(b, Block) else b for b in definition.blocks),
        (reductions or [definition.blocks[-1].name])[0],
        frozenset([*(f"x{k}" for k in consts if f"x{k}" in used), *(b.name for b in tables)]),
    )
    return task, {b.name: data for b, data in definition.constants}


def stored_in_bfloat16(task: Task) -> Task:
    """`task` with its first input, its result, and what its contractions multiply stored as bfloat16."""
    operands = {x.buffer for _, loads in products(task) for x in loads}
    return in_narrow(task, {*operands, "x0", "y0"}, operands)


def _mentioned(block: Block | OpaqueBlock) -> list[str]:
    if isinstance(block, OpaqueBlock):
        return [*block.inputs, *block.outputs]
    return [x.buffer for x in (*block.reads, *block.writes)]


def example_of(
    op: str,
    inputs: Sequence[Array | None],
    attrs: Mapping[str, Any] | None = None,
    consts: Sequence[int] = (),
    channels_last: bool = False,
    steering: Sequence[int] = (),
    outputs: int = 1,
) -> Example:
    """One operator on `inputs`; those in `steering` are known when the Task is made, those in `consts` are packed."""
    arrays = [None if x is None else np.asarray(x) for x in inputs]
    task, tables = _task(
        op,
        attrs or {},
        [None if x is None else x.shape for x in arrays],
        consts,
        channels_last,
        ["float32" if x is None else x.dtype.name for x in arrays],
        {k: x for k in steering if (x := arrays[k]) is not None},
        outputs,
    )
    given = {f"x{k}": x for k, x in enumerate(arrays) if x is not None and f"x{k}" in task.inputs}
    return Example(task, {**given, **tables})


# --- way 2: the Nest ------------------------------------------------------------------------------------------------


def parameters(task: Task, candidate: Candidate, inputs: Mapping[str, Array]) -> Arrays:
    """What each input of the Nest holds, as bytes in its storage: constants packed as the candidate says."""
    stored = {name: to_storage(inputs[name], task.buffer(name)) for name in task.inputs if name not in task.constants}
    return stored | packed(task, candidate, {name: inputs[name] for name in sorted(task.constants)})


def run_tree(task: Task, candidate: Candidate, nest: Nest, inputs: Mapping[str, Array]) -> Arrays:
    """The outputs of the Nest, with NumPy."""
    memory = {r.name: np.full(r.bytes // DTYPES[r.dtype].itemsize, 77, DTYPES[r.dtype]) for r in nest.params}
    for name, raw in parameters(task, candidate, inputs).items():
        if name in memory:
            memory[name][:] = raw.view(memory[name].dtype)
    run_nest(nest, memory)
    return {name: from_storage(memory[name].view(np.uint8), task.buffer(name)) for name in task.outputs}


# --- way 3: machine code --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Built:
    task: Task
    candidate: Candidate
    nest: Nest
    kernel: Kernel
    library: str  # in the folder of the target's runner
    target: Target


def build(task: Task, candidate: Candidate | None = None, target: Target | None = None) -> Built:
    """Schedules (by default as `compile` does), compiles and links a Task."""
    target = target or host_target()
    candidate = candidate or chosen(task, target).candidate
    nest = build_nest(task, candidate)
    return with_kernel(task, candidate, nest, compile_nest(nest, "kernel", target), target)


def with_kernel(task: Task, candidate: Candidate, nest: Nest, kernel: Kernel, target: Target) -> Built:
    library = f"{next(_numbers)}.so"
    runner_of(target).put(library, link(kernel, target).library)
    return Built(task, candidate, nest, kernel, library, target)


_numbers = count()
_runners: dict[str, Runner] = {}


def runner_of(target: Target) -> Runner:
    """One for each machine, until the process ends."""
    if target.triple not in _runners:
        folder = tempfile.TemporaryDirectory(prefix="modelc-kernels-", dir=os.environ.get("MODELC_TESTS_CACHE"))
        atexit.register(folder.cleanup)
        here = target.triple == host_target().triple
        machine = emulated_target() if here else replace(target, features=())  # emulators know more than any one board
        runner = _runners[target.triple] = Runner(machine, Path(folder.name))
        atexit.register(runner.close)
    return _runners[target.triple]


WAYS = (Way("low", 0xFF, 1), Way("high", 0x00, 2), Way("odd", 0x3C, 3))


def run_kernel(built: Built, inputs: Mapping[str, Array], ways: Sequence[Way] = WAYS) -> list[Arrays]:
    """The outputs of the compiled kernel, run in each way. It has to end, and to touch nothing but what is its own."""
    task, runner = built.task, runner_of(built.target)
    stored = parameters(task, built.candidate, inputs)
    files = {name: f"input{k}" for k, name in enumerate(stored)}
    for name, raw in stored.items():
        runner.put(files[name], raw.tobytes())
    sizes = {name: raw.size for name, raw in stored.items()}
    part = Part(built.kernel, built.library, files, sizes, {}, (False,) * len(built.kernel.steps))
    found = [_outputs(built, Job(task, part, way=way, seconds=SECONDS), runner) for way in ways]
    runner.drop(*files.values())
    return found


def _outputs(built: Built, job: Job, runner: Runner) -> Arrays:
    answer = runner.run("job", job)
    assert answer.outcome == "ok", f"the kernel of {built.task.name} {answer.outcome}: {job.sentence(answer)}"
    found, at = {}, 0
    for name in built.task.outputs:
        buffer = built.task.buffer(name)
        raw = np.frombuffer(answer.output, np.uint8, stored_bytes(buffer), at)
        at += raw.size
        assert (between(raw, buffer) == job.way.poison).all(), f"it writes between the elements of {name}"
        found[name] = from_storage(raw, buffer)
    return found


# --- all of them ----------------------------------------------------------------------------------------------------


def check(example: Example | Task, candidate: Candidate | None = None, target: Target | None = None) -> Built:
    """Blocks, Nest, kernel and what is wanted agree; every way of running the kernel gives the same bits."""
    if isinstance(example, Task):
        example = Example(example, random_inputs(example))
    task, inputs = example.task, example.inputs
    wanted = run_task(task, inputs)
    for name, value in example.wanted.items():
        close(wanted[name], value, example, f"Blocks and reference, {name}")
    built = build(task, candidate, target)
    opaque = any(isinstance(b, OpaqueBlock) for b in task.blocks)
    if not opaque:
        verify_nest(built.nest, derive(task, built.candidate.stages))
        for name, value in run_tree(task, built.candidate, built.nest, inputs).items():
            close(value, wanted[name], example, f"Nest and Blocks, {name}")
    first, *others = run_kernel(built, inputs)
    for name, value in first.items():
        close(value, wanted[name], example, f"kernel and Blocks, {name}")
        if name in example.wanted:
            close(value, example.wanted[name], example, f"kernel and reference, {name}")
        for way, found in zip(WAYS[1:], others, strict=True):
            assert found[name].tobytes() == value.tobytes(), f"{name} differs in {way}"
    return built


def close(found: Array, wanted: Array, example: Example, what: str) -> None:
    """Whole numbers are equal; floats are close, relative to the element or to the largest of the tensor."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), what
    if wanted.dtype.kind not in "fV" and wanted.dtype.name != "bfloat16":
        np.testing.assert_array_equal(found, wanted, what)
        return
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    scale = {"float16": 20.0, "bfloat16": 160.0, "float64": 1.0}.get(wanted.dtype.name, 1.0)
    finite = np.abs(b[np.isfinite(b)])
    largest = float(finite.max()) if finite.size else 0.0
    np.testing.assert_allclose(
        a, b, example.rtol * scale, example.atol * scale * max(1.0, largest), err_msg=what, equal_nan=True
    )
