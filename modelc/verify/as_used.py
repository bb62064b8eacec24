"""Whether a package gives the numbers that were judged also where it is run as users run it.

What is judged is one run of each input, watched, on one thread, with inputs that begin at cache lines. Users run the
finished library again and again, on any number of threads, on their own buffers, in several handles.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from modelc.errors import PackageError, VerificationError
from modelc.package import Package, emulated, run_emulated
from modelc.verify.check import begins_anew
from modelc.verify.engine import Engine, EngineError
from modelc.verify.habits import LEAST_RUNS, Judged, Setting, difference

Arrays = dict[str, NDArray[Any]]
MOST_RUNS = 20  # of a handle
LEAST_SECONDS, SHARE = 0.5, 0.1  # of processor time that all settings may take: at least, or of what judging took
KEPT_BYTES = 1 << 28  # of outputs of the first handle, where all its runs give other numbers
SETTINGS = {  # the first has half of the time, so that a handle is run often
    "when nobody watches it, on 1 thread": (1, False, 1),
    "with buffers that begin one element behind a cache line and are used again": (1, True, 1),
    "with 2 threads": (2, True, 1),
    "with the default number of threads": (0, True, 1),
    "with two handles at once": (1, True, 2),
}
ALONE, ALONE_THREADS = "when nobody watches it, asked for 2 threads", 2  # where it runs in a process of its own alone


@dataclass(frozen=True)
class Used:
    """How many runs were made as users make them, or `alone`, each in a process of its own; `failure` says in which
    setting the first one went wrong, and how, "" where none did. A package does not say how many: they depend on the
    time that runs take, and equal inputs make equal packages."""

    runs: int
    alone: bool
    failure: str = ""

    def sentence(self) -> str:
        how = " (unwatched)" if self.alone else ""
        return self.failure or f"runs as users make them{how}: the same bits"

    def to_json(self) -> dict[str, Any]:
        return {"alone": self.alone, "failure": self.failure}


@dataclass
class JudgedRuns:
    """What runs that were judged were given and made: of each variant the first and the last, or where its runs hang
    on those before, the first two; and their numbers among all. Runs between which a cache grows, or that find more or
    less, are those of the variant of the first."""

    package: Package
    by_variant: dict[int, list[tuple[int, Arrays, Arrays]]] = field(default_factory=dict)
    count: int = 0
    latest: int = -1  # variant, of which the last runs are

    def keep(self, variant: int, feed: Arrays, outputs: Arrays) -> None:
        """To be told of every run, in order."""
        plan = self.package.manifest.variants[variant]
        if begins_anew(self.package, variant, self.latest):
            plans = self.package.manifest.variants
            self.latest = next(k for k, other in enumerate(plans) if other.inputs == plan.inputs)
        runs = self.by_variant.setdefault(self.latest, [])
        if len(runs) == 2 and not (plan.states or plan.draws):
            runs.pop()
        if len(runs) < 2:
            runs.append((self.count, feed, outputs))
        self.count += 1


def as_used(judged: JudgedRuns, seconds: float) -> Used:
    """Runs the package in every setting, on what runs that were judged were given, and compares the bits with what they
    made. Judging took so many `seconds` of processor time. A package that crashes, does not end or refuses has
    failed."""
    if emulated(judged.package):
        return _once_alone(judged)
    made, share = 0, max(LEAST_SECONDS, SHARE * seconds) / (2 * len(judged.by_variant))
    with Engine("modelc", judged.package.path, timed=False) as engine:
        for variant, runs in judged.by_variant.items():
            plan = judged.package.manifest.variants[variant]
            (first, *_), feeds, outputs = zip(*runs, strict=True)
            most = MOST_RUNS
            if plan.states or plan.draws:
                most = min(most, max(LEAST_RUNS, KEPT_BYTES // (1 + sum(x.nbytes for x in outputs[0].values()))))
            there, grows = judged.package.in_library(variant), any(state.grows for state in plan.states)
            engine.keep(Judged(there, feeds, outputs, first, bool(plan.states), grows, plan.draws))
            for number, (how, (threads, shifted, handles)) in enumerate(SETTINGS.items()):
                taken = share / (len(SETTINGS) - 1) if number else share
                try:
                    count, differs = engine.run_again(Setting(threads, shifted, handles, most, taken))
                except (VerificationError, EngineError) as error:
                    return Used(made, False, f"does not run {how}: {error}")
                made += count
                if differs:
                    same = "the same runs before" if plan.states or plan.draws else "the judged run on the same input"
                    return Used(made, False, f"gives other numbers {how}: {differs} from {same}")
    return Used(made, False)


def _once_alone(judged: JudgedRuns) -> Used:
    """Every run is the first of a handle; one of each variant costs less than the same one watched."""
    for made, (variant, [(_, feed, outputs), *_]) in enumerate(judged.by_variant.items()):
        try:
            there = judged.package.in_library(variant)
            done = run_emulated(judged.package.path, feed, there, ALONE_THREADS)
        except PackageError as error:
            return Used(made, True, f"does not run {ALONE}: {error}")
        if differs := difference(done.outputs, outputs):
            return Used(made + 1, True, f"gives other numbers {ALONE}: {differs} from those of the judged run")
    return Used(len(judged.by_variant), True)
