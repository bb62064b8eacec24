"""How well the learned cost ranks what was measured, beside the analytic cost.

    python scripts/learned_cost.py [--database FILE] [--target NAME|FILE.yaml] [--version V] [--folds 5] [--most N]
                                   [--seed N] [--again FILE] [--json FILE]

Examples are the good records of a database of `modelc tune` (the user's own by default) for one target and version of
the code that lie on a point of a Sketch, on the scale of what was measured by turns, for each Task and condition. Each
is scored by a model that was trained on other parts of them (--folds): by chance, so that the model has seen other
schedules of the Task; and ("other Tasks") by Task, so that it has seen none. Printed are, as of Ansor (section 7.5),
RMSE and R^2 of throughputs over the best of their Task, the share of pairs in the right order, and recall of the best
30; and Spearman's rank correlation within the best quarter of each Task. Pairs are counted

    pairs            all that are more than 2 % apart
    sure             those that the measurements themselves tell apart: by two of their standard errors too
    > 5 % ... 20 %   those that are so far apart
    pooled           all, of different Tasks too, by throughputs over the best of their Task: as Ansor counts them

What no prediction can be much better than is printed below: what one without an error would get, if the errors of the
measurements are as large as they say and normal; and, with --again, how well a second database ranks the first, in
which the same Candidates were measured another time (`modelc tune` with the same --seed; --explorer random measures
random points, which differ more than those that evolution finds).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from ranking import APART, Ranking, as_measured, ranked

from modelc.database import Conditions, Database, Record, code_version, default_place
from modelc.errors import ModelcError
from modelc.ir.block import Task
from modelc.policy import SCHEDULES, Policy
from modelc.target import Target, load_target
from modelc.tune.search.learned import MISSING, Example, analytic, available, fit, groups_of, held_out, scales
from modelc.tune.search.learned import throughputs as measured
from modelc.tune.search.population import Space
from modelc.tune.search.resume import COMPARED, examples_of


def examples_of_task(task: Task, found: Sequence[Record], target: Target) -> Iterator[Example]:
    """Those of the records of one Task, condition by condition, by a name that says both."""
    groups: dict[Conditions, list[Record]] = {}
    for record in found:
        groups.setdefault(record.conditions, []).append(record)
    for conditions, group in groups.items():
        allowed = conditions.policy.split()
        policy = Policy(**{name: name in allowed for name in SCHEDULES})
        space = Space(
            task, replace(target, cold_bytes=bytes_in(target, conditions.constants)), policy, conditions.threads
        )
        yield from (replace(one, task=f"{task.hash} {conditions}") for one in examples_of(space, group))


def bytes_in(target: Target, place: str) -> int:
    """So many bytes of constants lie in a cache of that name, or in none."""
    caches = {cache.name: cache.bytes for cache in target.caches}
    return caches.get(place, target.caches[-1].bytes + 1)


def read(path: Path, target: Target, version: str, most: int) -> list[Example]:
    found: list[Example] = []
    with Database(path, write=False) as database:
        for key in database.tasks():
            own = list(database.records(key, target=target.key, version=version))
            task = database.task(key) if own else None
            if task is not None and len(found) < most:
                found += examples_of_task(task, own, target)
    return found


def again_of(examples: Sequence[Example], others: Sequence[Example]) -> tuple[list[int], list[float]]:
    """(the places of those examples that `others` have too, the seconds that these say)."""
    known = {key_of(one): one.seconds for one in others}
    places = [k for k, one in enumerate(examples) if key_of(one) in known]
    return places, [known[key_of(examples[k])] for k in places]


def key_of(one: Example) -> tuple[str, frozenset[tuple[str, float]]]:
    """A schedule, of a Task under its conditions: its Sketch and knobs."""
    return one.task, frozenset(one.knobs.items())


def table(rows: dict[str, Ranking]) -> str:
    names = [f"> {100 * x:.0f} %" for x in APART]
    titles = ["RMSE", "R^2", "pairs", "sure", *names, "recall", "quarter", "pooled"]
    lines = [" " * 24 + "".join(f"{title:>9}" for title in titles)]
    for name, one in rows.items():
        numbers = [one.rmse, one.r2, one.pairs, one.sure, *one.apart, one.recall, one.quarter, one.pooled]
        lines.append(f"{name:24}" + "".join(f"{x:9.3f}" for x in numbers))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", type=Path, default=default_place())
    parser.add_argument("--target", default="native")
    parser.add_argument("--version", default=code_version(), help="of the code that the records were made by")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--most", type=int, default=100_000, help="examples at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", type=Path, help="a database in which the same Candidates were measured again")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if not available():
        raise SystemExit(MISSING)
    target = load_target(given.target)
    start = time.process_time()
    try:
        examples = read(given.database, target, given.version, given.most)
        others = read(given.again, target, given.version, given.most) if given.again else []
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
    wanted, noise = measured(examples, known), np.array([one.noise for one in examples])
    started = time.process_time()
    scores = {
        "analytic cost": analytic(examples, known),
        "learned cost": held_out(examples, given.folds, given.seed),
        "learned, other Tasks": held_out(examples, min(given.folds, tasks), given.seed, by_task=True),
    }
    trained = time.process_time() - started
    rows = {name: ranked(found, wanted, groups, noise) for name, found in scores.items()}
    one = rows["analytic cost"]
    print(f"{len(examples)} records of {tasks} Tasks, {one.compared} pairs; {given.folds} parts, each ranked by others")
    features = 1e3 * spent / (len(examples) + len(others))
    model = fit(examples, given.seed)
    started = time.process_time()
    model.scores(examples)
    each = 1e6 * (time.process_time() - started) / len(examples)
    print(f"CPU time: {features:.1f} ms a record for its features, {each:.0f} us for a score; {trained:.1f} s to learn")
    print()
    print(table(rows))
    every, sure = as_measured(wanted, noise, groups)
    print(f"\n{one.told:.3f} of the pairs are told apart by the measurements; a prediction without an error would have")
    print(f"at most {every:.3f} of all pairs right, and {sure:.3f} of those")
    if others:
        places, seconds = again_of(examples, others)
        if not places:
            raise SystemExit(f"{given.again} has none of the Candidates of {given.database}: tune with the same --seed")
        second = [replace(examples[k], seconds=s) for k, s in zip(places, seconds, strict=True)]
        scored = measured(second, scales(second))
        rows["measured again"] = ranked(scored, wanted[places], groups[places], noise[places])
        print(f"\n{len(places)} Candidates that were measured again rank them so:\n")
        print(table({"measured again": rows["measured again"]}))
    if given.json is not None:
        found = {name: row.to_json() for name, row in rows.items()}
        given.json.write_text(json.dumps({**found, "at most": {"pairs": every, "sure": sure}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
