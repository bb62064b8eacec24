"""Data that addresses are computed from, in compiled packages: in range it gives ONNX Runtime's results, out of range
a sentence, and no byte outside the buffers is touched (pages without access around every input and output)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from library_of import library_of, prefix_of
from onnx import helper, numpy_helper
from three_ways import host_target
from tiny_package import skip_without_tools

import modelc
from modelc.compile.config import load_config
from modelc.errors import ModelError as CompileError
from modelc.package import emulator, find_toolchain, read_package
from modelc.package.link import RUNTIME
from modelc.package.toolchain import machine_of, native_machine
from modelc.runtime import ModelError, load
from modelc.target import load_target

HERE = Path(__file__).parent
FOLDER = TemporaryDirectory(prefix="modelc-addresses-", dir=os.environ.get("MODELC_TESTS_CACHE"))
BAD_DATA = 8  # MODELC_BAD_DATA
WILD = [2**31 - 1, -(2**31), 2**31, 2**32, 2**32 + 1, -(2**32), 10**12, -(10**12), 2**63 - 1, -(2**63)]
NATIVE = native_machine()
Feed = dict[str, np.ndarray]


@dataclass(frozen=True)
class Index:
    """An input that something is addressed by: where its numbers have to lie (those of each column, if they differ),
    and how the sentence calls the value and the operator."""

    shape: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    operator: str
    dtype: str = "int64"
    value: str = ""
    shift: int = 0  # what is added before it is used

    @property
    def columns(self) -> bool:
        return len(self.ranges) > 1

    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        sides = (np.array(side) - self.shift for side in zip(*self.ranges, strict=True))
        low, high = (np.broadcast_to(side if self.columns else side[0], self.shape) for side in sides)
        return low, high


INDICES = {
    "rows": Index((7,), ((-6, 5),), "Gather 'rows'"),
    "many": Index((40, 30), ((-300, 299),), "Gather 'many'"),
    "narrow": Index((2, 3), ((-5, 4),), "Gather 'narrow'", "int32"),
    "one": Index((), ((-6, 5),), "Gather 'one'"),
    "elements": Index((4, 5), ((-6, 5),), "GatherElements 'elements'"),
    "columns": Index((3, 2), ((-6, 5), (-5, 4)), "GatherND 'columns'"),
    "batched": Index((6, 2, 1), ((-5, 4),), "GatherND 'batched'"),
    "put": Index((3, 2), ((-6, 5), (-5, 4)), "ScatterND 'put'"),
    "put_rows": Index((3, 1), ((-6, 5),), "ScatterND 'put_rows'"),
    "set": Index((4, 5), ((-6, 5),), "ScatterElements 'set'"),
    "set_narrow": Index((6, 2), ((-5, 4),), "ScatterElements 'set_narrow'", "int32"),
    "lengths": Index((5,), ((0, 6),), "ReverseSequence 'lengths'"),
    "steps": Index((2,), ((0, 3),), "RNN 'steps'", "int32"),
    "shifted": Index((4, 5), ((-6, 5),), "GatherElements 'shifted'", value="shifted_by_one", shift=1),
    "cut": Index((5, 6), ((-5, 4),), "Gather 'cut'"),
}
FEW = ("rows", "narrow", "columns", "put", "set", "lengths", "plus", "shifted")
GRID = (1, 3, 4, 2)
SAMPLINGS = (("linear", "zeros"), ("linear", "reflection"), ("nearest", "border"), ("cubic", "border"))
SAMPLED = {f"y_{mode}_{padding}" for mode, padding in SAMPLINGS}


def addressing_model(path: Path, few: bool) -> Path:
    """One model with every operator that takes addresses from data, each from an input of its own; or with some."""
    node = helper.make_node
    nodes = [
        node("Gather", ["x", "rows"], ["y_rows"], "rows"),
        node("Gather", ["table", "many"], ["y_many"], "many"),
        node("Gather", ["x", "narrow"], ["y_narrow"], "narrow", axis=1),
        node("Gather", ["x", "one"], ["y_one"], "one"),
        node("GatherElements", ["x", "elements"], ["y_elements"], "elements"),
        node("GatherND", ["x", "columns"], ["y_columns"], "columns"),
        node("GatherND", ["x", "batched"], ["y_batched"], "batched", batch_dims=1),
        node("ScatterND", ["x", "put", "three"], ["y_put"], "put", reduction="add"),
        node("ScatterND", ["x", "put_rows", "x3"], ["y_put_rows"], "put_rows", reduction="max"),
        node("ScatterElements", ["x", "set", "x4"], ["y_set"], "set", reduction="add"),
        node("ScatterElements", ["x", "set_narrow", "x2"], ["y_set_narrow"], "set_narrow", axis=1, reduction="add"),
        node("ReverseSequence", ["x", "lengths"], ["y_lengths"], "lengths", time_axis=0, batch_axis=1),
        node("RNN", ["sequences", "w", "r", "", "steps"], ["y_steps"], "steps", hidden_size=4),
        node("Add", ["shifted", "plus_one"], ["shifted_by_one"], "plus"),
        node("GatherElements", ["x", "shifted_by_one"], ["y_shifted"], "shifted"),
        node("Slice", ["cut", "from", "to", "axes"], ["cut_part"], "slice"),
        node("Gather", ["x", "cut_part"], ["y_cut"], "cut", axis=1),
        node("OneHot", ["hot", "depth", "levels"], ["y_hot"], "hot"),
        *(
            node("GridSample", ["image", "grid"], [f"y_{mode}_{padding}"], mode=mode, padding_mode=padding)
            for mode, padding in SAMPLINGS
        ),
    ]
    weights = {
        "w": np.full((1, 4, 3), 0.25, np.float32),
        "r": np.full((1, 4, 4), -0.125, np.float32),
        "plus_one": np.array(1),
        "from": np.array([1, 2]),
        "to": np.array([4, 5]),
        "axes": np.array([0, 1]),
        "depth": np.array(4),
        "levels": np.array([0, 1], np.float32),
    }
    shapes = {"x": (6, 5), "table": (300, 48), "three": (3,), "x2": (6, 2), "x3": (3, 5), "x4": (4, 5)}
    shapes |= {"sequences": (3, 2, 3), "image": (1, 2, 5, 6), "grid": GRID}
    inputs = [helper.make_tensor_value_info(k, onnx.TensorProto.FLOAT, s) for k, s in shapes.items()]
    kinds = {"int32": onnx.TensorProto.INT32, "int64": onnx.TensorProto.INT64}
    inputs += [helper.make_tensor_value_info(k, kinds[i.dtype], i.shape) for k, i in INDICES.items()]
    inputs.append(helper.make_tensor_value_info("hot", onnx.TensorProto.INT64, (4,)))
    nodes = [n for n in nodes if not few or n.name in FEW]
    read = {name for n in nodes for name in n.input}
    inputs, weights = [i for i in inputs if i.name in read], {k: v for k, v in weights.items() if k in read}
    outputs = [onnx.ValueInfoProto(name=n.output[0]) for n in nodes if n.output[0].startswith("y_")]
    return save(path, nodes, inputs, outputs, weights)


def save(path: Path, nodes: Sequence, inputs: Sequence, outputs: Sequence, weights: Feed) -> Path:
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "addresses", inputs, outputs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


@cache
def model(few: bool = False) -> Path:
    return addressing_model(Path(FOLDER.name) / ("few.onnx" if few else "all.onnx"), few)


@cache
def package(target: str = "", few: bool = False) -> Path:
    """The package for a shipped target, or for this machine."""
    path = Path(FOLDER.name) / f"{target}{few}.modelc"
    modelc.compile(model(few), target=target or host_target(), output=path, verify=False)
    return path


@cache
def reference(few: bool = False) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model(few), options, providers=["CPUExecutionProvider"])


def good_feed(seed: int) -> Feed:
    rng = np.random.default_rng(seed)
    feed: Feed = {}
    for value in reference().get_inputs():
        name, shape = value.name, tuple(value.shape)
        if name in INDICES:
            low, high = INDICES[name].limits()
            feed[name] = rng.integers(low, high + 1, shape).astype(INDICES[name].dtype)
        elif name == "hot":
            feed[name] = rng.integers(-9, 9, shape)
        else:
            feed[name] = rng.uniform(-1.2, 1.2, shape).astype(np.float32)
    return feed


def outputs_of(feed: Feed, few: bool = False) -> list[np.ndarray]:
    session = reference(few)
    return list(session.run(None, {value.name: feed[value.name] for value in session.get_inputs()}))


def spoilt(feed: Feed, name: str, numbers: Sequence[int], places: Sequence[int]) -> tuple[Feed, str]:
    """`feed` with some elements of `name` replaced, and the sentence that the run has to give ("": none)."""
    index, array = INDICES[name], feed[name].copy()
    for number, place in zip(numbers, places, strict=True):
        array.reshape(-1)[place % array.size] = np.array(number).astype(index.dtype)
    seen = (array.astype(np.int64) + index.shift) if index.shift else array  # numpy's sum wraps as the kernel's does
    low, high = (side + index.shift for side in index.limits())
    outside = (seen < low) | (seen > high)
    if name == "cut":  # what is not used is not looked at
        used = np.zeros_like(outside)
        used[1:4, 2:5] = True
        outside &= used
    feed = {**feed, name: array}
    if not outside.any():
        return feed, ""
    columns = range(len(index.ranges)) if index.columns else [None]
    for column in columns:  # one after the other
        found = np.argwhere(outside[..., column] if column is not None else outside)
        if len(found):
            break
    at = [*found[0].tolist(), *([] if column is None else [column])]
    number = int(seen[tuple(at)])
    if name == "cut":
        at = [at[0] - 1, at[1] - 2]
    value = {"cut": "cut_part"}.get(name, index.value or name)
    place = f" at [{', '.join(map(str, at))}]" if at else ""
    low, high = index.ranges[column or 0]
    return feed, f"{index.operator}: '{value}' is {number}{place}; expected a number from {low} to {high}"


# --- one by one -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[1, 3], ids=["1 thread", "3 threads"])
def loaded(request: pytest.FixtureRequest):
    with load(package(), threads=request.param) as handle:
        yield handle


def check_good(handle, feed: Feed) -> None:
    got = handle.run(feed)
    expected = outputs_of(feed)
    assert len(got) == len(expected) == len(INDICES) + len(SAMPLINGS) + 1
    for (name, one), other in zip(got.items(), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", INDICES)
def test_out_of_range_is_a_sentence_and_the_handle_runs_on(loaded, name: str) -> None:
    feed = good_feed(1)
    check_good(loaded, feed)
    low, high = INDICES[name].ranges[-1]
    bits = np.iinfo(INDICES[name].dtype)
    last = feed[name].size - 1 if name != "cut" else 3 * 6 + 4
    refused = 0
    for number in (low - 1, high + 1, *WILD):
        number -= INDICES[name].shift
        if not bits.min <= number <= bits.max:
            continue
        bad, sentence = spoilt(feed, name, [number], [last])
        assert sentence
        with pytest.raises(ModelError) as raised:
            loaded.run(bad)
        assert str(raised.value) == sentence
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            outputs_of(bad)
        refused += 1
    assert refused >= 4
    check_good(loaded, good_feed(2))


def test_bounds_themselves_are_in_range(loaded) -> None:
    for side in (0, 1):
        feed = good_feed(3)
        for name in (
            "rows",
            "many",
            "narrow",
            "one",
            "elements",
            "columns",
            "batched",
            "lengths",
            "steps",
            "shifted",
            "cut",
        ):
            feed[name] = np.array(INDICES[name].limits()[side], INDICES[name].dtype)
        check_good(loaded, feed)


@pytest.mark.parametrize("name", ["put", "put_rows", "set", "set_narrow"])
def test_bounds_of_scatters(loaded, name: str) -> None:
    for side in (0, 1):
        check_good(loaded, {**good_feed(4), name: np.array(INDICES[name].limits()[side], INDICES[name].dtype)})


def test_coordinates_that_are_no_places(loaded) -> None:
    """GridSample: NaN and infinities are taken for -1, as ONNX Runtime does; far outside is outside."""
    near = good_feed(5)
    strange = near["grid"].copy().reshape(-1)
    strange[:8] = [np.nan, 0.3, np.inf, -0.2, -np.inf, np.nan, 0.1, np.inf]
    check_good(loaded, {**near, "grid": strange.reshape(GRID)})
    far = near["grid"].copy()
    far[..., 0] = [3e9, -3e9, 1e18, -1e18]
    got, edge = loaded.run({**near, "grid": far}), loaded.run({**near, "grid": np.clip(far, -8, 8)})
    assert not got["y_linear_zeros"].any() and got["y_nearest_border"].any()
    assert np.abs(got["y_linear_reflection"]).max() <= np.abs(near["image"]).max()
    for name in ("y_nearest_border", "y_cubic_border"):
        np.testing.assert_allclose(got[name], edge[name], rtol=1e-5)


# --- at pages without access ----------------------------------------------------------------------------------------


@cache
def driver(triple: str, flags: tuple[str, ...] = ()) -> Path:
    folder = Path(FOLDER.name) / f"driver-{triple}-{len(flags)}"
    folder.mkdir()
    source = ["-std=c11", "-O1", *flags, "-I", str(RUNTIME), str(HERE / "guarded_run.c")]
    find_toolchain(triple).compile([*source, "-o", "guarded_run", "-ldl", "-pthread", "-lm"], folder)
    return folder / "guarded_run"


def guarded(path: Path, program: Path, feeds: Sequence[Feed], threads: int = 1, before: Sequence[str] = ()) -> list:
    """What the package says to each of `feeds`: its outputs, or the sentence. One handle runs all of them."""
    plan = read_package(path).manifest.variants[0]
    with TemporaryDirectory() as name:
        given, taken = Path(name) / "in", Path(name) / "out"
        given.write_bytes(b"".join(np.ascontiguousarray(f[t.name]).tobytes() for f in feeds for t in plan.inputs))
        command = [
            *before,
            str(program),
            str(path),
            str(given),
            str(taken),
            str(len(feeds)),
            str(threads),
            prefix_of(path),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
        data, found = taken.read_bytes(), []
    for line in done.stdout.splitlines():
        status, _, sentence = line.partition(" ")
        if int(status):
            assert int(status) == BAD_DATA
            found.append(sentence)
            continue
        outputs = []
        for t in plan.outputs:
            outputs.append(np.frombuffer(data[: t.bytes], t.dtype).reshape(t.shape))
            data = data[t.bytes :]
        found.append(outputs)
    assert len(found) == len(feeds) and not data
    return found


@st.composite
def feeds(draw: st.DrawFn, few: bool = False) -> tuple[Feed, str]:
    """Inputs of which one may have a few elements from near or far outside."""
    feed = good_feed(draw(st.integers(0, 99)))
    feed["grid"] = draw(
        st.lists(st.floats(width=32) | st.sampled_from([1e10, -1e20, 3e38, np.nan]), min_size=24, max_size=24).map(
            lambda numbers: np.array(numbers, np.float32).reshape(GRID)
        )
    )
    name = draw(st.sampled_from(sorted(set(FEW) & set(INDICES) if few else INDICES)))
    index = INDICES[name]
    bits = np.iinfo(index.dtype)
    edges = [end + k for pair in index.ranges for end in pair for k in (-1, 0, 1)]
    one = st.sampled_from(edges) | st.sampled_from(WILD) | st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)
    numbers = draw(st.lists(one.filter(lambda n: bits.min <= n <= bits.max), max_size=3))
    places = draw(st.lists(st.integers(0, 10**4), min_size=len(numbers), max_size=len(numbers)))
    return spoilt(feed, name, numbers, places)


def check_batch(batch: Sequence[tuple[Feed, str]], results: Sequence, few: bool = False) -> None:
    names = [o.name for o in reference(few).get_outputs()]
    for (feed, sentence), result in zip(batch, results, strict=True):
        if sentence:
            assert result == sentence
            continue
        assert not isinstance(result, str), result
        for name, one, other in zip(names, result, outputs_of(feed, few), strict=True):
            if name not in SAMPLED:  # far outside ONNX Runtime's weights are rounding errors
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=name)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.lists(feeds(), min_size=4, max_size=12))
def test_nothing_outside_is_touched(batch: list[tuple[Feed, str]]) -> None:
    assert NATIVE is not None
    check_batch(batch, guarded(package(), driver(NATIVE.gnu_triple), [feed for feed, _ in batch], 2))


@pytest.mark.parametrize(("target", "few"), [("cortex-a76", False), ("armv7-neon", True), ("riscv64-v", True)])
@pytest.mark.sweep(2)
def test_nothing_outside_is_touched_elsewhere(target: str, few: bool) -> None:
    triple = load_target(target).triple
    skip_without_tools(triple)
    before, seen = emulator(triple), 0

    @settings(max_examples=2, deadline=None, derandomize=True)
    @given(st.lists(feeds(few), min_size=12, max_size=24))
    def check(batch: list[tuple[Feed, str]]) -> None:
        nonlocal seen
        seen += sum(bool(sentence) for _, sentence in batch)
        program = driver(machine_of(triple).gnu_triple)
        check_batch(batch, guarded(package(target, few), program, [feed for feed, _ in batch], 2, before), few)

    check()
    assert seen


def test_under_the_sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runtime, tables and the kernels in C with AddressSanitizer's checks in them, data in blocks of their own size."""
    assert NATIVE is not None
    monkeypatch.setenv("CC", "gcc -fsanitize=address -fno-omit-frame-pointer")
    path = tmp_path / "sanitized.modelc"
    try:
        modelc.compile(model(few=True), target=host_target(), output=path, verify=False)
        program = driver(NATIVE.gnu_triple, ("-DHEAP",))
    except modelc.ModelcError as error:
        pytest.skip(f"no gcc with AddressSanitizer: {error}")
    batch = [spoilt(good_feed(6), name, [number], [0]) for name in INDICES for number in (0, WILD[0])]
    batch = [(feed, sentence) for feed, sentence in batch if not sentence or sentence.split("'")[1] in FEW]
    assert b"__asan" in library_of(path).read_bytes()
    found = guarded(path, program, [feed for feed, _ in batch], 2, ("env", "ASAN_OPTIONS=detect_leaks=0"))
    check_batch(batch, found, few=True)
    assert sum(bool(sentence) for _, sentence in batch) >= len(FEW) - 1


# --- what is said about it ------------------------------------------------------------------------------------------


def gather(path: Path, weights: Feed) -> Path:
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (4, 3))]
    if "at" not in weights:
        inputs.append(helper.make_tensor_value_info("at", onnx.TensorProto.INT64, (2,)))
    nodes = [helper.make_node("Gather", ["x", "at"], ["y"], "it")]
    return save(path, nodes, inputs, [onnx.ValueInfoProto(name="y")], weights)


@pytest.mark.parametrize("checked", [True, False])
def test_the_configuration_switches_checks_off_and_the_manifest_says_so(tmp_path: Path, checked: bool) -> None:
    config = replace(load_config(), check_addresses=checked)
    path = tmp_path / "p.modelc"
    modelc.compile(gather(tmp_path / "m.onnx", {}), output=path, config=config, verify=False)
    manifest = read_package(path).manifest
    found = modelc.inspect(path)
    assert manifest.check_addresses is checked and found["check_addresses"] is checked
    assert [len(step.checks) for step in manifest.variants[0].steps] == [int(checked)] and found["checks"] == checked
    memory = np.arange(15, dtype=np.float32).reshape(5, 3)  # of which the package is given the first four rows
    with load(path) as handle:
        feed = {"x": memory[:4], "at": np.array([4, 0])}
        if checked:
            with pytest.raises(ModelError, match="'at' is 4 at \\[0\\]; expected a number from -4 to 3"):
                handle.run(feed)
        else:
            np.testing.assert_array_equal(handle.run(feed)["y"], memory[[4, 0]])
        assert handle.metadata["check_addresses"] is checked


def test_known_indices_out_of_range_are_refused_when_compiling(tmp_path: Path) -> None:
    for at in ([0, 4], [-5, 1]):
        path = gather(tmp_path / "m.onnx", {"at": np.array(at)})
        wrong = next(n for n in at if not -4 <= n < 4)
        with pytest.raises(CompileError, match=f"'it' .*expected 'at' from -4 to 3, found {wrong}"):
            modelc.compile(path, output=tmp_path / "p.modelc")
        assert not (tmp_path / "p.modelc").exists()
