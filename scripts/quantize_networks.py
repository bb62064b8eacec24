"""Quantizes float networks, and times what comes of it beside the networks in float32 and beside other engines:

    python scripts/quantize_networks.py [NETWORK ...] [--models DIR] [--samples 64] [--threads N] [--seconds S]
                                        [--folder DIR] [--json FILE]

Each network is compiled for this machine in float32, and with `--precision int8 --calibrate` on samples that are drawn
for it: parts of two photographs (scikit-learn's), noise where a network hears, or tokens. The table says how
long quantizing took, how much worse outputs are (as the package's manifest does), how many layers multiply bytes, and
the times of float32, of ONNX Runtime and of OpenVINO over ours, in alternating slices of one run: the float model in
these engines, and the same quantized model (of --emit-onnx). `--folder` keeps models and packages, and takes those that
lie there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paths  # noqa: F401
from bench_ops import count
from kept_rows import MODELS
from PIL import Image
from rich.table import Table

from modelc.cli.terminal import err, out
from modelc.frontend.quantize.recipe import DYNAMIC, INT8, TABLE
from modelc.package import read_package
from modelc.verify.bench import alternating, beside
from modelc.verify.check import drawn
from modelc.verify.engine import Engine, EngineError

Array = np.ndarray[Any, np.dtype[Any]]
Draw = Callable[[np.random.Generator, int], dict[str, Array]]
MEAN, DEVIATION = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])  # of ImageNet's pixels
COLUMNS = ("f32", "ORT f32", "OV f32", "ORT int8", "OV int8")
SMALLEST = 0.4  # part of a photograph, of its shorter side


class Refused(Exception):
    """A network that is not compiled so, and why."""


def photographs(name: str, height: int, width: int, change: Callable[[Array], Array]) -> Draw:
    """Input `name`: parts of photographs, each as `change` makes it of [height, width, 3] from 0 to 255."""

    def draw(rng: np.random.Generator, samples: int) -> dict[str, Array]:
        try:
            from sklearn.datasets import load_sample_images
        except ImportError as error:
            raise Refused(
                "there are no photographs without scikit-learn: pip install 'modelc-compiler[bench]'"
            ) from error
        images = [Image.fromarray(image) for image in load_sample_images().images]
        made = []
        for _ in range(samples):
            image = images[rng.integers(len(images))]
            side = int(min(image.size) * rng.uniform(SMALLEST, 1))
            left, top = (int(rng.integers(0, size - side + 1)) for size in image.size)
            part = image.crop((left, top, left + side, top + side)).resize((width, height))
            made.append(change(np.asarray(part, np.float32)))
        return {name: np.stack(made)}

    return draw


def of_imagenet(pixels: Array) -> Array:
    return ((pixels / 255 - MEAN) / DEVIATION).transpose(2, 0, 1)[None]


def as_they_are(pixels: Array) -> Array:
    return pixels.transpose(2, 0, 1)[None]


def channels_last(pixels: Array) -> Array:
    return (pixels - MEAN * 255)[None]


def grey(pixels: Array) -> Array:
    return (pixels.mean(axis=-1) / 255)[None, None]


def noise(name: str, *shape: int) -> Draw:
    return lambda rng, samples: {name: rng.standard_normal((samples, *shape)).astype(np.float32)}


def words(length: int, vocabulary: int) -> Draw:
    """Sentences of a few to `length` tokens."""

    def draw(rng: np.random.Generator, samples: int) -> dict[str, Array]:
        lengths = rng.integers(length // 8, length + 1, (samples, 1, 1))
        mask = (np.arange(length) < lengths).astype(np.int64)
        return {"input_ids": rng.integers(1000, vocabulary, mask.shape) * mask, "attention_mask": mask}

    return draw


@dataclass(frozen=True)
class Network:
    """What a network's samples are, and its shapes where it leaves them open."""

    draw: Draw
    dims: Mapping[str, tuple[int, ...]] | None = None


NETWORKS = {
    "mobilenet-v2": Network(photographs("input", 224, 224, of_imagenet)),
    "resnet18": Network(photographs("input", 224, 224, of_imagenet)),
    "resnet50": Network(photographs("input", 224, 224, of_imagenet)),
    "opennsfw": Network(photographs("input:0", 224, 224, channels_last), {"input:0": (1, 224, 224, 3)}),
    "yunet": Network(photographs("input", 640, 640, as_they_are)),
    "ppocr-det": Network(photographs("x", 640, 640, of_imagenet), {"x": (1, 3, 640, 640)}),
    "ppocr-rec": Network(photographs("x", 48, 320, of_imagenet), {"x": (1, 3, 48, 320)}),
    "unet": Network(photographs("input", 96, 96, of_imagenet)),
    "lenet": Network(photographs("input", 32, 32, grey)),
    "keyword-cnn": Network(noise("input", 1, 1, 49, 10)),
    "resnet50-arc": Network(noise("input", 1, 1, 149, 64)),
    "minilm": Network(words(128, 30_000), {"input_ids": (1, 128), "attention_mask": (1, 128)}),
}


def packages(name: str, model: Path, folder: Path, samples: int) -> dict[str, Any]:
    """The packages of a network in float32 and in bytes, and what was said when that was quantized."""
    network, calibration = NETWORKS[name], folder / f"{name}-samples.npz"
    plain, narrow, quantized = (folder / f"{name}{end}" for end in ("-f32.modelc", "-int8.modelc", "-int8.onnx"))
    shapes = [f"--shape={x}={','.join(map(str, dims))}" for x, dims in (network.dims or {}).items()]
    said = folder / f"{name}.json"
    if not plain.exists():
        compiled(model, plain, *shapes)
    if not said.exists():
        np.savez(calibration, **network.draw(np.random.default_rng(0), samples))
        began = time.monotonic()
        more = ("--precision=int8", f"--calibrate={calibration}", f"--emit-onnx={quantized}")
        document = compiled(model, narrow, *shapes, *more)
        said.write_text(json.dumps({"minutes": (time.monotonic() - began) / 60, "quantized": document["quantized"]}))
    return {"f32": plain, "int8": narrow, "onnx": quantized, **json.loads(said.read_text())}


def compiled(model: Path, output: Path, *options: str) -> Any:
    """What `modelc compile` says of a model."""
    command = [sys.executable, "-m", "modelc", "compile", str(model), "-o", str(output)]
    done = subprocess.run([*command, *options, "--no-bench", "--no-database", "--json"], capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"{model.stem}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def measure(name: str, model: Path, made: Mapping[str, Any], threads: int, seconds: float) -> dict[str, float]:
    """How many times as long as our package of bytes every engine takes."""
    wanted: dict[str, tuple[str, Path]] = {
        "int8": ("modelc", made["int8"]),
        "f32": ("modelc", made["f32"]),
        "ORT f32": ("ort", model),
        "OV f32": ("openvino", model),
        "ORT int8": ("ort", made["onnx"]),
        "OV int8": ("openvino", made["onnx"]),
    }
    inputs = next(drawn(read_package(made["f32"]), model))
    with ExitStack() as stack:
        engines = {}
        for key, (kind, path) in wanted.items():
            try:
                engine = stack.enter_context(Engine(kind, path, threads))
                engine.run(inputs)
            except EngineError as error:
                err.print(f"{name}: {key} is left out: {error}")
            else:
                engines[key] = engine
        times = alternating(engines, seconds, lambda told: None)
    return {key: beside(slices, times["int8"]) for key, slices in times.items()}


def row(name: str, made: Mapping[str, Any], ratios: Mapping[str, float]) -> list[str]:
    summary = made["quantized"]["summary"]
    layers = [layer for layer in made["quantized"]["layers"] if layer["dtype"] != TABLE]
    narrow = sum(layer["dtype"] in (INT8, DYNAMIC) for layer in layers)
    sizes = (read_package(made[key]).manifest.params_bytes / 1e6 for key in ("f32", "int8"))
    return [
        name,
        f"{made['minutes']:.1f}",
        f"{summary['drop']:.2%}",
        f"{narrow}/{len(layers)}",
        *(f"{ratios[key]:.2f}" if key in ratios else "-" for key in COLUMNS),
        *map("{:.3g}".format, sizes),
    ]


def geometric_mean(numbers: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(numbers))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", metavar="NETWORK", nargs="*", choices=[*NETWORKS, []], help="default: all")
    parser.add_argument("--models", metavar="DIR", type=Path, default=MODELS)
    parser.add_argument("--samples", metavar="N", type=count, default=64)
    parser.add_argument("--threads", metavar="N", type=count, default=1, help="default 1")
    parser.add_argument("--seconds", metavar="S", type=float, default=3.0, help="for each engine, default 3")
    parser.add_argument("--folder", metavar="DIR", type=Path)
    parser.add_argument("--json", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    table = Table("network", "minutes", "drop", "layers", *COLUMNS, "f32 MB", "int8 MB", box=None)
    rows = {}
    with tempfile.TemporaryDirectory(prefix="modelc-quantize-") as scratch:
        folder = arguments.folder or Path(scratch)
        for name in arguments.networks or NETWORKS:
            model = arguments.models / f"{name}.onnx"
            try:
                made = packages(name, model, folder, arguments.samples)
            except Refused as error:
                err.print(str(error), highlight=False)
                continue
            rows[name] = measure(name, model, made, arguments.threads, arguments.seconds)
            table.add_row(*row(name, made, rows[name]))
            err.print(f"{name}: done")
    if not rows:
        raise SystemExit("no network was quantized")
    means = [[ratios[key] for ratios in rows.values() if key in ratios] for key in COLUMNS]
    table.add_row("geometric mean", "", "", "", *(f"{geometric_mean(x):.2f}" if x else "-" for x in means))
    out.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
