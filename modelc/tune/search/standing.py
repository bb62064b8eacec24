"""How tuning stands after a round: for whoever watches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from modelc.tune.search.scheduler import Scheduler
from modelc.tune.search.tune import Budget, Moment, Subject


@dataclass(frozen=True)
class TaskStanding:
    """`share` of the objective; `best_seconds`, estimated where nothing is measured; `gain`, the untuned time over the
    best; `measured` in this session; `improved`, seconds since its start when the best last became better. `models` are
    those that it occurs in; `roofline`, the share of it that the best reaches (0: not known)."""

    task: str
    name: str
    models: tuple[str, ...]
    share: float
    best_seconds: float
    gain: float
    measured: int
    improved: float | None
    roofline: float = 0.0


@dataclass(frozen=True)
class ModelStanding:
    """Predicted seconds of a model, with what was found and without. `ort_ratio`: how many times as fast as ONNX
    Runtime it is predicted to be (None: not known). `leading` says what is otherwise in the fastest of its alternatives
    than without tuning (nothing: its Tasks' schedules alone)."""

    model: str
    predicted_seconds: float
    untuned_seconds: float
    ort_ratio: float | None = None
    leading: str = ""

    @staticmethod
    def of(model: str, predicted: float, untuned: float, beside: float, leading: str) -> ModelStanding:
        """`beside` is ONNX Runtime's time over the untuned package's, end to end (0: not known)."""
        ort_ratio = beside * untuned / predicted if beside and predicted else None
        return ModelStanding(model, predicted, untuned, ort_ratio, leading)


@dataclass(frozen=True)
class Standing:
    """After a round of `task`: seconds and measurements since the start, and what is left of the budget; predicted
    seconds of all models, with what was found and without, and of each. `tasks`, the one with the largest share
    first. `stage`: "joint", of layouts and loops, or "loops"."""

    task: str
    seconds: float
    seconds_left: float | None
    trials: int
    trials_left: int | None
    trials_per_second: float
    predicted_seconds: float
    untuned_seconds: float
    each: tuple[ModelStanding, ...]
    tasks: tuple[TaskStanding, ...]
    stage: str = "loops"

    @property
    def current(self) -> TaskStanding:
        return next(standing for standing in self.tasks if standing.task == self.task)

    def to_json(self) -> dict[str, Any]:
        """With the Task of the round alone."""
        fields = asdict(self)
        del fields["tasks"]
        return fields | asdict(self.current)


class Watch:
    """Remembers when each of `subjects` was last improved, in an earlier `stage` too. `names` are for people, by the
    Subject's key; `models` are in the order of the objective's weights, and so are `beside`, ONNX Runtime's time over
    the untuned package's, end to end (0: not known), and what their `alternatives` have otherwise."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        names: Mapping[str, str],
        scheduler: Scheduler,
        budget: Budget,
        models: Sequence[str] = ("",),
        beside: Sequence[float] = (),
        alternatives: Sequence[str] = ("",),
        stage: str = "loops",
        earlier: Watch | None = None,
    ) -> None:
        self.models, self.alternatives, self.stage = tuple(models), tuple(alternatives), stage
        self.beside = tuple(beside) or (0.0,) * len(self.models)
        self.subjects, self.names, self.scheduler, self.budget = subjects, names, scheduler, budget
        self._gains = {subject.key: subject.gain for subject in subjects}
        self._improved: dict[str, float] = {} if earlier is None else dict(earlier._improved)

    def after(self, moment: Moment, subject: Subject) -> Standing:
        """How everything stands after a round of `subject`."""
        gain = subject.gain
        if gain > self._gains[subject.key]:
            self._improved[subject.key] = moment.seconds
        self._gains[subject.key] = gain
        best = self.scheduler.seconds
        gains = np.array([self._gains[watched.key] for watched in self.subjects])
        weights, leading = self.scheduler.objective.weights, self.scheduler.leading()
        predicted = list(map(float, self.scheduler.predicted()))
        untuned = list(map(float, (weights.each @ (best * gains))[list(weights.first)]))
        within = [
            {self.models[owner] for owner, often in zip(weights.owners, column, strict=True) if often}
            for column in weights.each.T
        ]
        shares = self.scheduler.slopes() * best
        shares = shares / (shares.sum() or 1.0)
        tasks = [
            TaskStanding(
                watched.key,
                self.names[watched.key],
                tuple(name for name in self.models if name in within[k]),
                float(shares[k]),
                float(best[k]),
                float(gains[k]),
                len(watched.measured),
                self._improved.get(watched.key),
                self.scheduler.roofline(k),
            )
            for k, watched in enumerate(self.subjects)
        ]
        budget, spent = self.budget, moment.seconds
        return Standing(
            task=subject.key,
            seconds=round(spent, 3),
            seconds_left=None if budget.seconds == np.inf else max(0.0, round(budget.seconds - spent, 3)),
            trials=moment.trials,
            trials_left=None if budget.trials == np.inf else int(budget.trials) - moment.trials,
            trials_per_second=moment.trials / max(spent - moment.preparing, 1e-9),
            predicted_seconds=sum(predicted),
            untuned_seconds=sum(untuned),
            each=tuple(
                map(
                    ModelStanding.of,
                    self.models,
                    predicted,
                    untuned,
                    self.beside,
                    (self.alternatives[k] for k in leading),
                )
            ),
            tasks=tuple(sorted(tasks, key=lambda standing: -standing.share)),
            stage=self.stage,
        )
