"""Contractions in bfloat16: which ones, what becomes of the values around them, and that packages say what they do."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import small_model as small
from bfloat16_products import DEFAULT, digests, native, products_add_most, strict
from partition_models import Model
from program_runs import run_program
from three_ways import Example, check, host_target, random_inputs, stored_in_bfloat16, task_of

import modelc
from modelc.codegen.lower.nest import lower_nest
from modelc.compile import pipeline
from modelc.compile.choices import read_choices_file
from modelc.compile.precision import constant_bytes, kept_in_turn
from modelc.errors import ConfigError, TargetError, ToolchainError, VerificationError
from modelc.frontend.onnx import import_model
from modelc.ir.block import Block, Task
from modelc.ir.expr import Load, Op
from modelc.ir.program import Program
from modelc.ops import MEANINGS
from modelc.package import read_package
from modelc.partition.narrow_products import products, require
from modelc.partition.narrow_task import in_narrow
from modelc.partition.precision import contracting_tasks, rounded_values, to_narrow, with_roundings
from modelc.space.analysis.match import matches
from modelc.space.choose import chosen
from modelc.space.nest.build import build_nest
from modelc.target import Target, load_target
from modelc.target.intrinsics import shipped_intrinsics
from modelc.verify.compare import Tolerance, rounded_distance

BF16 = ml_dtypes.bfloat16


@pytest.fixture
def m() -> Model:
    return Model()


def conv(m: Model, x: str, o: int, c: int, k: int = 3, **attrs: Any) -> str:
    return m.node("Conv", x, m.weight(o, c // attrs.get("group", 1), k, k), m.weight(o), pads=[k // 2] * 4, **attrs)


def near(program: Program, rounded: Program) -> None:
    """Both compute the same, up to bfloat16."""
    rng = np.random.default_rng(3)
    feeds = {n: rng.standard_normal(program.values[n].shape).astype(np.float32) for n in program.inputs}
    wanted, found = run_program(program, feeds, MEANINGS), run_program(rounded, feeds, MEANINGS)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        assert rounded_distance(found[name], value, Tolerance(2e-2, 1e-1)).passed


def stored(program: Program, narrow: str = "bfloat16") -> set[str]:
    return {n for n, v in program.values.items() if v.dtype == narrow and n not in program.constants}


# --- the rewrite --------------------------------------------------------------------------------------------------


def test_before_and_after(m, tmp_path) -> None:
    m.input("x", 4, 8)
    hidden = m.node("Relu", m.node("MatMul", "x", m.weight(8, 9)), to="h")
    program = m.program(tmp_path, m.node("MatMul", hidden, m.weight(9, 5), to="y"))
    rounded = to_narrow(program)
    assert str(rounded) == (
        """\
program m
  input x: float32[4, 8]
  const c0: bfloat16[8, 9]
  const c1: bfloat16[9, 5]
  value y: float32[4, 5]
  value h: bfloat16[4, 9]
  run matmul_relu_0(x0=x, x1=c0, y0=h)
    task matmul_relu_0(x0, x1) -> (y0) anchor matmul
      in x0: float32[4, 8]
      const x1: bfloat16[8, 9]
      out y0: bfloat16[4, 9]
      local t0: float32[4, 9]
      local x0_copy: bfloat16[4, 8]
      block round_x0 [i0:4 i1:8] assign
        x0_copy[i0, i1] = bfloat16(x0[i0, i1])
      block matmul [m:4 n:9 | k:8] add
        t0[m, n] += float32(x0_copy[m, k]) * float32(x1[k, n])
      block relu [m:4 n:9] assign
        y0[m, n] = bfloat16(max(t0[m, n], float32(0.0)))
      nodes 'n0', 'n1'
  run matmul_1(x0=h, x1=c1, y0=y)
    task matmul_1(x0, x1) -> (y0) anchor matmul
      in x0: bfloat16[4, 9]
      const x1: bfloat16[9, 5]
      out y0: float32[4, 5]
      block matmul [m:4 n:5 | k:9] add
        y0[m, n] += float32(x0[m, k]) * float32(x1[k, n])
      nodes 'n2'
  output y"""
    )
    np.testing.assert_array_equal(rounded.constants["c0"], program.constants["c0"].astype(BF16))
    near(program, rounded)
    assert rounded_values(rounded) == {"c0", "c1", "h", "y"} and not rounded_values(program)


@pytest.mark.parametrize(
    ("task", "worth"),
    [
        (task_of("Conv", {"pads": [1] * 4}, [(1, 8, 6, 6), (12, 8, 3, 3)], [1]), True),
        (task_of("Conv", {"group": 2}, [(1, 16, 6, 6), (12, 8, 3, 3)], [1]), True),
        (task_of("Conv", {}, [(1, 3, 6, 6), (12, 3, 3, 3)], [1]), True),  # three channels of three taps in a row
        (task_of("Conv", {}, [(1, 3, 6, 6), (12, 3, 1, 1)], [1]), False),  # too few terms in a row
        (task_of("Conv", {"group": 8}, [(1, 8, 6, 6), (8, 1, 3, 3)], [1]), False),  # every datum meets one weight
        (task_of("ConvTranspose", {}, [(1, 8, 6, 6), (8, 4, 3, 3)], [1]), True),
        (task_of("MatMul", {}, [(2, 4, 8), (2, 8, 6)], [1]), True),
        (task_of("MatMul", {}, [(2, 4, 8), (2, 8, 6)]), False),  # no constant to pack
        (task_of("MatMul", {}, [(8,), (8, 16)], [1]), True),  # weights that stream by
        (task_of("MatMul", {}, [(8,), (8, 16)]), False),
        (task_of("MatMul", {}, [(8,), (8,)]), False),
        (task_of("MatMul", {}, [(4, 8), (8, 6)], dtypes=["int32", "int32"]), False),
        (task_of("ReduceSumSquare", {"axes": [1]}, [(4, 8)]), False),
        (task_of("AveragePool", {"kernel_shape": [2, 2]}, [(1, 8, 6, 6)]), False),
    ],
    ids=lambda x: x.name if isinstance(x, Task) else "",
)
def test_what_is_worth_bfloat16_is_told_by_reuse(task: Task, worth: bool) -> None:
    assert bool(list(products(task))) == worth


def test_residuals_concats_and_moves_are_stored_as_bfloat16(m, tmp_path) -> None:
    x = m.node("Relu", conv(m, m.input("x", 1, 8, 8, 8), 8, 8))
    a = m.node("Relu", m.node("Add", conv(m, x, 8, 8), x))
    both = m.node("Concat", a, conv(m, a, 4, 8), axis=1, to="both")
    pooled = m.node("MaxPool", both, kernel_shape=[2, 2], strides=[2, 2], to="pooled")
    deep = conv(m, pooled, 12, 12, group=12, to="deep")
    program = m.program(tmp_path, conv(m, deep, 8, 12, k=1, to="y"))
    rounded = to_narrow(program)
    assert stored(rounded, "float32") == {"x", "y"} and {"both", "pooled", "deep"} <= stored(rounded)
    near(program, rounded)
    names = {bound.task.name for bound in program.tasks}
    depthwise = next(b.task for b in rounded.tasks if b.outputs == ("deep",))
    assert depthwise.name in names - set(contracting_tasks(program)) and "float32[12, 1, 3, 3]" in str(depthwise)
    assert "y0[i0, i1, i2, i3] = bfloat16(y0_0[i0, i1, i2, i3])" in str(rounded)


def test_what_must_stay_float32_is_copied(m, tmp_path) -> None:
    """An output that is read on, and what an opaque Block reads (here a copy in order) and writes: by the one Task that
    multiplies it, or, for several, by one of its own."""
    first = conv(m, m.input("x", 1, 8, 6, 6), 8, 8, to="first")
    second = conv(m, first, 8, 8, to="second")
    flat = m.node("Reshape", second, m.const([1, 288], "int64"))
    top = m.node("TopK", flat, m.const([8], "int64"), to=["top", "where"])
    assert top == "top"
    y, z = m.node("MatMul", top, m.weight(8, 3), to="y"), m.node("MatMul", top, m.weight(8, 5), to="z")
    program = m.program(tmp_path, "first", y, z, "where")
    rounded = to_narrow(program)
    assert stored(rounded) == {"second", "top#bfloat16"}
    assert [b.inputs for b in rounded.tasks if b.task.name.startswith("to_bfloat16")] == [("top",)]
    inside = {b.outputs: "x0_copy: bfloat16" in str(b.task) for b in rounded.tasks}
    assert [inside[name,] for name in ("first", "second", "y", "z")] == [True, True, False, False]
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 8, 6, 6)).astype(np.float32)}
    found = run_program(rounded, feeds, MEANINGS)
    assert {n: a.dtype.name for n, a in found.items()} == {
        **dict.fromkeys(("first", "y", "z"), "float32"),
        "where": "int64",
    }


def test_a_part_of_what_must_stay_float32_is_copied_compactly(m, tmp_path) -> None:
    x = m.input("x", 1, 8, 6, 6)
    a, b = conv(m, x, 8, 8, to="a"), conv(m, x, 8, 8, to="b")
    y = conv(m, m.node("Concat", a, b, axis=1), 4, 16, to="y")
    program = m.program(tmp_path, y, conv(m, b, 4, 8, to="z"), conv(m, b, 8, 8, to="more"))
    assert program.values["b"].strides is not None
    rounded = to_narrow(program, [bound.task.name for bound in program.tasks if bound.outputs == ("a",)])
    assert rounded.values["b#bfloat16"].strides is None
    near(program, rounded)


def test_a_constant_that_a_kept_task_reads_is_converted_beside(m, tmp_path) -> None:
    shared = m.weight(8, 8)
    a = m.node("MatMul", m.input("x", 4, 8), shared, to="a")
    b = m.node("Relu", m.node("MatMul", a, shared), to="b")
    program = m.program(tmp_path, m.node("MatMul", b, shared, to="y"))
    tasks = contracting_tasks(program)
    rounded = to_narrow(program, [tasks[1]])
    kept = next(b.task for b in rounded.tasks if b.task.name == tasks[1])
    assert "x0[m, k]) * x1[k, n]" in str(kept) and "out y0: float32" in str(kept)
    assert {n: d.dtype.name for n, d in rounded.constants.items()} == {"c0": "float32", "c0#bfloat16": "bfloat16"}
    near(program, rounded)
    assert str(to_narrow(program, tasks)) == str(program)


def test_the_roundings_of_one_task_alone(m, tmp_path) -> None:
    hidden = m.node("Relu", m.node("MatMul", m.input("x", 4, 8), m.weight(8, 9)), to="h")
    program = m.program(tmp_path, m.node("MatMul", hidden, m.weight(9, 5), to="y"))
    first, second = (with_roundings(program, name) for name in contracting_tasks(program))
    assert first.tasks[1] == program.tasks[1] and second.tasks[0] == program.tasks[0]
    text = str(first.tasks[0].task)
    assert "t0[m, n] += float32(bfloat16(x0[m, k])) * float32(bfloat16(x1[k, n]))" in text
    assert "y0[m, n] = float32(bfloat16(max(t0[m, n], float32(0.0))))" in text and "out y0: float32" in text
    assert "y0[i0, i1] = float32(bfloat16(y0_0[i0, i1]))" in str(second.tasks[1].task)
    x = {"x": np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)}
    y = run_program(second, x)["y"]
    np.testing.assert_array_equal(y, y.astype(BF16).astype(np.float32))
    near(program, first)
    check(Example(first.tasks[0].task, random_inputs(first.tasks[0].task)), target=load_target("native"))


def test_every_contraction_is_what_the_intrinsics_compute(m, tmp_path) -> None:
    x = m.node("Relu", conv(m, m.input("x", 1, 8, 8, 8), 32, 8))
    program = m.program(tmp_path, conv(m, x, 32, 32, to="y"))
    known = [i for i in shipped_intrinsics() if i.name in ("amx-bf16", "avx512-bf16", "neon-bfdot", "neon-bfmmla")]
    assert len(known) == 4
    for bound in to_narrow(program).tasks[1:]:
        task = bound.task
        block = task.block(task.anchor)
        assert isinstance(block, Block)
        (body,) = block.body
        assert isinstance(body, Op) and all(isinstance(a, Op) and isinstance(a.args[0], Load) for a in body.args)
        buffers = {b.name: b for b in task.buffers}
        assert all(any(matches(block, buffers, intrinsic, task.constants)) for intrinsic in known)


@pytest.mark.parametrize(
    ("op", "attrs", "shapes", "consts", "last"),
    [
        ("MatMul", {}, [(9, 24), (24, 40)], [1], False),
        ("MatMul", {}, [(2, 5, 16), (2, 16, 20)], [], False),
        ("Conv", {"pads": [1] * 4}, [(1, 16, 7, 7), (24, 16, 3, 3)], [1], True),
        ("Conv", {"pads": [1] * 4, "group": 16}, [(1, 16, 7, 7), (16, 1, 3, 3)], [1], True),
        ("MaxPool", {"kernel_shape": [3, 3], "pads": [1] * 4}, [(1, 16, 7, 7)], [], True),
        ("Softmax", {}, [(6, 50)], [], False),
        ("LayerNormalization", {}, [(6, 50), (50,), (50,)], [1, 2], False),
        *((op, {}, [(7, 33)], [], False) for op in ("Sigmoid", "Tanh", "Erf", "Exp", "Gelu", "Elu")),
        ("Gelu", {"approximate": "tanh"}, [(7, 33)], [], False),
    ],
)
@pytest.mark.sweep(9)
def test_three_ways(op, attrs, shapes, consts, last) -> None:
    rounded = stored_in_bfloat16(task_of(op, attrs, shapes, consts, last))
    assert rounded.buffer("x0").dtype == rounded.buffer("y0").dtype == "bfloat16"
    check(Example(rounded, random_inputs(rounded)))


def test_functions_are_short_where_results_are_rounded() -> None:
    """The coefficients and other constants in the code: less only for a result in bfloat16."""
    wide = task_of("Gelu", {"approximate": "tanh"}, [(4, 64)])
    constants = []
    for narrow in ({"y0"}, {"x0"}, set[str]()):
        nest = build_nest(task := in_narrow(wide, narrow), chosen(task, host_target()).candidate)
        (phase,) = lower_nest(nest, "gelu")
        constants.append(str(phase.function).count("Broadcast("))
    assert constants[0] < constants[2] <= constants[1]


def test_rounding_is_to_nearest_even_with_quiet_nans_on_this_machine() -> None:
    task = in_narrow(task_of("Identity", {}, [(4, 256)]), {"y0"})
    bits = np.random.default_rng(0).integers(0, 1 << 32, (4, 256), np.uint64).astype(np.uint32)
    bits[0, :6] = [0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x80000000]
    x = bits.view(np.float32).copy()
    x[(np.abs(x) < 2.0**-126) | np.isnan(x)] = 0  # x86's instruction takes subnormal numbers as zero
    x[1, 0] = np.nan
    check(Example(task, {"x0": x}, {"y0": x.astype(BF16)}, rtol=0, atol=0), target=load_target("native"))


# --- targets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x86-64-v3", "lacks amx-tile and amx-bf16, or avx512f and avx512bw and avx512bf16"),
        ("x86-64-v4", "lacks amx-tile and amx-bf16, or avx512bf16"),
        ("cortex-a76", "lacks bf16"),
        ("armv7-neon", "is of armv7, for which no intrinsic for it is known"),
    ],
)
def test_a_target_that_cannot_is_told_what_it_lacks(name, words, tmp_path) -> None:
    with pytest.raises(TargetError, match=f"precision bf16: the target {name} cannot multiply bfloat16: it .*{words}"):
        modelc.compile(small.model(), name, tmp_path / "p", shapes=small.SHAPES, precision="bf16")
    assert not list(tmp_path.iterdir())


def test_what_no_tool_mends_is_said_before_a_tool_is_asked_for(tmp_path, monkeypatch) -> None:
    def lacking(*_: object) -> tuple[str, ...]:
        raise ToolchainError("no emulator")

    monkeypatch.setattr(pipeline, "emulator", lacking)
    with pytest.raises(TargetError, match="cannot multiply bfloat16"):
        modelc.compile(small.model(), "x86-64-v3", tmp_path / "p", shapes=small.SHAPES, precision="bf16")
    (tmp_path / "old.yaml").write_text(load_target("x86-64-v3").to_yaml().replace("cpu: x86-64-v3", "cpu: i386"))
    with pytest.raises(TargetError, match="LLVM makes no code for cpu 'i386'"):
        modelc.compile(small.model(), tmp_path / "old.yaml", tmp_path / "p", shapes=small.SHAPES)
    with pytest.raises(ToolchainError, match="no emulator; to have the package unverified"):
        modelc.compile(small.model(), "x86-64-v3", tmp_path / "p", shapes=small.SHAPES)


def with_bfloat16(target: Target) -> Target:
    return replace(target, features=(*target.features, "avx512bf16"), intrinsics=None)


def test_a_target_whose_intrinsics_are_listed_has_those_alone() -> None:
    able = with_bfloat16(load_target("x86-64-v4"))
    require(able, "bf16")
    with pytest.raises(TargetError, match="it lists none of the intrinsics for it"):
        require(replace(able, intrinsics=()), "bf16")


def test_auto_stays_float32_where_the_target_cannot(tmp_path) -> None:
    asked = {"shapes": small.SHAPES[:1], "precision": "auto", "verify": False}
    result = modelc.compile(small.model(), "x86-64-v3", tmp_path / "p", **asked)
    assert result.notes[-1] == "precision auto: all in float32, for the target x86-64-v3 cannot multiply bfloat16"
    assert {step.dtype for step in read_package(tmp_path / "p").manifest.variants[0].steps} == {"float32"}


# --- packages -----------------------------------------------------------------------------------------------------


@native
def test_a_package_in_bfloat16_says_so_and_is_rebuilt_from_its_choices(tmp_path) -> None:
    result = modelc.compile(small.model(), output=tmp_path / "p", shapes=small.SHAPES, precision="bf16")
    manifest = read_package(tmp_path / "p").manifest
    by_node = {step.nodes: step.dtype for step in manifest.variants[0].steps if step.flops}
    assert by_node[("product",)] in (
        "bfloat16",
        "float32",
    )  # rounded operands; in which unit, this machine's speed says
    assert all(plan.rounded == ("y",) for plan in manifest.variants)
    assert "precision bf16: 3 of 3 contractions in bfloat16" in manifest.notes
    report = result.report
    assert report is not None and report.passed and report.outputs[0].rounded
    assert 1e-6 < report.outputs[0].distance.rms_rel < 2e-2 and "through bfloat16, for which" in report.sentence()
    assert manifest.verification is not None and manifest.verification["rounded"] == ["y"]
    assert manifest.verification["bf16"] == {"rms": 2e-2, "largest": 1e-1}
    assert read_choices_file(tmp_path / "p").config.policy.precision == "bf16"
    modelc.compile(small.model(), output=tmp_path / "again", choices=tmp_path / "p/choices.json")
    assert digests(tmp_path / "again") == digests(tmp_path / "p")
    layers = modelc.verify(tmp_path / "p", small.model(), per_layer=True).layers
    assert {layer.value for layer in layers} >= {"r1", "y"} and all(layer.distance.passed for layer in layers)


@native
def test_a_package_out_of_policy_is_refused(tmp_path) -> None:
    asked = {"shapes": small.SHAPES[:1], "config": strict(1e-6), "precision": "bf16"}
    with pytest.raises(VerificationError, match=r"allowed through bfloat16: 1e-06 and 0\.1 of the largest"):
        modelc.compile(small.model(), output=tmp_path / "p", **asked)
    assert not list(tmp_path.iterdir())


@native
def test_auto_keeps_in_float32_what_adds_most(tmp_path, monkeypatch) -> None:
    """The first package is said to be wrong; the last one is rebuilt from its choices without any measuring."""
    products_add_most(monkeypatch)
    result = modelc.compile(small.model(), output=tmp_path / "p", shapes=small.SHAPES, precision="auto")
    chosen = read_choices_file(tmp_path / "p")
    assert [[n.startswith("matmul") for n in names] for names in chosen.float32] == [[True], [True]]
    kept = chosen.float32[0][0]
    assert any(note.startswith("precision auto: ") and note.endswith(f"; in float32: {kept}") for note in result.notes)
    steps = read_package(tmp_path / "p").manifest.variants[0].steps
    assert {s.nodes: s.dtype for s in steps}[("product",)] == "float32"
    monkeypatch.setattr(pipeline.Run, "added", None)
    modelc.compile(small.model(), output=tmp_path / "again", choices=tmp_path / "p/choices.json")
    assert digests(tmp_path / "again") == digests(tmp_path / "p")


@native
def test_auto_is_decided_by_verification(tmp_path) -> None:
    asked = {"shapes": small.SHAPES[:1], "precision": "auto", "verify": False}
    with pytest.raises(ConfigError, match="precision auto is decided by verification"):
        modelc.compile(small.model(), output=tmp_path / "p", **asked)


@native
def test_auto_ends_in_float32_if_it_must(tmp_path) -> None:
    config = strict(1e-6).allowing(precision="auto")
    result = modelc.compile(small.model(), output=tmp_path / "p", shapes=small.SHAPES[:1], config=config)
    assert result.report is not None and result.report.passed and not result.report.outputs[0].rounded
    assert any(re.match("precision auto: 0 of 3 contractions", note) for note in result.notes)


def test_the_flag_is_said_in_place_of_the_configuration(tmp_path) -> None:
    config = DEFAULT.allowing(precision="bf16")
    asked = {"shapes": small.SHAPES[:1], "config": config, "verify": False, "precision": "f32"}
    modelc.compile(small.model(), "x86-64-v3", tmp_path / "p", **asked)
    assert json.loads((tmp_path / "p/choices.json").read_text())["config"]["precision"] == "f32"
    with pytest.raises(ConfigError, match="precision is 'f8'; expected f32, bf16, f16, auto"):
        modelc.compile(small.model(), precision="f8")


def test_what_auto_tries_in_turn() -> None:
    added = [{"a": 0.001, "b": 0.03, "c": 0.016}, {"a": 0.015}]
    first = (("b", "c"), ())  # c and the other a together are above 0.02, either of them is not
    assert kept_in_turn(added, 0.02) == [first, (("b", "c"), ("a",)), (("a", "b", "c"), ("a",))]
    assert kept_in_turn([{"a": 0.001, "b": 0.002}], 0.02) == [(("b",),), (("a", "b"),)]
    assert kept_in_turn([{}], 0.02) == [((),)]


# --- policy -------------------------------------------------------------------------------------------------------


def test_the_policy_for_rounded_outputs() -> None:
    policy = Tolerance(2e-2, 1e-1)
    reference = np.linspace(-1, 1, 1001)
    assert rounded_distance(reference * 1.01, reference, policy).passed
    assert not rounded_distance(reference * 1.03, reference, policy).passed
    one = reference.copy()
    one[500] += 0.2  # far in one place, near on average
    found = rounded_distance(one, reference, policy)
    assert found.rms_rel < 2e-2 and not found.passed
    whole = np.arange(10)
    assert rounded_distance(whole, whole, policy).passed
    assert not rounded_distance(whole, np.where(whole == 3, 4, whole), policy).passed
    assert not rounded_distance(np.array([1.0, np.nan]), np.array([1.0, 2.0]), policy).passed


@pytest.mark.parametrize("target", ["x86-64-v3", "sapphire-rapids"])
def test_estimates_count_constants_as_they_are_stored(target: str, m: Model, tmp_path: Path) -> None:
    m.program(tmp_path, m.node("Gather", m.node("MatMul", m.input("x", 4, 16), m.weight(16, 8)), m.const([1], "int64")))
    graph, machine = import_model(tmp_path / "m.onnx"), load_target(target)
    floats, whole = 16 * 8 * 4, 8
    assert constant_bytes(graph, "f32", machine) == floats + whole
    narrow = floats // 2 if target == "sapphire-rapids" else floats
    assert constant_bytes(graph, "bf16", machine) == constant_bytes(graph, "auto", machine) == narrow + whole
