"""How well predicted scores say what was measured (Ansor, section 7.5). `groups` say which records are of one Task:
order is compared within Tasks alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ALIKE = 0.02  # of the slower one's time: pairs nearer than that are not compared
TOP = 30  # of recall
FEW = 8  # records of a Task, below which it has no best quarter


@dataclass(frozen=True)
class Ranking:
    """`rmse` and `r2` of scores that are throughputs over the best of their Task; `pairs`, the share of pairs that are
    in the right order, of `compared`; `recall` of the best TOP; `quarter`, the rank correlation within the best quarter
    of each Task, as a mean."""

    records: int
    compared: int
    rmse: float
    r2: float
    pairs: float
    recall: float
    quarter: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def ranked(scores: Floats, measured: Floats, groups: Ints) -> Ranking:
    """`measured` are throughputs over the best of the Task, `scores` what was predicted of them [P]."""
    right, compared = pairs_of(scores, measured, groups)
    apart = float(np.mean((scores - measured) ** 2)) if len(scores) else 0.0
    spread = float(np.var(measured)) if len(measured) else 0.0
    return Ranking(
        records=len(scores),
        compared=compared,
        rmse=apart**0.5,
        r2=1 - apart / spread if spread else 0.0,
        pairs=right / compared if compared else 0.0,
        recall=_mean([_recall(scores[at], measured[at]) for at in tasks(groups)]),
        quarter=_mean([_quarter(scores[at], measured[at]) for at in tasks(groups) if len(at) >= FEW]),
    )


def tasks(groups: Ints) -> Iterator[NDArray[np.intp]]:
    """The places of each Task's records."""
    for group in np.unique(groups):
        yield np.flatnonzero(groups == group)


def pairs_of(scores: Floats, measured: Floats, groups: Ints) -> tuple[float, int]:
    """(pairs in the right order, half of those that are predicted equal among them; pairs that are compared)."""
    right, compared = 0.0, 0
    for at in tasks(groups):
        truth, said = measured[at], scores[at]
        faster = truth[:, None] * (1 - ALIKE) > truth[None, :]
        right += float((faster & (said[:, None] > said[None, :])).sum())
        right += 0.5 * float((faster & (said[:, None] == said[None, :])).sum())
        compared += int(faster.sum())
    return right, compared


def _recall(scores: Floats, measured: Floats) -> float:
    """The share of the best TOP, or of the best half of few, that is among as many of the highest scores."""
    count = min(TOP, (len(scores) + 1) // 2)
    best, said = (set(np.argsort(-x, kind="stable")[:count].tolist()) for x in (measured, scores))
    return len(best & said) / count


def correlation(scores: Floats, measured: Floats) -> float:
    """Spearman's rank correlation; NaN where all are predicted, or measured, equal."""
    if np.ptp(scores) == 0 or np.ptp(measured) == 0:
        return float("nan")
    return float(spearmanr(scores, measured).statistic)


def best_quarter(measured: Floats) -> NDArray[np.intp]:
    """The places of the quarter of the highest throughputs, of FEW / 2 at least."""
    return np.argsort(-measured, kind="stable")[: max(FEW // 2, len(measured) // 4)]


def _quarter(scores: Floats, measured: Floats) -> float:
    """The rank correlation within the best quarter; 0 where all of it is predicted equal."""
    best = best_quarter(measured)
    return float(np.nan_to_num(correlation(scores[best], measured[best])))


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else 0.0
