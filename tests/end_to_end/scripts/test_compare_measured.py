"""scripts/compare_measured.py: from end to end, and what it says of ratios."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compare_measured
import pytest
from compare_measured import Compared, summary
from small_network import write_small_network

from modelc.measure import Effort


@pytest.mark.slow  # tasks of this network are measured by compare_construction too
def test_from_end_to_end(tmp_path: Path, in_process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_measured, "LONGER", Effort(least=3, most=6, seconds=0.05))
    monkeypatch.setattr(compare_measured, "LEAST_SECONDS", 0.02)
    write_small_network(tmp_path / "small.onnx")
    found = in_process(compare_measured.main, "small", "--dir", tmp_path, "--rounds", 2)
    assert found.returncode == 0, found.stderr
    said = re.search(r"small: (\d+) tasks by themselves take ([0-9.]+) of their time", found.stdout)
    assert said is not None and int(said[1]) >= 4 and 0.1 < float(said[2]) < 10, found.stdout
    assert len(re.findall(r"^ ?conv\w+ +[0-9.]+ +[0-9.]+ +[0-9.]+ *$", found.stdout, re.MULTILINE)) >= 3, found.stdout


def test_what_is_twice_as_slow_by_itself_is_said() -> None:
    twice = [Compared("a", 100.0, 200.0), Compared("b", 50.0, 100.0)]
    assert summary("n", twice).endswith("take 2.000 of their time in the network, the median one 2.000; spread 0.000")
    apart = [Compared("a", 100.0, 200.0), Compared("b", 100.0, 50.0)]
    assert summary("n", apart).endswith("take 1.250 of their time in the network, the median one 1.250; spread 0.693")
