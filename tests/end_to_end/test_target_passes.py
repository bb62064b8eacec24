"""Passes that a target's YAML lists: they are what runs, a configuration that names passes wins over them, packages say
whose they were, and what is wrong in a list is a sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_model as small
import yaml
from onnx import helper
from repository import ROOT
from three_ways import host_target

import modelc
from modelc.compile.config import load_config, parse_config
from modelc.compile.pass_lists import loaded, scheduling, simplifying
from modelc.errors import ConfigError, TargetError
from modelc.package import read_package
from modelc.passes import SIMPLIFY
from modelc.target import Memory, parse_target

NEAR = {"name": "near", "bytes": 8192, "line": 64}
TILED = {"memories": [NEAR], "passes": {"schedule": [{"autotile": {"memory": "near"}}]}}
FEW = {"passes": {"simplify": ["eliminate_dead", {"fold_constants": {"limit": 64}}]}}
SHAPE = ("--shape", "x=1,3,20,24")


def described(folder: Path, changes: Mapping[str, Any]) -> Path:
    """A file of this machine's target with other entries."""
    tree = {**yaml.safe_load(host_target().to_yaml()), "name": "mine", **changes}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def configured(folder: Path, simplify: Any = "target", passes: Any = "target") -> Path:
    tree = yaml.safe_load((ROOT / "configs/default.yaml").read_text())
    tree["simplify"], tree["schedule"]["passes"] = simplify, passes
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def passes_run(folder: Path, target: Path, config: Path | None = None) -> list[str]:
    """The passes over Graphs that a compilation runs."""
    seen: list[str] = []
    options = {} if config is None else {"config": config}
    modelc.compile(
        small.model(),
        shapes=small.SHAPES[:1],
        target=target,
        stop_after="simplify",
        progress=lambda stage, text: seen.append(text) if stage == "simplify" else None,
        **options,
    )
    return [text.partition(":")[0] for text in seen if text.partition(":")[0].replace("_", "").isalpha()]


# --- whose list runs --------------------------------------------------------------------------------------------------


def test_the_list_of_the_target_is_what_runs_unless_the_configuration_names_one(tmp_path: Path) -> None:
    few, plain = described(tmp_path, FEW), load_config()
    assert passes_run(tmp_path, few) == ["eliminate_dead", "fold_constants"]
    assert passes_run(tmp_path, few, configured(tmp_path)) == ["eliminate_dead", "fold_constants"]
    assert passes_run(tmp_path, few, configured(tmp_path, ["clean_moves"])) == ["clean_moves"]
    assert simplifying(plain, loaded(few)) == (tuple(FEW["passes"]["simplify"]), "of target mine")
    assert simplifying(plain, host_target()) == (SIMPLIFY, "modelc's own")


def test_options_of_the_target_reach_the_pass(tmp_path: Path) -> None:
    """Quantized constants become real where the target's list says `dequantize: 1`."""
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale"], ["c"], "real"),
        helper.make_node("Add", ["x", "c"], ["y"], "sum"),
    ]
    constants = {"q": np.arange(16, dtype=np.int8), "scale": np.array(0.5, np.float32)}
    path = small.save(tmp_path / "m.onnx", nodes, {"x": [16]}, {"y": [16]}, constants)
    real = []
    for dequantize in (0, 1):
        target = described(tmp_path, {"passes": {"simplify": [{"fold_constants": {"dequantize": dequantize}}]}})
        folder = tmp_path / f"d{dequantize}"
        modelc.compile(path, target=target, stop_after="simplify", dump_dir=folder)
        real.append("DequantizeLinear(" not in (folder / "02-simplify.txt").read_text())
    assert real == [False, True]


def test_a_package_says_whose_lists_made_it(tmp_path: Path, cli: Any) -> None:
    target = described(tmp_path, {**TILED, **{"passes": {**TILED["passes"], "simplify": ["fold_constants"]}}})
    asked = ("compile", small.model(), *SHAPE, "--target", target, "-o", tmp_path / "p", "-v")
    code, out, err = cli(*asked)
    assert code == 0, err
    graphs, blocks = (
        "passes over Graphs, of target mine: fold_constants",
        "passes over Blocks, of target mine: autotile: ",
    )
    notes = read_package(tmp_path / "p").manifest.notes
    assert [n for n in notes if n.startswith("passes")] == [graphs, blocks + "{memory: near}"]
    assert out.count(graphs) == out.count(blocks) == 2  # the note, and why kernels are as they are
    assert "by the passes over Blocks, of target mine" in out
    code, out, err = cli(*asked, "--config", configured(tmp_path, passes=[]), "-o", tmp_path / "q")
    assert code == 0 and "passes over Blocks, of the configuration: none" in out and "by estimate" in out, err
    code, out, err = cli("compile", small.model(), *SHAPE, "-o", tmp_path / "r", "-v")
    assert code == 0 and "passes over Graphs, modelc's own: eliminate_dead, fold_constants, widen_halves" in out, err
    assert not [n for n in read_package(tmp_path / "r").manifest.notes if n.startswith("passes")]


# --- kernels of passes over Blocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("passes", [TILED["passes"]["schedule"], [{"autotile": {"memory": "L1", "sizes": "powers"}}]])
def test_kernels_of_passes_agree_with_onnxruntime_and_are_made_again(tmp_path: Path, passes: Any) -> None:
    target = described(tmp_path, {**TILED, "passes": {"schedule": passes}})
    result = modelc.compile(small.model(), target=target, shapes=small.SHAPES, output=tmp_path / "p", database=False)
    assert result.report is not None and result.report.passed
    choices = json.loads((tmp_path / "p/choices.json").read_text())
    assert any(b["tiles"] for task in choices["tasks"].values() for b in task["blocks"].values())
    rules = {stage["rule"] for task in choices["tasks"].values() for stage in task["stages"]}
    assert {"pad", "cache_read", "cache_write"} & rules == (
        set() if "L1" in str(passes) else {"pad", "cache_read", "cache_write"}
    )
    again = modelc.compile(small.model(), choices=tmp_path / "p/choices.json", output=tmp_path / "q", verify=False)
    assert again.chosen == again.kernels
    names = [path.name for path in (tmp_path / "p").iterdir() if path.suffix in (".so", ".bin")]
    assert len(names) == 2
    assert all((tmp_path / "p" / name).read_bytes() == (tmp_path / "q" / name).read_bytes() for name in names)


def test_what_no_passes_can_do_is_said(tmp_path: Path, cli: Any) -> None:
    target = described(tmp_path, TILED)
    code, _, err = cli("tune", small.model(), *SHAPE, "--target", target, "-o", tmp_path / "p")
    assert code == 2 and "nothing is left to tune: passes over Blocks, of target mine: autotile: {memory: near}" in err
    code, _, err = cli("compile", small.model(), "--target", target, "-o", tmp_path / "p")
    assert code == 2 and "does not go with passes over Blocks, of target mine, which tile for one size" in err
    target = described(tmp_path, {**TILED, "passes": {"schedule": [{"autotile": {"memory": "near", "bytes": 8}}]}})
    code, _, err = cli("compile", small.model(), *SHAPE, "--target", target, "-o", tmp_path / "p")
    assert code == 2 and "passes of target mine, task conv_relu_0 ('first', 'relu'): pass autotile finds no tile" in err
    assert "that fits in 8 bytes of near: the smallest takes" in err and not (tmp_path / "p").exists()


# --- what is wrong in a file ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"passes": ["fold_constants"]}, "passes is ['fold_constants']; expected a mapping with simplify"),
        ({"passes": {"graph": []}}, "passes has an unknown key 'graph'; expected simplify, schedule"),
        ({"passes": {"simplify": "fold_constants"}}, "passes.simplify is 'fold_constants'; expected a list of passes"),
        ({"passes": {"simplify": [7]}}, "passes.simplify[0] is 7; expected the name of a pass, or `name: {option"),
        ({"passes": {"simplify": [{"a": {}, "b": {}}]}}, "passes.simplify[0] is {'a': {}, 'b': {}}; expected the"),
        ({"passes": {"simplify": ["x"] * 101}}, "expected at most 100 passes"),
        (
            {"passes": {"simplify": ["fold_constant"]}},
            "passes.simplify[0]: unknown pass 'fold_constant'; the passes",
        ),
        ({"passes": {"simplify": ["fold_constant"]}}, "did you mean fold_constants?"),
        (
            {"passes": {"simplify": ["eliminate_dead", {"fold_constants": {"size": 1}}]}},
            "passes.simplify[1]: pass fold_constants has no option size; it has limit, dequantize",
        ),
        (
            {"passes": {"simplify": [{"fold_constants": {"limit": "many"}}]}},
            "pass fold_constants: option limit is 'many'; expected a whole number from 0",
        ),
        ({"passes": {"schedule": ["autotile"]}}, "passes.schedule[0]: pass autotile needs the option memory"),
        ({"passes": {"schedule": ["tensorize"]}}, "passes.schedule[0]: pass tensorize: it needs an intrinsic"),
        (
            {"memories": [NEAR], "passes": {"schedule": [{"autotile": {"memory": "near", "bytes": 9000}}]}},
            "passes.schedule[0]: pass autotile: option bytes is 9000; expected at most the 8192 bytes of near",
        ),
        ({"memories": {}}, "memories is {}; expected a list of memories that programs fill themselves"),
        ({"memories": [{**NEAR, "ways": 8}]}, "memories[0] has an unknown key 'ways'; expected name, bytes, line"),
        ({"memories": [{**NEAR, "bytes": 32}]}, "memories[0].bytes is 32; expected a whole number from 64"),
        (
            {"memories": [{**NEAR, "name": "L1"}]},
            "memories[0].name is 'L1'; expected a name that no cache and no",
        ),
        ({"memories": [NEAR, NEAR]}, "memories[1].name is 'near'; expected a name that no cache and no other memory"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, cli: Any, changes: dict[str, Any], sentence: str) -> None:
    path = described(tmp_path, changes)
    with pytest.raises(TargetError) as wrong:
        loaded(path)
    assert str(wrong.value).startswith(f"{path}: ") and sentence in str(wrong.value)
    for command in (("show",), ("check",)):
        code, out, err = cli("targets", *command, path)
        assert code == 2 and out == "" and sentence in err
    code, _, err = cli("compile", small.model(), *SHAPE, "--target", path, "-o", tmp_path / "p")
    assert code == 2 and sentence in err


@pytest.mark.parametrize(
    ("simplify", "passes", "sentence"),
    [
        (
            "all",
            "target",
            "simplify is 'all'; expected target (the list of its description, or else modelc's own)",
        ),
        (["clean"], "target", "simplify[0]: unknown pass 'clean'"),
        ("target", {}, "schedule.passes is {}; expected target (the list of its description"),
        (
            "target",
            [{"autotile": {"memory": "L9"}}],
            "the configuration: schedule.passes[0]: pass autotile: option memory",
        ),
    ],
)
def test_a_configuration_that_is_wrong(tmp_path: Path, cli: Any, simplify: Any, passes: Any, sentence: str) -> None:
    config = configured(tmp_path, simplify, passes)
    code, _, err = cli("compile", small.model(), *SHAPE, "--config", config, "-o", tmp_path / "p")
    assert code == 2 and sentence in err


def test_lists_read_back_equal(tmp_path: Path) -> None:
    target = loaded(described(tmp_path, {**TILED, "passes": {**TILED["passes"], **FEW["passes"]}}))
    assert target.memories == (Memory("near", 8192, 64),) and parse_target(target.to_yaml(), "again") == target
    assert target.key != loaded(described(tmp_path, {})).key  # another machine: it has a memory
    config = load_config(configured(tmp_path, FEW["passes"]["simplify"], TILED["passes"]["schedule"]))
    assert parse_config(config.to_json(), "again") == config
    assert scheduling(config, target).whose == "of the configuration"
    older = load_config().to_json()
    del older["schedule"]["passes"]  # a configuration of before
    assert parse_config(older, "older") == load_config()
    with pytest.raises(ConfigError, match="expected target"):
        parse_config({**older, "simplify": None}, "wrong")
