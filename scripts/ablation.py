"""What each switch of the configuration is worth: networks compiled with a switch off, beside the default.

    python scripts/ablation.py --off layout.search layout.propagate schedule.winograd [--on layout.blocked]
                               [--target NAME|FILE.yaml ...] [--only REGEX] [--precision bf16] [--seconds S]
                               [--threads N] [--dir models] [--also NAME ...] [--json FILE] [--markdown]

Every network is compiled for this machine by the default configuration and once more for each switch, verified, and all
of its packages are timed in alternating slices of one run. Of several targets the first is the default's, and each
further one is a switch as well: the same machine with another coefficient of its `cost`, say. A ratio is the switched
package's median time / the default's: above 1, the switch is worth having as it is. A switch that changes nothing gives
the same package: 1, not timed. The exit code is 1 if a package failed verification.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import paths
from bench_networks import model_file
from bench_ops import Row, Say, attempt, count, geometric_mean, pattern, positive, print_failures
from networks import NETWORKS
from rich.table import Table
from trained_models import catalogue

import modelc
from modelc.cli.terminal import out
from modelc.compile.config import Config, load_config, parse_config
from modelc.package import read_package
from modelc.verify.bench import alternating, beside, median
from modelc.verify.check import drawn
from modelc.verify.engine import Engine

NAMES = (*NETWORKS, "ppocr-rec", "ppocr-det", "minilm", "yunet", "opennsfw", "resnet50-arc")


def switched(config: Config, key: str, value: bool) -> Config:
    """A configuration with one boolean of its tree set. Raises ConfigError for an unknown key."""
    tree: Any = config.to_json()
    *path, last = key.split(".")
    place = tree
    for name in path:
        place = place.get(name, {}) if isinstance(place, dict) else {}
    if not isinstance(place.get(last) if isinstance(place, dict) else None, bool):
        raise SystemExit(f"the configuration has no switch {key!r}")
    place[last] = value
    return parse_config(tree, f"the default with {key} {value}")


def same(a: Path, b: Path) -> bool:
    """Whether two packages run the same kernels on the same parameters."""
    names = ("params.bin", *(library.name for library in a.glob("lib*.so")))
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in names)


def measure(
    name: str,
    entry: Mapping[str, Any],
    models: Path,
    settings: Mapping[str, tuple[Config, str]],
    threads: int,
    spent: float,
    say: Say,
) -> Row:
    """Medians in milliseconds, ratios to the default, and kernels of one network by setting."""
    model = model_file(name, models, say)
    shapes = [{key: tuple(shape) for key, shape in entry["shape"].items()}] if entry.get("shape") else []
    with tempfile.TemporaryDirectory(prefix="modelc-ablation-") as folder, ExitStack() as stack:
        packages: dict[str, Path] = {}
        compiled: dict[str, float] = {}
        for k, (setting, (config, target)) in enumerate(settings.items()):
            say(f"compiling, {setting}")
            path = Path(folder) / f"{k}.modelc"
            result = modelc.compile(model, target=target, output=path, shapes=shapes, config=config, database=False)
            packages[setting], compiled[setting] = (
                path,
                sum(s for stage, s in result.seconds.items() if stage != "verify"),
            )
        first, *others = packages
        timed = [first, *(setting for setting in others if not same(packages[setting], packages[first]))]
        feed = next(drawn(read_package(packages[first]), model))
        engines = {setting: stack.enter_context(Engine("modelc", packages[setting], threads)) for setting in timed}
        for engine in engines.values():
            engine.run(feed)
        times = alternating(engines, spent, say)
        steps = {setting: len(read_package(path).manifest.variants[0].steps) for setting, path in packages.items()}
    ms = {setting: median(found) for setting, found in times.items()}
    ratios = {setting: beside(times[setting], times[first]) if setting in times else 1.0 for setting in others}
    return {"ms": ms, "ratio": ratios, "steps": steps, "compile_seconds": compiled}


def figures(rows: Sequence[Row], settings: Sequence[str], markdown: bool) -> None:
    """The ratios, a row for each network, and their geometric means."""
    head = ["network", f"{settings[0]} ms", *settings[1:]]
    lines = []
    for row in rows:
        found = (f"{row['ratio'][setting]:.2f}" if setting in row["ms"] else "same" for setting in settings[1:])
        lines.append([row["case"], f"{row['ms'][settings[0]]:.3f}", *found])
    means = (geometric_mean(row["ratio"][setting] for row in rows) or 1.0 for setting in settings[1:])
    lines.append(["geometric mean", "", *(f"{mean:.2f}" for mean in means)])
    if markdown:
        for line in (head, ["---"] * len(head), *lines):
            out.print(f"| {' | '.join(line)} |", markup=False, soft_wrap=True)
        return
    table = Table(*head, box=None)
    for line in lines:
        table.add_row(*line)
    out.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--off", metavar="KEY", nargs="+", default=[], help="switches to turn off, one at a time")
    parser.add_argument("--on", metavar="KEY", nargs="+", default=[], help="switches to turn on, one at a time")
    parser.add_argument("--target", metavar="NAME|FILE", nargs="+", default=["native"], help="default: native")
    parser.add_argument("--only", metavar="REGEX", type=pattern, default="", help="networks whose name has a match")
    parser.add_argument("--seconds", metavar="S", type=positive, default=2.0, help="for each package (default 2)")
    parser.add_argument("--threads", metavar="N", type=count, default=1, help="default 1")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32", help="of all packages (default f32)")
    parser.add_argument("--dir", metavar="DIR", type=Path, default=paths.ROOT / "models", help="where the models are")
    parser.add_argument("--also", metavar="NAME", nargs="+", default=[], help="other models there: NAME.onnx")
    parser.add_argument("--json", metavar="FILE", type=Path, help="all there is goes here, after every network")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    arguments = parser.parse_args()
    names = (*NAMES, *arguments.also)
    chosen = [name for name in names if re.search(arguments.only, name)]
    target, *variants = arguments.target
    if not chosen or not arguments.off + arguments.on + variants:
        parser.error(f"expected switches, and networks among {', '.join(names)}")
    config = load_config().allowing(precision=arguments.precision)
    settings = {"default": (config, target)}
    settings |= {f"no {key}": (switched(config, key, False), target) for key in arguments.off}
    settings |= {key: (switched(config, key, True), target) for key in arguments.on}
    settings |= {Path(variant).stem: (config, variant) for variant in variants}
    entries = catalogue()

    def work(name: str, say: Say) -> Row:
        return measure(name, entries.get(name, {}), arguments.dir, settings, arguments.threads, arguments.seconds, say)

    about = {"seconds": arguments.seconds, "threads": arguments.threads, "precision": arguments.precision}
    rows, failures = attempt(chosen, work, arguments.json, about)
    if rows:
        figures(rows, list(settings), arguments.markdown)
    print_failures(failures)
    out.print(f"{len(rows)} of {len(chosen)} networks, {arguments.threads} thread(s)")
    return 1 if any(one["verification"] for one in failures) else 0


if __name__ == "__main__":
    sys.exit(main())
