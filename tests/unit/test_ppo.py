"""Proximal policy optimisation: gradients are those of the loss, actors learn what is rewarded."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_machines import best_of, space_of
from three_ways import task_of

from modelc.tune.search import ppo
from modelc.tune.search.explorers import EXPLORERS
from modelc.tune.search.ppo import Networks, Proximal, advantages_of

PRODUCT = task_of("MatMul", {}, [(48, 40), (40, 64)], consts=(1,)).canonical()


def loss(networks: Networks, states, actions, before, used, advantages, returns) -> float:
    ratio = np.exp(networks.likelihood(states, actions) - before)
    gain = advantages[:, None]
    kept = np.minimum(ratio * gain, np.clip(ratio, 1 - ppo.CLIP, 1 + ppo.CLIP) * gain)
    actor = -np.where(used, kept, 0.0).sum() / len(states)
    critic = np.mean((networks.values(states) - returns) ** 2)
    return float(actor + critic - ppo.ENTROPY * networks.parameters["spread"].sum())


def test_gradients_are_those_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    networks, old = Networks(5, 3, rng), Networks(5, 3, rng)
    states, used = rng.random((40, 5)), rng.random((40, 3)) < 0.8
    actions = old.act(states, rng)
    given = (states, actions, networks.likelihood(states, actions) + 0.1 * rng.standard_normal((40, 3)))
    rest = (used, rng.standard_normal(40), rng.random(40))
    found = networks.gradients(*given, *rest)
    checked = 0
    for name, by in found.items():
        for place in rng.permutation(by.size)[:6]:
            at = np.unravel_index(place, by.shape)
            around = []
            for step in (1e-6, -1e-6):
                kept = networks.parameters[name].copy()
                networks.parameters[name][at] += step
                around.append(loss(networks, *given, *rest))
                networks.parameters[name] = kept
            assert by[at] == pytest.approx((around[0] - around[1]) / 2e-6, rel=1e-3, abs=1e-6), (name, at)
            checked += 1
    assert checked > 30


def test_actors_learn_what_is_rewarded() -> None:
    """The first action should be large, the second small, the third is of no use."""
    rng = np.random.default_rng(1)
    networks, states = Networks(2, 3, rng), np.ones((64, 2))
    used = np.ones((64, 3), np.bool_)
    for _ in range(60):
        actions = networks.act(states, rng)
        rewards = np.tanh(actions[:, 0]) - np.tanh(actions[:, 1])
        gains = rewards - networks.values(states)
        before = networks.likelihood(states, actions)
        for _ in range(ppo.EPOCHS):
            networks.step(networks.gradients(states, actions, before, used, gains, rewards))
    _, means = networks.means(states[:1])
    assert means[0, 0] > 0.5 and means[0, 1] < -0.5
    assert networks.values(states[:1])[0] > 0.5


def test_advantages_look_ahead() -> None:
    rewards, values, last = np.array([[0.0], [1.0]]), np.zeros((2, 1)), np.zeros(1)
    found = advantages_of(rewards, values, last)
    assert found[1, 0] == 1.0 and found[0, 0] == pytest.approx(ppo.DISCOUNT * ppo.SMOOTHING)


def test_actions_reach_every_value() -> None:
    space = space_of(PRODUCT)
    explorer = Proximal(space, 1)
    actions = np.random.default_rng(0).random((4000, space.empty.shape[1]))
    rows = explorer.moved(actions)
    assert (rows[:, 1:] < space.sizes[rows[:, 0]]).all() and (rows >= 0).all()
    for number, sketch in enumerate(space.sketches):
        for place, size in enumerate(sketch.sizes):
            assert len(np.unique(rows[rows[:, 0] == number, 1 + place])) > size / 2
    ends = explorer.moved(np.array([[1e-9] * actions.shape[1], [1 - 1e-9] * actions.shape[1]]))
    assert (ends[0] == 0).all() and (ends[1, 1:] == space.sizes[ends[1, 0]] - 1).all()


def test_walks_find_what_the_closed_forms_do_not_see() -> None:
    space = space_of(task_of("MatMul", {}, [(96, 80), (80, 128)], consts=(1,)).canonical())
    walked = [best_of(Proximal(space, seed), 4, 8) for seed in range(5)]
    drawn = [best_of(EXPLORERS["random"](space, seed), 4, 8) for seed in range(5)]
    assert sum(walked) < sum(drawn)
