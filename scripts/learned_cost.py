"""How well the learned cost ranks what was measured, beside the analytic cost.

    python scripts/learned_cost.py [--database FILE] [--target NAME|FILE.yaml] [--version V] [--folds 5] [--most N]
                                   [--seed N] [--json FILE]

Examples are the good records of a database of `modelc tune` (the user's own by default) for one target and version of
the code that lie on a point of a Sketch, on the scale of what was measured by turns, for each Task and condition. Each
is scored by a model that was trained on other parts of them (--folds): by chance, so that the model has seen other
schedules of the Task; and ("other Tasks") by Task, so that it has seen none. Printed are, as of Ansor (section 7.5),
RMSE and R^2 of throughputs over the best of their Task, the share of pairs in the right order, and recall of the best
30; and Spearman's rank correlation within the best quarter of each Task.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from modelc.database import Conditions, Record, code_version, default_place, records
from modelc.errors import ModelcError
from modelc.ir.block import Task
from modelc.policy import Policy
from modelc.search.learned import MISSING, Example, analytic, available, groups_of, held_out, scales
from modelc.search.learned import throughputs as measured
from modelc.search.population import Space
from modelc.search.ranking import Ranking, ranked
from modelc.search.resume import COMPARED, examples_of
from modelc.target import Target, load_target


def examples_of_task(task: Task, found: Sequence[Record], target: Target) -> Iterator[Example]:
    """Those of the records of one Task, condition by condition."""
    groups: dict[Conditions, list[Record]] = {}
    for record in found:
        groups.setdefault(record.conditions, []).append(record)
    for number, (conditions, group) in enumerate(groups.items()):
        allowed = conditions.policy.split()
        policy = Policy(winograd="winograd" in allowed, tensorize="tensorize" in allowed)
        space = Space(task, target, policy, conditions.threads)
        yield from (replace(one, task=f"{task.hash} {number}") for one in examples_of(space, group))


def table(rows: dict[str, Ranking]) -> str:
    lines = [f"{'':24}{'RMSE':>8}{'R^2':>8}{'pairs':>8}{'recall':>8}{'quarter':>9}"]
    for name, one in rows.items():
        numbers = f"{one.rmse:8.3f}{one.r2:8.3f}{one.pairs:8.3f}{one.recall:8.3f}{one.quarter:9.3f}"
        lines.append(f"{name:24}{numbers}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", type=Path, default=default_place())
    parser.add_argument("--target", default="native")
    parser.add_argument("--version", default=code_version(), help="of the code that the records were made by")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--most", type=int, default=100_000, help="examples at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if not available():
        raise SystemExit(MISSING)
    target = load_target(given.target)
    examples: list[Example] = []
    start = time.process_time()
    try:
        for task, found in records(given.database, target.key, given.version):
            examples += examples_of_task(task, found, target)
            if len(examples) >= given.most:
                break
    except ModelcError as error:
        raise SystemExit(f"{error}") from None
    spent = time.process_time() - start
    tasks = len({one.task for one in examples})
    if tasks < 2:
        raise SystemExit(
            f"{given.database} has {len(examples)} records of {tasks} Tasks with at least {COMPARED} for the target "
            f"{target.name} and version {given.version}; expected two Tasks: run modelc tune"
        )
    known, groups = scales(examples), groups_of(examples)
    wanted = measured(examples, known)
    started = time.process_time()
    scores = {
        "analytic cost": analytic(examples, known),
        "learned cost": held_out(examples, given.folds, given.seed),
        "learned, other Tasks": held_out(examples, min(given.folds, tasks), given.seed, by_task=True),
    }
    trained = time.process_time() - started
    rows = {name: ranked(found, wanted, groups) for name, found in scores.items()}
    pairs = rows["analytic cost"].compared
    print(f"{len(examples)} records of {tasks} Tasks, {pairs} pairs; {given.folds} parts, each ranked by the others")
    print(f"CPU time: {1e3 * spent / len(examples):.1f} ms a record for its features, {trained:.1f} s for training\n")
    print(table(rows))
    if given.json is not None:
        given.json.write_text(json.dumps({name: one.to_json() for name, one in rows.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
