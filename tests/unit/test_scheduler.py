"""The task scheduler: rounds go where the objective falls, and not where they cannot pay."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from modelc.tune.search.objectives import PATIENCE, Weights, early_stop, geometric, required, stopping, total
from modelc.tune.search.scheduler import BELIEVED, ENOUGH, Scheduler, Work

ONES = np.ones((1, 3))


def run(scheduler: Scheduler, rounds: int, after: dict[int, list[float]]) -> list[int]:
    """The Tasks that get `rounds`; each takes, after its rounds, what `after` says, the last for ever."""
    turns: Counter[int] = Counter()
    order = []
    for _ in range(rounds):
        task = scheduler.next()
        if task is None:
            break
        scheduler.took(task, after[task][min(turns[task], len(after[task]) - 1)])
        turns[task] += 1
        order.append(task)
    return order


def test_every_task_is_warmed_up_the_heaviest_first() -> None:
    scheduler = Scheduler([Work(1.0), Work(3.0), Work(2.0)], total(Weights.of(ONES)))
    assert run(scheduler, 3, {0: [1.0], 1: [3.0], 2: [2.0]}) == [1, 2, 0]


def test_weights_decide_what_is_heavy() -> None:
    scheduler = Scheduler([Work(1.0), Work(3.0), Work(2.0)], total(Weights.of(np.array([[10.0, 1.0, 1.0]]))), epsilon=0)
    assert run(scheduler, 4, {0: [1.0], 1: [3.0], 2: [2.0]}) == [0, 1, 2, 0]


def test_a_task_that_improves_keeps_its_turn_and_a_stuck_one_loses_it() -> None:
    work = [Work(1.0, likeness=k) for k in range(3)]
    falling = [1.0 * 0.8**k for k in range(30)]
    order = run(Scheduler(work, total(Weights.of(ONES)), epsilon=0), 12, {0: [1.0], 1: falling, 2: [1.0]})
    assert Counter(order)[1] >= 4 and min(Counter(order).values()) >= 2, order


def test_similar_tasks_promise_what_the_fastest_of_them_reaches() -> None:
    def second(likeness: int) -> int | None:
        work = [Work(1.0, 1e9, 0), Work(1.0, 1e9, likeness), Work(1.2, 1.0, 2)]
        scheduler = Scheduler(work, total(Weights.of(ONES)), epsilon=0)
        for task, seconds in enumerate((0.01, 1.0, 1.2)):
            for _ in range(4):
                scheduler.took(task, seconds)
        return scheduler.next()

    assert second(likeness=0) == 1 and second(likeness=1) == 2


def test_what_takes_less_of_the_budget_gets_more_rounds() -> None:
    def given(takes: list[float] | None) -> Counter[int]:
        scheduler = Scheduler([Work(1.0, likeness=k) for k in range(2)], total(Weights.of(np.ones((1, 2)))), epsilon=0)
        order = Counter[int]()
        for _ in range(20):
            task = scheduler.next(takes=takes)
            assert task is not None
            scheduler.took(task, 1.0)
            order[task] += 1
        return order

    assert given(None) == given([7.0, 7.0]) == {0: 10, 1: 10}
    assert given([4.0, 1.0])[1] >= 14 and given([1.0, 4.0])[0] >= 14


def test_what_cannot_pay_for_a_round_gets_none() -> None:
    scheduler = Scheduler([Work(1.0), Work(1e-3), Work(1.0)], total(Weights.of(ONES)))
    order = run(scheduler, 10_000, {0: [1.0], 1: [1e-3], 2: [1.0]})
    assert 1 not in order and 4 < len(order) < 10_000


def test_an_exhausted_task_gets_no_more_rounds() -> None:
    scheduler = Scheduler([Work(1.0), Work(1.0)], total(Weights.of(np.ones((1, 2)))))
    scheduler.took(0, 1.0, exhausted=True)
    assert run(scheduler, 5, {1: [1.0]}) == [1] * 5


def test_chance_gives_some_rounds_to_others() -> None:
    work = [Work(100.0, likeness=0), Work(1.0, likeness=1)]
    given = [
        run(Scheduler(work, total(Weights.of(np.ones((1, 2)))), e), 40, {0: [100.0], 1: [1.0]}) for e in (0.0, 0.5)
    ]
    assert Counter(given[0])[1] < Counter(given[1])[1]


def test_a_network_that_meets_what_is_wanted_is_left_alone() -> None:
    weights = Weights.of(np.array([[1.0, 0.0], [0.0, 1.0]]))
    scheduler = Scheduler([Work(5.0), Work(1.0)], required(weights, np.array([10.0, 0.1])))
    assert set(run(scheduler, 6, {0: [5.0], 1: [1.0]})) == {1}


def test_the_geometric_mean_counts_shares_not_seconds() -> None:
    weights = Weights.of(np.array([[1.0, 0.0], [0.0, 1.0]]))
    scheduler = Scheduler([Work(100.0), Work(1.0)], geometric(weights, np.array([100.0, 1.0])))
    slopes = scheduler.slopes() * scheduler.seconds
    assert slopes[0] == pytest.approx(slopes[1], rel=0.01) and slopes[0] == pytest.approx(0.5, rel=0.02)


def test_a_task_without_gain_stops_early() -> None:
    assert early_stop([1.0] * PATIENCE) == 0 and early_stop([1.0] * (PATIENCE + 1)) == 1.0
    assert early_stop([1.0 * 0.9**k for k in range(PATIENCE + 1)]) == 0
    scheduler = Scheduler([Work(1.0), Work(1.0)], stopping(Weights.of(np.ones((1, 2)))), epsilon=0)
    order = run(scheduler, 100, {0: [1.0], 1: [1.0]})
    assert Counter(order) == {0: PATIENCE + 1, 1: PATIENCE + 1}


def test_a_task_at_its_roofline_is_left_alone() -> None:
    def order(floor: float) -> Counter[int]:
        scheduler = Scheduler([Work(1.0, floor=floor), Work(1.0)], total(Weights.of(np.ones((1, 2)))), epsilon=0)
        return Counter(run(scheduler, 20, {0: [0.8], 1: [0.8]}))

    below, at, beyond = order(0.5 * 0.8), order(ENOUGH * 0.8), order(1.01 * BELIEVED * 0.8)
    assert at[0] == 1 and at[1] > 4, "one round says where it is"
    assert below[0] > 4 and beyond[0] > 4, "a roofline that is beaten says nothing"


def test_no_round_saves_what_lies_below_a_roofline() -> None:
    """A Task of 1 % of the time, half of which is above its roofline, pays for less than one that may all be saved."""
    rounds = []
    for floor in (0.0, 0.94 * 0.01):
        scheduler = Scheduler([Work(1.0), Work(0.01, floor=floor)], total(Weights.of(np.ones((1, 2)))), epsilon=0.5)
        rounds.append(Counter(run(scheduler, 40, {0: [1.0], 1: [0.01]}))[1])
    assert rounds[0] > rounds[1] == 1
