"""python tests/fuzz schemas: a slice of the random graphs, and what is drawn."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import fuzz_schemas
import onnx
import pytest
from forked import run_cases
from fuzzing import Report
from packaged import native
from schema_graphs import OPSETS, schemas

SLICES, CASES = 10, 10


@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.sweep(1)
def test_random_graphs_of_schemas_agree(part: int) -> None:
    native()
    report = Report(part)
    for case, outcome in run_cases((fuzz_schemas.case_of(CASES * part + k) for k in range(CASES)), fuzz_schemas.LIMITS):
        report.add(case, outcome)
    assert report.passed and report.kinds["done"] >= CASES // 2, report.to_json()["failures"]


def test_what_schemas_draw_is_valid_and_of_all_kinds(tmp_path: Path) -> None:
    """Forty models: dozens of operators, most operator sets, dtypes of every kind, dimensions of zero."""
    operators, versions = Counter[str](), Counter[int]()
    kinds, empty = Counter[str](), 0
    for seed in range(40):
        path, feeds = fuzz_schemas.drawn(seed, tmp_path)
        model = onnx.load(path)
        onnx.checker.check_model(model, full_check=True)
        operators.update(node.op_type for node in model.graph.node)
        versions[model.opset_import[0].version] += 1
        kinds.update(x.dtype.name for x in feeds.values())
        empty += any(not x.size for x in feeds.values())
    assert len(operators) > 60 and len(versions) > 10 and versions.keys() <= {*OPSETS}
    assert len(kinds) > 8 and empty


def test_the_oldest_and_the_newest_set_have_their_own_operators() -> None:
    old, new = ({schema.name for schema in schemas(version)} for version in (7, 22))
    assert "Upsample" in old - new and {"Gelu", "LayerNormalization"} <= new - old
    assert min(len(old), len(new)) > 90
