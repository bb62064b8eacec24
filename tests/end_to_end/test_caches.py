"""Caches that grow, kept by the package: beside ONNX Runtime, which is handed its own each time."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from itertools import islice
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from cache_models import POSITIONS, STATES, VOCABULARY, genai, gpt
from control_models import F, agree
from onnx import helper
from repository import ROOT

import modelc
from modelc.errors import ConfigError, ModelError
from modelc.ir.sizes import text_of
from modelc.package import read_package
from modelc.package.spec import Step
from modelc.runtime import ModelError as LoadedError

DIMS = {"batch_size": 1, "sequence_length": "1..12", "past_sequence_length": "0..30"}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("caches")
    model, package = gpt(folder / "m.onnx"), folder / "m.modelc"
    result = modelc.compile(model, output=package, states=STATES, dims=DIMS, database=False)
    assert result.report is not None and result.report.passed
    lengths = [sizes["past_sequence_length"] for sizes in result.report.sizes]
    assert 0 in lengths and 30 in lengths and {one.name for one in result.report.outputs} == {"logits"}
    return model, package


class ByHand:
    """The model, and the cache that it gave last."""

    def __init__(self, model: Path) -> None:
        self.session = ort.InferenceSession(str(model))
        self.cache = {f"past_key_values.0.{kind}": np.zeros((1, 2, 0, 8), np.float32) for kind in ("key", "value")}

    def run(self, tokens: np.ndarray) -> list[np.ndarray]:
        logits, *present = self.session.run(None, {"input_ids": tokens, **self.cache})
        self.cache = dict(zip(self.cache, present, strict=True))
        return [logits]


def tokens(k: int, count: int) -> np.ndarray:
    return np.random.default_rng(k).integers(0, VOCABULARY, (1, count))


def test_many_tokens_and_single_ones_are_one_package(kept) -> None:
    model, package = kept
    with modelc.load(package, threads=1) as one, modelc.load(package, threads=2) as other:
        assert (
            one.grows and [t.name for t in one.inputs] == ["input_ids"] and [t.name for t in one.outputs] == ["logits"]
        )
        mine, yours = ByHand(model), ByHand(model)
        for k, count in enumerate((5, 1, 1, 12, 3, 1, 7)):
            agree(one.run({"input_ids": tokens(k, count)}), mine.run(tokens(k, count)))
            if k % 2:
                agree(other.run({"input_ids": tokens(k, 1)}), yours.run(tokens(k, 1)))
        one.reset()
        mine = ByHand(model)
        for k in range(4):
            agree(one.run({"input_ids": tokens(k, 1)}), mine.run(tokens(k, 1)))
            agree(other.run({"input_ids": tokens(k, 2)}), yours.run(tokens(k, 2)))


def test_a_run_that_fails_and_one_that_finds_no_room_leave_the_cache(kept) -> None:
    model, package = kept
    with modelc.load(package) as loaded:
        wanted = ByHand(model)
        for k, count in enumerate((12, 1, 12, 5)):  # 30 in all
            with pytest.raises(LoadedError, match=f"'input_ids' is {VOCABULARY} at"):
                loaded.run({"input_ids": np.full((1, count), VOCABULARY)})
            with pytest.raises(LoadedError, match="'input_ids' has 13 along dimension 1"):
                loaded.run({"input_ids": tokens(k, 13)})
            agree(loaded.run({"input_ids": tokens(k, count)}), wanted.run(tokens(k, count)))
        agree(loaded.run({"input_ids": tokens(9, 2)}), wanted.run(tokens(9, 2)))
        for _ in range(2):
            with pytest.raises(
                LoadedError, match=r"the cache is full: 'past_sequence_length' is 32, .* up to 30; reset"
            ):
                loaded.run({"input_ids": tokens(0, 1)})
        loaded.reset()
        agree(loaded.run({"input_ids": tokens(0, 3)}), ByHand(model).run(tokens(0, 3)))
        assert len(loaded.profile({"input_ids": tokens(0, 12)}, repeat=9)) > 4  # each from an empty cache on


def test_a_package_with_a_cache_is_verified_again_rebuilt_and_described(kept, tmp_path) -> None:
    model, package = kept
    report = modelc.verify(package, model, per_layer=True)
    assert report.passed and {"logits"} <= {layer.value for layer in report.layers}
    modelc.compile(model, output=tmp_path / "again", choices=package, verify=False)
    for name in ("params.bin", "choices.json"):
        assert (package / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    plan = read_package(package).manifest.variants[0]
    assert [(s.input.name, s.grows, s.room) for s in plan.states] == [
        (f"past_key_values.0.{kind}", True, 4 * 2 * 42 * 8) for kind in ("key", "value")
    ]
    (length,) = plan.lengths
    assert (length.name, length.least, length.most) == ("past_sequence_length", 0, 30)
    assert text_of(length.growth) == "sequence_length"
    states = modelc.inspect(package)["states"]
    assert [(one["grows"], one["extents"][2]) for one in states] == [(True, "past_sequence_length")] * 2
    assert modelc.report(package, tmp_path / "page.html").exists()
    assert modelc.profile(package, repeat=2)["sizes"]["past_sequence_length"] == 0
    assert modelc.run(package, {"input_ids": tokens(0, 3)})["logits"].shape == (1, 3, VOCABULARY)


def writers_of_caches(package: Path) -> list[Step]:
    """The steps that write to a cache; each writes behind what is there."""
    plan = read_package(package).manifest.variants[0]
    slots = {state.read for state in plan.states}
    writers = [
        step
        for step in plan.steps
        if any(step.arguments[k].space == "slot" and step.arguments[k].index in slots for k in step.written)
    ]
    assert all("past" in str(a.offset) for s in writers for a in s.arguments if a.space == "slot")
    return writers


def test_no_kernel_touches_what_is_there(kept) -> None:
    """Of the two caches nothing is copied: kernels that write to them write what is new."""
    assert len(writers_of_caches(kept[1])) == 2


@pytest.mark.parametrize("window", [-1, 5])
def test_caches_that_grouped_attention_appends_to_grow(tmp_path, window) -> None:
    model, package = genai(tmp_path / "m.onnx", window), tmp_path / "m.modelc"
    result = modelc.compile(model, output=package, states=STATES, dims=DIMS, database=False)
    assert result.report is not None and result.report.passed
    assert len(writers_of_caches(package)) == 6  # of each layer the halves of keys, and values
    session, shapes = ort.InferenceSession(str(model)), (1, 2, 0, 16)
    cache = {one.name: np.zeros(shapes, np.float32) for one in session.get_inputs()[2:]}
    with modelc.load(package) as loaded:
        assert loaded.grows and [t.name for t in loaded.inputs] == ["input_ids", "attention_mask"]
        past, new = 0, [3, 11, 7, 28, 5]
        for _ in range(20):  # a prompt, and the likeliest token each time
            mask = np.ones((1, past + len(new)), np.int64)
            feed = {"input_ids": np.array([new]), "attention_mask": mask}
            logits, *present = session.run(None, {**feed, **cache})
            agree(loaded.run(feed), [logits])
            cache = dict(zip(cache, present, strict=True))
            past, new = past + len(new), [int(logits[0, -1].argmax())]
        mask[0, 2] = 0
        with pytest.raises(LoadedError, match=r"masked_tokens' is 2 at .*; expected a number from 0 to 0"):
            loaded.run({**feed, "attention_mask": np.append(mask, [[0]], axis=1)})


def test_a_batch_of_caches_that_grouped_attention_appends_to_is_a_sentence(tmp_path) -> None:
    dims = {**DIMS, "batch_size": 2}
    with pytest.raises(
        ModelError, match=r"'attention0' \(GroupQueryAttention\): .* of one sequence.*found 2 sequences"
    ):
        modelc.compile(genai(tmp_path / "m.onnx"), output=tmp_path / "p", states=STATES, dims=dims)


def cast(path: Path) -> Path:
    """present = double(Concat(past, x)) as floats again."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["both"], axis=1),
        helper.make_node("Mul", ["both", "both"], ["present"]),
    ]
    inputs = [info("past", F, [1, "p"]), info("x", F, [1, "n"])]
    graph = helper.make_graph(nodes, "g", inputs, [info("present", F, [1, "p + n"])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize(
    ("make", "states", "dims", "sentence"),
    [
        (
            cast,
            {"past": "present"},
            {"p": "0..9", "n": "1..4"},
            "'present' is something else: expected it to be Concat",
        ),
        (lambda path: gpt(path, reads_past=True), STATES, DIMS, "'past_key_values.0.key' to be read by that alone"),
        (gpt, STATES, {**DIMS, "batch_size": "1..3"}, r"along which a cache does not grow.*--dim batch_size=1"),
        (gpt, STATES, {**DIMS, "past_sequence_length": "1..9"}, "expected lengths of a cache from 0 on"),
        (gpt, {"past_*.value": "present"}, DIMS, r"expected as many \* in both"),
    ],
)
def test_what_is_no_cache_is_a_sentence(tmp_path, make, states, dims, sentence) -> None:
    with pytest.raises((ModelError, ConfigError), match=sentence):
        modelc.compile(make(tmp_path / "m.onnx"), output=tmp_path / "p", states=states, dims=dims)


@pytest.mark.parametrize(("make", "convention"), [(gpt, "optimum"), (genai, "genai")])
def test_inspect_says_the_convention_and_a_compile_without_bounds_finds_them(tmp_path, make, convention) -> None:
    model = make(tmp_path / "m.onnx")
    found = modelc.inspect(model)["caches"]
    assert found == {"convention": convention, "flags": ["--state 'past_key_values.*=present.*'"]}
    assert modelc.inspect(model, states=STATES)["caches"] is None
    done = modelc.compile(model, output=tmp_path / "p", states=STATES, verify=False, database=False)
    assert done.path is not None
    sizes = read_package(tmp_path / "p").manifest.variants[0].free
    assert [size.least for size in sizes] == [1, 0] and sum(size.most for size in sizes) <= POSITIONS


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module("generate")


def test_the_example_writes_the_tokens_of_onnx_runtime_from_python_and_c(tmp_path, generate) -> None:
    llama = importlib.import_module("llama")
    sizes = llama.Sizes(vocabulary=61, width=32, inner=48, layers=2, heads=4, kv_heads=2, positions=256)
    model = llama.decoder(tmp_path / "d.onnx", sizes, llama.random_weights(sizes, seed=3))
    dims = {"batch_size": 1, "sequence_length": "1..16", "past_sequence_length": "0..239"}
    forms = {"prefix": "decoder", "emit": ("so", "a")}
    package = tmp_path / "decoder.modelc"
    modelc.compile(model, output=package, states=STATES, dims=dims, verify=False, database=False, **forms)
    prompt, count = [7, 3, 11, 2, 5], 200
    with modelc.load(package, threads=1) as loaded:
        ours = list(islice(generate.generated(generate.with_modelc(loaded), prompt), count))
    session = ort.InferenceSession(str(model))
    assert ours == list(islice(generate.generated(generate.with_onnxruntime(session), prompt), count))
    assert len(set(ours)) > 10
    shutil.copy(ROOT / "examples/c/generate.c", tmp_path)
    words = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-Idecoder.modelc", "generate.c"]
    words += ["decoder.modelc/libdecoder.a", "-lm", "-pthread", "-o", "generate"]
    subprocess.run(words, cwd=tmp_path, check=True)
    command = ["./generate", "decoder.modelc", str(count), *map(str, prompt)]
    said = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert [*map(int, said.split())] == ours
