"""How large constants become as kernels read them, and schedules that keep them within a limit.

Winograd's and Strassen's rules store sums of weights, 36/9 and 7/4 of them; padding to whole vectors and a second form
for another kernel store more too. In networks that are small that is most of a package. A package may store the weights
instead, and make the sums when it is opened (opening.py). Where a limit would be broken all the same, Tasks take
schedules that store less: always the one next that loses the fewest seconds for the bytes that it saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain
from math import inf
from typing import Any

from modelc.ir.candidate import Candidate
from modelc.ir.program import Program
from modelc.space.choose import Schedule, Schedules
from modelc.space.rules.derivation import rules
from modelc.space.shared_packing import (
    LEAST_BYTES,
    Constants,
    Form,
    Reader,
    current,
    forms_of,
    readers_of,
    seconds_of,
)

# Where nobody says a limit:
GROWTH = 1.2  # of the model's file, for a package's parameters
GROWTH_LOST = 0.1  # of a Program's seconds, at most, for that; beyond, MOST_GROWTH is the limit
MOST_GROWTH = 2.0  # of the model's constants, for what kernels read
MOST_LOST = 0.05  # of a Program's seconds, for that
ALIGNMENT = 64  # of every constant

Part = tuple[int, Form, int]  # a constant by number, the form that it is stored in, and its bytes
Stored = frozenset[Part]


@dataclass(frozen=True)
class Growth:
    """What the constants of a Task take in the model, and as its kernel reads them, and why."""

    task: str
    nodes: tuple[str, ...]
    model_bytes: int
    stored_bytes: int
    why: str


@dataclass(frozen=True)
class Room:
    """How large parameters may be: `most` bytes, as a user says; None: GROWTH times the model's `file`, in bytes.
    Whether sums of weights are made when the package is `opened`; None: where they would be larger than that."""

    file: int = 0
    most: int | None = None
    opened: bool | None = None


@dataclass(frozen=True)
class Within:
    """What came of a limit: constants of `model_bytes` are stored as `stored_bytes`, where sums of weights are made
    when the package is `opened` without these. `schedules` are those of Tasks that are scheduled otherwise for it,
    which makes each Program slower by a part `slower` of its seconds. `growth` is of each Task that stores more than
    the model has."""

    model_bytes: int = 0
    stored_bytes: int = 0
    opened: bool = False
    slower: tuple[float, ...] = ()
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    growth: tuple[Growth, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "model_bytes": self.model_bytes,
            "stored_bytes": self.stored_bytes,
            "opened": self.opened,
            "slower": [round(part, 5) for part in self.slower],
            "rescheduled": len(self.schedules),
            "growth": [asdict(row) for row in self.growth],
        }


def model_bytes(programs: Iterable[Program]) -> int:
    """Of the constants of Programs that make one package."""
    arrays = {id(a): a.nbytes for p in programs for part in p.every_program for a in part.constants.values()}
    return sum(map(_aligned, arrays.values()))


def kept_within(
    programs: Sequence[Program],
    schedules: Schedules,
    given: Mapping[str, Candidate],
    preferred: Mapping[str, Schedule],
    room: Room,
) -> Within:
    """Schedules with which the constants of `programs`, all of one package, take at most the bytes of `room`, or as few
    as schedules allow. Tasks with a `given` Candidate, by their hash, keep it; `preferred` schedules replace the
    constructed ones of their Tasks.

    The default limit is GROWTH times the model's file. A package that makes sums at opening may have MOST_GROWTH times
    it instead, where a Program would lose more than GROWTH_LOST of its seconds. By default kernels read at most
    MOST_GROWTH times the model's constants too, unless a Program would lose more than MOST_LOST."""
    kept = _Kept(programs, schedules, given, preferred, LEAST_BYTES if room.most is None else 0)
    size = room.file  # the default limits are times this
    limit = int(GROWTH * size) if room.most is None else room.most
    if room.most is None:
        kept.shrink(int(MOST_GROWTH * kept.model_bytes), MOST_LOST, every=False)
    if room.opened or (room.opened is None and kept.total > limit):
        kept.count(opened=True)
    if room.most is None and kept.least > limit:
        size = kept.least  # constants that the model computes are larger than its file
        limit = int(GROWTH * size)
    if room.most is None and kept.opened:
        kept.shrink(limit, GROWTH_LOST, every=True)
        limit = int(MOST_GROWTH * size)
    kept.shrink(limit, inf, every=True)
    return kept.within()


class _Kept:
    """The schedules of the Tasks that read constants, and what these constants take."""

    def __init__(
        self,
        programs: Sequence[Program],
        schedules: Schedules,
        given: Mapping[str, Candidate],
        preferred: Mapping[str, Schedule],
        least: int,
    ):
        self.programs, self.schedules, self.given = programs, schedules, given
        self.constants = Constants()
        self.readers = readers_of(programs, self.constants, least)
        self.model_bytes = model_bytes(programs)
        self.others = self.model_bytes - sum(map(_aligned, self.constants.bytes))  # which are stored as they are
        self.own = {key: current(reader, schedules, given, preferred) for key, reader in self.readers.items()}
        self.candidates = {key: candidate for key, (candidate, _) in self.own.items()}
        self.seconds = {key: seconds for key, (_, seconds) in self.own.items()}
        self.changed: dict[str, Schedule] = {}
        self.count(opened=False)

    def count(self, opened: bool) -> None:
        """From now on counts the bytes of the package, which makes sums of weights when it is `opened` or stores
        these."""
        self.opened = opened
        self.taken = {key: self._stored(self.readers[key], candidate) for key, candidate in self.candidates.items()}

    @property
    def total(self) -> int:
        return self.others + _bytes(self.taken.values())

    @property
    def least(self) -> int:
        """What constants take where each is stored once, and nothing is filled up."""
        numbers = {number for stored in self.taken.values() for number, _, _ in stored}
        sizes = {number: self.constants.bytes[number] for number in numbers}
        if self.opened:
            sizes = {number: self.constants.narrow_bytes(number, size) for number, size in sizes.items()}
        return self.others + sum(map(_aligned, sizes.values()))

    @cached_property
    def totals(self) -> list[float]:
        """The seconds of each Program."""
        return [seconds_of(program, self.schedules) for program in self.programs]

    def shrink(self, most: int, share: float, every: bool) -> None:
        """Takes schedules with which constants take at most so many bytes, as far as there are such, and no Program
        loses more than a `share` of its seconds. Schedules are looked for among the best; among `every` one that is
        constructed, which takes long, where these do not do."""
        left = [share * seconds for seconds in self.totals] if self.total > most else []
        for all_of_them in (False, True) if every else (False,):
            if self.total <= most:
                return
            plain = {key: self._plain(stored) for key, stored in self.taken.items()}
            growing = [key for key in self.readers if key not in self.given and _bytes([self.taken[key]]) > plain[key]]
            offers = {key: [*self._offers(key, all_of_them, left)] for key in growing}
            while self.total > most:
                move = self._best_move(offers, left)
                if move is None:
                    break
                key, self.taken[key], self.changed[key], slower = move
                self.seconds[key], self.candidates[key] = self.changed[key].seconds, self.changed[key].candidate
                for program, calls in self.readers[key].calls.items():
                    left[program] -= calls * slower

    def _best_move(
        self, offers: Mapping[str, list[tuple[Stored, Schedule]]], left: Sequence[float]
    ) -> tuple[str, Stored, Schedule, float] | None:
        """The Task and its schedule that lose the fewest seconds for a byte; None where nothing saves any."""
        best: tuple[float, str, Stored, Schedule, float] | None = None
        for key, listed in offers.items():
            calls_of = self.readers[key].calls
            others = set[Part]().union(*(stored for other, stored in self.taken.items() if other != key))
            now = _bytes([self.taken[key] - others])
            for stored, schedule in listed:
                saved = now - _bytes([stored - others])
                slower = max(0.0, schedule.seconds - self.seconds[key])
                if saved <= 0 or any(calls * slower > left[p] for p, calls in calls_of.items()):
                    continue
                cost = sum(calls_of.values()) * slower / saved
                if best is None or cost < best[0]:
                    best = (cost, key, stored, schedule, slower)
        return None if best is None else best[1:]

    def _offers(self, key: str, all_of_them: bool, left: Sequence[float]) -> Iterator[tuple[Stored, Schedule]]:
        """The fastest schedule of a Task for each set of stored forms, slower by no more seconds than each Program has
        `left`."""
        reader, best = self.readers[key], dict[Stored, Schedule]()
        most = self.seconds[key] + min(left[program] / calls for program, calls in reader.calls.items())
        schedules: Iterable[Schedule] = self.schedules.ranked(reader.task)
        if all_of_them:
            schedules = chain(self.schedules.near(reader.task, most), self.schedules.narrower(reader.task))
        for schedule in schedules:
            if schedule.seconds > most:
                continue
            stored = self._stored(reader, schedule.candidate)
            if stored not in best or schedule.seconds < best[stored].seconds:
                best[stored] = schedule
        yield from best.items()

    def _stored(self, reader: Reader, candidate: Candidate) -> Stored:
        parts = set[Part]()
        for name, form, size in forms_of(reader, candidate, self.opened):
            for number in reader.reads[name]:
                parts.add((number, form, _aligned(self.constants.narrow_bytes(number, size) if self.opened else size)))
        return frozenset(parts)

    def _plain(self, stored: Stored) -> int:
        """The bytes of the same constants in the model."""
        return sum(_aligned(self.constants.bytes[number]) for number in {number for number, _, _ in stored})

    def within(self) -> Within:
        """What came of it."""
        lost = [
            sum(r.calls.get(p, 0) * max(0.0, self.seconds[key] - self.own[key][1]) for key, r in self.readers.items())
            for p in range(len(self.programs))
        ]
        slower = tuple(seconds / all_ if all_ else 0.0 for seconds, all_ in zip(lost, self.totals, strict=True))
        return Within(self.model_bytes, self.total, self.opened, slower, self.changed, self._growth())

    def _growth(self) -> tuple[Growth, ...]:
        """Of each Task that stores more than its constants are, the largest first."""
        named = {bound.task.hash: bound.task for program in self.programs for bound in program.kernels}
        rows, rule_of = [], rules()
        for key, stored in self.taken.items():
            plain, size = self._plain(stored), _bytes([stored])
            if size <= plain:
                continue
            summed = [str(s.rule) for s in self.candidates[key].stages if rule_of[s.rule].constant is not None]
            why = f"sums of weights ({', '.join(summed)})" if summed else "filled up to whole vectors"
            rows.append(Growth(named[key].name, named[key].nodes, plain, size, why))
        return tuple(sorted(rows, key=lambda row: row.model_bytes - row.stored_bytes))


def _bytes(every: Iterable[Stored]) -> int:
    """Of what is stored, each form of a constant once."""
    return sum(size for _, _, size in set[Part]().union(*every))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
