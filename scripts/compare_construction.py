"""Measures what the ways of choosing a schedule choose: rules, Gensor's walk, Roller's greedy tree, the analytic
optimum, random candidates and, where the space is small, all of it.

    python scripts/compare_construction.py [--candidates 20] [--rounds 5] [--json FILE] [--tasks resnet50:conv_relu_45]

The default is that of direct schedules: minimal filtering is another algorithm. One thread, warm caches; the candidates
of a task run in turn, round after round, and the median of each one's processor time counts.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pickle
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from modelc.codegen.kernels import Kernel, compile_nest
from modelc.config import load_config
from modelc.frontend.onnx import import_model
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.ir.nest import Nest
from modelc.ir.program import Program
from modelc.passes import run_passes
from modelc.passes.partition import partition
from modelc.space.analytic import best_of, every_candidate, knobs_at, model_of, random_candidates
from modelc.space.build import build_nest
from modelc.space.construct import construct, tiled_of
from modelc.space.default import default_candidate
from modelc.space.greedy import greedy
from modelc.target import Target, load_target

MODELS = Path(__file__).parent.parent / "models"
TASKS = (
    "resnet50:conv_relu_45",
    "resnet50:conv_relu_44",
    "resnet50:conv_relu_0",
    "mobilenet-v2:conv_clip_0",
    "mobilenet-v2:conv_clip_4",
    "mobilenet-v2:conv_clip_33",
    "bert-base:matmul_add_2",
    "bert-base:matmul_add_5",
    "dcgan:convtranspose_relu_1",
    "resnet3d-18:conv_add_relu_12",
)
SAMPLE_SECONDS = 2e-3  # a sample calls the kernel as often as this takes
CHILD_SECONDS = 600  # that all candidates of a task may run


@cache
def program_of(model: str) -> Program:
    graph = import_model(MODELS / f"{model}.onnx", {})
    return partition(run_passes(graph, load_config().simplify, lambda name, graph: None))


def task_of(name: str) -> Task:
    """The Task MODEL:TASK, with canonical names."""
    model, task = name.split(":")
    found = {b.task.name: b.task for b in program_of(model).tasks}
    if task not in found:
        raise SystemExit(f"{model} has no task {task!r}; it has {', '.join(found)}")
    return found[task].canonical()


# --- measuring ------------------------------------------------------------------------------------------------------


def measure(task: Task, candidates: Sequence[Candidate], target: Target, rounds: int) -> list[float]:
    """Median seconds of each candidate's kernel on one thread, with warm caches; in a process of their own."""
    nests = [build_nest(task, c) for c in candidates]
    with ThreadPoolExecutor(2) as pool:
        kernels = list(pool.map(lambda k: compile_nest(nests[k], f"k{k}", target), range(len(nests))))
    with tempfile.TemporaryDirectory(prefix="modelc-compare-") as folder:
        library = link(kernels, Path(folder))
        return in_child(lambda: run(library, nests, kernels, rounds))


def link(kernels: Sequence[Kernel], folder: Path) -> Path:
    names = []
    for k, kernel in enumerate(kernels):
        assert kernel.object is not None
        (folder / f"k{k}.o").write_bytes(kernel.object)
        names.append(f"k{k}.o")
    command = ["cc", "-shared", "-nostartfiles", "-o", "kernels.so", *names, "-lm"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "kernels.so"


def in_child(body: Any) -> Any:
    """What `body` returns, run in a forked process that is stopped after CHILD_SECONDS."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(CHILD_SECONDS)
            with os.fdopen(write, "wb") as out:
                pickle.dump(body(), out)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as result:
        data = result.read()
    os.waitpid(child, 0)
    if not data:
        raise SystemExit("the kernels did not end, or crashed")
    return pickle.loads(data)


def run(library: Path, nests: Sequence[Nest], kernels: Sequence[Kernel], rounds: int) -> list[float]:
    code = ctypes.CDLL(str(library))
    sizes: dict[str, int] = {}
    for nest, kernel in zip(nests, kernels, strict=True):
        for region in nest.params:
            sizes[region.name] = max(sizes.get(region.name, 0), region.bytes)
        for name, count in kernel.temporaries:
            sizes[name] = max(sizes.get(name, 0), count)
    memory = {name: storage(count) for name, count in sizes.items()}
    scratch = storage(max(s.scratch_bytes for k in kernels for s in k.steps))
    calls = [[bound(code, step, memory, scratch) for step in kernel.steps] for kernel in kernels]

    def once(k: int, times: int) -> float:
        start = time.thread_time()  # not what others do with the processor meanwhile
        for _ in range(times):
            for function, args in calls[k]:
                function(*args)
        return (time.thread_time() - start) / times

    times = [max(1, int(SAMPLE_SECONDS / max(once(k, 2), 1e-9))) for k in range(len(calls))]
    samples = [[once(k, n) for k, n in enumerate(times)] for _ in range(rounds)]
    return [float(x) for x in np.median(np.array(samples), axis=0)]


def bound(code: ctypes.CDLL, step: Any, memory: dict[str, Any], scratch: Any) -> tuple[Any, list[Any]]:
    function = getattr(code, step.symbol)
    function.restype = None
    pointers = [ctypes.c_void_p(memory[a].ctypes.data) for a in step.args]
    return function, [*pointers, ctypes.c_void_p(scratch.ctypes.data), ctypes.c_int(0), ctypes.c_int(step.extent)]


def storage(count: int) -> np.ndarray[Any, Any]:
    """Random floats from a 64-byte boundary on."""
    whole = np.random.default_rng(0).standard_normal(count // 4 + 32).astype(np.float32)
    start = -whole.ctypes.data % 64 // 4
    return whole[start : start + count // 4 + 16]


# --- comparing ------------------------------------------------------------------------------------------------------


def compare(name: str, target: Target, count: int, whole: int, rounds: int, seed: int) -> dict[str, Any]:
    """Every way's candidate of one task, measured."""
    task = task_of(name)
    tiled = tiled_of(task, target)
    if tiled is None:
        raise SystemExit(f"{name} is not a tiled task")
    model = model_of(tiled)
    space = every_candidate(model)
    ways: dict[str, Candidate] = {}
    seconds: dict[str, float] = {}
    choices: dict[str, Callable[[], Candidate | None]] = {
        "default": lambda: default_candidate(task, target, winograd=False),
        "gensor": lambda: construct(task, target, seed),
        "roller": lambda: greedy(task, target),
        "analytic": lambda: tiled.candidate(best_of(model, space)),
    }
    for way, choose in choices.items():
        start = time.perf_counter()
        chosen = choose()
        assert chosen is not None
        ways[way] = chosen
        seconds[way] = time.perf_counter() - start
    others = space if len(space) <= whole else random_candidates(model, count, seed)
    drawn = [tiled.candidate(knobs_at(model, others, p)) for p in range(len(others))]
    found = measure(task, [*ways.values(), *drawn], target, rounds)
    rest = found[len(ways) :]
    flops = 2 * tiled.anchor.points()
    return {
        "task": name,
        "space": len(space),
        "exhaustive": len(space) <= whole,
        "gflops": flops / min(found) / 1e9,
        "seconds": dict(zip(ways, found, strict=False)),
        "others": {"count": len(rest), "best": min(rest), "median": float(np.median(rest))},
        "choosing_seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=50, help="random candidates of each task")
    parser.add_argument(
        "--exhaustive", type=int, default=250, help="measure whole spaces of at most so many candidates"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="native")
    parser.add_argument("--tasks", nargs="+", default=TASKS, metavar="MODEL:TASK")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    target = replace(load_target(options.target), cores=1)
    print(f"{'task':34} {'space':>6} {'GFLOP/s':>8}  {'default':>8} {'gensor':>8} {'roller':>8} {'analytic':>8}"
          f" {'best of':>14} {'median':>7}   (microseconds; times the best)")  # fmt: skip
    rows = []
    for name in options.tasks:
        rows.append(row := compare(name, target, options.candidates, options.exhaustive, options.rounds, options.seed))
        best = min(*row["seconds"].values(), row["others"]["best"])
        ways = " ".join(f"{s / best:8.3f}" for s in row["seconds"].values())
        others = row["others"]
        kind = "all" if row["exhaustive"] else ""
        where = f"{kind:>3} {others['count']:4}: {others['best'] / best:5.3f} {others['median'] / best:7.3f}"
        print(f"{name:34} {row['space']:6} {row['gflops']:8.1f}  {ways} {where}   {best * 1e6:9.1f} us", flush=True)
    for way in ("default", "gensor", "roller", "analytic"):
        ratios = [r["seconds"][way] / min(*r["seconds"].values(), r["others"]["best"]) for r in rows]
        chosen = np.median([r["choosing_seconds"][way] for r in rows])
        print(f"{way:10} {np.exp(np.mean(np.log(ratios))):.3f} of the best (geometric mean), chosen in {chosen:.3f} s")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
