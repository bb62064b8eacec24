"""A mutation test of `verify`: python tests/fuzz mutants [MODEL[:bf16|:f16|:int8]...] [--mutants N] [--false-alarms N]

Of each model, a right package is made, and N wrong ones (mutants.py), each drawn from the seed and its number: a
constant that is scaled or swapped, a kernel without its rectifier, its bias, a tap at one border, the last iteration of
a loop, a plan whose steps are swapped. `verify` is asked about each. Prints by kind of change, and by model, how many
were

    kernels   caught, for a kernel does not compute what it means
    whole     caught by outputs alone
    run       caught, for the package did not run to its end
    missed    accepted, although a kernel wrote numbers more than 32 times the bound of rounding off: to be 0
    small     accepted, and off by 1 to 32 times that bound
    open      accepted, and other numbers were written of which nothing can be told: rounding may have gone either way
    same      accepted, and what was written is within the bound, or the wrong part never ran

and every missed one, with what makes it again (--only). With --false-alarms, right packages are verified with so many
seeds; how many verifications that were is printed, and those that do not accept the package are shown. The exit code is
1 where anything is missed, or a right package is not accepted.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from zlib import crc32

import numpy as np
from mutant_subjects import DEFAULT, Subject
from mutant_truth import Moved, Truth
from mutants import mutant
from repository import ROOT

from modelc.errors import ModelcError
from modelc.package import write_package
from modelc.target import Target, load_target
from modelc.verify.kernels.samples import EFFORTS
from modelc.verify.report import Report, finite
from modelc.verify.verdict import SAMPLES, verify_outputs

OUTCOMES = ("kernels", "whole", "run", "missed", "small", "open", "same")
MISSED = 32.0  # times the bound of rounding


@dataclass(frozen=True)
class Asked:
    """What is asked of every model: how it is compiled and verified, and where packages are written."""

    target: Target
    models: Path
    folder: Path
    check: str
    seed: int


@dataclass(frozen=True)
class Result:
    """What became of one wrong package: `outcome` is one of OUTCOMES, `moved` how far it is off where it was accepted,
    in units of the bound of rounding, and `rms` the relative RMS difference of what the wrong kernel wrote."""

    model: str
    number: int
    kind: str
    about: str
    outcome: str
    said: str
    moved: float = 0.0
    rms: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class FalseAlarm:
    """A right package that was not accepted."""

    model: str
    target: str
    seed: int
    said: str


def verified(subject: Subject, package: Path, seed: int, check: str) -> Report:
    """The verdict on a package of `subject`, by what the right one means."""
    return verify_outputs(
        package, subject.model, None, seed, SAMPLES, every_variant=True, blueprints=subject.blueprints, check=check
    )


def outcome_of(report: Report) -> str:
    """How a wrong package was caught; "" where it was accepted."""
    if report.failure is not None:
        return "run"
    if not all(kernel.passed for kernel in report.kernels):
        return "kernels"
    return "" if report.passed else "whole"


def outcome_by(moved: Moved) -> str:
    """What a wrong package is that was accepted."""
    if isnan(moved.most):
        return "open"
    return "missed" if moved.most > MISSED else "small" if moved.most > 1 else "same"


def judged(subject: Subject, numbers: Iterable[int], asked: Asked) -> Iterable[Result]:
    """The wrong packages of `subject` with these numbers."""
    right = write_package(subject.spec, asked.folder / f"{subject.model.stem}.modelc")
    truth = Truth(subject, right, asked.seed, SAMPLES)
    for number in numbers:
        start = time.perf_counter()
        wrong = mutant(subject, np.random.default_rng((asked.seed, number, crc32(subject.name.encode()))))
        package = wrong.write(asked.folder / "mutant.modelc", subject.spec)
        moved = Moved(0.0)
        try:
            report = verified(subject, package.path, asked.seed, asked.check)
            outcome, said = outcome_of(report), report.sentence()
        except ModelcError as error:
            outcome, said = "run", str(error)
        if not outcome:
            moved = truth.moved(wrong, package)
            outcome, said = outcome_by(moved), moved.where
        about = wrong.about if wrong.told else f"{wrong.about}, and the manifest does not say so"
        seconds = time.perf_counter() - start
        yield Result(subject.name, number, wrong.kind, about, outcome, said, moved.most, moved.rms, seconds)


def false_alarms(subject: Subject, seeds: Iterable[int], asked: Asked) -> Iterable[FalseAlarm]:
    """Seeds with which the right package is not accepted."""
    right = write_package(subject.spec, asked.folder / f"{subject.model.stem}.modelc")
    for seed in seeds:
        report = verified(subject, right.path, seed, asked.check)
        if not report.passed:
            yield FalseAlarm(subject.name, asked.target.name, seed, report.sentence())


def table(results: Sequence[Result]) -> str:
    """How many became what, by kind of change, by model, and in all."""
    lines = [f"{'':24}{'made':>8}" + "".join(f"{outcome:>9}" for outcome in OUTCOMES)]

    def row(name: str, chosen: Sequence[Result]) -> None:
        counts = Counter(result.outcome for result in chosen)
        lines.append(f"{name:24}{len(chosen):8}" + "".join(f"{counts[outcome] or '-':>9}" for outcome in OUTCOMES))

    for kind in sorted({result.kind for result in results}):
        row(kind, [result for result in results if result.kind == kind])
    lines.append("")
    for model in dict.fromkeys(result.model for result in results):
        row(model, [result for result in results if result.model == model])
    row("all", results)
    return "\n".join(lines)


def show(result: Result) -> str:
    """One wrong package on one line."""
    apart = f" ({result.moved:.3g} x bound, rms {result.rms:.1e})" if result.moved else ""
    return (
        f"{result.outcome}{apart}: {result.model} --only {result.number}: {result.kind}: {result.about}: {result.said}"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="MODEL", nargs="*", default=list(DEFAULT), help="default: small ones")
    parser.add_argument("--mutants", metavar="N", type=int, default=20, help="wrong packages of each model")
    parser.add_argument("--only", metavar="K", type=int, nargs="+", help="the wrong packages of these numbers")
    parser.add_argument("--seed", metavar="S", type=int, default=0)
    parser.add_argument("--target", metavar="T", default="native")
    parser.add_argument("--check", choices=tuple(EFFORTS), default="default", help="as verify takes it")
    parser.add_argument("--false-alarms", metavar="N", type=int, default=0, help="seeds for each right package")
    parser.add_argument("--dir", metavar="DIR", type=Path, default=ROOT / "models", help="where the models are")
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--verbose", action="store_true", help="every wrong package as it is tested")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    results: list[Result] = []
    alarms: list[FalseAlarm] = []
    verifications = 0
    refused: list[str] = []
    with tempfile.TemporaryDirectory(prefix="modelc-mutants-") as folder:
        asked = Asked(load_target(given.target), given.dir, Path(folder), given.check, given.seed)
        for name in given.names:
            try:
                subject = Subject.of(name, asked.models, asked.target, asked.folder)
                seeds = range(given.seed, given.seed + max(given.false_alarms, 1))
                alarms += false_alarms(subject, seeds, asked)
                verifications += len(seeds)
                for result in judged(subject, given.only or range(given.mutants), asked):
                    results.append(result)
                    if given.verbose:
                        print(f"{result.seconds:5.1f} s  {show(result)}", flush=True)
            except ModelcError as error:
                refused.append(f"{name}: {error}")
    if results:
        print(table(results))
    for result in results:
        if result.outcome == "missed":
            print(show(result))
    print(f"{verifications} verifications of right packages for {asked.target.name}, {len(alarms)} refused")
    for alarm in alarms:
        print(f"false alarm: {alarm.model} for {alarm.target} with --seed {alarm.seed}: {alarm.said}")
    for sentence in refused:
        print(f"not tested: {sentence}")
    if given.json is not None:
        data = {"results": [asdict(x) for x in results], "alarms": [asdict(x) for x in alarms], "refused": refused}
        given.json.write_text(json.dumps(finite(data), indent=1) + "\n")
    return 1 if alarms or refused or any(result.outcome == "missed" for result in results) else 0
