"""The stages end to end: what comes out, what stops them, that every key of a configuration does something."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_model as small
import yaml
from broken_kernels import broken
from onnx import helper
from repository import ROOT
from tiny_package import skip_without_tools

import modelc
from modelc.codegen import kernels
from modelc.codegen.kernel import Kernel, KernelStep
from modelc.compile.choices import read_choices_file
from modelc.compile.command import compile_request
from modelc.compile.config import load_config, parse_config
from modelc.compile.pass_lists import simplifying
from modelc.compile.pipeline import Run
from modelc.compile.request import CompileRequest
from modelc.compile.stages import STAGES
from modelc.errors import ConfigError, ModelError, PackageError, ToolchainError, VerificationError
from modelc.package import read_package
from modelc.passes import SIMPLIFY
from modelc.space.choose import Schedules
from modelc.target import load_target

DEFAULT = load_config()
VERIFY = DEFAULT.to_json()["verify"]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def tree() -> dict:
    return yaml.safe_load((ROOT / "configs/default.yaml").read_text())


def test_a_package_has_variants_that_share_kernels_and_parameters_and_is_verified() -> None:
    manifest = read_package(small.package(), check=True).manifest
    assert [plan.inputs[0].shape for plan in manifest.variants] == [s["x"] for s in small.SHAPES]
    assert manifest.verification is not None and manifest.verification["passed"]
    params = [{a.offset for s in plan.steps for a in s.arguments if a.space == "params"} for plan in manifest.variants]
    assert params[0] & params[1]
    nodes = {node for step in manifest.variants[0].steps for node in step.nodes}
    assert {"first", "relu", "second", "pool", "product"} <= nodes
    assert all(step.bytes > 0 for plan in manifest.variants for step in plan.steps)


def test_the_loader_runs_every_variant() -> None:
    with modelc.load(small.package(), threads=2) as model:
        for shapes in small.SHAPES:
            assert model.run({"x": np.ones(shapes["x"], np.float32)})["y"].shape == (shapes["x"][0], 10)


def test_flops_are_those_of_the_convolution() -> None:
    steps = read_package(small.package()).manifest.variants[0].steps
    flops = sum(s.flops for s in steps if "first" in s.nodes)
    macs = 20 * 24 * 8 * 27
    assert 2 * macs <= flops <= 2.2 * macs and steps[0].dtype == "float32"


def test_choices_rebuild_the_package_byte_for_byte_without_scheduling(tmp_path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something was scheduled")

    small.package()
    monkeypatch.setattr(Schedules, "chosen", refuse)
    again = tmp_path / "net.modelc"
    modelc.compile(small.model(), output=again, choices=small.package() / "choices.json", cache=False)
    assert digests(again) == digests(small.package())


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("modelc", "9.9", "modelc 9.9"),
        ("occurrences", {"x": 0}, "occurrences.x does not fit choices.schema.json"),
        ("tasks", {"x": {}}, "tasks.x: the candidate does not fit candidate.schema.json"),
        ("shapes", 3, "shapes does not fit choices.schema.json"),
    ],
)
def test_choices_for_something_else_are_refused(tmp_path, key, value, sentence) -> None:
    data = json.loads((small.package() / "choices.json").read_text())
    (tmp_path / "choices.json").write_text(json.dumps({**data, key: value}))
    with pytest.raises(ConfigError, match=sentence):
        modelc.compile(small.model(), output=tmp_path / "p", choices=tmp_path / "choices.json")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("spoil", ["order", "tags", "at", "layouts", "stages", "padded"])
def test_choices_that_are_no_schedule_are_refused_before_lowering(tmp_path, monkeypatch, spoil) -> None:
    """A locked Candidate is no more trusted than a constructed one."""
    data = json.loads((small.package() / "choices.json").read_text())
    for task in data["tasks"].values():
        for block in task["blocks"].values():
            if spoil == "order":
                block["order"] = block["order"][1:]
            elif spoil == "tags":
                block["tags"] = dict.fromkeys(block["order"], "parallel")
            elif spoil == "at":
                block["at"] = "nothing.x0"
            elif spoil == "padded":
                block["tiles"] = {}
        if spoil == "layouts":
            task["layouts"] = {name: "split(7, 5)" for name in task["layouts"]}
        elif spoil == "stages":
            task["stages"] = [{"rule": "winograd", "block": "none", "m": 2}]
    (tmp_path / "choices.json").write_text(json.dumps(data))
    monkeypatch.setattr(kernels, "compile_nest", lambda *_: pytest.fail("it was lowered"))
    with pytest.raises(ConfigError, match=r"of the task [^ ]+ .[0-9a-f]+. does not fit it"):
        modelc.compile(small.model(), output=tmp_path / "p", choices=tmp_path / "choices.json")


@pytest.mark.parametrize("same", [True, False])
def test_what_choices_do_not_name_is_constructed(tmp_path, same) -> None:
    """Of this model's choices a Task is taken out; then they are said to be another model's, of other layouts."""
    data = json.loads((small.package() / "choices.json").read_text())
    first, *rest = sorted(data["tasks"])
    del data["tasks"][first]
    if not same:
        data |= {"model_sha256": "0" * 64, "shapes": [{"other": [1]}], "layouts": data["layouts"][:1], "float32": [[]]}
    data["tasks"]["0" * 16] = data["tasks"][rest[0]]
    (tmp_path / "choices.json").write_text(json.dumps(data))
    shapes = [] if same else [{"x": list(s["x"])} for s in small.SHAPES]
    result = modelc.compile(
        small.model(), output=tmp_path / "p", choices=tmp_path / "choices.json", shapes=shapes, verify=False
    )
    assert (result.chosen, result.kernels) == (len(rest), len(rest) + 1)
    assert result.to_json()["constructed_tasks"] == 1
    assert digests(tmp_path / "p")["libnet.so"] == digests(small.package())["libnet.so"]


def test_choices_say_how_often_a_task_runs(tmp_path) -> None:
    """Two products of equal sizes, for two sets of shapes."""
    nodes = [helper.make_node("MatMul", ["x", w], [y]) for w, y in (("v", "y"), ("w", "z"))]
    weights = {name: np.full([6, 4], k, np.float32) for k, name in enumerate("vw")}
    model = small.save(tmp_path / "m.onnx", nodes, {"x": ["n", 6]}, {"y": ["n", 4], "z": ["n", 4]}, weights)
    shapes = [{"x": [3, 6]}, {"x": [5, 6]}]
    modelc.compile(model, output=tmp_path / "p", shapes=shapes, verify=False)
    chosen = read_choices_file(tmp_path / "p")
    assert chosen.occurrences == dict.fromkeys(chosen.tasks, 2) and len(chosen.tasks) == 2


def test_choices_for_another_target_are_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="the target"):
        modelc.compile(small.model(), "raspberry-pi-5", tmp_path / "p", choices=small.package())


def test_choices_read_back_equal() -> None:
    chosen = read_choices_file(small.package())
    assert chosen.to_json() == json.loads((small.package() / "choices.json").read_text())


@pytest.mark.parametrize("stage", STAGES[:5])
def test_stop_after_a_stage_dumps_what_is_there_and_writes_no_package(tmp_path, stage) -> None:
    result = modelc.compile(
        small.model(), shapes=small.SHAPES[:1], output=tmp_path / "p", stop_after=stage, dump_dir=tmp_path / "dumps"
    )
    reached = STAGES[: STAGES.index(stage) + 1]
    names = sorted(path.name for path in (tmp_path / "dumps").iterdir())
    assert names == [f"{k + 1:02}-{name}.txt" for k, name in enumerate(reached)]
    assert all((tmp_path / "dumps" / name).stat().st_size for name in names)
    assert result.path is None and tuple(result.seconds) == reached and not (tmp_path / "p").exists()


def test_an_unknown_stage_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no stage 'link'"):
        modelc.compile(small.model(), stop_after="link")


def test_the_number_of_threads_does_not_change_a_byte(tmp_path) -> None:
    again = {"choices": small.package(), "threads": 1, "verify": False, "cache": False}
    result = modelc.compile(small.model(), output=tmp_path / "p", **again)
    assert result.threads == 1 and result.report is None
    assert digests(tmp_path / "p")["libnet.so"] == digests(small.package())["libnet.so"]


def test_unsupported_operators_are_told_all_at_once(tmp_path) -> None:
    nodes = [helper.make_node("Nonsense", ["x"], ["a"], "n1"), helper.make_node("Gibberish", ["a"], ["y"], "n2")]
    path = small.save(tmp_path / "m.onnx", nodes, {"x": [3]}, {"y": [3]}, {})
    stages: list[str] = []
    with pytest.raises(ModelError, match=r"(?s)Nonsense.*Gibberish"):
        modelc.compile(path, output=tmp_path / "p", progress=lambda stage, text: stages.append(stage))
    assert set(stages) == {"import"} and os.listdir(tmp_path) == ["m.onnx"]


def test_empty_values_are_compiled_beside_others_and_where_the_model_says_them(tmp_path) -> None:
    nodes = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0), helper.make_node("Relu", ["x"], ["z"])]
    path = small.save(tmp_path / "m.onnx", nodes, {"x": ["n", 4]}, {"y": [], "z": ["n", 4]}, {})
    result = modelc.compile(path, output=tmp_path / "p", dims={"n": 0}, database=False)
    assert result.report is not None and result.report.passed
    with modelc.load(tmp_path / "p") as model:
        found = model.run({"x": np.zeros((0, 4), np.float32)})
    assert found["y"] == 0 and found["z"].shape == (0, 4)
    path = small.save(tmp_path / "m.onnx", nodes[1:], {"x": [0, 4]}, {"z": [0, 4]}, {})
    assert modelc.compile(path, output=tmp_path / "q", database=False).kernels == 0


@pytest.mark.parametrize(("shape", "flags"), [(["n", "n + 1"], "--dim n=N"), (["", 3], r"--dim 'x\[0\]=N'")])
def test_what_has_no_elements_is_refused_with_the_flags_that_made_it_so(tmp_path, shape, flags) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = small.save(tmp_path / "m.onnx", nodes, {"x": shape}, {"y": shape}, {})
    sizes = (0, 1) if "n" in shape else (0, 3)
    with pytest.raises(ModelError, match=rf"what would be compiled has no elements.*with {flags}, each"):
        modelc.compile(path, output=tmp_path / "p", shapes=[{"x": sizes}])


def test_a_wrong_package_is_not_left_behind_unless_asked_for(tmp_path, monkeypatch) -> None:
    broken(monkeypatch)
    plain = DEFAULT.allowing(tensorize=False)  # an intrinsic's zeros are its own
    with pytest.raises(VerificationError, match="was not written, for it is wrong: it is wrong in kernel"):
        modelc.compile(small.model(), config=plain, output=tmp_path / "p.modelc", shapes=small.SHAPES[:1])
    assert os.listdir(tmp_path) == []
    kept = modelc.compile(
        small.model(), config=plain, output=tmp_path / "p.modelc", shapes=small.SHAPES[:1], keep_unverified=True
    )
    assert kept.report is not None and not kept.report.passed
    summary = read_package(tmp_path / "p.modelc").manifest.verification
    assert summary is not None and not summary["passed"]
    report = modelc.verify(tmp_path / "p.modelc", small.model(), per_layer=True)
    assert report.first_departure is not None and report.first_departure.nodes[0] == "first"
    assert report.first_wrong is not None and report.first_wrong.nodes[0] == "first"


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for place in ("codegen.kernels.compile_nest", "compile.publish.verify_outputs"):
        with monkeypatch.context() as patch:
            patch.setattr(f"modelc.{place}", interrupt)
            with pytest.raises(KeyboardInterrupt):
                modelc.compile(small.model(), output=tmp_path / "p.modelc", shapes=small.SHAPES[:1], cache=False)
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("place", ["/proc/none/p", "file", "folder"])
def test_where_no_package_can_be_is_said_before_any_work(tmp_path, place) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/mine").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    stages: list[str] = []
    with pytest.raises(PackageError):
        modelc.compile(
            small.model(), output=tmp_path / place, shapes=small.SHAPES, progress=lambda s, _: stages.append(s)
        )
    assert stages == [] and sorted(tmp_path.rglob("*")) == before


def test_a_missing_compiler_is_said_before_any_work(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    stages: list[str] = []
    with pytest.raises(ToolchainError, match="install Debian's gcc-aarch64-linux-gnu"):
        modelc.compile(small.model(), "cortex-a72", tmp_path / "p", progress=lambda s, _: stages.append(s))
    assert stages == [] and not list(tmp_path.iterdir())


def test_without_an_emulator_a_cross_compiled_package_needs_no_verify(tmp_path, monkeypatch) -> None:
    skip_without_tools("aarch64-linux-gnu")

    def none(*_: object) -> tuple[str, ...]:
        raise ToolchainError("no emulator for aarch64-linux-gnu")

    monkeypatch.setattr("modelc.compile.pipeline.emulator", none)
    request = CompileRequest(small.model(), "raspberry-pi-5", tmp_path / "p", shapes=small.SHAPES[:1])
    stages: list[str] = []
    with pytest.raises(ToolchainError, match=r"no emulator.*--no-verify"):
        compile_request(replace(request, progress=lambda s, _: stages.append(s)))
    assert stages == [] and os.listdir(tmp_path) == []
    assert compile_request(replace(request, verify=False)).report is None


def test_kernels_in_c_become_objects() -> None:
    run = Run(small.model(), "", load_target("native"), DEFAULT, ({},), 1)
    source = "void k_c(int *x, unsigned char *scratch, int begin, int end) { *x = begin; }"
    kernel = Kernel("k_c", None, source, (KernelStep("k_c", ("x",), frozenset(), 1, 0),), ())
    assert run.object_of(kernel)[:4] == b"\x7fELF" and run.object_of(kernel) == run.object_of(kernel)


# --- configuration ------------------------------------------------------------------------------------------------


def test_the_default_configuration_leaves_passes_to_the_target() -> None:
    assert simplifying(DEFAULT, load_target("x86-64-v4")) == (SIMPLIFY, "modelc's own")


def test_a_configuration_reads_back_equal() -> None:
    assert parse_config(DEFAULT.to_json(), "again") == DEFAULT
    earlier = {name: value for name, value in VERIFY.items() if name not in ("check", "f16")}
    assert parse_config({**DEFAULT.to_json(), "verify": earlier}, "an earlier one") == DEFAULT


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tuning": 1}, "unknown key 'tuning'"),
        ({"verify": {"rtol": 1, "atol": 1, "samples": 1}}, "verify lacks the key 'seed'"),
        ({"verify": {"rtol": 1, "atol": 1, "samples": 1, "seed": 0, "x": 0}}, "verify has an unknown key 'x'"),
        ({"verify": {**VERIFY, "rtol": "1e-3"}}, "verify.rtol is '1e-3'"),
        ({"verify": {**VERIFY, "samples": 0}}, "verify.samples is 0"),
        ({"verify": {**VERIFY, "bf16": {"rms": 0.02}}}, "verify.bf16 lacks the key 'largest'"),
        ({"verify": {**VERIFY, "bf16": {"rms": -1, "largest": 1}}}, "verify.bf16.rms is -1"),
        ({"verify": {**VERIFY, "f16": {"rms": 0.01}}}, "verify.f16 lacks the key 'largest'"),
        ({"precision": "fp8"}, "precision is 'fp8'; expected f32, bf16, f16, auto"),
        ({"codegen": {"flush_denormals": "maybe", "check_addresses": True}}, "codegen.flush_denormals is 'maybe'"),
        ({"codegen": {"flush_denormals": True, "check_addresses": 1}}, "codegen.check_addresses is 1"),
        ({"simplify": ["fold_everything"]}, "fold_everything"),
        ({"simplify": "all"}, "simplify is 'all'"),
        ({"codegen": []}, "codegen is \\[\\]"),
    ],
)
def test_what_a_configuration_cannot_say(change, sentence) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_config({**tree(), **change}, "file.yaml")


def test_unknown_and_unreadable_configurations(tmp_path) -> None:
    with pytest.raises(ConfigError, match="'fast' is unknown; expected default"):
        load_config("fast")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "twice.yaml").write_text("verify: 1\nverify: 2\n")
    with pytest.raises(
        ConfigError,
        match=r"twice\.yaml is not YAML .*: the key 'verify' is there twice, again in line 2",
    ):
        load_config(tmp_path / "twice.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="not YAML"):
        load_config(tmp_path / "bad.yaml")


def test_the_list_of_passes_is_what_is_run(tmp_path) -> None:
    seen: list[str] = []
    config = replace(DEFAULT, simplify=("eliminate_dead",))
    modelc.compile(
        small.model(),
        shapes=small.SHAPES[:1],
        config=config,
        stop_after="simplify",
        progress=lambda stage, text: seen.append(text),
    )
    assert any(text.startswith("eliminate_dead:") for text in seen) and not any("fold_" in text for text in seen)


def test_flush_denormals_is_in_the_package_and_changes_what_is_computed(tmp_path) -> None:
    path = small.save(tmp_path / "m.onnx", [helper.make_node("Add", ["x", "x"], ["y"])], {"x": [64]}, {"y": [64]}, {})
    tiny = np.full(64, 1e-41, np.float32)
    for flush in (True, False):
        config = replace(DEFAULT, flush_denormals=flush)
        modelc.compile(path, output=tmp_path / "p", config=config, verify=False)
        assert read_package(tmp_path / "p").manifest.flush_denormals is flush
        with modelc.load(tmp_path / "p") as model:
            assert (model.run({"x": tiny})["y"] == 0).all() == flush


@pytest.mark.parametrize(("least", "flush"), [(np.finfo(np.float32).tiny, True), (1e-40, False)])
def test_a_tiny_number_keeps_a_divisor_from_zero(tmp_path, least: float, flush: bool) -> None:
    """The subnormal one where nothing is flushed."""
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Add", ["a", "e"], ["b"])]
    nodes.append(helper.make_node("Div", ["x", "b"], ["y"]))
    constants = {"e": np.full(1, least, np.float32)}
    path = small.save(tmp_path / "m.onnx", nodes, {"x": [64]}, {"y": [64]}, constants)
    config = replace(DEFAULT, flush_denormals=flush)
    result = modelc.compile(path, output=tmp_path / "p", config=config, inputs={"x": np.zeros(64, np.float32)})
    assert result.report is not None and result.report.passed
    with modelc.load(tmp_path / "p") as model:
        assert (model.run({"x": np.zeros(64, np.float32)})["y"] == 0).all()


def test_the_tolerances_samples_and_seed_of_verification_are_used(tmp_path) -> None:
    check = replace(DEFAULT.verify, rtol=0.5, atol=0.25, samples=2, seed=7)
    result = modelc.compile(
        small.model(), output=tmp_path / "p", shapes=small.SHAPES, config=replace(DEFAULT, verify=check)
    )
    report = result.report
    assert report is not None
    assert (report.rtol, report.atol, report.samples, report.seed) == (0.5, 0.25, 4, 7)


def filtered(package: Path) -> bool:
    tasks = read_choices_file(package / "choices.json").tasks.values()
    return any(stage.rule == "winograd" for task in tasks for stage in task.stages)


def test_winograd_is_chosen_only_where_the_configuration_allows_it(tmp_path) -> None:
    weights = {"w": np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    path = small.save(tmp_path / "m.onnx", [node], {"x": [1, 64, 56, 56]}, {"y": [1, 64, 56, 56]}, weights)
    for allowed in (True, False):
        config = DEFAULT.allowing(winograd=allowed)
        modelc.compile(path, "x86-64-v3", tmp_path / "p", config=config, verify=False)
        assert filtered(tmp_path / "p") == allowed


def test_what_overflows_by_minimal_filtering_is_computed_without_it(tmp_path) -> None:
    weights = {"w": np.random.default_rng(0).uniform(-3e36, 3e36, (32, 32, 3, 3)).astype(np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    path = small.save(tmp_path / "m.onnx", [node], {"x": [1, 32, 28, 28]}, {"y": [1, 32, 28, 28]}, weights)
    modelc.compile(path, "x86-64-v3", tmp_path / "p", verify=False)
    assert filtered(tmp_path / "p")
    result = modelc.compile(path, "x86-64-v3", tmp_path / "p")
    assert result.report is not None and result.report.passed
    assert any("fewer multiplications (Winograd, Strassen) are not used" in note for note in result.notes)
    assert not filtered(tmp_path / "p")
    modelc.compile(path, output=tmp_path / "q", choices=tmp_path / "p")
    assert digests(tmp_path / "q") == digests(tmp_path / "p")


def test_intrinsics_are_used_only_where_the_configuration_allows_it(tmp_path) -> None:
    weights = {"w": np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)}
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    path = small.save(tmp_path / "m.onnx", [node], {"x": [32, 64]}, {"y": [32, 64]}, weights)
    for allowed in (True, False):
        config = DEFAULT.allowing(tensorize=allowed)
        modelc.compile(path, "x86-64-v3", tmp_path / "p", config=config, verify=False)
        (step,) = read_package(tmp_path / "p").manifest.variants[0].steps
        assert (step.intrinsic, step.instruction) == (("avx2-f32", "vfmadd") if allowed else ("", ""))
