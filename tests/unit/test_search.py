"""Explorers: what they propose is legal, accepted, and new; with what is measured they find what is fast."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_machines import TARGET, best_of, measured, seconds_of, space_of
from three_ways import task_of

from modelc.measure.measurement import Measurement
from modelc.space.choose import accepted, chosen
from modelc.space.sketch import Points
from modelc.tune.search.evolve import Evolve, crossed, moved, redrawn, stepped
from modelc.tune.search.explorers import EXPLORERS

CONV = task_of("Conv", {"pads": [1] * 4}, [(1, 16, 14, 14), (32, 16, 3, 3), (32,)], (1, 2), True).canonical()
OPAQUE = task_of("TopK", {"axis": -1}, [(6, 50), (1,)], steering={1: np.array([5])}, outputs=2).canonical()


@pytest.mark.parametrize("name", EXPLORERS)
@pytest.mark.sweep(2)
def test_proposals_are_accepted_and_each_is_new(name: str) -> None:
    space = space_of(CONV)
    explorer = EXPLORERS[name](space, seed=1)
    untuned = chosen(CONV, TARGET).candidate
    explorer.skip(untuned)
    seen = {untuned.key}
    count = 0
    for _ in range(3):
        found = explorer.propose(6)
        assert len(found) <= 6 and all(space.legal(one.row[None, :])[0] for one in found)
        for one in found:
            assert one.candidate == one.sketch.candidate(one.point)
            seen.add(one.candidate.key)
        count += len(found)
        explorer.learn(measured(space, found))
        if found:
            accepted(CONV, min(found, key=lambda one: len(one.candidate.stages)).candidate, TARGET)
    assert count >= 6 and len(seen) == count + 1


@pytest.mark.parametrize("name", EXPLORERS)
def test_a_space_without_knobs_ends(name: str) -> None:
    explorer = EXPLORERS[name](space_of(OPAQUE))
    assert len(explorer.propose(4)) == 1 and explorer.propose(4) == []


@pytest.mark.parametrize("name", EXPLORERS)
def test_equal_seeds_propose_equal_candidates(name: str) -> None:
    one, other = (EXPLORERS[name](space_of(CONV), seed=3).propose(5) for _ in range(2))
    assert one and [a.candidate.key for a in one] == [b.candidate.key for b in other]


def test_evolution_finds_what_the_closed_forms_do_not_see() -> None:
    space = space_of(CONV)
    built = min(seconds_of(space, space.individual(row)) for row in space.constructed(space.cores))
    evolved = best_of(Evolve(space), 4, 8)
    drawn = best_of(EXPLORERS["random"](space), 4, 8)
    assert evolved < 0.97 * built and evolved < 0.9 * drawn, (evolved, built, drawn)


def test_wrong_measurements_teach_nothing() -> None:
    explorer = Evolve(space_of(CONV))
    found = explorer.propose(3)
    explorer.learn([(one, Measurement("crashed", "it died")) for one in found])
    assert not len(explorer.residual.rows) and explorer.propose(3)


def test_operations_stay_within_the_knobs() -> None:
    space, rng = space_of(CONV), np.random.default_rng(0)
    assert len(space.sketches) > 1, "there is nothing to move to"
    rows = space.random(64, rng)

    def inside(found: Points) -> None:
        assert (found[:, 1:] >= 0).all() and (found[:, 1:] < space.sizes[found[:, 0]]).all()

    near, other = stepped(space, rows, rng), redrawn(space, rows, rng)
    assert (np.abs(near - rows).sum(axis=1) <= 1).all() and (near != rows).any()
    assert ((other != rows).sum(axis=1) <= 1).all() and (other != rows).any()
    mates = rows[rng.permutation(len(rows))]
    children = crossed(rows, mates, rng)
    assert ((children == rows) | (children == mates)).all() and (children[:, 0] == rows[:, 0]).all()
    elsewhere = np.stack([moved(space, row, rng) for row in rows])
    assert (elsewhere[:, 0] != rows[:, 0]).any()
    for found in (near, other, children, elsewhere):
        inside(found)


def test_what_is_measured_corrects_the_estimates_nearby() -> None:
    explorer = Evolve(space_of(CONV))
    rows = explorer.space.random(40, np.random.default_rng(0))
    before = explorer.residual.predict(rows)
    assert np.array_equal(before, explorer.space.estimate(rows))
    explorer.residual.learn(rows[:1], 3 * before[:1])
    after = explorer.residual.predict(rows)
    assert after[0] > 1.7 * before[0] and (after >= before).all() and (after <= 3.001 * before).all()
