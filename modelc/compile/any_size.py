"""One package for every size of its inputs: which dimensions are free, at which sizes the model is looked at, and one
Program for all sizes out of those at some.

A model is imported, simplified and cut into Tasks at a few concrete sizes, the samples, and what differs from one to
the next is explained (ir/explain.py): no operator needs a second form. That it holds at other sizes is for
verification to say.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.compile.caches import runs_in_order
from modelc.compile.opened import Open
from modelc.errors import ModelError
from modelc.frontend.load.outline import read_outline
from modelc.frontend.steering.specialise import declared_shapes, dimension_names
from modelc.ir.block import compact_strides
from modelc.ir.explain import Explained, Unexplained
from modelc.ir.expr import Size
from modelc.ir.generalise import generalised
from modelc.ir.program import BoundTask, Placed, Program
from modelc.ir.sizes import Sizes, at, is_sized, most, sized, sizes_of
from modelc.ops.found import ROOM
from modelc.package.runs import mattering, said_mattering
from modelc.package.spec import FreeSize
from modelc.runtime.library import FOUND

Array = NDArray[Any]
MOST_SIZES = 16  # MC_MOST_SIZES in modelc_runtime.h
RESIDUES, STRIDE = 17, 5  # sizes one after the other at which Tasks are looked at; of a second Size every fifth
ENOUGH = 3  # numbers of a size that say what it is like at all
FAR = 1.9  # times the usual size, from which on a sample is far
LEAST_FOUND = 8  # of the most that is found: of less, samples would be too near each other
LESS = 0.25  # how much a size counts that is none of those that matter most, or at which little time goes by
AROUND = (1, 6)  # other samples lie so far from the usual size, at a third more, and at about twice of it


@dataclass(frozen=True)
class AnySize:
    """The free dimensions of a model's inputs by name, `free` as the package has them, and the `samples`: sizes that
    the model is looked at, the usual ones first. `pinned` are numbers that are known at more of them."""

    names: tuple[str, ...]
    free: tuple[FreeSize, ...]
    samples: tuple[Sizes, ...]
    limits: Mapping[str, int] = field(default_factory=dict)  # of what is found the most in a run, in order
    pinned: tuple[int, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        """`batch 1..32, height 32..640 in steps of 32, with schedules for batch=8, height=160`, and of which others."""
        named = [replace(s, name=name) for name, s in self.given.items()]
        bounds = ", ".join(
            f"{s.name} {s.least * s.unit}..{s.most * s.unit}" + f" in steps of {s.unit}" * (s.unit > 1) for s in named
        )
        extremes = "" if self.mattering else ", small and large sizes"
        return f"{bounds}, with schedules for {said_mattering(named)}{extremes}"

    @property
    def given(self) -> dict[str, FreeSize]:
        """The sizes that no run finds, by the model's names for them."""
        pairs = zip(self.names, self.free, strict=True)
        return {name: size for name, size in pairs if not size.is_found}

    @property
    def found(self) -> tuple[FreeSize, ...]:
        """The sizes that a run finds."""
        return tuple(size for size in self.free if size.is_found)

    def finding(self, name: str, most_at_samples: Sequence[int]) -> AnySize | None:
        """The same with one more size that a run finds, of which this is the most at each of the samples; at the usual
        one several rooms are looked at. None where there is too little room for that, or nobody knows how much."""
        try:
            limit = Explained(self.sizes, self.samples).number(tuple(most_at_samples))
        except Unexplained:
            return None
        least, taken = min(most_at_samples), {size.name for size in self.free}
        if least < LEAST_FOUND or name in taken or len(taken) == MOST_SIZES:
            return None
        count = FreeSize(name, ROOM, most(limit), 1, FOUND, -1)
        usual, *unusual = _samples([replace(count, most=least - 1)])  # where all is found nothing is cut off
        samples = (*({**run, **usual} for run in self.samples), *({**self.usual, **counts} for counts in unusual))
        return AnySize((*self.names, name), (*self.free, count), samples, {**self.limits, name: limit})

    def possible(self, runs: Iterable[Sizes]) -> tuple[Sizes, ...]:
        """The runs, in which no more is found than there can be."""
        possible = []
        for run in runs:
            for name, limit in self.limits.items():
                run = {**run, name: min(run[name], max(at(limit, run), ROOM))}
            possible.append(run)
        return tuple(possible)

    @cached_property
    def sizes(self) -> tuple[Size, ...]:
        return tuple(size.size for size in self.free)

    @cached_property
    def explained(self) -> Explained:
        """What is known of numbers at the samples."""
        return Explained.knowing(self.pinned, self.sizes, self.samples)

    @cached_property
    def explained_tasks(self) -> Explained:
        """The same of numbers in Tasks alone, of which more is seen: each residue by a vector's lanes."""
        samples = [*self.samples]
        first = {s.name: max(_least(s), min(self.usual[s.name], s.most - RESIDUES)) for s in self.free}
        for k in range(RESIDUES):  # each Size runs through its numbers in an order of its own
            steps = {size.name: k * pow(STRIDE, place) % RESIDUES for place, size in enumerate(self.free)}
            samples.append({s.name: min(first[s.name] + steps[s.name], s.most) for s in self.free})
        samples.append({size.name: size.most for size in self.free})
        return Explained.knowing(self.pinned, self.sizes, distinct(self.possible(samples)))

    @property
    def usual(self) -> Sizes:
        return self.samples[0]

    @property
    def largest(self) -> Sizes:
        """Sizes at which constants are longest: as if what is in a cache were new."""
        lengths = [size for size in self.free if size.is_length]
        longer = {s.name: length.most for length in lengths for s in sizes_of([length.growth])}
        most = {size.name: size.most + longer.get(size.name, 0) for size in self.free}
        return {**most, **{length.name: 0 for length in lengths}}

    def dims(self, run: Sizes) -> dict[str, int]:
        """What the model's dimensions are in a run."""
        return {name: size.unit * run[size.name] for name, size in self.given.items()}

    @classmethod
    def of_package(cls, free: Sequence[FreeSize]) -> AnySize:
        """The sizes of a package, whose model nobody knows."""
        return cls(tuple(size.name for size in free), tuple(free), tuple(_samples(free)))

    @property
    def opened(self) -> dict[str, Open]:
        """What the dimensions may be, by the model's names for them."""
        return {
            name: Open(range(s.least * s.unit, s.most * s.unit + 1, s.unit), tuple(n * s.unit for n in s.matter))
            for name, s in self.given.items()
        }

    @property
    def mattering(self) -> tuple[Sizes, ...]:
        """The runs that matter most, as a user said; none where nobody did."""
        return mattering(self.free)

    @property
    def weighed(self) -> tuple[tuple[Sizes, float], ...]:
        """The runs that count when a schedule is chosen, and how much: those that matter most, where a user has said
        which, and less a quarter of the most and the most; else both, and less small ones."""
        quarter = {s.name: replace(s, matter=()).usual for s in self.free}
        largest = {s.name: s.most for s in self.free}
        if self.mattering:
            runs = [(run, 1.0) for run in self.mattering] + [(run, LESS) for run in (quarter, largest)]
        else:
            small = {s.name: max(s.least, self.usual[s.name] // 4) for s in self.free}
            runs = [(self.usual, 1.0), (largest, 1.0), (small, LESS)]
        possible = zip(self.possible(run for run, _ in runs), (weight for _, weight in runs), strict=True)
        weights = dict[tuple[int, ...], tuple[Sizes, float]]()
        for run, weight in possible:
            weights.setdefault(tuple(run.values()), (run, weight))
        return tuple(weights.values())

    def compared(self) -> tuple[Sizes, ...]:
        """The sizes of inputs that a package is verified at; what is found is what the inputs say."""
        names = [size.name for size in self.free if not size.is_found]
        return distinct({name: run[name] for name in names} for run in self.checked())

    def checked(self) -> tuple[Sizes, ...]:
        """The sizes that schedules are verified at: others than the samples, where a range has enough of them; and
        those that matter. Where a cache grows, one run after the other."""
        if any(size.is_length for size in self.free):
            return tuple(runs_in_order(self.free))
        least = {size.name: size.least for size in self.free}
        odd = {s.name: min(s.most, max(s.least, 2 * self.usual[s.name] // 3 + 2 * k)) for k, s in enumerate(self.free)}
        near = {s.name: min(s.most, s.least + 6 + k) for k, s in enumerate(self.free)}
        corners = [{**least, s.name: s.most} for s in self.free]
        corners += [{s.name: s.most for s in self.free}] * bool(self.limits)
        usual = () if any(map(self.is_no_sample, self.mattering)) else (odd,)
        return distinct(self.possible((*usual, least, near, *corners, *self.mattering)))

    def is_no_sample(self, run: Sizes) -> bool:
        """Whether each size of a run is above 1, at which models are otherwise, and that of no sample."""
        return all(run[name] > 1 and all(run[name] != sample[name] for sample in self.samples) for name in self.usual)


def distinct(runs: Iterable[Sizes]) -> tuple[Sizes, ...]:
    """The runs, each once."""
    return tuple({tuple(run.values()): run for run in runs}.values())


def any_size(
    model: Path, ranges: Mapping[str, Open], constants: Collection[str] = (), states: Collection[str] = ()
) -> AnySize:
    """The free dimensions `ranges` of a model, of whose inputs the package has those that are neither `constants` nor
    `states`. What a state alone has is the length of a cache that grows. Raises ModelError."""
    every = declared_shapes(read_outline(model).graph)
    declared = {n: dims for n, dims in every.items() if n not in {*constants, *states}}
    own = [name for name in dimension_names(every) if name in ranges]  # choices keep no order
    ranges = {name: ranges[name] for name in dict.fromkeys((*own, *ranges))}
    if len(ranges) > MOST_SIZES:
        raise ModelError(f"{len(ranges)} dimensions are open; at most {MOST_SIZES} are possible: fix some with --dim")
    free, taken = [], set[str]()
    for name, numbers in ranges.items():
        places = [
            (number, axis)
            for number, dims in enumerate(declared.values())
            for axis, dim in enumerate(dims or ())
            if dim == name
        ]
        unit, least = numbers.numbers.step, 1
        if not places and any(name in (every[state] or ()) for state in states):
            places, least = [(-1, -1)], 0
        if not places:
            names = list(dict.fromkeys(d for dims in declared.values() for d in dims or () if isinstance(d, str)))
            raise ModelError(
                f"--dim {name}={numbers}: no input that the package takes has this dimension by itself; their "
                f"free dimensions are {', '.join(map(repr, names)) or 'none'}"
            )
        if not len(numbers) or numbers[0] < least or (not least and (unit > 1 or numbers[0])):
            expected = "sizes from 1 on" if least else "lengths of a cache from 0 on in steps of 1"
            raise ModelError(f"--dim {name}={numbers}: expected {expected}, the least before the most")
        if numbers[0] % unit:
            raise ModelError(
                f"--dim {name}={numbers}: sizes in steps of {unit} are its multiples; expected a least one "
                f"that is, such as {numbers[0] + -numbers[0] % unit}"
            )
        label = _identifier(name, taken)
        taken.add(label)
        matter = tuple(n // unit for n in numbers.matter)
        free.append(FreeSize(label, numbers[0] // unit, numbers[-1] // unit, unit, *places[0], matter))
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
        samples.append({name: numbers[min(1, len(numbers) - 1)] for name, numbers in others.items()})
    return samples


def _least(size: FreeSize) -> int:
    """The least number of a sample: not 1, where there is another."""
    return max(size.least, min(2, size.most))


def _others(size: FreeSize) -> list[int]:
    """The usual number of a size, and others: not 1, where there is another, for models treat it otherwise; and none
    that tiles divide."""
    least = _least(size)
    at = max(least, size.usual)
    if size.matter and at + AROUND[-1] > size.most:  # none above it: below
        at = max(least, size.most - AROUND[-1])
        while at > least and (at % 2 == 0 or at % 3 == 0):
            at -= 1
    at = _undivided(at, size.most)
    others = [*(at + step for step in AROUND), at + at // 3 + 1, 2 * at + 3]
    others += [at - at // 3 - 1, at - at // 2] if others[2] > size.most and size.matter else []
    others += [_undivided(max(least, size.most // 4), size.most)] if size.matter else []  # the model is otherwise there
    others += [size.most, least] if least > size.most // 2 else []  # what is constant between may not be at the ends
    numbers = [n for n in (at, *others) if least <= n <= size.most]
    if len(numbers) < 3:
        numbers += [n for n in range(least, min(size.most, least + 3) + 1) if n not in numbers]
    if len(numbers) < 2 and size.least < least:
        numbers.append(size.least)
    return list(dict.fromkeys(numbers))


def _undivided(number: int, most: int) -> int:
    """The next number that neither 2 nor 3 divides, as far as there is one."""
    while number + 1 <= most and (number % 2 == 0 or number % 3 == 0):
        number += 1
    return number


# --- one Program ------------------------------------------------------------------------------------------------------


def generalised_program(samples: Sequence[Program], largest: Program | None, open_sizes: AnySize) -> Program:
    """The Programs at the samples as one. Constants that are longer at larger sizes are the beginning of what they are
    in the `largest`, or what is there from a cache's length on. Raises ModelError, with the place where they are no
    such thing."""
    general, places = _general(samples, open_sizes)
    lengths = [size for size in open_sizes.free if size.is_length]
    starts: Starts = [(0, (0,) * len(places))]
    starts += [(sized(s.size), tuple(open_sizes.samples[k][s.name] for k in places)) for s in lengths]
    return _with_constants(general, [samples[k] for k in places], largest, starts)


Starts = list[tuple[int, tuple[int, ...]]]  # where a part of a constant may begin: in every run, and in the samples


def _with_constants(general: Program, samples: Sequence[Program], largest: Program | None, starts: Starts) -> Program:
    """The general Program with the constants of the samples, in its bodies too."""
    values, constants = {**general.values}, dict[str, Array]()
    strided = set[str]()
    taken = {name for bound in general.tasks if bound.bodies for name in bound.inputs}
    for name, data in samples[0].constants.items():
        each = [sample.constants[name] for sample in samples]
        if all(x is data or _same(x, data) for x in each):
            constants[name] = data
            continue
        own = starts if name not in taken else starts[:1]
        constants[name], strides, offset = _part(name, values[name].shape, each, largest, name not in taken, own)
        values[name] = replace(values[name], strides=strides, offset=offset)
        strided.add(name)
    tasks = [_with_strides(bound, values, strided) for bound in general.tasks]
    of_largest = {bound.task.name: bound.bodies for bound in largest.tasks} if largest is not None else {}
    for k, bound in enumerate(tasks):
        if bound.bodies:
            in_samples = zip(*(sample.tasks[k].bodies for sample in samples), strict=True)
            at_most = of_largest.get(bound.task.name, (None,) * len(bound.bodies))
            inner = zip(bound.bodies, in_samples, at_most, strict=True)
            tasks[k] = replace(bound, bodies=tuple(_with_constants(*bodies, starts) for bodies in inner))
    return replace(general, values=values, constants=constants, tasks=tuple(tasks))


def _part(
    name: str,
    shape: tuple[int, ...],
    each: Sequence[Array],
    largest: Program | None,
    once_where_same: bool,
    starts: Starts,
) -> tuple[Array, tuple[int, ...], int]:
    """What is stored of a constant that depends on sizes, the strides by which it is read, and from which element on:
    along a dimension in which it is everywhere the same once, along others for the most (`once_where_same`; control
    flow takes what is in one piece). Raises ModelError for one that is no part of it, NeedsLargest where it is not
    known."""
    free = [axis for axis, n in enumerate(shape) if is_sized(n)]
    same = [
        axis
        for axis in free
        if once_where_same and all(_same(x, np.repeat(x[_first(axis)], x.shape[axis], axis)) for x in each)
    ]
    once = [x[tuple(slice(1) if axis in same else slice(None) for axis in range(x.ndim))] for x in each]
    moving = [axis for axis in range(len(shape)) if axis not in same and (axis in free or len(starts) > 1)]
    if {*free} == {*same} and all(_same(x, once[0]) for x in once):
        whole = once[0]
    elif largest is None:
        raise NeedsLargest
    else:
        there = largest.constants.get(name, each[0][:0])
        whole = there[tuple(slice(1) if axis in same else slice(None) for axis in range(there.ndim))]
    strides, rows = compact_strides(whole.shape), range(len(once))
    for chosen in product(starts, repeat=len(moving)):
        begin = [dict(zip(moving, (start[k] for _, start in chosen), strict=True)) for k in rows]
        if all(map(partial(_is_part, whole), once, begin)):
            offset = sum(strides[axis] * start for axis, (start, _) in zip(moving, chosen, strict=True))
            return (
                np.ascontiguousarray(whole),
                tuple(0 if axis in same else s for axis, s in enumerate(strides)),
                offset,
            )
    raise ModelError(
        f"the constant {name!r} depends on sizes otherwise than by its length: expected it to be the beginning of "
        "one for the largest size, or what is there behind a cache; fix dimensions with --dim"
    )


def _is_part(whole: Array, part: Array, begin: Mapping[int, int]) -> bool:
    """Whether an array is what is in the whole from the places `begin` on."""
    if part.ndim != whole.ndim or not part.size:
        return False
    region = tuple(slice(begin.get(axis, 0), begin.get(axis, 0) + n) for axis, n in enumerate(part.shape))
    return _same(part, whole[region])


def _same(a: Array, b: Array) -> bool:
    """Bit for bit: NaNs too."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    ours, theirs = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return np.array_equal(ours, theirs)


def _first(axis: int) -> tuple[slice, ...]:
    return (slice(None),) * axis + (slice(1),)


def _general(samples: Sequence[Program], open_sizes: AnySize) -> tuple[Program, Sequence[int]]:
    """The Program without constants, and the numbers of the samples that say it: where one that is far from the usual
    sizes is cut into other Tasks, as costs less there, the others do; or those alone that are cut as the usual one is,
    where these are enough of each size."""
    plain = [*map(_without_data, samples)]
    usual = open_sizes.usual
    near = [
        k
        for k, run in enumerate(open_sizes.samples)
        if all(n < FAR * usual[s] and usual[s] < FAR * n for s, n in run.items())
    ]
    sentence = ""
    names = [{*program.values} for program in plain]
    alike = [k for k in range(len(samples)) if names[k] == names[0]]
    numbers = [{open_sizes.samples[k][size.name] for k in alike} for size in open_sizes.sizes]
    enough = all(len(of_one) >= ENOUGH for of_one in numbers)
    for places in (range(len(samples)), near, alike if enough else []):
        try:
            if places:
                return generalised([plain[k] for k in places], open_sizes.explained.of(places)), places
        except Unexplained as wrong:
            sentence = sentence or str(wrong)
    raise ModelError(
        f"what the model computes cannot be said for every size of its inputs: {sentence}; give a dimension a "
        "number, or a range in which one rule holds, with --dim NAME=A..B"
    )


def _without_data(program: Program) -> Program:
    tasks = (replace(b, bodies=tuple(map(_without_data, b.bodies))) if b.bodies else b for b in program.tasks)
    return replace(program, constants=dict.fromkeys(program.constants, _NO_DATA), tasks=tuple(tasks))


_NO_DATA = np.zeros(0)  # of constants, which are compared by their names


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
