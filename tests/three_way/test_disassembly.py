"""For every intrinsic, on every architecture: the innermost loop of a kernel holds the instruction that the kernel is
said to be made of, and multiplies no single numbers. Accumulators are not spilled."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_model as small
from attention_tasks import FUSED, attention, fused_task
from disassembly import disassembled, innermost, scalar_multiplies
from library_of import library_of
from onnx import TensorProto, helper
from partition_models import Model
from tensor_tasks import Case, contraction, contraction_of, kinds_of, ways_of

import modelc
from modelc.codegen.kernels import compile_nest
from modelc.compile.config import load_config
from modelc.ir.nest import Nest
from modelc.package import read_package
from modelc.space.choose import accepted, chosen
from modelc.space.nest.build import build_nest
from modelc.space.sketches.attention import attention_sketches
from modelc.space.sketches.tiled_candidate import tiled_candidate
from modelc.space.sketches.tiled_rules import default_knobs
from modelc.space.tiling.tiled import TiledKnobs
from modelc.target import Intrinsic, Target, load_target, shipped_intrinsics

SHIPPED = {one.name: one for one in shipped_intrinsics()}
DEEP: dict[str, Case] = {  # reductions that LLVM does not unroll whole
    "matmul": ("MatMul", {}, (64, 4096), (4096, 64)),
    "conv": ("Conv", {"pads": [1] * 4}, (1, 1024, 6, 8), (64, 1024, 3, 3)),
}
LARGE: dict[str, Case] = {  # whose register tiles fill the registers; the first is filtered (Winograd)
    "conv": ("Conv", {"pads": [1] * 4}, (1, 256, 14, 14), (256, 256, 3, 3)),
    "deep conv": ("Conv", {"pads": [1] * 4}, (1, 512, 7, 7), (512, 512, 3, 3)),
    "pointwise": ("Conv", {}, (1, 64, 56, 56), (64, 64, 1, 1)),
    "matmul": ("MatMul", {}, (512, 512), (512, 512)),
}
MACHINES = {
    "x86_64": (
        *("x86-64-v4", "avx512vnni", "avx512bf16", "avx512fp16", "avxvnni"),
        *("amx-tile", "amx-int8", "amx-bf16"),
    ),
    "aarch64": ("cortex-a76", "bf16", "i8mm"),
    "armv7": ("armv7-neon",),
    "riscv64": ("riscv64-v",),
}


def machine(one: Intrinsic) -> Target:
    """A shipped target with every feature that intrinsics of its architecture need; without VNNI for those that do
    without: LLVM takes its instructions for them."""
    name, *features = MACHINES[one.architecture]
    features = [x for x in features if "vnni" not in x or "int16" not in one.name]
    target = load_target(name)
    return replace(target, features=(*target.features, *features), intrinsics=None)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(one.name, case, marks=[pytest.mark.slow] * ((number + turn) % 2))
        for number, one in enumerate(one for one in SHIPPED.values() if one.architecture in MACHINES)
        for turn, case in enumerate(DEEP)
    ],
)
def test_the_innermost_loop_is_made_of_it(name: str, case: str, tmp_path: Path) -> None:
    one = SHIPPED[name]
    target, task = machine(one), contraction_of(one, DEEP[case])
    way = ways_of(task, target)[name]
    kernel = compile_nest(build_nest(task, tiled_candidate(way, default_knobs(way))), "kernel", target)
    used = {x.name: x.instruction for step in kernel.steps for x in step.intrinsics}
    assert used == {name: one.instruction}
    assert kernel.object is not None
    (tmp_path / "kernel.o").write_bytes(kernel.object)
    loops = innermost(disassembled(tmp_path / "kernel.o", target.triple), one.instruction)
    assert loops
    for loop in loops:
        assert not scalar_multiplies(loop, target.triple), "\n".join(loop)


@pytest.mark.parametrize("case", LARGE)
@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_accumulators_stay_in_registers(name: str, case: str, tmp_path: Path) -> None:
    target, task = load_target(name), contraction(LARGE[case], kinds_of(SHIPPED["avx512-f32"]))
    assert_accumulators_stay(chosen(task, target).nest, target, tmp_path)


@pytest.mark.parametrize("rows, vectors", [(6, 2), (3, 3), (2, 4), (7, 1), (12, 1)])
def test_steps_are_unrolled_where_accumulators_stay_in_registers(rows: int, vectors: int, tmp_path: Path) -> None:
    """With 16 registers: tiles of single vectors that nearly fill them are the ones whose steps are not."""
    target, task = load_target("x86-64-v3"), contraction(LARGE["matmul"], kinds_of(SHIPPED["avx2-f32"]))
    way = ways_of(task, target)["avx2-f32"]
    assert way.step_counts == (1, 2, 4, 8) and default_knobs(way).steps == 4
    for steps in way.step_counts:
        knobs = TiledKnobs((("m", rows),), vectors, rows, False, None, steps)
        nest = build_nest(task, tiled_candidate(way, knobs))
        loops = assert_accumulators_stay(nest, target, tmp_path)
        unrolled = 1 if rows == 12 else steps
        assert max(sum(x.startswith("vfmadd") for x in loop) for loop in loops) >= rows * vectors * unrolled


@pytest.mark.parametrize("name, unit", [("armv7-neon", "armv7-neon-f32"), ("x86-64-v4", "avx512-f32")])
def test_elsewhere_rules_unroll_two_steps(name: str, unit: str) -> None:
    """Of ARMv7's small register tiles, whose broadcasts add no offset to an address, as of large ones."""
    way = ways_of(contraction(LARGE["matmul"], kinds_of(SHIPPED[unit])), load_target(name))[unit]
    assert (way.usual_steps, way.step_counts) == (2, (1, 2, 4))


@pytest.mark.parametrize("queries", [18, 20, 22])
@pytest.mark.sweep(1)
def test_constants_of_exponentials_leave_registers_to_accumulators(queries: int, tmp_path: Path) -> None:
    target, model = replace(load_target("x86-64-v4"), cores=1), Model()
    output = attention(model, 197, 197, count=12, size=64)
    task = fused_task(model, tmp_path, output, FUSED.format("")).canonical()
    (sketch,) = attention_sketches(task, target, ())
    candidate = sketch.candidate_of({**sketch.start_values(), "queries": queries})
    assert_accumulators_stay(accepted(task, candidate, target).nest, target, tmp_path)


def assert_accumulators_stay(nest: Nest, target: Target, folder: Path) -> list[list[str]]:
    """No loop of which multiplications are a fifth spills a vector; the loops."""
    kernel = compile_nest(nest, "kernel", target)
    assert kernel.object is not None
    (folder / "kernel.o").write_bytes(kernel.object)
    every = innermost(disassembled(folder / "kernel.o", target.triple), "vfmadd")
    loops = [loop for loop in every if 5 * sum(x.startswith("vfmadd") for x in loop) >= len(loop)]
    assert loops
    for loop in loops:
        assert not [x for x in loop if re.match(r"vmov\w+ %[xyz]mm\d+,.*\(%r[sb]p\)", x)], "\n".join(loop)
    return loops


def test_a_multiplication_of_single_numbers_is_seen() -> None:
    x86, arm = "x86_64-linux-gnu", "aarch64-linux-gnu"
    for text in ("imul %rax,%rcx", "vmulss (%rdi),%xmm0,%xmm0", "vfmadd231ss %xmm1,%xmm2,%xmm0", "mul %rcx"):
        assert scalar_multiplies([text], x86) == [text]
    for text in ("vmulps %zmm0,%zmm1,%zmm2", "imul $0x700,%rdi,%r9", "vfmadd231ps %zmm1,%zmm2,%zmm0", "vpmulld %zmm1"):
        assert not scalar_multiplies([text], x86)
    for text in ("madd x0, x1, x2, x3", "fmul s0, s1, s2", "fmadd s0, s1, s2, s3", "mul w0, w1, w2"):
        assert scalar_multiplies([text], arm) == [text]
    assert not scalar_multiplies(["mul v0.4s, v1.4s, v2.4s", "fmla v0.4s, v1.4s, v2.s[0]", "smull v0.8h, v1.8b"], arm)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_package_holds_what_its_manifest_names(tmp_path: Path, precision: str) -> None:
    """Two layers of floats and one of bytes."""
    native = load_target("native")
    if precision == "bf16" and not any(one.multiplies == "bfloat16" for one in native.available_intrinsics):
        pytest.skip("this machine multiplies no bfloat16")
    if precision == "bf16" and native.peak["bfloat16"] <= native.peak["float32"]:
        pytest.skip("this machine multiplies bfloat16 no faster than float32: plain vectors are chosen")
    rng = np.random.default_rng(0)
    weights = {
        "a": rng.standard_normal((1024, 512)).astype(np.float32),
        "b": rng.standard_normal((512, 32)).astype(np.float32),
        "c": rng.integers(-9, 9, (2048, 48)).astype(np.int8),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["y"]),
        helper.make_node("MatMulInteger", ["u", "c"], ["i"]),
        helper.make_node("Cast", ["i"], ["z"], to=TensorProto.FLOAT),
    ]
    inputs = {"x": [32, 1024], "u": ([32, 2048], TensorProto.UINT8)}
    model = small.save(tmp_path / "m.onnx", nodes, inputs, {"y": [32, 32], "z": [32, 48]}, weights)
    direct = load_config().allowing(strassen=False)  # products of parts name no intrinsic
    modelc.compile(model, output=tmp_path / "m.modelc", precision=precision, config=direct)
    steps = read_package(tmp_path / "m.modelc").manifest.variants[0].steps
    made = [(s.intrinsic, s.instruction, s.dtype) for s in steps if s.intrinsic]
    known = {one.name: (one.name, one.instruction, one.multiplies) for one in native.available_intrinsics}
    bytes_too = any(one.multiplies == "int8" for one in native.available_intrinsics)
    wanted = [{"f32": "float32"}.get(precision, "bfloat16")] * 2 + ["int8"] * bytes_too
    kinds = sorted(dtype for _, _, dtype in made)  # a product that is small beside tile units may do without one
    assert set(kinds) == set(wanted) and len(kinds) <= len(wanted)
    code = disassembled(library_of(tmp_path / "m.modelc"), native.triple)
    for one in made:
        assert one == known[one[0]]
        loops = innermost(code, one[1])
        assert loops and not any(scalar_multiplies(loop, native.triple) for loop in loops)
    rows = modelc.profile(tmp_path / "m.modelc", repeat=2)["kernels"]
    assert [(r["intrinsic"], r["instruction"], r["dtype"]) for r in rows if r["intrinsic"]] == made
    assert modelc.inspect(tmp_path / "m.modelc")["intrinsics"] == dict(Counter(name for name, _, _ in made))
