"""modelc tune where contractions may multiply bfloat16: which of them do, and how far off what is found may be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import small_model as small
from bfloat16_products import digests, native, products_add_most, strict

import modelc
from modelc.cli import main
from modelc.compile import pipeline
from modelc.compile.choices import read_choices_file
from modelc.database import Database
from modelc.errors import ConfigError, VerificationError
from modelc.plan.program import Compiled
from modelc.tune import selection
from modelc.tune.command import TuneResult
from modelc.tune.networks import Network

SHAPE = {"x": (1, 3, 20, 24)}


def tuned(place: Path, **more: object) -> TuneResult:
    asked = {"budget": "24", "explorer": "random", "shapes": [SHAPE], "database": False, "precision": "bf16", **more}
    (found,) = modelc.tune(small.model(), output=place, **asked)  # type: ignore[arg-type]
    return found


@native
def test_what_auto_keeps_in_float32_is_decided_before_tuning(tmp_path, monkeypatch, first_finalist_wins) -> None:
    """The first package is said to be wrong; the product stays in float32 then, whatever tuning finds for it."""
    products_add_most(monkeypatch)
    monkeypatch.setattr(selection, "gains", lambda before, after: True)
    found = tuned(tmp_path / "p", precision="auto")
    assert found.tuned and found.changed and found.report is not None and found.report.passed
    ((kept,),) = read_choices_file(tmp_path / "p").float32
    assert kept.startswith("matmul") and read_choices_file(tmp_path / "p").config.policy.precision == "auto"
    monkeypatch.setattr(pipeline.Run, "added", None)
    modelc.compile(small.model(), output=tmp_path / "again", choices=tmp_path / "p/choices.json")
    assert digests(tmp_path / "again") == digests(tmp_path / "p")


@native
def test_what_is_out_of_policy_ends_before_anything_is_measured(tmp_path) -> None:
    with pytest.raises(VerificationError, match=r"allowed through bfloat16: 1e-06 and 0\.1 of the largest"):
        tuned(tmp_path / "p", config=strict(1e-6), database=tmp_path / "d")
    with Database(tmp_path / "d", write=False) as database:
        assert not list(database.records())
    assert [one.name for one in tmp_path.iterdir() if one.name[0] != "d"] == []


@native
@pytest.mark.parametrize("times", [1, 2])
def test_what_rounds_too_much_is_left_as_it_was(tmp_path, monkeypatch, first_finalist_wins, times: int) -> None:
    """Of what was found, the Tasks that would multiply bfloat16 and did not before; where that is not enough, all."""
    tried, before = list[Mapping[str, object]](), dict[str, str]()

    def departs(network: Network, found: selection._Outcome) -> str:
        before.update({key: one.candidate.key for key, one in network.compiled.items()})
        tried.append(found.changed)
        return "it departs" if len(tried) <= times else ""

    def narrow(compiled: Compiled) -> bool:
        first = min(tried[0])
        return compiled.task.hash == first and compiled.candidate.key != before[first]

    monkeypatch.setattr(selection, "_departs", departs)
    monkeypatch.setattr(selection, "_narrow", narrow)
    monkeypatch.setattr(selection, "gains", lambda before, after: True)
    found = tuned(tmp_path / "p")
    assert (
        len(tried) == 2 and len(tried[0]) > 1 and tried[1] == {k: v for k, v in tried[0].items() if k != min(tried[0])}
    )
    assert found.changed == (len(tried[1]) if times == 1 else 0)
    left = len(tried[0]) - found.changed
    assert any(
        note.startswith(f"{left} of {len(tried[0])} changed tasks are left as they were") for note in found.notes
    )
    assert found.report is not None and found.report.passed


def test_precisions_that_cannot_be(tmp_path, capsys) -> None:
    with pytest.raises(ConfigError, match="precision is 'f8'; expected f32, bf16, f16, auto"):
        tuned(tmp_path / "p", precision="f8")
    with pytest.raises(SystemExit) as stop:
        main(["tune", str(small.model()), "--precision", "half"])
    assert stop.value.code == 2 and "'half' is not one of 'f32', 'bf16'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
