"""Ansor's operators tuned by modelc and by the MetaSchedule of modelc's TVM, at an equal number of trials.

    python scripts/compare_metaschedule.py [CASE...] [--trials 200] [--target NAME|FILE.yaml]
                                           [--seconds S] [--json FILE]

Both get the same computation: the operator's Task (scripts/ansor_ops.py), whose Blocks MetaSchedule gets as tensor
expressions over tensors in the order that ONNX has them. Both search on this machine with all of its processors for
building; the best of each is then timed by turns, kernels alone, on warm data, on one thread. Printed are the times,
MetaSchedule's over modelc's (above 1, modelc's kernel is faster), and the seconds of both searches. MetaSchedule's cost
model is XGBoost's as in modelc. FILE keeps each row as it comes. What MetaSchedule cannot take or fails at is said, and
is no row.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import ansor_ops
import numpy as np
import tvm
from ablation_search import InTurn
from bench_ops import failure, geometric_mean, print_failures
from kept_rows import Kept, Row
from space_tasks import model_file, tasks_of
from tvm import te
from tvm import tirx as tx

from modelc import __version__
from modelc.cli.terminal import out
from modelc.ir.block import Block, Task
from modelc.ir.expr import Const, Expr, Load, Op, Var
from modelc.measure import Effort, Measurer
from modelc.space.choose import chosen
from modelc.target import Target, llvm_target, load_target
from modelc.tune.search.evolve import Evolve
from modelc.tune.search.learned import LearnedCost
from modelc.tune.search.objectives import Aim, Weights
from modelc.tune.search.population import Space
from modelc.tune.search.scheduler import Work
from modelc.tune.search.tune import Budget, Search, Subject

CASES = ("C1D-2-b1", "C2D-3-b1", "DEP-3-b1", "DIL-3-b1", "GMM-2-b1", "NRM-3-b1")
NEEDED = ("cloudpickle", "psutil", "xgboost")  # by MetaSchedule; modelc brings only the last, as modelc-compiler[tune]
TURNS = 7  # of both kernels, when the searches are over
OPERATORS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floordiv": te.floordiv,
    "mod": te.floormod,
    "max": te.max,
    "min": te.min,
    "sqrt": te.sqrt,
    "exp": te.exp,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "ge": lambda a, b: a >= b,
    "gt": lambda a, b: a > b,
    "eq": lambda a, b: tx.EQ(a, b),
    "and": te.all,
    "neg": lambda a: -a,
}


def expression(e: Expr, iters: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    """A Block's expression over te's variables and tensors. Raises ValueError for what has none there."""
    if isinstance(e, Const):
        return tx.const(e.value, "int32" if e.dtype == "int64" else e.dtype)
    if isinstance(e, Var):
        return iters[e.name]
    if isinstance(e, Load):
        return tensors[e.buffer](*(expression(i, iters, tensors) for i in e.indices))
    assert isinstance(e, Op)
    args = [expression(a, iters, tensors) for a in e.args]
    if e.name == "select":
        return te.if_then_else(*args)
    if e.name not in OPERATORS:
        raise ValueError(f"operation {e.name} has no tensor expression here")
    return OPERATORS[e.name](*args)


def computed(block: Block, task: Task, tensors: Mapping[str, Any]) -> Any:
    """The tensor that a Block makes. Raises ValueError for one of another form."""
    (write,), (body,) = block.writes, block.body
    names = [i.name for i in block.spatial]
    if [str(i) for i in write.indices] != names or block.aggregation not in ("assign", "add", "max"):
        raise ValueError(f"block {block.name} is no computation of one tensor, element by element")
    axes = {i.name: te.reduce_axis((0, i.extent), i.name) for i in block.reduction}

    def element(*spatial: Any) -> Any:
        iters = dict(zip(names, spatial, strict=True)) | axes
        value = expression(body, iters, tensors)
        if block.where:
            low = tx.const(0.0 if block.aggregation != "max" else -np.inf, task.buffer(write.buffer).dtype)
            value = te.if_then_else(te.all(*(expression(c, iters, tensors) for c in block.where)), value, low)
        if not axes:
            return value
        return (te.max if block.aggregation == "max" else te.sum)(value, axis=list(axes.values()))

    return te.compute(task.buffer(write.buffer).shape, element, name=write.buffer)


def function_of(task: Task) -> tvm.IRModule:
    """The Task as a function of TIR, over its inputs and outputs."""
    tensors: dict[str, Any] = {}
    for name in task.inputs:
        buffer = task.buffer(name)
        tensors[name] = te.placeholder(buffer.shape, buffer.dtype, name=name)
    for block in task.blocks:
        if not isinstance(block, Block):
            raise ValueError(f"block {block.name} is opaque")
        tensors[block.writes[0].buffer] = computed(block, task, tensors)
    ends = [tensors[name] for name in (*task.inputs, *task.outputs)]
    return tvm.IRModule({"main": te.create_prim_func(ends).with_attr("global_symbol", "main")})


def metaschedule() -> Any:
    """MetaSchedule's module. What it imports asks for the source around hundreds of functions, for which Python looks
    through every module that is loaded, again and again: without that it takes seconds, not minutes."""
    with mock.patch("inspect.getmodule", lambda *_: None):
        import tvm.s_tir.tensor_intrin  # noqa: F401
    from tvm.s_tir import meta_schedule

    return meta_schedule


def by_metaschedule(task: Task, target: Target, trials: int) -> tuple[Callable[[float], float], float, int]:
    """(what times the best kernel for so many seconds, the search's seconds, its trials)."""
    ms = metaschedule()
    machine = tvm.target.Target({**llvm_target(target), "num-cores": 1})
    module = function_of(task)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="modelc-metaschedule-") as folder:
        cores = len(os.sched_getaffinity(0))
        builder = ms.builder.LocalBuilder(max_workers=cores, initializer=metaschedule)
        database = ms.tune_tir(module, machine, folder, trials, builder=builder, num_tuning_cores=cores)
        spent = time.monotonic() - begin
        count = len(database)
        schedule = ms.tir_integration.compile_tir(database, module, machine)
    if schedule is None:
        raise ValueError("MetaSchedule found no schedule that runs")
    kernel = tvm.compile(schedule.mod, target=machine)
    rng = np.random.default_rng(0)
    buffers = [task.buffer(name) for name in (*task.inputs, *task.outputs)]
    arrays = [tvm.runtime.tensor(rng.standard_normal(b.shape).astype(b.dtype)) for b in buffers]

    def timed(seconds: float) -> float:
        found = kernel.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=3, min_repeat_ms=int(1e3 * seconds / 3))
        return float(np.median(found(*arrays).results))

    return timed, spent, count


def by_modelc(task: Task, target: Target, trials: int, measurer: Measurer) -> tuple[Subject, float, int]:
    """The Task searched as `modelc tune` does, on warm data."""
    begin = time.monotonic()
    space, learned = Space(task, target, cores=1), LearnedCost(0)
    untuned = chosen(task, target).candidate
    subject = Subject("task", task, untuned, Evolve(space, 0, learned))
    work = Work(space.untuned(untuned)[1])
    scheduler = InTurn([work], Aim().of(["task"])(Weights.of(np.ones((1, 1))), np.array([work.seconds])))
    found = Search([subject], scheduler, measurer, Budget(trials=trials)).run()
    return subject, time.monotonic() - begin, found.trials


def measured(name: str, target: Target, arguments: argparse.Namespace) -> Row:
    with tempfile.TemporaryDirectory(prefix="modelc-compare-") as folder:
        found = tasks_of(model_file(name, Path(folder), Path(folder)), "f32", target)
    if len(found) > 1:
        raise ValueError(f"it is {len(found)} tasks")
    task = found[0].task
    function_of(task)
    with Measurer(target) as measurer:
        subject, own_seconds, own_trials = by_modelc(task, target, arguments.trials, measurer)
        timed, other_seconds, other_trials = by_metaschedule(task, target, arguments.trials)
        warm, long = measurer.subject(task), Effort(least=20, most=60, seconds=arguments.seconds)
        own, other = [], []
        for _ in range(TURNS):
            measurer.submit(warm, subject.best, long)
            ((_, one),) = measurer.results()
            own.append(one.seconds)
            other.append(timed(arguments.seconds))
    us = {"modelc": 1e6 * statistics.median(own), "metaschedule": 1e6 * statistics.median(other)}
    return {
        "us": us,
        "ratio": us["metaschedule"] / us["modelc"],
        "trials": {"modelc": own_trials, "metaschedule": other_trials},
        "seconds": {"modelc": own_seconds, "metaschedule": other_seconds},
    }


def main() -> int:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE", help=f"default {' '.join(CASES)}")
    parser.add_argument("--trials", type=int, default=200, help="of each search (default 200)")
    parser.add_argument("--target", default="native")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each turn (default 0.3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keeps the rows")
    arguments = parser.parse_args()
    if find_spec("tvm.s_tir.meta_schedule") is None:
        parser.error("this TVM has no MetaSchedule")
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        parser.error(f"MetaSchedule needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    if unknown := set(arguments.cases) - {case.name for case in ansor_ops.cases()}:
        parser.error(f"{min(unknown)!r} is no case of scripts/ansor_ops.py")
    target = replace(load_target(arguments.target), cores=1)
    about = {"modelc": __version__, "tvm": tvm.__version__, "target": target.key, "trials": arguments.trials}
    kept, failures = Kept.at(arguments.json, about), []
    for name in arguments.cases:
        if kept.find(name) is None:
            try:
                kept.add({"task": name, **measured(name, target, arguments)})
            except Exception as error:  # one that fails must not cost the others
                failures.append(failure(name, error))
    rows = kept.of_tasks(arguments.cases)
    for row in rows:
        us, seconds = row["us"], row["seconds"]
        out.print(
            f"{row['task']:12} modelc {us['modelc']:9.1f} us in {seconds['modelc']:6.1f} s, "
            f"MetaSchedule {us['metaschedule']:9.1f} us in {seconds['metaschedule']:6.1f} s: {row['ratio']:.2f}",
            markup=False,
        )
    if rows:
        search = geometric_mean(row["seconds"]["metaschedule"] / row["seconds"]["modelc"] for row in rows)
        speed = geometric_mean(row["ratio"] for row in rows)
        out.print(f"geometric means: kernels {speed:.2f} times as fast, searches {search:.2f} times as fast")
    print_failures(failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
