"""A slice of python tests/fuzz yaml, and its findings: damaged targets, configurations, choices are refused by name."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import fuzz_yaml
import numpy as np
import pytest
import small_model as small
import yaml
from forked import Limits
from onnx import helper

import modelc
from modelc.build.matrix import read_matrix
from modelc.compile.choices import MAX_FILE, read_choices_file
from modelc.compile.config import load_config
from modelc.errors import ConfigError, ModelcError
from modelc.target import load_target, read_intrinsics, strict_yaml

CASES = 24


def test_a_slice_of_the_fuzzer() -> None:
    report = fuzz_yaml.fuzz(list(fuzz_yaml.KINDS), seed=2, count=CASES, limits=Limits(), small=False)
    found = report.to_json()
    assert report.passed, found["failures"]
    assert found["cases"] == CASES and found["kinds"]["done"] >= 3 and found["kinds"]["refused"] >= 8
    assert found["most_bytes"] < 2 << 30


def test_edits_are_reproducible() -> None:
    data = (fuzz_yaml.ROOT / "targets/x86-64-v3.yaml").read_bytes()
    for on_bytes, edits in ((True, fuzz_yaml.ON_BYTES), (False, fuzz_yaml.ON_TREES)):
        for name in edits:
            texts = {fuzz_yaml.Mutated("target", "t", data, on_bytes, ((name, s),)).text() for s in range(8)}
            again = {fuzz_yaml.Mutated("target", "t", data, on_bytes, ((name, s),)).text() for s in range(8)}
            assert texts == again and len(texts - {data}) > 1, name


# --- bombs --------------------------------------------------------------------------------------------------------


CONFIG = fuzz_yaml.ROOT / "configs/default.yaml"
BOMBS = fuzz_yaml.bombs(CONFIG.read_bytes())


@pytest.mark.parametrize("number", range(len(BOMBS)))
@pytest.mark.sweep(6)
def test_bombs_are_refused(tmp_path, number) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_bytes(BOMBS[number])
    for reader in (load_config, read_choices_file, (load_target, read_intrinsics)[number % 2]):
        with pytest.raises(ModelcError) as refused:
            reader(path)
        assert "bomb.yaml" in str(refused.value) and len(str(refused.value)) < 1000


READERS = [load_target, read_intrinsics, load_config, read_matrix]
BOMB = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefghij")
)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (BOMB, "it has more than 50000 values, aliases written out"),
        ("a: &a [*a]\n", "it has more than 50000 values, aliases written out"),
        (f"seconds: {'9' * 300_000}\n", "the number in line 1 has more than 20 characters"),
        (f"a: 1\nb: 0x{'f' * 300_000}\n", "the number in line 2 has more than 20 characters"),
    ],
    ids=["aliases", "itself", "decimal", "hexadecimal"],
)
def test_a_few_lines_stand_for_few_values(
    tmp_path: Path, reader: Callable[[Path], Any], text: str, sentence: str
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    begun = time.process_time()
    with pytest.raises(ModelcError, match=f"c.yaml is not YAML that modelc reads: {sentence}"):
        reader(tmp_path / "c.yaml")
    assert time.process_time() - begun < 10


def test_aliases_are_read() -> None:
    assert strict_yaml.load("a: &a [1, 2]\nb: *a\nc: {d: *a}") == {"a": [1, 2], "b": [1, 2], "c": {"d": [1, 2]}}


@pytest.mark.parametrize(
    "options",
    [5, ["x"], {5: 1}, {"limit": "abc"}, {"limit": -1}, {"limit": 1 << 64}, {"limit": True}, {"limit": [1]}, {"x": 1}],
)
def test_options_of_passes_are_of_their_type(tmp_path, options) -> None:
    tree = yaml.safe_load(CONFIG.read_text())
    tree["simplify"] = [{"fold_constants": options}]
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError, match="pass fold_constants"):
        load_config(tmp_path / "c.yaml")


@pytest.mark.parametrize("reader", [load_target, read_intrinsics, load_config, read_choices_file])
def test_what_is_no_file_is_not_waited_for(tmp_path, reader) -> None:
    path = tmp_path / "fifo.yaml"
    os.mkfifo(path)
    with pytest.raises(ModelcError, match="it is no file"):
        reader(path)


# --- choices ------------------------------------------------------------------------------------------------------


def choices() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((small.package() / "choices.json").read_text())
    return data


def block_of(data: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """The Task, the name and the schedule of the first Block that has tags and tiles."""
    return next(
        (key, name, block)
        for key, task in data["tasks"].items()
        for name, block in task["blocks"].items()
        if block["tags"] and block["tiles"]
    )


def spoilt(what: str) -> tuple[dict[str, Any], str]:
    """Choices that are wrong somewhere, and what the sentence has to name."""
    data = choices()
    key, name, block = block_of(data)
    tag, tile = next(iter(block["tags"])), next(iter(block["tiles"]))
    in_block = f"tasks.{key}: blocks.{name}"
    if what == "layouts are cut":
        data["layouts"].pop()
        return data, "layouts has 1 entries; expected one for each of the 2 shapes"
    if what == "float32 is cut":
        data["float32"] = []
        return data, "float32 has 0 entries"
    if what == "a tag is a number":
        block["tags"][tag] = 7
        return data, f"{in_block}.tags.{tag}"
    if what == "a size is absurd":
        block["tiles"][tile] = [10**30]
        return data, f"{in_block}.tiles.{tile}.0"
    if what == "a size is no number":
        block["tiles"][tile] = ["16"]
        return data, f"{in_block}.tiles.{tile}.0"
    if what == "a shape is absurd":
        data["shapes"][0]["x"][0] = 1 << 40
        return data, "shapes.0.x.0"
    if what == "a layout is absurd":
        data["layouts"][0]["values"]["x"] = "pad(0, 0, 99999999999)"
        return data, "layouts.0: pad has an argument above"
    if what == "a layout is of no value":
        data["layouts"][0]["conversions"] = [{"value": "nothing", "layout": "reorder(1, 0)", "back": False}]
        return data, "of layouts and float32 does not fit"
    if what == "a layout does not fit":
        data["layouts"][0]["values"]["x"] = "split(9, 3)"
        return data, "of layouts and float32 does not fit"
    if what == "a key is unknown":
        data["extra"] = 1
        return data, "extra"
    assert what == "the model is no hash"
    data["model_sha256"] = ["x"] * 10_000
    return data, "model_sha256"


SPOILT = (
    *("layouts are cut", "float32 is cut", "a tag is a number", "a size is absurd", "a size is no number"),
    *("a shape is absurd", "a layout is absurd", "a layout is of no value", "a layout does not fit"),
    *("a key is unknown", "the model is no hash"),
)


@pytest.mark.parametrize("what", SPOILT)
def test_choices_are_refused_by_the_field_and_the_block(tmp_path, what) -> None:
    data, sentence = spoilt(what)
    path = tmp_path / "choices.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError) as refused:
        modelc.compile(small.model(), output=tmp_path / "p", choices=path)
    assert sentence in str(refused.value) and len(str(refused.value)) < 800
    assert os.listdir(tmp_path) == ["choices.json"]


def test_choices_that_are_too_large_are_not_read(tmp_path) -> None:
    with (tmp_path / "choices.json").open("wb") as file:
        file.truncate(MAX_FILE + 1)
    with pytest.raises(ConfigError, match="more than"):
        read_choices_file(tmp_path)


def test_choices_that_unroll_everything_are_refused(tmp_path) -> None:
    nodes, sizes = [helper.make_node("MatMul", ["x", "w"], ["y"])], [256, 256]
    model = small.save(tmp_path / "m.onnx", nodes, {"x": sizes}, {"y": sizes}, {"w": np.ones(sizes, np.float32)})
    modelc.compile(model, target="x86-64-v3", output=tmp_path / "p", verify=False)
    data = json.loads((tmp_path / "p/choices.json").read_text())
    for task in data["tasks"].values():
        for block in task["blocks"].values():
            block["tags"] = {loop: block["tags"].get(loop, "unroll") for loop in block["order"]}
            block["tags"] |= {loop: "unroll" for loop, tag in block["tags"].items() if tag in ("for", "parallel")}
    (tmp_path / "choices.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"it unrolls to \d+ statements; at most 32768"):
        modelc.compile(model, output=tmp_path / "q", choices=tmp_path / "choices.json")
