"""One stored form of a constant for all kernels that read it, where that costs next to nothing.

Each Task's schedule says how its constants are packed, and a package stores a constant once for each form that some
kernel reads it in. Tasks that read the same constants (those of several variants do, and of one where weights are
tied) may take schedules that are not quite their best, so that they read one form: of the forms that the most of them
can read, the one in which all together take the least. No Program becomes slower by more than SHARE of the seconds that
it is estimated to take; a Task that would lose more keeps a form of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Block, Task
from modelc.ir.candidate import Candidate
from modelc.ir.narrow import Narrow, narrow_of
from modelc.ir.program import BoundTask, Program
from modelc.space.choose import Schedule, Schedules
from modelc.space.opening import stored_bytes
from modelc.space.rules.derivation import derive, rules

SHARE = 0.02  # of a Program's seconds, for all constants together
LEAST_BYTES = 1 << 14  # of a constant: what is smaller may be stored as often as it likes
MOST_SLOWER = 0.25  # of a Task's own seconds: schedules beyond are not looked at

Form = tuple[str, ...]  # what tells one stored form of a constant from another
Forms = frozenset[tuple[int, Form]]  # of what a Task reads, by the number of the place
Offers = dict[Forms, tuple[Schedule | None, float]]  # schedules (None: as it is), and how many seconds they lose


@dataclass(frozen=True)
class SharedPacking:
    """What came of it: so many `constants` that would have been stored in several forms are stored in one, which are
    `saved_bytes` less; `several_bytes` are still stored beside another form of the same. `slower` says by which part of
    its seconds each Program is estimated to be slower; `schedules` are those of Tasks that are not scheduled as they
    would be by themselves."""

    constants: int = 0
    saved_bytes: int = 0
    several_bytes: int = 0
    slower: tuple[float, ...] = ()
    schedules: Mapping[str, Schedule] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "constants": self.constants,
            "saved_bytes": self.saved_bytes,
            "several_bytes": self.several_bytes,
            "slower": [round(part, 5) for part in self.slower],
        }


@dataclass(frozen=True)
class Reader:
    """A Task and the constants that it reads: the numbers of those for each of its buffers, in all its calls; and how
    often each Program runs it."""

    task: Task
    reads: Mapping[str, tuple[int, ...]]
    calls: Mapping[int, int]


@dataclass
class Constants:
    """The large constants of Programs, by number; those that hold the same are one."""

    bytes: list[int] = field(default_factory=list)
    data: list[NDArray[Any]] = field(default_factory=list)
    _narrow: dict[int, Narrow | None] = field(default_factory=dict)
    _stored: dict[tuple[Any, ...], list[tuple[NDArray[Any], int]]] = field(default_factory=dict)

    def narrow_bytes(self, number: int, size: int) -> int:
        """What a constant in a form of `size` bytes takes where opening makes it of fewer bits, if these hold it."""
        if number not in self._narrow:
            self._narrow[number] = narrow_of(self.data[number])
        narrow = self._narrow[number]
        if narrow is None:
            return size
        return size // narrow.factors.itemsize * narrow.numbers.itemsize + narrow.factors.nbytes

    def number(self, key: tuple[Any, ...], data: NDArray[Any]) -> int:
        """Of a constant called `key`."""
        stored = self._stored.setdefault((*key, data.dtype, data.shape), [])
        for other, number in stored:
            if other is data or np.array_equal(other.view(np.uint8), data.view(np.uint8)):
                return number
        stored.append((data, len(self.bytes)))
        self.bytes.append(data.nbytes)
        self.data.append(data)
        return stored[-1][1]


def shared_packing_of(
    programs: Sequence[Program],
    schedules: Schedules,
    given: Mapping[str, Candidate],
    preferred: Mapping[str, Schedule],
) -> SharedPacking:
    """How the Tasks of `programs`, which make one package, agree; those that have a `given` Candidate, by their hash,
    keep it; of others some have a `preferred` schedule before."""
    constants = Constants()
    readers = readers_of(programs, constants)
    places = _places(readers)
    now = {key: current(reader, schedules, given, preferred)[0] for key, reader in readers.items()}
    own = {key: _by_place(reader, now[key], places[key]) for key, reader in readers.items()}
    groups = _groups(readers, places, own)
    if not groups:
        return SharedPacking()
    total = [seconds_of(program, schedules) for program in programs]
    left = [SHARE * seconds for seconds in total]
    taken = dict(own)
    changed: dict[str, Schedule] = {}
    for group in groups:
        offers = {key: _offers(readers[key], schedules, places[key]) for key in group if key not in given}
        offers |= {key: {own[key]: (None, 0.0)} for key in group if key in given}
        chosen = {key: forms for forms, keys in _assigned(readers, group, offers, left) for key in keys}
        stored = {*chosen.values()}
        for key, forms in chosen.items():
            schedule, slower = offers[key][forms]
            if schedule is not None and own[key] not in stored:  # or nothing is saved by it
                taken[key], changed[key] = forms, schedule
                for program, calls in readers[key].calls.items():
                    left[program] -= calls * slower
    lost = [SHARE - seconds_left / seconds for seconds_left, seconds in zip(left, total, strict=True)]
    return _summary(readers, constants, places, (own, taken), changed, lost)


def readers_of(programs: Sequence[Program], constants: Constants, least: int = LEAST_BYTES) -> dict[str, Reader]:
    """The Tasks of Blocks that read constants of at least so many bytes, by their hash."""
    tasks: dict[str, Task] = {}
    reads: dict[str, dict[str, dict[int, None]]] = {}
    calls: dict[str, Counter[int]] = {}
    for number, program in enumerate(programs):
        for inner in program.every_program:
            for bound in (b for b in inner.tasks if not b.bodies and all(isinstance(x, Block) for x in b.task.blocks)):
                key = bound.task.hash
                for buffer, constant in _constants_of(bound, inner, constants, least):
                    reads.setdefault(key, {}).setdefault(buffer, {})[constant] = None
                if key in reads:
                    tasks.setdefault(key, bound.task.canonical())
                    calls.setdefault(key, Counter())[number] += 1
    return {
        key: Reader(task, {name: tuple(numbers) for name, numbers in reads[key].items()}, calls[key])
        for key, task in tasks.items()
    }


def _constants_of(bound: BoundTask, program: Program, constants: Constants, least: int) -> Iterator[tuple[str, int]]:
    """The canonical buffers of a Task that are packed constants, with the numbers of these."""
    canonical = bound.task.canonical()
    for own, buffer in zip(bound.task.buffers, canonical.buffers, strict=True):
        placed = program.values.get(bound.values.get(own.name, ""))
        if placed is None or placed.root not in program.constants or placed.strides is not None:
            continue
        data = program.constants[placed.root]
        if data.nbytes >= least:
            yield buffer.name, constants.number((placed.root, placed.offset, placed.elements), data)


def _places(readers: Mapping[str, Reader]) -> dict[str, dict[str, int]]:
    """For each Task the place of each of its constant buffers. Buffers that stand for the same constant somewhere, in
    any of their calls, are of one place: their forms have to be the same for the constant to be stored once."""
    first: dict[int, int] = {}

    def root(number: int) -> int:
        while first.setdefault(number, number) != number:
            number = first[number]
        return number

    for reader in readers.values():
        for numbers in reader.reads.values():
            for number in numbers[1:]:
                first[root(number)] = root(numbers[0])
    return {key: {name: root(numbers[0]) for name, numbers in reader.reads.items()} for key, reader in readers.items()}


def forms_of(reader: Reader, candidate: Candidate, opened: bool = False) -> Iterator[tuple[str, Form, int]]:
    """The constant buffers of a Task, the form in which a Candidate reads each, and its bytes in a package, which may
    be `opened` from parts."""
    rule_of, derived = rules(), derive(reader.task, candidate.stages)
    anew = [str(stage) for stage in candidate.stages if rule_of[stage.rule].constant is not None]
    for name in reader.reads:
        buffer = derived.buffer(name)
        layout = candidate.layouts.get(name, buffer.layout)
        changed = anew if buffer.shape != reader.task.buffer(name).shape else []
        size = stored_bytes(reader.task, candidate, derived, name, opened)
        yield name, (str(layout), str(buffer.shape), *changed), size


def current(
    reader: Reader,
    schedules: Schedules,
    given: Mapping[str, Candidate],
    preferred: Mapping[str, Schedule],
) -> tuple[Candidate, float]:
    """The schedule of a Task as things are, and what it takes: a `given` one, a `preferred` one, or its own."""
    key = reader.task.hash
    schedule = preferred.get(key, schedules.ranked(reader.task)[0])
    return given.get(key, schedule.candidate), schedule.seconds


def _by_place(reader: Reader, candidate: Candidate, places: Mapping[str, int]) -> Forms:
    return frozenset((places[name], form) for name, form, _ in forms_of(reader, candidate))


def _offers(reader: Reader, schedules: Schedules, places: Mapping[str, int]) -> Offers:
    """The forms that a Task can read: for each the best schedule, and by how many seconds it is slower than the best
    one."""
    best, offers = schedules.ranked(reader.task)[0], Offers()
    for schedule in schedules.near(reader.task, (1 + MOST_SLOWER) * best.seconds):
        forms = _by_place(reader, schedule.candidate, places)
        offers.setdefault(forms, (schedule, max(0.0, schedule.seconds - best.seconds)))
    return offers


def _groups(
    readers: Mapping[str, Reader], places: Mapping[str, Mapping[str, int]], own: Mapping[str, Forms]
) -> list[list[str]]:
    """Tasks that read constants of the same places in different forms, those of the largest constants first."""
    groups: dict[frozenset[int], list[str]] = {}
    for key in readers:
        groups.setdefault(frozenset(places[key].values()), []).append(key)
    return [keys for _, keys in groups.items() if len({own[key] for key in keys}) > 1]


def seconds_of(program: Program, schedules: Schedules) -> float:
    """Of the Tasks of a Program that are made of Blocks."""
    tasks = [bound.task for bound in program.kernels if all(isinstance(b, Block) for b in bound.task.blocks)]
    schedules.prepare(tasks, True)
    return sum(map(schedules.seconds, tasks))


def _assigned(
    readers: Mapping[str, Reader],
    group: Sequence[str],
    offers: Mapping[str, Offers],
    left: Sequence[float],
) -> Iterator[tuple[Forms, list[str]]]:
    """Forms and the Tasks of a group that read them: always those that the most of the rest can read within the seconds
    that are `left` to each Program, of several such the ones in which they take the least."""
    remaining, budget = list(group), list(left)
    while remaining:
        choices: list[tuple[int, float, int, Forms, list[str], list[float]]] = []
        for forms in dict.fromkeys(f for key in remaining for f in offers[key]):
            able, spent, room = list[str](), 0.0, list(budget)
            for key in sorted((k for k in remaining if forms in offers[k]), key=lambda k: offers[k][forms][1]):
                slower = {p: calls * offers[key][forms][1] for p, calls in readers[key].calls.items()}
                if all(room[p] >= more for p, more in slower.items()):
                    able.append(key)
                    spent += sum(slower.values())
                    for p, more in slower.items():
                        room[p] -= more
            choices.append((-len(able), spent, len(choices), forms, able, room))
        _, _, _, forms, able, budget = min(choices)
        yield forms, able
        remaining = [key for key in remaining if key not in able]


def _summary(
    readers: Mapping[str, Reader],
    constants: Constants,
    places: Mapping[str, Mapping[str, int]],
    forms: tuple[Mapping[str, Forms], Mapping[str, Forms]],
    schedules: Mapping[str, Schedule],
    slower: Iterable[float],
) -> SharedPacking:
    """What is stored in how many forms before and after."""
    stored = []
    for by_task in forms:
        of: dict[int, set[Form]] = {}
        for key, reader in readers.items():
            by_place = dict(by_task[key])
            for name, numbers in reader.reads.items():
                for number in numbers:
                    of.setdefault(number, set()).add(by_place[places[key][name]])
        stored.append(of)
    before, after = stored
    once = [n for n in before if len(before[n]) > 1 and len(after[n]) == 1]
    saved = sum(constants.bytes[n] * (len(before[n]) - len(after[n])) for n in before)
    several = sum(constants.bytes[n] * (len(distinct) - 1) for n, distinct in after.items())
    return SharedPacking(len(once), saved, several, tuple(slower), schedules)
