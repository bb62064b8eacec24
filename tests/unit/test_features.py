"""Features of statements: as many executions, operations and elements as going through every iteration counts."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from three_ways import host_target, task_of

from modelc.ir.block import Task
from modelc.ir.expr import loads
from modelc.ir.interpret import evaluate
from modelc.ir.nest import Leaf, Nest
from modelc.ir.steps import Step, steps_of
from modelc.space.analysis.footprint import footprint
from modelc.space.nest.build import nest_of
from modelc.space.rules.derivation import derive
from modelc.tune.search.features import NAMES, Statement, boxes, features, operations, reach_of, statements, touched
from modelc.tune.search.learned import COLUMNS, described
from modelc.tune.search.population import Individual, Space

LINE = 64
TASKS = {
    "matmul": task_of("MatMul", {}, [(12, 20), (20, 32)], consts=(1,)),
    "ragged": task_of("MatMul", {}, [(13, 9), (9, 37)], consts=(1,)),
    "conv": task_of("Conv", {"pads": [1] * 4}, [(1, 4, 9, 7), (24, 4, 3, 3), (24,)], (1, 2), True),
    "strided": task_of("Conv", {"strides": [2, 2]}, [(1, 3, 11, 9), (16, 3, 3, 3)], (1,), True),
    "softmax": task_of("Softmax", {"axis": -1}, [(6, 33)]),
    "pool": task_of("MaxPool", {"kernel_shape": [3, 3]}, [(1, 16, 8, 8)], channels_last=True),
}


def space_of(name: str) -> Space:
    return Space(TASKS[name].canonical(), host_target())


def individuals(space: Space, count: int) -> list[Individual]:
    return [space.individual(row) for row in space.random(count, np.random.default_rng(3))]


def nest_of_one(space: Space, one: Individual) -> Nest:
    return nest_of(derive(space.task, one.candidate.stages), one.candidate, LINE)


def points_of(step: Step) -> dict[str, np.ndarray]:
    """Every iteration of the loops around a step in which its branches are taken."""
    ranges = step.ranges
    grid = dict(zip(ranges, np.indices(tuple(ranges.values())).reshape(len(ranges), -1), strict=True))
    taken = np.ones(int(np.prod(list(ranges.values()))), np.bool_)
    for condition in step.branches:
        taken &= np.asarray(evaluate(condition, grid, {}), np.bool_)
    return {name: values[taken] for name, values in grid.items()}


@pytest.mark.parametrize("name", TASKS)
def test_counts_are_those_of_every_iteration(name: str) -> None:
    space = space_of(name)
    exact = compared = 0
    for one in individuals(space, 6):
        nest = nest_of_one(space, one)
        steps = [s for s in steps_of(nest, name) if isinstance(s.what, Leaf)]
        found = list(statements(nest))
        assert len(found) == len(steps)
        for statement, step in zip(found, steps, strict=True):
            points = points_of(step)
            times = len(next(iter(points.values()), np.zeros(1)))
            compared += 1
            assert statement.executions >= times
            if statement.executions != times or not times:
                continue
            exact += 1
            places = {x.buffer: x for e in step.what.body for x in loads(e)} | {w.buffer: w for w in step.what.writes}
            for access in touched(nest, statement, frozenset(), LINE):
                if access.load.buffer in places and _once(statement, access.load.buffer):
                    region = step.storage[access.load.buffer].region
                    flat = sum(
                        np.broadcast_to(evaluate(i, points, {}), (times,)) * stride
                        for i, stride in zip(places[access.load.buffer].indices, region.stride, strict=True)
                    )
                    assert access.inside.elements[-1] >= len(np.unique(flat))
                    if access.inside.step[-1] % LINE == 0 and "%" not in str(access.load):
                        assert access.inside.elements[-1] == len(np.unique(flat)), (access.load, statement.loops)
                    assert access.inside.elements[0] == 1 and (np.diff(access.inside.elements) >= 0).all()
    assert exact > compared / 2 > 3


def _once(statement: Statement, buffer: str) -> bool:
    """Whether a statement has one access alone to a buffer."""
    leaf = statement.leaf
    found = {x for e in leaf.body for x in loads(e)} | set(leaf.writes)
    return sum(x.buffer == buffer for x in found) == 1


def test_operations_of_a_product() -> None:
    """12 x 20 times 20 x 32: as many products as that, each added to a sum."""
    space = space_of("matmul")
    checked = 0
    for one in individuals(space, 12):
        nest = nest_of_one(space, one)
        dtypes = {r.name: r.dtype for s in nest.statements() if hasattr(s, "region") for r in [s.region]}
        dtypes |= {r.name: r.dtype for r in (*nest.params, *nest.temporaries)}
        counts = [(s.executions, operations(s, dtypes)) for s in statements(nest) if s.leaf.part == "update"]
        assert sum(n * c["multiply"] for n, c in counts) >= 12 * 20 * 32
        if sum(n for n, _ in counts) == 12 * 20 * 32:  # no tile goes beyond the end
            checked += 1
            assert sum(n * c["multiply"] for n, c in counts) == sum(n * c["add"] for n, c in counts) == 12 * 20 * 32
            assert sum(n * c["fused"] for n, c in counts) == 12 * 20 * 32
    assert checked


@pytest.mark.parametrize("name", TASKS)
def test_features_are_finite_and_equal_for_equal_schedules(name: str) -> None:
    space, other = space_of(name), space_of(name)
    found = set()
    for one, same in zip(individuals(space, 4), individuals(other, 4), strict=True):
        numbers = features(nest_of_one(space, one), frozenset(space.task.constants))
        assert numbers is not None and numbers.shape == (len(NAMES),)
        assert np.isfinite(numbers).all() and (numbers >= 0).all()
        (given,), (again,) = described(space, [one]), described(other, [same])
        assert given is not None and again is not None
        assert given.numbers.shape == (len(COLUMNS),) and np.isfinite(given.numbers).all()
        assert (
            (given.numbers == again.numbers).all()
            and given.knobs == again.knobs
            and given.estimated == again.estimated > 0
        )
        found.add(numbers.tobytes())
    assert len(found) > 1


def test_prefetches_change_no_feature() -> None:
    """Which is why schedules that differ in nothing else are described by one Nest."""
    task: Task = task_of("MatMul", {}, [(64, 1024), (1024, 1024)], consts=(1,)).canonical()
    space, checked = Space(task, host_target()), 0
    for one in individuals(space, 16):
        nest, bare = (nest_of(space.derived(one), c, LINE) for c in (one.candidate, one.candidate.without_prefetch()))
        if nest != bare:
            checked += 1
            (own,) = described(space, [one])
            numbers = features(nest, frozenset(task.constants), space.target.caches[0].line)
            assert own is not None and numbers is not None and (own.numbers[: len(NAMES)] == numbers).all()
    assert checked > 3


def test_footprints_that_are_kept_are_those_of_the_access() -> None:
    space, found = space_of("conv"), 0
    for one in individuals(space, 4):
        nest = nest_of_one(space, one)
        for statement in statements(nest):
            extents = [max(1, x.extent) for x in statement.loops]
            columns = {x.var: k for k, x in enumerate(statement.loops)}
            regions = {r.name: r for r in (*nest.params, *nest.temporaries, *(a.region for a in statement.allocated))}
            for access in touched(nest, statement, frozenset(), 64):
                own = footprint(reach_of(access.load, regions[access.load.buffer], columns), boxes(extents), 64)
                assert all((a == b).all() for a, b in zip(astuple(own), astuple(access.inside), strict=True))
                found += 1
    assert found > 20


def test_boxes_grow_from_the_innermost_loop() -> None:
    (loop,) = [s for s in statements(nest_of_one(space_of("softmax"), individuals(space_of("softmax"), 1)[0]))][:1]
    found = boxes([x.extent for x in loop.loops])
    assert (found[0] == 1).all() and found[-1].prod() == loop.executions and (np.diff(found.prod(axis=1)) >= 0).all()


def test_a_task_of_one_statement() -> None:
    task: Task = task_of("Relu", {}, [(4, 100)]).canonical()
    space = Space(task, host_target())
    numbers = features(nest_of_one(space, individuals(space, 1)[0]))
    assert numbers is not None
    assert round(2.0 ** numbers[NAMES.index("all executions")] - 1) == 400


def test_the_statement_that_makes_most_operations_is_described() -> None:
    """A product's is what multiplies, beside what only begins and stores sums; the totals are of all of them."""
    space = space_of("matmul")
    for one in individuals(space, 6):
        numbers = features(nest_of_one(space, one))
        assert numbers is not None
        found = dict(zip(NAMES, numbers, strict=True))
        own, every = (2.0 ** found[name] - 1 for name in ("float multiply", "all float multiply"))
        assert found["update"] == 1.0 and own > 0 and every >= own and every >= 12 * 20 * 32 - 1e-6
        assert found["statements"] >= 2 and found["all executions"] > found["executions"]
