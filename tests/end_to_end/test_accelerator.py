"""The example of an accelerator-like CPU (examples/accelerator): its description's passes cut Blocks into tiles for its
scratchpad and its unit, the interpreter of Nests executes them as ONNX Runtime computes, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from node_models import model_of
from onnx import helper
from onnxruntime_session import session_of
from program_runs import run_program
from repository import ROOT

from modelc.cli import main
from modelc.compile.config import load_config
from modelc.compile.pass_lists import loaded
from modelc.compile.pipeline import Run
from modelc.ir.block import Block, Task
from modelc.ir.expr import Load, Op, loads
from modelc.ir.interpret import run_nest
from modelc.ir.nest import For, Leaf, Nest, Stmt
from modelc.ops import MEANINGS
from modelc.space.choose import Chosen
from modelc.space.passes.listed import local_bytes

FILE = ROOT / "examples/accelerator/target.yaml"
TARGET = loaded(FILE)
(SCRATCHPAD,) = TARGET.memories

rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def convolution() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    feeds = {"x": normal(1, 16, 16, 16)}
    return model_of(nodes, feeds, {"": 17}, w=normal(32, 16, 3, 3), b=normal(32)), feeds


def product() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    feeds = {"x": normal(96, 256)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["c"], "product"),
        helper.make_node("Softmax", ["c"], ["y"], "softmax"),
    ]
    return model_of(nodes, feeds, {"": 17}, w=normal(256, 64) / 16), feeds


def bytes_product() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    feeds = {"x": rng.integers(-128, 128, (64, 128)).astype(np.int8)}
    w = rng.integers(-128, 128, (128, 80)).astype(np.int8)
    return model_of([helper.make_node("MatMulInteger", ["x", "w"], ["y"], "product")], feeds, {"": 17}, w=w), feeds


def network() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Convolutions of which the unit computes the second alone, a pool, and a product with one row."""
    feeds = {"x": normal(1, 3, 17, 17)}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "first", strides=[2, 2], pads=[1, 1, 0, 0]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["c2"], ["m"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["m"], ["p"], "mean"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], "head"),
    ]
    constants = {"w1": normal(16, 3, 3, 3), "b1": normal(16), "w2": normal(24, 16, 3, 3), "w3": normal(24, 10)}
    return model_of(nodes, feeds, {"": 17}, **constants, b3=normal(10)), feeds


def interpreted(
    path: Path, feeds: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, tuple[Task, Chosen]]]:
    """The outputs of a model by the Nests that compile makes for the target, and what they are of, by first node."""
    run = Run(path, "", TARGET, load_config(), ({},), 1)
    (program,) = run.programs().rounded
    run.run_block_passes({bound.task.hash: bound.task for bound in program.kernels})
    scheduled = {b.task.hash: run.schedule(b.task.hash, b.task) for b in program.kernels}

    def execute(task: Task, views: Mapping[str, np.ndarray]) -> None:
        stored = {}
        for buffer, own in zip(task.buffers, task.canonical().buffers, strict=True):
            if buffer.name in views:
                order = buffer.layout.permutation if buffer.layout.primitives else None
                stored[own.name] = views[buffer.name].transpose(order) if order else views[buffer.name]
        run_nest(scheduled[task.hash].nest, stored, MEANINGS)

    outputs = run_program(program, feeds, MEANINGS, execute)
    return outputs, {b.task.nodes[0]: (b.task, scheduled[b.task.hash]) for b in program.kernels}


def applications(body: Sequence[Stmt], loops: tuple[For, ...] = ()) -> Iterator[tuple[tuple[For, ...], Leaf]]:
    """The Leaves that add up on the unit, each with the loops of its application."""
    for stmt in body:
        if isinstance(stmt, For):
            yield from applications(stmt.body, (*loops, stmt) if stmt.intrinsic else loops)
        elif isinstance(stmt, Leaf) and loops and stmt.part == "update":
            yield loops, stmt


@pytest.mark.parametrize(
    ("made", "units"),
    [
        (convolution, {"conv": "unit-f32"}),
        (product, {"product": "unit-f32"}),
        (bytes_product, {"product": "unit-int8"}),
        (network, {"second": "unit-f32"}),
    ],
)
def test_the_interpreter_computes_what_onnxruntime_does(tmp_path: Path, made: Any, units: dict[str, str]) -> None:
    model, feeds = made()
    onnx.save(model, tmp_path / "m.onnx")
    outputs, tasks = interpreted(tmp_path / "m.onnx", feeds)
    (wanted,) = session_of(model).run(None, feeds)
    tolerance = {} if wanted.dtype.kind == "i" else {"rtol": 1e-5, "atol": 1e-5}
    (output,) = outputs.values()
    np.testing.assert_allclose(output, wanted, **tolerance)
    used = {node: _unit(chosen.nest) for node, (_, chosen) in tasks.items() if "intrin:" in str(chosen.nest)}
    assert used == units
    for _, chosen in tasks.values():
        assert max(map(local_bytes, chosen.nest.phases)) <= SCRATCHPAD.bytes


def _unit(nest: Nest) -> str:
    """The one unit of a Nest, each of whose applications is 8 x 8 x 8 and reads and writes the scratchpad alone."""
    every = [x for phase in nest.phases for x in applications(phase)]
    shared = {region.name for region in (*nest.params, *nest.temporaries)}
    names = {loops[0].intrinsic for loops, _ in every}
    for loops, leaf in every:
        (body,) = leaf.body
        assert [loop.extent for loop in loops] == [8, 8, 8]
        assert isinstance(body, Op) and body.name == "mul"
        assert not shared & {x.buffer for e in (*leaf.body, *leaf.writes) for x in loads(e)}
        assert all(isinstance(write, Load) for write in leaf.writes)
    (name,) = names
    assert name in {unit.name for unit in TARGET.unimplemented}
    return str(name)


def test_tiles_are_what_the_scratchpad_has_room_for(tmp_path: Path) -> None:
    """With less of it tiles are smaller, down to one application of the unit: 8 x 8 of each operand in float32."""
    model, _ = product()
    onnx.save(model, tmp_path / "m.onnx")
    points = []
    for size in (16384, 4096, 768):
        target = _described(tmp_path, {"passes": {"schedule": ["tensorize", _autotile(bytes=size)]}})
        run = Run(tmp_path / "m.onnx", "", target, load_config(), ({},), 1)
        task = next(iter(run.programs().rounded[0].kernels)).task
        run.run_block_passes({task.hash: task})
        chosen = run.schedule(task.hash, task)
        (block,) = (b for b in chosen.task.blocks if isinstance(b, Block) and b.name == chosen.task.anchor)
        tiles = chosen.candidate.blocks[block.name].tiles
        points.append([tiles[i.name][0] for i in block.iters])
        assert max(map(local_bytes, chosen.nest.phases)) <= size
    assert points[-1] == [8, 8, 8] and np.prod(points[0]) > np.prod(points[1]) > 512


def _autotile(**options: Any) -> dict[str, Any]:
    return {"autotile": {"memory": "scratchpad", **options}}


def _described(folder: Path, changes: Mapping[str, Any]) -> Any:
    """The target with other entries, from a file in `folder`, where its unit is too."""
    tree = {**yaml.safe_load(FILE.read_text()), **changes}
    (folder / "unit.yaml").write_text((FILE.parent / "unit.yaml").read_text())
    (folder / "target.yaml").write_text(yaml.safe_dump(tree))
    return loaded(folder / "target.yaml")


# --- the command line -------------------------------------------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    text = capsys.readouterr()
    assert "Traceback" not in text.err
    return int(stop.value.code or 0), text.out, text.err


def test_compile_makes_its_nests_and_no_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(convolution()[0], tmp_path / "m.onnx")
    asked = ("compile", tmp_path / "m.onnx", "--target", FILE, "-o", tmp_path / "p")
    code, _, err = said(capsys, *asked, "--stop-after", "schedule", "--dump-dir", tmp_path / "d")
    assert code == 0, err
    assert "intrin:unit-f32" in (tmp_path / "d/04-schedule.txt").read_text()
    for further in ((), ("--stop-after", "codegen")):
        code, out, err = said(capsys, *asked, *further)
        assert code == 2 and out == "" and not (tmp_path / "p").exists()
        assert "nothing executes its kernels natively, as the intrinsic unit-f32 has no implementation" in err


def test_compile_for_its_core_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration that names no passes over Blocks wins over the target's: kernels are the core's."""
    onnx.save(convolution()[0], tmp_path / "m.onnx")
    tree = yaml.safe_load((ROOT / "configs/default.yaml").read_text())
    tree["schedule"]["passes"] = []
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree))
    options = ("--config", tmp_path / "c.yaml", "--stop-after", "codegen", "--dump-dir", tmp_path / "d")
    code, _, err = said(capsys, "compile", tmp_path / "m.onnx", "--target", FILE, *options)
    assert code == 0, err
    assert "unit-f32" not in (tmp_path / "d/04-schedule.txt").read_text()


def test_its_description_is_checked_and_says_what_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "targets", "check", FILE)
    assert code == 0 and "unit-f32: not run, it has no implementation" in out and f"{FILE} is valid" in out
    code, out, _ = said(capsys, "targets", "show", FILE)
    assert code == 0 and "scratchpad" in out and "autotile" in out


def test_intrinsics_without_implementation_that_are_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (FILE.parent / "unit.yaml").read_text()
    for old, new, sentence in (
        (
            "lies: memory",
            "lies: vector",
            "intrinsics[0].operands.C.lies is 'vector'; expected memory, as it has no impl",
        ),
        ("features: []", "features: []\n    latency: 4", "intrinsics[0] lacks the key 'instruction'"),
    ):
        (tmp_path / "unit.yaml").write_text(text.replace(old, new))
        code, out, err = said(capsys, "targets", "check", tmp_path / "unit.yaml")
        assert code == 2 and out == "" and sentence in err
