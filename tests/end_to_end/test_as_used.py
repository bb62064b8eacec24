"""A package whose library is right where it is judged and wrong where users run it is refused; right ones are not."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import small_model as small
from control_models import branching
from library_of import library_of, prefix_of
from onnx import helper
from random_number_models import speech
from sized_models import SELECT, SOME, Case, saved
from state_models import STATES, cell
from tiny_package import NATIVE_TRIPLE, skip_without_tools

import modelc
from modelc.package import EmulatedRun, find_toolchain
from modelc.target import load_target
from modelc.verify import as_used, engine, habits
from modelc.verify.as_used import MOST_RUNS, SETTINGS
from modelc.verify.habits import LEAST_RUNS, LONG, Setting, difference, shifted
from modelc.verify.report import Report

# Between a program and the library that `compile` made, which it calls. Before a run and after it, it does a FAULT.
BETWEEN = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include "HEADER"
static const modelc_api *genuine;
static modelc_api table;
static atomic_int watched, running;
static struct { modelc_handle *handle; int runs; } counted[64];
static int runs_of(modelc_handle *handle) {
    int k = 0;
    while (counted[k].handle && counted[k].handle != handle) k++;
    counted[k].handle = handle;
    return ++counted[k].runs;
}
static modelc_status watch(modelc_handle *handle, modelc_watcher watcher, void *context) {
    watched = 1;
    return genuine->watch(handle, watcher, context);
}
static void close_(modelc_handle *handle) {
    for (int k = 0; k < 64; k++) if (counted[k].handle == handle) counted[k].runs = 0;
    genuine->close(handle);
}
static modelc_status no_reset(modelc_handle *handle) { return MODELC_OK; }
static modelc_status run(modelc_handle *handle, int32_t variant, const void *const *inputs, void *const *outputs) {
    const int run = runs_of(handle), threads = genuine->thread_count(handle);
    const uintptr_t address = (uintptr_t)inputs[0];
    const int others = atomic_fetch_add(&running, 1);
    static const void *seen_at;
    static uint64_t seen_first;
    float *y = outputs[0], before = y[0];
    uint64_t first;
    memcpy(&first, inputs[0], sizeof first);
    int wrong = 0;
    (void)run, (void)threads, (void)address, (void)others, (void)before, (void)first, (void)wrong;
    BEFORE;
    modelc_status status = genuine->run(handle, variant, inputs, outputs);
    AFTER;
    if (wrong) y[1] += 1;
    seen_at = inputs[0];
    seen_first = first;
    atomic_fetch_sub(&running, 1);
    return status;
}
__attribute__((visibility("default"))) const modelc_api *PREFIX_api(void) {
    if (!genuine) {
        const modelc_api *(*give)(void) = dlsym(dlopen(GENUINE, RTLD_NOW | RTLD_LOCAL), NAME);
        table = *give();
        table.run = run, table.watch = watch, table.close = close_;
        TABLE;
        genuine = give();
    }
    return &table;
}
"""


def with_fault(package: Path, folder: Path, before: str = "", after: str = "", table: str = "") -> Path:
    """A copy of the package whose library has a fault that its manifest tells nothing of."""
    skip_without_tools(NATIVE_TRIPLE)
    wrong, prefix = Path(shutil.copytree(package, folder / "wrong.modelc")), prefix_of(package)
    library, genuine = library_of(wrong), folder / "genuine.so"
    shutil.move(library, genuine)
    source = BETWEEN.replace("HEADER", f"{prefix}.h").replace("PREFIX", prefix)
    source = source.replace("BEFORE", before).replace("AFTER", after).replace("TABLE", table)
    (folder / "between.c").write_text(source)
    named = [f'-DGENUINE="{genuine}"', f'-DNAME="{prefix}_api"', f"-I{wrong}"]
    flags = ["-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-pthread", *named]
    find_toolchain(NATIVE_TRIPLE).compile([*flags, "between.c", "-o", str(library), "-ldl"], folder)
    manifest = json.loads((wrong / "manifest.json").read_text())
    data = library.read_bytes()
    manifest["files"][library.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (wrong / "manifest.json").write_text(json.dumps(manifest))
    return wrong


WATCHED, SHIFTED, TWO, DEFAULT, HANDLES = SETTINGS
FAULTS = {  # the setting that is named, what is said, and the fault
    "nothing": ("", "", {}),
    "wrong from the ninth run on": (WATCHED, "in run 9 from the judged run", {"after": "wrong = run >= 9"}),
    "wrong with two threads": (TWO, "in run 1 from", {"after": "wrong = threads >= 2"}),
    "wrong beside a cache line": (SHIFTED, "in run 1 from", {"after": "wrong = address % 64 != 0"}),
    "wrong when nobody watches": (WATCHED, "in run 1 from", {"after": "wrong = !watched"}),
    "wrong when two run at once": (HANDLES, "differs in", {"before": "usleep(2000)", "after": "wrong = others > 0"}),
    "an element is not written": (SHIFTED, "in run 1 from", {"after": "if (address % 64) y[0] = before"}),
    "an input is taken for the one that was there before": (
        SHIFTED,
        "in run 2 from",
        {"after": "wrong = seen_at == inputs[0] && seen_first != first"},
    ),
    "a crash with two threads": (TWO, "crashed", {"before": "if (threads >= 2) __builtin_trap()"}),
    "two threads never end": (TWO, "did not finish", {"before": "while (threads >= 2) usleep(1000)"}),
    "two threads are refused": (
        TWO,
        "cannot run again",
        {"before": "if (threads >= 2) return genuine->run(0, 0, 0, 0)"},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_library_that_is_wrong_only_where_users_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    setting, said, code = FAULTS[fault]
    package = with_fault(small.package(), tmp_path, **code)
    monkeypatch.setattr(engine, "TIMEOUT", 20.0)
    report = modelc.verify(package, small.model(), check="quick")
    assert report.passed == (fault == "nothing")
    assert all(kernel.passed for kernel in report.kernels) and all(output.passed for output in report.outputs)
    assert setting in report.sentence() and said in report.sentence()
    assert report.sentence().startswith(("agrees", "gives other numbers", "does not run"))


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("states")
    model, package = cell(folder / "m.onnx"), folder / "m.modelc"
    modelc.compile(model, output=package, states=STATES, dims={"n": 2}, database=False, verify=False)
    return model, package


@pytest.fixture(scope="module")
def random(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("random")
    onnx.save(speech(), folder / "m.onnx")
    modelc.compile(folder / "m.onnx", output=folder / "m.modelc", database=False, verify=False)
    return folder / "m.onnx", folder / "m.modelc"


def runs_made(report: Report) -> int:
    assert report.passed and report.used is not None, report.sentence()
    assert "runs as users make them: the same bits" in report.sentence()
    assert report.to_json()["summary"]["used"] == {"alone": False, "failure": ""}
    return report.used.runs


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is shared, what takes little may take long."""
    monkeypatch.setattr(as_used, "LEAST_SECONDS", 60.0)


ALL = MOST_RUNS * sum(handles for _, _, handles in SETTINGS.values())  # runs of a variant where a run takes little


def test_right_packages_are_run_in_every_setting(tmp_path: Path, states, random) -> None:
    branches = modelc.compile(branching(tmp_path / "b.onnx"), output=tmp_path / "b.modelc", database=False).report
    assert branches is not None
    assert runs_made(branches) == ALL
    assert runs_made(modelc.verify(small.package(), small.model())) == ALL * len(small.SHAPES)
    for model, package in (states, random):
        assert runs_made(modelc.verify(package, model)) == ALL


def test_random_numbers_of_a_second_variant_are_those_of_the_runs_behind_the_first(tmp_path: Path) -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    model = small.save(tmp_path / "m.onnx", nodes, {"x": ["n"]}, {"y": ["n"]}, {})
    shapes = [{"x": (3,)}, {"x": (5,)}]
    report = modelc.compile(model, output=tmp_path / "p.modelc", shapes=shapes, database=False).report
    assert report is not None
    assert runs_made(report) == ALL * len(shapes)


def test_outputs_whose_size_depends_on_data_and_any_size(tmp_path: Path) -> None:
    sized = saved(Case([*SELECT], ("r",), {"half": np.float32(0.5)}, SOME), tmp_path / "sized.onnx")
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    any_size = small.save(tmp_path / "any_size.onnx", nodes, {"x": ["n", 4]}, {"y": ["n", 4]}, {})
    for model, arguments in ((sized, {}), (any_size, {"dims": {"n": range(1, 9)}})):
        report = modelc.compile(model, output=tmp_path / "p.modelc", database=False, **arguments).report
        assert report is not None
        assert runs_made(report) == ALL * max(1, len(report.sizes))


@pytest.mark.parametrize(
    ("code", "setting", "said"),
    [
        ({"table": "table.reset = no_reset"}, WATCHED, "in run 3 from the same runs before"),
        ({"after": "wrong = run >= 9 && !watched"}, WATCHED, "in run 9 from the same runs before"),
        ({"after": "wrong = threads >= 2"}, TWO, "in run 1 from the same runs before"),
    ],
)
def test_states(tmp_path: Path, states, code, setting: str, said: str) -> None:
    report = modelc.verify(with_fault(states[1], tmp_path, **code), states[0])
    assert not report.passed and report.sentence().startswith(f"gives other numbers {setting}: output 'y' differs in ")
    assert said in report.sentence()


def test_random_numbers(tmp_path: Path, random) -> None:
    report = modelc.verify(with_fault(random[1], tmp_path, after="wrong = threads >= 2"), random[0])
    assert not report.passed and report.sentence().startswith(f"gives other numbers {TWO}: output 'wave' differs in 1 ")


@pytest.mark.parametrize("form", ["static", "freestanding", "raspberry-pi-5"])
def test_a_package_that_runs_in_a_process_of_its_own_is_run_unwatched(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = "native" if form in ("static", "freestanding") else form
    skip_without_tools(load_target(target).triple)
    kinds: dict[str, Any] = {"static": {"emit": ("a",)}, "freestanding": {"freestanding": True}}
    fixed = {"shapes": small.SHAPES, "verify": False, "database": False, **kinds.get(form, {})}
    package = tmp_path / "m.modelc"
    modelc.compile(small.model(), target, package, **fixed)
    sentence = modelc.verify(package, small.model(), check="quick").sentence()
    assert "runs as users make them (unwatched): the same bits" in sentence
    run_emulated = as_used.run_emulated

    def one_off(*arguments: Any) -> EmulatedRun:
        done = run_emulated(*arguments)
        return replace(done, outputs={name: array + 1 for name, array in done.outputs.items()})

    monkeypatch.setattr(as_used, "run_emulated", one_off)
    report = modelc.verify(package, small.model(), check="quick")
    assert not report.passed and "asked for 2 threads: output 'y' differs in 10 of 10 elements" in report.sentence()


# --- how often ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run_seconds", "setting_seconds", "runs"),
    [(0.001, 1.0, MOST_RUNS), (0.3, 1.0, 4), (0.6, 0.1, LEAST_RUNS), (2 * LONG, 0.1, 1), (2 * LONG, 100.0, MOST_RUNS)],
)
def test_a_setting_ends_with_its_time_but_has_least_runs(
    monkeypatch: pytest.MonkeyPatch, run_seconds: float, setting_seconds: float, runs: int
) -> None:
    now = 0.0
    monkeypatch.setattr(habits.time, "process_time", lambda: now)
    made = 0
    for _ in habits.numbers_of_runs(Setting(1, False, 1, MOST_RUNS, setting_seconds)):
        now += run_seconds
        made += 1
    assert made == runs


def test_differences_are_of_bits() -> None:
    nan, zeros = np.array([np.nan, 0], np.float32), np.zeros(3, np.float16)
    assert difference({"y": nan}, {"y": nan.copy()}) == "" == difference({"y": zeros[:0]}, {"y": zeros[:0]})
    assert difference({"y": zeros}, {"y": -zeros}) == "output 'y' differs in 3 of 3 elements"
    assert difference({"y": zeros}, {"y": zeros[:2]}) == "output 'y' has the shape [3] in place of [2]"


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4, 2)])
@pytest.mark.parametrize("dtype", ["float64", "uint16", "bool"])
def test_buffers_beside_a_cache_line(shape: tuple[int, ...], dtype: str) -> None:
    given = np.random.default_rng(0).integers(0, 9, shape).astype(dtype)
    copy = shifted(given, 1)
    assert (copy.ctypes.data % 64 == copy.itemsize or not copy.size) and copy.flags.c_contiguous
    np.testing.assert_array_equal(copy, given, strict=True)
