"""Holds whole models to what a package promises: python scripts/check_models.py [NAME...] [--target T] [--json FILE]

For each trained model (tests/models.yaml) and each built network: compiles it, compares it with ONNX Runtime on inputs
of three seeds, runs it through its example.c and its loader.py (where neither tvm nor onnx can be imported), compares
the bits of runs with one and with two threads, of four handles at a time and of four callers of one, and measures size,
memory and time. Packages for other machines run under qemu, where only values mean something. Prints a table; the exit
code is 1 if anything is not as promised.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paths
from networks import NETWORKS
from trained_models import catalogue

import modelc
from modelc.errors import ModelcError
from modelc.package import find_toolchain, machine_of, read_package, run_emulated
from modelc.package.toolchain import native_machine
from modelc.verify.check import drawn

SEEDS = (0, 1, 2)
LIMITS = {"compile_s": 30.0, "library_mb": 1.0, "open_ms": 10.0, "beside_mb": 15.0}
COLUMNS = ("params_mb", "arena_mb", "library_mb", "compile_s", "verify_s", "open_ms", "run_ms", "beside_mb", "rms_rel")
NATIVE_ALONE = ("open_ms", "run_ms", "beside_mb")  # figures that mean nothing under emulation

# What a machine with numpy alone does: argv is the package, the folder of inputs and outputs, the number of threads.
# Four threads run four handles at a time, and then one: whatever they compute has the bits that a run alone has.
LOADER = """if True:
    import sys
    for name in ("modelc", "tvm", "tvm_ffi", "onnx", "onnxruntime", "scipy", "yaml", "jsonschema"):
        sys.modules[name] = None
    package, folder, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    sys.path.insert(0, package)
    import contextlib, loader, numpy
    from concurrent.futures import ThreadPoolExecutor
    with contextlib.ExitStack() as stack:
        models = [stack.enter_context(loader.load(package, threads=threads)) for _ in range(4)]
        model, feed = models[0], {}
        for k, t in enumerate(model.inputs):
            feed[t.name] = numpy.fromfile(f"{folder}/in{k}", t.dtype).reshape(t.shape)
        results = model.run(feed)
        for called in (models, [model] * 4):
            for found in ThreadPoolExecutor(4).map(lambda m: m.run(feed), called):
                for name, array in results.items():
                    if array.tobytes() != found[name].tobytes():
                        sys.exit(f"{name}: other bits when four threads run {len(set(called))} handle(s)")
        for k, t in enumerate(model.outputs):
            results[t.name].tofile(f"{folder}/out{k}")
"""

Arrays = Mapping[str, np.ndarray]


def check(model: Path, entry: Mapping[str, Any], target: str, folder: Path) -> dict[str, Any]:
    """All figures of one model, and `failures`: a sentence for each promise not kept. `entry` is the catalogue's,
    or empty."""
    package = folder / f"{model.stem}.modelc"
    fixed = {"shapes": [{key: tuple(dims) for key, dims in entry.get("shape", {}).items()}]}
    fixed["constants"] = entry.get("constant", {})
    try:
        made = modelc.compile(model, target, package, **fixed, verify=False, database=False)
        row: dict[str, Any] = {
            "compile_s": sum(made.seconds.values()),
            "params_mb": made.params_bytes / 1e6,
            "arena_mb": made.arena_bytes / 1e6,
            "library_mb": made.library_bytes / 1e6,
            "failures": [],
        }
        verify(package, model, row)
        run(package, model, row, folder)
    except (ModelcError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or error
        return {"failures": [str(said).strip()[-300:]]}
    row["failures"] += [f"{key} is {row[key]:.3g}, above {most:g}" for key, most in LIMITS.items() if row[key] > most]
    return row


def verify(package: Path, model: Path, row: dict[str, Any]) -> None:
    """Every kernel by itself, and the whole against ONNX Runtime; what the model amplifies is said apart."""
    start = time.perf_counter()
    worst, amplified = 0.0, {}
    for seed in SEEDS:
        report = modelc.verify(package, model, seed=seed)
        if not report.passed:
            row["failures"].append(f"seed {seed}: {report.sentence()}")
        for output in report.outputs:
            if output.amplified:
                amplified[output.name] = output.distance.rms_rel
            elif not output.small:
                worst = max(worst, output.distance.rms_rel)
    row |= {"verify_s": time.perf_counter() - start, "rms_rel": worst, "amplified": amplified}


def run(package: Path, model: Path, row: dict[str, Any], folder: Path) -> None:
    """The same bits from C with one thread and two, again, and from Python; memory and times of the C process."""
    read = read_package(package)
    feed = next(drawn(read, model, SEEDS[0]))
    one = run_emulated(package, feed, threads=1, repeat=5)
    results = {"C, two threads": run_emulated(package, feed, threads=2, repeat=2).outputs}
    row |= {"open_ms": one.open_seconds * 1e3, "run_ms": one.seconds * 1e3}
    row["beside_mb"] = one.resident_bytes / 1e6 - row["params_mb"] - row["arena_mb"]
    if machine_of(read.manifest.target.triple) == native_machine():
        results["C, another process"] = run_emulated(package, feed, threads=1).outputs
        results["example.c"] = from_example(package, feed, one.outputs, folder)
        for threads in (1, 2):
            results[f"loader.py, {threads} thread(s)"] = from_loader(package, feed, one.outputs, folder, threads)
    else:
        row |= dict.fromkeys(NATIVE_ALONE, 0.0)
    for how, found in results.items():
        for output, array in one.outputs.items():
            if found[output].tobytes() != array.tobytes():
                row["failures"].append(f"{output}: other bits from {how}")


def from_example(package: Path, feed: Arrays, like: Arrays, folder: Path) -> dict[str, np.ndarray]:
    """Compiles the package's example.c as its first lines say, and runs it on the inputs."""
    manifest = read_package(package).manifest
    target, library = manifest.target.triple, manifest.linked.form.library
    arguments = ["-O2", "example.c", f"./{library}", "-Wl,-rpath,$ORIGIN", "-o", str(folder / "example")]
    find_toolchain(target).compile(arguments, package)
    files = [*_write(package, feed, folder), *_outputs(like, folder)]
    # The library is found beside the program; the package is not written to.
    (folder / library).unlink(missing_ok=True)
    (folder / library).symlink_to(package / library)
    subprocess.run([folder / "example", package, *files], check=True, capture_output=True, text=True)
    return _read(like, folder)


def from_loader(package: Path, feed: Arrays, like: Arrays, folder: Path, threads: int) -> dict[str, np.ndarray]:
    _write(package, feed, folder)
    command = [sys.executable, "-c", LOADER, str(package), str(folder), str(threads)]
    subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    return _read(like, folder)


def _write(package: Path, feed: Arrays, folder: Path) -> list[Path]:
    names = [tensor.name for tensor in read_package(package).manifest.variants[0].inputs]
    for k, name in enumerate(names):
        feed[name].tofile(folder / f"in{k}")
    return [folder / f"in{k}" for k in range(len(names))]


def _outputs(like: Arrays, folder: Path) -> list[Path]:
    return [folder / f"out{k}" for k in range(len(like))]


def _read(like: Arrays, folder: Path) -> dict[str, np.ndarray]:
    arrays = [np.fromfile(path, array.dtype) for path, array in zip(_outputs(like, folder), like.values(), strict=True)]
    return dict(zip(like, arrays, strict=True))


def show(name: str, row: Mapping[str, Any]) -> str:
    cells = [f"{row[key]:12.3g}" if key in row else " " * 12 for key in COLUMNS]
    return f"{name:14}" + "".join(cells) + ("  FAILED" if row["failures"] else "  passed")


def remarks(row: Mapping[str, Any]) -> Sequence[str]:
    by = [f"{name!r} departs by {apart:.1e}, amplified" for name, apart in row.get("amplified", {}).items()]
    return [*row["failures"], *by]


def main() -> int:
    known = [*catalogue(), *NETWORKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones (default all): {' '.join(known)}")
    parser.add_argument("--target", default="native", help="a target's name or file (default: native)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write every figure")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"unknown: {' '.join(sorted(unknown))}; there are {' '.join(known)}")
    if missing := [name for name in arguments.names or known if not (paths.ROOT / f"models/{name}.onnx").exists()]:
        parser.error(
            f"models/ lacks {' '.join(missing)}: scripts/fetch_models.py and scripts/make_networks.py make them"
        )
    rows: dict[str, dict[str, Any]] = {}
    print(f"{arguments.target:14}" + "".join(f"{column:>12}" for column in COLUMNS), flush=True)
    for name in arguments.names or known:
        with tempfile.TemporaryDirectory(prefix="modelc-check-") as folder:
            entry = catalogue().get(name, {})
            rows[name] = check(paths.ROOT / f"models/{name}.onnx", entry, arguments.target, Path(folder))
        print(show(name, rows[name]), flush=True)
        for remark in remarks(rows[name]):
            print(f"{'':14}{remark}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps({"target": arguments.target, "models": rows}, indent=1) + "\n")
    return 1 if any(row["failures"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
