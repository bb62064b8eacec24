"""What construction chooses and what the analytic cost predicts, against measured random candidates of ten Tasks.

    python scripts/compare_construction.py --json FILE [--candidates 300] [--tasks resnet50:conv_relu_45 ...]

Candidates are measured by turns with one of them (modelc.measure): what counts is the time over its time in the same
moments. Who is within a tenth of the best, and what each way chose, is measured again, longer, and that counts. FILE
keeps what was measured; what it has is not measured again. Both tables are of direct float32 schedules on one thread,
as networks see them: constants are read from memory that is as large as all parameters of the Task's network
(`--constants warm`: from one place).

The first table has, for each way of choosing, its time over the best random candidate's: construction (Gensor's
walks), the rules, Roller's greedy tree, the analytic cost's optimum. The second has the regret (the time of the random
candidate that is predicted best over that of the one that is best), and Spearman's rank correlation of predicted and
measured times, over all candidates and over the quarter that is measured best.
"""

from __future__ import annotations

import argparse
import fcntl
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import paths  # noqa: F401
from construction_tables import WAYS, ratios, tables
from greedy import greedy_knobs
from kept_rows import CLOSE, LONGER, Kept, Row, parser
from populations import best_of, every_candidate, knobs_at, population_of, random_candidates

from modelc.compile.config import load_config
from modelc.compile.pipeline import Run
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.measure import Measurer
from modelc.policy import Policy
from modelc.space.construct import constructed
from modelc.space.cost.analytic import estimate
from modelc.space.cost.model import model_of
from modelc.space.sketches.contraction import Contraction
from modelc.space.sketches.listing import sketches
from modelc.space.sketches.tiled_candidate import tiled_candidate
from modelc.space.sketches.tiled_rules import default_knobs
from modelc.space.tiling.tiled import Tiled, TiledKnobs
from modelc.target import Target, load_target

TASKS = {
    "resnet50:conv_relu_44": "1x1",
    "resnet50:conv_relu_30": "3x3",
    "resnet50:conv_relu_45": "3x3, strided",
    "resnet50:conv_relu_0": "first 7x7",
    "bert-base:matmul_add_4": "GEMM, small",
    "vit-b16:matmul_add_gelu_9": "GEMM, large",
    "mobilenet-v2:conv_2": "GEMM, tall",
    "resnet3d-18:conv_16": "3-D",
    "mobilenet-v2:conv_clip_7": "depthwise",
    "dcgan:convtranspose_relu_2": "transposed",
}


# --- choosing ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contest:
    """One Task, ready to be measured: a row of results, whose ways and points name candidates by position."""

    row: Row
    task: Task
    candidates: Sequence[Candidate]
    cold_bytes: int


@cache
def tasks_of(model: Path, target: Target) -> tuple[dict[str, Task], int]:
    """The Tasks of a network as it is compiled, by name, and the bytes of all their constants."""
    (program,) = Run(model, "", target, load_config(), ({},)).programs().wide
    tasks = [bound.task for bound in program.tasks]
    return {t.name: t for t in tasks}, sum(t.buffer(c).bytes for t in tasks for c in t.constants)


def spaces_of(name: str, task: Task, target: Target) -> list[Tiled]:
    """The ways to schedule `task` in plain vectors: with operands put in another order first where that may pay, and as
    they lie."""
    found = sketches(task, target, Policy(winograd=False, strassen=False, tensorize=False))
    tiled = [s.tiled for s in found if isinstance(s, Contraction)]
    if not tiled:
        raise SystemExit(f"{name} is not a tiled task")
    return tiled


def prepared(name: str, target: Target, options: argparse.Namespace) -> Contest:
    """Chooses and compiles the candidates of the Task MODEL:TASK."""
    network, _, which = name.partition(":")
    tasks, parameters = tasks_of(options.models / f"{network}.onnx", target)
    if which not in tasks:
        raise SystemExit(f"{network} has no task {which!r}; it has {', '.join(tasks)}")
    task = tasks[which].canonical()
    cold = parameters if options.constants == "cold" and task.constants else 0
    target = replace(target, cold_bytes=cold)
    spaces = spaces_of(name, task, target)
    candidates: list[Candidate] = []

    def position(space: int, knobs: TiledKnobs) -> int:
        """Different knobs may mean the same."""
        candidate = tiled_candidate(spaces[space], knobs)
        if candidate not in candidates:
            candidates.append(candidate)
        return candidates.index(candidate)

    ways = {}
    for way in WAYS:
        start = time.perf_counter()
        space, knobs, predicted = choice(way, spaces, options.seed)
        seconds = time.perf_counter() - start
        ways[way] = {"knobs": shown(space, knobs), "predicted": predicted, "choosing": seconds}
        ways[way]["candidate"] = position(space, knobs)
    points = [
        {"knobs": shown(space, knobs), "predicted": p, "candidate": position(space, knobs)}
        for space, tiled in enumerate(spaces)
        for knobs, p in draw(tiled, options.candidates // len(spaces), options.seed)
    ]
    row = {
        "task": name,
        "hash": task.hash,
        "flops": 2 * spaces[0].anchor.points(),
        "ways": ways,
        "points": points,
    }
    return Contest(row, task, candidates, cold)


def choice(way: str, spaces: Sequence[Tiled], seed: int) -> tuple[int, TiledKnobs, float]:
    """(which of `spaces`, the knobs there, the seconds that the analytic cost predicts): of each space the way's own
    choice, of these the one that is predicted fastest."""
    choose: dict[str, Callable[[Tiled], TiledKnobs]] = {
        "construction": lambda tiled: first_of(Contraction(tiled), seed),
        "rules": default_knobs,
        "greedy": greedy_knobs,
        "analytic": lambda tiled: best_of(model_of(tiled), every_candidate(model_of(tiled))),
    }
    found = [choose[way](tiled) for tiled in spaces]
    predicted = [predict(tiled, [knobs])[0] for tiled, knobs in zip(spaces, found, strict=True)]
    best = predicted.index(min(predicted))
    return best, found[best], predicted[best]


def first_of(sketch: Contraction, seed: int) -> TiledKnobs:
    """What construction takes on all cores."""
    (best,) = constructed(sketch, sketch.target.cores, 1, seed)
    return sketch.knobs_of(sketch.values(best.point))


def predict(tiled: Tiled, knobs: Sequence[TiledKnobs]) -> list[float]:
    model = model_of(tiled)
    return [float(s) for s in estimate(model, population_of(model, knobs)).seconds]


def draw(tiled: Tiled, count: int, seed: int) -> list[tuple[TiledKnobs, float]]:
    """`count` random members of a space, or all of it where it is not larger, and what is predicted for them."""
    model = model_of(tiled)
    drawn = every_candidate(model)
    if len(drawn) > count:
        drawn = random_candidates(model, count, seed)
    knobs = [knobs_at(model, drawn, p) for p in range(len(drawn))]
    return list(zip(knobs, predict(tiled, knobs), strict=True))


def shown(space: int, knobs: TiledKnobs) -> str:
    rows = " ".join(f"{n}:{c}" for n, c in knobs.rows)
    order = "by rows" if knobs.by_rows else "by panels"
    lie = ", operands as they lie" if space else ""
    return f"[{rows}] x {knobs.vectors} vectors, chunks of {knobs.chunk}, {order}{lie}"


# --- measuring ----------------------------------------------------------------------------------------------------


def measured(contest: Contest, measurer: Measurer) -> Row:
    """The contest's row with the seconds of every candidate that there is."""
    subject = measurer.subject(contest.task, contest.cold_bytes)
    found = dict(enumerate(measurer.measure(subject, contest.candidates)))
    wrong = [one for one in found.values() if one.outcome in ("wrong", "crashed")]
    if wrong:
        raise SystemExit(f"{contest.row['task']}: a schedule is a bug of modelc: it {wrong[0].message}")
    chosen = {way["candidate"] for way in contest.row["ways"].values()}
    best = min(one.relative for one in found.values())
    close = [k for k, one in found.items() if one.ok and (k in chosen or one.relative <= CLOSE * best)]
    numbers = {measurer.submit(subject, contest.candidates[k], LONGER): k for k in close}
    found |= {numbers[number]: one for number, one in measurer.results()}
    seconds = statistics.median(one.reference_seconds for one in found.values() if one.ok)

    def result(one: Row) -> Row:
        mine = found[one["candidate"]]
        known = {key: value for key, value in one.items() if key != "candidate"}
        return {**known, "measured": mine.relative * seconds, "noise": mine.noise, "samples": mine.repeats}

    for way, one in contest.row["ways"].items():
        if not (mine := found[one["candidate"]]).ok:
            raise SystemExit(f"{contest.row['task']}: what {way} chooses is no schedule: {mine.message}")
    points = [result(p) for p in contest.row["points"] if found[p["candidate"]].ok]
    return {
        **contest.row,
        "ways": {way: result(one) for way, one in contest.row["ways"].items()},
        "points": points,
        "rejected": len(contest.row["points"]) - len(points),
        "dropped": sum(p["samples"] < measurer.effort.least for p in points),
        "cold_bytes": contest.cold_bytes,
    }


@contextmanager
def held(lock: Path | None) -> Iterator[None]:
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    assert __doc__
    arguments = parser(__doc__, "candidates", 300, TASKS)
    arguments.add_argument("--lock", type=Path, help="a file whose lock is held while measuring")
    options = arguments.parse_args()
    target = replace(load_target(options.target), cores=1)
    kept = Kept.of(options, "candidates", target)
    with Measurer(target) as measurer:
        for name in [name for name in options.tasks if kept.find(name) is None]:
            contest = prepared(name, target, options)
            with held(options.lock):
                row = measured(contest, measurer)
            kept.add(row)
            print(f"{name}: construction takes {ratios(row)['construction']:.3f} of the best random one", flush=True)
    print("\n".join(["", *tables(kept.of_tasks(options.tasks), TASKS)]))


if __name__ == "__main__":
    main()
