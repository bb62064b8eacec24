"""Layouts and cuts that are nearly as good as the chosen ones: found as by trying everything, and they compute the
same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from grown_graphs import Random
from hypothesis import given
from hypothesis import strategies as st
from layout_problems import Known, arbitrary, problems, tasks
from partition_models import Model
from program_runs import run_program

from modelc.frontend.onnx import import_model
from modelc.ir.block import Block, Task
from modelc.ir.graph import Graph
from modelc.layout import elimination
from modelc.layout.choice import LayoutPolicy
from modelc.layout.convert import LayoutChoice
from modelc.layout.costs import Entry, Tables
from modelc.layout.cuts import near_cuts
from modelc.layout.elimination import Factor, cost_of, least
from modelc.layout.marginals import marginals
from modelc.layout.near import Measured, combined, near
from modelc.layout.program import choose_layouts, partition
from modelc.ops import MEANINGS
from modelc.partition.draft import drafting, prepared


def least_with(sizes: list[int], factors: list[Factor], v: int, value: int) -> float:
    return min(cost_of(one, factors) for one in product(*map(range, sizes)) if one[v] == value)


@given(problems(), st.integers(0, 5))
def test_marginals_are_what_trying_everything_finds(problem, ruled_out) -> None:
    sizes, factors = problem
    for factor in factors[:1]:
        factor.table.flat[ruled_out % factor.table.size] = np.inf if factor.table.size > 1 else 0
    found = marginals(sizes, factors, least(sizes, factors).values)
    for v, costs in enumerate(found):
        assert [least_with(sizes, factors, v, value) for value in range(sizes[v])] == pytest.approx(list(costs))


@given(problems())
def test_a_dense_core_keeps_its_values(problem) -> None:
    sizes, factors = problem
    limit, elimination.LIMIT = elimination.LIMIT, 4
    try:
        core = {v for f in elimination.eliminated(sizes, factors)[1] for v in f.scope}
        reference = least(sizes, factors).values
        found = marginals(sizes, factors, reference)
    finally:
        elimination.LIMIT = limit
    fixed = [Factor((v,), np.where(np.arange(sizes[v]) == reference[v], 0.0, np.inf)) for v in core]
    for v, costs in enumerate(found):
        expected = [least_with(sizes, [*factors, *fixed], v, value) for value in range(sizes[v])]
        assert expected == pytest.approx(list(costs))


@dataclass
class Numbered:
    """Variables whose assignments are choices with as many cuts."""

    sizes: list[int]
    tables: Tables

    def choice(self, values) -> LayoutChoice:
        return LayoutChoice(cuts=tuple(map(str, values)))

    def values(self, choice: LayoutChoice) -> tuple[int, ...]:
        return tuple(map(int, choice.cuts))

    def says(self, v: int, value: int) -> str:
        return f"{v}={value}"


def entered(tables: Tables, factors, every, seconds, data) -> list[Factor]:
    """Gives the tables a Task, one of `every`, for each assignment of each factor; what the Tasks cost in `seconds`."""
    exact = []
    for factor in factors:
        shape = factor.table.shape
        own = {at: Entry((data.draw(st.sampled_from(every)),)) for at in np.ndindex(*shape)}
        tables.add(factor.scope, shape, own.__getitem__)
        exact.append(Factor(factor.scope, np.reshape([seconds[e.tasks[0].hash] for e in own.values()], shape)))
    return exact


@given(problems(), st.data())
def test_near_choices_are_the_best_with_another_value(problem, data) -> None:
    sizes, factors = problem
    every = tasks(8)
    costs = {t.hash: float(data.draw(st.integers(1, 20))) for t in every}
    tables = Tables(Known(lambda task: costs[task.hash]))
    exact = entered(tables, factors, every, costs, data)
    variables = Numbered(sizes, tables)
    reference = tables.least(sizes, [0] * len(sizes)).values
    whole, share = cost_of(reference, exact), 0.3
    wanted = {}
    for v, size in enumerate(sizes):
        around = cost_of(reference, [f for f in exact if v in f.scope])
        for value in set(range(size)) - {reference[v]}:
            promise = share * around - (least_with(sizes, exact, v, value) - whole)
            if promise >= 0.01 * whole:
                wanted[f"{v}={value}"] = promise
    found = near(variables, variables.choice(reference), share, 0.01, 99)
    assert [one.promise(share) for one in found] == sorted((one.promise(share) for one in found), reverse=True)
    for one in found:
        v, value = map(int, one.says.split("="))
        assert variables.values(one.choice)[v] == value and one.promise(share) == pytest.approx(wanted[one.says])
        assert cost_of(variables.values(one.choice), exact) == pytest.approx(whole + one.more)
    told = {variables.values(one.choice) for one in found}
    for name in wanted:  # each is there, or another that is as good and has the same value
        v, value = map(int, name.split("="))
        assert any(values[v] == value for values in told)


@given(problems(), st.data())
def test_what_was_measured_takes_the_place_of_estimates(problem, data) -> None:
    sizes, factors = problem
    every = tasks(8)
    tables, real = Tables(Known(lambda task: 1.0)), {t.hash: float(data.draw(st.integers(1, 20))) for t in every}
    exact = entered(tables, factors, every, real, data)
    variables = Numbered(sizes, tables)
    start = variables.choice([0] * len(sizes))
    found = variables.values(combined(variables, start, Measured(tables.cost, real, lambda task: 1.0), 0.0, 0.0))
    assert cost_of(found, exact) == pytest.approx(least(sizes, exact).cost)
    known = {key: seconds for key, seconds in real.items() if key == every[0].hash}
    halved = combined(variables, start, Measured(Known(lambda t: 2 * real[t.hash]), known, lambda t: 0.5), 0.0, 0.0)
    assert cost_of(variables.values(halved), exact) == pytest.approx(least(sizes, exact).cost)


# --- of graphs ------------------------------------------------------------------------------------------------------


def changes(graph: Graph, policy: LayoutPolicy, attention: int = 0) -> tuple[LayoutChoice, list[LayoutChoice]]:
    ready = prepared(graph)
    base = choose_layouts(ready, policy, attention)
    assert policy.cost is not None
    variables = policy.variables(ready.graph, ready.pieces, drafting(attention))
    assert variables.tables is not None and variables.choice(variables.values(base)) == base
    found = [one.choice for one in near(variables, base, 3.0, 0.0, 12)]
    return base, found + [one.applied(base) for one in near_cuts(ready, base, attention, policy.cost, None, 3.0, 0.0)]


@pytest.mark.parametrize("seed", range(0, 40, 3))
@pytest.mark.sweep(7)
def test_random_graphs_compute_the_same_whatever_is_changed(seed) -> None:
    made = Random(seed)
    graph = made.graph(8 + seed % 20)
    cost = arbitrary(seed)
    for policy in (LayoutPolicy(cost, lanes=2, all_splits=True), LayoutPolicy(cost, propagate=False)):
        base, found = changes(graph, policy)
        for choice in found:
            assert LayoutChoice.from_json(choice.to_json()) == choice != base
            program = partition(graph, choice=choice)
            result = run_program(program, {"x": made.data["x"]}, MEANINGS)
            for name in graph.outputs:
                np.testing.assert_allclose(result[name], made.data[name], rtol=1e-5, atol=1e-5)


def test_random_graphs_have_changes() -> None:
    found = [
        changes(Random(seed).graph(8 + seed % 20), LayoutPolicy(arbitrary(seed), lanes=2, all_splits=True))[1]
        for seed in range(9)
    ]
    assert sum(any(one.cuts for one in some) for some in found) >= 3
    assert sum(any(not one.cuts for one in some) for some in found) >= 3


def shapes_of(task: Task) -> float:
    return float(sum(block.points() for block in task.blocks))


def test_attention_is_cut_into_three_tasks(tmp_path: Path) -> None:
    m = Model()
    q, k, v = (m.input(name, 2, 16, 8) for name in "qkv")
    scores = m.node("MatMul", q, m.node("Transpose", k, perm=[0, 2, 1]))
    y = m.node("MatMul", m.node("Softmax", scores, axis=-1), v)
    m.program(tmp_path, y, attention_bytes=1 << 20)
    graph = import_model(tmp_path / "m.onnx")
    whole = partition(graph, 1 << 20)
    (cut, *_) = (c for c in near_cuts(prepared(graph), LayoutChoice(), 1 << 20, Known(shapes_of), None, 1.0, 0.0))
    apart = partition(graph, 1 << 20, cut.applied(LayoutChoice()))
    assert (len(whole.tasks), len(apart.tasks)) == (1, 3) and cut.values == (scores,)


def test_equal_epilogues_are_cut_together(tmp_path: Path) -> None:
    m = Model()
    x = m.input("x", 16, 16)
    for _ in range(3):
        x = m.node("Tanh", m.node("MatMul", x, m.weight(16, 16)))
    m.program(tmp_path, x)
    graph = import_model(tmp_path / "m.onnx")
    cuts = near_cuts(prepared(graph), LayoutChoice(), 0, Known(lambda task: 1.0), None, 1.0, 0.0)
    assert [len(one.values) for one in cuts] == [3] and (cuts[0].seconds, cuts[0].more) == (3.0, 3.0)
    assert near_cuts(prepared(graph), LayoutChoice(), 0, Known(lambda task: 1.0), None, 0.9, 0.0) == []
    program = partition(graph, choice=replace(LayoutChoice(), cuts=cuts[0].values))
    assert [len(bound.task.blocks) for bound in program.tasks] == [1] * 6


def test_estimates_of_cuts_are_those_of_the_program() -> None:
    """Of a cut that is alone: of several, each is estimated beside the others, where an epilogue that leaves one Task
    does not go on to another that is cut too."""
    checked = 0
    for seed in range(40):
        made, cost = Random(seed), arbitrary(seed)
        graph = made.graph(12)
        base = LayoutChoice()

        def seconds(choice: LayoutChoice, graph: Graph = graph, cost: Known = cost) -> float:
            every = (t.task for t in partition(graph, choice=choice).tasks)
            return sum(cost.seconds(t) for t in every if all(isinstance(b, Block) for b in t.blocks))

        cuts = near_cuts(prepared(graph), base, 0, cost, None, 9.0, 0.0)
        if len(cuts) == 1 and len(cuts[0].values) == 1:
            assert seconds(cuts[0].applied(base)) - seconds(base) == pytest.approx(cuts[0].more), seed
            checked += 1
    assert checked > 5
