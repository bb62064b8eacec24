"""scripts/compare_construction.py: what is kept and what is reported; and from end to end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compare_construction as compare
import construction_tables as tables
import kept_rows
import pytest
from small_network import write_small_network

from modelc.measure import Effort
from modelc.target import load_target


def row(task: str, measured: list[float], predicted: list[float], construction: float) -> kept_rows.Row:
    points = [
        {"knobs": f"knobs {k}", "measured": m, "predicted": p, "samples": 9}
        for k, (m, p) in enumerate(zip(measured, predicted, strict=True))
    ]
    way = {"knobs": "its own", "measured": construction, "predicted": 1e-3, "choosing": 0.1, "samples": 9}
    return {
        "task": task,
        "flops": 2e6,
        "dropped": 0,
        "rejected": 0,
        "ways": dict.fromkeys(tables.WAYS, way),
        "points": points,
    }


def test_the_report() -> None:
    times = [1e-3 * (1 + k) for k in range(16)]
    good, bad = row("a:b", times, times, 1e-3), row("resnet50:conv_relu_44", times, times[::-1], 2e-3)
    assert tables.prediction(good) == pytest.approx(
        {"regret": 1, "rank": 1, "rank of best quarter": 1, "measured / predicted": 1}
    )
    assert tables.prediction(bad)["regret"] == pytest.approx(16) and tables.prediction(bad)["rank"] == -1
    lines = tables.tables([good, bad], compare.TASKS)
    assert lines[2].startswith("resnet50:conv_relu_44 (1x1)") and lines[2].split()[-4:] == ["2.000"] * 4
    assert [line.split()[1] for line in lines if line.startswith("median  ")] == ["1.500", "8.50"]
    behind = lines.index("resnet50:conv_relu_44 (1x1): construction is behind")
    assert "knobs 0" in lines[behind + 1] and "its own" in lines[behind + 2]
    assert not any(line.startswith("a:b: construction") for line in lines)


def test_what_was_measured_otherwise_is_not_mixed(tmp_path: Path) -> None:
    arguments = kept_rows.parser("", "points", 9, ["a"])
    target = load_target("cortex-a76")

    def kept(*options: str) -> kept_rows.Kept:
        return kept_rows.Kept.of(arguments.parse_args(["--json", str(tmp_path / "f.json"), *options]), "points", target)

    for row in ({"task": "a", "chosen": 1}, {"task": "b"}, {"task": "a", "chosen": 2}):
        kept().add(row)
    assert kept().rows == [{"task": "b"}, {"task": "a", "chosen": 2}] and kept().find("c") is None
    assert kept().of_tasks(["a", "c"]) == [{"task": "a", "chosen": 2}]
    for other in ("--seed=1", "--points=8", "--constants=warm"):
        with pytest.raises(SystemExit, match=r"f.json was measured with .*'seed': 0.*, and this is "):
            kept(other)


def test_from_end_to_end_and_again_from_its_file(
    tmp_path: Path, in_process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "LONGER", Effort(least=3, most=6, seconds=0.05))
    write_small_network(tmp_path / "small.onnx")
    task = "small:conv_relu_0"
    options = ["--models", tmp_path, "--candidates", 5, "--json", tmp_path / "f.json"]
    unknown = in_process(compare.main, *options, "--tasks", "small:nothing")
    assert unknown.returncode == 1 and "small has no task 'nothing'; it has conv_relu_0" in unknown.stderr
    found = in_process(compare.main, *options, "--tasks", task, "--lock", tmp_path / "lock")
    assert found.returncode == 0, found.stderr
    data = json.loads((tmp_path / "f.json").read_text())
    (one,) = data["rows"]
    assert data["about"]["constants"] == "cold" and one["cold_bytes"] > 0 and set(one["ways"]) == set(tables.WAYS)
    assert 1 <= len(one["points"]) <= 5
    assert all(p["measured"] > 0 and p["predicted"] > 0 and p["samples"] >= 1 for p in one["points"])
    again = in_process(compare.main, *options, "--tasks", task)
    assert again.returncode == 0 and json.loads((tmp_path / "f.json").read_text()) == data
    assert again.stdout.strip() == found.stdout.partition("\n\n")[2].strip()
    other = in_process(compare.main, *options, "--tasks", task, "--constants", "warm")
    assert other.returncode == 1 and "say another file" in other.stderr
