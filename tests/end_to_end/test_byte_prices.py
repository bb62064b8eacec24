"""Of a model that is quantized already, what is estimated to be slower in bytes than in float32 is multiplied in
float32, and `compile` says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from integer_contractions import drawn
from quantized_models import Written, run_here

import modelc
from modelc.compile.byte_prices import slower_in_bytes
from modelc.compile.config import load_config
from modelc.frontend.onnx import import_model
from modelc.ir.graph import Graph
from modelc.package import read_package
from modelc.passes import run_passes
from modelc.passes.machine import Machine
from modelc.target import load_target


def network(path: Path) -> Path:
    """A window of 5 x 5 over few numbers, and a product of many channels."""
    w = Written()
    x = w.through("x", "xd", 0.0301, 117)
    wide = w.node("Conv", [x, w.weight("w1", (64, 64, 5, 5), 0, 0.002)], "wide", pads=[2, 2, 2, 2])
    x = w.through(w.node("Relu", [wide], "r"), "rd", 0.0197, 3)
    point = w.node("Conv", [x, w.weight("w2", (256, 64, 1, 1), 0, 0.002)], "point")
    w.through(point, "y", 0.0397, 121)
    return w.save(path, {"x": [1, 64, 12, 12]}, {"y": [1, 256, 12, 12]})


def test_what_is_slower_in_bytes_stays_in_float32(tmp_path: Path) -> None:
    target, path = run_here("x86-64-v3"), network(tmp_path / "m.onnx")
    result = modelc.compile(path, target, tmp_path / "p.modelc", database=False)
    (note,) = [note for note in result.notes if "its price is" in note]
    assert "1 quantized contraction(s) run in float32 ('wide')" in note and "us in bytes and" in note
    assert result.report is not None and result.report.passed
    steps = read_package(tmp_path / "p.modelc").manifest.variants[0].steps
    assert {"float32", "int8"} <= {step.dtype for step in steps if step.flops}
    written = json.loads((tmp_path / "p.modelc" / "choices.json").read_text())
    assert written["real"].keys() == {"wide"}
    modelc.compile(path, output=tmp_path / "q.modelc", choices=tmp_path / "p.modelc", verify=False)
    for name in ("params.bin", "choices.json"):
        assert (tmp_path / "p.modelc" / name).read_bytes() == (tmp_path / "q.modelc" / name).read_bytes()
    with modelc.load(tmp_path / "p.modelc") as model:
        assert len(np.unique(model.run(drawn(path))["y"])) > 8


@pytest.mark.parametrize(("name", "real"), [("raspberry-pi-5", set()), ("x86-64-v3", {"wide"})])
def test_where_bytes_are_multiplied_quickly_nothing_is_kept(tmp_path: Path, name: str, real: set[str]) -> None:
    """With dot products of bytes everything is quicker in them."""
    target, original = load_target(name), import_model(network(tmp_path / "m.onnx"))

    def simplified(reasons: object) -> Graph:
        machine = Machine.of(target)
        return run_passes(original, machine=Machine(machine.units, machine.kept_bytes, machine.dots, reasons))  # type: ignore[arg-type]

    reasons = slower_in_bytes(original, simplified, target, load_config())
    assert reasons.keys() == real
    graph = simplified(reasons)
    assert sum(node.op == "ConvInteger" for node in graph.nodes) == 2 - len(real)
