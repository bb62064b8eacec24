"""Compiles damaged models, and says what became of them: python tests/fuzz models --cases 5000

Each mutant is a small model (ONNX's node tests and a few graphs) with one to three Edits. It is inspected and
compiled as far as --stop-after says, one in `FULL` to the end and compared with ONNX Runtime. Failures are made small
and written to --reproducers as an .onnx file and the Edits.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import model_mutations as mutations
import model_seeds as seeds
from forked import Case, Limits, Wrong, run_case, run_cases
from fuzzing import Report, options

import modelc
from modelc.compile.minimise import minimised
from modelc.errors import VerificationError

TARGET = "x86-64-v3"
FULL = 20  # one in so many mutants is compiled to the end and verified
REFERENCE_LACKS = (  # what it says of models that are good all the same: an output needs no declared type
    "NOT_IMPLEMENTED",
    "Unsupported model IR version",
    "Current official support for domain",
    "Invalid tensor data type 0",
    "Missing opset in the model",  # ONNX's first versions had none
    "No Op registered for",  # a node that no output needs
    "No opset import for domain ai.onnx\n",  # in a branch: it is another name for the empty one
    "in initializer but not in graph input",  # in a branch of ONNX's first versions
)
LIMITS = Limits()
DATA = b"\0\0\x80\x3f" * 4  # weights.bin, beside the model


def attempt(content: bytes, stop_after: str, original: bytes | None = None) -> str:
    """Inspects and compiles a model, in a folder of its own. With the `original` that it is damaged from: what ONNX
    Runtime refuses, and not because of the original, is not to be compiled."""
    with tempfile.TemporaryDirectory(prefix="modelc-fuzz-") as place:
        folder = Path(place)
        path = folder / "m.onnx"
        path.write_bytes(content)
        (folder / "weights.bin").write_bytes(DATA)
        modelc.inspect(path)
        stopped = None if stop_after == "verify" else stop_after
        try:
            modelc.compile(path, TARGET, folder / "p", verify=stopped is None, stop_after=stopped, threads=1)
        except VerificationError as error:
            raise Wrong(f"wrong results: {error}") from None
        if original is not None and (refusal := refused_by_reference(path)):
            path.write_bytes(original)
            if not refused_by_reference(path):
                raise Wrong(f"ONNX Runtime refuses the model: {refusal}")
        left = sorted(set(os.listdir(folder)) - {"m.onnx", "weights.bin", "p"})
        if left:
            raise Wrong(f"files are left behind: {left}")
    return f"compiled to {stop_after}"


def refused_by_reference(path: Path) -> str:
    """Why ONNX Runtime does not load the model; empty if it does, or if it does not because it has less."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    except Exception as error:
        if any(limit in str(error) for limit in REFERENCE_LACKS):
            return ""
        return re.sub(r"\([^()]*\)|\S*/\S*", "", str(error)).strip()[-160:]
    return ""


def case_of(name: str, content: bytes, edits: tuple[mutations.Edit, ...], stop_after: str, compare: bool) -> Case:
    original = content if compare else None
    about = {"seed": name, "edits": [edit.to_json() for edit in edits], "stop_after": stop_after}
    said = ", ".join(edit.kind for edit in edits)
    damaged = mutations.mutated(content, edits)
    return Case(f"{name}: {said}", partial(attempt, damaged, stop_after, original), about)


def drawn_cases(
    corpus: Mapping[str, bytes], count: int, seed: int, stop_after: str, compare: bool, kinds: tuple[str, ...] = ()
) -> Iterator[Case]:
    rng = random.Random(seed)
    own, tests = [name for name in BUILT if name in corpus], [name for name in corpus if name not in BUILT]
    for k in range(count):
        name = rng.choice(own if not tests or rng.random() < 0.4 else tests)
        edits = mutations.drawn_edits(rng, kinds)
        yield case_of(name, corpus[name], edits, "verify" if k % FULL == FULL - 1 else stop_after, compare)


def smaller(case: Case, corpus: Mapping[str, bytes], signature: str, compare: bool, limits: Limits) -> Case:
    """The case with no more Edits than the failure needs."""
    about: dict[str, Any] = case.about
    edits = tuple(mutations.Edit(*edit) for edit in about["edits"])
    name, stop_after = about["seed"], about["stop_after"]

    def fails(some: Any) -> bool:
        return run_case(case_of(name, corpus[name], tuple(some), stop_after, compare), limits).signature == signature

    return case_of(name, corpus[name], tuple(minimised(edits, fails)), stop_after, compare)


def write_reproducer(folder: Path, number: int, case: Case, corpus: Mapping[str, bytes], signature: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    edits = tuple(mutations.Edit(*edit) for edit in case.about["edits"])
    (folder / f"{number:03}.onnx").write_bytes(mutations.mutated(corpus[case.about["seed"]], edits))
    (folder / f"{number:03}.json").write_text(json.dumps({"signature": signature, **case.about}, indent=1) + "\n")


BUILT = dict(seeds.built())


def fuzz(
    count: int,
    seed: int = 0,
    jobs: int = 1,
    corpus: Mapping[str, bytes] = BUILT,
    stop_after: str = "schedule",
    compare: bool = True,
    limits: Limits = LIMITS,
    reproducers: Path | None = None,
    kinds: tuple[str, ...] = (),
) -> Report:

    report = Report(seed)
    whole = BUILT["convolutions"]
    attempt(whole, "schedule", whole)  # children find all that they need imported
    cases = drawn_cases(corpus, count, seed, stop_after, compare, kinds)
    with suppress(KeyboardInterrupt):  # what is known by then is reported
        for case, outcome in run_cases(cases, limits, jobs):
            if report.add(case, outcome) and reproducers is not None:
                small = smaller(case, corpus, outcome.signature, compare, limits)
                report.replace(outcome, small)
                write_reproducer(reproducers, len(report.signatures), small, corpus, outcome.signature)
                print(f"{outcome.kind}: {outcome.signature}: {small.name}", file=sys.stderr, flush=True)
    return report


def main() -> int:
    parser = options(__doc__.splitlines()[0], cases=1000)
    parser.add_argument("--stop-after", default="schedule", metavar="STAGE", help="of most mutants (default: schedule)")
    parser.add_argument("--kinds", default="", metavar="A,B", help="of Edits (default: all)")
    parser.add_argument("--reproducers", type=Path, metavar="DIR", help="where small failing models are written")
    parser.add_argument("--no-compare", action="store_true", help="do not ask ONNX Runtime whether it takes the model")
    parser.add_argument("--built", action="store_true", help="without ONNX's node tests")
    asked = parser.parse_args()
    corpus = BUILT if asked.built else BUILT | dict(seeds.node_tests())
    kinds = tuple(filter(None, asked.kinds.split(",")))
    report = fuzz(
        asked.cases, asked.seed, asked.jobs, corpus, asked.stop_after, not asked.no_compare, LIMITS,
        asked.reproducers, kinds,
    )  # fmt: skip
    return report.finish(asked.json)
