"""Runs a fuzzer: python tests/fuzz KIND [OPTIONS]

The options are the kind's own: python tests/fuzz KIND --help. With none, each draws its cases from seed 0.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
KINDS = {  # by the module that has its main()
    "graphs": ("fuzz_graphs", "random models of many operators as packages, beside ONNX Runtime and the interpreter"),
    "models": ("fuzz_models", "damaged models are compiled or refused with a sentence"),
    "operators": ("fuzz_operators", "operators at their extremes, beside ONNX Runtime and the interpreter"),
    "packages": ("fuzz_packages", "damaged packages are refused, or compute what the whole ones do"),
    "schemas": (
        "fuzz_schemas",
        "random models by ONNX's schemas, operator sets 7 to 22, verified and beside ONNX Runtime",
    ),
    "yaml": ("fuzz_yaml", "damaged targets, intrinsics, configurations and choices are used or refused"),
    "mutants": ("mutate_packages", "wrong packages, of which `verify` has to notice all"),
    "pairs": ("model_pairs", "packages of slightly other models, of which `verify` has to notice all"),
    "right": ("right_packages", "right packages of ordinary layers, of which `verify` may refuse none"),
}


def main() -> int:
    listed = "\n".join(f"  {kind:10} {summary}" for kind, (_, summary) in KINDS.items())
    parser = argparse.ArgumentParser(
        prog="python tests/fuzz",
        description=f"{__doc__}\nkinds:\n{listed}",
        usage="%(prog)s KIND [OPTIONS]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", metavar="KIND", help=f"one of {', '.join(KINDS)}")
    kind = parser.parse_args(sys.argv[1:2]).kind
    if kind not in KINDS:
        print(f"there is no kind of fuzzer {kind!r}; expected one of {', '.join(KINDS)}", file=sys.stderr)
        return 2
    sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent / "helpers")]
    sys.argv[:2] = [f"{sys.argv[0]} {kind}"]  # which the usage of the kind's own parser begins with
    return import_module(KINDS[kind][0]).main() or 0


if __name__ == "__main__":
    sys.exit(main())
