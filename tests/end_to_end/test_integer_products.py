"""Products of two computed quantized operands are those of their whole numbers, by instructions for bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from integer_contractions import SDOT, VNNI, drawn, integers, same_numbers
from other_reading import read_as
from quantized_models import TARGETS, Written, changed, run_here
from tensor_tasks import NO_TILES, SERVER
from three_ways import Example, check, close, emulated_target, random_inputs, run_task, run_tree
from tiny_package import skip_without_tools

import modelc
from modelc.compile.verification import blueprints_of
from modelc.ir.block import Task
from modelc.layout.program import partition
from modelc.ops import evaluate_graph
from modelc.package import read_package, run_emulated
from modelc.passes.machine import Multiplied, multiplied
from modelc.policy import Policy
from modelc.space.choose import accepted, chosen
from modelc.space.nest.build import build_nest
from modelc.space.sketches.contraction import Contraction
from modelc.space.sketches.listing import sketches
from modelc.target import load_target
from modelc.verify.verdict import verify_outputs

CACHE = 1 << 19


def product_net(path: Path, dtype: str = "uint8", zeros: tuple[int, int] = (-9, 14), depth: int = 64) -> Path:
    """a b, and what it is rounded to; b comes transposed. `zeros`: from the middle of the bytes."""
    w, middle = Written(4), 0 if dtype == "int8" else 128
    a = w.through("a", "ad", 0.0203, middle + zeros[0], dtype)
    b = w.through("b", "bd", 0.0107, middle + zeros[1], dtype)
    columns = w.node("Transpose", [b], "t", perm=[0, 2, 1])
    w.through(w.node("MatMul", [a, columns], "m"), "y", 0.231, middle, dtype)
    return w.save(path, {"a": [2, 40, depth], "b": [2, 37, depth]}, {"y": [2, 40, 37]})


def attention_net(path: Path, dtype: str = "uint8", tokens: int = 36) -> Path:
    """Attention of two heads as a quantizer writes it; its result is not rounded. Quotients of scales are no multiples
    of a half: sums do not lie at ties."""
    w, middle, heads = Written(5), 0 if dtype == "int8" else 128, [2, tokens, 16]
    scales = (("q", 0.0211, 5), ("k", 0.0307, -6), ("v", 0.0159, 17))
    q, k, v = (w.through(n, f"{n}d", s, middle + z, dtype) for n, s, z in scales)
    columns = w.node("Transpose", [k], "t", perm=[0, 2, 1])
    scores = w.through(w.node("MatMul", [q, columns], "s"), "sd", 0.1873, middle - 14, dtype)
    weights = w.through(w.node("Softmax", [scores], "p", axis=-1), "pd", 1 / 255, middle - 128, dtype)
    w.node("MatMul", [weights, v], "y")
    return w.save(path, dict.fromkeys("qkv", heads), {"y": heads})


def attention_task(folder: Path, units: tuple[Multiplied, ...], tokens: int = 36) -> Task:
    program = partition(integers(attention_net(folder / "m.onnx", tokens=tokens), units), CACHE)
    (task,) = [b.task for b in program.tasks if sum(x.name.startswith("matmul") for x in b.task.blocks) == 2]
    return task


@pytest.mark.parametrize("units", [VNNI, SDOT], ids=["unsigned", "signed"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("zeros", [(-9, 14), (0, 3), (7, 0), (0, 0)], ids=str)
def test_the_numbers_are_the_same(
    tmp_path: Path, dtype: str, units: tuple[Multiplied, ...], zeros: tuple[int, int]
) -> None:
    path = product_net(tmp_path / "m.onnx", dtype, zeros)
    graph = integers(path, units)
    same_numbers(path, graph)
    counts = Counter(node.op for node in graph.nodes)
    assert counts["MatMulInteger"] == 1 and "MatMul" not in counts and not graph.notes
    (node,) = [n for n in graph.nodes if n.op == "MatMulInteger"]
    assert [graph.values[x].dtype for x in node.inputs] == [units[0].activations, "int8"]
    quantized = counts["QuantizeLinear"], counts["Round"]  # two for the product, and one that is read as float32
    assert quantized == (2, 1) and counts["Cast"] - 2 * counts["ReduceSum"] == 1  # bytes are never moved
    if units == SDOT:  # no zero point, no sum
        assert counts["ReduceSum"] == sum(z != 0 for z in zeros)


def test_one_value_can_be_both_operands(tmp_path: Path) -> None:
    w = Written(6)
    x = w.through("x", "xd", 0.0203, 117)
    w.through(w.node("MatMul", [x, x], "m"), "y", 0.117, 128)
    path = w.save(tmp_path / "m.onnx", {"x": [16, 16]}, {"y": [16, 16]})
    graph = integers(path)
    same_numbers(path, graph)
    assert Counter(node.op for node in graph.nodes)["MatMulInteger"] == 1


def test_what_stays_in_float_is_said(tmp_path: Path) -> None:
    path = product_net(tmp_path / "m.onnx", depth=18)
    (note,) = integers(path).notes
    assert "1 quantized contraction(s) run in float32 ('m')" in note and "18 computed channels" in note
    same_numbers(path, integers(path))


@pytest.mark.parametrize("tokens", [36, 16])
def test_attention_is_one_task_by_dot_products(tmp_path: Path, tokens: int) -> None:
    """Sums of rows of the weights, for the values' zero point, are made beside the weights."""
    task = attention_task(tmp_path, VNNI, tokens)
    assert any(block.name.startswith("reducesum") for block in task.blocks)
    for features, name in ((SERVER.features, "amx-u8s8"), (NO_TILES, "avx512-vnni")):
        found = chosen(task, replace(SERVER, features=features))
        assert str(found.nest).count(f"intrin:{name}") >= 2
        example = Example(task, random_inputs(task), rtol=1e-2, atol=1e-2)
        (result,) = run_tree(task, found.candidate, build_nest(task, found.candidate), example.inputs).items()
        close(result[1], run_task(task, example.inputs)[result[0]], example, name)
    if multiplied(emulated_target()):
        check(example, target=emulated_target())


def test_computed_columns_are_packed_before_they_are_multiplied(tmp_path: Path) -> None:
    """37 of them, up to the end of the last vector."""
    graph = integers(product_net(tmp_path / "m.onnx"))
    (task,) = [b.task for b in partition(graph).tasks if "matmul" in b.task.anchor]
    inputs, seen = random_inputs(task), set()
    for target in (SERVER, emulated_target()):
        for way in (s for s in sketches(task, target, Policy()) if isinstance(s, Contraction) and s.tiled.unit.copied):
            candidate = way.candidate(way.start())
            accepted(task, candidate, target)
            (name,) = way.tiled.unit.copied
            assert len(candidate.layouts[name].primitives) > 1 and "extend" in {s.rule for s in candidate.stages}
            (result,) = run_tree(task, candidate, build_nest(task, candidate), inputs).items()
            np.testing.assert_array_equal(result[1], run_task(task, inputs)[result[0]])
            if target is not SERVER:
                check(Example(task, inputs), candidate, target)
            seen.add(way.tiled.unit.intrinsic.name)
    assert seen >= {"amx-u8s8", "avx512-vnni"}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.sweep(2)
def test_kernels_give_the_very_numbers(tmp_path: Path, dtype: str, target: str) -> None:
    path, machine = product_net(tmp_path / "m.onnx", dtype), run_here(target)
    units = multiplied(machine)
    result = modelc.compile(path, machine, tmp_path / "p.modelc", database=False)
    steps = read_package(tmp_path / "p.modelc").manifest.variants[0].steps
    assert result.report is not None and result.report.passed
    assert bool(units) == any(s.dtype == "int8" and s.intrinsic for s in steps)
    with modelc.load(tmp_path / "p.modelc") as model:
        found = model.run(feed := drawn(path))["y"]
    assert len(np.unique(found)) > 8 and np.array_equal(found, evaluate_graph(integers(path, units), feed)["y"])


MUTANTS = {"bd_z": lambda z: z + 1, "ad_s": lambda s: s * 1.01}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.sweep(1)
def test_zero_points_and_scales_of_another_model_are_found(tmp_path: Path, target: str) -> None:
    """Kernel by kernel, on the very inputs that the other model's pieces got in ONNX Runtime."""
    model, package = product_net(tmp_path / "m.onnx"), tmp_path / "p.modelc"
    modelc.compile(model, run_here(target), package, database=False)
    blueprints = blueprints_of(read_package(package), model)
    for name, change in {"": None, **MUTANTS}.items():
        other = model if change is None else changed(model, tmp_path / f"{name}.onnx", name, change)
        with read_as(other):
            layers = verify_outputs(package, model, drawn(model), blueprints=blueprints, per_layer=True).layers
        assert layers and all(layer.passed for layer in layers) == (change is None), name


def test_attention_of_another_machine_is_verified(tmp_path: Path) -> None:
    target = load_target("raspberry-pi-5")
    skip_without_tools(target.triple)
    path = attention_net(tmp_path / "m.onnx")
    result = modelc.compile(path, target, tmp_path / "p.modelc", database=False)
    steps = read_package(tmp_path / "p.modelc").manifest.variants[0].steps
    assert result.report is not None and result.report.passed
    assert not [note for note in result.notes if "no schedules were measured" not in note]
    assert sum(s.intrinsic == "neon-sdot" for s in steps) == 1
    found = run_emulated(tmp_path / "p.modelc", feed := drawn(path)).outputs["y"]
    np.testing.assert_allclose(found, evaluate_graph(integers(path, multiplied(target)), feed)["y"], atol=2e-2)
