"""The schedule of a Task: Sketches are listed, points of each constructed, and sorted on one scale of seconds; the
first that its Nest's verifier accepts is taken. Where users' rules propose other Tasks that compute the same
(rules/derivation.py), these have Sketches of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any

from modelc.cache.code import code_digest, content_key
from modelc.cache.store import Store
from modelc.errors import InvalidIR
from modelc.forks import shared
from modelc.ir.block import Block, Task
from modelc.ir.candidate import Candidate
from modelc.ir.nest import Nest
from modelc.ir.verify_nest import verify_nest
from modelc.policy import Policy
from modelc.space.check import check_knobs, check_sizes, derived_by
from modelc.space.construct import Constructed, constructed
from modelc.space.cost.roofline import roofline_seconds
from modelc.space.nest.build import build_nest
from modelc.space.rules.derivation import SHIPPED, rules
from modelc.space.rules.rule import Rule
from modelc.space.sketch import Sketch
from modelc.space.sketches.chain import CHAIN
from modelc.space.sketches.listing import families
from modelc.space.sketches.phases import separate
from modelc.target import Target

DEFAULT = Policy()
NARROWEST_BITS = 64  # of a vector: two lanes of float32
MANY = 1 << 12  # of what is constructed, for who looks for one of a kind
KEPT = 3  # of what is constructed in one Sketch: the second is for when the first is rejected
MACHINES, MOST_TASKS = 8, 512  # of which a process keeps what it has constructed
HOPELESS = 2.0  # times the best start() of a family
OPTIMISM = 0.9  # of the seconds of what closed forms take: construction seldom comes below


@dataclass(frozen=True)
class Chosen:
    """What a Task is lowered from: its Candidate, the Task after the Candidate's stages, and the Nest of both.
    `rejected` says of each better Candidate what is wrong with it."""

    candidate: Candidate
    task: Task
    nest: Nest
    rejected: tuple[str, ...] = ()


def accepted(task: Task, candidate: Candidate, target: Target, verify: bool = True) -> Chosen:
    """`task` as `candidate` schedules it on `target`. Raises InvalidCandidate where it is no schedule of this Task, and
    InvalidIR where its Nest breaks a constraint; of what its Nest touches, only if that is to `verify`."""
    derived = derived_by(task, candidate.stages)
    check_knobs(derived, candidate)
    nest = build_nest(task, candidate, target.caches[0].line)
    check_sizes(nest)
    if verify:
        verify_nest(nest, derived)
    return Chosen(candidate, derived, nest)


def chosen(task: Task, target: Target, policy: Policy = DEFAULT) -> Chosen:
    """The best Candidate that its Nest's verifier accepts. Raises InvalidIR if there is none."""
    schedules = ranked(families(task, target, policy), target)
    return _first_accepted(task, target, schedules, partial(accepted, target=target))


@dataclass
class Offer:
    """A schedule that a Task may get: `point` of the Sketch `number` of its `family`, and the seconds that it is
    estimated to take. The Sketch is made where its Candidate is asked for, unless that is known."""

    schedules: Schedules
    task: Task
    seconds: float
    family: int
    number: int
    point: tuple[int, ...]
    known: Candidate | None = None

    @property
    def candidate(self) -> Candidate:
        """The schedule itself."""
        if self.known is None:
            sketch = self.schedules.families(self.task)[self.family][self.number]
            self.known = sketch.candidate(self.point)
            self.schedules.made.changed.add(self.task.hash)
        return self.known

    def to_json(self) -> list[Any]:
        known = None if self.known is None else self.known.to_json()
        return [self.seconds, self.family, self.number, list(self.point), known]


Schedule = Offer | Constructed


@dataclass
class _Constructions:
    """What was constructed on one target under one policy by the same rules, by the Task's hash."""

    families: dict[str, tuple[tuple[Sketch, ...], ...]] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    ranked: dict[str, tuple[Offer, ...]] = field(default_factory=dict)
    accepted: dict[tuple[str, str], Chosen] = field(default_factory=dict)  # by the Candidate's key too
    changed: set[str] = field(default_factory=set)  # Tasks of which the store does not know all


@lru_cache(MACHINES)
def constructions(target: Target, policy: Policy, known_rules: tuple[Rule, ...]) -> _Constructions:
    return _Constructions()


class Schedules:
    """What Tasks get on one target under one policy, and the seconds that it is estimated to take. Layouts are chosen
    with the same numbers, so a Task is constructed once in a process, whoever asks first, and once for all processes
    where `store` keeps what came of it. Several Tasks are constructed by so many `processes`; `say` is told how many of
    how many are."""

    def __init__(
        self,
        target: Target,
        policy: Policy = DEFAULT,
        processes: int = 1,
        store: Store | None = None,
        say: Callable[[str], None] = lambda text: None,
    ):
        self.target, self.policy, self.processes, self.say = target, policy, processes, say
        shipped = rules().keys() == SHIPPED  # a user's rules are code of which no digest is made
        self.store = store if store is not None and shipped else Store(None)
        if len(constructions(target, policy, tuple(rules().values())).families) > MOST_TASKS:
            constructions.cache_clear()
        self.made = constructions(target, policy, tuple(rules().values()))
        self._preferred: dict[str, Schedule] = {}

    def prepare(self, tasks: Iterable[Task], earnest: bool) -> None:
        """Works out together what optimistic() says of these Tasks, or in `earnest` what ranked() does."""
        kept: Mapping[str, Any] = self.made.ranked if earnest else self.made.first
        new = {task.hash: task for task in tasks if task.hash not in kept}
        kind, keys = ("ranked" if earnest else "first"), {self._key(name): name for name in new}
        for key, data in self.store.get(kind, keys).items():
            task = new.pop(keys[key])
            if earnest:
                self.made.ranked[task.hash] = self._read(task, json.loads(data))
            else:
                self.made.first[task.hash] = json.loads(data)
        waiting = [*new.values()]
        done = 0
        work: Callable[[Task], Any] = self._ranked if earnest else self._first
        for number, answer in shared(work, waiting, self.processes):
            task, done = waiting[number], done + 1
            self.say(f"{done} of {len(waiting)} tasks {'constructed' if earnest else 'estimated'}")
            if earnest:
                self.made.ranked[task.hash] = self._read(task, answer)
            else:
                self.made.first[task.hash] = answer
        self._put(kind, new)

    def keep(self) -> None:
        """Stores the Candidates that were asked for since they were last stored: they need not be made again."""
        self._put("ranked", self.made.changed)
        self.made.changed.clear()

    def _put(self, kind: str, names: Iterable[str]) -> None:
        answers: Callable[[str], Any] = self._rows if kind == "ranked" else self.made.first.__getitem__
        self.store.put(kind, {self._key(name): json.dumps(answers(name)).encode() for name in names})

    def _rows(self, name: str) -> list[Any]:
        return [offer.to_json() for offer in self.made.ranked[name]]

    def _first(self, task: Task) -> float:
        return min(sketch.first(self.target.cores) for sketch in self.families(task)[0])

    def _ranked(self, task: Task) -> list[list[Any]]:
        """What _read() makes Offers of, the first with its Candidate."""
        family_of = {id(s): (f, n) for f, family in enumerate(self.families(task)) for n, s in enumerate(family)}
        points = ranked(self.families(task), self.target)
        return [
            [c.seconds, *family_of[id(c.sketch)], c.point.tolist(), c.candidate.to_json() if c is points[0] else None]
            for c in points
        ]

    def _read(self, task: Task, rows: Sequence[Sequence[Any]]) -> tuple[Offer, ...]:
        return tuple(
            Offer(self, task, seconds, family, number, tuple(point), known and Candidate.parsed(known))
            for seconds, family, number, point, known in rows
        )

    def _key(self, name: str) -> bytes:
        return content_key(self._decides, name)

    @cached_property
    def _decides(self) -> str:
        """All that an answer depends on but for the Task."""
        return "\0".join((code_digest(), repr(self.target), repr(self.policy)))

    def optimistic(self, task: Task) -> float:
        """About the least that seconds() can be, in a fraction of its time: from what closed forms take in each Sketch,
        on which construction improves by less than OPTIMISM leaves room for, as a rule."""
        if task.hash not in self.made.first:
            self.prepare([task], False)
        return OPTIMISM * self.made.first[task.hash]

    def seconds(self, task: Task) -> float:
        """What the Candidate takes that chosen() tries first, on all cores."""
        return self.ranked(task)[0].seconds

    def floor(self, task: Task) -> float:
        """The roofline of `task` as it is, on all cores."""
        return roofline_seconds([task], self.target, self.target.cores)

    def is_fused(self, task: Task) -> bool:
        """Whether no Sketch of `task` stores a whole intermediate tensor between two reductions: there is one reduction
        at most, or the Sketch is of a chain."""
        reductions = sum(isinstance(b, Block) and bool(b.reduction) for b in task.blocks)
        return reductions <= 1 or self.families(task)[0][0].kind == CHAIN

    def chosen(self, task: Task) -> Chosen:
        """chosen() of the canonical `task`."""
        first = self._preferred.get(task.hash)
        schedules = (*([first] if first else []), *self.ranked(task))
        return _first_accepted(task.canonical(), self.target, schedules, self.accepted)

    def tried_first(self, task: Task) -> Candidate:
        """What chosen() tries first."""
        return (self._preferred.get(task.hash) or self.ranked(task)[0]).candidate

    def accepted(self, task: Task, candidate: Candidate, verify: bool = True) -> Chosen:
        """accepted() of the canonical `task`: its Nest is verified once in a process, whoever made the Candidate, if it
        is to be."""
        key = task.hash, candidate.key
        if key not in self.made.accepted:
            self.remember(task, accepted(task.canonical(), candidate, self.target, verify))
        return self.made.accepted[key]

    def remember(self, task: Task, chosen: Chosen) -> None:
        """Takes what accepted() says for what is known."""
        self.made.accepted.setdefault((task.hash, chosen.candidate.key), chosen)

    def near(self, task: Task, most: float) -> Iterator[Offer]:
        """Everything that is constructed for the canonical `task` and takes at most so many seconds, the best first;
        the best in any case."""
        every = [
            Offer(self, task, point.seconds, 0, number, tuple(map(int, point.point)))
            for number, sketch in enumerate(self.families(task)[0])
            for point in constructed(sketch, self.target.cores, MANY)
        ]
        yield self.ranked(task)[0]
        for offer in sorted(every, key=lambda offer: offer.seconds):
            if offer.seconds > most:
                return
            yield offer

    def narrower(self, task: Task) -> Iterator[Constructed]:
        """Everything that is constructed in vectors of half the lanes, a quarter, and so on: what is slower, and fills
        packed constants up to fewer lanes. Their Candidates are for the target as it is."""
        policy = replace(self.policy, winograd=False, strassen=False, tensorize=False)
        bits = self.target.vector.bits // 2
        while bits >= NARROWEST_BITS:
            share = bits / self.target.vector.bits
            peak = {dtype: share * rate for dtype, rate in self.target.peak.items()}  # at the same clock
            vector = replace(self.target.vector, bits=bits)
            target = replace(self.target, vector=vector, peak=peak, intrinsics=(), throughput={})
            for sketch in families(task.canonical(), target, policy)[0]:
                yield from constructed(sketch, target.cores, MANY)
            bits //= 2

    def prefer(self, schedules: Mapping[str, Schedule]) -> None:
        """Makes chosen() try these Candidates first, by the Tasks' hashes; what a Task is estimated to take is as
        before."""
        self._preferred = dict(schedules)

    def families(self, task: Task) -> tuple[tuple[Sketch, ...], ...]:
        """families() of the canonical `task`."""
        if task.hash not in self.made.families:
            self.made.families[task.hash] = families(task.canonical(), self.target, self.policy)
        return self.made.families[task.hash]

    def ranked(self, task: Task) -> tuple[Offer, ...]:
        """ranked() of the canonical `task`."""
        if task.hash not in self.made.ranked:
            self.prepare([task], True)
        return self.made.ranked[task.hash]


def _first_accepted(
    task: Task, target: Target, schedules: Sequence[Schedule], accept: Callable[[Task, Candidate], Chosen]
) -> Chosen:
    rejected: list[str] = []
    for candidate in _every(task, target, schedules):
        try:
            return replace(accept(task, candidate), rejected=tuple(rejected))
        except InvalidIR as wrong:
            rejected.append(str(wrong))
    raise InvalidIR(f"every schedule of task {task.name} was rejected; the last one, because {rejected[-1]}")


def _every(task: Task, target: Target, schedules: Sequence[Schedule]) -> Iterator[Candidate]:
    for schedule in schedules:
        yield schedule.candidate
    yield separate(task, target)


def ranked(by_family: Sequence[Sequence[Sketch]], target: Target) -> tuple[Constructed, ...]:
    """The best points of all Sketches of a Task and of what users' rules make of it, the best first: of each family,
    the Sketches by the seconds of their first, each one's points in the order in which they were constructed (its doubt
    may put start() first)."""
    points = [
        sorted((constructed(s, target.cores, KEPT) for s in hopeful(f, target.cores)), key=_first) for f in by_family
    ]
    families_ = sorted(points, key=lambda kept: _first(kept[0]))
    return tuple(point for family in families_ for kept in family for point in kept)


def hopeful(family: Sequence[Sketch], cores: int) -> list[Sketch]:
    """The Sketches of a family whose start() is not more than HOPELESS times as slow as the best of all: construction
    does not make up for that."""
    starts = [sketch.first(cores) * sketch.handicap for sketch in family]
    return [sketch for sketch, start in zip(family, starts, strict=True) if start <= HOPELESS * min(starts)]


def _first(kept: Sequence[Constructed]) -> float:
    """What a Sketch is compared with others by."""
    return kept[0].seconds * kept[0].sketch.handicap
