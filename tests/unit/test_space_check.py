"""A Candidate that is no schedule of its Task is refused by a sentence before anything is derived or built."""

from dataclasses import replace

import pytest
from schedules import loops, tagged

import modelc.space.choose as choose
from modelc.compile.choices import blaming_choices
from modelc.errors import ConfigError, InvalidCandidate
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.layout import Layout
from modelc.ir.loop import ROOT, Inside, Loop
from modelc.ir.text import parse_task
from modelc.space.choose import accepted
from modelc.space.rules import derivation
from modelc.target import load_target

TARGET = load_target("x86-64-v3")
TASK = parse_task(
    """
task matmul(x, w) -> (y) anchor s0
  in x: float32[8, 4]
  const w: float32[4, 6]
  local t: float32[8, 6]
  out y: float32[8, 6]
  block s0 [m:8 n:6 | k:4] add
    t[m, n] += x[m, k] * w[k, n]
  block s1 [m:8 n:6] assign
    y[m, n] = max(t[m, n], float32(0.0))
"""
)
TILED = BlockSchedule(ROOT, "arena", {"m": (4,)}, loops("m0 n0 k0 m1"), tagged(m0="parallel", m1="unroll"))
GOOD = Candidate({"s0": TILED, "s1": BlockSchedule(order=loops("m0 n0"))})


def knobs(**changes):
    return replace(GOOD, blocks={**GOOD.blocks, "s0": replace(TILED, **changes)})


def stages(rule, **args):
    return replace(GOOD, stages=(Stage(rule, args),))


BROKEN = {
    "no entry": (replace(GOOD, blocks={"s0": TILED}), "no entry for block 's1'"),
    "no block": (replace(GOOD, blocks={**GOOD.blocks, "s7": TILED}), "block s7: the task has none"),
    "scope": (knobs(scope="heap"), "block s0, scope: 'heap' is none of"),
    "tile of nothing": (knobs(tiles={"z": (4,)}), "block s0, tiles: it has no iterator 'z'"),
    "tile of zero": (knobs(tiles={"m": (0,)}), "block s0, tiles: 0 of m is no positive whole number"),
    "tile of a half": (knobs(tiles={"m": (2.5,)}), "block s0, tiles: 2.5 of m is no positive"),
    "tile too large": (knobs(tiles={"m": (1 << 30,)}), "block s0, tiles: 1073741824 is more than iterator m has, 8"),
    "loop of nothing": (knobs(order=loops("m0 z0")), "block s0, order: it has no iterator for its loop 'z0'"),
    "loop of no level": (knobs(order=loops("m0 m1 m2")), "block s0, order: loop 'm2' is of a level"),
    "loop twice": (knobs(order=loops("m0 m0")), "block s0, order: loop 'm0' is there twice"),
    "tag of nothing": (knobs(tags=tagged(z0="unroll")), "block s0, tags: there is no loop 'z0'"),
    "tag": (knobs(tags=tagged(m0="gpu")), "block s0, tags: 'gpu' of loop m0 is none of"),
    "padded": (knobs(padded=("n",)), "block s0, padded: iterator 'n' has no tile"),
    "prefetch": (knobs(prefetch={"w": Loop("z", 0)}), "block s0, prefetch: it cannot prefetch 'w' for loop 'z0'"),
    "at nothing": (knobs(at=Inside("s1", Loop("z", 0))), r"block s0, at: there is no loop 's1\.z0'"),
    "at itself": (knobs(at=Inside("s0", Loop("m", 0))), r"block s0, at: 's0\.m0' is placed within itself"),
    "layout of nothing": (replace(GOOD, layouts={"z": Layout()}), "layouts: the task has no buffer 'z'"),
    "layout of others": (replace(GOOD, layouts={"x": Layout.parse("reorder(1, 0)")}), "layouts: 'x' is stored as"),
    "layout": (replace(GOOD, layouts={"w": Layout.parse("split(0, 3)")}), "layouts: 'w': .* does not divide 4"),
    "layout too large": (
        replace(GOOD, layouts={"w": Layout.parse("pad(0, 0, 2147483647)")}),
        "layouts: 'w' is stored in",
    ),
    "no rule": (stages("halve"), "there is no derivation rule 'halve'"),
    "no argument": (stages("cache_read", block="s0"), "stage 0 .cache_read. needs the argument 'buffer'"),
    "other argument": (stages("inline", block="s0", by=2), "stage 0 .inline. has no argument 'by'; it takes block"),
    "argument of a kind": (stages("inline", block=3), "stage 0 .inline.: block is 3, expected str"),
    "stage of no block": (stages("inline", block="s9"), "stage 0 .inline.: the task has no block 's9'"),
    "stage of no kernel": (stages("winograd", block="s0", m=2), "stage 0 .winograd. does not apply"),
    "stage of no size": (stages("rfactor", block="s0", iter="k", size=0, parts="inner"), "stage 0 .rfactor. does not"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_schedule_is_refused_before_it_is_built(what, monkeypatch):
    monkeypatch.setattr(choose, "build_nest", lambda *_: pytest.fail("it was built"))
    candidate, sentence = BROKEN[what]
    with pytest.raises(InvalidCandidate, match=sentence):
        accepted(TASK, candidate, TARGET)


def test_a_schedule_is_accepted_and_its_stages_are_applied_once(monkeypatch):
    assert accepted(TASK, GOOD, TARGET).task == TASK
    applied, rule = [], derivation.rules()["cache_read"]

    def apply(task, block, buffer, innermost=-1, dtype=""):
        applied.append(block)
        return rule.apply(task, block, buffer, innermost, dtype)

    monkeypatch.setitem(derivation._RULES, "cache_read", replace(rule, apply=apply))
    copied = stages("cache_read", block="s0", buffer="x")
    (new,) = {b.name for b in derivation.derive(TASK, copied.stages).blocks} - {"s0", "s1"}
    order = tuple(Loop(i.name, 0) for i in derivation.derive(TASK, copied.stages).block(new).iters)
    blocks = {**GOOD.blocks, new: BlockSchedule(order=order)}
    accepted(TASK, replace(copied, blocks=blocks), TARGET)
    assert applied == ["s0"]


def test_what_unrolls_beyond_any_kernel_is_refused():
    large = parse_task(
        str(TASK).replace("8, 4]", "8, 40000]").replace("[4, 6]", "[40000, 6]").replace("k:4", "k:40000")
    )
    with pytest.raises(InvalidCandidate, match=r"it unrolls to \d+ statements; at most 32768"):
        accepted(large, knobs(tags=tagged(k0="unroll")), TARGET)


def test_what_keeps_more_than_any_machine_has_is_refused():
    text = str(TASK).replace("8, 6]", "20000, 20000]").replace("[8, 4]", "[20000, 4]").replace("[4, 6]", "[4, 20000]")
    large = parse_task(text.replace("m:8", "m:20000").replace("n:6", "n:20000"))
    around = BlockSchedule(tiles={"m": (20000,)}, order=loops("m0 m1 n0"))
    inside = BlockSchedule(at=Inside("s1", Loop("m", 0)), scope="local", order=loops("m0 n0 k0"))
    with pytest.raises(InvalidCandidate, match=r"it keeps 1600000000 bytes of its own for each thread; at most"):
        accepted(large, Candidate({"s0": inside, "s1": around}), TARGET)


def test_only_what_does_not_fit_is_blamed_on_choices():
    for error, blamed in ((KeyError("b"), ConfigError), (InvalidCandidate("no"), ConfigError), (OSError(28), OSError)):
        with pytest.raises(blamed), blaming_choices("a task", True):
            raise error
    with pytest.raises(KeyError), blaming_choices("a task", False):
        raise KeyError("b")
