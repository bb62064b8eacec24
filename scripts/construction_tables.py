"""What compare_construction.py reports: each way's choice against the best random candidate, and what was predicted
against what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from kept_rows import Row
from ranking import correlation

from modelc.tune.search.learned import best_quarter

WAYS = ("construction", "rules", "greedy", "analytic")
BEHIND = 1.1  # of the best random candidate's time: where construction takes more, the knobs of both are shown


def best_random(row: Row) -> Row:
    found: Row = min(row["points"], key=lambda p: p["measured"])
    return found


def ratios(row: Row) -> dict[str, float]:
    """The time of each way's choice over that of the best random candidate."""
    best = best_random(row)["measured"]
    return {way: row["ways"][way]["measured"] / best for way in WAYS}


def prediction(row: Row) -> dict[str, float]:
    """How far predicted and measured times of the random candidates agree."""
    predicted, measured = (np.array([p[key] for p in row["points"]]) for key in ("predicted", "measured"))
    quarter = best_quarter(1 / measured)
    return {
        "regret": float(measured[np.argmin(predicted)] / measured.min()),
        "rank": correlation(predicted, measured),
        "rank of best quarter": correlation(predicted[quarter], measured[quarter]),
        "measured / predicted": float(np.median(measured / predicted)),
    }


def tables(rows: Sequence[Row], kinds: Mapping[str, str]) -> list[str]:
    """Both tables, and the knobs where construction is behind. `kinds` says what a task is."""
    names = [f"{row['task']} ({kinds[row['task']]})" if row["task"] in kinds else row["task"] for row in rows]
    wide = max(map(len, names))
    lines = [f"{'times of the best random one':{wide}} {'of':>4} {'dropped':>7} {'us':>9} {'GFLOP/s':>8}"]
    lines[0] += "".join(f" {way:>12}" for way in WAYS)
    for name, row in zip(names, rows, strict=True):
        best, over = best_random(row)["measured"], ratios(row)
        lines.append(f"{name:{wide}} {len(row['points']):4} {row['dropped']:7} {best * 1e6:9.1f}")
        lines[-1] += f" {row['flops'] / best / 1e9:8.1f}" + "".join(f" {over[way]:12.3f}" for way in WAYS)
    for what, mean in (("median", np.median), ("geometric mean", lambda x: np.exp(np.mean(np.log(x))))):
        figures = (float(mean([ratios(row)[way] for row in rows])) for way in WAYS)
        lines.append(f"{what:{wide + 32}}" + "".join(f" {x:12.3f}" for x in figures))
    figures = (float(np.median([row["ways"][way]["choosing"] for row in rows])) for way in WAYS)
    lines.append(f"{'median seconds to choose':{wide + 32}}" + "".join(f" {x:12.3f}" for x in figures))
    found = [prediction(row) for row in rows]
    lines += ["", f"{'predicted against measured':{wide}}" + "".join(f" {key:>20}" for key in found[0])]
    lines += [
        f"{name:{wide}}" + "".join(f" {x:20.2f}" for x in f.values()) for name, f in zip(names, found, strict=True)
    ]
    medians = (float(np.nanmedian([f[key] for f in found])) for key in found[0])
    lines += [f"{'median':{wide}}" + "".join(f" {x:20.2f}" for x in medians)]
    for name, row in zip(names, rows, strict=True):
        if ratios(row)["construction"] > BEHIND:
            both = {"the best": best_random(row), "construction": row["ways"]["construction"]}
            lines += ["", f"{name}: construction is behind"]
            lines += [
                f"  {who:12} {one['measured'] * 1e6:9.1f} us (predicted {one['predicted'] * 1e6:9.1f}): {one['knobs']}"
                for who, one in both.items()
            ]
    return lines
