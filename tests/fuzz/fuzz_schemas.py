"""Random graphs by ONNX's schemas: python tests/fuzz schemas [--cases 400] [--seed 0] [--jobs 2] [--json FILE]

Each case is a valid random model of operator sets 7 to 22 (schema_graphs.py), which is compiled, verified, loaded and
run in a forked child, and compared with ONNX Runtime. Then all its inputs become constants, and what the import folds
has to be the same. Refusals are shown, for an operator may not be supported; wrong results, exceptions, signals and
hangs are failures. The exit code is 1 if there are any.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from forked import Case, Limits, run_case, run_cases
from fuzzing import Report, options
from imported_models import constants_of
from onnx import numpy_helper
from packaged import Arrays, agree, native, run_packaged, run_reference
from schema_graphs import draw

from modelc.frontend.onnx import import_model

LIMITS = Limits(seconds=180.0)
DRAWS = 8  # until ONNX Runtime does not end the process


def case_of(seed: int) -> Case:
    return Case(f"seed {seed}", partial(compared, seed), seed)


def drawn(seed: int, folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """The model of a seed, in a file, and its inputs."""
    for attempt in range(DRAWS):
        if run_case(Case("draw", partial(_write, (seed, attempt), folder)), LIMITS).good:
            with np.load(folder / "feeds.npz") as feeds:
                return folder / "model.onnx", dict(feeds)
    raise AssertionError(f"ONNX Runtime ends the process over each of {DRAWS} draws")


def _write(seed: tuple[int, int], folder: Path) -> None:
    model, feeds = draw(seed)
    onnx.save(model, folder / "model.onnx")
    np.savez(folder / "feeds.npz", **feeds)


def compared(seed: int) -> str:
    with tempfile.TemporaryDirectory(prefix="modelc-schemas-") as name:
        folder = Path(name)
        path, feeds = drawn(seed, folder)
        print(described(onnx.load(path)))
        refusal, reference = run_reference(path, feeds, folder, plain=True)
        assert not refusal, refusal
        outputs = run_packaged(path, feeds, folder, verify=True)
        agree(outputs, reference, "package and ONNX Runtime", chained=True)
        return folded(path, feeds, reference)


def folded(path: Path, feeds: Arrays, reference: Arrays) -> str:
    """Compares what the import computes where every input is an initialiser."""
    model = onnx.load(path)
    model.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in feeds.items())
    del model.graph.input[:]
    constant = path.with_name("constant.onnx")
    onnx.save(model, constant)
    constants = dict(zip(reference, constants_of(import_model(constant)), strict=True))
    known = {name: x for name, x in constants.items() if x is not None}
    if known:
        agree(known, {name: reference[name] for name in known}, "folded and ONNX Runtime", chained=True)
    return "all folded" if len(known) == len(reference) else "some folded"


def described(model: onnx.ModelProto) -> str:
    """The operator set, and every node with its attributes, on one line each."""
    nodes = [onnx.printer.to_text(node) for node in model.graph.node]
    return "\n".join([f"operator set {model.opset_import[0].version}", *nodes])


def main() -> None:
    parser = options(__doc__ or "", 400)
    asked = parser.parse_args()
    native()  # probed once, before there are children
    report = Report(asked.seed)
    first = asked.seed * 1_000_000
    with suppress(KeyboardInterrupt):  # what is known by then is reported
        for case, outcome in run_cases(map(case_of, range(first, first + asked.cases)), LIMITS, asked.jobs):
            report.add(case, outcome)
            if outcome.kind != "done":
                print(f"{outcome.kind}: {case.name}\n  {outcome.said}", flush=True)
    sys.exit(report.finish(asked.json))
