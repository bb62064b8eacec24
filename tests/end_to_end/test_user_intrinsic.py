"""Intrinsics that only a user's files know: kernels are made of them, and compute right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import small_model as small
import yaml
from disassembly import disassembled, innermost, scalar_multiplies
from library_of import library_of
from onnx import TensorProto, helper
from tensor_tasks import RAGGED, contraction, from_end_to_end, intrinsics_in, ways_of
from three_ways import check
from user_intrinsics import PAIRS

import modelc
from modelc.cli import main
from modelc.package import read_package
from modelc.space.choose import chosen
from modelc.target import Target, load_target
from modelc.target.host import read_host

# Two vpdpbusd as one: eight products in each lane. B is 1024 bits, which no register holds: it stays in memory.
TWICE = f"""
intrinsics:
  - name: twice
    architecture: x86_64
    features: [avx512f, avx512vnni]
    instruction: vpdpbusd
    operands:
      C: {{dtype: int32, shape: [16], lies: vector}}
      A: {{dtype: uint8, shape: [8], lies: memory}}
      B: {{dtype: int8, shape: [2, 16, 4], lies: memory}}
    semantics: |
      block dot [i:16 | k:8] add
        C[i] += int32(A[k]) * int32(B[k // 4, i, k % 4])
    implementation: >-
      call("llvm.x86.avx512.vpdpbusd.512", int32x16,
      call("llvm.x86.avx512.vpdpbusd.512", int32x16, C,
      bitcast(int8x64, broadcast(shuffle(bitcast(int32x2, A), [0]), 16)), shuffle(B, {[*range(64)]})),
      bitcast(int8x64, broadcast(shuffle(bitcast(int32x2, A), [1]), 16)), shuffle(B, {[*range(64, 128)]}))
    roundings: 0
    throughput: 1.0
    latency: 8
    temporaries: 4
"""


def mine(folder: Path, text: str, name: str, features: tuple[str, ...]) -> Target:
    """A target in a folder of its own, with the intrinsic in a file beside it as the only one of its dtypes."""
    (folder / f"{name}.yaml").write_text(text)
    tree = yaml.safe_load(load_target("x86-64-v4").to_yaml())
    tree |= {"features": [*tree["features"], *features], "intrinsics": ["avx512-f32", f"{name}.yaml"]}
    (folder / "mine.yaml").write_text(yaml.safe_dump(tree))
    return load_target(folder / "mine.yaml")


def runs_here(*features: str) -> None:
    if lacking := [feature for feature in features if feature not in read_host().features]:
        pytest.skip(f"this machine lacks {lacking[0]}")


@pytest.mark.parametrize("case", ["columns", "depth", "3x3"])
@pytest.mark.parametrize(
    ("name", "text", "kinds", "features"),
    [
        ("twice", TWICE, ("uint8", "int8"), ("avx512vnni",)),
        ("pairs", PAIRS, ("int16", "int16"), ()),
    ],
)
def test_a_kernel_is_made_of_it(
    name: str, text: str, kinds: tuple[str, str], features: tuple[str, ...], case: str, tmp_path: Path
) -> None:
    runs_here("avx512f", "avx512bw", *features)
    target = mine(tmp_path, text, name, features)
    task = contraction(RAGGED[case], kinds)
    assert list(ways_of(task, target)) == [name]
    assert intrinsics_in(chosen(task, target).candidate) == {name}
    check(from_end_to_end(task), None, target)


def test_the_command_line_compiles_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model of bytes with --target: verified against ONNX Runtime, named in the manifest, in the machine code."""
    runs_here("avx512f", "avx512bw", "avx512vnni")
    target = mine(tmp_path, TWICE, "twice", ("avx512vnni",))
    weights = {"w": np.random.default_rng(0).integers(-128, 127, (2048, 40), np.int8, endpoint=True)}
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w"], ["i"]),
        helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
    ]
    model = small.save(tmp_path / "m.onnx", nodes, {"x": ([19, 2048], TensorProto.UINT8)}, {"y": [19, 40]}, weights)
    package = tmp_path / "m.modelc"
    with pytest.raises(SystemExit) as done:
        main(["compile", str(model), "--target", str(tmp_path / "mine.yaml"), "-o", str(package)])
    assert not done.value.code, capsys.readouterr().err
    (step,) = read_package(package).manifest.variants[0].steps
    assert (step.intrinsic, step.instruction, step.dtype) == ("twice", "vpdpbusd", "int8")
    loops = innermost(disassembled(library_of(package), target.triple), "vpdpbusd")
    assert loops and not any(scalar_multiplies(loop, target.triple) for loop in loops)
    assert modelc.verify(package, model, seed=5).passed
