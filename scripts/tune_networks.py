"""What tuning gains: networks, or Ansor's operators, tuned within a budget and timed beside the untuned package, ONNX
Runtime and OpenVINO.

    python scripts/tune_networks.py NAME... [--budget 5m 30m] [--precision f32|bf16] [--threads N] [--seconds S]
                                    [--against ort,openvino] [--explorer E] [--records DIR] [--dir models]
                                    [--target NAME|FILE.yaml] [--json FILE]

NAME is a network (scripts/bench_networks.py), another model NAME.onnx of the folder, or one of Ansor's operators
(GMM-3-b1; `operators` for all of batch 1, each with `--budget 200` measurements, say). Each is compiled, tuned with
every budget, verified, and at the end the tuned package, the untuned one and the peers are timed by turns in one run.
Printed are the gain (the untuned package's time / the tuned one's; 1 where tuning kept the untuned one), the ratios to
the peers (a peer's time / the tuned package's), their geometric means and the least; and where there are two budgets,
the gain with the smaller over that with the larger. FILE keeps each row as it comes, and the same command goes on after
what it has; DIR keeps the measurements, so that an interrupted row begins with its own (every row has a database of its
own: none profits from another). The exit code is 1 if something failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import ansor_ops
import paths  # noqa: F401
from bench_networks import NAMES
from bench_ops import PEERS, Say, failure, geometric_mean, peers, positive, print_failures, tuning_budget
from kept_rows import MODELS, Kept, Row
from rich.table import Table
from space_tasks import model_file
from trained_models import shapes_of

import modelc
from modelc.cli.terminal import err, out
from modelc.compile.config import load_config
from modelc.target import Target, load_target

ALL = "operators"
NARROW = {"openvino": "openvino-bf16"}


def label(name: str, budget: str) -> str:
    return f"{name} {budget}"


def measured(name: str, budget: str, target: Target, arguments: argparse.Namespace, folder: Path, say: Say) -> Row:
    """Tunes and times one network."""
    model = model_file(name, arguments.dir, folder)
    shapes = shapes_of(name)
    config = load_config().allowing(precision=arguments.precision)
    untuned, tuned = folder / "untuned.modelc", folder / "tuned.modelc"
    say("compiling")
    modelc.compile(model, target=target, output=untuned, shapes=shapes, config=config, database=False)
    records = arguments.records or folder
    (found,) = modelc.tune(
        model,
        target=target,
        budget=budget,
        explorer=arguments.explorer,
        output=tuned,
        shapes=shapes,
        config=config,
        threads=arguments.threads,
        database=records / f"{name}-{budget}-{arguments.precision}.sqlite",
        progress=lambda stage, text: say(f"{stage} {text}"),
    )
    against = [NARROW.get(p, p) if arguments.precision == "bf16" else p for p in arguments.against]
    engines = [str(untuned), *against]
    timed = modelc.bench(
        tuned, engines, model, arguments.threads, arguments.seconds, lambda stage, text: say(f"{stage} {text}")
    )
    ms = {key: one["median_ms"] for key, one in timed["engines"].items()}
    ms["untuned"] = ms.pop(str(untuned))
    row = found.to_json()
    kept = ("tuned", "tasks", "changed_tasks", "ended", "measurements", "measurements_per_second", "search_share")
    return {
        "network": name,
        "budget": budget,
        **{key: row[key] for key in (*kept, "known_records", "notes", "log", "verification")},
        "ms": ms,
        "gain": timed["ratio"][str(untuned)] if found.tuned else 1.0,
        "ratio": {peer: timed["ratio"][peer] for peer in against if peer in ms},
    }


def attempt(
    name: str, budget: str, target: Target, arguments: argparse.Namespace, kept: Kept, failures: list[Row]
) -> None:
    """Keeps the row of one network, or says how it failed: one that fails must not cost the others."""
    what = label(name, budget)
    with tempfile.TemporaryDirectory(prefix="modelc-tune-") as folder, err.status(what) as status:
        try:
            row = measured(name, budget, target, arguments, Path(folder), lambda text: status.update(f"{what}: {text}"))
        except Exception as error:
            failures.append(failure(what, error))
            err.print(f"{what}: {error}", markup=False)
            return
    kept.add({"task": what, **row})
    err.print(f"{what}: gain {row['gain']:.3f}", markup=False)


def best(row: Row) -> float | None:
    """The ratio to the fastest peer."""
    return min(row["ratio"].values(), default=None)


def figures(rows: Sequence[Row], against: Sequence[str]) -> Table:
    head = ("network", "budget", "measured", "a second", "search", "untuned ms", "tuned ms", "gain")
    table = Table(*head, *(f"vs {peer}" for peer in against), "vs the best", box=None)
    for row in rows:
        speed = (f"{row['measurements_per_second']:.1f}", f"{row['search_share']:.0%}")
        times = (f"{row['ms']['untuned']:.3f}", f"{row['ms']['modelc']:.3f}", f"{row['gain']:.3f}")
        ratios = (f"{row['ratio'][peer]:.3f}" if peer in row["ratio"] else "" for peer in against)
        beside = best(row)
        last = "" if beside is None else f"{beside:.3f}"
        table.add_row(row["network"], row["budget"], str(row["measurements"]), *speed, *times, *ratios, last)
    return table


def summary(rows: Sequence[Row], budgets: Sequence[str]) -> list[str]:
    """Geometric means and the least for each budget; what smaller budgets reached of what the largest did."""
    lines = []
    for budget in budgets:
        own = [row for row in rows if row["budget"] == budget]
        if not own:
            continue
        gains = [row["gain"] for row in own]
        beside = [ratio for row in own if (ratio := best(row)) is not None]
        lines.append(f"{budget}: gain {geometric_mean(gains):.3f} (least {min(gains):.3f}) of {len(own)}")
        if beside:
            lines[-1] += f"; beside the faster peer {geometric_mean(beside):.3f} (least {min(beside):.3f})"
    gained = {(row["network"], row["budget"]): row["gain"] for row in rows}
    for small in budgets[:-1]:
        both = [n for n, b in gained if b == small and (n, budgets[-1]) in gained]
        shares = {name: gained[name, small] / gained[name, budgets[-1]] for name in both}
        for name, share in shares.items():
            lines.append(f"{name}: with {small} {share:.1%} of the speed with {budgets[-1]}")
    return lines


def main() -> int:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument(
        "--budget", nargs="+", type=tuning_budget, default=["5m"], metavar="5m|200", help="each gets a row (default 5m)"
    )
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--explorer", default="evolve")
    parser.add_argument("--target", default="native")
    parser.add_argument("--records", type=Path, metavar="DIR", help="keeps the measurements")
    parser.add_argument("--dir", type=Path, default=MODELS, help="where the models are")
    parser.add_argument("--seconds", type=positive, default=3.0, help="of each engine (default 3)")
    parser.add_argument("--against", type=peers, default=[*PEERS], help=f"default {','.join(PEERS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keeps the rows")
    arguments = parser.parse_args()
    if missing := [name for name in arguments.against if find_spec(PEERS[name]) is None]:
        parser.error(
            f"{missing[0]} is not installed: pip install 'modelc-compiler[bench]', or leave it out of --against"
        )
    cases = [case.name for case in ansor_ops.cases((1,))]
    names = [n for name in arguments.names for n in (cases if name == ALL else [name])]
    listed = {*NAMES, *(case.name for case in ansor_ops.cases())}
    if unknown := [n for n in names if n not in listed and not (arguments.dir / f"{n}.onnx").exists()]:
        parser.error(f"{unknown[0]!r} is no network, no operator, and no model of {arguments.dir}")
    if arguments.records is not None:
        arguments.records.mkdir(parents=True, exist_ok=True)
    target = load_target(arguments.target)
    about = {"modelc": modelc.__version__, "target": target.key, "precision": arguments.precision}
    about |= {"threads": arguments.threads, "explorer": arguments.explorer, "seconds": arguments.seconds}
    kept, failures = Kept.at(arguments.json, about), []
    for name in names:
        for budget in arguments.budget:
            if kept.find(label(name, budget)) is None:
                attempt(name, budget, target, arguments, kept, failures)
    rows = kept.of_tasks([label(name, budget) for name in names for budget in arguments.budget])
    if rows:
        found = list(dict.fromkeys(peer for row in rows for peer in row["ratio"]))
        out.print(figures(rows, found), *summary(rows, arguments.budget), sep="\n")
    print_failures(failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
