"""Which layout wins where, and by how much: ALT's table of layouts (section 7.3.3) on this machine.

    python scripts/layout_table.py [NAME...] [--rounds 3] [--markdown]

NAME is a case of Ansor's operators (scripts/ansor_ops.py) or MxKxN, a product of an input with a constant; without one,
those of CASES. Around a Task that slides windows or contracts channels, what it reads and what it writes are stored
alike, in each layout that compile's layout stage knows (modelc/layout/classes.py): where channels do not divide, they
are last. `tiles` are ALT's spatial ones, by unfold (scripts/spatial_tiles.py), without the copy that makes them. Of a
product the last computed operand is stored so. Each Task gets the schedule that `compile` constructs for
it in these layouts, and its kernels are measured by turns, on one thread: the median of the rounds, in microseconds,
with what the price says in brackets. Then the layout that wins, how many times as fast it is as the rule's, and the one
that the price takes against the rule's, by the margin that it needs.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import ansor_ops
import onnx
import paths  # noqa: F401
from bench_ops import count
from networks import Network
from rich.table import Table
from spatial_tiles import tiled

from modelc.cli.terminal import err, out
from modelc.frontend.onnx import import_model
from modelc.ir.block import Block, Task
from modelc.ir.layout import Layout, channels_last, reordered
from modelc.layout.classes import OPERANDS, WINDOWS, Family, parameters
from modelc.layout.program import partition
from modelc.layout.rules import seeds
from modelc.measure import Measurer
from modelc.space.choose import Schedules
from modelc.target import Target, load_target

CASES = (
    *(f"C2D-{number}-b1" for number in (1, 2, 3, 4)),
    *(f"DEP-{number}-b1" for number in (1, 2, 3, 4)),
    *("GMM-1-b1", "GMM-3-b1", "128x128x512", "128x768x3072", "128x3072x768"),
)
MOST_VECTORS = 4  # of the inner part of a dimension that is split
TILES = (16, 14, 8, 7, 4)  # outputs of a spatial tile, in each dimension: the first that divides
PRODUCT = re.compile(r"(\d+)x(\d+)x(\d+)")


@dataclass(frozen=True)
class Way:
    """A Task in one layout: the seconds that it is priced at, and those measured."""

    priced: float
    measured: float


def model_of(name: str) -> onnx.ModelProto:
    """The model of a case. Raises SystemExit for an unknown name."""
    if shape := PRODUCT.fullmatch(name):
        m, k, n = map(int, shape.groups())
        net = Network(name)
        product = net.op("MatMul", net.input("x", [m, k]), net.normal("weight", (k, n), k**-0.5))
        net.output("output", product, [m, n])
        return net.build()
    cases = {case.name: case for case in ansor_ops.cases()}
    if name not in cases:
        raise SystemExit(f"{name} is neither MxKxN nor one of {', '.join(cases)}")
    return cases[name].build()[0]


def task_of(model: onnx.ModelProto) -> Task:
    """The Task of a model that takes most operations, with all that is computed row-major."""
    with tempfile.TemporaryDirectory(prefix="modelc-layouts-") as folder:
        path = Path(folder) / "case.onnx"
        onnx.save(model, path)
        tasks = [bound.task for bound in partition(import_model(path)).tasks]
    return max(tasks, key=lambda task: max(b.points() for b in task.blocks if isinstance(b, Block)))


def ways(task: Task, lanes: int) -> dict[str, Task]:
    """`task` in each layout, the rule's first."""
    anchor = task.block(task.anchor)
    assert isinstance(anchor, Block)
    data = [name for name in seeds(anchor) if name not in task.constants]
    if data:
        plain = {"last": channels_last(len(task.buffer(data[0]).shape)), "rows": Layout()}
        shapes, families = {task.buffer(name).shape for name in data}, WINDOWS
        names = [b.name for b in task.buffers if b.name not in task.constants and b.shape in shapes]
    else:
        names = [[r.buffer for r in anchor.reads if r.buffer not in task.constants][-1]]
        rank, families = len(task.buffer(names[0]).shape), OPERANDS
        plain = {"rows": Layout(), "swapped": reordered(*range(rank - 2), rank - 1, rank - 2)}
    kinds: dict[str, dict[str, Layout]] = {kind: dict.fromkeys(names, layout) for kind, layout in plain.items()}
    rule = next(iter(plain.values()))
    for family in families:
        for size in (lanes << k for k in range(MOST_VECTORS.bit_length())):
            splits = {name: split for name in names if (split := _split(task.buffer(name).shape, family, size, lanes))}
            if splits:
                kinds[f"{family.name} {size}"] = {name: splits.get(name, rule) for name in names}
    stored = {kind: _stored(task, layouts) for kind, layouts in kinds.items()}
    if data and (in_tiles := next((t for size in TILES if (t := tiled(task, size)) is not None), None)):
        stored["tiles"] = in_tiles
    return stored


def _split(shape: tuple[int, ...], family: Family, size: int, lanes: int) -> Layout | None:
    return family.layout(len(shape), size) if size in parameters(shape[family.dim], lanes) else None


def _stored(task: Task, layouts: Mapping[str, Layout]) -> Task:
    return replace(task, buffers=tuple(replace(b, layout=layouts.get(b.name, b.layout)) for b in task.buffers))


def compared(task: Task, target: Target, measurer: Measurer, rounds: int) -> dict[str, Way]:
    """What `task` takes in each layout."""
    schedules, subjects, seconds = Schedules(target), {}, dict[str, list[float]]()
    for kind, stored in ways(task, target.lanes("float32")).items():
        canonical = stored.canonical()
        subjects[kind] = measurer.subject(canonical), schedules.chosen(canonical).candidate, schedules.seconds(stored)
    for _ in range(rounds):
        for kind, (subject, candidate, _) in subjects.items():
            (result,) = measurer.measure(subject, [candidate])
            if not result.ok:
                raise SystemExit(f"{task.name}, {kind}: {result.outcome}: {result.message}")
            seconds.setdefault(kind, []).append(result.seconds)
    return {kind: Way(priced, median(seconds[kind])) for kind, (_, _, priced) in subjects.items()}


def row(name: str, by_kind: Mapping[str, Way], kinds: Sequence[str], doubt: float) -> list[str]:
    """The cells of a case."""
    rule, *others = by_kind
    cells = [f"{1e6 * w.measured:.1f} ({1e6 * w.priced:.1f})" if (w := by_kind.get(k)) else "" for k in kinds]
    fastest = min(by_kind, key=lambda kind: by_kind[kind].measured)
    cheapest = min(others, key=lambda kind: by_kind[kind].priced)
    taken = cheapest if (1 + doubt) * by_kind[cheapest].priced < by_kind[rule].priced else rule
    return [name, *cells, fastest, f"{by_kind[rule].measured / by_kind[fastest].measured:.2f}", taken]


def main() -> int:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rounds", metavar="N", type=count, default=3, help="default 3")
    parser.add_argument("--markdown", action="store_true", help="tables of Markdown")
    arguments = parser.parse_args()
    target = replace(load_target("native"), cores=1)
    tables: dict[tuple[str, ...], dict[str, dict[str, Way]]] = {}  # of windows and of products, by their rules
    with Measurer(target) as measurer:
        for name in arguments.names or CASES:
            err.print(name, markup=False)
            by_kind = compared(task_of(model_of(name)), target, measurer, arguments.rounds)
            tables.setdefault(tuple(by_kind)[:2], {})[name] = by_kind
    for rows in tables.values():
        kinds = sorted(dict.fromkeys(kind for by_kind in rows.values() for kind in by_kind), key="tiles".__eq__)
        header = ["case", *kinds, "wins", "over the rule's", "by price"]
        cells = [row(name, by_kind, kinds, target.cost.layout_doubt_share) for name, by_kind in rows.items()]
        if arguments.markdown:
            lines = [header, ["---"] * len(header), *cells]
            out.print("\n".join(f"| {' | '.join(line)} |" for line in lines), markup=False, soft_wrap=True)
            continue
        table = Table(*header, box=None)
        for line in cells:
            table.add_row(*line)
        out.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
