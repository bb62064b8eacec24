"""Whether a package is slower than another: floor, noise, and that it is believed only when it is said again."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import ClassVar

import pytest

from modelc.errors import InputError
from modelc.verify import rounds as subject
from modelc.verify.rounds import Pair
from modelc.verify.slower import BELIEVED, Slower, slower


class FakeEngine:
    """Takes 1 ms, or `factors` of it by path; each fresh process is off by a few per cent of its own; a neighbour makes
    some runs twice as long."""

    factors: ClassVar[dict[str, Iterator[float] | float]] = {}
    noise = 0.01
    random = Random(0)

    def __init__(self, engine: str, path: str, threads: int) -> None:
        factor = self.factors.get(path, 1.0)
        self.factor = factor if isinstance(factor, float) else next(factor)
        self.restart()

    def restart(self) -> None:
        self.process = 1 + self.random.gauss(0, self.noise)

    def run(self, feed: object) -> None: ...

    def time(self, seconds: float) -> list[float]:
        busy = [2.0 if self.random.random() < 0.3 else 1.0 for _ in range(8)]
        return [self.factor * self.process * one for one in busy]

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "Engine", FakeEngine)
    for name in ("native_package", "at_given", "at_inputs", "same_boundary", "given_or_drawn", "variant_of"):
        monkeypatch.setattr(subject, name, lambda *_: None)
    monkeypatch.setattr(FakeEngine, "random", Random(7))
    monkeypatch.setattr(FakeEngine, "factors", {})


def judged(floor: float) -> Slower:
    return slower(Pair.of("new", "old"), floor)


def test_what_is_the_same_passes_twenty_times_beside_a_busy_neighbour() -> None:
    assert not any(judged(0.03).slower for _ in range(20))


def test_ten_per_cent_are_seen_and_said() -> None:
    FakeEngine.factors = {"new": 1.1}
    verdict = judged(0.03)
    assert verdict.slower and verdict.measurements == BELIEVED and 0.07 < verdict.share < 0.13
    assert "slower, where more than" in verdict.sentence() and "measured 3 times" in verdict.sentence()


def test_what_lies_within_the_noise_is_no_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEngine, "noise", 0.1)
    FakeEngine.factors = {"new": 1.05}
    assert not any(judged(0.01).slower for _ in range(20))


def test_what_is_not_said_again_is_not_believed() -> None:
    FakeEngine.factors = {"new": iter((1.2, 1.2, 1.0))}
    verdict = judged(0.03)
    assert not verdict.slower and verdict.measurements == 3


def test_the_floor_is_a_share() -> None:
    with pytest.raises(InputError, match="expected from 0 to 10"):
        judged(-1.0)
