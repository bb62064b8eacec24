"""The joint stage: which alternative's Tasks are worth the next round (ALT, section 5.2).

Cross exploration: an alternative (layouts, or where Tasks end) is judged by the best loops found for it. All of them
get a round for each Task in which they differ from what there is without tuning, and so do the Tasks that it has there;
those that are still behind by too much are dropped; the others get another round, and have to be closer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from modelc.space.sketch import Floats
from modelc.tune.search.objectives import Objective
from modelc.tune.search.scheduler import Scheduler, Work

BEHIND = (0.25, 0.10, 0.03)  # after so many rounds, the part of what it replaces that an alternative may cost more


class Cross(Scheduler):
    """Gives out rounds until every alternative is judged; the first ones of each network first."""

    def __init__(self, work: Sequence[Work], objective: Objective, seed: int = 0) -> None:
        super().__init__(work, objective, 0.0, seed)
        self.given = [0] * len(work)

    def next(self, busy: Collection[int] = (), takes: Sequence[float] | None = None) -> int | None:
        """The Task whose turn it is, none of the `busy` ones, whatever a round of it takes; None where nothing can be
        judged before something that is under way."""
        seconds = self.seconds
        for rounds in range(len(BEHIND)):
            for number in self.alternatives():
                if not self.alive(number, rounds, seconds):
                    continue
                for task in self.objective.weights.around(number, seconds):
                    done = max(self.given[task], len(self.histories[task]))
                    if done <= rounds and task not in self.exhausted and task not in busy:
                        self.given[task] = done + 1
                        return task
        return None

    def alternatives(self) -> list[int]:
        """All but the first one of each network, of all networks by turns."""
        weights = self.objective.weights
        ranks = {k: k - weights.first[weights.owners[k]] for k in range(len(weights.owners))}
        return sorted((k for k in ranks if ranks[k]), key=lambda k: (ranks[k], k))

    def alive(self, number: int, rounds: int, seconds: Floats) -> bool:
        """Whether so many rounds are done, and an alternative was not too far behind after any."""
        tasks, difference = self.objective.weights.around(number, seconds), self.objective.weights.difference(number)
        for done in range(1, rounds + 1):
            if any(len(self.histories[k]) < done and k not in self.exhausted for k in tasks):
                return False
            at = np.array(seconds)
            for k in tasks:
                if self.histories[k]:
                    at[k] = self.histories[k][min(done, len(self.histories[k])) - 1]
            if difference @ at > BEHIND[done - 1] * float(np.maximum(-difference, 0) @ at):
                return False
        return True
