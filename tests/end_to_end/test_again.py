"""What was compiled before is not worked out again, packages are the same either way, and what is wrong is caught."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import small_model as small
from onnx import helper

import modelc
from modelc.cache import store
from modelc.codegen import kernels
from modelc.errors import VerificationError
from modelc.space import choose
from modelc.space.rules import derivation
from modelc.space.rules.rule import Rule
from modelc.space.sketch import Sketch

TARGET = "x86-64-v3"
SHAPE = {"x": [1, 8, 12, 12]}


def layers(path: Path, activation: str = "Relu", seed: int = 0) -> Path:
    """Two convolutions; the one behind has an `activation`."""
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(size=(8, 8, 3, 3)).astype(np.float32) for name in ("w", "v")}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first", pads=[1] * 4),
        helper.make_node("Sigmoid", ["a"], ["b"], "second"),
        helper.make_node("Conv", ["b", "v"], ["c"], "third", strides=[2, 2]),
        helper.make_node(activation, ["c"], ["y"], "fourth"),
    ]
    return small.save(path, nodes, SHAPE, {"y": [1, 8, 5, 5]}, weights)


@pytest.fixture
def anew(tmp_path, monkeypatch):
    """Forgets what this process knows, and has a cache of its own."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(store, "user_cache", lambda: folder)

    def forget() -> None:
        choose.constructions.cache_clear()
        store._store.cache_clear()

    forget()
    return forget


@pytest.fixture
def counted(monkeypatch) -> Counter[str]:
    """How often Sketches were made of a Task, points priced, Nests verified, and kernels compiled."""
    counts: Counter[str] = Counter()

    def count(place: object, name: str) -> None:
        function = getattr(place, name)

        def counting(*arguments):
            counts[name] += 1
            return function(*arguments)

        monkeypatch.setattr(place, name, counting)

    for place, name in ((choose, "families"), (choose, "verify_nest"), (kernels, "compile_nest"), (Sketch, "estimate")):
        count(place, name)
    return counts


def package(model: Path, place: Path, **more) -> dict[str, bytes]:
    modelc.compile(model, target=TARGET, output=place, database=False, **{"verify": False, **more})
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_second_compile_works_nothing_out(tmp_path, anew, counted) -> None:
    model = layers(tmp_path / "m.onnx")
    first = package(model, tmp_path / "1.modelc")
    assert min(counted[name] for name in ("families", "verify_nest", "compile_nest", "estimate")) > 0
    counted.clear()
    anew()
    again = package(model, tmp_path / "2.modelc")
    assert again == first and not +counted
    anew()
    assert package(model, tmp_path / "3.modelc", cache=False) == first and counted["compile_nest"] > 0


def test_a_layer_that_changed_costs_that_layer(tmp_path, anew, counted) -> None:
    package(layers(tmp_path / "m.onnx"), tmp_path / "1.modelc")
    kernels_of_all = counted["compile_nest"]
    counted.clear()
    anew()
    package(layers(tmp_path / "m.onnx", "Tanh"), tmp_path / "2.modelc")
    assert counted["compile_nest"] == 1 < kernels_of_all
    counted.clear()
    anew()
    package(layers(tmp_path / "m.onnx", seed=1), tmp_path / "3.modelc")  # other weights: the same kernels
    assert not +counted


def test_what_a_users_rules_make_is_not_kept(tmp_path, anew, counted, monkeypatch) -> None:
    """Their code is no part of a key."""
    model = layers(tmp_path / "m.onnx")
    monkeypatch.setitem(derivation._RULES, "mine", Rule("mine", lambda task: task))
    for place in ("1.modelc", "2.modelc"):
        counted.clear()
        anew()
        package(model, tmp_path / place)
        assert counted["compile_nest"] > 0 and counted["families"] > 0


def test_wrong_machine_code_in_the_cache_is_caught_by_verification(tmp_path, anew) -> None:
    """As of a kernel that was kept for another Task: the row is whole, and its code gives other numbers."""
    shape = {"x": [1, 8, 12, 12]}
    models = [
        small.save(tmp_path / f"{op}.onnx", [helper.make_node(op, ["x"], ["y"])], shape, {"y": shape["x"]}, {})
        for op in ("Abs", "Neg")
    ]
    rows = []
    put = store.Store.put
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.Store, "put", lambda self, kind, new: (rows.append((kind, new)), put(self, kind, new)))
        for model in models:
            modelc.compile(model, output=tmp_path / f"{model.stem}.modelc", prefix="net", database=False)
    (right, code), (_, other) = (next(iter(new.items())) for kind, new in rows if kind == "kernel")
    symbols = [json.loads(data.partition(b"\n")[0])["symbol"].encode() for data in (code, other)]
    anew()
    store.user_store().put("kernel", {right: other.replace(symbols[1], symbols[0])})
    anew()
    with pytest.raises(VerificationError):
        modelc.compile(models[0], output=tmp_path / "wrong.modelc", prefix="net", database=False)
    assert not (tmp_path / "wrong.modelc").exists()


@pytest.mark.parametrize("threads", ["1", "3"])
def test_packages_are_the_same_by_any_number_of_processes(tmp_path, threads) -> None:
    model = layers(tmp_path / "m.onnx")
    flags = ["--target", TARGET, "--no-verify", "--no-database", "--no-cache", "--threads", threads]
    command = [sys.executable, "-m", "modelc", "compile", str(model), "-o", str(tmp_path / "p.modelc"), *flags]
    subprocess.run(command, check=True, capture_output=True)
    made = {str(p.relative_to(tmp_path / "p.modelc")): p.read_bytes() for p in (tmp_path / "p.modelc").rglob("*.*")}
    expected = package(model, tmp_path / "q.modelc", cache=False)
    assert made == expected


def test_what_compiling_asks_for_stays_as_it_is(tmp_path, anew, counted) -> None:
    """Counted, not timed: of two convolutions and a map, each in two layouts and several Sketches."""
    package(layers(tmp_path / "m.onnx"), tmp_path / "p.modelc")
    limits = {"families": 20, "estimate": 250, "verify_nest": 4, "compile_nest": 4}
    assert all(counted[name] <= most for name, most in limits.items()), counted


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this machine has one CPU")
def test_verification_says_the_same_on_any_number_of_cores(tmp_path) -> None:
    """Kernels are judged in lanes, whoever judges them; a value that departs is compared with its piece."""
    shape = {"x": [1, 8, 96, 96]}
    rng = np.random.default_rng(3)
    weights = {name: rng.normal(size=(8, 8, 3, 3)).astype(np.float32) for name in "abc"}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"], pads=[1] * 4),
        helper.make_node("Relu", ["p"], ["q"]),
        helper.make_node("Conv", ["q", "b"], ["r"], pads=[1] * 4),
        helper.make_node("Add", ["r", "q"], ["s"]),
        helper.make_node("Conv", ["s", "c"], ["y"], pads=[1] * 4),
    ]
    model = small.save(tmp_path / "m.onnx", nodes, shape, {"y": shape["x"]}, weights)
    modelc.compile(model, output=tmp_path / "p.modelc", verify=False, database=False)
    command = [sys.executable, "-m", "modelc", "verify", str(tmp_path / "p.modelc"), "--against", str(model)]
    said = []
    for cpus in (os.sched_getaffinity(0), {min(os.sched_getaffinity(0))}):
        done = subprocess.run(
            [*command, "--per-layer", "--json"],
            check=True,
            capture_output=True,
            preexec_fn=lambda cpus=cpus: os.sched_setaffinity(0, cpus),
        )
        said.append(json.loads(done.stdout))
    assert said[0] == said[1] and said[0]["summary"]["passed"]
