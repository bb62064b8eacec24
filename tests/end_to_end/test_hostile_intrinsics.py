"""A user's YAML of intrinsics that would reach memory, have LLVM end the process, or compute something else: every verb
refuses it with a sentence, before anything is compiled with it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import small_model as small
import yaml
from onnx import helper
from repository import ROOT

from modelc.cli import main
from modelc.codegen.intrinsics import checked
from modelc.codegen.lean_tvm import tvm
from modelc.errors import TargetError
from modelc.target import load_target, parse_intrinsics
from modelc.target.permitted import VECTORS

AMX = (ROOT / "targets/intrinsics/amx.yaml").read_text()
FMA = """
intrinsics:
  - name: own-fma
    architecture: x86_64
    features: [avx2, fma]
    instruction: vfmadd
    operands:
      C: {dtype: float32, shape: [8], lies: vector}
      A: {dtype: float32, shape: [], lies: memory}
      B: {dtype: float32, shape: [8], lies: vector}
    semantics: |
      block fma [i:8] add
        C[i] += A[()] * B[i]
    implementation: call("llvm.fma.v8f32", float32x8, broadcast(A, 8), B, C)
    roundings: 1
    throughput: 2.0
    latency: 4
    temporaries: 1
"""
SCATTER = """\
call("llvm.x86.avx512.scatter.dps.512", address, uint16(65535), int32x16(100000000), float32x16(1), int32(4))"""


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered from before."""
    monkeypatch.setenv("MODELC_CACHE", str(tmp_path / "cache"))
    checked._failure.cache_clear()


def beside(folder: Path, text: str) -> Path:
    """A target for this machine's kind whose only intrinsics are those of a file beside it."""
    (folder / "own.yaml").write_text(text)
    tree = yaml.safe_load(load_target("x86-64-v3").to_yaml()) | {"name": "mine", "intrinsics": ["own.yaml"]}
    (folder / "mine.yaml").write_text(yaml.safe_dump(tree))
    return folder / "mine.yaml"


def refusal(arguments: list[object], capsys: pytest.CaptureFixture[str]) -> str:
    """The sentence with which a command ends."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in (*arguments, "--json")])
    error: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    assert stop.value.code == 2 and error["kind"] in ("TargetError", "ConfigError"), error
    return str(error["message"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('call("llvm.x86.tilestored64", tile, address, stride)', SCATTER),
        ('call("llvm.x86.tilestored64", tile, address, stride)', 'call("llvm.x86.sse2.clflush", address)'),
        ('call("llvm.x86.tilerelease")', 'call("llvm.x86.sse2.mfence")'),
    ],
)
def test_tiles_reach_memory_by_their_own_instructions_alone(old: str, new: str) -> None:
    assert old in AMX
    with pytest.raises(TargetError, match="is not permitted; expected what sets tile registers of x86_64 up"):
        parse_intrinsics(AMX.replace(old, new), "t.yaml")


def test_compile_refuses_to_scatter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = beside(tmp_path, AMX.replace('call("llvm.x86.tilestored64", tile, address, stride)', SCATTER))
    said = refusal(["compile", small.model(), "--target", path, "-o", tmp_path / "p", "--no-verify"], capsys)
    assert "own.yaml: tiles.store: llvm.x86.avx512.scatter.dps.512 is not permitted" in said


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('load: call("llvm.x86.tileloadd64"', 'load: call("llvm.x86.tilestored64"'),
        ("rows: {at: 48, width: 1}", "rows: {at: 56, width: 1}"),  # tiles are as tall as `fixed` says then
        ("fixed: {0: 1}", "fixed: {0: 1, 55: 16}"),
        ("permission: 18", "permission: 17"),
    ],
)
def test_what_moves_tiles_is_as_shipped(old: str, new: str) -> None:
    """The table says how many rows an instruction reads and writes: an index of a tile beyond its buffer."""
    assert old in AMX and parse_intrinsics(AMX, "t.yaml")
    with pytest.raises(TargetError, match=r"tiles is .*; expected word for word those of a shipped file"):
        parse_intrinsics(AMX.replace(old, new), "t.yaml")


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ('call("llvm.x86.tdpbusd", C, A, uint8(9))', "expected one call with some of C, A, B"),
        ('call("llvm.x86.tileloadd64", C, A, B)', "not permitted; expected the products of tile registers"),
    ],
)
def test_tiles_are_multiplied_by_name(code: str, sentence: str) -> None:
    with pytest.raises(TargetError, match=sentence):
        parse_intrinsics(AMX.replace('call("llvm.x86.tdpbusd", C, A, B)', code), "t.yaml")


@pytest.mark.parametrize(
    "name",
    [
        *("x86.avx512.scatter.dps.512", "x86.avx2.gather.d.ps.256", "x86.rdtsc", "x86.sse.ldmxcsr", "x86.xabort"),
        *("x86.avx512.mask.compress.store.d.512", "x86.int", "memset.p0.i64", "trap", "x86.vbcstnesh2ps256"),
    ],
)
def test_vectors_are_computed_by_what_is_listed(name: str) -> None:
    with pytest.raises(TargetError, match=f"llvm.{name} is not permitted; expected products, sums, conversions"):
        parse_intrinsics(FMA.replace("llvm.fma.v8f32", f"llvm.{name}"), "t.yaml")


def test_nothing_that_is_listed_moves_or_waits() -> None:
    """All names that LLVM has, by the families of names."""
    name_of = tvm.get_global_func("target.llvm_get_intrinsic_name")
    names = [name_of(number) for number in range(1, 16_000)]
    others = ("load", "store", "gather", "scatter", "prefetch", ".mov", "fence", "mxcsr", "flush", "atomic", "compress")
    others += (".ld", ".st", "ldtile", "rdrand", "rdtsc", "crc", "mask", "rotate", ".sve.", ".sme.", "memory", "throw")
    for architecture, permitted in VECTORS.items():
        listed = [name for name in names if permitted.names.fullmatch(name)]
        assert len(listed) >= (16 if architecture == "riscv64" else 40)
        assert not [name for name in listed if any(word in name for word in others)]


WRONG = {
    "llvm ends the process": (
        FMA.replace("features: [avx2, fma]", "features: [avx2]").replace(
            'call("llvm.fma.v8f32", float32x8, broadcast(A, 8), B, C)',
            'bitcast(float32x8, call("llvm.x86.avx2.vpdpbssd.256", int32x8, bitcast(int32x8, C), bitcast(int8x32, B), '
            "bitcast(int8x32, broadcast(A, 8))))",
        ),
        "LLVM cannot compile it: LLVM ERROR",
    ),
    "types do not fit": (
        FMA.replace("broadcast(A, 8), B, C", "broadcast(A, 8), B"),
        "it cannot be compiled",
    ),
    "something else": (FMA.replace("B, C)", "B, B)"), r"its semantics give"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_compile_asks_first(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, reason = WRONG[kind]
    path = beside(tmp_path, text)
    said = refusal(["compile", small.model(), "--target", path, "-o", tmp_path / "p", "--no-verify"], capsys)
    assert said.startswith("model") or said.startswith("target mine"), said
    assert "nothing is compiled with the intrinsic own-fma" in said and reason in said
    assert not (tmp_path / "p").exists()


def test_tune_and_build_ask_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, shapes = beside(tmp_path, WRONG["something else"][0]), ({"x": [4, 8]}, {"y": [4, 8]}, {})
    model = small.save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], *shapes)
    own = ["--no-database"]
    said = refusal(["tune", model, "--target", path, "--budget", "1", "-o", tmp_path / "p", *own], capsys)
    assert "nothing is compiled with the intrinsic own-fma" in said
    matrix = {"schema": 1, "targets": ["mine.yaml"], "models": {"m": {"path": "m.onnx"}}}
    (tmp_path / "modelc.yaml").write_text(yaml.safe_dump(matrix))
    with pytest.raises(SystemExit) as stop:
        main(["build", str(tmp_path / "modelc.yaml"), "-o", str(tmp_path / "out"), *own])
    assert stop.value.code == 1 and "nothing is compiled with the intrinsic own-fma" in capsys.readouterr().err


def test_what_is_right_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **o: asked.append(command[-1]) or run(command, **o))
    target = load_target(beside(tmp_path, FMA))
    for _ in range(2):
        checked.require_checked(target)
        checked._failure.cache_clear()  # as in another process
    assert asked == ["modelc.codegen.intrinsics.check"]
    checked.require_checked(load_target("x86-64-v4"))
    assert len(asked) == 1
