"""What verification costs, as a script measures it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import bench_verify
import onnx
import pytest
import small_model as small
from onnx import helper


def test_the_time_of_verification_is_a_share_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    model, rows = small.save(tmp_path / "m.onnx", [node], {"x": [8]}, {"y": [8]}, {}), tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["bench_verify.py", str(model), "--json", str(rows)])
    bench_verify.main()
    (row,) = json.loads(rows.read_text())
    assert 0 < row["verify_seconds"] < row["all_seconds"]
    assert row["share"] == pytest.approx(row["verify_seconds"] / row["all_seconds"], abs=0.01)
    assert min(row["megabytes_before"], row["megabytes_verify"]) > 20


def test_the_recurrent_layer_multiplies_bytes(tmp_path: Path) -> None:
    bench_verify.write_lstm(tmp_path / "m.onnx")
    assert {node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node} == {"DynamicQuantizeLSTM"}
