"""Prints how long each stage of a compilation takes as models grow, and how fast that grows:

    python scripts/bench_scale.py [--models mixed,chain,doublings] [--nodes 1000 5000 20000] [--target NAME]
                                  [--stop-after STAGE] [--json FILE]

Seconds are of processor time (this process and its threads), so that other work on the machine does not count. The
growth of a stage is the exponent of nodes between the smallest and the largest model: 1 is linear, 2 is quadratic. The
models are those of tests/helpers/scale_models.py; nothing is verified.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path

import onnx
import paths  # noqa: F401
from rich.table import Table
from scale_models import MODELS

import modelc
from modelc.cli.terminal import out
from modelc.compile.stages import STAGES

LEAST = 0.05  # seconds of a stage below which its growth says nothing


@dataclass
class Clock:
    """The processor time of every stage, told by the progress that a compilation reports."""

    seconds: dict[str, float] = field(default_factory=dict)
    stage: str = ""
    since: float = 0.0

    def __call__(self, stage: str, text: str) -> None:
        if stage != self.stage:
            self.stop()
            self.stage = stage

    def stop(self) -> None:
        now = time.process_time()
        if self.stage:
            self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + now - self.since
        self.since = now


def compiled(name: str, nodes: int, target: str, stop_after: str | None) -> dict[str, object]:
    """One model compiled: nodes, seconds by stage, distinct kernels, steps, the process's memory at most so far."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}{nodes}.onnx"
        onnx.save(MODELS[name](nodes), path)
        clock = Clock(since=time.process_time())
        output = Path(folder) / "out.modelc"
        result = modelc.compile(
            path, target, output, verify=False, stop_after=stop_after, progress=clock, database=False
        )
        clock.stop()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    sizes = {"kernels": result.kernels, "steps": result.steps, "megabytes": memory}
    return {"model": name, "nodes": nodes, "seconds": clock.seconds, **sizes}


def growth(nodes: Sequence[int], seconds: Sequence[float]) -> float | None:
    """The exponent p of seconds ~ nodes**p between the first and the last; None where they are too few to say."""
    if len(nodes) < 2 or nodes[0] == nodes[-1] or min(seconds[0], seconds[-1]) < LEAST:
        return None
    return log(seconds[-1] / seconds[0]) / log(nodes[-1] / nodes[0])


def show(name: str, rows: Sequence[dict]) -> None:
    nodes = [row["nodes"] for row in rows]
    table = Table("seconds", *(f"{n} nodes" for n in nodes), "growth", title=name)
    taken = [stage for stage in STAGES if any(stage in row["seconds"] for row in rows)]
    for stage in (*taken, "total"):
        of = [sum(r["seconds"].values()) if stage == "total" else r["seconds"].get(stage, 0.0) for r in rows]
        exponent = growth(nodes, of)
        table.add_row(stage, *(f"{s:.2f}" for s in of), "" if exponent is None else f"{exponent:.2f}")
    for key in ("kernels", "steps", "megabytes"):
        table.add_row(key, *(str(row[key]) for row in rows), "")
    out.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="mixed", help=f"of {', '.join(MODELS)} (default: mixed)")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000, 20000])
    parser.add_argument("--target", default="native")
    parser.add_argument("--stop-after", choices=STAGES, default=None)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = options.models.split(",")
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"{unknown[0]!r} is unknown; known are {', '.join(MODELS)}")
    with tempfile.TemporaryDirectory() as folder:  # what is imported and initialised once is not the model's
        path = Path(folder) / "warm.onnx"
        onnx.save(MODELS["chain"](2), path)
        modelc.compile(path, options.target, Path(folder) / "warm.modelc", verify=False, database=False)
    rows = []
    for name in names:
        rows.append([compiled(name, n, options.target, options.stop_after) for n in options.nodes])
        show(name, rows[-1])
    if options.json is not None:
        options.json.write_text(json.dumps([row for some in rows for row in some], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
