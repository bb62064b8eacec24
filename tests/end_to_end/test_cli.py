"""Every verb: what it prints, as text and as JSON, and how it refuses."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import tempfile
import time
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import small_model as small
import yaml
from library_of import library_of
from onnx import helper
from repository import ROOT

import modelc
from modelc.cli import VERBS, main
from modelc.compile.options import shape_texts
from modelc.compile.request import Request

# --- compile ------------------------------------------------------------------------------------------------------


def test_compile_prints_a_summary(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("compile", small.model(), "--shape", "x=1,3,20,24")
    assert code == 0 and (tmp_path / "net.modelc" / "manifest.json").is_file()
    for word in ("kernels", "arena", "parameters", "library", "compile time", "agrees with onnxruntime"):
        assert word in out
    assert [line.split()[0] for line in err.splitlines()] == list(modelc.compile.stages.STAGES)


def test_compile_json(cli, tmp_path) -> None:
    options = ["--shape", "x=1,3,20,24", "--shape", "x=2,3,12,12", "-o", tmp_path / "p", "--threads", 1, "--no-verify"]
    code, out, _ = cli("compile", small.model(), "--json", *options)
    found = json.loads(out)
    assert code == 0 and found["threads"] == 1 and found["verification"] is None and found["params_bytes"] > 0
    assert len(modelc.inspect(tmp_path / "p")["variants"]) == 2


def test_compile_for_several_dimensions_and_inputs_of_a_file(cli, tmp_path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((1, 3, 12, 12), np.float32))
    options = ["--dim", "batch=1", "--dim", "h=12|20", "--dim", "w=12", "--inputs", tmp_path / "in.npz"]
    code, out, _ = cli("compile", small.model(), *options, "-o", tmp_path / "p")
    assert code == 0 and "agrees with onnxruntime" in out
    assert [v["inputs"][0]["shape"] for v in modelc.inspect(tmp_path / "p")["variants"]] == [
        (1, 3, 12, 12),
        (1, 3, 20, 12),
    ]


def test_compile_from_choices_for_a_target_of_a_file(cli, tmp_path) -> None:
    (tmp_path / "t.yaml").write_text(json.loads((small.package() / "choices.json").read_text())["target"])
    options = ["--choices", small.package() / "choices.json", "--target", tmp_path / "t.yaml", "-o", tmp_path / "p"]
    code, _, _ = cli("compile", small.model(), *options)
    assert code == 0
    assert library_of(tmp_path / "p").read_bytes() == library_of(small.package()).read_bytes()


def test_compile_stops_and_dumps(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--shape", "x=1,3,20,24", "--stop-after", "partition", "--dump-dir", "d"]
    code, out, _ = cli("compile", small.model(), *options)
    assert code == 0 and "stopped after partition" in out and os.listdir(tmp_path) == ["d"]
    assert (tmp_path / "d/03-partition.txt").read_text().startswith("program")


def test_compile_with_tolerances_of_zero_is_decided_by_float64(cli, tmp_path) -> None:
    tree = yaml.safe_load((ROOT / "configs/default.yaml").read_text())
    tree["verify"] |= {"rtol": 0, "atol": 0}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree))
    path = small.save(tmp_path / "m.onnx", [helper.make_node("Sigmoid", ["x"], ["y"])], {"x": [999]}, {"y": [999]}, {})
    options = ["--config", tmp_path / "c.yaml", "-o", tmp_path / "p"]
    code, _, err = cli("compile", path, *options)  # as near to float64 as ONNX Runtime: right all the same
    assert code == 0, err


@pytest.mark.parametrize("compiler", ["/nonexistent/cc", "/bin/false"])
def test_a_compiler_that_does_not_work_is_said_before_any_kernel_is_compiled(cli, monkeypatch, compiler) -> None:
    monkeypatch.setenv("CC", compiler)
    code, out, err = cli("compile", small.model(), "--shape", "x=1,3,20,24", "-o", "unwritten.modelc")
    assert code == 2 and out == "" and compiler in err and "import" not in err.split() and "codegen" not in err


def test_no_room_for_temporary_files_names_their_folder(cli, tmp_path, monkeypatch) -> None:
    write = Path.write_text

    def full(path: Path, *arguments: object, **named: object) -> int:
        if "modelc-tmp-" in path.parent.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *arguments, **named)

    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr("modelc.scratch.disk_usage", lambda folder: SimpleNamespace(free=4096))
    code, _, err = cli("compile", small.model(), "--shape", "x=1,3,20,24", "-o", tmp_path / "p")
    assert code == 2 and f"no room for temporary files in {tempfile.gettempdir()}: " in err and "TMPDIR" in err


@pytest.mark.sweep(1)
@pytest.mark.parametrize("keep", [False, True])
def test_compile_of_what_turns_out_wrong(cli, tmp_path, monkeypatch, keep) -> None:
    from broken_kernels import broken

    broken(monkeypatch)
    options = ["--shape", "x=1,3,20,24", "-o", tmp_path / "p", *["--keep-unverified"] * keep]
    code, _, err = cli("compile", small.model(), *options)
    assert code == 1 and (tmp_path / "p").exists() == keep
    assert keep or "was not written, for it is wrong" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.onnx"], "none.onnx does not exist"),
        ([small.model(), "--dim", "batch=1|2"], "add --dim h=N --dim w=N"),
        ([small.model(), "--dim", "h"], "expected NAME=16"),
        ([small.model(), "--dim", "h=1", "--dim", "h=2"], "once for each name"),
        ([small.model(), "--constant", "x"], "expected NAME=VALUE"),
        ([small.model(), "--constant", "x=1,two"], "expected a number, true, false"),
        ([small.model(), "--constant", "q=1"], "--constant names 'q'"),
        ([small.model(), "--target", "cray"], "target 'cray' is unknown"),
        ([small.model(), "--config", "fast"], "configuration 'fast' is unknown"),
        ([small.model(), "--choices", "none.json"], "none.json cannot be read"),
        ([small.model(), "--stop-after", "lunch"], "no stage 'lunch'"),
        ([small.model(), "--shape", "z=1"], "'z', which is no input"),
        ([small.model(), "--shape", "x"], "expected NAME=1,3,224,224"),
        (
            [small.model(), "--shape", "x=0,3,20,24"],
            "what would be compiled has no elements: input 'x' [0, 3, 20, 24] is empty, and so is every output; "
            "expected at least one element: fix dimensions with --dim batch=N, each number 1 or more",
        ),
        ([small.model(), "--dim", "batch=0|1", "--dim", "h=20", "--dim", "w=24"], "has no elements"),
        ([small.model(), "--threads", "0"], "--threads"),
        ([small.model(), "--turbo"], "No such option"),
        ([small.model(), "--shape", "x=1,3,20,24", "-o", "/proc/none/p"], "cannot write in /proc/none"),
    ],
)
def test_compile_refusals_are_sentences(cli, arguments, sentence) -> None:
    code, out, err = cli("compile", *arguments)
    assert code == 2 and out == "" and sentence in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["verify", "PKG", "--model", "MODEL"], "not by --model: modelc verify PKG.modelc --against MODEL.onnx"),
        (["verify", "MODEL", "--against", "PKG"], "is a package, and a model is a file: modelc verify PKG.modelc"),
        (["verify", "MODEL", "--against", "MODEL"], "is a file, and a package is a folder: modelc verify PKG"),
        (["bench", "MODEL", "--against", "ort"], "modelc bench PKG.modelc --against ort --model MODEL.onnx"),
        (["bench", "PKG", "--against", "ort", "--model", "PKG"], "is a package, and a model is a file: modelc bench"),
        (["bench", "PKG", "--against", "MODEL"], "The model that engines run is given by --model"),
        (["bench", "PKG", "--against", "onnxruntime", "--model", "MODEL"], "Did you mean ort?"),
        (["bench", "PKG", "--against", "ONNX Runtime", "--model", "MODEL"], "Did you mean ort?"),
        (["bench", "PKG", "--against", "openvin", "--model", "MODEL"], "Did you mean openvino?"),
        (["bench", "PKG", "--against", "tvm", "--model", "MODEL"], "and packages: PKG.modelc.\n"),
        (["profile", "MODEL"], "is a file, and a package is a folder: modelc profile PKG.modelc"),
        (["run", "MODEL", "--inputs", "F", "--outputs", "G"], "modelc run PKG.modelc --inputs F.npz --outputs G.npz"),
        (["compile", "PKG"], "is a package, and a model is a file: modelc compile MODEL.onnx -o PKG.modelc"),
        (["tune", "MODEL", "PKG"], "is a package, and a model is a file: modelc tune MODEL.onnx -o PKG.modelc"),
        (["reduce", "PKG"], "is a package, and a model is a file: modelc reduce MODEL.onnx -o SMALL.onnx"),
    ],
)
def test_a_model_in_place_of_a_package_is_told_how_the_verb_is_called(cli, arguments, sentence) -> None:
    places = {"PKG": small.package(), "MODEL": small.model()}
    code, out, err = cli(*(places.get(word, word) for word in arguments))
    assert code == 2 and out == "" and sentence in err


def test_flags_become_numbers() -> None:
    read = {row.name: row.metadata["option"].read for row in fields(Request)}
    assert read["dims"](("h=16", "a=b=1|2|1")) == {"h": (16,), "a=b": (1, 2)}
    given = ("a=16000", "b=true", "c=1,-2,+3", "d=0.25,1", "e=-1e-3", "f=x/y=z.npy", "g=inf", "h=007")
    wanted = {"a": 16000, "b": True, "c": [1, -2, 3], "d": [0.25, 1], "e": -1e-3, "f": "x/y=z.npy", "g": np.inf, "h": 7}
    found = read["constants"](given)
    assert found == wanted and [type(x) for x in found.values()] == [type(x) for x in wanted.values()]


def test_a_name_given_again_begins_another_set_of_shapes() -> None:
    assert shape_texts(("a=1,2", "b=3", "a=4,5", "b=6")) == ({"a": (1, 2), "b": (3,)}, {"a": (4, 5), "b": (6,)})
    assert shape_texts(("a=",)) == ({"a": ()},)


# --- the other verbs ----------------------------------------------------------------------------------------------


def test_verify(cli, tmp_path) -> None:
    options = ["--seed", 3, "--samples", 2, "--rtol", 0.01, "--atol", 0.5, "--json"]
    code, out, _ = cli("verify", small.package(), "--against", small.model(), *options)
    summary = json.loads(out)["summary"]
    assert code == 0 and summary["passed"]
    assert [summary[k] for k in ("seed", "samples", "rtol", "atol")] == [3, 4, 0.01, 0.5]
    code, out, _ = cli("verify", small.package(), "--against", small.model(), "--per-layer")
    assert code == 0 and "first kernel that departs: none" in out and "r1" in out


def test_verify_on_given_inputs(cli, tmp_path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((2, 3, 12, 12), np.float32))
    options = ["--against", small.model(), "--inputs", tmp_path / "in.npz"]
    code, out, _ = cli("verify", small.package(), *options, "--json")
    assert code == 0 and json.loads(out)["summary"]["samples"] == 1
    np.savez(tmp_path / "in.npz", x=np.array([object()]))
    code, _, err = cli("verify", small.package(), *options)
    assert code == 2 and "in.npz is no .npz file of numbers" in err


def test_bench(cli, in_brief: None) -> None:
    options = ["--against", "ort", "--model", small.model(), "--seconds", 0.2]
    begin = time.monotonic()
    code, out, _ = cli("bench", small.package(), *options, "--threads", 2, "--json")
    found, spent = json.loads(out), time.monotonic() - begin
    assert spent >= 2 * 0.2, "two engines"
    assert code == 0 and found["threads"] == 2 and found["engines"]["modelc"]["median_ms"] > 0 and found["ratio"]["ort"]
    begin = time.monotonic()
    longer = json.loads(cli("bench", small.package(), "--seconds", 1.5, "--threads", 1, "--json")[1])
    assert longer["threads"] == 1 and longer["engines"]["modelc"]["runs"] > 0 and time.monotonic() - begin >= 1.5
    code, out, _ = cli("bench", small.package(), *options, "--against", small.package())
    assert (
        code == 0
        and "onnxruntime" in out
        and "median ms" in out
        and "a fixed loop beside" in out
        and out.count(str(small.package())) == 1
    )
    code, out, _ = cli("bench", small.package(), "--seconds", 0.2, "--peak")
    assert code == 0 and re.search(r"\d+% of the peak: float32 \d+ GFLOP/s in this run", out)
    code, _, err = cli("bench", small.package(), "--against", "ort")
    assert code == 2 and "--model" in err


def test_a_dry_run_has_not_passed(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(small.model(), tmp_path / "net.onnx")
    (tmp_path / "modelc.yaml").write_text(
        "schema: 1\ntargets: [native]\nmodels:\n  net: {path: net.onnx, dims: {batch: 1, h: 20, w: 24}}\n"
    )
    code, out, _ = cli("build", "--dry-run", "--cache", tmp_path / "cache")
    assert code == 0 and "of 1 cell, 1 would be built; nothing was made" in out and "passed" not in out


def test_profile(cli, tmp_path) -> None:
    code, out, _ = cli("profile", small.package(), "--json")
    found = json.loads(out)
    assert code == 0 and any(k["flops"] > 0 for k in found["kernels"]) and found["peak_gflops"]["float32"] > 0
    assert {row["operators"] for row in found["operators"]} >= {"conv", "matmul"} and found["noise"]["spread"] >= 1
    assert sum(row["us"] for row in found["operators"]) == pytest.approx(sum(row["us"] for row in found["kernels"]))
    assert all(row["p10_us"] <= row["us"] <= row["p90_us"] for row in found["kernels"])
    np.savez(tmp_path / "in.npz", x=np.ones((1, 3, 20, 24), np.float32))
    code, out, _ = cli("profile", small.package(), "--threads", 2, "--inputs", tmp_path / "in.npz")
    assert code == 0 and "GFLOP/s" in out and "2 thread(s)" in out and "a fixed loop beside" in out
    shown = [float(line.split()[1]) for line in out.split("operators")[0].splitlines()[1:] if line.strip()]
    assert shown == sorted(shown, reverse=True)
    np.savez(tmp_path / "in.npz", x=np.ones((1, 3, 20, 23), np.float32))
    for verb in ("profile", "bench"):
        code, _, err = cli(verb, small.package(), "--inputs", tmp_path / "in.npz")
        assert code == 2 and "x [1, 3, 20, 23]" in err and "x [1, 3, 20, 24]" in err


def test_run(cli, tmp_path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 20, 24)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    paths = ["--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz"]
    code, out, _ = cli("run", small.package(), *paths, "--json")
    said = json.loads(out)
    assert (
        code == 0
        and said["outputs"] == {"y": {"dtype": "float32", "shape": [1, 10]}}
        and (said["schema"], said["version"]) == ("run", 1)
    )
    with modelc.load(small.package()) as model:
        assert (np.load(tmp_path / "out.npz")["y"] == model.run({"x": x})["y"]).all()
    np.savez(tmp_path / "in.npz", x=x[:, :2])
    code, _, err = cli("run", small.package(), *paths)
    assert code == 2 and "it was compiled for" in err


@pytest.mark.parametrize("kind", ["array", "text", "truncated", "nothing", "folder"])
def test_files_without_named_arrays_are_refused(cli, tmp_path, kind) -> None:
    path = tmp_path / "in.npz"
    if kind == "array":
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    elif kind == "truncated":
        np.savez(path, x=np.ones((1, 3, 20, 24), np.float32))
        path.write_bytes(path.read_bytes()[:500])
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text("hello" if kind == "text" else "")
    code, _, err = cli("run", small.package(), "--inputs", path, "--outputs", tmp_path / "out.npz")
    assert code == 2 and f"{path} " in err.replace("\n", "") and not (tmp_path / "out.npz").exists()


def test_inspect_a_model(cli, tmp_path) -> None:
    code, out, _ = cli("inspect", small.model(), "--json")
    found = json.loads(out)
    assert code == 0 and found["operators"]["Conv"] == 2 and found["supported"]
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 3, "h", "w"]}]
    path = small.save(tmp_path / "m.onnx", [helper.make_node("Nonsense", ["x"], ["y"])], {"x": [3]}, {"y": [3]}, {})
    code, out, _ = cli("inspect", path)
    assert code == 0 and "cannot compile Nonsense" in out


def test_what_inspect_says_of_free_dimensions_can_be_typed(cli, tmp_path) -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    path = small.save(tmp_path / "m.onnx", nodes, {"x": [None, 6], "b": ["rows", 6]}, {"y": [None, 6]}, {})
    code, out, _ = cli("inspect", path)
    line = next(line for line in out.splitlines() if "free dimensions" in line)
    assert code == 0 and "in place of 1 for x[0], rows" in line
    flags = shlex.split(line.partition("add ")[2].partition(", with")[0])
    assert flags == ["--dim", "x[0]=1", "--dim", "rows=1"]
    code, out, _ = cli("inspect", path, *flags)
    assert code == 0 and "free dimensions" not in out
    assert cli("compile", path, *flags, "--stop-after", "partition")[0] == 0


def test_compile_counts_the_kernels_that_inspect_counts(cli, tmp_path) -> None:
    result = json.loads(
        cli(
            "compile",
            small.model(),
            "--dim",
            "batch=1",
            "--dim",
            "h=12|20",
            "--dim",
            "w=12",
            "-o",
            tmp_path / "p",
            "--no-verify",
            "--json",
        )[1]
    )
    assert result["kernels"] == json.loads(cli("inspect", tmp_path / "p", "--json")[1])["kernels"]


def test_json_in_front_of_the_verb_is_told_where_it_goes(cli) -> None:
    code, out, err = cli("--json", "doctor")
    assert code == 2 and "behind the verb" in err and json.loads(out)["error"]["kind"] == "UsageError"


def test_inspect_a_package(cli) -> None:
    code, out, _ = cli("inspect", small.package(), "--json")
    found = json.loads(out)
    assert code == 0 and found["verification"]["passed"] and found["steps"] >= 4 and len(found["variants"]) == 2
    code, out, _ = cli("inspect", small.package())
    assert code == 0 and "checksum is right" in out


def test_inspect_what_is_neither(cli, tmp_path) -> None:
    code, _, err = cli("inspect", tmp_path)
    assert code == 2 and "is not a package" in err
    (tmp_path / "x.onnx").write_text("hello")
    assert cli("inspect", tmp_path / "x.onnx")[0] == 2


def test_targets(cli, tmp_path) -> None:
    code, out, _ = cli("targets", "list", "--json")
    assert code == 0 and {"native", "x86-64-v4", "raspberry-pi-5"} <= set(json.loads(out)["targets"])
    code, out, _ = cli("targets", "show", "raspberry-pi-5")
    assert code == 0 and yaml.safe_load(out)["triple"].startswith("aarch64")
    code, out, _ = cli("targets", "probe", "-o", tmp_path / "here.yaml", "--json")
    assert code == 0 and json.loads(out)["target"]["peak"]["float32"] > 0
    assert cli("targets", "show", tmp_path / "here.yaml")[0] == 0


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_every_verb_has_help(cli, verb) -> None:
    code, out, _ = cli(verb, "--help")
    assert code == 0 and out.startswith("Usage: modelc")


def test_no_verb_and_the_version(cli) -> None:
    assert cli()[0] == 2
    assert cli("--version")[1].strip() == f"modelc, version {modelc.__version__}"


def test_every_verb_that_says_something_takes_json() -> None:
    for verb in (verb for verb in VERBS if verb.name != "help"):
        commands = verb.commands.values() if hasattr(verb, "commands") else [verb]
        for command in commands:
            assert "--json" in {option for p in command.params for option in p.opts}, command.name


# --- what nobody foresaw --------------------------------------------------------------------------------------------


def _broken(*_: object, **options: object) -> None:
    raise IndexError("tuple index out of range")


@pytest.mark.parametrize(
    ("where", "name", "places"),
    [
        ("modelc.frontend.onnx.Importer", "_operator", ("stage import", "node 'Sigmoid_0' (Sigmoid)")),
        ("modelc.passes.eliminate_dead.EliminateDead", "__call__", ("stage simplify", "pass eliminate_dead")),
        ("modelc.compile.pipeline.Run", "schedule", ("stage schedule", "task ", "('Sigmoid_0')")),
        ("modelc.codegen.kernels", "compile_nest", ("stage codegen", "task ", "('Sigmoid_0')")),
        ("modelc.compile.publish", "write_package", ("stage package",)),
        ("modelc.compile.publish", "verify_outputs", ("stage verify",)),
        ("modelc.compile.command", "digest_of", ()),
    ],
)
def test_what_escapes_is_a_sentence_with_its_place(cli, tmp_path, monkeypatch, where, name, places) -> None:
    path = small.save(tmp_path / "m.onnx", [helper.make_node("Sigmoid", ["x"], ["y"])], {"x": [9]}, {"y": [9]}, {})
    monkeypatch.setattr(f"{where}.{name}", _broken)
    code, _, err = cli("compile", path, "-o", tmp_path / "p")
    sentence = err.splitlines()[-1]
    assert code == 3 and sentence.startswith("modelc: ") and "internal error (IndexError: tuple index" in sentence
    assert all(place in sentence for place in (*places, "--debug" if not places else f"model {path}"))
    assert sorted(os.listdir(tmp_path)) == ["m.onnx"]


def test_debug_shows_the_traceback(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("modelc.compile.describe.summary", _broken)
    path = small.save(tmp_path / "m.onnx", [helper.make_node("Sigmoid", ["x"], ["y"])], {"x": [9]}, {"y": [9]}, {})
    for arguments in (["--debug", "inspect", str(path)], ["inspect", str(path), "--debug"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        said = capsys.readouterr().err
        assert stop.value.code == 3 and "Traceback" in said and "in _broken" in said and f"model {path}" in said


def test_memory_that_ran_out_is_no_mistake_of_ours(cli, tmp_path, monkeypatch) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("modelc.compile.describe.summary", exhausted)
    path = small.save(tmp_path / "m.onnx", [helper.make_node("Sigmoid", ["x"], ["y"])], {"x": [9]}, {"y": [9]}, {})
    code, _, err = cli("inspect", path)
    assert code == 2 and "needs more memory than there is" in err
