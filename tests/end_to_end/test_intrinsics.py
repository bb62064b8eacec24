"""Intrinsics as data: strict YAML, code against semantics, in kernels and on the command line."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import subprocess
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_model as small
import tvm
import yaml
from onnx import helper
from repository import ROOT
from tvm import tirx as tx

from modelc.cli import main
from modelc.codegen.intrinsics.check import (
    check_intrinsic,
    compile_application,
    difference,
    random_operands,
)
from modelc.codegen.intrinsics.checked import Outcome, check_intrinsics
from modelc.codegen.intrinsics.lowering import Place, emit, imported, load, store, table_bytes
from modelc.codegen.llvm import build_module
from modelc.errors import TargetError
from modelc.ir.block import compact_strides
from modelc.ir.interpret import run_block
from modelc.package import read_package
from modelc.target import Intrinsic, list_targets, load_target, parse_intrinsics, parse_target, shipped_intrinsics
from modelc.target.host import read_host
from modelc.target.intrinsic_code import CodeError, VectorType, parse_code
from modelc.target.permitted import VECTORS

SHIPPED = {one.name: one for one in shipped_intrinsics()}
FOLDER = ROOT / "targets/intrinsics"
TARGETS = [name for name in list_targets() if name != "native"]

# Not an instruction of its own: a dot product over pairs, by products of 16-bit numbers.
INVENTED = """
intrinsics:
  - name: pairs
    architecture: x86_64
    features: [avx2]
    instruction: vpmaddwd
    operands:
      C: {dtype: int32, shape: [8], lies: vector}
      A: {dtype: int16, shape: [2], lies: memory}
      B: {dtype: int16, shape: [8, 2], lies: vector}
    semantics: |
      block dot [i:8 | k:2] add
        C[i] += int32(A[k]) * int32(B[i, k])
    implementation: C + call("llvm.x86.avx2.pmadd.wd", int32x8, bitcast(int16x16, broadcast(bitcast(int32, A), 8)), B)
    roundings: 0
    throughput: 2.0
    latency: 6
    temporaries: 2
"""


def changed(key: str, value: object, text: str = INVENTED) -> str:
    """The file with another value at a dotted path; None takes the key away."""
    tree: Any = yaml.safe_load(text)
    *path, last = key.split(".")
    part = tree
    for step in path:
        part = part[int(step)] if isinstance(part, list) else part[step]
    if value is None:
        del part[last]
    else:
        part[last] = value
    return yaml.safe_dump(tree, sort_keys=False)


# --- code against semantics -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_intrinsic_computes_its_semantics(name: str) -> None:
    outcome = check_intrinsic(SHIPPED[name])
    assert outcome.status != "wrong", outcome.reason
    assert SHIPPED[name].instruction in outcome.reason
    if outcome.status == "not run":
        pytest.skip(outcome.reason)


def test_this_machine_runs_what_it_has() -> None:
    host = read_host()
    arch = {"x86_64": "x86_64", "aarch64": "aarch64"}.get(platform.machine(), "armv7")
    mine = [one for one in SHIPPED.values() if one.allowed(arch, host.features) and one.tiles is None]
    assert mine and all(check_intrinsic(one).status == "right" for one in mine[:2])


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("vnni", "A: {dtype: uint8", "A: {dtype: int8", r"C\[\d+\] is -?\d+; its semantics give -?\d+"),
        ("fma", "broadcast(A, 16), B, C", "broadcast(A, 16), B, B", r"C\[0\] is .*; its semantics give"),
        ("vnni", "instruction: vpdpbusd", "instruction: vpdpwssd", "its code has no vpdpwssd"),
        ("vnni", "vpdpbusd.512", "vpdpbusd.513", "LLVM has no intrinsic llvm.x86.avx512.vpdpbusd.513"),
        ("vnni", "vpdpbusd.512", "vpdpwssd.512", "Call parameter type does not match"),
        ("vnni", "features: [avx512f, avx512vnni]", "features: [avx512f]", "LLVM cannot compile it: LLVM ERROR"),
    ],
)
def test_what_is_wrong_is_found(file: str, old: str, new: str, reason: str) -> None:
    text = (FOLDER / f"{file}.yaml").read_text()
    assert old in text
    one = parse_intrinsics(text.replace(old, new), "t.yaml")[0]
    other = parse_intrinsics(INVENTED, "t.yaml")[0]
    found = list(check_intrinsics([one, other]))
    if found[0].status == "not run":
        pytest.skip(found[0].reason)
    assert found[0].status == "wrong" and re.search(reason, found[0].reason), found[0]
    assert found[1].name == "pairs" and found[1].status != "wrong"  # goes on after LLVM ends the process


def test_the_bound_on_roundings() -> None:
    fma = SHIPPED["avx512-f32"]
    operands = random_operands(fma, 0)
    exact = operands["C"].astype(np.float64) + operands["A"].astype(np.float64) * operands["B"].astype(np.float64)
    rounded = exact.astype(np.float32)
    assert difference(fma, operands, rounded) is None
    off = rounded.copy()
    off[3] = np.nextafter(np.nextafter(off[3], np.float32(9)), np.float32(9))
    off[5] = np.nan
    assert (difference(fma, operands, off) or "").startswith("C[3] is ")
    off[3] = rounded[3]
    assert (difference(fma, operands, off) or "").startswith("C[5] is nan")


def test_tiles_are_set_up_by_a_table() -> None:
    tiles = SHIPPED["amx-bf16"].tiles
    assert tiles is not None and tiles.permission == 18
    table = table_bytes(tiles, {0: (14, 64), 6: (16, 48)})
    assert len(table) == 64 and table[0] == 1 and table[16] == 64 and table[28] == 48
    assert table[48] == 14 and table[54] == 16 and sum(table) == 1 + 64 + 48 + 14 + 16
    with pytest.raises(ValueError, match="tile 8 of 16 rows"):
        table_bytes(tiles, {8: (16, 64)})


def test_a_group_of_tiles_has_all_of_its_members_in_code() -> None:
    _, assembly = compile_application(SHIPPED["amx-u8s8"])
    members = ("ldtilecfg", "tileloadd", "tdpbusd", "tilezero", "tilestored", "tilerelease")
    found = [line.split()[0] for line in assembly.splitlines() if line.strip().startswith(members)]
    assert found == [
        *("ldtilecfg", "tileloadd", "tileloadd", "tileloadd", "tdpbusd"),
        *("tilezero", "tileloaddt1", "tileloaddt1", "tdpbusd"),
        *("tilestored", "tilestored", "tilerelease"),
    ]


# --- in a kernel ------------------------------------------------------------------------------------------------------


def test_a_register_tile_by_an_intrinsic_reads_bytes_and_vectors_from_memory(tmp_path: Path) -> None:
    """acc[6 rows, 2 vectors] += dot(A[row, 4 bytes], W[k][vector][16][4]), rows 24 bytes apart."""
    vnni = SHIPPED["avx512-vnni"]
    if set(vnni.features) - set(read_host().features):
        pytest.skip("this machine lacks avx512vnni")
    rows, vectors, steps = 6, 2, 6
    a, b, c = vnni.operand("A"), vnni.operand("B"), vnni.operand("C")
    given = {"a": ("uint8", rows * steps * 4), "w": ("int8", steps * vectors * 64), "y": ("int32", rows * vectors * 16)}
    params, declared, buffers = [], [], {}
    for name, (dtype, size) in given.items():
        pointer = tx.Var(name, tvm.ir.PointerType(tvm.ir.PrimType(dtype)))
        buffers[name] = tx.decl_buffer((size,), dtype, f"{name}_", data_alignment=1)
        declared.append(tx.DeclBuffer(buffers[name], data=pointer))
        params.append(pointer)
    slots = {
        (r, v): tx.decl_buffer((16,), "int32", f"acc{r}_{v}", scope="local")
        for r in range(rows)
        for v in range(vectors)
    }
    k = tx.Var("k", "int32")
    code: list[Any] = [tx.AllocBuffer(slot) for slot in slots.values()]
    zeros = tx.Broadcast(tx.IntImm("int32", 0), 16)
    for slot in slots.values():
        code += store(c, Place(slot, 0, (1,)), zeros)
    inner: list[Any] = []
    for (r, v), slot in slots.items():
        places = {
            "C": Place(slot, 0, (1,)),
            "A": Place(buffers["a"], k * 4 + r * steps * 4, (1,)),
            "B": Place(buffers["w"], k * (vectors * 64) + v * 64, compact_strides(b.shape)),
        }
        inner += store(c, places["C"], emit(vnni, {**places, "A": load(a, places["A"])}))
    code.append(tx.For(k, tx.IntImm("int32", 0), tx.IntImm("int32", steps), tx.ForKind.SERIAL, tx.SeqStmt(inner)))
    for (r, v), slot in slots.items():
        code += store(c, Place(buffers["y"], (r * vectors + v) * 16, (1,)), load(c, Place(slot, 0, (1,))))
    machine = tvm.target.Target(
        {
            "kind": "llvm",
            "mtriple": "x86_64-linux-gnu",
            "mcpu": "x86-64-v4",
            "mattr": ["+avx512vnni", "-prefer-256-bit"],
        }
    )
    function = tx.PrimFunc(params, imported([vnni], tx.SeqStmt([*declared, *code])))
    function = function.with_attr("global_symbol", "tile").with_attr("tirx.noalias", True).with_attr("target", machine)
    module = build_module(tvm.IRModule({"tile": function}), machine)
    assembly = module.inspect_source("s")
    assert assembly.count("vpdpbusd") >= rows * vectors
    assert "{1to16}" in assembly or "vpbroadcastd" in assembly
    assert not re.search(r"zmm\d+, -?\d*\(%rsp\)", assembly)  # accumulators stay in registers
    module.write_to_file(str(tmp_path / "tile.o"), "o")
    subprocess.run(["cc", "-shared", "tile.o", "-o", "tile.so"], cwd=tmp_path, check=True)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (rows, steps * 4), np.uint8, endpoint=True)
    w = rng.integers(-128, 127, (steps * 4, vectors * 16), np.int8, endpoint=True)
    packed = np.ascontiguousarray(w.reshape(steps, 4, vectors, 16).transpose(0, 2, 3, 1))
    y = np.zeros((rows, vectors * 16), np.int32)
    kernel = ctypes.CDLL(str(tmp_path / "tile.so")).tile
    kernel(*(ctypes.c_void_p(array.ctypes.data) for array in (x, packed, y)))
    np.testing.assert_array_equal(y, x.astype(np.int32) @ w.astype(np.int32))


def test_operands_that_lie_unevenly_are_put_together() -> None:
    """2 rows of 8 bytes that are 32 bytes apart, as one vector."""
    smmla = SHIPPED["neon-smmla"]
    buffer = tx.decl_buffer((64,), "int8", "a")
    value = load(smmla.operand("A"), Place(buffer, 3, (32, 1)))
    assert str(value.ty.dtype if hasattr(value, "ty") else value.dtype) == "int8x16"
    assert [str(v.indices[0]) for v in value.vectors] == [
        "T.Ramp(3, 1, 8)",
        "T.Ramp(35, 1, 8)",
    ]
    single = load(smmla.operand("A"), Place(buffer, 0, (8, 1)))
    assert [str(i) for i in single.indices] == ["T.Ramp(0, 1, 16)"]


# --- invented, in a folder --------------------------------------------------------------------------------------------


def test_an_invented_intrinsic_beside_a_target(tmp_path: Path) -> None:
    (tmp_path / "pairs.yaml").write_text(INVENTED)
    text = load_target("x86-64-v3").to_yaml().replace("- avx2-f32", "- avx2-f32\n- pairs.yaml")
    (tmp_path / "mine.yaml").write_text(text)
    target = load_target(str(tmp_path / "mine.yaml"))
    listed = ["avx2-f32", "pairs", "avx2-int8x64", "avx2-int8x127", "avx2-int16", "avx2-int16x16"]
    assert [one.name for one in target.available_intrinsics] == listed
    assert parse_target(target.to_yaml(), str(tmp_path / "again.yaml")) == target
    pairs = target.available_intrinsics[1]
    outcome = check_intrinsic(pairs)
    assert outcome.status in ("right", "not run") and "vpmaddwd" in outcome.reason
    operands = random_operands(pairs, 1)
    a, b = operands["A"].astype(np.int64), operands["B"].astype(np.int64)
    run_block(pairs.semantics, operands)
    assert np.array_equal(operands["C"], (b @ a).astype(np.int32))


def test_a_user_adds_an_intrinsic_by_a_file_and_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both files in a folder that is not the current one; the command line checks, shows and compiles for it."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "board").mkdir()
    (tmp_path / "board/pairs.yaml").write_text(INVENTED)
    text = load_target("x86-64-v3").to_yaml().replace("- avx2-f32", "- avx2-f32\n- pairs.yaml")
    (tmp_path / "board/mine.yaml").write_text(text)

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as done:
            main(arguments)
        return int(done.value.code or 0), capsys.readouterr().out

    code, out = run("targets", "check", "board/mine.yaml", "--json")
    assert code == 0
    assert {one["name"] for one in json.loads(out)["outcomes"] if one["status"] != "wrong"} == {
        "avx2-f32",
        "avx2-int8x64",
        "avx2-int8x127",
        "avx2-int16",
        "avx2-int16x16",
        "pairs",
    }
    code, out = run("targets", "show", "board/mine.yaml", "--json")
    listed = ["avx2-f32", "pairs.yaml", "avx2-int8x64", "avx2-int8x127", "avx2-int16", "avx2-int16x16"]
    assert code == 0 and json.loads(out)["target"]["intrinsics"] == listed
    model = small.save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [64]}, {"y": [64]}, {})
    code, _ = run("compile", str(model), "--target", "board/mine.yaml", "-o", "p.modelc", "--no-verify", "--json")
    assert code == 0 and read_package(tmp_path / "p.modelc").manifest.target.triple == "x86_64-linux-gnu"


def test_the_command_line_checks_both_kinds_of_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            main(["targets", "check", *map(str, arguments)])
        captured = capsys.readouterr()
        return int(done.value.code or 0), captured.out, captured.err

    path = tmp_path / "pairs.yaml"
    path.write_text(INVENTED)
    code, out, _ = run(path, "--json")
    (outcome,) = (Outcome(**one) for one in json.loads(out)["outcomes"])
    assert code == 0 and outcome.name == "pairs" and outcome.status in ("right", "not run")
    path.write_text(INVENTED.replace("implementation: C + call", "implementation: C - call"))
    code, out, err = run(path)
    if "wrong" in out:
        assert code == 1 and "pairs: wrong, C[" in out and "1 of 1 intrinsics fail: pairs" in err
    path.write_text(changed("intrinsics.0.features", ["avx3"]))
    code, out, err = run(path)
    assert code == 2 and out == "" and "intrinsics[0].features[0] is 'avx3'; expected a feature of x86_64" in err
    (tmp_path / "target.yaml").write_text(load_target("raspberry-pi-4").to_yaml().replace("cortex-a72", "cortex-a9"))
    code, out, err = run(tmp_path / "target.yaml")
    assert code == 2 and "cpu is 'cortex-a9'; expected a CPU that LLVM knows for aarch64-linux-gnu" in err
    (tmp_path / "target.yaml").write_text(load_target("raspberry-pi-4").to_yaml())
    code, out, _ = run(tmp_path / "target.yaml")
    assert code == 0 and out.startswith("neon-f32: ") and out.endswith("target.yaml is valid\n")


# --- what a file must say ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TARGETS)
def test_a_shipped_target_names_every_shipped_intrinsic_that_it_can_run(name: str) -> None:
    target = load_target(name)
    assert target.intrinsics is not None
    allowed = [name for name, one in SHIPPED.items() if one.allowed(target.architecture.name, target.features)]
    named, available = ({one.name for one in each} for each in (target.intrinsics, target.available_intrinsics))
    assert named == set(allowed) == available


def test_without_the_key_a_target_has_what_its_features_allow() -> None:
    tree = yaml.safe_load(load_target("x86-64-v4").to_yaml())
    tree["features"] += ["avx512vnni", "amx-tile", "amx-int8"]
    del tree["intrinsics"]
    target = parse_target(yaml.safe_dump(tree), "t.yaml")
    assert target.intrinsics is None
    assert {one.name for one in target.available_intrinsics} == {
        *("avx512-f32", "avx2-f32", "avx512-int16", "avx512-int16x16"),
        *("avx2-int8x64", "avx2-int8x127", "avx2-int16", "avx2-int16x16"),
        *("avx512-vnni", "amx-u8s8", "amx-s8s8"),
    }
    assert parse_target(target.to_yaml(), "t.yaml") == target


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("avx512-f32", "intrinsics is 'avx512-f32'; expected a list of intrinsics' names"),
        ([7], "intrinsics[0] is 7; expected the name of an intrinsic"),
        (["avx2-f31"], "intrinsics[0] is 'avx2-f31'; expected one of amx-u8s8"),
        (["avx2-f31"], "did you mean avx2-f32?"),
        (["neon-sdot"], "intrinsics[0] is 'neon-sdot'; expected an intrinsic of x86_64: neon-sdot is of aarch64"),
        (["avx512-vnni"], "expected the feature avx512f among the target's, which avx512-vnni needs"),
        (["avx2-f32", "avx2-f32"], "intrinsics[1] is 'avx2-f32'; expected each intrinsic once"),
        (["../x.yaml"], "expected a path that stays in the folder of this file"),
        (["/etc/x.yaml"], "expected a path that stays in the folder of this file"),
        (["away.yaml"], "expected a path that stays in the folder of this file"),
        (["a\0.yaml"], "intrinsics[0] is 'a\\x00.yaml'; expected a path of at most 200 printable characters"),
        (["a" * 999 + ".yaml"], "expected a path of at most 200 printable characters"),
        (["pipe.yaml"], "pipe.yaml is not a file of intrinsics: it is no file"),
        (["mine.yaml"], "mine.yaml has an unknown key 'caches'; expected intrinsics, tiles"),
        (["none.yaml"], "none.yaml cannot be read as a file of intrinsics: No such file"),
    ],
)
def test_what_a_target_cannot_list(value: object, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.yaml").write_text(INVENTED)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "away.yaml").symlink_to("../elsewhere.yaml")
    os.mkfifo(folder / "pipe.yaml")
    tree = {**yaml.safe_load(load_target("x86-64-v3").to_yaml()), "intrinsics": value}
    (folder / "mine.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(TargetError) as error:
        load_target(folder / "mine.yaml")
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("extra", 1, "t.yaml has an unknown key 'extra'; expected intrinsics, tiles"),
        ("intrinsics", [], "intrinsics is []; expected between 1 and 100 intrinsics"),
        ("intrinsics.0.latency", None, "intrinsics[0] lacks the key 'latency'"),
        ("intrinsics.0.name", "a b", "intrinsics[0].name is 'a b'; expected a name"),
        (
            "intrinsics.0.architecture",
            "sparc",
            "intrinsics[0].architecture is 'sparc'; expected one of x86_64, aarch64",
        ),
        ("intrinsics.0.features", ["neon"], "intrinsics[0].features[0] is 'neon'; expected a feature of x86_64"),
        ("intrinsics.0.features", [], "operands.C.shape is [8]; expected at most the 128 bits of a vector"),
        ("intrinsics.0.features", ["avx2", "avx2"], "intrinsics[0].features[1] is 'avx2'; expected each feature once"),
        ("intrinsics.0.instruction", "v", "instruction is 'v'; expected a mnemonic"),
        ("tiles", 3, "tiles is 3; expected no such key, as no operand lies in a tile"),
        (
            "intrinsics.0.semantics",
            "block d [i:0 | k:2] add\n  C[i] += int32(A[k]) * int32(B[i, k])",
            "expected 1 to 16777216 points",
        ),
        ("intrinsics.0.instruction", "rm -rf", "instruction is 'rm -rf'; expected a mnemonic"),
        ("intrinsics.0.operands", [], "operands is []; expected a mapping"),
        ("intrinsics.0.operands.int8", {}, "operands is 'int8'; expected names such as A"),
        ("intrinsics.0.operands.A.dtype", "int9", "operands.A.dtype is 'int9'; expected one of float32"),
        ("intrinsics.0.operands.A.lies", "cloud", "operands.A.lies is 'cloud'; expected one of vector, memory, tile"),
        ("intrinsics.0.operands.A.lies", "tile", "operands.A.lies is 'tile'; expected vector or memory"),
        ("intrinsics.0.operands.C.lies", "memory", "operands.C.lies is 'memory'; expected vector, as the semantics"),
        ("intrinsics.0.operands.A.shape", [0], "operands.A.shape is [0]; expected positive whole numbers"),
        (
            "intrinsics.0.operands.A.shape",
            [9999],
            "operands.A.shape is [9999]; expected positive whole numbers, at most",
        ),
        ("intrinsics.0.operands.A.shape", [4], "operands.A.shape[0] is 4; expected 2, as in A[k]"),
        ("intrinsics.0.operands.B.shape", [8], "semantics: block dot: B[i, k] has 2 indices, and B has 1"),
        ("intrinsics.0.operands.D", {"dtype": "int8", "shape": [], "lies": "memory"}, "one access to D, found 0"),
        ("intrinsics.0.semantics", "block", "semantics: line 1: expected 'block NAME"),
        ("intrinsics.0.semantics", "block d [i:8] max\n  C[i] max= C[i]", "expected a block that adds to one operand"),
        (
            "intrinsics.0.semantics",
            "block d [i:8 | k:2] add\n  C[i] += A[k] * B[i, k]",
            "int16 is written to C, which is",
        ),
        ("intrinsics.0.semantics", "block d [i:8 | k:2] add\n  C[i] += int32(Q[k])", "Q is no operand"),
        (
            "intrinsics.0.semantics",
            "block d [i:8 | k:2] add\n  C[i] += int32(A[1 - k]) * int32(B[i, k])",
            "semantics is 'A[1 - k]'; expected indices that are iterators or digits of them",
        ),
        (
            "intrinsics.0.semantics",
            "block d [i:8 j:2 | k:2] add\n  C[i] += int32(A[k]) * int32(B[i, k])",
            "C[i] does not depend on 'j'",
        ),
        ("intrinsics.0.implementation", "D", "implementation: 'D' is none of C, A, B"),
        ("intrinsics.0.implementation", "A", "expected code that gives int32x8, found int16x2"),
        ("intrinsics.0.implementation", "widen(int32x8, C)", "int32x8 widened to int32x8; whole numbers become"),
        ("intrinsics.0.operands.B.within", [-64, 64, 1], "expected the least and the largest whole number"),
        ("intrinsics.0.operands.B.within", [-70000, 64], "of those of int16"),
        ("intrinsics.0.implementation", "().__class__", "is no name, call, bitcast, broadcast, widen"),
        (
            "intrinsics.0.implementation",
            'call("llvm.memcpy.p0", C)',
            "llvm.memcpy.p0 is not permitted; expected products, sums",
        ),
        ("intrinsics.0.implementation", 'call("llvm.aarch64.neon.sdot", C)', "llvm.aarch64.neon.sdot is not permitted"),
        ("intrinsics.0.roundings", -1, "roundings is -1; expected a whole number from 0"),
        ("intrinsics.0.throughput", 0, "throughput is 0; expected a positive number"),
        ("intrinsics.0.temporaries", 99, "temporaries is 99; expected a whole number from 0 to 16"),
    ],
)
def test_what_an_intrinsic_cannot_say(key: str, value: object, sentence: str) -> None:
    with pytest.raises(TargetError) as error:
        parse_intrinsics(changed(key, value), "t.yaml")
    assert str(error.value).startswith("t.yaml") and sentence in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("tiles.count", 0, "tiles.count is 0; expected a whole number from 1"),
        ("tiles.rows", 8, "operands.C.shape is [16, 16]; expected at most 8 rows of 64 bytes"),
        ("tiles.row_bytes", 32, "operands.C.shape is [16, 16]; expected at most 16 rows of 32 bytes"),
        ("tiles.table.fixed", {70: 1}, "tiles.table.fixed is {70: 1}; expected a mapping of offsets below 64"),
        ("tiles.table.rows", {"at": 60, "width": 1}, "rows.at is 60; expected room for 8 numbers"),
        ("tiles.load", 'call("llvm.x86.tileloadd64", table)', "tiles.load: 'table' is none of tile, address, stride"),
        ("tiles.zero", "tile", "tiles.zero is 'tile'; expected code that gives nothing"),
        ("tiles.permission", "yes", "tiles.permission is 'yes'; expected a whole number"),
        ("tiles", None, "operands.C.lies is 'tile'; expected vector or memory"),
        ("intrinsics.0.implementation", "C", "implementation is 'C'; expected code that gives nothing"),
    ],
)
def test_what_tiles_cannot_say(key: str, value: object, sentence: str) -> None:
    with pytest.raises(TargetError) as error:
        parse_intrinsics(changed(key, value, (FOLDER / "amx.yaml").read_text()), "t.yaml")
    assert sentence in str(error.value)


NAMES = {"v": VectorType("int8", 16), "w": VectorType("int32", 4), "s": VectorType("int32")}


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("v", "int8x16"),
        ("bitcast(int32x4, v)", "int32x4"),
        ("broadcast(s, 8)", "int32x8"),
        ("shuffle(w, [3, 2])", "int32x2"),
        ("shuffle(w, w, [0, 7])", "int32x2"),
        ("w + w * int32x4(-3)", "int32x4"),
        ('call("llvm.x86.sse2.pmadd.wd", float32x4, v, s)', "float32x4"),
        ('call("llvm.x86.sse2.pmadd.wd", v)', "None"),
    ],
)
def test_code_has_types(text: str, given: str) -> None:
    assert str(parse_code(text, NAMES, VECTORS["x86_64"]).type) == given


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("bitcast(int32x2, v)", r"a bitcast of int8x16 \(128 bits\) to int32x2 \(64 bits\)"),
        ("broadcast(w, 2)", "a broadcast of int32x4"),
        ("shuffle(w, v, [0])", "vectors of one type"),
        ("shuffle(w, [4])", "lanes below 4"),
        ("w + v", "add of int32x4 and int8x16"),
        ("w // w", "is no name"),
        ("int8(300)", "300 is no constant of int8"),
        ("int8(-129)", "-129 is no constant of int8"),
        ("int8x9999(1)", "is no name"),
        ("call(v)", "call takes the name"),
        ('call("llvm.x86.x; ret", v)', "call takes the name"),
        ("v[0]", "is no name"),
        ("v(", "not an expression"),
        ("+".join(["s"] * 5000), "nested too deeply"),
        ('broadcast(call("llvm.x86.sse2.pmadd.wd", v), 4)', "is no vector"),
    ],
)
def test_code_that_does_not_fit(text: str, sentence: str) -> None:
    with pytest.raises(CodeError, match=sentence):
        parse_code(text, NAMES, VECTORS["x86_64"])


def test_digits_say_how_an_operand_lies() -> None:
    b = SHIPPED["amx-bf16"].operand("B")
    assert [(d.iterator, d.step, d.extent) for d in b.digits] == [("k", 2, 16), ("j", 1, 16), ("k", 1, 2)]
    assert all(prod(o.shape) == o.type.lanes for o in SHIPPED["amx-bf16"].operands)
    assert isinstance(SHIPPED["amx-bf16"], Intrinsic) and SHIPPED["amx-bf16"].accumulator.name == "C"
