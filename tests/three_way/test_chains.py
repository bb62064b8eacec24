"""Chains: which Tasks may be one, every tile three ways, what prices choose, and packages with chains in them."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_models import Model
from program_runs import run_program
from sketch_points import accepted_points
from three_ways import Example, check, host_target, random_inputs

import modelc
from modelc.compile.choices import read_choices_file
from modelc.compile.config import load_config
from modelc.errors import InvalidIR
from modelc.ir.block import Block, Task
from modelc.ir.program import Program
from modelc.layout.chains import chains_by_price
from modelc.partition.chains import chained, followers, joined
from modelc.policy import Policy
from modelc.space.choose import Schedules, chosen
from modelc.space.sketches.chain import Chain
from modelc.space.sketches.listing import sketches
from modelc.target import Target, load_target

ASYMMETRIC = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
SMALL_CACHES = replace(load_target("x86-64-v3"), cores=1, caches=load_target("x86-64-v3").caches[:2])


def separable(
    folder: Path,
    channels: int,
    image: tuple[int, int],
    kernel: int,
    stride: int,
    pad: int,
    dilation: int,
    batch: int = 1,
) -> Program:
    """A pointwise convolution, a depthwise one, and a pointwise one whose result is added to something."""
    model = Model()
    wide, narrow = 2 * channels, channels + 3
    x = model.input("x", batch, channels, *image)
    y = model.node("Relu", model.node("Conv", x, model.weight(wide, channels, 1, 1), model.weight(wide)))
    y = model.node(
        "Conv",
        y,
        model.weight(wide, 1, kernel, kernel),
        model.weight(wide),
        group=wide,
        pads=[pad] * 4,
        strides=[stride] * 2,
        dilations=[dilation] * 2,
    )
    y = model.node("Relu", y)
    rows = [(n + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for n in image]
    other = model.input("other", batch, narrow, *rows)
    y = model.node("Conv", y, model.weight(narrow, wide, 1, 1), model.weight(narrow))
    return model.program(folder, model.node("Add", y, other))


def every_chain(program: Program) -> list[Task]:
    """Every two Tasks that may be one, and every three."""
    after, tasks = followers(program), list[Task]()
    for k, end in after.items():
        paths = [(k, end), *([(k, end, after[end])] if end in after else [])]
        tasks += [reduce(joined, [program.tasks[m] for m in path]).task for path in paths]
    return tasks


def chain_of(task: Task, target: Target) -> Chain | None:
    """The Sketch of a chain, if the Task is one."""
    (first, *_) = sketches(task, target, Policy())
    return first if isinstance(first, Chain) else None


@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    st.integers(3, 20),
    st.tuples(st.integers(5, 17), st.integers(5, 17)),
    st.sampled_from([(1, 1, 0, 1), (3, 1, 1, 1), (3, 2, 1, 1), (3, 1, 0, 1), (3, 1, 2, 2), (5, 2, 2, 1), (2, 2, 0, 1)]),
    st.integers(1, 2),
)
def test_tiles_of_separable_convolutions_compute_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    channels: int,
    image: tuple[int, int],
    window: tuple[int, int, int, int],
    batch: int,
) -> None:
    program = separable(tmp_path_factory.mktemp("m"), channels, image, *window, batch=batch)
    target, tried = replace(host_target(), cores=2), 0
    for task in every_chain(program):
        sketch = chain_of(task, target)
        if sketch is not None:
            assert accepted_points(sketch, task, 20)
            points = sketch.random(2, np.random.default_rng(1))
            tried += len([check(task, sketch.candidate(point), target) for point in points])
    assert tried


def of_a_pool(model: Model, x: str) -> str:
    y = model.node("Relu", model.node("Conv", x, model.weight(40, 8, 3, 3), pads=[1] * 4))
    return model.node("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)


def of_products(model: Model, x: str) -> str:
    x = model.node("Reshape", x, model.const([19 * 21, 8], "int64"))
    y = model.node("Relu", model.node("Add", model.node("MatMul", x, model.weight(8, 50)), model.weight(50)))
    return model.node("Add", model.node("MatMul", y, model.weight(50, 8)), x)


def of_convolutions(model: Model, x: str) -> str:
    y = model.node("Relu", model.node("Conv", x, model.weight(24, 8, 3, 3), pads=[1] * 4))
    return model.node("Conv", y, model.weight(16, 24, 3, 3), pads=[1] * 4)


@pytest.mark.parametrize("made", [of_a_pool, of_products, of_convolutions])
def test_other_chains_compute_the_same(made, tmp_path: Path) -> None:
    model = Model()
    program = model.program(tmp_path, made(model, model.input("x", 1, 8, 19, 21)))
    (task,) = every_chain(program)
    target = host_target()
    sketch = chain_of(task, target)
    assert sketch is not None and sketch.size > 1
    for point in sketch.random(3, np.random.default_rng(2)):
        check(task, sketch.candidate(point), target)
    check(task, chosen(task, target).candidate, target)


def of_an_enlarged_image(model: Model, x: str) -> str:
    twice = model.node("Resize", x, "", model.const(np.array([1, 1, 2, 2], "f")), mode="nearest", **ASYMMETRIC)
    return model.node("Relu", model.node("Conv", twice, model.weight(24, 16, 3, 3), pads=[1] * 4))


def of_scaled_channels(model: Model, x: str) -> str:
    """Squeeze and excitation: channels of an image times what was computed of their means."""
    means = model.node("GlobalAveragePool", x)
    gates = model.node("Sigmoid", model.node("Conv", means, model.weight(16, 16, 1, 1)))
    return model.node("Conv", model.node("Mul", x, gates), model.weight(24, 16, 1, 1))


@pytest.mark.parametrize("made", [of_an_enlarged_image, of_scaled_channels])
def test_maps_become_prologues_by_price(made, tmp_path: Path) -> None:
    """By a Sketch of each kind that there is for the two, and in a package."""
    first, second, *_ = host_target().caches
    model, target = Model(), replace(host_target(), caches=(first, replace(second, bytes=64 << 10)))
    program = model.program(tmp_path, made(model, model.input("x", 1, 16, 28, 28)))
    (name,) = chains_by_price(program, Schedules(target))
    together = chained(program, [name])
    assert len(together.tasks) == len(program.tasks) - 1
    (task,) = [bound.task for bound in together.tasks if bound.outputs == program.outputs]
    assert [bool(b.reduction) for b in task.blocks if isinstance(b, Block)].count(True) == 1
    tried = 0
    for sketch in {sketch.kind: sketch for sketch in sketches(task, target, Policy())}.values():
        points = sketch.random(1, np.random.default_rng(4))
        example = Example(task, random_inputs(task), atol=1e-4)  # Winograd's tiles of 8 x 8 round as much
        tried += len([check(example, sketch.candidate(point), target) for point in points])
    assert tried
    result = modelc.compile(tmp_path / "m.onnx", output=tmp_path / "a.modelc", target=target, database=False)
    assert result.report is not None and result.report.passed
    assert read_choices_file(tmp_path / "a.modelc" / "choices.json").layouts[0].chained == (name,)


def test_what_else_is_read_is_not_kept_inside_a_chain(tmp_path: Path) -> None:
    model = Model()
    x = model.input("x", 1, 8, 20, 20)
    output = model.node("Relu", model.node("Conv", x, model.weight(16, 8, 1, 1)))
    read_twice = model.node("Relu", model.node("Conv", output, model.weight(16, 16, 1, 1)))
    a, b = (model.node("Conv", read_twice, model.weight(24, 16, 1, 1)) for _ in range(2))
    program = model.program(tmp_path, output, a, b)
    assert len(program.tasks) == 4 and not followers(program)
    for name in (output, read_twice):
        with pytest.raises(InvalidIR, match="cannot stay inside a task"):
            chained(program, [name])


def test_softmax_is_no_chain(tmp_path: Path) -> None:
    model = Model()
    x = model.node("MatMul", model.input("x", 64, 32), model.weight(32, 48))
    program = model.program(tmp_path, model.node("Softmax", x, axis=-1))
    assert all(chain_of(task, host_target()) is None for task in every_chain(program))


def test_a_program_of_chains_computes_the_same(tmp_path: Path) -> None:
    program = separable(tmp_path, 12, (15, 13), 3, 2, 1, 1)
    between = [program.tasks[k].outputs[0] for k in followers(program)]
    assert len(between) == 2
    one = chained(program, between)
    assert len(one.tasks) == 1 and not {*between} & one.values.keys()
    random = np.random.default_rng(3)
    feeds = {n: random.standard_normal(program.values[n].shape).astype("f") for n in program.inputs}
    for name, value in run_program(one, feeds).items():
        np.testing.assert_allclose(value, run_program(program, feeds)[name], rtol=1e-4, atol=1e-4)


def test_prices_chain_what_leaves_the_caches(tmp_path: Path) -> None:
    """Where the last cache is of 256 KB, 1.2 MB between two Tasks would go to memory and come back."""
    large = separable(tmp_path, 12, (112, 112), 3, 1, 1, 1)
    chosen_values = chains_by_price(large, Schedules(SMALL_CACHES))
    assert chosen_values
    tasks = {k: bound.task for k, bound in enumerate(large.tasks)}
    apart = sum(map(Schedules(SMALL_CACHES).seconds, tasks.values()))
    together = sum(Schedules(SMALL_CACHES).seconds(b.task) for b in chained(large, chosen_values).tasks)
    assert together < 0.97 * apart
    small = separable(tmp_path, 12, (14, 14), 3, 1, 1, 1)
    assert not chains_by_price(small, Schedules(SMALL_CACHES)), "what is between is in the second-level cache anyway"


def test_a_package_with_chains(tmp_path: Path) -> None:
    """Judged kernel by kernel, rebuilt from its choices to the same bytes, and without chains where these are off."""
    separable(tmp_path, 12, (112, 112), 3, 1, 1, 1)
    path = tmp_path / "m.onnx"
    target = replace(host_target(), caches=host_target().caches[:2], cores=2)
    result = modelc.compile(path, output=tmp_path / "a.modelc", target=target, database=False)
    assert result.report is not None and result.report.passed
    choices = read_choices_file(tmp_path / "a.modelc" / "choices.json")
    assert choices.layouts[0].chained
    again = modelc.compile(path, output=tmp_path / "b.modelc", choices=tmp_path / "a.modelc" / "choices.json")
    for name in ("choices.json", "libmodel_m.so", "params.bin"):
        assert (tmp_path / "a.modelc" / name).read_bytes() == (tmp_path / "b.modelc" / name).read_bytes()
    assert again.steps == result.steps
    config = load_config()
    config = replace(config, policy=replace(config.policy, chains=False))
    apart = modelc.compile(path, output=tmp_path / "c.modelc", target=target, database=False, config=config)
    assert apart.steps > result.steps
