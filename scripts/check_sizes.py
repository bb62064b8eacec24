"""Holds packages for any size to sizes that nobody compiled for: python scripts/check_sizes.py [NAME|FILE.onnx...]

Each trained model (tests/models.yaml) with free dimensions is compiled without a flag, and verified. Then it runs at
eight sizes that are neither samples nor were verified, drawn from its bounds, and at each the outputs are compared with
ONNX Runtime's: 1e-5 is allowed, or a relative RMS error of 1e-3, of quantized models 0.2. --packages DIR takes
DIR/NAME.modelc where it is there. Prints a line for each model, and why one is refused; the exit code is 1 where a
package is wrong, or more than one in ten is refused.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import paths
from trained_models import catalogue

import modelc
from modelc.compile.any_size import AnySize
from modelc.errors import ModelcError
from modelc.frontend.load.outline import read_outline
from modelc.frontend.steering.specialise import declared_shapes
from modelc.frontend.witness.surgery import quantizes
from modelc.package import at_dims, dims_of, read_package
from modelc.verify.check import drawn
from modelc.verify.compare import ATOL, QUANTIZED, distance

SIZES = 8
ALLOWED = 1e-3  # relative RMS error
REFUSED = 0.1  # of the models, at most


def is_open(model: Path) -> bool:
    """Whether inputs of the model have free dimensions."""
    shapes = declared_shapes(read_outline(model).graph).values()
    return any(dims is None or any(isinstance(dim, str) for dim in dims) for dims in shapes)


def other_sizes(package: Path, seed: int = 0) -> list[dict[str, int]]:
    """Sizes that a package was neither compiled nor verified for, small and large ones."""
    plan = read_package(package).manifest.variants[0]
    known = AnySize.of_package(plan.free)
    seen = {tuple(run.values()) for run in (*known.samples, *known.checked())}
    rng, chosen = np.random.default_rng(seed), dict[tuple[int, ...], dict[str, int]]()
    for _ in range(1000):
        logs = [rng.uniform(np.log(s.least), np.log(s.most + 1)) for s in plan.free]
        run = {s.name: min(s.most, max(s.least, int(np.exp(n)))) for s, n in zip(plan.free, logs, strict=True)}
        if tuple(run.values()) not in seen and len(chosen) < SIZES:
            chosen[tuple(run.values())] = dims_of(plan, run)
    return [*chosen.values()]


def errors_at(model: Path, package: Path, sizes: list[dict[str, int]]) -> dict[str, float]:
    """The largest relative RMS error of an output, by the sizes in words."""
    read, errors = read_package(package), {}
    session = onnxruntime.InferenceSession(str(model), reference_options())
    with modelc.load(package) as loaded:
        for dims in sizes or [{}]:
            feed = next(drawn(at_dims(read, dims), model))
            made, constants = loaded.run(feed), loaded.constants
            expected = session.run([*made], {**constants, **feed})
            apart = [distance(made[name], theirs, 0, 0) for name, theirs in zip(made, expected, strict=True)]
            at = ", ".join(f"{name}={n}" for name, n in dims.items()) or "its one size"
            errors[at] = max(0.0 if far.max_abs <= ATOL else far.rms_rel for far in apart)
    return errors


def reference_options() -> onnxruntime.SessionOptions:
    """Without optimisations, as `verify` compares: they change the numbers of models that choose, or quantize."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", metavar="NAME|FILE.onnx", nargs="*", help="default: all of the catalogue")
    parser.add_argument("--dir", type=Path, default=paths.ROOT / "models", help="where the models are")
    parser.add_argument("--packages", metavar="DIR", type=Path, help="where packages are, and are put")
    arguments = parser.parse_args()
    named = [Path(name) if name.endswith(".onnx") else arguments.dir / f"{name}.onnx" for name in arguments.models]
    models = named or [path for name in catalogue() if (path := arguments.dir / f"{name}.onnx").exists()]
    refused = wrong = looked_at = 0
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.packages or Path(name)
        for model in filter(is_open, models):
            package = folder / f"{model.stem}.modelc"
            looked_at += 1
            try:
                if not package.exists():
                    modelc.compile(model, output=package)
            except ModelcError as error:
                refused += 1
                print(f"{model.stem}: refused: {error}", flush=True)
                continue
            errors = errors_at(model, package, other_sizes(package))
            allowed = QUANTIZED.rms if quantizes(model) else ALLOWED
            failed = [at for at, error in errors.items() if not error <= allowed]
            wrong += bool(failed)
            worst = max(errors, key=errors.__getitem__)
            says = f"FAILED at {'; '.join(failed)}" if failed else f"right at {'; '.join(errors)}"
            print(f"{model.stem}: {says}; at most {errors[worst]:.1e}, at {worst}", flush=True)
    print(f"{looked_at} models, {refused} refused, {wrong} wrong")
    return int(wrong > 0 or refused > REFUSED * looked_at)


if __name__ == "__main__":
    raise SystemExit(main())
