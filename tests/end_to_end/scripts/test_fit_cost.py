"""scripts/fit_cost.py: parameters that made the measurements are found again; and from end to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fit_cost
import numpy as np
import pytest
import yaml
from small_network import write_small_network
from space_tasks import Found
from three_ways import task_of

from modelc.policy import Policy
from modelc.target import CostParameters, load_target, parse_target
from modelc.tune.search.population import Space

TARGET = replace(load_target("x86-64-v4"), cores=1)


def sample(columns: int, cost: CostParameters) -> fit_cost.Sample:
    """Points of a product, measured on a machine whose times are what estimates say under `cost`."""
    task = task_of("MatMul", {}, [(96, 256), (256, columns)], consts=(1,))
    policy, target = Policy(strassen=False), replace(TARGET, cost=cost)
    found = Found(f"product:{columns}", task, policy, 0)
    space, seconds = Space(task, TARGET, policy), Space(task, target, policy)
    drawn = space.random(40, np.random.default_rng(1))
    points = [
        {
            "number": int(row[0]),
            "knobs": (one := space.individual(row)).sketch.values(one.point),
            "sketch": one.sketch.name,
            "measured": float(seconds.estimate(row[None, :])[0]),
        }
        for row in drawn
    ]
    return fit_cost.Sample(found, {"task": found.name, "points": points}, TARGET)


def test_parameters_that_made_the_measurements_are_found_again() -> None:
    true = replace(CostParameters(), load_cycles=0.6)
    known, other = sample(64, true), sample(200, true)
    assert fit_cost.score([known], TARGET.cost) < 0.98
    names = ["load_cycles", "accumulator_store_cycles"]
    found = fit_cost.fitted([known], TARGET.cost, names, rounds=2)
    assert known.matter == ("load_cycles",), "no accumulators are stored"
    assert found == replace(TARGET.cost, load_cycles=found.load_cycles) and 0.4 <= found.load_cycles <= 0.9
    assert fit_cost.score([known], found) > 0.98
    lines = fit_cost.report([known], [other], TARGET.cost, found)
    assert lines[2].endswith("held out") and fit_cost.score([other], found) > fit_cost.score([other], TARGET.cost)
    text = TARGET.to_yaml() + lines[-1] + "\n"
    assert parse_target(text, "t.yaml").cost == found


def test_what_changes_nothing_stays() -> None:
    known = sample(64, TARGET.cost)
    assert fit_cost.fitted([known], TARGET.cost, ["load_cycles", "accumulator_store_cycles"], rounds=1) == TARGET.cost
    assert fit_cost.changed(TARGET.cost, "near_share", 2.0).near_share == 0.95


def test_from_end_to_end_and_again_from_its_file(tmp_path: Path, in_process: Callable[..., Any]) -> None:
    write_small_network(tmp_path / "small.onnx")
    options = ["--models", tmp_path, "--points", 3, "--json", tmp_path / "f.json", "--parameters", "load_cycles"]
    options += ["--tasks", "small:conv_relu_0", "small:maxpool_1", "--rounds", 1]
    apart = ["--held-out", "small:maxpool_1"]
    first, again = in_process(fit_cost.main, *options, *apart), in_process(fit_cost.main, *options, *apart)
    assert first.returncode == 0, first.stderr
    table = again.stdout[again.stdout.index("rank correlation") :]
    assert "points are measured" not in again.stdout and first.stdout.endswith(table)
    assert "held out" in table.splitlines()[2] and yaml.safe_load(table[table.index("cost:") :])["cost"] is not None


@pytest.mark.parametrize("name", fit_cost.FITTED)
def test_every_parameter_can_be_changed(name: str) -> None:
    assert fit_cost.changed(CostParameters(), name, 0.5) != CostParameters()
