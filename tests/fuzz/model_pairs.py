"""Wrong packages of slightly other models: python tests/fuzz pairs [--count N] [--seed S] [--kind KIND...] [--verbose]

Of each pair of models (pair_kinds.py) one is right, and the other is not quite. Those count whose outputs differ, in
ONNX Runtime on widely drawn inputs, by more than 32 times the roundoff of the output's scale. Each is asked about three
ways:

    plain        `verify` compares the package of the wrong model with the right one: MUTANT --against RIGHT
    miscompiled  code and parameters of the wrong model, with the manifest and the choices of the right one, as if the
                 right one had been compiled wrongly; where the steps of both take the same
    misread      the package of the wrong model is judged by how it was made, and compared with the right one, as if an
                 importer had misread the right one: constants keep their names where the nodes of both models are the
                 same, and where they are not, those that are others have names of their own

Prints by kind and way how many packages were tried and how many of them missed: accepted, which is to be 0. The exit
code is 1 where any is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from forked import Outcome
from in_children import each
from layer_draft import Array, LayerDraft
from mutant_subjects import Subject
from networks import write
from pair_kinds import KINDS

import modelc
from modelc.errors import ModelcError
from modelc.package import PackageSpec, find_toolchain, runtime_objects, write_package
from modelc.package.manifest import NAME
from modelc.package.spec import Plan
from modelc.target import Target, load_target
from modelc.verify.kernels.samples import EFFORTS
from modelc.verify.report import Report
from modelc.verify.verdict import SAMPLES, verify_outputs

WAYS = ("plain", "miscompiled", "misread")
ROUNDOFF = 2.0**-24
LEAST_EFFECT = 32.0  # of a wrong model, in units of roundoff
MOST_SAMPLES = 40  # among which the effect is looked for
MISSED, CAUGHT, SMALL, NO_FIT, BROKEN = "missed", "caught", "small", "does not fit", "broken"


@dataclass(frozen=True)
class Asked:
    """How packages are made and judged, and where they are written."""

    seed: int
    kinds: tuple[str, ...]
    target: Target
    check: str
    folder: Path


@dataclass(frozen=True)
class Result:
    """What became of the pair `number` one way; `effect` is how far the wrong model is off, in units of roundoff."""

    seed: int
    number: int
    kind: str
    way: str
    outcome: str
    said: str
    effect: float


def kind_of(number: int, asked: Asked) -> str:
    return asked.kinds[number % len(asked.kinds)]


def draft(number: int, wrong: bool, asked: Asked) -> LayerDraft:
    """One model of the pair `number`."""
    made = LayerDraft(np.random.default_rng((asked.seed, number)))
    KINDS[kind_of(number, asked)].build(made, wrong)
    return made


def judged(number: int, asked: Asked) -> list[Result]:
    """What becomes of the pair `number`, each way."""
    kind = kind_of(number, asked)
    right, wrong = (draft(number, is_wrong, asked) for is_wrong in (False, True))
    wrong.name_apart(right)
    effect = effect_of(right, wrong, np.random.default_rng((asked.seed, number, 1)))
    if effect <= LEAST_EFFECT:
        return [Result(asked.seed, number, kind, way, SMALL, "", effect) for way in WAYS]
    for name, model in (("right", right), ("wrong", wrong)):
        write(model.model(), asked.folder / f"{name}.onnx")
    try:
        subjects = [Subject.of(name, asked.folder, asked.target, asked.folder) for name in ("right", "wrong")]
    except ModelcError as error:
        return [Result(asked.seed, number, kind, way, BROKEN, str(error), effect) for way in WAYS]
    return [Result(asked.seed, number, kind, way, *verdict(way, *subjects, kind, asked), effect) for way in WAYS]


def verdict(way: str, right: Subject, wrong: Subject, kind: str, asked: Asked) -> tuple[str, str]:
    """What becomes of the wrong package one way, and the verdict's sentence."""
    if way == "miscompiled" and not takes_the_same(right.spec, wrong.spec):
        return NO_FIT, ""
    try:
        report = report_of(way, right, wrong, KINDS[kind].rounded, asked)
    except ModelcError as error:
        return CAUGHT, str(error)
    except Exception as error:  # an internal error accepts nothing, and is shown
        return BROKEN, f"internal error: {type(error).__name__}: {error}"[:400]
    return MISSED if report.passed else CAUGHT, report.sentence()


def report_of(way: str, right: Subject, wrong: Subject, rounded: bool, asked: Asked) -> Report:
    """What is found of the wrong package one way. Raises ModelcError."""
    miscompiled = way == "miscompiled"
    spec = replace(wrong.spec, choices=right.spec.choices) if miscompiled else wrong.spec
    package = write_package(spec, asked.folder / "wrong.modelc")
    plans = right.spec.variants if miscompiled else wrong.spec.variants
    if rounded:
        plans = tuple(replace(plan, rounded=tuple(t.name for t in plan.outputs)) for plan in plans)
    manifest = replace(package.manifest, variants=plans)
    (package.path / NAME).write_text(manifest.to_json())
    if way != "misread":
        return modelc.verify(package.path, right.model, seed=asked.seed, check=asked.check)
    made = {"every_variant": True, "blueprints": wrong.blueprints, "check": asked.check, "brief": True}
    return verify_outputs(package.path, right.model, None, asked.seed, SAMPLES, **made)


def takes_the_same(right: PackageSpec, wrong: PackageSpec) -> bool:
    """Whether the steps of both packages take arguments in the same places, so that one can stand for the other."""

    def places(spec: PackageSpec) -> Any:
        return [offset for offset, _ in spec.params], [_places(plan) for plan in spec.variants]

    return places(right) == places(wrong)


def _places(plan: Plan) -> Any:
    steps = [(step.arguments, step.extent) for step in plan.steps]
    return steps, plan.arena_bytes, plan.loops, [(t.dtype, t.shape) for t in (*plan.inputs, *plan.outputs)]


# --- how far the wrong model is off -----------------------------------------------------------------------------------


def effect_of(right: LayerDraft, wrong: LayerDraft, rng: np.random.Generator) -> float:
    """The largest difference of the outputs on drawn inputs, in units of the roundoff of the element or the output's
    RMS, whichever is larger; infinite for whole numbers, and where one is not finite."""
    sessions = [_session(model.model()) for model in (right, wrong)]
    largest = 0.0
    for _ in range(MOST_SAMPLES):
        feeds = right.drawn(rng)
        made, other = (
            session.run(None, dict(zip((i.name for i in session.get_inputs()), feeds.values(), strict=True)))
            for session in sessions
        )
        largest = max(largest, *(apart(a, b) for a, b in zip(made, other, strict=True)))
        if largest > LEAST_EFFECT:
            break
    return largest


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def apart(right: Array, wrong: Array) -> float:
    """The largest difference in units of roundoff."""
    if right.shape != wrong.shape:
        return inf
    if right.dtype.kind != "f":
        return inf if (right != wrong).any() else 0.0
    a, b = right.astype(np.float64), wrong.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not (finite | (a == b) | (np.isnan(a) & np.isnan(b))).all():
        return inf
    a, b = a[finite], b[finite]
    if not a.size:
        return 0.0
    scale = np.maximum(np.abs(a), np.sqrt(np.mean(a**2)))
    return float(np.max(np.abs(a - b) / np.maximum(scale * ROUNDOFF, 1e-300)))


# --- many, and what is printed ----------------------------------------------------------------------------------------


def every(numbers: Sequence[int], asked: Asked, jobs: int) -> Iterator[Result]:
    """What becomes of the pairs with these numbers."""
    for number, said in each(numbers, partial(_as_json, asked), asked.folder, jobs):
        if isinstance(said, Outcome):
            ended = f"the process ended ({said.kind}): {said.said[-300:]}"
            yield from (Result(asked.seed, number, kind_of(number, asked), way, BROKEN, ended, inf) for way in WAYS)
        else:
            yield from (Result(**result) for result in said["results"])


def _as_json(asked: Asked, number: int, folder: Path) -> dict[str, Any]:
    return {"results": [asdict(result) for result in judged(number, replace(asked, folder=folder))]}


def table(results: Sequence[Result]) -> str:
    """Tried and missed by kind and way."""
    lines = [f"{'':36}" + "".join(f"{way:>16}" for way in WAYS)]

    def row(name: str, chosen: Sequence[Result]) -> None:
        cells = []
        for way in WAYS:
            outcomes = [result.outcome for result in chosen if result.way == way]
            tried = outcomes.count(CAUGHT) + outcomes.count(MISSED)
            cells.append(f"{outcomes.count(MISSED)} of {tried}" if tried else "-")
        lines.append(f"{name:36}" + "".join(f"{cell:>16}" for cell in cells))

    for kind in dict.fromkeys(result.kind for result in results):
        row(kind, [result for result in results if result.kind == kind])
    row("missed in all", results)
    return "\n".join(lines)


def summary(results: Sequence[Result]) -> str:
    tried = sum(result.outcome in (CAUGHT, MISSED) for result in results)
    counts: Mapping[str, int] = {o: sum(r.outcome == o for r in results) for o in (MISSED, SMALL, NO_FIT, BROKEN)}
    others = f"{counts[SMALL]} of too small an effect, {counts[NO_FIT]} that do not fit, {counts[BROKEN]} broken"
    return f"{tried} wrong packages tried, {counts[MISSED]} missed; not tried: {others}"


def show(result: Result) -> str:
    where = f"{result.kind}, {result.way} (--seed {result.seed} --only {result.number})"
    return f"{result.outcome}: {where}, {result.effect:.3g} units of roundoff off: {result.said}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", metavar="N", type=int, default=len(KINDS), help="pairs (default: one of each kind)")
    parser.add_argument("--seed", metavar="S", type=int, default=0)
    parser.add_argument("--only", metavar="K", type=int, nargs="+", help="the pairs of these numbers")
    parser.add_argument("--kind", metavar="KIND", nargs="+", choices=tuple(KINDS), default=list(KINDS))
    parser.add_argument("--target", metavar="T", default="native")
    parser.add_argument("--check", choices=tuple(EFFORTS), default="default", help="as verify takes it")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--verbose", action="store_true", help="every missed package, with the verdict's sentence")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    target = load_target(given.target)  # probed once, before there are children
    runtime_objects(find_toolchain(target.triple))
    with tempfile.TemporaryDirectory(prefix="modelc-pairs-") as folder:
        asked = Asked(given.seed, tuple(given.kind), target, given.check, Path(folder))
        results = sorted(every(given.only or range(given.count), asked, given.jobs), key=lambda result: result.number)
    for result in results:
        if result.outcome == BROKEN or (given.verbose and result.outcome == MISSED):
            print(show(result))
    print(table(results))
    print(summary(results))
    if given.json is not None:
        finite = [asdict(replace(result, effect=min(result.effect, 1e300))) for result in results]
        given.json.write_text(json.dumps(finite, indent=1) + "\n")
    return 1 if any(result.outcome in (MISSED, BROKEN) for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
