"""Copies of one thing here and another there (padding): loops are cut where that changes, and results stay the same."""

from hypothesis import given, settings
from hypothesis import strategies as st
from three_ways import check

from modelc.ir.expr import Const, Expr, Load, Op, Var, op, select, walk
from modelc.ir.nest import Branch, Leaf
from modelc.ir.nest import walk as statements
from modelc.ir.text import parse_task
from modelc.space.analysis.boxes import Span
from modelc.space.analysis.conditions import less_than, segments, settled

PAD = """\
task pad(x0) -> (y0) anchor pad
  in x0: float32[2, {channels}, {rows}, {columns}]
  out y0: float32[2, {high}, {wide}, {channels}]
  block pad [n:2 h:{high} w:{wide} c:{channels}] assign
    y0[n, h, w, c] = select(h - 1 >= 0, select(h - 1 < {rows}, select(w - 2 >= 0, select(w - 2 < {columns}, \
x0[n, c, h - 1, w - 2], float32(0.0)), float32(0.0)), float32(0.0)), float32(0.0))"""

comparisons = st.tuples(
    st.sampled_from(["lt", "le", "gt", "ge"]), st.sampled_from([-2, -1, 1, 3]), st.integers(-9, 9), st.integers(-9, 9)
)


@st.composite
def selections(draw) -> Expr:
    """Selections nested in each other, by iterator v or another."""
    value: Expr = Load("x", (Var("v"), Var("u")))
    for k, (name, step, shift, bound) in enumerate(draw(st.lists(comparisons, max_size=4))):
        index = op("add", op("mul", Var(draw(st.sampled_from("vvu"))), step), shift)
        value = select(Op(name, (index, Const(bound))), value, Const(float(k), "float32"))
    return value


def holds(condition: Expr, v: int) -> bool:
    form = less_than(condition)
    assert form is not None
    return form.coefficient(Var("v")) * v + form.constant < 0


@given(selections(), st.integers(-4, 4), st.integers(1, 12))
def test_in_every_part_a_selection_by_the_iterator_is_one_thing(value: Expr, low: int, extent: int) -> None:
    parts = segments("v", Span(Const(low), extent), value)
    assert [v for first, last in parts for v in range(first, last)] == list(range(low, low + extent))
    conditions = [e.args[0] for e in walk(value) if isinstance(e, Op) and e.name == "select"]
    for first, last in parts:
        for condition in conditions:
            if any(e == Var("v") for e in walk(condition)):
                assert len({holds(condition, v) for v in range(first, last)}) == 1
        rest = settled(value, {"v": last - first}, {"v": op("add", Var("v"), first)})
        left = [e.args[0] for e in walk(rest) if isinstance(e, Op) and e.name == "select"]
        assert all(not any(e == Var("v") for e in walk(c)) for c in left)


@settings(deadline=None, max_examples=8)
@given(st.sampled_from([3, 16, 24]), st.integers(1, 9), st.integers(1, 40))
def test_padded_copies_in_another_order(channels: int, rows: int, columns: int) -> None:
    task = parse_task(PAD.format(channels=channels, rows=rows, columns=columns, high=rows + 2, wide=columns + 3))
    built = check(task)
    leaves = [s for phase in built.nest.phases for s in statements(phase) if isinstance(s, Leaf)]
    assert not any(isinstance(e, Op) and e.name == "select" for leaf in leaves for b in leaf.body for e in walk(b))
    assert any(isinstance(s, Branch) for phase in built.nest.phases for s in statements(phase)) or rows == 1
