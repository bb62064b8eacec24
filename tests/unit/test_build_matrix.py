"""modelc.yaml, read: what it says, its mistakes, and the cells that are asked for."""

from __future__ import annotations

from math import nan
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from jsonschema import Draft202012Validator

from modelc.build.cells import cells_of
from modelc.build.matrix import bytes_of, parse_matrix, read_matrix, schema, share_of
from modelc.build.summary import COLUMNS, KINDS, junit, markdown, rows, sentence
from modelc.build.summary import schema as build_schema
from modelc.compile.request import CompileRequest, keys_of_yaml
from modelc.errors import ConfigError

SOURCE = Path("shop/modelc.yaml")
TREE = {
    "schema": 1,
    "targets": ["x86-64-v3", {"name": "cortex-a76", "budget": "5m", "runner": "ssh://pi@board"}],
    "precisions": ["f32", "auto"],
    "gates": {"max-params": "1.5 MB", "min-ratio": {"ort": 1.0}},
    "models": {
        "yunet": {"path": "yunet.onnx", "dims": {"batch": [1, 2]}, "gates": {"max-slowdown": "3%"}},
        "text": {"path": "text.onnx", "targets": ["mine.yaml"], "precisions": ["f32"], "constants": {"k": "k.npy"}},
    },
}


def refused(tree: object) -> list[str]:
    with pytest.raises(ConfigError) as refusal:
        parse_matrix(tree, SOURCE)
    return str(refusal.value).splitlines()


def test_forms_and_limits_are_what_compile_is_asked_for() -> None:
    tree = {**TREE, "targets": ["x86-64-v3"], "form": {"emit": ["so", "a"]}, "limits": {"params": "1.2x"}}
    own = {"form": {"prefix": "face", "embed-params": True}, "limits": {"arena": "2 MB"}}
    yunet, text = parse_matrix(
        {**tree, "models": {**TREE["models"], "yunet": {"path": "a.onnx", **own}}}, SOURCE
    ).models
    said = {"emit": ["so", "a"], "max_params": "1.2x"}
    assert said.items() <= text.options.items()
    assert yunet.options == {**said, "prefix": "face", "embed_params": True, "max_arena": "2MB"}
    form = CompileRequest("a.onnx", **yunet.options).form("x86_64-linux-gnu")
    assert form.prefix == "face" and form.emit == ("so", "a")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"form": {"emit": ["dll"]}}, "expected so, a, o"),
        ({"limits": {"params": "much"}}, "times the model's constants"),
        (
            {"limits": {"params": "1.2x"}, "targets": [{"name": "x86-64-v3", "budget": "5m"}]},
            "tuned packages have no form",
        ),
    ],
)
def test_forms_that_there_are_not(said: dict[str, object], sentence: str) -> None:
    models = {"yunet": {"path": "a.onnx", "targets": ["x86-64-v3"], **said}}
    (line,) = refused({**TREE, "models": models})[1:]
    assert "models.yunet" in line and sentence in line


def test_a_model_has_the_keys_that_options_say() -> None:
    tree = schema()["$defs"]
    keys = {part: {*tree[part]["properties"]} for part in ("model", "form", "limits")}
    keys["model"] -= {"path", "sha256", "targets", "precisions", "form", "limits", "gates"}
    assert keys == {part: {*keys_of_yaml(part)} for part in keys}


def test_the_schemas_are_schemas() -> None:
    for published in (schema(), build_schema()):
        Draft202012Validator.check_schema(published)


def test_what_a_file_says() -> None:
    matrix = parse_matrix(TREE, SOURCE)
    yunet, text = matrix.models
    assert yunet.path == Path("shop/yunet.onnx") and yunet.options == {"dims": {"batch": [1, 2]}}
    assert yunet.gates.params == 1_500_000 and yunet.gates.ratios == {"ort": 1.0}
    assert yunet.gates.slowdowns == {"max-slowdown": pytest.approx(0.03)} and not text.gates.slowdowns
    assert text.options["constants"] == {"k": "shop/k.npy"}
    assert [target.label for target in text.targets] == ["mine"] and text.targets[0].name == "shop/mine.yaml"
    assert matrix.output == Path("shop/build")


@pytest.mark.parametrize(
    ("value", "count"), [(7, 7), ("7B", 7), ("1 KB", 1000), ("2.5MB", 2_500_000), ("1GB", 1_000_000_000)]
)
def test_sizes(value: int | str, count: int) -> None:
    assert bytes_of(value) == count


def test_shares() -> None:
    assert share_of(0.03) == share_of("3%") == share_of("3.0 %")


def test_what_bytes_are_calibrated_by() -> None:
    entry = {"path": "m.onnx", "precisions": ["f32", "int8"], "calibrate": "samples", "metric": "judge.py:right"}
    tree = {**TREE, "targets": ["cortex-a76"], "models": {"m": entry}, "gates": {"max-drop": "2%"}}
    matrix = parse_matrix(tree, SOURCE)
    (model,) = matrix.models
    files = {"calibrate": "shop/samples", "metric": "shop/judge.py:right"}
    assert model.options == files
    wide, narrow = cells_of(matrix)
    assert wide.options == {"precision": "f32"}
    assert narrow.options == {**files, "precision": "int8", "max_drop": 0.02}


def test_every_mistake_is_said_at_once_with_the_nearest_word() -> None:
    said = refused(
        {
            "schema": 1,
            "targets": [],
            "precisions": ["fp32"],
            "gates": {"max_params": 3, "max-arena": "3 bytes", "min-ratio": {"onnxruntime": 1}},
            "models": {"a": {"pth": "a.onnx"}, "b c": {"path": "b.onnx"}},
            "ouput": "x",
        }
    )
    assert said[0] == "shop/modelc.yaml does not say what to build:"
    whole = "\n".join(said)
    for words in (
        "targets is []; expected at least one entry",
        "expected f32, bf16, f16, int8, auto. Did you mean f32?",
        "has an unknown key 'max_params'",
        "Did you mean max-params?",
        "gates.max-arena is '3 bytes'; expected Bytes, or a number with B, KB, MB or GB",
        "models.a lacks the key 'path'",
        "unknown key 'pth'",
        "Did you mean path?",
        "'b c' is no name",
        "Did you mean output?",
    ):
        assert words in whole, f"{words!r} is not in\n{whole}"


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (None, "the file is None; expected a mapping"),
        ([], "the file is []; expected a mapping"),
        ({}, "lacks the keys 'schema', 'models', 'targets'"),
        ({**TREE, "schema": 2}, "schema is 2; expected 1"),
        ({**TREE, "gates": {"max-slowdown": nan}}, "gates.max-slowdown is nan; expected a finite number"),
        ({**TREE, "output": "a\0b"}, "output has a null character"),
        ({**TREE, "targets": ["a", "x/a.yaml"]}, "targets has a twice: packages would have one name"),
        ({**TREE, "models": {"a": {"path": "m", "sha256": "12"}}}, "models.a.sha256 is '12'"),
        ({**TREE, "models": {"a": {"path": "m", "dims": {"n": -1}}}}, "models.a.dims.n is -1; expected a number from"),
        ({**TREE, "models": {"a": {"path": "m", "metric": "j.py:f"}}}, "models.a has a metric and no samples"),
        ({**TREE, "models": {"a": {"path": "m", "block": 32}}}, "models.a has a block and no weights"),
        (
            {**TREE, "models": {"a": {"path": "m", "weights": "int4", "calibrate": "d.npz"}}},
            "models.a has weights of 4 bits, and samples",
        ),
        ({**TREE, "models": {"a": {"path": "m", "metric": "j"}}}, "models.a.metric is 'j'"),
        ({**TREE, "gates": {"min-ratio": {"ort": 0}}}, "gates.min-ratio.ort is 0; expected a number above 0"),
    ],
)
def test_mistakes(tree: object, words: str) -> None:
    assert words in "\n".join(refused(tree))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no .*modelc\.yaml: name the file"):
        read_matrix(tmp_path / "modelc.yaml")
    (tmp_path / "a.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="is not YAML"):
        read_matrix(tmp_path / "a.yaml")
    with pytest.raises(ConfigError, match="it is no file"):
        read_matrix(tmp_path)


def names(*only: str, shard: str = "") -> list[str]:
    return [cell.name for cell in cells_of(parse_matrix(TREE, SOURCE), only, shard)]


def test_cells_and_those_that_are_asked_for() -> None:
    every = names()
    assert every == [
        "yunet:x86-64-v3:f32",
        "yunet:x86-64-v3:auto",
        "yunet:cortex-a76:f32",
        "yunet:cortex-a76:auto",
        "text:mine:f32",
    ]
    assert names("yu*:cortex-a76") == every[2:4] and names("*:*:f32", "text") == [every[0], every[2], every[4]]
    shards = [names(shard=f"{k}/3") for k in (1, 2, 3)]
    assert sorted(name for shard in shards for name in shard) == sorted(every) and shards[0] == [every[0], every[3]]
    with pytest.raises(ConfigError, match=r"no cell of .* fits.*Did you mean yunet\?"):
        names("yunt")
    for wrong in ("0/2", "3/2", "a", "1/", "1/2/3"):
        with pytest.raises(ConfigError, match="expected K/N"):
            names(shard=wrong)


def test_summaries_escape_what_models_and_errors_say() -> None:
    gate = {"gate": "max-params", "outcome": "failed", "said": "3 of 2 | <b>\x00", "limit": 2, "value": 3}
    cell = {"cell": "a:b:f32", "outcome": "failed", "said": "no\x1b[31m <x>", "sizes": None, "seconds": None}
    build = {"passed": False, "cells": [{**cell, "gates": [gate, {**gate, "outcome": "skipped"}]}]}
    page = markdown(build)
    assert "\x1b" not in page and "&lt;b>" in page and "\\|" in page
    report = junit(build)
    assert "\x00" not in report


def test_summaries_count_and_show_what_was_measured() -> None:
    gates = [
        {"gate": "verified", "outcome": "passed", "said": "", "value": None},
        {"gate": "min-ratio ort", "outcome": "failed", "said": "too slow", "value": 0.5},
        {"gate": "min-ratio openvino", "outcome": "skipped", "said": "none", "value": None},
    ]
    cell = {"cell": "a:b:f32", "outcome": "built", "said": "", "sizes": None, "seconds": 2.0, "gates": gates}
    build = {"passed": False, "cells": [cell, {**cell, "cell": "a:c:f32", "outcome": "failed", "gates": []}]}
    root = fromstring(junit(build))
    counts = [{name: int(tests.attrib[name]) for name in ("tests", *KINDS)} for tests in (root, *root)]
    first, second = ({"tests": n, "failures": 1, "errors": 0, "skipped": skipped} for n, skipped in ((4, 1), (1, 0)))
    assert counts == [{name: first[name] + second[name] for name in first}, first, second]
    assert rows(build)[0][COLUMNS.index("times as fast as")] == "ort 0.500"
    assert "| times as fast as |" in markdown(build) and "ort 0.500" in markdown(build)
    assert sentence(build).startswith("2 cells: ") and sentence({**build, "cells": [cell]}).startswith("1 cell: ")
