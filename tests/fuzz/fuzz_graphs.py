"""Random graphs: python tests/fuzz graphs [--cases 2000] [--seed 0] [--jobs 2] [--json FILE] [--reproducers DIR]

Each case is a valid random model (random_graphs.py), which is compiled, loaded and run as a package in a forked child
and compared with ONNX Runtime and with the interpreter. Good outcomes are equal results; refusals are shown, for an
operator may not be supported; wrong results, exceptions, signals and hangs are failures. Each kind of failure is shown
once, with the nodes without which it does not happen; DIR gets that model and its inputs. The exit code is 1 if there
are any.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import onnx
from forked import Case, Limits, Outcome, run_case, run_cases
from fuzzing import Report, options
from packaged import check, native
from random_graphs import Array, described, draw

from modelc.compile.minimise import minimised
from modelc.frontend.steering.flags import Steered
from modelc.frontend.witness.excerpt import Whole, save_model

LIMITS = Limits(seconds=120.0)


@dataclass(frozen=True)
class Drawn:
    """The random model of a seed."""

    seed: int

    @cached_property
    def parts(self) -> tuple[onnx.ModelProto, dict[str, Array], dict[str, Array]]:
        return draw(self.seed)

    def excerpt(self, kept: Sequence[int]) -> tuple[onnx.ModelProto, dict[str, Array]] | None:
        """The model of some of its nodes."""
        model, _, values = self.parts
        with tempfile.TemporaryDirectory(prefix="modelc-graph-") as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(model, path)
            return Whole(path, Steered(({},), {})).excerpt(kept, values)

    def case(self) -> Case:
        model, feeds, values = self.parts
        return Case(f"seed {self.seed}: {described(model, values)}", partial(compared, model, feeds), self.seed)


def compared(model: onnx.ModelProto, feeds: dict[str, Array]) -> str:
    with tempfile.TemporaryDirectory(prefix="modelc-graph-") as folder:
        return "ONNX Runtime refuses the whole" if check(model, feeds, Path(folder), chained=True) else "agrees"


def smaller(drawn: Drawn, outcome: Outcome, reproducers: Path | None) -> Case:
    """The nodes that fail alike, and no fewer do."""

    def fails(kept: Sequence[int]) -> bool:
        part = drawn.excerpt(kept) if kept else None
        if part is None:
            return False
        found = run_case(Case("part", partial(compared, *part)), LIMITS)
        return (found.kind, found.kind == "wrong" or found.signature) == (
            outcome.kind,
            outcome.kind == "wrong" or outcome.signature,
        )

    left = minimised(range(len(drawn.parts[0].graph.node)), fails)
    part = drawn.excerpt(left)
    if part is None or not fails(left):  # it does not fail again
        return drawn.case()
    if reproducers is not None:
        reproducers.mkdir(parents=True, exist_ok=True)
        save_model(part[0], reproducers / f"graph-{drawn.seed}.onnx")
        np.savez(reproducers / f"graph-{drawn.seed}.npz", **part[1])
    name = f"seed {drawn.seed}, {len(left)} nodes: {described(part[0], drawn.parts[2])}"
    return Case(name, partial(compared, *part), {"seed": drawn.seed, "nodes": left})


def main() -> None:
    parser = options(__doc__ or "", 2000)
    parser.add_argument("--reproducers", type=Path, metavar="DIR", help="write what fails there, made small")
    asked = parser.parse_args()
    native()  # probed once, before there are children
    report = Report(asked.seed)
    every = {n: Drawn(n) for n in range(asked.seed * 1_000_000, asked.seed * 1_000_000 + asked.cases)}
    with suppress(KeyboardInterrupt):  # what is known by then is reported
        for case, outcome in run_cases((one.case() for one in every.values()), LIMITS, asked.jobs):
            if outcome.kind == "refused":
                print(f"refused: {case.name}\n  {outcome.said}", flush=True)
            if report.add(case, outcome):
                report.replace(outcome, smaller(every[case.about], outcome, asked.reproducers))
    sys.exit(report.finish(asked.json))
