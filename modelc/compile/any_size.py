"""One package for every size of its inputs: which dimensions are free, at which sizes the model is looked at, and one
Program for all sizes out of those at some.

A model is imported, simplified and cut into Tasks at a few concrete sizes, the samples, and what differs from one to
the next is explained (ir/explain.py): no operator needs a second form. That it holds at other sizes is for
verification to say.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from modelc.compile.options import flag_of
from modelc.errors import ModelError
from modelc.frontend.load.outline import read_outline
from modelc.frontend.steering.specialise import declared_shapes
from modelc.ir.block import compact_strides
from modelc.ir.explain import Explained, Unexplained
from modelc.ir.expr import Size
from modelc.ir.generalise import generalised
from modelc.ir.program import BoundTask, Placed, Program
from modelc.ir.sizes import Sizes, is_sized
from modelc.package.runs import ranges_of
from modelc.package.spec import FreeSize

RESIDUES = 17  # sizes one after the other at which Tasks are looked at
AROUND = (1, 6)  # other samples lie so far from the usual size, and at about twice of it


@dataclass(frozen=True)
class AnySize:
    """The free dimensions of a model's inputs by name, `free` as the package has them, and the `samples`: sizes that
    the model is looked at, the usual ones first."""

    names: tuple[str, ...]
    free: tuple[FreeSize, ...]
    samples: tuple[Sizes, ...]

    @cached_property
    def sizes(self) -> tuple[Size, ...]:
        return tuple(size.size for size in self.free)

    @cached_property
    def explained(self) -> Explained:
        """What is known of numbers at the samples."""
        return Explained(self.sizes, self.samples)

    @cached_property
    def explained_tasks(self) -> Explained:
        """The same of numbers in Tasks alone, of which more is seen: each residue by a vector's lanes."""
        samples = [*self.samples]
        for size in self.free:
            at = self.usual[size.name]
            samples += [{**self.usual, size.name: n} for n in range(at, min(at + RESIDUES, size.most) + 1)]
        samples.append(self.largest)
        distinct = {tuple(run.values()): run for run in samples}
        return Explained(self.sizes, tuple(distinct.values()))

    @property
    def usual(self) -> Sizes:
        return self.samples[0]

    @property
    def largest(self) -> Sizes:
        return {size.name: size.most for size in self.free}

    def dims(self, run: Sizes) -> dict[str, int]:
        """What the model's dimensions are in a run."""
        return {name: size.unit * run[size.name] for name, size in zip(self.names, self.free, strict=True)}

    @classmethod
    def of_package(cls, free: Sequence[FreeSize]) -> AnySize:
        """The sizes of a package, whose model nobody knows."""
        return cls(tuple(size.name for size in free), tuple(free), tuple(_samples(free)))

    @property
    def ranges(self) -> dict[str, range]:
        """What the dimensions may be, by the model's names for them."""
        return dict(zip(self.names, ranges_of(self.free).values(), strict=True))

    def checked(self) -> tuple[Sizes, ...]:
        """The sizes that a package is verified at: none of them is a sample."""
        least = {size.name: size.least for size in self.free}
        odd = {s.name: min(s.most, max(s.least, 2 * self.usual[s.name] // 3 + 2 * k)) for k, s in enumerate(self.free)}
        near = {s.name: min(s.most, s.least + 6 + k) for k, s in enumerate(self.free)}
        distinct = {tuple(run.values()): run for run in (odd, least, near, self.largest)}
        return tuple(distinct.values())


def any_size(model: Path, ranges: Mapping[str, range], kept: Collection[str] = ()) -> AnySize:
    """The free dimensions `ranges` of a model, of whose inputs the package has those that are not `kept`: constants and
    states. Raises ModelError."""
    declared = {n: dims for n, dims in declared_shapes(read_outline(model).graph).items() if n not in kept}
    free, taken = [], set[str]()
    for name, numbers in ranges.items():
        places = [
            (number, axis)
            for number, dims in enumerate(declared.values())
            for axis, dim in enumerate(dims or ())
            if dim == name
        ]
        if not places:
            known = list(dict.fromkeys(d for dims in declared.values() for d in dims or () if isinstance(d, str) and d))
            raise ModelError(
                f"--dim {name}={flag_of(numbers)}: no input that the package takes has this dimension by itself; their "
                f"free dimensions are {', '.join(map(repr, known)) or 'none'}"
            )
        unit = numbers.step
        if not len(numbers) or numbers[0] < 1:
            raise ModelError(f"--dim {name}={flag_of(numbers)}: expected sizes from 1 on, the least before the most")
        if numbers[0] % unit:
            raise ModelError(
                f"--dim {name}={flag_of(numbers)}: sizes in steps of {unit} are its multiples; expected a least one "
                f"that is, such as {numbers[0] + -numbers[0] % unit}"
            )
        label = _identifier(name, taken)
        taken.add(label)
        free.append(FreeSize(label, numbers[0] // unit, numbers[-1] // unit, unit, *places[0]))
    return AnySize(tuple(ranges), tuple(free), tuple(_samples(free)))


def _identifier(name: str, taken: set[str]) -> str:
    """The name of a dimension as one that expressions may have."""
    label = re.sub(r"\W", "_", name, flags=re.ASCII) or "size"
    label = f"_{label}" if label[0].isdigit() or keyword.iskeyword(label) else label
    while label in taken:
        label += "_"
    return label


def _samples(free: Sequence[FreeSize]) -> list[Sizes]:
    """The usual sizes, others in each size alone, and one in all."""
    others = {size.name: _others(size) for size in free}
    usual = {size.name: others[size.name].pop(0) for size in free}
    samples: list[Sizes] = [usual]
    samples += [{**usual, name: other} for name, numbers in others.items() for other in numbers]
    if len(free) > 1 and all(others.values()):
        samples.append({name: numbers[-1] for name, numbers in others.items()})
    return samples


def _others(size: FreeSize) -> list[int]:
    """The usual number of a size, and others: not 1, where there is another, for models treat it otherwise; and none
    that tiles divide."""
    least = max(size.least, min(2, size.most))
    at = max(least, size.most // 4)
    while at + 1 <= size.most and (at % 2 == 0 or at % 3 == 0):
        at += 1
    numbers = [n for n in (at, *(at + step for step in AROUND), 2 * at + 3) if least <= n <= size.most]
    if len(numbers) < 3:
        numbers += [n for n in range(least, min(size.most, least + 3) + 1) if n not in numbers]
    return list(dict.fromkeys(numbers))


# --- one Program ------------------------------------------------------------------------------------------------------


def generalised_program(samples: Sequence[Program], largest: Program | None, open_sizes: AnySize) -> Program:
    """The Programs at the samples as one. Constants that are longer at larger sizes are the beginning of what they are
    in the `largest`. Raises ModelError, with the place where they are no such thing."""
    try:
        general = generalised([replace(sample, constants={}) for sample in samples], open_sizes.explained)
    except Unexplained as wrong:
        raise ModelError(f"what the model computes cannot be said for every size of its inputs: {wrong}") from None
    values, constants = {**general.values}, dict(samples[0].constants)
    longer = set[str]()
    for name, data in samples[0].constants.items():
        each = [sample.constants[name] for sample in samples]
        if all(x is data or np.array_equal(x, data) for x in each) and all(x.shape == data.shape for x in each):
            continue
        if largest is None:
            raise NeedsLargest
        whole = largest.constants.get(name)
        fits = whole is not None and all(
            x.ndim == whole.ndim
            and all(n <= m for n, m in zip(x.shape, whole.shape, strict=True))
            and np.array_equal(x, whole[tuple(map(slice, x.shape))])
            for x in each
        )
        if not fits or whole is None or not any(map(is_sized, values[name].shape)):
            raise ModelError(
                f"the constant {name!r} depends on sizes otherwise than by its length: expected it to be the beginning "
                "of one for the largest size"
            )
        constants[name] = whole
        values[name] = replace(values[name], strides=compact_strides(whole.shape))
        longer.add(name)
    tasks = tuple(_with_strides(bound, values, longer) for bound in general.tasks) if longer else general.tasks
    return replace(general, values=values, constants=constants, tasks=tasks)


class NeedsLargest(Exception):
    """Some constant is longer at larger sizes."""


def _with_strides(bound: BoundTask, values: Mapping[str, Placed], longer: set[str]) -> BoundTask:
    """The Task over constants of which it reads the beginning."""
    strided = {b: values[v].strides for b, v in bound.values.items() if v in longer}
    if not strided:
        return bound
    buffers = tuple(replace(b, strides=strided[b.name]) if b.name in strided else b for b in bound.task.buffers)
    return replace(bound, task=replace(bound.task, buffers=buffers))


def program_at(program: Program, in_run: Program) -> Program:
    """`in_run`, the Program in a run without constants, with those of `program`, of which it may read the beginning."""
    return replace(in_run, constants=program.constants)
