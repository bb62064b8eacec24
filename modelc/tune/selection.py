"""The outcome of tuning: of every Task what is fastest among the others, and packages of that, timed end to end by
turns with what there is without, of which the fastest is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from modelc import __version__
from modelc.compile.choices import Choices
from modelc.compile.pipeline import Run
from modelc.database import Database
from modelc.database.record import place_of
from modelc.database.recorded import Recorded
from modelc.database.whole import gains
from modelc.errors import DatabaseError, VerificationError
from modelc.ir.candidate import Candidate
from modelc.package import FixedInput
from modelc.package.spec import PackageSpec
from modelc.plan.program import Compiled
from modelc.scratch import TemporaryFolder
from modelc.tune.alternatives import Alternative
from modelc.tune.end_to_end import Times, compared
from modelc.tune.networks import Network
from modelc.tune.retiming import (
    FINAL,
    HEATS,
    Floats,
    Round,
    entrants,
    finalists,
    gain_of,
    packages_of,
    step_times,
    winner,
)
from modelc.tune.search.tune import Subject
from modelc.verify.report import Report


@dataclass(frozen=True)
class Made:
    """A package that was written: `changed` Tasks have other Candidates than without tuning, which is none where the
    whole gained nothing; `alternative` says what else is otherwise. `interrupted` says that timing was."""

    changed: int
    alternative: str
    times: Times
    report: Report | None
    notes: tuple[str, ...]
    interrupted: bool = False


@dataclass(frozen=True)
class _Outcome:
    """What was found for an alternative of a network: `changed` Candidates, and the compilation with them."""

    alternative: Alternative
    changed: Mapping[str, Candidate]
    run: Run
    note: str = ""

    @property
    def tuned(self) -> bool:
        return bool(self.changed or self.alternative.says)

    @property
    def spec(self) -> PackageSpec:
        programs = self.alternative.programs
        return self.run.spec(programs, self.run.kernels(programs.rounded))

    def written(self, network: Network) -> tuple[Report | None, tuple[str, ...]]:
        """The report on the package, which is at its place then, and notes on how it was made."""
        built = self.run.made(self.alternative.programs, network.output, verify=True, keep_unverified=False)
        return built.report, built.run.notes


def made(
    network: Network,
    alternative: Alternative,
    subjects: Sequence[Subject],
    database: Database | None,
    threads: int,
    timed: bool,
) -> Made:
    """Writes the package of what was found for the Tasks of an alternative of a network; where it can be `timed` here
    end to end, if that is faster than the untuned one and than what was found without another alternative, by turns;
    else the fastest of these. With a database, what was found is what compile takes of it. Ctrl-C ends timing, and what
    it meets half written is written once more."""
    recorded = None if database is None else Recorded(database, network.run.target, threads)
    choose = partial(_Selection(network, subjects, recorded, threads).outcomes, alternative)
    interrupted = False
    try:
        ways, times, notes = choose(timed)
    except KeyboardInterrupt:
        if not timed:
            raise
        interrupted = True
        ways, times, notes = choose(False)
        notes.append(
            "timing was interrupted: the package is made of what was measured task by task, and not compared as a whole"
        )
    try:
        return replace(_first_right(network, ways, times, [*notes]), interrupted=interrupted)
    except KeyboardInterrupt:
        if interrupted:
            raise
        return replace(_first_right(network, ways, times, notes), interrupted=True)


def _first_right(network: Network, ways: Sequence[_Outcome], times: Times, notes: list[str]) -> Made:
    """Writes the first that is right; the last is the untuned one. `notes` say why others are not."""
    for number, way in enumerate(ways):
        says = way.alternative.says
        try:
            report, more = way.written(network)
        except VerificationError as wrong:
            if number == len(ways) - 1 or not says:
                raise
            notes.append(f"other layouts and cuts are not taken ({says}): {str(wrong)[:300]}")
            times = replace(times, tuned_ms=times.loops_ms, loops_ms=0.0)
            continue
        if says:
            notes.append(
                f"values are stored, or tasks cut, otherwise than compile does by itself: {says}; compile --choices "
                "rebuilds it"
            )
        return Made(len(way.changed), says, times, report, (*notes, *more))
    raise AssertionError("there is always the untuned one")


@dataclass(frozen=True)
class _Selection:
    """What is taken of what was found for the Tasks of a network: what was measured of `subjects`, or what is
    `recorded` of them, where there is a database."""

    network: Network
    subjects: Sequence[Subject]
    recorded: Recorded | None
    threads: int

    def outcomes(self, alternative: Alternative, timed: bool) -> tuple[list[_Outcome], Times, list[str]]:
        """What the package is made of, the best first and the untuned one last; their times, and notes."""
        network, notes, times = self.network, list[str](), Times()
        base = self._outcome(network.base, timed)
        other = self._outcome(alternative, timed) if alternative.says else None
        notes += [outcome.note for outcome in (base, other) if outcome is not None and outcome.note]
        if network.run.config.policy.precision != "f32":
            base = self._within_policy(base, notes)
            other = other and self._within_policy(other, notes)
        ways = [way for way in (other, base) if way is not None and way.tuned]
        if timed:
            specs = {"untuned": network.spec}
            if base.tuned:
                specs["loops" if other else "tuned"] = base.spec
            if other is not None:
                specs["tuned"] = other.spec
            times = compared(network.run, specs, self.threads)
            loops_ms = times.loops_ms if other else times.tuned_ms
            self._settle(base, 1e-3 * times.untuned_ms, 1e-3 * (loops_ms or times.untuned_ms), notes)
            if other is not None and loops_ms and loops_ms <= times.tuned_ms:
                notes.append(
                    f"other layouts and cuts are not taken ({alternative.says}): with them it took "
                    f"{times.tuned_ms:.3f} ms, and {loops_ms:.3f} ms without, by turns"
                )
                ways, times = [base], replace(times, tuned_ms=loops_ms, loops_ms=0.0)
            if not gains(times.untuned_ms, times.tuned_ms or times.untuned_ms):
                ways = []
        if times.note:
            notes.append(times.note)
        return [*ways, replace(base, changed={}, run=network.run)], times, notes

    def _settle(self, base: _Outcome, untuned_seconds: float, tuned_seconds: float, notes: list[str]) -> None:
        """Writes down what the network took, for compile."""
        if self.recorded is not None:
            cold, policy = self.network.programs.parameter_bytes, self.network.run.config.policy
            name = self.recorded.network(self.network.base.occurrences, policy, cold)
            try:
                self.recorded.settle(name, base.changed, untuned_seconds, tuned_seconds)
            except DatabaseError as error:
                notes.append(f"what the network took is not written down: {error}")

    def _within_policy(self, outcome: _Outcome, notes: list[str]) -> _Outcome:
        """What was found, if its roundings to bfloat16 add up to no more than is allowed of a package; else that of it
        which multiplies bfloat16 in no Task that did not without tuning; else nothing. `notes` say so."""
        wrong = _departs(self.network, outcome) if outcome.changed else ""
        if not wrong:
            return outcome
        alternative, programs = outcome.alternative, outcome.alternative.programs
        untuned = self._locked(alternative, {})
        before, after = untuned.kernels(programs.rounded), outcome.run.kernels(programs.rounded)
        changed = {
            key: candidate
            for key, candidate in outcome.changed.items()
            if _narrow(before[key]) or not _narrow(after[key])
        }
        left = self._locked(alternative, changed, {key: after[key] for key in changed}) if changed else untuned
        less = replace(outcome, changed=changed, run=left)
        if changed and _departs(self.network, less):
            less = replace(outcome, changed={}, run=untuned)
        notes.append(
            f"{len(outcome.changed) - len(less.changed)} of {len(outcome.changed)} changed tasks are left as they "
            f"were, for with all of them roundings to bfloat16 add up to too much: {wrong}"
        )
        return less

    def _outcome(self, alternative: Alternative, timed: bool) -> _Outcome:
        """What is taken for an alternative: where its kernels are `timed` here, what wins the finals; else what is
        known to be faster by itself."""
        run = self.network.run
        if self.recorded is not None:
            cold, policy = self.network.programs.parameter_bytes, run.config.policy
            faster = self.recorded.look(alternative.tasks, policy, cold)
            measured = {
                key: self.recorded.measured(task, alternative.untuned[key], policy, cold)
                for key, task in alternative.tasks.items()
            }
        else:
            places = {key: self.network.place_of(task) for key, task in alternative.tasks.items()}
            own = {
                s.task.hash: s
                for s in self.subjects
                if places.get(s.task.hash) == place_of(s.task, run.target, s.cold_bytes)
            }
            faster = {key: s.best for key, s in own.items()}
            measured = {key: s.compared for key, s in own.items()}
        if timed:
            return self._final(
                alternative, {key: entrants(pairs, alternative.untuned[key]) for key, pairs in measured.items()}
            )
        changed = {key: candidate for key, candidate in faster.items() if candidate.key != alternative.untuned[key].key}
        locked = self._locked(alternative, changed) if changed or alternative.says else run
        return _Outcome(alternative, changed, locked)

    def _final(self, alternative: Alternative, contenders: Mapping[str, Sequence[Candidate]]) -> _Outcome:
        """What wins the finals of an alternative."""
        untuned = self._locked(alternative, {}) if alternative.says else self.network.run
        most = packages_of(alternative.programs.parameter_bytes)
        built: dict[tuple[str, str], Compiled] = {}
        timed = partial(self._timed, alternative, untuned, built)
        entered = {key: candidates[:most] for key, candidates in contenders.items()}
        heats = timed(HEATS, entered)
        last = {key: [entered[key][k - 1] for k in finalists(rows, HEATS.fresh)] for key, rows in heats.items()}
        times = timed(FINAL, last)
        if not times:
            return _Outcome(alternative, {}, untuned)
        won = {key: k for key, rows in times.items() if (k := winner(rows, FINAL.fresh))}
        changed = {key: last[key][k - 1] for key, k in won.items()}
        done = {key: built[key, candidate.key] for key, candidate in changed.items()}
        which = f" ({alternative.says})" if alternative.says else ""
        note = (
            f"finals{which}: {len(changed)} of {sum(map(bool, entered.values()))} tasks are likely faster in the "
            f"network too, which promises {gain_of(times, won):.3f} times the speed"
        )
        return _Outcome(alternative, changed, self._locked(alternative, changed, done) if changed else untuned, note)

    def _timed(
        self,
        alternative: Alternative,
        untuned: Run,
        built: dict[tuple[str, str], Compiled],
        stage: Round,
        entered: Mapping[str, Sequence[Candidate]],
    ) -> dict[str, Floats]:
        """Milliseconds of every Task in a round of the finals, by its hash [Candidates x slices], the first of which is
        the untuned one; nothing where none has another Candidate. `built` are the kernels that there are already, by
        Task and Candidate."""
        most = max(map(len, entered.values()), default=0)
        if not most:
            return {}
        programs, runs = alternative.programs, [untuned]
        for k in range(most):
            rank = {key: candidates[k] for key, candidates in entered.items() if len(candidates) > k}
            done = {key: built[key, candidate.key] for key, candidate in rank.items() if (key, candidate.key) in built}
            runs.append(self._locked(alternative, rank, done))
        compiled = [run.kernels(programs.rounded) for run in runs]
        each = [(key, task_kernel) for kernels in compiled for key, task_kernel in kernels.items()]
        built.update({(key, task_kernel.candidate.key): task_kernel for key, task_kernel in each})
        specs = [run.spec(programs, kernels) for run, kernels in zip(runs, compiled, strict=True)]
        task_of = {step.symbol: key for key, task_kernel in each for step in task_kernel.kernel.steps}
        say = partial(self.network.run.stages.progress, "finals")
        times = step_times(stage, self.network.run, specs, task_of, self.threads, say)
        return {key: rows[: 1 + len(entered.get(key, ()))] for key, rows in times.items()}

    def _locked(
        self, alternative: Alternative, changed: Mapping[str, Candidate], done: Mapping[str, Compiled] | None = None
    ) -> Run:
        """The compilation of an alternative with other Candidates; what has not changed is built, and what is
        `done`."""
        run, programs = self.network.run, alternative.programs
        tasks = {**alternative.untuned, **changed}
        constants = tuple(FixedInput.of(name, array) for name, array in run.constants.items())
        made_for = (__version__, run.digest, run.target, run.shapes, constants, run.config)
        choices = Choices(*made_for, tasks, alternative.occurrences, programs.kept, programs.layouts)
        kept = {key: kernel for key, kernel in run.done.items() if key not in changed}
        return replace(run, locked=choices, tasks=tasks, done={**kept, **(done or {})})


def _departs(network: Network, outcome: _Outcome) -> str:
    """What is wrong with the package of what was found, if anything is."""
    with TemporaryFolder("found") as folder:
        place = Path(folder) / "found.modelc"
        try:
            outcome.run.made(outcome.alternative.programs, place, verify=True, keep_unverified=False)
        except VerificationError as wrong:
            return str(wrong).partition(": ")[2][:300]
    return ""


def _narrow(compiled: Compiled) -> bool:
    """Whether the kernel multiplies bfloat16."""
    return any(work.dtype == "bfloat16" for work in compiled.works)
