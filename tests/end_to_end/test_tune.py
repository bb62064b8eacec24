"""Tuning within a budget, on machines that are functions; and once on this machine."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_machines import MATMULS, Machine, subjects_of
from three_ways import host_target, task_of

from modelc.errors import ConfigError
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.measure import Effort, Measurement, Measurer
from modelc.tune.search.explorers import explorer_class
from modelc.tune.search.objectives import Weights, total
from modelc.tune.search.population import Individual
from modelc.tune.search.scheduler import Scheduler, Work
from modelc.tune.search.tune import Budget, Search, Subject, Tuned

ROWS = task_of("Softmax", {"axis": -1}, [(8, 32)]).canonical()  # of few schedules


class Kept(list[tuple[Subject, Candidate]]):
    def add(self, subject: Subject, candidate: Candidate, individual: Individual | None, found: Measurement) -> None:
        self.append((subject, candidate))

    def refresh(self, subject: Subject) -> None:
        """Nobody else adds anything."""


def tuned(machine_noise: float = 0.001, until: int = 1 << 30, trials: int = 48) -> tuple[Tuned, Machine, Kept]:
    subjects = subjects_of(MATMULS)
    machine, kept = Machine([s.untuned for s in subjects], machine_noise, until), Kept()
    scheduler = Scheduler([Work(1e-3), Work(2e-3)], total(Weights.of(np.array([[3.0, 1.0]]))))
    return Search(subjects, scheduler, machine, Budget(trials=trials), kept, batch=12).run(), machine, kept


def test_the_fastest_is_taken_and_the_budget_kept() -> None:
    result, machine, kept = tuned()
    assert result.ended == "budget" and result.trials == len(kept) == machine.calls == 48
    assert len({c.key for s, c in kept if s.key == MATMULS[0].hash}) == len(result.subjects[0].measured)
    for subject in result.subjects:
        fastest = min(machine.seconds(c) for c, m in subject.measured if m.ok)
        assert fastest < 0.9e-3 and machine.seconds(subject.best) == fastest
        assert subject.gain == pytest.approx(1e-3 / fastest) and subject.seconds == pytest.approx(fastest)
    predicted = [m.predicted for m in result.log]
    assert predicted[-1] <= predicted[1] < 4e-3 and [m.trials for m in result.log] == [12, 24, 36, 48]


def test_what_is_not_faster_than_the_noise_stays_untuned() -> None:
    result, _, _ = tuned(machine_noise=0.4)
    assert all(s.best is s.untuned and s.gain == 1.0 for s in result.subjects)


def test_what_ends_before_the_budget_says_why() -> None:
    for seconds, sentence in (
        ([1e-3], "every schedule that the explorer proposes of 1 tasks is measured"),
        ([1e-3, 1e-9], "of 1 tasks is measured, and another round of 1 others would save too little"),
    ):
        subjects = subjects_of([ROWS, MATMULS[0]][: len(seconds)])
        work, weights = [Work(each) for each in seconds], Weights.of(np.ones((1, len(seconds))))
        result = Search(
            subjects, Scheduler(work, total(weights)), Machine([s.untuned for s in subjects]), Budget(trials=10_000)
        ).run()
        assert result.ended == "nothing left" and result.left.endswith(sentence), result.left
        assert result.trials == len(subjects[0].measured) < 10_000


def test_an_interruption_keeps_what_was_measured() -> None:
    result, machine, kept = tuned(until=18)
    assert result.ended == "interrupted" and result.trials == len(kept) == 18
    first, second = sorted(result.subjects, key=lambda s: -len(s.measured))
    assert machine.seconds(first.best) < 1e-3
    assert second.best is second.untuned and len(second.measured) == 6, "its untuned Candidate was not measured"


def test_time_that_is_over_ends_a_batch() -> None:
    subjects = subjects_of(MATMULS[:1])
    machine = Machine([subjects[0].untuned])
    result = Search(
        subjects, Scheduler([Work(1e-3)], total(Weights.of(np.ones((1, 1))))), machine, Budget(seconds=1e-9)
    ).run()
    assert (result.ended, result.trials) == ("budget", 0) and subjects[0].best is subjects[0].untuned


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "5", "1.5m", "90s", "1e9m", "5 m", "1h30", "0s", "2.5", "nan", "9" * 9]
)
def test_budgets(text: str) -> None:
    good = {"5": Budget(trials=5), "1.5m": Budget(seconds=90), "90s": Budget(seconds=90)}
    if text in good:
        assert Budget.parse(text) == good[text]
    else:
        with pytest.raises(ConfigError, match="expected a time"):
            Budget.parse(text)


def test_an_unknown_explorer_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="the explorers are evolve, ppo, random"):
        explorer_class("grid")


def test_a_task_on_this_machine() -> None:
    subjects = subjects_of([task_of("MatMul", {}, [(16, 32), (32, 32)], (1,)).canonical()])
    quick = Effort(sample_seconds=1e-4, least=3, most=5, seconds=0.05)
    with Measurer(host_target(), builders=1, effort=quick) as measurer:
        scheduler = Scheduler([Work(1e-5)], total(Weights.of(np.ones((1, 1)))))
        result = Search(subjects, scheduler, measurer, Budget(trials=4), batch=4).run()
    found = [m for _, m in result.subjects[0].measured]
    assert len(found) == 4 and all(m.ok for m in found), found
    assert 0 < result.subjects[0].seconds < 1


def test_rounds_overlap_where_measuring_would_run_dry() -> None:
    """The next round is proposed while the last of the one before are measured; each Task's untuned Candidate
    goes first, once, and the budget is kept."""
    subjects = subjects_of(MATMULS)
    machine, kept, behind = Machine([s.untuned for s in subjects], lead=5), Kept(), []
    scheduler = Scheduler([Work(1e-3), Work(2e-3)], total(Weights.of(np.array([[3.0, 1.0]]))))
    watched = Machine.submit

    def submit(self: Machine, task: Task, candidate: Candidate, *, verify: bool) -> int:
        behind.append(len(self.batch))
        return watched(self, task, candidate, verify=verify)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "submit", submit)
        result = Search(subjects, scheduler, machine, Budget(trials=60), kept, batch=12).run()
    assert result.trials == len(kept) == machine.calls == 60 and not machine.batch
    assert behind.count(5) >= 4 and max(behind) < 5 + 12, "rounds begin with five on their way"
    assert len({(s.key, c.key) for s, c in kept}) == 60, "something was measured twice"
    assert sum(c is s.untuned for s, c in kept) == 2 and [m.trials for m in result.log][-1] == 60
    assert all(s.best is not s.untuned for s in result.subjects)
