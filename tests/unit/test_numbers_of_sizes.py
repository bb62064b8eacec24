"""Numbers that depend on sizes: they compute as ints do, decide only what holds for every size, and are explained by
their values at some sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelc.compile.any_size import AnySize
from modelc.compile.pinned import pin_extents
from modelc.errors import ModelError
from modelc.ir.explain import Explained, Unexplained
from modelc.ir.expr import Size
from modelc.ir.graph import Graph, Node, Value
from modelc.ir.sizes import DependsOnSize, Sized, Sizes, at, larger, least, most, number_of, sized, smaller, text_of
from modelc.package.spec import FreeSize

S, T = Size("s", 1, 200), Size("t", 2, 40)
OPERATIONS = ("+", "-", "*", "//", "%", "min", "max")
steps = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(["s", "t", 1, 2, 3, 7, 16])), max_size=5)


def computed(start: object, names: dict[str, int], operations: list[tuple[str, object]]) -> int:
    """`start`, then one operation after the other with sizes by name and numbers; quotients are by numbers alone."""
    number = names["s"]
    for name, operand in operations:
        other = names[operand] if isinstance(operand, str) else operand
        if name in ("//", "%"):
            other = operand if isinstance(operand, int) else 5
        if name == "min":
            number = smaller(number, other)
        elif name == "max":
            number = larger(number, other)
        else:
            number = {
                "+": lambda a, b: a + b,
                "-": lambda a, b: a - b,
                "*": lambda a, b: a * b,
                "//": lambda a, b: a // b,
                "%": lambda a, b: a % b,
            }[name](number, other)
    return number


@given(steps, st.integers(1, 200), st.integers(2, 40))
def test_they_compute_as_ints_do(operations: list[tuple[str, object]], s: int, t: int) -> None:
    general = computed(S, {"s": sized(S), "t": sized(T)}, operations)
    number = computed(s, {"s": s, "t": t}, operations)
    assert at(general, {"s": s, "t": t}) == number
    assert least(general) <= number <= most(general)


@given(steps, st.integers(1, 200), st.integers(2, 40))
def test_their_text_is_read_back(operations: list[tuple[str, object]], s: int, t: int) -> None:
    general = computed(S, {"s": sized(S), "t": sized(T)}, operations)
    again = number_of(text_of(general), {"s": S, "t": T})
    assert at(again, {"s": s, "t": t}) == at(general, {"s": s, "t": t})


def test_a_comparison_holds_for_every_size_or_is_an_error() -> None:
    s = sized(S)
    assert s < 201 and s >= 1 and s != 0 and s * 2 != 401 and s // 14 * 14 <= s
    for ask in (lambda: s == 7, lambda: s < 100, lambda: bool(s - 1), lambda: s % 2 == 0):
        with pytest.raises(DependsOnSize):
            ask()
    with pytest.raises(TypeError):
        range(s)


def test_what_is_left_of_a_tile_is_less_than_it() -> None:
    full, left = divmod(sized(S), 14)
    assert isinstance(full, Sized) and most(left) == 13 and least(left) == 0
    assert text_of(full * 14 + left) == "s"


@given(st.integers(1, 6), st.sampled_from([1, 2, 3, 4, 8, 16]), st.integers(0, 15), st.integers(-9, 9))
def test_numbers_of_one_size_are_explained(a: int, c: int, b: int, d: int) -> None:
    samples = tuple({"s": n} for n in (*range(50, 68), 90, 103))

    def number(s: int) -> int:
        return a * ((s + b) // c) + d

    explained = Explained((S,), samples).number(tuple(number(run["s"]) for run in samples))
    for s in (1, 5, 33, 120, 200):
        assert at(explained, {"s": s}) == number(s)


@pytest.mark.parametrize(
    "number",
    [
        lambda s, t: s * t,
        lambda s, t: s * t * 384,
        lambda s, t: s * s * 4,
        lambda s, t: s + t,
        lambda s, t: s + t + 3,
        lambda s, t: (s + 1) // 2 * t * 16,
    ],
)
def test_numbers_of_several_sizes_are_explained(number) -> None:  # type: ignore[no-untyped-def]
    samples = tuple({"s": s, "t": t} for s, t in ((31, 11), (32, 11), (37, 11), (31, 12), (31, 17), (33, 13)))
    explained = Explained((S, T), samples)
    explained.number(tuple((run["s"] + 1) // 2 for run in samples))  # an extent, which is known before
    general = explained.number(tuple(number(**run) for run in samples))
    for s, t in ((1, 2), (200, 40), (64, 7)):
        assert at(general, {"s": s, "t": t}) == number(s, t)


def test_tiles_along_a_known_extent_are_explained() -> None:
    samples = tuple({"s": n} for n in (*range(11, 29), 40, 61))
    explained = Explained((S,), samples)
    explained.number(tuple(8 * run["s"] for run in samples))
    tiles = explained.number(tuple(-(-8 * run["s"] // 7) * 7 + 2 for run in samples))
    assert [at(tiles, {"s": s}) for s in (1, 2, 7, 100)] == [16, 23, 58, 807]


def test_what_parts_leave_of_a_known_extent_is_explained() -> None:
    samples = tuple({"s": s, "t": t} for s, t in ((31, 11), (32, 11), (37, 11), (31, 12), (31, 17), (33, 13)))
    explained = Explained((S, T), samples)
    explained.number(tuple(run["s"] * run["t"] for run in samples))
    left = explained.number(tuple(run["s"] * run["t"] % 32 + 8 for run in samples))
    assert [at(left, {"s": s, "t": t}) for s, t in ((1, 2), (200, 40), (64, 7), (13, 9))] == [10, 8, 8, 29]


def test_limits_are_exact_where_intervals_say_no_sign() -> None:
    s = sized(Size("s", 1, 20))
    trips = (s - s // 5 + 1) // 2
    assert (least(trips), most(trips)) == (1, 8)


def test_a_multiple_of_what_is_known_is_that() -> None:
    """480 * ((s + 1) // 4) gives the same at these samples."""
    samples = tuple({"s": n} for n in (125, 126, 131, 167))
    explained = Explained((S,), samples)
    half = explained.number(tuple((run["s"] + 3) // 8 for run in samples))
    whole = explained.number(tuple((run["s"] + 3) // 8 * 960 for run in samples))
    assert [at(whole, {"s": n}) for n in range(1, 200)] == [960 * at(half, {"s": n}) for n in range(1, 200)]


def test_extents_are_pinned_down_by_further_imports() -> None:
    """(s + 1) // 8 is as long as (s + 3) // 8 at the samples; in a body as anywhere."""
    any_size = AnySize.of_package([FreeSize("s", 8, 4096, 1, 0, 0)])

    def graph_at(run: Sizes) -> Graph:
        looked_at.append(run["s"])
        if run["s"] == 8:
            raise ModelError("it is not taken")
        body = Graph("b", ("x",), ("y",), {"y": Value("y", "float32", ((run["s"] + 3) // 8, 4))}, ())
        return Graph("g", ("x",), ("z",), {}, (Node("If", "if", ("x",), ("z",), bodies=(body,)),))

    looked_at: list[int] = []
    graphs = [graph_at(run) for run in any_size.samples]
    looked_at.clear()
    known = replace(any_size, pinned=pin_extents(any_size, graphs, graph_at))
    number = known.explained.number(tuple(graph.every_value["y"].shape[0] for graph in graphs))
    in_tasks = known.explained_tasks
    assert str(in_tasks.number(tuple((run["s"] + 3) // 8 for run in in_tasks.samples))) == str(number)
    assert all(at(number, {"s": n}) == (n + 3) // 8 for n in range(8, 4097)) and 0 < len(looked_at) < 8


def test_what_no_expression_gives_is_said() -> None:
    samples = tuple({"s": n} for n in (11, 12, 17, 40))
    with pytest.raises(Unexplained, match="no expression of s gives 5 at s=11, 9 at s=12"):
        Explained((S,), samples).number((5, 9, 6, 80))


@given(st.integers(1, 40), st.integers(0, 700), st.floats(0, 1))
def test_samples_are_near_what_matters_and_within_bounds(low: int, further: int, where: float) -> None:
    matter = low + round(where * further)
    any_size = AnySize.of_package([FreeSize("s", low, low + further, 1, 0, 0, (matter,))])
    samples = [run["s"] for run in any_size.samples]
    assert all(low <= n <= low + further for n in samples) and len({*samples}) == len(samples) >= min(3, further)
    assert abs(samples[0] - matter) <= 12 and {"s": matter} in any_size.checked()
    assert all(low <= run["s"] <= low + further for run in any_size.explained_tasks.samples)


def test_a_size_that_matters_and_is_no_sample_is_verified_in_place_of_another() -> None:
    def checked(*matter: int) -> list[int]:
        any_size = AnySize.of_package([FreeSize("s", 1, 4096, 1, 0, 0, matter)])
        return sorted(run["s"] for run in any_size.checked())

    assert checked(160) == [1, 7, 160, 4096]
    assert checked(161) == [1, 7, 107, 161, 4096]  # a sample
    assert checked(1) == [1, 3, 7, 4096]
    assert len(checked()) == 4


def test_many_products_are_read_and_long_ones_are_refused() -> None:
    named = {name: Size(name, 1, 64) for name in "abc"}
    text = " + ".join(f"(a + {k}) // 2 * ((b + {k}) // 3 * c) * {k}" for k in range(1, 13))
    assert at(number_of(text, named), {"a": 5, "b": 7, "c": 3}) == sum(
        (5 + k) // 2 * ((7 + k) // 3 * 3) * k for k in range(1, 13)
    )
    with pytest.raises(ValueError, match="multiplies more than 8 sizes with each other"):
        number_of("*".join("abcabcabc"), named)
