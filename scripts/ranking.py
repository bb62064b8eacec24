"""How well predicted scores say what was measured (Ansor, section 7.5). `groups` say which records are of one Task:
order is compared within Tasks, and once as Ansor does, among all records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from modelc.measure.measurement import SURE
from modelc.space.sketch import Bools, Floats
from modelc.tune.search.learned import ALIKE, FEW, Ints, best_quarter, in_order

APART = (0.05, 0.1, 0.2)  # of the slower one's time: pairs that are so far apart are counted by themselves
TOP = 30  # of recall


@dataclass(frozen=True)
class Ranking:
    """`rmse` and `r2` of scores that are throughputs over the best of their Task; `pairs`, the share of pairs that are
    in the right order, of `compared`; `sure`, of those that the measurements tell apart by SURE of their standard
    errors, which are `told` of all; `apart`, of those that are further apart than each of APART; `recall` of the best
    TOP; `quarter`, the rank correlation within the best quarter of each Task, as a mean; `pooled`, the share of pairs
    of all Tasks together."""

    records: int
    compared: int
    rmse: float
    r2: float
    pairs: float
    sure: float
    told: float
    apart: tuple[float, ...]
    recall: float
    quarter: float
    pooled: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def ranked(scores: Floats, measured: Floats, groups: Ints, noise: Floats | None = None) -> Ranking:
    """`measured` are throughputs over the best of the Task, with relative standard errors `noise` (none); `scores` what
    was predicted of them [P]."""
    errors = np.zeros(len(scores)) if noise is None else noise
    right, compared = pairs_of(scores, measured, groups)
    sure, told = pairs_of(scores, measured, groups, errors)
    off = float(np.mean((scores - measured) ** 2)) if len(scores) else 0.0
    spread = float(np.var(measured)) if len(measured) else 0.0
    return Ranking(
        records=len(scores),
        compared=compared,
        rmse=off**0.5,
        r2=1 - off / spread if spread else 0.0,
        pairs=_share(right, compared),
        sure=_share(sure, told),
        told=_share(told, compared),
        apart=tuple(_share(*pairs_of(scores, measured, groups, least=least)) for least in APART),
        recall=_mean([_recall(scores[at], measured[at]) for at in tasks(groups)]),
        quarter=_mean([_quarter(scores[at], measured[at]) for at in tasks(groups) if len(at) >= FEW]),
        pooled=pooled_pairs(scores, measured),
    )


def tasks(groups: Ints) -> Iterator[NDArray[np.intp]]:
    """The places of each Task's records."""
    for group in np.unique(groups):
        yield np.flatnonzero(groups == group)


def pairs_of(
    scores: Floats, measured: Floats, groups: Ints, noise: Floats | None = None, least: float = ALIKE
) -> tuple[float, int]:
    """(pairs in the right order, half of those that are predicted equal among them; pairs that are compared): those
    whose times are further apart than `least` of the slower one's and than SURE of their standard errors `noise`."""
    right, compared = 0.0, 0
    for at in tasks(groups):
        faster = compared_of(measured[at], None if noise is None else noise[at], least)
        right += in_order(scores[at], faster)
        compared += int(faster.sum())
    return right, compared


def pooled_pairs(scores: Floats, measured: Floats) -> float:
    """The share of pairs in the right order, and half of those that are predicted equal, of all that were not measured
    equal, whatever Tasks they are of: Ansor's pairwise comparison accuracy."""
    right_less_wrong = compared = 0.0
    for k in range(len(scores)):  # with those before it: all pairs at once are too many
        said, truth = np.sign(scores[k] - scores[:k]), np.sign(measured[k] - measured[:k])
        right_less_wrong += float(said @ truth)
        compared += float(truth @ truth)
    return 0.5 + 0.5 * right_less_wrong / compared if compared else 0.0


def compared_of(measured: Floats, noise: Floats | None = None, least: float = ALIKE) -> Bools:
    """Which of the first of a Task's pairs is known to be the faster one [P x P]."""
    doubt: Floats | float = least
    if noise is not None:
        doubt = np.maximum(least, 1 - np.exp(-SURE * np.hypot(noise[:, None], noise[None, :])))
    return np.asarray(measured[:, None] * (1 - doubt) > measured[None, :])


def as_measured(measured: Floats, noise: Floats, groups: Ints) -> tuple[float, float]:
    """The shares of pairs, and of those that the measurements tell apart, that what predicts times without an error
    would put in the order that was measured, if errors are normal: all that is above is learned noise."""
    likely, told = [], []
    for at in tasks(groups):
        gaps = np.log(measured[at][:, None] / measured[at][None, :])
        errors = np.maximum(np.hypot(noise[at][:, None], noise[at][None, :]), 1e-9)
        chance = stats.norm.cdf(gaps / errors)
        likely.append(chance[compared_of(measured[at])])
        told.append(chance[compared_of(measured[at], noise[at])])
    return _mean(np.concatenate(likely).tolist()), _mean(np.concatenate(told).tolist())


def _share(right: float, pairs: int) -> float:
    return right / pairs if pairs else 0.0


def _recall(scores: Floats, measured: Floats) -> float:
    """The share of the best TOP, or of the best half of few, that is among as many of the highest scores."""
    count = min(TOP, (len(scores) + 1) // 2)
    best, said = (set(np.argsort(-x, kind="stable")[:count].tolist()) for x in (measured, scores))
    return len(best & said) / count


def correlation(scores: Floats, measured: Floats) -> float:
    """Spearman's rank correlation; NaN where all are predicted, or measured, equal."""
    if np.ptp(scores) == 0 or np.ptp(measured) == 0:
        return float("nan")
    return float(stats.spearmanr(scores, measured).statistic)


def _quarter(scores: Floats, measured: Floats) -> float:
    """The rank correlation within the best quarter; 0 where all of it is predicted equal."""
    best = best_quarter(measured)
    return float(np.nan_to_num(correlation(scores[best], measured[best])))


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else 0.0
