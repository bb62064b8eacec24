"""modelc diff and bench --fail-if: two packages of one model."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from small_model import conv_net
from three_ways import host_target

import modelc
from modelc.cli import main
from modelc.compile.config import load_config
from modelc.package import read_package
from modelc.verify import rounds
from modelc.verify import slower as judging
from modelc.verify.diff import diff
from modelc.verify.noise import Noise
from modelc.verify.rounds import Measured, Pair
from modelc.verify.slower import Slower


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One with its layouts chosen, another with row-major values."""
    folder = tmp_path_factory.mktemp("pair")
    conv_net(folder / "net.onnx")
    plain = load_config()
    plain = replace(plain, layout=replace(plain.layout, search=False))
    for name, config in (("a", None), ("b", plain)):
        given = {"target": host_target(), "database": False, "verify": False, "shapes": [{"x": (1, 3, 20, 20)}]}
        modelc.compile(folder / "net.onnx", output=folder / f"{name}.modelc", config=config, **given)
    return folder / "a.modelc", folder / "b.modelc"


def ended(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def test_what_changed(pair: tuple[Path, Path], capsys) -> None:
    assert ended("diff", *pair) == 0
    said = capsys.readouterr().out
    assert "config.layout.search" in said and "True" in said and "us in kernels before" in said
    seen = diff(*pair, times=False)
    assert not seen["same"] and not seen["timed"] and seen["facts"]["config.layout.search"] == [True, False]
    changes = {change["what"] for row in seen["kernels"] for change in row["changes"]}
    assert "task" in changes or any(what.startswith("schedule.") for what in changes) or seen["layouts"]


def test_a_package_with_other_names_has_the_same_kernels(pair: tuple[Path, Path], tmp_path: Path) -> None:
    given = {"target": host_target(), "database": False, "verify": False, "shapes": [{"x": (1, 3, 20, 20)}]}
    modelc.compile(pair[0].parent / "net.onnx", output=tmp_path / "p.modelc", prefix="mk_other", **given)
    steps = read_package(tmp_path / "p.modelc").manifest.variants[0].steps
    assert steps and all(step.symbol.startswith("mk_other_k_") for step in steps)
    seen = diff(pair[0], tmp_path / "p.modelc", times=False)
    assert seen["kernels"] == seen["layouts"] == []


def test_a_package_is_the_same_as_itself(pair: tuple[Path, Path], capsys) -> None:
    assert ended("diff", pair[0], pair[0], "--no-times", "--json") == 0
    seen = json.loads(capsys.readouterr().out)
    assert seen["same"] and seen["kernels"] == seen["layouts"] == [] and seen["facts"] == {}


@pytest.mark.parametrize(("is_slower", "code"), [(True, 1), (False, 0)])
def test_bench_fails_where_it_is_asked_to(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys, is_slower: bool, code: int
) -> None:
    asked: list[float] = []

    def judged(pair: object, floor: float, *_: object) -> Slower:
        asked.append(floor)
        return Slower(0.1, 0.01, 0.03, is_slower, 3)

    monkeypatch.setattr(judging, "slower", judged)
    engine = {"about": "modelc", "median_ms": 1.0, "p10_ms": 1.0, "p90_ms": 1.0, "runs": 1}
    report = {
        "threads": 1,
        "inputs": {},
        "sizes": {},
        "notes": [],
        "noise": Noise(1.0, 1.0).to_json(),
        "engines": {"modelc": engine},
        "ratio": {},
    }
    monkeypatch.setattr(sys.modules["modelc.verify.bench"], "bench", lambda *_: dict(report))
    arguments = ("bench", pair[0], "--against", pair[1], "--seconds", "0.1", "--fail-if", "slower:2.5%")
    assert ended(*arguments) == code and asked == [0.025]
    assert f"{'FAILED' if is_slower else 'passed'}: {pair[0]} is 10.0% slower" in capsys.readouterr().out
    assert ended(*arguments, "--json") == code
    assert json.loads(capsys.readouterr().out)["fail_if"][str(pair[1])]["slower"]["limit"] == 0.03


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--fail-if", "slower"), "expected slower:3%"),
        (("--fail-if", "kernels:3%"), "expected slower:3%, kernel-slower:10%"),
        (("--fail-if", "slower:3%"), "add --against OLD.modelc"),
    ],
)
def test_mistakes(pair: tuple[Path, Path], capsys, flags: tuple[str, ...], words: str) -> None:
    assert ended("bench", pair[0], *flags) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seen", "slow"),
    [
        ([[0.10, 0.0], [0.11, 0.0], [0.12, 0.0]], {0}),
        ([[0.10, 0.0], [0.04, 0.0]], set()),  # it was not so again
        ([[0.10, 0.2], [0.11, 0.0], [0.12, 0.3]], {0}),  # each by itself
    ],
)
def test_a_kernel_is_slower_where_it_is_so_each_time(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, seen: list[list[float]], slow: set[int]
) -> None:
    """Of kernels that take 2 % and 98 % of a run, with a noise of 1 %."""
    measurements = iter(seen)

    def measured(*_: object) -> Measured:
        shares = next(measurements)
        return Measured(shares, [0.01, 0.01], [0.02, 0.98])

    monkeypatch.setattr(Pair, "measured", measured)
    monkeypatch.setattr(judging, "_steps_by_nodes", lambda steps: {("a",): [0], ("b",): [1]})
    verdict = judging.slower_kernels(Pair.of(*pair), 0.05)
    names = [step.name for step in read_package(pair[0]).manifest.variants[0].steps]
    assert set(verdict.kernels) == {names[k] for k in slow} and verdict.slower == bool(slow)
    assert ("of 2 kernels 1 slower" if slow else "none of 2 kernels") in verdict.sentence()
    assert next(measurements, None) is None
    if slow:
        assert "2.0% of the time" in verdict.sentence() and verdict.to_json()["kernels"][names[0]]["share"] == 0.12


def test_kernels_of_the_same_nodes_are_timed_by_turns(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "ROUNDS", 2)
    verdict = judging.slower_kernels(Pair.of(*pair), 9.0, seconds=0.1)
    assert verdict.compared > 1 and not verdict.slower


def test_two_packages_are_timed_by_turns(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """How long they take hangs on the machine: that three processes are timed, and an answer comes, does not."""
    monkeypatch.setattr(rounds, "ROUNDS", 2)
    verdict = judging.slower(Pair.of(*pair), 9.0, seconds=0.1)
    assert verdict.limit >= 9.0 and not verdict.slower and verdict.measurements == 1
