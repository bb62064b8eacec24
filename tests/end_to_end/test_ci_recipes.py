"""The recipes of docs/ci are YAML of GitHub's and GitLab's form, and every command of their steps does what it says on
a small matrix; what docs/build.md shows of modelc.yaml can be read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from onnx import helper
from repository import ROOT
from small_model import save

from modelc.build.cells import cells_of
from modelc.build.matrix import parse_matrix, read_matrix
from modelc.errors import ModelcError
from modelc.package import emulator, find_toolchain

RECIPES = ROOT / "docs/ci"
INSTALLS = re.compile(r"\s*(sudo )?(apt-get|pip) ")  # what a step installs is there already
SHARDS = 2


def recipe(name: str) -> Any:
    return yaml.safe_load((RECIPES / name).read_text())


def github_commands(shard: int) -> Iterator[str]:
    """Of the job's steps, in their order."""
    (job,) = recipe("github.yml")["jobs"].values()
    for step in job["steps"]:
        assert ("uses" in step) != ("run" in step)
        if "run" in step:
            yield step["run"].replace("${{ matrix.shard }}", str(shard))


def gitlab_commands() -> Iterator[str]:
    (job,) = recipe("gitlab.yml").values()
    for part in ("before_script", "script", "after_script"):
        yield from job[part]


def installs(command: str) -> bool:
    return all(INSTALLS.match(line) for line in command.splitlines())


def test_recipes_have_the_parts_that_they_promise() -> None:
    (job,) = recipe("github.yml")["jobs"].values()
    assert job["strategy"]["matrix"]["shard"] == list(range(1, SHARDS + 1))
    uses = {step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step}
    assert {"actions/checkout", "actions/cache", "actions/upload-artifact"} <= uses
    assert any("$GITHUB_STEP_SUMMARY" in step.get("run", "") for step in job["steps"])
    (cached,) = [step["with"] for step in job["steps"] if step.get("uses", "").startswith("actions/cache@")]
    assert job["env"]["MODELC_CACHE"].endswith(cached["path"])
    (job,) = recipe("gitlab.yml").values()
    assert job["parallel"] == SHARDS and job["cache"]["paths"] and job["artifacts"]["reports"]["junit"]
    assert job["variables"]["MODELC_CACHE"].endswith(job["cache"]["paths"][0].rstrip("/"))


def test_every_target_of_the_matrix_is_there() -> None:
    matrix = read_matrix(RECIPES / "modelc.yaml")
    labels = [cell.target.label for cell in cells_of(matrix)]
    assert labels == ["x86-64-v3", "cortex-a76", "armv7-neon"]


def test_what_the_page_shows_can_be_read() -> None:
    page = (ROOT / "docs/build.md").read_text()
    (shown,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    matrix = parse_matrix(yaml.safe_load(shown), Path("modelc.yaml"))
    cells, text = cells_of(matrix), matrix.models[1]
    assert len(cells) == 7 and text.gates.params == 30_000_000 and text.options["max_params"] == "1.5x"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with the matrix, a small model, and a program `modelc`."""
    for triple in ("aarch64-linux-gnu", "arm-linux-gnueabihf"):
        try:
            find_toolchain(triple)
            emulator(triple, ())
        except ModelcError as error:
            pytest.skip(f"the matrix has other machines: {error}")
    pytest.importorskip("vl_convert", reason="what draws is not installed: pip install 'modelc-compiler[report]'")
    (tmp_path / "models").mkdir()
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    save(tmp_path / "models/detector.onnx", nodes, {"x": ["batch", 8]}, {"y": ["batch", 8]}, {})
    shutil.copy(RECIPES / "modelc.yaml", tmp_path)
    program = tmp_path / "bin/modelc"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m modelc "$@"\n')
    program.chmod(0o755)
    return tmp_path


def run(command: str, project: Path, **more: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MODELC_CACHE": str(project / ".modelc-cache"), **more}
    env["PATH"] = f"{project / 'bin'}:{env['PATH']}"
    done = subprocess.run(["sh", "-ec", command], cwd=project, env=env, capture_output=True, text=True)
    assert not done.returncode, f"{command}\n{done.stdout}{done.stderr}"


def test_the_commands_of_every_step(project: Path) -> None:
    """GitHub's first shard, then GitLab's second."""
    summary = project / "summary.md"
    for command in github_commands(1):
        if not installs(command):
            run(command, project, GITHUB_STEP_SUMMARY=str(summary))
    assert summary.read_text().count("## modelc build") == 1
    assert len(list((project / "build").glob("*.modelc"))) == 2
    assert len(list((project / "build").glob("report-*.html"))) == 1
    shutil.rmtree(project / "build")
    commands = list(gitlab_commands())
    assert any(map(installs, commands))
    for command in commands:
        if not installs(command):
            run(command, project, CI_NODE_INDEX="2", CI_NODE_TOTAL=str(SHARDS))
    (package,) = (project / "build").glob("*.modelc")
    assert package.name == "detector.cortex-a76.f32.modelc"
    (job,) = recipe("gitlab.yml").values()
    assert list(project.glob(job["artifacts"]["reports"]["junit"]))
