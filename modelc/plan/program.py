"""The plan of a package: every buffer's place, every constant packed once, the kernels in order.

Values and temporaries that live at the same time lie apart in one arena. A constant is stored once for each layout that
some kernel reads it in, shared by tasks and by variants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby

from modelc.codegen.kernel import Kernel
from modelc.codegen.lower.in_place import in_place
from modelc.errors import InvalidIR
from modelc.ir.addresses import Guard
from modelc.ir.block import Block, Task
from modelc.ir.candidate import Candidate
from modelc.ir.expr import DTYPES
from modelc.ir.generalise import instance
from modelc.ir.graph import RANDOM_STATE, room_of, sized
from modelc.ir.nest import Leaf, Nest, Region, walk
from modelc.ir.program import BoundTask, Placed, Program
from modelc.ir.sizes import DependsOnSize, Sizes, is_sized
from modelc.package.spec import (
    ArenaTensor,
    Argument,
    Extent,
    FreeSize,
    Plan,
    RangeCheck,
    State,
    Step,
)
from modelc.package.tensor import TensorInfo
from modelc.partition.precision import rounded_values
from modelc.plan.memory import Lifetime, plan_memory
from modelc.plan.parameters import Parameters, compact_constant, stored_constant
from modelc.plan.structure import Assembly, Structured, structured
from modelc.space.analysis.work import block_flops, executed_dtype
from modelc.space.rules.derivation import rounding_error

SERIAL_FLOPS, SERIAL_BYTES = 100_000, 65_536  # a step with less of both is over before a second thread has woken up


@dataclass(frozen=True)
class Compiled:
    """A Task scheduled and compiled, all under its canonical names. `derived` is the task after its stages. Where they
    depend on sizes, `usual` are those by which the work is said."""

    task: Task
    candidate: Candidate
    derived: Task
    nest: Nest
    kernel: Kernel
    usual: Sizes = field(default_factory=dict)

    @cached_property
    def works(self) -> tuple[Work, ...]:
        """What each step of the kernel does: numbers that may depend on sizes."""
        if not self.usual:
            return tuple(phase_works(self))
        pairs = zip(self.at_usual.works, self.kernel.steps, strict=True)
        return tuple(general_work(self, work, step.args) for work, step in pairs)

    @cached_property
    def at_usual(self) -> Compiled:
        """The same at the usual sizes."""
        if not self.usual:
            return self
        at = partial(instance, run=self.usual)
        return Compiled(at(self.task), at(self.candidate), at(self.derived), at(self.nest), self.kernel)

    @cached_property
    def temporaries(self) -> Mapping[str, int]:
        return dict(self.kernel.temporaries)

    @cached_property
    def error_bound(self) -> float:
        return rounding_error(self.at_usual.task, self.at_usual.candidate.stages)

    @cached_property
    def taken_places(self) -> dict[str, tuple[str, ...]]:
        """in_place() of the Nest."""
        return in_place(self.nest)


@dataclass(frozen=True)
class Use:
    """One call of a kernel before anything has a place: what its arguments are."""

    bound: BoundTask
    compiled: Compiled
    step: int  # of the kernel
    arguments: tuple[str, ...]  # values, or temporaries "TASK NUMBER.NAME"
    regions: tuple[str, ...]  # the kernel's names of the same
    guards: tuple[Guard, ...] = ()  # of the Task, before the first of its steps

    @property
    def needs(self) -> tuple[str, ...]:
        """Everything that has to keep its contents until the step has run."""
        return (*self.arguments, *(self.bound.values[guard.buffer] for guard in self.guards))

    @property
    def temporaries(self) -> dict[str, int]:
        """The arguments that are no values, and their bytes."""
        sizes = self.compiled.temporaries
        return {a: sizes[r] for a, r in zip(self.arguments, self.regions, strict=True) if r in sizes}

    @property
    def taken(self) -> dict[str, tuple[str, ...]]:
        """For arguments that are written those in whose place they may lie (in_place.py)."""
        name = dict(zip(self.regions, self.arguments, strict=True))
        places = self.compiled.taken_places
        return {name[o]: tuple(name[i] for i in inputs if i in name) for o, inputs in places.items() if o in name}


def plan_program(
    program: Program,
    compiled: Mapping[str, Compiled],
    parameters: Parameters,
    checked: bool = True,
    expose: bool = False,
    states: Mapping[str, str] | None = None,
    free: Sequence[FreeSize] = (),
) -> Plan:
    """The steps of `program` with the kernels `compiled` (by Task.hash); `checked`: what they compute addresses from is
    checked first. With `expose`, what would lie in the arena, and sizes that depend on data, are outputs, stored as the
    kernels write them, under their own names: for looking at what every kernel computed. `states` are inputs that the
    handle keeps, and the outputs that they are after a run; `free` are the sizes that the program depends on."""
    if both := set(program.inputs) & set(program.outputs):
        raise InvalidIR(f"{min(both)!r} of program {program.name} is input and output; a task has to copy it")

    def body(inner: Program) -> Plan:
        return plan_program(inner, compiled, parameters, checked)

    uses = list(_uses(program, compiled, checked, body))
    roots = _arena_roots(program, uses)
    lives = _lifetimes(program, uses, {} if expose else roots)
    offsets, size = plan_memory(lives, _places_taken(program, uses, lives))
    made, states = Assembly(), states or {}
    fed = [name for name in program.inputs if name != RANDOM_STATE and name not in states]
    extents = {} if expose else {name: extent for name in program.outputs if (extent := sized(name)) is not None}
    rooms = {name: room for name in program.outputs if (room := room_of(name)) is not None}
    given = [name for name in program.outputs if name not in {*states.values(), *extents, *rooms}]
    kept = tuple(_state(made, program, name, other) for name, other in states.items())
    places = {name: Argument("input", k) for k, name in enumerate(fed)} | {RANDOM_STATE: Argument("random")}
    places |= {name: Argument("output", k) for k, name in enumerate(given)}
    places |= {state.input.name: Argument("slot", state.read) for state in kept}
    places |= {state.output: Argument("slot", state.written) for state in kept}
    places |= {name: Argument("size", k) for k, name in enumerate(extents)}
    dims = [size.name for size in free]
    places |= {name: Argument("dim", dims.index(room)) for name, room in rooms.items()}
    outputs = [_tensor(program.values[name]) for name in given]
    if expose:
        for name, root in roots.items():
            places[name] = Argument("output", len(outputs))
            outputs.append(_tensor(root))
    places |= {name: Argument("arena", 0, offset) for name, offset in offsets.items()}
    rounded, there = rounded_values(program), _Places(program, places, parameters)
    for _, group in groupby(uses, key=type):
        alike = list(group)
        made.plain([there.step(use) for use in alike if isinstance(use, Use)])
        for structure in (use for use in alike if isinstance(use, Structured)):
            made.structured(structure, there.argument)
    return Plan(
        inputs=tuple(_tensor(program.values[name]) for name in fed),
        outputs=tuple(outputs),
        steps=tuple(made.steps),
        arena_bytes=size,
        memory=tuple(ArenaTensor(i.name, offsets[i.name], i.bytes) for i in sorted(lives, key=lambda i: i.first)),
        rounded=tuple(name for name in given if name in rounded),
        loops=tuple(made.loops),
        control=tuple(made.control),
        slots=tuple(made.slots),
        states=kept,
        sizes=tuple(Extent(given.index(output), axis) for output, axis in extents.values()),
        free=tuple(free),
    )


def _state(made: Assembly, program: Program, name: str, output: str) -> State:
    """What the handle keeps for the input `name`: two buffers, or of a cache that grows the memory of its output."""
    if name not in program.grown:
        return made.state(_tensor(program.values[name]), output)
    root = program.values[output]
    return made.grown(TensorInfo.of(name, root.dtype, program.values[name].shape), output, root.bytes)


def _tensor(placed: Placed) -> TensorInfo:
    return TensorInfo.of(placed.name, placed.dtype, placed.physical_shape)


def _uses(
    program: Program, compiled: Mapping[str, Compiled], checked: bool, body: Callable[[Program], Plan]
) -> Iterator[Use | Structured]:
    for number, bound in enumerate(program.tasks):
        if bound.bodies:
            yield structured(bound, number, tuple(map(body, bound.bodies)))
            continue
        implementation = compiled[bound.task.hash]
        values = {
            canonical.name: bound.values[own.name]
            for own, canonical in zip(bound.task.buffers, implementation.task.buffers, strict=True)
            if own.name in bound.values
        }
        for k, step in enumerate(implementation.kernel.steps):
            arguments = tuple(values.get(name) or f"{bound.task.name} {number}.{name}" for name in step.args)
            yield Use(bound, implementation, k, arguments, step.args, bound.guards if k == 0 and checked else ())


def _arena_roots(program: Program, uses: Sequence[Use | Structured]) -> dict[str, Placed]:
    """The values that need storage in the arena, in order of first use."""
    outside = {*program.inputs, *program.outputs, *program.constants}
    names = [program.values[a].root for use in uses for a in use.needs if a in program.values]
    return {name: program.values[name] for name in names if name not in outside}


def _lifetimes(program: Program, uses: Sequence[Use | Structured], roots: Mapping[str, Placed]) -> list[Lifetime]:
    """Of what lies in the arena: values, then temporaries."""
    sizes = {name: root.bytes for name, root in roots.items()}
    sizes |= {name: size for use in uses for name, size in use.temporaries.items()}
    steps: dict[str, list[int]] = {name: [] for name in sizes}
    for number, use in enumerate(uses):
        for argument in use.needs:
            name = program.values[argument].root if argument in program.values else argument
            if name in steps:
                steps[name].append(number)
    return [Lifetime(name, sizes[name], min(at), max(at)) for name, at in steps.items()]


def _places_taken(program: Program, uses: Sequence[Use | Structured], lives: Sequence[Lifetime]) -> dict[str, str]:
    """Values that lie in the place of one that the same step reads for the last time (in_place.py)."""
    life = {lifetime.name: lifetime for lifetime in lives}
    taken: dict[str, str] = {}
    given: set[str] = set()  # places that have been taken
    for number, use in enumerate(uses):
        roots = [program.values[a].root if a in program.values else a for a in use.arguments]
        for output, inputs in use.taken.items():
            new = life.get(output)
            if new is None or new.first != number:
                continue
            for old in [life[name] for name in inputs if name in life]:
                alone = roots.count(old.name) == 1 and old.name not in given
                if alone and old.last == number and old.bytes == new.bytes:
                    taken[new.name] = old.name
                    given.add(old.name)
                    break
    return taken


@dataclass(frozen=True)
class _Places:
    """Where everything of a program lies: what is no constant `at` its Argument, constants among the `parameters`."""

    program: Program
    at: Mapping[str, Argument]
    parameters: Parameters

    def step(self, use: Use) -> Step:
        compiled, kernel = use.compiled, use.compiled.kernel.steps[use.step]
        work = compiled.works[use.step]
        suffix = f".{use.step}" if len(compiled.kernel.steps) > 1 else ""
        return Step(
            name=f"{use.bound.task.name}{suffix}",
            symbol=kernel.symbol,
            arguments=tuple(self.argument(*pair, compiled) for pair in zip(use.arguments, use.regions, strict=True)),
            written=tuple(k for k, region in enumerate(use.regions) if region in kernel.written),
            extent=kernel.extent,
            scratch_bytes=kernel.scratch_bytes,
            serial=is_serial(compiled.at_usual.works[use.step]),
            nodes=use.bound.task.nodes,
            flops=work.flops if is_sized(work.flops) else float(work.flops),
            bytes=work.bytes if is_sized(work.bytes) else float(work.bytes),
            dtype=work.dtype,
            intrinsic=", ".join(intrinsic.name for intrinsic in kernel.intrinsics),
            instruction=", ".join(dict.fromkeys(intrinsic.instruction for intrinsic in kernel.intrinsics)),
            layout=str(compiled.derived.buffer(compiled.derived.outputs[0]).layout),
            error_bound=compiled.error_bound,
            takes=tuple(size.name for size in kernel.sizes),
            checks=tuple(
                self.check(guard, self.program.values[use.bound.values[guard.buffer]]) for guard in use.guards
            ),
        )

    def check(self, guard: Guard, placed: Placed) -> RangeCheck:
        """The guard, of the value where it lies."""
        offset, shape, strides, column = placed.offset, placed.shape, placed.logical_strides, guard.column
        if strides is None:
            raise InvalidIR(f"{placed.name!r} is stored otherwise than strided: what is in it cannot be checked")
        if column is not None:
            offset, shape, strides = offset + column * strides[-1], shape[:-1], strides[:-1]
        at, (low, high) = self.element(placed, offset), (guard.low, guard.high)
        return RangeCheck(at, placed.dtype, shape, strides, column, low, high, placed.name, guard.operator)

    def element(self, placed: Placed, offset: int) -> Argument:
        """An element of what a value is a view of."""
        place = self.at[placed.root]
        return Argument(place.space, place.index, place.offset + offset * DTYPES[placed.dtype].itemsize)

    def argument(self, name: str, region: str = "", compiled: Compiled | None = None) -> Argument:
        """Where a value or a temporary lies; a constant as the kernel wants it in `region`, without one row-major."""
        if name not in self.program.values:
            return self.at[name]
        placed = self.program.values[name]
        if placed.root not in self.program.constants:
            return self.element(placed, placed.offset)
        if compiled is not None:
            at = compiled.at_usual
            task, candidate, derived = at.task, at.candidate, at.derived
            stored = stored_constant(self.program, placed, region, task, candidate, derived)
        else:
            stored = compact_constant(self.program.constants[placed.root], placed)
        return self.parameters.argument(stored)


@dataclass(frozen=True)
class Work:
    """What one step does: scalar operations, bytes of its arguments, the dtype that it computes in."""

    flops: int
    bytes: int
    dtype: str


def is_serial(work: Work) -> bool:
    """Whether a step is not worth sharing among threads."""
    return work.flops < SERIAL_FLOPS and work.bytes < SERIAL_BYTES


def general_work(compiled: Compiled, usual: Work, arguments: Sequence[str]) -> Work:
    """The work of a step at any size, which at the usual one is `usual`."""
    regions = {r.name: r for r in (*compiled.nest.params, *compiled.nest.temporaries)}
    try:
        blocks = [b for b in compiled.task.blocks if isinstance(b, Block)] if usual.flops else []
        return replace(
            usual,
            flops=sum(map(block_flops, blocks)),
            bytes=sum(_spanned(regions[name]) for name in dict.fromkeys(arguments)),
        )
    except DependsOnSize:  # no expression says it
        return usual


def _spanned(region: Region) -> int:
    """Bytes from the first element of a region to the last in a run."""
    pairs = zip(region.shape, region.stride, strict=True)
    return (sum((n - 1) * s for n, s in pairs) + 1) * DTYPES[region.dtype].itemsize


def phase_works(compiled: Compiled) -> Iterator[Work]:
    """The work of every step of a kernel. Steps are the phases of the Nest; the operations of the Task, as the model
    states them, count for the phase of its anchor; an opaque Block counts none."""
    nest, task, steps = compiled.nest, compiled.derived, compiled.kernel.steps
    phases = nest.phases if len(nest.phases) == len(steps) else [()] * len(steps)
    sizes = {r.name: r.bytes for r in (*nest.params, *nest.temporaries)}
    written = task.buffer(task.outputs[0]).dtype
    for phase, step in zip(phases, steps, strict=True):
        moved = sum(sizes[name] for name in dict.fromkeys(step.args))
        if not any(s.block == task.anchor for s in walk(phase) if isinstance(s, Leaf)):
            yield Work(0, moved, written)
            continue
        blocks = [b for b in compiled.task.blocks if isinstance(b, Block)]
        heaviest = max(blocks, key=block_flops)
        dtype = step.intrinsics[0].multiplies if step.intrinsics else executed_dtype(heaviest, compiled.task.dtypes)
        yield Work(sum(map(block_flops, blocks)), moved, dtype)
