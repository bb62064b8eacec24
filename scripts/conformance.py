"""ONNX's own node tests through packages: python scripts/conformance.py [PATTERN] [--json F] [--reasons] [--part K/N]

Every node test of the installed onnx, those of expanded functions left out, is compiled, linked, loaded and run in a
process of its own (forked, two at a time, with a limit on its time), and its outputs are held to the suite's dtypes,
shapes and tolerances. Inputs that only steer shapes are constants where modelc asks for them. A test is

    passed    every output is as the suite says
    differs   an output is not, for a reason that is known (DIFFERENT, RANDOM, ROUNDED)
    failed    an output has another dtype, shape or value
    refused   modelc said in a sentence that it does not take the model
    crashed   anything else: an exception that is no sentence, a signal, no end

The table has a row for each operator; --reasons lists every test that did not pass, and why. The exit code is 1 if any
failed or crashed. With --expected FILE (a list of tests that pass) also if one of the list did not pass; --update
writes what passed into it. --document FILE writes the page that names what did not pass.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import paths  # noqa: F401
from forked import Case, Limits, Wrong, run_cases
from onnx import numpy_helper
from onnx.backend.test.runner import Runner
from onnx_cases import node_tests as collected
from packaged import native, run_packaged

from modelc.errors import ModelError
from modelc.frontend.steering.specialise import with_constants

SECONDS = 60.0  # for one test
EXPECTED = "tests/end_to_end/scripts/conformance.txt"
KINDS = ("passed", "differs", "failed", "refused", "crashed")
OUTCOMES = {"done": "passed", "wrong": "failed", "refused": "refused"}  # of what becomes of a case
# Inputs of the test models that steer shapes, by operator and position; real models carry them as initialisers.
STEERING: Mapping[str, Sequence[int]] = {
    "Reshape": [1], "Expand": [1], "Tile": [1], "Slice": [1, 2, 3, 4], "Pad": [1, 3], "Squeeze": [1],
    "Unsqueeze": [1], "Split": [1], "TopK": [1], "OneHot": [1], "Range": [0, 1, 2], "ConstantOfShape": [0],
    "CumSum": [1], "CumProd": [1], "Resize": [1, 2, 3], "Upsample": [1], "Trilu": [1], "CenterCropPad": [1],
    "Dropout": [1, 2], "AffineGrid": [1], "DFT": [1, 2], "STFT": [1, 3], "MaxUnpool": [2], "Col2Im": [1, 2],
    "BlackmanWindow": [0], "HannWindow": [0], "HammingWindow": [0], "MelWeightMatrix": [0, 1, 2, 3, 4],
    "SplitToSequence": [1],
}  # fmt: skip
# Tests that ONNX Runtime, and hence modelc, answers otherwise than ONNX's reference, and how.
DIFFERENT = dict.fromkeys(
    ("test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"),
    "corners are aligned to the output's whole number of elements, as ONNX Runtime does",
)
# Tests whose outputs are random: dtypes and shapes are compared, the numbers are others than NumPy's.
RANDOM = (
    "test_bernoulli", "test_bernoulli_double", "test_bernoulli_seed", "test_training_dropout",
    "test_training_dropout_default", "test_training_dropout_mask", "test_training_dropout_default_mask",
)  # fmt: skip
# Tests whose tolerance is below the rounding errors of the suite's own answer: their distance may be LAST_BITS units in
# the last place of the tensor's largest element.
ROUNDED = ("test_dft_inverse", "test_dft_inverse_opset19", "test_attention_4d_causal_fp16")
LAST_BITS = 4


@dataclass(frozen=True)
class Result:
    """What became of a test. `constant`: it passed, with constant inputs alone."""

    name: str
    operator: str
    outcome: str
    reason: str
    constant: bool
    seconds: float


@cache
def node_tests() -> dict[str, Any]:
    """The node tests of the installed onnx by name, without those of expanded functions."""
    return {case.name: case for case in collected() if "_expanded" not in case.name}


def operator_name(case: Any) -> str:
    """The operator that a test is for: that of its last node which is no Constant."""
    nodes = [n for n in case.model.graph.node if n.op_type != "Constant"] or case.model.graph.node
    return f"{nodes[-1].domain}.{nodes[-1].op_type}".lstrip(".")


def array_of(data: Any) -> Any:
    """An input or output as an array, if it is one."""
    if isinstance(data, onnx.TensorProto):
        return numpy_helper.to_array(data)
    return np.asarray(data) if isinstance(data, np.ndarray | np.generic) else data


def steering(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The fed inputs that steer shapes."""
    found = {}
    for node in model.graph.node:
        for k in [1] if node.op_type.startswith("Reduce") else STEERING.get(node.op_type, []):
            name = node.input[k] if k < len(node.input) else ""
            if isinstance(feeds.get(name), np.ndarray):
                found[name] = feeds[name]
    return found


def computed(case: Any, folder: Path) -> tuple[dict[str, np.ndarray], bool]:
    """What the test's package makes of its inputs, and whether all of these were constants: steering inputs are, if the
    model is refused without."""
    path = folder / "model.onnx"
    inputs, _ = case.data_sets[0]
    feeds = {i.name: array_of(x) for i, x in zip(case.model.graph.input, inputs, strict=False)}
    path.write_bytes(case.model.SerializeToString())
    try:
        return run_packaged(path, feeds, folder), False
    except ModelError:
        constants = steering(case.model, feeds)
        if not constants:
            raise
    rest = {name: x for name, x in feeds.items() if name not in constants}
    path.write_bytes(with_constants(case.model, constants).SerializeToString())
    return run_packaged(path, rest, folder), not rest


def examine(name: str) -> str:
    """Runs a test; raises Wrong if an output is not as expected, ModelcError if the model is refused."""
    case = node_tests()[name]
    with tempfile.TemporaryDirectory(prefix="modelc-conformance-") as folder:
        found, constant = computed(case, Path(folder))
    given = [found[o.name] for o in case.model.graph.output]
    wanted = [array_of(x) for x in case.data_sets[0][1]]
    try:
        Runner.assert_similar_outputs(wanted, given, case.rtol, case.atol)
    except AssertionError as error:
        if name in DIFFERENT:
            return f"differs: {DIFFERENT[name]}"
        if name in ROUNDED and all(map(_nearly, given, wanted)):
            return "differs: in the last bits"
        if name in RANDOM and all((a.dtype, a.shape) == (b.dtype, b.shape) for a, b in zip(given, wanted, strict=True)):
            return "differs: what is drawn at random is other than NumPy's"
        raise Wrong(str(error)) from None
    return "constant" if constant else ""


def _nearly(found: np.ndarray, wanted: np.ndarray) -> bool:
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return False
    unit = np.finfo(wanted.dtype).eps * np.abs(wanted).max()
    return bool((np.abs(found.astype(np.float64) - wanted) <= LAST_BITS * float(unit)).all())


def conformance(names: Iterable[str], seconds: float = SECONDS, jobs: int = 2) -> Iterator[Result]:
    """The results of these tests, as they come in."""
    tests, _ = node_tests(), native()
    cases = [Case(name, partial(examine, name)) for name in names]
    for case, outcome in run_cases(cases, Limits(seconds), jobs):
        word = outcome.signature if outcome.kind == "done" else ""
        kind, reason = OUTCOMES.get(outcome.kind, "crashed"), outcome.said
        if word.startswith("differs"):
            kind, _, reason = word.partition(": ")
        if kind == "crashed":
            reason = f"{outcome.kind}: {outcome.signature}\n{outcome.said}"
        yield Result(case.name, operator_name(tests[case.name]), kind, reason, word == "constant", outcome.seconds)


def table(results: Iterable[Result]) -> str:
    """A row of counts for each operator, and one for all."""
    rows: dict[str, Counter[str]] = {}
    for result in sorted(results, key=lambda r: r.operator):
        rows.setdefault(result.operator, Counter())[result.outcome] += 1
    rows["all"] = sum(rows.values(), Counter())
    width = max(map(len, rows))
    lines = [f"{'operator':{width}}" + "".join(f"{kind:>9}" for kind in KINDS)]
    lines += [f"{name:{width}}" + "".join(f"{row[kind] or '':>9}" for kind in KINDS) for name, row in rows.items()]
    return "\n".join(lines)


def read_expected(path: Path) -> list[str]:
    """The names of the tests that have to pass; lines that begin with # are comments."""
    lines = path.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def part(text: str) -> tuple[int, int]:
    """(K, N) of K/N: 1/4 to 4/4."""
    first, _, parts = text.partition("/")
    if not (first.isdecimal() and parts.isdecimal() and 1 <= int(first) <= int(parts)):
        raise argparse.ArgumentTypeError(f"expected K/N, K from 1 to N, found {text!r}")
    return int(first), int(parts)


def sentence(result: Result) -> str:
    """Why a test did not pass, in one line, without the temporary folder of its model."""
    return re.sub(r"\S*/(?=model\.onnx)", "", " ".join(result.reason.split()))[:400]


def document(results: Sequence[tuple[str, str, str]]) -> str:
    """The page of reasons and outcomes, each with the names of its tests."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, outcome, why in results:
        if outcome != "passed":
            names.setdefault((why.replace("|", "/"), outcome), []).append(f"`{name}`")
    passed = len(results) - sum(map(len, names.values()))
    rows = [f"| {why} | {outcome} | {', '.join(tests)} |" for (why, outcome), tests in names.items()]
    lines = [
        "# Conformance",
        "",
        "ONNX's own node tests, each compiled to a package that is loaded and run on the test's data. Written by",
        "",
        "<!-- run: no, takes half an hour; tests/end_to_end/scripts/test_conformance.py runs a part -->",
        "```sh",
        f"python scripts/conformance.py --expected {EXPECTED} --document docs/conformance.md",
        "```",
        "",
        f"{passed} of {len(results)} pass, which `{EXPECTED}` names; these do not:",
        "",
        "| reason | | tests |",
        "| --- | --- | --- |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pattern", nargs="*", default=["*"], help="tests with one of these in their name; default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes every test's outcome and reason")
    parser.add_argument("--reasons", action="store_true", help="lists what did not pass, and why")
    parser.add_argument("--expected", type=Path, metavar="FILE", help="a list of tests that have to pass")
    parser.add_argument("--update", action="store_true", help="writes what passed into the list of --expected")
    parser.add_argument(
        "--document", type=Path, metavar="FILE", help="writes what did not pass, as docs/conformance.md"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at a time (2)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit for each test (60)")
    parser.add_argument("--part", type=part, default=(1, 1), metavar="K/N", help="every N-th test, from the K-th on")
    given = parser.parse_args(arguments)
    first, parts = given.part
    if (given.update or given.document) and parts > 1:
        parser.error("--update and --document write of all tests; expected them without --part")
    names = [n for n in node_tests() if any(fnmatch.fnmatch(n, f"*{p}*") for p in given.pattern)][first - 1 :: parts]
    if not names:
        parser.error(f"no node test has {' or '.join(given.pattern)} in its name")
    results = []
    for result in conformance(names, given.seconds, given.jobs):
        results.append(result)
        if given.reasons and result.outcome != "passed":
            print(f"{result.outcome:8} {result.name}: {sentence(result)}", flush=True)
    print(table(results))
    constant = sum(r.constant for r in results)
    print(f"{constant} of the passed have constant inputs alone, which are folded while compiling")
    if given.json:
        given.json.write_text(json.dumps([asdict(r) for r in sorted(results, key=lambda r: r.name)], indent=1) + "\n")
    if given.document:
        given.document.write_text(document([(r.name, r.outcome, sentence(r)) for r in results]))
    passed = {r.name for r in results if r.outcome == "passed"}
    lost = []
    if given.expected and given.update:
        head = "# Node tests of onnx that pass: scripts/conformance.py --expected FILE --update"
        given.expected.write_text("\n".join([head, *sorted(passed)]) + "\n")
    elif given.expected:
        lost = [n for n in read_expected(given.expected) if n in names and n not in passed]
        print("\n".join(f"expected to pass: {n}" for n in lost))
    return 1 if lost or any(r.outcome in ("failed", "crashed") for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
