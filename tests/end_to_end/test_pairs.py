"""python tests/fuzz pairs: one pair of models of each kind, whose wrong one `verify` has to notice in each of three
ways."""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
import pytest
from model_pairs import LEAST_EFFECT, WAYS, Asked, Result, apart, draft, effect_of, judged, show, summary, table
from pair_kinds import KINDS

from modelc.target import load_target


def asked_of(folder: Path, kind: str) -> Asked:
    return Asked(0, (kind,), load_target("native"), "default", folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sweep(24)
def test_a_wrong_model_is_noticed(tmp_path: Path, kind: str) -> None:
    asked = asked_of(tmp_path, kind)
    results: list[Result] = []
    for number in range(8):  # until one has an effect
        results = judged(number, asked)
        if results[0].effect > LEAST_EFFECT:
            break
    outcomes = {result.way: result.outcome for result in results}
    assert outcomes["plain"] == "caught", list(map(show, results))
    assert outcomes["misread"] == "caught", list(map(show, results))
    assert outcomes["miscompiled"] in ("caught", "does not fit"), list(map(show, results))


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_wrong_differs(tmp_path: Path, kind: str) -> None:
    """Both models of a pair take the same inputs; the right one written again is no other."""
    asked = asked_of(tmp_path, kind)
    right, again, wrong = (draft(0, is_wrong, asked) for is_wrong in (False, False, True))
    assert right.inputs.keys() == wrong.inputs.keys() and right.outputs == wrong.outputs
    assert effect_of(right, again, np.random.default_rng(0)) == 0


def test_weights_of_other_nodes_have_names_of_their_own(tmp_path: Path) -> None:
    """Where an importer read other nodes, equal names would mean nothing."""
    right, wrong = (draft(0, is_wrong, asked_of(tmp_path, "QuantizeLinear half up")) for is_wrong in (False, True))
    shared = right.held.keys() & wrong.held.keys()
    assert any(right.held[name].dtype != wrong.held[name].dtype for name in shared)
    wrong.name_apart(right)
    shared = right.held.keys() & wrong.held.keys()
    assert shared and all(np.array_equal(right.held[name], wrong.held[name]) for name in shared)
    assert {x for node in wrong.nodes for x in node.input} >= wrong.held.keys()
    right, wrong = (draft(0, is_wrong, asked_of(tmp_path, "bias")) for is_wrong in (False, True))
    wrong.name_apart(right)
    assert right.held.keys() == wrong.held.keys()


def test_an_effect_is_in_units_of_the_roundoff_of_the_output() -> None:
    right = np.array([1.0, 1.0, 1e-6], np.float32)
    assert apart(right, right + np.float32(2.0**-23)) == pytest.approx(2 / np.sqrt(2 / 3), rel=0.3)
    assert apart(right, right) == 0
    assert apart(np.array([1, 2]), np.array([1, 3])) == inf
    assert apart(right, np.array([1.0, np.nan, 1e-6], np.float32)) == inf


def test_the_table_counts_by_kind_and_way() -> None:
    results = [Result(0, 0, "Clip", way, "missed" if way == "plain" else "caught", "", inf) for way in WAYS]
    results += [Result(0, 1, "Clip", way, "small", "", 1.0) for way in WAYS]
    rows = [line.split() for line in table(results).splitlines()]
    assert rows[1] == ["Clip", "1", "of", "1", "0", "of", "1", "0", "of", "1"]
    assert summary(results).startswith("3 wrong packages tried, 1 missed; not tried: 3 of too small an effect")
