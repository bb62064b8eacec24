"""How large constants become as kernels read them, and schedules that keep them within a limit.

Winograd's and Strassen's rules store sums of weights, 36/9 and 7/4 of them; padding to whole vectors and a second form
for another kernel store more too. In networks that are small that is most of a package. Where a limit would be broken,
Tasks take schedules that store less: always the one next that loses the fewest seconds for the bytes that it saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.ir.graph import Graph
from modelc.ir.program import Program
from modelc.space.choose import Schedule, Schedules
from modelc.space.rules.derivation import rules
from modelc.space.shared_packing import LEAST_BYTES, Constants, Form, Reader, current, forms_of, readers_of, seconds_of

MOST_GROWTH = 2.0  # of the model's constants, where nobody says a limit
QUANTIZED_GROWTH = 1.2  # of a quantized model's, which is made to be small
MOST_LOST = 0.05  # of a Program's seconds, for that
QUANTIZED_LOST = 0.02  # for the limit of a quantized model, which is made to be fast as well
ALIGNMENT = 64  # of every constant
ANY_SECONDS = 1e9  # times the best: every schedule that is constructed

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
class Within:
    """What came of a limit: constants of `model_bytes` are stored as `stored_bytes`. `schedules` are those of Tasks
    that are scheduled otherwise for it, which makes each Program slower by a part `slower` of its seconds.
    `growth` is of each Task that stores more than the model has."""

    model_bytes: int = 0
    stored_bytes: int = 0
    slower: tuple[float, ...] = ()
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    growth: tuple[Growth, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "model_bytes": self.model_bytes,
            "stored_bytes": self.stored_bytes,
            "slower": [round(part, 5) for part in self.slower],
            "rescheduled": len(self.schedules),
            "growth": [asdict(row) for row in self.growth],
        }


def model_bytes(programs: Iterable[Program]) -> int:
    """Of the constants of Programs that make one package."""
    arrays = {id(a): a.nbytes for p in programs for part in p.every_program for a in part.constants.values()}
    return sum(map(_aligned, arrays.values()))


def is_quantized(graph: Graph) -> bool:
    """Whether most of what a model's constants take is whole numbers of few bits."""
    arrays = {id(v.data): v.data for v in graph.values.values() if v.data is not None}.values()
    narrow = sum(a.nbytes for a in arrays if a.dtype.kind not in "fb" and a.dtype.itemsize == 1)
    return 2 * narrow > sum(a.nbytes for a in arrays)


def kept_within(
    programs: Sequence[Program],
    schedules: Schedules,
    given: Mapping[str, Candidate],
    preferred: Mapping[str, Schedule],
    limit: int | None,
    quantized: bool = False,
    widened: int = 0,
) -> Within:
    """Schedules with which the constants of `programs`, which make one package, take at most `limit` bytes, or as
    few as there are schedules for; without a limit at most MOST_GROWTH times the model's, as far as no Program becomes
    slower by more than MOST_LOST; QUANTIZED_GROWTH and QUANTIZED_LOST of a `quantized` model, whose constants have
    `widened` bytes more in float32, where they are multiplied so by price, than the model gives them. Tasks with a
    `given` Candidate, by their hash, keep it; `preferred` are the schedules of others that are not those which they get
    by themselves."""
    constants = Constants()
    readers = readers_of(programs, constants, LEAST_BYTES if limit is None else 0)
    every_byte = model_bytes(programs)
    plain = every_byte - widened
    small = every_byte - sum(map(_aligned, constants.bytes))  # of constants of which nothing is said: as they are
    own = {key: current(reader, schedules, given, preferred) for key, reader in readers.items()}
    candidates = {key: candidate for key, (candidate, _) in own.items()}
    taken = {key: _stored(readers[key], candidate) for key, candidate in candidates.items()}
    seconds = {key: seconds for key, (_, seconds) in own.items()}
    growth, lost_at_most = (QUANTIZED_GROWTH, QUANTIZED_LOST) if quantized else (MOST_GROWTH, MOST_LOST)
    most = (limit if limit is not None else int(growth * plain)) - small
    changed: dict[str, Schedule] = {}
    total = [seconds_of(program, schedules) for program in programs]
    left = [float("inf") if limit is not None else lost_at_most * all_ for all_ in total]
    for every in (False, True) if limit is not None else (False,):  # to construct every schedule takes long
        if _bytes(taken.values()) <= most:
            break
        growing = [key for key in readers if key not in given and _bytes([taken[key]]) > _plain(taken[key], constants)]
        offers = {key: list(_offers(readers[key], schedules, every)) for key in growing}
        while _bytes(taken.values()) > most:
            move = _best_move(readers, offers, taken, seconds, left)
            if move is None:
                break
            key, taken[key], changed[key] = move[:3]
            slower, seconds[key], candidates[key] = move[3], changed[key].seconds, changed[key].candidate
            for program, calls in readers[key].calls.items():
                left[program] -= calls * slower
    lost = [
        sum(r.calls.get(p, 0) * max(0.0, seconds[key] - own[key][1]) for key, r in readers.items())
        for p in range(len(programs))
    ]
    named = {bound.task.hash: bound.task for program in programs for bound in program.kernels}
    grown = _growth(named, constants, taken, candidates)
    parts = tuple(seconds / all_ if all_ else 0.0 for seconds, all_ in zip(lost, total, strict=True))
    return Within(plain, small + _bytes(taken.values()), parts, changed, grown)


def _best_move(
    readers: Mapping[str, Reader],
    offers: Mapping[str, list[tuple[Stored, Schedule]]],
    taken: Mapping[str, Stored],
    seconds: Mapping[str, float],
    left: Sequence[float],
) -> tuple[str, Stored, Schedule, float] | None:
    """The Task and its schedule that lose the fewest seconds for a byte; None where nothing saves any."""
    best: tuple[float, str, Stored, Schedule, float] | None = None
    for key, listed in offers.items():
        others = set[Part]().union(*(stored for other, stored in taken.items() if other != key))
        now = _bytes([taken[key] - others])
        for stored, schedule in listed:
            saved = now - _bytes([stored - others])
            slower = max(0.0, schedule.seconds - seconds[key])
            if saved <= 0 or any(calls * slower > left[p] for p, calls in readers[key].calls.items()):
                continue
            cost = sum(readers[key].calls.values()) * slower / saved
            if best is None or cost < best[0]:
                best = (cost, key, stored, schedule, slower)
    return None if best is None else best[1:]


def _offers(reader: Reader, schedules: Schedules, all_of_them: bool) -> Iterator[tuple[Stored, Schedule]]:
    """Schedules of a Task with what they store, for each such the fastest."""
    best: dict[Stored, Schedule] = {}
    every: Iterable[Schedule] = schedules.ranked(reader.task)
    if all_of_them:
        every = chain(schedules.near(reader.task, ANY_SECONDS), schedules.narrower(reader.task))
    for schedule in every:
        stored = _stored(reader, schedule.candidate)
        if stored not in best or schedule.seconds < best[stored].seconds:
            best[stored] = schedule
    yield from best.items()


def _stored(reader: Reader, candidate: Candidate) -> Stored:
    forms = forms_of(reader, candidate)
    return frozenset((number, form, _aligned(size)) for name, form, size in forms for number in reader.reads[name])


def _growth(
    tasks: Mapping[str, Task],
    constants: Constants,
    taken: Mapping[str, Stored],
    candidates: Mapping[str, Candidate],
) -> tuple[Growth, ...]:
    """Of each Task that stores more than its constants are, the largest first."""
    rows = []
    rule_of = rules()
    for key, forms in taken.items():
        plain, stored = _plain(forms, constants), _bytes([forms])
        if stored <= plain:
            continue
        named = [str(s.rule) for s in candidates[key].stages if rule_of[s.rule].constant is not None]
        why = f"sums of weights ({', '.join(named)})" if named else "filled up to whole vectors"
        rows.append(Growth(tasks[key].name, tasks[key].nodes, plain, stored, why))
    return tuple(sorted(rows, key=lambda row: row.model_bytes - row.stored_bytes))


def _plain(stored: Stored, constants: Constants) -> int:
    """The bytes of the same constants in the model."""
    return sum(_aligned(constants.bytes[number]) for number in {number for number, _, _ in stored})


def _bytes(every: Iterable[Stored]) -> int:
    """Of what is stored, each form of a constant once."""
    return sum(size for _, _, size in set[Part]().union(*every))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
