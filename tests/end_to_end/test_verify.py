"""Comparing: distances with NaNs and infinities, inputs that make sense, packages that are wrong in every way."""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_model as small
from meaning_in_float64 import in_float64
from onnx import TensorProto, helper, numpy_helper
from repository import ROOT
from tiny_package import NATIVE_TRIPLE, skip_without_tools

import modelc
from modelc.errors import InputError, ModelcError, PackageError, VerificationError
from modelc.frontend.steering.uses import Span, index_spans, not_negative, read_uses
from modelc.frontend.witness.surgery import expose
from modelc.ir.layout import Layout, Primitive, reordered
from modelc.package import TensorInfo, find_toolchain, read_package
from modelc.target import load_target
from modelc.verify.bench import alternating, bench, beside, median
from modelc.verify.compare import distance, filtered_distance
from modelc.verify.draw import Roles, draw_inputs
from modelc.verify.engine import Engine
from modelc.verify.kernels.stored import unpacked
from modelc.verify.processes import Nursery
from modelc.verify.worker import at_line

nan, inf = np.nan, np.inf


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# --- distances ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "reference", "passed"),
    [
        (f32(1, 2), f32(1, 2), True),
        (f32(1, 2.001), f32(1, 2), True),
        (f32(1, 2.01), f32(1, 2), False),
        (f32(nan, inf, -inf, 1), f32(nan, inf, -inf, 1), True),
        (f32(nan, 1), f32(1, nan), False),
        (f32(inf), f32(-inf), False),
        (f32(inf), f32(3e38), False),
        (f32(0), f32(nan), False),
        (f32(), f32(), True),
        (f32(1), f32(1, 1), False),
        (np.array([3]), np.array([3]), True),
        (np.array([10**6 + 1]), np.array([10**6]), False),
        (np.array([True]), np.array([False]), False),
    ],
)
def test_passed_is_near_everywhere(ours, reference, passed) -> None:
    assert distance(ours, reference, 1e-3, 1e-4).passed is passed


def test_the_figures_of_a_distance() -> None:
    found = distance(f32(1, 0, 4), f32(1, 0, 5), 0, 0)
    assert (found.max_abs, found.max_rel) == (1, 0.2)
    assert found.rms_rel == pytest.approx(1 / 26**0.5) and found.cosine == pytest.approx(21 / (17 * 26) ** 0.5)
    same = distance(f32(nan, 0), f32(nan, 0), 0, 0)
    assert (same.max_abs, same.max_rel, same.rms_rel, same.cosine) == (0, 0, 0, 1)


# --- inputs -------------------------------------------------------------------------------------------------------


def test_minimal_filtering_is_near_as_a_whole() -> None:
    wanted = np.random.default_rng(0).normal(0, 100, 1000).astype(np.float32)
    wanted[7] = 0  # of terms that are as large as the others'
    cancelled, wrong = wanted.copy(), wanted.copy()
    cancelled[7], wrong[7] = 1e-3, 0.1
    assert not distance(cancelled, wanted, 1e-3, 1e-4).passed
    assert filtered_distance(cancelled, wanted, 1e-3, 1e-4).passed
    assert not filtered_distance(wrong, wanted, 1e-3, 1e-4).passed


def test_drawn_inputs_are_of_their_kind_and_depend_on_seed_and_sample_alone() -> None:
    tensors = [
        TensorInfo("ids", "int64", (2, 50)),
        TensorInfo("image", "float32", (1, 3, 32, 40)),
        TensorInfo("x", "float16", (5, 7)),
        TensorInfo("q", "int8", (100,)),
        TensorInfo("flag", "bool", ()),
        TensorInfo("b", "bfloat16", (3,)),
    ]
    roles = Roles({"ids": [Span(None, -9, 8)]})
    drawn = draw_inputs(tensors, roles, seed=1)
    assert set(np.unique(drawn["ids"])) == set(range(9))
    assert drawn["q"].min() < -50 and drawn["b"].dtype == np.uint16
    for tensor in tensors:
        assert drawn[tensor.name].shape == tensor.shape
    again, other = draw_inputs(tensors, roles, seed=1), draw_inputs(tensors, roles, seed=1, sample=1)
    assert all((again[name] == array).all() for name, array in drawn.items())
    assert (other["image"] != drawn["image"]).any()
    steps = np.abs(np.diff(drawn["image"])).mean()
    assert steps < 0.6 * np.abs(np.diff(np.random.default_rng(0).standard_normal((1, 3, 32, 40)))).mean()


@pytest.mark.parametrize("name", ["float32", "float64", "int32", "uint8", "int16"])
def test_dtypes_are_kept(name: str) -> None:
    assert draw_inputs([TensorInfo("x", name, (4,))], Roles(), 0)["x"].dtype == name


def test_rows_of_the_tables_that_inputs_index(tmp_path) -> None:
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Gather", ["words", "wide"], ["a"]),
        helper.make_node("Gather", ["kinds", "kind"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    tables = {"words": np.zeros((30, 4), np.float32), "kinds": np.zeros((2, 4), np.float32)}
    inputs = {"ids": ([5], TensorProto.INT32), "kind": ([5], TensorProto.INT64)}
    path = small.save(tmp_path / "m.onnx", nodes, inputs, {"y": [5, 4]}, tables)
    assert index_spans(read_uses(path)) == {"ids": (Span(None, -30, 29),), "kind": (Span(None, -2, 1),)}


def test_magnitudes_are_drawn_without_a_sign(tmp_path) -> None:
    """What a model takes logarithms or roots of: ONNX Runtime's LSTM turns their NaN into numbers."""
    nodes = [
        helper.make_node("Add", ["magnitude", "least"], ["sum"]),
        helper.make_node("Transpose", ["sum"], ["turned"]),
        helper.make_node("Log", ["turned"], ["log"]),
        helper.make_node("Pow", ["power", "half"], ["root"]),
        helper.make_node("Pow", ["signal", "two"], ["square"]),
        helper.make_node("Sum", ["log", "root", "square"], ["y"]),
    ]
    held = {"least": np.float32(1e-7), "half": np.float32(0.5), "two": np.float32(2)}
    inputs = {name: ([4, 4], TensorProto.FLOAT) for name in ("magnitude", "power", "signal")}
    path = small.save(tmp_path / "m.onnx", nodes, inputs, {"y": [4, 4]}, held)
    found = not_negative(read_uses(path))
    assert found == {"magnitude", "power"}
    drawn = draw_inputs([TensorInfo(name, "float32", (4, 4)) for name in inputs], Roles(positive=found), 0)
    assert {name for name, x in drawn.items() if (x >= 0).all()} == found


def test_indices_are_drawn_where_kernels_may_address() -> None:
    tensors = [
        TensorInfo("targets", "int64", (6, 2)),
        TensorInfo("rows", "int32", (4, 3)),
        TensorInfo("n", "int32", (9,)),
    ]
    spans = {
        "targets": [Span(0, -5, 4, True), Span(1, -2, 1, True)],
        "rows": [Span(None, -5, 4, True)],
        "n": [Span(None, 3, 100), Span(None, 0, 7)],
    }
    for sample in range(20):
        drawn = draw_inputs(tensors, Roles(spans), 0, sample)
        targets, rows = drawn["targets"], drawn["rows"]
        assert len({*map(tuple, targets.tolist())}) == 6 and set(drawn["n"]) <= set(range(3, 8))
        assert targets.min() >= 0 and (targets.max(0) <= (4, 1)).all() and rows.min() >= 0 and rows.max() <= 4
        assert all(len(set(line)) == len(line) for line in (*rows.tolist(), *rows.T.tolist()))


# --- models made from models --------------------------------------------------------------------------------------


def test_float64_is_what_float32_rounds_to() -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 20, 24)).astype(np.float32)
    truth = in_float64(small.model(), {"x": x})["y"]
    with Engine("ort", small.model()) as engine:
        reference = engine.run({"x": x})["y"]
    assert truth.dtype == np.float64 and 0 < np.abs(reference - truth).max() < 1e-5


@pytest.mark.parametrize("opset", [8, 9, 13, 15])
def test_float64_normalises_with_the_models_statistics(tmp_path, opset) -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.uniform(0.5, 2, 5).astype(np.float32) for name in ("scale", "bias", "mean", "var")}
    node = helper.make_node("BatchNormalization", ["x", *weights], ["y"], epsilon=0.1, momentum=0.5)
    path = small.save(tmp_path / "m.onnx", [node], {"x": [2, 5, 3, 4]}, {"y": [2, 5, 3, 4]}, weights)
    model = onnx.load(path)
    model.opset_import[0].version = opset
    onnx.save(model, path)
    x = rng.standard_normal((2, 5, 3, 4)).astype(np.float32)
    with Engine("ort", path) as engine:
        found = engine.run({"x": x})["y"]
    assert np.abs(found - in_float64(path, {"x": x})["y"]).max() < 1e-5


def test_exposed_values_are_those_that_the_model_computes(tmp_path) -> None:
    assert set(expose(small.model(), ["r1", "y", "nothing", "r1"], tmp_path / "m.onnx")) == {"r1", "y"}
    with Engine("ort", tmp_path / "m.onnx") as engine:
        assert engine.run({"x": np.zeros((1, 3, 8, 8), np.float32)})["r1"].shape == (1, 8, 8, 8)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(),
        reordered(2, 0, 1),
        Layout((Primitive("split", (1, 4)), Primitive("reorder", (0, 1, 3, 2)))),
        Layout((Primitive("pad", (2, 1, 3)), Primitive("split", (2, 3)))),
        Layout((Primitive("fuse", (0, 2)),)),
        Layout((Primitive("unfold", (1, 4, 2)),)),
        Layout((Primitive("store_at", (0, 2)),)),
    ],
)
def test_unpacked_is_the_inverse_of_packing(layout: Layout) -> None:
    from modelc.ir.block import Buffer
    from modelc.ir.pack import pack_constant

    data = np.arange(3 * 8 * 5, dtype=np.int32).reshape(3, 8, 5)
    packed = pack_constant(data, Buffer("b", "int32", data.shape), layout)
    assert (unpacked(packed, layout, data.shape) == data).all()


# --- packages -----------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(small.package(), tmp_path / "copy.modelc"))


def test_a_right_package_is_found_right_layer_by_layer() -> None:
    report = modelc.verify(small.package(), small.model(), samples=2, per_layer=True)
    assert report.passed and report.samples == 4 and report.first_departure is None
    values = [layer.value for layer in report.layers]
    assert (values[0], values[-1]) == ("r1", "y")
    assert report.outputs[0].distance.rms_rel < 1e-5 and "agrees with onnxruntime" in report.sentence()


def test_given_inputs_are_used() -> None:
    x = np.full((1, 3, 20, 24), nan, np.float32)
    report = modelc.verify(small.package(), small.model(), {"x": x})
    assert report.passed and report.samples == 1  # NaN on both sides


@pytest.mark.parametrize(
    "inputs", [{"x": np.zeros((1, 3, 9, 9), np.float32)}, {"z": np.zeros(3)}, {"x": np.zeros((1, 3, 20, 24))}]
)
def test_inputs_that_do_not_fit_are_refused(inputs) -> None:
    with pytest.raises(InputError, match="takes"):
        modelc.verify(small.package(), small.model(), inputs)


def test_a_damaged_package_is_refused(copy: Path) -> None:
    data = bytearray((copy / "params.bin").read_bytes())
    data[100] ^= 1
    (copy / "params.bin").write_bytes(data)
    with pytest.raises(PackageError, match=r"params\.bin is damaged"):
        modelc.verify(copy, small.model())


def test_large_outputs_of_minimal_filtering_are_right(tmp_path: Path) -> None:
    """Near zero they are farther from the truth than ONNX Runtime's: their terms are as large as anywhere else."""
    weights = np.random.default_rng(0).normal(0, 1000, (64, 64, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        "filter",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64, 56, 56])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64, 56, 56])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "filter.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    package = tmp_path / "filter.modelc"
    result = modelc.compile(path, output=package)
    assert result.report is not None and result.report.passed
    assert result.report.outputs[0].filtered == any(plan.filters for plan in read_package(package).manifest.variants)
    assert modelc.verify(package, path, per_layer=True).first_departure is None


def test_a_package_of_another_model_is_found_wrong(tmp_path: Path) -> None:
    other = onnx.load(small.model())
    weights = next(t for t in other.graph.initializer if t.name == "w3")
    weights.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weights) * 1.01, "w3"))
    onnx.save(other, tmp_path / "other.onnx")
    report = modelc.verify(small.package(), tmp_path / "other.onnx")
    assert not report.passed and "is wrong in kernel" in report.sentence() and "'y'" in report.sentence()
    assert any("was compiled from another file" in note for note in report.notes)


def test_a_model_with_other_outputs_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["z"])]
    path = small.save(tmp_path / "m.onnx", nodes, {"x": ["b", 3, "h", "w"]}, {"z": ["b", 3, "h", "w"]}, {})
    with pytest.raises(ModelcError, match="compiled from another model"):
        modelc.verify(small.package(), path)


def package_of(source: str, path: Path) -> Path:
    """A package for y = x whose kernel is this C."""
    from modelc.package import Argument, PackageSpec, PackageTarget, Plan, Step, write_package

    skip_without_tools(NATIVE_TRIPLE)
    (path.parent / "k.c").write_text(source)
    find_toolchain(NATIVE_TRIPLE).compile(["-fPIC", "-O1", "-c", "k.c"], path.parent)
    x, y = TensorInfo("x", "float32", (4,)), TensorInfo("y", "float32", (4,))
    step = Step("copy", "copy", (Argument("input"), Argument("output")))
    objects = {"k": (path.parent / "k.o").read_bytes()}
    write_package(PackageSpec("m", PackageTarget("any", NATIVE_TRIPLE), (Plan((x,), (y,), (step,)),), objects), path)
    return path


HEAD = "#include <stdint.h>\nvoid copy(float *x, float *y, uint8_t *s, int32_t begin, int32_t end) "


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("{ for (int i = 0; i < 4; i++) y[i] = x[i]; }", "agrees"),
        ("{ for (int i = 0; i < 3; i++) y[i] = x[i]; y[3] = 0; }", "departs"),
        ("{ *(volatile int *)16 = 1; }", "crashed \\(SIGSEGV\\)"),
    ],
)
def test_kernels_that_are_wrong_or_crash(tmp_path: Path, body: str, sentence: str) -> None:
    model = small.save(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": [4]}, {"y": [4]}, {})
    report = modelc.verify(package_of(HEAD + body, tmp_path / "p.modelc"), model)
    assert report.passed == (sentence == "agrees")
    assert re.search(sentence, report.sentence())


def test_small_garbage_does_not_hide_below_the_absolute_tolerance(tmp_path: Path) -> None:
    model = small.save(
        tmp_path / "m.onnx",
        [helper.make_node("Mul", ["x", "c"], ["y"])],
        {"x": [4]},
        {"y": [4]},
        {"c": np.float32(1e-7)},
    )
    wrong = package_of(HEAD + "{ for (int i = 0; i < 4; i++) y[i] = 0; }", tmp_path / "p.modelc")
    assert not modelc.verify(wrong, model).passed


@pytest.mark.parametrize("target", ["raspberry-pi-5", "riscv64-v"])
def test_cross_compiled_packages_are_verified_under_emulation(tmp_path: Path, target: str) -> None:
    skip_without_tools(load_target(target).triple)
    result = modelc.compile(small.model(), target, tmp_path / "pi.modelc", shapes=small.SHAPES[:1])
    assert result.report is not None and result.report.passed


# --- workers ------------------------------------------------------------------------------------------------------


PARENT = """if True:
    import os, sys, time
    from modelc.verify.engine import Engine
    engine = Engine(sys.argv[2], sys.argv[3], timed=sys.argv[1] == "busy")
    engine.run({"x": __import__("numpy").zeros(64, "float32")})
    if sys.argv[1] == "forked" and os.fork() == 0:
        time.sleep(1000)  # another process that could still write to the worker
    print(engine._worker.pid, flush=True)
    engine.time(1000) if sys.argv[1] == "busy" else time.sleep(1000)
"""


def test_engines_are_forked_while_they_would_start_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = {"x": np.random.default_rng(0).standard_normal((1, 3, 20, 24)).astype(np.float32)}
    with ExitStack() as stack:
        alike = [stack.enter_context(Engine("modelc", small.package(), timed=False)) for _ in range(2)]
        monkeypatch.setenv("LD_BIND_NOW", "1")  # which a process heeds when it starts
        other = stack.enter_context(Engine("modelc", small.package(), timed=False))
        alone = stack.enter_context(Engine("modelc", small.package()))
        first, second, *others = (engine._worker.parent for engine in (*alike, other, alone))
        assert isinstance(first, Nursery) and first is second and first not in others and others[0] is not others[1]
        outputs = [engine.run(feed)["y"] for engine in (*alike, other, alone)]
        assert all((output == outputs[0]).all() for output in outputs)
        ended = os.pidfd_open(alike[0]._worker.pid)
        first._process.kill()  # its engines end with it
        assert select.select([ended], [], [], 60)[0]
        os.close(ended)
        with pytest.raises(VerificationError, match="crashed"):
            alike[0].run(feed)
        assert (other.run(feed)["y"] == outputs[0]).all()


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4, 2)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint16"])
def test_engines_are_given_arrays_that_begin_at_cache_lines(shape: tuple[int, ...], dtype: str) -> None:
    given = np.random.default_rng(0).integers(0, 9, shape).astype(dtype)
    copy = at_line(given)
    assert (copy.ctypes.data % 64 == 0 or not copy.size) and copy.flags.c_contiguous
    np.testing.assert_array_equal(copy, given, strict=True)


@pytest.mark.parametrize("engine", ["modelc", "ort"])
@pytest.mark.parametrize("doing", ["idle", "busy", "forked"])
@pytest.mark.sweep(3)
def test_a_worker_ends_with_its_parent(tmp_path: Path, doing: str, engine: str) -> None:
    path = small.save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [64]}, {"y": [64]}, {})
    if engine == "modelc":
        modelc.compile(path, output=tmp_path / "p.modelc", verify=False)
        path = tmp_path / "p.modelc"
    command = [sys.executable, "-c", PARENT, doing, engine, str(path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, env=env, start_new_session=True)
    try:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        watch = select.poll()
        watch.register(os.pidfd_open(worker), select.POLLIN)
        assert not watch.poll(300)
        parent.kill()
        ended = watch.poll(60_000)
        if not ended:
            os.kill(worker, signal.SIGKILL)
        assert ended
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()


# --- speed --------------------------------------------------------------------------------------------------------


def test_bench_compares_engines(in_brief: None) -> None:
    found = bench(small.package(), ["ort", "ort-daz"], small.model(), threads=1, seconds=0.2)
    assert set(found["engines"]) == {"modelc", "ort", "ort-daz"} and set(found["ratio"]) == {"ort", "ort-daz"}
    assert "denormals as zero" in found["engines"]["ort-daz"]["about"]
    ours = found["engines"]["modelc"]
    assert 0 < ours["p10_ms"] <= ours["median_ms"] <= ours["p90_ms"] and min(found["ratio"].values()) > 0


def test_a_machine_that_becomes_slower_changes_no_ratio() -> None:
    clock, order = itertools.count(1), list[str]()

    class Slowing:
        def __init__(self, name: str, ms: float) -> None:
            self.name, self.ms = name, ms

        def time(self, seconds: float) -> list[float]:
            order.append(self.name)
            return [self.ms * 1.01 ** next(clock)] * 3

    times = alternating({"a": Slowing("a", 2.0), "b": Slowing("b", 1.0)}, 1.0, lambda text: None, 6, 6)
    assert beside(times["a"], times["b"]) == pytest.approx(2, rel=1e-3)
    assert [len(slices) for slices in times.values()] == [6, 6] and median(times["a"]) > 2
    assert "".join(order) == "ab" + "abba" * 3, "a warm-up, and slices in both orders"


def test_packages_are_engines_too(tmp_path: Path, in_brief: None) -> None:
    other = tmp_path / "other.modelc"
    shutil.copytree(small.package(), other)
    feed = {"x": np.ones((1, 3, 20, 24), np.float32)}
    found = bench(small.package(), [str(other)], seconds=0.1, inputs=feed)
    assert set(found["engines"]) == {"modelc", str(other)} and found["ratio"][str(other)] > 0
    manifest = json.loads((other / "manifest.json").read_text())
    for variant in manifest["variants"]:
        variant["inputs"][0]["name"] = "another"
    (other / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"takes .*, and .* takes another .*: they cannot be compared"):
        bench(small.package(), [str(other)])


def test_bench_says_the_share_of_the_peak(in_brief: None) -> None:
    found = bench(small.package(), threads=2, seconds=0.2, peak=True)
    plan, ours = read_package(small.package()).manifest.variants[0], found["engines"]["modelc"]["median_ms"]
    flops = sum(step.flops for step in plan.steps)
    assert set(found["peak_gflops"]) == {"float32"} and found["peak_gflops"]["float32"] > 0
    assert found["peak_share"] == pytest.approx(flops / (1e6 * ours) / found["peak_gflops"]["float32"])
    assert "peak_share" not in bench(small.package(), seconds=0.1)


def test_bench_refusals(monkeypatch) -> None:
    with pytest.raises(InputError, match="cannot compare with 'tflite'"):
        bench(small.package(), ["tflite"], small.model())
    with pytest.raises(InputError, match="--model"):
        bench(small.package(), ["ort"])


def test_an_engine_that_cannot_open_says_so(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(ModelcError, match="ort cannot open"):
        Engine("ort", tmp_path / "bad.onnx")


def test_a_signal_while_an_engine_starts_again_is_what_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever closes it then, and closes it again, has nothing to say of it."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Engine("modelc", small.package()) as engine:
        monkeypatch.setattr(Engine, "_ask", interrupted)
        engine.restart()


def test_profile_says_what_every_kernel_takes() -> None:
    found = modelc.profile(small.package())
    tasks = dict.fromkeys(kernel["nodes"][0] for kernel in found["kernels"])
    assert list(tasks) == ["first", "second", "pool", "product"]
    assert sum(row["share"] for row in found["kernels"]) == pytest.approx(1)
    assert all(row["us"] > 0 for row in found["kernels"])
