"""What `compile` chooses for a Task against the best of measured random points over all its Sketches.

    python scripts/compare_space.py --json FILE [--points 200] [--tasks MODEL:TASK[@bf16] ...] [--models DIR]
                                    [--constants cold|warm] [--seed N]

MODEL is a file MODEL.onnx in DIR, a case of Ansor's operators (NRM-4-b1), or bytes-N, a product of bytes. Everything is
measured on one thread by turns with what is chosen, constants as cold as among all parameters of the model; whoever is
near the best is measured again, longer, and that counts. For each Task: the time of what is chosen over the best random
point's, Spearman's rank correlation of estimated and measured times, over all points and over the quarter that is
measured best, and which Sketches the points are of. FILE keeps what was measured; what it has is not measured again.
(compare_construction.py compares ways of construction on contractions.)
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from construction_tables import prediction
from kept_rows import CLOSE, LONGER, Kept, Row, parser
from space_tasks import Found, named

from modelc.measure import Measurer
from modelc.space.choose import chosen
from modelc.target import Target, load_target
from modelc.tune.search.population import Space

TASKS = {  # what kind of Task each is
    "resnet50:conv_relu_44": "pointwise",
    "mobilenet-v2:conv_2": "tall product",
    "resnet50:conv_relu_42": "3x3",
    "resnet50:conv_relu_45": "3x3, strided",
    "resnet50:conv_relu_0": "first 7x7",
    "mobilenet-v2:conv_clip_7": "depthwise",
    "C1D-3-b1:conv_0": "1-D",
    "C3D-3-b1:conv_0": "3-D",
    "T2D-2-b1:convtranspose_0": "transposed",
    "bert-base:matmul_add_gelu_107": "product and GELU",
    "GMM-3-b1:matmul_0": "product of two inputs",
    "resnet50:gemm_55": "matrix and vector",
    "bert-base:matmul_add_softmax_matmul_104": "attention",
    "ppocr-rec:softmax_60": "softmax",
    "bert-base:layernormalization_109": "layer norm",
    "resnet50:maxpool_1": "pooling",
    "resnet50:globalaveragepool_54": "global pooling",
    "NRM-4-b1:reducel2_0": "norm",
    "ppocr-det:mul_add_resize_add_60": "resize",
    "bert-tiny:matmul_add_gelu_15@bf16": "bf16",
    "bytes-512:matmulinteger_0": "int8",
}


def measured(found: Found, target: Target, measurer: Measurer, options: argparse.Namespace) -> Row:
    """The row of one Task: `chosen`, and the random points, each with its Sketch, estimated and measured seconds."""
    target = found.among(target, options.constants)
    space = Space(found.task, target, found.policy, cores=1)
    rows = space.random(options.points, np.random.default_rng(options.seed))
    individuals = [space.individual(row) for row in rows]
    own = chosen(found.task, target, found.policy).candidate
    keys = [one.candidate.key for one in individuals]
    candidates = {own.key: own} | {k: one.candidate for k, one in zip(keys, individuals, strict=True)}
    subject = measurer.subject(found.task, target.cold_bytes)
    results = dict(zip(candidates, measurer.measure(subject, list(candidates.values())), strict=True))
    bugs = [one for one in results.values() if one.outcome in ("wrong", "crashed", "build-failed")]
    if bugs or not results[own.key].ok:
        one = bugs[0] if bugs else results[own.key]
        raise SystemExit(f"{found.name}: a schedule is a bug of modelc ({one.outcome}): {one.message}")
    best = min(one.relative for one in results.values())
    near = [k for k, one in results.items() if one.ok and (k == own.key or one.relative <= CLOSE * best)]
    numbers = {measurer.submit(subject, candidates[k], LONGER): k for k in near}
    results |= {numbers[number]: one for number, one in measurer.results()}
    seconds = statistics.median(one.reference_seconds for one in results.values() if one.ok)
    predicted = space.estimate(rows)
    points = [
        {
            "sketch": f"{one.sketch.kind} {one.sketch.name}",
            "number": int(row[0]),  # of the Sketch in the Space
            "knobs": one.sketch.values(one.point),
            "predicted": float(p),
            "measured": results[k].relative * seconds,
        }
        for row, one, p, k in zip(rows, individuals, predicted, keys, strict=True)
        if results[k].ok
    ]
    return {
        "task": found.name,
        "hash": found.task.hash,
        "sketches": len(space.sketches),
        "chosen": results[own.key].relative * seconds,
        "points": points,
        "refused": len(rows) - len(points),
    }


def ratio(row: Row) -> float:
    """The time of what is chosen over the best random point's."""
    return float(row["chosen"] / min(p["measured"] for p in row["points"]))


def report(rows: Sequence[Row]) -> list[str]:
    names = [f"{row['task']} ({TASKS[row['task']]})" if row["task"] in TASKS else row["task"] for row in rows]
    wide = max(map(len, names))
    lines = [f"{'':{wide}} sketches points refused      us  chosen/best  rank  in best quarter  best is"]
    for name, row in zip(names, rows, strict=True):
        found = prediction(row)
        best = min(row["points"], key=lambda p: p["measured"])
        lines.append(
            f"{name:{wide}} {row['sketches']:8} {len(row['points']):6} {row['refused']:7} {1e6 * best['measured']:7.1f}"
            f" {ratio(row):12.3f} {found['rank']:5.2f} {found['rank of best quarter']:16.2f}  {best['sketch']}"
        )
    over = [ratio(row) for row in rows]
    quarter = [prediction(row)["rank of best quarter"] for row in rows]
    lines.append(f"chosen / best: median {statistics.median(over):.3f}, worst {max(over):.3f}")
    lines.append(f"rank correlation in the best quarter: median {np.nanmedian(quarter):.2f}")
    for row in rows:
        if ratio(row) > CLOSE:
            best = min(row["points"], key=lambda p: p["measured"])
            kinds = Counter(p["sketch"] for p in row["points"])
            lines.append(f"{row['task']}: the best is {best['sketch']} {best['knobs']} of {dict(kinds)}")
    return lines


def main() -> None:
    assert __doc__
    options = parser(__doc__, "points", 200, TASKS).parse_args()
    target = replace(load_target(options.target), cores=1)
    kept = Kept.of(options, "points", target)
    with tempfile.TemporaryDirectory(prefix="modelc-space-") as folder, Measurer(target) as measurer:
        for name in [name for name in options.tasks if kept.find(name) is None]:
            row = measured(named(name, options.models, Path(folder), target), target, measurer, options)
            kept.add(row)
            print(f"{name}: what is chosen takes {ratio(row):.3f} of the best random point", flush=True)
    print("\n".join(["", *report(kept.of_tasks(options.tasks))]))


if __name__ == "__main__":
    main()
