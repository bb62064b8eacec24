"""Lists the Sketches of every distinct Task of models, and checks random points of each against the interpreter.

    python scripts/check_space.py NETWORK... [--models DIR] [--precision f32,bf16] [--points 3000] [--seed N]
                                  [--target T] [--json FILE]

NETWORK is a file NETWORK.onnx in DIR, a case of Ansor's operators (GMM-3-b1), or bytes-N, a product of bytes. The
table says for each kind of Sketch: Tasks that have it, Sketches, knobs, points (the medians of these); the second one
what each knob decides, and how many values it has at most. Then at most
`--points` points are built as `compile` builds them, their Nests verified, run in a process of their own, and compared
with NumPy. What is refused (invalid) is counted with its reason; anything wrong, crashed or not built is a bug, and
ends with 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kept_rows import MODELS
from rich.table import Table
from space_tasks import Found, distinct, model_file

from modelc.cli.terminal import err, out
from modelc.ir.candidate import Candidate
from modelc.measure import Effort, Measurement, Measurer, Setting
from modelc.space.sketch import Sketch
from modelc.target import Target, load_target
from modelc.tune.search.population import Space

ONCE = Effort(sample_seconds=0.0, least=1, most=1, seconds=0.0)  # what counts is what it computes
REFUSED = ("invalid", "build-timeout", "timeout")  # too large or too slow, not wrong


@dataclass(frozen=True)
class Listed:
    """A Sketch of a Task that was found."""

    found: Found
    sketch: Sketch


def listed(tasks: Sequence[Found], target: Target) -> list[Listed]:
    """All Sketches of all Tasks. Raises SystemExit if a Task has none."""
    result = []
    for found in tasks:
        sketches = Space(found.task, target, found.policy).sketches
        if not sketches:
            raise SystemExit(f"{found.name} has no Sketch")
        result += [Listed(found, sketch) for sketch in sketches]
    return result


def by_kind(sketches: Sequence[Listed]) -> list[dict[str, object]]:
    """One row for each kind of Sketch."""
    rows = []
    for kind in sorted({one.sketch.kind for one in sketches}):
        of_kind = [one.sketch for one in sketches if one.sketch.kind == kind]
        sizes = [sketch.size for sketch in of_kind]
        rows.append(
            {
                "kind": kind,
                "tasks": len({one.found.name for one in sketches if one.sketch.kind == kind}),
                "sketches": len(of_kind),
                "knobs": statistics.median(len(sketch.knobs) for sketch in of_kind),
                "points": statistics.median(sizes),
                "most points": max(sizes),
            }
        )
    return rows


def decisions(sketches: Sequence[Listed]) -> Table:
    """What the knobs of each kind of Sketch decide."""
    most: Counter[tuple[str, str, str]] = Counter()
    for sketch in (one.sketch for one in sketches):
        for knob in sketch.knobs:
            row = sketch.kind, knob.name, knob.decides
            most[row] = max(most[row], len(knob.values))
    table = Table("kind", "knob", "decides", "values")
    for row in sorted(most):
        table.add_row(*row, str(most[row]))
    return table


def drawn(sketches: Sequence[Listed], count: int, seed: int) -> Iterator[tuple[Listed, Candidate]]:
    """About `count` different Candidates: as many of each Sketch as far as it has them."""
    rng = np.random.default_rng(seed)
    left, known = count, set()
    for after, one in zip(range(len(sketches), 0, -1), sorted(sketches, key=lambda s: s.sketch.size), strict=True):
        for point in one.sketch.random(-(-left // after), rng):
            candidate = one.sketch.candidate(point)
            if (key := (one.found.task.hash, candidate.key)) not in known:
                known.add(key)
                left -= 1
                yield one, candidate


def checked(
    points: Sequence[tuple[Listed, Candidate]], target: Target, seed: int
) -> Iterator[tuple[Listed, Candidate, Measurement]]:
    """What became of each point, Task by Task, so that each one's outputs are computed with NumPy once."""
    tasks = {one.found.task.hash: one.found.task for one, _ in points}
    with Measurer(target, Setting(seed=seed), effort=ONCE) as measurer:
        for key, task in tasks.items():
            mine = [(one, candidate) for one, candidate in points if one.found.task.hash == key]
            results = measurer.measure(measurer.subject(task), [candidate for _, candidate in mine])
            for (one, candidate), result in zip(mine, results, strict=True):
                yield one, candidate, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NETWORK")
    parser.add_argument("--models", type=Path, default=MODELS, help="the folder of the networks")
    parser.add_argument("--precision", default="f32", help="of the networks: f32, bf16, or both (default: f32)")
    parser.add_argument("--points", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="native")
    parser.add_argument("--json", type=Path, help="writes the table, the counts and what is wrong there")
    options = parser.parse_args()
    target = load_target(options.target)
    with tempfile.TemporaryDirectory(prefix="modelc-space-") as folder:
        files = [model_file(name, options.models, Path(folder)) for name in options.networks]
        tasks = list(distinct(files, options.precision.split(","), target))
    sketches = listed(tasks, target)
    rows = by_kind(sketches)
    table = Table("kind", "tasks", "sketches", "knobs", "points", "most points")
    for row in rows:
        table.add_row(*map(str, row.values()))
    out.print(f"{len(tasks)} distinct tasks, {len(sketches)} sketches")
    out.print(table)
    out.print(decisions(sketches))
    points = list(drawn(sketches, options.points, options.seed))
    counts: Counter[tuple[str, str]] = Counter()
    reasons: Counter[str] = Counter()
    bugs = []
    for done, (one, candidate, result) in enumerate(checked(points, target, options.seed), 1):
        counts[one.sketch.kind, result.outcome] += 1
        if result.outcome in REFUSED:
            reasons[f"{one.sketch.kind}: {result.outcome}: {result.message[:120]}"] += 1
        elif not result.ok:
            bugs.append({"task": one.found.name, "sketch": one.sketch.name, "message": result.message})
            bugs[-1] |= {"outcome": result.outcome, "candidate": candidate.to_json()}
            err.print(f"{one.found.name}: {one.sketch.kind} {one.sketch.name} {result.outcome}: {result.message}")
        if done % 100 == 0:
            err.print(f"{done} of {len(points)}")
    for (kind, outcome), count in sorted(counts.items()):
        out.print(f"{kind:12} {outcome:13} {count}")
    for reason, count in reasons.most_common(20):
        out.print(f"{count:5} {reason}", markup=False, soft_wrap=True)
    good = sum(count for (_, outcome), count in counts.items() if outcome == "ok")
    out.print(f"{len(points)} points: {good} right, {len(bugs)} wrong, {len(points) - good - len(bugs)} refused")
    if options.json:
        summary = {"kinds": rows, "points": len(points), "right": good, "refused": dict(reasons), "wrong": bugs}
        options.json.write_text(json.dumps(summary, indent=1) + "\n")
    sys.exit(1 if bugs or not good else 0)


if __name__ == "__main__":
    main()
