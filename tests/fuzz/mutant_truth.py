"""Whether a wrong package computes something else: all that its kernels write, beside what the right ones write.

Both packages are watched while they run on the same inputs. Of every call that read the same in both, and of the first
that did not, the elements that moved most are compared with what they mean: how far they are off in units of the bound
that rounding leaves. What follows from a wrong number in later kernels does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf, isnan, nan

import numpy as np
from mutant_subjects import Subject
from mutants import Array, Mutant

from modelc.errors import ModelcError
from modelc.package import Package
from modelc.package.spec import Plan
from modelc.package.watch import Watch, Watched
from modelc.verify.check import Runner, drawn
from modelc.verify.kernels.calls import KernelCall, Use, calls_of, rows_of, uses_by_step
from modelc.verify.kernels.inverse import CannotSay
from modelc.verify.kernels.judge import Judge
from modelc.verify.kernels.samples import EFFORTS

CALLS = 1 << 10  # of one kernel that are compared
MOST_MOVED = 256  # elements that moved most: so many by their difference, and so many in proportion

Key = tuple[int, int, str, bool]  # the BoundTask's identity, the number of the call, the buffer, whether it was written


@dataclass(frozen=True)
class Moved:
    """How far a wrong package is off: `most`, in units of the bound of rounding (inf: by any amount, nan: nothing can
    be told), where that is, and the relative RMS difference of what that kernel wrote."""

    most: float
    where: str = ""
    rms: float = 0.0


@dataclass(frozen=True)
class Recorded:
    """All that was watched in one run: what each buffer of each call held, the calls that are whole, the outputs."""

    held: Mapping[Key, bytes]
    calls: Sequence[KernelCall]
    outputs: Mapping[str, Array]


@dataclass
class Truth:
    """The right package at work on the inputs that `verify` draws."""

    subject: Subject
    package: Package
    seed: int
    samples: int
    _right: list[Recorded] = field(default_factory=list)

    def moved(self, mutant: Mutant, wrong: Package) -> Moved:
        """How far `wrong` is off on these inputs."""
        feeds = list(drawn(self.package, self.subject.model, self.seed, self.samples))
        (right_plan,) = self.subject.spec.variants
        if not self._right:
            self._right = list(self._recorded(self.package, right_plan, range(len(right_plan.steps)), feeds))
        worst = Moved(0.0)
        runs = self._recorded(wrong, mutant.spec.variants[0], mutant.order, feeds)
        try:
            for feed, right, run in zip(feeds, self._right, runs, strict=True):
                moved = self._apart(feed, right, run)
                worst = max(worst, moved, key=_by_most)
        except ModelcError as error:
            return Moved(inf, f"it did not run: {error}")
        return worst

    def _recorded(
        self, package: Package, plan: Plan, order: Sequence[int], feeds: Sequence[Mapping[str, Array]]
    ) -> Iterator[Recorded]:
        (blueprint,) = self.subject.blueprints
        right_uses = uses_by_step(blueprint.program, self.subject.spec.variants[0], blueprint.phases)
        of_steps = tuple(right_uses[k] for k in order)
        rows = rows_of(of_steps, plan, blueprint.phases, CALLS)
        with ExitStack() as stack:
            runner = Runner(package, stack)
            for feed in feeds:
                records: list[Watched] = []
                outputs = runner.run(0, dict(feed), Watch([row.place for row in rows], records.extend))
                held: dict[Key, bytes] = {}
                for record in records:
                    row = rows[record.place]
                    use, number = _call(of_steps[row.step], record.call)
                    held[id(use.bound), number, row.buffer, row.after] = record.data
                calls = list(calls_of(records, rows, of_steps, blueprint.phases))
                yield Recorded(held, calls, outputs)

    def _apart(self, feed: Mapping[str, Array], right: Recorded, wrong: Recorded) -> Moved:
        (blueprint,) = self.subject.blueprints
        judge = Judge(blueprint, EFFORTS["thorough"])
        judge.begin(feed)
        worst, departed = Moved(0.0), False
        for call in right.calls:
            same = all(wrong.held.get(_key(call, b, False)) == data for b, data in call.read_bytes.items())
            written = {b: wrong.held.get(_key(call, b, True)) for b in call.wrote_bytes}
            moved = [b for b, data in written.items() if data is not None and data != call.wrote_bytes[b]]
            if moved and (same or not departed):
                theirs = {b: written[b] or data for b, data in call.wrote_bytes.items()}
                for buffer in moved:
                    apart = _measured(judge, call, KernelCall(call.use, call.number, call.read_bytes, theirs), buffer)
                    worst = max(worst, apart, key=_by_most)
            departed = departed or bool(moved)
            judge.remember(call)
        if not departed and any(wrong.outputs[name].tobytes() != a.tobytes() for name, a in right.outputs.items()):
            return Moved(inf, "an output is none that its kernel wrote")
        return worst


def _by_most(moved: Moved) -> float:
    """What cannot be told is more than what is within the bound."""
    return 1.0 if isnan(moved.most) else moved.most


def _call(uses: Sequence[Use], number: int) -> tuple[Use, int]:
    """Which Use of a step, and which of its calls, the watched call `number` of the step is."""
    call, iteration = divmod(number, len(uses))
    return uses[iteration], call


def _key(call: KernelCall, buffer: str, written: bool) -> Key:
    return id(call.use.bound), call.number, buffer, written


def _measured(judge: Judge, right: KernelCall, wrong: KernelCall, buffer: str) -> Moved:
    """What moved most in `buffer`, in units of its bound."""
    ours, theirs = right.wrote[buffer].astype(np.float64), wrong.wrote[buffer].astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.nan_to_num(np.abs(theirs - ours), nan=inf, posinf=inf).reshape(-1)
        apart[(theirs == ours).reshape(-1) | (np.isnan(theirs) & np.isnan(ours)).reshape(-1)] = 0
        relative = apart / np.maximum(np.abs(ours).reshape(-1), 1e-30)
        rms = float(np.sqrt(np.sum(apart**2) / np.sum(ours**2)))
    places = np.unique(np.concatenate([np.argsort(-size)[:MOST_MOVED] for size in (apart, relative)]))
    places = places[apart[places] > 0]
    where = f"{right.use.bound.task.name}, {int((apart > 0).sum())} of {apart.size} elements of {buffer}"
    index = np.unravel_index(places, ours.shape) if ours.ndim else ()
    if not places.size:  # bits that mean the same number
        return Moved(0.0, where)
    try:
        verdict = judge.kernels.verdict(wrong, buffer, index, computed=places.size)
    except CannotSay as reason:
        return Moved(nan, f"{where}: {reason}", rms)
    if verdict.worst <= 1 and verdict.open:
        return Moved(nan, f"{where}: {verdict.open} of {places.size} are open", rms)
    return Moved(verdict.worst, f"{where}: {verdict.sentence}", rms)
