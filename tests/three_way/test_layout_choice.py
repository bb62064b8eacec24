"""Layouts chosen by cost: the elimination, the Program under each switch, the same results whatever is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from grown_graphs import Random
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_problems import Known, arbitrary, problems, tasks
from partition_models import Model, conv
from program_runs import run_program
from three_ways import check, host_target, task_of

from modelc.frontend.onnx import import_model
from modelc.ir.block import Task
from modelc.ir.graph import Graph
from modelc.ir.layout import Layout, channels_last, reordered
from modelc.ir.program import Program
from modelc.layout import elimination
from modelc.layout.choice import LayoutPolicy
from modelc.layout.classes import WINDOWS, LayoutClass, parameters
from modelc.layout.convert import Conversion, LayoutChoice
from modelc.layout.costs import Entry, Tables
from modelc.layout.elimination import Factor, cost_of, least
from modelc.layout.parameters import Restorable, offered
from modelc.layout.program import choose_layouts, partition
from modelc.layout.rules import linked
from modelc.ops import MEANINGS
from modelc.partition.pieces import pieces_of
from modelc.partition.precision import Narrowing, to_narrow
from modelc.space.choose import Schedules, chosen

LAST = reordered(0, 2, 3, 1)
BLOCKED = Layout().then("split", 1, 16).then("reorder", 0, 1, 3, 4, 2)


# --- elimination --------------------------------------------------------------------------------------------------


@given(problems())
def test_elimination_finds_what_trying_everything_finds(problem) -> None:
    sizes, factors = problem
    best = least(sizes, factors)
    assert best.exact and best.cost == cost_of(best.values, factors)
    assert best.cost == min(cost_of(values, factors) for values in product(*map(range, sizes)))


@given(problems())
def test_a_core_that_is_too_dense_is_improved_step_by_step(problem) -> None:
    sizes, factors = problem
    limit, elimination.LIMIT = elimination.LIMIT, 3
    try:
        best = least(sizes, factors)
    finally:
        elimination.LIMIT = limit
    assert best.cost == cost_of(best.values, factors)
    for v, size in enumerate(sizes):  # no single change is better
        for value in range(size):
            other = (*best.values[:v], value, *best.values[v + 1 :])
            assert best.exact or cost_of(other, factors) >= best.cost


# --- tables that are optimistic until asked ------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """Costs by Task, of which parts are told at first, and who was asked for in earnest."""

    costs: dict[str, float]
    share: dict[str, float]
    asked: list[str] = field(default_factory=list)

    def seconds(self, task: Task) -> float:
        self.asked.append(task.hash)
        return self.costs[task.hash]

    def floor(self, task: Task) -> float:
        return 0.0

    def prepare(self, tasks: Sequence[Task], earnest: bool) -> None:
        pass

    def optimistic(self, task: Task) -> float:
        return self.costs[task.hash] * self.share[task.hash]


@given(problems(), st.data())
def test_optimism_changes_nothing_but_who_is_asked(problem, data) -> None:
    sizes, factors = problem
    every = tasks(8)
    entries = st.tuples(st.lists(st.sampled_from(every), min_size=1, max_size=2), st.sampled_from((1.0, 1.25)))
    costs = {t.hash: float(data.draw(st.integers(1, 20))) for t in every}
    cost = Counted(costs, {h: data.draw(st.sampled_from((0.25, 0.5, 1.0))) for h in costs})
    tables, exact = Tables(cost), []
    for factor in factors:
        own = {at: Entry(tuple(e[0]), e[1]) for at in np.ndindex(*factor.table.shape) if (e := data.draw(entries))}
        tables.add(factor.scope, factor.table.shape, own.__getitem__)
        sums = [entry.factor * sum(costs[t.hash] for t in entry.tasks) for entry in own.values()]
        exact.append(Factor(factor.scope, np.reshape(sums, factor.table.shape)))
    best = tables.least(sizes, [0] * len(sizes))
    assert best.cost == pytest.approx(cost_of(best.values, exact)) == pytest.approx(least(sizes, exact).cost)
    assert len(cost.asked) == len(set(cost.asked))


def test_what_is_dear_at_first_sight_is_never_asked_for() -> None:
    cheap, dear, other = tasks(3)
    cost = Counted({cheap.hash: 1.0, dear.hash: 9.0, other.hash: 2.0}, {t.hash: 0.5 for t in (cheap, dear, other)})
    tables = Tables(cost)
    tables.add((0,), (3,), lambda at: Entry(((other, dear, cheap)[at[0]],)))
    assert tables.least([3], [0]).values == (2,)
    assert set(cost.asked) == {other.hash, cheap.hash}


# --- parameters of layouts -------------------------------------------------------------------------------------------


@given(st.integers(1, 4096), st.sampled_from((2, 4, 8, 16)))
def test_parameters_are_doublings_of_a_vector_that_divide(extent, lanes) -> None:
    sizes = parameters(extent, lanes)
    assert all(extent % size == 0 and size % lanes == 0 and size < extent for size in sizes)
    assert sizes == [lanes << k for k in range(len(sizes))]
    assert extent % (lanes << len(sizes)) or extent == lanes << len(sizes)


def priced(seconds: dict[str, float], floor: float = 0.0):
    """A class of three parameters around one Task, and a cost that knows its `seconds` by the kind of layout."""
    kinds = ("blocked 2", "blocked 4", "blocked 8")
    layouts = {"last": LAST, "rows": Layout(), **{k: WINDOWS[0].layout(4, int(k.split()[1])) for k in kinds}}
    every = dict(zip(layouts, tasks(len(layouts)), strict=True))
    by_hash = {every[kind].hash: cost for kind, cost in seconds.items()}
    cost = replace(Known(lambda task: by_hash[task.hash]), least=floor)
    run = Restorable((0,), lambda kinds: every[kinds.get(0, "last")], True)
    return [LayoutClass(("x",), layouts, {"blocked": kinds})], [run], cost


def test_parameters_are_offered_where_one_vector_is_cheaper_by_a_margin() -> None:
    seconds = {"last": 10.0, "blocked 2": 8.0, "blocked 4": 7.0, "blocked 8": 7.5}
    (one,) = offered(*priced(seconds), 0.15)
    assert one.kinds == ("last", "rows", "blocked 4", "blocked 8")
    (one,) = offered(*priced({**seconds, "blocked 2": 9.0}), 0.15)
    assert one.kinds == ("last", "rows")
    (one,) = offered(*priced({**seconds, "blocked 2": 9.0}), None)
    assert one.kinds == ("last", "rows", "blocked 4", "blocked 8")


def test_a_task_at_its_roofline_is_not_asked_for() -> None:
    (one,) = offered(*priced({"last": 10.0}, floor=9.0), 0.15)  # what others cost nobody knows
    assert one.kinds == ("last", "rows")


# --- small graphs under each switch -------------------------------------------------------------------------------


@pytest.fixture
def m() -> Model:
    return Model()


def graph_of(m: Model, folder: Path, output: str) -> Graph:
    m.program(folder, output)
    return import_model(folder / "m.onnx")


def stored(program: Program) -> list[tuple[str, str]]:
    """What each Task does, and how its result is stored."""
    return [(" ".join(b.name for b in t.task.blocks), str(program.values[t.outputs[0]].layout)) for t in program.tasks]


def three_convolutions(m: Model, folder: Path) -> Graph:
    x = m.node("Relu", conv(m, m.node("Tanh", m.input("x", 1, 32, 14, 14)), 32, 32))
    y = m.node("Relu", m.node("Add", conv(m, m.node("Relu", conv(m, x, 32, 32)), 32, 32), x))
    return graph_of(m, folder, m.node("GlobalAveragePool", y))


def test_by_cost_channels_are_last_between_convolutions(m, tmp_path) -> None:
    graph = three_convolutions(m, tmp_path)
    choice = choose_layouts(graph, LayoutPolicy(Schedules(host_target()), doubt=host_target().cost.layout_doubt_share))
    first, *others = stored(partition(graph, choice=choice))
    assert first[0] == "tanh"  # it, or the padding of what it computes, orders it otherwise
    assert others == [
        ("conv bias relu", str(LAST)),
        ("conv bias relu", str(LAST)),
        ("conv bias add relu", str(LAST)),
        ("sum average", "row-major"),
    ]


def test_without_search_all_is_as_in_the_model(m, tmp_path) -> None:
    graph = three_convolutions(m, tmp_path)
    choice = choose_layouts(graph, LayoutPolicy(Schedules(host_target()), search=False))
    assert choice == LayoutChoice()
    assert {layout for _, layout in stored(partition(graph, choice=choice))} == {"row-major"}


def liking(layout: Layout):
    """A cost by which contractions want `layout` around them, and conversions cost a little."""

    def cost(task: Task) -> float:
        if task.blocks[0].name == "convert":
            return 1.0
        around = [b for b in task.buffers if b.name not in task.constants and len(b.shape) == 4]
        return 10.0 * sum(b.layout != layout for b in around) if task.anchor == "conv" else 0.1

    return Known(cost)


def test_without_propagation_conversions_are_around_each_operator(m, tmp_path) -> None:
    y = m.node("Relu", conv(m, m.node("Relu", m.input("x", 1, 4, 6, 6)), 4, 4))
    graph = graph_of(m, tmp_path, m.node("Exp", y))
    choice = choose_layouts(graph, LayoutPolicy(liking(LAST), propagate=False))
    assert choice == LayoutChoice({}, (Conversion("relu0", LAST), Conversion("conv1", LAST, back=True)))
    assert stored(partition(graph, choice=choice)) == [
        ("relu", "row-major"),
        ("convert", str(LAST)),
        ("conv bias", str(LAST)),
        ("convert", "row-major"),
        ("relu exp", "row-major"),
    ]


def test_with_propagation_the_same_wish_spreads_instead(m, tmp_path) -> None:
    y = m.node("Relu", conv(m, m.node("Relu", m.input("x", 1, 4, 6, 6)), 4, 4))
    graph = graph_of(m, tmp_path, m.node("GlobalMaxPool", m.node("Exp", y)))
    choice = choose_layouts(graph, LayoutPolicy(liking(LAST)))
    assert not choice.conversions
    assert stored(partition(graph, choice=choice))[:2] == [("relu", str(LAST)), ("conv bias relu exp", str(LAST))]


def test_an_input_is_converted_once_for_all_that_read_it(m, tmp_path) -> None:
    x = m.input("x", 1, 4, 6, 6)
    graph = graph_of(m, tmp_path, m.node("GlobalMaxPool", m.node("Add", conv(m, x, 4, 4), conv(m, x, 4, 4, 1))))
    choice = choose_layouts(graph, LayoutPolicy(liking(LAST)))
    assert choice.conversions == (Conversion("x", LAST),)
    assert [what for what, _ in stored(partition(graph, choice=choice))].count("convert") == 1


def test_blocked_layouts_need_channels_that_divide(m, tmp_path) -> None:
    x = conv(m, m.input("x", 1, 4, 6, 6), 32, 4)
    graph = graph_of(m, tmp_path, m.node("GlobalMaxPool", conv(m, m.node("Relu", x), 24, 32)))
    choice = choose_layouts(graph, LayoutPolicy(liking(BLOCKED), lanes=16))
    layouts = dict(zip(*zip(*stored(partition(graph, choice=choice)), strict=True), strict=True))
    assert layouts["conv bias relu"] == str(BLOCKED) and layouts["conv bias"] != str(BLOCKED)


def test_classes_stop_at_complex_operators(m, tmp_path) -> None:
    graph = three_convolutions(m, tmp_path)
    classes = linked(graph, pieces_of(graph))
    outputs = [{n for n in members if "#" not in n} for members in classes]
    assert {"conv1", "relu2", "conv5", "add6", "relu7"} in outputs and {"conv3", "relu4"} in outputs


# --- whatever is chosen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sweep(5)
def test_random_graphs_compute_the_same_in_any_layouts(seed) -> None:
    made = Random(seed)
    graph = made.graph(8 + seed % 20)
    for policy in (
        LayoutPolicy(arbitrary(seed), lanes=2),
        LayoutPolicy(arbitrary(seed), lanes=2, all_splits=True),
        LayoutPolicy(arbitrary(seed), propagate=False),
        LayoutPolicy(search=False),
    ):
        choice = choose_layouts(graph, policy)
        assert LayoutChoice.from_json(choice.to_json()) == choice
        found = run_program(partition(graph, choice=choice), {"x": made.data["x"]}, MEANINGS)
        for name in graph.outputs:
            np.testing.assert_allclose(found[name], made.data[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(0, 40, 4))
@pytest.mark.sweep(5)
def test_random_graphs_in_bfloat16_are_what_they_are_in_any_layouts(seed) -> None:
    """Costs are those of the Tasks that ship: every one of them was asked for when its layouts were chosen."""
    made, cost = Random(seed), arbitrary(seed)
    graph, asked = made.graph(8 + seed % 20), set[str]()

    def told(task: Task) -> float:
        asked.add(task.hash)
        return cost.seconds(task)

    plain = run_program(to_narrow(partition(graph)), {"x": made.data["x"]}, MEANINGS)
    for propagate in (True, False):
        choice = choose_layouts(graph, LayoutPolicy(Known(told), propagate=propagate, lanes=2, narrowing=Narrowing()))
        program = to_narrow(partition(graph, choice=choice))
        found = run_program(program, {"x": made.data["x"]}, MEANINGS)
        for name in graph.outputs:
            np.testing.assert_allclose(found[name], plain[name], rtol=5e-2, atol=5e-2)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 1000), st.integers(2, 4))
def test_the_choice_is_the_least_over_all_layouts_of_a_chain(seed, length) -> None:
    made = Random(seed)
    made.live.append(made.value("x", np.ones((1, 4, 4, 4), "float32")))
    for k in range(length):
        made.node("Conv", made.live[-1], made.weight(4, 4, 3, 3), pads=(1,) * 4)
        if k % 2:
            made.node("Relu", made.live[-1])
    made.node("GlobalMaxPool", made.live[-1])
    graph = Graph("chain", ("x",), (made.live[-1],), made.values, tuple(made.nodes))

    def cost(task: Task) -> float:
        return 1e6 if task.blocks[0].name == "convert" else arbitrary(seed).seconds(task)

    def seconds(choice: LayoutChoice) -> float:
        return sum(cost(b.task) for b in partition(graph, choice=choice).tasks)

    classes = linked(graph, pieces_of(graph))
    every = (
        LayoutChoice({n: channels_last(4) for one, yes in zip(classes, which, strict=True) if yes for n in one})
        for which in product((False, True), repeat=len(classes))
    )
    assert seconds(choose_layouts(graph, LayoutPolicy(Known(cost)))) == min(map(seconds, every))


# --- blocked layouts are scheduled --------------------------------------------------------------------------------


def blocked(task: Task, names: tuple[str, ...], size: int) -> Task:
    """`task` with some of its boundary, and locals like its result, stored N C/size H W size."""
    layout = WINDOWS[0].layout(4, size)
    (y,) = (task.buffer(n) for n in task.outputs)
    own = {b.name for b in task.locals if b.shape == y.shape and y.name in names}
    changed = {b.name: replace(b, layout=layout) for b in task.buffers if b.name in (*names, *own)}
    return replace(task, buffers=tuple(changed.get(b.name, b) for b in task.buffers))


@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("names", [("x0", "y0"), ("x0",), ("y0",)])
@pytest.mark.parametrize(
    ("op", "attrs", "shapes"),
    [
        ("Conv", {"pads": [1] * 4}, [(1, 64, 5, 7), (96, 64, 3, 3), (96,)]),
        ("Conv", {"pads": [1] * 4, "group": 64, "strides": [2, 2]}, [(1, 64, 5, 7), (64, 1, 3, 3), (64,)]),
        ("MaxPool", {"kernel_shape": [3, 3], "pads": [1] * 4}, [(1, 64, 5, 7)]),
        ("Relu", {}, [(1, 64, 5, 7)]),
    ],
)
@pytest.mark.sweep(4)
def test_blocked_tasks_three_ways(op, attrs, shapes, names, size) -> None:
    task = blocked(task_of(op, attrs, shapes, tuple(range(1, len(shapes)))), names, size)
    candidate = chosen(task, host_target()).candidate
    assert [s.rule for s in candidate.stages].count("expose") >= len(names)
    check(task, candidate, host_target())
