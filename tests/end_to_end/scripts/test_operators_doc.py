"""docs/operators.md says what the code does."""

from __future__ import annotations

import list_operators
import pytest

from modelc.frontend.classical.trees import TREES
from modelc.frontend.operators.table import FORMS


def test_the_list_of_operators_is_up_to_date() -> None:
    found = list_operators.FILE.read_text()
    if list_operators.MADE_WITH not in found:
        pytest.skip(f"the list is of another onnx than {list_operators.MADE_WITH}")
    assert found == list_operators.text(), "run python scripts/list_operators.py"


def test_what_the_frontend_takes_is_listed() -> None:
    listed = {row[0] for row in list_operators.rows("")}
    taken = {op for op in FORMS if op in list_operators.versions("")}
    assert len(listed) > 170 and taken <= listed
    assert {op for domain, op in TREES if domain == "ai.onnx.ml"} == {
        row[0] for row in list_operators.rows("ai.onnx.ml")
    }
    assert not listed & {op for op, _ in list_operators.refused("")}


def test_limits_are_of_operators_that_are_listed() -> None:
    listed = {(domain, row[0]) for domain in ("", "ai.onnx.ml") for row in list_operators.rows(domain)}
    assert set(list_operators.LIMITS) <= listed
