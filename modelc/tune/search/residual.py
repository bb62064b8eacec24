"""What measurements say of the estimates' errors: log(measured / estimated) near a point, from what was measured of its
Sketch. Until enough is measured it is the Sketch's mean, and without any it is 0."""

from __future__ import annotations

import numpy as np

from modelc.space.sketch import Floats, Points
from modelc.tune.search.population import Space

REACH = 0.15  # of a knob's range: how far a measurement speaks for other values
PRIOR = 1.0  # measurements that the mean of what is known is worth


class Residual:
    """Estimates of a space, corrected by what was measured in it."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.rows, self.errors = space.empty, np.zeros(0)

    def learn(self, rows: Points, seconds: Floats) -> None:
        """Takes measured seconds of rows."""
        self.rows = np.concatenate([self.rows, rows])
        self.errors = np.concatenate([self.errors, np.log(seconds / self.space.estimate(rows))])

    def predict(self, rows: Points) -> Floats:
        """Seconds of each row."""
        return np.asarray(self.space.estimate(rows) * np.exp(self._errors(rows)), np.float64)

    def _errors(self, rows: Points) -> Floats:
        """Sums of known errors, weighted by nearness, and of the Sketch's own mean; of the mean of all for a Sketch of
        which little is known."""
        predicted = np.full(len(rows), float(self.errors.mean()) if len(self.errors) else 0.0)
        for number in np.unique(self.rows[:, 0]):
            at, measured = rows[:, 0] == number, self.rows[:, 0] == number
            if not at.any():
                continue
            errors, ranges = self.errors[measured], np.maximum(self.space.sizes[number] - 1, 1)
            mean = (predicted[at] * PRIOR + errors.sum()) / (PRIOR + len(errors))
            apart = (rows[at, 1:][:, None, :] - self.rows[measured, 1:][None, :, :]) / ranges
            near = np.exp(-0.5 * np.sum((apart / REACH) ** 2, axis=2))
            predicted[at] = (mean * PRIOR + near @ errors) / (PRIOR + near.sum(axis=1))
        return predicted
