"""Which Task each step of a package's plan is of, and where what it reads and writes lies.

Steps stand in the order of the Program's Tasks, a step for each phase of a kernel, those of bodies where their If or
Loop is; a loop of the plan (plan/roll.py) has the steps of its first iteration alone:

    tasks     a  b.0 b.1  c  c  c  c  d         plan   a  b.0 b.1  4 x (c)  d

What is watched of the steps is put together by calls of Tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from modelc.errors import VerificationError
from modelc.ir.program import BoundTask, Placed, Program
from modelc.package.spec import Argument, Plan
from modelc.package.watch import Data, Place, Watched
from modelc.verify.kernels.stored import logical

Array = NDArray[Any]
Phases = Mapping[str, Sequence[Sequence[str]]]  # by a Task's hash, the canonical buffers that each of its steps takes


@dataclass(frozen=True)
class Use:
    """One phase of a Task's kernel: `arguments` are the Task's own buffers, "" for what is none of its boundary."""

    program: Program
    bound: BoundTask
    phase: int
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A place that is looked at: what `buffer` of the Task at `use` is before, or after, step `step`. `most`: in so
    many calls, and in those whose number is a power of two."""

    use: Use
    buffer: str
    step: int
    after: bool
    argument: Argument
    bytes: int
    most: int

    @property
    def place(self) -> Place:
        """The row as a runner takes it."""
        a = self.argument
        return Place(self.step, self.after, a.space, a.index, a.offset, a.stride, self.bytes, self.most)


def uses_of(program: Program, phases: Phases) -> Iterator[Use]:
    """Every phase in the order of a plan's steps."""
    for bound in program.tasks:
        for body in bound.bodies:
            yield from uses_of(body, phases)
        if bound.bodies:
            continue
        own = {f"b{k}": buffer.name for k, buffer in enumerate(bound.task.buffers) if buffer.name in bound.values}
        for phase, arguments in enumerate(phases[bound.task.hash]):
            yield Use(program, bound, phase, tuple(own.get(name, "") for name in arguments))


def uses_by_step(program: Program, plan: Plan, phases: Phases) -> tuple[tuple[Use, ...], ...]:
    """For each step of `plan` what it is of: one Use, or of a loop's step one for each iteration. Raises
    VerificationError where the plan is none of the Program's."""
    uses = list(uses_of(program, phases))
    loops = {loop.first: loop for loop in plan.loops}
    of_steps: list[tuple[Use, ...]] = []
    at = 0
    while len(of_steps) < len(plan.steps):
        loop = loops.get(len(of_steps))
        length, count = (loop.length, loop.count) if loop else (1, 1)
        if at + length * count > len(uses):
            raise VerificationError("the package has more steps than its choices come to")
        of_steps += [tuple(uses[at + k : at + length * count : length]) for k in range(length)]
        at += length * count
    for step, of_step in zip(plan.steps, of_steps, strict=True):
        task = of_step[0].bound.task.name
        if step.name not in (task, f"{task}.{of_step[0].phase}") or len(step.arguments) != len(of_step[0].arguments):
            raise VerificationError(f"step {step.name!r} stands where its choices have task {task!r}")
    if at != len(uses):
        raise VerificationError(f"the package has {len(plan.steps)} steps; its choices come to more")
    return tuple(of_steps)


def rows_of(of_steps: Sequence[Sequence[Use]], plan: Plan, phases: Phases, most: int) -> list[Row]:
    """What to look at: every input of a Task before the first of its phases that takes it, every output after the
    last. Constants are not looked at: what they have to be is known."""
    rows: list[Row] = []
    for number, (step, (use, *_)) in enumerate(zip(plan.steps, of_steps, strict=True)):
        for argument, buffer in zip(step.arguments, use.arguments, strict=True):
            after = buffer in use.bound.task.outputs
            if looked_at(use.bound, phases).get(buffer) == use.phase:
                placed = use.program.values[use.bound.values[buffer]]
                rows.append(Row(use, buffer, number, after, argument, placed.bytes, most))
    return rows


def looked_at(bound: BoundTask, phases: Phases) -> dict[str, int]:
    """The phase before which each input of a Task is looked at, or after which each output is; without constants."""
    task, places = bound.task, dict[str, int]()
    own = {f"b{k}": buffer.name for k, buffer in enumerate(task.buffers) if buffer.name in bound.values}
    for phase, arguments in enumerate(phases[task.hash]):
        for buffer in (own[name] for name in arguments if name in own):
            if buffer in task.outputs:
                places[buffer] = phase
            elif buffer not in task.constants:
                places.setdefault(buffer, phase)
    return places


@dataclass(frozen=True)
class KernelCall:
    """What one call of a Task's kernel read and wrote, by the Task's buffers: the bytes of their places, and arrays in
    logical shape."""

    use: Use
    number: int
    read_bytes: Mapping[str, Data]
    wrote_bytes: Mapping[str, Data]

    def placed(self, buffer: str) -> Placed:
        return self.use.program.values[self.use.bound.values[buffer]]

    @cached_property
    def read(self) -> Mapping[str, Array]:
        return {buffer: logical(self.placed(buffer), data) for buffer, data in self.read_bytes.items()}

    @cached_property
    def wrote(self) -> Mapping[str, Array]:
        return {buffer: logical(self.placed(buffer), data) for buffer, data in self.wrote_bytes.items()}


def calls_of(
    records: Iterable[Watched], rows: Sequence[Row], of_steps: Sequence[Sequence[Use]], phases: Phases
) -> Iterator[KernelCall]:
    """What is watched, put together by calls of Tasks. A call of which a part was not looked at is left out."""
    pending: dict[tuple[int, int], tuple[dict[str, Data], dict[str, Data]]] = {}
    for record in records:
        row = rows[record.place]
        uses = of_steps[row.step]
        number, iteration = divmod(record.call, len(uses))
        use = uses[iteration]
        key = (id(use.bound), number)
        read, wrote = pending.setdefault(key, ({}, {}))
        (wrote if row.after else read)[row.buffer] = record.data
        if len(read) + len(wrote) == len(looked_at(use.bound, phases)):
            del pending[key]
            yield KernelCall(use, number, read, wrote)
