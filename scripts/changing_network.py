"""What optimizing costs and gains where a network's structure changes again and again (Gensor, figure 12).

    python scripts/changing_network.py [--widths 1.0 0.75 1.25] [--image 224] [--images 256000] [--budget 2m]
                                       [--threads N] [--seconds S] [--target NAME|FILE.yaml]

MobileNet-V2 gets another number of channels in each stage, and is then run on `--images` images, one at a time; the
figure has three stages of 2,000 batches of 128. The ways are `compile` (construction; with verification and a cold
cache), `tune` on top of it with a budget for each stage, and the peers, which optimize when they open a model. For each
way the table has the seconds of optimizing and the median milliseconds of an image, timed by turns within each stage;
the total of all stages; and from how many images a stage on the total is below that of each peer. Weights are random,
as no time depends on them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import onnxruntime
import paths
from bench_ops import PEERS, count, positive, tuning_budget
from networks import mobilenet, write
from rich.table import Table

import modelc
from modelc.cli.terminal import err, out
from modelc.scratch import user_cache


class Cost(NamedTuple):
    """Seconds of optimizing, and milliseconds of an image."""

    seconds: float
    ms: float


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def opened_by(peer: str, model: Path, threads: int) -> object:
    """The model as a peer runs it, optimized as by default."""
    if peer == "ort":
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    import openvino

    return openvino.Core().compile_model(str(model), "CPU", {"INFERENCE_NUM_THREADS": threads})


def stage_of(model: Path, arguments: argparse.Namespace, folder: Path) -> dict[str, Cost]:
    """What each way costs for one structure of the network."""

    def modelc_seconds(way: str, *options: str) -> float:
        """Of a process of its own, whose cache has the description of this machine alone."""
        cache = folder / f"cache of {way}"
        cache.mkdir()
        for probed in user_cache().glob("native-*.yaml"):
            shutil.copy(probed, cache)
        command = [sys.executable, "-m", "modelc", way, str(model), "-o", str(folder / f"{way}.modelc"), "-q"]
        command += ["--target", arguments.target, "--threads", str(arguments.threads), *options]
        env = {**os.environ, "MODELC_CACHE": str(cache), "PYTHONPATH": str(paths.ROOT)}
        return seconds_of(lambda: subprocess.run(command, env=env, cwd=folder, check=True, stdout=subprocess.DEVNULL))

    seconds = {peer: seconds_of(lambda peer=peer: opened_by(peer, model, arguments.threads)) for peer in PEERS}
    seconds["compile"] = modelc_seconds("compile", "--no-database", "--no-bench")
    records = str(folder / "records.sqlite")
    seconds["tune"] = modelc_seconds("tune", "--budget", arguments.budget, "--database", records)
    engines = {"compile": "modelc", "tune": str(folder / "tune.modelc")} | {peer: peer for peer in PEERS}
    against = [engines[way] for way in engines if way != "compile"]
    timed = modelc.bench(folder / "compile.modelc", against, model, arguments.threads, arguments.seconds)["engines"]
    return {way: Cost(seconds[way], timed[engine]["median_ms"]) for way, engine in engines.items()}


def first_image_ahead(ours: Cost, peer: Cost) -> str:
    """From how many images on we take less than a peer, optimizing and running."""
    if ours.ms >= peer.ms:
        return "never"
    return f"{max(0.0, (ours.seconds - peer.seconds) / (peer.ms - ours.ms) * 1e3):,.0f}"


def table_of(stages: Mapping[float, Mapping[str, Cost]], images: int) -> Table:
    heads = [f"{width:g}: seconds, ms" for width in stages]
    table = Table("way", *heads, "seconds in all", *(f"ahead of {peer} from" for peer in PEERS), box=None)
    costs = {way: [stage[way] for stage in stages.values()] for way in next(iter(stages.values()))}
    average = {way: Cost(*map(mean, zip(*of_stages, strict=True))) for way, of_stages in costs.items()}
    for way, of_stages in costs.items():
        cells = [f"{cost.seconds:.2f}, {cost.ms:.3f}" for cost in of_stages]
        total = sum(cost.seconds + cost.ms / 1e3 * images for cost in of_stages)
        ahead = ["" if way in PEERS else first_image_ahead(average[way], average[peer]) for peer in PEERS]
        table.add_row(way, *cells, f"{total:,.0f}", *ahead)
    return table


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--widths", nargs="+", type=positive, default=[1.0, 0.75, 1.25], help="of each stage's channels"
    )
    parser.add_argument("--image", type=count, default=224, help="height and width (default 224)")
    parser.add_argument("--images", type=int, default=256_000, help="of a stage (default 256000)")
    parser.add_argument("--budget", type=tuning_budget, default="2m", help="of tune in each stage (default 2m)")
    parser.add_argument("--threads", type=count, default=1)
    parser.add_argument("--seconds", type=positive, default=3.0, help="of each engine (default 3)")
    parser.add_argument("--target", default="native")
    arguments = parser.parse_args()
    if missing := [name for name, module in PEERS.items() if find_spec(module) is None]:
        parser.error(f"{missing[0]} is not installed: pip install 'modelc-compiler[bench]'")
    stages = {}
    for width in arguments.widths:
        with tempfile.TemporaryDirectory(prefix="modelc-changing-") as folder, err.status(f"width {width:g}"):
            model = Path(folder) / "network.onnx"
            write(mobilenet(width, arguments.image), model)
            stages[width] = stage_of(model, arguments, Path(folder))
    out.print(table_of(stages, arguments.images))


if __name__ == "__main__":
    main()
