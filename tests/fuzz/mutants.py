"""Wrong packages, drawn from a seed: a constant, a kernel (mutant_nests.py) or the plan is not what it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mutant_nests
import numpy as np
from mutant_subjects import Subject
from numpy.typing import NDArray

from modelc.codegen.kernels import Kernel, compile_nest
from modelc.errors import ModelcError
from modelc.ir.program import Program
from modelc.package import Package, PackageSpec, write_package
from modelc.package.check import check_spec
from modelc.package.manifest import NAME
from modelc.package.spec import Argument, Branch, Plan, Repeat, Step

Array = NDArray[Any]
ATTEMPTS = 50  # to draw something that can be made
SHARES = {"constant": 0.25, "plan": 0.2, "kernel": 0.55}
MOVED_BYTES = (-64, -4, 4, 64)  # of an argument in the wrong place


@dataclass(frozen=True)
class Mutant:
    """A wrong package. Its steps are those of the right plan in this `order`. Where it is not `told`, its manifest says
    what the right plan is, as where the code around the kernels is wrong; else both are wrong alike."""

    kind: str
    about: str
    spec: PackageSpec
    order: tuple[int, ...]
    told: bool = True

    def write(self, path: Path, right: PackageSpec) -> Package:
        """Writes the package."""
        package = write_package(self.spec, path)
        if self.told:
            return package
        manifest = replace(package.manifest, variants=right.variants)
        (path / NAME).write_text(manifest.to_json())
        return Package(path, manifest)


def mutant(subject: Subject, rng: np.random.Generator) -> Mutant:
    """A wrong package of `subject`, drawn from `rng`. Raises ModelcError where nothing can be changed."""
    makers: dict[str, Callable[[Subject, np.random.Generator], Mutant | None]] = {
        "constant": wrong_constant,
        "plan": wrong_plan,
        "kernel": wrong_kernel,
    }
    for _ in range(ATTEMPTS):
        level = str(rng.choice(list(SHARES), p=list(SHARES.values())))
        drawn = makers[level](subject, rng)
        if drawn is not None:
            return drawn
    raise ModelcError(f"nothing of {subject.name} could be changed in {ATTEMPTS} attempts")


def _right_order(subject: Subject) -> tuple[int, ...]:
    return tuple(range(len(subject.spec.variants[0].steps)))


# --- constants ------------------------------------------------------------------------------------------------------


def wrong_constant(subject: Subject, rng: np.random.Generator) -> Mutant | None:
    """One constant of a kernel holds something else."""
    (program,) = subject.programs.rounded
    roots = [
        (inner, inner.values[bound.values[buffer]].root)
        for inner in program.every_program
        for bound in inner.tasks
        for buffer in sorted(bound.task.constants)
        if not bound.bodies
    ]
    if not roots:
        return None
    where, root = roots[rng.integers(len(roots))]
    data = where.constants[root]
    edits = [edit for edit in CONSTANT_EDITS if data.size]
    kind, about, wrong = edits[rng.integers(len(edits))](data, rng) if edits else ("", "", data)
    if wrong.tobytes() == data.tobytes():
        return None
    programs = replace(subject.programs, rounded=(_with_constant(program, where, root, wrong),))
    return Mutant(kind, f"{root!r} {about}", subject.run.spec(programs, subject.compiled), _right_order(subject))


def _with_constant(program: Program, where: Program, root: str, data: Array) -> Program:
    """`program` with other data of a constant of `where`, itself or one of its bodies."""
    constants = {**program.constants, root: data} if program is where else program.constants
    tasks = tuple(
        replace(bound, bodies=tuple(_with_constant(body, where, root, data) for body in bound.bodies))
        for bound in program.tasks
    )
    return replace(program, constants=constants, tasks=tasks)


def _scaled(data: Array, rng: np.random.Generator) -> tuple[str, str, Array]:
    shift = int(rng.integers(2, 17))
    return "weights scaled", f"is scaled by 1 + 2^-{shift}", _as(data, data.astype(np.float64) * (1 + 2.0**-shift))


def _element(data: Array, rng: np.random.Generator) -> tuple[str, str, Array]:
    """One number is off by a part of what its like are."""
    place, wrong = int(rng.integers(data.size)), data.astype(np.float64).reshape(-1).copy()
    if data.dtype.kind in "biu":
        step = 1.0 if data.dtype.kind == "b" or rng.random() < 0.5 else -1.0
        about = f"is off by {step:+g} at element {place}"
    else:
        shift = int(rng.integers(0, 9))
        step = 2.0**-shift * (float(np.sqrt(np.mean(wrong**2))) or 1.0)
        about = f"is off by 2^-{shift} of its size at element {place}"
    wrong[place] += step
    return "weight changed", about, _as(data, wrong.reshape(data.shape))


def _swapped(data: Array, rng: np.random.Generator) -> tuple[str, str, Array]:
    axis, first, second = _channels(data, rng)
    order = np.arange(data.shape[axis]) if data.ndim else np.arange(1)
    order[[first, second]] = order[[second, first]]
    wrong = data.take(order, axis) if data.ndim else data
    return "channels swapped", f"has {first} and {second} of dimension {axis} swapped", wrong


def _zeroed(data: Array, rng: np.random.Generator) -> tuple[str, str, Array]:
    axis, channel, _ = _channels(data, rng)
    wrong = data.copy()
    wrong[(slice(None),) * axis + (channel,) * (data.ndim > 0)] = 0
    return "channel zeroed", f"is zero at {channel} of dimension {axis}", wrong


def _channels(data: Array, rng: np.random.Generator) -> tuple[int, int, int]:
    """A dimension and two indices of it, neighbours more often than not."""
    long = [d for d, extent in enumerate(data.shape) if extent > 1]
    if not long:
        return 0, 0, 0
    axis = long[int(rng.integers(len(long)))]
    first = int(rng.integers(data.shape[axis]))
    beside = first - 1 if first else 1
    return axis, first, beside if rng.random() < 0.7 else int(rng.integers(data.shape[axis]))


def _as(data: Array, numbers: Array) -> Array:
    with np.errstate(all="ignore"):
        return numbers.astype(data.dtype)


CONSTANT_EDITS = (_scaled, _element, _swapped, _zeroed)


# --- kernels --------------------------------------------------------------------------------------------------------


def wrong_kernel(subject: Subject, rng: np.random.Generator) -> Mutant | None:
    """One kernel is compiled from a Nest that is not the right one, and takes its place."""
    keys = list(subject.compiled)
    right = subject.compiled[keys[rng.integers(len(keys))]]
    listed = mutant_nests.changes(right.nest, rng)
    if not listed:
        return None
    kinds = sorted({change.kind for change in listed})
    kind = kinds[rng.integers(len(kinds))]
    alike = [change for change in listed if change.kind == kind]
    change = alike[rng.integers(len(alike))]
    try:
        nest = mutant_nests.changed(right.nest, change)
        kernel = compile_nest(nest, right.kernel.symbol, subject.run.target)
    except Exception:  # no lowering takes it: a wrong kernel that cannot be made
        return None
    if kernel.object == right.kernel.object or not _taken_alike(kernel, right.kernel):
        return None
    objects = {**subject.spec.objects, kernel.symbol: subject.run.object_of(kernel)}
    about = f"kernel {kernel.symbol}: {change.about}"
    return Mutant(kind, about, replace(subject.spec, objects=objects), _right_order(subject))


def _taken_alike(kernel: Kernel, right: Kernel) -> bool:
    """Whether a kernel takes what the right one takes."""
    return kernel.temporaries == right.temporaries and all(
        (a.symbol, a.args, a.extent) == (b.symbol, b.args, b.extent) and a.scratch_bytes <= b.scratch_bytes
        for a, b in zip(kernel.steps, right.steps, strict=True)
    )


# --- plans ----------------------------------------------------------------------------------------------------------


def wrong_plan(subject: Subject, rng: np.random.Generator) -> Mutant | None:
    """Kernels are right, and run in another order, on other data, less often, or not at all."""
    (plan,) = subject.spec.variants
    edits = PLAN_EDITS if plan.loops or plan.control else PLAN_EDITS[:-1]
    drawn = edits[rng.integers(len(edits))](plan, rng)
    if drawn is None:
        return None
    kind, about, wrong, order = drawn
    spec = replace(subject.spec, variants=(wrong,))
    try:
        check_spec(spec)
    except ModelcError:
        return None
    return Mutant(kind, about, spec, order, told=bool(rng.random() < 0.5))


Drawn = tuple[str, str, Plan, tuple[int, ...]] | None


def _with_step(plan: Plan, number: int, step: Step) -> tuple[Plan, tuple[int, ...]]:
    steps = (*plan.steps[:number], step, *plan.steps[number + 1 :])
    return replace(plan, steps=steps), tuple(range(len(steps)))


def _swapped_steps(plan: Plan, rng: np.random.Generator) -> Drawn:
    """Two steps that follow each other, within the same loops and branches."""
    pairs = [k for k in range(len(plan.steps) - 1) if _around(plan, k) == _around(plan, k + 1)]
    if not pairs:
        return None
    k = pairs[rng.integers(len(pairs))]
    order = [*range(k), k + 1, k, *range(k + 2, len(plan.steps))]
    about = f"steps {plan.steps[k].name} and {plan.steps[k + 1].name} are swapped"
    return "steps swapped", about, replace(plan, steps=tuple(plan.steps[n] for n in order)), tuple(order)


def _around(plan: Plan, step: int) -> list[tuple[int, int]]:
    """What of loops and control flow is around a step."""
    spans = [(loop.first, loop.first + loop.length) for loop in plan.loops]
    for control in plan.control:
        spans.append((control.first, control.end))
        if isinstance(control, Branch):
            spans += [(control.first, control.middle), (control.middle, control.end)]
    return [(first, end) for first, end in spans if first <= step < end]


def _shortened_step(plan: Plan, rng: np.random.Generator) -> Drawn:
    shared = [k for k, step in enumerate(plan.steps) if step.extent > 1]
    if not shared:
        return None
    k = shared[rng.integers(len(shared))]
    step = plan.steps[k]
    about = f"step {step.name} runs {step.extent - 1} of {step.extent} iterations"
    return "last iteration skipped", about, *_with_step(plan, k, replace(step, extent=step.extent - 1))


def _skipped_step(plan: Plan, rng: np.random.Generator) -> Drawn:
    if plan.loops or plan.control:  # which say by their numbers what they are over
        return None
    k = int(rng.integers(len(plan.steps)))
    order = (*range(k), *range(k + 1, len(plan.steps)))
    steps = tuple(plan.steps[n] for n in order)
    return "step skipped", f"step {plan.steps[k].name} is left out", replace(plan, steps=steps), order


def _moved_argument(plan: Plan, rng: np.random.Generator) -> Drawn:
    k = int(rng.integers(len(plan.steps)))
    step = plan.steps[k]
    number, by = int(rng.integers(len(step.arguments))), int(rng.choice(MOVED_BYTES))
    argument = replace(step.arguments[number], offset=step.arguments[number].offset + by)
    arguments = (*step.arguments[:number], argument, *step.arguments[number + 1 :])
    about = f"argument {number} of step {step.name} lies {by:+d} bytes further"
    return "argument moved", about, *_with_step(plan, k, replace(step, arguments=arguments))


def _wrong_repetition(plan: Plan, rng: np.random.Generator) -> Drawn:
    """A loop or control flow that goes on otherwise than it should."""
    wrong = list(_repetitions(plan))
    if not wrong:
        return None
    about, changed = wrong[rng.integers(len(wrong))]
    return "loop", about, changed, tuple(range(len(plan.steps)))


def _repetitions(plan: Plan) -> Iterator[tuple[str, Plan]]:
    for n, loop in enumerate(plan.loops):
        fewer = (*plan.loops[:n], replace(loop, count=loop.count - 1), *plan.loops[n + 1 :])
        yield f"the loop at step {loop.first} runs {loop.count - 1} of {loop.count} times", replace(plan, loops=fewer)
        for k in range(loop.first, loop.first + loop.length):
            for number, argument in enumerate(plan.steps[k].arguments):
                if argument.stride:
                    yield _stopped(plan, k, number, argument)
    for n, control in enumerate(plan.control):
        for about, wrong in _of_repeat(control) if isinstance(control, Repeat) else _of_branch(control):
            yield f"{control.name!r} {about}", replace(plan, control=(*plan.control[:n], wrong, *plan.control[n + 1 :]))


def _stopped(plan: Plan, step: int, number: int, argument: Argument) -> tuple[str, Plan]:
    before = plan.steps[step]
    arguments = (*before.arguments[:number], replace(argument, stride=0), *before.arguments[number + 1 :])
    about = f"argument {number} of step {before.name} does not move with iterations"
    return about, _with_step(plan, step, replace(before, arguments=arguments))[0]


def _of_repeat(repeat: Repeat) -> Iterator[tuple[str, Repeat]]:
    yield "runs twice at most", replace(repeat, limit=2)
    yield "does not ask how often it is to run", replace(repeat, count=None, limit=max(repeat.limit, 3))
    if repeat.go is not None:
        yield "does not ask whether to go on", replace(repeat, go=None)
    for n, moving in enumerate(repeat.moving):
        still = (*repeat.moving[:n], replace(moving, bytes=0), *repeat.moving[n + 1 :])
        yield f"does not move in slot {moving.slot}", replace(repeat, moving=still)
    for n, carried in enumerate(repeat.carried):
        for about, wrong in (
            ("begins with its spare place", replace(carried, start=carried.spare)),
            ("has one place for what it reads and writes", replace(carried, spare=carried.result)),
        ):
            yield (
                f"{about} (slot {carried.read})",
                replace(repeat, carried=(*repeat.carried[:n], wrong, *repeat.carried[n + 1 :])),
            )


def _of_branch(branch: Branch) -> Iterator[tuple[str, Branch]]:
    if branch.first < branch.middle:
        yield "leaves out the last step where its condition holds", replace(branch, middle=branch.middle - 1)
    if branch.middle < branch.end:
        yield "runs one step more where its condition holds", replace(branch, middle=branch.middle + 1)


PLAN_EDITS: Sequence[Callable[[Plan, np.random.Generator], Drawn]] = (
    _swapped_steps,
    _shortened_step,
    _skipped_step,
    _moved_argument,
    _wrong_repetition,
)
