"""Prints what `modelc compile` takes: wall and processor seconds, cold, again with what the first kept, and by stage.

    python scripts/bench_compile.py [NAME|FILE.onnx ...] [--dir models] [--against CHECKOUT] [--threads N] [--no-verify]
                                    [--repeat N] [--json FILE]

NAME is a model of tests/models.yaml (scripts/fetch_models.py puts it into DIR). Every compile is a process of its own,
with a cache of its own that has but this machine's timings; a warm one finds what a cold one before it has kept. With
--against, another checkout of modelc compiles the same, by turns with this one: the ratios are its seconds over ours.
The last row has geometric means.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median

import paths
from rich.table import Table
from trained_models import catalogue

from modelc.cli.terminal import out
from modelc.compile.stages import STAGES
from modelc.scratch import user_cache


@dataclass(frozen=True)
class Cost:
    """Of one compile, in seconds: as the clock says, of processors, and of each stage by the clock."""

    wall: float
    processor: float
    stages: Mapping[str, float]


def compiled(tree: Path, model: Path, flags: Sequence[str], cache: Path) -> Cost:
    """What modelc of a checkout takes for a model with this cache."""
    env = {**os.environ, "PYTHONPATH": str(tree), "MODELC_CACHE": str(cache)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "modelc", "compile", str(model), "-o", f"{folder}/out.modelc", "--json", "-q"]
        with tempfile.TemporaryFile() as said:
            start = time.perf_counter()
            process = subprocess.Popen([*command, "--no-database", *flags], stdout=said, cwd=folder, env=env)
            _, status, used = os.wait4(process.pid, 0)
            wall = time.perf_counter() - start
            process.returncode = os.waitstatus_to_exitcode(status)
            said.seek(0)
            document = json.load(said)
    if process.returncode:
        raise SystemExit(f"{model}: {document}")
    return Cost(wall, used.ru_utime + used.ru_stime, document["seconds"])


def cold_and_warm(tree: Path, model: Path, flags: Sequence[str]) -> dict[str, Cost]:
    """A compile with nothing kept, and the same again."""
    with tempfile.TemporaryDirectory() as cache:
        for probed in user_cache().glob("native-*.yaml"):
            shutil.copy(probed, cache)
        return {kind: compiled(tree, model, flags, Path(cache)) for kind in ("cold", "warm")}


def middle(costs: Sequence[Cost]) -> Cost:
    """The compile of median wall seconds."""
    return next(cost for cost in costs if cost.wall == sorted(c.wall for c in costs)[(len(costs) - 1) // 2])


def flags_of(entry: Mapping[str, Mapping[str, object]]) -> list[str]:
    """What fixes the model's inputs."""
    shapes = [f"--shape={name}={','.join(map(str, dims))}" for name, dims in entry.get("shape", {}).items()]
    return [*shapes, *(f"--constant={name}={value}" for name, value in entry.get("constant", {}).items())]


def main() -> None:
    models = {name: entry for name, entry in catalogue().items() if not entry.get("refused")}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME|FILE", help="default: all of tests/models.yaml that are there"
    )
    parser.add_argument("--dir", type=Path, default=paths.ROOT / "models", help="where the models are")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout, which compiles by turns")
    parser.add_argument("--threads", type=int, default=0, metavar="N")
    parser.add_argument("--no-verify", action="store_true", help="as far as the package")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="times; medians are printed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures too")
    arguments = parser.parse_args()
    more = ["--threads", str(arguments.threads)] if arguments.threads else []
    more += ["--no-verify"] if arguments.no_verify else ["--no-bench"]
    trees = {"ours": paths.ROOT} | ({"theirs": arguments.against.resolve()} if arguments.against else {})
    names = arguments.names or [name for name in models if (arguments.dir / f"{name}.onnx").exists()]
    rows = []
    for name in names:
        path = Path(name).resolve() if name.endswith(".onnx") else (arguments.dir / f"{name}.onnx").resolve()
        flags = [*flags_of(models.get(path.stem, {})), *more]
        runs = [{who: cold_and_warm(tree, path, flags) for who, tree in trees.items()} for _ in range(arguments.repeat)]
        costs = {who: {kind: middle([run[who][kind] for run in runs]) for kind in ("cold", "warm")} for who in trees}
        rows.append({"model": path.stem, "costs": costs})
        out.print(_line(rows[-1]), markup=False, soft_wrap=True)
    _print_table(rows, arguments.against is not None)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1, default=vars) + "\n")


def _line(row: Mapping) -> str:
    """The stages of a model, cold and warm."""
    parts = []
    for who, kinds in row["costs"].items():
        for kind, cost in kinds.items():
            stages = ", ".join(f"{stage} {cost.stages.get(stage, 0):.1f}" for stage in STAGES)
            parts.append(
                f"{row['model']} {who} {kind}: {cost.wall:.1f} s, {cost.processor:.1f} of processors; {stages}"
            )
    return "\n".join(parts)


def _print_table(rows: Sequence[Mapping], compared: bool) -> None:
    kinds = [(kind, number) for kind in ("cold", "warm") for number in ("wall", "processor")]
    table = Table("model", *(f"{kind} {number}" for kind, number in kinds), box=None)
    ratios: dict[tuple[str, str], list[float]] = {key: [] for key in kinds}
    for row in rows:
        cells = []
        for kind, number in kinds:
            ours = getattr(row["costs"]["ours"][kind], number)
            cell = f"{ours:.2f}"
            if compared:  # whatever theirs keeps: the other's warm compile is its own
                ratios[kind, number].append(getattr(row["costs"]["theirs"][kind], number) / ours)
                cell += f" ({ratios[kind, number][-1]:.2f})"
            cells.append(cell)
        table.add_row(row["model"], *cells)
    if compared and rows:
        means = (geometric_mean(ratios[key]) for key in kinds)
        table.add_row(f"geometric mean of {len(rows)}", *(f"({mean:.2f})" for mean in means))
        worst = min(ratios["cold", "wall"])
        table.add_row("least, median", f"({worst:.2f}, {median(ratios['cold', 'wall']):.2f})")
    out.print(table)


if __name__ == "__main__":
    main()
