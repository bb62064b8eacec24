"""Derivation rules that only a user knows: kernels are derived by them where it pays, and compute right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from three_ways import check, random_inputs, run_task, task_of

import modelc
from modelc.compile.choices import read_choices_file
from modelc.errors import ConfigError, InvalidIR
from modelc.ir.block import Block, Buffer, Iter, Task
from modelc.ir.candidate import Stage
from modelc.ir.expr import Const, Load, Op, Var, variables
from modelc.ir.text import parse_task
from modelc.policy import Policy
from modelc.space.choose import chosen, families
from modelc.space.rules import derivation
from modelc.space.rules.rule import Args, Rule, fresh, replaced
from modelc.target import Target, list_targets, load_target


def separate(task: Task, block: str, tap: str) -> Task:
    """A window that is reduced along one of its two axes first: k + k steps for each element instead of k * k."""
    whole = task.block(block)
    assert isinstance(whole, Block)
    (read,), rest = whole.reads, [i for i in whole.reduction if i.name != tap]
    across = [d for d, index in enumerate(read.indices) if tap in variables(index)]
    names = [n for d in across for n in variables(read.indices[d]) if n != tap]
    if whole.body != (read,) or whole.where or not rest or len(across) != 1 or len(names) != 1:
        raise modelc.DoesNotApply(f"block {block} is no plain reduction of a window along {tap}")
    (dim,), (along,) = across, names
    if any(along in variables(index) for d, index in enumerate(read.indices) if d != dim):
        raise modelc.DoesNotApply(f"{along} moves through another dimension too")
    source, extents = task.buffer(read.buffer), whole.ranges
    rows = Buffer(
        fresh(task, "rows"), source.dtype, tuple(extents[along] if d == dim else n for d, n in enumerate(source.shape))
    )
    iters = [Iter(along if d == dim else f"row{d}", n) for d, n in enumerate(rows.shape)]
    at = tuple(Var(i.name) for i in iters)
    inside = Load(read.buffer, tuple(read.indices[d] if d == dim else v for d, v in enumerate(at)))
    first = Block(
        fresh(task, f"{block}_rows"),
        (*iters, Iter(tap, extents[tap], True)),
        (Load(rows.name, at),),
        (inside,),
        whole.aggregation,
    )
    of_rows = Load(rows.name, tuple(Var(along) if d == dim else index for d, index in enumerate(read.indices)))
    second = replace(whole, iters=tuple(i for i in whole.iters if i.name != tap), body=(of_rows,))
    blocks = [x for b in task.blocks for x in ([first, second] if b is whole else [b])]
    return replaced(task, blocks, rows)


def proposed(task: Task, target: Target) -> Iterator[Args]:
    for block in task.blocks:
        if isinstance(block, Block) and len(block.reads) == 1 and len(block.reduction) == 2:
            yield {"block": block.name, "tap": block.reduction[-1].name}


SEPARATE = Rule("separate", separate, proposed)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derivation, "_RULES", dict(derivation._RULES))
    modelc.register_rule(SEPARATE)


def pooling(k: int, n: int = 32) -> Task:
    return parse_task(f"""\
task pool(x) -> (y) anchor s0
  in x: float32[4, {n + k - 1}, {n + k - 1}]
  out y: float32[4, {n}, {n}]
  block s0 [c:4 h:{n} w:{n} | r:{k} s:{k}] max
    y[c, h, w] max= x[c, h + r, w + s]""")


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(("k", "pays"), [(13, True), (2, False)])
def test_a_users_rule_is_applied_where_it_pays(k: int, pays: bool) -> None:
    task = pooling(k)
    found = chosen(task, load_target("x86-64-v3"))
    assert (Stage("separate", {"block": "s0", "tap": "s"}) in found.candidate.stages) == pays
    check(task, chosen(task, load_target("native")).candidate)


def wasteful(task: Task, block: str) -> Task:
    """The same contraction with eight multiplications by one in each term."""
    whole = task.block(block)
    assert isinstance(whole, Block)
    (term,) = whole.body
    for _ in range(8):
        term = Op("mul", (term, Const(1.0, "float32")))
    return replaced(task, [replace(whole, body=(term,)) if b is whole else b for b in task.blocks])


CONTRACTIONS = {
    "product": task_of("MatMul", {}, [(512, 512), (512, 512)], (1,)),
    "window": task_of("Conv", {"pads": (1,) * 4}, [(1, 64, 28, 28), (64, 64, 3, 3)], (1,), True),
}


@pytest.mark.parametrize("name", list_targets())
@pytest.mark.parametrize("task", CONTRACTIONS.values(), ids=CONTRACTIONS)
@pytest.mark.sweep(3)
def test_a_rule_that_only_adds_work_is_not_taken(task: Task, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derivation, "_RULES", dict(derivation._RULES))
    modelc.register_rule(Rule("wasteful", wasteful, lambda task, target: [{"block": task.anchor}]))
    found = chosen(task, load_target(name))
    assert not any(stage.rule == "wasteful" for stage in found.candidate.stages)
    derived = derivation.derive(task, (Stage("wasteful", {"block": task.anchor}),))
    assert families(derived, load_target(name), Policy())  # there is something to choose it by


@pytest.mark.usefixtures("known")
def test_a_package_is_derived_by_it_and_rebuilt_by_its_choices_where_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = helper.make_graph(
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[13, 13])],
        "pool",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 44, 44])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 32, 32])],
    )
    model, package = tmp_path / "pool.onnx", tmp_path / "pool.modelc"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    assert modelc.compile(model, output=package).report.passed
    chosen_for = read_choices_file(package / "choices.json").tasks.values()
    assert any(stage.rule == "separate" for one in chosen_for for stage in one.stages)
    modelc.compile(model, output=tmp_path / "again.modelc", choices=package / "choices.json")
    monkeypatch.delitem(derivation._RULES, "separate")
    with pytest.raises(ConfigError, match="there is no derivation rule 'separate'"):
        modelc.compile(model, output=tmp_path / "without.modelc", choices=package / "choices.json")
    assert not (tmp_path / "without.modelc").exists()


def test_rules_come_with_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derivation, "_RULES", dict(derivation._RULES))
    entries = [EntryPoint("separate", "test_user_rule:SEPARATE", derivation.GROUP)]
    monkeypatch.setattr(derivation, "entry_points", lambda group: entries)
    derivation._installed.cache_clear()
    try:
        assert derivation.rules()["separate"] is SEPARATE
        entries[0] = EntryPoint("none", "test_user_rule:pooling", derivation.GROUP)
        derivation._installed.cache_clear()
        with pytest.raises(ConfigError, match=r"'none' of the group modelc\.rules .* is no modelc.Rule"):
            derivation.rules()
    finally:
        derivation._installed.cache_clear()


@pytest.mark.usefixtures("known")
def test_rules_that_are_wrong_are_refused() -> None:
    with pytest.raises(ConfigError, match="there is a derivation rule 'separate' already"):
        modelc.register_rule(Rule("separate", lambda task: task))
    with pytest.raises(InvalidIR, match="there is no derivation rule 'halve'; known are "):
        derivation.derive(pooling(3), (Stage("halve"),))
    everywhere = lambda task, target: [{}]  # noqa: E731
    modelc.register_rule(Rule("halved", lambda task: replace(task, blocks=()), everywhere))
    with pytest.raises(ConfigError, match="rule 'halved' makes no Task of pool: "):
        chosen(pooling(3), load_target("x86-64-v3"))


@pytest.mark.usefixtures("known")
def test_a_rule_keeps_the_boundary_of_a_task() -> None:
    def smaller(task: Task) -> Task:
        return replace(pooling(3, 16), name=task.name)

    modelc.register_rule(Rule("smaller", smaller, lambda task, target: [{}]))
    with pytest.raises(ConfigError, match="rule 'smaller' gives pool other inputs or outputs"):
        chosen(pooling(3), load_target("x86-64-v3"))


def test_separation_computes_the_same_in_fewer_steps() -> None:
    task = pooling(5)
    before, after = random_inputs(task), separate(task, "s0", "s")
    assert sum(b.points() for b in after.blocks if isinstance(b, Block)) < 32 * 32 * 4 * 5 * 5
    np.testing.assert_array_equal(run_task(after, before)["y"], run_task(task, before)["y"])
