"""Kernels whose machine code needs options of LLVM's own, and others, made by several threads at once; what LLVM is
kept from analysing."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attention_tasks import FUSED, attention, fused_task
from contraction_tasks import conv
from partition_models import Model
from tensor_tasks import contraction

from modelc.codegen.kernels import compile_nest, spills_accumulators
from modelc.codegen.lower import expressions
from modelc.codegen.lower.nest import lower_nest
from modelc.space.choose import accepted, chosen
from modelc.space.sketches.winograd import Shape, Winograd, filtered
from modelc.target import load_target


def test_code_is_the_same_however_many_threads_make_it(tmp_path: Path) -> None:
    target, model = load_target("x86-64-v4"), Model()
    fused = fused_task(model, tmp_path, attention(model, 24, 24), FUSED.format("")).canonical()
    product = contraction(("MatMul", {}, (64, 64), (64, 64)), ("float32", "float32", "float32"))
    nests = [chosen(task, target).nest for task in (fused, product)]
    assert [spills_accumulators(nest) for nest in nests] == [True, False]
    alone = [compile_nest(nest, "k", target).object for nest in nests]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda nest: compile_nest(nest, "k", target).object, nests * 6))
    assert together == alone * 6


def test_long_loops_have_the_same_code_unanalysed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that keeps LLVM from comparing addresses stands in loops over transforms, and leaves no trace."""
    task, target = conv(1, 32, (14, 14), 32), load_target("x86-64-v3")
    sketch = Winograd(filtered(task, target, [], 7), Shape.ROWS)
    nest = accepted(task, sketch.candidate(sketch.start()), target).nest
    counted, objects = [], []
    for length in (expressions.LONG, 1 << 30):
        monkeypatch.setattr(expressions, "LONG", length)
        counted.append(str(lower_nest(nest, "k")[0].function).count("llvm.annotation"))
        objects.append(compile_nest(nest, "k", target).object)
    assert counted[0] >= 2 and counted[1] == 0
    assert objects[0] == objects[1]
