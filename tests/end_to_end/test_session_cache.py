"""What a session has compiled is compiled once: for each set of shapes, by one process of several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import session_models as models
from repository import ROOT

import modelc.session as ours
from modelc.cache import packages
from modelc.cli import main
from modelc.compile import command
from modelc.compile.opened import Open
from modelc.errors import ModelError
from modelc.runtime.refusals import Fail


@pytest.fixture
def compiled(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is compiled from now on, into an empty cache, unverified: the shapes of each, empty where they are open."""
    shapes, compile_request = [], command.compile_request

    def counted(request: Any) -> Any:
        shapes.append(request.shapes)
        return compile_request(replace(request, verify=False))

    monkeypatch.setattr(command, "compile_request", counted)
    return shapes


def doubled(session: Any, length: int) -> None:
    (y,) = session.run(None, {"x": np.ones(length, np.float32)})
    assert y.tolist() == [2.0] * length


def test_a_second_session_compiles_nothing(compiled: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(models.scaled(2))
    for given in (tmp_path / "a.onnx", str(tmp_path / "a.onnx"), models.scaled(2)):
        session = ours.InferenceSession(given)
        doubled(session, 3)
        doubled(session, 3)
        assert compiled == [()]
    doubled(session, 5)
    assert compiled == [()]  # of any size
    (y,) = ours.InferenceSession(models.scaled(4)).run(None, {"x": np.ones(3, np.float32)})
    assert y.tolist() == [4.0] * 3 and len(compiled) == 2  # another model


def test_the_file_may_be_removed_when_the_session_is_open(compiled: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(models.scaled(2))
    session = ours.InferenceSession(tmp_path / "a.onnx")
    (tmp_path / "a.onnx").unlink()
    doubled(session, 3)
    assert len(compiled) == 1


def test_fixed_shapes_are_compiled_at_once(compiled: list[dict[str, Any]]) -> None:
    session = ours.InferenceSession(models.scaled(2, [3]))
    assert compiled == [{"x": (3,)}]
    doubled(session, 3)
    assert len(compiled) == 1


def test_what_was_damaged_is_compiled_again(compiled: list[dict[str, Any]], tmp_path: Path) -> None:
    doubled(ours.InferenceSession(models.scaled(2)), 3)
    (place,) = (tmp_path / "cache/sessions").glob("*.modelc")
    (place / "manifest.json").write_text("{}")
    doubled(ours.InferenceSession(models.scaled(2)), 3)
    assert len(compiled) == 2


def test_a_size_out_of_bounds_is_compiled_by_itself(compiled: list[dict[str, Any]]) -> None:
    session = ours.InferenceSession(models.scaled(2))
    for length in (3, 1, 3, 5000, 7):
        doubled(session, length)
    assert compiled == [(), {"x": (5000,)}]


def test_the_first_sizes_matter_most(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    asked = list[dict[str, Any]]()

    def refused(request: Any) -> Any:
        asked.append(request.dims)
        raise ModelError("not compiled")

    monkeypatch.setattr(command, "compile_request", refused)
    for length in (3, 8):
        monkeypatch.setenv("MODELC_CACHE", str(empty_cache / str(length)))
        with pytest.raises(Fail):
            doubled(ours.InferenceSession(models.scaled(2)), length)
        assert asked.pop(0) == {"n": Open(range(1, 33), (length,))}
        asked.clear()  # of the shapes themselves, as there is no package of any size


def test_many_shapes_keep_few_packages_open(compiled: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelc.session.compiled.MOST_OPEN", 2)
    monkeypatch.setattr("modelc.session.compiled.package_of_any_size", lambda *_: None)
    session = ours.InferenceSession(models.scaled(2))
    for length in (1, 2, 3, 1):
        doubled(session, length)
        assert len(list(session._source.opened())) <= 2
    assert len(compiled) == 3
    session.close()


def test_the_cache_verb_says_and_removes_them(
    compiled: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    doubled(ours.InferenceSession(models.scaled(2)), 3)
    with pytest.raises(SystemExit):
        main(["cache", "show", "--json"])
    assert json.loads(capsys.readouterr().out)["packages"]["count"] == 1
    with pytest.raises(SystemExit):
        main(["cache", "clear"])
    assert packages.kept_packages() == (0, 0)
    doubled(ours.InferenceSession(models.scaled(2)), 3)
    assert len(compiled) == 2


def test_what_was_not_used_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    monkeypatch.setattr(packages, "MOST_BYTES", 1000)

    def make(place: Path) -> None:
        place.mkdir()
        (place / "file").write_bytes(bytes(400))

    places = [packages.package_of(key, make) for key in "abc"]
    assert all(place.exists() for place in places)  # each may be about to be opened
    monkeypatch.setattr(packages, "YOUNG", -1)
    for place, seconds in zip(places, (30, 10, 20), strict=True):
        os.utime(place, (seconds, seconds))
    packages.package_of("d", make)
    assert [place.exists() for place in places] == [True, False, False]


def test_where_the_cache_cannot_be_written_the_process_keeps_them(
    compiled: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MODELC_CACHE", str(tmp_path / "file"))
    doubled(ours.InferenceSession(models.scaled(2)), 3)
    assert packages.package_of("x", Path.mkdir).parent != tmp_path / "file/sessions"


TWO = """\
import sys
sys.path.insert(0, ROOT)
from dataclasses import replace
import numpy as np
import modelc.session as ort
from modelc.compile import command
from modelc.compile.opened import Open
from modelc.errors import ModelError
from modelc.runtime.refusals import Fail
compiled, original = [], command.compile_request
command.compile_request = lambda request: (compiled.append(request), original(replace(request, verify=False)))
session = ort.InferenceSession("m.onnx")
print("ready", flush=True)
sys.stdin.readline()
(y,) = session.run(None, {"x": np.ones(7, np.float32)})
print(len(compiled), y.tolist())
"""


def test_of_two_processes_one_compiles(tmp_path: Path, empty_cache: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(models.scaled(2))
    command = [sys.executable, "-c", TWO.replace("ROOT", repr(str(ROOT)))]
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        for _ in range(2)
    ]
    for process in both:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = sorted(process.communicate()[0] for process in both)
    assert said == [f"{n} {[2.0] * 7}\n" for n in (0, 1)]
