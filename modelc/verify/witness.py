"""ONNX Runtime as a witness of single kernels: where an output departs, each kernel against its piece of the model.

The model is cut at every value that a kernel wrote; each piece gets what the kernel got. Values are matched by name, so
those that fusion made are not compared. A kernel that is right by its meaning and departs from its piece is put before
a third reader, the reference evaluator of onnx: two of the three decide. Where that cannot say, ONNX Runtime's piece is
run again on inputs that are moved by a hundredth of the tolerance: a piece of many steps, each of which rounds to whole
numbers, moves as far by that as two right engines are apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.witness.referee import refereed
from modelc.frontend.witness.surgery import Span, cut, expose
from modelc.scratch import TemporaryFolder
from modelc.verify.compare import Tolerance, filtered_distance, rounded_distance
from modelc.verify.engine import Engine
from modelc.verify.report import EXPLAINED, MOVING, SILENT, LayerReport
from modelc.verify.steps import judged

Array = NDArray[Any]
MOVED = 0.01  # of the tolerance: how far inputs are moved to see how far a piece moves
MOVES, MOST_MOVES = 4, 3.0  # runs on inputs that are moved; how often as far as in these we may be apart


@dataclass(frozen=True)
class Written:
    """A value as a kernel wrote it, as the model has it; `rounded`: it was computed through 16-bit floats."""

    kernel: str
    nodes: tuple[str, ...]
    array: Array
    rounded: bool = False

    def within(self, shape: tuple[int, ...]) -> Written:
        """As much of the value as there is in a run, where its size depends on data."""
        array = self.array
        if array.ndim == len(shape) and all(n >= m for n, m in zip(array.shape, shape, strict=True)):
            array = array[tuple(slice(m) for m in shape)]
        return replace(self, array=array)


def compare_pieces(
    model: Path,
    feed: Mapping[str, Array],
    values: Mapping[str, Written],
    assembled: Mapping[str, Array],
    tolerance: tuple[float, float],
    policy: Tolerance,
    filters: bool,
    explains: Callable[[str, Array], bool],
) -> tuple[LayerReport, ...]:
    """One report for each of `values`, which kernels wrote when the model's inputs were `feed`; `assembled` are those
    that they read and that were written in parts. `policy` is that of what is computed through 16-bit floats.
    `filters`: some kernel makes fewer multiplications; `explains` says of ONNX Runtime's numbers whether rounding
    explains how far they are from a kernel's."""
    rtol, atol = tolerance
    with TemporaryFolder("pieces") as folder, ExitStack() as stack:
        bare, pieces = Path(folder) / "model.onnx", Path(folder) / "pieces.onnx"
        expose(model, [*values, *assembled], bare)
        with Engine("ort-plain", bare, timed=False) as engine:
            kinds = engine.shapes(feed)
        values = {name: value.within(kinds[name][1]) for name, value in values.items() if name in kinds}
        values = {name: v for name, v in values.items() if (v.array.dtype.name, v.array.shape) == kinds[name]}
        assembled = {name: a for name, a in assembled.items() if kinds.get(name) == (a.dtype.name, a.shape)}
        arrays = {**assembled, **{name: value.array for name, value in values.items()}}
        made = cut(model, arrays, pieces)
        given = {made.given[name]: np.asarray(arrays[name], order="C") for name in made.given}
        engine = stack.enter_context(Engine("ort-plain", pieces, timed=False))
        reference = engine.run({**feed, **given})
        tensors = {**{name: reference[place] for name, place in made.read.items()}, **feed}
        tensors |= arrays
        reports = []
        for name, value in values.items():
            ours, wanted, steps = value.array, reference[name], 0
            if value.rounded:
                apart = rounded_distance(ours, wanted, policy)
            else:
                apart, steps = judged(
                    ours, wanted, made.spans.get(name, Span(None, 0)), tensors.__getitem__, rtol, atol
                )
                if not apart.passed and filters and ours.dtype.kind == "f":
                    apart = filtered_distance(ours, wanted, rtol, atol)
            report = LayerReport(value.kernel, name, value.nodes, apart, steps)
            if not apart.passed and explains(name, wanted):
                report = replace(report, referee=EXPLAINED)
            elif not apart.passed:
                report = _refereed(report, pieces, {**feed, **given}, ours, wanted, rtol, atol)
            reports.append(report)
        if any(report.referee == SILENT for report in reports):
            moved = [engine.run(_moved({**feed, **given}, MOVED * rtol, seed)) for seed in range(MOVES)]
            reports = [_moving(report, values, reference, moved) for report in reports]
    return tuple(reports)


def _moved(feed: Mapping[str, Array], share: float, seed: int) -> dict[str, Array]:
    """The inputs with every float off by a `share` of itself."""
    rng = np.random.default_rng(seed)

    def moved(array: Array) -> Array:
        if array.dtype.kind != "f":
            return array
        return np.asarray(array * (1 + share * rng.choice((-1.0, 1.0), array.shape)), array.dtype)

    return {name: moved(array) for name, array in feed.items()}


def _moving(
    report: LayerReport,
    values: Mapping[str, Written],
    reference: Mapping[str, Array],
    moved: Sequence[Mapping[str, Array]],
) -> LayerReport:
    """The report, where the third reader is silent, with whether ONNX Runtime's own numbers move as far."""
    if report.referee != SILENT:
        return report
    wanted = np.asarray(reference[report.value], np.float64)
    ours = _apart(values[report.value].array, wanted)
    theirs = [_apart(run[report.value], wanted) for run in moved]
    rms, largest = (MOST_MOVES * max(distances) for distances in zip(*theirs, strict=True))
    explained = ours[0] <= rms and ours[1] <= largest
    return replace(report, referee=MOVING) if explained else report


def _apart(array: Array, wanted: Array) -> tuple[float, float]:
    """The root mean square, and the largest, of the differences."""
    apart = np.abs(np.asarray(array, np.float64) - wanted)
    return float(np.sqrt(np.mean(apart**2))), float(apart.max(initial=0.0))


def _refereed(
    report: LayerReport,
    pieces: Path,
    given: Mapping[str, Array],
    ours: Array,
    wanted: Array,
    rtol: float,
    atol: float,
) -> LayerReport:
    """The report with what the third reader says of it."""
    third = refereed(pieces, report.value, given)
    if third is None or third.shape != ours.shape:
        return replace(report, referee=SILENT)
    return replace(report, referee="agrees" if _nearer(ours, wanted, third, rtol, atol) else "contradicts")


def _nearer(ours: Array, wanted: Array, third: Array, rtol: float, atol: float) -> bool:
    """Whether wherever we are away from ONNX Runtime the third reading is as near to us as it allows."""
    a, b, c = (np.asarray(x, np.float64) for x in (ours, wanted, third))
    with np.errstate(all="ignore"):
        allowed = atol + rtol * np.abs(c) + (ours.dtype.kind in "iu")  # a step, at ties
        near = (np.abs(a - c) <= allowed) | (a == c) | (np.isnan(a) & np.isnan(c))
        same = (np.abs(a - b) <= atol + rtol * np.abs(b)) | (a == b) | (np.isnan(a) & np.isnan(b))
    return bool((near | same).all())
