"""Targets: strict YAML, the shipped files, the probe of this machine, and what LLVM makes of each."""

from __future__ import annotations

import dataclasses
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from repository import ROOT

from modelc.errors import TargetError
from modelc.package.toolchain import check_object, machine_of
from modelc.target import (
    Peak,
    Target,
    Unit,
    best_unit,
    list_targets,
    llvm_target,
    load_target,
    native,
    parse_target,
    probe,
    read_target,
)
from modelc.target.host import Host, read_host
from modelc.target.isa import ARCHITECTURES
from modelc.target.native import timing_of
from modelc.target.schema import VectorUnit

SHIPPED = tuple(name for name in list_targets() if name != "native")


def valid() -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(load_target("x86-64-v3").to_yaml())
    return tree


def changed(path: str, value: object) -> str:
    """A valid file with the value at a dotted path replaced, added, or (None) removed."""
    tree = valid()
    at: Any = tree
    *outer, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in outer:
        at = at[step]
    if value is None:
        del at[last]
    else:
        at[last] = value
    text: str = yaml.safe_dump(tree)
    return text


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("colour", "red", "t.yaml has an unknown key 'colour'; expected name, triple"),
        ("vector.width", 8, "vector has an unknown key 'width'; expected bits, registers"),
        ("caches.1.colour", 8, "caches[1] has an unknown key 'colour'"),
        ("peak.float128", 8, "peak has an unknown key 'float128'"),
        ("throughput", {"avx512-f32": 1}, "throughput has an unknown key 'avx512-f32'; expected avx2-f32"),
        ("throughput", {"avx2-f32": 0}, "throughput.avx2-f32 is 0; expected a positive number"),
        ("cost", {"sunk_cycles": 1}, "cost has an unknown key 'sunk_cycles'; expected load_ports"),
        ("cost", {"load_ports": "two"}, "cost.load_ports is 'two'; expected a positive number"),
        ("cost", {"near_share": 1.5}, "cost.near_share is 1.5; expected a number between 0 and 1"),
        ("cost", {"latencies": [4, 14, 50]}, "cost.latencies is [4, 14, 50]; expected 4 positive numbers"),
        ("cost", {"latencies": [0, 14, 50, 200]}, "cost.latencies is [0, 14, 50, 200]; expected 4 positive numbers"),
        ("cost", {"latencies": [4, 14, 5, 200]}, "cost.latencies is [4, 14, 5, 200]; expected 4 positive numbers"),
        ("cores", None, "t.yaml lacks the key 'cores'"),
        ("peak.float32", None, "peak lacks the key 'float32'"),
        ("caches.0.line", None, "caches[0] lacks the key 'line'"),
        ("vector", 256, "vector is 256; expected a mapping with bits, registers"),
        ("vector.registers", 0, "vector.registers is 0; expected a whole number from 4"),
        ("vector.registers", 32, "vector.registers is 32; expected at most the 16 registers"),
        ("vector.registers", True, "vector.registers is True; expected a whole number"),
        ("vector.bits", 100, "vector.bits is 100; expected a power of two"),
        ("vector.bits", 512, "vector.bits is 512; expected a power of two, at most the 256 bits"),
        ("vector.bits", "256", "vector.bits is '256'; expected a whole number"),
        ("vector.bits", 96, "vector.bits is 96; expected a power of two"),
        ("vector.bits", 32, "vector.bits is 32; expected a whole number from 64"),
        ("cores", 0, "cores is 0; expected a whole number from 1"),
        ("cores", 2.0, "cores is 2.0; expected a whole number"),
        ("name", "../x", "name is '../x'; expected a name of letters"),
        ("name", 7, "name is 7; expected a name"),
        ("cpu", "a b", "cpu is 'a b'; expected LLVM's name of a CPU"),
        ("triple", "sparc-linux-gnu", "triple is 'sparc-linux-gnu'; expected a triple that starts with one of"),
        ("triple", "x86_64-apple-darwin", "triple is 'x86_64-apple-darwin'; expected a triple that"),
        ("triple", "x86_64-wasi", "triple is 'x86_64-wasi'; expected a triple that starts with one of"),
        ("triple", "x86_64-linux-gnux32", "triple is 'x86_64-linux-gnux32'; expected a triple that ends with gnu"),
        ("triple", "-o/etc/x", "triple is '-o/etc/x'; expected a triple such as"),
        ("features", "avx2", "features is 'avx2'; expected a list of x86_64 features"),
        ("features.0", "neon", "features[0] is 'neon'; expected a feature of x86_64: one of cx16, sahf"),
        ("features.0", "avx2", "features[11] is 'avx2'; expected each feature once"),
        ("float_abi", "hard", "float_abi is 'hard'; expected no such key: x86_64 has one"),
        ("fma_latency", 0, "fma_latency is 0; expected a whole number from 1"),
        ("fma_ports", -1, "fma_ports is -1; expected a whole number from 1"),
        ("peak", [96.0], "peak is [96.0]; expected a mapping with float32"),
        ("peak.float32", 0, "peak.float32 is 0; expected a positive number"),
        ("peak.float32", float("nan"), "peak.float32 is nan; expected a positive number"),
        ("memory_bandwidth_gbs", float("inf"), "memory_bandwidth_gbs is inf; expected a positive number"),
        ("memory_bandwidth_gbs", "fast", "memory_bandwidth_gbs is 'fast'; expected a positive number"),
        ("core_memory_bandwidth_gbs", 0, "core_memory_bandwidth_gbs is 0; expected a positive number"),
        ("core_memory_bandwidth_gbs", 25.5, "core_memory_bandwidth_gbs is 25.5; expected at most the 25.0 that all"),
        ("measured", "no way", "measured is 'no way'; expected true or false"),
        ("caches", [], "caches is []; expected at least one cache"),
        ("caches", {}, "caches is {}; expected a list of caches"),
        ("caches.0", 32768, "caches[0] is 32768; expected a mapping with name, bytes"),
        ("caches.0.line", 0, "caches[0].line is 0; expected a whole number from 1"),
        ("caches.0.line", 48, "caches[0].line is 48; expected a power of two"),
        ("caches.0.ways", 0, "caches[0].ways is 0; expected a whole number from 1"),
        ("caches.0.ways", 4096, "caches[0].bytes is 32768; expected whole lines of 64, at least one in each way"),
        ("caches.0.bytes", 1000, "caches[0].bytes is 1000; expected whole lines of 64"),
        ("caches.1.bytes", 32768, "caches[1].bytes is 32768; expected more than the 32768 of L1 before it"),
        ("caches.1.name", "L1", "caches[1].name is 'L1'; expected a name that no other cache has"),
        ("caches.0.shared", 1, "caches[0].shared is 1; expected true or false"),
        ("caches.0.bandwidth_gbs", -3.0, "caches[0].bandwidth_gbs is -3.0; expected a positive number"),
    ],
)
def test_a_wrong_value_is_named_with_its_place_and_what_is_expected(path: str, value: object, sentence: str) -> None:
    with pytest.raises(TargetError) as error:
        parse_target(changed(path, value), "t.yaml")
    assert str(error.value).startswith("t.yaml")
    assert sentence in str(error.value)


def test_cores_share_what_memory_gives() -> None:
    """One core alone may not get all of it."""
    target = load_target("x86-64-v3")
    assert [target.memory_gbs(cores) for cores in (1, 2, 4)] == [25.0] * 3
    slow = dataclasses.replace(target, core_memory_bandwidth_gbs=10.0)
    assert [slow.memory_gbs(cores) for cores in (1, 2, 4)] == [10.0, 20.0, 25.0]
    assert parse_target(slow.to_yaml(), "t.yaml") == slow and slow.key == target.key


def test_a_key_that_is_there_twice_is_named() -> None:
    text = load_target("x86-64-v3").to_yaml()
    with pytest.raises(TargetError, match=r"t\.yaml is not YAML .*: the key 'cores' is there twice, again in line \d+"):
        parse_target(text + "cores: 8\n", "t.yaml")


def test_numbers_are_read_as_yaml_1_2_reads_them() -> None:
    text = load_target("x86-64-v3").to_yaml()
    assert parse_target(text.replace("float32: 96.0", "float32: 9.6e1"), "t.yaml").peak["float32"] == 96.0
    with pytest.raises(TargetError, match=r"cores is '1:30'; expected a whole number"):
        parse_target(text.replace("cores: 4", "cores: 1:30"), "t.yaml")
    renamed = dataclasses.replace(load_target("x86-64-v3"), name="1e9")
    assert parse_target(renamed.to_yaml(), "t.yaml") == renamed


@pytest.mark.parametrize(
    "text",
    [
        *("", "- 1", "a: [", "[" * 100_000, "a: 2024-99-99", "!!python/object/apply:os.getcwd []", "x: " + "9" * 5000),
        *("x: !!int '1:30'", "x: !!binary aGk=", "? [1]\n: 2"),
        "\n".join(f"{k * ((1 << 61) - 1)}: 0" for k in range(9000)),
    ],
)
def test_a_file_that_is_no_target_is_refused_with_its_name(text: str) -> None:
    with pytest.raises(TargetError, match=r"t\.yaml"):
        parse_target(text, "t.yaml")


def test_a_billion_laughs_cost_nothing() -> None:
    *keys, last = [*(key for key in valid() if key != "triple"), "triple"]
    laughs = f"{keys[0]}: &a0 [ha, ha]\n"
    for level, key in enumerate([*keys[1:], last], 1):
        laughs += f"{key}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n"
    with pytest.raises(TargetError, match="it has more than 50000 values, aliases written out") as error:
        parse_target(laughs, "t.yaml")
    assert len(str(error.value)) < 200
    merges = "a0: &a0 {k: 1}\n"  # nine times as many keys with each line
    for level in range(1, 12):
        merges += f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}\n"
    with pytest.raises(TargetError, match="it has more than 50000 values, aliases written out"):
        parse_target(merges, "t.yaml")
    with pytest.raises(TargetError, match=r"the number in line \d+ has more than 20 characters"):
        parse_target(load_target("x86-64-v3").to_yaml().replace("cores: 4", f"cores: 0x{'f' * 9000}"), "t.yaml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"none\.yaml cannot be read as a target file: No such file"):
        load_target(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\x00")
    with pytest.raises(TargetError, match="not UTF-8"):
        load_target(tmp_path / "binary.yaml")
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    for name in ("folder", "pipe"):
        with pytest.raises(TargetError, match=rf"{name}\.yaml is not a target file: it is no file"):
            load_target(tmp_path / f"{name}.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(TargetError, match="larger than"):
        load_target(tmp_path / "large.yaml")


def test_arm_float_abi_follows_the_triple() -> None:
    text = load_target("armv7-neon").to_yaml()
    with pytest.raises(
        TargetError, match="float_abi is 'soft'; expected hard, as the triple is armv7l-linux-gnueabihf"
    ):
        parse_target(text.replace("float_abi: hard", "float_abi: soft"), "t.yaml")
    with pytest.raises(TargetError, match="float_abi is None; expected hard or soft"):
        parse_target(text.replace("float_abi: hard\n", ""), "t.yaml")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_targets_load_and_survive_a_round_trip(name: str, tmp_path: Path) -> None:
    target = load_target(name)
    assert target.name == name
    path = tmp_path / "copy.yaml"
    path.write_text(target.to_yaml())
    assert load_target(path) == target == read_target(path)
    assert load_target(path).key == target.key
    assert target.lanes("float32") * 32 == target.lanes("int8") * 8 == target.vector.bits
    # The peak of the vector unit, at some frequency a CPU can have.
    ghz = target.peak["float32"] / (2 * target.lanes("float32") * target.fma_ports)
    assert 0.4 < ghz < 6


def test_all_shipped_targets_are_listed() -> None:
    assert list_targets()[0] == "native"
    boards = {"raspberry-pi-4", "raspberry-pi-5"}
    machines = {"x86-64-v3", "x86-64-v4", "sapphire-rapids", "cortex-a72", "cortex-a76", "armv7-neon", "riscv64-v"}
    arm = {"cortex-a53", "cortex-a510", "neoverse-n2", "neoverse-v1"}
    systems = {"wasm32-simd", "x86-64-v3-windows", "x86-64-v3-macos", "apple-m1", "aarch64-android"}
    musl = {"x86-64-v3-musl", "aarch64-musl", "armv7-musl"}
    assert machines | arm | boards | systems | musl == set(SHIPPED)


def test_risc_v_has_what_its_linux_asks_for() -> None:
    target = load_target("riscv64-v")
    assert target.features == ("m", "a", "f", "d", "c", "v")
    assert llvm_target(target)["mabi"] == "lp64d"
    without = target.to_yaml().replace("- v\n", "")
    with pytest.raises(TargetError, match=r"vector\.bits is 128; expected a power of two, at most the 64 bits"):
        parse_target(without, "t.yaml")


def test_an_unknown_name_gets_the_list_and_a_hint() -> None:
    with pytest.raises(TargetError, match=r"'x86_64-v4' is unknown; expected one of native.*Did you mean x86-64-v4\?"):
        load_target("x86_64-v4")


def throughputs(target: Target) -> dict[str, float]:
    return {intrinsic.name: intrinsic.throughput for intrinsic in target.available_intrinsics}


def test_what_was_measured_of_an_intrinsic_holds_in_place_of_its_file() -> None:
    target = parse_target(changed("throughput", {"avx2-f32": 0.5}), "t.yaml")
    assert throughputs(target)["avx2-f32"] == 0.5
    assert parse_target(target.to_yaml(), "t.yaml") == target
    assert target.key == load_target("x86-64-v3").key and "throughput" not in load_target("x86-64-v3").to_yaml()
    assert throughputs(load_target("x86-64-v3")) == {**throughputs(target), "avx2-f32": 2.0}


def test_parameters_of_the_cost_are_the_defaults_where_a_target_does_not_override_them() -> None:
    plain = load_target("x86-64-v3")
    target = parse_target(changed("cost", {"load_ports": 3, "latencies": [1, 15, 60, 300]}), "t.yaml")
    assert (
        target.cost == dataclasses.replace(plain.cost, load_ports=3.0, latencies=(1.0, 15.0, 60.0, 300.0)) != plain.cost
    )
    assert parse_target(target.to_yaml(), "t.yaml") == target and target.key == plain.key
    assert "cost" not in plain.to_yaml() and yaml.safe_load(target.to_yaml())["cost"].keys() == {
        "load_ports",
        "latencies",
    }


def test_peaks_are_those_of_the_best_unit() -> None:
    """A core of 0.5 ns a cycle: two FMAs and half of a vdpbf16ps start in each, a tile's product every sixteen."""
    host = dataclasses.replace(
        read_host(),
        triple="x86_64-linux-gnu",
        features=("avx512f", "avx512bw", "avx512bf16", "amx-tile", "amx-bf16"),
        vector=VectorUnit(512, 32),
        caches=(),
    )
    figures = {"vector": 512, "cycle": 0.5, "latency": 2.0, "float32": 0.25, "memory": 9.0, "core_memory": 6.0}
    timing = timing_of(host, {**figures, "neon-sdot": 0.1, "avx512-bf16": 1.0, "amx-bf16": 8.0})
    assert timing is not None and (timing.fma_ports, timing.fma_latency) == (2, 4)
    assert timing.throughput == {"avx512-bf16": 0.5, "amx-bf16": 0.0625}
    assert timing.peak == {"float32": 128.0, "bfloat16": 2050.0}
    assert timing_of(host, {**figures, "vector": 256}) is None


def test_lanes_refuses_what_is_no_number() -> None:
    with pytest.raises(ValueError, match="dtype is 'string'"):
        load_target("x86-64-v4").lanes("string")


def test_keys_follow_the_machine_and_nothing_that_was_timed() -> None:
    target = load_target("x86-64-v3")
    assert target.key == "x86_64-256-4c-f3da12ce57ca"
    slow = dataclasses.replace(target, name="slow", peak={"float32": 1.0}, memory_bandwidth_gbs=1.0, fma_latency=9)
    assert slow.key == target.key
    assert dataclasses.replace(target, features=target.features[::-1]).key == target.key
    assert dataclasses.replace(target, cores=8).key != target.key
    assert dataclasses.replace(target, caches=target.caches[:2]).key != target.key
    assert dataclasses.replace(target, features=(*target.features, "avxvnni")).key != target.key
    assert len({load_target(name).key for name in SHIPPED if not name.startswith("raspberry")}) == 19


def test_features_are_what_is_listed_and_what_a_level_implies() -> None:
    listed = changed("features", ["avxvnni", "avx2"])
    assert parse_target(listed, "t.yaml").features == (*load_target("x86-64-v3").features, "avxvnni")
    assert load_target("x86-64-v3").features[-4:] == ("avx", "avx2", "fma", "f16c")
    assert load_target("raspberry-pi-5").features == ("neon", "dotprod", "fullfp16")


def test_the_runtime_can_look_for_every_feature() -> None:
    source = (ROOT / "modelc/runtime/modelc_features.c").read_text()
    for arch in ARCHITECTURES:
        for feature in arch.features if arch.elf_machine else ():  # WebAssembly's hosts look for them
            assert f'{{"{feature.llvm.replace(".", "").replace("-", "")}",' in source


@pytest.mark.parametrize("name", SHIPPED)
def test_llvm_makes_objects_of_the_right_machine(name: str, tmp_path: Path) -> None:
    tvm = pytest.importorskip("tvm")
    from tvm import te

    target = load_target(name)
    a = te.placeholder((1024,), name="a")
    b = te.compute((1024,), lambda i: a[i] * 2.0 + 1.0, name="b")
    built = tvm.compile(te.create_prim_func([a, b]), target=tvm.target.Target(llvm_target(target)))
    built.mod.write_to_file(str(tmp_path / "k.o"), "o")
    data = (tmp_path / "k.o").read_bytes()
    check_object(data, "it", machine_of(target.triple))
    if machine_of(target.triple).system.objects == "ELF":
        assert int.from_bytes(data[18:20], "little") == target.elf_machine
    if target.architecture.name == "x86_64":
        assembly = built.mod.inspect_source("s")
        assert ("zmm" in assembly) == (target.vector.bits == 512)
        assert "ymm" in assembly


# This machine.


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_probe_is_sane_and_remembered(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = load_target("native")
    assert parse_target(target.to_yaml(), "native") == target
    assert 1 <= target.cores <= (os.cpu_count() or 1)
    if not target.measured:
        pytest.skip("no C compiler here")
    assert 1 <= target.fma_latency <= 40 and 1 <= target.fma_ports <= 8  # though a busy machine counts cycles badly
    assert 0.5 < target.peak["float32"] < 2000
    assert all(0.5 < cache.bandwidth_gbs < 5000 for cache in target.caches)
    (kept,) = (cache_home / "modelc").iterdir()
    monkeypatch.setenv("PATH", "")  # nothing can be compiled now
    assert probe() == target
    assert probe(fresh=True).measured is False
    for damage in (
        b"",
        b"name: [",
        b"\xff",
        kept.read_bytes()[:-40],
        kept.read_bytes().replace(b"cores: ", b"cores: 9"),
    ):
        kept.write_bytes(damage)
        assert probe().measured is False


def test_a_peak_is_timed_by_turns() -> None:
    target = load_target("native")
    if not target.measured:
        pytest.skip("no C compiler here")
    for dtype in target.peak:
        with Peak(best_unit(target, dtype)) as one, Peak(best_unit(target, dtype), threads=2) as two:
            (alone,), (both,) = one.time(0.05), two.time(0.05)
        assert 1e-3 < one.gflops(alone) / target.peak[dtype] < 1e3  # the unit is right, whatever else the machine does
        assert two.gflops(both) > 0


def test_a_peak_that_cannot_be_timed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    target = load_target("native")
    if target.measured:
        with Peak(Unit("abacus", 1)) as none, pytest.raises(TargetError, match="abacus's peak cannot be measured"):
            none.time(0.01)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TargetError, match="peak cannot be measured: there is no C compiler"):
        Peak(best_unit(target, "float32"))


def test_a_damaged_memory_is_replaced(cache_home: Path) -> None:
    first = probe()
    if not first.measured:
        pytest.skip("no C compiler here")
    (kept,) = (cache_home / "modelc").iterdir()
    kept.write_text("gone")
    again = probe()
    assert again.measured and again.key == first.key
    assert read_target(kept) == again
    assert len(list((cache_home / "modelc").iterdir())) == 1


def test_a_memory_that_others_can_write_to_is_neither_read_nor_written(
    cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = probe()
    if not first.measured:
        pytest.skip("no C compiler here")
    (kept,) = (cache_home / "modelc").iterdir()
    kept.parent.chmod(0o777)
    before = kept.stat().st_mtime_ns
    monkeypatch.setattr(native, "_measure", lambda host: native._estimate(host))
    assert probe().measured is False
    assert kept.stat().st_mtime_ns == before


def test_no_compiler_gives_estimates_with_the_same_key(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    target = probe()
    assert target.measured is False and "measured: false" in target.to_yaml()
    assert parse_target(target.to_yaml(), "native") == target
    assert not (cache_home / "modelc").exists()


def test_a_read_only_home_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert probe().name == "native"


# Other machines, from what their kernels say.

ZEN5 = """sse4_2 ssse3 sse4_1 popcnt cx16 lahf_lm avx avx2 bmi1 bmi2 f16c fma abm movbe xsave avx512f avx512bw avx512cd
avx512dq avx512vl avx512_vnni avx512_bf16""".replace("\n", " ")


def machine(root: Path, cpuinfo: str, files: dict[str, str] | None = None) -> Path:
    texts = {"proc/cpuinfo": cpuinfo} | (files or {})
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def x86(root: Path, flags: str, files: dict[str, str] | None = None, processors: int = 4) -> Host:
    root = machine(root, f"processor : 0\nmodel name : X\nflags : {flags}\n\nprocessor : 1\n", files)
    return read_host(root, "x86_64", frozenset(range(processors)))


def test_avx_vnni_is_seen(tmp_path: Path) -> None:
    """Without AVX-512, as on Alder Lake."""
    host = x86(tmp_path, " ".join(f for f in ZEN5.split() if "avx512" not in f) + " avx_vnni")
    target = dataclasses.replace(load_target("x86-64-v3"), features=host.features, intrinsics=None)
    assert host.features[-1] == "avxvnni" and "avx-vnni" in {x.name for x in target.available_intrinsics}


@pytest.mark.parametrize(
    ("without", "cpu", "bits", "registers", "last"),
    [
        ("", "x86-64-v4", 512, 32, "avx512bf16"),
        ("avx512vl", "x86-64-v3", 256, 16, "f16c"),  # Knights Landing: a fragment of AVX-512 is not used
        ("movbe", "x86-64-v2", 512, 32, "avx512bf16"),  # a hypervisor that hides one word costs the level alone
        ("sse4_2", "x86-64", 512, 32, "avx512bf16"),
        ("avx512f avx2", "x86-64-v2", 128, 16, "f16c"),
    ],
)
def test_x86_levels(tmp_path: Path, without: str, cpu: str, bits: int, registers: int, last: str) -> None:
    host = x86(tmp_path, " ".join(word for word in ZEN5.split() if word not in without.split()))
    assert (host.cpu, host.vector.bits, host.vector.registers) == (cpu, bits, registers)
    assert host.features[-1] == last


def cache_files(index: int, level: int, kind: str, size: str, shared: str, ways: str = "8") -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu0/cache/index{index}"
    words = {"level": str(level), "type": kind, "size": size, "coherency_line_size": "64", "shared_cpu_list": shared}
    return {f"{folder}/{name}": text + "\n" for name, text in (words | {"ways_of_associativity": ways}).items()}


def test_caches_and_cores_of_a_machine_with_two_threads_a_core(tmp_path: Path) -> None:
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    files = {topology.format(i): f"{i % 2},{i % 2 + 2}\n" for i in range(4)}
    files |= cache_files(0, 1, "Data", "48K", "0,2", "12") | cache_files(1, 1, "Instruction", "32K", "0,2")
    files |= cache_files(2, 2, "Unified", "2M", "0,2") | cache_files(3, 3, "Unified", "32768K", "0-3", "0")
    host = x86(tmp_path, ZEN5, files)
    assert host.cores == 2
    assert [(cache.name, cache.bytes, cache.ways, cache.shared) for cache in host.caches] == [
        ("L1", 48 << 10, 12, False),
        ("L2", 2 << 20, 8, False),
        ("L3", 32 << 20, 8, True),
    ]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "300000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n1:cpu,cpuacct:/j\n",
                "sys/fs/cgroup/cpu/j/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu/j/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
    ],
)
def test_cores_stay_within_the_cgroup(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    assert x86(tmp_path, ZEN5, files, processors=8).cores == cores


def test_an_arm_board_without_cache_files(tmp_path: Path) -> None:
    cpuinfo = "processor : 0\nFeatures : fp asimd asimdhp asimddp\nCPU implementer : 0x41\nCPU part : 0xd0b\n"
    host = read_host(machine(tmp_path, cpuinfo), "aarch64", frozenset({0, 1}))
    assert (host.cpu, host.features, host.vector.registers) == ("cortex-a76", ("neon", "dotprod", "fullfp16"), 32)
    assert [cache.name for cache in host.caches] == ["L1", "L2"]
    assert host.cores == 2


def test_a_machine_that_modelc_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="this machine is riscv64; expected Linux on one of x86_64, aarch64, armv7"):
        read_host(machine(tmp_path, "processor : 0\nisa : rv64\n"), "riscv64", frozenset({0}))
    cpuinfo = "processor : 0\nFeatures : half thumb vfp\n"
    with pytest.raises(TargetError, match="no NEON"):
        read_host(machine(tmp_path, cpuinfo), "armv7l", frozenset({0}))


def test_targets_travel_to_worker_processes() -> None:
    target: Target = load_target("cortex-a76")
    assert pickle.loads(pickle.dumps(target)) == target and hash(target) == hash(load_target("cortex-a76"))


def test_an_installed_package_carries_the_targets(tmp_path: Path) -> None:
    source = ROOT
    (tmp_path / "modelc").mkdir()
    for part in ("__init__.py", "errors.py", "scratch.py"):
        shutil.copy(source / "modelc" / part, tmp_path / "modelc" / part)
    for room in ("ir", "runtime", "target"):
        shutil.copytree(source / "modelc" / room, tmp_path / "modelc" / room)
    shutil.copytree(source / "targets", tmp_path / "modelc/data/targets")
    script = "from modelc.target import *; print(*(load_target(name).name for name in list_targets()[1:]))"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert tuple(done.stdout.split()) == SHIPPED, done.stderr
