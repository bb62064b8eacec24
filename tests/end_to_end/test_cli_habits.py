"""What every command line does: help with examples, quiet, defaults from the environment, completion, doctor; and run
on arrays of any kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
import small_model as small
from repository import ROOT

from modelc.cli import group, main
from modelc.cli.examples import EXAMPLES
from modelc.cli.output import Voice
from modelc.compile import doctor
from modelc.compile.explain import PLAIN, explained
from modelc.errors import ToolchainError
from modelc.package import read_package


def ended(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def options_of(command: click.Command) -> set[str]:
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    own = {flag for option in command.params if isinstance(option, click.Option) for flag in option.opts}
    return own.union(*map(options_of, inner))


@pytest.mark.parametrize("verb", sorted(group.commands))
def test_every_help_ends_with_examples_whose_flags_exist(verb: str, capsys) -> None:
    assert ended("help", verb) == 0
    by_help = capsys.readouterr().out
    assert ended(verb, "--help") == 0
    assert capsys.readouterr().out == by_help
    for example in EXAMPLES[verb]:
        assert example in by_help and example.startswith(f"modelc {verb}")
        flags = {word for word in example.split() if word.startswith("-")}
        assert flags <= options_of(group.commands[verb]), example


def test_help_of_parts_and_of_what_there_is_not(capsys) -> None:
    assert ended("help", "database", "prune") == 0
    assert "--stale" in capsys.readouterr().out
    assert ended("help", "comple") == 2
    assert "Did you mean compile?" in capsys.readouterr().err


def test_quiet_says_nothing_but_what_is_wrong(capsys) -> None:
    assert ended("-q", "inspect", small.model()) == 0
    assert capsys.readouterr() == ("", "")
    assert ended("inspect", small.model(), "--quiet", "--json") == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "model"
    assert ended("inspect", "gone.onnx", "--quiet") == 2
    assert "gone.onnx" in capsys.readouterr().err
    assert ended("inspect", small.model()) == 0 and not Voice.quiet
    assert "model small" in capsys.readouterr().out


def test_the_environment_says_the_target(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setenv("MODELC_TARGET", "cortex-a67")
    assert ended("compile", small.model(), "-o", tmp_path / "a.modelc") == 2
    assert "Did you mean cortex-a76?" in capsys.readouterr().err
    monkeypatch.setenv("MODELC_TARGET", "cortex-a76")
    flags = ("--shape", "x=1,3,8,8", "--stop-after", "import", "--json", "--no-database")
    assert ended("compile", small.model(), *flags) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "cortex-a76"


def test_completion_knows_targets() -> None:
    words = {"COMP_WORDS": "modelc compile --target cortex", "COMP_CWORD": "3", "_MODELC_COMPLETE": "bash_complete"}
    command = [sys.executable, "-c", "from modelc.cli import group; group(prog_name='modelc')"]
    env = {**os.environ, **words, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert {"plain,cortex-a72", "plain,cortex-a76"} <= set(done.stdout.split()), done


def test_a_cache_in_which_others_can_write_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("MODELC_CACHE", str(tmp_path))
    for mode, is_said in ((0o700, False), (0o777, True)):
        tmp_path.chmod(mode)
        assert ended("-q", "targets", "list") == 0
        assert (f"others can write in $MODELC_CACHE, {tmp_path}," in capsys.readouterr().err) == is_said
        assert ("in which nobody else can write" in next(iter(doctor._folders())).remedy) == is_said


def test_the_doctor_names_what_is_missing_with_its_command(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert ended("doctor", "--json") == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {"modelc", "onnxruntime", "cache folder"} <= {finding["what"] for finding in findings}

    def none(*_: object) -> None:
        raise ToolchainError("there is none")

    monkeypatch.setattr(doctor, "find_toolchain", none)
    monkeypatch.setattr(doctor, "emulator", none)
    assert ended("doctor") == 1
    said = capsys.readouterr().out
    assert "apt install gcc" in said and "apt install qemu-user-static" in said and "missing: compiler for" in said


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_run_takes_arrays_of_any_kind(tmp_path: Path, capsys, suffix: str) -> None:
    x = np.random.default_rng(0).standard_normal(small.SHAPES[0]["x"]).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    place = tmp_path / f"y{suffix}"
    given = ("--inputs", tmp_path / "x.npz") if suffix == ".npz" else ("--input", f"x={tmp_path / 'x.npy'}")
    assert ended("run", small.package(), *given, "--outputs", place, "--repeat", "3", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["times"]["runs"] == 3 and 0 < said["times"]["least_ms"] <= said["times"]["median_ms"]
    written = np.load(place)
    y = written["y"] if suffix == ".npz" else written
    assert y.shape == (1, 10) and np.isfinite(y).all()


def test_run_draws_its_inputs(capsys) -> None:
    assert ended("run", small.package()) == 0
    assert "on drawn inputs, the median of 1 run(s)" in capsys.readouterr().out
    assert ended("run", small.package(), "--input", "x") == 2
    assert "expected NAME=F.npy" in capsys.readouterr().err


def test_compile_ends_beside_onnx_runtime_and_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(
        sys.modules["modelc.verify.bench"], "beside_ort", lambda *_: {"modelc_ms": 1.0, "ort_ms": 2.5, "ratio": 2.5}
    )
    monkeypatch.delenv("MODELC_NO_BENCH")
    flags = ("--shape", "x=1,3,8,8", "--no-database", "-o", tmp_path / "a.modelc")
    assert ended("compile", small.model(), *flags, "--verbose") == 0
    said = capsys.readouterr().out
    assert "1.000 ms, ONNX Runtime 2.500 ms: 2.50 times as fast" in said
    assert "float32: precision f32" in said and "by estimate" in said
    assert ended("compile", small.model(), *flags, "--no-bench", "--no-verify", "--json") == 0
    assert json.loads(capsys.readouterr().out)["beside_ort"] is None


def test_why_a_kernel_is_as_it_is_names_the_rules_of_its_schedule() -> None:
    tasks = json.loads((small.package() / "choices.json").read_text())["tasks"]
    steps = read_package(small.package()).manifest.variants[0].steps
    assert {step.task for step in steps} <= tasks.keys() and steps
    ruled = [k for k, step in enumerate(steps) if any(s["rule"] not in PLAIN for s in tasks[step.task]["stages"])]
    assert ruled and all("direct" not in explained(small.package())[k].algorithm for k in ruled)


def test_a_short_look_beside_onnx_runtime() -> None:
    seen = sys.modules["modelc.verify.bench"].beside_ort(small.package(), small.model(), 0.1)
    assert seen is not None and seen["ratio"] > 0 and seen["ort_ms"] > 0


@pytest.mark.parametrize("columns", [80, 160])
def test_profile_fits_its_terminal(monkeypatch: pytest.MonkeyPatch, capsys, columns: int) -> None:
    from modelc.cli import terminal

    monkeypatch.setattr(terminal.out, "_width", columns)
    assert ended("profile", small.package()) == 0
    lines = capsys.readouterr().out.splitlines()
    tables = lines[:-3]  # sentences end it
    assert max(map(len, tables)) <= columns and ("MFLOP" in tables[0]) == (columns == 160)
