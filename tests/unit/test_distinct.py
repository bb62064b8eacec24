"""Equal rows of tables, as sorting whole rows finds them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelc.space.analysis.distinct import distinct_rows


@pytest.mark.parametrize("largest", [3, 1 << 40])  # of the latter, rows are no digits of one number
@given(st.data())
def test_rows_are_what_sorting_finds(largest: int, data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 4))
    row = st.lists(st.integers(0, largest), min_size=width, max_size=width)
    table = np.array(data.draw(st.lists(row, min_size=1, max_size=30)), np.int64)
    rows, places = distinct_rows(table)
    np.testing.assert_array_equal(rows, np.unique(table, axis=0))
    np.testing.assert_array_equal(rows[places], table)


def test_rows_without_columns_are_one() -> None:
    rows, places = distinct_rows(np.zeros((5, 0), np.int64))
    assert rows.shape == (1, 0) and places.tolist() == [0] * 5
