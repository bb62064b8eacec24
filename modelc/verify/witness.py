"""ONNX Runtime as a witness of single kernels: where an output departs, each kernel against its piece of the model.

Values are matched by name, so those that fusion made are not compared. Where an output departs, a value of which all
elements are as near to ONNX Runtime's in the whole model as roundings ordinarily take them is none that the departure
begins at. For all others the model is cut at every value that a kernel wrote; each piece gets what the kernel got. Of
each value all elements are compared:

    settled     all are ONNX Runtime's to roundoff, or whole numbers a step apart at a tie
    explained   those that are not have been evaluated: each of ours is what its kernel computes, and each of ONNX
                Runtime's within what rounding leaves
    moving      where nothing can be told of ONNX Runtime's numbers, its piece is run again on inputs that are moved by
                a hundredth of the tolerance: one of many steps, each of which rounds to whole numbers, or one that is
                ill-conditioned, moves as far by that as two right engines are apart. Where ONNX Runtime's numbers are
                not what the nodes leave in any order, its inputs and constants are moved by a few roundoffs alone
    otherwise   two readings of this piece differ, and a third one decides: the reference evaluator of onnx
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from modelc.forks import cores, shared
from modelc.frontend.witness.reference_evaluator import evaluated_by_onnx, part_of
from modelc.frontend.witness.surgery import Span, change_constants, cut, expose, save
from modelc.scratch import TemporaryFolder
from modelc.verify.beginning import Apart
from modelc.verify.compare import ROUNDOFF, Distance, distance
from modelc.verify.engine import Engine, EngineError
from modelc.verify.kernels.reading import BOTH_RIGHT, Explanation
from modelc.verify.pieces import Limits, Piece, Written, moves_on
from modelc.verify.report import MOVING, ORDINARY, SILENT, LayerReport

R = TypeVar("R")
Array = NDArray[Any]
LEAST_SHARED = 1 << 18  # elements that several processes compare
LOT = 1 << 28  # bytes of values that are compared at a time, of which ONNX Runtime and files have copies
MOVED = 0.01  # of the tolerance: how far inputs are moved to see how far a piece moves
MOVED_LITTLE = 4 * ROUNDOFF["float32"]  # and where another arithmetic of the same meaning may be why: x * a + b for
# (x - mean) * s, of which the parts cancel
FARTHER = 16.0  # as often as far, to see whether a piece jumps
MOVES = 4  # runs on inputs that are moved


@dataclass(frozen=True)
class Witnessed:
    """What ONNX Runtime says of the kernels of a run: by its pieces of the model (`layers`), and, where it was asked,
    how far their values are from its own in the whole model (`apart`). Both are in the order of execution."""

    layers: tuple[LayerReport, ...]
    apart: tuple[Apart, ...] = ()

    @property
    def confirmed(self) -> set[str]:
        """The values of which every element is ONNX Runtime's, or was judged."""
        return {layer.value for layer in self.layers if layer.passed}


def compare_pieces(
    model: Path,
    feed: Mapping[str, Array],
    values: Mapping[str, Written],
    limits: Limits,
    explains: Callable[[str, Array], Explanation],
    whole: bool,
) -> Witnessed:
    """One report for each of `values`, which kernels wrote or read when the model's inputs were `feed`. `explains` says
    of ONNX Runtime's numbers for a value what is known of the elements that are not ours. `whole`: they are compared
    with those of the whole model too."""
    apart, reports = list[Apart](), dict[str, LayerReport]()
    there = dict[str, Written]()
    for names in _lots(values):
        of_lot, theirs = _in_whole(model, feed, {name: values[name] for name in names}, whole)
        there |= of_lot
        beside_whole = partial(_beside_whole, of_lot, theirs, limits)
        for name, (far, beyond) in _by_value(beside_whole, of_lot) if whole else ():
            value = of_lot[name]
            apart.append(Apart(value.kernel, name, far.rms_rel, beyond))
            if _is_ordinary(far, value, limits.units):
                referee = ORDINARY if beyond else ""
                reports[name] = LayerReport(value.kernel, name, value.nodes, far, referee=referee)
    asked = {name: value for name, value in there.items() if name not in reports}
    for names in _lots(asked):
        reports |= _by_pieces(model, feed, there, names, limits, explains)
    return Witnessed(tuple(reports[name] for name in there), tuple(apart))


def _lots(values: Mapping[str, Written]) -> list[list[str]]:
    """The names in their order, in lots of LOT bytes: ONNX Runtime has so many numbers beside ours at a time."""
    lots, size = list[list[str]](), 0
    for name, value in values.items():
        if not lots or size + value.array.nbytes > LOT:
            lots.append([])
            size = 0
        lots[-1].append(name)
        size += value.array.nbytes
    return lots


def _in_whole(
    model: Path, feed: Mapping[str, Array], values: Mapping[str, Written], whole: bool
) -> tuple[dict[str, Written], dict[str, Array]]:
    """Those of `values` that the model has with the same dtype and shape, as far as it has each in this run; and what
    ONNX Runtime makes of them, where the `whole` is asked for."""
    with TemporaryFolder("pieces") as folder:
        expose(model, [*values], bare := Path(folder) / "model.onnx")
        with Engine("ort-unoptimised", bare, timed=False) as engine:
            run = engine.run(feed) if whole else {}
            kinds = {name: (x.dtype.name, x.shape) for name, x in run.items()} if whole else engine.shapes(feed)
    there = {name: value.within(kinds[name][1]) for name, value in values.items() if name in kinds}
    return {name: v for name, v in there.items() if (v.array.dtype.name, v.array.shape) == kinds[name]}, run


def _beside_whole(
    values: Mapping[str, Written], theirs: Mapping[str, Array], limits: Limits, name: str
) -> tuple[Distance, bool]:
    """How far a value is from ONNX Runtime's, and whether some element is beyond roundoff."""
    far = distance(values[name].array, theirs[name], limits.rtol, limits.atol)
    return far, bool(values[name].unsettled(theirs[name]).any())


def _by_pieces(
    model: Path,
    feed: Mapping[str, Array],
    values: Mapping[str, Written],
    names: Sequence[str],
    limits: Limits,
    explains: Callable[[str, Array], Explanation],
) -> dict[str, LayerReport]:
    """The reports on some of `values` by pieces of the model, which is cut at all of them."""
    arrays, asked = {name: value.array for name, value in values.items()}, {name: values[name] for name in names}
    with TemporaryFolder("pieces") as folder:
        path = Path(folder) / "pieces.onnx"
        made = cut(model, arrays, path, asked)
        fed = {**feed, **{made.given[name]: np.asarray(arrays[name], order="C") for name in made.given}}
        with Engine("ort-unoptimised", path, timed=False) as engine:
            reference = engine.run(fed)
            tensors = {**{name: reference[place] for name, place in made.read.items()}, **feed, **arrays}
            pieces = {
                name: Piece(value, name, reference[name], made.spans.get(name, Span(None, 0)), limits)
                for name, value in asked.items()
            }

            def beside_piece(name: str) -> tuple[LayerReport, Explanation]:
                settled = pieces[name].is_settled(tensors.__getitem__)
                explained = BOTH_RIGHT if settled else explains(name, reference[name])
                return pieces[name].report(explained, tensors.__getitem__), explained

            reports, in_doubt = dict[str, LayerReport](), dict[Piece, Explanation]()
            for name, (report, explained) in _by_value(beside_piece, asked):
                reports[name] = report
                if not report.passed:
                    in_doubt[pieces[name]] = explained
            for name, decision in _decisions(in_doubt, path, engine, fed, limits).items():
                reports[name] = replace(reports[name], referee=decision)
    return reports


def _by_value(read: Callable[[str], R], values: Mapping[str, Written]) -> list[tuple[str, R]]:
    """What `read` gives of each of `values` by name, in their order; by several processes where they are large."""
    processes = cores() if sum(value.array.size for value in values.values()) > LEAST_SHARED else 1
    names = [*values]
    results = dict(shared(read, names, processes))
    return [(name, results[number]) for number, name in enumerate(names)]


def _decisions(
    in_doubt: Mapping[Piece, Explanation], path: Path, engine: Engine, fed: Mapping[str, Array], limits: Limits
) -> dict[str, str]:
    """Which reading of a piece, in the model at `path`, is right, by the value's name. `in_doubt`: pieces that two read
    otherwise, and whether ours is explained."""

    @cache
    def moved_runs() -> list[dict[str, Array]]:
        return [engine.run(moved_by(MOVED * limits.rtol, fed, seed)) for seed in range(MOVES)]

    def moves(piece: Piece, explained: Explanation) -> bool:
        return piece.may_move(explained) and piece.moves_as_far([run[piece.name] for run in moved_runs()], explained)

    def moves_by_little(piece: Piece, explained: Explanation) -> bool:
        if piece.theirs.dtype.kind != "f" or not piece.may_move(explained):
            return False
        little = _moved_with_constants(path, piece.name, fed, MOVED_LITTLE)
        if not piece.moves_as_far(little):
            return False
        farther = _moved_with_constants(path, piece.name, fed, FARTHER * MOVED_LITTLE)
        return moves_on(piece.theirs, little, farther)

    decisions = {}
    for piece, explained in in_doubt.items():
        if (moves if explained.theirs is not False else moves_by_little)(piece, explained):
            decisions[piece.name] = MOVING
            continue
        decision = piece.decided(explained, evaluated_by_onnx(path, piece.name, fed))
        decisions[piece.name] = MOVING if decision == SILENT and moves(piece, explained) else decision
    return decisions


def _moved_with_constants(path: Path, output: str, fed: Mapping[str, Array], share: float) -> list[Array]:
    """What ONNX Runtime makes of the nodes that an output of the model at `path` is made by, where their inputs and
    constants are off by a `share` of themselves; nothing where it refuses other constants."""
    runs = []
    for seed in range(MOVES):
        rng = np.random.default_rng(seed)
        part = part_of(path, output, fed)
        change_constants(part, partial(_nudged, share, rng))
        given = moved_by(share, {value.name: fed[value.name] for value in part.graph.input}, seed)
        try:
            with TemporaryFolder("moved") as folder:
                save(part, moved := Path(folder) / "part.onnx")
                with Engine("ort-unoptimised", moved, timed=False) as engine:
                    runs.append(engine.run(given)[output])
        except EngineError:
            return []
    return runs


def _is_ordinary(far: Distance, value: Written, units: float) -> bool:
    """Whether no element of a value is farther from ONNX Runtime's in the whole model than so many units of roundoff
    of its scale; whole numbers have to be equal. Of 16-bit floats nothing is said."""
    return not value.narrow and far.of_scale <= units * ROUNDOFF.get(value.array.dtype.name, 0.0)


def moved_by(share: float, feed: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """The inputs with every float off by a `share` of itself."""
    rng = np.random.default_rng(seed)
    return {name: _nudged(share, rng, array) if array.dtype.kind == "f" else array for name, array in feed.items()}


def _nudged(share: float, rng: np.random.Generator, array: Array) -> Array:
    with np.errstate(over="ignore"):  # the largest finite numbers become infinite
        return np.asarray(array * (1 + share * rng.choice((-1.0, 1.0), array.shape)), array.dtype)
