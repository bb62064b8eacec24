"""Proximal policy optimisation over the knobs of all Sketches of a Task (ALT, section 5.2; Schulman et al., 2017).

There is an actor for each knob, and one for the Sketch, and one critic that all of them share; all are small networks.
The state is where a walk is: the Sketch, and the place of each knob among its values. An action a, in (0, 1), becomes a
value by formula (2): the one that is nearest to R(D * a), where D is the largest (of whole numbers), or the count.
The reward of a step is formula (3), U - l, of the latency l that is predicted where it leads, over that of the best
start; a step to what is no schedule leads nowhere and costs WORST. Walks begin at the best of what is known and drawn.
What they come by that is predicted best is measured, and that corrects the predictions.
"""

from __future__ import annotations

import numpy as np

from modelc.space.sketch import Bools, Floats, Points
from modelc.tune.search.evolve import Evolve
from modelc.tune.search.learned import LearnedCost
from modelc.tune.search.population import Space

WALKERS, STEPS = 48, 8
ACTOR, CRITIC = 16, 32  # units of the hidden layers
U, WORST = 1.0, -2.0  # of rewards
DISCOUNT, SMOOTHING = 0.9, 0.95  # of later rewards, and of advantages (generalised advantage estimation)
CLIP, EPOCHS, RATE = 0.2, 6, 5e-3
SPREAD, LEAST_SPREAD, ENTROPY = 0.0, -2.0, 3e-3  # log of the deviation of actions, at first and at least; its reward


class Networks:
    """`actors` networks from a state to the mean of one action each, and a critic from a state to its value."""

    def __init__(self, state: int, actors: int, rng: np.random.Generator) -> None:
        def drawn(*shape: int) -> Floats:
            return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[-2]), np.float64)

        self.parameters: dict[str, Floats] = {
            "hidden": drawn(actors, state, ACTOR),
            "hidden offset": np.zeros((actors, 1, ACTOR)),
            "mean": 0.1 * drawn(actors, ACTOR, 1),
            "mean offset": np.zeros((actors, 1, 1)),
            "spread": np.full(actors, SPREAD),
            "critic": drawn(state, CRITIC),
            "critic offset": np.zeros(CRITIC),
            "value": drawn(CRITIC, 1),
            "value offset": np.zeros(1),
        }
        self._first = {name: np.zeros_like(x) for name, x in self.parameters.items()}
        self._second = {name: np.zeros_like(x) for name, x in self.parameters.items()}
        self._steps = 0

    def means(self, states: Floats) -> tuple[Floats, Floats]:
        """(what the hidden layers say [actors x N x units], means of actions before they are squashed [N x actors])."""
        p = self.parameters
        hidden = np.tanh(states[None] @ p["hidden"] + p["hidden offset"])
        return hidden, (hidden @ p["mean"] + p["mean offset"])[:, :, 0].T

    def values(self, states: Floats) -> Floats:
        """[N]"""
        p = self.parameters
        values = np.tanh(states @ p["critic"] + p["critic offset"]) @ p["value"] + p["value offset"]
        return np.asarray(values[:, 0], np.float64)

    def act(self, states: Floats, rng: np.random.Generator) -> Floats:
        """Actions before they are squashed [N x actors]."""
        _, means = self.means(states)
        return np.asarray(means + np.exp(self.parameters["spread"]) * rng.standard_normal(means.shape), np.float64)

    def likelihood(self, states: Floats, actions: Floats) -> Floats:
        """log of the density of each action, but for a constant [N x actors]."""
        _, means = self.means(states)
        spread = self.parameters["spread"]
        return np.asarray(-0.5 * ((actions - means) / np.exp(spread)) ** 2 - spread, np.float64)

    def gradients(
        self, states: Floats, actions: Floats, before: Floats, used: Bools, advantages: Floats, returns: Floats
    ) -> dict[str, Floats]:
        """Of the clipped loss and the critic's squared error. `before` are the likelihoods when the actions were taken;
        actions that are not `used` say nothing. Arrays are [N x actors], or [N]."""
        p, count = self.parameters, len(states)
        hidden, means = self.means(states)
        spread = p["spread"]
        apart = (actions - means) / np.exp(spread)
        ratio = np.exp(np.clip(-0.5 * apart**2 - spread - before, -20.0, 20.0))
        gain = advantages[:, None]
        clipped = np.where(gain > 0, ratio > 1 + CLIP, ratio < 1 - CLIP)
        pushed = np.where(clipped | ~used, 0.0, -gain * ratio) / count  # by the likelihood
        by_mean = (pushed * apart / np.exp(spread)).T[:, :, None]  # [actors x N x 1]
        by_hidden = by_mean @ p["mean"].swapaxes(1, 2) * (1 - hidden**2)
        inner = np.tanh(states @ p["critic"] + p["critic offset"])
        by_value = 2 * ((inner @ p["value"] + p["value offset"])[:, 0] - returns)[:, None] / count
        by_inner = by_value @ p["value"].T * (1 - inner**2)
        return {
            "hidden": states.T[None] @ by_hidden,
            "hidden offset": by_hidden.sum(axis=1, keepdims=True),
            "mean": hidden.swapaxes(1, 2) @ by_mean,
            "mean offset": by_mean.sum(axis=1, keepdims=True),
            "spread": (pushed * (apart**2 - 1)).sum(axis=0) - ENTROPY,
            "critic": states.T @ by_inner,
            "critic offset": by_inner.sum(axis=0),
            "value": inner.T @ by_value,
            "value offset": by_value.sum(axis=0),
        }

    def step(self, gradients: dict[str, Floats]) -> None:
        """One step down (Adam)."""
        self._steps += 1
        for name, by in gradients.items():
            self._first[name] = 0.9 * self._first[name] + 0.1 * by
            self._second[name] = 0.999 * self._second[name] + 0.001 * by**2
            first = self._first[name] / (1 - 0.9**self._steps)
            second = self._second[name] / (1 - 0.999**self._steps)
            self.parameters[name] = self.parameters[name] - RATE * first / (np.sqrt(second) + 1e-8)
        self.parameters["spread"] = np.maximum(self.parameters["spread"], LEAST_SPREAD)


def advantages_of(rewards: Floats, values: Floats, last: Floats) -> Floats:
    """What each step was better than the critic had said [steps x N]: `values` are of the states before the steps, and
    `last` of those after the last."""
    advantages, after, later = np.zeros_like(rewards), last, np.zeros_like(last)
    for k in reversed(range(len(rewards))):
        later = rewards[k] + DISCOUNT * after - values[k] + DISCOUNT * SMOOTHING * later
        advantages[k], after = later, values[k]
    return advantages


class Proximal(Evolve):
    """Walks of actors that learn; what is proposed beside what they find is as of evolution."""

    def __init__(self, space: Space, seed: int = 0, learned: LearnedCost | None = None) -> None:
        super().__init__(space, seed, learned)
        self.networks = Networks(len(space.sketches) + space.sizes.shape[1], 1 + space.sizes.shape[1], self.rng)

    def explored(self) -> Points:
        """What walks come by that was not tried yet, the fastest predicted first. The actors learn from them."""
        rows = np.unique(self.beginning(), axis=0)
        seconds = self.residual.predict(rows)
        visited, predicted = [rows], [seconds]
        best = np.argsort(seconds, kind="stable")[:WALKERS]
        at, now, unit = rows[best], seconds[best], float(seconds[best[0]])
        states, actions, rewards, used = [], [], [], []
        for _ in range(STEPS):
            states.append(self.state(at))
            actions.append(self.networks.act(states[-1], self.rng))
            moved = self.moved(1 / (1 + np.exp(-actions[-1])))
            used.append(self.used(moved))
            legal = self.space.legal(moved)
            at = np.where(legal[:, None], moved, at)
            now = np.where(legal, self.residual.predict(at), now)
            rewards.append(np.where(legal, np.maximum(U - now / unit, WORST), WORST))
            visited.append(at)
            predicted.append(now)
        self.improve(np.stack(states), np.stack(actions), np.stack(rewards), np.stack(used), self.state(at))
        order = np.argsort(np.concatenate(predicted), kind="stable")
        return self.new(np.concatenate(visited)[order])

    def improve(self, states: Floats, actions: Floats, rewards: Floats, used: Bools, last: Floats) -> None:
        """Learns from walks: arrays [steps x N x ...]."""
        networks, flat = self.networks, states.reshape(-1, states.shape[-1])
        values = networks.values(flat).reshape(rewards.shape)
        gains = advantages_of(rewards, values, networks.values(last))
        returns = (gains + values).reshape(-1)
        scaled = ((gains - gains.mean()) / (gains.std() + 1e-8)).reshape(-1)
        taken, which = actions.reshape(-1, actions.shape[-1]), used.reshape(-1, used.shape[-1])
        before = networks.likelihood(flat, taken)
        for _ in range(EPOCHS):
            networks.step(networks.gradients(flat, taken, before, which, scaled, returns))

    def state(self, rows: Points) -> Floats:
        """The Sketch, and the place of each knob among its values from 0 to 1 [N x state]."""
        places = rows[:, 1:] / np.maximum(self.space.sizes[rows[:, 0]] - 1, 1)
        return np.column_stack([np.eye(len(self.space.sketches))[rows[:, 0]], places])

    def used(self, rows: Points) -> Bools:
        """Which actions say something: those of the Sketch, if there are several, and of the knobs that it has."""
        knobs = np.arange(rows.shape[1] - 1)[None, :] < self.space.widths[rows[:, 0]][:, None]
        return np.column_stack([np.full(len(rows), len(self.space.sketches) > 1), knobs])

    def moved(self, actions: Floats) -> Points:
        """Where actions in (0, 1) lead [N x (1 + knobs)], legal or not (formula 2)."""
        count = len(self.space.sketches)
        numbers = np.minimum((count * actions[:, 0]).astype(np.int64), count - 1)
        rows = np.zeros((len(actions), self.space.empty.shape[1]), np.int64)
        rows[:, 0] = numbers
        for number in np.unique(numbers):
            own = np.flatnonzero(numbers == number)
            for place, knob in enumerate(self.space.sketches[number].knobs):
                whole = [v for v in knob.values if isinstance(v, int)]
                sizes = np.array(whole if len(whole) == len(knob.values) else range(1, len(knob.values) + 1))
                wanted = np.rint(sizes.max() * actions[own, 1 + place])
                rows[own, 1 + place] = np.abs(sizes[None, :] - wanted[:, None]).argmin(axis=1)
        return rows
