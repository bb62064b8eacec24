"""The Program: Tasks in order of execution over placed values (what partitioning makes of a Graph).

    program NAME
      input X: float32[1, 64, 56, 56]
      const W: float32[64, 64, 1, 1]
      value cat: float32[1, 128, 56, 56] stored reorder(0, 2, 3, 1)
      value Y: float32[1, 64, 56, 56] stored reorder(0, 2, 3, 1) strides(...) in cat at 64
      run conv_relu_0(x0=X, x1=W, y0=Y)
      output cat

A value is a root, with storage of its own, or a Region of one: an offset and strides. Every element of a root is
written once, by one Task. What a Task computes does not depend on where its values live; how fast, does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from modelc.errors import InvalidIR
from modelc.ir.addresses import Guard, unproved
from modelc.ir.block import Block, OpaqueBlock, Task, compact_strides
from modelc.ir.check import uses
from modelc.ir.expr import DTYPES, variables
from modelc.ir.layout import Layout
from modelc.ir.sizes import room

Array = NDArray[Any]


@dataclass(frozen=True)
class Placed:
    """A value and the Region of `root` that it lives in: from element `offset` on, its physical dimensions (`layout`)
    with `strides` in elements; without strides it is compact. A root is its own root, at offset 0."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: Layout = field(default_factory=Layout)
    strides: tuple[int, ...] | None = None
    root: str = ""
    offset: int = 0

    def __post_init__(self) -> None:
        if not self.root:
            object.__setattr__(self, "root", self.name)

    @property
    def is_view(self) -> bool:
        return self.root != self.name

    @property
    def physical_shape(self) -> tuple[int, ...]:
        return self.layout.shape(self.shape)

    @property
    def physical_strides(self) -> tuple[int, ...]:
        return compact_strides(self.physical_shape) if self.strides is None else self.strides

    @property
    def elements(self) -> int:
        """Elements of storage from the first to the last, at most."""
        return room(self.physical_shape, self.physical_strides)

    @property
    def bytes(self) -> int:
        return self.elements * DTYPES[self.dtype].itemsize

    @property
    def logical_strides(self) -> tuple[int, ...] | None:
        """Strides of the logical dimensions; None where the layout does more than reorder them."""
        return self.layout.logical_strides(self.physical_strides)

    def __str__(self) -> str:
        stored = f" stored {self.layout}" if self.layout.primitives else ""
        strides = f" strides({', '.join(map(str, self.strides))})" if self.strides is not None else ""
        place = f" in {self.root} at {self.offset}" if self.is_view else ""
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]{stored}{strides}{place}"


@dataclass(frozen=True)
class BoundTask:
    """A Task and the values that its boundary buffers stand for. `guards` are checked before it runs: data that it
    computes addresses from. `bodies` are the Programs of control flow: the Task, one opaque Block, is no kernel then
    (modelc/ir/control.py says what it means)."""

    task: Task
    values: Mapping[str, str]
    guards: tuple[Guard, ...] = ()
    bodies: tuple[Program, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.values[b] for b in self.task.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.values[b] for b in self.task.outputs)

    @property
    def control(self) -> OpaqueBlock:
        """The Block that stands for the bodies."""
        (block,) = self.task.blocks
        assert isinstance(block, OpaqueBlock) and self.bodies
        return block

    def __str__(self) -> str:
        checked = f" where {', '.join(map(str, self.guards))}" if self.guards else ""
        return f"{self.task.name}({', '.join(f'{b}={v}' for b, v in self.values.items())}){checked}"


@dataclass(frozen=True)
class Program:
    """Tasks in order. `constants` holds the data of constant roots, in logical shape; inputs, outputs and constants
    are compact, row-major roots, but for an input that is the beginning of an output: a cache that grows."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]
    values: Mapping[str, Placed]
    tasks: tuple[BoundTask, ...]
    notes: tuple[str, ...] = ()

    @property
    def grown(self) -> dict[str, str]:
        """The inputs that are the beginning of an output."""
        roots = {name: self.values[name].root for name in self.inputs}
        return {name: root for name, root in roots.items() if root in self.outputs}

    @property
    def every_program(self) -> Iterator[Program]:
        """The program, and those of its bodies."""
        yield self
        for bound in self.tasks:
            for body in bound.bodies:
                yield from body.every_program

    @property
    def kernels(self) -> Iterator[BoundTask]:
        """The Tasks that become kernels, those of bodies among them."""
        return (bound for program in self.every_program for bound in program.tasks if not bound.bodies)

    def with_tasks(
        self, tasks: Iterable[BoundTask], values: Mapping[str, Placed], constants: Mapping[str, Array]
    ) -> Program:
        """The program with other Tasks, and those of the `values` and `constants` that these use."""
        tasks = tuple(tasks)
        used = {name for bound in tasks for name in bound.values.values()} | {*self.inputs, *self.outputs}
        used |= {values[name].root for name in used}
        return replace(
            self,
            constants={name: data for name, data in constants.items() if name in used},
            values={name: place for name, place in values.items() if name in used},
            tasks=tasks,
        )

    def __str__(self) -> str:
        lines = [f"program {self.name}"]
        lines += [f"  input {self.values[v]}" for v in self.inputs]
        lines += [f"  const {self.values[v]}" for v in self.constants]
        listed = {*self.inputs, *self.constants}
        lines += [f"  value {v}" for v in self.values.values() if v.name not in listed]
        for bound in self.tasks:
            lines.append(f"  run {bound}")
            lines += ["    " + line for line in str(bound.task).splitlines()]
            lines += ["    " + line for body in bound.bodies for line in str(body).splitlines()]
        lines += [f"  output {v}" for v in self.outputs]
        lines += [f"  note {n}" for n in self.notes]
        return "\n".join(lines)


def kind_of(task: Task) -> str:
    """What a Task mostly does: "opaque", "contraction" (it reduces over two operands at once), "reduction" or "map"."""
    kind = "map"
    for block in task.blocks:
        if isinstance(block, OpaqueBlock):
            return "opaque"
        if is_contraction(block):
            return "contraction"
        if block.reduction:
            kind = "reduction"
    return kind


def is_contraction(block: Block) -> bool:
    """Whether the Block reduces over at least two buffers at once."""
    reduced = {i.name for i in block.reduction}
    return len({r.buffer for r in block.reads if variables(r) & reduced}) > 1


# --- verification -------------------------------------------------------------------------------------------------


def verify_program(program: Program, where: str) -> None:
    """Raises InvalidIR, naming `where` (the pass), unless every value lies within its root, every Task fits the values
    that it is bound to, every element is written once and before it is read, and no data that passes a Task's guards
    leads it outside a buffer."""

    check_places(program, where)
    fail = _failing(program, where)
    _check_boundary(program, fail)
    names: set[str] = set()
    for bound in program.tasks:
        if bound.task.name in names or not bound.task.name.isidentifier():
            fail(f"expected a name of its own for task {bound.task.name!r}")
        names.add(bound.task.name)
        _check_task(program, bound, fail)
        _check_addresses(program, bound, fail)
    _check_order(program, fail)


Fail = Callable[[str], None]


def _failing(program: Program, where: str) -> Fail:
    def fail(sentence: str) -> None:
        raise InvalidIR(f"after {where}: program {program.name}: {sentence}")

    return fail


def check_places(program: Program, where: str) -> None:
    """Raises InvalidIR, naming `where` (the pass), unless every value lies within its root."""
    fail = _failing(program, where)
    for name, value in program.values.items():
        if name != value.name:
            fail(f"value {value.name!r} is listed as {name!r}")
        root = program.values.get(value.root)
        data = program.constants.get(value.root)  # of which a run may read a part, behind what a cache has
        if root is None or root.is_view or (root.offset and data is None):
            fail(f"the root {value.root!r} of {name!r} is no root")
            continue
        if root.dtype != value.dtype:
            fail(f"{name!r} is {value.dtype} in a root of {root.dtype}")
        if value.strides is not None and (
            len(value.strides) != len(value.physical_shape) or min(value.strides, default=0) < 0
        ):
            fail(f"{name!r} has impossible strides {value.strides}")
        if value.is_view and value.logical_strides is None:
            fail(f"the view {name!r} has a layout that does more than reorder")
        if value.offset < 0 or value.offset + value.elements > (root.elements if data is None else data.size):
            fail(f"{name!r} reaches outside its root {value.root!r}")


def _check_boundary(program: Program, fail: Fail) -> None:
    in_rooms = {*program.grown, *program.grown.values()}
    for name in (n for n in (*program.inputs, *program.outputs, *program.constants) if n not in in_rooms):
        value_ = program.values.get(name)
        if value_ is None or value_.is_view or value_.layout.primitives or value_.strides is not None:
            fail(f"expected {name!r} to be a compact row-major root")
    for name, data in program.constants.items():
        value = program.values[name]
        if (data.shape, data.dtype) != (value.shape, DTYPES[value.dtype]):
            fail(f"constant {name!r} is {value.dtype}{list(value.shape)}, its data {data.dtype}{list(data.shape)}")


def _check_task(program: Program, bound: BoundTask, fail: Fail) -> None:
    task = bound.task
    if set(bound.values) != {*task.inputs, *task.outputs}:
        fail(f"task {task.name} binds {sorted(bound.values)}, its boundary is {sorted({*task.inputs, *task.outputs})}")
    if task.anchor not in {b.name for b in task.blocks} or len({b.name for b in task.blocks}) < len(task.blocks):
        fail(f"task {task.name} has no block {task.anchor!r}, or blocks of one name")
    for name, value_name in bound.values.items():
        buffer, value = task.buffer(name), program.values.get(value_name)
        if value is None:
            fail(f"task {task.name} is bound to an unknown value {value_name!r}")
            continue
        same = (buffer.dtype, buffer.shape, buffer.layout, buffer.strides)
        if same != (value.dtype, value.shape, value.layout, value.strides):
            fail(f"task {task.name}: {buffer} is bound to {value}")
        if (name in task.constants) != (value.root in program.constants):
            fail(f"task {task.name}: {name} and {value_name!r} are not both constant")
    ranks = {b.name: len(b.shape) for b in task.buffers}
    ready = set(task.inputs)
    for block in task.blocks:
        reads, writes = uses(block)
        if isinstance(block, Block):
            for access in (*block.reads, *block.writes):
                if ranks.get(access.buffer) != len(access.indices):
                    fail(f"task {task.name}: {access} does not fit its buffer")
        if missing := [r for r in reads if r not in ready]:
            fail(f"task {task.name}: block {block.name} reads {missing[0]!r} before it is written")
        ready |= set(writes)
    if missing := [b for b in task.outputs if b not in ready]:
        fail(f"task {task.name} does not write {missing[0]!r}")


def _check_addresses(program: Program, bound: BoundTask, fail: Fail) -> None:
    task = bound.task
    for guard in bound.guards:
        if guard.buffer not in task.inputs or guard.buffer in task.constants:
            fail(f"task {task.name} guards {guard.buffer!r}, which is none of its inputs")

    def data_of(name: str) -> Array | None:
        if name not in task.constants:
            return None
        value = program.values[bound.values[name]]
        data, strides = program.constants[value.root], value.logical_strides
        return data if strides is None else region(data.reshape(-1), value.offset, value.shape, strides)

    if sentence := unproved(task, bound.guards, data_of):
        fail(f"task {task.name}: {sentence}: the operator has to say what it may be, or clamp it")


def _check_order(program: Program, fail: Fail) -> None:
    """Plays the program on masks of what is written: for each element of a root that has views, else one for all."""
    written: dict[str, Array] = {}
    viewed = {v.root for v in program.values.values() if v.is_view}

    def mask(name: str) -> Array:
        value = program.values[name]
        root = program.values[value.root]
        if root.name not in written:
            given = root.name in program.inputs or root.name in program.constants
            written[root.name] = np.full(root.elements if root.name in viewed else min(root.elements, 1), given)
        strides = value.logical_strides
        if strides is None or root.name not in viewed:
            return written[root.name]
        return region(written[root.name], value.offset, value.shape, strides)

    def check(names: Iterable[str], reader: str) -> None:
        for name in names:
            if not mask(name).all():
                fail(f"{reader} reads {name!r} before all of it is written")

    for name in program.grown:
        mask(name)[...] = True
    for bound in program.tasks:
        check((v for v in bound.inputs if program.values[v].root not in program.constants), f"task {bound.task.name}")
        for name in bound.outputs:
            if mask(name).any():
                fail(f"task {bound.task.name} writes {name!r}, where something is already written")
            mask(name)[...] = True
    check(program.outputs, "the caller")


def region(flat: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """The strided view of a flat array; strides in elements."""
    if not prod(shape):
        return np.zeros(shape, flat.dtype)
    return as_strided(flat[offset:], shape, tuple(s * flat.itemsize for s in strides))
