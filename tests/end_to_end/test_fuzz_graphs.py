"""python tests/fuzz graphs: a slice of the random graphs, and that it notices what is wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import fuzz_graphs
import numpy as np
import onnx
import onnxruntime
import pytest
from forked import Wrong, run_case, run_cases
from fuzzing import Report
from packaged import native
from random_graphs import draw

SLICES, CASES = 16, 6


@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.sweep(1)
def test_random_graphs_agree(part: int) -> None:
    native()
    report = Report(part)
    for case, outcome in run_cases(
        (fuzz_graphs.Drawn(CASES * part + k).case() for k in range(CASES)), fuzz_graphs.LIMITS
    ):
        report.add(case, outcome)
    assert report.passed and report.kinds["done"] >= CASES - 1, report.to_json()["failures"]


def test_what_is_drawn_is_valid_and_the_same_again() -> None:
    operators: Counter[str] = Counter()
    for seed in range(60):
        model, feeds, values = draw(seed)
        onnx.checker.check_model(model, full_check=True)
        assert model.SerializeToString() == draw(seed)[0].SerializeToString()
        assert set(feeds) < set(values) and len(model.graph.node) >= 2
        operators.update(node.op_type for node in model.graph.node)
    assert len(operators) > 50, operators


def test_a_wrong_package_is_made_small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where every Softmax is off, what is shown is a Softmax."""
    seed = next(s for s in range(100) if any(n.op_type == "Softmax" for n in draw(s)[0].graph.node[1:]))

    def check(model: onnx.ModelProto, feeds: dict[str, np.ndarray], folder: Path, chained: bool) -> str:
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
        if any(n.op_type == "Softmax" for n in model.graph.node):
            raise Wrong("y: 1 of 3 elements differ")
        return ""

    monkeypatch.setattr(fuzz_graphs, "check", check)
    drawn = fuzz_graphs.Drawn(seed)
    outcome = run_case(drawn.case())
    assert outcome.kind == "wrong"
    case = fuzz_graphs.smaller(drawn, outcome, tmp_path)
    assert len(case.about["nodes"]) == 1 and "1 nodes: Softmax(" in case.name
    assert [n.op_type for n in onnx.load(tmp_path / f"graph-{seed}.onnx").graph.node] == ["Softmax"]
