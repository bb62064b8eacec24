"""CPUs that LLVM knows and that are none of the triple's, for which it would end the process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import small_model as small

from modelc.cli import main
from modelc.codegen import llvm_check
from modelc.codegen.kernels import llvm_machine
from modelc.errors import TargetError
from modelc.target import list_targets, load_target, parse_target
from modelc.target.host import known_cpus
from modelc.target.isa import ARCHITECTURES


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch) -> Path:
    """Nothing is remembered from before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    llvm_check._refusal.cache_clear()
    return tmp_path / "cache/modelc"


def text_of(shipped: str, cpu: str) -> str:
    return replace(load_target(shipped), cpu=cpu).to_yaml()


def asked(monkeypatch) -> list[str]:
    """The questions from now on."""
    found: list[str] = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **o: found.append(command[-1]) or run(command, **o))
    return found


@pytest.mark.parametrize(
    ("shipped", "cpu", "words"),
    [
        ("x86-64-v3", "i386", "64-bit code requested on a subtarget"),
        ("riscv64-v", "sifive-e31", "RV64 target requires an RV64 CPU"),
        ("armv7-neon", "cortex-m0", "it crashes"),
    ],
)
def test_a_cpu_of_another_kind_is_refused(tmp_path, capsys, memory, shipped, cpu, words) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(text_of(shipped, cpu))
    for arguments in (["targets", "check", path], ["compile", small.model(), "--target", path, "-o", tmp_path / "p"]):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in (*arguments, "--json")])
        error = json.loads(capsys.readouterr().out)["error"]
        assert stop.value.code == 2 and error["kind"] == "TargetError"
        assert f"LLVM makes no code for cpu '{cpu}'" in error["message"] and words in error["message"]
    assert not memory.exists() and not (tmp_path / "p").exists()


def test_an_answer_is_remembered(monkeypatch, memory) -> None:
    target, questions = parse_target(text_of("x86-64-v3", "znver3"), "t.yaml"), asked(monkeypatch)
    for _ in range(3):
        llvm_machine(target)
        llvm_check._refusal.cache_clear()  # as in another process
    assert questions == ["modelc.codegen.llvm_check"] and len(list(memory.iterdir())) == 1


def test_shipped_targets_and_this_machine_are_not_asked_about(monkeypatch) -> None:
    questions = asked(monkeypatch)
    for name in list_targets():
        target = load_target(name)
        assert target.cpu in known_cpus(target.architecture)
        llvm_machine(target)
    assert [question for question in questions if "llvm_check" in question] == []


def test_every_cpu_that_is_not_asked_about_is_one_of_its_triple() -> None:
    like = {"x86_64": "x86-64-v3", "aarch64": "cortex-a72", "armv7": "armv7-neon", "riscv64": "riscv64-v"}
    like["wasm32"] = "wasm32-simd"
    every = [(like[arch.name], cpu) for arch in ARCHITECTURES for cpu in sorted(known_cpus(arch))]
    program = (
        "import json, sys; from modelc.codegen.llvm_check import make_code\n"
        "for options in json.load(sys.stdin): make_code(options); print(options['mcpu'])"
    )
    options = [llvm_check.llvm_target(parse_target(text_of(name, cpu), "t.yaml")) for name, cpu in every]
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(options), capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [cpu for _, cpu in every], done.stderr


def test_a_cpu_that_llvm_does_not_know() -> None:
    with pytest.raises(TargetError, match="expected a CPU that LLVM knows"):
        llvm_machine(parse_target(text_of("x86-64-v3", "abacus"), "t.yaml"))
