"""A Task three ways on the same inputs: its Blocks with NumPy, its Nest with NumPy, its compiled kernel.

The kernel runs in a forked child, on buffers that lie against unmapped pages: an access out of bounds kills the child,
not the tests. It runs several times, over placements of the buffers (against the page before, against the page after,
one element off any alignment), poisons of what it may not read, and divisions of its parallel range; all have to give
the same bits.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from modelc.codegen.kernels import Kernel, compile_nest
from modelc.codegen.pack import pack_constant
from modelc.ir.addresses import without_claims
from modelc.ir.block import Block, Buffer, OpaqueBlock, Task
from modelc.ir.candidate import Candidate
from modelc.ir.expr import DTYPES, Var
from modelc.ir.graph import Node, Value
from modelc.ir.interpret import evaluate, run_nest
from modelc.ir.layout import Layout, reordered
from modelc.ir.nest import Nest
from modelc.ir.verify_nest import verify_nest
from modelc.ops import OPERATORS, run_blocks
from modelc.space.nest.build import build_nest
from modelc.space.rules.derivation import constant_data, derive
from modelc.space.sketches.default import default_candidate
from modelc.target import Target, list_targets, load_target

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
PAGE = mmap.PAGESIZE
SECONDS = 20  # that a kernel may run


@cache
def host_target() -> Target:
    """A shipped target that this machine runs (so that schedules do not depend on its timing), else this machine."""
    native = load_target("native")
    return load_target(native.cpu) if native.cpu in list_targets() else native


@cache
def tensor_target() -> Target:
    """The same with every intrinsic that this machine runs."""
    return replace(host_target(), features=load_target("native").features, intrinsics=None)


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


def random_inputs(task: Task, seed: int = 0) -> Arrays:
    """Standard normal floats, and small whole numbers."""
    rng = np.random.default_rng(seed)
    return {name: random_array(rng, task.buffer(name).dtype, task.buffer(name).shape) for name in task.inputs}


def random_array(rng: np.random.Generator, dtype: str, shape: Sequence[int]) -> Array:
    kind = DTYPES[dtype]
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape).astype(bool))
    if kind.kind in "iu":
        return np.asarray(rng.integers(0 if kind.kind == "u" else -9, 10, shape).astype(kind))
    return np.asarray(rng.standard_normal(shape)).astype(kind)


# --- storage --------------------------------------------------------------------------------------------------------


def physical_index(buffer: Buffer) -> Array:
    """For each element (logical shape) its offset in the storage, in elements."""
    indices = buffer.layout.apply(tuple(Var(f"i{d}") for d in range(len(buffer.shape))), buffer.shape)
    grid = {
        f"i{d}": np.arange(n).reshape([-1 if k == d else 1 for k in range(len(buffer.shape))])
        for d, n in enumerate(buffer.shape)
    }
    flat = np.zeros(buffer.shape, np.int64)
    for index, stride in zip(indices, buffer.physical_strides, strict=True):
        flat = flat + evaluate(index, grid, {}) * stride
    return flat


def stored_bytes(buffer: Buffer) -> int:
    if not prod(buffer.physical_shape):
        return 0
    span = sum((n - 1) * s for n, s in zip(buffer.physical_shape, buffer.physical_strides, strict=True)) + 1
    return span * DTYPES[buffer.dtype].itemsize


def to_storage(data: Array, buffer: Buffer, poison: int = 0xFF) -> Array:
    """The bytes of `data` as `buffer` stores it; bytes between elements are `poison`."""
    raw = np.full(stored_bytes(buffer), poison, np.uint8)
    kind = np.dtype(np.uint8) if buffer.dtype == "bool" else DTYPES[buffer.dtype]
    raw.view(kind)[physical_index(buffer)] = data.astype(kind)
    return raw


def from_storage(raw: Array, buffer: Buffer) -> Array:
    return np.asarray(raw.view(DTYPES[buffer.dtype])[physical_index(buffer)])


# --- way 1: Blocks --------------------------------------------------------------------------------------------------


def run_task(task: Task, inputs: Mapping[str, Array]) -> Arrays:
    """The outputs of the Task's Blocks, with NumPy."""
    buffers = {b.name: np.zeros(b.shape, DTYPES[b.dtype]) for b in task.buffers if b.name not in task.inputs}
    buffers |= {name: inputs[name].reshape(task.buffer(name).shape) for name in task.inputs}
    run_blocks(task.blocks, buffers)
    return {name: buffers[name] for name in task.outputs}


# --- way 2: the Nest ------------------------------------------------------------------------------------------------


def parameters(task: Task, candidate: Candidate, inputs: Mapping[str, Array]) -> Arrays:
    """What each input of the Nest holds, as bytes in its storage: constants packed as the candidate says."""
    derived = derive(task, candidate.stages)
    result = {}
    for name in task.inputs:
        if name in task.constants:
            buffer = derived.buffer(name)
            layout = candidate.layouts.get(name, buffer.layout)
            data = constant_data(task, candidate.stages, name, inputs[name])
            result[name] = pack_constant(data, buffer, layout).reshape(-1).view(np.uint8)
        else:
            result[name] = to_storage(inputs[name], task.buffer(name))
    return result


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
    library: Path


def build(task: Task, candidate: Candidate | None = None, target: Target | None = None) -> Built:
    """Schedules (by default rule-based), compiles and links a Task for this machine."""
    target = target or host_target()
    candidate = candidate or default_candidate(task, target)
    nest = build_nest(task, candidate)
    kernel = compile_nest(nest, "kernel", target)
    return Built(task, candidate, nest, kernel, link(kernel))


_FOLDER = tempfile.TemporaryDirectory(prefix="modelc-kernels-")


def link(kernel: Kernel) -> Path:
    """A shared library with the kernel alone."""
    folder = Path(tempfile.mkdtemp(dir=_FOLDER.name))
    if kernel.object is not None:
        (folder / "kernel.o").write_bytes(kernel.object)
    else:
        (folder / "kernel.c").write_text(kernel.source or "")
    source = "kernel.o" if kernel.object is not None else "kernel.c"
    command = ["cc", "-O1", "-shared", "-fPIC", "-nostartfiles", "-o", "kernel.so", source, "-lm"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "kernel.so"


class Memory:
    """Shared memory between unmapped pages, `nbytes` of it: right after the page before (low), right before the page
    after (high), or one element later than the page before (odd)."""

    def __init__(self, nbytes: int, itemsize: int, placement: str, poison: int):
        slack = itemsize if placement == "odd" else 0
        room = -(-max(nbytes + slack, 1) // PAGE) * PAGE
        self.map = mmap.mmap(-1, room + 2 * PAGE)
        self.whole = np.frombuffer(self.map, np.uint8)
        start = PAGE + {"low": 0, "odd": slack, "high": room - nbytes}[placement]
        self.bytes = self.whole[start : start + nbytes]
        self.around = (self.whole[PAGE:start], self.whole[start + nbytes : PAGE + room])
        self.room = room
        for part in (self.bytes, *self.around):
            part[:] = poison
        self.poison = poison

    @property
    def address(self) -> int:
        return self.bytes.ctypes.data if self.bytes.size else self.around[1].ctypes.data

    def guard(self) -> None:
        """Unmaps the pages before and after. Called in the child alone."""
        for at in (0, PAGE + self.room):
            if _libc().mprotect(ctypes.c_void_p(self.whole.ctypes.data + at), ctypes.c_size_t(PAGE), 0):
                raise OSError("mprotect failed")

    def intact(self) -> bool:
        return all((part == self.poison).all() for part in self.around)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)


@dataclass(frozen=True)
class Run:
    """One way of running a kernel: where its buffers lie, what is in those that it may not read, how many ranges its
    parallel loops are divided into (the last one runs first)."""

    placement: str
    poison: int
    cuts: int


RUNS = (Run("low", 0xFF, 1), Run("high", 0x00, 2), Run("odd", 0x3C, 3))


class Execution:
    """The memory of one Run, and what it does in the child."""

    def __init__(self, built: Built, inputs: Mapping[str, Array], run: Run):
        task = built.task
        self.built, self.inputs, self.run = built, inputs, run
        self.memory = {name: self.blank(raw.size, task.buffer(name)) for name, raw in inputs.items()}
        for name, raw in inputs.items():
            self.memory[name].bytes[:] = raw
        for name in task.outputs:
            self.memory[name] = self.blank(stored_bytes(task.buffer(name)), task.buffer(name))
        for name, count in built.kernel.temporaries:
            self.memory[name] = self.blank(count)
        self.scratch = self.blank(max(s.scratch_bytes for s in built.kernel.steps))

    def blank(self, count: int, buffer: Buffer | None = None) -> Memory:
        """Room for a buffer; without one, for what the runtime places: whole cache lines."""
        itemsize = DTYPES[buffer.dtype].itemsize if buffer else 64
        return Memory(count if buffer else -(-count // 64) * 64, itemsize, self.run.placement, self.run.poison)

    def execute(self) -> None:
        library = ctypes.CDLL(str(self.built.library))
        for one in (*self.memory.values(), self.scratch):
            one.guard()
        for step in self.built.kernel.steps:
            function = getattr(library, step.symbol)
            function.restype = None
            pointers = [ctypes.c_void_p(self.memory[a].address) for a in step.args]
            marks = [step.extent * k // self.run.cuts for k in range(self.run.cuts + 1)]
            for begin, end in reversed(list(pairwise(marks))):
                self.scratch.bytes[:] = self.run.poison
                function(*pointers, ctypes.c_void_p(self.scratch.address), ctypes.c_int(begin), ctypes.c_int(end))

    def outputs(self) -> Arrays:
        """What the kernel wrote, after a look at all that it may not write to."""
        task = self.built.task
        for name, one in (*self.memory.items(), ("scratch", self.scratch)):
            assert one.intact(), f"{task.name} writes around {name}"
        for name, raw in self.inputs.items():
            assert (self.memory[name].bytes == raw).all(), f"{task.name} writes to its input {name}"
        for name in task.outputs:
            data = self.memory[name].bytes
            between = np.ones(data.size // DTYPES[task.buffer(name).dtype].itemsize, np.bool_)
            between[physical_index(task.buffer(name))] = False
            kept = data.reshape(between.size, -1)[between] if between.any() else np.zeros(0)
            assert (kept == self.run.poison).all(), f"{task.name} writes between the elements of {name}"
        return {name: from_storage(self.memory[name].bytes.copy(), task.buffer(name)) for name in task.outputs}


def run_kernel(built: Built, inputs: Mapping[str, Array], runs: Sequence[Run] = RUNS) -> list[Arrays]:
    """The outputs of the compiled kernel in each Run."""
    stored = parameters(built.task, built.candidate, inputs)
    executions = [Execution(built, stored, run) for run in runs]

    def body() -> None:
        for one in executions:
            one.execute()

    _in_child(body)
    return [one.outputs() for one in executions]


def _in_child(body: Callable[[], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            signal.alarm(SECONDS)
            _libc().syscall(158, 0x1023, 18)  # on x86-64 the permission for AMX, where there is any
            body()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        what = {signal.SIGSEGV: "touches memory that is not its own", signal.SIGALRM: "does not end"}
        raise AssertionError(f"the kernel {what.get(signal.Signals(number), f'dies of signal {number}')}")
    assert status == 0, "the kernel could not be run"


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
        for run, found in zip(RUNS[1:], others, strict=True):
            assert found[name].tobytes() == value.tobytes(), f"{name} differs in {run}"
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
