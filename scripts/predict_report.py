"""How well the analytic cost predicts: random candidates of each task, predicted against measured.

    python scripts/predict_report.py [--candidates 30] [--rounds 5] [--json FILE] [--tasks resnet50:conv_relu_45 ...]

Regret is the measured time of the candidate that is predicted best, over that of the one measured best. The rank
correlation (Spearman's) is over all candidates, and over the quarter that is measured best.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from compare_construction import TASKS, measure, task_of

from modelc.space.analytic import estimate, knobs_at, model_of, random_candidates
from modelc.space.construct import tiled_of
from modelc.target import Target, load_target


def rank_correlation(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Spearman's, with ranks of equals in order of appearance."""
    ranks = [np.argsort(np.argsort(x, kind="stable"), kind="stable") for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1]) if len(a) > 2 else float("nan")


def report(name: str, target: Target, count: int, rounds: int, seed: int) -> dict[str, Any]:
    task = task_of(name)
    tiled = tiled_of(task, target)
    if tiled is None:
        raise SystemExit(f"{name} is not a tiled task")
    model = model_of(tiled)
    population = random_candidates(model, count, seed)
    knobs = [knobs_at(model, population, p) for p in range(len(population))]
    predicted = estimate(model, population).seconds
    measured = np.array(measure(task, [tiled.candidate(k) for k in knobs], target, rounds))
    quarter = np.argsort(measured, kind="stable")[: max(4, len(measured) // 4)]
    return {
        "task": name,
        "candidates": len(knobs),
        "best": float(measured.min()),
        "worst": float(measured.max()),
        "regret": float(measured[np.argmin(predicted)] / measured.min()),
        "rank": rank_correlation(predicted, measured),
        "rank_of_best_quarter": rank_correlation(predicted[quarter], measured[quarter]),
        "ratio": float(np.median(measured / predicted)),
        "points": [
            {"knobs": str(k), "predicted": float(p), "measured": float(m)}
            for k, p, m in zip(knobs, predicted, measured, strict=True)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=30, help="random candidates of each task")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="native")
    parser.add_argument("--tasks", nargs="+", default=TASKS, metavar="MODEL:TASK")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    target = replace(load_target(options.target), cores=1)
    print(f"{'task':34} {'n':>4} {'best us':>9} {'worst/best':>10} {'regret':>7} {'rank':>6} {'best quarter':>12}"
          f" {'measured/predicted':>18}")  # fmt: skip
    rows = []
    for name in options.tasks:
        rows.append(r := report(name, target, options.candidates, options.rounds, options.seed))
        print(f"{name:34} {r['candidates']:4} {r['best'] * 1e6:9.1f} {r['worst'] / r['best']:10.2f} {r['regret']:7.3f}"
              f" {r['rank']:6.2f} {r['rank_of_best_quarter']:12.2f} {r['ratio']:18.2f}", flush=True)  # fmt: skip
    mean = {k: float(np.nanmean([r[k] for r in rows])) for k in ("rank", "rank_of_best_quarter")}
    regret = float(np.exp(np.mean(np.log([r["regret"] for r in rows]))))
    print(f"regret {regret:.3f} (geometric mean), rank correlation {mean['rank']:.2f},"
          f" of the best quarter {mean['rank_of_best_quarter']:.2f}")  # fmt: skip
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
