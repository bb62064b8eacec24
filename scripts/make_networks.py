"""Builds the papers' networks, and small ones, with seeded random weights:

    python scripts/make_networks.py [NAME...] [--dir models]

tests/helpers/networks.py, small_networks.py and exported_networks.py say how. Every file is checked by onnx and run
once in ONNX Runtime.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
import paths
from exported_networks import EXPORTED
from networks import NETWORKS as OF_PAPERS
from networks import random_inputs, run, write
from small_networks import SMALL

NETWORKS = OF_PAPERS | SMALL | EXPORTED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones (default all): {' '.join(NETWORKS)}")
    parser.add_argument(
        "--dir", type=Path, default=paths.ROOT / "models", help="where to write NAME.onnx (default: models)"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - NETWORKS.keys():
        parser.error(f"unknown: {' '.join(sorted(unknown))}; there are {' '.join(NETWORKS)}")
    arguments.dir.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or NETWORKS:
        model, path = NETWORKS[name](), arguments.dir / f"{name}.onnx"
        write(model, path)
        onnx.checker.check_model(str(path), full_check=True)
        outputs = run(path, random_inputs(model))
        if bad := [output for output, array in outputs.items() if not np.isfinite(array).all()]:
            raise SystemExit(f"{name}: not finite: {' '.join(bad)}")
        spread = ", ".join(f"{output} {list(array.shape)} std {array.std():.2g}" for output, array in outputs.items())
        print(f"{name}: {path} ({path.stat().st_size / 1e6:.1f} MB); {spread}")


if __name__ == "__main__":
    main()
