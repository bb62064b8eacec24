"""Which Task is worth the next round (Ansor, section 6 and appendix A).

    |df/dt_i| ~ df/dg_i (alpha (g_i(t_i) - g_i(t_i - window)) / window
                         + (1 - alpha) min(-g_i / t_i, beta C_i / max_{k in N(i)} V_k - g_i))

g_i are the seconds of Task i's best Candidate after t_i rounds, C_i its operations, V_k the operations a second that a
similar Task k reaches. df/dg_i is a difference quotient, so that the objective may be any function; a Task whose
improvement would not change it is left alone, and so is one that is as good as at its roofline: no round can save what
lies below that. Ansor's rounds are a unit of time; here some take several times as long as others, for their kernels
are built for longer, so gradients are divided by what a round of the Task takes of the budget.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from modelc.space.sketch import Floats
from modelc.tune.search.objectives import Objective

ALPHA, BETA, WINDOW, EPSILON = 0.2, 2.0, 3, 0.05
WORTH = 0.003  # of the objective, that a Task's seconds have to make up to be worth a round
HOPE = 0.5  # of a Task's seconds, that further rounds may save at the best
LITTLE = 0.01  # of a Task's seconds: the step of the difference quotient
ENOUGH = 0.95  # of its roofline, at which a Task is left alone
BELIEVED = 1.05  # of it, above which the Target's figures are not those of the machine: they say nothing then


@dataclass(frozen=True)
class Work:
    """What is known of one Task beforehand: `seconds` that it is estimated to take; its `operations`; Tasks of equal
    `likeness` are similar; `floor`, the seconds of its roofline (0: not known)."""

    seconds: float = 0.0
    operations: float = 1.0
    likeness: Hashable = None
    floor: float = 0.0


class Scheduler:
    """Gives out rounds. At first every Task that can pay for one gets one, the heaviest first."""

    def __init__(self, work: Sequence[Work], objective: Objective, epsilon: float = EPSILON, seed: int = 0) -> None:
        self.work, self.objective, self.epsilon = work, objective, epsilon
        self.rng = np.random.default_rng(seed)
        self.histories: list[list[float]] = [[] for _ in work]
        self.exhausted: set[int] = set()

    @property
    def seconds(self) -> Floats:
        """The best seconds of each Task [n]: where nothing is measured, the estimated ones, times what those of similar
        Tasks are off by, or those of all."""
        pairs = list(zip(self.histories, self.work, strict=True))
        off: dict[Hashable, list[float]] = {}
        for history, work in pairs:
            if history:
                off.setdefault(work.likeness, []).append(history[-1] / work.seconds)
        every = float(np.median([ratio for ratios in off.values() for ratio in ratios])) if off else 1.0
        like = {key: float(np.median(ratios)) for key, ratios in off.items()}
        return np.array([h[-1] if h else w.seconds * like.get(w.likeness, every) for h, w in pairs])

    def compared(self) -> tuple[int, ...]:
        """The alternatives that are compared: those without tuning, and others of which all Tasks that decide are
        measured."""
        weights, seconds = self.objective.weights, self.seconds
        return tuple(
            k
            for k in range(len(weights.owners))
            if k in weights.first or all(self.histories[task] for task in weights.around(k, seconds))
        )

    def predicted(self) -> Floats:
        """The seconds of each network [networks]."""
        return self.objective.weights.only(self.compared()).seconds(self.seconds)

    def leading(self) -> tuple[int, ...]:
        """The fastest alternative of each network."""
        compared = self.compared()
        return tuple(compared[k] for k in self.objective.weights.only(compared).leading(self.seconds))

    def took(self, task: int, seconds: float, exhausted: bool = False) -> None:
        """Says what a Task's best seconds are after one more round of it; `exhausted`: there is nothing left to try."""
        self.histories[task].append(seconds)
        if exhausted:
            self.exhausted.add(task)

    def next(self, busy: Collection[int] = (), takes: Sequence[float] | None = None) -> int | None:
        """The Task whose turn it is, none of the `busy` ones; None where no Task can pay for another round. A round of
        each `takes` so much of the budget [n], in any unit."""
        slopes = self.slopes()
        left = [k for k in range(len(self.work)) if k not in self.exhausted and k not in busy]
        open_ = [k for k in left if self._pays(k, slopes[k])]
        if not open_:
            return None
        if fresh := [k for k in open_ if not self.histories[k]]:
            seconds = self.seconds
            return max(fresh, key=lambda k: slopes[k] * seconds[k])
        if self.rng.random() < self.epsilon:
            return int(self.rng.choice(open_))
        gradients = self.gradients(slopes) / (1.0 if takes is None else np.asarray(takes))
        return max(open_, key=lambda k: abs(gradients[k]))

    def slopes(self) -> Floats:
        """df/dg of each Task [n]: by how much less of its seconds makes the objective less."""
        seconds = self.seconds
        now = self.objective(seconds, self.histories)
        slopes = np.zeros(len(seconds))
        for k, own in enumerate(seconds):
            less = seconds.copy()
            less[k] = own * (1 - LITTLE)
            slopes[k] = (now - self.objective(less, self.histories)) / (own * LITTLE)
        return slopes

    def gradients(self, slopes: Floats) -> Floats:
        """df/dt of each Task of which a round was measured [n]."""
        gradients = np.zeros(len(self.work))
        for k, history in enumerate(self.histories):
            if history:
                window = min(WINDOW, len(history) - 1)
                past = (history[-1] - history[-1 - window]) / window if window else 0.0
                hope = min(-history[-1] / len(history), self._like(k) - history[-1])
                gradients[k] = slopes[k] * (ALPHA * past + (1 - ALPHA) * hope)
        return gradients

    def _like(self, task: int) -> float:
        """BETA times the seconds at the rate of the best similar Task, itself included."""
        own = self.work[task]
        rates = [
            other.operations / history[-1]
            for other, history in zip(self.work, self.histories, strict=True)
            if history and other.likeness == own.likeness
        ]
        return BETA * own.operations / max(rates)

    def _pays(self, task: int, slope: float) -> bool:
        """Whether what a round could save is worth it: a part of the objective that falls with every round of it."""
        whole = abs(self.objective(self.seconds, self.histories))
        save = slope * HOPE * self.seconds[task] / max(1, len(self.histories[task]))
        if self.histories[task] and self.roofline(task) <= BELIEVED:
            if self.roofline(task) >= ENOUGH:
                return False
            save = min(save, slope * (self.seconds[task] - self.work[task].floor))
        return bool(save > WORTH * HOPE * whole)

    def roofline(self, task: int) -> float:
        """The share of its roofline that a Task's best reaches; 0 where that is not known."""
        return float(self.work[task].floor / self.seconds[task])
