"""What construction chooses and what the analytic cost predicts, against measured random candidates of ten Tasks.

    python scripts/compare_construction.py --json FILE [--candidates 300] [--tasks resnet50:conv_relu_45 ...]

Each Task's candidates are compiled while the Task before is measured; all of them run in turns, the slow ones drop out
(run_kernels.py), and the best of a candidate's samples counts, as whatever else the machine does only makes them
slower. FILE keeps what was measured and who dropped out; what it has is not measured again. Both tables are of direct
float32 schedules on one thread, as networks see them: constants are read from as many copies as fill what all
parameters of the Task's network do (`--constants warm`: from one).

The first table has, for each way of choosing, its time over the best random candidate's: construction (Gensor's
walks), the rules, Roller's greedy tree, the analytic cost's optimum. The second has the regret (the time of the random
candidate that is predicted best over that of the one that is best), and Spearman's rank correlation of predicted and
measured times, over all candidates and over the quarter that is measured best.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from candidate_times import compile_all, processors, times_of
from construction_tables import WAYS, Row, ratios, tables
from greedy import greedy_knobs

from modelc import __version__
from modelc.codegen.kernels import Kernel
from modelc.config import load_config
from modelc.errors import InvalidIR
from modelc.ir.block import Task
from modelc.ir.nest import Nest
from modelc.pipeline import Run
from modelc.space.choose import accepted
from modelc.space.construct import constructed
from modelc.space.cost.analytic import (
    best_of,
    estimate,
    every_candidate,
    knobs_at,
    model_of,
    population_of,
    random_candidates,
)
from modelc.space.sketches.default import Ways, ways_of
from modelc.space.sketches.tiled import Tiled, TiledKnobs
from modelc.target import Target, load_target

MODELS = Path(__file__).parent.parent / "models"
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


# --- choosing and compiling ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contest:
    """One Task, ready to be measured. `row` says which of the kernels each way chose and each random candidate is."""

    row: Row
    nests: Sequence[Nest]
    kernels: Sequence[Kernel]
    constants: frozenset[str]
    copies: int


@cache
def tasks_of(model: Path, target: Target) -> tuple[dict[str, Task], int]:
    """The Tasks of a network as it is compiled, by name, and the bytes of all their constants."""
    (program,), _ = Run(model, "", target, load_config(), ({},)).programs()
    tasks = [bound.task for bound in program.tasks]
    return {t.name: t for t in tasks}, sum(t.buffer(c).bytes for t in tasks for c in t.constants)


def spaces_of(name: str, task: Task, target: Target) -> list[Tiled]:
    """The ways to schedule `task` in plain vectors: with operands put in another order first where that may pay, and as
    they lie."""
    found = ways_of(task, target, winograd=False, tensorize=False)
    if not isinstance(found, Ways):
        raise SystemExit(f"{name} is not a tiled task")
    return list(found.direct)


def prepared(name: str, target: Target, options: argparse.Namespace) -> Contest:
    """Chooses and compiles the candidates of the Task MODEL:TASK."""
    network, _, which = name.partition(":")
    tasks, parameters = tasks_of(options.models / f"{network}.onnx", target)
    if which not in tasks:
        raise SystemExit(f"{network} has no task {which!r}; it has {', '.join(tasks)}")
    task = tasks[which].canonical()
    spaces = spaces_of(name, task, target)
    nests: list[Nest] = []
    places: dict[str, int] = {}  # of the nests, by their text: different knobs may mean the same

    def kernel(space: int, knobs: TiledKnobs) -> int | None:
        try:
            nest = accepted(task, spaces[space].candidate(knobs)).nest
        except InvalidIR:
            return None
        if (text := str(nest)) not in places:
            places[text] = len(nests)
            nests.append(nest)
        return places[text]

    ways = {}
    for way in WAYS:
        start = time.perf_counter()
        space, knobs, predicted = choice(way, spaces, options.seed)
        seconds = time.perf_counter() - start
        if (one := kernel(space, knobs)) is None:
            raise SystemExit(f"{name}: what {way} chooses is no valid schedule")
        ways[way] = {"knobs": shown(space, knobs), "predicted": predicted, "choosing": seconds, "kernel": one}
    points = [
        {"knobs": shown(space, knobs), "predicted": p, "kernel": kernel(space, knobs)}
        for space, tiled in enumerate(spaces)
        for knobs, p in draw(tiled, options.candidates // len(spaces), options.seed)
    ]
    row = {
        "task": name,
        "hash": task.hash,
        "flops": 2 * spaces[0].anchor.points(),
        "rejected": sum(p["kernel"] is None for p in points),
        "ways": ways,
        "points": [p for p in points if p["kernel"] is not None],
    }
    own = sum(task.buffer(c).bytes for c in task.constants)
    copies = -(-parameters // own) if options.constants == "cold" and own else 1
    return Contest(row, nests, compile_all(nests, target, len(processors()[0])), task.constants, copies)


def choice(way: str, spaces: Sequence[Tiled], seed: int) -> tuple[int, TiledKnobs, float]:
    """(which of `spaces`, the knobs there, the seconds that the analytic cost predicts): of each space the way's own
    choice, of these the one that is predicted fastest."""
    choose: dict[str, Callable[[Tiled], TiledKnobs]] = {
        "construction": lambda tiled: constructed(tiled, 1, seed)[0].knobs,
        "rules": lambda tiled: tiled.default_knobs(),
        "greedy": greedy_knobs,
        "analytic": lambda tiled: best_of(model_of(tiled), every_candidate(model_of(tiled))),
    }
    found = [choose[way](tiled) for tiled in spaces]
    predicted = [predict(tiled, [knobs])[0] for tiled, knobs in zip(spaces, found, strict=True)]
    best = predicted.index(min(predicted))
    return best, found[best], predicted[best]


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


def measured(contest: Contest, options: argparse.Namespace) -> Row:
    """The contest's row with the seconds of every candidate."""
    always = sorted({w["kernel"] for w in contest.row["ways"].values()})
    samples = times_of(
        contest.nests, contest.kernels, contest.constants, contest.copies, always, options.rounds, options.lock
    )
    row = {**contest.row, "copies": contest.copies}
    for one in (*row["ways"].values(), *row["points"]):
        mine = samples[one.pop("kernel")]
        one |= {"measured": min(mine), "samples": len(mine), "dropped": len(mine) < options.rounds}
    row["dropped"] = sum(p["dropped"] for p in row["points"])
    return row


def contests(names: Sequence[str], target: Target, options: argparse.Namespace) -> Iterator[Contest]:
    """The next one is prepared while one is measured."""
    with ThreadPoolExecutor(1, initializer=lambda: os.sched_setaffinity(0, processors()[0])) as pool:
        coming = [pool.submit(prepared, name, target, options) for name in names]
        for future in coming:
            yield future.result()


# --- keeping ------------------------------------------------------------------------------------------------------


def kept(path: Path | None, about: Row) -> list[Row]:
    """The rows of an earlier run with the same settings."""
    if path is None or not path.exists():
        return []
    data = json.loads(path.read_text())
    if data["about"] != about:
        raise SystemExit(f"{path} was measured with {data['about']}, and this is {about}: say another file")
    rows: list[Row] = data["rows"]
    return rows


def keep(path: Path | None, about: Row, rows: Sequence[Row]) -> None:
    if path is not None:
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
        new.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=300, help="random candidates of each task")
    parser.add_argument("--rounds", type=int, default=12, help="of those that do not drop out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--constants", choices=("cold", "warm"), default="cold")
    parser.add_argument("--target", default="native")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), metavar="MODEL:TASK")
    parser.add_argument("--models", type=Path, default=MODELS, help="the folder of the networks")
    parser.add_argument("--json", type=Path, help="keeps what was measured; what it has already is not measured again")
    parser.add_argument("--lock", type=Path, help="a file whose lock is held while measuring")
    options = parser.parse_args()
    target = replace(load_target(options.target), cores=1)
    about = {"modelc": __version__, "target": target.key}
    about |= {key: getattr(options, key) for key in ("candidates", "rounds", "seed", "constants")}
    rows = kept(options.json, about)
    for contest in contests([name for name in options.tasks if name not in {r["task"] for r in rows}], target, options):
        rows.append(measured(contest, options))
        keep(options.json, about, rows)
        over = ratios(rows[-1])["construction"]
        print(f"{rows[-1]['task']}: construction takes {over:.3f} of the best random one", flush=True)
    chosen = [row for row in rows if row["task"] in options.tasks]
    print("\n".join(["", *tables(sorted(chosen, key=lambda r: options.tasks.index(r["task"])), TASKS)]))


if __name__ == "__main__":
    main()
