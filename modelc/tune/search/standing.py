"""How tuning stands after a round: for whoever watches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
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

    def to_json(self) -> dict[str, Any]:
        """With the Task of the round alone."""
        fields = asdict(self)
        own: dict[str, Any] = next(task for task in fields.pop("tasks") if task["task"] == self.task)
        return fields | own


@dataclass
class Watch:
    """Remembers when each Task was last improved. `models` are in the order of the objective's weights, and so are
    `beside`, ONNX Runtime's time over the untuned package's, end to end (0: not known)."""

    budget: Budget
    models: Sequence[str]
    beside: Sequence[float] = ()
    gains: dict[str, float] = field(default_factory=dict)  # by the Subject's key
    improved: dict[str, float] = field(default_factory=dict)  # likewise

    def begin(self, subjects: Sequence[Subject]) -> None:
        """What a stage begins with is no improvement."""
        self.gains = {subject.key: subject.gain for subject in subjects}

    def after(
        self,
        moment: Moment,
        subject: Subject,
        subjects: Sequence[Subject],
        scheduler: Scheduler,
        alternatives: Sequence[str] = ("",),
        stage: str = "loops",
    ) -> Standing:
        """How everything stands after a round of one of `subjects`; `alternatives` say what is otherwise in each."""
        gain, seconds, budget = subject.gain, moment.seconds, self.budget
        if gain > self.gains[subject.key]:
            self.improved[subject.key] = seconds
        self.gains[subject.key] = gain
        best, gains = scheduler.seconds, np.array([self.gains[each.key] for each in subjects])
        weights = scheduler.objective.weights
        predicted = scheduler.predicted().tolist()
        untuned = (weights.each @ (best * gains))[list(weights.first)].tolist()
        shares = scheduler.slopes() * best
        shares = shares / (shares.sum() or 1.0)
        models = [
            ModelStanding(model, now, before, beside * before / now if beside and now else None, alternatives[leading])
            for model, now, before, beside, leading in zip(
                self.models,
                predicted,
                untuned,
                self.beside or (0.0,) * len(self.models),
                scheduler.leading(),
                strict=True,
            )
        ]
        tasks = [
            TaskStanding(
                each.key,
                each.name,
                tuple(self.models[k] for k in sorted({weights.owners[row] for row in np.flatnonzero(often)})),
                float(share),
                float(own),
                self.gains[each.key],
                len(each.measured),
                self.improved.get(each.key),
                scheduler.roofline(k),
            )
            for k, (each, often, share, own) in enumerate(zip(subjects, weights.each.T, shares, best, strict=True))
        ]
        return Standing(
            task=subject.key,
            seconds=round(seconds, 3),
            seconds_left=None if budget.seconds == np.inf else max(0.0, round(budget.seconds - seconds, 3)),
            trials=moment.trials,
            trials_left=None if budget.trials == np.inf else int(budget.trials) - moment.trials,
            trials_per_second=moment.trials / max(seconds - moment.preparing, 1e-9),
            predicted_seconds=sum(predicted),
            untuned_seconds=sum(untuned),
            each=tuple(models),
            tasks=tuple(sorted(tasks, key=lambda standing: -standing.share)),
            stage=stage,
        )
