"""modelc build: cells are made, kept, proven, made again where what they are of has changed, and held to gates."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest
import yaml
from dask_processes import Processes
from jsonschema import Draft202012Validator
from modelc_process import modelc
from onnx import helper
from records_of_families import PRODUCT, family, record_of, written
from small_model import save
from three_ways import host_target, tensor_target
from tiny_package import NATIVE_TRIPLE, skip_without_tools
from user_intrinsics import PAIRS

import modelc as library
from modelc import runtime
from modelc.build.cluster import _unpacked, made_there, shipped
from modelc.build.command import build
from modelc.build.crew import Answer, Crew
from modelc.build.kept import Kept
from modelc.build.summary import schema
from modelc.cli import main
from modelc.database import Database
from modelc.measure import dask_client
from modelc.package import read_package
from modelc.passes.machine import multiplied
from modelc.signals import descendants
from modelc.space.rules import derivation
from modelc.space.rules.rule import Rule
from modelc.target import load_target

TARGET = host_target().name


def tree(**changes: object) -> dict:
    """Two models, two targets that this machine runs."""
    models = {"net": {"path": "net.onnx", "dims": {"batch": 2, "h": 4}}, "sum": {"path": "sum.onnx"}}
    return {"schema": 1, "targets": [TARGET, "mine.yaml"], "models": models, "output": "out", **changes}


def small_sum(path: Path, factor: float) -> Path:
    weights = {"w": np.full(8, factor, np.float32)}
    return save(path, [helper.make_node("Add", ["x", "w"], ["y"])], {"x": [4, 8]}, {"y": [4, 8]}, weights)


def files(folder: Path, **changes: object) -> Path:
    save(
        folder / "net.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": ["batch", "h"]}, {"y": ["batch", "h"]}, {}
    )
    small_sum(folder / "sum.onnx", 2.0)
    (folder / "mine.yaml").write_text(replace(host_target(), name="mine").to_yaml())
    (folder / "modelc.yaml").write_text(yaml.safe_dump(tree(**changes)))
    return folder


def ended(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def outcomes(folder: Path, name: str = "build.json") -> dict[str, str]:
    made = json.loads((folder / "out" / name).read_text())
    Draft202012Validator(schema()).validate(made)
    return {cell["cell"]: cell["outcome"] for cell in made["cells"]}


def contents(folder: Path) -> dict[str, bytes]:
    """Of all packages in it."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("*.modelc/*")) if p.is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which four cells were built."""
    folder = files(tmp_path_factory.mktemp("build"))
    assert ended("build", folder / "modelc.yaml", "--cache", folder / "cache", "--no-database") == 0
    return folder


@pytest.fixture
def copied(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copied"))


def again(folder: Path, *arguments: object) -> int:
    return ended("build", folder / "modelc.yaml", "--cache", folder / "cache", "--no-database", *arguments)


CELLS = {f"{model}:{target}:f32" for model in ("net", "sum") for target in (TARGET, "mine")}


def test_every_cell_is_a_package_and_has_a_row(built: Path) -> None:
    assert outcomes(built) == dict.fromkeys(CELLS, "built")
    names = {path.name for path in (built / "out").iterdir()}
    packages = {f"{cell.replace(':', '.')}.modelc" for cell in CELLS}
    assert names == packages | {"build.json", "build.md", "build.junit.xml"}
    page = (built / "out/build.md").read_text()
    assert "4 cells: 4 built; passed" in page and all(cell in page for cell in CELLS)
    suites = fromstring((built / "out/build.junit.xml").read_text())
    assert {suite.attrib["name"] for suite in suites} == CELLS
    with runtime.load(built / f"out/sum.{TARGET}.f32.modelc") as model:
        assert (model.run({"x": np.ones((4, 8), np.float32)})["y"] == 3).all()


def test_the_second_time_all_are_kept_and_what_was_damaged_is_made_good(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """No process is started for it, and no model is looked into."""
    monkeypatch.setattr("modelc.build.command.Crew", None)
    monkeypatch.setattr("modelc.build.look._sentences", None)
    before = contents(copied / "out")
    library = copied / f"out/sum.{TARGET}.f32.modelc/params.bin"
    library.write_bytes(library.read_bytes()[::-1])  # of the same size
    shutil.rmtree(copied / "out/net.mine.f32.modelc")
    assert again(copied) == 0
    assert outcomes(copied) == dict.fromkeys(CELLS, "kept") and contents(copied / "out") == before
    assert again(copied, "--dry-run", "--only", "su?:mine") == 0
    said = capsys.readouterr().out
    assert "of 1 cell, 0 would be built" in said


def test_what_changed_is_built_again_and_nothing_else(copied: Path) -> None:
    small_sum(copied / "sum.onnx", 5.0)
    kept = next((copied / "cache/cells").glob("*/net.modelc/manifest.json"))
    kept.write_bytes(kept.read_bytes()[:100])  # which makes it no package any more
    shutil.rmtree(copied / "out")
    assert again(copied, "--only", f"sum:{TARGET}", "--only", "net") == 0
    assert sorted(outcomes(copied).values()) == ["built", "built", "kept"]
    assert outcomes(copied)[f"sum:{TARGET}:f32"] == "built"


def test_a_form_is_built_and_is_part_of_what_is_kept(copied: Path, capsys) -> None:
    models = {**tree()["models"], "sum": {"path": "sum.onnx", "targets": [TARGET], "form": {"emit": ["so", "a"]}}}
    (copied / "modelc.yaml").write_text(yaml.safe_dump(tree(models=models)))
    assert again(copied, "--only", "sum") == 0
    package = copied / f"out/sum.{TARGET}.f32.modelc"
    assert outcomes(copied) == {f"sum:{TARGET}:f32": "built"} and (package / "libsum.a").is_file()
    models["sum"] |= {"limits": {"params": "16 B"}}
    (copied / "modelc.yaml").write_text(yaml.safe_dump(tree(models=models)))
    assert again(copied, "--only", "sum") == 1
    assert "--max-params 16B allows 16 bytes of parameters" in capsys.readouterr().err


def test_gates_say_the_cell_the_gate_and_the_amount(copied: Path, capsys) -> None:
    gates = {"max-library": "10MB", "max-params": 31}
    (copied / "modelc.yaml").write_text(yaml.safe_dump(tree(gates=gates)))
    assert again(copied, "--only", "sum") == 1
    assert outcomes(copied) == {f"sum:{TARGET}:f32": "kept", "sum:mine:f32": "kept"}
    assert f"sum:{TARGET}:f32: max-params: 64 bytes of 31, 33 too many" in capsys.readouterr().err
    suites = fromstring((copied / "out/build.junit.xml").read_text())
    assert [suite.attrib["failures"] for suite in suites] == ["1", "1"]


def test_a_cell_of_bytes_is_calibrated_and_its_drop_is_a_gate(tmp_path: Path) -> None:
    if not any(unit.pays for unit in multiplied(tensor_target())):
        pytest.skip("this machine has no instruction that multiplies bytes quicker than float32")
    (tmp_path / "mine.yaml").write_text(replace(tensor_target(), name="mine").to_yaml())
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((256, 128)).astype(np.float32) / 16}
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["y"])]
    save(tmp_path / "net.onnx", nodes, {"x": [64, 256]}, {"y": [64, 128]}, weights)
    np.savez(tmp_path / "samples.npz", x=rng.standard_normal((8, 64, 256)).astype(np.float32))
    models = {"net": {"path": "net.onnx", "calibrate": "samples.npz", "gates": {"max-drop": "5%"}}}
    whole = {"schema": 1, "targets": ["mine.yaml"], "precisions": ["int8"], "models": models, "output": "out"}
    (tmp_path / "modelc.yaml").write_text(yaml.safe_dump(whole))
    assert again(tmp_path) == 0
    (cell,) = json.loads((tmp_path / "out/build.json").read_text())["cells"]
    (gate,) = [gate for gate in cell["gates"] if gate["gate"] == "max-drop"]
    assert (cell["outcome"], gate["outcome"], gate["limit"]) == ("built", "passed", 0.05) and 0 < gate["value"] <= 0.05
    package = read_package(tmp_path / "out/net.mine.int8.modelc")
    assert any("1 of 1 layers multiply bytes" in note for note in package.manifest.notes)


def test_gates_of_speed(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside ONNX Runtime, and beside the baseline: the very same package is not timed, another is."""
    monkeypatch.setattr("modelc.build.gates.SECONDS", 0.1)
    monkeypatch.setattr("modelc.verify.rounds.ROUNDS", 2)
    baseline = Path(shutil.copytree(copied / "out", copied / "before")) / "build.json"
    gates = {"min-ratio": {"ort": 1e9}, "max-slowdown": 9.0, "max-kernel-slowdown": 9.0, "max-more-instructions": "1%"}
    (copied / "modelc.yaml").write_text(yaml.safe_dump(tree(gates=gates)))
    small_sum(copied / "sum.onnx", 5.0)
    assert again(copied, "--only", f"*:{TARGET}", "--baseline", baseline) == 1
    cells = json.loads((copied / "out/build.json").read_text())["cells"]
    by_gate = {(cell["model"], gate["gate"]): gate for cell in cells for gate in cell["gates"]}
    assert by_gate["net", "max-slowdown"]["said"] == "the very package of the baseline"
    assert by_gate["sum", "max-slowdown"]["outcome"] == "passed" and "noise" in by_gate["sum", "max-slowdown"]["said"]
    assert by_gate["sum", "max-kernel-slowdown"]["outcome"] == "passed"
    assert "none of 1 kernels is slower" in by_gate["sum", "max-kernel-slowdown"]["said"]
    counted = by_gate["sum", "max-more-instructions"]
    if shutil.which("valgrind") and not any(f.startswith("avx512") for f in host_target().features):
        assert counted["outcome"] == "passed" and "instructions in a run" in counted["said"], counted
        assert abs(counted["value"]) < 0.01
    else:
        assert counted["outcome"] == "skipped" and "valgrind" in counted["said"]
    assert by_gate["net", "min-ratio ort"]["outcome"] == "failed"
    assert "times as fast as ort, at least 1e+09 asked for" in by_gate["net", "min-ratio ort"]["said"]


@pytest.mark.skipif(not NATIVE_TRIPLE.startswith("x86"), reason="the package is for this machine")
@pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="Debian's qemu-user, which takes plugins, is not there")
def test_more_instructions_fail_a_cell_of_another_machine(tmp_path: Path, capsys) -> None:
    """Under the emulator: the very package passes, a worse one fails, and beside that one the first is better."""
    skip_without_tools("aarch64-linux-gnu")
    files(tmp_path, targets=["cortex-a76"], models={"sum": {"path": "sum.onnx"}}, gates={"max-more-instructions": "1%"})
    assert again(tmp_path) == 0
    before = Path(shutil.copytree(tmp_path / "out", tmp_path / "before")) / "build.json"
    nodes = [helper.make_node("Add", ["x", "w"], ["s"]), helper.make_node("Erf", ["s"], ["y"])]
    weights = {"w": np.full(8, 2.0, np.float32)}
    save(tmp_path / "sum.onnx", nodes, {"x": [4, 8]}, {"y": [4, 8]}, weights)
    assert again(tmp_path, "--baseline", before) == 1
    assert re.search(
        r"sum:cortex-a76:f32: max-more-instructions: [\d,]+ instructions in a run, [\d,]+ before: [\d.]+% more",
        capsys.readouterr().err,
    )
    worse = Path(shutil.copytree(tmp_path / "out", tmp_path / "worse")) / "build.json"
    small_sum(tmp_path / "sum.onnx", 2.0)
    for baseline, said in ((before, "the very package of the baseline"), (worse, "% fewer")):
        assert again(tmp_path, "--baseline", baseline) == 0
        assert outcomes(tmp_path) == {"sum:cortex-a76:f32": "kept"}
        assert said in (tmp_path / "out/build.json").read_text()


def test_everything_that_is_missing_is_said_at_once(tmp_path: Path, capsys) -> None:
    models = {
        "net": {"path": "net.onnx"},
        "gone": {"path": "gone.onnx"},
        "other": {"path": "sum.onnx", "sha256": "0" * 64},
        "form": {"path": "sum.onnx", "form": {"freestanding": True, "emit": ["so"]}},
        "names": {"path": "sum.onnx", "form": {"prefix": "2"}},
    }
    files(tmp_path, models=models, targets=[TARGET, "cortex-a67"])
    assert ended("build", tmp_path / "modelc.yaml", "--cache", tmp_path / "cache", "--no-database") == 2
    said = capsys.readouterr().err
    for words in (
        "models.net: dimensions are free: add --dim batch=1 --dim h=1, here dims: {batch: 1, h: 1}",
        "models.gone: ",
        "models.other: ",
        f"models.form, for {TARGET}: a free-standing package has no shared library",
        f"models.names, for {TARGET}: --prefix '2' begins no C name",
        f"expected {'0' * 64}",
        "Did you mean cortex-a76?",
    ):
        assert words in said, said
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not NATIVE_TRIPLE.startswith("x86"), reason="the target is this machine's")
@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"name": "cortex-a76", "budget": "5m"}, "tuning measures, and this machine cannot"),
        ({"name": "cortex-a76", "budget": "5m", "runner": "foo://x"}, "the runner is 'foo://x', and there is no such"),
        ({"name": "cortex-a76", "budget": "soon"}, "the budget is 'soon'; expected a time"),
    ],
)
def test_what_cannot_be_tuned_is_said_before_anything_is_made(
    tmp_path: Path, capsys, said: dict[str, str], sentence: str
) -> None:
    files(tmp_path, targets=[said], models={"sum": {"path": "sum.onnx"}})
    assert again(tmp_path) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_cluster_that_is_none_leaves_no_folder(tmp_path: Path, capsys) -> None:
    files(tmp_path)
    assert again(tmp_path, "--cluster", "local") == 2
    assert "--cluster is 'local'; expected dask://HOST:PORT" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[]", '{"schema": 1}', "ENTRY"])
def test_what_is_no_entry_is_as_if_it_were_not_there(tmp_path: Path, text: str) -> None:
    entry = {"schema": 1, "manifest": "0", "outcome": [], "consulted": {"tasks": []}, "answers": ""}
    (tmp_path / "cells/key").mkdir(parents=True)
    (tmp_path / "cells/key/entry.json").write_text(text.replace("ENTRY", json.dumps(entry)))
    assert Kept(tmp_path).entry("key", None) is None


@pytest.mark.parametrize(
    ("seconds", "is_one"), [(1.5, True), (float("nan"), False), (-1, False), (float("inf"), False)]
)
def test_what_a_cell_took_is_a_number(tmp_path: Path, seconds: float, is_one: bool) -> None:
    outcome = {"seconds": seconds, "notes": [], "tuned": False}
    entry = {"schema": 1, "manifest": "0", "outcome": outcome, "consulted": None, "answers": ""}
    (tmp_path / "cells/key").mkdir(parents=True)
    (tmp_path / "cells/key/entry.json").write_text(json.dumps(entry))
    assert (Kept(tmp_path).entry("key", None) is not None) is is_one


# --- a repository of somebody else's ----------------------------------------------------------------------------------


def test_code_of_the_file_is_executed_by_a_flag_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A runner and a metric: a sentence names the flag."""
    targets = [{"name": TARGET, "budget": "1", "runner": f"sh -c 'touch {tmp_path}/ran'"}]
    files(tmp_path, targets=targets, models={"sum": {"path": "sum.onnx"}})
    assert again(tmp_path) == 2
    assert 'kernels are run through the runner "sh -c' in (said := capsys.readouterr().err) and "--allow-code" in said
    assert again(tmp_path, "--allow-code", "--dry-run") == 0
    capsys.readouterr()
    np.savez(tmp_path / "samples.npz", x=np.ones((8, 4, 8), np.float32))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef f(outputs, sample): return 1.0\n")
    model = {"path": "sum.onnx", "calibrate": "samples.npz", "metric": "evil.py:f", "precisions": ["auto"]}
    files(tmp_path, targets=[TARGET], models={"sum": model})
    assert again(tmp_path) == 2
    assert "models.sum: the metric " in (said := capsys.readouterr().err) and "--allow-code" in said
    assert not (tmp_path / "ran").exists() and not (tmp_path / "out").exists()
    assert again(tmp_path, "--allow-code", "--dry-run") == 0


@pytest.mark.parametrize("output", ["../else", "/tmp", "link", "loop"])
def test_packages_go_into_the_folder_of_the_file(tmp_path: Path, capsys, output: str) -> None:
    files(tmp_path, output=output, models={"sum": {"path": "sum.onnx"}})
    (tmp_path / "link").symlink_to("..")
    (tmp_path / "loop").symlink_to("loop")
    assert again(tmp_path) == 2
    assert "expected a folder inside the one in which the file lies" in capsys.readouterr().err
    assert again(tmp_path, "-o", tmp_path / "own", "--dry-run") == 0


@pytest.mark.parametrize("name", ["build.json", "build.md", "build.junit.xml"])
def test_nothing_is_replaced_but_summaries(copied: Path, capsys, name: str) -> None:
    """A repository's own docs/build.md, say."""
    (copied / "out" / name).write_text("# How to build it\n")
    assert again(copied) == 2
    assert f"{name} is no summary of a build, and is not replaced" in capsys.readouterr().err
    assert (copied / "out" / name).read_text() == "# How to build it\n"


def test_a_package_elsewhere_is_not_replaced_through_a_link(copied: Path, capsys) -> None:
    place, kept = copied / f"out/sum.{TARGET}.f32.modelc", copied / "precious.modelc"
    place.rename(kept)
    place.symlink_to(kept)
    assert again(copied) == 2
    assert "is a link that leads out of" in capsys.readouterr().err and kept.is_dir()


def test_what_is_no_regular_file_is_not_read(copied: Path, capsys) -> None:
    changed = tree()
    changed["models"]["sum"]["inputs"] = "/dev/zero"
    changed["models"]["net"]["choices"] = "fifo"
    os.mkfifo(copied / "fifo")
    (copied / "modelc.yaml").write_text(yaml.safe_dump(changed))
    assert again(copied) == 2
    said = capsys.readouterr().err
    assert "/dev/zero cannot be read: expected a regular file" in said and "fifo cannot be read" in said


def test_a_rule_of_the_users_is_part_of_what_is_kept(copied: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def own(task: object, stage: object) -> None:
        raise AssertionError("nothing is derived")

    monkeypatch.setitem(derivation._RULES, "own", Rule("own", own))
    assert again(copied, "--dry-run") == 0
    assert "of 4 cells, 4 would be built" in capsys.readouterr().out


def test_a_target_that_cannot_be_verified_is_said_before_anything_is_made(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr("modelc.build.look.lacking", lambda features: ["amx-tile"])
    monkeypatch.setattr("modelc.build.look.emulator", lambda triple, features: ())
    assert again(copied, "--only", "sum") == 2
    said = capsys.readouterr().err
    assert f"{TARGET}: packages for it cannot be verified, for this machine lacks amx-tile" in said
    (copied / "modelc.yaml").write_text(yaml.safe_dump(tree(gates={"verified": False})))
    assert again(copied, "--only", f"sum:{TARGET}") == 0
    made = json.loads((copied / f"out/sum.{TARGET}.f32.modelc/manifest.json").read_text())
    assert made["verification"] is None


def test_a_cache_that_others_can_write_in_is_not_used(copied: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (copied / "open").mkdir()
    (copied / "open").chmod(0o777)
    monkeypatch.setenv("MODELC_CACHE", str(copied / "open"))
    for arguments in ((), ("--cache", copied / "open")):
        assert ended("build", copied / "modelc.yaml", "--no-database", *arguments) == 2
        assert "others can write in" in capsys.readouterr().err


def test_a_cell_that_fails_costs_itself_alone(copied: Path, capsys) -> None:
    """Wrong data for one model: the other is built, and the build has failed."""
    np.savez(copied / "data.npz", x=np.ones((3, 3), np.float32))
    changed = tree()
    changed["models"]["sum"]["inputs"] = "data.npz"
    (copied / "modelc.yaml").write_text(yaml.safe_dump(changed))
    assert again(copied, "--only", f"*:{TARGET}", "--json") == 1
    captured = capsys.readouterr()
    rows = {cell["model"]: cell for cell in json.loads(captured.out)["cells"]}
    assert rows["net"]["outcome"] == "kept" and rows["sum"]["outcome"] == "failed"
    assert "[3, 3]" in rows["sum"]["said"] and f"sum:{TARGET}:f32: not built" in captured.err


def test_shards_give_the_same_packages_as_one_run(built: Path, tmp_path: Path) -> None:
    files(tmp_path)
    for shard in ("1/2", "2/2"):
        assert again(tmp_path, "--only", "sum", "--shard", shard) == 0
    made = contents(tmp_path / "out")
    assert made == {name: content for name, content in contents(built / "out").items() if name.startswith("sum.")}
    shards = [outcomes(tmp_path, f"build.{number}-of-2.json") for number in (1, 2)]
    assert shards == [{f"sum:{TARGET}:f32": "built"}, {"sum:mine:f32": "built"}]


def test_whatever_kills_it_what_was_made_is_kept(tmp_path: Path) -> None:
    files(tmp_path)
    arguments = ("build", "--cache", tmp_path / "cache", "--no-database", "--jobs", 1, "--only", "sum")
    with modelc(tmp_path, *arguments, until=f"sum:{TARGET}:f32 built") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    time.sleep(0.1)
    entries = list((tmp_path / "cache/cells").glob("*/entry.json"))
    assert len(entries) == 1
    assert again(tmp_path, "--only", "sum") == 0
    assert outcomes(tmp_path) == {f"sum:{TARGET}:f32": "kept", "sum:mine:f32": "built"}


class Enough(Exception):
    """A program's own."""


def test_what_progress_raises_ends_a_build_and_what_was_made_is_kept(tmp_path: Path) -> None:
    files(tmp_path)
    before = descendants(os.getpid())

    def told(stage: str, text: str) -> None:
        if " built in " in text:
            raise Enough("for today")

    options = {"only": ["sum"], "cache": tmp_path / "cache", "database": False}
    with pytest.raises(Enough, match="for today"):
        library.build(tmp_path / "modelc.yaml", jobs=2, progress=told, **options)
    assert set(descendants(os.getpid())) <= set(before) and not list(tmp_path.rglob("*.partial"))
    assert not (tmp_path / "out/build.json").exists() and len(list((tmp_path / "out").iterdir())) == 1
    result = library.build(tmp_path / "modelc.yaml", **options)
    assert result.passed and sorted(cell["outcome"] for cell in result.build["cells"]) == ["built", "kept"]


WORKER = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1], "w").close(), sys.exit()))
print("there", flush=True)
signal.pause()
"""


def test_workers_are_told_to_end_and_remove_what_is_half_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path / "tidied")]
    monkeypatch.setattr("modelc.build.crew.worker_command", lambda *_: command)
    there = threading.Event()
    with pytest.raises(KeyboardInterrupt), Crew(1, lambda *_: there.set()) as crew:
        threading.Thread(target=lambda: list(crew.results({"cell": {}})), daemon=True).start()
        assert there.wait(60)
        raise KeyboardInterrupt
    assert (tmp_path / "tidied").exists()


def test_a_target_in_a_file_goes_to_workers_with_its_intrinsics_and_records(tmp_path: Path, monkeypatch) -> None:
    """They have the files that are sent, and no others: what lies beside modelc.yaml is gone meanwhile. A cell is made
    anew where its target's records have changed."""
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    (here / "more").mkdir(parents=True)
    (here / "more/pairs.yaml").write_text(PAIRS)
    described = yaml.safe_load(load_target("x86-64-v4").to_yaml())
    described |= {"name": "mine", "intrinsics": ["avx512-f32", "more/pairs.yaml"], "records": "more/mine.jsonl"}
    written(here / "more/mine.jsonl", family(record_of(PRODUCT)))
    (here / "mine.yaml").write_text(yaml.safe_dump(described))
    small_sum(here / "sum.onnx", 2.0)
    models = {"sum": {"path": "sum.onnx", "gates": {"verified": False}}}
    (here / "modelc.yaml").write_text(yaml.safe_dump(tree(targets=["mine.yaml"], models=models)))
    orders = dict[str, object]()

    def sent_away(self: Crew, every: dict[str, dict[str, object]]) -> Iterator[Answer]:
        for name, order in every.items():
            orders[name], files = shipped(order)
            here.rename(tmp_path / "gone")
            answer, packed = made_there(name, orders[name], files)
            (tmp_path / "gone").rename(here)
            _unpacked(packed, Path(str(order["output"])))
            yield answer

    monkeypatch.setattr(Crew, "results", sent_away)
    monkeypatch.chdir(there)
    result = build(here / "modelc.yaml", cache=tmp_path / "cache", database=False)
    assert result.passed, result.build["cells"][0]["said"]
    (order,) = orders.values()
    assert order["target"] == "given/target/mine.yaml"
    package = read_package(here / "out/sum.mine.f32.modelc")
    assert package.manifest.target.name == "mine"
    assert any("pairs.yaml" in file.read_text() for file in package.path.glob("choices.json"))
    for relative, made in ((0.5, 0), (0.25, 1)):
        orders.clear()
        written(here / "more/mine.jsonl", family(record_of(PRODUCT, relative)))
        assert build(here / "modelc.yaml", cache=tmp_path / "cache", database=False).passed and len(orders) == made


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    pytest.importorskip("distributed", reason="distributed is not installed: pip install 'modelc-compiler[cluster]'")
    monkeypatch.setattr(dask_client, "CONNECTING", 30.0)  # this machine may be busy
    (tmp_path / "dask").mkdir()
    started = Processes(tmp_path / "dask")
    try:
        yield started
    finally:
        started.end()


def test_a_killed_worker_costs_only_time(processes: Processes, built: Path, tmp_path: Path) -> None:
    first = processes.worker()
    processes.there(1)
    files(tmp_path)

    def look(stage: str, text: str) -> None:
        if text.endswith(" s") and first.poll() is None:  # a cell is built
            first.kill()
            processes.worker()

    result = build(
        source=tmp_path / "modelc.yaml",
        only=["sum"],
        cache=tmp_path / "cache",
        cluster=processes.runner,
        database=False,
        progress=look,
    )
    assert first.wait(60) == -9 and result.passed
    made = contents(tmp_path / "out")
    assert made == {name: content for name, content in contents(built / "out").items() if name.startswith("sum.")}


def test_measurements_that_a_cell_has_read_decide_whether_it_is_kept(copied: Path) -> None:
    """An empty database makes no difference to a package, and is another answer than none."""
    with Database(copied / "records.sqlite"):
        pass
    arguments = ("build", copied / "modelc.yaml", "--cache", copied / "cache", "--only", f"sum:{TARGET}")
    for expected in ("built", "kept"):
        assert ended(*arguments, "--database", copied / "records.sqlite") == 0
        assert outcomes(copied) == {f"sum:{TARGET}:f32": expected}
