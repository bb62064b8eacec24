"""Time and memory are bounded by the size of the model. Work is counted, as calls of functions, and not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, KeysView
from dataclasses import replace
from math import log
from pathlib import Path
from types import FrameType
from typing import Any

import bench_scale
import numpy as np
import onnx
import pytest
import scale_models

import modelc
from modelc.errors import ModelError
from modelc.frontend.building.limits import MOST_NODES
from modelc.frontend.onnx import import_model
from modelc.ir.program import Program
from modelc.layout.elimination import Factor, least
from modelc.layout.program import partition
from modelc.package import TensorInfo
from modelc.partition.draft import drafting, prepared
from modelc.partition.fuse import OPERATIONS
from modelc.passes import run_passes
from modelc.space.choose import constructions


def calls_of(work: Callable[[], object]) -> int:
    """How many functions `work` calls, with nothing constructed before."""
    constructions.cache_clear()
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def program_of(path: Path) -> Program:
    return partition(run_passes(import_model(path)))


@pytest.mark.parametrize(
    "name, nodes",
    [("mixed", 70), ("chain", 150), ("shared", 60), ("below_a_move", 100), ("parallel", 100)],
)
@pytest.mark.sweep(2)
def test_work_up_to_partition_grows_with_the_nodes(name: str, nodes: int, tmp_path: Path) -> None:
    sizes, counts = [], []
    for n in (nodes, 4 * nodes):
        model = scale_models.MODELS[name](n)
        path = tmp_path / f"{n}.onnx"
        onnx.save(model, path)
        if not counts:
            program_of(path)  # what is imported or cached once is not the model's
        sizes.append(len(model.graph.node))
        counts.append(calls_of(lambda path=path: program_of(path)))
    exponent = log(counts[1] / counts[0]) / log(sizes[1] / sizes[0])
    assert counts[0] > 1000 and exponent < 1.25, f"calls grow from {counts[0]} to {counts[1]}: nodes ** {exponent:.2f}"


class Copied(dict[str, Any]):
    """A dictionary that counts how often all of it is gone over, as whoever copies it does."""

    times = 0

    def __iter__(self) -> Iterator[str]:
        Copied.times += 1
        return super().__iter__()

    def keys(self) -> KeysView[str]:
        Copied.times += 1
        return super().keys()


def test_tasks_look_up_what_they_need_of_all_values(tmp_path: Path) -> None:
    onnx.save(scale_models.parallel(12), tmp_path / "m.onnx")
    ready = prepared(import_model(tmp_path / "m.onnx"))
    draft = drafting(0)(ready.graph, ready.pieces, {})
    work = replace(draft.work, shapes=Copied(draft.work.shapes), dtypes=Copied(draft.work.dtypes))
    assert len(replace(draft, work=work).program(ready.graph).tasks) == 12 and not Copied.times


def test_arguments_are_checked_without_a_look_at_all_inputs_and_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[TensorInfo] = []
    size = TensorInfo.bytes.fget
    assert size is not None
    monkeypatch.setattr(TensorInfo, "bytes", property(lambda tensor: (looks.append(tensor), size(tensor))[1]))
    counts = []
    for n in (20, 40):
        onnx.save(scale_models.parallel(n), tmp_path / f"{n}.onnx")
        looks.clear()
        modelc.compile(tmp_path / f"{n}.onnx", output=tmp_path / f"{n}.modelc", verify=False)
        counts.append(len(looks))
    assert 0 < counts[1] < 3 * counts[0]


def test_elimination_grows_with_the_variables() -> None:
    """A chain whose variables are all tied to one as well, as values are to a class that many Tasks read."""

    def work(variables: int) -> int:
        table = np.arange(4.0).reshape(2, 2)
        factors = [Factor((k, k + 1), table) for k in range(1, variables - 1)]
        factors += [Factor((0, k), table) for k in range(1, variables)]
        return calls_of(lambda: least([2] * variables, factors))

    few, many = work(50), work(400)
    assert log(many / few) / log(8) < 1.25


@pytest.mark.parametrize("name, nodes", [("doublings", 60), ("chain", 500)])
def test_long_chains_become_tasks_of_bounded_size(name: str, nodes: int, tmp_path: Path) -> None:
    onnx.save(scale_models.MODELS[name](nodes), tmp_path / "m.onnx")
    tasks = program_of(tmp_path / "m.onnx").tasks
    assert 1 < len(tasks) <= nodes / 5
    assert max(len(bound.task.blocks) for bound in tasks) <= OPERATIONS


@pytest.mark.parametrize(
    "model, factor",
    [
        (scale_models.doublings(60), 2.0**60),
        (scale_models.chain(501, "Neg"), -1.0),
        (scale_models.nested(25, calls=1), -1.0),
    ],
    ids=["doublings", "chain", "nested"],
)
def test_packages_of_long_chains_compute_what_they_should(
    model: onnx.ModelProto, factor: float, tmp_path: Path
) -> None:
    onnx.save(model, tmp_path / "m.onnx")
    modelc.compile(tmp_path / "m.onnx", output=tmp_path / "m.modelc", verify=False)
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    with modelc.load(tmp_path / "m.modelc") as package:
        np.testing.assert_array_equal(package.run({"x": x})["y"], x * np.float32(factor))


@pytest.mark.parametrize("op", ["Split", "Sum", "Concat"])
@pytest.mark.sweep(2)
def test_one_node_of_many_values_takes_work_by_their_number(op: str, tmp_path: Path) -> None:
    counts = []
    for n in (4, 150, 600):  # what the first imports and caches is not the model's
        path = tmp_path / f"{n}.onnx"
        onnx.save(scale_models.wide(n, op), path)
        counts.append(calls_of(lambda path=path: modelc.compile(path, stop_after="codegen", threads=1)))
    assert counts[1] > 1000 and log(counts[2] / counts[1]) / log(4) < 1.25, counts


def test_recurrent_steps_take_work_by_their_number(tmp_path: Path) -> None:
    counts = []
    for steps in (2, 8, 32):  # what the first imports and caches is not the model's
        path = tmp_path / f"{steps}.onnx"
        onnx.save(scale_models.recurrent(steps), path)
        counts.append(calls_of(lambda path=path: modelc.compile(path, stop_after="schedule", threads=1)))
    assert counts[1] > 1000 and log(counts[2] / counts[1]) / log(4) < 1.25, counts


@pytest.mark.parametrize("op", ["Split", "Sum", "Concat"])
def test_one_node_of_many_values_is_few_kernels(op: str, tmp_path: Path) -> None:
    onnx.save(scale_models.wide(100, op), tmp_path / "m.onnx")
    found = modelc.compile(tmp_path / "m.onnx", output=tmp_path / "m.modelc", verify=False)
    assert found.kernels <= 2
    rows = np.random.default_rng(0).standard_normal((100, 1, 4)).astype(np.float32)
    feeds = {"w": rows.reshape(100, 4)} if op == "Split" else {f"v{k}": row for k, row in enumerate(rows)}
    with modelc.load(tmp_path / "m.modelc") as package:
        outputs = package.run(feeds)
    if op == "Split":
        assert all((outputs[f"v{k}"] == row).all() for k, row in enumerate(rows)) and len(outputs) == 100
    else:
        wanted = rows.sum(0) if op == "Sum" else rows.reshape(100, 4)
        np.testing.assert_allclose(outputs["w"], wanted, rtol=1e-4, atol=1e-5)


def test_what_functions_expand_to_is_bounded(tmp_path: Path) -> None:
    onnx.save(scale_models.nested(25), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=rf"more than {MOST_NODES} nodes \(MOST_NODES\)"):
        import_model(tmp_path / "m.onnx")


def test_growth_is_the_exponent() -> None:
    assert bench_scale.growth([1000, 4000], [1.0, 16.0]) == pytest.approx(2)
    assert bench_scale.growth([1000], [1.0]) is None and bench_scale.growth([1, 2], [0.0, 1.0]) is None
