"""Kernels whose machine code needs options of LLVM's own, and others, made by several threads at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from partition_models import Model
from tensor_tasks import contraction
from test_attention import FUSED, attention, fused_task

from modelc.codegen.kernels import compile_nest, spills_accumulators
from modelc.space.choose import chosen
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
