"""docs/api.md is what the docstrings say."""

from __future__ import annotations

import api_page


def test_the_page_is_up_to_date() -> None:
    assert api_page.FILE.read_text() == api_page.text(), "run python scripts/api_page.py"
