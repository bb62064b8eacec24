"""Runs packages for any size at many sizes under sanitizers: python scripts/sweep_sizes.py [MODEL.onnx...] [--most N]

Each model is compiled with its dimensions open, to a static library of which runtime, tables and kernels in C have
AddressSanitizer's and UndefinedBehaviorSanitizer's checks. A program in C (tests/helpers/size_sweep.c) runs it at up
to N sizes, the corners among them, with inputs and outputs in just their bytes between pages without access, forth and
back, and at sizes that it has to refuse: 0, below the least, above the most, off the step, inputs that disagree. Inputs
of another rank are given to the loader. The outputs are compared with ONNX Runtime's. Without a model: four small ones,
of rows, tokens, pictures and steps in time. The exit code is 1 where anything is not as it has to be.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

import paths  # noqa: F401
from any_size_models import encoder, perceptron, pictures, recurrent
from size_sweep import compared, refusals_in_python, sanitized, swept

import modelc
from modelc.compile.options import pairs, sizes
from modelc.errors import ModelcError

SMALL = {
    "rows": (perceptron, {"rows": "1..32"}),
    "tokens": (encoder, {"seq": "1..40"}),
    "pictures": (pictures, {"height": "8..96:8", "width": "8..64:8"}),
    "steps": (recurrent, {"time": "1..32", "batch": "2..6"}),
}


def sweep(name: str, model: Path, dims: Mapping[str, object], most: int, folder: Path) -> bool:
    """Whether all is right; it is printed."""
    try:
        package = sanitized(model, folder / f"{name}.modelc", dims=dims)
        made = swept(model, package, most)
        wrong = compared(made, package)
        modelc.compile(model, output=folder / "python.modelc", dims=dims, verify=False, database=False)
        ranks = refusals_in_python(folder / "python.modelc", model)
    except (ModelcError, AssertionError) as error:
        print(f"{name}: FAILED: {error}")
        return False
    refused = len(made.refused) + len(ranks)
    print(f"{name}: {len(made.outputs)} sizes run, {refused} bad shapes refused, {len(wrong)} unlike ONNX Runtime's")
    for sentence in wrong:
        print(f"  {sentence}")
    for what, _, sentence in made.refused:
        print(f"  {what}: {sentence}")
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", metavar="MODEL.onnx", nargs="*", type=Path)
    parser.add_argument("--dim", metavar="NAME=A..B", action="append", default=[], help="as of modelc compile")
    parser.add_argument("--most", metavar="N", type=int, default=200, help="sizes of a model (default: 200)")
    arguments = parser.parse_args()
    dims = pairs("NAME=1..512 once for each name", sizes)(arguments.dim)
    right = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not arguments.models:
            for kind, (make, own) in SMALL.items():
                right &= sweep(kind, make(folder / f"{kind}.onnx"), own, arguments.most, folder)
        for model in arguments.models:
            right &= sweep(model.stem, model, dims, arguments.most, folder)
    return int(not right)


if __name__ == "__main__":
    raise SystemExit(main())
