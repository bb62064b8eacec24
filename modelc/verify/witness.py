"""ONNX Runtime as a witness of single kernels: where an output departs, each kernel against its piece of the model.

The model is cut at every value that a kernel wrote; each piece gets what the kernel got. Values are matched by name, so
those that fusion made are not compared. Of each value all elements are compared:

    settled     all are ONNX Runtime's to roundoff, or whole numbers a step apart at a tie
    explained   those that are not have been evaluated: each of ours is what its kernel computes, and each of ONNX
                Runtime's within what rounding leaves; or, where an output departs, all are as near to ONNX Runtime's
                in the whole model as roundings ordinarily take them: what departs does not begin there
    moving      where nothing can be told of ONNX Runtime's numbers, its piece is run again on inputs that are moved by
                a hundredth of the tolerance: one of many steps, each of which rounds to whole numbers, or one that is
                ill-conditioned, moves as far by that as two right engines are apart. Where ONNX Runtime's numbers are
                not what the nodes leave in any order, its inputs and constants are moved by a few roundoffs alone
    otherwise   two readings of this piece differ, and a third one decides: the reference evaluator of onnx
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.witness.referee import part_of, refereed
from modelc.frontend.witness.surgery import Span, change_constants, cut, expose, save
from modelc.scratch import TemporaryFolder
from modelc.verify.beginning import Apart
from modelc.verify.compare import ROUNDOFF, distance
from modelc.verify.engine import Engine, EngineError
from modelc.verify.kernels.reading import BOTH_RIGHT, Explanation
from modelc.verify.pieces import Limits, Piece, Written
from modelc.verify.report import MOVING, SILENT, LayerReport

Array = NDArray[Any]
MOVED = 0.01  # of the tolerance: how far inputs are moved to see how far a piece moves
MOVED_LITTLE = 4 * ROUNDOFF["float32"]  # and where another arithmetic of the same meaning may be why: x * a + b for
# (x - mean) * s, of which the parts cancel
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
    with TemporaryFolder("pieces") as folder, ExitStack() as stack:
        bare, path = Path(folder) / "model.onnx", Path(folder) / "pieces.onnx"
        expose(model, [*values], bare)
        apart, near = tuple[Apart, ...](), set[str]()
        with Engine("ort-unoptimised", bare, timed=False) as engine:
            if whole:
                run = engine.run(feed)
                kinds = {name: (array.dtype.name, array.shape) for name, array in run.items()}
            else:
                kinds = engine.shapes(feed)
            values = {name: value.within(kinds[name][1]) for name, value in values.items() if name in kinds}
            values = {name: v for name, v in values.items() if (v.array.dtype.name, v.array.shape) == kinds[name]}
            if whole:
                apart = tuple(_apart_in_whole(name, value, run[name]) for name, value in values.items())
                near = {x.value for x in apart if _is_ordinary(x, values[x.value], limits.units)}
                del run
        arrays = {name: value.array for name, value in values.items()}
        made = cut(model, arrays, path)
        fed = {**feed, **{made.given[name]: np.asarray(arrays[name], order="C") for name in made.given}}
        engine = stack.enter_context(Engine("ort-unoptimised", path, timed=False))
        reference = engine.run(fed)
        tensors = {**{name: reference[place] for name, place in made.read.items()}, **feed, **arrays}
        reports, in_doubt = dict[str, LayerReport](), dict[Piece, Explanation]()
        for name, value in values.items():
            piece = Piece(value, name, reference[name], made.spans.get(name, Span(None, 0)), limits)
            settled = piece.is_settled(tensors.__getitem__)
            explained = BOTH_RIGHT if settled or name in near else explains(name, reference[name])
            reports[name] = piece.report(explained, tensors.__getitem__)
            if not reports[name].passed:
                in_doubt[piece] = explained
        for name, decision in _decisions(in_doubt, path, engine, fed, limits).items():
            reports[name] = replace(reports[name], referee=decision)
    return Witnessed(tuple(reports.values()), apart)


def _decisions(
    in_doubt: Mapping[Piece, Explanation], path: Path, engine: Engine, fed: Mapping[str, Array], limits: Limits
) -> dict[str, str]:
    """Which reading of a piece, in the model at `path`, is right, by the value's name. `in_doubt`: pieces that two read
    otherwise, and whether ours is explained."""

    @cache
    def moved_runs() -> list[dict[str, Array]]:
        return [engine.run(moved_by(MOVED * limits.rtol, fed, seed)) for seed in range(MOVES)]

    def moves(piece: Piece, explained: Explanation) -> bool:
        return piece.may_move(explained) and piece.moves_as_far([run[piece.name] for run in moved_runs()])

    def moves_by_little(piece: Piece, explained: Explanation) -> bool:
        return piece.may_move(explained) and piece.moves_as_far(_moved_with_constants(path, piece.name, fed))

    decisions = {}
    for piece, explained in in_doubt.items():
        compared = explained.theirs is False and piece.theirs.dtype.kind == "b"  # equal numbers, moved, are not equal
        if not compared and (moves if explained.theirs is not False else moves_by_little)(piece, explained):
            decisions[piece.name] = MOVING
            continue
        decision = piece.decided(explained, refereed(path, piece.name, fed))
        decisions[piece.name] = MOVING if decision == SILENT and moves(piece, explained) else decision
    return decisions


def _moved_with_constants(path: Path, output: str, fed: Mapping[str, Array]) -> list[Array]:
    """What ONNX Runtime makes of the nodes that an output of the model at `path` is made by, where their inputs and
    constants are MOVED_LITTLE; nothing where it refuses other constants."""
    runs = []
    for seed in range(MOVES):
        rng = np.random.default_rng(seed)
        part = part_of(path, output, fed)
        change_constants(part, partial(_nudged, MOVED_LITTLE, rng))
        given = moved_by(MOVED_LITTLE, {value.name: fed[value.name] for value in part.graph.input}, seed)
        try:
            with TemporaryFolder("moved") as folder:
                save(part, moved := Path(folder) / "part.onnx")
                with Engine("ort-unoptimised", moved, timed=False) as engine:
                    runs.append(engine.run(given)[output])
        except EngineError:
            return []
    return runs


def _apart_in_whole(name: str, value: Written, theirs: Array) -> Apart:
    far = distance(value.array, theirs, 0, 0)
    return Apart(value.kernel, name, far.rms_rel, far.of_scale, bool(value.unsettled(theirs).any()))


def _is_ordinary(apart: Apart, value: Written, units: float) -> bool:
    """Whether no element of a value is farther from ONNX Runtime's in the whole model than so many units of roundoff
    of its scale; whole numbers have to be equal. Of 16-bit floats nothing is said."""
    return not value.narrow and apart.of_scale <= units * ROUNDOFF.get(value.array.dtype.name, 0.0)


def moved_by(share: float, feed: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """The inputs with every float off by a `share` of itself."""
    rng = np.random.default_rng(seed)
    return {name: _nudged(share, rng, array) if array.dtype.kind == "f" else array for name, array in feed.items()}


def _nudged(share: float, rng: np.random.Generator, array: Array) -> Array:
    return np.asarray(array * (1 + share * rng.choice((-1.0, 1.0), array.shape)), array.dtype)
