"""The price: seconds of what schedules do (Work), with the coefficients of a machine. Nothing else computes them.

overlapped   the longest of computing with copying and of what each level moves, and a little of the others: a norm
             of degree `sharpness`
exposed      of the smaller of computing and moving, the part that nothing goes beside
demanded     moving what nothing prefetches, at `demanded_share` of the bandwidth
arriving     `streamed_wait_ratio` of moving constants that are prefetched, as far as there is arithmetic to wait
transferred  lines out of other cores' caches
phases       `phase_seconds` each
forks        `fork_join_seconds` each
"""

from __future__ import annotations

import numpy as np

from modelc.space.cost.work import SOURCES, Floats, Work
from modelc.target import CostParameters

TERMS = ("overlapped", "exposed", "demanded", "arriving", "transferred", "phases", "forks")
FEATURES = ("computing", "copying", *SOURCES, *TERMS[1:])  # what a learned cost reads of a schedule, beside its loops


def terms(work: Work, cost: CostParameters) -> Floats:
    """The seconds of each term [P x len(TERMS)]."""
    arithmetic, moving = work.computing + work.copying, work.moving.sum(axis=1)
    resources = np.column_stack([arithmetic, work.moving])
    longest = np.max(resources, axis=1, keepdims=True)
    longest = np.where(longest > 0, longest, 1.0)
    overlapped = longest[:, 0] * np.sum((resources / longest) ** cost.sharpness, axis=1) ** (1 / cost.sharpness)
    columns = [
        overlapped,
        work.exposed * np.minimum(arithmetic, moving),
        work.demanded / cost.demanded_share,
        cost.streamed_wait_ratio * np.minimum(arithmetic, work.arriving),
        work.transferred,
        cost.phase_seconds * work.phases,
        cost.fork_join_seconds * work.forks,
    ]
    return np.column_stack(columns)


def seconds(work: Work, cost: CostParameters) -> Floats:
    """What the schedules take [P]."""
    return np.asarray(terms(work, cost).sum(axis=1), np.float64)


def features(work: Work, cost: CostParameters) -> Floats:
    """Shares of the seconds, of resources by themselves and of terms [P x len(FEATURES)]."""
    every = terms(work, cost)
    resources = np.column_stack([work.computing, work.copying, work.moving])
    total = np.maximum(every.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return np.asarray(np.concatenate([resources, every[:, 1:]], axis=1) / total, np.float64)
