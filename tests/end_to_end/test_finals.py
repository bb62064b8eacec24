"""The finals of tuning: who is surely faster among others, and which measurements are done again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from measured_tasks import CONV, QUICK, several
from three_ways import host_target, started
from tuning_runs import network

import modelc
from modelc.compile.choices import read_choices_file
from modelc.database import whole
from modelc.measure import Measurement, Measurer
from modelc.measure.job import Answer, Job
from modelc.policy import Policy
from modelc.tune import retiming, selection
from modelc.tune.search.population import Space

RNG = np.random.default_rng(3)


def times(ratios: Sequence[float], noise: float, drift: float = 0.0) -> np.ndarray:
    """Of Candidates so much slower than the first, in 12 turns of a machine that becomes slower."""
    turns, rng = 1 + drift * np.linspace(0, 1, 12), np.random.default_rng(3)
    return np.array(ratios)[:, None] * turns * (1 + noise * rng.standard_normal((len(ratios), 12)))


@pytest.mark.parametrize(
    ("ratios", "noise", "drift", "wanted"),
    [
        ([1, 0.9, 0.95], 0.005, 0.0, 1),
        ([1, 1.1, 0.9], 0.005, 1.0, 2),
        ([1, 0.995], 0.0001, 0.0, 1),  # little, and known
        ([1, 0.97], 0.3, 0.0, 0),  # too little to be known
        ([1], 0.1, 0.0, 0),
        ([0, 0, 0], 0.0, 0.0, 0),  # control flow never came to it
    ],
)
def test_the_winner_is_likely_the_fastest(ratios: list[float], noise: float, drift: float, wanted: int) -> None:
    assert retiming.winner(times(ratios, noise, drift), 4) == wanted


@pytest.mark.parametrize(
    ("ratios", "noise", "wanted"),
    [
        ([1, 0.9, 0.8, 0.95], 0.001, [2, 1]),
        ([1, 1.2, 0.9], 0.001, [2]),
        ([1, 1.2], 0.001, []),
        ([1, 1.01], 0.3, [1]),  # it may be faster
        ([1], 0.1, []),
        ([0, 0], 0.0, []),
    ],
)
def test_who_goes_on_to_the_final(ratios: list[float], noise: float, wanted: list[int]) -> None:
    assert retiming.finalists(times(ratios, noise), 4) == wanted


def test_what_processes_have_in_common_is_no_gain() -> None:
    """Ratios that 6 processes came to are 6 numbers, however many slices each was timed in; of 144 processes they are
    enough to be sure."""
    lucky = np.array([0.8, 0.97, 0.8, 0.97, 1.1, 0.97])
    noise = 1 + 0.002 * RNG.standard_normal((2, 144))
    together = np.array([np.ones(144), np.repeat(lucky, 24)]) * noise
    assert retiming.winner(together, 24) == 0
    assert retiming.winner(np.array([np.ones(144), np.tile(lucky, 24)]) * noise, 1) == 1


def test_what_did_not_win_counts_as_it_was() -> None:
    found = {"a": np.array([[4.0] * 3, [2.0] * 3]), "b": np.array([[6.0] * 3, [3.0] * 3]), "c": np.array([[2.0] * 3])}
    assert retiming.gain_of(found, {"a": 1}) == pytest.approx(1.2)
    assert retiming.gain_of(found, {}) == 1.0


def test_who_enters() -> None:
    space = Space(CONV, host_target(), Policy(), 1)
    points = (space.individual(row).candidate for row in space.random(64, RNG))
    candidates = list({one.key: one for one in points}.values())[:9]
    good = Measurement("ok", "", 1e-3, 0.001, 9, 1e-3)
    relative = [1.0, 0.7, 1.015, 1.5, 0.9, 0.8, 0.6, 0.95, 0.97]
    measured = [(c, replace(good, seconds=1e-3 * r)) for c, r in zip(candidates, relative, strict=True)]
    measured[6] = candidates[6], replace(measured[6][1], outcome="wrong")
    found = retiming.entrants(measured, candidates[0])
    assert [candidates.index(one) for one in found] == [1, 5, 4, 7, 8, 2]
    assert retiming.packages_of(1 << 20) == retiming.ENTRANTS and retiming.packages_of(1 << 40) == 1


def test_each_task_takes_its_own_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_brief: None) -> None:
    """The second of the final in every Task that has two, which was the first of the heats: by the numbers of packages,
    through the package that is made."""
    heats: list[np.ndarray] = []
    seen: list[np.ndarray] = []

    def both(found: np.ndarray, fresh: int) -> list[int]:
        heats.append(found)
        return [2, 1] if len(found) > 2 else []

    def second(found: np.ndarray, fresh: int) -> int:
        seen.append(found)
        return 2 if len(found) > 2 else 0

    monkeypatch.setattr(retiming, "LEVEL", 1e9)
    monkeypatch.setattr(selection, "finalists", both)
    monkeypatch.setattr(selection, "winner", second)
    monkeypatch.setattr(whole, "LEAST_GAIN", -100.0)
    found = modelc.tune(network(tmp_path), output=tmp_path / "t.modelc", budget="6", explorer="random", database=False)
    (one,) = found
    assert one.tuned and len(seen) == one.changed == 1
    assert heats[0].shape == (3, selection.HEATS.slices) and (heats[0] > 0).all(), "the untuned one and two others"
    assert seen[0].shape == (3, selection.FINAL.slices) and (seen[0] > 0).all()
    best = min((m.relative, c.key) for s in one.search.subjects for c, m in s.compared if c is not s.untuned)
    (taken,) = read_choices_file(tmp_path / "t.modelc").tasks.values()
    assert taken.key == best[1], "the second of the final was the first of the heats, the fastest by itself"


def test_a_busy_machine_and_a_lucky_time_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference takes 1 ms, but for twice while something else runs; and a best time has to come twice."""
    given = [(1.0, 1.0)] * 4 + [(0.3, 1.5), (0.2, 1.4), (0.9, 1.0)] + [(0.5, 1.0), (0.8, 1.0)] + [(0.85, 1.0)]
    with Measurer(host_target(), builders=1, effort=QUICK) as measurer:
        subject, runner = measurer.subject(CONV), measurer.bench._start_runner()
        first = measurer.measure(subject, [started(CONV, host_target())])[0]
        assert first.ok
        real = runner.run

        def run(name: str, job: Job) -> Answer:
            relative, reference = given.pop(0)
            return replace(real(name, job), seconds=1e-3 * relative * reference, reference_seconds=1e-3 * reference)

        monkeypatch.setattr(runner, "run", run)
        found = measurer.measure(subject, several(6))
    assert [round(one.relative, 3) for one in found if one.ok] == [1.0, 1.0, 1.0, 1.0, 0.9, 0.85] and not given
