"""Boxes hold what accesses touch; what is decided of a condition is what its points say. By brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import quasi_affine

from modelc.ir.evaluate import evaluate
from modelc.ir.expr import Const, Expr, Load, Op, Var, op
from modelc.ir.text import parse_task
from modelc.space.analysis.boxes import Span, box, placed_domains, whole
from modelc.space.analysis.conditions import clipped, decided, inside, simplified

quick = settings(max_examples=60, deadline=None)
RANGES = {"p0": 3, "q0": 2}  # loops around
bases = st.sampled_from([Const(0), Const(2), Var("p0"), op("add", op("mul", Var("q0"), 4), 1)])
domains = st.fixed_dictionaries({n: st.builds(Span, bases, st.integers(1, 4)) for n in ("i", "j")})
indices = quasi_affine({"i": 1, "j": 1})
comparisons = st.builds(
    lambda name, a, b: Op(name, (a, b)), st.sampled_from(["lt", "le", "gt", "ge"]), indices, indices
)


def points(extents: dict[str, int]) -> dict[str, np.ndarray]:
    grid = np.meshgrid(*map(np.arange, extents.values()), indexing="ij")
    return {name: array.ravel() for name, array in zip(extents, grid, strict=True)}


def at(e: Expr, env: dict[str, np.ndarray]) -> np.ndarray:
    return np.broadcast_to(evaluate(e, env, {}), next(iter(env.values())).shape)


def reached(domain: dict[str, Span]) -> dict[str, np.ndarray]:
    """The iterators' values in a domain, wherever the loops around are; with the loops' own."""
    env = points({**RANGES, **{f"in_{n}": s.extent for n, s in domain.items()}})
    return env | {n: at(op("add", s.base, Var(f"in_{n}")), env) for n, s in domain.items()}


@quick
@given(indices, domains)
def test_a_box_holds_what_an_access_touches(index, domain):
    env = reached(domain)
    touched = at(index, env)
    size = 40
    (span,) = box(Load("X", (index,)), (size,), domain, RANGES)
    valid = (touched >= 0) & (touched < size)  # conditions keep it from the rest
    base = at(span.base, env)
    assert (~valid | ((touched >= base) & (touched < base + span.extent))).all()


@quick
@given(st.integers(-3, 3), st.integers(-3, 3), domains)
def test_the_box_of_an_affine_access_is_the_smallest(a, b, domain):
    index = op("add", op("mul", Var("i"), a), op("mul", Var("j"), b))
    env = reached(domain)
    (span,) = box(Load("X", (index,)), (10**6,), domain, RANGES)
    offsets = at(index, env) - at(span.base, env)
    assert offsets.min() == 0 and offsets.max() == span.extent - 1


@quick
@given(comparisons, st.dictionaries(st.sampled_from("ij"), st.integers(1, 6), min_size=2))
def test_conditions_that_ranges_decide(condition, ranges):
    known = at(condition, points(ranges)).astype(bool)
    assert (at(simplified(condition, ranges), points(ranges)).astype(bool) == known).all()
    verdict = decided(condition, ranges)
    assert verdict is None or (known == verdict).all()


@quick
@given(st.integers(1, 3), st.integers(-2, 2), st.integers(-40, 10), domains, st.integers(1, 4), st.integers(1, 6))
def test_iterations_that_conditions_cut(a, b, c, domain, tile, count):
    """Before `certain` the condition holds everywhere, from `possible` on nowhere; else it is asked at every point."""
    condition = op("lt", op("add", op("add", op("mul", Var("i"), a), op("mul", Var("j"), b)), c), 0)
    domain = {**domain, "i": Span(Const(2), tile * count)}
    certain, possible = clipped("i", count, tile, domain, (condition,))
    env = reached(domain)
    holds, iteration = at(condition, env).astype(bool), env["in_i"] // tile
    if (certain, possible) != (count, count):
        assert holds[iteration < certain].all() and not holds[iteration >= possible].any()
    elif b == 0:
        assert holds[iteration < count - 1].all()


CHAIN = """\
task chain(X) -> (Y) anchor second
  in X: float32[12]
  local T: float32[10]
  out Y: float32[8]
  block first [i:10] assign
    T[i] = X[i + 1]
  block second [j:8] assign
    Y[j] = T[j] + T[j + 2]"""


def test_a_producer_computes_what_its_consumer_reads():
    task = parse_task(CHAIN)
    first, second = task.blocks
    domain, ranges = {"j": Span(Var("p0"), 4)}, {"p0": 5}
    found, boxes = placed_domains(task, second, domain, {"first", "second"}, ranges, {})
    assert found == {"first": {"i": Span(Var("p0"), 6)}, "second": domain}
    assert boxes == {"T": (Span(Var("p0"), 6),), "Y": (Span(Var("p0"), 4),)}
    assert inside(first, found["first"], ranges) == []
    early = {"i": Span(op("sub", Var("p0"), 1), 6)}
    assert inside(first, early, {"p0": 7}) == [op("ge", Var("i"), 0), op("lt", Var("i"), 10)]


def test_a_consumer_follows_what_is_written():
    task = parse_task(CHAIN)
    first, second = task.blocks
    found, _ = placed_domains(task, first, {"i": Span(Const(2), 3)}, {"first", "second"}, {}, {})
    assert found["second"] == {"j": Span(Const(2), 3)} and whole(second) == {"j": Span(Const(0), 8)}
