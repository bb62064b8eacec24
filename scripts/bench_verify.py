"""Prints what verification costs within `modelc compile`: processor time and memory.

    python scripts/bench_verify.py [NAME|FILE.onnx ...] [--dir models] [--json FILE]

NAME is a model of tests/models.yaml (scripts/fetch_models.py puts it into DIR), or lstm-int8: a recurrent layer of 256
over 128 steps, quantized by ONNX Runtime. Each is compiled by itself, without a database. Seconds are processor time
of all threads and processes that were started; `share` is that of the stage `verify` in all of it. Megabytes are
what all processes had at once at most, shared pages once: before that stage, and during it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import paths
from onnx import TensorProto, helper
from rich.table import Table
from trained_models import catalogue

import modelc
from modelc.cli.terminal import out

LSTM = "lstm-int8"
STEPS, HIDDEN = 128, 256
INTERVAL = 0.05  # seconds between two looks at memory
COLUMNS = ("all_seconds", "verify_seconds", "share", "megabytes_before", "megabytes_verify")


def processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def compile_here(path: Path, entry: Mapping) -> None:
    """Compiles a model, and prints when verification begins which processor time was used until then."""

    def progress(stage: str, text: str) -> None:
        nonlocal verifying
        if stage == "verify" and not verifying:
            verifying = True
            print(processor_seconds(), flush=True)

    verifying = False
    shapes = [{key: tuple(dims) for key, dims in entry.get("shape", {}).items()}]
    with tempfile.TemporaryDirectory() as folder:
        modelc.compile(
            path,
            output=Path(folder) / "out.modelc",
            shapes=shapes if shapes[0] else [],
            constants=entry.get("constant"),
            database=False,
            progress=progress,
        )


def megabytes(root: int) -> float:
    """What a process and all that it has started have in memory; pages that several have are shared out among them."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        parents.setdefault(parent, []).append(int(folder.name))
    pending, kilobytes = [root], 0
    while pending:
        process = pending.pop()
        pending += parents.get(process, ())
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


def measured(name: str, path: Path, entry: Mapping) -> dict[str, object]:
    """The figures of one model, which a process of its own compiles."""
    command = [sys.executable, __file__, "--compile-here", str(path), json.dumps(entry)]
    peaks = {"before": 0.0, "verify": 0.0}
    with tempfile.NamedTemporaryFile() as printed:
        worker = subprocess.Popen(command, stdout=printed)
        while not (ended := os.wait4(worker.pid, os.WNOHANG))[0]:
            stage = "verify" if os.path.getsize(printed.name) else "before"
            peaks[stage] = max(peaks[stage], megabytes(worker.pid))
            time.sleep(INTERVAL)
        _, status, used = ended
        if status:
            raise SystemExit(f"{name} was not compiled")
        seconds = used.ru_utime + used.ru_stime
        verify = seconds - float(Path(printed.name).read_text())
    figures = (seconds, verify, verify / seconds, peaks["before"], peaks["verify"])
    return {"model": name, **{column: round(x, 3) for column, x in zip(COLUMNS, figures, strict=True)}}


def write_lstm(path: Path) -> None:
    """A quantized recurrent layer, with drawn weights."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    rng = np.random.default_rng(0)
    sides = {"W": (1, 4 * HIDDEN, HIDDEN), "R": (1, 4 * HIDDEN, HIDDEN), "B": (1, 8 * HIDDEN)}
    weights = {name: rng.normal(0, HIDDEN**-0.5, shape).astype(np.float32) for name, shape in sides.items()}
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, 1, HIDDEN])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [STEPS, 1, 1, HIDDEN])
    node = helper.make_node("LSTM", ["x", *weights], ["y"], hidden_size=HIDDEN)
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([node], "lstm", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    quantize_dynamic(model, path, op_types_to_quantize=["LSTM"], weight_type=QuantType.QInt8)


def main() -> None:
    models = catalogue()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME|FILE", help=f"default: {' '.join(models)} {LSTM}")
    parser.add_argument("--dir", type=Path, default=paths.ROOT / "models", help="where the models are")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures too")
    parser.add_argument("--compile-here", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.compile_here:
        path, entry = arguments.compile_here
        compile_here(Path(path), json.loads(entry))
        return
    rows = []
    for name in arguments.names or (*models, LSTM):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "lstm.onnx" if name == LSTM else arguments.dir / f"{name}.onnx"
            if name == LSTM:
                write_lstm(path)
            path = Path(name) if name.endswith(".onnx") else path
            rows.append(measured(name, path, models.get(name, {})))
        out.print(json.dumps(rows[-1]), markup=False, soft_wrap=True)
    table = Table("model", *(column.replace("_", " ") for column in COLUMNS), box=None)
    for row in rows:
        seconds, verify, share, before, during = (row[column] for column in COLUMNS)
        table.add_row(row["model"], f"{seconds:.1f}", f"{verify:.1f}", f"{share:.0%}", f"{before:.0f}", f"{during:.0f}")
    out.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
